"""Aggregate Lance tables (sum, min, max, mean, count): tasks aggregate in Arrow, Spark combines their results.

Rows go to the JVM one by one, and that is what costs: a sum over 12 million rows takes 4.0 s if Spark aggregates them,
and 1.2 s if only the results of tasks go there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError
from pyarrow import acero
from pyspark.sql import Column, DataFrame, SparkSession, functions

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan, TooManyBytesError, estimate_bytes, limit_bytes, split_fragments
from lancehouse.schema.array_conversion import decimal_to_text
from lancehouse.schema.spark import from_spark_name
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.schema.walk import MAX_DECIMAL_DIGITS, narrow_decimal
from lancehouse.spark.engine import Batches, parallelism, run_in_tasks
from lancehouse.spark.session import to_local_frame, to_struct

FUNCTIONS = ("sum", "min", "max", "mean", "count")
ALL_COLUMNS = "*"
"""Stands for rows rather than a column, as in `count(*)`."""
LOW = "low half"
"""Label of the lower half of an integer sum; see `_split_halves`."""
HALF = 32
"""Number of bits of the lower half."""
LOWER = (1 << HALF) - 1
"""Mask of the lower half."""
CHUNK = 1 << 17
"""Number of rows that are aggregated at once: a few megabytes, which fit into the processor's cache."""


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate function over a column."""

    function: str
    column: str

    @property
    def name(self) -> str:
        """Name of the column of the result."""
        return self.function if self.column == ALL_COLUMNS else f"{self.column}_{self.function}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The partial aggregates that each task has to compute for it."""
        return ("sum", "count") if self.function == "mean" else (self.function,)

    def combine(self, schema: pa.Schema) -> Column:
        """Return the Spark expression that combines the partial aggregates of the tasks.

        Args:
            schema: schema of the columns that were aggregated.
        """
        return self._combine(pa.null() if self.column == ALL_COLUMNS else schema.field(self.column).type).alias(
            self.name
        )

    def _combine(self, dtype: pa.DataType) -> Column:
        match self.function:
            case "count":
                return functions.coalesce(functions.sum(_partial_column(self.column, "count")), functions.lit(0))
            case "sum":
                return self._combine_sum(dtype, _spark_sum(dtype))
            case "mean":
                number = functions.sum(_partial_column(self.column, "count"))
                return self._combine_sum(dtype, _spark_decimal(dtype)).cast("double") / number
        column: Column = getattr(functions, self.function)(_partial_column(self.column, self.function))
        return functions.substr(column, functions.lit(_order_digits(dtype) + 1)) if _is_text(dtype) else column

    def compute_whole(self, partials: pa.Table, schema: pa.Schema) -> Any:
        """Return the values of the measure from partial aggregates of all rows, in the types that Spark would make."""
        dtype = pa.null() if self.column == ALL_COLUMNS else schema.field(self.column).type
        match self.function:
            case "count":
                return pc.coalesce(partials.column(_label(self.column, "count")).cast(pa.int64()), pa.scalar(0))
            case "sum":
                return self._to_sum(partials.column(_label(self.column, "sum")), dtype)
            case "mean":
                total = partials.column(_label(self.column, "sum"))
                if pa.types.is_decimal(dtype):
                    total = self._to_sum(total, dtype)
                number = partials.column(_label(self.column, "count"))
                return pc.divide(total.cast(pa.float64(), safe=False), number.cast(pa.float64()))
        return partials.column(_label(self.column, self.function))

    def _to_sum(self, total: Any, dtype: pa.DataType) -> Any:
        if pa.types.is_floating(dtype):
            return total
        name = _spark_sum(dtype)
        to: Any = pa.int64() if name == "bigint" else from_spark_name(name, (self.column,))
        if to != pa.int64() and pa.types.is_integer(total.type):
            total = total.cast(pa.decimal128(20, 0))
        try:
            return total.cast(to)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(_too_large_message(self.column, name)) from error

    def _combine_sum(self, dtype: pa.DataType, to: str) -> Column:
        partial = _partial_column(self.column, "sum")
        if pa.types.is_floating(dtype):
            return functions.sum(partial)
        high = functions.try_sum(partial)
        total = high.try_cast(to) if pa.types.is_decimal(dtype) else self._join_halves(high, to)
        overflowed = total.isNull() & (functions.count(partial) > 0)
        # On a line of its own, like an exception of a Python task, so that `translate_task_errors` recognizes it.
        error = (
            f"\n{InvalidInputError.__module__}.{InvalidInputError.__name__}: {_too_large_message(self.column, to)}\n\n"
        )
        return functions.when(overflowed, functions.raise_error(functions.lit(error))).otherwise(total)

    def _join_halves(self, high: Column, to: str) -> Column:
        """Return an integer sum from the sums of its halves, which avoids Spark's decimals: they are far slower."""
        low = functions.sum(_partial_column(self.column, LOW))
        if to != "bigint":
            return (high.cast(f"decimal({MAX_DECIMAL_DIGITS},0)") * (1 << HALF) + low).try_cast(to)
        upper = high + functions.shiftright(low, HALF)
        fits = upper.between(-(1 << HALF - 1), (1 << HALF - 1) - 1)
        return functions.when(fits, functions.shiftleft(upper, HALF).bitwiseOR(low.bitwiseAND(LOWER)))


def _spark_sum(dtype: pa.DataType) -> str:
    """Return the Spark type of a sum."""
    if pa.types.is_unsigned_integer(dtype) or pa.types.is_boolean(dtype):
        return "decimal(30,0)"
    return _spark_decimal(dtype) if pa.types.is_decimal(dtype) else "bigint"


def _spark_decimal(dtype: pa.DataType) -> str:
    """Return the widest Spark decimal, for exact sums."""
    return f"decimal({MAX_DECIMAL_DIGITS},{_scale(dtype)})"


def _scale(dtype: pa.DataType) -> int:
    return max(dtype.scale, 0) if isinstance(dtype, (pa.Decimal128Type, pa.Decimal256Type)) else 0


def _too_large_message(column: str, to: str) -> str:
    return f"the sum of column {column} does not fit {to}"


def _partial_column(column: str, function: str) -> str:
    return f"`{_label(column, function).replace('`', '``')}`"


def _label(column: str, function: str) -> str:
    return f"{function} of {column}"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The aggregates that are requested of a table."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    filter: str | None = None

    @property
    def scan(self) -> Scan:
        """The scan that reads the columns they need."""
        measured = (measure.column for measure in self.measures if measure.column != ALL_COLUMNS)
        columns = dict.fromkeys((*self.keys, *measured))
        return Scan(tuple(columns), self.filter, with_row_id=not columns)

    def compute(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Aggregate the batches of one task; memory is bounded by the number of groups.

        Args:
            schema: schema of the batches.
            batches: the rows of the task.
        """
        combined = self._compute_partials(schema, batches)
        for partial in self._partials(schema):
            place = combined.schema.get_field_index(partial.label)
            dtype = schema.field(partial.column).type if partial.column != ALL_COLUMNS else pa.null()
            columns = partial.to_spark(combined.column(place), dtype)
            combined = combined.remove_column(place)
            for name, values in columns.items():
                combined = combined.append_column(name, values)
        return combined

    def compute_all(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Aggregate all rows of a table, with the result that Spark makes of the partial results of tasks."""
        combined = self._compute_partials(schema, batches)
        columns = [combined.column(key) for key in self.keys]
        columns += [measure.compute_whole(combined, schema) for measure in self.measures]
        return pa.Table.from_arrays(columns, [*self.keys, *(measure.name for measure in self.measures)])

    def _partials(self, schema: pa.Schema) -> list[_PartialAggregate]:
        needed = dict.fromkeys((measure.column, part) for measure in self.measures for part in measure.parts)
        return [
            _PartialAggregate(column, part, schema.names[0] if column == ALL_COLUMNS else column, part)
            for column, part in needed
        ]

    def _compute_partials(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        firsts = self._partials(schema)
        nexts = [first.to_merge_step() for first in firsts]
        partials: list[pa.Table] = []
        for chunk in _chunks(schema, batches):
            partials.append(self._aggregate(chunk, firsts))
            if sum(map(len, partials)) > 2 * len(partials[0]) + CHUNK:  # merging many groups often would be slow
                partials = [self._merge_partials(partials, nexts)]
        return self._merge_partials(partials, nexts) if partials else self._aggregate(schema.empty_table(), firsts)

    def _merge_partials(self, partials: Sequence[pa.Table], sums: Sequence[_PartialAggregate]) -> pa.Table:
        if len(partials) == 1:
            return partials[0]
        # Permissive, as the sums of some chunks may have needed a wider type.
        return self._aggregate(pa.concat_tables(partials, promote_options="permissive"), sums)

    def _aggregate(self, rows: pa.Table, sums: Sequence[_PartialAggregate]) -> pa.Table:
        prefix = "hash_" if self.keys else ""
        inputs = rows.select(self.keys)
        for partial in sums:
            inputs = inputs.append_column(partial.label, partial.prepare(rows.column(partial.source)))
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(inputs))
        options = acero.AggregateNodeOptions([partial.spec(prefix) for partial in sums], keys=list(self.keys) or None)
        aggregated = acero.Declaration("aggregate", options, inputs=[source]).to_table(use_threads=True)
        for partial in sums:
            if partial.part == "max" and inputs.field(partial.label).type != (dtype := rows.field(partial.source).type):
                place = aggregated.schema.get_field_index(partial.label)
                aggregated = aggregated.set_column(
                    place, partial.label, _from_ordered_integers(aggregated.column(place), dtype)
                )
        return aggregated


@dataclass(frozen=True, slots=True)
class _PartialAggregate:
    """One aggregate that a task computes."""

    column: str
    part: str
    source: str
    """The column that is aggregated."""
    function: str

    @property
    def label(self) -> str:
        """Name of the column with the partial result."""
        return _label(self.column, self.part)

    def to_merge_step(self) -> _PartialAggregate:
        """Return the aggregate that merges several partial results of this one."""
        return replace(self, source=self.label, function="sum" if self.part == "count" else self.part)

    def spec(self, prefix: str) -> tuple[Any, str, Any, str]:
        """Return the aggregate as Arrow's `AggregateNodeOptions` takes it."""
        options = (
            pc.CountOptions("all" if self.column == ALL_COLUMNS else "only_valid") if self.function == "count" else None
        )
        return self.label, f"{prefix}{self.function}", options, self.label

    def prepare(self, values: Any) -> Any:
        """Convert values to a type for which Arrow's aggregate has the result that Spark's would have."""
        if self.part == "sum" and not _has_exact_sum(values):
            if values.type.bit_width == 256:
                raise InvalidInputError(_too_large_message(self.column, _spark_decimal(values.type)))
            return values.cast(_wider_type(values.type))
        if self.part == "max" and pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            return _to_ordered_integers(values)
        return values

    def to_spark(self, values: Any, dtype: pa.DataType) -> dict[str, Any]:
        """Convert a partial result to columns that Spark can combine.

        Args:
            values: the partial result.
            dtype: type of the column that was aggregated.
        """
        if self.part == "sum" and pa.types.is_decimal(dtype):
            try:
                return {self.label: values.cast(pa.decimal128(MAX_DECIMAL_DIGITS, _scale(dtype)))}
            except pa.ArrowInvalid as error:
                raise InvalidInputError(_too_large_message(self.column, _spark_decimal(dtype))) from error
        if self.part == "sum" and not pa.types.is_floating(dtype):
            return dict(zip((self.label, _label(self.column, LOW)), _split_halves(values), strict=True))
        is_text = self.part in ("min", "max") and _is_text(dtype)
        return {self.label: _to_sortable_text(values, dtype) if is_text else values}


def _has_exact_sum(values: Any) -> bool:
    """Return whether no sum of the values can overflow in Arrow, which would not report it."""
    dtype = values.type
    if pa.types.is_decimal(dtype):
        limit: int = 10 ** (MAX_DECIMAL_DIGITS * dtype.bit_width // 128)
        possible = 10**dtype.precision
    elif pa.types.is_integer(dtype):
        limit = 2**63 if pa.types.is_signed_integer(dtype) else 2**64
        possible = 2**dtype.bit_width
    else:
        return True
    if possible * len(values) < limit:
        return True
    ends: Any = pc.min_max(values)
    digits = [_digits(f"{Decimal(end):f}") for end in ends.as_py().values() if end is not None]
    largest: int = max(map(abs, digits), default=0)
    return largest * len(values) < limit


def _split_halves(numbers: Any) -> tuple[Any, Any]:
    """Split integers into their bits above the lower half, and the lower half."""
    if pa.types.is_integer(numbers.type):
        high = pc.shift_right(numbers, pa.scalar(HALF, numbers.type))
        return high.cast(pa.int64()), pc.bit_wise_and(numbers, pa.scalar(LOWER, numbers.type)).cast(pa.int64())
    exact = [None if number is None else int(number) for number in numbers.to_pylist()]
    high = pa.array([None if number is None else number >> HALF for number in exact], pa.int64())
    return high, pa.array([None if number is None else number & LOWER for number in exact], pa.int64())


def _wider_type(dtype: Any) -> pa.DataType:
    return pa.decimal256(76, dtype.scale) if pa.types.is_decimal(dtype) else pa.decimal128(MAX_DECIMAL_DIGITS, 0)


def _to_ordered_integers(floats: Any) -> Any:
    """Convert floats to integers in Spark's order of floats: NaN is the greatest, while Arrow ignores it."""
    same = pc.if_else(pc.is_nan(floats), pa.scalar(float("nan"), floats.type), floats)
    return _flip_negatives(same.combine_chunks().view(pa.int64() if floats.type.bit_width == 64 else pa.int32()))


def _from_ordered_integers(ordered: Any, dtype: pa.DataType) -> Any:
    """Convert what `_to_ordered_integers` returned back to floats."""
    return _flip_negatives(ordered.combine_chunks()).view(dtype)


def _flip_negatives(bits: Any) -> Any:
    """Flip all bits but the sign in negative integers; applied twice, it changes nothing."""
    # The bits of positive floats sort like integers, those of negative floats the other way round.
    rest = pa.scalar(2 ** (bits.type.bit_width - 1) - 1, bits.type)
    return pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), pc.bit_wise_xor(bits, rest), bits)


def _is_text(dtype: pa.DataType) -> bool:
    """Return whether a type is a decimal that Spark has no type for, so that it is text there."""
    return isinstance(dtype, (pa.Decimal128Type, pa.Decimal256Type)) and narrow_decimal(dtype) is None


def _to_sortable_text(decimals: Any, dtype: pa.DataType) -> Any:
    """Convert decimals to texts that sort like the numbers: a key of fixed length, followed by the number."""
    places = _order_digits(dtype)
    texts = decimal_to_text(decimals).to_pylist()
    return pa.array(
        [None if text is None else f"{10 ** (places - 1) + _digits(text):0{places}}{text}" for text in texts],
        pa.string(),
    )


def _order_digits(dtype: Any) -> int:
    """Return the length of the sort key; it has one digit more than the numbers, so that it is never negative."""
    return int(dtype.precision) + max(-int(dtype.scale), 0) + 1


def _digits(text: str) -> int:
    """Return the digits of a decimal as an integer, without the point."""
    return int(text.replace(".", ""))


def _chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables of about `CHUNK` rows, as each aggregation has a fixed cost."""
    chunk: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        chunk.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK:
            yield pa.Table.from_batches(chunk, schema)
            chunk, rows = [], 0
    if chunk:
        yield pa.Table.from_batches(chunk, schema)


def parse_aggregation(
    group_by: str | Sequence[str], measures: Mapping[str, str | Sequence[str] | None], filter: str | None
) -> Aggregation:
    """Parse the arguments of `LanceCatalog.aggregate`.

    Raises:
        InvalidInputError: nothing is requested, a function other than count is applied to `*`, or a column is grouped
            by twice.
    """
    keys = _to_names(group_by)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise InvalidInputError(f"group_by names {', '.join(twice)} more than once")
    requested = [
        Measure(function, column) for function, columns in measures.items() for column in _to_names(columns or ())
    ]
    if invalid := [measure for measure in requested if measure.column == ALL_COLUMNS and measure.function != "count"]:
        raise InvalidInputError(f"only count goes with {ALL_COLUMNS!r}, not {invalid[0].function}")
    if not requested and not keys:
        raise InvalidInputError(f"aggregate needs group_by or one of {', '.join(FUNCTIONS)}, with the names of columns")
    return Aggregation(keys, tuple(requested), filter)


def _to_names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def aggregate(
    spark: SparkSession,
    address: TableAddress,
    aggregation: Aggregation,
    selector: VersionSelector,
    driver_bytes: int = 0,
) -> DataFrame:
    """Return one row for each group, or one for all, with a column `{column}_{function}` for each measure.

    It is computed in tasks; or in this process, before this returns, if it reads no more than `driver_bytes` for it.

    Raises:
        InvalidInputError: a function does not support a type; in a task, a sum does not fit its type.
    """
    return aggregate_version(spark, PinnedVersion.resolve(address, selector), aggregation, driver_bytes)


def aggregate_version(
    spark: SparkSession, pinned: PinnedVersion, aggregation: Aggregation, driver_bytes: int = 0
) -> DataFrame:
    """Aggregate one version. See `aggregate`."""
    table, dataset = pinned.open()
    schema = aggregation.scan.schema(table, dataset)
    plain = _plain_schema(schema)
    _check_scales(table, plain, aggregation.measures)
    try:
        rows = to_spark_rows(aggregation.compute(plain, []).schema)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"{table}: {error}") from error

    def read(parts: list[FragmentRange]) -> Iterable[pa.RecordBatch]:
        batches = aggregation.scan.batches(*pinned.open(), parts)
        return batches if plain == schema else (batch.cast(plain) for batch in batches)

    def work(parts: list[FragmentRange]) -> Batches:
        return map(rows.convert_batch, aggregation.compute(plain, read(parts)).to_batches())

    columns = aggregation.scan.columns or ()
    if _can_group(plain, aggregation.keys) and estimate_bytes(dataset, columns, aggregation.filter) <= driver_bytes:
        fragments = [FragmentRange(each.fragment_id) for each in dataset.get_fragments()]
        with suppress(TooManyBytesError):  # the files are smaller than their rows: tasks read them
            return to_local_frame(spark, aggregation.compute_all(plain, limit_bytes(read(fragments), driver_bytes)))

    parts = split_fragments(dataset, parallelism(spark), split=aggregation.filter is None)
    partials = run_in_tasks(spark, parts or [[]], work, to_struct(rows.struct))
    keys = [functions.col(f"`{key.replace('`', '``')}`") for key in aggregation.keys]
    combined = [measure.combine(plain) for measure in aggregation.measures]
    if not combined:
        return partials.distinct()
    return partials.groupBy(*keys).agg(*combined) if keys else partials.agg(*combined)


def _can_group(schema: pa.Schema, keys: Iterable[str]) -> bool:
    """Return whether Arrow tells groups apart as Spark does: to Arrow 0.0 is not -0.0."""
    types = [schema.field(key).type for key in keys]
    return not any(pa.types.is_floating(dtype) or pa.types.is_nested(dtype) for dtype in types)


def _check_scales(table: TableRef, schema: pa.Schema, measures: Iterable[Measure]) -> None:
    for measure in measures:
        if "sum" in measure.parts and (scale := _scale(schema.field(measure.column).type)) > MAX_DECIMAL_DIGITS:
            raise InvalidInputError(
                f"{table}: column {measure.column} has {scale} digits after the point, and Spark's decimals no more "
                f"than {MAX_DECIMAL_DIGITS}, so it has no {measure.function}"
            )


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema that Arrow can aggregate: without dictionaries, which may differ by batch, and half floats."""
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _plain_type(dtype: pa.DataType) -> pa.DataType:
    if isinstance(dtype, pa.DictionaryType):
        return _plain_type(dtype.value_type)
    return pa.float32() if dtype == pa.float16() else dtype
