"""Maintenance of many small tables by one worker, without Spark; and its requests to an object store.

`python -m bench.maintenance --help`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from bench import report
from bench.store import METHODS, join_background
from lancehouse import maintenance_policy
from lancehouse.catalog.maintenance import Maintenance
from tests.maintenance.places import Place, open_place
from tests.servers.lancehouse import PROGRAM
from tests.servers.versitygw import Versitygw, find_program, start_versitygw

COMMITS = 8
INDEXED_EVERY = 10
"""Every so many tables, one has an index that lacks half of the rows."""
PLAIN, INDEXED = "plain", "indexed"
POLICY = {
    "maintenance.enabled": "true",
    "maintenance.settle": "0s",
    "maintenance.cleanup.older-than": "1m",
    "maintenance.index.unindexed-rows": "20",
}
THREADS = 2
PATIENCE_S = 1200.0
MINUTE_S = 61.0
"""Versions are old after this time."""
MARK_TABLES, MARK_S = 5000, 600.0
"""So many tables take no longer."""
PACKAGES = ("lancehouse", "pylance", "lance-namespace")
HEADINGS = ("what", "tables", "seconds", "ms a table", "processor time, ms a table")
REQUESTS = ("what a worker does to a table in an object store", "requests")


@dataclass(frozen=True, slots=True)
class Phase:
    """What a worker did to all tables."""

    name: str
    tables: int
    seconds: float
    cpu_s: float

    def cells(self) -> list[str]:
        """A row of the table."""
        each = (f"{1000 * spent / self.tables:.1f}" for spent in (self.seconds, self.cpu_s))
        return [self.name, f"{self.tables:,}", f"{self.seconds:.1f}", *each]


@dataclass(slots=True)
class MaintenanceFigures:
    """All that was measured."""

    phases: list[Phase] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Counter[str]] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Sentences about the whole."""
        whole = self.phases[1]
        is_met = "met" if whole.seconds <= MARK_S else "missed"
        mark = f"; expected ≤ {MARK_S:.0f} s: {is_met}" if whole.tables >= MARK_TABLES else ""
        return [
            f"{whole.tables:,} tables in {whole.seconds:.0f} s on {os.cpu_count()} cores{mark}.",
            f"Runs: {', '.join(f'{count:,} {name}' for name, count in sorted(self.runs.items()))}.",
        ]

    def request_rows(self) -> list[list[str]]:
        """A row for each thing that is done in an object store."""
        return [
            [name, f"{counts.total()} ({', '.join(f'{counts[m]} {m}' for m in METHODS if counts[m])})"]
            for name, counts in self.requests.items()
        ]


def create_templates(place: Place) -> None:
    """Two tables that need all that maintenance does, by clients' commits."""
    for name in (PLAIN, INDEXED):
        place.create(name, commits=COMMITS // 2)
        if name == INDEXED:
            place.open(name).create_scalar_index("id", "BTREE")
        for number in range(COMMITS // 2, COMMITS):
            place.write(name, start=number * 10)


def copy_templates(folder: Path, count: int) -> None:
    """Make so many tables of both: by commits it would take longer than the work. Files are linked, not copied.

    The rows of the database are copied too, those of the entry, of its snapshots and of its commits.
    """
    database = sqlite3.connect(folder / "catalog.db")
    database.row_factory = sqlite3.Row
    rows = {
        (name, table): list(
            database.execute(f"SELECT t.* FROM {table} t JOIN entries e ON e.id = {key} WHERE e.name = ?", (name,))
        )
        for name in (PLAIN, INDEXED)
        for table, key in (("entries", "t.id"), ("snapshots", "t.entry_id"), ("commits", "t.entry_id"))
    }
    for number in range(count):
        kind, name, entry = INDEXED if number % INDEXED_EVERY == 0 else PLAIN, f"t{number}", 1000 + number
        source = Path(rows[kind, "entries"][0]["location"])
        shutil.copytree(source, source.with_name(name), copy_function=os.link)
        for (template, table), those in rows.items():
            for row in those if template == kind else ():
                values = {key: row[key] for key in row.keys() if key != "id"}  # noqa: SIM118 - a Row is no mapping
                values |= (
                    {"id": entry, "name": name, "uuid": str(uuid4())} if table == "entries" else {"entry_id": entry}
                )
                for key in values.keys() & {"location", "location_key", "manifest_list"}:
                    values[key] = values[key].replace(f"/{kind}", f"/{name}")
                marks = ", ".join("?" * len(values))
                database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", [*values.values()])
    database.commit()
    database.close()


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    """Start `lancehouse maintenance worker`, as an operator does."""
    config = folder / "server.yaml"
    policy = {key.removeprefix(maintenance_policy.PREFIX): value for key, value in POLICY.items()}
    config.write_text(json.dumps({"warehouses": {"main": {"location": str(folder / "main"), "maintenance": policy}}}))
    command = [PROGRAM, "maintenance", "worker", "--threads", str(THREADS), "--config", config]
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen([*map(str, command), "--db", f"sqlite:///{folder / 'catalog.db'}"], stderr=log)


def run_worker(folder: Path, maintenance: Maintenance, name: str, count: int) -> Phase:
    """Let a worker process do all that is due, and measure it from its start on."""
    before = os.times()
    started = time.perf_counter()
    worker = start_worker(folder)
    try:
        while not _is_idle(maintenance, count):
            if worker.poll() is not None or time.perf_counter() - started > PATIENCE_S:
                raise RuntimeError(f"{name}: the worker did not get through")
            time.sleep(0.1)
        seconds = time.perf_counter() - started
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Phase(name, count, seconds, cpu_s)


def _is_idle(maintenance: Maintenance, count: int) -> bool:
    counts = maintenance.counters()[0]
    return counts["known"] >= count and not counts["due"] and not counts["running"]


def make_due(folder: Path) -> None:
    """Let all tables be looked at again."""
    with sqlite3.connect(folder / "catalog.db") as database:
        database.execute("UPDATE maintained_tables SET due_ms = 1, why = 'benchmark'")


def make(folder: Path, count: int) -> None:
    """Make the tables."""
    with open_place(folder, policy=POLICY) as place:
        create_templates(place)
    copy_templates(folder, count - 2)  # the templates are tables too


def run(folder: Path, count: int) -> MaintenanceFigures:
    """Measure all of it, on tables that `make` has made."""
    figures = MaintenanceFigures()
    with open_place(folder, policy=POLICY) as place:
        started, cpu = time.perf_counter(), time.process_time()
        place.maintenance.plan_commits()
        place.maintenance.sweep(0)
        took, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        figures.phases.append(Phase("plan: read the database, decide who is due", count, took, cpu_s))
        what = "look, compact, add rows to indices, clean up, search orphans"
        figures.phases.append(run_worker(folder, place.maintenance, what, count))
        figures.runs = Counter({name: n for name, n in place.maintenance.counters()[1].items() if "." in name})
        make_due(folder)
        figures.phases.append(run_worker(folder, place.maintenance, "look, and find nothing to do", count))
    if find_program() is not None:
        figures.requests = count_requests(folder / "store")
    return figures


def count_requests(folder: Path) -> dict[str, Counter[str]]:
    """Requests to versitygw, a real S3, for one table: looked at, compacted, cleaned up and so on."""
    found: dict[str, Counter[str]] = {}
    maintenance_policy.LEAST_VERSION_AGE = timedelta(0)
    policy = {**POLICY, "maintenance.cleanup.older-than": "0s"}
    folder.mkdir()
    with start_versitygw(folder) as store:
        bucket = store.bucket()
        with open_place(folder, policy=policy, location=f"{bucket.uri}/main", storage=bucket.options) as place:

            def count(what: str, *operations: str) -> None:
                before = _settle(store)
                place.ask("docs", *operations)
                place.work()
                found[what] = _settle(store) - before

            place.create("docs")
            place.work()
            count("look, and find nothing to do")
            for number in range(1, COMMITS):
                place.write("docs", start=number * 10)
            count("look, and compact 8 fragments", "compact")
            count("look, and remove 9 old versions", "cleanup")
            count("look, and find no old version", "cleanup")
            count("look, and find no orphan", "orphans")
            place.open("docs").create_scalar_index("id", "BTREE")
            place.write("docs", start=1000)
            count("look, and add rows to an index", "index")
    return found


def _settle(store: Versitygw) -> Counter[str]:
    """Wait until nobody works in the background, and return the requests so far."""
    join_background()
    requests = store.count_requests()
    while True:
        time.sleep(0.05)
        before, requests = requests, store.count_requests()
        if requests == before:
            return requests


def write(figures: MaintenanceFigures) -> None:
    """Put the tables into the document."""
    lines = [f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}.", ""]
    lines += [*report.table(HEADINGS, [phase.cells() for phase in figures.phases]), ""]
    lines += [f"- {line}" for line in figures.describe()]
    lines += ["", *report.table(REQUESTS, figures.request_rows())] if figures.requests else []
    report.put("bench-maintenance", lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.maintenance", description=__doc__)
    parser.add_argument("--tables", type=int, default=MARK_TABLES)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="only make the tables, below a new folder")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="maintain the tables that --make has made there")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    count = 12 if options.quick else options.tables
    if options.make is not None:
        options.make.mkdir()
        make(options.make, count)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        if options.data is None:
            make(Path(name), count)
            time.sleep(0 if options.quick else MINUTE_S)
        figures = run(options.data or Path(name), count)
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    for headings, rows in (
        (HEADINGS, [phase.cells() for phase in figures.phases]),
        (REQUESTS, figures.request_rows()),
    ):
        shown = Table(*headings)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    for line in figures.describe():
        console.print(line)
    if options.write:
        write(figures)


if __name__ == "__main__":
    main()
