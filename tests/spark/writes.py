"""Every kind of write, to a table of its own that is called like it; drivers import this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lancehouse.identifiers import format_levels
from lancehouse.spark import LanceCatalog

Rows = dict[int, int]

BEFORE: Rows = {number: number for number in range(400)}
"""What all tables hold before, in four fragments: the column `v` by the column `id`."""
ADDED: Rows = {number: number for number in range(400, 600)}
MERGED: Rows = {number: -number for number in range(250, 450)}

AFTER: Mapping[str, Rows] = MappingProxyType(
    {
        "create": BEFORE,
        "append": BEFORE | ADDED,
        "overwrite": ADDED,
        "merge": BEFORE | MERGED,
        "match": BEFORE | MERGED,
        "update": BEFORE | {number: number + 1000 for number in BEFORE if number % 2 == 0},
        "delete": {number: number for number in BEFORE if number % 2},
        "add_columns": BEFORE,
        "ingest": BEFORE | ADDED,
        "compact": BEFORE,
        "create_index": BEFORE,
        "sink": BEFORE | ADDED,
        "stream": BEFORE | ADDED,
    }
)
"""What they hold after the write. `match` is the merge too, which stops while it matches keys."""

NAMED = tuple(kind for kind in AFTER if kind not in ("add_columns", "compact", "create_index", "stream"))
"""Writes to which a name can be given, by which they are known when they come again."""


def rows(spark: SparkSession, first: int, last: int, value: str = "id") -> DataFrame:
    """Rows of two tasks."""
    return spark.range(first, last, 1, 2).selectExpr("id", f"{value} AS v")


def write(cat: LanceCatalog, properties: Mapping[str, str], table: list[str], folder: str, run: str) -> None:
    """Do the write that the table is called like."""
    spark, kind = cat.spark, table[-1]
    named = {"impl": "iceberg", "table": format_levels(table), **properties}
    kinds: dict[str, Callable[[], Any]] = {
        "create": lambda: cat.create(rows(spark, 0, 400), table, run=run),
        "append": lambda: cat.append(rows(spark, 400, 600), table, run=run),
        "overwrite": lambda: cat.overwrite(rows(spark, 400, 600), table, run=run),
        "merge": lambda: cat.merge(rows(spark, 250, 450, "-id"), table, on="id", run=run),
        "match": lambda: cat.merge(rows(spark, 250, 450, "-id"), table, on="id", run=run),
        "update": lambda: cat.update(table, {"v": "v + 1000"}, "id % 2 = 0", run=run),
        "delete": lambda: cat.delete(table, "id % 2 = 0", run=run),
        "add_columns": lambda: cat.add_columns(table, {"w": "v * 2"}),
        "ingest": lambda: cat.ingest(f"{folder}/files", table, run=run),
        "compact": lambda: cat.compact(table, target_rows_per_fragment=200),
        "create_index": lambda: cat.create_index(table, "id", "BTREE"),
        "sink": lambda: rows(spark, 400, 600).write.format("lance").options(**named, run=run).mode("append").save(),
        "stream": lambda: _stream(spark, named, folder, ".".join(table)),
    }
    kinds[kind]()


def _stream(spark: SparkSession, named: Mapping[str, str], folder: str, name: str) -> None:
    source = spark.readStream.schema("id long, v long").parquet(f"{folder}/files").repartition(2)
    place = f"{folder}/checkpoints/{name}"
    sink = source.writeStream.format("lance").options(**named, checkpointLocation=place)
    sink.trigger(availableNow=True).start().awaitTermination()


def write_all(
    spark: SparkSession, properties: dict[str, str], levels: list[str], kinds: list[str], folder: str, run: str
) -> dict[str, str]:
    """Do writes of several kinds at the same time; what went wrong with each, or nothing."""
    cat = LanceCatalog(spark, "iceberg", properties)
    Path(folder, "checkpoints").mkdir(exist_ok=True)
    # Spark looks for `format("lance")` in the session of the thread.
    session = type(spark)._get_j_spark_session_class(spark._jvm)
    with ThreadPoolExecutor(len(kinds), initializer=session.setActiveSession, initargs=(spark._jsparkSession,)) as pool:
        done = {kind: pool.submit(partial(write, cat, properties, [*levels, kind], folder, run)) for kind in kinds}
    return {
        kind: f"{type(error).__name__}: {error}" if (error := job.exception()) else "" for kind, job in done.items()
    }
