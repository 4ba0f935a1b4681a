"""Create, load, list, register, rename and drop tables, both Lance and Iceberg."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from lancehouse.catalog import location_access
from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.dropped_tables import DroppedTables, drop_entry, require_purge_allowed
from lancehouse.catalog.entries import (
    TableName,
    create_entry,
    list_names,
    record_change,
    rename_entry,
    require_name_free,
    require_unprotected,
    write_once,
)
from lancehouse.catalog.errors import Levels, MetadataNotFoundError, WouldBlockError, check_name, table_not_found
from lancehouse.catalog.fence import Fence
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.metadata_loader import (
    LoadResult,
    MetadataDocument,
    MetadataLoader,
    Snapshots,
    discard_on_failure,
)
from lancehouse.catalog.restricted_tables import RestrictedTables
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError
from lancehouse.maintenance_policy import check_properties
from lancehouse.properties import IMPL, LANCE, MANAGED_BY, STAGED, TABLE_TYPE, is_lance, managed_by
from lancehouse.secrets import redact_properties
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import DroppedRow, EntryRow, Json, Kind
from lancehouse.store.statements import Tx

log = logging.getLogger(__name__)

TABLES: tuple[Kind, ...] = ("lance", "iceberg")


class Tables:
    """Operations on tables, except commits (see `commits`)."""

    def __init__(
        self,
        database: Database,
        loader: MetadataLoader,
        fence: Fence,
        restricted: RestrictedTables,
        dropped: DroppedTables,
    ) -> None:
        self._database = database
        self._loader = loader
        self._fence = fence
        self._restricted = restricted
        self._dropped = dropped

    def list(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, page_token: str | None, page_size: int | None
    ) -> tuple[list[str], str | None]:
        """Return the names of the tables in a namespace, and the token of the next page or None."""
        return list_names(self._database, caller, warehouse, levels, TABLES, page_token, page_size)

    def load(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        name: str,
        snapshots: Snapshots = "all",
        *,
        blocking: bool = True,
    ) -> LoadResult:
        """Load a table's current metadata, from memory where that is known to be current.

        Without `blocking` it costs one indexed read of the entry and, for a Lance table, a few `stat` calls on local
        folders. Who sees only a part of the table gets what `RestrictedTables.load` returns.

        Raises:
            TableNotFoundError: there is no such table.
            MetadataNotFoundError: the metadata file of an Iceberg table no longer exists.
            WouldBlockError: it may not block, and memory does not have it.
        """
        if caller.identity.find_row_policy(warehouse.name, levels, name) is not None:
            if not blocking:
                raise WouldBlockError
            return self._restricted.load(caller, warehouse, levels, name)
        entry = self.get_entry(caller, warehouse, levels, name, blocking=blocking)
        return self._loader.load(caller, warehouse, levels, entry, snapshots, blocking=blocking)

    def get_entry(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, *, blocking: bool = True
    ) -> EntryRow:
        """Return the entry of a table.

        Raises:
            TableNotFoundError: there is no such table; a view does not count.
        """
        caller.identity.require_role(Role.READER, warehouse.name, levels, name)
        # Only the event loop, which may not block, has the database recall entries: every thread that did would hold
        # its own copies in memory.
        key = None if blocking else (warehouse.id, levels, name)
        entry = self._database.read_one(lambda tx: repository.find_entry(tx, warehouse.id, levels, name), key)
        if entry is None or entry.kind == "view":
            raise table_not_found(levels, name)
        return entry

    def require_listed(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> None:
        """Raise unless there is a table of which the caller may read at least a part.

        Raises:
            TableNotFoundError: there is no such table; a view does not count.
        """
        if caller.identity.find_row_policy(warehouse.name, levels, name) is not None:
            self._restricted.get_entry(caller, warehouse, levels, name)
        else:
            self.get_entry(caller, warehouse, levels, name)

    def set_published(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str, published: str) -> None:
        """Record that the manifest of a table's current version is at its final path, as a client reports.

        It is no error if the client may not write, if the table has moved on, or if the database cannot be written:
        readers then look themselves.

        Args:
            caller: of the request.
            warehouse: of the table.
            levels: the namespace.
            name: of the table.
            published: the table's uuid, the version, and the path where its manifest was staged, with slashes between.
        """
        entry = self.get_entry(caller, warehouse, levels, name)
        version = entry.version
        if version is None or entry.published == version or not published.startswith(f"{entry.uuid}/{version}/"):
            return
        if not caller.identity.has_role(Role.WRITER, warehouse.name, levels, name):
            return
        try:
            row = self._database.read(lambda tx: repository.find_snapshot(tx, entry.id, version))
            # Versions may come again under the same number; the path where a manifest is staged is unique.
            if row is not None and published == f"{entry.uuid}/{version}/{row.summary.get(STAGED)}":
                self._database.write(lambda tx: repository.set_published(tx, entry.id, version))
        except LanceNamespaceError as error:
            log.warning("it is not recorded that version %d of table %s is published: %s", version, entry.uuid, error)

    def create(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> LoadResult:
        """Create a table, or, with `stage-create`, only return the metadata that it would have.

        A Lance table (`table_type=lance`) is declared: no data are written. If its location already holds a dataset,
        that becomes the table.

        Raises:
            NamespaceNotFoundError, TableAlreadyExistsError, ViewAlreadyExistsError: nothing was created.
            InvalidInputError: the request does not describe a valid table, or its location is not allowed.
        """
        caller.identity.require_role(Role.WRITER, warehouse.name, levels)
        self._fence.require_open(warehouse)
        name = check_name("table name", request["name"])
        properties = request.get("properties") or {}
        kind: Kind = "lance" if is_lance(properties) else "iceberg"
        location = self._choose_location(caller, warehouse, TableName(levels, name), request.get("location"), kind)
        if kind == "iceberg":
            return self._create_iceberg(caller, warehouse, TableName(levels, name), request, location)
        if request.get("stage-create"):
            raise InvalidInputError("a Lance table cannot be staged: create it, then write to it with Lance")
        metadata = iceberg_tables.new_table(request, location)
        return self._create_lance(
            caller,
            warehouse,
            TableName(levels, name),
            location,
            lance_properties({MANAGED_BY: warehouse.managed_by, **properties}),
            lance_schema(metadata),
        )

    def register(self, caller: Caller, warehouse: Warehouse, levels: Levels, request: Json) -> LoadResult:
        """Register an existing table: an Iceberg table by its metadata file, a Lance table by its root folder.

        Raises:
            NamespaceNotFoundError, TableAlreadyExistsError, ViewAlreadyExistsError: nothing was registered.
            MetadataNotFoundError: the metadata file does not exist.
            InvalidInputError: there is no dataset at that root, or its location is not allowed.
        """
        caller.identity.require_role(Role.WRITER, warehouse.name, levels)
        self._fence.require_open(warehouse)
        name = TableName(levels, check_name("table name", request["name"]))
        metadata_location, overwrite = request["metadata-location"], bool(request.get("overwrite"))
        if metadata_location.endswith((".metadata.json", ".metadata.json.gz", ".gz.metadata.json")):
            return self._register_iceberg(caller, warehouse, name, metadata_location, overwrite=overwrite)
        location = location_access.check_chosen_location(self._database, caller, warehouse, metadata_location, "lance")
        if self._loader.lance.find_latest_version(warehouse, location) is None:
            raise InvalidInputError(
                f"there is no Lance dataset at {location}: metadata-location is the root of a dataset, "
                f"or an Iceberg table's metadata file, which ends with .metadata.json"
            )
        if overwrite:
            raise InvalidInputError("overwrite is for Iceberg tables: drop the entry, then register the Lance table")
        return self._create_lance(caller, warehouse, name, location, lance_properties({}), None)

    def drop(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        name: str,
        *,
        purge: bool = False,
        ignore_gc: bool = False,
    ) -> None:
        """Remove a table from the catalog and, with `purge`, delete its files, both after the warehouse's retention.

        Until then `DroppedTables` can restore it. With `ignore_gc`, files of a Lance table are deleted although it has
        `gc.enabled=false`.

        Raises:
            TableNotFoundError: there is no such table.
            InvalidInputError: the table has `gc.enabled=false` and a purge was requested; nothing was removed.
            PermissionDeniedError: the table is protected; nothing was removed.
        """
        caller.identity.require_drop(warehouse.name, levels, name)
        self._fence.require_open(warehouse)
        entry = self.get_entry(caller, warehouse, levels, name)
        table = self._load_iceberg(warehouse, entry, purge=purge) if entry.kind == "iceberg" else None
        properties = entry.properties if table is None else table.properties
        if purge and not (ignore_gc and entry.kind == "lance"):
            require_purge_allowed(TableName(levels, name), properties)

        def work(tx: Tx) -> DroppedRow | None:
            require_unprotected(tx, warehouse, levels, name, properties, "purge" if purge else "drop")
            # Without retention, the entry of a purged table stays until its files are deleted, and keeps their location
            # from others.
            is_kept = bool(warehouse.retention_s) or purge
            row = drop_entry(tx, caller, warehouse, levels, entry, purge=purge) if is_kept else None
            if row is None and (is_kept or not repository.delete_entry(tx, entry)):
                raise table_not_found(levels, name)
            before = {"uuid": entry.uuid, "location": entry.location, "properties": redact_properties(properties)}
            after = {"purge": purge, "retention-ms": warehouse.retention_s * 1000}
            record_change(tx, caller, "table.drop", warehouse.name, levels, name, before, after)
            return row

        # The table leaves its namespace first: readers would find one whose files are gone. What cannot be deleted now
        # is logged, does not fail the request, and is tried again later.
        row = write_once(self._database, caller, work)
        if row is not None and not warehouse.retention_s:
            self._dropped.delete(caller, warehouse, row)

    def _load_iceberg(
        self, warehouse: Warehouse, entry: EntryRow, *, purge: bool
    ) -> iceberg_tables.IcebergTableMetadata | None:
        """Return the metadata of an Iceberg table to drop; None if its file is lost or broken, which a purge needs.

        Otherwise the entry of such a table, which nobody can read any more, could never be removed.
        """
        try:
            return self._loader.documents.load(warehouse, str(entry.metadata_location)).table
        except (MetadataNotFoundError, InvalidInputError):
            if purge:
                raise
            return None

    def rename(self, caller: Caller, warehouse: Warehouse, source: TableName, destination: TableName) -> None:
        """Rename a table, within its namespace or into another one; its files stay where they are.

        Raises:
            TableNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError: nothing was renamed.
        """
        rename_entry(self._database, self._fence, caller, warehouse, TABLES, source, destination)

    def load_credentials(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> Sequence[Json]:
        """Return new storage credentials for a table's files.

        The caller asked for them by calling this endpoint, so the access delegation header is not required.
        """
        if caller.identity.find_row_policy(warehouse.name, levels, name) is not None:
            return self._restricted.load(replace(caller, delegation=True), warehouse, levels, name).credentials
        entry = self.get_entry(caller, warehouse, levels, name)
        lance = entry if entry.kind == "lance" else None
        caller = replace(caller, delegation=True)
        return self._loader.vend(caller, warehouse, levels, name, entry.location, lance).credentials

    def _create_iceberg(
        self, caller: Caller, warehouse: Warehouse, name: TableName, request: Json, location: str
    ) -> LoadResult:
        metadata = iceberg_tables.new_table(request, location)
        location_access.check_table_paths(self._database, caller, warehouse, metadata)
        document = MetadataDocument.from_table(iceberg_tables.next_metadata_location(metadata, None), metadata)
        self._database.read(lambda tx: require_name_free(tx, warehouse, name, "iceberg"))
        if request.get("stage-create"):
            access = self._loader.vend(caller, warehouse, name.levels, name.name, location)
            return LoadResult(document.full_json, document.etag, None, access.config, access.credentials)
        uuid, place = metadata.table_uuid, document.location
        WarehouseFiles(warehouse).write(location_access.check_location(warehouse, place, "iceberg"), document.full_json)

        def work(tx: Tx) -> EntryRow:
            return create_entry(tx, caller, warehouse, name, "iceberg", uuid, location, metadata_location=place)

        with discard_on_failure(warehouse, [place]):
            entry = write_once(self._database, caller, work)
        self._loader.documents.add(document)
        return self._loader.load(caller, warehouse, name.levels, entry)

    def _create_lance(
        self,
        caller: Caller,
        warehouse: Warehouse,
        name: TableName,
        location: str,
        properties: dict[str, str],
        schema: Json | None,
    ) -> LoadResult:
        self._database.read(lambda tx: require_name_free(tx, warehouse, name, "lance"))
        latest = self._loader.lance.find_latest_version(warehouse, location)
        version = latest if properties[MANAGED_BY] == IMPL else None
        if version is not None:
            schema = self._loader.lance.read_schema(warehouse, location, version)

        def work(tx: Tx) -> EntryRow:
            new: Json = {"properties": properties, "schema": schema, "version": version}
            return create_entry(tx, caller, warehouse, name, "lance", str(uuid4()), location, **new)

        entry = write_once(self._database, caller, work)
        # The table exists from here on. What may fail now must not look as if nothing had been done.
        if latest is None and properties[MANAGED_BY] != IMPL:
            return self._loader.load_declared(caller, warehouse, name.levels, entry)
        try:
            return self._loader.load(caller, warehouse, name.levels, entry)
        except ServiceUnavailableError as error:
            # A client takes that for "nothing was done", sends the request again, and is told that the name is taken.
            raise CommitStateUnknownError(f"{name.name} is created, but cannot be shown: {error}") from error

    def _register_iceberg(
        self, caller: Caller, warehouse: Warehouse, name: TableName, metadata_location: str, *, overwrite: bool
    ) -> LoadResult:
        self._database.read(lambda tx: require_name_free(tx, warehouse, name, "iceberg", replaced=overwrite))
        file = location_access.check_chosen_location(self._database, caller, warehouse, metadata_location, "iceberg")
        document = self._loader.documents.load(warehouse, file)
        table = document.table
        # Other Iceberg catalogs store a Lance table as an Iceberg table with this property.
        if is_lance(table.properties):
            location = location_access.check_chosen_location(self._database, caller, warehouse, table.location, "lance")
            properties = lance_properties(table.properties)
            return self._create_lance(caller, warehouse, name, location, properties, lance_schema(table))
        location = location_access.check_chosen_location(self._database, caller, warehouse, table.location, "iceberg")
        location_access.check_table_paths(self._database, caller, warehouse, table)
        before = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, name.levels, name.name))
        old_table = None if before is None else self._load_iceberg(warehouse, before, purge=False)
        properties = {} if old_table is None else old_table.properties

        def work(tx: Tx) -> EntryRow:
            require_name_free(tx, warehouse, name, "iceberg", replaced=overwrite)
            if (existing := repository.find_entry(tx, warehouse.id, name.levels, name.name)) is not None:
                require_unprotected(tx, warehouse, name.levels, name.name, properties, "overwrite")
                repository.delete_entry(tx, existing)
            uuid, place = table.table_uuid, document.location
            return create_entry(tx, caller, warehouse, name, "iceberg", uuid, location, metadata_location=place)

        entry = write_once(self._database, caller, work)
        return self._loader.load(caller, warehouse, name.levels, entry)

    def _choose_location(
        self, caller: Caller, warehouse: Warehouse, name: TableName, location: str | None, kind: Kind
    ) -> str:
        if location:
            return location_access.check_chosen_location(self._database, caller, warehouse, location, kind)
        return location_access.find_free_location(self._database, warehouse, name.levels, name.name, kind)


def lance_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a Lance table, with `table_type` and `managed_by` set in their canonical spelling.

    Raises:
        InvalidInputError: `managed_by` is neither storage nor impl.
    """
    check_properties(properties)
    return {**properties, TABLE_TYPE: LANCE, MANAGED_BY: managed_by(properties)}


def lance_schema(table: iceberg_tables.IcebergTableMetadata) -> Json:
    """Return the schema of a declared table, with schema id 1, which every Lance table's schema has."""
    return {**table.schema(), "schema-id": 1}
