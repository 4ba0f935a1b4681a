"""Read catalog entries as they are stored, for `doctor` and other maintenance, without publishing manifests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance_namespace import DescribeTableRequest, LanceNamespace
from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError, UnsupportedOperationError

from lancehouse.clients.catalog_namespace import CatalogNamespace, Entry, map_concurrently
from lancehouse.clients.generic_tables import GENERIC_VEND_HEADERS, GenericTables, to_entry
from lancehouse.clients.iceberg import (
    DUMMY_SCHEMA,
    REFS_ONLY,
    RENAME,
    TRANSACTIONS,
    VEND_HEADERS,
    IcebergNamespace,
    IcebergTables,
    WarehousePaths,
    vended_options,
)
from lancehouse.clients.managed_versions import TableHead, manifest_path, schema_updates
from lancehouse.clients.rest import parse_reply
from lancehouse.clients.unity import UnityNamespace, is_external_lance
from lancehouse.errors import ErrorMap
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.lake import history
from lancehouse.lake.dataset import TableRef
from lancehouse.properties import GC_ENABLED, IMPL, LANCE, STAGED, is_lance, managed_by
from lancehouse.schema.unity import to_unity
from lancehouse.wire.iceberg import LatestTable, LoadedGenericTable, LoadedTable, VersionedTable

UPDATE = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
"""Endpoint, as a server announces it, that commits to a table."""
FEATURES: Mapping[str, str] = {
    UPDATE: "versions that the catalog manages",
    TRANSACTIONS: "commits over several tables",
    RENAME: "`table rename`",
}
"""Optional endpoints of an Iceberg server, and what needs them."""
ICEBERG_TABLE = "Iceberg table"
FIELD_KEYS = ("id", "required", "type")
"""Keys of an Iceberg field that are compared; `doc` is not."""

Id = Sequence[str]
Columns = Mapping[str, str]
"""Type of each column by name, in the catalog's own notation."""


@dataclass(frozen=True, slots=True)
class InspectedTable:
    """A Lance table as its catalog has it."""

    location: str
    properties: Mapping[str, str]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_managed: bool = False
    versions: Mapping[str | None, int] | None = None
    """Latest version of each branch that the catalog has accepted, main under None; None if it does not tell."""
    accepted_manifests: Mapping[str, str] = field(default_factory=dict)
    """Staged paths of manifests that the catalog has accepted, and their final paths."""
    columns: Columns | None = None
    """Columns in the catalog; None if it has none."""
    is_gc_protected: bool = True
    """Whether the entry tells Iceberg's maintenance not to delete the table's data as orphan files."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table that is not a Lance table."""

    id: tuple[str, ...]
    kind: str
    location: str
    is_gc_protected: bool = False
    """Whether Iceberg's maintenance never removes orphan files below its location."""

    @property
    def is_iceberg(self) -> bool:
        """Whether it is an Iceberg table, of which `gc.enabled` can be set."""
        return self.kind == ICEBERG_TABLE


class Inspector:
    """Inspects any namespace, with the operations of the Lance interface alone."""

    catalog_levels = 0
    """Number of leading levels of an id that name the catalog itself."""
    max_namespace_levels: int | None = None
    """Largest number of levels in the id of a namespace; None if there is no limit."""
    keeps_properties = False
    """Whether the catalog stores the properties of a table that is registered. Lance's `dir` does not."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self._namespace = namespace

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]] | None:
        """List the names of possible Lance tables, and the tables of other kinds.

        None means that the interface's own ListTables has to do; that is the default.
        """

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """Load one table.

        Args:
            id: of the table.
            all_snapshots: whether to load all versions that the catalog has accepted, not just the latest of each
                branch.
        """
        response = self._namespace.describe_table(DescribeTableRequest(id=list(id), vend_credentials=True))
        return InspectedTable(
            response.location or "",
            response.properties or {},
            response.storage_options or {},
            is_managed=bool(response.managed_versioning),
        )

    def expected_columns(self, table: TableRef) -> Columns | None:  # noqa: ARG002
        """Return the columns of a dataset as its catalog entry should have them; None if entries have no columns."""
        return None

    def missing_endpoints(self, catalog: str) -> Mapping[str, str]:  # noqa: ARG002
        """Return the endpoints that the server lacks, and what needs them."""
        return {}

    def roots(self, catalog: str) -> list[str]:  # noqa: ARG002
        """Return the locations below which tables are created by default."""
        return []

    def announced_properties(self, catalog: str) -> Mapping[str, str]:  # noqa: ARG002
        """Return what the server announces of a catalog."""
        return {}

    def refresh_schema(self, id: Id) -> None:
        """Set the columns of an entry to those of its dataset.

        Raises:
            UnsupportedOperationError: the catalog cannot change them.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog cannot change the columns of an entry")

    def protect_from_gc(self, id: Id) -> None:
        """Set the property that keeps Iceberg's maintenance from deleting the table's data as orphan files.

        Raises:
            UnsupportedOperationError: the catalog cannot change it.
        """
        self.update_table_properties(id, {GC_ENABLED: "false"}, ())

    def update_table_properties(self, id: Id, updates: Mapping[str, str], removals: Sequence[str]) -> None:  # noqa: ARG002
        """Set and remove properties of a table's entry.

        Raises:
            UnsupportedOperationError: the catalog cannot change them.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog cannot change the properties of an entry")

    def update_namespace_properties(self, id: Id, updates: Mapping[str, str], removals: Sequence[str]) -> None:  # noqa: ARG002
        """Set and remove properties of a namespace.

        Raises:
            UnsupportedOperationError: the catalog cannot change them.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog cannot change the properties of a namespace")


class IcebergInspector(Inspector):
    """Inspects an Iceberg REST server."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: IcebergNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """List all tables; which of them are Lance tables shows only when one is loaded."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        return sorted(self._client._tables.list_candidates(NamespaceId.parse(namespace))), []

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:
        """Load one table, see `Inspector`."""
        table = TableId.parse(id)
        response, versions = self._load_table(table, all_snapshots=all_snapshots)
        properties = response.metadata.properties or {}
        location = response.metadata.location or ""
        if versions is None:
            return _to_foreign_table(id, response)
        vended = vended_options(location, response.config, response.storage_credentials)
        entry = Entry(location, properties, vended)
        head = TableHead(entry, versions)
        is_managed = managed_by(properties) == IMPL
        return InspectedTable(
            location,
            properties,
            self._client._access.options(entry),
            is_managed,
            _latest_versions(head) if is_managed else None,
            _accepted_manifests(head) if is_managed else {},
            _current_columns(versions),
            head.is_lance_aware or properties.get(GC_ENABLED, "").lower() == "false",
        )

    def _load_table(self, table: TableId, *, all_snapshots: bool) -> tuple[LoadedTable, VersionedTable | None]:
        """Load a table; the second result has its versions, and is None if it is not a Lance table."""

        def load(at: WarehousePaths) -> tuple[LoadedTable, VersionedTable | None]:
            query = "" if all_snapshots else REFS_ONLY
            on: ErrorMap = {404: TableNotFoundError}
            reply = self._client._rest.get_reply(
                at.table_path(table), query=query, about=table, headers=VEND_HEADERS, on=on
            )
            response = parse_reply(reply, LoadedTable, table)
            if not is_lance(response.metadata.properties):
                return response, None
            return response, parse_reply(reply, VersionedTable if all_snapshots else LatestTable, table)

        return self._client._warehouses.call(table.namespace.catalog, load)

    def expected_columns(self, table: TableRef) -> Columns:
        """Return the columns of a dataset as fields of its Iceberg schema."""
        return {column["name"]: _format_field(column) for column in history.read_schema(table)["fields"]}

    def missing_endpoints(self, catalog: str) -> Mapping[str, str]:
        """Return the endpoints that the server does not announce.

        A server that announces nothing at all has those that Iceberg's specification takes for granted.
        """
        endpoints = self._client._warehouses.load_config(catalog)[1].endpoints
        if endpoints is None:
            return {}
        return {call: use for call, use in FEATURES.items() if call not in endpoints}

    def roots(self, catalog: str) -> list[str]:
        """Return the root of the warehouse, if it is known."""
        return _distinct([self._client._warehouses.find_paths(catalog)[0].root])

    def announced_properties(self, catalog: str) -> Mapping[str, str]:
        """Return the defaults and overrides of `/v1/config`."""
        return self._client._warehouses.load_config(catalog)[0]

    def refresh_schema(self, id: Id) -> None:
        """Set the columns of an entry in one commit, which is refused if the table has changed in the meantime."""
        table = TableId.parse(id)
        head = self._client._versions.load_head(table, all_snapshots=True)
        version = head.latest_version(None) if managed_by(head.entry.properties) == IMPL else None
        ref = TableRef(head.entry.location, self._client._access.options(head.entry), version=version)
        if updates := schema_updates(head, history.read_schema(ref)):
            self._client._versions.commit_updates(table, head, updates)

    def update_table_properties(self, id: Id, updates: Mapping[str, str], removals: Sequence[str]) -> None:
        """Set and remove properties of a table's entry, in one commit."""
        table = TableId.parse(id)
        head = self._client._versions.load_head(table, all_snapshots=False)
        changes: list[Any] = [{"action": "set-properties", "updates": dict(updates)}] if updates else []
        if present_keys := [key for key in removals if key in head.entry.properties]:
            changes.append({"action": "remove-properties", "removals": present_keys})
        if changes:
            self._client._versions.commit_updates(table, head, changes)

    def update_namespace_properties(self, id: Id, updates: Mapping[str, str], removals: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""
        self._client._warehouses.update_properties(NamespaceId.parse(id), updates, removals)


class GenericTableInspector(Inspector):
    """Inspects Polaris and Lakekeeper: generic tables, and Iceberg tables beside them."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: CatalogNamespace, tables: GenericTables) -> None:
        super().__init__(namespace)
        self._client = namespace
        self._tables = tables

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """List generic tables of any format, and Iceberg tables."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        levels = NamespaceId.parse(namespace)
        return sorted(self._tables.list_candidates(levels)), _list_iceberg_tables(self._tables, levels)

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """Load one table, generic or Iceberg."""
        table = TableId.parse(id)
        on: ErrorMap = {404: TableNotFoundError}
        try:
            response = self._tables._rest.get(
                self._tables.table_path(table), LoadedGenericTable, about=table, headers=GENERIC_VEND_HEADERS, on=on
            )
        except TableNotFoundError:
            with suppress(TableNotFoundError, NamespaceNotFoundError):  # generic and Iceberg tables share names
                return _load_iceberg_table(self._tables, table)
            raise
        if response.table.format.lower() != LANCE:
            kind = f"generic table ({response.table.format})"
            return ForeignTable(tuple(id), kind, response.table.base_location or "", is_gc_protected=True)
        entry = to_entry(response)
        return InspectedTable(entry.location, entry.properties, self._client._access.options(entry))

    def update_namespace_properties(self, id: Id, updates: Mapping[str, str], removals: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""
        self._tables._warehouses.update_properties(NamespaceId.parse(id), updates, removals)

    def roots(self, catalog: str) -> list[str]:
        """Return the client's root and the catalog's default location."""
        config = self._tables._warehouses.load_config(catalog)[0]
        return _distinct([self._client._settings.root, config.get("default-base-location")])


class UnityInspector(Inspector):
    """Inspects one catalog of Unity."""

    catalog_levels = 1
    keeps_properties = True
    max_namespace_levels = 2

    def __init__(self, namespace: UnityNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """Load one table, see `Inspector`."""
        table = self._client._parse_table_id(id)
        response = self._client._tables.get(table)
        if not is_external_lance(response):
            return ForeignTable(tuple(id), _format_kind(response.table_type), response.storage_location or "")
        entry = self._client._tables.to_entry(response, table, vend=True)
        columns = {column["name"]: _format_unity_type(column) for column in entry.columns}
        return InspectedTable(
            entry.location, entry.properties, self._client._access.options(entry), columns=columns or None
        )

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """List the Lance tables of a schema, and the other tables."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        at = self._client._parse_namespace_id(namespace)
        tables = self._client._tables.list_all(at)
        others = [
            ForeignTable((*namespace, table.name), _format_kind(table.table_type), table.storage_location or "")
            for table in tables
            if not is_external_lance(table)
        ]
        return sorted(table.name for table in tables if is_external_lance(table)), others

    def expected_columns(self, table: TableRef) -> Columns:
        """Return the columns of a dataset with the types of Unity."""
        with table.dataset() as dataset:
            schema: pa.Schema = dataset.schema
        return {column["name"]: _format_unity_type(column) for column in to_unity(schema)}

    def roots(self, catalog: str) -> list[str]:  # noqa: ARG002
        """Return the client's root."""
        return _distinct([self._client._settings.root])


def inspector_for(namespace: LanceNamespace) -> Inspector:
    """Return the inspector for a namespace."""
    match namespace:
        case IcebergNamespace():
            return IcebergInspector(namespace)
        case CatalogNamespace(_tables=GenericTables() as tables):
            return GenericTableInspector(namespace, tables)
        case UnityNamespace():
            return UnityInspector(namespace)
    return Inspector(namespace)


def is_managed_by_default(namespace: LanceNamespace) -> bool:
    """Return whether tables created through this client have `managed_by=impl` unless they say otherwise."""
    return isinstance(namespace, CatalogNamespace) and namespace._settings.managed_by == IMPL


def _format_kind(table_type: str | None) -> str:
    return f"{(table_type or '').lower()} table".strip()


def _distinct(roots: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(root for root in roots if root))


def _list_iceberg_tables(tables: GenericTables, namespace: NamespaceId) -> list[ForeignTable]:
    """List and load the Iceberg tables beside generic ones."""
    names = list(IcebergTables(tables._rest, tables._warehouses, vends=False).list_candidates(namespace))
    return map_concurrently(lambda name: _load_iceberg_table(tables, TableId(namespace, name)), names)


def _load_iceberg_table(tables: GenericTables, table: TableId) -> ForeignTable:
    on: ErrorMap = {404: TableNotFoundError}
    response = tables._warehouses.call(
        table.namespace.catalog,
        lambda at: tables._rest.get(at.table_path(table), LoadedTable, query=REFS_ONLY, about=table, on=on),
    )
    return _to_foreign_table(table.parts, response)


def _to_foreign_table(id: Id, response: LoadedTable) -> ForeignTable:
    is_guarded = (response.metadata.properties or {}).get(GC_ENABLED, "").lower() == "false"
    return ForeignTable(tuple(id), ICEBERG_TABLE, response.metadata.location or "", is_guarded)


def _latest_versions(head: TableHead) -> dict[str | None, int]:
    versions = {branch: head.latest_version(branch) for branch in (None, *head.branches)}
    return {branch: version for branch, version in versions.items() if version is not None}


def _accepted_manifests(head: TableHead) -> dict[str, str]:
    branches = [None, *head.branches]
    return {
        snapshot.summary[STAGED]: manifest_path(branch, snapshot)
        for branch in branches
        for snapshot in head.snapshots_by_version(branch).values()
        if STAGED in snapshot.summary
    }


def _current_columns(table: VersionedTable) -> Columns | None:
    """Return the columns of the current schema; None if it is the placeholder of a table without versions."""
    current = [
        column for column in table.metadata.schemas if column.get("schema-id") == table.metadata.current_schema_id
    ]
    fields = current[0].get("fields", []) if current else []
    dummy_names = [column["name"] for column in DUMMY_SCHEMA["fields"]]
    if not fields or [column.get("name") for column in fields] == dummy_names:
        return None
    return {column["name"]: _format_field(column) for column in fields}


def _format_field(nested: Mapping[str, Any]) -> str:
    return json.dumps({key: nested.get(key) for key in FIELD_KEYS}, sort_keys=True)


def _format_unity_type(column: Mapping[str, Any]) -> str:
    return str(column.get("type_text") or column.get("type_name") or "").lower().replace(" ", "")
