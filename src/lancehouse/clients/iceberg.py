"""Lance tables in an Iceberg REST catalog: entries with a dummy schema and `table_type=lance`."""

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
from lancehouse.clients import credentials
from lancehouse.clients.management import ManagedTables
from lancehouse.clients.namespace import Entry, if_found
from lancehouse.clients.recent import Recent
from lancehouse.clients.rest import parse
from lancehouse.clients.transport import Reply
from lancehouse.clients.versions import LEAST
from lancehouse.clients.warehouses import MANY, VEND, Warehouse
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
"""What an Iceberg table must have; Lance's own schema is in the dataset."""

RENAME = "POST /v1/{prefix}/tables/rename"
REMEMBERED_TABLES = 20_000
"""How many tables' entity tags are kept for the next listing."""

Known = tuple[str, Entry | None]
"""The entity tag of a table, and what it was when it had it; None if no Lance table."""


class IcebergNamespace(ManagedTables):
    """The Lance namespace of an Iceberg REST server. The first level of an id is the warehouse."""

    client: ClassVar[str] = "iceberg"
    drops_missing: ClassVar[bool] = True
    writes_metadata: ClassVar[bool] = True

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._tags: Recent[str, Known] = Recent(REMEMBERED_TABLES)

    def _candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        def listed(at: Warehouse) -> list[str]:
            pages = self._rest.pages(at.tables(namespace), TablePage, about=namespace, on={404: NamespaceNotFoundError})
            return [identifier.name for page in pages for identifier in page.identifiers or ()]

        names = self._at(namespace.catalog, listed)
        if not names:
            self._require(namespace)
        return dict.fromkeys(names)

    def _peek(self, table: TableId, *, vend: bool) -> Entry | None:
        def peek(at: Warehouse) -> Entry | None:
            path = at.table(table)
            on: ErrorMap = {404: InternalError, "NotFoundException": InternalError}
            known = None if vend else self._tags.get(path)
            headers = VEND if vend else _unless(known)
            reply = self._rest.ask(path, query=LEAST, about=table, headers=headers, on=on)
            return self._peeked(table, path, reply, known)

        return if_found(lambda: self._at(table.namespace.catalog, peek))

    def _peek_many(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        if len(tables) < MANY:
            return super()._peek_many(tables, vend=vend)
        paths = [self._warehouses[table.namespace.catalog].table(table) for table in tables]
        known = [None if vend else self._tags.get(path) for path in paths]
        headers = [VEND if vend else _unless(each) for each in known]
        replies = self._rest.ask_many(list(zip(paths, headers, strict=True)), query=LEAST)
        asked = list(zip(tables, paths, replies, known, strict=True))
        others = iter(super()._peek_many([table for table, _, reply, _ in asked if reply is None], vend=vend))
        return [
            next(others) if reply is None else self._peeked(table, path, reply, was)
            for table, path, reply, was in asked
        ]

    def _peeked(self, table: TableId, path: str, reply: Reply, known: Known | None) -> Entry | None:
        if reply.status == 304 and known is not None:
            return known[1]
        loaded = parse(reply, LoadedTable, table)
        entry = _entry(loaded) if is_lance(loaded.metadata.properties) else None
        if (tag := reply.headers.get("etag", "")) and not (entry and entry.vended):
            self._tags.put(path, (tag, entry))
        return entry

    def _load_table(self, table: TableId, *, vend: bool) -> Entry:
        loaded = self._at(
            table.namespace.catalog,
            lambda at: self._rest.get(
                at.table(table),
                LoadedTable,
                query=LEAST,
                about=table,
                headers=VEND if vend else None,
                on={404: TableNotFoundError},
            ),
        )
        require_lance(table, loaded.metadata.properties)
        return _entry(loaded)

    def _create_table(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        self._require(table.namespace)
        wanted = {**properties, GC_ENABLED: "false"}
        body = CreateTable(name=table.name, location=location, schema=dict(DUMMY_SCHEMA), properties=wanted)

        def create(at: Warehouse) -> LoadedTable:
            def lookup() -> LoadedTable | None:
                found = self._find_at(at.table(table), table, location)
                mine = found is not None and wanted.items() <= (found.metadata.properties or {}).items()
                return found if mine else None

            return self._rest.create(
                at.tables(table.namespace),
                body,
                LoadedTable,
                about=table,
                lookup=lookup,
                headers=VEND if vend else None,
                on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
            )

        return _entry(self._at(table.namespace.catalog, create))

    def _find_at(self, path: str, table: TableId, location: str) -> LoadedTable | None:
        """The table that the server has at a path, if it is the one that lies at a location."""
        found = if_found(
            lambda: self._rest.get(path, LoadedTable, query=LEAST, about=table, on={404: TableNotFoundError})
        )
        return found if found is not None and locations.is_same(found.metadata.location or "", location) else None

    def _check_kept(self, table: TableId, entry: Entry) -> None:
        if self._is_lost(table, entry.location):
            # A name that is encoded twice survives being decoded twice.
            written_twice = TableId(table.namespace, table.wire())
            catalog = table.namespace.catalog
            if self._at(catalog, lambda at: self._find_at(at.table(written_twice), table, entry.location)) is None:
                raise _decoded_twice(table, "what the server made could not be taken back")
            self._delete_table(written_twice)
            raise _decoded_twice(table, "it was taken back")

    def _is_lost(self, table: TableId, location: str) -> bool:
        """Whether the server has made a table and does not find it by its name.

        Polaris decodes the names of Iceberg tables twice, the second time as a form does. Only a name that this changes
        is worth a request.
        """
        if unquote_plus(table.name) == table.name:
            return False
        return self._at(table.namespace.catalog, lambda at: self._find_at(at.table(table), table, location)) is None

    def _delete_table(self, table: TableId) -> None:
        self._at(
            table.namespace.catalog,
            lambda at: self._rest.delete(
                at.table(table), query="purgeRequested=false", about=table, on={404: TableNotFoundError}
            ),
        )

    def _default_location(self, table: TableId) -> str:
        self._require(table.namespace)
        root = self._warehouses[table.namespace.catalog].root
        return locations.below(root or str(Path.cwd()), table.parts)

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Give a table another name, in its namespace or another one of its warehouse; its data stays in place."""
        source = self._table(request.id)
        namespace = self._namespace(request.new_namespace_id) if request.new_namespace_id else source.namespace
        target = self._table([*namespace.parts, request.new_table_name])
        if namespace.catalog != source.namespace.catalog:
            raise InvalidInputError(f"{source} cannot be renamed to {target}: it would change its warehouse")
        entry = self._load_table(source, vend=False)
        self._require(namespace)
        self._rename(source, target)
        if self._is_lost(target, entry.location):
            self._rename(target, source)
            raise _decoded_twice(target, f"it is {source} again")
        return RenameTableResponse()

    def _rename(self, source: TableId, target: TableId) -> None:
        body = RenameTable(source=_identifier(source), destination=_identifier(target))

        def rename(at: Warehouse) -> None:
            if at.endpoints is not None and RENAME not in at.endpoints:
                raise UnsupportedOperationError(f"{source}: the server has no call that renames tables")
            self._rest.post(
                f"{at.path}/tables/rename",
                body,
                about=source,
                done=lambda: self._was_renamed(source, target),
                on={404: TableNotFoundError, 409: TableAlreadyExistsError},
            )

        try:
            self._at(source.namespace.catalog, rename)
        except LanceNamespaceError as error:
            if is_route_missing(error) and not isinstance(error, InvalidInputError):
                raise UnsupportedOperationError(f"the server has no call that renames tables: {error}") from error
            raise

    def _was_renamed(self, source: TableId, target: TableId) -> bool:
        there = if_found(lambda: self._load_table(target, vend=False))
        return there is not None and if_found(lambda: self._load_table(source, vend=False)) is None


def _unless(known: Known | None) -> Mapping[str, str]:
    """Asks for a table only if it changed since the last listing; with credentials always, as they expire."""
    return {} if known is None else {"If-None-Match": known[0]}


def _entry(loaded: LoadedTable) -> Entry:
    location = loaded.metadata.location or ""
    return Entry(
        location=location,
        properties=loaded.metadata.properties or {},
        vended=credentials.from_iceberg(location, loaded.config, loaded.storage_credentials),
    )


def _decoded_twice(table: TableId, outcome: str) -> InvalidInputError:
    return InvalidInputError(
        f"{table}: the server decodes names twice and takes {table.name!r} for {unquote_plus(table.name)!r}, so that "
        f"nobody could load such a table; {outcome}: use a name without + and %"
    )


def _identifier(table: TableId) -> TableIdentifier:
    return TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
