"""`lancehouse table tag`: names of versions, which clean-up spares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lancehouse.cli.catalogs import with_client, with_table
from lancehouse.cli.lazy import Group
from lancehouse.cli.moments import VERSION
from lancehouse.cli.output import Column
from lancehouse.cli.words import counted

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import App

Levels = tuple[str, ...]

TAGS = (Column("tag", "Tag"), Column("version", "Version", is_number=True), Column("branch", "Branch"))

with_name = click.argument("name", metavar="TAG")


@click.group(cls=Group)
def tag() -> None:
    """Name versions of a table.

    Clean-up spares a version that has a tag, and readers find it by its name.
    """


@tag.command("list")
@with_table
@with_client
@click.pass_obj
def list_all(app: App, table: Levels, client: Client) -> None:
    """Show the tags of the table ID."""
    found = {name: tag for page in client.pages("list_table_tags", table) for name, tag in page.tags.items()}
    rows = [{"tag": name, "version": tag.version, "branch": tag.branch} for name, tag in sorted(found.items())]
    words = f"{client.shown(table)}: {counted(len(rows), 'tag')}"
    app.output.table(TAGS, rows, {"table": client.shown(table), "count": len(rows)}, words, name="tags")


@tag.command()
@with_table
@with_name
@click.option("--version", type=VERSION, metavar="N", help="Which one; default: the latest.")
@with_client
@click.pass_obj
def create(app: App, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Give a version of the table ID the name TAG."""
    at = _version(client, table, version)
    client.call("create_table_tag", table, tag=name, version=at)
    app.output.record("", {"table": client.shown(table), "tag": name, "version": at})


@tag.command()
@with_table
@with_name
@click.option("--version", type=VERSION, metavar="N", help="Which one; default: the latest.")
@with_client
@click.pass_obj
def update(app: App, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Let TAG name another version of the table ID."""
    before, at = _tagged(client, table, name), _version(client, table, version)
    client.call("update_table_tag", table, tag=name, version=at)
    app.output.record("", {"table": client.shown(table), "tag": name, "before": before, "version": at})


@tag.command()
@with_table
@with_name
@with_client
@click.pass_obj
def delete(app: App, table: Levels, name: str, client: Client) -> None:
    """Remove TAG from the table ID; the version that it named stays, until clean-up."""
    before = _tagged(client, table, name)
    client.call("delete_table_tag", table, tag=name)
    app.output.record("", {"table": client.shown(table), "deleted": name, "version": before})


def _tagged(client: Client, table: Levels, name: str) -> int:
    return int(client.call("get_table_tag_version", table, tag=name).version)


def _version(client: Client, table: Levels, version: int | None) -> int:
    """The version that is meant, which is there."""
    with client.opened(table, version=version) as (_, dataset):
        return int(dataset.version)
