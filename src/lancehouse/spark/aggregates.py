"""Sums, counts, least and greatest values: each task adds up its own rows in Arrow, Spark adds up the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError
from pyarrow import acero
from pyspark.sql import Column, DataFrame, SparkSession, functions

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.scans import Moment, Part, Scan, groups
from lancehouse.schema.arrays import plain_digits
from lancehouse.schema.outgoing import to_rows
from lancehouse.schema.walk import MAX_DECIMAL_DIGITS, narrow_decimal
from lancehouse.spark.address import Address
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism, struct
from lancehouse.spark.tasks import Batches, spread

FUNCTIONS = ("sum", "min", "max", "mean", "count")
ALL = "*"
LOW = "low half"
HALF = 32
"""Bits of it."""
LOWER = (1 << HALF) - 1
CHUNK = 1 << 17
"""Rows that are summed up at once: a few megabytes, which the processor's cache still holds."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A function over a column."""

    function: str
    column: str

    @property
    def name(self) -> str:
        """Of the column of the answer."""
        return self.function if self.column == ALL else f"{self.column}_{self.function}"

    @property
    def parts(self) -> tuple[str, ...]:
        """What each task has to find out for it."""
        return ("sum", "count") if self.function == "mean" else (self.function,)

    def whole(self, schema: pa.Schema) -> Column:
        """The answer, of what the tasks have found out about columns with that schema."""
        return self._whole(pa.null() if self.column == ALL else schema.field(self.column).type).alias(self.name)

    def _whole(self, dtype: pa.DataType) -> Column:
        match self.function:
            case "count":
                return functions.coalesce(functions.sum(_partial(self.column, "count")), functions.lit(0))
            case "sum":
                return self._total(dtype, _spark_sum(dtype))
            case "mean":
                number = functions.sum(_partial(self.column, "count"))
                return self._total(dtype, _spark_decimal(dtype)).cast("double") / number
        found: Column = getattr(functions, self.function)(_partial(self.column, self.function))
        return functions.substr(found, functions.lit(_order_digits(dtype) + 1)) if _is_text(dtype) else found

    def _total(self, dtype: pa.DataType, to: str) -> Column:
        partial = _partial(self.column, "sum")
        if pa.types.is_floating(dtype):
            return functions.sum(partial)
        high = functions.try_sum(partial)
        total = high.try_cast(to) if pa.types.is_decimal(dtype) else self._joined(high, to)
        lost = total.isNull() & (functions.count(partial) > 0)
        # In a line of its own, as Spark passes on what a task in Python raises.
        error = f"\n{InvalidInputError.__module__}.{InvalidInputError.__name__}: {_too_large(self.column, to)}\n\n"
        return functions.when(lost, functions.raise_error(functions.lit(error))).otherwise(total)

    def _joined(self, high: Column, to: str) -> Column:
        """A whole number of its halves, which are added up apart: Spark is far slower with decimals."""
        low = functions.sum(_partial(self.column, LOW))
        if to != "bigint":
            return (high.cast(f"decimal({MAX_DECIMAL_DIGITS},0)") * (1 << HALF) + low).try_cast(to)
        upper = high + functions.shiftright(low, HALF)
        fits = upper.between(-(1 << HALF - 1), (1 << HALF - 1) - 1)
        return functions.when(fits, functions.shiftleft(upper, HALF).bitwiseOR(low.bitwiseAND(LOWER)))


def _spark_sum(dtype: pa.DataType) -> str:
    """The type that sums have for Spark."""
    if pa.types.is_unsigned_integer(dtype) or pa.types.is_boolean(dtype):
        return "decimal(30,0)"
    return _spark_decimal(dtype) if pa.types.is_decimal(dtype) else "bigint"


def _spark_decimal(dtype: pa.DataType) -> str:
    """The widest type of Spark for sums that are exact."""
    return f"decimal({MAX_DECIMAL_DIGITS},{_scale(dtype)})"


def _scale(dtype: pa.DataType) -> int:
    return max(dtype.scale, 0) if isinstance(dtype, (pa.Decimal128Type, pa.Decimal256Type)) else 0


def _too_large(column: str, to: str) -> str:
    return f"the sum of column {column} does not fit {to}"


def _partial(column: str, function: str) -> str:
    return f"`{_label(column, function).replace('`', '``')}`"


def _label(column: str, function: str) -> str:
    return f"{function} of {column}"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a table."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    filter: str | None = None

    @property
    def scan(self) -> Scan:
        """What has to be read for it."""
        columns = dict.fromkeys((*self.keys, *(each.column for each in self.measures if each.column != ALL)))
        return Scan(tuple(columns), self.filter, with_row_id=not columns)

    def answer(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """What one task finds out, of batches with that schema; memory is bounded by the number of groups."""
        wanted = dict.fromkeys((each.column, part) for each in self.measures for part in each.parts)
        firsts = [_Sum(column, part, schema.names[0] if column == ALL else column, part) for column, part in wanted]
        nexts = [each.again() for each in firsts]
        found: list[pa.Table] = []
        for chunk in _chunks(schema, batches):
            found.append(self._summed(chunk, firsts))
            if sum(map(len, found)) > 2 * len(found[0]) + CHUNK:  # so that many groups are not put together often
                found = [self._together(found, nexts)]
        whole = self._together(found, nexts) if found else self._summed(schema.empty_table(), firsts)
        for each in firsts:
            place = whole.schema.get_field_index(each.label)
            dtype = schema.field(each.column).type if each.column != ALL else pa.null()
            found_out = each.handed_on(whole.column(place), dtype)
            whole = whole.remove_column(place)
            for name, values in found_out.items():
                whole = whole.append_column(name, values)
        return whole

    def _together(self, found: Sequence[pa.Table], sums: Sequence[_Sum]) -> pa.Table:
        if len(found) == 1:
            return found[0]
        # Permissive, as some sums may have needed a wider type.
        return self._summed(pa.concat_tables(found, promote_options="permissive"), sums)

    def _summed(self, rows: pa.Table, sums: Sequence[_Sum]) -> pa.Table:
        prefix = "hash_" if self.keys else ""
        taken = rows.select(self.keys)
        for each in sums:
            taken = taken.append_column(each.label, each.taken(rows.column(each.source)))
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(taken))
        options = acero.AggregateNodeOptions([each.spec(prefix) for each in sums], keys=list(self.keys) or None)
        found = acero.Declaration("aggregate", options, inputs=[source]).to_table(use_threads=True)
        for each in sums:
            if each.part == "max" and taken.field(each.label).type != (dtype := rows.field(each.source).type):
                place = found.schema.get_field_index(each.label)
                found = found.set_column(place, each.label, _floats(found.column(place), dtype))
        return found


@dataclass(frozen=True, slots=True)
class _Sum:
    """One thing that a task finds out."""

    column: str
    part: str
    source: str
    """The column that it is found out of."""
    function: str

    @property
    def label(self) -> str:
        """Of the column with what was found out."""
        return _label(self.column, self.part)

    def again(self) -> _Sum:
        """The same of what was found out in several steps."""
        return replace(self, source=self.label, function="sum" if self.part == "count" else self.part)

    def spec(self, prefix: str) -> tuple[Any, str, Any, str]:
        """As Arrow takes it."""
        options = pc.CountOptions("all" if self.column == ALL else "only_valid") if self.function == "count" else None
        return self.label, f"{prefix}{self.function}", options, self.label

    def taken(self, values: Any) -> Any:
        """Values of a type for which Arrow finds out what Spark would."""
        if self.part == "sum" and not _is_summed_exactly(values):
            if values.type.bit_width == 256:
                raise InvalidInputError(_too_large(self.column, _spark_decimal(values.type)))
            return values.cast(_wider(values.type))
        if self.part == "max" and pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            return _ordered(values)
        return values

    def handed_on(self, found: Any, dtype: pa.DataType) -> dict[str, Any]:
        """What was found out, for Spark to put together; of a column of type `dtype`."""
        if self.part == "sum" and pa.types.is_decimal(dtype):
            try:
                return {self.label: found.cast(pa.decimal128(MAX_DECIMAL_DIGITS, _scale(dtype)))}
            except pa.ArrowInvalid as error:
                raise InvalidInputError(_too_large(self.column, _spark_decimal(dtype))) from error
        if self.part == "sum" and not pa.types.is_floating(dtype):
            return dict(zip((self.label, _label(self.column, LOW)), _halves(found), strict=True))
        is_text = self.part in ("min", "max") and _is_text(dtype)
        return {self.label: _sortable(found, dtype) if is_text else found}


def _is_summed_exactly(values: Any) -> bool:
    """Whether no sum of some of the values can be too large for Arrow, which would not tell."""
    dtype = values.type
    if pa.types.is_decimal(dtype):
        most: int = 10 ** (MAX_DECIMAL_DIGITS * dtype.bit_width // 128)
        possible = 10**dtype.precision
    elif pa.types.is_integer(dtype):
        most = 2**63 if pa.types.is_signed_integer(dtype) else 2**64
        possible = 2**dtype.bit_width
    else:
        return True
    if possible * len(values) < most:
        return True
    ends: Any = pc.min_max(values)
    found = [_digits(f"{Decimal(end):f}") for end in ends.as_py().values() if end is not None]
    largest: int = max(map(abs, found), default=0)
    return largest * len(values) < most


def _halves(numbers: Any) -> tuple[Any, Any]:
    """Whole numbers as what is above their lower bits, and these."""
    if pa.types.is_integer(numbers.type):
        high = pc.shift_right(numbers, pa.scalar(HALF, numbers.type))
        return high.cast(pa.int64()), pc.bit_wise_and(numbers, pa.scalar(LOWER, numbers.type)).cast(pa.int64())
    exact = [None if each is None else int(each) for each in numbers.to_pylist()]
    high = pa.array([None if each is None else each >> HALF for each in exact], pa.int64())
    return high, pa.array([None if each is None else each & LOWER for each in exact], pa.int64())


def _wider(dtype: Any) -> pa.DataType:
    return pa.decimal256(76, dtype.scale) if pa.types.is_decimal(dtype) else pa.decimal128(MAX_DECIMAL_DIGITS, 0)


def _ordered(floats: Any) -> Any:
    """Whole numbers in the order that floats have for Spark: NaN is the greatest, which Arrow leaves out."""
    same = pc.if_else(pc.is_nan(floats), pa.scalar(float("nan"), floats.type), floats)
    return _flipped(same.combine_chunks().view(pa.int64() if floats.type.bit_width == 64 else pa.int32()))


def _floats(ordered: Any, dtype: pa.DataType) -> Any:
    """The floats that `_ordered` has put in order."""
    return _flipped(ordered.combine_chunks()).view(dtype)


def _flipped(bits: Any) -> Any:
    """Those of negative numbers the other way round, all but the sign."""
    rest = pa.scalar(2 ** (bits.type.bit_width - 1) - 1, bits.type)
    return pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), pc.bit_wise_xor(bits, rest), bits)


def _is_text(dtype: pa.DataType) -> bool:
    """Whether it is a decimal that Spark has no type for."""
    return isinstance(dtype, (pa.Decimal128Type, pa.Decimal256Type)) and narrow_decimal(dtype) is None


def _sortable(decimals: Any, dtype: pa.DataType) -> Any:
    """Texts in the order of the numbers: each its place, which is always as long, and then the number."""
    places = _order_digits(dtype)
    texts = plain_digits(decimals).to_pylist()
    return pa.array(
        [None if text is None else f"{10 ** (places - 1) + _digits(text):0{places}}{text}" for text in texts],
        pa.string(),
    )


def _order_digits(dtype: Any) -> int:
    """How long a place in the order is: positive for all numbers, so that it needs no sign."""
    return int(dtype.precision) + max(-int(dtype.scale), 0) + 1


def _digits(text: str) -> int:
    """A decimal without its point."""
    return int(text.replace(".", ""))


def _chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together: for a few rows, summing up costs more than it sums up."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK:
            yield pa.Table.from_batches(held, schema)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def question(
    group_by: str | Sequence[str], measures: Mapping[str, str | Sequence[str] | None], filter: str | None
) -> Question:
    """What a caller asks.

    Raises:
        InvalidInputError: nothing, a function of all columns that has no meaning for them, or a column twice.
    """
    keys = _names(group_by)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise InvalidInputError(f"group_by names {', '.join(twice)} more than once")
    asked = [Measure(function, column) for function, columns in measures.items() for column in _names(columns or ())]
    if wrong := [each for each in asked if each.column == ALL and each.function != "count"]:
        raise InvalidInputError(f"only count goes with {ALL!r}, not {wrong[0].function}")
    if not asked and not keys:
        raise InvalidInputError(f"aggregate needs group_by or one of {', '.join(FUNCTIONS)}, with the names of columns")
    return Question(keys, tuple(asked), filter)


def _names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def aggregate(spark: SparkSession, address: Address, asked: Question, moment: Moment) -> DataFrame:
    """One row for each group, or one for all, with a column `{column}_{function}` for each measure.

    Raises:
        InvalidInputError: a type has no such function; in a task, a sum that does not fit its type.
    """
    pinned = Pinned.at(address, moment)
    table, dataset = pinned.open()
    schema = asked.scan.schema(table, dataset)
    plain = _plain(schema)
    _check_scales(table, plain, asked.measures)
    try:
        rows = to_rows(asked.answer(plain, []).schema)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"{table}: {error}") from error

    def work(parts: list[Part]) -> Batches:
        table, dataset = pinned.open()
        batches = asked.scan.batches(table, dataset, parts)
        found = asked.answer(plain, batches if plain == schema else (batch.cast(plain) for batch in batches))
        return map(rows.batch, found.to_batches())

    parts = groups(dataset, parallelism(spark), split=asked.filter is None)
    found = spread(spark, parts or [[]], work, struct(rows.struct))
    keys = [functions.col(f"`{key.replace('`', '``')}`") for key in asked.keys]
    wholes = [each.whole(plain) for each in asked.measures]
    if not wholes:
        return found.distinct()
    return found.groupBy(*keys).agg(*wholes) if keys else found.agg(*wholes)


def _check_scales(table: TableRef, schema: pa.Schema, measures: Iterable[Measure]) -> None:
    for each in measures:
        if "sum" in each.parts and (scale := _scale(schema.field(each.column).type)) > MAX_DECIMAL_DIGITS:
            raise InvalidInputError(
                f"{table}: column {each.column} has {scale} digits after the point, and Spark's decimals no more than "
                f"{MAX_DECIMAL_DIGITS}, so it has no {each.function}"
            )


def _plain(schema: pa.Schema) -> pa.Schema:
    """Arrow cannot group by dictionaries that differ from batch to batch, and has no sums of half floats."""
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _plain_type(dtype: pa.DataType) -> pa.DataType:
    if isinstance(dtype, pa.DictionaryType):
        return _plain_type(dtype.value_type)
    return pa.float32() if dtype == pa.float16() else dtype
