"""Dropped tables: list and restore them, and delete them for good when their time is over or an admin says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError, TableNotFoundError

from lancehouse.catalog.audit import format_time
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import TableName, now_ms, record_change, require_name_free, write_once
from lancehouse.catalog.errors import Levels, MetadataNotFoundError, already_exists, check_name
from lancehouse.catalog.fence import Fence
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.metadata_loader import DocumentCache
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import dataset_files
from lancehouse.properties import GC_ENABLED
from lancehouse.store import dropped
from lancehouse.store.database import Database
from lancehouse.store.model import DroppedRow, EntryRow, Json
from lancehouse.store.statements import Tx

log = logging.getLogger(__name__)

MOST_LISTED = 10_000
MOST_EXPIRED = 100
"""Most tables that are deleted at once when their time is over."""
GRACE_MS = 10 * 60 * 1000
"""How long after its time a table is deleted: the clocks of servers differ."""
AT_ONCE = 0
"""`expires_ms` of a table that an admin purges: it cannot be restored any more, whatever the clocks say."""


class DroppedTables:
    """The dropped tables of a catalog. They keep entry, history, location and files for the warehouse's retention."""

    def __init__(self, database: Database, documents: DocumentCache, fence: Fence) -> None:
        self._database = database
        self._documents = documents
        self._fence = fence

    def list(self, caller: Caller, warehouse: Warehouse) -> Sequence[DroppedRow]:
        """Return the dropped tables of a warehouse that the caller may read, the one dropped last first."""
        rows = self._database.read(lambda tx: dropped.list_dropped(tx, warehouse.id, MOST_LISTED))
        return [row for row in rows if caller.identity.has_role(Role.READER, warehouse.name, row.levels, row.name)]

    def restore(
        self,
        caller: Caller,
        warehouse: Warehouse,
        name: TableName,
        new_name: TableName | None = None,
        dropped_ms: int | None = None,
    ) -> TableName:
        """Restore a dropped table under its name or another, and return that.

        Args:
            caller: who asks.
            warehouse: of the table.
            name: what the table was called.
            new_name: what it shall be called; None for the same.
            dropped_ms: when it was dropped, where several were called so; None for the one dropped last.

        Raises:
            TableNotFoundError: no dropped table was called so, or its time is over.
            NamespaceNotFoundError, TableAlreadyExistsError: it cannot have the name; nothing was restored.
        """
        target = new_name or name
        caller.identity.require_role(Role.WRITER, warehouse.name, name.levels)
        caller.identity.require_role(Role.WRITER, warehouse.name, target.levels)
        self._fence.require_open(warehouse)
        check_name("table name", target.name)

        def work(tx: Tx) -> None:
            row = _find(tx, warehouse, name, dropped_ms)
            entry = dropped.find_dropped_entry(tx, row.entry_id)
            if entry is None:
                raise _gone_error(name)
            namespace = require_name_free(tx, warehouse, target, entry.kind)
            if not dropped.take_back(tx, entry.id, now_ms()):
                raise TableNotFoundError(f"Table does not exist: the time to undrop {name} is over")
            if not dropped.restore_entry(tx, entry.id, namespace.id, target.name, now_ms()):
                raise already_exists(target.levels, target.name, by=entry.kind, wanted=entry.kind)
            after = {"uuid": entry.uuid, "location": entry.location}
            before = {"namespace": list(name.levels), "name": name.name, "dropped-ms": row.dropped_ms}
            record_change(tx, caller, "table.undrop", warehouse.name, target.levels, target.name, before, after)

        write_once(self._database, caller, work)
        return target

    def purge(self, caller: Caller, warehouse: Warehouse, name: TableName, dropped_ms: int | None = None) -> None:
        """Delete a dropped table with its files now, whatever time it has left.

        Raises:
            TableNotFoundError: no dropped table was called so.
            InvalidInputError: the table has `gc.enabled=false`.
            ServiceUnavailableError: some files could not be deleted yet; it cannot be restored any more.
        """
        caller.identity.require_role(Role.ADMIN, warehouse.name, name.levels, name.name)
        self._fence.require_open(warehouse)

        def work(tx: Tx) -> DroppedRow:
            row = _find(tx, warehouse, name, dropped_ms)
            entry = dropped.find_dropped_entry(tx, row.entry_id)
            if entry is not None and not row.purge:
                require_purge_allowed(name, entry.properties)
            if not dropped.expire(tx, row.entry_id, AT_ONCE):
                raise _gone_error(name)
            return replace(row, purge=True)

        row = write_once(self._database, caller, work)
        if not self.delete(caller, warehouse, row) and self._find_entry(row) is not None:
            raise ServiceUnavailableError(f"{name} is purged, but files of it are left: the server will try again")

    def delete_expired(self, caller: Caller, warehouse: Warehouse) -> int:
        """Delete tables whose time is over, and return how many; what fails is tried again the next time.

        An old database may not know that a table was restored: nothing is deleted while the warehouse takes no changes.
        """
        if self._fence.refusal(warehouse) is not None:
            return 0
        until = now_ms() - GRACE_MS
        rows = self._database.read(lambda tx: dropped.list_expired(tx, warehouse.id, until, MOST_EXPIRED))
        return sum(self.delete(caller, warehouse, row) for row in rows)

    def delete(self, caller: Caller, warehouse: Warehouse, row: DroppedRow) -> bool:
        """Delete a dropped table whose time is over; whether it is, the caller has checked.

        The files go before the entry. If this process dies in between, another goes on; and until the files are gone,
        no other table gets their location.

        Returns:
            False if some files are left, or another server has deleted the table.
        """
        entry = self._find_entry(row)
        if entry is None:
            return False
        try:
            if row.purge:
                delete_files(warehouse, entry, self._documents)
        except (LanceNamespaceError, OSError) as error:
            log.warning("files of dropped table %s at %s are left: %s", entry.uuid, entry.location, error)
            return False

        def work(tx: Tx) -> bool:
            is_deleted = dropped.delete_dropped_entry(tx, entry.id)
            if is_deleted:
                before = {"uuid": entry.uuid, "location": entry.location, "files-deleted": row.purge}
                record_change(tx, caller, "table.expire", warehouse.name, row.levels, row.name, before, None)
            return is_deleted

        return self._database.write(work)

    def _find_entry(self, row: DroppedRow) -> EntryRow | None:
        return self._database.read(lambda tx: dropped.find_dropped_entry(tx, row.entry_id))


def require_purge_allowed(name: TableName, properties: Mapping[str, str]) -> None:
    """Raise if the files of a table may belong to other tables too.

    Raises:
        InvalidInputError: the table has `gc.enabled=false`.
    """
    if properties.get(GC_ENABLED, "true").lower() == "false":
        raise InvalidInputError(
            f"Cannot purge table: {GC_ENABLED} is false for {name}, deleting its files may corrupt other tables; "
            "drop it without purge, or set the property first"
        )


def delete_files(warehouse: Warehouse, entry: EntryRow, documents: DocumentCache) -> None:
    """Delete the files of a table; those that are gone already are no error."""
    if entry.kind == "lance":
        dataset_files.remove_dataset(entry.location, warehouse.storage, metadata=True)
        return
    files = WarehouseFiles(warehouse)
    try:
        table = documents.load(warehouse, str(entry.metadata_location)).table
    except MetadataNotFoundError:  # an earlier attempt came that far: it is deleted last
        return
    for file in (*iceberg_tables.list_purge_files(table, files), str(entry.metadata_location)):
        files.delete(file)


def drop_entry(
    tx: Tx, caller: Caller, warehouse: Warehouse, levels: Levels, entry: EntryRow, *, purge: bool
) -> DroppedRow | None:
    """Take a table out of its namespace for the warehouse's retention; return None if it is not there any more."""
    now = now_ms()
    expires_ms = now + warehouse.retention_s * 1000
    row = DroppedRow(entry.id, warehouse.id, levels, entry.name, now, expires_ms, caller.identity.name, purge)
    return row if dropped.insert_dropped(tx, row, entry) else None


def dropped_to_json(row: DroppedRow) -> Json:
    """Return a dropped table as JSON."""
    return {
        "namespace": list(row.levels),
        "name": row.name,
        "dropped-at": format_time(row.dropped_ms),
        "dropped-ms": row.dropped_ms,
        "expires-at": format_time(row.expires_ms),
        "principal": row.principal,
        "purge": row.purge,
    }


def _gone_error(name: TableName) -> TableNotFoundError:
    return TableNotFoundError(f"Table does not exist: dropped table {name} was restored or deleted at this moment")


def _find(tx: Tx, warehouse: Warehouse, name: TableName, dropped_ms: int | None) -> DroppedRow:
    rows = dropped.find_dropped(tx, warehouse.id, name.levels, name.name)
    match = next((row for row in rows if dropped_ms in (None, row.dropped_ms)), None)
    if match is None:
        raise TableNotFoundError(f"Table does not exist: there is no dropped table {name}, or its time is over")
    return match
