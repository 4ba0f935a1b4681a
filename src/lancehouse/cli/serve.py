"""`lancehouse serve` and `db`: run the server; upgrade, back up, inspect and adopt its database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.options import confirm, requires_extra, with_config, with_db, with_yes
from lancehouse.cli.output import FAILED, format_count, output_columns
from lancehouse.server.setting_table import SERVER_SETTINGS

if TYPE_CHECKING:
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.cli.main import CliContext
    from lancehouse.maintenance.adoption import Adoption, AdoptionPlan, TableDifference
    from lancehouse.server.settings import ServerSettings
    from lancehouse.store.database import Database

F = TypeVar("F", bound=Callable[..., Any])


def _add_setting_options(command: F) -> F:
    """Add an option to a command for each setting of the server."""
    for setting in reversed(SERVER_SETTINGS):
        default_text = f"  [default: {setting.default_text}]" if setting.default_text else ""
        extra: dict[str, Any] = {"is_flag": True, "flag_value": "true"} if setting.is_flag else {"metavar": "VALUE"}
        command = click.option(
            setting.option,
            setting.name,
            envvar=setting.variable,
            default=None,
            help=setting.help + default_text,
            **extra,
        )(command)
    return command


@click.command()
@click.option(
    "--warehouse",
    "warehouses",
    multiple=True,
    metavar="NAME=LOCATION",
    envvar="LANCEHOUSE_WAREHOUSE",
    help="a warehouse to serve; by default those in the database, "
    "or else main, next to SQLite's file or, with Postgres, in the data folder",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="NAME=LOCATION",
    envvar="LANCEHOUSE_ROOT",
    help="another location where tables of the warehouse may be",
)
@click.option(
    "--config", "file", envvar="LANCEHOUSE_SERVER_CONFIG", metavar="FILE", help="YAML file with the same settings"
)
@_add_setting_options
def serve(warehouses: tuple[str, ...], roots: tuple[str, ...], file: str | None, **options: str | None) -> None:
    """Serve an Iceberg REST catalog with Lance tables in it."""
    from lance_namespace.errors import InvalidInputError

    if missing := [name for name in ("uvicorn", "orjson", "pyiceberg", "sqlalchemy") if find_spec(name) is None]:
        raise InvalidInputError(f"the server needs {', '.join(missing)}: pip install 'lancehouse[server]'")
    from lancehouse.server import process_memory, run
    from lancehouse.server.settings import ServerSettings
    from lancehouse.server.workers import WorkerSupervisor

    process_memory.share_heaps()

    def read_settings() -> ServerSettings:
        return ServerSettings.parse(options, warehouses, roots, file)

    settings = read_settings()
    with run.listen(settings) as listener:
        served = run.prepare(settings, click.echo)

        def ready() -> None:
            click.echo(run.ready_line(settings, listener, served))

        with _maintenance(settings, served):
            if settings.workers == 1 and settings.max_memory is None:
                run.run(settings, listener, served, ready, read_again=read_settings)
            else:
                WorkerSupervisor(settings, listener, served, read_settings).run(ready)


def _maintenance(settings: ServerSettings, warehouses: list[Warehouse]) -> AbstractContextManager[None]:
    """Return a block in which tables are maintained, if the settings say so; only then is Lance loaded here."""
    if not settings.maintenance_threads:
        return nullcontext()
    from lancehouse.maintenance.process import maintenance_process

    return maintenance_process(settings, warehouses)


def open_any_schema(url: str | None) -> closing[Database]:
    """Open a database, whatever its schema; it needs the optional dependencies of the server."""
    with requires_extra("server"):
        from lancehouse.store.database import Database
    from lancehouse.settings import default_db

    return closing(Database(url or default_db()))


@click.group(cls=LazyGroup)
def db() -> None:
    """Manage the database of the catalog server."""


@db.command()
@with_db
@click.pass_obj
def upgrade(app: CliContext, db: str | None) -> None:
    """Create the database's schema, or upgrade it.

    First stop servers that run an older version of lancehouse, and make a backup.
    """
    with open_any_schema(db) as database:
        from lancehouse.store import migrate

        before, after = migrate.upgrade(database)
        app.output.record({"database": database.name, "before": before or "empty", "schema": after})


@db.command()
@with_db
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def backup(app: CliContext, db: str | None, target: Path) -> None:
    """Copy the database to the new file TARGET, while servers run on it.

    For SQLite, TARGET is a database. For Postgres, it is an archive for pg_restore.
    """
    with open_any_schema(db) as database, app.output.progress(f"copying {database.name}"):
        from lancehouse.store.migrate import backup as copy

        copy(database, target)
    app.output.record({"database": database.name, "backup": str(target), "bytes": target.stat().st_size})


@db.command()
@with_db
@click.pass_context
def status(ctx: click.Context, db: str | None) -> None:
    """Show the database's schema; it exits with 1 unless a server could start on it."""
    app: CliContext = ctx.obj
    with open_any_schema(db) as database:
        from lancehouse.store import migrate

        schema = migrate.read_schema_version(database)
        state = migrate.schema_state(schema)
        app.output.record({"database": database.name, "schema": schema or "none", "state": state.value})
    if state is not migrate.SchemaState.CURRENT:
        ctx.exit(FAILED)


DIFFERENCES = output_columns(table="Table", kind="Kind", database="Database", storage="Storage", next="What happens")


@db.command()
@click.option(
    "--warehouse", "names", metavar="NAME", multiple=True, help="Adopt this warehouse, even if it accepts changes."
)
@click.option("--dry-run", is_flag=True, help="Only show what differs.")
@with_config("The server's file, for access to storage.")
@with_db
@with_yes
@click.pass_context
def adopt(
    ctx: click.Context, names: tuple[str, ...], dry_run: bool, config: str | None, db: str | None, yes: bool
) -> None:
    """Take over warehouses that are newer than the database.

    Servers refuse changes to a warehouse if the database was restored from a backup, or if there is
    a copy of it. Stop all servers on other copies first. This command then sets managed Lance
    tables to the versions that storage has. Servers on this database accept changes again, and
    servers on all copies refuse them. It lists what it cannot decide.
    """
    app: CliContext = ctx.obj
    with requires_extra("server"):
        from lancehouse.catalog.bootstrap import require_database
        from lancehouse.maintenance.adoption import Adoption
        from lancehouse.server.settings import ServerSettings
    settings = ServerSettings.parse({"db": db}, (), (), config)
    require_database(settings.db)
    with Adoption.open(settings) as adoption:
        plans = _plan_adoptions(app, adoption, names)
        rows = [row for plan in plans for row in map(_format_difference, plan.differences)]
        words = [f"Warehouse {plan.warehouse.name}: {plan.conflict or 'takes changes'}" for plan in plans]
        words.append(f"{format_count(sum(plan.tables for plan in plans), 'table')}, {len(rows)} of them differ")
        if not plans:
            words = ["Nothing to adopt: all warehouses are this database's to change"]
        if dry_run or not plans or app.kind != "json":
            conflicts = {plan.warehouse.name: plan.conflict for plan in plans}
            app.output.table(DIFFERENCES, rows, {"warehouses": conflicts}, "\n".join(words), name="tables")
        if dry_run or not plans:
            return
        confirm(app, _ask_adoption(plans), yes=yes)
        adopted = [adoption.adopt(plan.warehouse) for plan in plans]
    done, tables = [plan.warehouse.name for plan in plans], sum(count for count, _ in adopted)
    left = [_format_difference(table) for _, tables_left in adopted for table in tables_left]
    counts = {"adopted": done, "tables": tables, "left": len(left)}
    sentence = f"Adopted {', '.join(done)}, with {format_count(tables, 'table')}"
    sentence += f"; {format_count(len(left), 'table')} are left to you" if left else ""
    app.output.table(DIFFERENCES, left, counts, sentence, name="undecided")
    if left:
        ctx.exit(FAILED)


def _plan_adoptions(app: CliContext, adoption: Adoption, names: tuple[str, ...]) -> list[AdoptionPlan]:
    """Return plans for the warehouses that are named; by default for those that take no changes."""
    from lance_namespace.errors import InvalidInputError

    warehouses = {warehouse.name: warehouse for warehouse in adoption.warehouses}
    for name in names:
        if name not in warehouses:
            raise InvalidInputError(f"there is no warehouse {name}; the database has {', '.join(warehouses)}")
    with app.output.progress("comparing tables with storage"):
        plans = [adoption.plan(warehouses[name]) for name in names or warehouses]
    return [plan for plan in plans if names or plan.conflict is not None]


def _format_difference(table: TableDifference) -> dict[str, str]:
    from lancehouse.identifiers import format_levels

    return {
        "table": format_levels(table.levels),
        "kind": table.kind,
        "database": table.database,
        "storage": table.storage,
        "next": table.advice or "comes to storage's version",
    }


def _ask_adoption(plans: list[AdoptionPlan]) -> str:
    from datetime import UTC, datetime

    lines = []
    for plan in plans:
        if plan.file is not None:
            at = datetime.fromtimestamp(plan.file.written_ms // 1000, UTC)
            lines.append(f"The last server to renew {plan.warehouse.name} was {plan.file.writer}, at {at:%F %T} UTC.")
    names = ", ".join(plan.warehouse.name for plan in plans)
    lines.append(f"Adopt {names}? Are all servers on other copies of the database stopped?")
    return "\n".join(lines)
