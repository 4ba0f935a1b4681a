"""Create, load, list, register, change, rename and drop Iceberg views."""

from __future__ import annotations

from dataclasses import replace

import orjson
from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog import location_access
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.entries import (
    TableName,
    create_entry,
    list_names,
    now_ms,
    record_change,
    record_commit,
    rename_entry,
    require_name_free,
    write_once,
)
from lancehouse.catalog.errors import ATTEMPTS, CommitConflictError, Levels, check_name, view_not_found
from lancehouse.catalog.fence import Fence
from lancehouse.catalog.iceberg import views
from lancehouse.catalog.metadata_loader import LoadResult, MetadataDocument, MetadataLoader, discard_on_failure
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json, Kind
from lancehouse.store.statements import Tx

VIEWS: tuple[Kind, ...] = ("view",)


class Views:
    """Operations on views."""

    def __init__(self, database: Database, loader: MetadataLoader, fence: Fence) -> None:
        self._database = database
        self._loader = loader
        self._fence = fence

    def list(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[str], str | None]:
        """Return the names of the views in a namespace, and the token of the next page or None."""
        return list_names(self._database, caller, warehouse, levels, VIEWS, page_token, page_size)

    def load(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> LoadResult:
        """Load a view's metadata.

        Raises:
            ViewNotFoundError: there is no such view.
        """
        return self._loader.load(caller, warehouse, levels, self.get_entry(caller, warehouse, levels, name))

    def get_entry(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> EntryRow:
        """Return the entry of a view.

        Raises:
            ViewNotFoundError: there is no such view; a table does not count.
        """
        caller.identity.require_role(Role.READER, warehouse.name, levels, name)
        entry = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        if entry is None or entry.kind != "view":
            raise view_not_found(levels, name)
        return entry

    def create(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> LoadResult:
        """Create a view.

        Raises:
            NamespaceNotFoundError, ViewAlreadyExistsError, TableAlreadyExistsError: nothing was created.
        """
        caller.identity.require_role(Role.WRITER, warehouse.name, levels)
        self._fence.require_open(warehouse)
        name = TableName(levels, check_name("view name", request["name"]))
        self._database.read(lambda tx: require_name_free(tx, warehouse, name, "view"))
        requested_location = request.get("location")
        location = (
            location_access.check_chosen_location(self._database, caller, warehouse, requested_location, "view")
            if requested_location
            else location_access.find_free_location(self._database, warehouse, levels, name.name, "view")
        )
        metadata = views.new_view(request, location)
        self._check_paths(caller, warehouse, metadata)
        document = self._write_metadata(warehouse, metadata, None)

        with discard_on_failure(warehouse, [document.location]):
            entry = write_once(
                self._database, caller, lambda tx: self._insert_entry(tx, caller, warehouse, name, metadata, document)
            )
        self._loader.documents.add(document)
        return self._loader.load(caller, warehouse, levels, entry)

    def register(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> LoadResult:
        """Register an existing view by its metadata file.

        Raises:
            NamespaceNotFoundError, ViewAlreadyExistsError, TableAlreadyExistsError: nothing was registered.
            MetadataNotFoundError: the metadata file does not exist.
        """
        caller.identity.require_role(Role.WRITER, warehouse.name, levels)
        self._fence.require_open(warehouse)
        name = TableName(levels, check_name("view name", request["name"]))
        self._database.read(lambda tx: require_name_free(tx, warehouse, name, "view"))
        metadata_location = location_access.check_chosen_location(
            self._database, caller, warehouse, request["metadata-location"], "view"
        )
        document = self._loader.documents.load(warehouse, metadata_location)
        metadata = views.parse(document.full_json)
        location_access.check_chosen_location(self._database, caller, warehouse, metadata["location"], "view")
        self._check_paths(caller, warehouse, metadata)
        entry = write_once(
            self._database, caller, lambda tx: self._insert_entry(tx, caller, warehouse, name, metadata, document)
        )
        return self._loader.load(caller, warehouse, levels, entry)

    def commit(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, request: Json) -> LoadResult:
        """Replace a view's definition, or change its properties or location.

        Raises:
            ViewNotFoundError: there is no such view.
            ConcurrentModificationError: a requirement does not hold, or other commits came first in every attempt.
        """
        caller.identity.require_role(Role.WRITER, warehouse.name, levels, name)
        self._fence.require_open(warehouse)
        for _ in range(ATTEMPTS):
            entry = self.get_entry(caller, warehouse, levels, name)
            document = self._loader.documents.load(warehouse, str(entry.metadata_location))
            current = views.parse(document.full_json)
            metadata = views.apply_updates(current, request.get("requirements") or [], request["updates"])
            if metadata["location"] != current["location"]:
                location_access.check_chosen_location(self._database, caller, warehouse, metadata["location"], "view")
            if metadata is current or self._replace_metadata(
                caller, warehouse, TableName(levels, name), entry, metadata, document.location
            ):
                return self.load(caller, warehouse, levels, name)
        raise ConcurrentModificationError(f"other commits to view {TableName(levels, name)} were always faster")

    def _replace_metadata(
        self, caller: Caller, warehouse: Warehouse, name: TableName, entry: EntryRow, metadata: Json, previous: str
    ) -> bool:
        """Point the entry to new metadata; return False if another commit came first."""
        self._check_paths(caller, warehouse, metadata)
        document = self._write_metadata(warehouse, metadata, previous)

        def work(tx: Tx) -> None:
            now = now_ms()
            values = {"metadata_location": document.location}
            if not repository.advance_entry(tx, entry.id, entry.revision, now_ms=now, **values):
                raise CommitConflictError
            after = replace(entry, revision=entry.revision + 1, updated_ms=now)
            record_commit(tx, after, caller, warehouse, name, "replace", None)

        try:
            with discard_on_failure(warehouse, [document.location]):
                write_once(self._database, caller, work)
        except CommitConflictError:
            return False
        self._loader.documents.add(document)
        return True

    def drop(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> None:
        """Drop a view; its metadata files are kept.

        Raises:
            ViewNotFoundError: there is no such view.
        """
        caller.identity.require_drop(warehouse.name, levels, name)
        self._fence.require_open(warehouse)
        entry = self.get_entry(caller, warehouse, levels, name)

        def work(tx: Tx) -> None:
            if not repository.delete_entry(tx, entry):
                raise view_not_found(levels, name)
            before = {"uuid": entry.uuid, "metadata-location": entry.metadata_location}
            record_change(tx, caller, "view.drop", warehouse.name, levels, name, before, None)

        write_once(self._database, caller, work)

    def rename(self, caller: Caller, warehouse: Warehouse, source: TableName, destination: TableName) -> None:
        """Rename a view, within its namespace or into another one.

        Raises:
            ViewNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
        """
        rename_entry(self._database, self._fence, caller, warehouse, VIEWS, source, destination)

    def _insert_entry(
        self, tx: Tx, caller: Caller, warehouse: Warehouse, name: TableName, metadata: Json, document: MetadataDocument
    ) -> EntryRow:
        uuid, location, place = metadata["view-uuid"], metadata["location"], document.location
        return create_entry(tx, caller, warehouse, name, "view", uuid, location, metadata_location=place)

    def _check_paths(self, caller: Caller, warehouse: Warehouse, metadata: Json) -> None:
        """Refuse a view whose metadata would lie where the caller may not choose, or in a table."""
        path = metadata["properties"].get("write.metadata.path")
        for place in filter(None, (metadata["location"], path)):
            self._database.read(lambda tx: location_access.require_location_free(tx, place, "view"))  # noqa: B023
        if path:
            location_access.check_chosen_location(self._database, caller, warehouse, path, "view")

    def _write_metadata(self, warehouse: Warehouse, metadata: Json, previous: str | None) -> MetadataDocument:
        document = MetadataDocument(views.next_metadata_location(metadata, previous), orjson.dumps(metadata))
        WarehouseFiles(warehouse).write(
            location_access.check_location(warehouse, document.location, "view"), document.full_json
        )
        return document
