"""Scan planning on the server, for Lance and Iceberg tables: plan a scan, fetch tasks, fetch a plan, cancel a plan."""

from __future__ import annotations

import re

from pyiceberg.table.metadata import TableMetadata

from lancehouse.catalog.callers import Caller
from lancehouse.catalog.errors import Levels, PlanNotFoundError
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.manifests import ReadFile
from lancehouse.catalog.location_access import ReadableLocations, TableFiles
from lancehouse.catalog.metadata_loader import LanceMetadataCache
from lancehouse.catalog.restricted_tables import RestrictedTables
from lancehouse.catalog.scans import iceberg
from lancehouse.catalog.scans.exports import Exports
from lancehouse.catalog.scans.lance import LanceScans
from lancehouse.catalog.scans.scan_requests import Json, ScanRequest, completed_plan, decode_task
from lancehouse.catalog.tables import Tables
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.restricted_rows import VisiblePart
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow

_PLAN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Scans:
    """The endpoints of scan planning. Every plan is complete in its response, so the server keeps no state for it."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        lance_tables: LanceMetadataCache,
        restricted: RestrictedTables,
        *,
        cache_bytes: int,
    ) -> None:
        self._database = database
        self._tables = tables
        self._restricted = restricted
        self.exports = Exports(database, cache_bytes=cache_bytes)
        self._lance = LanceScans(lance_tables, self.exports)

    def plan(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, request: Json) -> Json:
        """Plan a scan: return tasks to read files, and plan tasks for what would take too long now.

        Raises:
            TableNotFoundError: there is no such table.
            InvalidInputError: the request is not valid, or names a snapshot or a column that does not exist.
            PermissionDeniedError: the table has files that the caller may not read.
        """
        entry, part = self._get_entry(caller, warehouse, levels, name)
        scan_request = ScanRequest.from_json(request)
        if entry.kind == "lance":
            places = self._readable_locations(caller, warehouse)
            return completed_plan(self._lance.plan(places, entry, scan_request, part))
        table, read_file, files = self._load_iceberg(caller, warehouse, entry)
        return completed_plan(iceberg.plan(table, read_file, scan_request, files, has_nulls=_can_read_nulls(caller)))

    def fetch_tasks(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_task: str) -> Json:
        """Return the tasks that a plan task stands for.

        Raises:
            TableNotFoundError: there is no such table.
            PlanTaskNotFoundError: it is not from a plan of this table.
        """
        entry, part = self._get_entry(caller, warehouse, levels, name)
        content = decode_task(plan_task)
        if entry.kind == "lance":
            return self._lance.fetch_tasks(self._readable_locations(caller, warehouse), entry, content, part)
        table, read_file, files = self._load_iceberg(caller, warehouse, entry)
        return iceberg.fetch_tasks(table, read_file, content, files, has_nulls=_can_read_nulls(caller))

    def fetch_plan(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_id: str) -> Json:
        """Return the result of a plan that was not complete in its response. There are none, so this always raises.

        Raises:
            TableNotFoundError: there is no such table.
            PlanNotFoundError: in all other cases.
        """
        self._get_entry(caller, warehouse, levels, name)
        raise _plan_not_found(plan_id)

    def cancel_plan(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_id: str) -> None:
        """Cancel a plan. There is nothing to do, as the server keeps no state for it.

        Raises:
            TableNotFoundError: there is no such table.
            PlanNotFoundError: the id cannot be one of this server.
        """
        self._get_entry(caller, warehouse, levels, name)
        if not _PLAN_ID.fullmatch(plan_id):
            raise _plan_not_found(plan_id)

    def _get_entry(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str
    ) -> tuple[EntryRow, VisiblePart | None]:
        """Return the entry of a table, and the part of it that the caller sees, or None for all.

        Raises:
            PermissionDeniedError: the caller may not read it; or sees a part, and the warehouse cannot vend
                credentials that exclude the copies of others.
        """
        if caller.identity.find_row_policy(warehouse.name, levels, name) is not None:
            entry, part = self._restricted.get_entry(caller, warehouse, levels, name)
            self._restricted.require_scoped_copies(warehouse, part)
            return entry, part
        return self._tables.get_entry(caller, warehouse, levels, name), None

    def _readable_locations(self, caller: Caller, warehouse: Warehouse) -> ReadableLocations:
        return ReadableLocations.from_caller(self._database, caller, warehouse)

    def _load_iceberg(
        self, caller: Caller, warehouse: Warehouse, entry: EntryRow
    ) -> tuple[TableMetadata, ReadFile, TableFiles]:
        files = WarehouseFiles(warehouse)
        table = iceberg_tables.parse(files.read(str(entry.metadata_location)))
        return table.to_pyiceberg(), files.read, TableFiles(self._readable_locations(caller, warehouse), table)


def _can_read_nulls(caller: Caller) -> bool:
    """Return whether the client accepts nulls among partition values; pyiceberg considers such a plan invalid."""
    return "pyiceberg" not in caller.client.lower()


def _plan_not_found(plan_id: str) -> PlanNotFoundError:
    return PlanNotFoundError(f"Plan does not exist: {plan_id[:60]}")
