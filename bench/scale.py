"""100,000 tables beside 1,000: two servers on one Postgres, in one run, in turns. `python -m bench.scale --help`."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from unittest.mock import patch
from urllib.parse import quote

import psycopg
from rich.console import Console
from rich.table import Table

from bench import report
from bench.catalogs import family
from bench.scale_rows import (
    FIRST,
    MAINTENANCE,
    WAREHOUSE,
    CatalogSize,
    ScaleCatalog,
    cpu_s,
    table_name,
    table_path,
)
from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import ANYBODY, Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.principals import NewPrincipal
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.cli.remote_principals import RemotePrincipals
from lancehouse.settings import ClientSettings
from lancehouse.store import audit
from tests.servers.moto import start_moto
from tests.servers.postgres import new_database, start_postgres

MARK = 1.5
"""How many times the processor time of the small catalog the large one's may be."""
POSTGRES = {"shared_buffers": "512MB", "max_connections": "200", "autovacuum": "off"}
"""The database fits into memory, as it should on a server; a vacuum would count for whoever is measured just then."""
PACKAGES = ("lancehouse", "psycopg", "sqlalchemy", "uvicorn")
HEADINGS = (
    *("operation", "server, CPU ms", "Postgres, CPU ms", "median ms"),
    *("server, CPU ms", "Postgres, CPU ms", "median ms", "CPU ratio", "mark", "median ratio"),
)
CALLER = Caller(ANYBODY, "bench/1", "bench")
PLANNINGS, CLAIMS, SWEEPS = 1800, 3600, 1
"""What a scheduler does in an hour: it plans every 2 s, looks for work every second, and goes through all tables."""

Send = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ScaleRun:
    """What one operation took, on average; the time of the wall is a median."""

    server_s: float
    postgres_s: float
    wall_s: float

    @property
    def cpu_s(self) -> float:
        """Processor time of all processes."""
        return self.server_s + self.postgres_s

    def cells(self) -> list[str]:
        """The figures as text, in milliseconds."""
        return [f"{seconds * 1000:,.2f}" for seconds in (self.server_s, self.postgres_s, self.wall_s)]


@dataclass(slots=True)
class ScaleRow:
    """One operation in both catalogs."""

    title: str
    has_mark: bool
    runs: list[list[ScaleRun]] = field(default_factory=list)
    """By catalog, then by round."""

    def middle(self, which: int) -> ScaleRun:
        """The median of the rounds in a catalog."""
        runs = self.runs[which]
        return ScaleRun(*(median(getattr(run, name) for run in runs) for name in ("server_s", "postgres_s", "wall_s")))

    @property
    def ratio(self) -> float:
        """How many times as much processor time it takes in the large catalog."""
        small, large = self.middle(0), self.middle(-1)
        return large.cpu_s / max(small.cpu_s, 1e-9)

    @property
    def is_missed(self) -> bool:
        """Whether it grows more than it may."""
        return self.has_mark and round(self.ratio, 2) > MARK

    def cells(self) -> list[str]:
        """The row as text, in the order of the headings."""
        small, large = self.middle(0), self.middle(-1)
        mark = f"≤ {MARK:g} {'✗' if self.is_missed else '✓'}" if self.has_mark else "–"
        slower = large.wall_s / max(small.wall_s, 1e-9)
        return [self.title, *small.cells(), *large.cells(), f"**{self.ratio:.2f}**", mark, f"{slower:.2f}"]


@dataclass(frozen=True, slots=True)
class ScaleCase:
    """An operation: for a catalog, what does it once, again and again."""

    title: str
    prepare: Callable[[ScaleCatalog], Send]
    times: int
    """How often in a round."""
    has_mark: bool = True
    is_inside: bool = False
    """Whether it is done in this process, not by the servers."""


class ScaleBench:
    """Two catalogs of different sizes, and what is measured in them."""

    def __init__(self, catalogs: Sequence[ScaleCatalog], rounds: int, share: float) -> None:
        self._catalogs = catalogs
        self._rounds = rounds
        self._share = share
        """Of the repetitions of a full run."""
        with psycopg.connect(catalogs[0].url, autocommit=True) as connection:
            pid = connection.info.backend_pid  # a process that ends with the connection
            self._postmaster = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def run(self, cases: Sequence[ScaleCase]) -> Iterator[ScaleRow]:
        """Measure each case in both catalogs, in turns; before the first round both are warmed up."""
        for case in cases:
            row = ScaleRow(case.title, case.has_mark, [[] for _ in self._catalogs])
            sends = [case.prepare(catalog) for catalog in self._catalogs]
            times = max(2, int(case.times * self._share))
            for send in sends:
                for _ in range(2):
                    send()
            for number in range(self._rounds):
                sides = list(zip(self._catalogs, sends, row.runs, strict=True))
                for catalog, send, runs in sides if number % 2 == 0 else reversed(sides):
                    runs.append(self.measure(catalog, send, times, is_inside=case.is_inside))
            yield row

    def measure(self, catalog: ScaleCatalog, send: Send, times: int, *, is_inside: bool = False) -> ScaleRun:
        """Do something so many times."""
        servers = [os.getpid()] if is_inside else [pid for server in catalog.servers for pid in family(server.pid)]
        walls = []
        before, postgres = cpu_s(servers) + catalog.others_s, self._postgres_clocks()
        for _ in range(times):
            started = time.perf_counter()
            send()
            walls.append(time.perf_counter() - started)
        spent = cpu_s(servers) + catalog.others_s - before
        after = self._postgres_clocks()
        own = sum(clock - postgres.get(pid, 0.0) for pid, clock in after.items())
        return ScaleRun(spent / times, own / times, median(walls))

    def _postgres_clocks(self) -> dict[int, float]:
        clocks = {}
        for pid in family(self._postmaster):
            try:
                clocks[pid] = cpu_s([pid])
            except OSError:  # it has just ended
                continue
        return clocks


def get(path: str, times: int, *, has_mark: bool = True, title: str = "") -> ScaleCase:
    """The same question again and again."""
    return ScaleCase(title or path, lambda catalog: partial(catalog.send, "GET", path), times, has_mark)


def load_new(catalog: ScaleCatalog) -> Send:
    """LoadTable of tables that the server has not loaded before."""
    paths = catalog.tables()
    return lambda: catalog.send("GET", f"{next(paths)}?snapshots=refs")


def load_known(catalog: ScaleCatalog) -> Send:
    """LoadTable of a few tables, again and again."""
    paths = cycle([f"{table_path(FIRST, table_name(number))}?snapshots=refs" for number in range(9)])
    return lambda: catalog.send("GET", next(paths))


def list_pages(catalog: ScaleCatalog) -> Send:
    """ListTables by pages, one page at a time, from the first to the last."""
    pages = catalog.pages(f"/iceberg/v1/{WAREHOUSE}/namespaces/{FIRST}/tables", catalog.size.per_namespace // 10)
    return lambda: next(pages)


def commit(catalog: ScaleCatalog) -> Send:
    """Commits of versions, to one table after the other."""
    numbers = cycle(range(10))

    def send() -> None:
        name = table_name(100 + next(numbers)) if catalog.size.per_namespace > 200 else table_name(next(numbers))
        catalog.commit(FIRST, name)

    return send


def create(catalog: ScaleCatalog) -> Send:
    """CreateTable."""
    return lambda: catalog.create_table(FIRST)


def create_and_drop(catalog: ScaleCatalog) -> Send:
    """CreateTable, then DropTable."""
    return lambda: catalog.send("DELETE", catalog.create_table(FIRST))


def load_by_grants(catalog: ScaleCatalog) -> Send:
    """LoadTable by a principal whom the server has not seen for two seconds, with grants on tables and groups."""
    holders = catalog.holders()

    def send() -> None:
        principal, name = next(holders)
        catalog.send("GET", f"{table_path(FIRST, name)}?snapshots=refs", token=f"lh_{principal}")

    return send


def follow_events(catalog: ScaleCatalog) -> Send:
    """The next events of who has read all but the last hundred."""
    last = catalog.send_json("GET", f"/iceberg/v1/{WAREHOUSE}/lancehouse/events?after=now")["next"]
    return partial(catalog.send, "GET", f"/iceberg/v1/{WAREHOUSE}/lancehouse/events?after={last - 100}&limit=100")


def open_catalog(catalog: ScaleCatalog) -> Catalog:
    """The catalog in this process, as a maintenance worker has it."""
    database = open_database(catalog.url)
    catalog.stack.callback(database.close)
    wanted = Warehouse(
        0, WAREHOUSE, f"{catalog.bucket.uri}/main", storage=dict(catalog.bucket.options), maintenance=MAINTENANCE
    )
    return Catalog(database, record_warehouses(database, [wanted], wanted))


def plan(catalog: ScaleCatalog) -> Send:
    """A round of planning in which nothing was committed."""
    maintenance = open_catalog(catalog).maintenance
    maintenance.become_scheduler("bench", 3600)
    maintenance.sweep(0)

    def send() -> None:
        maintenance.plan_commits()
        maintenance.sweep(3600)

    return send


def plan_commits(catalog: ScaleCatalog) -> Send:
    """A round of planning with commits of the last minute, to ten tables."""
    for number in range(10):
        catalog.commit(FIRST, table_name(number))
    return plan(catalog)


def claim(catalog: ScaleCatalog) -> Send:
    """A look for tables that are due, of which there are none."""
    maintenance = open_catalog(catalog).maintenance
    return lambda: maintenance.claim("bench", 1, 8)


def sweep(catalog: ScaleCatalog) -> Send:
    """Go through all tables, as a scheduler does every hour."""
    maintenance = open_catalog(catalog).maintenance
    return lambda: maintenance.sweep(0)


def start(catalog: ScaleCatalog) -> Send:
    """Start a server, until it is ready, and stop it."""

    def send() -> None:
        with catalog.start(name="third") as server:
            catalog.others_s += cpu_s(family(server.pid))

    return send


CONSOLE = f"in={WAREHOUSE}&level={FIRST}"
TABLES = f"/iceberg/v1/{WAREHOUSE}/namespaces/{FIRST}/tables"
PLANNING, CLAIMING, SWEEPING = (
    "scheduler: a round of planning",
    "scheduler: a look for work",
    "scheduler: all tables, once an hour",
)

HOUR = "scheduler: an hour without commits, reckoned of these"


def cases(small: CatalogSize) -> list[ScaleCase]:
    """All of them."""
    each = small.per_namespace
    return [
        ScaleCase("LoadTable, never loaded by this server", load_new, 120),
        ScaleCase("LoadTable, loaded before", load_known, 400),
        get(TABLES, 60, title=f"ListTables, a namespace of {each:,}"),
        ScaleCase(f"ListTables, a page of {each // 10:,}", list_pages, 100),
        get(f"/iceberg/v1/{WAREHOUSE}/namespaces", 150, title=f"ListNamespaces, {small.namespaces + 2}"),
        get("/console/v1/search?q=orders_1", 20, title="search in the console: one table by its name"),
        get(f"/console/v1/search?q={FIRST}+{table_name(7)[-4:]}", 20, title="search: a namespace and a part of a name"),
        get(f"/console/v1/namespaces?in={WAREHOUSE}", 100, title="tree in the console: namespaces"),
        get(f"/console/v1/entries?{CONSOLE}&limit=1000", 40, title=f"tree: {each:,} tables of a namespace"),
        ScaleCase("commit of a version", commit, 100),
        ScaleCase("CreateTable", create, 20),
        ScaleCase("CreateTable and DropTable", create_and_drop, 15),
        ScaleCase("LoadTable by a principal with 75 grants on tables, checked anew", load_by_grants, 90),
        get(
            f"/lancehouse/v1/who-can?warehouse={WAREHOUSE}&namespace={FIRST}&table={quote(table_name(30))}",
            60,
            title="who can use a table",
        ),
        ScaleCase("events after a position", follow_events, 60),
        get(f"/lancehouse/v1/audit?name={table_name(11)}&warehouse={WAREHOUSE}&limit=10", 60, title="audit by a name"),
        get("/health/ready", 60, title="`/health/ready`"),
        get("/metrics", 30, title="`/metrics`"),
        # As many tables in both catalogs: of 1,000, fewer are due within an hour than are shown by default.
        get("/maintenance/v1/status?limit=5", 30, title="status of maintenance, 5 tables"),
        ScaleCase(PLANNING, plan, 60, is_inside=True),
        ScaleCase("the same, with commits to 10 tables", plan_commits, 60, is_inside=True),
        ScaleCase(CLAIMING, claim, 60, is_inside=True),
        ScaleCase(SWEEPING, sweep, 1, has_mark=False, is_inside=True),
        ScaleCase("start of a server, until it is ready; its median with the stop", start, 1),
    ]


def add_scheduler(rows: Sequence[ScaleRow]) -> ScaleRow:
    """All that a scheduler does in an hour, of its parts."""
    known = {row.title: row for row in rows}
    parts = [(known[PLANNING], PLANNINGS), (known[CLAIMING], CLAIMS), (known[SWEEPING], SWEEPS)]
    whole = ScaleRow(HOUR, True)
    for which in range(2):
        sums = [
            sum(getattr(row.middle(which), name) * times for row, times in parts)
            for name in ("server_s", "postgres_s", "wall_s")
        ]
        whole.runs.append([ScaleRun(*sums)])
    return whole


def create_principals(catalog: ScaleCatalog, count: int) -> str:
    """Principals with secrets, as the CLI creates them through a server's API."""
    properties = {"endpoint": catalog.servers[0].iceberg, "auth_token": catalog.token}
    remote = RemotePrincipals(ClientSettings.parse("iceberg", properties))
    pids = family(catalog.servers[0].pid)
    before, started = cpu_s(pids), time.perf_counter()
    made = remote.create_many([NewPrincipal(f"person-{number}") for number in range(count)])
    seconds, spent = time.perf_counter() - started, cpu_s(pids) - before
    remote.close()
    assert len({each.credential.client_secret for each in made if each.credential}) == count
    return (
        f"{count:,} principals with secrets through the REST API, as the CLI does it, by one connection: "
        f"{seconds:.1f} s, of which the server computed for {spent:.1f} s ({spent / seconds:.1f} cores; "
        f"{spent / count * 1000:.0f} ms a principal)"
    )


def measure_audit(bench: ScaleBench, catalog: ScaleCatalog, times: int, rounds: int) -> str:
    """What the audit's row adds to a commit: the same commits in this process with the row and without it."""
    opened = open_catalog(catalog)
    warehouse = opened.warehouses[WAREHOUSE]
    names = cycle([table_name(50 + number) for number in range(8)])

    def send() -> None:
        name = next(names)
        opened.commits.commit(CALLER, warehouse, (FIRST,), name, catalog.next_commit(FIRST, name))

    runs: dict[bool, list[ScaleRun]] = {True: [], False: []}
    for number in range(rounds * 2 + 2):
        has_row = number % 2 == 0
        with ExitStack() as stack:
            if not has_row:
                stack.enter_context(patch.object(audit, "insert_change", lambda *_: None))
            run = bench.measure(catalog, send, times, is_inside=True)
        if number >= 2:
            runs[has_row].append(run)
    cpu, wall = (
        {key: median(getattr(run, name) for run in each) * 1000 for key, each in runs.items()}
        for name in ("cpu_s", "wall_s")
    )
    return (
        f"The audit's row in a commit, in one process on Postgres, in turns: {cpu[True]:.2f} ms of processor time with "
        f"it, {cpu[False]:.2f} without ({cpu[True] - cpu[False]:+.2f} ms, {cpu[True] / cpu[False] - 1:+.0%}); median "
        f"{wall[True]:.2f} ms and {wall[False]:.2f} ms"
    )


def measure_throughput(catalog: ScaleCatalog, threads: int, commits: int) -> str:
    """Commits a second by both servers, each thread on a table of its own."""
    senders = [catalog.connect(number) for number in range(threads)]
    pids = [pid for server in catalog.servers for pid in family(server.pid)]

    def work(number: int) -> None:
        for _ in range(commits):
            senders[number].commit(FIRST, table_name(70 + number))

    before, started = cpu_s(pids), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    seconds, spent = time.perf_counter() - started, cpu_s(pids) - before
    made = threads * commits
    return (
        f"Commits by {threads} clients, each to a table of its own, on both servers: {made / seconds:,.0f} a second, "
        f"{spent / made * 1000:.1f} ms of the servers' processor time each; clients, servers and Postgres share "
        f"{os.cpu_count()} cores"
    )


def measure_sizes(small: ScaleCatalog, large: ScaleCatalog) -> str:
    """What tables take in the database."""
    before, after = small.bytes(), large.bytes()
    tables = large.size.tables - small.size.tables
    parts = ", ".join(
        f"{name} {(after[name] - before[name]) / tables / 1000:.2f}" for name in before if name and after[name] > 1e6
    )
    return (
        f"Size of the database with {large.size.tables:,} tables: {after[''] / 1e6:,.0f} MB "
        f"({(after[''] - before['']) / tables / 1000:.1f} kB a table of three versions; "
        f"of these in kB, with indices: {parts})"
    )


def show(console: Console, rows: Sequence[ScaleRow], sizes: Sequence[CatalogSize], lines: Sequence[str]) -> None:
    """Print it."""
    shown = Table(title=f"{sizes[0].tables:,} tables, then {sizes[-1].tables:,}", title_justify="left")
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "operation" else "right")
    for row in rows:
        shown.add_row(*(cell.replace("**", "").replace("`", "") for cell in row.cells()))
    console.print(shown)
    for line in lines:
        console.print(line)


def write(rows: Sequence[ScaleRow], sizes: Sequence[CatalogSize], lines: Sequence[str], rounds: int) -> None:
    """Put the table into the document."""
    small, large = (f"{size.tables:,}" for size in (sizes[0], sizes[-1]))
    headings = [
        heading if number in (0, 7, 8, 9) else f"{small if number < 4 else large}: {heading}"
        for number, heading in enumerate(HEADINGS)
    ]
    report.put(
        "bench-scale",
        [
            f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. Medians of {rounds} rounds.",
            "",
            *report.table(headings, [row.cells() for row in rows]),
            "",
            *(f"- {line}." for line in lines),
        ],
    )


FULL = (CatalogSize(1_000, 1_000, 0, 90), CatalogSize(100_000, 1_000, 10_000, 90))
QUICK = (CatalogSize(100, 100, 0, 2), CatalogSize(300, 100, 100, 2))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only cases whose title contains this")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    sizes, rounds, share = (QUICK, 1, 0.05) if options.quick else (FULL, options.rounds, 1.0)
    count, commits = (4, 2) if options.quick else (2000, 60)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        postgres = stack.enter_context(start_postgres(POSTGRES))
        moto = stack.enter_context(start_moto())
        # Each has a warehouse of its own: servers on copies of one database would be fenced.
        catalogs = [
            ScaleCatalog(size, new_database(postgres), folder / f"scale_{size.tables}", moto.bucket(), stack)
            for size in sizes
        ]
        for catalog in catalogs:
            catalog.create()
            catalog.fill()
            catalog.serve()
            catalog.check()
        bench, rows = ScaleBench(catalogs, rounds, share), list[ScaleRow]()
        console = Console() if Console().is_terminal else Console(width=220)
        chosen = [case for case in cases(sizes[0]) if options.only in case.title]
        for row in bench.run(chosen):
            rows.append(row)
            print(" | ".join(row.cells()).replace("**", ""), flush=True)
        lines = []
        if not options.only:
            rows.append(add_scheduler(rows))
            lines = [
                measure_sizes(*catalogs),
                measure_throughput(catalogs[-1], 16, commits),
                measure_audit(bench, catalogs[-1], 5 * commits, rounds),
                create_principals(catalogs[-1], count),
            ]
        lines += [f"Missed: {row.title}: {row.ratio:.2f} instead of {MARK:g}" for row in rows if row.is_missed]
    show(console, rows, sizes, lines)
    if options.write:
        write(rows, sizes, lines, rounds)


if __name__ == "__main__":
    main()
