"""SQL on Lance tables: `cat.sql`, views, Spark on Parquet and lance-spark, side by side in one run.

`python -m bench.sql --help`
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table

from bench.spark import sides
from bench.spark_cases import LANCE_SPARK, OURS, PARQUET, name_catalog
from bench.spark_process import Worker, WorkRefusedError
from tests.spark.tpch import QUERIES, TABLES, generate

VIEWS, READ = "views", "cat.read"
SIDES = (OURS, READ, VIEWS, PARQUET, LANCE_SPARK)
COLUMNS = 50
ONE_COLUMN = "one of 50 columns"
QUICK_QUERIES = (3, 6)
MOST_SLOWER = 1.2
"""How many times as long as `cat.read(columns=…)` SQL may take that needs one column."""


@dataclass
class SqlRow:
    """One query: the seconds of each side, and why a side refused it."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def median(self, side: str) -> float | None:
        """Seconds of a side; None if it has no figure."""
        return median(self.seconds[side]) if self.seconds.get(side) and side not in self.refused else None


@dataclass(frozen=True)
class SqlBench:
    """The same tables in Lance and in Parquet, and the processes that are asked about them."""

    folder: Path
    workers: Mapping[str, Worker]

    def make_tables(self, scale: float, rows: int) -> None:
        """Make the tables of TPC-H, and one of many columns."""
        files = generate(self.folder / "files", scale)
        for table in TABLES:
            lance.write_dataset(ds.dataset(files / f"{table}.parquet"), self.folder / "lance" / f"{table}.lance")
        random = np.random.default_rng(1)
        wide = pa.table({f"c{number}": random.random(rows) for number in range(COLUMNS)})
        lance.write_dataset(wide, self.folder / "lance" / "wide.lance", max_rows_per_file=-(-rows // 4))
        if LANCE_SPARK in self.workers:
            name, settings = name_catalog(self.folder / "lance")
            for question in (*settings, {"sql": f"USE {name}"}):
                self.workers[LANCE_SPARK].ask(**question)

    def measure_one_column(self, row: SqlRow) -> None:
        """Measure SQL that needs one column of many, beside a read of that column."""
        self._compare(
            row,
            "SELECT sum(c7 + 1) FROM wide",
            {READ: {"call": "read", "of": {"table": "wide", "columns": ["c7"], "then": ["sum(c7 + 1)"]}}},
        )

    def measure_query(self, row: SqlRow, text: str) -> None:
        """Measure a query of TPC-H."""
        files = {"folder": str(self.folder / "files"), "text": text}
        self._compare(row, text, {PARQUET: {"call": "sql_on_parquet", "of": files}})

    def _compare(self, row: SqlRow, text: str, others: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask all sides; each has to find as many rows."""
        questions: dict[str, Any] = {
            OURS: {"call": "sql", "of": {"text": text}},
            VIEWS: {"call": "sql_on_views", "of": {"text": text}},
            LANCE_SPARK: {"sql": text},
            **others,
        }
        counts = {}
        for side, question in questions.items():
            worker = self.workers.get(LANCE_SPARK if side == LANCE_SPARK else OURS)
            if worker is None or side in row.refused:
                continue
            if "of" in question and "folder" not in question["of"]:
                question = {**question, "of": {"root": str(self.folder / "lance"), **question["of"]}}
            try:
                answer = worker.ask(**question)
            except WorkRefusedError as error:
                if side != LANCE_SPARK:
                    raise
                row.refused[side] = str(error).splitlines()[0]
                continue
            row.seconds.setdefault(side, []).append(answer.seconds)
            counts[side] = len(answer.found)
        assert len(set(counts.values())) == 1, (text, counts)


def measure(bench: SqlBench, rounds: int, queries: Sequence[int]) -> list[SqlRow]:
    """Measure some queries of TPC-H, round by round."""
    rows = [SqlRow(ONE_COLUMN), *(SqlRow(f"TPC-H {number}") for number in queries)]
    for _ in range(rounds):
        bench.measure_one_column(rows[0])
        for row, number in zip(rows[1:], queries, strict=True):
            bench.measure_query(row, QUERIES[number])
    return rows


def sum_queries(rows: Sequence[SqlRow], side: str, beside: str = OURS) -> tuple[float, float]:
    """Return the seconds of a side and of another for all queries that both answered."""
    both = [(row.median(side), row.median(beside)) for row in rows]
    known = [(one, other) for one, other in both if one is not None and other is not None]
    return sum(one for one, _ in known), sum(other for _, other in known)


def show(console: Console, rows: Sequence[SqlRow], *, has_marks: bool) -> None:
    """Print the seconds, and which marks are met."""
    table = Table("query", *SIDES)
    for row in rows:
        table.add_row(row.name, *(_cell(row, side) for side in SIDES))
    one, queries = rows[0], rows[1:]
    totals = {side: sum_queries(queries, side) for side in (VIEWS, PARQUET, LANCE_SPARK)}
    table.add_section()
    ours = sum(row.median(OURS) or 0.0 for row in queries)
    table.add_row(
        "TPC-H, all", f"{ours:.1f}", "", *(f"{theirs:.1f}" if theirs else "–" for theirs, _ in totals.values())
    )
    console.print(table)
    lines = [
        f"{side}: {theirs / of_ours:.2f} × the time of ours, for the queries that it answers"
        for side, (theirs, of_ours) in totals.items()
        if theirs
    ]
    slower = (one.median(OURS) or 0.0) / (one.median(READ) or 1.0)
    lines.append(
        _mark(f"{ONE_COLUMN}: {slower:.2f} × cat.read, at most {MOST_SLOWER}", slower <= MOST_SLOWER, has_marks)
    )
    theirs, of_ours = totals[LANCE_SPARK]
    if theirs:
        lines.append(_mark("TPC-H: at least as fast as lance-spark", of_ours <= theirs, has_marks))
    for line in lines:
        console.print(line, highlight=False)


def _cell(row: SqlRow, side: str) -> str:
    seconds = row.median(side)
    if side in row.refused:
        return f"refused: {row.refused[side][:40]}"
    return "" if seconds is None else f"{seconds:.2f}"


def _mark(text: str, is_met: bool, counts: bool) -> str:
    return text if not counts else f"{'Met' if is_met else 'Missed'}: {text}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.sql", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="scale of TPC-H")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table with 50 columns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--no-lance-spark", action="store_true", help="leave it out: it has its own environment")
    options = parser.parse_args(arguments)
    scale, count, rounds = (0.001, 1000, 1) if options.quick else (options.scale, options.rows, options.rounds)
    queries = QUICK_QUERIES if options.quick else [*QUERIES]
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        place = Path(folder)
        with sides(place / "processes", cores, with_lance_spark=not options.no_lance_spark) as workers:
            bench = SqlBench(place, workers)
            bench.make_tables(scale, count)
            if not options.quick:
                measure(bench, 1, queries)  # to warm up
            rows = measure(bench, rounds, queries)
    show(Console(), rows, has_marks=not options.quick)


if __name__ == "__main__":
    main()
