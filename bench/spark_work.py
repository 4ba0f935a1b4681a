"""Timed work in our own environment: by us on Spark, and by Lance without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from lance_namespace import connect
from pyspark.sql import SparkSession

from bench.spark_sql import Question, rows, serve
from lancehouse.spark import LanceCatalog, local

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class Ours:
    """Our way, on Spark; and what a bare `mapInArrow` does."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._catalog = cache(lambda root: LanceCatalog(spark, "dir", {"root": root}))
        self._viewed, self._files = cache(self._view_tables), cache(self._view_files)

    def aggregate(self, root: str, table: str, filter: str | None = None, **measures: Any) -> list[Any]:
        """Inside the tasks."""
        return plain(self._catalog(root).aggregate(table, filter=filter, **measures).first())

    def count(self, root: str, table: str, filter: str | None = None) -> list[Any]:
        """Rows."""
        return [self._catalog(root).count(table, filter)]

    def read(
        self, root: str, table: str, columns: Sequence[str], then: Sequence[str], filter: str | None = None
    ) -> list[Any]:
        """Rows as a DataFrame, of which Spark computes something."""
        return plain(self._catalog(root).read(table, columns, filter).selectExpr(*then).first())

    def sql(self, root: str, text: str) -> list[Any]:
        """Tables by name."""
        return [plain(row) for row in self._catalog(root).sql(text).collect()]

    def sql_on_views(self, root: str, text: str) -> list[Any]:
        """Views of the tables, in a session of their own."""
        return [plain(row) for row in self._viewed(root).sql(text).collect()]

    def sql_on_parquet(self, folder: str, text: str) -> list[Any]:
        """Files, one for each table, in a session of their own."""
        return [plain(row) for row in self._files(folder).sql(text).collect()]

    def _view_tables(self, root: str) -> SparkSession:
        session = self._spark.newSession()
        LanceCatalog(session, "dir", {"root": root}).register_views("")
        return session

    def _view_files(self, folder: str) -> SparkSession:
        session = self._spark.newSession()
        for file in Path(folder).glob("*.parquet"):
            session.read.parquet(str(file)).createOrReplaceTempView(file.stem)
        return session

    def ingest(self, root: str, table: str, source: str | list[str]) -> None:
        """Files, in Arrow alone."""
        self._catalog(root).ingest(source, table)

    def create(self, root: str, table: str, source: str, vectors: Mapping[str, int]) -> None:
        """Rows of a DataFrame."""
        self._catalog(root).create(self._spark.read.parquet(source), table, vector_columns=vectors)

    def merge(self, root: str, table: str, source: str, on: Sequence[str]) -> None:
        """An upsert."""
        self._catalog(root).merge(self._spark.read.parquet(source), table, on)

    def add_columns(self, root: str, table: str, columns: Mapping[str, str]) -> None:
        """Columns by SQL."""
        self._catalog(root).add_columns(table, columns)

    def compact(self, root: str, table: str) -> None:
        """As it comes."""
        self._catalog(root).compact(table)

    def create_index(self, root: str, table: str, column: str, kind: str, params: Mapping[str, Any]) -> None:
        """Of vectors."""
        self._catalog(root).create_index(table, column, kind, **params)

    def map_in_arrow(
        self, path: str, schema: str, columns: Sequence[str], then: Sequence[str], filter: str | None = None
    ) -> list[Any]:
        """What `read` does, in as few lines as it takes: a task for each fragment."""
        fragments = [fragment.fragment_id for fragment in lance.dataset(path).get_fragments()]

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            dataset = lance.dataset(path)
            for batch in batches:
                for number in batch.column(0).to_numpy():
                    of = [dataset.get_fragment(fragments[number])]
                    yield from map(vectors_to_lists, dataset.scanner(list(columns), filter, fragments=of).to_batches())

        frame = self._spark.range(0, len(fragments), 1, len(fragments)).mapInArrow(run, schema)
        return plain(frame.selectExpr(*then).first())

    def heap_mb(self) -> float:
        """The most of the JVM's heap that was in use since this was asked last; what nobody holds any more is in it."""
        java = self._spark._jvm.java
        pools = [
            pool
            for pool in java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
            if pool.getType().toString() == "Heap memory"
        ]
        most = sum(pool.getPeakUsage().getUsed() for pool in pools)
        java.lang.System.gc()
        for pool in pools:
            pool.resetPeakUsage()
        return float(most) / 2**20


def vectors_to_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark has no vectors."""
    columns = [
        column.cast(pa.list_(column.type.value_type)) if isinstance(column.type, pa.FixedSizeListType) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class Plain:
    """Lance in one process, as its own documentation has it: tables are read by name, as by us, and changed by path."""

    def __init__(self) -> None:
        self._client = cache(lambda root: connect("dir", {"root": root}))

    def _open(self, root: str, table: str) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self._client(root), table_id=[table])

    def aggregate(
        self,
        root: str,
        table: str,
        filter: str | None = None,
        sum: Sequence[str] = (),
        max: Sequence[str] = (),
        count: Sequence[str] = (),
    ) -> list[Any]:
        """Batch by batch."""
        wanted = [*((name, "sum", "sum") for name in sum), *((name, "max", "max") for name in max)]
        wanted += [(name, "count", "sum") for name in count]
        parts: list[list[Any]] = [[] for _ in wanted]
        for batch in self._open(root, table).to_batches(list(dict.fromkeys([*sum, *max, *count])), filter):
            for part, (name, function, _) in zip(parts, wanted, strict=True):
                part.append(getattr(pc, function)(batch.column(name)).as_py())
        return plain(
            getattr(pc, together)(pa.array(part)).as_py() for part, (_, _, together) in zip(parts, wanted, strict=True)
        )

    def count(self, root: str, table: str, filter: str | None = None) -> list[Any]:
        """Rows."""
        return [self._open(root, table).count_rows(filter)]

    def first_of_vectors(self, root: str, table: str, column: str) -> list[Any]:
        """The sum of the first numbers of vectors."""
        total = 0.0
        for batch in self._open(root, table).to_batches([column]):
            vectors = batch.column(column)
            total += float(vectors.values.to_numpy()[:: vectors.type.list_size].sum(dtype="float64"))
        return [total]

    def write(self, path: str, source: str) -> None:
        """A folder of Parquet files."""
        lance.write_dataset(ds.dataset(source), path)

    def merge(self, path: str, source: str, on: list[str]) -> None:
        """An upsert."""
        merge = lance.dataset(path).merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(ds.dataset(source).to_table())

    def add_columns(self, path: str, columns: dict[str, str]) -> None:
        """Columns by SQL."""
        lance.dataset(path).add_columns(columns)

    def compact(self, path: str) -> None:
        """As it comes."""
        lance.dataset(path).optimize.compact_files()

    def create_index(self, path: str, column: str, kind: str, params: Mapping[str, Any]) -> None:
        """Of vectors."""
        lance.dataset(path).create_index(column, kind, **params)


def plain(values: Any) -> list[Any]:
    """As JSON has it, whoever found it out: times are microseconds."""
    return [
        (value.astimezone(UTC) - EPOCH) // MICROSECOND if isinstance(value, datetime) else value for value in values
    ]


def answering(work: object, spark: SparkSession | None = None) -> Callable[[Question], Any]:
    """A question is SQL, or the name of what to do and its arguments."""

    def answer(question: Question) -> Any:
        if spark is not None and "sql" in question:
            return rows(spark, question["sql"])
        return getattr(work, question["call"])(**question["of"])

    return answer


def main() -> None:
    """Settings of Spark come as JSON; without them it is pylance."""
    if len(sys.argv) == 1:
        serve(answering(Plain()))
        return
    settings = json.loads(sys.argv[1])
    cores = settings.pop("cores")
    spark = local(cores, settings)
    serve(answering(Ours(spark), spark))
    spark.stop()


if __name__ == "__main__":
    main()
