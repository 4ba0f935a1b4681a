"""Filling a computed column: ours, plain pylance, Spark that overwrites the table, a merge; on one core and on two.

`python -m bench.columns --help`
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.columns_work import COUNTED, DIMENSION, KILLED_AT, count_rows
from bench.report import machine, put, table
from bench.spark_process import Worker, start
from lancehouse.jobs.column_filling import ComputedValues

PAYLOAD = 1000
FRAGMENTS = 8
MORE = 0.01
"""Share of rows that is appended to see what a second fill costs."""
NEVER = 1 << 62
"""Number of rows after which nobody is killed."""

OURS, PYLANCE, MERGE = "lancehouse", "pylance `add_columns`", "pylance `merge_insert`"
OURS_SPARK, OVERWRITE = "lancehouse on Spark", "Spark, read and overwrite"
MORE_LOCAL, MORE_SPARK = "1 % more rows, lancehouse", "1 % more rows, lancehouse on Spark"


@dataclass(frozen=True, slots=True)
class Fill:
    """One side, once."""

    seconds: float
    cpu_s: float
    """Processor time, of all processes of the side."""
    written: int
    """Bytes of data files that came to the table."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A fill that was killed, and the call that went on."""

    kind: str
    share: float
    """Of the function's work, how much the second call did."""
    checkpoints: int
    """Bytes of what the first call had recorded when it was killed."""
    left: int
    """Bytes of these that no version names and that are still there after the second call."""


@dataclass(slots=True)
class ColumnFigures:
    """All that was measured, by side and number of cores."""

    rows: int
    fills: dict[tuple[str, int], list[Fill]] = field(default_factory=dict)
    resumed: list[Resumed] = field(default_factory=list)

    def add(self, side: str, cores: int, fill: Fill) -> None:
        """Note one."""
        self.fills.setdefault((side, cores), []).append(fill)

    def seconds(self, side: str, cores: int) -> float:
        """The median."""
        return median(each.seconds for each in self.fills[side, cores])

    def share_written(self, side: str, cores: int) -> float:
        """Bytes written, as a share of those of the whole column."""
        written = max(each.written for each in self.fills[side, cores])
        return written / (self.rows * DIMENSION * 4)

    def marks(self) -> list[tuple[str, float, str, float, bool]]:
        """What is expected, what was found, and whether that is enough."""
        found = [
            ("bytes of the first fill, × the column's", self.share_written(OURS, 2), "≤", 1.1),
            ("bytes of the first fill on Spark, × the column's", self.share_written(OURS_SPARK, 2), "≤", 1.1),
            ("first fill on one core, × as fast as pylance", self._speed(1), "≥", 0.8),
            ("first fill on two cores, × as fast as pylance", self._speed(2), "≥", 1.3),
            ("bytes for 1 % more rows, % of the column's", 100 * self.share_written(MORE_LOCAL, 2), "≤", 1.5),
            ("1 % more rows in a running Spark session, s", self.seconds(MORE_SPARK, 2), "≤", 1.5),
            *(
                (f"work after a kill at 50 %, {each.kind}, %", 100 * each.share, "≤", 60.0)
                for each in self.resumed
                if each.kind == SLOW
            ),
            ("bytes of checkpoints that are left", float(max(each.left for each in self.resumed)), "≤", 0.0),
        ]
        return [(*each, each[1] <= each[3] if each[2] == "≤" else each[1] >= each[3]) for each in found]

    def _speed(self, cores: int) -> float:
        return self.seconds(PYLANCE, cores) / self.seconds(OURS, cores)

    def table_rows(self) -> list[list[str]]:
        """A row for each side."""
        found = []
        for (side, cores), fills in self.fills.items():
            spread = f"{min(each.seconds for each in fills):.2f} to {max(each.seconds for each in fills):.2f}"
            ratio = self.seconds(PYLANCE, cores) / self.seconds(side, cores)
            speed = "–" if side in (MORE_LOCAL, MORE_SPARK) else f"**{ratio:.2f}**"
            cpu = f"{median(each.cpu_s for each in fills):.2f} s"
            share = f"{self.share_written(side, cores):.3f}"
            found.append([side, str(cores), f"{self.seconds(side, cores):.2f} s", spread, cpu, speed, share])
        return found


SLOW, CHEAP = "a function of 0.1 s a call", "the cheap function"
HEADINGS = ("side", "cores", "median", "from, to", "processor time", "× as fast as pylance", "bytes, × the column's")


def make_table(place: Path, rows: int) -> None:
    """Numbers, and a kilobyte beside each."""
    rng = np.random.default_rng(1)

    def batches() -> Any:
        for first in range(0, rows, 10_000):
            count = min(10_000, rows - first)
            data = pa.py_buffer(rng.bytes(count * PAYLOAD))
            payload = pa.Array.from_buffers(pa.binary(PAYLOAD), count, [None, data]).cast(pa.binary())
            yield pa.record_batch({"id": pa.array(np.arange(first, first + count)), "payload": payload})

    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("payload", pa.binary())]
    schema = pa.schema(fields)
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    size = -(-rows // FRAGMENTS)
    lance.write_dataset(reader, place, schema=schema, max_rows_per_file=size, enable_stable_row_ids=True)


def count_bytes(place: Path) -> int:
    """Bytes of all data files."""
    return sum(file.stat().st_size for file in (place / "data").rglob("*") if file.is_file())


def list_checkpoints(place: Path) -> set[str]:
    """Data files of checkpoints that records of jobs name. Files of whole fragments stay for `remove_orphans`."""
    values = [json.loads(file.read_text())["value"] for file in (place / "_lancehouse" / "jobs").rglob("*.json")]
    computed = [ComputedValues.from_json(value) for value in values if isinstance(value, str)]
    return {name for each in computed if each.base is None for name in re.findall(r"[\w-]+\.lance", each.piece)}


def list_named_files(place: Path) -> set[str]:
    """Data files that versions name."""
    dataset = lance.dataset(place)
    return {
        str(file.path)
        for version in dataset.versions()
        for fragment in dataset.checkout_version(version["version"]).get_fragments()
        for file in fragment.metadata.files
    }


def count_file_bytes(place: Path, names: Collection[str]) -> int:
    """Bytes of these data files, as far as they exist."""
    return sum(file.stat().st_size for file in (place / "data").iterdir() if file.name in names)


class ColumnBench:
    """One table, of which each side gets a copy: files that Lance never changes are linked."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.figures = folder, ColumnFigures(rows)
        make_table(folder / "source.lance", rows)

    def run(self, rounds: int) -> ColumnFigures:
        """All sides, in turns; another one begins in each round, and the first round only warms up."""
        with ExitStack() as stack:
            work = [sys.executable, "-m", "bench.columns_work"]
            plain = {n: stack.enter_context(start(work, self.folder / f"plain-{n}", n)) for n in (1, 2)}
            scratch = self.folder / "spark"
            spark = stack.enter_context(start([*work, "spark", "2", str(scratch)], scratch, 2))
            for number in range(rounds + 1):
                figures = self.figures if number else ColumnFigures(self.figures.rows)
                for cores, worker in plain.items():
                    self._run_first_fills(figures, worker, cores, number)
                self._fill(figures, OURS_SPARK, 2, spark, "ours")
                self._append_and_fill(figures, MORE_SPARK, spark, {})
            self._fill(self.figures, MERGE, 2, plain[2], "merge_insert")
            self._fill(self.figures, OVERWRITE, 2, spark, "overwrite")
        self.figures.resumed = [self._kill_and_resume(SLOW, "slow"), self._kill_and_resume(CHEAP, "cheap")]
        return self.figures

    def _run_first_fills(self, figures: ColumnFigures, worker: Worker, cores: int, number: int) -> None:
        """Ours and pylance's; then 1 % more rows of ours."""

        def fill_ours() -> None:
            self._fill(figures, OURS, cores, worker, "ours", threads=cores)
            if cores == 2:
                self._append_and_fill(figures, MORE_LOCAL, worker, {"threads": cores})

        def fill_by_pylance() -> None:
            self._fill(figures, PYLANCE, cores, worker, "pylance")

        turns = [fill_ours, fill_by_pylance]
        for turn in turns if number % 2 else reversed(turns):
            turn()

    def _fill(self, figures: ColumnFigures, name: str, cores: int, worker: Worker, side: str, **more: Any) -> None:
        place = self._copy()
        before = count_bytes(place)
        answer = worker.ask(side=side, of={"root": str(self.folder), **more})
        figures.add(name, cores, Fill(answer.seconds, answer.cpu_s, count_bytes(place) - before))

    def _append_and_fill(self, figures: ColumnFigures, name: str, worker: Worker, more: Mapping[str, Any]) -> None:
        """On the table as the last side left it."""
        place, rows = self.folder / "t.lance", self.figures.rows
        lance.write_dataset(pa.table({"id": np.arange(rows, rows + int(rows * MORE))}), place, mode="append")
        before = count_bytes(place)
        answer = worker.ask(side="ours_backfill", of={"root": str(self.folder), **more})
        figures.add(name, 2, Fill(answer.seconds, answer.cpu_s, count_bytes(place) - before))

    def _copy(self) -> Path:
        place = self.folder / "t.lance"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "source.lance", place, copy_function=os.link)
        return place

    def _kill_and_resume(self, name: str, kind: str) -> Resumed:
        """Fill in a process that is killed after half of the rows, then in another; count what that one calls for."""
        place = self._copy()
        with (self.folder / "counted").open("w+b", buffering=0) as counted:
            counts = []
            for killed_at in (self.figures.rows // 2, NEVER):
                os.pwrite(counted.fileno(), b"0".ljust(20), 0)
                variables = {COUNTED: str(counted.fileno()), KILLED_AT: str(killed_at)}
                ended = subprocess.run(
                    [sys.executable, "-m", "bench.columns_work", "fill", str(self.folder), kind],
                    env={**os.environ, **variables},
                    pass_fds=[counted.fileno()],
                    check=False,
                )
                if (ended.returncode == 0) != (killed_at == NEVER):
                    raise RuntimeError(f"{name}: a process ended with {ended.returncode}")
                counts.append(count_rows(counted.fileno()))
                if killed_at != NEVER:
                    recorded = list_checkpoints(place)
                    checkpoints = count_file_bytes(place, recorded)
        dataset = lance.dataset(place)
        if dataset.count_rows("e IS NOT NULL") != self.figures.rows:
            raise RuntimeError(f"{name}: rows are missing after the second call")
        left = count_file_bytes(place, recorded - list_named_files(place))
        return Resumed(name, counts[1] / self.figures.rows, checkpoints, left)


def describe_resumed(figures: ColumnFigures) -> list[str]:
    """A sentence for each fill that was killed."""
    return [
        f"Killed after half of the rows, {each.kind}: {each.checkpoints / 1e6:,.0f} MB were recorded, and the second "
        f"call did {each.share:.0%} of the work."
        for each in figures.resumed
    ]


def format_marks(figures: ColumnFigures) -> list[str]:
    """A line for each mark."""
    return [
        f"{name}: {found:,.2f}, expected {how} {mark:g}: {'met' if is_met else 'missed'}"
        for name, found, how, mark, is_met in figures.marks()
    ]


def write(figures: ColumnFigures, rounds: int) -> None:
    """Put the tables into the document."""
    packages = ("lancehouse", "pylance", "pyspark", "pyarrow", "numpy")
    amount = f"{figures.rows:,} rows in {FRAGMENTS} fragments, {rounds} rounds; merge and overwrite once"
    lines = [f"{datetime.now(UTC):%Y-%m-%d}. {machine(packages)}. {amount}.", ""]
    lines += [*table(HEADINGS, figures.table_rows()), ""]
    lines += [f"- {line[0].upper()}{line[1:]}." for line in format_marks(figures)]
    lines += [f"- {line}" for line in describe_resumed(figures)]
    put("bench-columns", lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.columns", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    rows, rounds = (40_000, 1) if options.quick else (options.rows, options.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures = ColumnBench(Path(folder), rows).run(rounds)
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    shown = Table(*HEADINGS)
    for row in figures.table_rows():
        shown.add_row(*(cell.replace("**", "") for cell in row))
    console.print(shown)
    for line in [*format_marks(figures), *describe_resumed(figures)]:
        console.print(line)
    if options.write:
        write(figures, rounds)


if __name__ == "__main__":
    main()
