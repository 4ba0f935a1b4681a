"""Convert values to and from columns: namespace paths, index keys, JSON; and check what can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, cast

import orjson
from lance_namespace.errors import InvalidInputError
from sqlalchemy import BindParameter, ColumnElement, bindparam, literal_column
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.schema import Table

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


def bind_values(*names: str) -> dict[str, BindParameter[Any]]:
    """Return bind parameters that are named like their columns."""
    return {name: bindparam(name) for name in names}


def insert_into(table: Table, *names: str) -> Insert:
    """Return an INSERT of these columns, with a method for ON CONFLICT that compiles for both databases."""
    return insert(table).inline().values(bind_values(*names))
