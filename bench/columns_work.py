"""Timed work of `bench.columns`, in a process of its own: a column filled by us, by pylance and by Spark.

Each line of JSON on the input names a side and a table; see `bench.spark_process`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lancehouse
from bench.spark_sql import Question, serve
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs

DIMENSION = 128
VECTOR = pa.list_(pa.float32(), DIMENSION)
PAUSE_S = 0.1
"""How long a call of the slow function takes, whatever the machine does meanwhile."""
COUNTED, KILLED_AT = "BENCH_COUNTED", "BENCH_KILLED_AT"
"""Variables: the file in which the slow function counts rows, and after how many it kills its process."""

_counting = threading.Lock()


@lancehouse.column(version="1", inputs=["id"], returns=VECTOR)
def embed(ids: Any) -> Any:
    """A cheap vector."""
    return np.outer(ids.to_numpy().astype(np.float32), np.arange(DIMENSION, dtype=np.float32))


@lancehouse.column(version="1", inputs=["id"], returns=VECTOR)
def embed_slowly(ids: Any) -> Any:
    """The same as a model would do it, with rows counted, until the process is killed."""
    time.sleep(PAUSE_S)
    return _count_and_embed(ids)


@lancehouse.column(version="1", inputs=["id"], returns=VECTOR)
def embed_counted(ids: Any) -> Any:
    """The cheap one, with rows counted."""
    return _count_and_embed(ids)


def _count_and_embed(ids: Any) -> Any:
    with _counting:
        counted = int(os.environ[COUNTED])
        rows = count_rows(counted) + len(ids)
        os.pwrite(counted, str(rows).encode(), 0)
        if rows >= int(os.environ[KILLED_AT]):
            os.kill(os.getpid(), signal.SIGKILL)
    return embed(ids)


def count_rows(counted: int) -> int:
    """Rows for which the function was called so far, by all processes that count into the file."""
    return int(os.pread(counted, 20, 0) or b"0")


def _to_vectors(ids: Any) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(embed(ids).reshape(-1), DIMENSION)


class PlainSides:
    """Sides that need no Spark."""

    def ours(self, root: str, threads: int) -> None:
        """Define and fill."""
        _jobs(root, threads).add_columns("t", {"e": embed})

    def ours_backfill(self, root: str, threads: int) -> None:
        """Fill what is missing."""
        _jobs(root, threads).backfill("t", {"e": embed})

    def pylance(self, root: str) -> None:
        """Lance's own way to add a column by a function."""

        @lance.batch_udf(output_schema=pa.schema([("e", VECTOR)]))  # type: ignore[untyped-decorator]
        def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch([_to_vectors(batch.column("id"))], ["e"])

        lance.dataset(Path(root) / "t.lance").add_columns(compute, read_columns=["id"])

    def merge_insert(self, root: str) -> None:
        """The column merged by a key: rows are written again."""
        dataset = lance.dataset(Path(root) / "t.lance")
        dataset.add_columns(pa.schema([("e", VECTOR)]))
        rows = dataset.to_table()
        new = rows.drop_columns(["e"]).append_column("e", _to_vectors(rows["id"].combine_chunks()))
        dataset.merge_insert("id").when_matched_update_all().execute(new)


class SparkSides:
    """Sides in a Spark session that is running."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def _catalog(self, root: str) -> Any:
        from lancehouse.spark import LanceCatalog

        return LanceCatalog(self._spark, "dir", {"root": root})

    def ours(self, root: str) -> None:
        """Define and fill, in tasks."""
        self._catalog(root).add_columns("t", {"e": embed})

    def ours_backfill(self, root: str) -> None:
        """Fill what is missing, in tasks."""
        self._catalog(root).backfill("t", {"e": embed})

    def overwrite(self, root: str) -> None:
        """Read all rows, compute, and write the table again."""

        def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                vectors = _to_vectors(batch.column("id")).cast(pa.list_(pa.float32()))
                yield pa.record_batch([*batch.columns, vectors], [*batch.schema.names, "e"])

        catalog = self._catalog(root)
        rows = catalog.read("t").mapInArrow(compute, "id long, payload binary, e array<float>")
        catalog.overwrite(rows, "t", vector_columns={"e": DIMENSION})


def _jobs(root: str, threads: int) -> TableJobs:
    return TableJobs(Connection("dir", {"root": root}), LocalEngine(threads=threads))


def _answer_by(sides: object) -> Callable[[Question], Any]:
    return lambda question: getattr(sides, question["side"])(**question["of"])


def main() -> None:
    """Serve the sides without Spark; `spark` and a number of cores: those of Spark; `fill`: fill once, and end."""
    match sys.argv[1:]:
        case ["fill", root, kind]:
            slow = {"slow": embed_slowly, "cheap": embed_counted}[kind]
            _jobs(root, 2).add_columns("t", {"e": slow})
        case ["spark", cores, scratch]:
            from lancehouse.spark import local

            spark = local(int(cores), {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"})
            serve(_answer_by(SparkSides(spark)))
            spark.stop()
        case _:
            serve(_answer_by(PlainSides()))


if __name__ == "__main__":
    # Tasks of Spark find functions by the name of their module.
    from bench.columns_work import main as run

    run()
