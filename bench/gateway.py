"""The cost of the hop through the gateway: beside the direct client, beside pylance's own REST adapter, and beside HTTP
alone, in one run. `python -m bench.gateway --help`.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import mean, median

import pyarrow as pa
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    QueryTableRequest,
)
from lance_namespace.errors import InternalError
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import report
from bench.commits import in_turn
from bench.gateway_sides import (
    ADAPTER,
    ADAPTER_TAKES,
    DIRECT,
    FOLDER,
    GATEWAY,
    TABLE,
    TITLES,
    WAREHOUSE,
    WIRE,
    CatalogSide,
    CatalogSides,
    Rows,
    as_stream,
    start,
    table_of,
)
from bench.load import cpu_s

METADATA_MARK = 1.5
"""How many times the direct call's time a list may take; a description, that of the direct call and of bare HTTP."""
FOREIGN_MARK = 1.75
"""The same for a description by another catalog, which is a call of a thread: half a millisecond more."""
DATA_MARK = 1.15
"""How many times that of the direct call and of the bare transfer together."""
MEMORY_MARK = 300
PACKAGES = ("lancehouse", "pylance", "lance-namespace", "uvicorn", "pyarrow")
HEADINGS = (
    *("catalog", "operation", "direct", "gateway", "gateway / direct", "mark", "adapter", "gateway / adapter"),
    *("wire", "gateway's CPU", "memory"),
)


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """One round of one side."""

    wall_s: float
    cpu_s: float
    """Of the processes between."""
    peak_mb: float = 0.0
    library_mb: float = 0.0
    """How much of it are pages of libraries, which processes share and the kernel can drop."""


@dataclass(slots=True)
class GatewayRow:
    """One operation on one catalog."""

    catalog: str
    operation: str
    calls: int = 1
    size: int = 0
    """Bytes that go over the wire, where it is rows."""
    runs: dict[str, list[GatewayRun]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Sides that do not take so much."""

    def seconds(self, side: str) -> float | None:
        """The median of one call; None for a side that is not there."""
        runs = self.runs.get(side)
        return median(run.wall_s for run in runs) / self.calls if runs else None

    def over(self, side: str) -> float | None:
        """How many times another side's time the gateway takes."""
        other, ours = self.seconds(side), self.seconds(GATEWAY)
        return None if not other or ours is None else ours / other

    @property
    def mark(self) -> tuple[str, float, float] | None:
        """What is expected: in words, the most, and what it is."""
        if self.catalog == FOLDER and not self.size:
            return None  # a direct call is one of a function
        if WIRE in self.runs:
            both = (self.seconds(DIRECT) or 0) + (self.seconds(WIRE) or 0)
            most = DATA_MARK if self.size else METADATA_MARK if self.catalog == WAREHOUSE else FOREIGN_MARK
            return "(direct + wire)", most, (self.seconds(GATEWAY) or 0) / both
        return "direct", METADATA_MARK, self.over(DIRECT) or 0.0

    @property
    def is_missed(self) -> bool:
        """Whether it is more than expected."""
        return self.mark is not None and round(self.mark[2], 2) > self.mark[1]

    @property
    def peak_mb(self) -> float:
        """Of the gateway, at most."""
        return max((run.peak_mb for run in self.runs.get(GATEWAY, ())), default=0.0)

    def cells(self) -> list[str]:
        """As text, in the order of the headings."""
        # The mean, not the median: the kernel counts in hundredths of a second, half of what a round of calls takes.
        cpu_s = mean(run.cpu_s for run in self.runs[GATEWAY]) / self.calls
        return [
            TITLES[self.catalog],
            self.operation,
            self._time(DIRECT),
            self._time(GATEWAY),
            _ratio(self.over(DIRECT)),
            "–" if self.mark is None else f"{self.mark[0]} × {self.mark[1]:g} {'✗' if self.is_missed else '✓'}",
            self._time(ADAPTER),
            _ratio(self.over(ADAPTER)),
            self._time(WIRE),
            _format_time(cpu_s),
            f"{self.peak_mb:.0f} MB" if self.size else "–",
        ]

    def _time(self, side: str) -> str:
        seconds = self.seconds(side)
        if side in self.refused:
            return "too large for it"
        if seconds is None:
            return "–"
        speed = f", {self.size / 2**20 / seconds:,.0f} MB/s" if self.size else ""
        return _format_time(seconds) + speed


def _format_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"**{value:.2f}**"


def findings(rows: Sequence[GatewayRow]) -> list[str]:
    """Memory, and what was missed."""
    runs = [run for row in rows for run in row.runs.get(GATEWAY, ())]
    largest = max(runs, key=lambda run: run.peak_mb)
    verdict = "met" if largest.peak_mb < MEMORY_MARK else "missed"
    lines = [
        f"- Memory of the gateway at most: {largest.peak_mb:.0f} MB (expected under {MEMORY_MARK}: {verdict}); "
        f"{largest.library_mb:.0f} MB of it are pages of libraries, which processes share."
    ]
    for row in rows:
        if row.is_missed and row.mark is not None:
            words, most, value = row.mark
            lines.append(
                f"- Missed: {TITLES[row.catalog]}, {row.operation}: {value:.2f} instead of {most:g} times {words}."
            )
    return lines


def show(console: Console, rows: Sequence[GatewayRow], *, marks: bool) -> None:
    """Print it and, if `marks` mean something at this size, what was missed."""
    table = Table(title="The gateway", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("catalog", "operation") else "right")
    for row in rows:
        table.add_row(*(cell.replace("**", "").replace("`", "") for cell in row.cells()))
    console.print(table)
    for line in findings(rows) if marks else ():
        console.print(line)


def write(rows: Sequence[GatewayRow], words: str) -> None:
    """Put the table into the document."""
    report.put(
        "bench-gateway",
        [
            f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. {words}",
            "",
            *report.table(HEADINGS, [row.cells() for row in rows]),
            "",
            *findings(rows),
        ],
    )


FIRST = 10
"""Rows of a table before it is inserted into."""

Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class GatewaySize:
    """How much is measured."""

    rows: int
    tables: int
    calls: int
    """Of DescribeTable in a round."""
    rounds: int
    """Of inserts and queries; single calls have `MORE` times as many."""


MORE = 3
FULL = GatewaySize(rows=1_000_000, tables=1000, calls=20, rounds=5)
QUICK = GatewaySize(rows=20_000, tables=20, calls=3, rounds=1)


class GatewayBench:
    """Operations on catalogs, by all sides in turns."""

    def __init__(self, size: GatewaySize, rows: Rows) -> None:
        self._size = size
        self._rows = rows
        self._small = as_stream(table_of(FIRST))
        self._numbers = count()

    def describe(self, catalog: CatalogSides) -> GatewayRow:
        """One table, again and again, with a client that knows it."""
        row = GatewayRow(catalog.name, "DescribeTable", self._size.calls)

        def job(side: CatalogSide) -> Job:
            def work() -> None:
                for _ in range(self._size.calls):
                    side.namespace.describe_table(DescribeTableRequest(id=side.table(TABLE)))

            return work

        return self._measure(row, catalog, job, self._size.rounds * MORE)

    def list(self, catalog: CatalogSides) -> GatewayRow:
        """All tables of a namespace, with a client that has listed it before."""
        row = GatewayRow(catalog.name, f"ListTables, {self._size.tables:,} tables")

        def job(side: CatalogSide) -> Job:
            name = next(name for name, each in catalog.sides.items() if each is side)

            def work() -> None:
                found = side.namespace.list_tables(ListTablesRequest(id=list(catalog.many[name]))).tables
                if len([each for each in found if each.startswith("t0")]) != self._size.tables:
                    raise AssertionError(f"{catalog.name}, {name}: {len(found)} tables")

            return work

        return self._measure(row, catalog, job, self._size.rounds * MORE, but=WIRE)

    def insert(self, catalog: CatalogSides) -> GatewayRow:
        """Rows into a table that is there; a new one each time."""
        row = GatewayRow(catalog.name, f"InsertIntoTable, {self._rows.count:,} rows", size=len(self._rows.stream))
        direct = catalog.sides[DIRECT]

        def run(side: CatalogSide) -> GatewayRun:
            name = f"i{next(self._numbers)}"
            is_real = side is not catalog.sides[WIRE]
            if is_real:
                direct.namespace.create_table(CreateTableRequest(id=direct.table(name)), self._small)
            request = InsertIntoTableRequest(id=side.table(name), mode="append")
            made = time_work(side, lambda: side.namespace.insert_into_table(request, self._rows.stream))
            if is_real:
                found = direct.namespace.count_table_rows(CountTableRowsRequest(id=direct.table(name))).count
                if found != self._rows.count + FIRST:
                    raise AssertionError(f"{catalog.name}: {found} rows after an insert")
                direct.namespace.drop_table(DropTableRequest(id=direct.table(name)))
            return made

        return self._rounds(row, catalog, run, self._size.rounds)

    def query(self, catalog: CatalogSides) -> GatewayRow:
        """All rows of a table."""
        row = GatewayRow(catalog.name, f"QueryTable, {self._rows.count:,} rows", size=len(self._rows.stream))

        def run(side: CatalogSide) -> GatewayRun:
            request = QueryTableRequest(id=side.table(TABLE), k=self._rows.count, vector=QueryTableRequestVector())
            found: list[bytes] = []

            def work() -> None:
                data = side.namespace.query_table(request).data
                assert isinstance(data, bytes)
                found.append(data)

            made = time_work(side, work)
            with pa.ipc.open_file(io.BytesIO(found[0])) as file:
                rows = sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))
            if rows != self._rows.count:
                raise AssertionError(f"{catalog.name}: a query found {rows} rows")
            return made

        return self._rounds(row, catalog, run, self._size.rounds)

    def _measure(
        self,
        row: GatewayRow,
        catalog: CatalogSides,
        job: Callable[[CatalogSide], Job],
        rounds: int,
        but: str | None = None,
    ) -> GatewayRow:
        jobs = {id(side): job(side) for name, side in catalog.sides.items() if name != but}
        for work in jobs.values():
            work()  # a first time, to know the way
        return self._rounds(row, catalog, lambda side: time_work(side, jobs[id(side)]), rounds, but)

    def _rounds(
        self,
        row: GatewayRow,
        catalog: CatalogSides,
        run: Callable[[CatalogSide], GatewayRun],
        rounds: int,
        but: str | None = None,
    ) -> GatewayRow:
        sides = [(name, side) for name, side in catalog.sides.items() if name != but]
        for turn in range(rounds):
            for name, side in in_turn(sides, turn):
                if row.size:
                    os.sync()  # nobody waits for what others have written
                    gc.collect()
                try:
                    row.runs.setdefault(name, []).append(run(side))
                except InternalError:  # a 413, or a broken pipe before it could be read
                    if name != ADAPTER or row.size < ADAPTER_TAKES:
                        raise
                    row.refused.add(name)
        return row


def time_work(side: CatalogSide, work: Callable[[], object]) -> GatewayRun:
    """Do it, and see what it took; the most memory is that of the largest process between."""
    for pid in side.pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    before, begun = cpu_s(side.pids), time.perf_counter()
    work()
    wall = time.perf_counter() - begun
    peak_mb, library_mb = max((_memory_mb(pid) for pid in side.pids), default=(0.0, 0.0))
    return GatewayRun(wall, cpu_s(side.pids) - before, peak_mb, library_mb)


def _memory_mb(pid: int) -> tuple[float, float]:
    """The most that a process had resident, and what of it are pages of files now."""
    status = Path(f"/proc/{pid}/status").read_text()
    peak, files = (int(status.partition(f"{name}:")[2].split()[0]) / 1024 for name in ("VmHWM", "RssFile"))
    return peak, files


def measure(folder: Path, size: GatewaySize, progress: Progress) -> list[GatewayRow]:
    """Everything."""
    task = progress.add_task("starting and filling servers", total=None)
    rows = Rows.make(size.rows)
    found = []
    with start(folder, rows, size.tables) as catalogs:
        bench = GatewayBench(size, rows)
        cases = [bench.describe, bench.list, bench.insert, bench.query]
        progress.update(task, total=len(catalogs) * len(cases))
        for case in cases:
            for catalog in catalogs:
                progress.update(task, description=f"{catalog.name}: {case.__name__}")
                found.append(case(catalog))
                progress.advance(task)
    progress.update(task, description="done")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rows", type=int, default=FULL.rows, help="that are inserted and queried")
    parser.add_argument("--tables", type=int, default=FULL.tables, help="that are listed")
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    full = replace(FULL, rows=options.rows, tables=options.tables, rounds=options.rounds)
    size = QUICK if options.quick else full
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress:
        rows = measure(Path(folder), size, progress)
    console = Console()
    show(console if console.is_terminal else Console(width=260), rows, marks=not options.quick)
    if options.write:
        write(rows, f"Medians of {size.rounds} rounds of inserts and queries, of {size.rounds * MORE} of other calls.")


if __name__ == "__main__":
    main()
