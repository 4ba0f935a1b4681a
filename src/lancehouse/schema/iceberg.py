"""Convert Arrow schemas to Iceberg schemas and back, in the JSON of table metadata; and Arrow values to its types.

Iceberg has fewer types, so the conversion back gives the type in which Iceberg's readers see a column. Only vectors are
restored: the doc of the field stores their dimension. Values of large strings and binaries stay large: Parquet does not
distinguish them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.schema.array_conversion import (
    ConversionVisitor,
    Convert,
    TargetType,
    arrow_null_mask,
    cast_to,
    floor_to,
    from_bfloat16,
    narrow_type,
    to_storage,
)
from lancehouse.schema.walk import (
    BFLOAT16,
    BLOB,
    EXTENSION,
    EXTENSION_METADATA,
    JSON,
    UUID,
    FoldedField,
    Node,
    Path,
    arrow_field,
    fold,
    map_type,
    narrow_decimal,
    schema_error,
)

Json = dict[str, Any]

DOC = "doc"
"""Key of Arrow field metadata for the doc of an Iceberg field, as in pyiceberg."""

ELEMENT_IDS = 1_000_000
"""Added to the parent's id for elements of fixed-size lists, which have no id in Lance."""

_NAMES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
        "timestamp_ns": pa.timestamp("ns"),
        "timestamptz_ns": pa.timestamp("ns", "UTC"),
        "string": pa.string(),
        "uuid": pa.binary(16),
        "binary": pa.binary(),
        "unknown": pa.null(),
    }
)

_TYPES: Mapping[pa.DataType, str] = MappingProxyType(
    {
        pa.null(): "string",
        pa.bool_(): "boolean",
        **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), "int"),
        **dict.fromkeys((pa.int64(), pa.uint32()), "long"),
        pa.uint64(): "decimal(20, 0)",
        **dict.fromkeys((pa.float16(), pa.float32()), "float"),
        pa.float64(): "double",
        **dict.fromkeys((pa.string(), pa.large_string()), "string"),
        **dict.fromkeys((pa.binary(), pa.large_binary()), "binary"),
        **dict.fromkeys((pa.date32(), pa.date64()), "date"),
    }
)

_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {BLOB: "binary", BFLOAT16: "float", UUID: "uuid", **dict.fromkeys(JSON, "string")}
)
"""Iceberg types of extensions whose values differ from those of their storage type."""

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")

_ONE_DIMENSION = r"(?:([a-z.]+) )?dimension (\d+)"
_DIMENSIONS = re.compile(rf"(?P<doc>.*?) ?\[(?P<dimensions>{_ONE_DIMENSION}(?:, {_ONE_DIMENSION})*)\]", re.DOTALL)


def to_iceberg(schema: pa.Schema, ids: Mapping[Path, int] | None = None, *, schema_id: int = 0) -> Json:
    """Return the JSON of an Iceberg schema.

    Args:
        schema: Arrow schema of the table.
        ids: Lance's own field ids, from `walk.field_ids`; they are stable when columns are added or dropped. Without
            them fields are numbered from 1, parents before their children.
        schema_id: id of the schema in the table's metadata.

    Raises:
        TableSchemaValidationError: Lance cannot store a type, two fields have one name, or a field has no id.
    """
    fields = fold(schema, _IcebergVisitor(ids))
    return {"type": "struct", "schema-id": schema_id, "fields": [_to_nested_field(column) for column in fields]}


def from_iceberg(struct: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of an Iceberg schema, or of any of its structs.

    Raises:
        TableSchemaValidationError: Arrow or Lance has no such type.
    """
    return pa.schema([_arrow_field((), column) for column in struct["fields"]])


def last_column_id(struct: Mapping[str, Any]) -> int:
    """Return the highest field id of an Iceberg schema, which table metadata must contain; 0 without columns."""
    return max((number for _, number in _ids_by_path((), struct)), default=0)


@dataclass(frozen=True, slots=True)
class _IcebergType:
    """An Iceberg type, the id of its field, and the dimensions of fixed-size lists in it, by path below that field."""

    id: int
    json: Json | str
    dimensions: Mapping[str, int] = field(default_factory=dict)


class _IcebergVisitor:
    """Converts to Iceberg types. Ids are assigned on the way down, parents first."""

    def __init__(self, lance_ids: Mapping[Path, int] | None) -> None:
        self._lance_ids = lance_ids
        self._fresh = itertools.count(1)
        self._ids: dict[Path, int] = {}
        self._vectors: set[Path] = set()

    def enter(self, node: Node) -> _IcebergType | None:
        if node.path in self._ids:
            raise schema_error(node.path, "Iceberg takes no two fields of one name")
        self._ids[node.path] = self._assign_id(node.path)
        if isinstance(node.type, pa.FixedSizeListType):
            self._vectors.add(node.path)
        name = _EXTENSIONS.get(node.extension or "")
        return None if name is None else _IcebergType(self._ids[node.path], name)

    def leaf(self, node: Node) -> _IcebergType:
        return _IcebergType(self._ids[node.path], _type_name(node))

    def dictionary(self, _: Node, values: _IcebergType) -> _IcebergType:
        return values

    def list(self, node: Node, element: FoldedField[_IcebergType]) -> _IcebergType:
        json: Json = {
            "type": "list",
            "element-id": element.type.id,
            "element": element.type.json,
            "element-required": not element.node.nullable,
        }
        own = {"": node.type.list_size} if isinstance(node.type, pa.FixedSizeListType) else {}
        return _IcebergType(self._ids[node.path], json, own | _prefix_dimensions("element", element.type.dimensions))

    def map(self, node: Node, key: FoldedField[_IcebergType], value: FoldedField[_IcebergType]) -> _IcebergType:
        json: Json = {
            "type": "map",
            "key-id": key.type.id,
            "key": key.type.json,
            "value-id": value.type.id,
            "value": value.type.json,
            "value-required": not value.node.nullable,
        }
        dimensions = _prefix_dimensions("key", key.type.dimensions) | _prefix_dimensions("value", value.type.dimensions)
        return _IcebergType(self._ids[node.path], json, dimensions)

    def struct(self, node: Node, fields: Sequence[FoldedField[_IcebergType]]) -> _IcebergType:
        json: Json = {"type": "struct", "fields": [_to_nested_field(field) for field in fields]}
        return _IcebergType(self._ids[node.path], json)

    def _assign_id(self, path: Path) -> int:
        if self._lance_ids is None:
            return next(self._fresh)
        if (lance_id := self._lance_ids.get(path)) is not None:
            # Lance numbers fields from 0, Iceberg from 1.
            return lance_id + 1
        if path[:-1] in self._vectors:
            return ELEMENT_IDS + self._ids[path[:-1]]
        raise schema_error(path, "Lance gave no field id")


def _type_name(node: Node) -> str:
    match dtype := node.type:
        case pa.TimestampType():
            return "timestamp" if dtype.tz is None else "timestamptz"
        case pa.DurationType():
            return "long"
        case pa.Time32Type() | pa.Time64Type():
            return "time"
        case pa.Decimal128Type() | pa.Decimal256Type():
            digits = narrow_decimal(dtype)
            return f"decimal({digits[0]}, {digits[1]})" if digits else "string"
        case pa.FixedSizeBinaryType():
            return f"fixed[{dtype.byte_width}]"
    if (name := _TYPES.get(dtype)) is None:
        raise node.unsupported_type_error("Iceberg")
    return name


def _prefix_dimensions(step: str, dimensions: Mapping[str, int]) -> dict[str, int]:
    return {f"{step}.{path}".rstrip("."): size for path, size in dimensions.items()}


def _to_nested_field(folded: FoldedField[_IcebergType]) -> Json:
    node, typed = folded.node, folded.type
    dimensions_text = ", ".join(f"{path} dimension {size}".lstrip() for path, size in typed.dimensions.items())
    doc = " ".join(
        part for part in (node.metadata.get(DOC, ""), f"[{dimensions_text}]" if dimensions_text else "") if part
    )
    json: Json = {"id": typed.id, "name": node.name, "required": not node.nullable, "type": typed.json}
    return json | ({"doc": doc} if doc else {})


def _arrow_field(above: Path, nested: Mapping[str, Any]) -> pa.Field[Any]:
    path = (*above, nested["name"])
    doc, dimensions = _parse_doc(nested)
    metadata = {DOC: doc} if doc else {}
    return _typed_field(path, path[-1], nested["type"], nested["required"], dimensions, metadata)


def _typed_field(
    path: Path,
    name: str,
    json: Json | str,
    required: bool,
    dimensions: Mapping[str, int],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> pa.Field[Any]:
    extension = {EXTENSION: UUID, EXTENSION_METADATA: ""} if json == "uuid" else {}
    dtype = _arrow_type(path, json, dimensions)
    return arrow_field((*path[:-1], name), dtype, nullable=not required, metadata={**metadata, **extension})


def _arrow_type(path: Path, json: Json | str, dimensions: Mapping[str, int]) -> pa.DataType:
    match json:
        case str():
            return _parse_type_name(path, json)
        case {"type": "list", "element": of, "element-required": required}:
            element = _typed_field((*path, "element"), "item", of, required, _dimensions_below("element", dimensions))
            return pa.list_(element, dimensions.get("", -1))
        case {"type": "map", "key": key, "value": value, "value-required": required}:
            keys = _typed_field((*path, "key"), "key", key, True, _dimensions_below("key", dimensions))
            values = _typed_field((*path, "value"), "value", value, required, _dimensions_below("value", dimensions))
            return map_type(keys, values)
        case {"type": "struct", "fields": fields}:
            return pa.struct([_arrow_field(path, nested) for nested in fields])
    raise schema_error(path, f"Arrow has no type for Iceberg {json!r}")


def _parse_type_name(path: Path, name: str) -> pa.DataType:
    if (dtype := _NAMES.get(name)) is not None:
        return dtype
    if match := _FIXED.fullmatch(name):
        return pa.binary(int(match[1]))
    if match := _DECIMAL.fullmatch(name):
        try:
            return pa.decimal128(int(match[1]), int(match[2]))
        except ValueError as error:
            raise schema_error(path, f"Arrow has no type for Iceberg {name}: {error}") from error
    raise schema_error(path, f"Arrow has no type for Iceberg {name}")


def _parse_doc(nested: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    doc = nested.get("doc") or ""
    match = _DIMENSIONS.fullmatch(doc)
    if match is None or isinstance(nested["type"], str):
        return doc, {}
    dimensions = re.findall(_ONE_DIMENSION, match["dimensions"])
    return match["doc"], {path: int(size) for path, size in dimensions}


def _dimensions_below(step: str, dimensions: Mapping[str, int]) -> dict[str, int]:
    inside = {}
    for path, size in dimensions.items():
        first, _, rest = path.partition(".")
        if first == step:
            inside[rest] = size
    return inside


# Values, with the table's field ids, for Parquet files of Iceberg readers

FIELD_ID = "PARQUET:field_id"
"""Key of Arrow field metadata that pyarrow writes as a Parquet field id."""

PLACEHOLDER_ID = 2_147_000_000
"""Id of the field that is added to structs without fields, which Parquet does not support; no reader asks for it."""


@dataclass(frozen=True, slots=True)
class IcebergConverter:
    """Converts batches of some columns to the schema of an Iceberg Parquet file."""

    schema: pa.Schema
    _columns: Sequence[Convert]

    def convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; columns are matched by position.

        Raises:
            InvalidInputError: Iceberg's type cannot hold a value.
        """
        arrays = []
        for column, convert, array in zip(self.schema, self._columns, batch.columns, strict=True):
            try:
                arrays.append(convert(array))
            except pa.ArrowInvalid as error:
                raise InvalidInputError(
                    f"column {column.name}: a value is out of the range of its Iceberg type ({error}); "
                    "select other columns to read the table"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def iceberg_converter(fields: Iterable[pa.Field[Any]], iceberg: Mapping[str, Any]) -> IcebergConverter:
    """Return a converter for columns of a table.

    Args:
        fields: Arrow fields of the columns, as in Lance.
        iceberg: the table's schema, as `schema.iceberg.to_iceberg` returns it, which has the ids.

    Raises:
        TableSchemaValidationError: Iceberg has no such type.
    """
    ids = dict(_ids_by_path((), iceberg))
    values = _ValueVisitor(ids)
    folded = fold(fields, values)
    return IcebergConverter(
        pa.schema([values.field(column) for column in folded]), [column.type.convert for column in folded]
    )


def _ids_by_path(path: Path, json: Any) -> Iterator[tuple[Path, int]]:
    match json:
        case {"type": "struct", "fields": fields}:
            for nested in fields:
                yield (*path, nested["name"]), nested["id"]
                yield from _ids_by_path((*path, nested["name"]), nested["type"])
        case {"type": "list", "element-id": id, "element": element}:
            yield (*path, "element"), id
            yield from _ids_by_path((*path, "element"), element)
        case {"type": "map", "key-id": key_id, "key": key, "value-id": value_id, "value": value}:
            yield (*path, "key"), key_id
            yield (*path, "value"), value_id
            yield from _ids_by_path((*path, "key"), key)
            yield from _ids_by_path((*path, "value"), value)


class _ValueVisitor(ConversionVisitor):
    """Converts to the Arrow types of Iceberg's types."""

    list_of = staticmethod(pa.large_list)

    def __init__(self, ids: Mapping[Path, int]) -> None:
        self._ids = ids

    def field(self, folded: FoldedField[TargetType], name: str | None = None) -> pa.Field[Any]:
        node = folded.node
        # A column of type null becomes a column of strings that are all null.
        nullable = node.nullable or node.type == pa.null()
        metadata = {FIELD_ID: str(self._ids[node.path])}
        return pa.field(name or node.name, folded.type.type, nullable=nullable, metadata=metadata)

    def enter(self, node: Node) -> TargetType | None:
        return _STORED_EXTENSIONS.get(node.extension or "")

    def leaf(self, node: Node) -> TargetType:
        if (narrow := narrow_type(node.type)) is not None:
            return narrow
        match dtype := node.type:
            case pa.Time32Type() | pa.Time64Type():
                to: pa.DataType = pa.time64("us")
                return TargetType(to, floor_to(1000, to) if dtype.unit == "ns" else cast_to(to))
            case pa.DurationType():
                return TargetType(pa.int64(), cast_to(pa.int64()))
        to = _WIDER.get(dtype, dtype)
        return TargetType(to, to_storage if to == dtype else cast_to(to))

    def struct(self, node: Node, fields: Sequence[FoldedField[TargetType]]) -> TargetType:
        if not fields:
            return _empty_struct()
        # Where a struct is null, its required fields are null too. They are declared nullable here, or Parquet's
        # writer would refuse them.
        return super().struct(node, [replace(field, node=replace(field.node, nullable=True)) for field in fields])


_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.null(): pa.string(),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), pa.int32()),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def _empty_struct() -> TargetType:
    placeholder = pa.field("_", pa.bool_(), metadata={FIELD_ID: str(PLACEHOLDER_ID)})

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        return pa.StructArray.from_arrays(
            [pa.nulls(len(plain), pa.bool_())], fields=[placeholder], mask=arrow_null_mask(plain)
        )

    return TargetType(pa.struct([placeholder]), convert)


_STORED_EXTENSIONS: Mapping[str, TargetType] = {
    **dict.fromkeys(JSON, TargetType(pa.string(), cast_to(pa.string()))),
    BLOB: TargetType(pa.large_binary(), cast_to(pa.large_binary())),
    BFLOAT16: TargetType(pa.float32(), from_bfloat16),
    UUID: TargetType(pa.uuid(), lambda array: pa.ExtensionArray.from_storage(pa.uuid(), to_storage(array))),
}
"""Extensions whose values differ from those of their storage type; the caller reads blobs as binaries."""
