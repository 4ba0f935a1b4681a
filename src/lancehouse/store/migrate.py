"""Create, check and upgrade the schema of the catalog's database, and back it up while servers use it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum
from pathlib import Path

from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, ServiceUnavailableError
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from lancehouse.store import statements
from lancehouse.store.database import PATIENCE_S, Database, Sqlite
from lancehouse.store.model import metadata

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0009"
"""The newest migration. Numbers let a program tell an older schema from a newer one."""
RELEASES = {"0001": "0.1", "0002": "0.1"} | dict.fromkeys(("0003", "0004", "0005", "0006", "0007", "0008", HEAD), "0.2")
"""Release of lancehouse that a schema belongs to."""

VERSION_TABLE = "lancehouse_schema"
version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""The table in which Alembic stores the number, created exactly as Alembic would."""

LOCK = "SELECT pg_advisory_xact_lock(7883954722)"
"""Held by whoever changes the schema."""


SEARCH_INDEX = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX IF NOT EXISTS ix_entries_name_words ON entries USING gin (lower(name) gin_trgm_ops)",
)
"""Statements for Postgres, which an administrator can run too."""


class SchemaState(Enum):
    """How the schema of a database relates to this program."""

    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older than this lancehouse"
    NEWER = "newer than this lancehouse"


ADVICE = {
    SchemaState.EMPTY: statements.UPGRADE,
    SchemaState.OLDER: f"make a backup (`lancehouse db backup`), then {statements.UPGRADE}",
    SchemaState.NEWER: "use a newer lancehouse, or a backup of the database from before",
}
"""What to do about each state that is not current."""


def create_if_empty(database: Database) -> bool:
    """Create the newest schema in an empty database; return False if there is one already.

    If several servers start at once, one creates it and the others wait.

    Raises:
        InvalidTableStateError: the database has tables of another application.
    """
    if read_schema_version(database) is not None:
        return False
    with _schema_transaction(database) as connection:
        # Checked again under the lock: another server may have created it in between.
        if _read_version(connection) is not None:
            return False
        version.create(connection, checkfirst=False)
        metadata.create_all(connection, checkfirst=False)
        create_search_index(connection)
        connection.execute(version.insert().values(version_num=HEAD))
    return True


def create_search_index(connection: Connection) -> None:
    """Create the index by which Postgres finds entries whose names contain a word, where it can.

    It needs the extension pg_trgm, which comes with Postgres, and which an owner of the database may create. Without it
    a search reads all names.
    """
    if connection.dialect.name != "postgresql":
        return
    if connection.exec_driver_sql("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'").first() is None:
        return
    # Not allowed, or not on the list of a managed Postgres, which then is no error of privileges: an administrator may
    # create both later.
    with suppress(DBAPIError), connection.begin_nested():
        for statement in SEARCH_INDEX:
            connection.exec_driver_sql(statement)


def check(database: Database) -> None:
    """Refuse a schema that is not this program's.

    Raises:
        InvalidTableStateError: it is older, newer, or missing; the message says what to do.
    """
    number = read_schema_version(database)
    if (advice := ADVICE.get(schema_state(number))) is not None:
        raise InvalidTableStateError(f"{database.name} has schema {_describe(number)}, not {_describe(HEAD)}: {advice}")


def _describe(number: str | None) -> str:
    release = RELEASES.get(number or "")
    return f"{number or 'none'} (lancehouse {release})" if release else number or "none"


def schema_state(number: str | None) -> SchemaState:
    """Return what the number of a schema means; None is an empty database."""
    if number is None:
        return SchemaState.EMPTY
    if number == HEAD:
        return SchemaState.CURRENT
    return SchemaState.OLDER if number.isdecimal() and number < HEAD else SchemaState.NEWER


def upgrade(database: Database) -> tuple[str | None, str]:
    """Create or upgrade the schema in one transaction; return its number before and after.

    Raises:
        InvalidTableStateError: it is newer than this program.
    """
    before = read_schema_version(database)
    state = schema_state(before)
    if state is SchemaState.EMPTY:
        create_if_empty(database)
    elif state is SchemaState.OLDER:
        run_migrations(database)
    check(database)
    return before, HEAD


def run_migrations(database: Database, to: str = HEAD) -> None:
    """Run the missing migrations up to one of them, in one transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _schema_transaction(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def read_schema_version(database: Database) -> str | None:
    """Return the number of the schema, or None for an empty database."""
    if database.file is not None and not database.file.exists():
        return None
    with _connect(database, "BEGIN") as connection:
        return _read_version(connection)


def _read_version(connection: Connection) -> str | None:
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        return connection.execute(select(version.c.version_num)).scalar() or ""
    if clash := sorted(tables & set(metadata.tables)):
        raise InvalidTableStateError(
            f"the database holds tables that are not this catalog's ({', '.join(clash)}): give it one of its own"
        )
    return None


@contextmanager
def _schema_transaction(database: Database) -> Iterator[Connection]:
    """Provide a transaction that may change the schema, while no other does."""
    # With foreign keys on, SQLite would delete the rows that refer to a table while that table is replaced by a copy.
    with _connect(database, "PRAGMA foreign_keys=OFF", "BEGIN IMMEDIATE") as connection:
        if not database.is_local:
            connection.exec_driver_sql(LOCK)
        yield connection
        if database.is_local and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()):
            raise InternalError(f"rows would refer to nothing, so nothing was changed: {broken[:10]}")


@contextmanager
def _connect(database: Database, *begin: str) -> Iterator[Connection]:
    """Provide a SQLAlchemy connection in a transaction, which on SQLite starts with the statements `begin`."""
    try:
        with _engine(database, begin).begin() as connection:
            yield connection
    except DBAPIError as error:
        raise statements.unreachable_error(error.orig) from error


def _engine(database: Database, begin: Sequence[str]) -> Engine:
    # Our own connections, which are durable. Both kinds leave transactions to us (autocommit): on SQLite the statements
    # `begin` start one, on Postgres the driver does, once autocommit is off.
    connections = database.engine()
    kind = "sqlite" if isinstance(connections, Sqlite) else "postgresql+psycopg"
    engine = create_engine(f"{kind}://", creator=connections.connect, poolclass=NullPool)
    if isinstance(connections, Sqlite):
        event.listen(engine, "begin", lambda connection: [connection.exec_driver_sql(statement) for statement in begin])
    else:
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "autocommit", False))
    return engine


PART = ".part"
"""Suffix of the file until it is complete."""


def backup(database: Database, target: Path) -> None:
    """Copy the state of one moment into a new file, which only its owner may read.

    For SQLite the copy is a database file that can replace the original. For Postgres it is an archive for
    `pg_restore`.

    Raises:
        InvalidInputError: the file exists or cannot be created, or there is no database.
    """
    if target.exists():
        raise InvalidInputError(f"{target} exists already: choose another name")
    part = target.with_name(target.name + PART)
    if part.exists():
        raise InvalidInputError(f"{part} exists: another backup runs, or was killed; remove it then")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be made: {error.strerror}") from error
    try:
        if database.file is not None:
            _copy_sqlite(database.file, part)
        else:
            _dump_postgres(database.url, part)
        _publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _copy_sqlite(file: Path, part: Path) -> None:
    if not file.exists():
        raise InvalidInputError(f"there is no database {file}")
    try:
        with (
            closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=PATIENCE_S)) as source,
            closing(sqlite3.connect(part)) as copy,
        ):
            # All pages in one step: writers do not wait, and the copy need not restart when they write.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            (check_result,) = copy.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error as error:
        raise ServiceUnavailableError(f"{file} cannot be copied: {error}") from error
    if check_result != "ok":
        raise InternalError(f"{file} is damaged: {check_result}")


def _dump_postgres(url: str, part: Path) -> None:
    """Run `pg_dump`.

    The password goes into the environment, because other users can see the command line.
    """
    program = shutil.which("pg_dump")
    if program is None:
        raise InvalidInputError("a backup of Postgres needs `pg_dump` on PATH: install Postgres' client programs")
    from lancehouse.store.postgres import split_secrets

    where, variables = split_secrets(url)
    result = subprocess.run(  # noqa: S603
        [program, "--format=custom", "--no-password", f"--file={part}", f"--dbname={where}"],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise ServiceUnavailableError(f"pg_dump failed: {statements.first_line(result.stderr)}")


def _publish(part: Path, target: Path) -> None:
    """Sync the file and give it its final name, without ever replacing an existing file."""
    _sync(part)
    try:
        # A link fails if the target exists, whereas a rename would replace it.
        os.link(part, target)
    except FileExistsError:
        raise InvalidInputError(f"{target} exists already: choose another name") from None
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
