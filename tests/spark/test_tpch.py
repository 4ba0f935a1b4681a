"""TPC-H: its tables ingested and merged, and its queries, with the answers that Spark gives on Parquet."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.spark import LanceCatalog
from tests.spark.cluster import ROOT
from tests.spark.tpch import QUERIES, TABLES, generate

KEY = ["l_orderkey", "l_linenumber"]
CHANGED = "l_orderkey % 100 = 32"
"""One order in a hundred: of each 32 numbers, orders have the first eight."""

YEAR = "l_shipdate >= date '1994-01-01' AND l_shipdate < date '1995-01-01'"


@dataclass(frozen=True)
class Tpch:
    """The tables twice, after the merge: in Lance, and in Parquet as views of another session."""

    catalog: LanceCatalog
    parquet: SparkSession

    def both(self, number: int) -> tuple[list[Any], list[Any]]:
        """What a query answers on each."""
        return self.catalog.spark.sql(QUERIES[number]).collect(), self.parquet.sql(QUERIES[number]).collect()


def changed_rows(lineitem: DataFrame) -> DataFrame:
    """Rows to merge: some that are there, changed, and as many that are not."""
    some = lineitem.where(CHANGED).withColumn("l_quantity", (lineitem.l_quantity + 1).cast("decimal(15,2)"))
    new = some.withColumn("l_linenumber", some.l_linenumber + 100).withColumn("l_returnflag", some.l_linestatus)
    return some.union(new)


@pytest.fixture(scope="module")
def tpch(spark: Any, soak: bool, tmp_path_factory: pytest.TempPathFactory) -> Tpch:
    folder = tmp_path_factory.mktemp("tpch")
    files = generate(folder / "files", 1 if soak else 0.1)
    ours, theirs = spark.newSession(), spark.newSession()
    catalog = LanceCatalog(ours, "dir", {"root": str(folder / "lance")})
    for table in TABLES:
        assert catalog.ingest(files / f"{table}.parquet", table) == 1
        theirs.read.parquet(str(files / f"{table}.parquet")).createOrReplaceTempView(table)
    lineitem = theirs.table("lineitem")
    source = changed_rows(lineitem)
    merged = catalog.merge(changed_rows(ours.read.parquet(str(files / "lineitem.parquet"))), "lineitem", on=KEY)
    assert merged.updated == merged.inserted > 0
    rest = lineitem.join(source, KEY, "left_anti").select(*lineitem.columns)
    rest.union(source).write.parquet(str(folder / "merged"))
    theirs.read.parquet(str(folder / "merged")).createOrReplaceTempView("lineitem")
    assert sorted(catalog.register_views("")) == sorted(TABLES)
    for table in TABLES:  # a query does not tell which columns it needs, so each would read them all again
        ours.catalog.cacheTable(table)
    return Tpch(catalog, theirs)


@pytest.mark.parametrize("number", QUERIES)
def test_a_query_answers_as_on_parquet(tpch: Tpch, number: int) -> None:
    lance, parquet = tpch.both(number)
    assert lance == parquet
    assert len(parquet) > 0


def test_aggregates_inside_the_tasks(tpch: Tpch) -> None:
    """Queries 1 and 6, over columns that are computed once and kept."""
    catalog = tpch.catalog
    catalog.add_columns(
        "lineitem",
        {
            "disc_price": "l_extendedprice * (1 - l_discount)",
            "charge": "l_extendedprice * (1 - l_discount) * (1 + l_tax)",
            "saved": "l_extendedprice * l_discount",
        },
    )
    first = catalog.aggregate(
        "lineitem",
        ["l_returnflag", "l_linestatus"],
        filter="l_shipdate <= date '1998-09-02'",
        sum=["l_quantity", "l_extendedprice", "disc_price", "charge"],
        mean=["l_quantity", "l_extendedprice", "l_discount"],
        count="*",
    )
    found = [tuple(row) for row in first.orderBy("l_returnflag", "l_linestatus").collect()]
    expected = [tuple(row) for row in tpch.parquet.sql(QUERIES[1]).collect()]
    sums, means, counts = slice(0, 6), slice(6, 9), slice(9, 10)
    assert [(row[sums], row[counts]) for row in found] == [(row[sums], row[counts]) for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [float(mean) for mean in ours[means]] == pytest.approx([float(mean) for mean in theirs[means]], abs=1e-6)
    with pytest.raises(InvalidInputError, match=r"write decimal\(15,2\) '0\.05'"):
        catalog.aggregate("lineitem", filter="l_discount >= 0.05", sum="saved")
    discount = "l_discount BETWEEN decimal(15,2) '0.05' AND decimal(15,2) '0.07'"
    condition = f"{YEAR} AND {discount} AND l_quantity < 24"
    [sixth] = catalog.aggregate("lineitem", filter=condition, sum="saved").collect()
    assert sixth[0] == tpch.parquet.sql(QUERIES[6]).first()[0]


def test_the_example_runs_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.tpch", "--scale", "0.01"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the answers are the same" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == []
