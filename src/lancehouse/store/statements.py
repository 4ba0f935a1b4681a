"""Statements, written once for both databases and compiled once for each; and the transactions that run them."""

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
Values = Mapping[str, Any]

SQLITE = SQLiteDialect_pysqlite(paramstyle="named")
POSTGRES = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]


class Statement:
    """One statement. Its values are named by `bindparam`; constants are written out in it."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause

    @cached_property
    def sqlite(self) -> str:
        """As SQLite reads it."""
        return self._compile(SQLITE)

    @cached_property
    def postgres(self) -> str:
        """As Postgres reads it."""
        return self._compile(POSTGRES)

    def _compile(self, dialect: Dialect) -> str:
        compiled = self._clause.compile(dialect=dialect)
        constants = [name for name, value in compiled.params.items() if value is not None]
        assert not constants, f"{compiled}: nobody passes {constants}"
        return str(compiled)


class Tx(ABC):
    """A transaction in progress. It belongs to the function that it is given to, and ends with it."""

    __slots__ = ()

    @abstractmethod
    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        """The rows of a result."""

    @abstractmethod
    def run(self, statement: Statement, values: Values) -> int:
        """Change rows, and count them."""

    @abstractmethod
    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        """Change rows, many times."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[object]:
        """A block whose statement may break a constraint without harm to the transaction."""

    @abstractmethod
    def lock(self, own: int, shared: Iterable[int]) -> None:
        """Hold locks until the transaction ends: one for us alone, others together with all who share them."""

    def fetch_one(self, statement: Statement, values: Values) -> Row | None:
        """The only row of a result, if there is one."""
        rows = self.fetch_all(statement, values)
        return rows[0] if rows else None
