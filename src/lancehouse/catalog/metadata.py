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
    Built,
    LanceTable,
    Resumption,
    branches_of,
    is_managed,
    managed,
    resumption,
    stored,
)
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import history as lake
from lancehouse.lake.confinement import ManifestsAlone
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.history import History
from lancehouse.lake.watch import Watch, watch
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import EntryRow, Json, RefRow, SnapshotRow

__all__ = ["LanceTable", "LanceTables"]

log = logging.getLogger(__name__)

LIMIT = 4096
LIMIT_BYTES = 64 * 2**20

TABLE_BYTES, VERSION_BYTES = 4_000, 500
"""What holding one costs besides its JSON, about."""

Key = tuple[int, str]

Snapshots = Literal["all", "refs"]


@dataclass(frozen=True)
class _Held:
    """A table as it was built, and how to tell whether that is still right."""

    built: Built
    revision: int
    started_ns: int
    """When the look at storage began; 0 if there was none."""
    watch: Watch | None
    """None if it has to be built again each time."""
    is_listed: bool = True
    """Whether all versions were looked for in storage; else only those that refs name are known to be right."""

    @property
    def table(self) -> LanceTable:
        return self.built.table

    @property
    def history(self) -> History | None:
        return self.built.history

    def serves(self, revision: int, snapshots: Snapshots) -> bool:
        """Whether it is of this revision, and right in all that is asked for."""
        return self.revision == revision and (self.is_listed or snapshots == "refs")

    def is_newer_than(self, moment_ns: int) -> bool:
        """Whether it shows all that was there at a moment: it was read later, or nothing changed since it was read."""
        return self.started_ns > moment_ns or (self.watch is not None and self.watch.is_unchanged())

    @cached_property
    def bytes(self) -> int:
        """About the memory that it takes."""
        versions = len(self.history.versions) if self.history else 0
        return TABLE_BYTES + self.built.bytes + versions * VERSION_BYTES


@dataclass(slots=True)
class _Turn:
    lock: Lock = field(default_factory=Lock)
    waiting: int = 0


class LanceTables:
    """The metadata of Lance tables. The least recently used are forgotten first.

    A table is built from its entry in the catalog and from what its storage holds, whatever wrote it there. It is
    answered from memory only if both are known to be the same: the entry by its revision, storage by `watch`.
    """

    def __init__(self, database: Database, limit: int = LIMIT, limit_bytes: int = LIMIT_BYTES) -> None:
        self._database = database
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._held: OrderedDict[Key, _Held] = OrderedDict()
        self._bytes = 0
        self._turns: dict[Key, _Turn] = {}

    def cached(self, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots = "all") -> LanceTable | None:
        """The table, if a look at a few local folders tells that it did not change; None: `load` it."""
        key = (warehouse.id, entry.uuid)
        held = self._held.get(key)
        if held is None or not held.serves(entry.revision, snapshots):
            return None
        if held.watch is None or not held.watch.is_unchanged():
            return None
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
        return held.table

    def load(self, warehouse: Warehouse, entry: EntryRow, snapshots: Snapshots = "all") -> LanceTable:
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
        with self._turn((warehouse.id, entry.uuid)) as key:
            held = self._held.get(key)
            if held is not None and held.serves(entry.revision, snapshots) and held.is_newer_than(arrived_ns):
                return held.table
            return self._hold(key, self._read(warehouse, entry, held, snapshots))

    def committed(self, warehouse: Warehouse, entry: EntryRow) -> LanceTable:
        """The table after a commit. If the catalog manages it, storage is only looked at if nothing is known of it."""
        if not is_managed(entry):
            return self.load(warehouse, entry)
        with self._turn((warehouse.id, entry.uuid)) as key:
            held = self._held.get(key)
            if held is None:
                return self._hold(key, self._read(warehouse, entry, None, lenient=True))
            return self._hold(key, replace(self._managed(entry, held, held.history, 0, None), is_listed=False))

    def current_version(self, warehouse: Warehouse, entry: EntryRow) -> int | None:
        """The current version: as the catalog says if it manages the table, else the latest in storage."""
        return entry.version if is_managed(entry) else lake.latest(_ref(warehouse, entry.location))

    def adopt(self, warehouse: Warehouse, location: str) -> int | None:
        """The latest version of the dataset at a location; None where there is none.

        Raises:
            InvalidInputError: there is one, but it is broken.
            LanceNamespaceError: the storage cannot be reached.
        """
        version = lake.latest(_ref(warehouse, location))
        if version is not None:
            try:
                self.schema_of(warehouse, location, version)
            except InvalidTableStateError as error:
                raise InvalidInputError(str(error)) from error
        return version

    def stored_branches(self, warehouse: Warehouse, location: str) -> dict[str, int]:
        """The branches besides main of the dataset at a location, and the latest snapshot of each."""
        history = lake.read(_ref(warehouse, location))
        return {str(each.branch): each.snapshot_id for each in history.on_branches} if history else {}

    def schema_of(self, warehouse: Warehouse, location: str, version: int | None = None) -> Json:
        """The Iceberg schema of a dataset at a version, by default the latest.

        Raises:
            TableNotFoundError, TableVersionNotFoundError: there is no such dataset, or it has no such version.
        """
        return lake.schema(_ref(warehouse, location, version))

    def _read(
        self,
        warehouse: Warehouse,
        entry: EntryRow,
        held: _Held | None,
        snapshots: Snapshots = "all",
        *,
        lenient: bool = False,
    ) -> _Held:
        started_ns = time.monotonic_ns()
        known = held.history if held else None
        table = _ref(warehouse, entry.location)
        if not is_managed(entry):
            seen = watch(entry.location)
            history = lake.read(table, known=known)
            return _Held(stored(entry, history, held.built if held else None), entry.revision, started_ns, seen)
        if entry.version is None:
            return self._managed(entry, held, None, started_ns, watch(entry.location, versions=False))
        seen = watch(entry.location, versions=False)
        try:
            if snapshots == "refs" and (found := self._extended(table, entry, held, started_ns, seen)) is not None:
                return found
            history = lake.read(table, known=known, at=entry.version)
        except LanceNamespaceError as error:
            if not lenient and known is None and entry.schema is None:
                raise
            log.warning("table %s is shown as the catalog knows it: %s", entry.uuid, error)
            return self._managed(entry, held, known, started_ns, None)
        is_complete = history is not None and history.version == entry.version
        return self._managed(entry, held, history, started_ns, seen if is_complete else None)

    def _extended(
        self, table: TableRef, entry: EntryRow, held: _Held | None, started_ns: int, seen: Watch | None
    ) -> _Held | None:
        """What is held, and the versions that came after it; None if something that refs name may be different."""
        if held is None or held.history is None or entry.version is None:
            return None
        history = lake.extended(table, held.history, entry.version)
        if history is None:
            return None
        resumed = resumption(entry, history, held.built, is_extended=True)
        seen = seen if history.version == entry.version else None
        found = self._managed(entry, held, history, started_ns, seen, resumed)
        return replace(found, is_listed=False) if lake.holds(table, history, found.built.named) else None

    def _managed(
        self,
        entry: EntryRow,
        held: _Held | None,
        history: History | None,
        started_ns: int,
        seen: Watch | None,
        resumed: Resumption | None = None,
    ) -> _Held:
        before = held.built if held else None
        resumed = resumed or resumption(entry, history, before)
        refs, rows, keep = self._rows(entry, held, resumed)
        return _Held(managed(entry, history, rows, refs, before, keep), entry.revision, started_ns, seen)

    def _rows(
        self, entry: EntryRow, held: _Held | None, resumed: Resumption | None
    ) -> tuple[Sequence[RefRow], Sequence[SnapshotRow], int]:
        """Refs, snapshots, and how many of those that are held come before them."""
        if held is not None and resumed is not None and held.revision == entry.revision and resumed.is_of_last:
            refs = held.built.refs
            if not branches_of(refs):
                return refs, [resumed.last], resumed.keep

        def read(tx: Tx) -> tuple[Sequence[RefRow], Sequence[SnapshotRow], int]:
            refs = repository.list_refs(tx, entry.id)
            if resumed is not None:
                rows = repository.list_snapshots(tx, entry.id, resumed.after)
                if resumed.fits(rows, repository.count_snapshots(tx, entry.id)):
                    return refs, rows, resumed.keep
            return refs, repository.list_snapshots(tx, entry.id), 0

        return self._database.read(read)

    def _hold(self, key: Key, held: _Held) -> LanceTable:
        with self._lock:
            before = self._held.get(key)
            if before is not None and before.revision > held.revision:
                return held.table
            if before is not None:
                self._bytes -= before.bytes
            self._held[key] = held
            self._held.move_to_end(key)
            self._bytes += held.bytes
            while len(self._held) > 1 and (len(self._held) > self._limit or self._bytes > self._limit_bytes):
                self._bytes -= self._held.popitem(last=False)[1].bytes
        return held.table

    @contextmanager
    def _turn(self, key: Key) -> Iterator[Key]:
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.waiting += 1
        try:
            with turn.lock:
                yield key
        finally:
            with self._lock:
                turn.waiting -= 1
                if not turn.waiting:
                    del self._turns[key]


def _ref(warehouse: Warehouse, location: str, version: int | None = None) -> TableRef:
    locations.require_no_link(warehouse, location, "lance")
    return TableRef(location, warehouse.storage, version=version, confinement=ManifestsAlone())
