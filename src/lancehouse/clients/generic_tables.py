"""Lance tables as generic tables of an Iceberg REST server: what the clients of Polaris and Lakekeeper share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse import locations
from lancehouse.clients import vended_credentials
from lancehouse.clients.catalog_namespace import Entry, none_if_missing
from lancehouse.clients.http import Reply
from lancehouse.clients.rest import parse_reply
from lancehouse.clients.warehouse_namespace import BULK_THRESHOLD, VEND_HEADERS, WarehouseNamespace
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.properties import DOC, LANCE
from lancehouse.wire.generic_tables import GenericTable, GenericTablePage, LoadedGenericTable

LOCATION = "location"
"""The property in which servers keep where a namespace lies."""


class GenericTableNamespace(WarehouseNamespace):
    """A Lance namespace over the generic tables of a server, beside its Iceberg tables."""

    @abstractmethod
    def _generic_path(self, catalog: str) -> str:
        """Return the path above the namespaces of a catalog, as the API of generic tables has it."""

    def _list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        pages = self._rest.list_pages(
            self._tables_path(namespace), GenericTablePage, about=namespace, on={404: NamespaceNotFoundError}
        )
        return {
            identifier.name: None
            for page in pages
            for identifier in page.identifiers or ()
            if identifier.format is None or identifier.format.lower() == LANCE
        }

    def _find_lance_entry(self, table: TableId, *, vend: bool) -> Entry | None:
        path, headers = self._table_path(table), VEND_HEADERS if vend else None
        return none_if_missing(
            # A 404 that does not name a missing table must not silently shorten the list, hence the InternalError.
            lambda: _parse_entry(
                table, self._rest.get_reply(path, about=table, headers=headers, on={404: InternalError})
            )
        )

    def _find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        if len(tables) < BULK_THRESHOLD:
            return super()._find_entries(tables, vend=vend)
        replies = self._rest.get_replies(
            [(self._table_path(table), VEND_HEADERS if vend else {}) for table in tables], query=""
        )
        reads = list(zip(tables, replies, strict=True))
        others = iter(super()._find_entries([table for table, reply in reads if reply is None], vend=vend))
        return [next(others) if reply is None else _parse_entry(table, reply) for table, reply in reads]

    def _load_table(self, table: TableId, *, vend: bool) -> Entry:
        loaded = self._rest.get(
            self._table_path(table),
            LoadedGenericTable,
            about=table,
            headers=VEND_HEADERS if vend else None,
            on={404: TableNotFoundError},
        )
        if not _is_lance(loaded):
            raise InvalidInputError(f"{table} is not a Lance table: its format is {loaded.table.format!r}")
        return _to_entry(loaded)

    def _create_table(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        table_properties = {key: value for key, value in properties.items() if key != DOC}
        body = GenericTable(
            name=table.name, format=LANCE, base_location=location, doc=properties.get(DOC), properties=table_properties
        )

        def lookup() -> LoadedGenericTable | None:
            loaded = none_if_missing(
                lambda: self._rest.get(
                    self._table_path(table), LoadedGenericTable, about=table, on={404: TableNotFoundError}
                )
            )
            is_ours = (
                loaded is not None
                and _is_lance(loaded)
                and locations.is_same(loaded.table.base_location or "", location)
                and table_properties.items() <= (loaded.table.properties or {}).items()
            )
            return loaded if is_ours else None

        return _to_entry(
            self._rest.create(
                self._tables_path(table.namespace),
                body,
                LoadedGenericTable,
                about=table,
                lookup=lookup,
                headers=VEND_HEADERS if vend else None,
                on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
            ),
        )

    def _delete_table(self, table: TableId) -> None:
        self._rest.delete(self._table_path(table), about=table, on={404: TableNotFoundError})

    def _default_location(self, table: TableId) -> str:
        if root := self._settings.root or self._announced_root(table.namespace.catalog):
            return locations.child_location(root, table.parts)
        if namespace_location := self._load_namespace(table.namespace).get(LOCATION):
            return locations.child_location(namespace_location, [table.name])
        raise InvalidInputError(
            f"{table}: give a location or set the property `root`; {table.namespace} has no property `{LOCATION}`"
        )

    def _announced_root(self, catalog: str) -> str | None:
        """Return where the server wants tables without a location to lie, if it says so."""
        return self._call_warehouse(catalog, lambda paths: paths.root)

    def _tables_path(self, namespace: NamespaceId) -> str:
        return f"{self._generic_path(namespace.catalog)}/namespaces/{namespace.to_path_segment()}/generic-tables"

    def _table_path(self, table: TableId) -> str:
        return f"{self._tables_path(table.namespace)}/{table.to_path_segment()}"


def _is_lance(loaded: LoadedGenericTable) -> bool:
    return loaded.table.format.lower() == LANCE


def _parse_entry(table: TableId, reply: Reply) -> Entry | None:
    loaded = parse_reply(reply, LoadedGenericTable, table)
    return _to_entry(loaded) if _is_lance(loaded) else None


def _to_entry(loaded: LoadedGenericTable) -> Entry:
    location, doc = loaded.table.base_location or "", loaded.table.doc
    return Entry(
        location=location,
        properties={**(loaded.table.properties or {}), **({DOC: doc} if doc is not None else {})},
        vended=vended_credentials.from_iceberg(
            location, loaded.config, loaded.storage_access_configs or loaded.storage_credentials
        ),
    )
