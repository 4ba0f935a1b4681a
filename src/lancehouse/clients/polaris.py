"""Lance tables in Apache Polaris: generic tables whose format is `lance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse import locations
from lancehouse.clients import credentials
from lancehouse.clients.namespace import Entry, if_found
from lancehouse.clients.rest import parse
from lancehouse.clients.transport import Reply
from lancehouse.clients.warehouses import MANY, VEND, Warehouse, WarehouseNamespace
from lancehouse.identifiers import UNIT_SEPARATOR, NamespaceId, TableId
from lancehouse.properties import DOC, LANCE
from lancehouse.wire.iceberg import TablePage
from lancehouse.wire.polaris import GenericTable, LoadedGenericTable

API = "/api/catalog"
LOCATION = "location"
"""The property in which Polaris keeps where a namespace lies."""


class PolarisNamespace(WarehouseNamespace):
    """The Lance namespace of a Polaris server. The first level of an id is the catalog."""

    client: ClassVar[str] = "polaris"
    way_out: ClassVar[str] = (
        "Polaris' own Iceberg tables have one: use the `iceberg` client with the endpoint of Polaris and /api/catalog"
    )

    def _base(self) -> str:
        return self._settings.endpoint.removesuffix(API) + API

    def _ways(self, catalog: str) -> list[Warehouse]:
        """Polaris' prefix is the catalog's name; there is no need to ask."""
        return [Warehouse(f"/v1/{quote(catalog, safe='')}", UNIT_SEPARATOR, self._settings.root, None)]

    def _require(self, namespace: NamespaceId) -> None:
        """Polaris itself refuses what lies below a missing namespace."""

    def _candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        pages = self._rest.pages(self._tables(namespace), TablePage, about=namespace, on={404: NamespaceNotFoundError})
        return {identifier.name: None for page in pages for identifier in page.identifiers or ()}

    def _peek(self, table: TableId, *, vend: bool) -> Entry | None:
        path, headers = self._path(table), VEND if vend else None
        return if_found(
            lambda: _peeked(table, self._rest.ask(path, about=table, headers=headers, on={404: InternalError}))
        )

    def _peek_many(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        if len(tables) < MANY:
            return super()._peek_many(tables, vend=vend)
        replies = self._rest.ask_many([(self._path(table), VEND if vend else {}) for table in tables], query="")
        asked = list(zip(tables, replies, strict=True))
        others = iter(super()._peek_many([table for table, reply in asked if reply is None], vend=vend))
        return [next(others) if reply is None else _peeked(table, reply) for table, reply in asked]

    def _load_table(self, table: TableId, *, vend: bool) -> Entry:
        loaded = self._rest.get(
            self._path(table),
            LoadedGenericTable,
            about=table,
            headers=VEND if vend else None,
            on={404: TableNotFoundError},
        )
        if not _is_lance(loaded):
            raise InvalidInputError(f"{table} is not a Lance table: its format is {loaded.table.format!r}")
        return _entry(loaded)

    def _create_table(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        kept = {key: value for key, value in properties.items() if key != DOC}
        body = GenericTable(
            name=table.name, format=LANCE, base_location=location, doc=properties.get(DOC), properties=kept
        )

        def lookup() -> LoadedGenericTable | None:
            found = if_found(
                lambda: self._rest.get(self._path(table), LoadedGenericTable, about=table, on={404: TableNotFoundError})
            )
            mine = (
                found is not None
                and _is_lance(found)
                and locations.is_same(found.table.base_location or "", location)
                and kept.items() <= (found.table.properties or {}).items()
            )
            return found if mine else None

        return _entry(
            self._rest.create(
                self._tables(table.namespace),
                body,
                LoadedGenericTable,
                about=table,
                lookup=lookup,
                headers=VEND if vend else None,
                on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
            ),
        )

    def _delete_table(self, table: TableId) -> None:
        self._rest.delete(self._path(table), about=table, on={404: TableNotFoundError})

    def _default_location(self, table: TableId) -> str:
        if root := self._settings.root or self._config(table.namespace.catalog)[0].get("root"):
            return locations.below(root, table.parts)
        if place := self._load_namespace(table.namespace).get(LOCATION):
            return locations.below(place, [table.name])
        raise InvalidInputError(
            f"{table}: give a location or set the property `root`; {table.namespace} has no property `{LOCATION}`"
        )

    def _tables(self, namespace: NamespaceId) -> str:
        return f"/polaris/v1/{quote(namespace.catalog, safe='')}/namespaces/{namespace.wire()}/generic-tables"

    def _path(self, table: TableId) -> str:
        return f"{self._tables(table.namespace)}/{table.wire()}"


def _is_lance(loaded: LoadedGenericTable) -> bool:
    return loaded.table.format.lower() == LANCE


def _peeked(table: TableId, reply: Reply) -> Entry | None:
    loaded = parse(reply, LoadedGenericTable, table)
    return _entry(loaded) if _is_lance(loaded) else None


def _entry(loaded: LoadedGenericTable) -> Entry:
    location, doc = loaded.table.base_location or "", loaded.table.doc
    return Entry(
        location=location,
        properties={**(loaded.table.properties or {}), **({DOC: doc} if doc is not None else {})},
        vended=credentials.from_iceberg(location, None, loaded.storage_access_configs),
    )
