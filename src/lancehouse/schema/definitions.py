"""What a table says of itself in its schema: how its computed columns are made, and what it is a view of.

A table never holds code: it names functions as `module:name`. Whoever writes a table can write anything here, so what
cannot be read counts as absent or is refused, and nothing is imported.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.identifiers import quote_name

logger = logging.getLogger(__name__)

COMPUTED = b"lancehouse.column"
"""Key of a field's metadata that holds the definition of a computed column."""
VIEW = b"lancehouse.view"
"""Key of a schema's metadata that holds the definition of a view."""
VIEW_OF = "lancehouse.view-of"
"""Property of a view's entry in a catalog: the id of its source, so that a catalog finds the views of a table."""
COMPANION = "_lancehouse_"
"""Prefix of the columns that Lancehouse keeps for itself: the companion of a computed column, which says of each row
what made its value, and the row id of the source in a view."""
SOURCE_ROW = f"{COMPANION}source"
"""Column of a view with the row id of the source's row."""
COMPANION_TYPE = pa.struct([("version", pa.string()), ("state", pa.string()), ("at", pa.int64())])
"""Version of the function, state, and the version of the table whose inputs were read."""
FILLED, FAILED, SKIPPED = "filled", "failed", "skipped"
"""States of a row: computed; failed and set to null; failed and left as it was."""
LARGEST = 2**63 - 1


class VersionedFunction(Protocol):
    """What makes a column or a view: a function by its name, or SQL."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def sql(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """What a table keeps of a computed column, in the metadata of its field."""

    function: str
    version: str
    inputs: tuple[tuple[int, str], ...]
    """Field ids of the inputs, which a renaming does not change, and their names when the column was defined."""
    digest: str
    since: int
    """Version of the table in which this was defined; values that were computed before are not of this function."""
    companion: str
    """Name of the column that says what made each value."""
    sql: str | None = None

    def to_metadata(self) -> str:
        """Return the definition as JSON."""
        source = {"function": self.function} if self.sql is None else {"sql": self.sql}
        rest = {"version": self.version, "inputs": self.inputs, "digest": self.digest, "since": self.since}
        return json.dumps({**source, **rest, "companion": self.companion})

    @classmethod
    def from_field(cls, field: pa.Field[Any]) -> Self | None:
        """Return the definition of a column; None if it has none, or one that cannot be read."""
        try:
            match json.loads((field.metadata or {}).get(COMPUTED, b"null")):
                case {
                    "version": str(version),
                    "digest": str(digest),
                    "since": int(since),
                    "inputs": list(inputs),
                } as fields if 0 <= since <= LARGEST:
                    pairs = tuple((int(number), _to_text(name)) for number, name in inputs)
                    companion = fields.get("companion") or companion_name(field.name)
                    sql = None if fields.get("sql") is None else _to_text(fields["sql"])
                    texts = (_to_text(fields.get("function", "")), _to_text(version), _to_text(companion))
                    return cls(texts[0], texts[1], pairs, digest, since, texts[2], sql)
        except (ValueError, TypeError, RecursionError):
            logger.warning("the definition of column %s cannot be read", field.name)
        return None

    def matches(self, function: VersionedFunction) -> bool:
        """Return whether a function is the one that is defined here, of the same version and the same code."""
        return (self.function, self.sql, self.version, self.digest) == (
            function.name,
            function.sql,
            function.version,
            function.digest,
        )

    @property
    def made_by_it(self) -> str:
        """Which rows have a value, or an error, of this definition, in Lance's SQL."""
        companion, version = quote_name(self.companion), self.version.replace("'", "''")
        return f"({companion}.version = '{version}' AND {companion}.at >= {self.since})"

    @property
    def label(self) -> str:
        """Name of the function for messages and lists."""
        return self.function or f"SQL {self.sql!r}"

    @property
    def title(self) -> str:
        """Name and version of the function; the version of SQL is its text."""
        return f"{self.function} {self.version}" if self.function else self.label


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """What a view is made of, as its table keeps it."""

    source: tuple[str, ...]
    columns: Mapping[str, str]
    """Columns that are taken from the source's row, as SQL."""
    where: str | None = None
    function: str = ""
    """`module:name` of the function that makes further columns, or empty."""
    version: str = ""
    inputs: tuple[str, ...] = ()
    digest: str = ""
    names: tuple[str, ...] = ()
    """The columns that the view makes; others may have been added to it, such as computed ones."""

    def to_metadata(self) -> str:
        """Return the definition as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> Self | None:
        """Return the definition of a view; None for other tables.

        Raises:
            InvalidInputError: it cannot be read: whoever writes the table can write anything there.
        """
        text = (schema.metadata or {}).get(VIEW)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            source, inputs, names = (tuple(map(_to_text, fields[name])) for name in ("source", "inputs", "names"))
            function, version, digest = (_to_text(fields[name]) for name in ("function", "version", "digest"))
            columns = {_to_text(name): _to_text(sql) for name, sql in fields["columns"].items()}
            where = None if fields["where"] is None else _to_text(fields["where"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidInputError(f"the definition of the view cannot be read ({error}); create it anew") from error
        return cls(source, columns, where, function, version, inputs, digest, names)

    def matches(self, function: VersionedFunction | None) -> bool:
        """Return whether the view is made by this function."""
        if function is None:
            return not self.function
        return (self.function, self.version, self.digest) == (function.name, function.version, function.digest)

    @property
    def title(self) -> str:
        """Name and version of the function, for messages and lists."""
        return f"{self.function} {self.version}" if self.function else "SQL"


def companion_name(name: str) -> str:
    """Return the name of the companion of a computed column."""
    return f"{COMPANION}{name}"


def require_free_names(names: Iterable[str]) -> None:
    """Refuse names that only Lancehouse itself may give to columns.

    Raises:
        InvalidInputError: one begins as they do.
    """
    for name in names:
        if name.startswith(COMPANION):
            raise InvalidInputError(f"{name}: names that begin with {COMPANION} are taken")


def definitions(schema: pa.Schema) -> dict[str, ColumnDefinition]:
    """Return the computed columns of a schema, by name."""
    pairs = ((field.name, ColumnDefinition.from_field(field)) for field in schema)
    return {name: definition for name, definition in pairs if definition is not None}


def shown_columns(schema: pa.Schema) -> list[str]:
    """Return all columns but those that Lancehouse keeps for itself, which are read only by their names."""
    return [name for name in schema.names if not name.startswith(COMPANION)]


def _to_text(value: Any) -> str:
    """Return a text that can be encoded.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value.encode(errors="replace").decode()
