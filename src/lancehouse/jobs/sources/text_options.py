"""Options of text formats (CSV, JSON): their names, parsing and validation."""

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
from lancehouse.suggestions import suggest

UTF8 = "utf-8"
_STORES = ("aws_", "azure_", "google_", "s3_", "gcs_", "adls_", "object_store_")
_OF_STORES = frozenset(
    {name for names in SPELLINGS for name in names}
    | {*SECRETS, *TUNING, *REGIONS, EXPIRES}
    | {"allow_http", "allow_invalid_certificates", "skip_signature", "unsigned_payload", "proxy_url", "user_agent"}
)
_NO_TYPES = pa.schema([])


def is_storage_option(name: str) -> bool:
    """Return whether an option is a storage option, not one of the file format."""
    return name.lower() in _OF_STORES or name.lower().startswith(_STORES)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for reading text files."""

    delimiter: str | None = None
    """Delimiter of fields; by default a comma, in `.tsv` a tab."""
    quote: str | None = '"'
    """Quote character around fields that hold a delimiter or a newline; None if there is none."""
    escape: str | None = None
    """Escape character; None if there is none."""
    header: bool = True
    """Whether the first line has the names of the columns."""
    skip_rows: int = 0
    """Number of lines to skip before the header."""
    null_values: tuple[str, ...] = ("",)
    encoding: str = UTF8
    types: pa.Schema = field(default=_NO_TYPES)
    """Types of columns for which they are not to be inferred."""
    schema: pa.Schema | None = None
    """All columns of the files, in this order; None to infer them."""

    @classmethod
    def parse(cls, format: str, options: Mapping[str, Any], option_names: Sequence[str]) -> Self:
        """Parse the options that a user gave.

        Args:
            format: name of the format, for errors.
            options: the options, as text or as Python values.
            option_names: names of the options that the format has.

        Raises:
            InvalidInputError: an option is unknown, or its value is invalid.
        """
        for name in options:
            if name not in option_names:
                others = f"expected one of {', '.join(option_names)}" if option_names else "the format has no options"
                hint = suggest(name, [*option_names, *sorted(_OF_STORES)], others)
                raise InvalidInputError(f"{format} has no option {name!r}; {hint}")
        values = {name: _parse_option(name, value) for name, value in options.items()}
        if {"types", "schema"} <= values.keys():
            raise InvalidInputError("the options types and schema are not given together: schema has all types")
        if values.get("header") is False and values.get("schema") is None:
            raise InvalidInputError(
                "files without a header need the option schema, with the name and type of each column, such as "
                "'id bigint, name string'"
            )
        return cls(**values)

    @property
    def key(self) -> str:
        """Text that is equal for equal options; empty for the defaults."""
        if self == type(self)():
            return ""
        return " ".join(f"{each.name}={getattr(self, each.name)!s}" for each in fields(self))

    @property
    def known_types(self) -> dict[str, Any]:
        """Types that are not to be inferred, by column."""
        return {column.name: column.type for column in self.schema or self.types}

    def apply_schema(self, schema: pa.Schema, about: str) -> pa.Schema:
        """Return the schema of files: the one that was given, or the one that was inferred.

        Args:
            schema: the schema that was inferred.
            about: names the files, for errors.

        Raises:
            InvalidInputError: the files have a column that the given schema lacks.
        """
        if self.schema is None:
            return schema
        if unknown := [name for name in schema.names if name not in self.schema.names]:
            raise InvalidInputError(f"{about} has a column {', '.join(unknown)} that the option schema has not")
        return self.schema

    def apply_types(self, schema: pa.Schema, about: str) -> pa.Schema:
        """Return the schema of files and of their partition folders, with the types that were given.

        Args:
            schema: the schema that was inferred.
            about: names the files, for errors.

        Raises:
            TableColumnNotFoundError: a type was given for a column that does not exist.
        """
        for name in self.types.names:
            if name not in schema.names:
                raise TableColumnNotFoundError(
                    f"the option types has a column {name!r}, and {about} has not; {suggest(name, schema.names)}"
                )
        return pa.schema([self.types.field(each.name) if each.name in self.types.names else each for each in schema])


def _parse_option(name: str, value: Any) -> Any:
    try:
        return _PARSERS[name](value)
    except LanceNamespaceError as error:
        raise InvalidInputError(f"the option {name}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidInputError(f"the option {name} must be {_EXPECTED[name]}, not {value!r}") from error


def _parse_character(value: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(value, value)
    if len(text.encode()) != 1 or text in "\r\n":
        raise ValueError
    return text


def _parse_optional_character(value: str | None) -> str | None:
    return None if value in (None, "", "none") else _parse_character(str(value))


def _parse_flag(value: bool | str) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]


def _parse_count(value: int | str) -> int:
    if isinstance(value, bool) or (number := int(value)) < 0:
        raise ValueError
    return number


def _parse_null_values(value: str | Sequence[str]) -> tuple[str, ...]:
    parsed = json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    texts = [parsed] if isinstance(parsed, str) else list(parsed)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    return tuple(dict.fromkeys(["", *texts]))


def _parse_encoding(value: str) -> str:
    " ".encode(value)  # raises for codecs of Python that are no encodings of text, such as base64
    return codecs.lookup(value).name


def _parse_types(value: Any) -> pa.Schema:
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return pa.schema([_parse_field(name, dtype) for name, dtype in value.items()])
    return _parse_schema(value)


def _parse_field(name: str, dtype: Any) -> pa.Field[Any]:
    if isinstance(dtype, pa.DataType):
        return pa.field(name, dtype)
    column = {"name": name, "type": from_ddl(dtype), "nullable": True, "metadata": {}}
    return from_spark({"type": "struct", "fields": [column]}).field(0)


def _parse_schema(value: Any) -> pa.Schema:
    if isinstance(value, pa.Schema):
        schema = value
    elif isinstance(value, str):
        struct: Any = from_ddl(f"struct<{value}>")
        schema = from_spark(struct)
    else:
        schema = from_spark(value.jsonValue())  # a StructType of Spark
    if not schema.names:
        raise ValueError
    return schema


_PARSERS: Mapping[str, Any] = {
    "delimiter": _parse_character,
    "quote": _parse_optional_character,
    "escape": _parse_optional_character,
    "header": _parse_flag,
    "skip_rows": _parse_count,
    "null_values": _parse_null_values,
    "encoding": _parse_encoding,
    "types": _parse_types,
    "schema": _parse_schema,
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
