"""`lancehouse serve` beside Iceberg's reference server, both on SQLite, in one run. `python -m bench.server --help`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import catalogs, chart, report
from bench.catalogs import FEW, LANCE, LOTS, MANAGED, MANY, MeasuredServer, table
from bench.load import Measured
from tests.live.committers import SCHEMA

CONNECTIONS = (1, 16)
COMMITS = 160
"""In one round, by all connections together; every connection has a new table of its own."""
MANY_VERSIONS_MARK, LANCE_MARK, MARK, PROPERTY_MARK = 5.0, 2.5, 1.5, 1.2
"""How many times our processor time the other server's is expected to be, at least."""
MEMORY_MB = 300
PICTURE = report.DOCUMENT.with_name("benchmarks-server.svg")
PACKAGES = ("lancehouse", "pyiceberg", "pylance", "sqlalchemy", "uvicorn")
HEADINGS = (
    *("operation", "connections", "ours, requests/s", "theirs", "ratio"),
    *("ours, CPU µs", "theirs", "CPU ratio", "mark", "ours, median ms", "theirs"),
)

Runner = Callable[[MeasuredServer, int, float], Measured]


@dataclass(frozen=True, slots=True)
class ServerCase:
    """What is measured: requests of a kind over some connections for some seconds."""

    title: str
    run: Runner
    mark: float | None = None


@dataclass(slots=True)
class ServerRow:
    """One case with one number of connections."""

    title: str
    connections: int
    mark: float | None
    ours: list[Measured] = field(default_factory=list)
    theirs: list[Measured] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times as many requests a second."""
        return rate(self.ours) / rate(self.theirs)

    @property
    def cpu_ratio(self) -> float:
        """How many times as much CPU time the other one takes for a request."""
        return cpu_us(self.theirs) / cpu_us(self.ours)

    @property
    def is_missed(self) -> bool:
        """Whether we save less processor time than expected."""
        return self.mark is not None and round(self.cpu_ratio, 1) < self.mark

    def cells(self) -> list[str]:
        """The row as text, in the order of the headings."""
        mark = "–" if self.mark is None else f"≥ {self.mark:g} {'✗' if self.is_missed else '✓'}"
        return [
            self.title,
            str(self.connections),
            *(f"{rate(side):,.0f}" for side in (self.ours, self.theirs)),
            f"**{self.ratio:.1f}**",
            *(f"{cpu_us(side):,.0f}" for side in (self.ours, self.theirs)),
            f"**{self.cpu_ratio:.1f}**",
            mark,
            *(f"{median(run.median_ms for run in side):.2f}" for side in (self.ours, self.theirs)),
        ]


def rate(runs: Sequence[Measured]) -> float:
    """Requests a second, the median of the rounds."""
    return median(run.requests / run.wall_s for run in runs)


def cpu_us(runs: Sequence[Measured]) -> float:
    """CPU time of the server for a request, of all rounds together: the clock of the kernel is a coarse one."""
    return max(sum(run.server_cpu_s for run in runs), 0.01) / sum(run.requests for run in runs) * 1e6


def loads(path: str) -> Runner:
    """Reads."""
    return lambda server, connections, seconds: server.run("gets", [path], connections, seconds=seconds)


def commits(kind: str, properties: dict[str, str]) -> Runner:
    """So many commits on new tables, as their cost grows with the versions that a table has."""

    def run(server: MeasuredServer, connections: int, seconds: float) -> Measured:  # noqa: ARG001
        return server.run(
            kind, server.new_tables(connections, properties), connections, requests=COMMITS // connections
        )

    return run


def creates(properties: dict[str, str]) -> Runner:
    """New tables."""
    body = {"schema": SCHEMA, "properties": properties}
    tables = f"/namespaces/{catalogs.BENCH}/tables"
    return lambda server, connections, seconds: server.run("creates", [tables], connections, seconds=seconds, body=body)


def cases(many: int) -> list[ServerCase]:
    """All of them."""
    few, lots = table(f"lance_{FEW}"), table(f"lance_{LOTS}")
    return [
        ServerCase(f"LoadTable, Lance, {FEW} version", loads(few), LANCE_MARK),
        ServerCase(f"LoadTable, Lance, {LOTS} versions", loads(lots), MANY_VERSIONS_MARK),
        ServerCase(
            f"LoadTable, Lance, {LOTS} versions, `snapshots=refs`", loads(f"{lots}?snapshots=refs"), MANY_VERSIONS_MARK
        ),
        ServerCase("LoadTable, Iceberg", loads(table("iceberg")), MARK),
        ServerCase("Commit of a version, Lance", commits("swaps", MANAGED), MARK),
        ServerCase("Commit of a property, Iceberg", commits("properties", {}), PROPERTY_MARK),
        ServerCase("CreateTable, Lance", creates(LANCE)),
        ServerCase("CreateTable, Iceberg", creates({})),
        ServerCase(f"ListTables, {many:,} tables", loads(f"/namespaces/{MANY}/tables")),
    ]


def measure(
    pair: tuple[MeasuredServer, MeasuredServer], many: int, rounds: int, seconds: float, progress: Progress
) -> list[ServerRow]:
    """Every case, in turns; before the first round both are warmed up."""
    todo = [(case, connections) for case in cases(many) for connections in CONNECTIONS]
    task = progress.add_task("", total=len(todo))
    rows = []
    for case, connections in todo:
        progress.update(task, description=f"{case.title}, {connections} connections")
        row = ServerRow(case.title, connections, case.mark)
        for server in pair:
            case.run(server, connections, seconds)
        for number in range(rounds):
            sides = list(zip(pair, (row.ours, row.theirs), strict=True))
            for server, runs in sides if number % 2 == 0 else reversed(sides):
                runs.append(case.run(server, connections, seconds))
        rows.append(row)
        progress.advance(task)
    return rows


def findings(rows: Sequence[ServerRow], memory: tuple[float, float]) -> list[str]:
    """What is expected besides the ratios, and what was missed."""
    found = {(row.title, row.connections): row for row in rows}
    few, refs = (f"LoadTable, Lance, {FEW} version", f"LoadTable, Lance, {LOTS} versions, `snapshots=refs`")
    slower = [rate(found[few, n].ours) / rate(found[refs, n].ours) for n in CONNECTIONS]
    busiest = max(sum(run.own_cpu_s for run in row.ours) / sum(run.wall_s for run in row.ours) for row in rows)
    return [
        f"- Memory of the largest process at the end: ours {memory[0]:,.0f} MB (expected under {MEMORY_MB}), "
        f"theirs {memory[1]:,.0f} MB.",
        f"- A LoadTable of {LOTS} versions with `snapshots=refs`, the same bytes as with {FEW}, takes "
        f"{' and '.join(f'{ratio:.2f}' for ratio in slower)} times as long as of {FEW} (1 and 16 connections).",
        f"- The program that sends the requests took at most {busiest:.0%} of one core.",
        *(
            f"- Missed: {row.title}, {row.connections} connections: CPU {row.cpu_ratio:.1f} instead of {row.mark:g}."
            for row in rows
            if row.is_missed
        ),
    ]


def show(console: Console, rows: Sequence[ServerRow], lines: Sequence[str]) -> None:
    """Print it."""
    shown = Table(title="lancehouse serve (ours) and Iceberg's reference server (theirs)", title_justify="left")
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "operation" else "right")
    for row in rows:
        shown.add_row(*(cell.replace("**", "").replace("`", "") for cell in row.cells()))
    console.print(shown)
    for line in lines:
        console.print(line)


def write(rows: Sequence[ServerRow], lines: Sequence[str], rounds: int, seconds: float) -> None:
    """Put table and picture into the documents."""
    bars = [(f"{row.title.replace('`', '')} ({row.connections})", row.cpu_ratio) for row in rows]
    PICTURE.write_text(chart.bars("CPU for a request: Iceberg's reference server / ours (connections)", bars, MARK))
    report.put(
        "bench-server",
        [
            f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. {rounds} rounds of {seconds:g} s, medians.",
            "",
            f"![How many times as many requests a second]({PICTURE.name})",
            "",
            f"| {' | '.join(HEADINGS)} |",
            f"|{'|'.join('---' for _ in HEADINGS)}|",
            *(f"| {' | '.join(row.cells())} |" for row in rows),
            "",
            *lines,
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000, help="in the namespace that is listed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one round")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the table and the picture into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    many, rounds, seconds = (96, 1, 0.2) if options.quick else (options.tables, options.rounds, options.seconds)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        progress,
        catalogs.start(Path(folder), many) as pair,
    ):
        rows = measure(pair, many, rounds, seconds, progress)
        memory = (pair[0].memory_mb(), pair[1].memory_mb())
    lines = findings(rows, memory)
    console = Console()
    show(console if console.is_terminal else Console(width=190), rows, lines)
    if options.write:
        write(rows, lines, rounds, seconds)


if __name__ == "__main__":
    main()
