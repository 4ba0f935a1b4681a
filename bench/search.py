"""Many vector searches at once: `cat.search` of a DataFrame of queries beside single calls and a cross join of Spark.

`python -m bench.search --help`
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions

from bench.report import machine, put, table
from bench.spark_process import cpu_s
from lancehouse.lake.vector_search import SearchEffort
from lancehouse.spark import LanceCatalog
from lancehouse.spark.session import quiet_session

DIMENSION, K, CLUSTERS, SPREAD = 128, 10, 1000, 0.5
FRAGMENTS = 8
EFFORT = SearchEffort(nprobes=20, refine_factor=20)
"""What the default comes to with `K`, for all sides that search by the index."""

PACKAGES = ("lancehouse", "pylance", "pyspark", "pyarrow", "numpy")
T = TypeVar("T")
OURS = "`cat.search`, a DataFrame of all queries"
BY_INDEX = "the same, by the index"
SAME_EFFORT = "pylance, one at a time, the same effort"
HEADINGS = ("way", "queries", "seconds for all", "processor time", "expected", f"recall@{K}")


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A way to search, and what it took."""

    way: str
    queries: int
    """How many were measured."""
    seconds: float
    cpu_s: float
    """Seconds of processors, of this process, the JVM and Python's workers."""
    recall: float
    mark: float | None = None
    """How many times as fast we expect to be."""
    beside: str = ""
    """The way of ours that it is compared with."""


@dataclass(frozen=True, slots=True)
class SearchSize:
    """How much is measured."""

    rows: int
    queries: int
    rounds: int
    partitions: int
    few: int
    """Queries of the ways that are slow."""
    some: int
    """Queries of the others."""
    joined_rows: int
    """Rows of the cross join; its time is scaled to all."""


FULL = SearchSize(1_000_000, 10_000, 2, 1024, few=20, some=1000, joined_rows=50_000)
QUICK = SearchSize(5_000, 100, 1, 4, few=2, some=20, joined_rows=500)


class SearchBench:
    """A table of clustered vectors with an IVF_PQ index, and queries of the same kind."""

    def __init__(self, catalog: LanceCatalog, folder: Path, size: SearchSize) -> None:
        self._catalog, self._size = catalog, size
        random = np.random.default_rng(7)
        centres = random.normal(size=(CLUSTERS, DIMENSION)).astype("f4")

        def vectors(count: int) -> Any:
            noise = random.normal(scale=SPREAD, size=(count, DIMENSION))
            return (centres[random.integers(0, CLUSTERS, count)] + noise).astype("f4")

        self._queries, place = vectors(size.queries), folder / "docs.lance"
        if not place.exists():
            rows = pa.table({"id": np.arange(size.rows), "emb": to_vectors(vectors(size.rows))})
            dataset = lance.write_dataset(rows, place, max_rows_per_file=-(-size.rows // FRAGMENTS))
            dataset.create_index("emb", "IVF_PQ", num_partitions=size.partitions, num_sub_vectors=16)
        self._dataset = lance.dataset(place)
        self._truth: list[set[int]] = []

    def run(self) -> Iterator[SearchRow]:
        """Measure all ways; the first one gives the truth, which is compared with Lance's own."""
        size, few, some = self._size, self._size.few, self._size.some
        self._catalog.search("docs", self._frame(few), columns=["id"]).toArrow()  # starts Python's workers
        rounds = [self._time(size.queries) for _ in range(size.rounds)]
        took, self._truth = min(rounds, key=lambda one: one[0])
        yield SearchRow(OURS, size.queries, *took, 1.0)
        effort = {"nprobes": EFFORT.nprobes, "refine_factor": EFFORT.refine_factor}
        self._time(few, **effort)  # reads the index
        took, found = self._time(size.queries, **effort)
        yield SearchRow(BY_INDEX, size.queries, *took, self._recall(found), beside=OURS)
        usual = {"minimum_nprobes": EFFORT.nprobes, "refine_factor": EFFORT.refine_factor}
        yield self._one_by_one("`cat.search`, one at a time", few, self._search_one, 10)
        yield self._one_by_one(SAME_EFFORT, some, partial(self._ask_lance, **usual), 1.5, BY_INDEX)
        yield self._one_by_one("pylance, one at a time, its own defaults", some, self._ask_lance, None)
        compared = self._one_by_one("pylance, one at a time, without the index", few, self._compare_in_lance, None)
        if compared.recall != 1.0:
            raise AssertionError("a comparison of all vectors in Lance finds other rows")
        yield compared
        yield self._cross_join()

    def _frame(self, count: int) -> DataFrame:
        table = pa.table(
            {"query_id": np.arange(count), "vector": to_vectors(self._queries[:count]).cast(pa.list_(pa.float32()))}
        )
        return self._catalog.spark.createDataFrame(table)

    def _time(self, count: int, **effort: Any) -> tuple[tuple[float, float], list[set[int]]]:
        """Seconds of a search for so many queries at once, those of processors, and the ids that each found."""
        frame = self._frame(count)
        took, found = timed(lambda: self._catalog.search("docs", frame, K, columns=["id"], **effort).toArrow())
        ids: list[set[int]] = [set() for _ in range(count)]
        for query, row in zip(found.column("query_id").to_pylist(), found.column("id").to_pylist(), strict=True):
            ids[query].add(row)
        return took, ids

    def _one_by_one(
        self, way: str, count: int, search: Callable[[Any], list[int]], mark: float | None, beside: str = OURS
    ) -> SearchRow:
        search(self._queries[-1])
        took, found = timed(lambda: [set(search(query)) for query in self._queries[:count]])
        return SearchRow(way, count, *took, self._recall(found), mark, beside)

    def _search_one(self, query: Any) -> list[int]:
        return [row.id for row in self._catalog.search("docs", query, K, columns=["id"]).collect()]

    def _ask_lance(self, query: Any, **how: Any) -> list[int]:
        nearest = {"column": "emb", "q": query, "k": K, **how}
        ids: list[int] = (
            self._dataset.scanner(columns=["id", "_distance"], nearest=nearest).to_table()["id"].to_pylist()
        )
        return ids

    def _compare_in_lance(self, query: Any) -> list[int]:
        return self._ask_lance(query, use_index=False)

    def _cross_join(self) -> SearchRow:
        """Vectors as arrays in a cross join, their distances in SQL, and the nearest by a window."""
        size = self._size
        rows = self._catalog.read("docs", columns=["id", "emb"], filter=f"id < {size.joined_rows}")
        distance = "aggregate(zip_with(emb, vector, (a, b) -> (a - b) * (a - b)), CAST(0 AS FLOAT), (s, x) -> s + x)"
        pairs = rows.crossJoin(functions.broadcast(self._frame(size.few)))
        ranked = pairs.selectExpr("query_id", "id", f"{distance} AS distance").selectExpr(
            "query_id", "id", "row_number() OVER (PARTITION BY query_id ORDER BY distance) AS place"
        )
        took, found = timed(lambda: ranked.where(f"place <= {K}").toArrow().num_rows)
        if found != K * size.few:
            raise AssertionError(f"the cross join found {found} rows")
        seconds, processor_s = (each * size.rows / size.joined_rows for each in took)
        return SearchRow("a cross join of Spark", size.few, seconds, processor_s, 1.0, 5, OURS)

    def _recall(self, found: Sequence[set[int]]) -> float:
        return sum(len(ids & truth) for ids, truth in zip(found, self._truth, strict=False)) / (K * len(found))


def timed(work: Callable[[], T]) -> tuple[tuple[float, float], T]:
    """Seconds of some work, those of processors, and what it returns."""
    began, before = time.perf_counter(), cpu_s(os.getpid())
    found = work()
    return (time.perf_counter() - began, cpu_s(os.getpid()) - before), found


def to_vectors(matrix: Any) -> Any:
    """A matrix as an Arrow array of vectors."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def format_row(row: SearchRow, known: Mapping[str, SearchRow], queries: int) -> list[str]:
    """A line of the table in docs/benchmarks.md."""
    cells, ratios = [row.way, f"{row.queries:,}"], list[float]()
    for name in ("seconds", "cpu_s"):
        one_s = getattr(row, name) / row.queries
        if beside := known.get(row.beside):
            ratios.append(one_s / max(getattr(beside, name) / beside.queries, 1e-9))
        cells.append(f"{one_s * queries:,.0f}" + (f", **{ratios[-1]:,.1f}**" if ratios else ""))
    expected = "" if row.mark is None else f"≥ {row.mark:g} {'✓' if ratios[0] >= row.mark else '✗'}"
    return [*cells, expected, f"{row.recall:.3f}"]


def write(lines: Sequence[Sequence[str]], size: SearchSize, load: float) -> None:
    """Put the table into the document."""
    amount = f"{size.rows:,} vectors of {DIMENSION} float32; load at the start {load:.1f}"
    head = f"{datetime.now(UTC):%Y-%m-%d}. {machine(PACKAGES)}. {amount}."
    beside = (
        f"Seconds for {size.queries:,} queries, and **how many times as long it takes** as ours; *{SAME_EFFORT}* is "
        f"set beside *{BY_INDEX}*, all others beside the first line."
    )
    put("bench-search", [head, "", beside, "", *table(HEADINGS, lines)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--cores", type=int, help="default: all")
    parser.add_argument("--data", type=Path, help="folder for the table, which is kept and used again")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="of all queries at once; the best counts")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else replace(FULL, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, quiet_session(options.cores) as spark:
        root = options.data or Path(folder)
        bench = SearchBench(LanceCatalog(spark, "dir", {"root": str(root)}), root, size)
        load, known, lines = os.getloadavg()[0], dict[str, SearchRow](), list[list[str]]()
        print(f"{size.rows:,} vectors of {DIMENSION} float32, load {load:.1f} at the start\n")
        print("\n".join(table(HEADINGS, [])), flush=True)
        for row in bench.run():
            known[row.way] = row
            lines.append(format_row(row, known, size.queries))
            print(table(lines[-1], [])[0], flush=True)
    if options.write:
        write(lines, size, load)


if __name__ == "__main__":
    main()
