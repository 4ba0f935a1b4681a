"""Commits of Lance, plain and arbitrated by catalogs, side by side in one run. `python -m bench.commits --help`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import lance
from lance_namespace import CreateNamespaceRequest, connect
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Shown

from bench import chart, report
from bench.catalogs import family
from bench.load import cpu_s
from bench.writers import ROWS, BenchTable, WriterRun, Writers, WriterWork
from lancehouse.properties import IMPL, MANAGED_BY
from tests.servers.lancehouse import start_lancehouse
from tests.servers.postgres import new_database, start_postgres
from tests.servers.reference import start_reference

PLAIN, DIR, SQLITE, POSTGRES, FOREIGN = (
    *("plain Lance", "`dir` namespace", "ours, SQLite", "ours, Postgres", "Iceberg's reference server"),
)
GROWING = (PLAIN, SQLITE, FOREIGN)
"""Whose commit times are watched over many versions."""
WAYS = {"by name": False, "held dataset": True}
MARKS = {"by name": 6.0, "held dataset": 3.5}
"""How many times plain Lance's time a commit may take, on a local disk, where plain Lance asks nobody.

By name, a commit is two requests more, of which one is a durable transaction; on a held dataset it is one.
"""
GROWTH_MARK = 1.25
"""How many times plain Lance's time one writer may take on ours; and how many times its growth with the versions."""
T = TypeVar("T")

NAMESPACE = "bench"
CLIENT = "lancehouse.IcebergNamespace"
PICTURE = report.DOCUMENT.with_name("benchmarks-commits.svg")
PACKAGES = ("lancehouse", "pylance", "lance-namespace", "urllib3", "sqlalchemy", "uvicorn")
HEADINGS = (
    *("commits go to", "how", "writers", "commits/s", "time, plain = 1", "mark", "median ms", "longest ms"),
    *("writers' CPU ms", "server's CPU ms", "given up"),
)


@dataclass(frozen=True, slots=True)
class CommitsSize:
    """How much is measured."""

    rounds: int
    warmups: int
    """Rounds before them that do not count."""
    writers: Sequence[int]
    commits: int
    """In one round, by all writers together."""
    levels: Sequence[int]
    """At how many versions a commit is timed."""
    sample: int
    """By how many commits in one round."""


FULL = CommitsSize(rounds=5, warmups=1, writers=(1, 8), commits=160, levels=(1, 250, 500, 1000), sample=10)
QUICK = CommitsSize(rounds=1, warmups=0, writers=(1, 2), commits=12, levels=(1, 20), sample=4)


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """Where commits go."""

    name: str
    name_table: Callable[[], BenchTable]
    """One that is not there yet."""
    pids: Sequence[int] = ()
    """The processes of its server."""

    def new_table(self) -> BenchTable:
        """With a first version."""
        return self.name_table().create()


@dataclass(frozen=True, slots=True)
class Round:
    """What all writers did together."""

    runs: Sequence[WriterRun]
    server_cpu_s: float

    @property
    def times(self) -> list[float]:
        """Of each commit, in seconds."""
        return [ended - begun for run in self.runs for begun, ended in run.commits]

    @property
    def rate(self) -> float:
        """Commits a second, as long as all writers have something to do."""
        begin, end = min(run.started for run in self.runs), min(run.ended for run in self.runs)
        return sum(ended <= end for run in self.runs for _, ended in run.commits) / (end - begin)


@dataclass(slots=True)
class CommitsRow:
    """One place, committed to in one way by so many writers."""

    place: str
    way: str
    writers: int
    plain: CommitsRow | None
    """The same with plain Lance; None for itself."""
    rounds: list[Round] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Commits a second, the median of the rounds."""
        return median(each.rate for each in self.rounds)

    @property
    def ratio(self) -> float:
        """How many times as long as with plain Lance a commit takes."""
        return self.plain.rate / self.rate if self.plain else 1.0

    @property
    def mark(self) -> float | None:
        """What is expected of us."""
        return MARKS[self.way] if self.place == SQLITE and self.writers == 1 else None

    @property
    def missed(self) -> bool:
        """Whether it is slower than expected."""
        return self.mark is not None and round(self.ratio, 2) > self.mark

    def cells(self) -> list[str]:
        """The row as text, in the order of the headings."""
        times = [seconds * 1000 for each in self.rounds for seconds in each.times]
        own = sum(run.cpu_s for each in self.rounds for run in each.runs) * 1000
        server = sum(each.server_cpu_s for each in self.rounds) * 1000
        return [
            self.place,
            self.way,
            str(self.writers),
            f"{self.rate:,.0f}",
            f"**{self.ratio:.2f}**",
            "–" if self.mark is None else f"≤ {self.mark:g} {'✗' if self.missed else '✓'}",
            f"{median(times):.1f}",
            f"{max(times):,.0f}",
            f"{own / len(times):.1f}",
            f"{server / len(times):.1f}" if server else "–",
            str(sum(run.failures for each in self.rounds for run in each.runs)),
        ]


@dataclass(slots=True)
class VersionsLevel:
    """The times in seconds of overwrites of a table with so many versions, and in turns with them of new tables."""

    versions: int
    aged: list[float] = field(default_factory=list)
    """Empty where a table with so many versions is a new one."""
    young: list[float] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """The median time."""
        return median(self.aged or self.young) * 1000

    @property
    def growth(self) -> float:
        """How many times as long as on a new table."""
        return median(self.aged or self.young) / median(self.young)

    @property
    def mean_growth(self) -> float:
        """The same with the commits that now and then take longer."""
        return fmean(self.aged or self.young) / fmean(self.young)


@dataclass(frozen=True, slots=True)
class Curve:
    """The commits of one place at each number of versions."""

    place: str
    levels: Sequence[VersionsLevel]

    @property
    def growth(self) -> float:
        """How many times as long a commit takes with the most versions."""
        return self.levels[-1].growth


@contextmanager
def start(folder: Path) -> Iterator[list[CommitTarget]]:
    """All places on one disk, until the block ends."""
    numbers = count()

    def in_catalog(catalog: str, **properties: str) -> Callable[[], BenchTable]:
        settings = {**properties, MANAGED_BY: IMPL}
        connect(CLIENT, settings).create_namespace(CreateNamespaceRequest(id=[catalog, NAMESPACE]))
        return lambda: BenchTable([catalog, NAMESPACE, f"t{next(numbers)}"], CLIENT, settings)

    def in_folder() -> BenchTable:
        # A folder for each, so that what this namespace keeps of the tables of earlier rounds does not count.
        root = folder / "dir" / f"d{next(numbers)}"
        return BenchTable(["t"], "dir", {"root": str(root), "table_version_tracking_enabled": "true"})

    with ExitStack() as stack:
        quiet = ["--log-level", "warning"]
        database = new_database(stack.enter_context(start_postgres()))
        sqlite = stack.enter_context(start_lancehouse(folder / "sqlite", options=quiet))
        postgres = stack.enter_context(start_lancehouse(folder / "postgres", db=database, options=quiet))
        foreign = stack.enter_context(start_reference(folder / "foreign", java=()))
        root = str(folder / "foreign" / "tables")
        yield [
            CommitTarget(PLAIN, lambda: BenchTable([str(folder / "plain" / f"t{next(numbers)}")])),
            CommitTarget(DIR, in_folder),
            CommitTarget(SQLITE, in_catalog(sqlite.warehouse, endpoint=sqlite.iceberg), family(sqlite.pid)),
            CommitTarget(POSTGRES, in_catalog(postgres.warehouse, endpoint=postgres.iceberg), family(postgres.pid)),
            CommitTarget(FOREIGN, in_catalog("warehouse", endpoint=foreign.uri, root=root), family(foreign.pid)),
        ]


def measure(
    places: Sequence[CommitTarget], writers: Writers, size: CommitsSize, progress: Progress
) -> list[CommitsRow]:
    """Appends, in turns; before the first round each place is warmed up."""
    cases = [(way, number) for way in WAYS for number in size.writers]
    turns = size.warmups + size.rounds
    task = progress.add_task("", total=len(cases) * turns * len(places))
    rows: list[CommitsRow] = []
    for way, number in cases:
        plain = CommitsRow(PLAIN, way, number, None)
        of_case = [plain, *(CommitsRow(place.name, way, number, plain) for place in places[1:])]
        for turn in range(turns):
            pairs = list(zip(places, of_case, strict=True))
            for place, row in in_turn(pairs, turn):
                progress.update(task, description=f"{place.name}, {way}, writers: {number}")
                done = one_round(place, writers, number, size.commits, held=WAYS[way])
                if turn >= size.warmups:
                    row.rounds.append(done)
                progress.advance(task)
        rows += of_case
    progress.update(task, description="appends: done")
    return rows


def one_round(place: CommitTarget, writers: Writers, number: int, commits: int, *, held: bool) -> Round:
    """Appends to a new table."""
    table = place.new_table()
    with writers.on(WriterWork(table, held=held), number) as run:
        before = cpu_s(place.pids)
        done = Round(run(commits), cpu_s(place.pids) - before)
    made = 1 + number + commits
    check(place, table, rows=made, versions=made, given_up=sum(run.failures for run in done.runs))
    return done


def grow(places: Sequence[CommitTarget], writers: Writers, size: CommitsSize, progress: Progress) -> list[Curve]:
    """Overwrites of tables of one fragment by one writer, so that manifests stay small.

    A table of each place is given more and more versions. At each number of them, it and a new one take turns.
    """
    curves = [Curve(place.name, [VersionsLevel(versions) for versions in size.levels]) for place in places]
    tables = [place.new_table() for place in places]
    task = progress.add_task("", total=len(size.levels) * (size.rounds + 1) * len(places))
    for number, versions in enumerate(size.levels):
        for place, table in zip(places, tables, strict=True):
            progress.update(task, description=f"{place.name}: to {versions:,} versions")
            fill(writers, table, versions)
            progress.advance(task)
        for turn in range(size.rounds):
            for place, table, curve in in_turn(list(zip(places, tables, curves, strict=True)), turn):
                progress.update(task, description=f"{place.name}: at {versions:,} versions")
                level = curve.levels[number]
                sides = [(place.new_table(), level.young), (table, level.aged)]
                for each, times in in_turn(sides, turn) if versions > 1 else sides[:1]:
                    times += overwrites(writers, each, size.sample)
                progress.advance(task)
    for place, table in zip(places, tables, strict=True):
        check(place, table, rows=1, versions=size.levels[-1] + size.rounds * (1 + size.sample))
    progress.update(task, description="versions: done")
    return curves


def fill(writers: Writers, table: BenchTable, versions: int) -> None:
    """Give a table so many versions, if it has fewer."""
    missing = versions - lance.dataset(table.location()).version
    if missing > 0:
        overwrites(writers, table, missing - 1)


def overwrites(writers: Writers, table: BenchTable, commits: int) -> list[float]:
    """The times of commits by one writer, in seconds, after one to get ready."""
    with writers.on(WriterWork(table, "overwrite"), 1) as run:
        return Round(run(commits), 0.0).times


def in_turn(of: Sequence[T], turn: int) -> list[T]:
    """The same, but another one begins."""
    return [*of[turn % len(of) :], *of[: turn % len(of)]]


def check(place: CommitTarget, table: BenchTable, *, rows: int, versions: int, given_up: int = 0) -> None:
    """A plain reader sees every commit once; of those that Lance gave up, it may see any."""
    dataset = lance.dataset(table.location())
    more_rows, more_versions = dataset.count_rows() - rows * ROWS, dataset.version - versions
    if not (0 <= more_rows <= given_up * ROWS and 0 <= more_versions <= given_up):
        raise AssertionError(
            f"{place.name}: version {dataset.version} with {dataset.count_rows()} rows, "
            f"expected {versions} with {rows * ROWS}, given up {given_up}"
        )


def growth_headings(size: CommitsSize) -> list[str]:
    """Of the table of commit times over versions."""
    return ["commits go to", *(f"at {level:,}" for level in size.levels), "growth, plain = 1", "mark", "of means"]


def growth_rows(curves: Sequence[Curve]) -> list[list[str]]:
    """The table of commit times over versions, as text."""
    rows = []
    for curve in curves:
        relative = curve.growth / curves[0].growth
        is_met = round(relative, 2) <= GROWTH_MARK
        rows.append(
            [
                curve.place,
                *(f"{level.ms:.1f} ms ({level.growth:.2f})" for level in curve.levels),
                f"**{relative:.2f}**",
                f"≤ {GROWTH_MARK:g} {'✓' if is_met else '✗'}" if curve.place == SQLITE else "–",
                f"{curve.levels[-1].mean_growth / curves[0].levels[-1].mean_growth:.2f}",
            ]
        )
    return rows


def findings(rows: Sequence[CommitsRow], curves: Sequence[Curve], size: CommitsSize) -> list[str]:
    """What was missed."""
    plain, ours = (next(curve for curve in curves if curve.place == name).growth for name in (PLAIN, SQLITE))
    missed = [
        f"- Missed: {row.place}, {row.way}, one writer: {row.ratio:.2f} instead of {row.mark:g} times as long."
        for row in rows
        if row.missed
    ]
    if round(ours / plain, 2) > GROWTH_MARK:
        missed.append(
            f"- Missed: growth up to {size.levels[-1]:,} versions: {ours / plain:.2f} instead of {GROWTH_MARK:g} times "
            "plain Lance's."
        )
    return missed


def show(console: Console, rows: Sequence[CommitsRow], curves: Sequence[Curve], size: CommitsSize) -> None:
    """Print it."""
    tables = [
        ("Appends", HEADINGS, [row.cells() for row in rows]),
        ("Overwrites, one writer, by name: median time", growth_headings(size), growth_rows(curves)),
    ]
    for title, headings, cells in tables:
        shown = Shown(title=title, title_justify="left")
        for heading in headings:
            shown.add_column(heading, justify="left" if heading in ("commits go to", "how") else "right")
        for row in cells:
            shown.add_row(*(cell.replace("**", "").replace("`", "") for cell in row))
        console.print(shown)
    for line in findings(rows, curves, size) if size is not QUICK else ():
        console.print(line)


def write(rows: Sequence[CommitsRow], curves: Sequence[Curve], size: CommitsSize) -> None:
    """Put tables and picture into the documents."""
    lines = [(curve.place, [(level.versions, level.ms) for level in curve.levels]) for curve in curves]
    PICTURE.write_text(chart.lines("Time of a commit, in ms, and how many versions the table has", lines))
    report.put(
        "bench-commits",
        [
            f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. "
            f"{size.rounds} rounds of {size.commits} commits, over versions of {size.sample}; medians.",
            "",
            *report.table(HEADINGS, [row.cells() for row in rows]),
            "",
            f"![Time of a commit over the versions of a table]({PICTURE.name})",
            "",
            *report.table(growth_headings(size), growth_rows(curves)),
            "",
            *(findings(rows, curves, size) or ["- No mark was missed."]),
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.commits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--commits", type=int, default=FULL.commits, help="in one round, by all writers together")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put tables and picture into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else replace(FULL, rounds=options.rounds, commits=options.commits)
    os.environ["LANCE_LOG"] = "error"  # of the writers: Lance warns of every conflict
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        progress,
        Writers(max(size.writers)) as writers,
        start(Path(folder)) as places,
    ):
        rows = measure(places, writers, size, progress)
        curves = grow([place for place in places if place.name in GROWING], writers, size, progress)
    console = Console()
    show(console if console.is_terminal else Console(width=190), rows, curves, size)
    if options.write:
        write(rows, curves, size)


if __name__ == "__main__":
    main()
