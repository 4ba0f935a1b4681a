"""Views: SQL that Iceberg's engines share, under names of their own among the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog import locations, places
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.documents import Document, provisional
from lancehouse.catalog.entries import TableName, insert, list_names, record, rename_entry, require_free
from lancehouse.catalog.files import Files
from lancehouse.catalog.iceberg import views
from lancehouse.catalog.loading import Loaded, Loader
from lancehouse.catalog.names import Levels, checked_name, no_view
from lancehouse.catalog.transactions import now_ms, write
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import EntryRow, Json, Kind

VIEWS: tuple[Kind, ...] = ("view",)
ATTEMPTS = 8


class _OvertakenError(Exception):
    """Another commit came between."""


class Views:
    """What clients do with views."""

    def __init__(self, database: Database, loader: Loader) -> None:
        self._database = database
        self._loader = loader

    def list(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[str], str | None]:
        """The names of the views in a namespace, and the token of the next page."""
        return list_names(self._database, caller, warehouse, levels, VIEWS, page_token, page_size)

    def load(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> Loaded:
        """A view's metadata.

        Raises:
            ViewNotFoundError: there is no such view.
        """
        return self._loader.load(caller, warehouse, levels, self.find(caller, warehouse, levels, name))

    def find(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> EntryRow:
        """The entry of a view.

        Raises:
            ViewNotFoundError: there is no such view; a table is none.
        """
        caller.identity.require(Role.READER, warehouse.name, levels)
        entry = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        if entry is None or entry.kind != "view":
            raise no_view(levels, name)
        return entry

    def create(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> Loaded:
        """Make a view.

        Raises:
            NamespaceNotFoundError, ViewAlreadyExistsError, TableAlreadyExistsError: nothing was made.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        name = TableName(levels, checked_name("view name", request["name"]))
        self._database.read(lambda tx: require_free(tx, warehouse, name, "view"))
        wanted = request.get("location")
        location = (
            places.chosen(self._database, caller, warehouse, wanted, "view")
            if wanted
            else places.free(self._database, warehouse, levels, name.name, "view")
        )
        metadata = views.new_view(request, location)
        self._check_path(caller, warehouse, metadata)
        document = self._written(warehouse, metadata, None)

        def work(tx: Tx) -> EntryRow:
            return self._inserted(tx, caller, warehouse, name, metadata, document)

        return self._made(caller, warehouse, levels, document, work)

    def register(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> Loaded:
        """Take in a view by its metadata file.

        Raises:
            NamespaceNotFoundError, ViewAlreadyExistsError, TableAlreadyExistsError: nothing was registered.
            MetadataNotFoundError: there is no such file.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        name = TableName(levels, checked_name("view name", request["name"]))
        self._database.read(lambda tx: require_free(tx, warehouse, name, "view"))
        place = places.chosen(self._database, caller, warehouse, request["metadata-location"], "view")
        document = self._loader.documents.load(warehouse, place)
        metadata = views.parse(document.all)
        places.chosen(self._database, caller, warehouse, metadata["location"], "view")
        self._check_path(caller, warehouse, metadata)
        entry = write(
            self._database, caller, lambda tx: self._inserted(tx, caller, warehouse, name, metadata, document)
        )
        return self._loader.load(caller, warehouse, levels, entry)

    def commit(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, request: Json) -> Loaded:
        """Replace a view's definition, or change its properties.

        Raises:
            ViewNotFoundError: there is no such view.
            ConcurrentModificationError: a requirement does not hold, or others were always faster.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        for _ in range(ATTEMPTS):
            entry = self.find(caller, warehouse, levels, name)
            before = self._loader.documents.load(warehouse, str(entry.metadata_location))
            known = views.parse(before.all)
            metadata = views.apply(known, request.get("requirements") or [], request["updates"])
            if metadata is known or self._replaced(caller, warehouse, entry, metadata, before.location):
                return self.load(caller, warehouse, levels, name)
        raise ConcurrentModificationError(f"other commits to view {TableName(levels, name)} were always faster")

    def _replaced(self, caller: Caller, warehouse: Warehouse, entry: EntryRow, metadata: Json, previous: str) -> bool:
        """Let the entry point to new metadata; False if another commit came between."""
        places.chosen(self._database, caller, warehouse, metadata["location"], "view")
        self._check_path(caller, warehouse, metadata)
        document = self._written(warehouse, metadata, previous)

        def work(tx: Tx) -> None:
            now = now_ms()
            changed = {"metadata_location": document.location}
            if not repository.advance_entry(tx, entry.id, entry.revision, now_ms=now, **changed):
                raise _OvertakenError
            record(tx, replace(entry, revision=entry.revision + 1, updated_ms=now), caller, "replace", None)

        try:
            with provisional(warehouse, [document.location]):
                write(self._database, caller, work)
        except _OvertakenError:
            return False
        self._loader.documents.hold(document)
        return True

    def drop(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> None:
        """Remove a view; its metadata files stay.

        Raises:
            ViewNotFoundError: there is no such view.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        entry = self.find(caller, warehouse, levels, name)

        def work(tx: Tx) -> None:
            if not repository.delete_entry(tx, entry.id):
                raise no_view(levels, name)

        write(self._database, caller, work)

    def rename(self, caller: Caller, warehouse: Warehouse, source: TableName, destination: TableName) -> None:
        """Give a view another name.

        Raises:
            ViewNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
        """
        rename_entry(self._database, caller, warehouse, VIEWS, source, destination)

    def _made(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, document: Document, work: Callable[[Tx], EntryRow]
    ) -> Loaded:
        with provisional(warehouse, [document.location]):
            entry = write(self._database, caller, work)
        self._loader.documents.hold(document)
        return self._loader.load(caller, warehouse, levels, entry)

    def _inserted(
        self, tx: Tx, caller: Caller, warehouse: Warehouse, name: TableName, metadata: Json, document: Document
    ) -> EntryRow:
        namespace = require_free(tx, warehouse, name, "view")
        uuid, location = metadata["view-uuid"], metadata["location"]
        return insert(
            tx, namespace, name, "view", uuid, location, {}, metadata_location=document.location, caller=caller
        )

    def _check_path(self, caller: Caller, warehouse: Warehouse, metadata: Json) -> None:
        """Refuse a view that wants its metadata where the caller may not choose, or in a table."""
        path = metadata["properties"].get("write.metadata.path")
        for place in filter(None, (metadata["location"], path)):
            self._database.read(lambda tx: places.require_unshared(tx, place, "view"))  # noqa: B023
        if path:
            places.chosen(self._database, caller, warehouse, path, "view")

    def _written(self, warehouse: Warehouse, metadata: Json, previous: str | None) -> Document:
        document = Document(views.next_location(metadata, previous), orjson.dumps(metadata))
        Files(warehouse).write(locations.checked(warehouse, document.location, "view"), document.all)
        return document
