"""`lancehouse table`: tables in any catalog that the clients reach."""

from __future__ import annotations

import click

from lancehouse.cli.lazy import Group, Lazy

ENTRIES = "lancehouse.cli.entries"
ROWS = "lancehouse.cli.rows"
UPKEEP = "lancehouse.cli.upkeep"

COMMANDS = (
    Lazy("cleanup", UPKEEP, "Remove old versions and what only they need."),
    Lazy("compact", UPKEEP, "Make fewer, larger fragments without deleted rows."),
    Lazy("count", ROWS, "Count the rows of the table ID."),
    Lazy("deregister", ENTRIES, "Take the table ID out of the catalog; its data stays."),
    Lazy("describe", ENTRIES, "Show what is known of the table ID."),
    Lazy("drop", ENTRIES, "Drop the table ID with its data."),
    Lazy("history", ENTRIES, "Show the versions of the table ID, the latest first."),
    Lazy("index", UPKEEP, "Build an index of a column of the table ID."),
    Lazy("list", ENTRIES, "Show the tables of a namespace.", attribute="list_tables"),
    Lazy("manage", "lancehouse.cli.manage", "Say who decides which version is the current one."),
    Lazy("optimize-indices", UPKEEP, "Take rows into the indices that came after them."),
    Lazy("preview", ROWS, "Show the first rows of the table ID."),
    Lazy("register", ENTRIES, "Bring the Lance dataset at LOCATION into the catalog."),
    Lazy("remove-orphans", UPKEEP, "Remove files of killed jobs, which no version names."),
    Lazy("rename", ENTRIES, "Give the table ID another name, or another namespace."),
    Lazy("schema", ENTRIES, "Show the columns of the table ID."),
    Lazy(
        "search",
        "lancehouse.cli.search",
        "Show rows nearest to a vector, or with some words.",
    ),
    Lazy("tag", "lancehouse.cli.tag", "Name versions of a table.", is_group=True),
)


@click.group(cls=Group, lazy=COMMANDS)
def table() -> None:
    """Look at tables, and look after them.

    ID is wh.db.docs, all levels joined by dots; a level with a dot stands in backquotes: 'wh.`my.db`.docs'.
    """
