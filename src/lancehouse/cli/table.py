"""`lancehouse table`: the group of commands on tables."""

from __future__ import annotations

import click

from lancehouse.cli.lazy_commands import LazyCommand, LazyGroup

ENTRIES = "lancehouse.cli.table_entries"
ROWS = "lancehouse.cli.rows"
UPKEEP = "lancehouse.cli.upkeep"

COMMANDS = (
    LazyCommand("cleanup", UPKEEP, "Remove old versions and what only they need."),
    LazyCommand("compact", UPKEEP, "Make fewer, larger fragments without deleted rows."),
    LazyCommand("count", ROWS, "Count the rows of the table ID."),
    LazyCommand("deregister", ENTRIES, "Take the table ID out of the catalog; its data stays."),
    LazyCommand("describe", ENTRIES, "Show what is known of the table ID."),
    LazyCommand("drop", ENTRIES, "Drop the table ID with its data."),
    LazyCommand("history", ENTRIES, "Show the versions of the table ID, the latest first."),
    LazyCommand("index", UPKEEP, "Build an index of a column of the table ID."),
    LazyCommand("list", ENTRIES, "Show the tables of a namespace.", attribute="list_tables"),
    LazyCommand("manage", "lancehouse.cli.manage", "Say who decides which version is the current one."),
    LazyCommand("optimize-indices", UPKEEP, "Take rows into the indices that came after them."),
    LazyCommand("preview", ROWS, "Show the first rows of the table ID."),
    LazyCommand("register", ENTRIES, "Bring the Lance dataset at LOCATION into the catalog."),
    LazyCommand("remove-orphans", UPKEEP, "Remove files of killed jobs, which no version names."),
    LazyCommand("rename", ENTRIES, "Give the table ID another name, or another namespace."),
    LazyCommand("schema", ENTRIES, "Show the columns of the table ID."),
    LazyCommand(
        "search",
        "lancehouse.cli.search",
        "Show rows nearest to a vector, or with some words.",
    ),
    LazyCommand("tag", "lancehouse.cli.tag", "Name versions of a table.", is_group=True),
)


@click.group(cls=LazyGroup, lazy=COMMANDS)
def table() -> None:
    """Look at tables, and look after them.

    ID is wh.db.docs, all levels joined by dots; a level with a dot stands in backquotes: 'wh.`my.db`.docs'.
    """
