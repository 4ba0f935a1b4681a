"""Convert Arrow schemas to Spark's StructType and back, in the JSON that `StructType.json()` writes.

Where Spark lacks a type, the nearest one that holds all values is used, and the field's metadata store the Arrow type,
so that the conversion back is exact. That is how a vector stays one: for Spark it is `array<float>`. Types are also
parsed and formatted as DDL text, such as `struct<id:bigint,tags:array<string>>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.identifiers import quote_name
from lancehouse.schema.jsonarrow import type_from_jsonarrow, type_to_jsonarrow
from lancehouse.schema.walk import (
    BFLOAT16,
    BLOB,
    EXTENSION,
    EXTENSION_METADATA,
    JSON,
    FoldedField,
    Node,
    Path,
    arrow_field,
    fold,
    map_type,
    narrow_decimal,
    schema_error,
)

SparkType = str | dict[str, Any]
"""A type inside the JSON of a Spark StructType."""

_TEXTS = MappingProxyType({"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"})
"""Names that differ between JSON and DDL."""

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{text: name for name, text in _TEXTS.items()},
        "real": "float",
        "timestamp_ltz": "timestamp",
        "dec": "decimal",
        "numeric": "decimal",
        "null": "void",
    }
)

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<>(),:]|[^\s<>(),:`']+)")
_SIGNS = frozenset("<>(),:")
_DEFAULT_PARAMETERS = MappingProxyType({"decimal": "(10,0)", "time": "(6)"})


def to_ddl(type_: SparkType) -> str:
    """Return the DDL text of a type; names that are not plain words are quoted. Nullability is left out."""
    if isinstance(type_, str):
        return _TEXTS.get(type_, type_)
    match type_["type"]:
        case "array":
            return f"array<{to_ddl(type_['elementType'])}>"
        case "map":
            return f"map<{to_ddl(type_['keyType'])},{to_ddl(type_['valueType'])}>"
        case "struct":
            fields = (f"{_quote(field['name'])}:{to_ddl(field['type'])}" for field in type_["fields"])
            return f"struct<{','.join(fields)}>"
    raise TableSchemaValidationError(f"no text for the Spark type {type_!r}")


def from_ddl(text: str) -> SparkType:
    """Parse DDL text to the JSON of a type; case does not matter, and Spark's synonyms are accepted.

    Raises:
        TableSchemaValidationError: the text is not one type. Unknown names of types are left to `from_spark`.
    """
    parser = _DdlParser(text)
    type_ = parser.parse_type()
    parser.expect_end()
    return type_


def _quote(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_name(name)


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, stripped = 0, text.rstrip()
        while at < len(stripped):
            if (match := _TOKEN.match(stripped, at)) is None:
                raise self._error()
            self._tokens.append(match[1])
            at = match.end()
        self._tokens.reverse()

    def parse_type(self) -> SparkType:
        match name := self._take_word():
            case "array":
                self._expect("<")
                element = self.parse_type()
                self._expect(">")
                return {"type": "array", "elementType": element, "containsNull": True}
            case "map":
                self._expect("<")
                key = self.parse_type()
                self._expect(",")
                value = self.parse_type()
                self._expect(">")
                return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
            case "struct":
                return {"type": "struct", "fields": self._parse_fields()}
            case "interval":
                return " ".join([name, *self._take_words()])
            case "string":
                if self._next_is("collate"):
                    self._take_word()
                    self._take_word()
                return name
        name = _ALIASES.get(name, name)
        return name + (self._parse_parameters() or _DEFAULT_PARAMETERS.get(name, ""))

    def expect_end(self) -> None:
        if self._tokens:
            raise self._error()

    def _parse_fields(self) -> list[dict[str, Any]]:
        self._expect("<")
        fields: list[dict[str, Any]] = []
        while not self._next_is(">"):
            if fields:
                self._expect(",")
            fields.append(self._parse_field())
        self._expect(">")
        return fields

    def _parse_field(self) -> dict[str, Any]:
        name = self._take()
        if name in _SIGNS:
            raise self._error()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._next_is(":"):
            self._expect(":")
        type_, nullable, metadata = self.parse_type(), True, {}
        if self._next_is("not"):
            self._take_word()
            self._expect("null")
            nullable = False
        if self._next_is("comment"):
            self._take_word()
            metadata = {"comment": self._take_text()}
        return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}

    def _parse_parameters(self) -> str:
        if not self._next_is("("):
            return ""
        tokens = [self._take()]
        while tokens[-1] != ")":
            tokens.append(self._take())
        return "".join(tokens)

    def _take_words(self) -> list[str]:
        words = []
        while self._tokens and self._tokens[-1][0].isalpha() and self._tokens[-1].lower() not in ("not", "comment"):
            words.append(self._take_word())
        return words

    def _take_text(self) -> str:
        token = self._take()
        if len(token) < 2 or token[0] not in "'\"" or token[-1] != token[0]:
            raise self._error()
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    def _take_word(self) -> str:
        return self._take().lower()

    def _next_is(self, token: str) -> bool:
        return bool(self._tokens) and self._tokens[-1].lower() == token

    def _expect(self, token: str) -> None:
        if self._take().lower() != token:
            raise self._error()

    def _take(self) -> str:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop()

    def _error(self) -> TableSchemaValidationError:
        return TableSchemaValidationError(f"{self._text!r} is not the text of a Spark type")


ARROW = "lancehouse.arrow"
"""Key of a StructField's metadata: the Arrow type, as JSON text, where it cannot be derived from the Spark type."""

_NAMES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "void": pa.null(),
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
)

_TYPES: Mapping[pa.DataType, str] = MappingProxyType(
    {
        **{dtype: name for name, dtype in _NAMES.items()},
        pa.uint8(): "short",
        pa.uint16(): "integer",
        pa.uint32(): "long",
        pa.uint64(): "decimal(20,0)",
        pa.float16(): "float",
        pa.large_string(): "string",
        pa.large_binary(): "binary",
        pa.date64(): "date",
    }
)

_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {BLOB: "binary", BFLOAT16: "float", **dict.fromkeys(JSON, "string")},
)
"""Spark types of extensions whose values differ from those of their storage type."""

_PARAMETRIC: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType]], ...] = (
    (re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)"), lambda match: pa.decimal128(int(match[1]), int(match[2]))),
    (re.compile(r"decimal\(\s*(\d+)\s*\)"), lambda match: pa.decimal128(int(match[1]), 0)),
    (re.compile(r"(var)?char\(\s*\d+\s*\)|string collate \S+"), lambda _: pa.string()),
    (re.compile(r"time\(\s*\d+\s*\)"), lambda _: pa.time64("ns")),
    (re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?"), lambda _: pa.duration("us")),
)


def to_spark(schema: pa.Schema) -> dict[str, Any]:
    """Return the JSON of the StructType.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    return {"type": "struct", "fields": [_to_struct_field(column) for column in fold(schema, _SparkVisitor())]}


def from_spark(struct: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a StructType, in Spark's own Arrow types where the metadata store no other.

    A stored Arrow type counts only while it fits the Spark type: after a change of type in Spark it is stale.

    Raises:
        TableSchemaValidationError: Arrow or Lance has no such type.
    """
    return pa.schema([from_struct_field(field) for field in struct["fields"]])


def parse_schema(value: Any) -> pa.Schema:
    """Return the columns that a user gives: an Arrow schema, DDL text (`id bigint, name string`) or a StructType.

    Raises:
        TableSchemaValidationError: the text is no DDL, or Lance does not store a type.
        ValueError, AttributeError: it is none of these, or has no columns.
    """
    if isinstance(value, pa.Schema):
        schema = value
    elif isinstance(value, str):
        struct: Any = from_ddl(f"struct<{value}>")
        schema = from_spark(struct)
    else:
        schema = from_spark(value.jsonValue())  # a StructType of Spark
    if not schema.names:
        raise ValueError("there are no columns")
    return schema


def parse_field(name: str, dtype: pa.DataType | str) -> pa.Field[Any]:
    """Return a column of an Arrow type, or of a type in Spark's words."""
    if isinstance(dtype, pa.DataType):
        return pa.field(name, dtype)
    column = {"name": name, "type": from_ddl(dtype), "nullable": True, "metadata": {}}
    return from_spark({"type": "struct", "fields": [column]}).field(0)


def table_schema(struct: Mapping[str, Any], vector_columns: Mapping[str, int] | None = None) -> pa.Schema:
    """Return the Arrow schema of a new Lance table for rows of a StructType.

    Args:
        struct: the JSON of the StructType.
        vector_columns: dimensions of arrays of numbers that are vectors, by name; `a.b` is the field b of the struct a.

    Raises:
        TableSchemaValidationError: Lance does not store a type, or two columns have one name.
        InvalidInputError: a vector column is unknown or no array of numbers, or its dimension is not positive.
    """
    return with_vectors(from_spark(struct), vector_columns or {})


def with_vectors(schema: pa.Schema, vector_columns: Mapping[str, int]) -> pa.Schema:
    """Return the columns of a new table with some lists turned into vectors; see `table_schema`."""
    if len(set(schema.names)) < len(schema):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise TableSchemaValidationError(f"more than one column is called {', '.join(twice)}")
    fields = list(schema)
    for name, dimension in vector_columns.items():
        if dimension < 1:
            raise InvalidInputError(f"vector column {name}: the dimension is {dimension}, not a positive number")
        fields = _with_vector(fields, [name] if name in schema.names else name.split("."), name, dimension)
    return pa.schema(fields)


def _with_vector(fields: list[pa.Field[Any]], steps: list[str], name: str, dimension: int) -> list[pa.Field[Any]]:
    if not any(field.name == steps[0] for field in fields):
        names = ", ".join(field.name for field in fields)
        raise InvalidInputError(f"vector column {name}: there is no {steps[0]} among {names or 'no columns'}")
    return [_to_vector(field, steps, name, dimension) if field.name == steps[0] else field for field in fields]


def _to_vector(field: pa.Field[Any], steps: list[str], name: str, dimension: int) -> pa.Field[Any]:
    dtype = field.type
    if len(steps) > 1 and isinstance(dtype, pa.StructType):
        return field.with_type(pa.struct(_with_vector(list(dtype), steps[1:], name, dimension)))
    if len(steps) == 1 and isinstance(dtype, pa.FixedSizeListType) and dtype.list_size == dimension:
        return field
    if len(steps) == 1 and isinstance(dtype, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        element = dtype.value_field
        if pa.types.is_integer(element.type) or pa.types.is_floating(element.type):
            return field.with_type(pa.list_(element, dimension))
    raise InvalidInputError(f"vector column {name}: {field.name} is no array of numbers, but {dtype}")


def from_struct_field(field: Mapping[str, Any], above: Path = ()) -> pa.Field[Any]:
    """Return the Arrow field of one StructField; `above` is the path of its parent, for errors."""
    path = (*above, field["name"])
    nullable = field.get("nullable", True)
    metadata = {key: _to_text(value) for key, value in (field.get("metadata") or {}).items()}
    arrow_json = metadata.pop(ARROW, None)
    plain = _arrow_type(field["type"], path)
    if arrow_json is not None or EXTENSION in metadata:
        dtype = plain if arrow_json is None else _parse_arrow_type(arrow_json, path)
        if _field_ddl(pa.field(path[-1], dtype, metadata={**metadata})) == _field_ddl(pa.field(path[-1], plain)):
            return arrow_field(path, dtype, nullable=nullable, metadata=metadata)
        metadata = {key: value for key, value in metadata.items() if key not in (EXTENSION, EXTENSION_METADATA)}
    return arrow_field(path, plain, nullable=nullable, metadata=metadata)


def exchange_type(node: Node) -> pa.DataType:
    """Return the Arrow type in which Spark passes the values of a type that has no children in Spark.

    Raises:
        TableSchemaValidationError: Spark has no such type.
    """
    return from_spark_name(_EXTENSIONS.get(node.extension or "") or _spark_name(node), node.path)


def from_spark_name(name: str, path: Path) -> pa.DataType:
    """Return the Arrow type of a Spark type without children; `path` is that of the field, for errors.

    Raises:
        TableSchemaValidationError: Arrow has no such type.
    """
    if (dtype := _NAMES.get(name)) is not None:
        return dtype
    try:
        for pattern, build in _PARAMETRIC:
            if match := pattern.fullmatch(name):
                return build(match)
    except ValueError as error:
        raise schema_error(path, f"Arrow has no type for Spark {name}: {error}") from error
    raise schema_error(path, f"Arrow has no type for Spark {name}")


@dataclass(frozen=True, slots=True)
class _MappedType:
    """A Spark type, and whether the Arrow type can be derived from it alone."""

    spark: SparkType
    is_exact: bool


class _SparkVisitor:
    """Converts to Spark types."""

    def enter(self, node: Node) -> _MappedType | None:
        name = _EXTENSIONS.get(node.extension or "")
        return None if name is None else _MappedType(name, _NAMES[name] == node.type)

    def leaf(self, node: Node) -> _MappedType:
        name = _spark_name(node)
        return _MappedType(name, _arrow_type(name, node.path) == node.type)

    def dictionary(self, _: Node, values: _MappedType) -> _MappedType:
        return _MappedType(values.spark, is_exact=False)

    def list(self, node: Node, element: FoldedField[_MappedType]) -> _MappedType:
        array = {"type": "array", "elementType": element.type.spark, "containsNull": element.node.nullable}
        return _MappedType(array, isinstance(node.type, pa.ListType) and _is_bare(element, "item"))

    def map(self, _: Node, key: FoldedField[_MappedType], value: FoldedField[_MappedType]) -> _MappedType:
        types = {"keyType": key.type.spark, "valueType": value.type.spark, "valueContainsNull": value.node.nullable}
        return _MappedType({"type": "map", **types}, _is_bare(key, "key") and _is_bare(value, "value"))

    def struct(self, _: Node, fields: Sequence[FoldedField[_MappedType]]) -> _MappedType:
        # Each field stores its own Arrow type where that is needed.
        return _MappedType({"type": "struct", "fields": [_to_struct_field(field) for field in fields]}, is_exact=True)


def _spark_name(node: Node) -> str:
    match dtype := node.type:
        case pa.TimestampType():
            return "timestamp_ntz" if dtype.tz is None else "timestamp"
        case pa.DurationType():
            return "interval day to second"
        case pa.Time32Type() | pa.Time64Type():
            # Spark's own TIME type is disabled by default, and Unity Catalog has none.
            return "long"
        case pa.Decimal128Type() | pa.Decimal256Type():
            digits = narrow_decimal(dtype)
            return f"decimal({digits[0]},{digits[1]})" if digits else "string"
        case pa.FixedSizeBinaryType():
            return "binary"
    if (name := _TYPES.get(dtype)) is None:
        raise node.unsupported_type_error("Spark")
    return name


def _is_bare(child: FoldedField[_MappedType], name: str) -> bool:
    return child.type.is_exact and child.node.name == name and not child.node.metadata


def _to_struct_field(folded: FoldedField[_MappedType]) -> dict[str, Any]:
    node, typed = folded.node, folded.type
    arrow_metadata = {} if typed.is_exact else {ARROW: json.dumps(type_to_jsonarrow(node.type), separators=(",", ":"))}
    return {
        "name": node.name,
        "type": typed.spark,
        "nullable": node.nullable,
        "metadata": {**node.metadata, **arrow_metadata},
    }


def _field_ddl(field: pa.Field[Any]) -> str:
    # Compared as DDL, which leaves out nullability: Spark often relaxes it, and the stored type still fits then.
    (folded,) = fold([field], _SparkVisitor())
    return to_ddl(folded.type.spark)


def _parse_arrow_type(arrow_json: str, path: Path) -> pa.DataType:
    try:
        return type_from_jsonarrow(json.loads(arrow_json), path)
    except ValueError as error:
        raise schema_error(path, f"{ARROW} is no JSON: {arrow_json!r}") from error


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _arrow_type(spark: SparkType, path: Path) -> pa.DataType:
    match spark:
        case str():
            return from_spark_name(spark, path)
        case {"type": "array", "elementType": of, "containsNull": nullable}:
            return pa.list_(_child(path, "item", of, nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            return map_type(_child(path, "key", key, False), _child(path, "value", value, nullable))
        case {"type": "struct", "fields": fields}:
            return pa.struct([from_struct_field(field, path) for field in fields])
    raise schema_error(path, f"Arrow has no type for Spark {spark!r}")


def _child(above: Path, name: str, spark: SparkType, nullable: bool) -> pa.Field[Any]:
    path = (*above, name)
    return arrow_field(path, _arrow_type(spark, path), nullable=nullable, metadata={})
