"""SQL statements compiled for SQLite and Postgres, and the interface of transactions that run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql import ClauseElement

Row = tuple[Any, ...]
"""A row of a result."""
Values = Mapping[str, Any]
"""Values of a statement's bind parameters, by name."""

SQLITE = SQLiteDialect_pysqlite(paramstyle="named")
POSTGRES = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]


class Statement:
    """One statement. Values are named by `bindparam`; constants must be literals in it."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause

    @cached_property
    def sqlite(self) -> str:
        """The SQL for SQLite."""
        return self._compile(SQLITE)

    @cached_property
    def postgres(self) -> str:
        """The SQL for Postgres."""
        return self._compile(POSTGRES)

    def _compile(self, dialect: Dialect) -> str:
        compiled = self._clause.compile(dialect=dialect)
        constants = [name for name, value in compiled.params.items() if value is not None]
        assert not constants, f"{compiled}: nobody passes {constants}"
        return str(compiled)


class Tx(ABC):
    """A transaction in progress. It must not be used after the function to which it was passed returns."""

    __slots__ = ()

    @abstractmethod
    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        """Run a statement and return all rows of its result."""

    @abstractmethod
    def run(self, statement: Statement, values: Values) -> int:
        """Run a statement and return the number of changed rows."""

    @abstractmethod
    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        """Run a statement once for each set of values."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[object]:
        """Return a block in which a statement may violate a constraint without aborting the transaction."""

    @abstractmethod
    def lock(self, own: int, shared: Iterable[int]) -> None:
        """Take locks until the transaction ends: `own` exclusively, the others shared."""

    def fetch_one(self, statement: Statement, values: Values) -> Row | None:
        """Run a statement and return the only row of its result, or None."""
        rows = self.fetch_all(statement, values)
        return rows[0] if rows else None
