"""Convert Arrow values to Iceberg's types, with the table's field ids, for Parquet files of Iceberg readers.

The types are those of `schema/iceberg.py`, except that large strings and binaries stay large: Parquet does not
distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from lancehouse.schema.walk import BFLOAT16, BLOB, JSON, UUID, FoldedField, Node, Path, fold

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
        for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True):
            try:
                arrays.append(convert(array))
            except pa.ArrowInvalid as error:
                raise InvalidInputError(
                    f"column {field.name}: a value is out of the range of its Iceberg type ({error}); "
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
    values = _IcebergVisitor(ids)
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


class _IcebergVisitor(ConversionVisitor):
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
        return _EXTENSIONS.get(node.extension or "")

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


_EXTENSIONS: Mapping[str, TargetType] = {
    **dict.fromkeys(JSON, TargetType(pa.string(), cast_to(pa.string()))),
    BLOB: TargetType(pa.large_binary(), cast_to(pa.large_binary())),
    BFLOAT16: TargetType(pa.float32(), from_bfloat16),
    UUID: TargetType(pa.uuid(), lambda array: pa.ExtensionArray.from_storage(pa.uuid(), to_storage(array))),
}
"""Extensions whose values differ from those of their storage type; the caller reads blobs as binaries."""
