"""How values lie in columns: namespaces as paths, mappings as JSON, and what is too long or cannot be stored."""

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
LONGEST = 2000
"""Bytes of a name, which is in an index: Postgres has room for 2,700."""
SHORT = LONGEST // 4
"""Characters that never take more bytes than that."""

NONE: ColumnElement[int] = literal_column("0")
"""An offset that is none; left out, SQLite's would be a value that nobody passes."""
EVERYTHING = 1 << 62
"""A limit that is none, in both databases."""


def join_levels(levels: tuple[str, ...]) -> str:
    """A namespace as one string, as Iceberg's URLs join it."""
    joined = SEPARATOR.join(levels)
    if levels and joined.count(SEPARATOR) != len(levels) - 1:
        raise InvalidInputError(f"a level of a namespace holds the separator of levels: {list(levels)}")
    return joined


def split_levels(path: str) -> tuple[str, ...]:
    """The namespace of a path."""
    return tuple(path.split(SEPARATOR)) if path else ()


def index_key(path: str) -> str:
    """A path of any length as something short enough for an index, never the same for two paths."""
    if len(path) <= SHORT:
        return path
    digest = sha256(path.encode(errors="surrogatepass")).hexdigest()
    return f"{path[:16]}{SEPARATOR}{SEPARATOR}{digest}"


def check_indexed(what: str, value: str) -> str:
    """A value that both databases can store and find again.

    Raises:
        InvalidInputError: it is too long, or is no text.
    """
    if "\x00" in value:
        raise InvalidInputError(f"{what} holds the character NUL: {value!r}")
    if len(value) > SHORT and len(value.encode(errors="surrogatepass")) > LONGEST:
        raise InvalidInputError(f"{what} is longer than {LONGEST} bytes: {value[:40]!r}…")
    return value


def to_json(value: Mapping[str, Any]) -> str:
    """A mapping as JSON.

    Raises:
        InvalidInputError: it holds something that JSON has not.
    """
    try:
        return orjson.dumps(dict(value)).decode()
    except orjson.JSONEncodeError as error:
        raise InvalidInputError(f"no JSON: {error}") from error


def from_json(text: str) -> dict[str, Any]:
    """The mapping of a JSON column."""
    return cast("dict[str, Any]", orjson.loads(text))


def bind_values(*names: str) -> dict[str, BindParameter[Any]]:
    """Values of a statement, each named like its column."""
    return {name: bindparam(name) for name in names}


def insert_into(table: Table, *names: str) -> Insert:
    """An insert of these columns. The dialect of the class does not matter: SQLite reads ON CONFLICT the same way."""
    return insert(table).inline().values(bind_values(*names))
