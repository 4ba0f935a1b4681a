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

from lancehouse.schema import arrays
from lancehouse.schema.arrays import Conversion, Convert, TooLargeError, Typed, cast, floored, short, storage
from lancehouse.schema.spark import exchanged, to_spark
from lancehouse.schema.walk import BFLOAT16, BLOB, JSON, Folded, Node, fold


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Turns batches of a Lance table into those that PySpark takes for the table's StructType."""

    source: pa.Schema
    struct: dict[str, Any]
    """The JSON of the StructType."""
    schema: pa.Schema
    """What PySpark demands of batches."""
    _columns: Sequence[Convert]

    def __reduce__(self) -> tuple[Callable[[pa.Schema], Outgoing], tuple[pa.Schema]]:
        return to_rows, (self.source,)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; columns by position, blobs as binaries. A column that Spark takes as it is, is not copied.

        Raises:
            InvalidInputError: a value that Spark's type cannot hold, or more than 2 GiB in a column.
        """
        try:
            return self._converted(batch)
        except TooLargeError as error:
            raise InvalidInputError(f"{error}: read fewer rows at once, or select other columns") from error

    def batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same rows, in several batches where one would hold more than 2 GiB in a column.

        Raises:
            InvalidInputError: a value that Spark's type cannot hold, or a row of more than 2 GiB.
        """
        half = batch.num_rows // 2
        try:
            yield self._converted(batch) if half else self.batch(batch)
        except TooLargeError:
            yield from self.batches(batch.slice(0, half))
            yield from self.batches(batch.slice(half))

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._columns:
            return batch  # There is nothing in it but the number of rows, which a new one would not have.
        made = [
            _converted(field.name, convert, array)
            for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(made, schema=self.schema)


def to_rows(schema: pa.Schema) -> Outgoing:
    """A converter for batches of these columns of a table.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    rows = _Rows()
    folded = fold(schema, rows)
    fields = [rows.field(column) for column in folded]
    return Outgoing(schema, to_spark(schema), pa.schema(fields), [column.type.convert for column in folded])


def _converted(name: str, convert: Convert, array: Any) -> Any:
    try:
        return convert(array)
    except TooLargeError as error:
        raise TooLargeError(f"column {name}: {error}") from error
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name}: a value is out of the range of its Spark type ({error}); select other columns"
        ) from error


class _Rows(Conversion):
    """Folds to the Arrow types in which Spark takes values."""

    def field(self, folded: Folded[Typed], name: str | None = None) -> pa.Field[Any]:
        return pa.field(name or folded.node.name, folded.type.type, nullable=folded.node.nullable)

    def enter(self, node: Node) -> Typed | None:
        return self.leaf(node) if node.extension in _LEAVES else None

    def leaf(self, node: Node) -> Typed:
        to = exchanged(node)
        return Typed(to, _leaf(node, to))

    def list(self, node: Node, element: Folded[Typed]) -> Typed:
        made = _unchanged(node, super().list(node, element))
        if isinstance(node.type, pa.FixedSizeListType) and node.type.value_type == element.type.type:
            return Typed(made.type, _vectors(made.type))
        return made

    def map(self, node: Node, key: Folded[Typed], value: Folded[Typed]) -> Typed:
        return _unchanged(node, super().map(node, key, value))

    def struct(self, node: Node, fields: Sequence[Folded[Typed]]) -> Typed:
        return _unchanged(node, super().struct(node, fields))


_LEAVES = JSON | {BLOB, BFLOAT16}
"""Extensions that mean something else than their storage type."""


def _unchanged(node: Node, typed: Typed) -> Typed:
    return Typed(typed.type, storage) if node.type == typed.type else typed


def _leaf(node: Node, to: pa.DataType) -> Convert:
    if node.extension == BFLOAT16:
        return arrays.float_of_bfloat16
    if (narrow := arrays.narrowed(node.type)) is not None:
        return narrow.convert
    match dtype := node.type:
        case pa.DurationType():
            return floored(1000, to) if dtype.unit == "ns" else cast(to)
        case pa.Time32Type():
            return lambda array: storage(array).view(pa.int32()).cast(to)
        case pa.Time64Type():
            return lambda array: storage(array).view(to)
    return short(to) if to in (pa.string(), pa.binary()) else cast(to)


def _vectors(to: pa.DataType) -> Convert:
    """Lists over the same values, without a copy of them."""

    def convert(array: Any) -> Any:
        plain = storage(array)
        if (count := len(plain) * plain.type.list_size) > arrays.MAX_OFFSET:
            raise TooLargeError(f"{count:,} values in one array of {to}")
        return plain.cast(to)

    return convert
