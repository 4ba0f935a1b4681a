"""Keys of a table and of rows to merge into it, read in tasks and matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import BinaryType, LongType, StructType

from lancehouse.lake.changes import ADDRESS, ROW
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.merging import SOURCE, TARGET, Source, duplicate, key_at, key_schema, keyed, match_schema
from lancehouse.lake.scans import Part, groups
from lancehouse.spark.errors import translated
from lancehouse.spark.jobs import Job
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import Batches, spread

FEW_ROWS = 1 << 20
FEW_BYTES = 64 << 20
"""Keys that the driver and each task may hold; more are matched by a join of Spark's."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The table and the rows to merge, in one process."""

    table: TableRef
    dataset: Any
    rows: Any


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a version of a table, and those of the rows to merge; it goes to executors."""

    job: Job
    source: Source
    pinned: Pinned | None
    """None: the table has no version yet."""

    def open(self) -> Opened:
        """Open both."""
        table, dataset = (self.job.address.ref(), None) if self.pinned is None else self.pinned.open()
        return Opened(table, dataset, self.source.open(table, self.job.place(), dataset))

    def of_table(self, parts: Sequence[Part]) -> Batches:
        """Keys of the table."""
        opened = self.open()
        return keyed(opened.table, opened.dataset, parts, self.source.on)

    def of_source(self, parts: Sequence[Part]) -> Batches:
        """Keys of rows to merge."""
        opened = self.open()
        return keyed(opened.table, opened.rows, parts, self.source.on)

    def few(self) -> pa.Table | None:
        """All keys of the rows to merge; None if they are too many to hold."""
        if sum(self.source.rows) > FEW_ROWS:
            return None
        batches, size = list[pa.RecordBatch](), 0
        for batch in self.of_source([Part(number) for number in range(len(self.source.pieces))]):
            batches.append(batch)
            size += batch.nbytes
            if size > FEW_BYTES:
                return None
        return pa.Table.from_batches(batches, self.schema())

    def schema(self) -> pa.Schema:
        """Of the keys."""
        return key_schema(self.open().rows.schema, self.source.on)


def refuse_duplicates(spark: SparkSession, keys: Keys, latest_by: Sequence[str] = ()) -> None:
    """See that no two rows to merge have the same key.

    Args:
        spark: the session.
        keys: of the rows.
        latest_by: the columns by which the last row of each key was chosen before.

    Raises:
        InvalidInputError: two have; names it.
    """
    few = keys.few()
    twice = _duplicate(spark, keys) if few is None else duplicate(few)
    if twice is not None:
        opened = keys.open()
        key = key_at(opened.table, opened.rows, keys.source.on, twice)
        message = f"two rows of the DataFrame have the same key, {key}"
        if latest_by:
            raise InvalidInputError(
                f"{message}; both are the last by {', '.join(latest_by)}: name a further column in latest_by that "
                "tells them apart, or drop one of them"
            )
        raise InvalidInputError(
            f"{message}; drop one of them, or name in latest_by the column that tells which is the last"
        )


def _duplicate(spark: SparkSession, keys: Keys) -> int | None:
    frame = _source(spark, keys)
    names = frame.columns[:-2]
    number, least = functions.count(functions.lit(1)), functions.min(ADDRESS)
    counted = frame.dropna(subset=names).groupBy(*names).agg(number.alias("count"), least.alias(ADDRESS))
    with translated():
        found = counted.where("count > 1").select(ADDRESS).limit(1).collect()
    return int(found[0][0]) if found else None


def joined(spark: SparkSession, keys: Keys, *, every: bool) -> DataFrame:
    """Rows of the table with the rows to merge that match, by a join of Spark's.

    Args:
        spark: the session.
        keys: of both.
        every: whether to give rows of the table that none matches too.
    """
    parts = groups(keys.open().dataset, parallelism(spark), split=True)
    target = spread(spark, parts, keys.of_table, _struct(keys.schema())).withColumnRenamed(ADDRESS, TARGET)
    source = _source(spark, keys).drop(ROW).withColumnRenamed(ADDRESS, SOURCE)
    names = [name for name in source.columns if name != SOURCE]
    return target.join(source, names, "left" if every else "inner").select(*match_schema().names)


def _source(spark: SparkSession, keys: Keys) -> DataFrame:
    parts = groups(keys.open().rows, parallelism(spark), split=True)
    return spread(spark, parts, keys.of_source, _struct(keys.schema()))


def _struct(schema: pa.Schema) -> StructType:
    made = StructType()
    for field in schema:
        made = made.add(field.name, BinaryType() if field.type == pa.binary() else LongType())
    return made
