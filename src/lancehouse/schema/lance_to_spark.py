"""Values of a Lance table as Spark takes them in Arrow, for `mapInArrow` and for Python data sources.

The types are those of `schema/spark.py`. Times are numbers in the unit of their column; what is finer than a
microsecond is rounded down.
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
    """Turns batches of a Lance table into those that PySpark takes for the table's StructType."""

    source: pa.Schema
    struct: dict[str, Any]
    """The JSON of the StructType."""
    schema: pa.Schema
    """What PySpark demands of batches."""
    _columns: Sequence[Convert]

    def __reduce__(self) -> tuple[Callable[[pa.Schema], LanceToSpark], tuple[pa.Schema]]:
        return to_spark_rows, (self.source,)

    def convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; columns by position, blobs as binaries. A column that Spark takes as it is, is not copied.

        Raises:
            InvalidInputError: a value that Spark's type cannot hold, or more than 2 GiB in a column.
        """
        try:
            return self._convert_columns(batch)
        except ArrayTooLargeError as error:
            raise InvalidInputError(f"{error}: read fewer rows at once, or select other columns") from error

    def convert_batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same rows, in several batches where one would hold more than 2 GiB in a column.

        Raises:
            InvalidInputError: a value that Spark's type cannot hold, or a row of more than 2 GiB.
        """
        half = batch.num_rows // 2
        try:
            yield self._convert_columns(batch) if half else self.convert_batch(batch)
        except ArrayTooLargeError:
            yield from self.convert_batches(batch.slice(0, half))
            yield from self.convert_batches(batch.slice(half))

    def _convert_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._columns:
            return batch  # There is nothing in it but the number of rows, which a new one would not have.
        converted = [
            _convert_column(field.name, convert, array)
            for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(converted, schema=self.schema)


def to_spark_rows(schema: pa.Schema) -> LanceToSpark:
    """A converter for batches of these columns of a table.

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
    """Folds to the Arrow types in which Spark takes values."""

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
"""Extensions that mean something else than their storage type."""


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
    """Lists over the same values, without a copy of them."""

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        if (count := len(plain) * plain.type.list_size) > array_conversion.MAX_OFFSET:
            raise ArrayTooLargeError(f"{count:,} values in one array of {to}")
        return plain.cast(to)

    return convert
