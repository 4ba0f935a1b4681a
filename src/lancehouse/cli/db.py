"""`lancehouse db`: upgrade, back up and inspect the database of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lancehouse.cli.lazy_commands import LazyGroup
from lancehouse.cli.output import FAILED

if TYPE_CHECKING:
    from lancehouse.cli.main import CliContext
    from lancehouse.store.database import Database

with_db = click.option(
    "--db", "url", metavar="URL", envvar="LANCEHOUSE_DB", help="Database; default: SQLite in the data folder."
)


@contextmanager
def open_database(url: str | None) -> Iterator[Database]:
    """Open a database, whatever its schema; it needs the optional dependencies of the server."""
    try:
        from lancehouse.store.database import Database
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lancehouse"):
            raise
        raise click.ClickException(f"this needs {error.name}: pip install 'lancehouse[server]'") from None
    from lancehouse.settings import default_db

    database = Database(url or default_db())
    try:
        yield database
    finally:
        database.close()


@click.group(cls=LazyGroup)
def db() -> None:
    """Manage the database of the catalog server."""


@db.command()
@with_db
@click.pass_obj
def upgrade(app: CliContext, url: str | None) -> None:
    """Create the database's schema, or upgrade it.

    Before, stop servers that run an older version of lancehouse, and make a backup.
    """
    with open_database(url) as database:
        from lancehouse.store import migrate

        before, after = migrate.upgrade(database)
        app.output.record("", {"database": database.name, "before": before or "empty", "schema": after})


@db.command()
@with_db
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def backup(app: CliContext, url: str | None, target: Path) -> None:
    """Copy the database to the new file TARGET, while servers run on it.

    Of SQLite the copy is a database again. Of Postgres it is an archive for pg_restore.
    """
    with open_database(url) as database, app.output.progress(f"copying {database.name}"):
        from lancehouse.store.backup import backup as copy

        copy(database, target)
    app.output.record("", {"database": database.name, "backup": str(target), "bytes": target.stat().st_size})


@db.command()
@with_db
@click.pass_context
def status(ctx: click.Context, url: str | None) -> None:
    """Show the database's schema; it exits with 1 unless a server could start on it."""
    app: CliContext = ctx.obj
    with open_database(url) as database:
        from lancehouse.store import migrate

        schema = migrate.read_schema_version(database)
        state = migrate.schema_state(schema)
        app.output.record("", {"database": database.name, "schema": schema or "none", "state": state.value})
    if state is not migrate.SchemaState.CURRENT:
        ctx.exit(FAILED)
