"""`lancehouse table`: list, describe, register, rename and drop tables, their versions, tags and managers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.lazy_commands import LazyCommand, LazyGroup
from lancehouse.cli.namespace import with_optional_namespace, with_recursive
from lancehouse.cli.options import (
    COUNT,
    VERSION,
    Levels,
    confirm,
    get_catalog,
    parse_optional_name,
    parse_required_name,
    with_client,
    with_set,
    with_table,
    with_version_options,
    with_yes,
)
from lancehouse.cli.output import format_count, format_size, format_time, output_columns
from lancehouse.properties import IMPL, MANAGED_BY, STORAGE

if TYPE_CHECKING:
    import pyarrow as pa
    from lance_namespace import LanceNamespace

    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.clients.iceberg import IcebergNamespace
    from lancehouse.wire.iceberg import DroppedTable


ROWS = "lancehouse.cli.table_rows"
MAINTENANCE = "lancehouse.cli.table_maintenance"
COMPUTED = "lancehouse.cli.table_columns"

COMMANDS = (
    LazyCommand("backfill", COMPUTED, "Fill computed columns of the table ID."),
    LazyCommand("cleanup", MAINTENANCE, "Remove old versions and files that only they use."),
    LazyCommand("columns", COMPUTED, "Show the computed columns of the table ID."),
    LazyCommand("compact", MAINTENANCE, "Merge small fragments, and drop deleted rows."),
    LazyCommand("count", ROWS, "Count the rows of the table ID."),
    LazyCommand("errors", COMPUTED, "Show the rows for which a computed column failed."),
    LazyCommand("index", MAINTENANCE, "Create an index on a column of the table ID."),
    LazyCommand("lineage", COMPUTED, "Show the sources and computed columns of the table ID."),
    LazyCommand("optimize-indices", MAINTENANCE, "Add new rows to existing indices."),
    LazyCommand("preview", ROWS, "Show the first rows of the table ID."),
    LazyCommand("recall", MAINTENANCE, "Measure how well and how fast a vector index finds rows."),
    LazyCommand("refresh", COMPUTED, "Update the materialized view ID."),
    LazyCommand("remove-orphans", MAINTENANCE, "Remove files of failed jobs that no version refers to."),
    LazyCommand(
        "search",
        ROWS,
        "Search rows by vector similarity or full text.",
    ),
)


@click.group(cls=LazyGroup, lazy=COMMANDS)
def table() -> None:
    """List, inspect, change and maintain tables.

    ID is wh.db.docs, all levels joined by dots; put a level with a dot in backquotes:
    'wh.`my.db`.docs'.
    """


TABLES = output_columns(table="Table")
VERSIONS = output_columns(
    version="Version",
    at="When",
    operation="By",
    rows="Rows",
    files="Files",
    size="Size",
    tags="Tags",
    message="Message",
    numbers=("version", "rows", "files", "size"),
)
COLUMNS = output_columns(name="Column", type="Type", null="Null")


@table.command("list")
@with_optional_namespace
@with_recursive
@click.option("--dropped", is_flag=True, help="List the dropped tables in ID and below, which `undrop` can restore.")
@with_client
@click.pass_obj
def list_tables(app: CliContext, namespace: Levels, recursive: bool, dropped: bool, client: Client) -> None:
    """List the tables of a namespace.

    Without ID, list those of the whole catalog.
    """
    from lance_namespace.errors import InvalidInputError

    if dropped:
        _list_dropped(app, namespace, client)
        return

    from lancehouse.catalog_walk import walk_tables

    namespace_text = client.format_id(namespace)
    recursive = recursive or not namespace_text
    with app.output.progress("listing tables"):
        try:
            tables = list(walk_tables(client, namespace)) if recursive else client.tables(namespace)
        except InvalidInputError as error:
            if not recursive and namespace:
                command = client.shell.command("table", "list", namespace_text, "--recursive")
                error.add_note(f"`{command}` lists those of all namespaces below it")
            raise
    rows = [{"table": client.format_id(table), "id": list(table)} for table in tables]
    summary = {"namespace": list(namespace), "count": len(rows)}
    app.output.table(
        TABLES,
        rows,
        summary,
        f"{format_count(len(rows), 'table')}{f' in {namespace_text}' * bool(namespace_text)}",
        name="tables",
    )


@table.command()
@with_table
@with_client
@click.pass_obj
def describe(app: CliContext, table: Levels, client: Client) -> None:
    """Show details of the table ID.

    Its location, current version, size, and properties without secrets.
    """
    from lance_namespace.errors import TableNotFoundError

    from lancehouse.properties import IMPL, MANAGED_BY, STORAGE
    from lancehouse.secrets import redact_properties

    entry = client.call("describe_table", table)
    fields: dict[str, Any] = {
        "table": client.format_id(table),
        "location": entry.location,
        MANAGED_BY: IMPL if entry.managed_versioning else STORAGE,
    }
    try:
        fields |= _dataset_details(client, table)
    except TableNotFoundError:
        fields["version"] = None  # it is declared only, and has no data yet
    app.output.record({**fields, "properties": redact_properties(entry.properties)})


def _dataset_details(client: Client, table: Levels) -> dict[str, Any]:
    from lancehouse.lake.column_states import describe_columns
    from lancehouse.lake.dataset import to_millis
    from lancehouse.schema.definitions import shown_columns

    with client.open_table(table) as (_, dataset):
        now, stats, names = dataset.get_version(), dataset.stats.dataset_stats(), shown_columns(dataset.schema)
        computed, view = describe_columns(dataset), _find_view(dataset.schema)
    indices = client.call("list_table_indices", table).indexes
    return {
        "version": now["version"],
        "changed": format_time(to_millis(now["timestamp"])),
        "rows": int(now["metadata"].get("total_rows", 0)),
        "deleted_rows": stats["num_deleted_rows"],
        "fragments": stats["num_fragments"],
        "bytes": int(now["metadata"].get("total_files_size", 0)),
        "columns": names,
        **({"computed": [f"{each.column} ({each.label})" for each in computed]} if computed else {}),
        **({"view": view} if view else {}),
        "indices": sorted({f"{index.index_name} ({', '.join(index.columns)})" for index in indices}),
    }


def _find_view(schema: pa.Schema) -> str | None:
    """Return what a view is made of, as text; None for other tables."""
    from lance_namespace.errors import InvalidInputError

    from lancehouse.identifiers import format_levels
    from lancehouse.schema.definitions import ViewDefinition

    try:
        view = ViewDefinition.from_schema(schema)
    except InvalidInputError as error:
        return str(error)
    if view is None:
        return None
    where = f" where {view.where}" if view.where else ""
    return f"of {format_levels(view.source)}{where} ({view.title})"


@table.command()
@with_table
@with_version_options
@with_client
@click.pass_obj
def schema(app: CliContext, table: Levels, at: dict[str, Any], client: Client) -> None:
    """Show the columns of the table ID."""
    from lancehouse.schema.display import field_to_json

    with client.open_table(table, **at) as (_, dataset):
        columns, version = list(map(field_to_json, dataset.schema)), dataset.version
    rows = [{**column, "null": "yes" if column["nullable"] else "no"} for column in columns]
    summary = {"table": client.format_id(table), "version": version}
    words = f"{client.format_id(table)}, version {version}: {format_count(len(rows), 'column')}"
    app.output.table(COLUMNS, rows, summary, words, name="columns")


@table.command()
@with_table
@click.option("--limit", type=COUNT, metavar="N", help="Show only the N latest versions.")
@with_client
@click.pass_obj
def history(app: CliContext, table: Levels, limit: int | None, client: Client) -> None:
    """Show the versions of the table ID, the latest first."""
    with app.output.progress("reading versions"):
        rows = list(islice(_version_rows(client, table, limit), limit))
    words = f"{client.format_id(table)}: {'the latest ' * (len(rows) == limit)}{format_count(len(rows), 'version')}"
    columns = VERSIONS if any(row["message"] for row in rows) else VERSIONS[:-1]
    app.output.table(columns, rows, {"table": client.format_id(table), "count": len(rows)}, words, name="versions")


def _version_rows(client: Client, table: Levels, limit: int | None) -> Iterator[dict[str, Any]]:
    from lancehouse.lake import version_records
    from lancehouse.lake.dataset import TableRef

    ref = TableRef.in_namespace(client.namespace, table)
    with client.translate_errors(table):
        tags: dict[int, list[str]] = {}
        for tag, (branch, version) in version_records.read_refs(ref).tags.items():
            if branch is None:
                tags.setdefault(version, []).append(tag)
        for numbers in client.versions(table, limit):
            for entry in version_records.read_versions(ref, numbers):
                at, names = format_time(entry.timestamp_ms), tags.get(entry.version, [])
                yield {**asdict(entry), "at": at, "size": format_size(entry.bytes), "tags": names}


@table.command()
@with_table
@click.argument("location")
@click.option("--overwrite", is_flag=True, help="Replace a table of the same name; its data is kept.")
@with_set("table")
@with_client
@click.pass_obj
def register(
    app: CliContext, table: Levels, location: str, overwrite: bool, stored: dict[str, str], client: Client
) -> None:
    """Add the Lance dataset at LOCATION to the catalog.

    LOCATION is a folder or a URI (s3://, gs://, az://) that readers of the catalog can access. No
    data is moved.
    """
    from lance_namespace.errors import TableAlreadyExistsError

    mode = "Overwrite" if overwrite else "Create"
    try:
        response = client.call("register_table", table, location=location, mode=mode, properties=stored or None)
    except TableAlreadyExistsError as error:
        error.add_note("--overwrite puts this one in its place; the data of the other stays")
        raise
    app.output.record({"table": client.format_id(table), "location": response.location or location})


@table.command()
@with_table
@with_yes
@with_client
@click.pass_obj
def deregister(app: CliContext, table: Levels, yes: bool, client: Client) -> None:
    """Remove the table ID from the catalog, but keep its data."""
    table_text, where = client.format_id(table), _get_location(client, table)
    confirm(app, f"Take the table {table_text} out of the catalog? Its data at {where} stays.", yes=yes)
    with _explain_dir_not_found(client):
        response = client.call("deregister_table", table)
    app.output.record({"deregistered": table_text, "location": response.location or where})


@table.command()
@with_table
@with_yes
@click.option("--purge", is_flag=True, help="Delete the data now instead of keeping it for `undrop`; needs an admin.")
@with_client
@click.pass_obj
def drop(app: CliContext, table: Levels, yes: bool, purge: bool, client: Client) -> None:
    """Drop the table ID with its data.

    Lancehouse's own server keeps both for a while, for `undrop`; in other catalogs a drop is final.
    `deregister` keeps the data.
    """
    table_text, where = client.format_id(table), _get_location(client, table)
    keeps = _keeps_dropped(client, table)
    if purge and not keeps:
        raise click.UsageError("--purge goes with Lancehouse's own server; elsewhere a drop deletes the data at once")
    final = "" if keeps and not purge else " This is final."
    confirm(app, f"Drop the table {table_text} and all its data at {where}?{final}", yes=yes)
    with _explain_dir_not_found(client):
        response = client.call("drop_table", table)
    record: dict[str, Any] = {"dropped": table_text, "location": response.location or where}
    if purge:
        with client.translate_errors(table):
            get_server(client.namespace).purge_table(table)
    elif keeps:
        # The one dropped last comes first; there is none if somebody has restored or purged it meanwhile.
        rows = [row for row in _find_dropped(client, table[:-1]) if (*row.namespace, row.name) == tuple(table[1:])]
        record |= {"until": rows[0].expires_at} if rows else {}
    app.output.record(record)


@contextmanager
def _explain_dir_not_found(client: Client) -> Iterator[None]:
    """Explain an error of Lance's `dir`, which describes tables written past it, but does not find them to drop."""
    from lance_namespace.errors import TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        if client.target.impl != "dir":
            raise
        explained = TableNotFoundError(str(error))
        explained.add_note("one that was written without the catalog goes with --property manifest_enabled=false")
        raise explained from error


def _get_location(client: Client, table: Levels) -> str:
    """Return the location of a table; raise if it does not exist."""
    return str(client.call("describe_table", table).location)


@table.command()
@with_table
@click.argument("new", metavar="[NEW]", required=False, callback=parse_optional_name)
@with_client
@click.pass_context
def undrop(ctx: click.Context, table: Levels, new: Levels | None, client: Client) -> None:
    """Restore the dropped table ID, as ID or as NEW.

    If several dropped tables had this name, the last one is restored. Only Lancehouse's own server keeps dropped
    tables, for the retention of their warehouse; see `list --dropped`.
    """
    app: CliContext = ctx.obj
    target = None if not new else (*table[:-1], *new) if len(new) == 1 else (*get_catalog(ctx).parent, *new)
    with client.translate_errors(table):
        restored = get_server(client.namespace).undrop_table(table, target)
    app.output.record({"restored": client.format_id(restored)})


@table.command()
@with_table
@click.argument("new", metavar="NEW", callback=parse_required_name)
@with_client
@click.pass_context
def rename(ctx: click.Context, table: Levels, new: Levels, client: Client) -> None:
    """Rename the table ID, or move it to another namespace.

    NEW is a name in the same namespace, or a complete id.
    """
    from lance_namespace.errors import UnsupportedOperationError

    app: CliContext = ctx.obj
    target = (*table[:-1], *new) if len(new) == 1 else (*get_catalog(ctx).parent, *new)
    try:
        client.call("rename_table", table, new_table_name=target[-1], new_namespace_id=list(target[:-1]))
    except UnsupportedOperationError as error:
        register = client.shell.command("table", "register", client.format_id(target), "LOCATION")
        deregister = client.shell.command("table", "deregister", client.format_id(table))
        where = "is the part below the catalog's root" if client.target.impl == "dir" else "is what `describe` shows"
        error.add_note(f"`{deregister}` and `{register}` come to the same; LOCATION {where}")
        raise
    app.output.record({"table": client.format_id(table), "renamed": client.format_id(target)})


@table.command()
@click.option(
    "--by",
    type=click.Choice([IMPL, STORAGE]),
    required=True,
    help="impl: the catalog decides; storage: the newest version in storage.",
)
@click.option("--adopt", is_flag=True, help="With impl: accept versions that were written without the catalog.")
@with_client
@with_table
@click.pass_obj
def manage(app: CliContext, table: Levels, by: str, adopt: bool, client: Client) -> None:
    """Set who decides which version of a table is current.

    ID is wh.db.docs, all levels joined by dots; put a level with a dot in backquotes:
    'wh.`my.db`.docs'.

    Stop the table's writers first: a writer that has the table open does not notice the change. If
    catalog and storage disagree on the version, nothing changes, and the error says what to do.
    """
    if adopt and by != IMPL:
        raise click.UsageError(f"--adopt goes with --by {IMPL}")
    with client.translate_errors(table):
        version = get_managed_tables(client.namespace).manage_table(table, by, adopt=adopt)
    app.output.record({"table": client.format_id(table), MANAGED_BY: by, "version": version})


DROPPED = output_columns(table="Table", dropped_at="Dropped", principal="By", expires_at="Until", data="Its data then")


def _list_dropped(app: CliContext, namespace: Levels, client: Client) -> None:
    warehouses = [namespace] if namespace else client.namespaces(())
    rows = [
        {
            "table": client.format_id((warehouse[0], *row.namespace, row.name)),
            "dropped_at": row.dropped_at,
            "principal": row.principal,
            "expires_at": row.expires_at,
            "data": "are deleted" if row.purge else "stay",
        }
        for warehouse in warehouses
        for row in _find_dropped(client, warehouse)
    ]
    words = format_count(len(rows), "dropped table")
    app.output.table(DROPPED, rows, {"namespace": list(namespace), "count": len(rows)}, words, name="tables")


def _keeps_dropped(client: Client, table: Levels) -> bool:
    from lancehouse.clients.iceberg import IcebergNamespace

    return isinstance(client.namespace, IcebergNamespace) and client.namespace.keeps_dropped(table)


def _find_dropped(client: Client, namespace: Levels) -> list[DroppedTable]:
    with client.translate_errors(namespace):
        return get_server(client.namespace).list_dropped(namespace)


def get_server(namespace: LanceNamespace) -> IcebergNamespace:
    """Return the client if its server may be ours, which alone keeps dropped tables.

    Raises:
        UnsupportedOperationError: it cannot be.
    """
    from lance_namespace.errors import UnsupportedOperationError

    from lancehouse.clients.iceberg import IcebergNamespace

    if not isinstance(namespace, IcebergNamespace):
        raise UnsupportedOperationError("this catalog keeps no dropped tables: what is dropped is gone")
    return namespace


def get_managed_tables(namespace: LanceNamespace) -> IcebergNamespace:
    """Return the client if its catalog can manage the versions of tables.

    Raises:
        UnsupportedOperationError: it cannot; the message says what to do.
    """
    from lance_namespace.errors import UnsupportedOperationError

    from lancehouse.clients.catalog_namespace import CatalogNamespace
    from lancehouse.clients.iceberg import IcebergNamespace

    if isinstance(namespace, IcebergNamespace):
        return namespace
    client, way_out = (
        (namespace.client, namespace.managed_versions_hint)
        if isinstance(namespace, CatalogNamespace)
        else (type(namespace).__name__, CatalogNamespace.managed_versions_hint)
    )
    raise UnsupportedOperationError(
        f"{MANAGED_BY}={IMPL} is not possible with {client}, whose tables have no ref that a commit could move; "
        f"{way_out}"
    )


TAGS = output_columns(tag="Tag", version="Version", branch="Branch", numbers=("version",))

with_name = click.argument("name", metavar="TAG")
with_tagged_version = click.option("--version", type=VERSION, metavar="N", help="Version to tag; default: the latest.")


@table.group()
def tag() -> None:
    """Manage the tags of a table, which are names of versions.

    Cleanup keeps tagged versions. Readers can open a version by its tag.
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
@with_tagged_version
@with_client
@click.pass_obj
def create(app: CliContext, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Tag a version of the table ID."""
    at = _resolve_version(client, table, version)
    client.call("create_table_tag", table, tag=name, version=at)
    app.output.record({"table": client.format_id(table), "tag": name, "version": at})


@tag.command()
@with_table
@with_name
@with_tagged_version
@with_client
@click.pass_obj
def update(app: CliContext, table: Levels, name: str, version: int | None, client: Client) -> None:
    """Move TAG to another version of the table ID."""
    before, at = _get_tag_version(client, table, name), _resolve_version(client, table, version)
    client.call("update_table_tag", table, tag=name, version=at)
    app.output.record({"table": client.format_id(table), "tag": name, "before": before, "version": at})


@tag.command()
@with_table
@with_name
@with_client
@click.pass_obj
def delete(app: CliContext, table: Levels, name: str, client: Client) -> None:
    """Delete TAG from the table ID; its version is kept until cleanup."""
    before = _get_tag_version(client, table, name)
    client.call("delete_table_tag", table, tag=name)
    app.output.record({"table": client.format_id(table), "deleted": name, "version": before})


def _get_tag_version(client: Client, table: Levels, name: str) -> int:
    return int(client.call("get_table_tag_version", table, tag=name).version)


def _resolve_version(client: Client, table: Levels, version: int | None) -> int:
    """Return a version, the latest by default, after checking that it exists."""
    with client.open_table(table, version=version) as (_, dataset):
        return int(dataset.version)
