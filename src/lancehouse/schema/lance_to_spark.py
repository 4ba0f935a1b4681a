"""Convert record batches of Lance tables to what PySpark accepts from `mapInArrow` and Python data sources.

The types are those of `schema/spark.py`. Times of day are integers in the unit of their column; timestamps and
durations finer than a microsecond are rounded down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.schema import array_conversion
from lancehouse.schema.array_conversion import (
    ArrayTooLargeError,
    ConversionVisitor,
    Convert,
    TargetType,
    cast_to,
    floor_to,
    to_small_offsets,
    to_storage,
)
from lancehouse.schema.spark import exchange_type, to_spark
from lancehouse.schema.walk import BFLOAT16, BLOB, JSON, FoldedField, Node, fold


@dataclass(frozen=True, slots=True)
class LanceToSpark:
    """Converts batches of a Lance table to batches that PySpark accepts for the table's StructType; can be pickled."""

    source: pa.Schema
    struct: dict[str, Any]
    """The JSON of the StructType."""
    schema: pa.Schema
    """The Arrow schema that PySpark requires of batches."""
    _columns: Sequence[Convert]

    def __reduce__(self) -> tuple[Callable[[pa.Schema], LanceToSpark], tuple[pa.Schema]]:
        return to_spark_rows, (self.source,)

    def convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; columns are matched by position, blobs are binaries. Unchanged columns are not copied.

        Raises:
            InvalidInputError: Spark's type cannot hold a value, or a column has more than 2 GiB.
        """
        try:
            return self._convert_columns(batch)
        except ArrayTooLargeError as error:
            raise InvalidInputError(f"{error}: read fewer rows at once, or select other columns") from error

    def convert_batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Convert a batch, and split it into several where a column would have more than 2 GiB.

        Raises:
            InvalidInputError: Spark's type cannot hold a value, or a single row has more than 2 GiB.
        """
        half = batch.num_rows // 2
        try:
            yield self._convert_columns(batch) if half else self.convert_batch(batch)
        except ArrayTooLargeError:
            yield from self.convert_batches(batch.slice(0, half))
            yield from self.convert_batches(batch.slice(half))

    def _convert_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._columns:
            return batch  # A new batch without columns would lose the number of rows.
        converted = [
            _convert_column(field.name, convert, array)
            for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(converted, schema=self.schema)


def to_spark_rows(schema: pa.Schema) -> LanceToSpark:
    """Return a converter for batches of these columns of a table.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    rows = _SparkVisitor()
    folded = fold(schema, rows)
    fields = [rows.field(column) for column in folded]
    return LanceToSpark(schema, to_spark(schema), pa.schema(fields), [column.type.convert for column in folded])


def _convert_column(name: str, convert: Convert, array: Any) -> Any:
    try:
        return convert(array)
    except ArrayTooLargeError as error:
        raise ArrayTooLargeError(f"column {name}: {error}") from error
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name}: a value is out of the range of its Spark type ({error}); select other columns"
        ) from error


class _SparkVisitor(ConversionVisitor):
    """Converts to the Arrow types in which Spark accepts values."""

    def field(self, folded: FoldedField[TargetType], name: str | None = None) -> pa.Field[Any]:
        return pa.field(name or folded.node.name, folded.type.type, nullable=folded.node.nullable)

    def enter(self, node: Node) -> TargetType | None:
        return self.leaf(node) if node.extension in _LEAVES else None

    def leaf(self, node: Node) -> TargetType:
        to = exchange_type(node)
        return TargetType(to, _leaf_conversion(node, to))

    def list(self, node: Node, element: FoldedField[TargetType]) -> TargetType:
        target = _skip_if_unchanged(node, super().list(node, element))
        if isinstance(node.type, pa.FixedSizeListType) and node.type.value_type == element.type.type:
            return TargetType(target.type, _vector_conversion(target.type))
        return target

    def map(self, node: Node, key: FoldedField[TargetType], value: FoldedField[TargetType]) -> TargetType:
        return _skip_if_unchanged(node, super().map(node, key, value))

    def struct(self, node: Node, fields: Sequence[FoldedField[TargetType]]) -> TargetType:
        return _skip_if_unchanged(node, super().struct(node, fields))


_LEAVES = JSON | {BLOB, BFLOAT16}
"""Extensions whose values differ from those of their storage type."""


def _skip_if_unchanged(node: Node, typed: TargetType) -> TargetType:
    return TargetType(typed.type, to_storage) if node.type == typed.type else typed


def _leaf_conversion(node: Node, to: pa.DataType) -> Convert:
    if node.extension == BFLOAT16:
        return array_conversion.from_bfloat16
    if (narrow := array_conversion.narrow_type(node.type)) is not None:
        return narrow.convert
    match dtype := node.type:
        case pa.DurationType():
            return floor_to(1000, to) if dtype.unit == "ns" else cast_to(to)
        case pa.Time32Type():
            return lambda array: to_storage(array).view(pa.int32()).cast(to)
        case pa.Time64Type():
            return lambda array: to_storage(array).view(to)
    return to_small_offsets(to) if to in (pa.string(), pa.binary()) else cast_to(to)


def _vector_conversion(to: pa.DataType) -> Convert:
    """Return a conversion of vectors to lists that share their values, without a copy."""

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        if (count := len(plain) * plain.type.list_size) > array_conversion.MAX_OFFSET:
            raise ArrayTooLargeError(f"{count:,} values in one array of {to}")
        return plain.cast(to)

    return convert
