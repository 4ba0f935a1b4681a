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
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.commits import in_turn
from bench.lance_spark import start_lance_spark
from bench.spark_cases import BARE, LANCE_SPARK, OURS, PARQUET, PYLANCE, SparkCase, cases, same
from bench.spark_data import FILES, Amount, Data, make
from bench.spark_process import WorkAnswer, Worker, WorkRefusedError, start
from bench.spark_report import Cost, RowsLevel, SparkRow, show, write

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
