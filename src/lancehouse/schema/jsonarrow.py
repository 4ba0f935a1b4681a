"""Convert Arrow schemas to the JSON of the Lance interface and back, with the type names of Lance's native code.

Native code has one name `timestamp` for all units, and none for dictionaries. What it leaves out is added where it does
not look: beside the name of a single type (`{"type": "timestamp", "unit": "ns"}`) and, as the interface's models drop
unknown keys, in the metadata of a field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from lancehouse.schema.walk import (
    EXTENSION,
    EXTENSION_METADATA,
    FoldedField,
    Node,
    Path,
    arrow_field,
    decode_metadata,
    fold,
    map_type,
    schema_error,
)

Json = dict[str, Any]

DETAILS = "lancehouse.arrow"
"""Key of field metadata: JSON with the details that the native name of the field's type leaves out."""

_NAMES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "null": pa.null(),
        "bool": pa.bool_(),
        **{str(dtype): dtype for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
        **{str(dtype): dtype for dtype in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
        "float16": pa.float16(),
        "float32": pa.float32(),
        "float64": pa.float64(),
        "utf8": pa.string(),
        "large_utf8": pa.large_string(),
        "binary": pa.binary(),
        "large_binary": pa.large_binary(),
        "date32": pa.date32(),
        "date64": pa.date64(),
    }
)
_TYPES = MappingProxyType({dtype: name for name, dtype in _NAMES.items()})
_ALIASES = MappingProxyType({"boolean": "bool", "string": "utf8", "large_string": "large_utf8"})

_DEFAULT_UNITS = MappingProxyType({"timestamp": "us", "duration": "us", "time64": "us", "time32": "ms"})
"""Units of names without one; for timestamp and duration native code defines them."""

_SCALES = 1000
"""Native code stores precision and scale of a decimal in one number: precision * 1000 + scale."""


def to_jsonarrow(schema: pa.Schema) -> JsonArrowSchema:
    """Return the schema as a model of the Lance interface.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    metadata = decode_metadata((), schema.metadata)
    fields = [_to_json_field(column) for column in fold(schema, _JsonArrowVisitor())]
    return JsonArrowSchema.model_validate({"fields": fields, "metadata": metadata or None})


def from_jsonarrow(model: JsonArrowSchema) -> pa.Schema:
    """Return the Arrow schema. Names of types are case-insensitive, as in native code.

    Raises:
        TableSchemaValidationError: a type is unknown.
    """
    fields = [_arrow_field((), column) for column in model.to_dict()["fields"]]
    return pa.schema(fields, metadata=dict(model.metadata.items()) if model.metadata else None)


def type_to_jsonarrow(dtype: pa.DataType) -> Json:
    """Return a single type as in `AlterColumnsEntry.data_type`; an extension type becomes its storage type."""
    (column,) = fold([pa.field("type", dtype)], _JsonArrowVisitor())
    return column.type


def type_from_jsonarrow(json_type: Mapping[str, Any], path: Path = ("type",)) -> pa.DataType:
    """Parse what `type_to_jsonarrow` returned.

    Args:
        json_type: JSON of a type, or of a whole `JsonArrowDataType`.
        path: path of the field, for errors.

    Raises:
        TableSchemaValidationError: the type is unknown, or lacks its length or fields.
    """
    type_name = str(json_type.get("type")).lower()
    name = _ALIASES.get(type_name, type_name)
    try:
        dtype = _NAMES[name] if name in _NAMES else _BUILDERS[name](json_type, path)
        if (indices := json_type.get("dictionary")) is None:
            return dtype
        return _build_dictionary(_NAMES[indices["indices"]], dtype, indices.get("ordered", False))
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise schema_error(path, f"Arrow has no type for {dict(json_type)!r}") from error


class _JsonArrowVisitor:
    """Converts to the JSON of types; details that native code leaves out are beside the name."""

    def enter(self, node: Node) -> Json | None:
        return {"type": "large_binary"} if _is_json(node) else None

    def leaf(self, node: Node) -> Json:
        match dtype := node.type:
            case pa.TimestampType():
                zone = {} if dtype.tz is None else {"timezone": dtype.tz}
                return _with_unit("timestamp", dtype.unit) | zone
            case pa.DurationType():
                return _with_unit("duration", dtype.unit)
            case pa.Time32Type():
                return _with_unit("time32", dtype.unit)
            case pa.Time64Type():
                return _with_unit("time64", dtype.unit)
            case pa.Decimal128Type():
                return {"type": "decimal128", "length": dtype.precision * _SCALES + dtype.scale}
            case pa.Decimal256Type():
                return {"type": "decimal256", "length": dtype.precision * _SCALES + dtype.scale}
            case pa.FixedSizeBinaryType():
                return {"type": "fixed_size_binary", "length": dtype.byte_width}
        if (name := _TYPES.get(dtype)) is None:
            raise node.unsupported_type_error("JSON Arrow")
        return {"type": name}

    def dictionary(self, node: Node, values: Json) -> Json:
        assert isinstance(node.type, pa.DictionaryType)
        indices = {"indices": str(node.type.index_type), **({"ordered": True} if node.type.ordered else {})}
        return {**values, "dictionary": indices}

    def list(self, node: Node, element: FoldedField[Json]) -> Json:
        match dtype := node.type:
            case pa.FixedSizeListType():
                return {"type": "fixed_size_list", "length": dtype.list_size, "fields": [_to_json_field(element)]}
            case pa.LargeListType():
                return {"type": "large_list", "fields": [_to_json_field(element)]}
        return {"type": "list", "fields": [_to_json_field(element)]}

    def map(self, _: Node, key: FoldedField[Json], value: FoldedField[Json]) -> Json:
        entries = {"type": "struct", "fields": [_to_json_field(key), _to_json_field(value)]}
        return {"type": "map", "fields": [{"name": "entries", "nullable": False, "type": entries}]}

    def struct(self, _: Node, fields: Sequence[FoldedField[Json]]) -> Json:
        return {"type": "struct", "fields": [_to_json_field(field) for field in fields]}


def _is_json(node: Node) -> bool:
    return node.extension == "arrow.json" and node.type == pa.string()


def _with_unit(name: str, unit: str) -> Json:
    return {"type": name} if unit == _DEFAULT_UNITS[name] else {"type": name, "unit": unit}


def _to_json_field(folded: FoldedField[Json]) -> Json:
    node, native = folded.node, dict(folded.type)
    metadata = dict(node.metadata)
    if _is_json(node):
        metadata |= {EXTENSION: "lance.json"}
    if details := {key: native.pop(key) for key in ("unit", "timezone", "dictionary") if key in native}:
        metadata[DETAILS] = json.dumps(details)
    extra = {"metadata": metadata} if metadata else {}
    return {"name": node.name, "nullable": node.nullable, "type": native, **extra}


def _arrow_field(above: Path, json_field: Mapping[str, Any]) -> pa.Field[Any]:
    path = (*above, json_field["name"])
    metadata = dict(json_field.get("metadata") or {})
    try:
        details = json.loads(metadata.pop(DETAILS, "{}"))
    except ValueError as error:
        raise schema_error(path, f"{DETAILS} is no JSON: {error}") from error
    dtype = type_from_jsonarrow({**json_field["type"], **details}, path)
    if metadata.get(EXTENSION) == "lance.json":
        dtype, metadata = pa.string(), {**metadata, EXTENSION: "arrow.json", EXTENSION_METADATA: ""}
    return arrow_field(path, dtype, nullable=json_field["nullable"], metadata=metadata)


def _arrow_fields(json_type: Mapping[str, Any], path: Path) -> Iterable[pa.Field[Any]]:
    return (_arrow_field(path, child) for child in json_type["fields"])


def _unit(json_type: Mapping[str, Any]) -> Any:
    return json_type.get("unit", _DEFAULT_UNITS[json_type["type"].lower()])


def _precision_and_scale(json_type: Mapping[str, Any]) -> tuple[int, int]:
    precision, scale = divmod(json_type["length"], _SCALES)
    return (precision, scale) if scale < _SCALES // 2 else (precision + 1, scale - _SCALES)


def _build_list(json_type: Mapping[str, Any], path: Path) -> pa.DataType:
    (element,) = _arrow_fields(json_type, path)
    match json_type["type"].lower():
        case "fixed_size_list":
            return pa.list_(element, int(json_type["length"]))
        case "large_list":
            return pa.large_list(element)
    return pa.list_(element)


def _build_dictionary(indices: pa.DataType, values: pa.DataType, ordered: bool) -> pa.DataType:
    return pa.dictionary(indices, values, ordered=ordered)  # type: ignore[call-overload, no-any-return]


def _build_map(json_type: Mapping[str, Any], path: Path) -> pa.DataType:
    (entries,) = json_type["fields"]
    key, value = _arrow_fields(entries["type"], path)
    return map_type(key, value)


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], Path], pa.DataType]] = MappingProxyType(
    {
        "timestamp": lambda of, _: pa.timestamp(_unit(of), of.get("timezone")),
        "duration": lambda of, _: pa.duration(_unit(of)),
        "time32": lambda of, _: pa.time32(_unit(of)),
        "time64": lambda of, _: pa.time64(_unit(of)),
        "decimal128": lambda of, _: pa.decimal128(*_precision_and_scale(of)),
        "decimal256": lambda of, _: pa.decimal256(*_precision_and_scale(of)),
        "fixed_size_binary": lambda of, _: pa.binary(of["length"]),
        "list": _build_list,
        "large_list": _build_list,
        "fixed_size_list": _build_list,
        "map": _build_map,
        "struct": lambda of, path: pa.struct(_arrow_fields(of, path)),
    }
)
