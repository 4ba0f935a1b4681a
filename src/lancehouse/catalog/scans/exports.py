"""Parquet copies of fragments, made when a scan needs them and kept for as long as there is room.

A copy is a file of its own name and a row in the database, which any number of servers share. The row comes after the
file and goes before it, so what a plan names is there. A plan says in the row when it named the copy, and for
`KEPT_MS` from then on nobody removes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from lance_namespace.errors import LanceNamespaceError

from lancehouse.caches import SingleFlight
from lancehouse.catalog.scans.copies import ExportFiles
from lancehouse.catalog.transactions import now_ms
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.parquet_export import ExportFragment, VersionExporter
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
class ExportRequest:
    """Some columns of some rows of a fragment, which are counted without those that are deleted."""

    fragment: ExportFragment
    columns: frozenset[int]
    rows: range

    def with_rows(self, rows: range) -> ExportRequest:
        """The same of other rows."""
        return replace(self, rows=rows)


class Exports:
    """The copies of all warehouses of a server."""

    def __init__(self, database: Database, *, cache_bytes: int) -> None:
        self._database = database
        self._limit = cache_bytes
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="export")
        self._single_flight: SingleFlight[ExportRow] = SingleFlight()
        self._swept_at: dict[str, float] = {}

    def find(
        self, warehouse: Warehouse, table_uuid: str, requests: Sequence[ExportRequest]
    ) -> list[ExportRow | ExportRequest]:
        """In order, copies that are there, which from now on are kept for a while, and what there is no copy of."""
        by_digest: dict[str, list[ExportRow]] = {}
        for export in self._database.read(lambda tx: repository.list_exports(tx, table_uuid)):
            by_digest.setdefault(_fragment_digest(export), []).append(export)
        parts = [part for request in requests for part in _cover(request, by_digest.get(request.fragment.digest, ()))]
        used = {part.id: part for part in parts if isinstance(part, ExportRow)}
        available = self._extend_retention(used.values()) - self._delete_lost(ExportFiles(warehouse), used.values())
        if available == used.keys():
            return parts
        by_digest = {digest: [row for row in rows if row.id in available] for digest, rows in by_digest.items()}
        return [part for request in requests for part in _cover(request, by_digest.get(request.fragment.digest, ()))]

    def _extend_retention(self, rows: Collection[ExportRow]) -> set[int]:
        """The ids of those that nobody removes for an hour; one that a plan has named just now need not be touched."""
        fresh = now_ms() - FRESH_MS
        ids = {row.id for row in rows}
        stale = {row.id for row in rows if row.planned_ms < fresh}
        if not stale:
            return ids
        return ids - stale | self._database.write(lambda tx: repository.touch_exports(tx, stale, now_ms()))

    def _delete_lost(self, copies: ExportFiles, rows: Iterable[ExportRow]) -> set[int]:
        """The ids of those whose files somebody else has removed; their rows go too."""
        lost = {row.id for row in rows if not copies.may_exist(row.path)}
        if lost:
            later = now_ms() + KEPT_MS
            self._database.write(lambda tx: [repository.delete_export(tx, export, later) for export in lost])
        return lost

    def create(
        self, warehouse: Warehouse, table_uuid: str, version: VersionExporter, requests: Sequence[ExportRequest]
    ) -> list[ExportRow]:
        """Make copies, in the order given. Those who want the same at the same time wait for one of them.

        A copy has fewer rows than wanted, but the first of them, where there is much in them.

        Raises:
            InvalidInputError: a value that Iceberg's type cannot hold.
            ServiceUnavailableError: the cache cannot be written.
        """

        def create_one(request: ExportRequest) -> ExportRow:
            key = (warehouse.name, table_uuid, request.fragment.digest, request.columns, request.rows)
            return self._single_flight.run(key, lambda: self._create(warehouse, table_uuid, version, request))

        rows = list(self._pool.map(create_one, requests))
        if rows:
            self._pool.submit(self._clean_up, warehouse)
        return rows

    def _create(
        self, warehouse: Warehouse, table_uuid: str, version: VersionExporter, request: ExportRequest
    ) -> ExportRow:
        fragment = request.fragment
        file = ExportFiles(warehouse).write(
            table_uuid, str(fragment.id), lambda sink: version.write(fragment, request.columns, request.rows, sink)
        )
        return self._database.write(
            lambda tx: repository.insert_export(
                tx,
                warehouse=warehouse.name,
                table_uuid=table_uuid,
                version=f"{fragment.digest}{AT}{request.rows.start}",
                fragment=fragment.id,
                columns=",".join(map(str, sorted(request.columns))),
                path=file.path,
                bytes=file.bytes,
                rows=file.rows,
                planned_ms=now_ms(),
            )
        )

    def _clean_up(self, warehouse: Warehouse) -> None:
        try:
            self.trim(warehouse)
            if time.monotonic() - self._swept_at.get(warehouse.name, -SWEEP_S) >= SWEEP_S:
                self._swept_at[warehouse.name] = time.monotonic()
                self.sweep(warehouse)
        except (LanceNamespaceError, OSError) as error:
            log.warning("the scan cache of warehouse %s could not be tidied: %s", warehouse.name, error)

    def trim(self, warehouse: Warehouse) -> None:
        """Remove copies until the cache is within its limit, those first that no plan has named for longest."""
        copies = ExportFiles(warehouse)
        excess_bytes = self._database.read(lambda tx: repository.count_export_bytes(tx, warehouse.name)) - self._limit
        before = now_ms() - KEPT_MS
        while excess_bytes > 0:
            rows = self._database.read(lambda tx: repository.list_oldest_exports(tx, warehouse.name, before, EVICTED))
            if not rows:
                return
            for row in rows:
                if excess_bytes > 0:
                    self._remove(copies, row, before)
                    excess_bytes -= row.bytes

    def _remove(self, copies: ExportFiles, row: ExportRow, before_ms: int) -> None:
        if self._database.write(lambda tx: repository.delete_export(tx, row.id, before_ms)):
            copies.delete(row.path)

    def sweep(self, warehouse: Warehouse) -> None:
        """Remove files that no row knows: of a server that died before it wrote the row, or after it removed it."""
        copies = ExportFiles(warehouse)
        old_files = copies.list_older_than(KEPT_MS / 1000)
        for table_uuid in {uuid for uuid, _ in old_files}:
            rows = self._database.read(lambda tx, uuid=table_uuid: repository.list_exports(tx, uuid))  # type: ignore[misc]
            known_paths = {row.path for row in rows}
            for uuid, path in old_files:
                if uuid == table_uuid and path not in known_paths:
                    copies.delete(path)

    def close(self) -> None:
        """Finish what is being made."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _fragment_digest(row: ExportRow) -> str:
    return row.version.partition(AT)[0]


def _first_row(row: ExportRow) -> int:
    # A row without it is of an earlier program, which copied whole fragments.
    return int(row.version.partition(AT)[2] or 0)


def _cover(request: ExportRequest, rows: Iterable[ExportRow]) -> Iterator[ExportRow | ExportRequest]:
    """What is wanted, out of copies where there are some that have all columns, the smallest of them."""
    candidates = [row for row in rows if request.columns <= {int(column) for column in row.columns.split(",")}]
    by_start: dict[int, list[ExportRow]] = {}
    for row in candidates:
        if row.rows and _first_row(row) + row.rows <= request.rows.stop:
            by_start.setdefault(_first_row(row), []).append(row)
    next_row = request.rows.start
    while next_row < request.rows.stop:
        if next_row in by_start:
            row = min(by_start[next_row], key=lambda row: (row.bytes / row.rows, row.id))
            yield row
            next_row += row.rows
        else:
            until = min((start for start in by_start if start > next_row), default=request.rows.stop)
            yield request.with_rows(range(next_row, until))
            next_row = until
