"""Lance tables in an Iceberg REST catalog: entries with a dummy schema and `table_type=lance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

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
from lancehouse.clients.namespace import Entry, if_found
from lancehouse.clients.rest import parse
from lancehouse.clients.transport import Reply
from lancehouse.clients.warehouses import MANY, VEND, Warehouse, WarehouseNamespace
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

LEAST = "snapshots=refs"
"""Asks a server to leave out the snapshots that no branch or tag needs."""

RENAME = "POST /v1/{prefix}/tables/rename"
REMEMBERED_TABLES = 20_000
"""How many tables' entity tags are kept for the next listing."""


class IcebergNamespace(WarehouseNamespace):
    """The Lance namespace of an Iceberg REST server. The first level of an id is the warehouse."""

    client: ClassVar[str] = "iceberg"
    drops_missing: ClassVar[bool] = True
    writes_metadata: ClassVar[bool] = True

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._tags: dict[str, tuple[str, Entry | None]] = {}

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
            headers = self._unless_known(path, vend=vend)
            return self._peeked(table, path, self._rest.ask(path, query=LEAST, about=table, headers=headers, on=on))

        return if_found(lambda: self._at(table.namespace.catalog, peek))

    def _peek_many(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        if len(tables) < MANY:
            return super()._peek_many(tables, vend=vend)
        paths = [self._warehouses[table.namespace.catalog].table(table) for table in tables]
        replies = self._rest.ask_many([(path, self._unless_known(path, vend=vend)) for path in paths], query=LEAST)
        asked = list(zip(tables, paths, replies, strict=True))
        again = [table for table, _, reply in asked if reply is None]
        others = iter(super()._peek_many(again, vend=vend))
        return [next(others) if reply is None else self._peeked(table, path, reply) for table, path, reply in asked]

    def _unless_known(self, path: str, *, vend: bool) -> Mapping[str, str]:
        """Asks for a table only if it changed since the last listing; with credentials always, as they expire."""
        if vend:
            return VEND
        tag, _ = self._tags.get(path, ("", None))
        return {"If-None-Match": tag} if tag else {}

    def _peeked(self, table: TableId, path: str, reply: Reply) -> Entry | None:
        if reply.status == 304:
            return self._tags[path][1]
        loaded = parse(reply, LoadedTable, table)
        entry = _entry(loaded) if is_lance(loaded.metadata.properties) else None
        if (tag := reply.headers.get("ETag", "")) and not (entry and entry.vended):
            self._tags[path] = (tag, entry)
            while len(self._tags) > REMEMBERED_TABLES:
                self._tags.pop(next(iter(self._tags)), None)
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
                path = at.table(table)
                found = if_found(
                    lambda: self._rest.get(path, LoadedTable, query=LEAST, about=table, on={404: TableNotFoundError})
                )
                mine = (
                    found is not None
                    and locations.is_same(found.metadata.location or "", location)
                    and wanted.items() <= (found.metadata.properties or {}).items()
                )
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
        self._load_table(source, vend=False)
        self._require(namespace)
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
        return RenameTableResponse()

    def _was_renamed(self, source: TableId, target: TableId) -> bool:
        there = if_found(lambda: self._load_table(target, vend=False))
        return there is not None and if_found(lambda: self._load_table(source, vend=False)) is None


def _entry(loaded: LoadedTable) -> Entry:
    location = loaded.metadata.location or ""
    return Entry(
        location=location,
        properties=loaded.metadata.properties or {},
        vended=credentials.from_iceberg(location, loaded.config, loaded.storage_credentials),
    )


def _identifier(table: TableId) -> TableIdentifier:
    return TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
