"""SQL statements compiled for both databases, the values of their columns, and the errors of both, translated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import cached_property
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar, cast

import orjson
from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, ServiceUnavailableError
from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, literal_column
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import Table
from sqlalchemy.sql import ClauseElement

UPGRADE = "run `lancehouse db upgrade`"


class UniqueViolationError(InternalError):
    """A value that must be unique exists already."""


class ForeignKeyViolationError(InternalError):
    """A row is still referred to, or would refer to one that does not exist."""


class SerializationFailureError(ServiceUnavailableError):
    """The transaction conflicted with another one and was rolled back; it can be retried."""


class ConnectionLostError(ServiceUnavailableError):
    """The connection broke before the transaction was committed."""


def unreachable_error(reason: object) -> ServiceUnavailableError:
    """Build the error for a database that cannot be reached: nothing was done, and the caller may retry."""
    return ServiceUnavailableError(f"the catalog's database is out of reach: {first_line(reason)}")


def closed_error() -> ServiceUnavailableError:
    """Build the error for a database that this process has closed."""
    return ServiceUnavailableError("the catalog's database is closed")


def unstorable_error(reason: object) -> InvalidInputError:
    """Build the error for a value that no database column can hold."""
    return InvalidInputError(f"the catalog's database cannot hold a value of this request: {first_line(reason)}")


def schema_missing_error() -> InvalidTableStateError:
    """Build the error for a database without our tables."""
    return InvalidTableStateError(f"the catalog's database has no schema, or an older one: {UPGRADE}")


def first_line(reason: object) -> str:
    """Return the first line of a message; drivers add hints and the statement on further lines."""
    return str(reason).strip().partition("\n")[0] or type(reason).__name__


R = TypeVar("R")
S = TypeVar("S", bound=Select[Any])
Row = tuple[Any, ...]
"""A row of a result."""
Values = Mapping[str, Any]
"""Values of a statement's bind parameters, by name."""

SQLITE = SQLiteDialect_pysqlite(paramstyle="named")
POSTGRES = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]


class Statement:
    """One statement. Values are named by `bindparam`; constants must be literals in it."""

    def __init__(self, clause: ClauseElement, *, is_planned_anew: bool = False) -> None:
        """Take a statement; `is_planned_anew` if Postgres' best plan depends on the values, each time."""
        self._clause = clause
        self.is_planned_anew = is_planned_anew

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


SEPARATOR = "\x1f"
"""Separates the levels of a namespace in a path."""
LONGEST = 2000
"""Longest indexed value in bytes: Postgres allows about 2,700."""
SHORT = LONGEST // 4
"""A text of at most this many characters never exceeds `LONGEST` bytes."""

NONE: ColumnElement[int] = literal_column("0")
"""OFFSET 0, written out: SQLAlchemy would otherwise add a parameter for SQLite that nobody passes."""
EVERYTHING = 1 << 62
"""A LIMIT that does not limit, in both databases."""


def join_levels(levels: tuple[str, ...]) -> str:
    """Return a namespace as one string, joined as in Iceberg's URLs."""
    joined = SEPARATOR.join(levels)
    if levels and joined.count(SEPARATOR) != len(levels) - 1:
        raise InvalidInputError(f"a level of a namespace holds the separator of levels: {list(levels)}")
    return joined


def split_levels(path: str) -> tuple[str, ...]:
    """Return the namespace of a path."""
    return tuple(path.split(SEPARATOR)) if path else ()


def index_key(path: str) -> str:
    """Return a key for a path that is short enough for an index, and different for different paths."""
    if len(path) <= SHORT:
        return path
    # Two separators in a row, as no path has them: its levels are not empty.
    digest = sha256(path.encode(errors="surrogatepass")).hexdigest()
    return f"{path[:16]}{SEPARATOR}{SEPARATOR}{digest}"


def check_indexed(what: str, value: str) -> str:
    """Return a value that both databases can store in an index.

    Raises:
        InvalidInputError: it is too long, or contains NUL.
    """
    if "\x00" in value:
        raise InvalidInputError(f"{what} holds the character NUL: {value!r}")
    if len(value) > SHORT and len(value.encode(errors="surrogatepass")) > LONGEST:
        raise InvalidInputError(f"{what} is longer than {LONGEST} bytes: {value[:40]!r}…")
    return value


def to_json(value: Mapping[str, Any]) -> str:
    """Return a mapping as JSON.

    Raises:
        InvalidInputError: it holds a value that JSON cannot represent.
    """
    try:
        return orjson.dumps(dict(value)).decode()
    except orjson.JSONEncodeError as error:
        raise InvalidInputError(f"no JSON: {error}") from error


def from_json(text: str) -> dict[str, Any]:
    """Return the mapping in a JSON column."""
    return cast("dict[str, Any]", orjson.loads(text))


def limit_rows(query: S) -> S:
    """Return a query for at most `size` rows."""
    return query.limit(bindparam("size")).offset(NONE)


def bind_values(*names: str) -> dict[str, BindParameter[Any]]:
    """Return bind parameters that are named like their columns."""
    return {name: bindparam(name) for name in names}


def insert_into(table: Table, *names: str) -> Insert:
    """Return an INSERT of these columns, with a method for ON CONFLICT that compiles for both databases."""
    return insert(table).inline().values(bind_values(*names))


class Stored(NamedTuple):
    """How a field of a dataclass is stored, where that is not as it is, in the column of its name."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    column: str | None = None


AS_IS = Stored(lambda value: value, lambda value: value)
JSON = Stored(
    lambda value: None if value is None else to_json(value), lambda text: None if text is None else from_json(text)
)
LEVELS = Stored(join_levels, split_levels, "path")
FLAG = Stored(bool, bool)
WORDS = Stored(" ".join, lambda text: tuple(text.split()))


class RowType(Generic[R]):
    """A dataclass whose instances are rows of a table, or of some of its columns."""

    def __init__(self, table: Table, kind: type[R], /, **stored: Stored) -> None:
        self._kind = kind
        self._fields = {field.name: stored.get(field.name, AS_IS) for field in fields(cast("Any", kind))}
        self._decoders = [
            (index, storage.decode) for index, storage in enumerate(self._fields.values()) if storage is not AS_IS
        ]
        self.names = tuple(storage.column or name for name, storage in self._fields.items())
        self.columns = tuple(table.c[name] for name in self.names)

    def read(self, row: Sequence[Any]) -> R:
        """Return a row of `columns` as an instance."""
        values = list(row)
        for index, decode in self._decoders:
            values[index] = decode(values[index])
        return self._kind(*values)

    def encode(self, name: str, value: Any) -> Any:
        """Return the value of a field, or of another column, as it is stored."""
        return self._fields.get(name, AS_IS).encode(value)

    def values(self, instance: R) -> dict[str, Any]:
        """Return the values of an instance by column."""
        encoded = (self.encode(name, getattr(instance, name)) for name in self._fields)
        return dict(zip(self.names, encoded, strict=True))

    def fetch_all(self, tx: Tx, statement: Statement, values: Values) -> list[R]:
        """Run a query of `columns` and return its rows."""
        return [self.read(row) for row in tx.fetch_all(statement, values)]

    def fetch_one(self, tx: Tx, statement: Statement, values: Values) -> R | None:
        """Run a query of `columns` and return its only row, or None."""
        row = tx.fetch_one(statement, values)
        return None if row is None else self.read(row)
