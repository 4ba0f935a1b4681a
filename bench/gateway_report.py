"""What the gateway's benchmark found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from bench import report
from bench.gateway_sides import ADAPTER, DIRECT, FOLDER, GATEWAY, TITLES, WIRE

METADATA_MARK = 1.5
"""How many times the direct call's time a list may take; a description, that of the direct call and of bare HTTP."""
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
            return "direct + wire", DATA_MARK if self.size else METADATA_MARK, (self.seconds(GATEWAY) or 0) / both
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
