"""Queries in SQL over Lance tables give what Spark gives on Parquet, and read no more than they need."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lancehouse.jobs.address import PinnedVersion
from lancehouse.lake.scans import Scan, split_fragments
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark import LanceCatalog, queries
from lancehouse.spark.session import to_struct
from tests.spark.query_generator import make_query, make_tables

FAST = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""For many small queries: compiling them takes longer than running them."""
CHUNK = 20
QUERIES, ALL_QUERIES = 200, 2000


def read_on_driver(spark: SparkSession, pinned: PinnedVersion, scan: Scan) -> DataFrame:
    """What `read_version` reads, without tasks in Python: that takes most of the time of a small query."""
    table, dataset = pinned.open()
    rows = to_spark_rows(scan.schema(table, dataset))
    parts = [part for group in split_fragments(dataset, 1, split=False) for part in group]
    batches = [rows.convert_batch(batch) for batch in scan.batches(table, dataset, parts)]
    if not any(batch.num_rows for batch in batches):
        return spark.createDataFrame([], to_struct(rows.struct))
    return spark.createDataFrame(pa.Table.from_batches(batches, rows.schema), to_struct(rows.struct))


def canonical(value: Any) -> Any:
    """A value that can be sorted and compared; NaN is equal to itself, 0.0 is not -0.0."""
    if isinstance(value, float):
        return struct.pack(">d", value) if value == value else b"nan"
    if isinstance(value, tuple | list):
        return tuple(map(canonical, value))
    return repr(value)


def answer(run: Callable[[], DataFrame]) -> Any:
    """The names, types and rows of a result, in any order; or that there is none."""
    try:
        frame = run()
        schema = [(column.name, column.dataType) for column in frame.schema.fields]
        return schema, sorted((tuple(map(canonical, row)) for row in frame.collect()), key=repr)
    except (PySparkException, InvalidInputError) as error:
        return f"refused {type(error).__name__}: {str(error)[:200]}"


@pytest.fixture(scope="module")
def generated(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanceCatalog, SparkSession]]:
    folder = tmp_path_factory.mktemp("generated")
    ours, theirs = spark.newSession(), spark.newSession()
    for session in (ours, theirs):
        for key, value in FAST.items():
            session.conf.set(key, value)
    catalog = LanceCatalog(ours, "dir", {"root": str(folder)})
    for name, rows in make_tables().items():
        table = lance.write_dataset(rows, folder / f"{name}.lance", max_rows_per_file=8)
        table.create_scalar_index("k", "BTREE")
        for column in {"x", "ts", "d"} & set(rows.column_names):
            table.create_scalar_index(column, "BTREE")
        pq.write_table(rows, folder / f"{name}.parquet")
        theirs.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "read_version", read_on_driver)
        yield catalog, theirs


def check_generated(catalog: LanceCatalog, theirs: SparkSession, seeds: range) -> tuple[int, int]:
    """Compare queries; how many have an answer, and how many of their scans have a filter."""
    answered = filtered = 0
    for seed in seeds:
        text = make_query(seed)
        expected, found = answer(lambda: theirs.sql(text)), answer(lambda: catalog.sql(text))
        if isinstance(expected, str):
            assert isinstance(found, str), f"{seed}: {text}\n{expected}"
            continue
        plans = [
            (plan.use.parts, plan.columns, plan.filter) for plan in queries.PlannedQuery(catalog, text).planner.scans
        ]
        assert found == expected, f"{seed}: {text}\n{plans}"
        answered += 1
        filtered += sum(filter is not None for _, _, filter in plans)
    return answered, filtered


@pytest.mark.parametrize("first", range(0, QUERIES, CHUNK))
def test_generated_queries(generated: tuple[LanceCatalog, SparkSession], first: int) -> None:
    answered, filtered = check_generated(*generated, range(first, first + CHUNK))
    assert answered >= CHUNK // 2
    assert filtered > 0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(QUERIES, ALL_QUERIES, CHUNK))
def test_more_generated_queries(generated: tuple[LanceCatalog, SparkSession], first: int) -> None:
    check_generated(*generated, range(first, first + CHUNK))
