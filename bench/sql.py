"""SQL on Lance tables: `cat.sql`, views, Spark on Parquet and lance-spark, side by side in one run.

`python -m bench.sql --help`
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.commits import in_turn
from bench.report import machine, put
from bench.report import table as format_table
from bench.spark import sides, task
from bench.spark_cases import LANCE_SPARK, OURS, PARQUET, link_copy, name_catalog
from bench.spark_process import WorkAnswer, Worker, WorkRefusedError
from tests.spark.tpch import QUERIES, TABLES, generate

VIEWS, READ = "views", "`cat.read`"
PEERS = (READ, VIEWS, PARQUET, LANCE_SPARK)
COLUMNS = 50
ONE_COLUMN, MERGE, ALL_QUERIES = "one of 50 columns", "MERGE of 1 % of lineitem", "TPC-H, all"
QUICK_QUERIES = (3, 6)
MOST_SLOWER = 1.2
"""How many times as long as `cat.read(columns=…)` SQL may take that needs one column."""
KEY = ("l_orderkey", "l_linenumber")
NEW_KEYS = 1 << 40
"""What is added to keys of rows that the table lacks."""
PACKAGES = ("lancehouse", "pylance", "pyspark", "pyarrow", "sqlglot")


@dataclass(frozen=True)
class SideQuestion:
    """What one side is asked; `count` returns how many rows came of it, which has to be the same for all sides."""

    question: Mapping[str, Any]
    count: Callable[[WorkAnswer], int] = lambda answer: len(answer.found)
    before: Sequence[Mapping[str, Any]] = ()


@dataclass
class SqlRow:
    """One query: what it took each side, and why a side refused it."""

    name: str
    ask: Callable[[Path], Mapping[str, SideQuestion]] = field(repr=False)
    """The questions of all sides, which may use an empty folder."""
    runs: dict[str, list[WorkAnswer]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def seconds(self, side: str) -> float | None:
        """Median of a side; None if it has no figure."""
        return median(run.seconds for run in self.runs[side]) if self.runs.get(side) else None

    def cpu_s(self, side: str) -> float | None:
        """Median of the processor time of a side; None if it has no figure."""
        return median(run.cpu_s for run in self.runs[side]) if self.runs.get(side) else None


@dataclass(frozen=True)
class SqlBench:
    """The same tables in Lance and in Parquet, and the processes that are asked about them."""

    folder: Path
    workers: Mapping[str, Worker]

    def make_tables(self, scale: float, rows: int) -> None:
        """Make the tables of TPC-H, one of many columns, and rows to merge, of which a tenth is new."""
        files = generate(self.folder / "files", scale)
        for table in TABLES:
            lance.write_dataset(ds.dataset(files / f"{table}.parquet"), self.folder / "lance" / f"{table}.lance")
        random = np.random.default_rng(1)
        wide = pa.table({f"c{number}": random.random(rows) for number in range(COLUMNS)})
        lance.write_dataset(wide, self.folder / "lance" / "wide.lance", max_rows_per_file=-(-rows // 4))
        lines = files / "lineitem.parquet"
        hashed = f"hash({', '.join(KEY)})"
        key = f"IF(pmod({hashed}, 1000) = 0, l_orderkey + {NEW_KEYS}, l_orderkey) AS l_orderkey"
        names = [key if name == "l_orderkey" else name for name in pq.read_schema(lines).names]
        chosen = f"SELECT {', '.join(names)} FROM parquet.`{lines}` WHERE pmod({hashed}, 100) = 0"
        sql = f"INSERT OVERWRITE DIRECTORY '{self.folder / 'merged'}' USING parquet {chosen}"
        self.workers[OURS].ask(sql=sql)
        if LANCE_SPARK in self.workers:
            name, settings = name_catalog(self.folder / "lance")
            for question in (*settings, {"sql": f"USE {name}"}):
                self.workers[LANCE_SPARK].ask(**question)

    def rows(self, queries: Sequence[int]) -> list[SqlRow]:
        """Return all that is measured, with these queries of TPC-H."""
        texts = [(f"TPC-H {number}", QUERIES[number]) for number in queries]
        return [
            SqlRow(ONE_COLUMN, self._ask_one_column),
            *(SqlRow(name, lambda _, text=text: self._ask_query(text)) for name, text in texts),  # type: ignore[misc]
            SqlRow(MERGE, self._ask_merge),
        ]

    def _ask_one_column(self, _: Path) -> Mapping[str, SideQuestion]:
        text = "SELECT sum(c7 + 1) FROM wide"
        read = self._ours("read", table="wide", columns=["c7"], then=["sum(c7 + 1)"])
        return {**self._ask_tables(text), READ: SideQuestion(read)}

    def _ask_query(self, text: str) -> Mapping[str, SideQuestion]:
        files = {"call": "sql_on_parquet", "of": {"folder": str(self.folder / "files"), "text": text}}
        return {**self._ask_tables(text), PARQUET: SideQuestion(files)}

    def _ask_tables(self, text: str) -> dict[str, SideQuestion]:
        return {
            OURS: SideQuestion(self._ours("sql", text=text)),
            VIEWS: SideQuestion(self._ours("sql_on_views", text=text)),
            LANCE_SPARK: SideQuestion({"sql": text}),
        }

    def _ask_merge(self, scratch: Path) -> Mapping[str, SideQuestion]:
        """Each on a copy that shares its files. Parquet cannot change rows: all are written again."""
        source, on = self.folder / "merged", " AND ".join(f"t.{key} = s.{key}" for key in KEY)
        places = [link_copy(self.folder / "lance" / "lineitem.lance", scratch / name) for name in ("ours", "theirs")]
        text = (
            f"MERGE INTO {{}} t USING merged_rows s ON {on} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        written = scratch / "written"
        lines = f"parquet.`{self.folder / 'files' / 'lineitem.parquet'}`"
        rewrite = (
            f"INSERT OVERWRITE DIRECTORY '{written}' USING parquet SELECT t.* FROM {lines} t LEFT ANTI JOIN "
            f"parquet.`{source}` s ON {on} UNION ALL SELECT * FROM parquet.`{source}`"
        )
        ours = {"call": "sql", "of": {"root": str(places[0].parent), "text": text.format("t")}}
        catalog, settings = name_catalog(places[1].parent)
        view = {"sql": f"CREATE OR REPLACE TEMPORARY VIEW merged_rows AS SELECT * FROM parquet.`{source}`"}
        counts: list[Callable[[WorkAnswer], int]] = [
            lambda _, place=place: lance.dataset(place).count_rows()  # type: ignore[misc]
            for place in places
        ]
        return {
            OURS: SideQuestion(ours, counts[0], [view]),
            PARQUET: SideQuestion({"sql": rewrite}, lambda _: ds.dataset(written, format="parquet").count_rows()),
            LANCE_SPARK: SideQuestion({"sql": text.format(f"{catalog}.t")}, counts[1], [*settings, view]),
        }

    def _ours(self, call: str, **of: Any) -> dict[str, Any]:
        return {"call": call, "of": {"root": str(self.folder / "lance"), **of}}

    def compare(self, row: SqlRow, turn: int) -> None:
        """Ask all sides, another one first in each turn; each has to find as many rows."""
        counts = {}
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            asked = row.ask(Path(scratch))
            for side in in_turn([*asked], turn):
                worker = self.workers.get(LANCE_SPARK if side == LANCE_SPARK else OURS)
                if worker is None or side in row.refused:
                    continue
                os.sync()  # nobody waits for what others have written
                try:
                    for question in asked[side].before:
                        worker.ask(**question)
                    answer = worker.ask(**asked[side].question)
                except WorkRefusedError as error:
                    if side != LANCE_SPARK:
                        raise
                    row.refused[side] = str(error).splitlines()[0]
                    row.runs.pop(side, None)
                    continue
                row.runs.setdefault(side, []).append(answer)
                counts[side] = asked[side].count(answer)
        assert len(set(counts.values())) == 1, (row.name, counts)

    def measure(self, rows: Sequence[SqlRow], rounds: int, until: float, progress: Progress) -> None:
        """Measure all, round by round, of which the first only warms up; after a time, what has no figure yet."""
        with task(progress, "measuring", rounds * len(rows)) as done:
            for turn in range(rounds):
                for row in rows:
                    if turn < 2 or time.monotonic() < until:
                        if turn == 1:
                            row.runs.clear()
                        self.compare(row, turn)
                    done(f"round {turn + 1}, {row.name}")


def sum_queries(rows: Sequence[SqlRow], side: str) -> tuple[float, float]:
    """Return the seconds of a side, and ours, for all queries of TPC-H that it answered."""
    known = [
        (theirs, row.seconds(OURS) or 0.0)
        for row in rows
        if row.name.startswith("TPC-H") and (theirs := row.seconds(side)) is not None
    ]
    return sum(theirs for theirs, _ in known), sum(ours for _, ours in known)


def table_rows(rows: Sequence[SqlRow]) -> list[list[str]]:
    """The seconds of each side, how many times as long as ours that is, and our processor time."""

    def cell(theirs: float | None, ours: float | None) -> str:
        return "–" if theirs is None else f"{theirs:.2f} s" + (f", **{theirs / ours:.2f}**" if ours else "")

    lines = []
    for row in rows:
        ours, cpu = row.seconds(OURS), row.cpu_s(OURS)
        others = ["refused" if side in row.refused else cell(row.seconds(side), ours) for side in PEERS]
        lines.append([row.name, cell(ours, None), *others, cell(cpu, None)])
    totals = {side: sum_queries(rows, side) for side in (OURS, *PEERS)}
    sums = [cell(*totals[side]) if totals[side][0] else "–" for side in PEERS]
    cpu = sum(row.cpu_s(OURS) or 0.0 for row in rows if row.name.startswith("TPC-H"))
    return [*lines, [ALL_QUERIES, cell(totals[OURS][0], None), *sums, cell(cpu, None)]]


HEADINGS = ("query", "`cat.sql`", *PEERS, "processor time of `cat.sql`")


def findings(rows: Sequence[SqlRow]) -> list[str]:
    """A line for each mark, and for what lance-spark refuses."""
    one = rows[0]
    slower = (one.seconds(OURS) or 0.0) / (one.seconds(READ) or 1.0)
    lines = [_mark(f"{ONE_COLUMN}: {slower:.2f} times as long as {READ}, at most {MOST_SLOWER}", slower <= MOST_SLOWER)]
    theirs, ours = sum_queries(rows, LANCE_SPARK)
    if theirs:
        text = f"{ALL_QUERIES}: lance-spark takes {theirs / ours:.2f} times as long, at least as long"
        lines.append(_mark(text, ours <= theirs))
    return [*lines, *(f"lance-spark refuses {row.name}: {text}" for row in rows for text in row.refused.values())]


def _mark(text: str, is_met: bool) -> str:
    return f"{'Met' if is_met else 'Missed'}: {text}"


def write(rows: Sequence[SqlRow], scale: float, count: int, rounds: int) -> None:
    """Put the table into the document."""
    amount = f"TPC-H at scale {scale:g}; {count:,} rows of {COLUMNS} columns. Medians of up to {rounds} rounds"
    lines = [f"{datetime.now(UTC):%Y-%m-%d}. {machine(PACKAGES)}. {amount}.", ""]
    put(
        "bench-sql", [*lines, *format_table(HEADINGS, table_rows(rows)), "", *(f"- {each}." for each in findings(rows))]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.sql", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="scale of TPC-H")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table with 50 columns")
    parser.add_argument("--rounds", type=int, default=3, help="at most, after one to warm up")
    parser.add_argument("--minutes", type=float, default=9, help="when to measure nothing again")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--no-lance-spark", action="store_true", help="leave it out: it has its own environment")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    scale, count, rounds = (0.001, 1000, 1) if options.quick else (options.scale, options.rows, options.rounds + 1)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress, until = Progress(*columns, console=Console(stderr=True)), time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress:
        place = Path(folder)
        with sides(place / "processes", os.cpu_count() or 1, with_lance_spark=not options.no_lance_spark) as workers:
            bench = SqlBench(place, workers)
            with task(progress, "making tables", 1) as done:
                bench.make_tables(scale, count)
                done("")
            rows = bench.rows(QUICK_QUERIES if options.quick else [*QUERIES])
            bench.measure(rows, rounds, until, progress)
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    shown = Table(*HEADINGS)
    for line in table_rows(rows):
        shown.add_row(*(cell.replace("**", "").replace("`", "") for cell in line))
    console.print(shown)
    for finding in findings(rows):
        console.print(finding.partition(": ")[2] if options.quick else finding, highlight=False)
    if options.write:
        write(rows, scale, count, rounds - 1)


if __name__ == "__main__":
    main()
