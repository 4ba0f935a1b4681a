"""Tables for callers whose grants have row filters and column masks: open them, and load what may be known of them."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b

import orjson
from lance_namespace.errors import (
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.catalog import location_access, vending
from lancehouse.catalog.callers import Caller, Role, format_scope, restricted_error
from lancehouse.catalog.errors import Levels, format_name, table_not_found
from lancehouse.catalog.location_access import ReadableLocations
from lancehouse.catalog.metadata_loader import NO_ACCESS, SERVER_PLANS, LoadResult, MetadataLoader
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import TableRef, from_snapshot_id
from lancehouse.lake.restricted_rows import RestrictedRows, VisiblePart
from lancehouse.properties import LANCE, RESTRICTED, TABLE_TYPE
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json

SHOWN = frozenset(
    {"format-version", "table-uuid", "last-updated-ms", "last-column-id", "current-schema-id", "partition-specs"}
    | {"default-spec-id", "last-partition-id", "sort-orders", "default-sort-order-id", "last-sequence-number"}
    | {"current-snapshot-id"}
)
"""Keys of a table's metadata that are shown as they are. Others have locations, statistics, or the history."""
SNAPSHOT = frozenset({"snapshot-id", "sequence-number", "timestamp-ms", "schema-id"})
"""Keys of its current snapshot that are shown."""


class RestrictedTables:
    """The tables of a server, as callers with restricted grants see them."""

    def __init__(self, database: Database, loader: MetadataLoader) -> None:
        self._database = database
        self._loader = loader

    @cached_property
    def _key(self) -> bytes:
        """Key of the hashes that mask values."""
        return Principals(self._database).get_mask_key()

    def get_entry(
        self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str
    ) -> tuple[EntryRow, VisiblePart]:
        """Return the entry of a table, and the part of it that the caller sees.

        Raises:
            PermissionDeniedError: the caller has no restricted grant on it, or it is no Lance table.
            TableNotFoundError: there is no such table.
        """
        policy = caller.identity.find_row_policy(warehouse.name, levels, name)
        where = format_scope(warehouse.name, levels, name)
        if policy is None:
            caller.identity.require_role(Role.READER, warehouse.name, levels, name)
            raise restricted_error(caller.identity.name, where)
        entry = self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, levels, name))
        if entry is None or entry.kind == "view":
            raise table_not_found(levels, name)
        if entry.kind != "lance":
            raise restricted_error(caller.identity.name, where, "an Iceberg table")
        return entry, VisiblePart(format_name(levels, name), policy, self._key)

    def open(
        self,
        caller: Caller,
        warehouse: Warehouse,
        levels: Levels,
        name: str,
        version: int | None = None,
        branch: str | None = None,
    ) -> RestrictedRows:
        """Open a table at its current version or another one; the current grants apply to every version.

        Raises:
            TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError: there is no such table, version
                or branch.
            PermissionDeniedError: the grants do not fit that version of the table.
        """
        entry, part = self.get_entry(caller, warehouse, levels, name)
        places = ReadableLocations.from_caller(self._database, caller, warehouse)
        places.require_table(entry.location)
        is_current = version is None and branch is None
        if is_current:
            version = self._current_version(warehouse, entry)
            if version is None:
                raise TableNotFoundError(f"{part.name} has no data yet")
        table = TableRef(entry.location, warehouse.storage, version=version, branch=branch, confinement=places)
        try:
            return part.open(table)
        except TableVersionNotFoundError as error:
            if not is_current:
                raise
            raise ServiceUnavailableError(
                f"{part.name}: the manifest of its current version is not in place yet; try again"
            ) from error

    def _current_version(self, warehouse: Warehouse, entry: EntryRow) -> int | None:
        metadata: Json = orjson.loads(self._loader.lance.load(warehouse, entry, "refs").refs_json)
        snapshot_id = metadata.get("current-snapshot-id")
        return None if snapshot_id in (None, -1) else from_snapshot_id(int(snapshot_id), ())[1]

    def load(self, caller: Caller, warehouse: Warehouse, levels: Levels, name: str) -> LoadResult:
        """Return a table's metadata for Iceberg's clients, without counts, history, properties and location.

        Its location is the folder of the caller's own copies, and credentials are for that alone: whatever opens the
        table by this response finds no table.
        """
        entry, part = self.get_entry(caller, warehouse, levels, name)
        metadata: Json = orjson.loads(self._loader.lance.load(warehouse, entry, "refs").refs_json)
        location = f"{location_access.scan_cache_location(warehouse)}/{copies_key(entry, part)}"
        body = orjson.dumps(_restrict_metadata(metadata, part, location))
        access = NO_ACCESS
        if vending.can_scope(warehouse):
            access = self._loader.vend(caller, warehouse, levels, name, location)
        etag = blake2b(body, digest_size=16).hexdigest()
        has_data = metadata.get("current-snapshot-id") not in (None, -1)
        config = {**access.config, **SERVER_PLANS, **({RESTRICTED: "true"} if has_data else {})}
        return LoadResult(body, etag, None, config, access.credentials, access_tag=access.tag)

    def require_scoped_copies(self, warehouse: Warehouse, part: VisiblePart) -> None:
        """Refuse to make copies that a caller could not read, or with others that are not theirs.

        Raises:
            PermissionDeniedError: no credentials can be limited to a folder of the warehouse.
        """
        if not vending.can_scope(warehouse):
            raise PermissionDeniedError(
                f"{part.name}: your grant has a row filter or masks, and no credentials of warehouse {warehouse.name}"
                f" can be limited to your own copies (vend: {warehouse.vend}): query it through the gateway at /lance/"
            )


def copies_key(entry: EntryRow, part: VisiblePart | None) -> str:
    """Return the name of the folder of a table's copies; those of a part lie apart from all others."""
    return entry.uuid if part is None else f"{entry.uuid}-{part.digest}"


def _restrict_metadata(metadata: Json, part: VisiblePart, location: str) -> Json:
    current = metadata.get("current-snapshot-id")
    snapshots = [snapshot for snapshot in metadata.get("snapshots") or () if snapshot["snapshot-id"] == current]
    return {
        **{key: value for key, value in metadata.items() if key in SHOWN},
        "location": location,
        "properties": {TABLE_TYPE: LANCE},
        "schemas": [part.restrict_schema(schema) for schema in metadata["schemas"]],
        "snapshots": [
            {
                **{key: value for key, value in snapshot.items() if key in SNAPSHOT},
                "manifest-list": f"{location}/none",
                "summary": {"operation": "append"},
            }
            for snapshot in snapshots
        ],
        "refs": {"main": {"snapshot-id": current, "type": "branch"}} if snapshots else {},
        "snapshot-log": [],
        "metadata-log": [],
    }
