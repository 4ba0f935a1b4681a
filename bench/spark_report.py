"""What the benchmark of Spark found, for people: in the terminal, and in docs/benchmarks.md with a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

from rich.console import Console
from rich.table import Table

from bench import chart, report
from bench.spark_cases import JOB_S, OURS, PEERS, PYLANCE, SparkCase
from bench.spark_data import Amount
from bench.spark_process import TICKS, WorkAnswer

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
