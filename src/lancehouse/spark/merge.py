"""Merge DataFrames into Lance tables by key: `lancehouse.jobs.merge` with the rows of a frame and Spark's joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError
from pyspark.sql import DataFrame, SparkSession, Window, functions
from pyspark.sql.types import BinaryType, LongType, StructType

from lancehouse.identifiers import quote_name
from lancehouse.jobs import merge as jobs
from lancehouse.jobs import row_changes
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import ChangeResult, Job, WriteOptions
from lancehouse.jobs.merge import MergeKeys, MergeTasks, require_key_columns
from lancehouse.jobs.merge_keys import PIECE, SOURCE, TARGET, Batches, MergeRules, SelectedRows, match_schema
from lancehouse.jobs.row_changes import ColumnUpdateResult
from lancehouse.lake.commits import FileLayout, NewFragment
from lancehouse.lake.row_changes import ADDRESS, ROW, RowChange, merge_changes
from lancehouse.lake.scans import FragmentRange, split_fragments
from lancehouse.schema.spark_rows import from_spark_rows
from lancehouse.spark.engine import (
    RESULT_STRUCT,
    SparkEngine,
    collect_texts,
    parallelism,
    run_in_tasks,
    to_result_batches,
    translate_task_errors,
)
from lancehouse.spark.table_reader import VERSION
from lancehouse.spark.table_writer import incoming_schema, new_table_schema, write_frame

FRAGMENT = "fragment"
RANK = "_lancehouse_rank"
UNORDERED = ("map", "variant", "interval")


def merge(
    frame: DataFrame,
    address: TableAddress,
    on: str | Sequence[str],
    rules: MergeRules,
    how: WriteOptions,
    *,
    latest_by: Sequence[str] = (),
) -> ChangeResult:
    """Merge the rows of a frame into a table by key. See `lancehouse.jobs.merge.merge`.

    Args:
        frame: the rows.
        address: address of the table.
        on: the columns that are the key.
        rules: what to do with matched and unmatched rows.
        how: how rows are written.
        latest_by: columns of the frame that decide which of several rows with the same key is the latest.
    """
    spark, keys = frame.sparkSession, (on,) if isinstance(on, str) else tuple(on)
    return jobs.merge(
        SparkEngine(spark), address, FrameRows(frame, tuple(latest_by)), keys, rules, how, SparkShuffle(spark)
    )


def update_columns(frame: DataFrame, address: TableAddress, on: Sequence[str], how: WriteOptions) -> ColumnUpdateResult:
    """Set columns of a table to the values of a frame, by key. See `lancehouse.jobs.row_changes.update_columns`."""
    spark = frame.sparkSession
    return row_changes.update_columns(SparkEngine(spark), address, FrameRows(frame), on, how, SparkShuffle(spark))


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Rows to merge that are those of a frame."""

    frame: DataFrame
    latest_by: tuple[str, ...] = ()
    label: str = "the DataFrame"

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        return list(self.frame.columns)

    def prepare(self, on: Sequence[str], schema: pa.Schema | None) -> Self:
        """Check that the frame has the key's columns; of rows with the same key, keep the latest."""
        require_key_columns(self, on)
        return replace(self, frame=_keep_latest_rows(self.frame, on, self.latest_by, schema))

    def select(self, columns: Sequence[str]) -> Self:
        """Return the rows with some of their columns."""
        return replace(self, frame=self.frame.select(*map(quote_name, columns)))

    def new_table_schema(self, how: WriteOptions) -> pa.Schema:
        """Return the schema of a new table for the rows."""
        return new_table_schema(self.frame.schema.jsonValue(), how)

    def incoming_schema(self, how: WriteOptions, before: pa.Schema) -> pa.Schema:
        """Return the columns of the rows; arrays that are vectors in the table are vectors."""
        return incoming_schema(self.frame.schema.jsonValue(), how, before)

    def require_fit(self, target: pa.Schema) -> None:
        """Check that the rows fit the columns of a table."""
        from_spark_rows(self.frame.schema.jsonValue(), target)

    def write(self, job: Job, schema: pa.Schema, mode: str, layout: FileLayout) -> list[NewFragment]:
        """Write the rows in the frame's own tasks, without a commit."""
        return write_frame(self.frame, job, schema, mode, layout)

    def explain_duplicate(self, key: str) -> str:
        """Return the error message about two rows with the same key."""
        message = f"two rows of the DataFrame have the same key, {key}"
        if self.latest_by:
            return (
                f"{message}; both are the last by {', '.join(self.latest_by)}: name a further column in latest_by that "
                "tells them apart, or drop one of them"
            )
        return f"{message}; drop one of them, or name in latest_by the column that tells which is the last"


def _keep_latest_rows(
    frame: DataFrame, on: Sequence[str], latest_by: Sequence[str], schema: pa.Schema | None
) -> DataFrame:
    """Keep, of the rows with the same key, the latest one. Ties are all kept, and refused later.

    Rows whose key is null are all kept. Columns that only serve to find the latest row are dropped.
    """
    if not latest_by:
        return frame
    _require_order(frame, on, latest_by)
    keys = [functions.col(quote_name(name)) for name in on]
    order = [functions.col(quote_name(name)).desc_nulls_last() for name in latest_by]
    has_key = reduce(and_, (key.isNotNull() for key in keys))
    rank = functions.rank().over(Window.partitionBy(*keys).orderBy(*order))
    names = {VERSION} if schema is None else {name for name in latest_by if name not in schema.names}
    columns = [quote_name(name) for name in frame.columns if name not in names.intersection(latest_by)]
    return frame.withColumn(RANK, rank).where((functions.col(RANK) == 1) | ~has_key).select(*columns)


def _require_order(frame: DataFrame, on: Sequence[str], latest_by: Sequence[str]) -> None:
    if missing := [name for name in latest_by if name not in frame.columns]:
        raise TableColumnNotFoundError(
            f"the DataFrame has no column {', '.join(missing)} for latest_by; it has {', '.join(frame.columns)}"
        )
    if both := [name for name in latest_by if name in on]:
        raise InvalidInputError(f"latest_by names {both[0]}, which is in the key: it is the same in all rows of a key")
    for name in latest_by:
        if (kind := frame.schema[name].dataType.typeName()) in UNORDERED:
            raise InvalidInputError(f"latest_by names {name}, and values of type {kind} have no order")


@dataclass(frozen=True, slots=True)
class SparkShuffle:
    """Matches keys with Spark's joins and sorts."""

    spark: SparkSession

    def find_duplicate(self, keys: MergeKeys) -> int | None:
        """Return the address of a row to merge whose key another one has too, or None."""
        frame = self._source_keys(keys)
        names = frame.columns[:-2]
        number, least = functions.count(functions.lit(1)), functions.min(ADDRESS)
        counted = frame.dropna(subset=names).groupBy(*names).agg(number.alias("count"), least.alias(ADDRESS))
        with translate_task_errors():
            first = counted.where("count > 1").select(ADDRESS).limit(1).collect()
        return int(first[0][0]) if first else None

    def merge(self, work: MergeTasks) -> tuple[RowChange, list[SelectedRows]]:
        """Match keys with a join, then delete rows of the table and choose those of the source."""
        matches = self._join(work.keys, every=work.rules.delete_by_source).persist()
        try:
            with translate_task_errors():
                return self._delete_matched(matches, work), self._select(matches.where(f"{SOURCE} is not null"), work)
        finally:
            matches.unpersist()

    def select(self, matches: pa.Table, work: MergeTasks) -> list[SelectedRows]:
        """Choose the rows to write by matches."""
        with translate_task_errors():
            return self._select(self.spark.createDataFrame(matches), work)

    def run_on_matches(self, keys: MergeKeys, work: Callable[[Batches], list[str]]) -> tuple[list[str], int]:
        """Match keys with a join, and call `work` with the matches of whole fragments."""
        matches = self._join(keys, every=False).persist()
        try:
            with translate_task_errors():
                return self._run_by_fragment(matches, work), matches.select(SOURCE).distinct().count()
        finally:
            matches.unpersist()

    def _run_by_fragment(self, matches: DataFrame, work: Callable[[Batches], list[str]]) -> list[str]:
        fragment = functions.shiftright(functions.col(TARGET), 32).alias(FRAGMENT)
        rows = self._sort_by(matches.select(fragment, TARGET, SOURCE), FRAGMENT)
        return collect_texts(rows.mapInArrow(lambda batches: to_result_batches(work(batches)), RESULT_STRUCT))

    def _delete_matched(self, matches: DataFrame, work: MergeTasks) -> RowChange:
        """Delete the rows of the table that are replaced or removed."""
        if not work.rules.deletes:
            return RowChange()
        deleted = matches if work.rules.when_matched != "ignore" else matches.where(f"{SOURCE} is null")
        return merge_changes(map(RowChange.from_json, self._run_by_fragment(deleted, work.delete_matched)))

    def _select(self, matches: DataFrame, work: MergeTasks) -> list[SelectedRows]:
        """Choose the rows of the source that go into the table."""
        if not work.rules.writes:
            return []
        piece = functions.shiftright(functions.col(SOURCE), 32).alias(PIECE)
        rows = self._sort_by(matches.select(piece, SOURCE, ROW), PIECE)
        texts = rows.mapInArrow(lambda batches: to_result_batches(work.select_rows(batches)), RESULT_STRUCT)
        return work.keys.source.add_unmatched(map(SelectedRows.from_json, collect_texts(texts)), work.rules)

    def _sort_by(self, rows: DataFrame, column: str) -> DataFrame:
        """Bring rows with the same number together, in one task."""
        return rows.repartition(parallelism(self.spark), column).sortWithinPartitions(column)

    def _join(self, keys: MergeKeys, *, every: bool) -> DataFrame:
        """Join rows of the table with the rows to merge that have the same key; `every`: also those that match none."""
        target = self._read_keys(keys.open().dataset, keys, keys.read_table_keys)
        source = self._source_keys(keys).drop(ROW).withColumnRenamed(ADDRESS, SOURCE)
        names = [name for name in source.columns if name != SOURCE]
        joined = target.withColumnRenamed(ADDRESS, TARGET).join(source, names, "left" if every else "inner")
        return joined.select(*match_schema().names)

    def _source_keys(self, keys: MergeKeys) -> DataFrame:
        return self._read_keys(keys.open().rows, keys, keys.read_source_keys)

    def _read_keys(self, dataset: Any, keys: MergeKeys, read: Callable[[list[FragmentRange]], Batches]) -> DataFrame:
        parts, schema = split_fragments(dataset, parallelism(self.spark), split=True), keys.schema()
        size = dataset.count_rows() * 8 * len(schema)
        return run_in_tasks(self.spark, parts, read, key_struct(schema), size=size)


def key_struct(schema: Iterable[pa.Field[Any]]) -> StructType:
    """Return the Spark schema of the columns by which keys are matched: binaries and whole numbers."""
    struct = StructType()
    for field in schema:
        struct = struct.add(field.name, BinaryType() if field.type == pa.binary() else LongType())
    return struct
