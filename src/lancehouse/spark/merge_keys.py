"""Read and match the keys of a table and of the rows to merge into it, in Spark tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import BinaryType, LongType, StructType

from lancehouse.jobs.merge import (
    SOURCE,
    TARGET,
    MergeSource,
    find_duplicate,
    format_key,
    key_schema,
    match_schema,
    read_keys,
)
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.row_changes import ADDRESS, ROW
from lancehouse.lake.scans import FragmentRange, split_fragments
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.jobs import Job
from lancehouse.spark.session import parallelism
from lancehouse.spark.table_reader import PinnedVersion
from lancehouse.spark.tasks import Batches, run_in_tasks

FEW_ROWS = 1 << 20
FEW_BYTES = 64 << 20
"""Limits of the keys that the driver and each task may hold in memory; more are matched by a join of Spark."""


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """The table and the rows to merge, opened in one process."""

    table: TableRef
    dataset: Any
    rows: Any


@dataclass(frozen=True, slots=True)
class MergeKeys:
    """The keys of a version of a table, and of the rows to merge; sent to executors."""

    job: Job
    source: MergeSource
    pinned: PinnedVersion | None
    """None if the table has no version yet."""

    def open(self) -> MergeInputs:
        """Open the table and the rows to merge in this process."""
        table, dataset = (self.job.address.to_ref(), None) if self.pinned is None else self.pinned.open()
        return MergeInputs(table, dataset, self.source.open(table, self.job.write_location(), dataset))

    def read_table_keys(self, parts: Sequence[FragmentRange]) -> Batches:
        """Yield the keys of some fragments of the table."""
        opened = self.open()
        return read_keys(opened.table, opened.dataset, parts, self.source.on)

    def read_source_keys(self, parts: Sequence[FragmentRange]) -> Batches:
        """Yield the keys of some pieces of the rows to merge."""
        opened = self.open()
        return read_keys(opened.table, opened.rows, parts, self.source.on)

    def read_if_few(self) -> pa.Table | None:
        """Return all keys of the rows to merge; None if they are too many to hold in memory."""
        if sum(self.source.rows) > FEW_ROWS:
            return None
        batches, size = list[pa.RecordBatch](), 0
        for batch in self.read_source_keys([FragmentRange(number) for number in range(len(self.source.pieces))]):
            batches.append(batch)
            size += batch.nbytes
            if size > FEW_BYTES:
                return None
        return pa.Table.from_batches(batches, self.schema())

    def schema(self) -> pa.Schema:
        """Return the schema of the keys."""
        return key_schema(self.open().rows.schema, self.source.on)


def require_distinct_keys(spark: SparkSession, keys: MergeKeys, latest_by: Sequence[str] = ()) -> None:
    """Check that no two rows to merge have the same key.

    Args:
        spark: the session.
        keys: keys of the rows.
        latest_by: the columns by which the latest row of each key was chosen before, for the message.

    Raises:
        InvalidInputError: two rows have the same key; the message shows it.
    """
    small = keys.read_if_few()
    duplicate_address = _find_duplicate(spark, keys) if small is None else find_duplicate(small)
    if duplicate_address is not None:
        opened = keys.open()
        key = format_key(opened.table, opened.rows, keys.source.on, duplicate_address)
        message = f"two rows of the DataFrame have the same key, {key}"
        if latest_by:
            raise InvalidInputError(
                f"{message}; both are the last by {', '.join(latest_by)}: name a further column in latest_by that "
                "tells them apart, or drop one of them"
            )
        raise InvalidInputError(
            f"{message}; drop one of them, or name in latest_by the column that tells which is the last"
        )


def _find_duplicate(spark: SparkSession, keys: MergeKeys) -> int | None:
    frame = _source_keys(spark, keys)
    names = frame.columns[:-2]
    number, least = functions.count(functions.lit(1)), functions.min(ADDRESS)
    counted = frame.dropna(subset=names).groupBy(*names).agg(number.alias("count"), least.alias(ADDRESS))
    with translate_task_errors():
        first = counted.where("count > 1").select(ADDRESS).limit(1).collect()
    return int(first[0][0]) if first else None


def join_keys(spark: SparkSession, keys: MergeKeys, *, every: bool) -> DataFrame:
    """Join rows of the table with the rows to merge that have the same key, with Spark.

    Args:
        spark: the session.
        keys: keys of both.
        every: also return rows of the table that match nothing.
    """
    parts = split_fragments(keys.open().dataset, parallelism(spark), split=True)
    target = run_in_tasks(spark, parts, keys.read_table_keys, _to_struct(keys.schema())).withColumnRenamed(
        ADDRESS, TARGET
    )
    source = _source_keys(spark, keys).drop(ROW).withColumnRenamed(ADDRESS, SOURCE)
    names = [name for name in source.columns if name != SOURCE]
    return target.join(source, names, "left" if every else "inner").select(*match_schema().names)


def _source_keys(spark: SparkSession, keys: MergeKeys) -> DataFrame:
    parts = split_fragments(keys.open().rows, parallelism(spark), split=True)
    return run_in_tasks(spark, parts, keys.read_source_keys, _to_struct(keys.schema()))


def _to_struct(schema: pa.Schema) -> StructType:
    struct = StructType()
    for field in schema:
        struct = struct.add(field.name, BinaryType() if field.type == pa.binary() else LongType())
    return struct
