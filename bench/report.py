"""What a benchmark found, for people: in the terminal, and in docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

FEWEST_ROUNDS = 3
PATIENCE_S = 15.0
"""After so long a case ends with the fewest rounds."""

Job = Callable[[], Collection[str]]
"""One piece of timed work; it returns the names that it was told, if it lists."""
Steps = Callable[[], Sequence[Job]]
"""Makes ready what is not timed, and gives the jobs of one round."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One job, once."""

    wall_s: float
    cpu_s: float
    names: Collection[str] = ()


@dataclass(slots=True)
class ClientRuns:
    """One client's runs of a job and the requests of one of them; `error` is why there are none."""

    runs: list[JobRun] = field(default_factory=list)
    requests: int = 0
    error: str = ""

    @property
    def wall_s(self) -> float:
        """The median."""
        return median(run.wall_s for run in self.runs)

    @property
    def cpu_s(self) -> float:
        """The median of the CPU time of the client's process."""
        return median(run.cpu_s for run in self.runs)


def side_by_side(
    ours: Steps, peer: Steps, rounds: int, failure: type[Exception]
) -> list[tuple[ClientRuns, ClientRuns]]:
    """Rounds in which both clients do their jobs, the one that begins changing; a pair for each job.

    A peer that fails with `failure` has no figures for any job; what we raise ends the benchmark.
    """
    pairs: list[tuple[ClientRuns, ClientRuns]] = []
    started = time.monotonic()
    for number in range(rounds):
        turns = [(0, ours), (1, peer)]
        for who, steps in turns if number % 2 == 0 else reversed(turns):
            jobs = steps()
            pairs = pairs or [(ClientRuns(), ClientRuns()) for _ in jobs]
            for pair, job in zip(pairs, jobs, strict=True):
                side = pair[who]
                try:
                    side.runs.append(_time_job(job))
                except failure as error:
                    if who == 0:
                        raise
                    side.error = str(error)
        if number + 1 >= FEWEST_ROUNDS and time.monotonic() - started > PATIENCE_S:
            break
    return pairs


def count_requests(steps: Steps, requests: Callable[[], int], failure: type[Exception]) -> list[int]:
    """The HTTP requests of each job in a round that is not timed; those of a job that fails with `failure` too."""
    numbers = []
    for job in steps():
        before = requests()
        with suppress(failure):
            job()
        numbers.append(requests() - before)
    return numbers


def _time_job(job: Job) -> JobRun:
    cpu, wall = time.process_time(), time.perf_counter()
    names = job()
    return JobRun(time.perf_counter() - wall, time.process_time() - cpu, names)


DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEADINGS = ("operation", "latency", "ours", "peer", "ratio", "mark", "CPU ratio", "requests", "answers")


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One operation on one server."""

    operation: str
    latency_ms: int
    ours: ClientRuns
    peer: ClientRuns
    mark: float
    """The ratio that is expected of us."""
    calls: int = 1
    expected: Collection[str] = ()
    """The names that a listing should give."""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer we are; None where the peer fails."""
        return None if self.peer.error else self.peer.wall_s / self.ours.wall_s

    @property
    def has_mark(self) -> bool:
        """Whether the ratio says something: a wrong answer takes less work."""
        return self.answers == "same"

    @property
    def missed(self) -> bool:
        """Whether we are below the mark."""
        return self.has_mark and self.ratio is not None and round(self.ratio, 2) < self.mark

    @property
    def answers(self) -> str:
        """Whether the peer's answer can be compared with ours, which is right."""
        if self.peer.error:
            return "the peer fails"
        given, expected = set(self.peer.runs[-1].names), set(self.expected)
        wrong = []
        if missing := expected - given:
            wrong.append(f"{len(missing):,} of {len(expected):,} missing")
        if more := given - expected:
            wrong.append(f"{len(more):,} too many that are not Lance")
        return f"**peer wrong**: {', '.join(wrong)}" if wrong else "same"

    def cells(self) -> list[str]:
        """The row as text, in the order of the headings."""
        failed = self.ratio is None
        return [
            self.operation,
            f"{self.latency_ms} ms" if self.latency_ms else "–",
            _ms(self.ours.wall_s / self.calls),
            "–" if failed else _ms(self.peer.wall_s / self.calls),
            "–" if self.ratio is None else f"**{self.ratio:.2f}**",
            f"≥ {self.mark:g} {'✗' if self.missed else '✓'}" if self.has_mark else "–",
            "–" if failed else f"{self.peer.cpu_s / self.ours.cpu_s:.2f}",
            f"{_per_call(self.ours, self.calls)} : {'–' if failed else _per_call(self.peer, self.calls)}",
            self.answers,
        ]


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one client."""

    client: str
    server: str
    rows: Sequence[ClientRow]


def show(console: Console, sections: Sequence[Section], *, marks: bool) -> None:
    """Print the tables and, if `marks` mean something at this size, what was missed."""
    for section in sections:
        table = Table(title=f"{section.client}: {section.server.replace('**', '')}", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in ("operation", "answers") else "right")
        for row in section.rows:
            table.add_row(*(cell.replace("**", "") for cell in row.cells()))
        console.print(table)
    console.print("ratio = peer / ours: above 1 we are faster. requests = ours : peer, for one call.")
    for line in misses(sections) if marks else ():
        console.print(f"missed: {line.replace('**', '')}")


def misses(sections: Sequence[Section]) -> list[str]:
    """Where we are below the mark."""
    return [
        f"{section.client}, {row.operation}{f' with {row.latency_ms} ms' if row.latency_ms else ''}: "
        f"{row.ratio:.2f} instead of {row.mark:g}"
        for section in sections
        for row in section.rows
        if row.missed
    ]


CLIENT_PACKAGES = ("lancehouse", "lance-namespace-impls", "lance-namespace", "urllib3", "pylance")


def machine(packages: Sequence[str] = CLIENT_PACKAGES) -> str:
    """What the figures depend on."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()[:2])
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"{system}; Python {platform.python_version()}; {versions}; load at the end (1 and 5 minutes): {load}"


def write(sections: Sequence[Section], rounds: int) -> None:
    """Put the tables into the document, between its markers."""
    medians = f"Medians of 3 to {rounds} rounds for lists, of more for single calls."
    lines = [f"{datetime.now(UTC):%Y-%m-%d}. {machine()}. {medians}"]
    for section in sections:
        lines += ["", f"### `{section.client}`: {section.server}", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", f"|{'|'.join('---' for _ in HEADINGS)}|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in section.rows]
    lines += ["", "### Marks missed in this run", ""]
    lines += [f"- {line}" for line in misses(sections)] or ["None."]
    put("bench-clients", lines)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of the document."""
    return [f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *rows)]


def put(place: str, lines: Sequence[str]) -> None:
    """Put lines into the document, between the markers of a place."""
    start, end = f"<!-- {place}: start -->", f"<!-- {place}: end -->"
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(start)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{DOCUMENT.name} has no place for the table: {start} … {end}")
    DOCUMENT.write_text("\n".join([before + start, *lines, end]) + after)


def _per_call(side: ClientRuns, calls: int) -> str:
    return f"{round(side.requests / calls, 2):,g}"


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
