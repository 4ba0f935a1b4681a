"""Sums, counts, least and greatest values: each task adds up its own rows in Arrow, Spark adds up the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError
from pyarrow import acero
from pyspark.sql import Column, DataFrame, SparkSession, functions

from lancehouse.lake.scans import Moment, Part, Scan, groups
from lancehouse.schema.outgoing import to_rows
from lancehouse.spark.address import Address
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism, struct
from lancehouse.spark.tasks import Batches, spread

FUNCTIONS = ("sum", "min", "max", "mean", "count")
ALL = "*"
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

    def whole(self) -> Column:
        """The answer, of what the tasks have found out."""
        if self.function == "mean":
            total, number = (functions.sum(_partial(self.column, part)) for part in self.parts)
            return (total.cast("double") / number).alias(self.name)
        together = {"count": "sum"}.get(self.function, self.function)
        found: Column = getattr(functions, together)(_partial(self.column, self.function))
        return (functions.coalesce(found, functions.lit(0)) if self.function == "count" else found).alias(self.name)


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
        firsts = [_Sum(column, part, schema.names[0]) for column, part in wanted]
        nexts = [each.again() for each in firsts]
        found: list[pa.Table] = []
        for chunk in _chunks(schema, batches):
            found.append(self._summed(chunk, firsts))
            if sum(map(len, found)) > 2 * len(found[0]) + CHUNK:  # so that many groups are not put together often
                found = [self._summed(pa.concat_tables(found), nexts)]
        if len(found) > 1:
            return self._summed(pa.concat_tables(found), nexts)
        return found[0] if found else self._summed(schema.empty_table(), firsts)

    def _summed(self, rows: pa.Table, sums: Sequence[_Sum]) -> pa.Table:
        prefix = "hash_" if self.keys else ""
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
        options = acero.AggregateNodeOptions([each.spec(prefix) for each in sums], keys=list(self.keys) or None)
        return acero.Declaration("aggregate", options, inputs=[source]).to_table(use_threads=True)


@dataclass(frozen=True, slots=True)
class _Sum:
    """One thing that a task finds out."""

    column: str
    part: str
    first: str
    """A column that stands for all where rows are counted."""

    def spec(self, prefix: str) -> tuple[Any, str, Any, str]:
        """As Arrow takes it."""
        options = pc.CountOptions("all" if self.column == ALL else "only_valid") if self.part == "count" else None
        source = self.first if self.column == ALL else self.column
        return source, f"{prefix}{self.part}", options, _label(self.column, self.part)

    def again(self) -> _Again:
        """The same of what was found out in several steps."""
        return _Again(_label(self.column, self.part), {"count": "sum"}.get(self.part, self.part), self.first)


class _Again(_Sum):
    """A step that puts others together."""

    def spec(self, prefix: str) -> tuple[Any, str, Any, str]:
        return self.column, f"{prefix}{self.part}", None, self.column


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
    group_by: str | Sequence[str], measures: dict[str, str | Sequence[str] | None], filter: str | None
) -> Question:
    """What a caller asks.

    Raises:
        InvalidInputError: nothing, or a function of all columns that has no meaning for them.
    """
    keys = _names(group_by)
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
        InvalidInputError: a type has no such function.
    """
    pinned = Pinned.at(address, moment)
    table, dataset = pinned.open()
    schema = asked.scan.schema(table, dataset)
    try:
        rows = to_rows(asked.answer(_decoded(schema), []).schema)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"{table}: {error}") from error

    def work(parts: list[Part]) -> Batches:
        table, dataset = pinned.open()
        plain = _decoded(schema)
        batches = asked.scan.batches(table, dataset, parts)
        found = asked.answer(plain, batches if plain == schema else (batch.cast(plain) for batch in batches))
        return map(rows.batch, found.to_batches())

    parts = groups(dataset, parallelism(spark), split=asked.filter is None)
    found = spread(spark, parts or [[]], work, struct(rows.struct))
    keys = [functions.col(f"`{key.replace('`', '``')}`") for key in asked.keys]
    wholes = [each.whole() for each in asked.measures]
    if not wholes:
        return found.distinct()
    return found.groupBy(*keys).agg(*wholes) if keys else found.agg(*wholes)


def _decoded(schema: pa.Schema) -> pa.Schema:
    """Arrow cannot group by dictionaries that differ from batch to batch."""
    plain = [
        field.with_type(field.type.value_type) if isinstance(field.type, pa.DictionaryType) else field
        for field in schema
    ]
    return pa.schema(plain)
