"""Entries as their catalogs have them, for checks: nothing is put in order on the way, as the clients would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from lance_namespace import DescribeTableRequest, LanceNamespace
from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError, UnsupportedOperationError

from lancehouse.clients import vended_credentials
from lancehouse.clients.catalog_namespace import CatalogNamespace, Entry, map_concurrently
from lancehouse.clients.generic_tables import GenericTableNamespace
from lancehouse.clients.iceberg import DUMMY_SCHEMA, RENAME, IcebergNamespace
from lancehouse.clients.managed_versions import REFS_ONLY
from lancehouse.clients.rest import parse_reply
from lancehouse.clients.snapshots import STAGED, TableHead, schema_updates
from lancehouse.clients.unity import EXTERNAL, UnityNamespace
from lancehouse.clients.warehouse_namespace import VEND_HEADERS, WarehouseNamespace, WarehousePaths
from lancehouse.errors import ErrorMap
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.lake import history
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import manifest_folder
from lancehouse.properties import GC_ENABLED, IMPL, LANCE, is_lance, managed_by
from lancehouse.schema.unity import to_unity
from lancehouse.wire.generic_tables import LoadedGenericTable
from lancehouse.wire.iceberg import LatestTable, LoadedTable, TablePage, VersionedTable
from lancehouse.wire.unity import UnityTablePage

UPDATE = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
TRANSACTION = "POST /v1/{prefix}/transactions/commit"
FEATURES: Mapping[str, str] = {
    UPDATE: "versions that the catalog manages",
    TRANSACTION: "commits over several tables",
    RENAME: "`table rename`",
}
"""What needs a call that a server may lack."""
ICEBERG_TABLE = "Iceberg table"
FIELD_KEYS = ("id", "required", "type")
"""What a field is in Iceberg's eyes; `doc` aside."""

Id = Sequence[str]
Columns = Mapping[str, str]
"""The type of each column, in the words of a catalog."""


@dataclass(frozen=True, slots=True)
class InspectedTable:
    """A Lance table as its catalog has it."""

    location: str
    properties: Mapping[str, str]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_managed: bool = False
    versions: Mapping[str | None, int] | None = None
    """The latest of each branch that the catalog has accepted, the main one's under None; None if it does not tell."""
    accepted_manifests: Mapping[str, str] = field(default_factory=dict)
    """Staged manifests that the catalog has accepted, and the places that they belong in."""
    columns: Columns | None = None
    """None where the catalog tells none."""
    is_gc_protected: bool = True
    """Whether nobody takes its data for orphans of an Iceberg table of that name."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table of another kind."""

    id: tuple[str, ...]
    kind: str
    location: str
    is_gc_protected: bool = False
    """Whether it is never cleaned of what it does not know."""

    @property
    def is_iceberg(self) -> bool:
        """Whether it is Iceberg's, and can be guarded."""
        return self.kind == ICEBERG_TABLE


class Inspector:
    """Looks at any namespace, by its interface alone."""

    catalog_levels = 0
    """How many levels of an id stand for the whole catalog."""
    max_namespace_levels: int | None = None
    """How many levels the id of a namespace has at most."""
    keeps_properties = False
    """Whether what is said of a table when it is registered is kept. Lance's `dir` keeps nothing."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self._namespace = namespace

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]] | None:
        """The names of what may be Lance tables, and tables of other kinds; None if the interface has to do."""

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """One table.

        Args:
            id: of the table.
            all_snapshots: whether all that the catalog ever accepted is asked for, not the latest of it.
        """
        response = self._namespace.describe_table(DescribeTableRequest(id=list(id), vend_credentials=True))
        return InspectedTable(
            response.location or "",
            response.properties or {},
            response.storage_options or {},
            is_managed=bool(response.managed_versioning),
        )

    def expected_columns(self, table: TableRef) -> Columns | None:  # noqa: ARG002
        """The columns of a dataset, as the catalog should have them; None if it has none."""
        return None

    def missing_endpoints(self, catalog: str) -> Mapping[str, str]:  # noqa: ARG002
        """Calls that the server has not, and what needs them."""
        return {}

    def roots(self, catalog: str) -> list[str]:  # noqa: ARG002
        """Where tables lie unless somebody says otherwise."""
        return []

    def refresh_schema(self, id: Id) -> None:
        """Have the catalog know the columns that a table has.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog cannot change the columns of an entry")

    def protect_from_gc(self, id: Id) -> None:
        """See that nobody takes the data of a table for orphans.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog has nothing that could be set")


class IcebergInspector(Inspector):
    """Looks at an Iceberg REST server."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: IcebergNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """All tables; which are Lance's is seen when one is looked at."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        return sorted(self._client._list_candidates(NamespaceId.parse(namespace))), []

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:
        """As `Inspector`."""
        table = TableId.parse(id)
        loaded, versioned = self._load_table(table, all_snapshots=all_snapshots)
        properties = loaded.metadata.properties or {}
        location = loaded.metadata.location or ""
        if versioned is None:
            return _to_foreign_table(id, loaded)
        vended = vended_credentials.from_iceberg(location, loaded.config, loaded.storage_credentials)
        entry = Entry(location, properties, vended)
        head = TableHead(entry, versioned)
        is_managed = managed_by(properties) == IMPL
        return InspectedTable(
            location,
            properties,
            self._client._storage_options(entry),
            is_managed,
            _latest_versions(head) if is_managed else None,
            _accepted_manifests(head) if is_managed else {},
            _current_columns(versioned),
            head.is_lance_aware or properties.get(GC_ENABLED, "").lower() == "false",
        )

    def _load_table(self, table: TableId, *, all_snapshots: bool) -> tuple[LoadedTable, VersionedTable | None]:
        """A table, and if it is Lance's its versions."""

        def load(at: WarehousePaths) -> tuple[LoadedTable, VersionedTable | None]:
            query = "" if all_snapshots else REFS_ONLY
            on: ErrorMap = {404: TableNotFoundError}
            reply = self._client._rest.get_reply(
                at.table_path(table), query=query, about=table, headers=VEND_HEADERS, on=on
            )
            loaded = parse_reply(reply, LoadedTable, table)
            if not is_lance(loaded.metadata.properties):
                return loaded, None
            return loaded, parse_reply(reply, VersionedTable if all_snapshots else LatestTable, table)

        return self._client._call_warehouse(table.namespace.catalog, load)

    def expected_columns(self, table: TableRef) -> Columns:
        """As `Inspector`."""
        return {column["name"]: _format_field(column) for column in history.read_schema(table)["fields"]}

    def missing_endpoints(self, catalog: str) -> Mapping[str, str]:
        """As `Inspector`. A server that announces nothing has what Iceberg's specification takes for granted."""
        announced = self._client._load_config(catalog)[1].endpoints
        if announced is None:
            return {}
        return {call: use for call, use in FEATURES.items() if call not in announced}

    def roots(self, catalog: str) -> list[str]:
        """As `Inspector`."""
        return _distinct([self._client._warehouse_paths(catalog)[0].root])

    def refresh_schema(self, id: Id) -> None:
        """As `Inspector`: one commit, which is refused if the table has moved on meanwhile."""
        table = TableId.parse(id)
        head = self._client._load_head(table, all_snapshots=True)
        version = head.latest_version(None) if managed_by(head.entry.properties) == IMPL else None
        ref = TableRef(head.entry.location, self._client._storage_options(head.entry), version=version)
        if updates := schema_updates(head, history.read_schema(ref)):
            self._client._commit_updates(table, head, updates)

    def protect_from_gc(self, id: Id) -> None:
        """As `Inspector`."""
        table = TableId.parse(id)
        head = self._client._load_head(table, all_snapshots=False)
        self._client._commit_updates(table, head, [{"action": "set-properties", "updates": {GC_ENABLED: "false"}}])


class GenericTableInspector(Inspector):
    """Looks at Polaris and Lakekeeper: generic tables, beside Iceberg's."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: GenericTableNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """Generic tables of any format, and Iceberg's tables."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        levels = NamespaceId.parse(namespace)
        return sorted(self._client._list_candidates(levels)), _list_iceberg_tables(self._client, levels)

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """As `Inspector`."""
        table = TableId.parse(id)
        on: ErrorMap = {404: TableNotFoundError}
        try:
            loaded = self._client._rest.get(
                self._client._table_path(table), LoadedGenericTable, about=table, headers=VEND_HEADERS, on=on
            )
        except TableNotFoundError:
            with suppress(TableNotFoundError, NamespaceNotFoundError):  # the two kinds share their names
                return _load_iceberg_table(self._client, table)
            raise
        if loaded.table.format.lower() != LANCE:
            kind = f"generic table ({loaded.table.format})"
            return ForeignTable(tuple(id), kind, loaded.table.base_location or "", is_gc_protected=True)
        entry = self._client._load_table(table, vend=True)
        return InspectedTable(entry.location, entry.properties, self._client._storage_options(entry))

    def roots(self, catalog: str) -> list[str]:
        """As `Inspector`: the client's own, and the catalog's."""
        config = self._client._load_config(catalog)[0]
        return _distinct([self._client._settings.root, config.get("default-base-location")])


class UnityInspector(Inspector):
    """Looks at a catalog of Unity."""

    catalog_levels = 1
    keeps_properties = True
    max_namespace_levels = 2

    def __init__(self, namespace: UnityNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def inspect_table(self, id: Id, *, all_snapshots: bool = False) -> InspectedTable | ForeignTable:  # noqa: ARG002
        """As `Inspector`."""
        table = self._client._parse_table_id(id)
        loaded = self._client._get_table(table)
        if not is_lance(loaded.properties) or loaded.table_type != EXTERNAL:
            return ForeignTable(tuple(id), _format_kind(loaded.table_type), loaded.storage_location or "")
        entry = self._client._to_entry(loaded, table, vend=True)
        columns = {column["name"]: _format_unity_type(column) for column in entry.columns}
        return InspectedTable(
            entry.location, entry.properties, self._client._storage_options(entry), columns=columns or None
        )

    def list_tables(self, namespace: Id) -> tuple[list[str], list[ForeignTable]]:
        """The Lance tables of a schema, and the others."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        at = self._client._parse_namespace_id(namespace)
        names = sorted(self._client._list_candidates(at))
        query = urlencode({"catalog_name": at.catalog, "schema_name": at.levels[-1], "omit_columns": "true"})
        pages = self._client._rest.list_pages(
            "/tables",
            UnityTablePage,
            about=at,
            query=query,
            token_name="page_token",  # noqa: S106
            first=None,
        )
        others = [table for page in pages for table in page.tables or () if table.name not in names]
        return names, [
            ForeignTable((*namespace, table.name), _format_kind(table.table_type), table.storage_location or "")
            for table in others
        ]

    def expected_columns(self, table: TableRef) -> Columns:
        """As `Inspector`."""
        with table.dataset() as dataset:
            schema: pa.Schema = dataset.schema
        return {column["name"]: _format_unity_type(column) for column in to_unity(schema)}

    def roots(self, catalog: str) -> list[str]:  # noqa: ARG002
        """As `Inspector`."""
        return _distinct([self._client._settings.root])


def inspector_for(namespace: LanceNamespace) -> Inspector:
    """What looks at a namespace."""
    match namespace:
        case IcebergNamespace():
            return IcebergInspector(namespace)
        case GenericTableNamespace():
            return GenericTableInspector(namespace)
        case UnityNamespace():
            return UnityInspector(namespace)
    return Inspector(namespace)


def is_managed_by_default(namespace: LanceNamespace) -> bool:
    """Whether tables that are made here have their versions managed by the catalog unless they say otherwise."""
    return isinstance(namespace, CatalogNamespace) and namespace._settings.managed_by == IMPL


def _format_kind(table_type: str | None) -> str:
    return f"{(table_type or '').lower()} table".strip()


def _distinct(roots: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(root for root in roots if root))


def _list_iceberg_tables(client: WarehouseNamespace, namespace: NamespaceId) -> list[ForeignTable]:
    """The Iceberg tables of a namespace of Polaris."""

    def list_names(at: WarehousePaths) -> list[str]:
        on: ErrorMap = {404: NamespaceNotFoundError}
        pages = client._rest.list_pages(at.tables_path(namespace), TablePage, about=namespace, on=on)
        return [identifier.name for page in pages for identifier in page.identifiers or ()]

    table_names = client._call_warehouse(namespace.catalog, list_names)
    return map_concurrently(lambda name: _load_iceberg_table(client, TableId(namespace, name)), table_names)


def _load_iceberg_table(client: WarehouseNamespace, table: TableId) -> ForeignTable:
    on: ErrorMap = {404: TableNotFoundError}
    loaded = client._call_warehouse(
        table.namespace.catalog,
        lambda at: client._rest.get(at.table_path(table), LoadedTable, query=REFS_ONLY, about=table, on=on),
    )
    return _to_foreign_table(table.parts, loaded)


def _to_foreign_table(id: Id, loaded: LoadedTable) -> ForeignTable:
    is_guarded = (loaded.metadata.properties or {}).get(GC_ENABLED, "").lower() == "false"
    return ForeignTable(tuple(id), ICEBERG_TABLE, loaded.metadata.location or "", is_guarded)


def _latest_versions(head: TableHead) -> dict[str | None, int]:
    versions = {branch: head.latest_version(branch) for branch in (None, *head.branches)}
    return {branch: version for branch, version in versions.items() if version is not None}


def _accepted_manifests(head: TableHead) -> dict[str, str]:
    branches = [None, *head.branches]
    return {
        snapshot.summary[STAGED]: f"{manifest_folder(branch)}/{snapshot.manifest_list.rpartition('/')[2]}"
        for branch in branches
        for snapshot in head.snapshots_by_version(branch).values()
        if STAGED in snapshot.summary
    }


def _current_columns(table: VersionedTable) -> Columns | None:
    """The current schema; None for the one that stands for none."""
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
