"""Scans planned by the server: which files a client is to read, and with which filter."""

from __future__ import annotations

import re

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.errors import PlanNotFoundError
from lancehouse.catalog.files import Files
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.metadata import LanceTables
from lancehouse.catalog.names import Levels, no_table
from lancehouse.catalog.places import ReadablePlaces, TableFiles
from lancehouse.catalog.scans import planning
from lancehouse.catalog.scans.exports import Exports
from lancehouse.catalog.scans.lance import LanceScans
from lancehouse.catalog.scans.requests import Json, ScanRequest, completed, from_token
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.rows import EntryRow

_PLAN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Scans:
    """The four calls of scan planning. A plan is complete when it is answered, and nothing is held for it."""

    def __init__(self, database: Database, lance_tables: LanceTables, *, cache_bytes: int) -> None:
        self._database = database
        self.exports = Exports(database, cache_bytes=cache_bytes)
        self._lance = LanceScans(lance_tables, self.exports)

    def plan(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, request: Json) -> Json:
        """A plan: tasks to read files, and plan tasks for what would take too long now.

        Raises:
            TableNotFoundError: there is no such table.
            InvalidInputError: the request makes no sense, or names a snapshot or a column that the table has not.
            PermissionDeniedError: the table has files that the caller may not read.
        """
        entry = self._find(caller, warehouse, levels, name)
        wanted = ScanRequest.of(request)
        if entry.kind == "lance":
            return completed(self._lance.plan(self._places(caller, warehouse), entry, wanted))
        table, io, files = self._iceberg(caller, warehouse, entry)
        return completed(planning.plan(table, io, wanted, files, has_nulls=_reads_nulls(caller)))

    def tasks(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_task: str) -> Json:
        """What a plan task stands for.

        Raises:
            TableNotFoundError: there is no such table.
            PlanTaskNotFoundError: no plan of this table gave it out.
        """
        entry = self._find(caller, warehouse, levels, name)
        content = from_token(plan_task)
        if entry.kind == "lance":
            return self._lance.tasks(self._places(caller, warehouse), entry, content)
        table, io, files = self._iceberg(caller, warehouse, entry)
        return planning.tasks(table, io, content, files, has_nulls=_reads_nulls(caller))

    def fetch(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_id: str) -> Json:
        """The result of a plan that was not complete when it was answered. There are none.

        Raises:
            TableNotFoundError: there is no such table.
            PlanNotFoundError: always, else.
        """
        self._find(caller, warehouse, levels, name)
        raise _no_plan(plan_id)

    def cancel(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, plan_id: str) -> None:
        """Give up a plan, which costs nothing as nothing is held.

        Raises:
            TableNotFoundError: there is no such table.
            PlanNotFoundError: it cannot have been a plan of this server.
        """
        self._find(caller, warehouse, levels, name)
        if not _PLAN_ID.fullmatch(plan_id):
            raise _no_plan(plan_id)

    def _find(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> EntryRow:
        caller.identity.require(Role.READER, warehouse.name, levels)
        entry = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        if entry is None or entry.kind == "view":
            raise no_table(levels, name)
        return entry

    def _places(self, caller: Caller, warehouse: Warehouse) -> ReadablePlaces:
        return ReadablePlaces.of(self._database, caller, warehouse)

    def _iceberg(
        self, caller: Caller, warehouse: Warehouse, entry: EntryRow
    ) -> tuple[TableMetadata, FileIO, TableFiles]:
        files = Files(warehouse)
        table = iceberg_tables.parse(files.read(str(entry.metadata_location)))
        return table.to_pyiceberg(), files.io(), TableFiles(self._places(caller, warehouse), table)


def _reads_nulls(caller: Caller) -> bool:
    """Whether a client reads nulls among partition values: pyiceberg takes such a plan for broken."""
    return "pyiceberg" not in caller.client.lower()


def _no_plan(plan_id: str) -> PlanNotFoundError:
    return PlanNotFoundError(f"Plan does not exist: {plan_id[:60]}")
