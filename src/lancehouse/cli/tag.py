"""`lancehouse table tag`: manage tags, which name versions and keep clean-up from removing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lancehouse.cli.catalog_options import with_client, with_table
from lancehouse.cli.formatting import format_count
from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.output import OutputColumn
from lancehouse.cli.version_options import VERSION

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext

Levels = tuple[str, ...]

TAGS = (
    OutputColumn("tag", "Tag"),
    OutputColumn("version", "Version", is_number=True),
    OutputColumn("branch", "Branch"),
)

with_name = click.argument("name", metavar="TAG")


@click.group(cls=LazyGroup)
def tag() -> None:
    """Name versions of a table.

    Clean-up spares a version that has a tag, and readers find it by its name.
    """


@tag.command("list")
@with_table
@with_client
@click.pass_obj
def list_tags(app: CliContext, table: Levels, client: Client) -> None:
    """Show the tags of the table ID."""
    tags = {name: tag for page in client.pages("list_table_tags", table) for name, tag in page.tags.items()}
    rows = [{"tag": name, "version": tag.version, "branch": tag.branch} for name, tag in sorted(tags.items())]
    words = f"{client.format_id(table)}: {format_count(len(rows), 'tag')}"
    app.output.table(TAGS, rows, {"table": client.format_id(table), "count": len(rows)}, words, name="tags")


@tag.command()
@with_table
@with_name
@click.option("--version", type=VERSION, metavar="N", help="Which one; default: the latest.")
@with_client
@click.pass_obj
def create(app: CliContext, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Give a version of the table ID the name TAG."""
    at = _resolve_version(client, table, version)
    client.call("create_table_tag", table, tag=name, version=at)
    app.output.record("", {"table": client.format_id(table), "tag": name, "version": at})


@tag.command()
@with_table
@with_name
@click.option("--version", type=VERSION, metavar="N", help="Which one; default: the latest.")
@with_client
@click.pass_obj
def update(app: CliContext, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Let TAG name another version of the table ID."""
    before, at = _get_tag_version(client, table, name), _resolve_version(client, table, version)
    client.call("update_table_tag", table, tag=name, version=at)
    app.output.record("", {"table": client.format_id(table), "tag": name, "before": before, "version": at})


@tag.command()
@with_table
@with_name
@with_client
@click.pass_obj
def delete(app: CliContext, table: Levels, name: str, client: Client) -> None:
    """Remove TAG from the table ID; the version that it named stays, until clean-up."""
    before = _get_tag_version(client, table, name)
    client.call("delete_table_tag", table, tag=name)
    app.output.record("", {"table": client.format_id(table), "deleted": name, "version": before})


def _get_tag_version(client: Client, table: Levels, name: str) -> int:
    return int(client.call("get_table_tag_version", table, tag=name).version)


def _resolve_version(client: Client, table: Levels, version: int | None) -> int:
    """Return a version, the latest by default, after checking that it exists."""
    with client.open_table(table, version=version) as (_, dataset):
        return int(dataset.version)
