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

from lancehouse.clients import credentials
from lancehouse.clients.iceberg import DUMMY_SCHEMA, RENAME, IcebergNamespace
from lancehouse.clients.namespace import CatalogNamespace, Entry, at_once
from lancehouse.clients.polaris import PolarisNamespace
from lancehouse.clients.rest import parse
from lancehouse.clients.snapshots import STAGED, Head, schema_updates
from lancehouse.clients.unity import EXTERNAL, UnityNamespace
from lancehouse.clients.versions import LEAST
from lancehouse.clients.warehouses import VEND, Warehouse, WarehouseNamespace
from lancehouse.errors import ErrorMap
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.lake import history
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import folder_of
from lancehouse.properties import GC_ENABLED, IMPL, LANCE, is_lance, managed_by
from lancehouse.schema.unity import to_unity
from lancehouse.wire.iceberg import LatestTable, LoadedTable, TablePage, VersionedTable
from lancehouse.wire.polaris import LoadedGenericTable
from lancehouse.wire.unity import TablePage as TablePageOfUnity

UPDATE = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
TRANSACTION = "POST /v1/{prefix}/transactions/commit"
FEATURES: Mapping[str, str] = {
    UPDATE: "versions that the catalog manages",
    TRANSACTION: "commits over several tables",
    RENAME: "`table rename`",
}
"""What needs a call that a server may lack."""
ICEBERG_TABLE = "Iceberg table"
SHAPE = ("id", "required", "type")
"""What a field is in Iceberg's eyes; `doc` aside."""

Id = Sequence[str]
Columns = Mapping[str, str]
"""The type of each column, in the words of a catalog."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lance table as its catalog has it."""

    location: str
    properties: Mapping[str, str]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_managed: bool = False
    versions: Mapping[str | None, int] | None = None
    """The latest of each branch that the catalog has accepted, the main one's under None; None if it does not tell."""
    accepted: Mapping[str, str] = field(default_factory=dict)
    """Staged manifests that the catalog has accepted, and the places that they belong in."""
    columns: Columns | None = None
    """None where the catalog tells none."""
    is_guarded: bool = True
    """Whether nobody takes its data for orphans of an Iceberg table of that name."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A table of another kind."""

    id: tuple[str, ...]
    kind: str
    location: str
    is_guarded: bool = False
    """Whether it is never cleaned of what it does not know."""

    @property
    def is_iceberg(self) -> bool:
        """Whether it is Iceberg's, and can be guarded."""
        return self.kind == ICEBERG_TABLE


class Inspector:
    """Looks at any namespace, by its interface alone."""

    catalog_levels = 0
    """How many levels of an id stand for the whole catalog."""
    deepest: int | None = None
    """How many levels the id of a namespace has at most."""
    keeps_properties = False
    """Whether what is said of a table when it is registered is kept. Lance's `dir` keeps nothing."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self._namespace = namespace

    def listed(self, namespace: Id) -> tuple[list[str], list[Neighbour]] | None:
        """The names of what may be Lance tables, and tables of other kinds; None if the interface has to do."""

    def look(self, id: Id, *, whole: bool = False) -> Seen | Neighbour:  # noqa: ARG002
        """One table.

        Args:
            id: of the table.
            whole: whether all that the catalog ever accepted is asked for, not the latest of it.
        """
        found = self._namespace.describe_table(DescribeTableRequest(id=list(id), vend_credentials=True))
        return Seen(
            found.location or "",
            found.properties or {},
            found.storage_options or {},
            is_managed=bool(found.managed_versioning),
        )

    def expected(self, table: TableRef) -> Columns | None:  # noqa: ARG002
        """The columns of a dataset, as the catalog should have them; None if it has none."""
        return None

    def lacks(self, catalog: str) -> Mapping[str, str]:  # noqa: ARG002
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

    def guard(self, id: Id) -> None:
        """See that nobody takes the data of a table for orphans.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        raise UnsupportedOperationError(f"{'.'.join(id)}: this catalog has nothing that could be set")


class OfIceberg(Inspector):
    """Looks at an Iceberg REST server."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: IcebergNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def listed(self, namespace: Id) -> tuple[list[str], list[Neighbour]]:
        """All tables; which are Lance's is seen when one is looked at."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        return sorted(self._client._candidates(NamespaceId.parse(namespace))), []

    def look(self, id: Id, *, whole: bool = False) -> Seen | Neighbour:
        """As `Inspector`."""
        table = TableId.parse(id)
        loaded, versioned = self._loaded(table, whole=whole)
        properties = loaded.metadata.properties or {}
        location = loaded.metadata.location or ""
        if versioned is None:
            return _iceberg_table(id, loaded)
        vended = credentials.from_iceberg(location, loaded.config, loaded.storage_credentials)
        entry = Entry(location, properties, vended)
        head = Head(entry, versioned)
        is_managed = managed_by(properties) == IMPL
        return Seen(
            location,
            properties,
            self._client._options(entry),
            is_managed,
            _versions(head) if is_managed else None,
            _accepted(head) if is_managed else {},
            _columns(versioned),
            head.is_aware or properties.get(GC_ENABLED, "").lower() == "false",
        )

    def _loaded(self, table: TableId, *, whole: bool) -> tuple[LoadedTable, VersionedTable | None]:
        """A table, and if it is Lance's its versions."""

        def load(at: Warehouse) -> tuple[LoadedTable, VersionedTable | None]:
            query = "" if whole else LEAST
            on: ErrorMap = {404: TableNotFoundError}
            reply = self._client._rest.ask(at.table(table), query=query, about=table, headers=VEND, on=on)
            loaded = parse(reply, LoadedTable, table)
            if not is_lance(loaded.metadata.properties):
                return loaded, None
            return loaded, parse(reply, VersionedTable if whole else LatestTable, table)

        return self._client._at(table.namespace.catalog, load)

    def expected(self, table: TableRef) -> Columns:
        """As `Inspector`."""
        return {each["name"]: _shape(each) for each in history.schema(table)["fields"]}

    def lacks(self, catalog: str) -> Mapping[str, str]:
        """As `Inspector`. A server that announces nothing has what Iceberg's specification takes for granted."""
        announced = self._client._config(catalog)[1].endpoints
        if announced is None:
            return {}
        return {call: use for call, use in FEATURES.items() if call not in announced}

    def roots(self, catalog: str) -> list[str]:
        """As `Inspector`."""
        return _known([self._client._ways(catalog)[0].root])

    def refresh_schema(self, id: Id) -> None:
        """As `Inspector`: one commit, which is refused if the table has moved on meanwhile."""
        table = TableId.parse(id)
        head = self._client._loaded(table, whole=True)
        at = head.version(None) if managed_by(head.entry.properties) == IMPL else None
        place = TableRef(head.entry.location, self._client._options(head.entry), version=at)
        if updates := schema_updates(head, history.schema(place)):
            self._client._update(table, head, updates)

    def guard(self, id: Id) -> None:
        """As `Inspector`."""
        table = TableId.parse(id)
        head = self._client._loaded(table, whole=False)
        self._client._update(table, head, [{"action": "set-properties", "updates": {GC_ENABLED: "false"}}])


class OfPolaris(Inspector):
    """Looks at Polaris: generic tables, beside Iceberg's."""

    catalog_levels = 1
    keeps_properties = True

    def __init__(self, namespace: PolarisNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def listed(self, namespace: Id) -> tuple[list[str], list[Neighbour]]:
        """Generic tables of any format, and Iceberg's tables."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        levels = NamespaceId.parse(namespace)
        return sorted(self._client._candidates(levels)), _iceberg_tables(self._client, levels)

    def look(self, id: Id, *, whole: bool = False) -> Seen | Neighbour:  # noqa: ARG002
        """As `Inspector`."""
        table = TableId.parse(id)
        on: ErrorMap = {404: TableNotFoundError}
        try:
            found = self._client._rest.get(
                self._client._path(table), LoadedGenericTable, about=table, headers=VEND, on=on
            )
        except TableNotFoundError:
            with suppress(TableNotFoundError, NamespaceNotFoundError):  # the two kinds share their names
                return _load_iceberg(self._client, table)
            raise
        if found.table.format.lower() != LANCE:
            kind = f"generic table ({found.table.format})"
            return Neighbour(tuple(id), kind, found.table.base_location or "", is_guarded=True)
        entry = self._client._load_table(table, vend=True)
        return Seen(entry.location, entry.properties, self._client._options(entry))

    def roots(self, catalog: str) -> list[str]:
        """As `Inspector`: the client's own, and the catalog's."""
        told = self._client._config(catalog)[0]
        return _known([self._client._settings.root, told.get("default-base-location")])


class OfUnity(Inspector):
    """Looks at a catalog of Unity."""

    catalog_levels = 1
    keeps_properties = True
    deepest = 2

    def __init__(self, namespace: UnityNamespace) -> None:
        super().__init__(namespace)
        self._client = namespace

    def look(self, id: Id, *, whole: bool = False) -> Seen | Neighbour:  # noqa: ARG002
        """As `Inspector`."""
        table = self._client._table(id)
        loaded = self._client._get(table)
        if not is_lance(loaded.properties) or loaded.table_type != EXTERNAL:
            return Neighbour(tuple(id), _kind(loaded.table_type), loaded.storage_location or "")
        entry = self._client._entry(loaded, table, vend=True)
        said = {each["name"]: _unity_type(each) for each in entry.columns}
        return Seen(entry.location, entry.properties, self._client._options(entry), columns=said or None)

    def listed(self, namespace: Id) -> tuple[list[str], list[Neighbour]]:
        """The Lance tables of a schema, and the others."""
        if len(namespace) <= self.catalog_levels:
            return [], []
        at = self._client._namespace(namespace)
        names = sorted(self._client._candidates(at))
        query = urlencode({"catalog_name": at.catalog, "schema_name": at.levels[-1], "omit_columns": "true"})
        pages = self._client._rest.pages(
            "/tables",
            TablePageOfUnity,
            about=at,
            query=query,
            token_name="page_token",  # noqa: S106
            first=None,
        )
        others = [each for page in pages for each in page.tables or () if each.name not in names]
        return names, [
            Neighbour((*namespace, each.name), _kind(each.table_type), each.storage_location or "") for each in others
        ]

    def expected(self, table: TableRef) -> Columns:
        """As `Inspector`."""
        with table.opened() as dataset:
            schema: pa.Schema = dataset.schema
        return {each["name"]: _unity_type(each) for each in to_unity(schema)}

    def roots(self, catalog: str) -> list[str]:  # noqa: ARG002
        """As `Inspector`."""
        return _known([self._client._settings.root])


def inspector(namespace: LanceNamespace) -> Inspector:
    """What looks at a namespace."""
    match namespace:
        case IcebergNamespace():
            return OfIceberg(namespace)
        case PolarisNamespace():
            return OfPolaris(namespace)
        case UnityNamespace():
            return OfUnity(namespace)
    return Inspector(namespace)


def manages(namespace: LanceNamespace) -> bool:
    """Whether tables that are made here have their versions managed by the catalog unless they say otherwise."""
    return isinstance(namespace, CatalogNamespace) and namespace._settings.managed_by == IMPL


def _kind(told: str | None) -> str:
    return f"{(told or '').lower()} table".strip()


def _known(roots: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(root for root in roots if root))


def _iceberg_tables(client: WarehouseNamespace, namespace: NamespaceId) -> list[Neighbour]:
    """The Iceberg tables of a namespace of Polaris."""

    def names(at: Warehouse) -> list[str]:
        on: ErrorMap = {404: NamespaceNotFoundError}
        pages = client._rest.pages(at.tables(namespace), TablePage, about=namespace, on=on)
        return [identifier.name for page in pages for identifier in page.identifiers or ()]

    found = client._at(namespace.catalog, names)
    return at_once(lambda name: _load_iceberg(client, TableId(namespace, name)), found)


def _load_iceberg(client: WarehouseNamespace, table: TableId) -> Neighbour:
    on: ErrorMap = {404: TableNotFoundError}
    loaded = client._at(
        table.namespace.catalog,
        lambda at: client._rest.get(at.table(table), LoadedTable, query=LEAST, about=table, on=on),
    )
    return _iceberg_table(table.parts, loaded)


def _iceberg_table(id: Id, loaded: LoadedTable) -> Neighbour:
    is_guarded = (loaded.metadata.properties or {}).get(GC_ENABLED, "").lower() == "false"
    return Neighbour(tuple(id), ICEBERG_TABLE, loaded.metadata.location or "", is_guarded)


def _versions(head: Head) -> dict[str | None, int]:
    found = {branch: head.version(branch) for branch in (None, *head.branches)}
    return {branch: version for branch, version in found.items() if version is not None}


def _accepted(head: Head) -> dict[str, str]:
    branches = [None, *head.branches]
    return {
        each.summary[STAGED]: f"{folder_of(branch)}/{each.manifest_list.rpartition('/')[2]}"
        for branch in branches
        for each in head.versions(branch).values()
        if STAGED in each.summary
    }


def _columns(table: VersionedTable) -> Columns | None:
    """The current schema; None for the one that stands for none."""
    now = [each for each in table.metadata.schemas if each.get("schema-id") == table.metadata.current_schema_id]
    fields = now[0].get("fields", []) if now else []
    dummy = [each["name"] for each in DUMMY_SCHEMA["fields"]]
    if not fields or [each.get("name") for each in fields] == dummy:
        return None
    return {each["name"]: _shape(each) for each in fields}


def _shape(nested: Mapping[str, Any]) -> str:
    return json.dumps({key: nested.get(key) for key in SHAPE}, sort_keys=True)


def _unity_type(column: Mapping[str, Any]) -> str:
    return str(column.get("type_text") or column.get("type_name") or "").lower().replace(" ", "")
