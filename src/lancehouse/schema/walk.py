"""Walk over Arrow types with a visitor: the base of all schema conversions.

The walk removes differences that only matter to Arrow: an extension type becomes its storage type with the extension
named in the metadata (as Arrow itself does for readers that do not know the extension), and a string view becomes a
string (as Lance does).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from lance_namespace.errors import TableColumnNotFoundError, TableSchemaValidationError

T = TypeVar("T")

Path = tuple[str, ...]
"""Path of a field: names in structs, and `element`, `key` or `value` in lists and maps."""

EXTENSION = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"

BLOB = "lance.blob.v2"
BFLOAT16 = "lance.bfloat16"
UUID = "arrow.uuid"
JSON = frozenset({"arrow.json", "lance.json"})
"""Extension types of JSON. Lance shows `arrow.json`, which is text, and stores it as `lance.json`, which is binary."""

MAX_DECIMAL_DIGITS = 38
"""Largest precision of decimals in Iceberg and Spark."""

VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""Types of views, and what Lance makes of them."""

_PLAIN_LEAVES = frozenset(
    {
        *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    }
)
# Compared by exact class: Decimal32 and Decimal64, which Lance refuses, derive from fixed-size binaries.
_LEAF_CLASSES = frozenset(
    {
        *(pa.FixedSizeBinaryType, pa.Decimal128Type, pa.Decimal256Type),
        *(pa.Time32Type, pa.Time64Type, pa.TimestampType, pa.DurationType),
    }
)

# pyarrow's own extension types offer no way to serialize their parameters.
_PARAMETERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "arrow.json": lambda _: {},
    "arrow.uuid": lambda _: {},
    "arrow.bool8": lambda _: {},
    "arrow.fixed_shape_tensor": lambda dtype: {
        "shape": dtype.shape,
        "permutation": dtype.permutation,
        "dim_names": dtype.dim_names,
    },
    "arrow.opaque": lambda dtype: {"type_name": dtype.type_name, "vendor_name": dtype.vendor_name},
}


@dataclass(frozen=True, slots=True)
class Node:
    """A field on the walk. `type` is never an extension type; `extension` names the one that it replaces."""

    path: Path
    name: str
    type: pa.DataType
    nullable: bool
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def extension(self) -> str | None:
        """Name of the extension type of this field; None if it has none."""
        return self.metadata.get(EXTENSION)

    def unsupported_type_error(self, by: str) -> TableSchemaValidationError:
        """Return the error for a type that a format cannot hold."""
        return schema_error(self.path, f"{by} has no type for Arrow {self.type}")


@dataclass(frozen=True, slots=True)
class FoldedField(Generic[T]):
    """A field, and what a visitor made of its type."""

    node: Node
    type: T


class Visitor(Protocol[T]):
    """Converts types from the leaves up; each method returns the converted type."""

    def enter(self, node: Node, /) -> T | None:
        """Visit a node before its children. A result replaces the whole subtree; None continues the walk."""

    def leaf(self, node: Node, /) -> T:
        """Convert a type without children."""

    def dictionary(self, node: Node, values: T, /) -> T:
        """Convert a dictionary type, given its converted value type."""

    def list(self, node: Node, element: FoldedField[T], /) -> T:
        """Convert a list, large list or fixed-size list."""

    def map(self, node: Node, key: FoldedField[T], value: FoldedField[T], /) -> T:
        """Convert a map."""

    def struct(self, node: Node, fields: Sequence[FoldedField[T]], /) -> T:
        """Convert a struct."""


def fold(fields: Iterable[pa.Field[Any]], visitor: Visitor[T]) -> list[FoldedField[T]]:
    """Convert the columns of a schema with a visitor.

    Raises:
        TableSchemaValidationError: Lance cannot store a type, or the visitor cannot convert it.
    """
    return [_fold(_to_node((column.name,), column), visitor) for column in fields]


def _fold(node: Node, visitor: Visitor[T]) -> FoldedField[T]:
    answer = visitor.enter(node)
    return FoldedField(node, _visit_type(node, visitor) if answer is None else answer)


def _visit_type(node: Node, visitor: Visitor[T]) -> T:
    def child(step: str, field: pa.Field[Any]) -> FoldedField[T]:
        return _fold(_to_node((*node.path, step), field), visitor)

    dtype = node.type
    match dtype:
        case pa.StructType():
            return visitor.struct(node, [child(field.name, field) for field in dtype])
        case pa.MapType() if not dtype.keys_sorted:
            return visitor.map(node, child("key", dtype.key_field), child("value", dtype.item_field))
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return visitor.list(node, child("element", dtype.value_field))
        case pa.DictionaryType():
            values = Node(node.path, node.name, dtype.value_type, node.nullable, node.metadata)
            return visitor.dictionary(node, _visit_type(values, visitor))
        case _ if dtype in _PLAIN_LEAVES or type(dtype) in _LEAF_CLASSES:
            return visitor.leaf(node)
    raise node.unsupported_type_error("Lance")


def _to_node(path: Path, field: pa.Field[Any]) -> Node:
    dtype = field.type
    metadata = decode_metadata(path, field.metadata)
    if isinstance(dtype, pa.BaseExtensionType):
        metadata |= {EXTENSION: dtype.extension_name}
        metadata |= decode_metadata(path, {EXTENSION_METADATA.encode(): _serialize_extension(path, dtype)})
        dtype = dtype.storage_type
    return Node(path, field.name, VIEWS.get(dtype, dtype), field.nullable, metadata)


def _serialize_extension(path: Path, dtype: pa.BaseExtensionType) -> bytes:
    if isinstance(dtype, pa.ExtensionType):
        return dtype.__arrow_ext_serialize__()
    if (parameters := _PARAMETERS.get(dtype.extension_name)) is None:
        raise schema_error(path, f"unknown extension type {dtype}")
    parameters_json = {key: value for key, value in parameters(dtype).items() if value is not None}
    return json.dumps(parameters_json, separators=(",", ":")).encode() if parameters_json else b""


def arrow_field(path: Path, dtype: pa.DataType, *, nullable: bool, metadata: Mapping[str, str]) -> pa.Field[Any]:
    """Return an Arrow field, the inverse of the walk: an extension that this process knows becomes its type again.

    Raises:
        TableSchemaValidationError: the extension cannot be stored in `dtype`.
    """
    # Arrow does not allow a field of type null that is not nullable.
    unresolved: pa.Field[Any] = pa.field(
        path[-1], dtype, nullable=nullable or dtype == pa.null(), metadata={**metadata}
    )
    if EXTENSION not in metadata:
        return unresolved
    try:
        # Only while it reads a schema does Arrow turn the metadata of a field into an extension type.
        resolved = pa.ipc.read_schema(pa.schema([unresolved]).serialize()).field(0)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise schema_error(path, f"{dtype} cannot hold {metadata[EXTENSION]}: {error}") from error
    return resolved if resolved.metadata else resolved.remove_metadata()


def storage_type(dtype: Any) -> Any:
    """Return the storage type of an extension type, or the type itself."""
    return dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype


def map_type(key: pa.Field[Any], value: pa.Field[Any]) -> pa.DataType:
    """Return a map type of two fields. pyarrow accepts fields, its type stubs only types."""
    return pa.map_(key, value)  # type: ignore[call-overload, no-any-return]


def map_children(dtype: Any, change: Callable[[pa.Field[Any]], pa.Field[Any]]) -> Any:
    """Return a type with its children changed; elements of lists are called `item`, Arrow's default."""

    def item(field: pa.Field[Any]) -> pa.Field[Any]:
        return change(field).with_name("item")

    match dtype:
        case pa.StructType():
            return pa.struct([change(child) for child in dtype])
        case pa.MapType():
            return map_type(change(dtype.key_field), change(dtype.item_field))
        case pa.FixedSizeListType():
            return pa.list_(item(dtype.value_field), dtype.list_size)
        case pa.ListType():
            return pa.list_(item(dtype.value_field))
        case pa.LargeListType():
            return pa.large_list(item(dtype.value_field))
    return dtype


def relax_nullability(schema: pa.Schema) -> pa.Schema:
    """Return the same columns as nullable, including all nested fields except keys of maps."""
    fields = pa.schema([_relax_field(column) for column in schema])
    return fields.with_metadata(dict(schema.metadata)) if schema.metadata else fields


def _relax_field(field: pa.Field[Any]) -> pa.Field[Any]:
    dtype = field.type
    if EXTENSION.encode() in (field.metadata or {}):
        return field.with_nullable(True)
    if isinstance(dtype, pa.MapType):
        return field.with_type(map_type(dtype.key_field, _relax_field(dtype.item_field))).with_nullable(True)
    return field.with_type(map_children(dtype, _relax_field)).with_nullable(True)


def check_types(schema: pa.Schema) -> None:
    """Check that each new column has a type: a column of type null could never hold a value.

    Raises:
        TableSchemaValidationError: a column has none; the message says how to give it one.
    """
    for column in schema:
        if _is_void(column.type):
            raise TableSchemaValidationError(
                f"column {column.name} has the type {column.type}, as no value tells another: give it one, in SQL by "
                "cast(NULL AS string), in Arrow by pa.array(values, pa.string()), or leave the column out"
            )


def _is_void(dtype: Any) -> bool:
    if isinstance(dtype, pa.StructType):
        return any(_is_void(child.type) for child in dtype)
    if isinstance(dtype, pa.MapType):
        return _is_void(dtype.key_type) or _is_void(dtype.item_type)
    if isinstance(dtype, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return _is_void(dtype.value_type)
    return bool(dtype == pa.null())


def require_columns(about: object, names: Iterable[str], available: Sequence[str]) -> None:
    """Check that columns exist.

    Raises:
        TableColumnNotFoundError: some do not; the message names them, and all that exist.
    """
    if missing := [name for name in names if name not in available]:
        raise no_column_error(about, missing, available)


def no_column_error(about: object, missing: Sequence[str], available: Sequence[str]) -> TableColumnNotFoundError:
    """Return the error for columns that do not exist."""
    return TableColumnNotFoundError(
        f"{about} has no column {', '.join(missing)}; it has {', '.join(available) or 'none'}"
    )


def nullable_hint(path: str) -> str:
    """Return advice, for an error message, about a null in a column that is not nullable."""
    change = {path: {"nullable": True}}
    return f"to allow it: ALTER TABLE … ALTER COLUMN {path} DROP NOT NULL in SQL, or alter_columns(table, {change})"


def decode_metadata(path: Path, metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return Arrow's metadata of the field at `path`, or of the schema for the empty path, as text.

    Raises:
        TableSchemaValidationError: they are not UTF-8, which Lance would not accept either.
    """
    try:
        return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise schema_error(path, f"metadata that are no text: {error}") from error


def schema_error(path: Path, why: str) -> TableSchemaValidationError:
    """Return an error about the field at `path`, or about the schema for the empty path."""
    return TableSchemaValidationError(f"{'column ' + '.'.join(path) if path else 'schema'}: {why}")


def narrow_decimal(dtype: pa.Decimal128Type[Any, Any] | pa.Decimal256Type[Any, Any]) -> tuple[int, int] | None:
    """Return a precision and scale that hold all values of `dtype` in Iceberg, Parquet and Spark, or None."""
    precision = max(dtype.precision, dtype.scale)
    return (precision, dtype.scale) if dtype.scale >= 0 and precision <= MAX_DECIMAL_DIGITS else None


class LanceField(Protocol):
    """The interface of a field in `dataset.lance_schema.fields()`."""

    def name(self) -> str: ...

    def id(self) -> int: ...

    def children(self) -> Sequence[LanceField]: ...

    def to_arrow(self) -> pa.Field[Any]: ...


def field_ids(fields: Iterable[LanceField]) -> dict[Path, int]:
    """Return Lance's own field ids by path, from `dataset.lance_schema.fields()`.

    Elements of fixed-size lists have no id unless they are structs. The entries of a map have an id, but no path.
    """
    ids: dict[Path, int] = {}

    def visit(path: Path, field: LanceField) -> None:
        ids[path] = field.id()
        match _to_node(path, field.to_arrow()).type:
            case pa.MapType():
                (entries,) = field.children()
                steps: Iterable[str] = ("key", "value")
                children = entries.children()
            case pa.StructType():
                children = field.children()
                steps = (child.name() for child in children)
            case _:
                children = field.children()
                steps = ("element" for _ in children)
        for step, child in zip(steps, children, strict=True):
            visit((*path, step), child)

    for column in fields:
        visit((column.name(),), column)
    return ids
