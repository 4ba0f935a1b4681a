"""Lance tables as Iceberg sees them, from memory for as long as nothing changed."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Literal

from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError

from lancehouse.catalog import locations
from lancehouse.catalog.lance_metadata import (
    BuiltMetadata,
    LanceTableMetadata,
    ReusablePrefix,
    build_from_storage,
    build_managed,
    find_reusable_prefix,
    is_managed,
    managed_branches,
)
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import history as lake
from lancehouse.lake.confinement import ManifestsAlone
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.folder_watch import FolderWatch, start_watch
from lancehouse.lake.history import History
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import EntryRow, Json, RefRow, SnapshotRow

__all__ = ["LanceMetadataCache", "LanceTableMetadata"]

log = logging.getLogger(__name__)

LIMIT = 4096
LIMIT_BYTES = 64 * 2**20

TABLE_BYTES, VERSION_BYTES = 4_000, 500
"""What holding one costs besides its JSON, about."""

Key = tuple[int, str]

Snapshots = Literal["all", "refs"]


@dataclass(frozen=True)
class _CachedTable:
    """A table as it was built, and how to tell whether that is still right."""

    built: BuiltMetadata
    revision: int
    started_ns: int
    """When the look at storage began; 0 if there was none."""
    watch: FolderWatch | None
    """None if it has to be built again each time."""
    is_listed: bool = True
    """Whether all versions were looked for in storage; else only those that refs name are known to be right."""

    @property
    def table(self) -> LanceTableMetadata:
        return self.built.table

    @property
    def history(self) -> History | None:
        return self.built.history

    def can_serve(self, revision: int, snapshots: Snapshots) -> bool:
        """Whether it is of this revision, and right in all that is asked for."""
        return self.revision == revision and (self.is_listed or snapshots == "refs")

    def is_newer_than(self, moment_ns: int) -> bool:
        """Whether it shows all that was there at a moment: it was read later, or nothing changed since it was read."""
        return self.started_ns > moment_ns or (self.watch is not None and self.watch.is_unchanged())

    @cached_property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        versions = len(self.history.versions) if self.history else 0
        return TABLE_BYTES + self.built.size_bytes + versions * VERSION_BYTES


@dataclass(slots=True)
class _KeyLock:
    lock: Lock = field(default_factory=Lock)
    waiting: int = 0


class LanceMetadataCache:
    """The metadata of Lance tables. The least recently used are forgotten first.

    A table is built from its entry in the catalog and from what its storage holds, whatever wrote it there. It is
    answered from memory only if both are known to be the same: the entry by its revision, storage by `start_watch`.
    """

    def __init__(self, database: Database, limit: int = LIMIT, limit_bytes: int = LIMIT_BYTES) -> None:
        self._database = database
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._tables: OrderedDict[Key, _CachedTable] = OrderedDict()
        self._bytes = 0
        self._key_locks: dict[Key, _KeyLock] = {}

    def find_cached(
        self, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots = "all"
    ) -> LanceTableMetadata | None:
        """The table, if a look at a few local folders tells that it did not change; None: `load` it."""
        key = (warehouse.id, entry.uuid)
        held = self._tables.get(key)
        if held is None or not held.can_serve(entry.revision, snapshots):
            return None
        if held.watch is None or not held.watch.is_unchanged():
            return None
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
        return held.table

    def load(self, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots = "all") -> LanceTableMetadata:
        """The table as it is now. Threads that ask at the same time share one look at its storage.

        Args:
            warehouse: where it is.
            entry: the table in the catalog.
            snapshots: those that will be told. Whoever asks for "refs" may use nothing else of the table: if the
                catalog manages it, its other versions need not be what storage has by now.

        Raises:
            InvalidTableStateError: the dataset is broken.
            LanceNamespaceError: the storage cannot be reached.
        """
        arrived_ns = time.monotonic_ns()
        with self._lock_key((warehouse.id, entry.uuid)) as key:
            held = self._tables.get(key)
            if held is not None and held.can_serve(entry.revision, snapshots) and held.is_newer_than(arrived_ns):
                return held.table
            return self._put(key, self._read_table(warehouse, entry, held, snapshots))

    def load_committed(self, warehouse: Warehouse, entry: EntryRow) -> LanceTableMetadata:
        """The table after a commit. If the catalog manages it, storage is only looked at if nothing is known of it."""
        if not is_managed(entry):
            return self.load(warehouse, entry)
        with self._lock_key((warehouse.id, entry.uuid)) as key:
            held = self._tables.get(key)
            if held is None:
                return self._put(key, self._read_table(warehouse, entry, None, lenient=True))
            return self._put(key, replace(self._build_managed(entry, held, held.history, 0, None), is_listed=False))

    def current_version(self, warehouse: Warehouse, entry: EntryRow) -> int | None:
        """The current version: as the catalog says if it manages the table, else the latest in storage."""
        return entry.version if is_managed(entry) else lake.find_latest_version(_table_ref(warehouse, entry.location))

    def find_latest_version(self, warehouse: Warehouse, location: str) -> int | None:
        """The latest version of the dataset at a location; None where there is none.

        Raises:
            InvalidInputError: there is one, but it is broken.
            LanceNamespaceError: the storage cannot be reached.
        """
        version = lake.find_latest_version(_table_ref(warehouse, location))
        if version is not None:
            try:
                self.read_schema(warehouse, location, version)
            except InvalidTableStateError as error:
                raise InvalidInputError(str(error)) from error
        return version

    def stored_branches(self, warehouse: Warehouse, location: str) -> dict[str, int]:
        """The branches besides main of the dataset at a location, and the latest snapshot of each."""
        history = lake.read_history(_table_ref(warehouse, location))
        return {str(version.branch): version.snapshot_id for version in history.on_branches} if history else {}

    def read_schema(self, warehouse: Warehouse, location: str, version: int | None = None) -> Json:
        """The Iceberg schema of a dataset at a version, by default the latest.

        Raises:
            TableNotFoundError, TableVersionNotFoundError: there is no such dataset, or it has no such version.
        """
        return lake.read_schema(_table_ref(warehouse, location, version))

    def _read_table(
        self,
        warehouse: Warehouse,
        entry: EntryRow,
        held: _CachedTable | None,
        snapshots: Snapshots = "all",
        *,
        lenient: bool = False,
    ) -> _CachedTable:
        started_ns = time.monotonic_ns()
        known_history = held.history if held else None
        table = _table_ref(warehouse, entry.location)
        if not is_managed(entry):
            storage_watch = start_watch(entry.location)
            history = lake.read_history(table, known=known_history)
            return _CachedTable(
                build_from_storage(entry, history, held.built if held else None),
                entry.revision,
                started_ns,
                storage_watch,
            )
        if entry.version is None:
            return self._build_managed(entry, held, None, started_ns, start_watch(entry.location, versions=False))
        storage_watch = start_watch(entry.location, versions=False)
        try:
            if (
                snapshots == "refs"
                and (extended := self._try_extend(table, entry, held, started_ns, storage_watch)) is not None
            ):
                return extended
            history = lake.read_history(table, known=known_history, at=entry.version)
        except LanceNamespaceError as error:
            if not lenient and known_history is None and entry.schema is None:
                raise
            log.warning("table %s is shown as the catalog knows it: %s", entry.uuid, error)
            return self._build_managed(entry, held, known_history, started_ns, None)
        is_complete = history is not None and history.version == entry.version
        return self._build_managed(entry, held, history, started_ns, storage_watch if is_complete else None)

    def _try_extend(
        self,
        table: TableRef,
        entry: EntryRow,
        held: _CachedTable | None,
        started_ns: int,
        storage_watch: FolderWatch | None,
    ) -> _CachedTable | None:
        """What is held, and the versions that came after it; None if something that refs name may be different."""
        if held is None or held.history is None or entry.version is None:
            return None
        history = lake.extend_history(table, held.history, entry.version)
        if history is None:
            return None
        prefix = find_reusable_prefix(entry, history, held.built, is_extended=True)
        storage_watch = storage_watch if history.version == entry.version else None
        extended = self._build_managed(entry, held, history, started_ns, storage_watch, prefix)
        return (
            replace(extended, is_listed=False)
            if lake.is_consistent(table, history, extended.built.ref_snapshot_ids)
            else None
        )

    def _build_managed(
        self,
        entry: EntryRow,
        held: _CachedTable | None,
        history: History | None,
        started_ns: int,
        storage_watch: FolderWatch | None,
        prefix: ReusablePrefix | None = None,
    ) -> _CachedTable:
        previous = held.built if held else None
        prefix = prefix or find_reusable_prefix(entry, history, previous)
        refs, rows, keep = self._read_rows(entry, held, prefix)
        return _CachedTable(
            build_managed(entry, history, rows, refs, previous, keep), entry.revision, started_ns, storage_watch
        )

    def _read_rows(
        self, entry: EntryRow, held: _CachedTable | None, prefix: ReusablePrefix | None
    ) -> tuple[Sequence[RefRow], Sequence[SnapshotRow], int]:
        """Refs, snapshots, and how many of those that are held come before them."""
        if held is not None and prefix is not None and held.revision == entry.revision and prefix.needs_only_last:
            refs = held.built.refs
            if not managed_branches(refs):
                return refs, [prefix.last_accepted], prefix.snapshot_count

        def read(tx: Tx) -> tuple[Sequence[RefRow], Sequence[SnapshotRow], int]:
            refs = repository.list_refs(tx, entry.id)
            if prefix is not None:
                rows = repository.list_snapshots(tx, entry.id, prefix.after_id)
                if prefix.is_continued_by(rows, repository.count_snapshots(tx, entry.id)):
                    return refs, rows, prefix.snapshot_count
            return refs, repository.list_snapshots(tx, entry.id), 0

        return self._database.read(read)

    def _put(self, key: Key, held: _CachedTable) -> LanceTableMetadata:
        with self._lock:
            previous = self._tables.get(key)
            if previous is not None and previous.revision > held.revision:
                return held.table
            if previous is not None:
                self._bytes -= previous.size_bytes
            self._tables[key] = held
            self._tables.move_to_end(key)
            self._bytes += held.size_bytes
            while len(self._tables) > 1 and (len(self._tables) > self._limit or self._bytes > self._limit_bytes):
                self._bytes -= self._tables.popitem(last=False)[1].size_bytes
        return held.table

    @contextmanager
    def _lock_key(self, key: Key) -> Iterator[Key]:
        with self._lock:
            key_lock = self._key_locks.setdefault(key, _KeyLock())
            key_lock.waiting += 1
        try:
            with key_lock.lock:
                yield key
        finally:
            with self._lock:
                key_lock.waiting -= 1
                if not key_lock.waiting:
                    del self._key_locks[key]


def _table_ref(warehouse: Warehouse, location: str, version: int | None = None) -> TableRef:
    locations.require_no_link(warehouse, location, "lance")
    return TableRef(location, warehouse.storage, version=version, confinement=ManifestsAlone())
