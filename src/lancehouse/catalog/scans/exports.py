"""Parquet copies of Lance tables for scans: where they lie, which exist, making and deleting them.

A copy is a file with a unique name and a row in the database, which any number of servers share. The row is inserted
after the file is written and deleted before the file is, so whatever a plan names exists. A plan records in the row
when it named the copy, and for `KEPT_MS` after that no server removes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from lancehouse import measures
from lancehouse.caches import SingleFlight
from lancehouse.catalog import location_access
from lancehouse.catalog.entries import now_ms
from lancehouse.catalog.warehouse_files import WarehouseFiles, write_file
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.parquet_export import ExportFragment, VersionExporter
from lancehouse.locations import local_folder
from lancehouse.store import exports as export_rows
from lancehouse.store.database import Database
from lancehouse.store.model import ExportRow

SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A complete file of the cache."""

    path: str
    bytes: int
    rows: int


class ExportFiles:
    """The files of one warehouse's scan cache. Instances are cheap."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.files = WarehouseFiles(warehouse)
        self._root = location_access.scan_cache_location(warehouse)
        self._folder = local_folder(self._root)

    def table_folder(self, table_uuid: str) -> str:
        """Return the folder of a table's copies."""
        return f"{self._root}/{table_uuid}"

    def write(self, table_uuid: str, name: str, rows: Callable[[IO[bytes]], int]) -> ExportFile:
        """Write a file under a name that never existed before; if that fails, no file is left.

        Args:
            table_uuid: UUID of the table.
            name: prefix of the file's name.
            rows: writes the file and returns its number of rows.

        Raises:
            ServiceUnavailableError: the cache cannot be written.
        """
        file = f"{name}-{uuid4().hex}{SUFFIX}"
        try:
            if self._folder is not None:
                local = self._folder / table_uuid / file
                count, size = write_file(local, lambda sink: (rows(sink), sink.tell()))
                return ExportFile(_to_iceberg_path(local), size, count)
            return self._write_remote(f"{self.table_folder(table_uuid)}/{file}", rows)
        except (OSError, pa.ArrowException) as error:
            measures.report_storage_error(ServiceUnavailableError)
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:300]
            raise ServiceUnavailableError(f"the scan cache at {self._root} cannot be written: {reason}") from error

    def _write_remote(self, path: str, rows: Callable[[IO[bytes]], int]) -> ExportFile:
        sink = cast(Any, self.files.file_io().new_output(path).create(overwrite=True))
        try:
            with sink:
                count, size = rows(sink), sink.tell()
        except BaseException:
            # Closing the stream may have turned what was written so far into an object.
            with suppress(OSError, ServiceUnavailableError):
                self.files.delete(path)
            raise
        return ExportFile(path, size, count)

    def list_older_than(self, seconds: float) -> list[tuple[str, str]]:
        """Return table UUID and path of all files last written that many seconds ago, including incomplete ones."""
        limit = time.time() - seconds
        if self._folder is not None:
            files = [file for file in self._folder.glob("*/*") if file.is_file() and file.stat().st_mtime < limit]
            return [(file.parent.name, _to_iceberg_path(file)) for file in files]
        system, path = self.files.find_system(self._root)
        infos = system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        old = [
            info.path.removeprefix(path)
            for info in infos
            if info.type == pafs.FileType.File and (info.mtime_ns or 0) / 1e9 < limit
        ]
        # Copies lie in a folder for each table; what lies beside these folders, as the epoch file does, is not a copy.
        return [(file.split("/")[1], f"{self._root}{file}") for file in old if file.count("/") == 2]


def _to_iceberg_path(file: Path) -> str:
    """Return a path as Iceberg's clients read it: they do not decode a `file:` URI, but split it at `?` and `#`."""
    return str(file) if set("?#") & set(str(file)) else f"file://{file}"


log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT_MS = 70 * 60_000
"""How long a copy is kept after a plan named it: an hour, plus the time to make and send the plan. In milliseconds."""

FRESH_MS = 5 * 60_000
"""A copy that was named this recently, in milliseconds, need not be marked again."""
SWEEP_S = 3600.0
"""Seconds between two searches for files without a row."""
AT_ONCE = 2
"""Copies that one process creates at the same time: each takes tens of megabytes of memory."""

EVICTED = 100
"""Rows that are read at a time when copies are evicted."""

AT = "@"
"""Separates, in the `version` column, a fragment's digest from the first row that the copy holds."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Some columns of a range of rows of a fragment; deleted rows are not counted."""

    fragment: ExportFragment
    columns: frozenset[int]
    rows: range

    def with_rows(self, rows: range) -> ExportRequest:
        """Return the same request for other rows."""
        return replace(self, rows=rows)


class Exports:
    """The copies of all warehouses of a server."""

    def __init__(self, database: Database, *, cache_bytes: int) -> None:
        self._database = database
        self.limit = cache_bytes
        """Most bytes of copies that are kept, for each warehouse."""
        self._pool = measures.CountedPool(AT_ONCE, "export")
        self._single_flight: SingleFlight[ExportRow] = SingleFlight()
        self._swept_at: dict[str, float] = {}

    def find(
        self, warehouse: Warehouse, table_uuid: str, requests: Sequence[ExportRequest]
    ) -> list[ExportRow | ExportRequest]:
        """Return, in order, existing copies, which from now on are kept for a while, and requests for the rest."""
        by_digest: dict[str, list[ExportRow]] = {}
        for export in self._database.read(lambda tx: export_rows.list_exports(tx, table_uuid)):
            by_digest.setdefault(_fragment_digest(export), []).append(export)
        parts = [part for request in requests for part in _cover(request, by_digest.get(request.fragment.digest, ()))]
        copies = {part.id: part for part in parts if isinstance(part, ExportRow)}
        # Between the read and this write another server may have evicted a copy: only those that could still be marked
        # are used, and the requests are then covered again without the others.
        usable_ids = self._extend_retention(copies.values()) - self._delete_lost(
            ExportFiles(warehouse), copies.values()
        )
        if usable_ids != copies.keys():
            by_digest = {digest: [row for row in rows if row.id in usable_ids] for digest, rows in by_digest.items()}
            parts = [
                part for request in requests for part in _cover(request, by_digest.get(request.fragment.digest, ()))
            ]
        hits = sum(isinstance(part, ExportRow) for part in parts)
        measures.report("scan_cache", "hit", amount=hits)
        measures.report("scan_cache", "miss", amount=len(parts) - hits)
        return parts

    def _extend_retention(self, rows: Collection[ExportRow]) -> set[int]:
        """Mark copies as named by a plan now, and return the ids of those that will not be removed for an hour."""
        fresh = now_ms() - FRESH_MS
        ids = {row.id for row in rows}
        stale = {row.id for row in rows if row.planned_ms < fresh}
        if not stale:
            return ids
        return ids - stale | self._database.write(lambda tx: export_rows.touch_exports(tx, stale, now_ms()))

    def _delete_lost(self, copies: ExportFiles, rows: Iterable[ExportRow]) -> set[int]:
        """Delete the rows of copies whose local files were removed by somebody else, and return their ids."""
        lost = {row.id for row in rows if not copies.files.may_exist(row.path)}
        if lost:
            later = now_ms() + KEPT_MS
            self._database.write(lambda tx: [export_rows.delete_export(tx, export, later) for export in lost])
        return lost

    def create(
        self, warehouse: Warehouse, table_uuid: str, version: VersionExporter, requests: Sequence[ExportRequest]
    ) -> list[ExportRow]:
        """Create copies, in the order given. Threads that need the same copy at the same time share the work.

        Where rows are large, a copy has only the first ones of those requested.

        Raises:
            InvalidInputError: a value does not fit Iceberg's type.
            ServiceUnavailableError: the cache cannot be written.
        """

        def create_one(request: ExportRequest) -> ExportRow:
            key = (warehouse.name, table_uuid, request.fragment.digest, request.columns, request.rows)
            return self._single_flight.run(key, lambda: self._create(warehouse, table_uuid, version, request))

        futures = [self._pool.submit(create_one, request) for request in requests]
        try:
            rows = [future.result() for future in futures]
        finally:
            # After an error, the others are not started or waited for: whoever asks again would join them, and get the
            # errors of a store that may be back.
            wait([future for future in futures if not future.cancel()])
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
        measures.report("scan_cache_bytes", "written", amount=file.bytes)
        version_key, columns = f"{fragment.digest}{AT}{request.rows.start}", ",".join(map(str, sorted(request.columns)))
        key = (warehouse.name, table_uuid, version_key, fragment.id, columns)
        new = ExportRow(0, *key, file.path, file.bytes, file.rows, now_ms())
        return self._database.write(lambda tx: export_rows.insert_export(tx, new))

    def _clean_up(self, warehouse: Warehouse) -> None:
        try:
            self.trim(warehouse)
            if time.monotonic() - self._swept_at.get(warehouse.name, -SWEEP_S) >= SWEEP_S:
                self._swept_at[warehouse.name] = time.monotonic()
                self.sweep(warehouse)
        except (LanceNamespaceError, OSError) as error:
            log.warning("the scan cache of warehouse %s could not be tidied: %s", warehouse.name, error)

    def trim(self, warehouse: Warehouse) -> None:
        """Delete copies until the cache is within its limit, least recently planned first."""
        copies = ExportFiles(warehouse)
        excess_bytes = self.count_bytes(warehouse) - self.limit
        before = now_ms() - KEPT_MS
        while excess_bytes > 0:
            rows = self._database.read(lambda tx: export_rows.list_oldest_exports(tx, warehouse.name, before, EVICTED))
            if not rows:
                return
            for row in rows:
                if excess_bytes > 0:
                    self._remove(copies, row, before)
                    excess_bytes -= row.bytes

    def _remove(self, copies: ExportFiles, row: ExportRow, before_ms: int) -> None:
        # The row goes first, and only if no plan has named the copy since: the file then has no user left.
        if self._database.write(lambda tx: export_rows.delete_export(tx, row.id, before_ms)):
            copies.files.delete(row.path)
            measures.report("scan_cache_bytes", "removed", amount=row.bytes)

    def sweep(self, warehouse: Warehouse) -> None:
        """Delete files without a row: a server died before it inserted the row, or after it deleted it.

        Only files older than `KEPT_MS` are deleted, since a younger one may be about to get its row.
        """
        copies = ExportFiles(warehouse)
        old_files = copies.list_older_than(KEPT_MS / 1000)
        for table_uuid in {uuid for uuid, _ in old_files}:
            rows = self._database.read(lambda tx, uuid=table_uuid: export_rows.list_exports(tx, uuid))  # type: ignore[misc]
            known_paths = {row.path for row in rows}
            for uuid, path in old_files:
                if uuid == table_uuid and path not in known_paths:
                    copies.files.delete(path)

    def count_bytes(self, warehouse: Warehouse) -> int:
        """Return the size of a warehouse's copies."""
        return self._database.read_one(lambda tx: export_rows.count_export_bytes(tx, warehouse.name))

    @property
    def pool_state(self) -> measures.PoolState:
        """The threads that make copies."""
        return self._pool.state

    def close(self) -> None:
        """Wait for copies that are being created, and drop those that wait."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _fragment_digest(row: ExportRow) -> str:
    return row.version.partition(AT)[0]


def _first_row(row: ExportRow) -> int:
    # Rows of earlier versions lack it: they held whole fragments.
    return int(row.version.partition(AT)[2] or 0)


def _cover(request: ExportRequest, rows: Iterable[ExportRow]) -> Iterator[ExportRow | ExportRequest]:
    """Yield copies that cover the requested rows and have all columns, and requests for the ranges without one.

    Of several copies that start at the same row, the one with the fewest bytes per row is used.
    """
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
