"""Client for Iceberg REST catalogs: Lance tables as Iceberg tables with `table_type=lance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote_plus

from lance_namespace import RenameTableRequest, RenameTableResponse
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse import locations
from lancehouse.caches import BoundedCache
from lancehouse.clients import vended_credentials
from lancehouse.clients.catalog_namespace import Entry, none_if_missing
from lancehouse.clients.http import Reply
from lancehouse.clients.managed_tables import ManagedTables
from lancehouse.clients.managed_versions import REFS_ONLY
from lancehouse.clients.rest import parse_reply
from lancehouse.clients.warehouse_namespace import BULK_THRESHOLD, VEND_HEADERS, WarehousePaths
from lancehouse.errors import ErrorMap, is_route_missing
from lancehouse.identifiers import NamespaceId, TableId
from lancehouse.properties import GC_ENABLED, is_lance, require_lance
from lancehouse.wire.iceberg import CreateTable, LoadedTable, RenameTable, TableIdentifier, TablePage

DUMMY_SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}],
    }
)
"""Schema of an entry before its first version, because Iceberg requires one; Lance's schema is in the dataset."""

RENAME = "POST /v1/{prefix}/tables/rename"
REMEMBERED_TABLES = 20_000
"""Number of tables whose entity tag and entry are cached for the next list."""

CachedEntry = tuple[str, Entry | None]
"""Entity tag of a table and the entry that it stands for; None in place of the entry if it is not a Lance table."""


class IcebergNamespace(ManagedTables):
    """The Lance namespace of an Iceberg REST server. The first level of an id is the warehouse."""

    client: ClassVar[str] = "iceberg"
    drops_missing: ClassVar[bool] = True
    writes_metadata: ClassVar[bool] = True

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._entry_cache: BoundedCache[str, CachedEntry] = BoundedCache(REMEMBERED_TABLES)

    def _list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        def list_names(at: WarehousePaths) -> list[str]:
            pages = self._rest.list_pages(
                at.tables_path(namespace), TablePage, about=namespace, on={404: NamespaceNotFoundError}
            )
            return [identifier.name for page in pages for identifier in page.identifiers or ()]

        names = self._call_warehouse(namespace.catalog, list_names)
        if not names:
            self._require_namespace(namespace)
        return dict.fromkeys(names)

    def _find_lance_entry(self, table: TableId, *, vend: bool) -> Entry | None:
        def find(at: WarehousePaths) -> Entry | None:
            path = at.table_path(table)
            # Only a response that names a missing table or namespace means that the table was dropped since. Any other
            # 404, such as a proxy's, must not silently shorten the list.
            on: ErrorMap = {404: InternalError, "NotFoundException": InternalError}
            cached = None if vend else self._entry_cache.get(path)
            headers = VEND_HEADERS if vend else _if_none_match(cached)
            reply = self._rest.get_reply(path, query=REFS_ONLY, about=table, headers=headers, on=on)
            return self._parse_entry(table, path, reply, cached)

        return none_if_missing(lambda: self._call_warehouse(table.namespace.catalog, find))

    def _find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        if len(tables) < BULK_THRESHOLD:
            return super()._find_entries(tables, vend=vend)
        paths = [self._resolved_paths[table.namespace.catalog].table_path(table) for table in tables]
        cached = [None if vend else self._entry_cache.get(path) for path in paths]
        headers = [VEND_HEADERS if vend else _if_none_match(entry) for entry in cached]
        replies = self._rest.get_replies(list(zip(paths, headers, strict=True)), query=REFS_ONLY)
        reads = list(zip(tables, paths, replies, cached, strict=True))
        others = iter(super()._find_entries([table for table, _, reply, _ in reads if reply is None], vend=vend))
        return [
            next(others) if reply is None else self._parse_entry(table, path, reply, previous)
            for table, path, reply, previous in reads
        ]

    def _parse_entry(self, table: TableId, path: str, reply: Reply, cached: CachedEntry | None) -> Entry | None:
        if reply.status == 304 and cached is not None:
            return cached[1]
        loaded = parse_reply(reply, LoadedTable, table)
        entry = _to_entry(loaded) if is_lance(loaded.metadata.properties) else None
        # An entry with credentials is not cached: the entity tag says that the table is the same, while the credentials
        # expire.
        if (tag := reply.headers.get("etag", "")) and not (entry and entry.vended):
            self._entry_cache.put(path, (tag, entry))
        return entry

    def _load_table(self, table: TableId, *, vend: bool) -> Entry:
        loaded = self._call_warehouse(
            table.namespace.catalog,
            lambda at: self._rest.get(
                at.table_path(table),
                LoadedTable,
                query=REFS_ONLY,
                about=table,
                headers=VEND_HEADERS if vend else None,
                on={404: TableNotFoundError},
            ),
        )
        require_lance(table, loaded.metadata.properties)
        return _to_entry(loaded)

    def _create_table(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        self._require_namespace(table.namespace)
        # Lance's files are unreferenced in Iceberg's eyes: orphan removal by Iceberg's maintenance would delete them.
        table_properties = {**properties, GC_ENABLED: "false"}
        body = CreateTable(name=table.name, location=location, schema=dict(DUMMY_SCHEMA), properties=table_properties)

        def create(at: WarehousePaths) -> LoadedTable:
            def lookup() -> LoadedTable | None:
                loaded = self._find_table_at(at.table_path(table), table, location)
                is_ours = loaded is not None and table_properties.items() <= (loaded.metadata.properties or {}).items()
                return loaded if is_ours else None

            return self._rest.create(
                at.tables_path(table.namespace),
                body,
                LoadedTable,
                about=table,
                lookup=lookup,
                headers=VEND_HEADERS if vend else None,
                on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
            )

        return _to_entry(self._call_warehouse(table.namespace.catalog, create))

    def _find_table_at(self, path: str, table: TableId, location: str) -> LoadedTable | None:
        """Load the table at a path; return None if there is none, or if its location is another one."""
        loaded = none_if_missing(
            lambda: self._rest.get(path, LoadedTable, query=REFS_ONLY, about=table, on={404: TableNotFoundError})
        )
        return loaded if loaded is not None and locations.is_same(loaded.metadata.location or "", location) else None

    def _check_findable(self, table: TableId, entry: Entry) -> None:
        if self._is_lost(table, entry.location):
            # The server decodes names twice: encoded twice, the name leads to the table that was just created.
            encoded_twice = TableId(table.namespace, table.to_path_segment())
            catalog = table.namespace.catalog
            if (
                self._call_warehouse(
                    catalog, lambda at: self._find_table_at(at.table_path(encoded_twice), table, entry.location)
                )
                is None
            ):
                raise _double_decoding_error(table, "what the server made could not be taken back")
            self._delete_table(encoded_twice)
            raise _double_decoding_error(table, "it was taken back")

    def _is_lost(self, table: TableId, location: str) -> bool:
        """Return whether the server cannot find a table by the name under which it was created.

        Polaris decodes the names of Iceberg tables twice, the second time as in a form (`+` is a space). Only names
        that such decoding changes cost a request.
        """
        if unquote_plus(table.name) == table.name:
            return False
        return (
            self._call_warehouse(
                table.namespace.catalog, lambda at: self._find_table_at(at.table_path(table), table, location)
            )
            is None
        )

    def _delete_table(self, table: TableId) -> None:
        self._call_warehouse(
            table.namespace.catalog,
            lambda at: self._rest.delete(
                at.table_path(table), query="purgeRequested=false", about=table, on={404: TableNotFoundError}
            ),
        )

    def _default_location(self, table: TableId) -> str:
        self._require_namespace(table.namespace)
        root = self._resolved_paths[table.namespace.catalog].root
        return locations.child_location(root or str(Path.cwd()), table.parts)

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Rename a table, within its namespace or into another one of its warehouse; its data stays where it is."""
        source = self._parse_table_id(request.id)
        namespace = self._parse_namespace_id(request.new_namespace_id) if request.new_namespace_id else source.namespace
        target = self._parse_table_id([*namespace.parts, request.new_table_name])
        if namespace.catalog != source.namespace.catalog:
            raise InvalidInputError(f"{source} cannot be renamed to {target}: it would change its warehouse")
        entry = self._load_table(source, vend=False)
        self._require_namespace(namespace)
        self._rename(source, target)
        if self._is_lost(target, entry.location):
            self._rename(target, source)
            raise _double_decoding_error(target, f"it is {source} again")
        return RenameTableResponse()

    def _rename(self, source: TableId, target: TableId) -> None:
        body = RenameTable(source=_to_identifier(source), destination=_to_identifier(target))

        def rename(at: WarehousePaths) -> None:
            if at.endpoints is not None and RENAME not in at.endpoints:
                raise UnsupportedOperationError(f"{source}: the server has no call that renames tables")
            self._rest.post(
                f"{at.base_path}/tables/rename",
                body,
                about=source,
                is_done=lambda: self._is_renamed(source, target),
                on={404: TableNotFoundError, 409: TableAlreadyExistsError},
            )

        try:
            self._call_warehouse(source.namespace.catalog, rename)
        except LanceNamespaceError as error:
            if is_route_missing(error) and not isinstance(error, InvalidInputError):
                raise UnsupportedOperationError(f"the server has no call that renames tables: {error}") from error
            raise

    def _is_renamed(self, source: TableId, target: TableId) -> bool:
        target_entry = none_if_missing(lambda: self._load_table(target, vend=False))
        return target_entry is not None and none_if_missing(lambda: self._load_table(source, vend=False)) is None


def _if_none_match(cached: CachedEntry | None) -> Mapping[str, str]:
    """Return the header that asks for a table only if it has changed since the last list."""
    return {} if cached is None else {"If-None-Match": cached[0]}


def _to_entry(loaded: LoadedTable) -> Entry:
    location = loaded.metadata.location or ""
    return Entry(
        location=location,
        properties=loaded.metadata.properties or {},
        vended=vended_credentials.from_iceberg(location, loaded.config, loaded.storage_credentials),
    )


def _double_decoding_error(table: TableId, outcome: str) -> InvalidInputError:
    return InvalidInputError(
        f"{table}: the server decodes names twice and takes {table.name!r} for {unquote_plus(table.name)!r}, so that "
        f"nobody could load such a table; {outcome}: use a name without + and %"
    )


def _to_identifier(table: TableId) -> TableIdentifier:
    return TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
