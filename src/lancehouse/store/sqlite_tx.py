"""Run statements on SQLite, and translate its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lance_namespace.errors import InternalError, LanceNamespaceError

from lancehouse.store import database_errors
from lancehouse.store.statements import Row, Statement, Tx, Values

BAD_VALUES = (OverflowError, UnicodeEncodeError)
"""Errors that the driver raises for values before the database sees them."""


def to_lance_error(error: sqlite3.Error | OverflowError | UnicodeEncodeError) -> LanceNamespaceError:
    """Return our error for an error of the driver."""
    if isinstance(error, BAD_VALUES):
        return database_errors.unstorable_error(error)
    if isinstance(error, sqlite3.IntegrityError):
        is_unique = error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return (
            database_errors.UniqueViolationError(str(error))
            if is_unique
            else database_errors.ForeignKeyViolationError(str(error))
        )
    if isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such "):
        return database_errors.schema_missing_error()
    if isinstance(error, sqlite3.DataError):
        return database_errors.unstorable_error(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return InternalError(f"the catalog's database refused a statement: {database_errors.first_line(error)}")
    return database_errors.unreachable_error(error)


class SqliteTx(Tx):
    """A transaction on SQLite.

    A failed statement undoes only itself, and there is one writer at a time, so neither savepoints nor locks are
    needed.
    """

    __slots__ = ("_execute", "_execute_many")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute: Callable[[str, Any], sqlite3.Cursor] = connection.execute
        self._execute_many: Callable[[str, Any], sqlite3.Cursor] = connection.executemany

    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        try:
            return self._execute(statement.sqlite, values).fetchall()
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def run(self, statement: Statement, values: Values) -> int:
        try:
            return self._execute(statement.sqlite, values).rowcount
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        try:
            self._execute_many(statement.sqlite, values)
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def savepoint(self) -> AbstractContextManager[object]:
        return nullcontext()

    def lock(self, own: int, shared: Iterable[int]) -> None:
        pass
