"""`lancehouse maintenance`: set and show policies, see what is due and done, and work on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.options import (
    open_database,
    parse_properties,
    parse_required_id,
    parse_required_name,
    requires_extra,
    with_client,
    with_config,
    with_db,
)
from lancehouse.cli.output import output_columns

if TYPE_CHECKING:
    from lancehouse.catalog.maintenance import Maintenance
    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.maintenance_policy import Level

VALUES = output_columns(key="Property", value="Value", source="Comes from", help="What it is")

with_name = click.argument("name", metavar="ID", callback=parse_required_id)
with_policies = with_config("The server's file, which has the policies of warehouses and backends.")


@click.group(cls=LazyGroup)
def maintenance() -> None:
    """Set how tables are maintained; see what is done.

    A table is maintained if maintenance.enabled is true for it, for a namespace above it, or for its warehouse.
    """


def parse_policy(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE; keys may stand without their prefix."""
    return {_with_prefix(key): value for key, value in parse_properties(ctx, param, values).items()}


def _with_prefix(key: str) -> str:
    from lancehouse.maintenance_policy import PREFIX

    return key if key.startswith(PREFIX) else PREFIX + key


@maintenance.command("set")
@with_name
@click.argument("updates", metavar="[KEY=VALUE]...", nargs=-1, callback=parse_policy)
@click.option("--unset", "removals", metavar="KEY", multiple=True, help="Property to remove. Repeatable.")
@with_client
@click.pass_obj
def set_policy(
    app: CliContext, name: tuple[str, ...], updates: dict[str, str], removals: tuple[str, ...], client: Client
) -> None:
    """Set maintenance properties of a table or namespace.

    For example enabled=true, window=01:00-05:00, compact.min-fragments=16; `show` lists all.
    """
    from lancehouse.maintenance.policies import change_properties
    from lancehouse.maintenance_policy import check_keys, check_properties

    keys = list(map(_with_prefix, removals))
    if not updates and not keys:
        raise click.UsageError("nothing to set: give KEY=VALUE, or --unset KEY")
    check_keys(keys)
    check_properties(updates)
    with client.translate_errors(name):
        kind = change_properties(client.namespace, name, updates, keys)
    app.output.record({kind: client.format_id(name), "set": updates, "unset": keys})


@maintenance.command()
@with_name
@with_policies
@with_client
@click.pass_obj
def show(app: CliContext, name: tuple[str, ...], config: str | None, client: Client) -> None:
    """Show the maintenance properties that apply to a table or namespace.

    It also shows where each comes from. Pass --config to include what the server's file sets for a
    warehouse.
    """
    from lancehouse.maintenance.policies import read_namespace_levels, read_table_level
    from lancehouse.maintenance_policy import explain_policy

    with client.translate_errors(name):
        table = read_table_level(client.namespace, name)
    if table is None:
        client.call("describe_namespace", name)
    with client.translate_errors(name):
        above = read_namespace_levels(client.namespace, name[:-1] if table else name)
    levels: list[Level] = [*_configured_levels(config, name), *above, *([table] if table else [])]
    values = explain_policy(levels)
    rows = [{"key": v.key, "value": v.value, "source": v.source, "help": v.help} for v in values]
    is_enabled = values[0].value.strip().lower() == "true"
    words = f"{client.format_id(name)}: maintenance is {'on' if is_enabled else 'off'}"
    summary = {"name": client.format_id(name), "kind": "table" if table else "namespace", "enabled": is_enabled}
    app.output.table(VALUES, rows, summary, words, name="properties")


def _configured_levels(config: str | None, name: Sequence[str]) -> list[Level]:
    """Return what the server's file says of the warehouse or backend that a name begins with."""
    if config is None:
        return []
    with requires_extra("server"):
        from lancehouse.server.settings import configured_maintenance
    properties = configured_maintenance(config).get(name[0], {})
    return [(f"{name[0]} in {config}", properties)]


with_warehouses = click.option(
    "--warehouse",
    "warehouses",
    multiple=True,
    metavar="NAME=LOCATION",
    envvar="LANCEHOUSE_WAREHOUSE",
    help="A warehouse; by default those that the file or the database names.",
)


@maintenance.command()
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of tables to maintain at the same time.",
)
@click.option("--spark-master", metavar="URL", help="Spark for tables over 10 GiB: spark://…, yarn, local[4].")
@click.option("--endpoint", metavar="URL", help="The server as Spark's tasks reach it: https://…/iceberg.")
@click.option("--token", metavar="TOKEN", envvar="LANCEHOUSE_TOKEN", help="Token of a writer, for Spark's tasks.")
@with_warehouses
@with_policies
@with_db
def worker(
    threads: int,
    spark_master: str | None,
    endpoint: str | None,
    token: str | None,
    warehouses: tuple[str, ...],
    config: str | None,
    db: str | None,
) -> None:
    """Maintain tables until the process gets a signal.

    Any number of workers and servers share the work, on one database. The file and the warehouses are those of the
    server.
    """
    with requires_extra("server"):
        from lancehouse.catalog.bootstrap import require_database
        from lancehouse.maintenance.process import find_warehouses, run_worker, spark_chooser, stop_on_signal
        from lancehouse.server.settings import ServerSettings
    settings = ServerSettings.parse({"db": db}, warehouses, (), config)
    require_database(settings.db)
    chooser = spark_chooser(spark_master, endpoint, token, settings) if spark_master else None
    with stop_on_signal() as stop:
        run_worker(settings, find_warehouses(settings), threads, stop, chooser)


TABLES = output_columns(table="Table", state="State", due="Due", why="Why", error="Last failure")
RUNS = output_columns(
    ended="When",
    table="Table",
    operation="What",
    outcome="Result",
    message="Done",
    why="Why",
    bytes_before="Bytes before",
    bytes_after="Bytes after",
    bytes_removed="Bytes deleted",
)


@contextmanager
def open_maintenance(db: str | None) -> Iterator[Maintenance]:
    """Open the maintenance of a catalog by its database."""
    with requires_extra("server"):
        from lancehouse.catalog.maintenance import Maintenance
        from lancehouse.catalog.warehouses import Warehouse
        from lancehouse.store.repository import list_warehouses

    with open_database(db) as database:
        warehouses = database.read(list_warehouses)
        yield Maintenance(database, [Warehouse(row.id, row.name, row.location) for row in warehouses])


@maintenance.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Maximum number of tables and runs to show.",
)
@with_db
@click.pass_obj
def status(app: CliContext, limit: int, db: str | None) -> None:
    """Show what is due, running, failing and done."""
    from lancehouse.cli.output import format_time
    from lancehouse.identifiers import format_levels

    with open_maintenance(db) as service:
        summary = service.status(limit)
    rows = [
        {
            "table": format_levels((table.backend, *table.levels)),
            "state": table.state(summary.now_ms),
            "due": "" if table.due_ms is None else format_time(table.due_ms or summary.now_ms),
            "why": table.why,
            "worker": table.worker,
            "failures": table.failures,
            "error": table.error,
        }
        for table in summary.tables
    ]
    runs = [
        {**asdict(run), "table": format_levels((backend, *levels)), "ended": format_time(run.ended_ms)}
        for backend, levels, run in summary.runs
    ]
    counts = dict(summary.counts)
    words = ", ".join(f"{counts[state]} {state}" for state in ("known", "due", "running", "failing"))
    app.output.table(TABLES, rows, {"counts": counts, "runs": runs}, f"Tables: {words}", name="tables")
    if app.kind != "json":
        app.output.table(RUNS, runs, {}, f"{len(runs)} runs, the newest first", name="runs")


@maintenance.command()
@click.argument("name", metavar="ID", callback=parse_required_name)
@click.argument("operations", metavar="[OPERATION]...", nargs=-1)
@with_db
@click.pass_obj
def run(app: CliContext, name: tuple[str, ...], operations: tuple[str, ...], db: str | None) -> None:
    """Request maintenance of a table now, whatever its policy says.

    ID begins with the warehouse or backend. Operations are compact, index, cleanup, orphans, which are the default,
    fill and refresh. A worker does them before everything else.
    """
    if len(name) < 3:
        raise click.UsageError("ID is a warehouse or backend, the namespace, and the table: main.db.docs")
    with open_maintenance(db) as service:
        from lancehouse.catalog.callers import ANYBODY, Caller
        from lancehouse.identifiers import format_levels

        queued = service.request(Caller(ANYBODY), name[0], name[1:], operations)
    app.output.record({"table": format_levels(name), "operations": list(queued)})
