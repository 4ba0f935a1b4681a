"""A small namespace in memory that does all that the suite asks of the catalog; what is broken is made from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from urllib.parse import quote

from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    DropTableRequest,
    DropTableResponse,
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    NamespaceExistsRequest,
    NamespaceExistsResponse,
    RegisterTableRequest,
    RegisterTableResponse,
    RenameTableRequest,
    RenameTableResponse,
    TableExistsRequest,
    TableExistsResponse,
)
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.conformance.target import DEAD_URL

Id = tuple[str, ...]


@dataclass
class ModelTable:
    location: str
    properties: dict[str, str]


@dataclass
class ModelStore:
    """What a server would keep; clients with the same name share it."""

    lock: RLock = field(default_factory=RLock)
    namespaces: dict[Id, dict[str, str]] = field(default_factory=dict)
    tables: dict[Id, ModelTable] = field(default_factory=dict)


STORES: dict[str, ModelStore] = {}


class ModelNamespace(LanceNamespace):
    """Tables lie below `root`; namespaces nest; there is no operation on rows."""

    def __init__(self, root: str, endpoint: str = "http://localhost:1", token: str = "") -> None:
        self.root = root
        self.endpoint = endpoint
        self.token = token

    @property
    def store(self) -> ModelStore:
        if self.endpoint == DEAD_URL:
            raise ServiceUnavailableError(f"{self.endpoint} does not answer")
        return STORES.setdefault(self.root, ModelStore())

    def namespace_id(self) -> str:
        return f"ModelNamespace {{ root: {self.root!r} }}"

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        key = self.id_of(request.id)
        mode = self.mode(request.mode, "create", "existok", "overwrite")
        with self.store.lock:
            self.need(key[:-1])
            if key in self.store.namespaces:
                if mode == "create":
                    raise NamespaceAlreadyExistsError(f"namespace {'.'.join(key)} exists")
                if mode == "existok":
                    return CreateNamespaceResponse(properties=self.store.namespaces[key])
                self.need_empty(key)
            self.store.namespaces[key] = dict(request.properties or {})
            return CreateNamespaceResponse(properties=self.store.namespaces[key])

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        parent = tuple(request.id or ())
        self.need(parent)
        names, token = self.page(self.children(self.store.namespaces, parent), request.limit, request.page_token)
        return ListNamespacesResponse(namespaces=names, page_token=token)

    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        key = self.id_of(request.id)
        self.need(key)
        return DescribeNamespaceResponse(properties=self.store.namespaces[key])

    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        key = self.id_of(request.id)
        mode = self.mode(request.mode, "fail", "skip")
        if self.mode(request.behavior, "restrict", "cascade") == "cascade":
            raise UnsupportedOperationError("no cascade")
        with self.store.lock:
            if mode == "skip" and key not in self.store.namespaces:
                return DropNamespaceResponse()
            self.need(key)
            self.need_empty(key)
            del self.store.namespaces[key]
            return DropNamespaceResponse()

    def namespace_exists(self, request: NamespaceExistsRequest) -> NamespaceExistsResponse:
        self.need(self.id_of(request.id))
        return NamespaceExistsResponse()

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        key = self.id_of(request.id)
        location = request.location or "/".join([self.root, *(self.segment(level) for level in key)])
        properties = dict(request.properties or {})
        self.add(key, location, properties)
        return DeclareTableResponse(location=location, properties=properties, storage_options={})

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        parent = tuple(request.id or ())
        self.need(parent)
        found = self.children(self.store.tables, parent)
        if request.include_declared is False:
            found = [name for name in found if self.has_data(self.store.tables[*parent, name])]
        names, token = self.page(found, request.limit, request.page_token)
        return ListTablesResponse(tables=names, page_token=token)

    def list_all_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        return ListTablesResponse(tables=sorted(".".join(key) for key in self.store.tables))

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        if request.load_detailed_metadata:
            raise UnsupportedOperationError("no details")
        table = self.table(request.id)
        declared = not self.has_data(table) if request.check_declared else None
        return DescribeTableResponse(
            location=table.location, properties=table.properties, storage_options={}, is_only_declared=declared
        )

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        with self.store.lock:
            self.table(request.id)
            del self.store.tables[self.id_of(request.id)]
        return DeregisterTableResponse()

    def table_exists(self, request: TableExistsRequest) -> TableExistsResponse:
        self.table(request.id)
        return TableExistsResponse()

    def register_table(self, request: RegisterTableRequest) -> RegisterTableResponse:
        key = self.id_of(request.id)
        if self.mode(request.mode, "create", "overwrite") == "overwrite":
            self.store.tables.pop(key, None)
        self.add(key, request.location, dict(request.properties or {}))
        return RegisterTableResponse(location=request.location)

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        shutil.rmtree(self.folder(self.table(request.id)), ignore_errors=True)
        del self.store.tables[self.id_of(request.id)]
        return DropTableResponse()

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        table = self.table(request.id)
        key = self.id_of(request.id)
        self.add((*(request.new_namespace_id or key[:-1]), request.new_table_name), table.location, table.properties)
        del self.store.tables[key]
        return RenameTableResponse()

    # What they share

    def id_of(self, id: list[str] | None) -> Id:
        if not id or "" in id:
            raise InvalidInputError(f"{id} is no id")
        return tuple(id)

    def segment(self, level: str) -> str:
        return quote(level, safe="").replace(".", "%2E")

    def mode(self, given: str | None, *modes: str) -> str:
        mode = (given or modes[0]).lower().replace("_", "")
        if mode not in modes:
            raise InvalidInputError(f"{given} is none of {modes}")
        return mode

    def need(self, id: Id) -> None:
        if id and id not in self.store.namespaces:
            raise NamespaceNotFoundError(f"there is no namespace {'.'.join(id)}")

    def need_empty(self, id: Id) -> None:
        if self.children(self.store.namespaces, id) or self.children(self.store.tables, id):
            raise NamespaceNotEmptyError(f"namespace {'.'.join(id)} is not empty")

    def table(self, id: list[str] | None) -> ModelTable:
        found = self.store.tables.get(self.id_of(id))
        if found is None:
            raise TableNotFoundError(f"there is no table {'.'.join(id or ())}")
        return found

    def add(self, id: Id, location: str, properties: dict[str, str]) -> None:
        with self.store.lock:
            self.need(id[:-1])
            if id in self.store.tables:
                raise TableAlreadyExistsError(f"table {'.'.join(id)} exists")
            self.store.tables[id] = ModelTable(location, properties)

    def children(self, things: Iterable[Id], parent: Id) -> list[str]:
        return sorted(key[-1] for key in list(things) if key[:-1] == parent)

    def page(self, names: list[str], limit: int | None, token: str | None) -> tuple[list[str], str | None]:
        names = [name for name in names if not token or name > token]
        if limit is None or len(names) <= limit:
            return names, None
        return names[:limit], names[limit - 1]

    def folder(self, table: ModelTable) -> Path:
        return Path(table.location.removeprefix("file://"))

    def has_data(self, table: ModelTable) -> bool:
        return (self.folder(table) / "_versions").is_dir()
