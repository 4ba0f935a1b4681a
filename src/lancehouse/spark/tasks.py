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


def spread(spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Batches], schema: StructType) -> DataFrame:
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


def results(spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Iterable[str]]) -> list[str]:
    """The texts that `work` makes of all pieces, each in a task of its own."""
    if not pieces:
        return []
    return collect(spread(spark, pieces, lambda piece: texts(work(piece)), RESULT_STRUCT))


def texts(values: Iterable[str]) -> Batches:
    """Texts as a task hands them to Spark."""
    yield pa.record_batch([pa.array(list(values), pa.string())], schema=RESULT)


def collect(frame: DataFrame) -> list[str]:
    """The texts that tasks have made."""
    found: list[Any] = frame.toArrow().column(0).to_pylist()
    return found


RESULT_STRUCT = StructType().add("result", "string")
