"""Processor time and memory of LoadTable's metadata, by the number of versions. `python -m bench.metadata --help`.

The table is in an object store, and the catalog manages it. The store is not asked: a history of what the catalog tells
stands in for a look at it, so that what is left is the building of the metadata. *all bytes of the database* is what
they would cost without what is kept from load to load: each version's snapshot as bytes in a row, all rows read and
joined each time.
"""

from __future__ import annotations

import argparse
import gc
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import orjson

from bench import report
from lancehouse.catalog.lance_metadata import LanceTableMetadata
from lancehouse.catalog.metadata_loader import LanceMetadataCache, Snapshots
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import history as lake
from lancehouse.lake.history import History
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json, SnapshotRow

SIZES = (10, 300, 10_000)
KINDS: tuple[Snapshots, ...] = ("all", "refs")
LOCATION = "s3://bucket/lake/db/t"
SCHEMA: Json = {
    "type": "struct",
    "schema-id": 1,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}
HEADINGS = ("versions", "load", "all snapshots", "`snapshots=refs`", "all bytes of the database")


def _row(version: int) -> SnapshotRow:
    """A version as our clients commit it."""
    key = f"{version:032x}"
    summary = {
        "operation": "append",
        "lance.operation": "Append",
        "lance.version": str(version),
        "lance.transaction": key,
        "lance.columns": key,
        "lance.staged": f"_versions/{2**64 - 1 - version}.manifest-{key}",
        "lance.manifest.size": "1234",
        "total-records": str(100 * version),
        "total-data-files": str(version),
        "total-files-size": str(1000 * version),
    }
    manifest = f"lance+{LOCATION}/_versions/{2**64 - 1 - version}.manifest"
    return SnapshotRow(version, version - 1 or None, version, 1_700_000_000_000 + version, manifest, summary)


def _history(*_: object, at: int, told: dict[int, Any], known: History | None = None, **__: object) -> History:
    """What a look at the store would find: all that the catalog tells."""
    versions = (*(known.versions if known else ()), *(told[number] for number in sorted(told)))
    return History(at, SCHEMA, 1, versions, {}, {})


@dataclass(frozen=True, slots=True)
class LoadTime:
    """Milliseconds of processor time of a load."""

    versions: int
    load: str
    by_kind: Sequence[float]
    """With all snapshots, and with those of refs."""
    of_bytes: float

    def cells(self) -> list[str]:
        """The figures as a row of a table."""
        figures = [*self.by_kind, self.of_bytes]
        return [f"{self.versions:,}", self.load, *(f"{each:.3g} ms" for each in figures)]


class MetadataBench:
    """A table of so many versions in a catalog, and the bytes of its snapshots in a database of their own."""

    def __init__(self, folder: Path, versions: int) -> None:
        self.database = Database(f"sqlite:///{folder / 'catalog.db'}")
        migrate.create_if_empty(self.database)
        row = self.database.write(lambda tx: repository.insert_warehouse(tx, "main", "s3://bucket/lake"))
        assert row is not None
        self.warehouse = Warehouse(row.id, row.name, row.location)
        self._entry_id = self.database.write(lambda tx: self._insert(tx, row.id, versions))
        self.entry = self._find()
        self.cache = LanceMetadataCache(self.database)
        self._bytes = sqlite3.connect(folder / "bytes.db")
        self._bytes.execute("CREATE TABLE snapshots (id INTEGER PRIMARY KEY, json BLOB)")
        snapshots = self.cache.load(self.warehouse, self.entry).metadata["snapshots"]
        self._bytes.executemany(
            "INSERT INTO snapshots VALUES (?, ?)", [(each["snapshot-id"], orjson.dumps(each)) for each in snapshots]
        )
        self._bytes.commit()

    def _insert(self, tx: Any, warehouse_id: int, versions: int) -> int:
        space = repository.insert_namespace(tx, warehouse_id, ("db",), {})
        assert space is not None
        entry = repository.insert_entry(
            tx,
            space.id,
            name="t",
            kind="lance",
            uuid=str(uuid4()),
            location=LOCATION,
            location_key=f"{LOCATION}/",
            properties={"table_type": "lance", "managed_by": "impl"},
            schema=SCHEMA,
            version=versions,
            now_ms=1_000,
        )
        assert entry is not None
        repository.insert_snapshots(tx, entry.id, [_row(version) for version in range(1, versions + 1)])
        return entry.id

    def _find(self) -> EntryRow:
        entry = self.database.read(lambda tx: repository.find_entry(tx, self.warehouse.id, ("db",), "t"))
        assert entry is not None
        return entry

    def commit(self) -> None:
        """Accept one more version."""
        version = (self.entry.version or 0) + 1

        def work(tx: Any) -> None:
            repository.insert_snapshots(tx, self._entry_id, [_row(version)])
            repository.advance_entry(tx, self._entry_id, self.entry.revision, now_ms=2_000, version=version)

        self.database.write(work)
        self.entry = self._find()

    def load(self, snapshots: Snapshots) -> bytes:
        """LoadTable's metadata."""
        return _body(self.cache.load(self.warehouse, self.entry, snapshots), snapshots)

    def forget(self) -> None:
        """Start anew, as a server does."""
        self.cache = LanceMetadataCache(self.database)
        gc.collect()

    def load_committed(self, snapshots: Snapshots) -> bytes:
        """What the commit is answered with, if it has all snapshots or few."""
        return _body(self.cache.load_committed(self.warehouse, self.entry), snapshots)

    def join_bytes(self) -> bytes:
        """The list of snapshots, of all rows."""
        return b",".join([json for (json,) in self._bytes.execute("SELECT json FROM snapshots ORDER BY id")])

    def memory(self) -> tuple[int, int]:
        """Bytes that the cache takes after a load of all snapshots, and what it counts for itself."""
        self.forget()
        tracemalloc.start()
        self.load("refs")
        self.load("all")
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return taken, self.cache._bytes


def _body(table: LanceTableMetadata, snapshots: Snapshots) -> bytes:
    return table.refs_json if snapshots == "refs" else table.full_json


@contextmanager
def start(versions: int) -> Iterator[MetadataBench]:
    """A table of so many versions, until the block ends."""
    with tempfile.TemporaryDirectory() as folder, patch.object(lake, "read_history", _history):
        bench = MetadataBench(Path(folder), versions)
        try:
            yield bench
        finally:
            bench.database.close()


def measure(work: Callable[[], object], rounds: int, ready: Callable[[], object] = lambda: None) -> float:
    """Milliseconds of this process' processor time, the median of some rounds."""
    taken = []
    for _ in range(rounds):
        ready()
        started = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - started) / 1e6)
    return median(taken)


def run(versions: int, rounds: int) -> tuple[list[LoadTime], str]:
    """All loads of a table of so many versions, and a line on memory."""
    with start(versions) as bench:
        joined = measure(bench.join_bytes, rounds)
        cold = [measure(partial(bench.load, kind), rounds, bench.forget) for kind in KINDS]
        bench.load("all")
        again = [measure(partial(bench.load, kind), rounds) for kind in KINDS]
        after = [measure(partial(bench.load, kind), rounds, bench.commit) for kind in KINDS]
        answers = [measure(partial(bench.load_committed, kind), rounds, bench.commit) for kind in KINDS]
        taken, counted = bench.memory()
    times = [
        LoadTime(versions, "first", cold, joined),
        LoadTime(versions, "again", again, joined),
        LoadTime(versions, "after a commit", after, joined),
        LoadTime(versions, "answer of a commit", answers, joined),
    ]
    return times, f"{versions:,} versions: {taken / 1e6:.1f} MB, of which the cache counts {counted / 1e6:.1f}."


def main(words: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.metadata", description=__doc__)
    parser.add_argument("--versions", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args(words)
    found = [run(versions, chosen.rounds) for versions in chosen.versions]
    print("\n".join(report.table(HEADINGS, [time.cells() for times, _ in found for time in times])))
    print("\n".join(["", "Memory:", *(line for _, line in found)]))


if __name__ == "__main__":
    main()
