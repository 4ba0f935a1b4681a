"""Spark on Lance tables: ours, Spark on Parquet, lance-spark and plain pylance side by side in one run.

`python -m bench.spark --help`
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import chart, report
from bench.commits import in_turn
from bench.spark_cases import BARE, JOB_S, LANCE_SPARK, OURS, PARQUET, PEERS, PYLANCE, SparkCase, cases, same
from bench.spark_data import FILES, Amount, Data, make
from bench.spark_process import TICKS, WorkAnswer, Worker, WorkRefusedError, start
from tests.servers.lance_spark import environment
from tests.servers.lance_spark import settings as needed
from tests.servers.spark41 import variables

SESSION = Path(__file__).with_name("spark_sql.py")


@contextmanager
def start_lance_spark(folder: Path, cores: int, settings: Mapping[str, str]) -> Iterator[Worker]:
    """A session until the block ends; `folder` is for its log and its scratch files."""
    chosen = json.dumps({**settings, **needed()})
    with start([str(environment() / "bin" / "python"), str(SESSION), chosen], folder, cores, variables()) as worker:
        yield worker


PICTURE = report.DOCUMENT.with_name("benchmarks-spark.svg")
PACKAGES = ("lancehouse", "pyspark", "pylance", "pyarrow")
HEADINGS = ("operation", "our way", OURS, *PEERS, "expected")
LINEAR, FLAT = 1.15, 1.15
"""How many times as long a row may take, and as much memory the driver, with the most rows as with the fewest."""


@dataclass(slots=True)
class SparkRow:
    """One case on so many cores, by each side."""

    case: SparkCase
    cores: int
    runs: dict[str, list[WorkAnswer]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why a side has no runs."""

    def seconds(self, side: str) -> float:
        """The median."""
        return median(run.seconds for run in self.runs[side])

    def cpu_s(self, side: str) -> float:
        """The median of the processor time."""
        return median(run.cpu_s for run in self.runs[side])

    def ratio(self, side: str) -> float:
        """How many times as fast as a side we are."""
        return self.seconds(side) / self.seconds(OURS)

    @property
    def marks(self) -> dict[str, float]:
        """What is expected of us beside the sides that have runs."""
        return {side: mark for side, mark in self.case.marks.items() if side in self.runs}

    def is_met(self, side: str) -> bool:
        """Whether we are as fast as is expected."""
        ours = self.seconds(OURS) - (JOB_S if side == PYLANCE else 0)
        return ours <= 0 or round(self.seconds(side) / ours, 2) >= round(self.marks[side], 2)

    def cells(self) -> list[str]:
        """Seconds, and how many times as fast we are."""
        expected = [f"{side} ≥ {mark:.2g} {_sign(self.is_met(side))}" for side, mark in self.marks.items()]
        peers = [self._cell(side, self.seconds, self.ratio) for side in PEERS]
        return [self.case.name, f"`{self.case.ours}`", _seconds(self.seconds(OURS)), *peers, ", ".join(expected) or "–"]

    def cpu_cells(self) -> list[str]:
        """The same of processor time."""
        # Small answers of the driver alone may take less than a tick.
        ours = max(self.cpu_s(OURS), 1 / TICKS)
        peers = [self._cell(side, self.cpu_s, lambda side: self.cpu_s(side) / ours) for side in PEERS]
        return [self.case.name, f"`{self.case.ours}`", _seconds(self.cpu_s(OURS)), *peers]

    def _cell(self, side: str, seconds: Callable[[str], float], ratio: Callable[[str], float]) -> str:
        if side in self.refused:
            return "refused"
        return f"{_seconds(seconds(side))} **{ratio(side):.2f}**" if side in self.runs else "–"


@dataclass(slots=True)
class Cost:
    """What an operation takes."""

    seconds: list[float] = field(default_factory=list)
    driver_mb: float = 0.0
    """The most memory of the driver's Python."""
    heap_mb: float = 0.0
    """The most heap of its JVM, which runs the tasks too."""


@dataclass(frozen=True, slots=True)
class RowsLevel:
    """What so many rows take, by operation."""

    rows: int
    costs: dict[str, Cost] = field(default_factory=dict)

    def per_million(self, operation: str) -> float:
        """Seconds, the median."""
        return median(self.costs[operation].seconds) / self.rows * 1e6


def growth_headings(levels: Sequence[RowsLevel]) -> list[str]:
    """Of the table of what grows."""
    return ["operation", *(f"{level.rows:,} rows" for level in levels), "time for a row", "driver's memory"]


def growth_cells(levels: Sequence[RowsLevel]) -> list[list[str]]:
    """How time and memory grow with the rows."""
    cells = []
    for operation in levels[0].costs if levels else ():
        shown = [
            f"{_seconds(median(cost.seconds))}, {cost.driver_mb:,.0f} MB, heap {cost.heap_mb:,.0f} MB"
            for cost in (level.costs[operation] for level in levels)
        ]
        time, memory = growth(levels, operation)
        cells.append(
            [
                f"`{operation}`",
                *shown,
                f"× {time:.2f}, ≤ {LINEAR} {_sign(time <= LINEAR)}",
                f"× {memory:.2f}, ≤ {FLAT} {_sign(memory <= FLAT)}",
            ]
        )
    return cells


def growth(levels: Sequence[RowsLevel], operation: str) -> tuple[float, float]:
    """How many times as long a row takes, and as much memory the driver, with the most rows as with the fewest."""
    few, many = levels[0], levels[-1]
    memory = many.costs[operation].driver_mb / few.costs[operation].driver_mb
    return many.per_million(operation) / few.per_million(operation), memory


def findings(rows: Sequence[SparkRow], levels: Sequence[RowsLevel]) -> list[str]:
    """Each mark, met or missed; and what a side cannot do."""
    lines = [
        f"- {'Met' if row.is_met(side) else '**Missed**'}: {row.case.name}, `{row.case.ours}`, {_cores(row.cores)}: "
        f"{row.ratio(side):.2f} × as fast as {side}, expected {mark:.2g}."
        for row in rows
        for side, mark in row.marks.items()
    ]
    for operation in levels[0].costs if levels else ():
        time, memory = growth(levels, operation)
        is_met = time <= LINEAR and memory <= FLAT
        lines.append(
            f"- {'Met' if is_met else '**Missed**'}: `{operation}` of {levels[-1].rows / levels[0].rows:g} × as many "
            f"rows: {time:.2f} × the time for a row, {memory:.2f} × the driver's memory, expected {LINEAR} and {FLAT}."
        )
    refused = {(row.case.name, side): reason for row in rows for side, reason in row.refused.items()}
    lines += [f"- {side} refuses: {name}: {reason.splitlines()[0][:200]}" for (name, side), reason in refused.items()]
    return lines


def tables(rows: Sequence[SparkRow], levels: Sequence[RowsLevel]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """All tables, each with a title and headings."""
    made: list[tuple[str, Sequence[str], list[list[str]]]] = []
    for cores in dict.fromkeys(row.cores for row in rows):
        of_these = [row for row in rows if row.cores == cores]
        made += [
            (f"Seconds, {_cores(cores)}", HEADINGS, [row.cells() for row in of_these]),
            (f"Seconds of processor time, {_cores(cores)}", HEADINGS[:-1], [row.cpu_cells() for row in of_these]),
        ]
    if levels:
        made.append(("More rows", growth_headings(levels), growth_cells(levels)))
    return made


def show(console: Console, rows: Sequence[SparkRow], levels: Sequence[RowsLevel], *, marks: bool) -> None:
    """Print it; the marks if they mean something at this size."""
    for title, headings, cells in tables(rows, levels):
        shown = Table(title=title, title_justify="left")
        for heading in headings:
            shown.add_column(heading, justify="left" if heading in ("operation", "our way", "expected") else "right")
        for row in cells:
            shown.add_row(*map(_bare, row))
        console.print(shown)
    console.print("The second figure: how many times as fast as they we are.")
    for line in findings(rows, levels) if marks else ():
        console.print(_bare(line), markup=False)


def write(rows: Sequence[SparkRow], levels: Sequence[RowsLevel], amount: Amount) -> None:
    """Put tables and picture into the documents."""
    rounds = [len(row.runs[OURS]) for row in rows]
    most = max(row.cores for row in rows)
    bars = [
        (f"{row.case.name}, {row.case.ours}", [(side, row.ratio(side)) for side in PEERS if side in row.runs])
        for row in rows
        if row.cores == most and len(row.runs) > 1
    ]
    PICTURE.write_text(chart.groups(f"How many times as fast as others we are, {_cores(most)}", bars, PEERS))
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}; lance-spark 0.4.0 on Spark 3.5.9. "
        f"{amount.rows:,} rows of four columns, {amount.vectors:,} vectors, TPC-H at scale {amount.scale:g}. "
        f"{min(rounds)} to {max(rounds)} rounds, medians.",
        "",
        f"![How many times as fast as others]({PICTURE.name})",
    ]
    for title, headings, cells in tables(rows, levels):
        lines += ["", f"### {title}", "", *report.table(headings, cells)]
    report.put("bench-spark", [*lines, "", "### Marks", "", *findings(rows, levels)])


def _cores(number: int) -> str:
    return f"{number} core{'s' if number > 1 else ''}"


def _sign(is_met: bool) -> str:
    return "✓" if is_met else "✗"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.095 else f"{value * 1000:.1f} ms"


def _bare(text: str) -> str:
    return text.replace("**", "").replace("`", "")


SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of both Sparks."""
GROWTH = (4, 2, 1)
"""The parts of the rows that are ingested and read, to see how time and memory grow: a fourth, a half, all."""
WARM = 20
"""The part of the rows that all sides are warmed up with."""


@dataclass(frozen=True, slots=True)
class SparkSize:
    """How much is measured."""

    amount: Amount
    rounds: int
    """At most."""
    cores: Sequence[int]
    minutes: float
    """After so many no case is begun again."""
    lance_spark: bool = True
    only: str = ""
    """Cases that have this in their name, or whose way is called so."""
    is_quick: bool = False
    """One case for each way, and nothing to get warm."""


FULL = SparkSize(Amount(12_000_000, 1_000_000, 0.5), rounds=5, cores=(1, 2), minutes=22)
QUICK = SparkSize(Amount(98_304, 8_192, 0.002), rounds=1, cores=(2,), minutes=1, is_quick=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=FULL.amount.rows, help="of four columns; all else in proportion")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="at most")
    parser.add_argument("--minutes", type=float, default=FULL.minutes, help="when to begin no case again")
    parser.add_argument("--cores", type=int, nargs="+", default=FULL.cores)
    parser.add_argument("--only", default="", help="cases that have this in their name, or whose way is called so")
    parser.add_argument(
        "--no-lance-spark", action="store_true", help="leave it out; it needs an environment of its own"
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put tables and picture into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    part = options.rows / FULL.amount.rows
    amount = Amount(options.rows, int(FULL.amount.vectors * part), FULL.amount.scale * part)
    size = replace(FULL, amount=amount, rounds=options.rounds, minutes=options.minutes, cores=options.cores)
    size = replace(QUICK if options.quick else size, lance_spark=not options.no_lance_spark, only=options.only)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress:
        rows, levels = measure(Path(folder), size, progress)
    console = Console()
    show(console if console.is_terminal else Console(width=190), rows, levels, marks=not options.quick)
    if options.write:
        write(rows, levels, size.amount)


def measure(folder: Path, size: SparkSize, progress: Progress) -> tuple[list[SparkRow], list[RowsLevel]]:
    """Everything."""
    began, rows, levels = time.monotonic(), list[SparkRow](), list[RowsLevel]()
    with task(progress, "making rows", 1) as done:
        data = make(folder / "data", size.amount)
        small = None if size.is_quick else make(folder / "small", size.amount.part(WARM))
        done("")
    scratch = folder / "scratch"
    scratch.mkdir()
    weights = [1 + 1 / cores for cores in size.cores]  # fewer take longer
    for number, cores in enumerate(size.cores, 1):
        until = began + size.minutes * 60 * sum(weights[:number]) / sum(weights)
        with sides(folder / f"cores-{cores}", cores, with_lance_spark=size.lance_spark) as workers:
            bench = SparkBench(workers, scratch, cores, progress)
            if small is not None:
                bench.rounds([case for case in choose_cases(small, size) if case.is_warmed], 1, until, "warming up")
            rows += bench.rounds(choose_cases(data, size), size.rounds, until, "measuring")
            if number == len(size.cores):
                levels = bench.grow(data, GROWTH, min(size.rounds, 3))
    return rows, levels


def choose_cases(data: Data, size: SparkSize) -> list[SparkCase]:
    """The cases that are measured."""
    wanted = [case for case in cases(data) if size.only in case.name or size.only == case.ours]
    return list({case.ours: case for case in reversed(wanted)}.values())[::-1] if size.is_quick else wanted


@contextmanager
def sides(folder: Path, cores: int, *, with_lance_spark: bool) -> Iterator[dict[str, Worker]]:
    """A process for each Spark and one without, on so many cores, until the block ends."""
    settings = {**SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    python = [sys.executable, "-m", "bench.spark_work"]
    with ExitStack() as stack:
        spark = stack.enter_context(start([*python, json.dumps({"cores": cores, **settings})], folder / "spark", cores))
        workers = {OURS: spark, PARQUET: spark, BARE: spark}
        workers[PYLANCE] = stack.enter_context(start(python, folder / "pylance", cores))
        if with_lance_spark:
            local = {**settings, "spark.master": f"local[{cores}]"}
            workers[LANCE_SPARK] = stack.enter_context(start_lance_spark(folder / "lance-spark", cores, local))
            workers[LANCE_SPARK].ask(sql="SELECT 1")
        spark.ask(sql="SELECT 1")
        yield workers


@dataclass(frozen=True, slots=True)
class SparkBench:
    """Processes that are asked in turns."""

    workers: Mapping[str, Worker]
    scratch: Path
    cores: int
    progress: Progress

    def rounds(self, of: Sequence[SparkCase], number: int, until: float, what: str) -> list[SparkRow]:
        """Rounds of all cases, in each of them all sides, another one first each time; the first in any case."""
        rows = [SparkRow(case, self.cores) for case in of]
        took = dict.fromkeys(range(len(rows)), 0.0)
        with task(self.progress, f"{self.cores} cores, {what}", number * len(rows)) as done:
            for turn in range(number):
                for place, row in enumerate(rows):
                    begun = time.monotonic()
                    if not turn or begun + took[place] < until:
                        self._round(row, turn)
                        took[place] = time.monotonic() - begun
                    done(row.case.name)
        return rows

    def _round(self, row: SparkRow, turn: int) -> None:
        found = {}
        for side in in_turn(list(row.case.sides), turn):
            if side not in self.workers or side in row.refused:
                continue
            try:
                answer, found[side] = self._once(row.case, side)
            except WorkRefusedError as error:
                if side != LANCE_SPARK:
                    raise
                row.refused[side] = str(error)
                continue
            row.runs.setdefault(side, []).append(answer)
        if wrong := [side for side, each in found.items() if not same(found[OURS], each)]:
            raise AssertionError(f"{row.case.name}: {wrong[0]} found {found[wrong[0]]}, but {OURS} {found[OURS]}")

    def _once(self, case: SparkCase, side: str) -> tuple[WorkAnswer, object]:
        worker = self.workers[side]
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            job = case.sides[side](Path(folder))
            for question in job.before:
                worker.ask(**question)
            os.sync()  # nobody waits for what others have written
            answer = worker.ask(**job.question, times=case.times.get(side, 1))
            return answer, job.found(answer.found)

    def grow(self, data: Data, parts: Sequence[int], rounds: int) -> list[RowsLevel]:
        """More and more rows, ingested and read by us."""
        spark = self.workers[OURS]
        files = sorted(map(str, data.files("four").glob("*.parquet")))
        levels = [RowsLevel(data.amount.rows // part) for part in parts]
        with task(self.progress, "growing", rounds * len(levels)) as done:
            for _ in range(rounds):
                for part, level in zip(parts, levels, strict=True):
                    with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                        self._grow_table(spark, folder, files[: FILES // part], level)
                    done(f"{level.rows:,} rows")
        return levels

    def _grow_table(self, spark: Worker, root: str, files: Sequence[str], level: RowsLevel) -> None:
        at = {"root": root, "table": "t"}
        columns = ["id", "value", "text", "time"]
        questions = {
            "ingest": {"call": "ingest", "of": {**at, "source": files}},
            "aggregate": {"call": "aggregate", "of": {**at, "sum": columns[:2], "max": "time", "count": "text"}},
            "read": {"call": "read", "of": {**at, "columns": columns, "then": ["sum(id)", "count(text)", "max(time)"]}},
        }
        for name, question in questions.items():
            cost = level.costs.setdefault(name, Cost())
            spark.ask(call="heap_mb", of={})
            spark.forget_peak()
            cost.seconds.append(spark.ask(**question).seconds)
            cost.driver_mb = max(cost.driver_mb, spark.peak_mb())
            cost.heap_mb = max(cost.heap_mb, spark.ask(call="heap_mb", of={}).found)


@contextmanager
def task(progress: Progress, what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A line of the progress; the function that it gives says that a step is done."""
    number = progress.add_task(what, total=total)

    def finish_step(step: str) -> None:
        progress.update(number, advance=1, description=f"{what}: {step}")
        if not progress.console.is_terminal:  # which shows nothing until the end
            progress.console.print(f"{what}: {step}", highlight=False)

    yield finish_step
    progress.update(number, description=f"{what}: done")


if __name__ == "__main__":
    main()
