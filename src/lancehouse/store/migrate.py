"""The schema of the catalog's database: made, checked and brought up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from lance_namespace.errors import InvalidTableStateError
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

from lancehouse.store import failures
from lancehouse.store.database import Database
from lancehouse.store.model import metadata
from lancehouse.store.sqlite import Sqlite

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0002"
"""The newest migration. They are numbered, so that a program can tell an older schema from a newer one."""

VERSION_TABLE = "lancehouse_schema"
version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""Where Alembic keeps the number; made as it would make it."""

LOCK = "SELECT pg_advisory_xact_lock(7883954722)"
"""Whoever changes the schema holds it."""


class State(Enum):
    """What can be done with a database."""

    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older than this lancehouse"
    NEWER = "newer than this lancehouse"


ADVICE = {
    State.EMPTY: failures.UPGRADE,
    State.OLDER: f"make a backup (`lancehouse db backup`), then {failures.UPGRADE}",
    State.NEWER: "use a newer lancehouse, or a backup of the database from before",
}


def create_if_empty(database: Database) -> bool:
    """Make the newest schema in an empty database; False if there is one already.

    Of several servers that start at once, one makes it and the others wait.

    Raises:
        InvalidTableStateError: the database holds tables of somebody else.
    """
    if found(database) is not None:
        return False
    with _transaction(database) as connection:
        if _found(connection) is not None:
            return False
        version.create(connection, checkfirst=False)
        metadata.create_all(connection, checkfirst=False)
        connection.execute(version.insert().values(version_num=HEAD))
    return True


def check(database: Database) -> None:
    """Refuse a schema that is not this program's.

    Raises:
        InvalidTableStateError: it is older, newer, or not there; the text says what to do.
    """
    there = found(database)
    if (advice := ADVICE.get(state_of(there))) is not None:
        raise InvalidTableStateError(f"{database.name} has schema {there or 'none'}, not {HEAD}: {advice}")


def state_of(there: str | None) -> State:
    """What a schema's number says."""
    if there is None:
        return State.EMPTY
    if there == HEAD:
        return State.CURRENT
    return State.OLDER if there.isdecimal() and there < HEAD else State.NEWER


def upgrade(database: Database) -> tuple[str | None, str]:
    """Make the schema, or bring it up to date, in one transaction; the number before and after.

    Raises:
        InvalidTableStateError: it is newer than this program.
    """
    there = found(database)
    state = state_of(there)
    if state is State.EMPTY:
        create_if_empty(database)
    elif state is State.OLDER:
        migrate(database)
    check(database)
    return there, HEAD


def migrate(database: Database, target: str = "head") -> None:
    """Run the migrations that are missing."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _transaction(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, target)


def found(database: Database) -> str | None:
    """The number of the schema; None in an empty database."""
    if database.file is not None and not database.file.exists():
        return None
    with _connected(database, "BEGIN") as connection:
        return _found(connection)


def _found(connection: Connection) -> str | None:
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        return connection.execute(select(version.c.version_num)).scalar() or ""
    if clash := sorted(tables & set(metadata.tables)):
        raise InvalidTableStateError(
            f"the database holds tables that are not this catalog's ({', '.join(clash)}): give it one of its own"
        )
    return None


@contextmanager
def _transaction(database: Database) -> Iterator[Connection]:
    """A transaction that changes the schema, alone."""
    with _connected(database, "BEGIN IMMEDIATE") as connection:
        if not database.local:
            connection.exec_driver_sql(LOCK)
        yield connection


@contextmanager
def _connected(database: Database, begin: str) -> Iterator[Connection]:
    """A connection of SQLAlchemy in a transaction, which on SQLite begins with `begin`."""
    try:
        with _engine(database, begin).begin() as connection:
            yield connection
    except DBAPIError as error:
        raise failures.unreachable(error.orig) from error


def _engine(database: Database, begin: str) -> Engine:
    own = database.engine()
    kind = "sqlite" if isinstance(own, Sqlite) else "postgresql+psycopg"
    engine = create_engine(f"{kind}://", creator=own.connect, poolclass=NullPool)
    if isinstance(own, Sqlite):
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    else:
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "autocommit", False))
    return engine
