"""Tables: Lance tables, and Iceberg tables beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.catalog import locations, places
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.documents import Document, provisional
from lancehouse.catalog.entries import TableName, insert, list_names, rename_entry, require_free
from lancehouse.catalog.files import Files
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.loading import Loaded, Loader
from lancehouse.catalog.metadata import Snapshots
from lancehouse.catalog.names import Levels, checked_name, dotted, no_table
from lancehouse.catalog.transactions import write
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import removal
from lancehouse.properties import GC_ENABLED, IMPL, LANCE, MANAGED_BY, TABLE_TYPE, is_lance, managed_by
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx
from lancehouse.store.rows import EntryRow, Json, Kind

log = logging.getLogger(__name__)

TABLES: tuple[Kind, ...] = ("lance", "iceberg")


class Tables:
    """What clients do with tables, but for commits."""

    def __init__(self, database: Database, loader: Loader) -> None:
        self._database = database
        self._loader = loader

    def list(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[str], str | None]:
        """The names of the tables in a namespace, and the token of the next page."""
        return list_names(self._database, caller, warehouse, levels, TABLES, page_token, page_size)

    def cached(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, snapshots: Snapshots
    ) -> Loaded | None:
        """What `load` answers, if that is cheap to tell: one indexed read, and a look at local folders.

        Raises:
            TableNotFoundError: there is no such table.
        """
        caller.identity.require(Role.READER, warehouse.name, levels)
        key = (warehouse.id, levels, name)
        entry = self._database.recall(key, lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        return self._loader.cached(caller, warehouse, _table(entry, levels, name), snapshots)

    def load(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, snapshots: Snapshots = "all"
    ) -> Loaded:
        """A table's metadata as they are now: of a Lance table that its storage manages, as storage has them.

        Raises:
            TableNotFoundError: there is no such table.
            MetadataNotFoundError: the metadata file of an Iceberg table is gone.
        """
        entry = self.find(caller, warehouse, levels, name)
        return self._loader.load(caller, warehouse, levels, entry, snapshots)

    def find(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> EntryRow:
        """The entry of a table.

        Raises:
            TableNotFoundError: there is no such table; a view is none.
        """
        caller.identity.require(Role.READER, warehouse.name, levels)
        entry = self._database.peek(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        return _table(entry, levels, name)

    def create(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> Loaded:
        """Make a table, or only say what it would be like (`stage-create`).

        A Lance table (`table_type=lance`) is declared; if its location holds a dataset, that is what the table is.

        Raises:
            NamespaceNotFoundError, TableAlreadyExistsError, ViewAlreadyExistsError: nothing was made.
            InvalidInputError: the request makes no table, or its location is not allowed.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        name = checked_name("table name", request["name"])
        properties = request.get("properties") or {}
        kind: Kind = "lance" if is_lance(properties) else "iceberg"
        location = self._place(caller, warehouse, TableName(levels, name), request.get("location"), kind)
        if kind == "iceberg":
            return self._create_iceberg(caller, warehouse, TableName(levels, name), request, location)
        if request.get("stage-create"):
            raise InvalidInputError("a Lance table cannot be staged: create it, then write to it with Lance")
        declared = iceberg_tables.new(request, location)
        return self._create_lance(
            caller,
            warehouse,
            TableName(levels, name),
            location,
            lance_properties({MANAGED_BY: warehouse.managed_by, **properties}),
            lance_schema(declared),
        )

    def register(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> Loaded:
        """Take in a table that is there: an Iceberg table by its metadata file, a Lance table by its root.

        Raises:
            NamespaceNotFoundError, TableAlreadyExistsError, ViewAlreadyExistsError: nothing was registered.
            MetadataNotFoundError: there is no such file.
            InvalidInputError: there is no dataset at that root, or its location is not allowed.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        name = TableName(levels, checked_name("table name", request["name"]))
        place, overwrite = request["metadata-location"], bool(request.get("overwrite"))
        if place.endswith((".metadata.json", ".metadata.json.gz", ".gz.metadata.json")):
            return self._register_iceberg(caller, warehouse, name, place, overwrite=overwrite)
        location = places.chosen(self._database, caller, warehouse, place, "lance")
        if self._loader.lance.adopt(warehouse, location) is None:
            raise InvalidInputError(
                f"there is no Lance dataset at {location}: metadata-location is the root of a dataset, "
                f"or an Iceberg table's metadata file, which ends with .metadata.json"
            )
        if overwrite:
            raise InvalidInputError("overwrite is for Iceberg tables: drop the entry, then register the Lance table")
        return self._create_lance(caller, warehouse, name, location, lance_properties({}), None)

    def drop(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, *, purge: bool = False) -> None:
        """Remove a table from the catalog and, with `purge`, its files.

        Raises:
            TableNotFoundError: there is no such table.
            InvalidInputError: a purge of a table that `gc.enabled=false` protects; nothing was removed.
        """
        caller.identity.require(Role.WRITER, warehouse.name, levels)
        entry = self.find(caller, warehouse, levels, name)
        files = Files(warehouse)
        properties: Mapping[str, str] = entry.properties
        doomed: Callable[[], Any] = lambda: removal.drop(entry.location, warehouse.storage, metadata=True)  # noqa: E731
        if purge and entry.kind == "iceberg":
            table = self._loader.documents.load(warehouse, str(entry.metadata_location)).table
            properties = table.properties
            last = str(entry.metadata_location)
            doomed = lambda: [*map(files.delete, (*iceberg_tables.purge_files(table, files), last))]  # noqa: E731
        if purge and properties.get(GC_ENABLED, "true").lower() == "false":
            raise InvalidInputError(
                f"Cannot purge table: {GC_ENABLED} is false for {dotted(levels, name)}, "
                "deleting its files may corrupt other tables; drop it without purge, or set the property first"
            )

        def work(tx: Tx) -> None:
            if not repository.delete_entry(tx, entry.id):
                raise no_table(levels, name)

        write(self._database, caller, work)
        if purge:
            try:
                doomed()
            except (LanceNamespaceError, OSError) as error:
                log.warning("%s is dropped, but files of it are left at %s: %s", name, entry.location, error)

    def rename(self, caller: Caller, warehouse: Warehouse, source: TableName, destination: TableName) -> None:
        """Give a table another name, in its namespace or in another one; its files stay where they are.

        Raises:
            TableNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
        """
        rename_entry(self._database, caller, warehouse, TABLES, source, destination)

    def credentials(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> Sequence[Json]:
        """Credentials for a table's files, anew; who asks for them needs no header that asks for them."""
        entry = self.find(caller, warehouse, levels, name)
        lance = entry if entry.kind == "lance" else None
        return self._loader.access(replace(caller, delegation=True), warehouse, levels, entry.location, lance)[1]

    def _create_iceberg(
        self, caller: Caller, warehouse: Warehouse, name: TableName, request: Json, location: str
    ) -> Loaded:
        metadata = iceberg_tables.new(request, location)
        places.check_paths(self._database, caller, warehouse, metadata)
        document = Document.of(iceberg_tables.next_location(metadata, None), metadata)
        self._database.read(lambda tx: require_free(tx, warehouse, name, "iceberg"))
        if request.get("stage-create"):
            config, credentials = self._loader.access(caller, warehouse, name.levels, location)
            return Loaded(document.all, "", None, config, credentials)
        return self._insert_document(caller, warehouse, name, document, location, str(metadata.table_uuid))

    def _insert_document(
        self, caller: Caller, warehouse: Warehouse, name: TableName, document: Document, location: str, uuid: str
    ) -> Loaded:
        """Write a table's first metadata file, then make the entry; the file goes again if that fails."""
        Files(warehouse).write(locations.checked(warehouse, document.location, "iceberg"), document.all)

        def work(tx: Tx) -> EntryRow:
            namespace = require_free(tx, warehouse, name, "iceberg")
            return insert(
                tx, namespace, name, "iceberg", uuid, location, {}, metadata_location=document.location, caller=caller
            )

        with provisional(warehouse, [document.location]):
            entry = write(self._database, caller, work)
        self._loader.documents.hold(document)
        return self._loader.load(caller, warehouse, name.levels, entry)

    def _create_lance(
        self,
        caller: Caller,
        warehouse: Warehouse,
        name: TableName,
        location: str,
        properties: dict[str, str],
        schema: Json | None,
    ) -> Loaded:
        self._database.read(lambda tx: require_free(tx, warehouse, name, "lance"))
        latest = self._loader.lance.adopt(warehouse, location)
        version = latest if properties[MANAGED_BY] == IMPL else None

        def work(tx: Tx) -> EntryRow:
            namespace = require_free(tx, warehouse, name, "lance")
            return insert(
                tx,
                namespace,
                name,
                "lance",
                str(uuid4()),
                location,
                properties,
                schema=schema,
                version=version,
                caller=caller,
            )

        entry = write(self._database, caller, work)
        return self._loader.load(caller, warehouse, name.levels, entry)

    def _register_iceberg(
        self, caller: Caller, warehouse: Warehouse, name: TableName, place: str, *, overwrite: bool
    ) -> Loaded:
        self._database.read(lambda tx: require_free(tx, warehouse, name, "iceberg", replaced=overwrite))
        file = places.chosen(self._database, caller, warehouse, place, "iceberg")
        document = self._loader.documents.load(warehouse, file)
        table = document.table
        if is_lance(table.properties):  # as other Iceberg catalogs keep a Lance table
            location = places.chosen(self._database, caller, warehouse, table.location, "lance")
            properties = lance_properties(table.properties)
            return self._create_lance(caller, warehouse, name, location, properties, lance_schema(table))
        location = places.chosen(self._database, caller, warehouse, table.location, "iceberg")
        places.check_paths(self._database, caller, warehouse, table)

        def work(tx: Tx) -> EntryRow:
            namespace = require_free(tx, warehouse, name, "iceberg", replaced=overwrite)
            if (before := repository.find_entry(tx, warehouse.id, name.levels, name.name)) is not None:
                repository.delete_entry(tx, before.id)
            return insert(
                tx,
                namespace,
                name,
                "iceberg",
                str(table.table_uuid),
                location,
                {},
                metadata_location=document.location,
                caller=caller,
            )

        entry = write(self._database, caller, work)
        return self._loader.load(caller, warehouse, name.levels, entry)

    def _place(self, caller: Caller, warehouse: Warehouse, name: TableName, wanted: str | None, kind: Kind) -> str:
        if wanted:
            return places.chosen(self._database, caller, warehouse, wanted, kind)
        return places.free(self._database, warehouse, name.levels, name.name, kind)


def _table(entry: EntryRow | None, levels: Levels, name: str) -> EntryRow:
    if entry is None or entry.kind == "view":
        raise no_table(levels, name)
    return entry


def lance_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a Lance table, with those that the seed defines in their one spelling.

    Raises:
        InvalidInputError: `managed_by` is neither storage nor impl.
    """
    return {**properties, TABLE_TYPE: LANCE, MANAGED_BY: managed_by(properties)}


def lance_schema(table: iceberg_tables.TableMetadata) -> Json:
    """The schema of a table that was declared, under the id that a Lance table's schema has."""
    return {**table.schema(), "schema-id": 1}
