"""`lancehouse table list`, `describe`, `register` and the like: tables as the catalog has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.asking import confirm, with_yes
from lancehouse.cli.catalogs import chosen, name, with_client, with_set, with_table
from lancehouse.cli.moments import Moment, with_moment
from lancehouse.cli.namespace import with_below, with_recursive
from lancehouse.cli.output import Column
from lancehouse.cli.rows import COUNT
from lancehouse.cli.words import counted, hidden, moment, size

if TYPE_CHECKING:
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import App

Levels = tuple[str, ...]

TABLES = (Column("table", "Table"),)
VERSIONS = (
    Column("version", "Version", is_number=True),
    Column("at", "When"),
    Column("operation", "By"),
    Column("rows", "Rows", is_number=True),
    Column("files", "Files", is_number=True),
    Column("size", "Size", is_number=True),
    Column("tags", "Tags"),
)
COLUMNS = (Column("name", "Column"), Column("type", "Type"), Column("null", "Null"))


@click.command("list")
@with_below
@with_recursive
@with_client
@click.pass_obj
def list_tables(app: App, namespace: Levels, recursive: bool, client: Client) -> None:
    """Show the tables of a namespace.

    Without ID, those of the whole catalog.
    """
    from lance_namespace.errors import InvalidInputError

    from lancehouse.trees import all_tables

    shown = client.shown(namespace)
    recursive = recursive or not shown
    with app.output.progress("listing tables"):
        try:
            found = list(all_tables(client, namespace)) if recursive else client.tables(namespace)
        except InvalidInputError as error:
            if not recursive and namespace:
                command = client.shell.command("table", "list", shown, "--recursive")
                error.add_note(f"`{command}` lists those of all namespaces below it")
            raise
    rows = [{"table": client.shown(each), "id": list(each)} for each in found]
    summary = {"namespace": list(namespace), "count": len(rows)}
    app.output.table(
        TABLES, rows, summary, f"{counted(len(rows), 'table')}{f' in {shown}' * bool(shown)}", name="tables"
    )


@click.command()
@with_table
@with_client
@click.pass_obj
def describe(app: App, table: Levels, client: Client) -> None:
    """Show what is known of the table ID.

    Where it lies, its current version, and how much is in it; properties without their secrets.
    """
    from lance_namespace.errors import TableNotFoundError

    from lancehouse.properties import IMPL, MANAGED_BY, STORAGE

    entry = client.call("describe_table", table)
    fields: dict[str, Any] = {
        "table": client.shown(table),
        "location": entry.location,
        MANAGED_BY: IMPL if entry.managed_versioning else STORAGE,
    }
    try:
        fields |= _inside(client, table)
    except TableNotFoundError:
        fields["version"] = None  # it is declared, and has no data yet
    app.output.record("", {**fields, "properties": hidden(entry.properties)})


def _inside(client: Client, table: Levels) -> dict[str, Any]:
    from lancehouse.lake.versions import millis

    with client.opened(table) as (_, dataset):
        now, stats, names = dataset.get_version(), dataset.stats.dataset_stats(), dataset.schema.names
    indices = client.call("list_table_indices", table).indexes
    return {
        "version": now["version"],
        "changed": moment(millis(now["timestamp"])),
        "rows": int(now["metadata"].get("total_rows", 0)),
        "deleted_rows": stats["num_deleted_rows"],
        "fragments": stats["num_fragments"],
        "bytes": int(now["metadata"].get("total_files_size", 0)),
        "columns": names,
        "indices": sorted({f"{each.index_name} ({', '.join(each.columns)})" for each in indices}),
    }


@click.command()
@with_table
@with_moment
@with_client
@click.pass_obj
def schema(app: App, table: Levels, at: Moment, client: Client) -> None:
    """Show the columns of the table ID."""
    from lancehouse.schema.shown import field_json

    with client.opened(table, **at.arguments) as (_, dataset):
        columns, version = list(map(field_json, dataset.schema)), dataset.version
    rows = [{**column, "null": "yes" if column["nullable"] else "no"} for column in columns]
    summary = {"table": client.shown(table), "version": version}
    words = f"{client.shown(table)}, version {version}: {counted(len(rows), 'column')}"
    app.output.table(COLUMNS, rows, summary, words, name="columns")


@click.command()
@with_table
@click.option("--limit", type=COUNT, metavar="N", help="Only so many, the latest.")
@with_client
@click.pass_obj
def history(app: App, table: Levels, limit: int | None, client: Client) -> None:
    """Show the versions of the table ID, the latest first."""
    with app.output.progress("reading versions"):
        rows = list(islice(_versions(client, table, limit), limit))
    words = f"{client.shown(table)}: {'the latest ' * (len(rows) == limit)}{counted(len(rows), 'version')}"
    app.output.table(VERSIONS, rows, {"table": client.shown(table), "count": len(rows)}, words, name="versions")


def _versions(client: Client, table: Levels, limit: int | None) -> Iterator[dict[str, Any]]:
    from lancehouse.lake import timeline
    from lancehouse.lake.dataset import TableRef

    named = TableRef.of(client.namespace, table)
    with client.explained(table):
        tags: dict[int, list[str]] = {}
        for tag, (branch, version) in timeline.refs(named).tags.items():
            if branch is None:
                tags.setdefault(version, []).append(tag)
        for numbers in client.versions(table, limit):
            for made in timeline.read(named, numbers):
                at, names = moment(made.timestamp_ms), tags.get(made.version, [])
                yield {**asdict(made), "at": at, "size": size(made.bytes), "tags": names}


@click.command()
@with_table
@click.argument("location")
@click.option("--overwrite", is_flag=True, help="Instead of the table that has this name; its data stays.")
@with_set("table")
@with_client
@click.pass_obj
def register(app: App, table: Levels, location: str, overwrite: bool, stored: dict[str, str], client: Client) -> None:
    """Bring the Lance dataset at LOCATION into the catalog.

    LOCATION is a folder or a URL (s3://, gs://, az://) that the catalog's readers can reach too. No data is moved.
    """
    from lance_namespace.errors import TableAlreadyExistsError

    mode = "Overwrite" if overwrite else "Create"
    try:
        made = client.call("register_table", table, location=location, mode=mode, properties=stored or None)
    except TableAlreadyExistsError as error:
        error.add_note("--overwrite puts this one in its place; the data of the other stays")
        raise
    app.output.record("", {"table": client.shown(table), "location": made.location or location})


@click.command()
@with_table
@with_yes
@with_client
@click.pass_obj
def deregister(app: App, table: Levels, yes: bool, client: Client) -> None:
    """Take the table ID out of the catalog; its data stays."""
    shown, where = client.shown(table), _location(client, table)
    confirm(app, f"Take the table {shown} out of the catalog? Its data at {where} stays.", yes=yes)
    with _as_it_was_described(client):
        gone = client.call("deregister_table", table)
    app.output.record("", {"deregistered": shown, "location": gone.location or where})


@click.command()
@with_table
@with_yes
@with_client
@click.pass_obj
def drop(app: App, table: Levels, yes: bool, client: Client) -> None:
    """Drop the table ID with its data.

    It cannot be undone; `deregister` leaves the data where it is.
    """
    shown, where = client.shown(table), _location(client, table)
    confirm(app, f"Drop the table {shown} and all its data at {where}?", yes=yes)
    with _as_it_was_described(client):
        gone = client.call("drop_table", table)
    app.output.record("", {"dropped": shown, "location": gone.location or where})


@contextmanager
def _as_it_was_described(client: Client) -> Iterator[None]:
    """Lance's `dir` describes tables that somebody wrote past it, and then does not find them."""
    from lance_namespace.errors import TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        if client.target.impl != "dir":
            raise
        told = TableNotFoundError(str(error))
        told.add_note("one that was written past the catalog goes with --property manifest_enabled=false")
        raise told from error


def _location(client: Client, table: Levels) -> str:
    """Where a table lies, which has to be there."""
    return str(client.call("describe_table", table).location)


@click.command()
@with_table
@click.argument("new", metavar="NEW", callback=name)
@with_client
@click.pass_context
def rename(ctx: click.Context, table: Levels, new: Levels, client: Client) -> None:
    """Give the table ID another name, or another namespace.

    NEW is a name alone, in the same namespace, or a whole id.
    """
    from lance_namespace.errors import UnsupportedOperationError

    app: App = ctx.obj
    target = (*table[:-1], *new) if len(new) == 1 else (*chosen(ctx).parent, *new)
    try:
        client.call("rename_table", table, new_table_name=target[-1], new_namespace_id=list(target[:-1]))
    except UnsupportedOperationError as error:
        register = client.shell.command("table", "register", client.shown(target), "LOCATION")
        deregister = client.shell.command("table", "deregister", client.shown(table))
        where = "is the part below the catalog's root" if client.target.impl == "dir" else "is what `describe` shows"
        error.add_note(f"`{deregister}` and `{register}` come to the same; LOCATION {where}")
        raise
    app.output.record("", {"table": client.shown(table), "renamed": client.shown(target)})
