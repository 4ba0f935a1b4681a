"""How files of text are read: what the options are called, and what they may be."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError

from lancehouse.credentials import EXPIRES, REGIONS, SECRETS, SPELLINGS, TUNING
from lancehouse.schema.ddl import from_ddl
from lancehouse.schema.spark import from_spark
from lancehouse.spark.suggestions import close, meant

UTF8 = "utf-8"
_STORES = ("aws_", "azure_", "google_", "s3_", "gcs_", "adls_", "object_store_")
_OF_STORES = frozenset(
    {name for names in SPELLINGS for name in names}
    | {*SECRETS, *TUNING, *REGIONS, EXPIRES}
    | {"allow_http", "allow_invalid_certificates", "skip_signature", "unsigned_payload", "proxy_url", "user_agent"}
)
_NO_TYPES = pa.schema([])


def is_storage_option(name: str) -> bool:
    """Whether an option is one of the store that files are in, not of their format."""
    return name.lower() in _OF_STORES or name.lower().startswith(_STORES)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How files of text are read."""

    delimiter: str | None = None
    """Between the fields; by default a comma, in `.tsv` a tab."""
    quote: str | None = '"'
    """Around fields that hold a delimiter or a line's end; None if there is none."""
    escape: str | None = None
    """Before a character that is to be taken as it is."""
    header: bool = True
    """Whether the first line has the names of the columns."""
    skip_rows: int = 0
    """Lines before the header."""
    null_values: tuple[str, ...] = ("",)
    encoding: str = UTF8
    types: pa.Schema = field(default=_NO_TYPES)
    """Of columns whose types are not to be inferred."""
    schema: pa.Schema | None = None
    """All columns, in this order."""

    @classmethod
    def of(cls, format: str, given: Mapping[str, Any], known: Sequence[str]) -> Self:
        """What somebody gave.

        Args:
            format: the name of the format, for errors.
            given: the options, as text or as what they mean.
            known: the names of the options that the format has.

        Raises:
            InvalidInputError: there is no such option, or it cannot be this.
        """
        for name in given:
            if name not in known:
                near = close(name, [*known, *sorted(_OF_STORES)])
                said = meant(name, known) if known else f"{format} files say themselves how they are read"
                hint = f"did you mean {near[0]}?" if near else said
                raise InvalidInputError(f"{format} has no option {name!r}; {hint}")
        found = {name: _parse(name, value) for name, value in given.items()}
        if {"types", "schema"} <= found.keys():
            raise InvalidInputError("the options types and schema are not given together: schema has all types")
        if found.get("header") is False and found.get("schema") is None:
            raise InvalidInputError(
                "files without a header need the option schema, with the name and type of each column, such as "
                "'id bigint, name string'"
            )
        return cls(**found)

    @property
    def key(self) -> str:
        """The same for what reads the same from the same files; empty if nothing is given."""
        if self == type(self)():
            return ""
        return " ".join(f"{each.name}={getattr(self, each.name)!s}" for each in fields(self))

    @property
    def known_types(self) -> dict[str, Any]:
        """The types that are not to be inferred."""
        return {column.name: column.type for column in self.schema or self.types}

    def apply_schema(self, schema: pa.Schema, about: str) -> pa.Schema:
        """The columns of files: those that are given, or those that were inferred.

        Args:
            schema: what was inferred.
            about: names the files, for errors.

        Raises:
            InvalidInputError: the files have a column that the given schema has not.
        """
        if self.schema is None:
            return schema
        if unknown := [name for name in schema.names if name not in self.schema.names]:
            raise InvalidInputError(f"{about} has a column {', '.join(unknown)} that the option schema has not")
        return self.schema

    def apply_types(self, schema: pa.Schema, about: str) -> pa.Schema:
        """The columns of files and of the folders that they are in, with the types that are given.

        Args:
            schema: what was inferred.
            about: names the files, for errors.

        Raises:
            TableColumnNotFoundError: there is no column that is given a type.
        """
        for name in self.types.names:
            if name not in schema.names:
                raise TableColumnNotFoundError(
                    f"the option types has a column {name!r}, and {about} has not; {meant(name, schema.names)}"
                )
        return pa.schema([self.types.field(each.name) if each.name in self.types.names else each for each in schema])


def _parse(name: str, value: Any) -> Any:
    try:
        return _PARSERS[name](value)
    except LanceNamespaceError as error:
        raise InvalidInputError(f"the option {name}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidInputError(f"the option {name} must be {_EXPECTED[name]}, not {value!r}") from error


def _character(value: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(value, value)
    if len(text.encode()) != 1 or text in "\r\n":
        raise ValueError
    return text


def _optional_character(value: str | None) -> str | None:
    return None if value in (None, "", "none") else _character(str(value))


def _flag(value: bool | str) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]


def _count(value: int | str) -> int:
    if isinstance(value, bool) or (number := int(value)) < 0:
        raise ValueError
    return number


def _nulls(value: str | Sequence[str]) -> tuple[str, ...]:
    found = json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    texts = [found] if isinstance(found, str) else list(found)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    return tuple(dict.fromkeys(["", *texts]))


def _encoding(value: str) -> str:
    " ".encode(value)  # raises for codecs of Python that are no encodings of text, such as base64
    return codecs.lookup(value).name


def _types(value: Any) -> pa.Schema:
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return pa.schema([_field(name, dtype) for name, dtype in value.items()])
    return _schema(value)


def _field(name: str, dtype: Any) -> pa.Field[Any]:
    if isinstance(dtype, pa.DataType):
        return pa.field(name, dtype)
    column = {"name": name, "type": from_ddl(dtype), "nullable": True, "metadata": {}}
    return from_spark({"type": "struct", "fields": [column]}).field(0)


def _schema(value: Any) -> pa.Schema:
    if isinstance(value, pa.Schema):
        found = value
    elif isinstance(value, str):
        struct: Any = from_ddl(f"struct<{value}>")
        found = from_spark(struct)
    else:
        found = from_spark(value.jsonValue())  # a StructType of Spark
    if not found.names:
        raise ValueError
    return found


_PARSERS: Mapping[str, Any] = {
    "delimiter": _character,
    "quote": _optional_character,
    "escape": _optional_character,
    "header": _flag,
    "skip_rows": _count,
    "null_values": _nulls,
    "encoding": _encoding,
    "types": _types,
    "schema": _schema,
}
_EXPECTED: Mapping[str, str] = {
    "delimiter": "one character, or 'tab'",
    "quote": "one character, or 'none'",
    "escape": "one character, or 'none'",
    "header": "true or false",
    "skip_rows": "a number of lines",
    "null_values": "a text, or a list of texts",
    "encoding": "the name of an encoding, such as latin-1",
    "types": "names and types of columns, such as {'zip': 'string'}",
    "schema": "the names and types of all columns, such as 'id bigint, name string'",
}
ALL_OPTIONS = tuple(_PARSERS)
