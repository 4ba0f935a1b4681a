"""Adopt a warehouse whose storage is newer than the database: find what the database lacks, and take it over.

A version of a managed Lance table whose manifest is in its final place was accepted by a catalog, so the database can
follow. For an Iceberg table only the catalog knew which metadata file was the last that it accepted; the newest one may
be that of a commit that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog.callers import Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.fence import EpochFile, find_conflict, read_epoch_file
from lancehouse.catalog.lance_metadata import is_managed, managed_branches
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.gateway.backends import Backend
from lancehouse.identifiers import format_levels
from lancehouse.lake.confinement import ManifestsAlone
from lancehouse.lake.dataset import TableRef, version_of_snapshot
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.versions import list_branches
from lancehouse.maintenance.process import find_warehouses, open_backends
from lancehouse.properties import IMPL
from lancehouse.server.http.observability import Log
from lancehouse.server.settings import ServerSettings
from lancehouse.store import fences, repository
from lancehouse.store.model import EntryRow, FenceRow, Kind

ADOPTER = Identity("lancehouse db adopt", (Grant(Role.ADMIN),))
"""Who the audit says has changed the tables."""
_NUMBERED = re.compile(r"(\d+)-[^/]+\.metadata\.json(?:\.gz)?|(\d+)-[^/]+\.gz\.metadata\.json")
Versions = dict[str | None, int | None]
"""The latest version of each branch; None is main."""
KINDS: tuple[Kind, ...] = ("lance", "iceberg", "view")


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A table of which storage has more than the database knows, or less."""

    levels: tuple[str, ...]
    """The id, from the warehouse on."""
    kind: Kind
    database: str
    storage: str
    advice: str = ""
    """What to do; empty for what an adoption does by itself."""


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What adopting a warehouse would do."""

    warehouse: Warehouse
    conflict: str | None
    """Why the database may not change the warehouse now; None if it may."""
    file: EpochFile | None
    tables: int
    """Number of tables and views that were looked at."""
    differences: Sequence[TableDifference]


class Adoption:
    """Adopts warehouses, with the catalog in this process, whose own changes are not refused."""

    def __init__(self, catalog: Catalog, backends: dict[str, Backend]) -> None:
        self._catalog = catalog
        self._backends = backends

    @classmethod
    @contextmanager
    def open(cls, settings: ServerSettings) -> Iterator[Adoption]:
        """Open the catalog of a server with these settings."""
        catalog, backends = open_backends(settings, find_warehouses(settings), Log("warning"), ADOPTER)
        try:
            yield cls(catalog, backends)
        finally:
            catalog.database.close()

    @property
    def warehouses(self) -> Sequence[Warehouse]:
        """The warehouses of the catalog."""
        return list(self._catalog.warehouses.values())

    def plan(self, warehouse: Warehouse) -> AdoptionPlan:
        """Compare a warehouse with the database; nothing is changed.

        Raises:
            ServiceUnavailableError: its storage cannot be read.
        """
        database, epoch_file = self._catalog.database, read_epoch_file(warehouse)
        row, last_change = database.read(lambda tx: (fences.find_fence(tx, warehouse.id), fences.find_last_change(tx)))
        fence = row or FenceRow(warehouse.id, "", 0, (), 0, "open", "", None, "", 0)
        conflict = fence.reason if fence.state == "adopting" else find_conflict(fence, epoch_file, last_change)
        names = [
            (*levels, name)
            for kind in KINDS
            for levels, name in database.read(
                lambda tx: repository.list_entries_in_warehouse(tx, warehouse.id, kind)  # noqa: B023
            )
        ]
        differences = list(filter(None, (self._compare(warehouse, name) for name in names)))
        file = epoch_file if isinstance(epoch_file, EpochFile) else None
        return AdoptionPlan(warehouse, conflict, file, len(names), differences)

    def _compare(self, warehouse: Warehouse, name: tuple[str, ...]) -> TableDifference | None:
        entry = self._catalog.database.read(lambda tx: repository.find_entry(tx, warehouse.id, name[:-1], name[-1]))
        if entry is None:
            return None
        table_id = (warehouse.name, *name)
        try:
            if entry.kind != "lance":
                return _compare_metadata(warehouse, entry, table_id)
            return self._compare_versions(warehouse, entry, table_id) if is_managed(entry) else None
        except LanceNamespaceError as error:
            return TableDifference(table_id, entry.kind, _describe(entry), "cannot be read", str(error))

    def _compare_versions(self, warehouse: Warehouse, entry: EntryRow, id: tuple[str, ...]) -> TableDifference | None:
        refs = self._catalog.database.read(lambda tx: repository.list_refs(tx, entry.id))
        accepted: Versions = {None: entry.version} | {
            name: version_of_snapshot(name, head) for name, head in managed_branches(refs).items()
        }
        place = TableRef(entry.location, warehouse.storage, confinement=ManifestsAlone())
        stored: Versions = {None: find_latest_version(place)}
        if stored[None] is not None:
            stored |= {name: find_latest_version(replace(place, branch=name)) for name in list_branches(place)}
        # A branch that the database does not know may be older than its management by the catalog.
        differing = [name for name in accepted if stored.get(name) != accepted[name]]
        if not differing:
            return None
        is_behind = all((stored.get(name) or 0) > (accepted[name] or 0) for name in differing)
        advice = "" if is_behind else f"lancehouse doctor {format_levels(id)}"
        at, latest = (_format_versions(versions, differing) for versions in (accepted, stored))
        return TableDifference(id, entry.kind, at, latest, advice)

    def adopt(self, warehouse: Warehouse) -> tuple[int, list[TableDifference]]:
        """Take a warehouse over, and bring its managed Lance tables to the versions in storage.

        Returns:
            How many tables were brought forward, and what is left for the operator to decide.

        Raises:
            ServiceUnavailableError: its epoch file cannot be read or written; changes are refused until it is adopted.
        """
        fence = self._catalog.fence
        fence.begin_adoption(warehouse)
        # Compared again: another copy may have committed to further tables until its epoch was over.
        differences = self.plan(warehouse).differences
        client = self._backends[warehouse.name].connect(None, reads_all=True).inner
        assert isinstance(client, IcebergNamespace)
        left = []
        for table in differences:
            if table.advice:
                left.append(table)
                continue
            try:
                client.manage_table(table.levels, IMPL, adopt=True)
            except LanceNamespaceError as error:
                left.append(replace(table, advice=str(error)))
        fence.finish_adoption(warehouse)
        return len(differences) - len(left), left


def _describe(entry: EntryRow) -> str:
    return entry.metadata_location or _format_version(entry.version)


def _format_version(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


def _format_versions(versions: Versions, names: Sequence[str | None]) -> str:
    return ", ".join(
        _format_version(versions.get(name)) + (f" of branch {name}" if name is not None else "") for name in names
    )


def _compare_metadata(warehouse: Warehouse, entry: EntryRow, id: tuple[str, ...]) -> TableDifference | None:
    """Compare the number of the current metadata file with those beside it."""
    folder, _, current = str(entry.metadata_location).rpartition("/")
    files = WarehouseFiles(warehouse)
    numbers = {name: number for name in files.list_names(folder) if (number := _parse_number(name)) is not None}
    if current not in numbers and not files.exists(str(entry.metadata_location)):
        advice = f"lancehouse doctor {format_levels(id)}" if entry.kind == "iceberg" else "drop the view"
        return TableDifference(id, entry.kind, current, "the file is gone", advice)
    newest = max(numbers, key=lambda name: (numbers[name], name), default=current)
    at = _parse_number(current)
    if at is None or numbers.get(newest, at) <= at:
        return None
    advice = f"if a commit made it, register the {'view' if entry.kind == 'view' else 'table'} with {folder}/{newest}"
    return TableDifference(id, entry.kind, current, newest, advice)


def _parse_number(name: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    return None if match is None else int(match[1] or match[2])
