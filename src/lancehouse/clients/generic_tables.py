"""Lance tables as generic tables of an Iceberg REST server: what the clients of Polaris and Lakekeeper share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse import locations
from lancehouse.clients.catalog_namespace import Entry, is_renamed, map_concurrently, none_if_missing
from lancehouse.clients.http import Reply
from lancehouse.clients.iceberg import VEND_HEADERS, RestWarehouses, to_identifier, vended_options
from lancehouse.clients.rest import Rest, parse_reply
from lancehouse.errors import ErrorMap
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.properties import DOC, LANCE
from lancehouse.settings import ClientSettings
from lancehouse.wire.iceberg import GenericTable, GenericTablePage, LoadedGenericTable, RenameTable

GENERIC_VEND_HEADERS = {**VEND_HEADERS, "Polaris-Generic-Table-Access-Delegation": "vended-credentials"}
"""Headers that ask for credentials: Iceberg's, and the one that Polaris has for generic tables."""
LOCATION = "location"
"""The property in which servers keep where a namespace lies."""


class GenericTables:
    """Generic tables of a server, beside its Iceberg tables, as entries of Lance tables."""

    def __init__(
        self,
        rest: Rest,
        settings: ClientSettings,
        warehouses: RestWarehouses,
        *,
        api_path: Callable[[str], str],
        find_root: Callable[[str], str | None],
        creation_vends: bool = True,
    ) -> None:
        """Make the part of a client.

        Args:
            rest: the calls of the client.
            settings: of the client.
            warehouses: the namespaces of the tables.
            api_path: returns the path above the namespaces of a catalog, as the API of generic tables has it.
            find_root: returns where the server wants tables of a catalog without a location to lie, if it says so.
            creation_vends: whether the response to a creation has the credentials that the server vends.
        """
        self._rest = rest
        self._settings = settings
        self._warehouses = warehouses
        self._api_path = api_path
        self._find_root = find_root
        self._creation_vends = creation_vends

    def list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        """List the tables whose format is Lance, or is not listed."""
        path = self._tables_path(namespace)
        on: ErrorMap = {404: NamespaceNotFoundError}
        # Lakekeeper fails on the empty token with which lists of Iceberg begin.
        pages = self._rest.list_pages(path, GenericTablePage, about=namespace, first=None, on=on)
        return {
            identifier.name: None
            for page in pages
            for identifier in page.identifiers or ()
            if identifier.format is None or identifier.format.lower() == LANCE
        }

    def _find_lance_entry(self, table: TableId, *, vend: bool) -> Entry | None:
        path, headers = self.table_path(table), GENERIC_VEND_HEADERS if vend else None
        return none_if_missing(
            # A 404 that does not name a missing table must not silently shorten the list, hence the InternalError.
            lambda: _parse_entry(
                table, self._rest.get_reply(path, about=table, headers=headers, on={404: InternalError})
            )
        )

    def find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        """Load the entries of listed tables in order, see `CatalogTables`; many of them in bulk."""
        replies = self._rest.get_replies(
            [(self.table_path(table), GENERIC_VEND_HEADERS if vend else {}) for table in tables], query=""
        )
        reads = list(zip(tables, replies, strict=True))
        missing = [table for table, reply in reads if reply is None]
        others = iter(map_concurrently(lambda table: self._find_lance_entry(table, vend=vend), missing))
        return [next(others) if reply is None else _parse_entry(table, reply) for table, reply in reads]

    def load(self, table: TableId, *, vend: bool) -> Entry:
        """Load the entry of a table; raise InvalidInputError if it is not a Lance table."""
        response = self._rest.get(
            self.table_path(table),
            LoadedGenericTable,
            about=table,
            headers=GENERIC_VEND_HEADERS if vend else None,
            on={404: TableNotFoundError},
        )
        if not _is_lance(response):
            raise InvalidInputError(f"{table} is not a Lance table: its format is {response.table.format!r}")
        return to_entry(response)

    def create(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table and return it as the server stored it."""
        table_properties = {key: value for key, value in properties.items() if key != DOC}
        body = GenericTable(
            name=table.name, format=LANCE, base_location=location, doc=properties.get(DOC), properties=table_properties
        )

        headers = GENERIC_VEND_HEADERS if vend else None

        def lookup() -> LoadedGenericTable | None:
            path = self.table_path(table)
            on: ErrorMap = {404: TableNotFoundError}
            existing = none_if_missing(
                lambda: self._rest.get(path, LoadedGenericTable, about=table, headers=headers, on=on)
            )
            is_ours = (
                existing is not None
                and _is_lance(existing)
                and locations.is_same(existing.table.base_location or "", location)
                and table_properties.items() <= (existing.table.properties or {}).items()
            )
            return existing if is_ours else None

        response = self._rest.create(
            self._tables_path(table.namespace),
            body,
            LoadedGenericTable,
            about=table,
            lookup=lookup,
            headers=headers,
            on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
        )
        entry = to_entry(response)
        if vend and not self._creation_vends and not entry.vended and locations.local_folder(entry.location) is None:
            return self.load(table, vend=True)
        return entry

    def delete(self, table: TableId) -> None:
        """Delete the entry of a table; its data stays."""
        # Lakekeeper purges the data by default.
        query = "purgeRequested=false"
        self._rest.delete(self.table_path(table), query=query, about=table, on={404: TableNotFoundError})

    def default_location(self, table: TableId) -> str:
        """Return a location below the root of the catalog, or below that of the namespace."""
        if root := self._settings.root or self._find_root(table.namespace.catalog):
            return locations.child_location(root, table.parts)
        if namespace_location := self._warehouses.load(table.namespace).get(LOCATION):
            return locations.child_location(namespace_location, [table.name])
        raise InvalidInputError(
            f"{table}: give a location or set the property `root`; {table.namespace} has no property `{LOCATION}`"
        )

    def rename(self, source: TableId, target: TableId, entry: Entry) -> None:  # noqa: ARG002
        """Rename a table, with the call that Lakekeeper has."""
        self._warehouses.require(target.namespace)
        self._rest.post(
            f"{self._api_path(source.namespace.catalog)}/generic-tables/rename",
            RenameTable(source=to_identifier(source), destination=to_identifier(target)),
            about=source,
            is_done=lambda: is_renamed(self, source, target),
            on={404: TableNotFoundError, 409: TableAlreadyExistsError},
        )

    def _tables_path(self, namespace: NamespaceId) -> str:
        return f"{self._api_path(namespace.catalog)}/namespaces/{namespace.to_path_segment()}/generic-tables"

    def table_path(self, table: TableId) -> str:
        """Return the path of a table."""
        return f"{self._tables_path(table.namespace)}/{table.to_path_segment()}"


def _is_lance(response: LoadedGenericTable) -> bool:
    return response.table.format.lower() == LANCE


def _parse_entry(table: TableId, reply: Reply) -> Entry | None:
    response = parse_reply(reply, LoadedGenericTable, table)
    return to_entry(response) if _is_lance(response) else None


def to_entry(response: LoadedGenericTable) -> Entry:
    """Make an entry of a loaded table."""
    location, doc = response.table.base_location or "", response.table.doc
    return Entry(
        location=location,
        properties={**(response.table.properties or {}), **({DOC: doc} if doc is not None else {})},
        vended=vended_options(
            location, response.config, response.storage_access_configs or response.storage_credentials
        ),
    )
