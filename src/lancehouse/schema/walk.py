"""The one walk over Arrow types: what Lance stores, seen the same way by every converter.

On the way a field loses what is only Arrow's way of saying it: an extension type becomes its storage type with the
extension named in the metadata (as Arrow itself does for those who do not know the extension), and a string view a
string (as Lance does).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

T = TypeVar("T")

Path = tuple[str, ...]
"""How a field is reached: by name in a struct, as `element`, `key` or `value` in a list or map."""

EXTENSION = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"

BLOB = "lance.blob.v2"
BFLOAT16 = "lance.bfloat16"
UUID = "arrow.uuid"
JSON = frozenset({"arrow.json", "lance.json"})
"""The same to a reader: Lance shows `arrow.json`, which is text, and keeps it as `lance.json`, which is binary."""

MAX_DECIMAL_DIGITS = 38
"""What Iceberg and Spark can hold."""

_VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

_PLAIN_LEAVES = frozenset(
    {
        *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    }
)
# By exact class: narrow decimals, which Lance refuses, derive from fixed-size binaries.
_LEAF_CLASSES = frozenset(
    {
        *(pa.FixedSizeBinaryType, pa.Decimal128Type, pa.Decimal256Type),
        *(pa.Time32Type, pa.Time64Type, pa.TimestampType, pa.DurationType),
    }
)

# pyarrow's own extension types do not tell how they are serialized.
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
    """A field on the walk. `type` is never an extension type; `extension` names the one it stands for."""

    path: Path
    name: str
    type: pa.DataType
    nullable: bool
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def extension(self) -> str | None:
        """The extension type that this field's values mean."""
        return self.metadata.get(EXTENSION)

    def unsupported_type_error(self, by: str) -> TableSchemaValidationError:
        """The error for a type that a format cannot hold."""
        return schema_error(self.path, f"{by} has no type for Arrow {self.type}")


@dataclass(frozen=True, slots=True)
class FoldedField(Generic[T]):
    """A field, and what its type became."""

    node: Node
    type: T


class Visitor(Protocol[T]):
    """What a format makes of the types, from the leaves up."""

    def enter(self, node: Node, /) -> T | None:
        """Called on the way down. An answer stands for all that is below; None lets the walk go on."""

    def leaf(self, node: Node, /) -> T:
        """A type without children."""

    def dictionary(self, node: Node, values: T, /) -> T:
        """A dictionary of `values`."""

    def list(self, node: Node, element: FoldedField[T], /) -> T:
        """A list, large list or fixed-size list."""

    def map(self, node: Node, key: FoldedField[T], value: FoldedField[T], /) -> T:
        """A map."""

    def struct(self, node: Node, fields: Sequence[FoldedField[T]], /) -> T:
        """A struct."""


def fold(fields: Iterable[pa.Field[Any]], visitor: Visitor[T]) -> list[FoldedField[T]]:
    """Walk over the columns of a schema, one answer for each.

    Raises:
        TableSchemaValidationError: a type that Lance cannot store, or the visitor has no word for.
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
    return Node(path, field.name, _VIEWS.get(dtype, dtype), field.nullable, metadata)


def _serialize_extension(path: Path, dtype: pa.BaseExtensionType) -> bytes:
    if isinstance(dtype, pa.ExtensionType):
        return dtype.__arrow_ext_serialize__()
    if (parameters := _PARAMETERS.get(dtype.extension_name)) is None:
        raise schema_error(path, f"unknown extension type {dtype}")
    parameters_json = {key: value for key, value in parameters(dtype).items() if value is not None}
    return json.dumps(parameters_json, separators=(",", ":")).encode() if parameters_json else b""


def arrow_field(path: Path, dtype: pa.DataType, *, nullable: bool, metadata: Mapping[str, str]) -> pa.Field[Any]:
    """An Arrow field, the inverse of what the walk does: an extension that this process knows becomes its type again.

    Raises:
        TableSchemaValidationError: the extension cannot be stored in `dtype`.
    """
    # Arrow has no field of nulls that may not be null.
    unresolved: pa.Field[Any] = pa.field(
        path[-1], dtype, nullable=nullable or dtype == pa.null(), metadata={**metadata}
    )
    if EXTENSION not in metadata:
        return unresolved
    try:
        resolved = pa.ipc.read_schema(pa.schema([unresolved]).serialize()).field(0)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise schema_error(path, f"{dtype} cannot hold {metadata[EXTENSION]}: {error}") from error
    return resolved if resolved.metadata else resolved.remove_metadata()


def map_type(key: pa.Field[Any], value: pa.Field[Any]) -> pa.DataType:
    """A map of two fields. pyarrow takes fields, its stubs know types only."""
    return pa.map_(key, value)  # type: ignore[call-overload, no-any-return]


def map_children(dtype: Any, change: Callable[[pa.Field[Any]], pa.Field[Any]]) -> Any:
    """A type with its children changed; elements of lists are called as Arrow calls them."""

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
    """The same columns, all of which may be null, with all that they hold; keys of maps never may."""
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
    """Check that each new column has a type: one of nothing but nulls could never hold a value.

    Raises:
        TableSchemaValidationError: one has none; says how to give it.
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


def nullable_hint(path: str) -> str:
    """What to do about a null in a column that takes none."""
    return f"to allow it: dataset.alter_columns({{'path': '{path}', 'nullable': True}}) of pylance"


def decode_metadata(path: Path, metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Arrow's metadata of the field at `path`, or of the schema at the empty path, as text.

    Raises:
        TableSchemaValidationError: they are none, and Lance would not take them either.
    """
    try:
        return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise schema_error(path, f"metadata that are no text: {error}") from error


def schema_error(path: Path, why: str) -> TableSchemaValidationError:
    """The error about a field, by its path, or about the schema, by the empty path."""
    return TableSchemaValidationError(f"{'column ' + '.'.join(path) if path else 'schema'}: {why}")


def narrow_decimal(dtype: pa.Decimal128Type[Any, Any] | pa.Decimal256Type[Any, Any]) -> tuple[int, int] | None:
    """Precision and scale that hold every value of `dtype` in Iceberg, Parquet and Spark; None where nothing does."""
    precision = max(dtype.precision, dtype.scale)
    return (precision, dtype.scale) if dtype.scale >= 0 and precision <= MAX_DECIMAL_DIGITS else None


class LanceField(Protocol):
    """What `lance_schema.fields()` of a dataset holds."""

    def name(self) -> str: ...

    def id(self) -> int: ...

    def children(self) -> Sequence[LanceField]: ...

    def to_arrow(self) -> pa.Field[Any]: ...


def field_ids(fields: Iterable[LanceField]) -> dict[Path, int]:
    """Lance's own ids by path, from `dataset.lance_schema.fields()`.

    Elements of fixed-size lists have no id unless they are structs. The entries of a map have one, and no path.
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
