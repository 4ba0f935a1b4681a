"""Work in Arrow, one piece to a task: Spark schedules it, repeats it and spreads it over the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

RESULT = pa.schema([("result", pa.string())])


def run_in_tasks(
    spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Batches], schema: StructType
) -> DataFrame:
    """The batches that `work` makes of all pieces, each in a task of its own.

    Args:
        spark: the session.
        pieces: what to do. They and `work` go to executors, so they hold no open table.
        work: called where the piece goes.
        schema: of the batches, as Spark has it.
    """

    def run(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_numpy():
                yield from work(pieces[number])

    return spark.range(0, len(pieces), 1, max(len(pieces), 1)).mapInArrow(run, schema)


def collect_results(spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Iterable[str]]) -> list[str]:
    """The texts that `work` makes of all pieces, each in a task of its own."""
    if not pieces:
        return []
    return collect_texts(run_in_tasks(spark, pieces, lambda piece: to_result_batches(work(piece)), RESULT_STRUCT))


def to_result_batches(values: Iterable[str]) -> Batches:
    """Texts as a task hands them to Spark."""
    yield pa.record_batch([pa.array(list(values), pa.string())], schema=RESULT)


def collect_texts(frame: DataFrame) -> list[str]:
    """The texts that tasks have made."""
    values: list[Any] = frame.toArrow().column(0).to_pylist()
    return values


RESULT_STRUCT = StructType().add("result", "string")
