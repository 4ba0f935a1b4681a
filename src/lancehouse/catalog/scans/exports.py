"""Parquet copies of fragments, made when a scan needs them and kept for as long as there is room.

A copy is a file of its own name and a row in the database, which any number of servers share. The row comes after the
file and goes before it, so what a plan names is there. A plan says in the row when it named the copy, and for
`KEPT_MS` from then on nobody removes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeVar

from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog.scans.copies import Copies
from lancehouse.catalog.transactions import now_ms
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.parquet import Fragment, Version
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.rows import ExportRow

log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT_MS = 70 * 60_000
"""An hour, and what it takes to make a plan and to send it."""

FRESH_MS = 5 * 60_000
SWEEP_S = 3600.0
AT_ONCE = 2
"""Copies that one process makes at the same time: each takes some tens of megabytes of memory."""

EVICTED = 100

AT = "@"
"""In the version of a row, between the digest of a fragment and the first row of it that the copy has."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some columns of some rows of a fragment, which are counted without those that are deleted."""

    fragment: Fragment
    columns: frozenset[int]
    rows: range

    def of(self, rows: range) -> Wanted:
        """The same of other rows."""
        return replace(self, rows=rows)


class Exports:
    """The copies of all warehouses of a server."""

    def __init__(self, database: Database, *, cache_bytes: int) -> None:
        self._database = database
        self._limit = cache_bytes
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="export")
        self._flights = _Flights()
        self._swept: dict[str, float] = {}

    def find(self, warehouse: Warehouse, table_uuid: str, wanted: Sequence[Wanted]) -> list[ExportRow | Wanted]:
        """In order, copies that are there, which from now on are kept for a while, and what there is no copy of."""
        by_digest: dict[str, list[ExportRow]] = {}
        for export in self._database.read(lambda tx: repository.exports_of(tx, table_uuid)):
            by_digest.setdefault(_digest(export), []).append(export)
        chosen = [part for one in wanted for part in _covered(one, by_digest.get(one.fragment.digest, ()))]
        used = {part.id: part for part in chosen if isinstance(part, ExportRow)}
        kept = self._kept(used.values()) - self._lost(Copies(warehouse), used.values())
        if kept == used.keys():
            return chosen
        by_digest = {digest: [row for row in rows if row.id in kept] for digest, rows in by_digest.items()}
        return [part for one in wanted for part in _covered(one, by_digest.get(one.fragment.digest, ()))]

    def _kept(self, rows: Collection[ExportRow]) -> set[int]:
        """The ids of those that nobody removes for an hour; one that a plan has named just now need not be touched."""
        fresh = now_ms() - FRESH_MS
        ids = {row.id for row in rows}
        stale = {row.id for row in rows if row.planned_ms < fresh}
        if not stale:
            return ids
        return ids - stale | self._database.write(lambda tx: repository.touch_exports(tx, stale, now_ms()))

    def _lost(self, copies: Copies, rows: Iterable[ExportRow]) -> set[int]:
        """The ids of those whose files somebody else has removed; their rows go too."""
        lost = {row.id for row in rows if not copies.may_exist(row.path)}
        if lost:
            later = now_ms() + KEPT_MS
            self._database.write(lambda tx: [repository.delete_export(tx, export, later) for export in lost])
        return lost

    def make(
        self, warehouse: Warehouse, table_uuid: str, version: Version, wanted: Sequence[Wanted]
    ) -> list[ExportRow]:
        """Make copies, in the order given. Those who want the same at the same time wait for one of them.

        A copy has fewer rows than wanted, but the first of them, where there is much in them.

        Raises:
            InvalidInputError: a value that Iceberg's type cannot hold.
            ServiceUnavailableError: the cache cannot be written.
        """

        def one(each: Wanted) -> ExportRow:
            key = (warehouse.name, table_uuid, each.fragment.digest, each.columns, each.rows)
            return self._flights.run(key, lambda: self._make(warehouse, table_uuid, version, each))

        made = list(self._pool.map(one, wanted))
        if made:
            self._pool.submit(self._tidy, warehouse)
        return made

    def _make(self, warehouse: Warehouse, table_uuid: str, version: Version, wanted: Wanted) -> ExportRow:
        fragment = wanted.fragment
        written = Copies(warehouse).write(
            table_uuid, str(fragment.id), lambda sink: version.write(fragment, wanted.columns, wanted.rows, sink)
        )
        return self._database.write(
            lambda tx: repository.insert_export(
                tx,
                warehouse=warehouse.name,
                table_uuid=table_uuid,
                version=f"{fragment.digest}{AT}{wanted.rows.start}",
                fragment=fragment.id,
                columns=",".join(map(str, sorted(wanted.columns))),
                path=written.path,
                bytes=written.bytes,
                rows=written.rows,
                planned_ms=now_ms(),
            )
        )

    def _tidy(self, warehouse: Warehouse) -> None:
        try:
            self.trim(warehouse)
            if time.monotonic() - self._swept.get(warehouse.name, -SWEEP_S) >= SWEEP_S:
                self._swept[warehouse.name] = time.monotonic()
                self.sweep(warehouse)
        except (LanceNamespaceError, OSError) as error:
            log.warning("the scan cache of warehouse %s could not be tidied: %s", warehouse.name, error)

    def trim(self, warehouse: Warehouse) -> None:
        """Remove copies until the cache is within its limit, those first that no plan has named for longest."""
        copies = Copies(warehouse)
        over = self._database.read(lambda tx: repository.exports_size(tx, warehouse.name)) - self._limit
        before = now_ms() - KEPT_MS
        while over > 0:
            rows = self._database.read(lambda tx: repository.oldest_exports(tx, warehouse.name, before, EVICTED))
            if not rows:
                return
            for row in rows:
                if over > 0:
                    self._remove(copies, row, before)
                    over -= row.bytes

    def _remove(self, copies: Copies, row: ExportRow, before_ms: int) -> None:
        if self._database.write(lambda tx: repository.delete_export(tx, row.id, before_ms)):
            copies.delete(row.path)

    def sweep(self, warehouse: Warehouse) -> None:
        """Remove files that no row knows: of a server that died before it wrote the row, or after it removed it."""
        copies = Copies(warehouse)
        old = copies.older_than(KEPT_MS / 1000)
        for table_uuid in {uuid for uuid, _ in old}:
            rows = self._database.read(lambda tx, uuid=table_uuid: repository.exports_of(tx, uuid))  # type: ignore[misc]
            known = {row.path for row in rows}
            for uuid, path in old:
                if uuid == table_uuid and path not in known:
                    copies.delete(path)

    def close(self) -> None:
        """Finish what is being made."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _digest(row: ExportRow) -> str:
    return row.version.partition(AT)[0]


def _start(row: ExportRow) -> int:
    # A row without it is of an earlier program, which copied whole fragments.
    return int(row.version.partition(AT)[2] or 0)


def _covered(wanted: Wanted, rows: Iterable[ExportRow]) -> Iterator[ExportRow | Wanted]:
    """What is wanted, out of copies where there are some that have all columns, the smallest of them."""
    fitting = [row for row in rows if wanted.columns <= {int(column) for column in row.columns.split(",")}]
    by_start: dict[int, list[ExportRow]] = {}
    for row in fitting:
        if row.rows and _start(row) + row.rows <= wanted.rows.stop:
            by_start.setdefault(_start(row), []).append(row)
    at = wanted.rows.start
    while at < wanted.rows.stop:
        if at in by_start:
            row = min(by_start[at], key=lambda row: (row.bytes / row.rows, row.id))
            yield row
            at += row.rows
        else:
            until = min((start for start in by_start if start > at), default=wanted.rows.stop)
            yield wanted.of(range(at, until))
            at = until


class _Flights:
    """One call for all threads that need its result at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[object, Future[ExportRow]] = {}

    def run(self, key: object, work: Callable[[], ExportRow]) -> ExportRow:
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine = self._running[key] = Future()
        if running is not None:
            return running.result()
        try:
            mine.set_result(work())
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._running[key]
        return mine.result()
