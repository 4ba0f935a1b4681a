"""An emulator of Lakekeeper in memory, after its specification of generic tables and its source; no real one was tried.

What only the source says: the first page of generic tables has no `pageToken`, and every page with tables names a next
one; a table's data is purged when it is dropped, unless the request declines; creating a table vends no credentials;
no two tables have the same location.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from tests.servers.loopback import Answer, Loopback, RefusedError, Request

Json = dict[str, Any]
Levels = tuple[str, ...]


@dataclass(slots=True)
class GenericNamespace:
    """A namespace: its properties, its generic tables, and the names of its Iceberg tables."""

    properties: dict[str, str]
    tables: dict[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class LakekeeperWarehouse:
    """A warehouse; its id is the prefix of its paths."""

    location: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    namespaces: dict[Levels, GenericNamespace] = field(default_factory=dict)

    def namespace(self, levels: Levels) -> GenericNamespace:
        if levels not in self.namespaces:
            raise RefusedError(404, "NoSuchNamespaceException", f"Namespace does not exist: {'.'.join(levels)}")
        return self.namespaces[levels]

    def table(self, levels: Levels, name: str) -> Json:
        if name not in self.namespace(levels).tables:
            raise RefusedError(404, "NoSuchGenericTableException", f"Generic table does not exist: {name}")
        return self.namespaces[levels].tables[name]


class Lakekeeper(Loopback):
    """The server: Iceberg's API below `/catalog`, generic tables below `/lakekeeper`.

    Args:
        warehouses: their names.
        root: below which each warehouse has its folder.
        token: the one bearer token that it takes.
        credentials: of a table's storage, for clients that ask for them.
        page_size: names in a page at most, whatever a client asks for.
    """

    def __init__(
        self,
        *warehouses: str,
        root: str = "file:///warehouse",
        token: str = "a-token",
        credentials: Mapping[str, str] | None = None,
        page_size: int = 3,
    ) -> None:
        self.token = token
        self._credentials = credentials
        self._page_size = page_size
        self._lock = RLock()
        self.purged: list[str] = []
        """Locations of dropped tables whose data the server deletes."""
        self.warehouses = {name: LakekeeperWarehouse(f"{root}/{name}") for name in warehouses}
        super().__init__()

    def answer(self, request: Request) -> Answer:
        with self._lock:
            try:
                return self._route(request)
            except RefusedError as refused:
                return refused.answer

    def _route(self, request: Request) -> Answer:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise RefusedError(401, "NotAuthorizedException", "Authentication failed")
        match request.segments:
            case ["catalog", "v1", "config"]:
                return self._config(request)
            case ["catalog", "v1", prefix, *rest]:
                return self._iceberg(request, self._warehouse(prefix), rest)
            case ["lakekeeper", "v1", prefix, *rest]:
                return self._generic(request, self._warehouse(prefix), rest)
        raise _no_route(request)

    def _config(self, request: Request) -> Answer:
        name = request.query.get("warehouse", "")
        if name not in self.warehouses:
            raise RefusedError(404, "NotFoundException", f"Warehouse {name} does not exist")
        # The prefix is among the defaults, where Polaris has it among the overrides.
        return Answer.json({"defaults": {"prefix": self.warehouses[name].id}, "overrides": {}})

    def _warehouse(self, prefix: str) -> LakekeeperWarehouse:
        for warehouse in self.warehouses.values():
            if warehouse.id == prefix:
                return warehouse
        raise RefusedError(404, "NotFoundException", f"Warehouse {prefix} does not exist")

    def _iceberg(self, request: Request, warehouse: LakekeeperWarehouse, path: Sequence[str]) -> Answer:
        match request.method, path:
            case "GET", ["namespaces"]:
                parent = _levels(request.query.get("parent", ""))
                if parent:
                    warehouse.namespace(parent)
                found = [list(levels) for levels in warehouse.namespaces if levels[:-1] == parent]
                return self._page(request, "namespaces", found)
            case "POST", ["namespaces"]:
                return _create_namespace(warehouse, _body(request))
            case "GET", ["namespaces", joined]:
                levels = _levels(joined)
                return Answer.json({"namespace": list(levels), "properties": warehouse.namespace(levels).properties})
            case "DELETE", ["namespaces", joined]:
                return _drop_namespace(warehouse, _levels(joined))
            case "GET", ["namespaces", joined, "tables"]:
                warehouse.namespace(_levels(joined))
                return self._page(request, "identifiers", [])
            case "GET", ["namespaces", _, "tables", name]:
                raise RefusedError(404, "NoSuchTableException", f"Table does not exist: {name}")
        raise _no_route(request)

    def _generic(self, request: Request, warehouse: LakekeeperWarehouse, path: Sequence[str]) -> Answer:
        match request.method, path:
            case "POST", ["generic-tables", "rename"]:
                return _rename(warehouse, _body(request))
            case "GET", ["namespaces", joined, "generic-tables"]:
                levels = _levels(joined)
                tables = warehouse.namespace(levels).tables
                found = [{"namespace": list(levels), "name": name, "format": tables[name]["format"]} for name in tables]
                return self._generic_page(request, found)
            case "POST", ["namespaces", joined, "generic-tables"]:
                return Answer.json({"table": _create_table(warehouse, _levels(joined), _body(request))})
            case "GET", ["namespaces", joined, "generic-tables", name]:
                return self._load(request, warehouse.table(_levels(joined), name))
            case "DELETE", ["namespaces", joined, "generic-tables", name]:
                self._drop(request, warehouse.namespace(_levels(joined)), warehouse.table(_levels(joined), name))
                return Answer(204)
            case "GET", ["namespaces", joined, "generic-tables", name, "credentials"]:
                return Answer.json(
                    {"storage-credentials": self._vend_credentials(warehouse.table(_levels(joined), name))}
                )
        raise _no_route(request)

    def _drop(self, request: Request, namespace: GenericNamespace, table: Json) -> None:
        if table["protected"]:
            message = f"Cannot delete protected tabular {table['name']} without force flag"
            raise RefusedError(409, "ProtectedTabularDeletionWithoutForce", message)
        del namespace.tables[table["name"]]
        if request.query.get("purgeRequested") != "false":
            self.purged.append(table["base-location"])

    def _load(self, request: Request, table: Json) -> Answer:
        vends = request.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials"
        return Answer.json(
            {"table": table, **({"storage-credentials": self._vend_credentials(table)} if vends else {})}
        )

    def _vend_credentials(self, table: Json) -> list[Json]:
        if self._credentials is None:
            return []
        return [{"prefix": table["base-location"], "config": dict(self._credentials)}]

    def _page(self, request: Request, key: str, items: Sequence[Any]) -> Answer:
        first = int(request.query.get("pageToken") or 0)
        last = first + min(int(request.query.get("pageSize") or self._page_size), self._page_size)
        return Answer.json({key: items[first:last], "next-page-token": str(last) if last < len(items) else None})

    def _generic_page(self, request: Request, items: Sequence[Any]) -> Answer:
        token = request.query.get("pageToken")
        if token == "":
            raise RefusedError(503, "CatalogBackendError", "Unsupported paginate token version")
        first = int(token or 0)
        page = items[first : first + self._page_size]
        return Answer.json({"identifiers": page, "next-page-token": str(first + len(page)) if page else None})


def _create_namespace(warehouse: LakekeeperWarehouse, body: Json) -> Answer:
    levels = tuple(body["namespace"])
    if not levels or not all(levels):
        raise RefusedError(400, "NamespaceNameEmpty", "Namespace name is empty")
    if levels[:-1]:
        warehouse.namespace(levels[:-1])
    if levels in warehouse.namespaces:
        raise RefusedError(409, "AlreadyExistsException", f"Namespace already exists: {'.'.join(levels)}")
    location = f"{warehouse.location}/{uuid.uuid4()}/"
    properties = {"location": location, **(body.get("properties") or {})}
    warehouse.namespaces[levels] = GenericNamespace(properties)
    return Answer.json({"namespace": list(levels), "properties": properties})


def _drop_namespace(warehouse: LakekeeperWarehouse, levels: Levels) -> Answer:
    has_children = any(other[:-1] == levels for other in warehouse.namespaces)
    if warehouse.namespace(levels).tables or has_children:
        raise RefusedError(409, "NamespaceNotEmptyException", f"Namespace is not empty: {'.'.join(levels)}")
    del warehouse.namespaces[levels]
    return Answer(204)


def _create_table(warehouse: LakekeeperWarehouse, levels: Levels, body: Json) -> Json:
    namespace = warehouse.namespace(levels)
    for key in ("name", "format"):
        if not body.get(key):
            raise RefusedError(400, "BadRequestException", f"missing field `{key}`")
    name = body["name"]
    if name in namespace.tables:
        raise RefusedError(409, "GenericTableAlreadyExists", f"Generic table already exists: {name}")
    location = (body.get("base-location") or f"{namespace.properties['location']}{uuid.uuid4()}").rstrip("/")
    tables = [table for other in warehouse.namespaces.values() for table in other.tables.values()]
    if any(table["base-location"] == location for table in tables):
        message = f"Location '{location}' is already taken by another table or view."
        raise RefusedError(409, "LocationAlreadyTaken", message)
    namespace.tables[name] = {
        "name": name,
        "format": body["format"],
        "base-location": location,
        "protected": False,
        **{key: body[key] for key in ("doc", "properties") if body.get(key) is not None},
    }
    return namespace.tables[name]


def _rename(warehouse: LakekeeperWarehouse, body: Json) -> Answer:
    source, target = body["source"], body["destination"]
    table = warehouse.table(tuple(source["namespace"]), source["name"])
    others = warehouse.namespace(tuple(target["namespace"])).tables
    if target["name"] in others:
        raise RefusedError(409, "AlreadyExistsException", f"Generic table already exists: {target['name']}")
    del warehouse.namespace(tuple(source["namespace"])).tables[source["name"]]
    others[target["name"]] = {**table, "name": target["name"]}
    return Answer(204)


def _levels(joined: str) -> Levels:
    return tuple(joined.split("\x1f")) if joined else ()


def _body(request: Request) -> Json:
    try:
        body: Json = json.loads(request.body)
    except ValueError:
        raise RefusedError(400, "BadRequestException", "the body is no JSON") from None
    return body


def _no_route(request: Request) -> RefusedError:
    return RefusedError(404, "NotFoundException", f"no route for {request.method} {request.path}")
