"""Run Python functions on Arrow data in Spark tasks, one piece of work to a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

RESULT = pa.schema([("result", pa.string())])
"""Arrow schema of the texts that tasks return."""


def run_in_tasks(
    spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Batches], schema: StructType
) -> DataFrame:
    """Return a DataFrame of the batches that `work` yields for all pieces, each in a task of its own.

    Args:
        spark: the session.
        pieces: the pieces of work. They and `work` are sent to executors, so they must not hold an open table.
        work: called in the task with its piece.
        schema: Spark schema of the batches.
    """

    def run(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_numpy():
                yield from work(pieces[number])

    return spark.range(0, len(pieces), 1, max(len(pieces), 1)).mapInArrow(run, schema)


def collect_results(spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Iterable[str]]) -> list[str]:
    """Return the texts that `work` makes of all pieces, each in a task of its own."""
    if not pieces:
        return []
    return collect_texts(run_in_tasks(spark, pieces, lambda piece: to_result_batches(work(piece)), RESULT_STRUCT))


def to_result_batches(values: Iterable[str]) -> Batches:
    """Yield texts as a record batch that a task returns to Spark."""
    yield pa.record_batch([pa.array(list(values), pa.string())], schema=RESULT)


def collect_texts(frame: DataFrame) -> list[str]:
    """Return the texts that tasks have made."""
    values: list[Any] = frame.toArrow().column(0).to_pylist()
    return values


RESULT_STRUCT = StructType().add("result", "string")
