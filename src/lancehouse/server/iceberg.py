"""Iceberg REST: each operation reads its request, makes one call to the catalog, and writes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError

from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.loading import SERVER_PLANS
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.server import responses
from lancehouse.server.calls import Call, Json
from lancehouse.server.idempotency import LIFETIME
from lancehouse.server.responses import Response
from lancehouse.server.routes import Route
from lancehouse.wire import iceberg_requests as shapes

Snapshots = Literal["all", "refs"]


def config(call: Call) -> Response:
    """Where things are, and what is offered. `warehouse` is a name or a location.

    A client may plan scans of Iceberg tables itself; what LoadTable says of a Lance table leaves it no choice.
    """
    wanted = call.query.get("warehouse")
    warehouse = _warehouse(call.catalog, wanted) if wanted else call.catalog.warehouse(None)
    if not call.caller.identity.sees(warehouse.name):
        raise PermissionDeniedError(f"{call.caller.identity.name} may see nothing of warehouse {warehouse.name}")
    return responses.json(
        {
            "defaults": {"root": warehouse.location, **SERVER_PLANS},
            "overrides": {"prefix": quote(warehouse.name, safe=""), "namespace-separator": "%1F"},
            "endpoints": ENDPOINTS,
            "idempotency-key-lifetime": LIFETIME,
        }
    )


def _warehouse(catalog: Catalog, wanted: str) -> Warehouse:
    """By its name, or by its location."""
    if wanted not in catalog.warehouses:
        for warehouse in catalog.warehouses.values():
            if is_same(warehouse.location, wanted):
                return warehouse
    return catalog.warehouse(wanted)


def list_namespaces(call: Call) -> Response:
    """The children of one namespace, or of the warehouse."""
    token, size = call.page()
    warehouse, parents = call.warehouse, call.parents()
    for parent in parents[:-1]:
        try:
            return _namespaces(*call.catalog.namespaces.list(call.caller, warehouse, parent, token, size))
        except (NamespaceNotFoundError, PermissionDeniedError):
            continue
    return _namespaces(*call.catalog.namespaces.list(call.caller, warehouse, parents[-1], token, size))


def _namespaces(found: Sequence[Sequence[str]], token: str | None) -> Response:
    return responses.json({"namespaces": found, "next-page-token": token})


def create_namespace(call: Call) -> Response:
    """A new namespace."""
    request = call.json(shapes.CreateNamespaceRequest)
    made = call.catalog.namespaces.create(
        call.caller, call.warehouse, tuple(request["namespace"]), request.get("properties") or {}
    )
    return responses.json({"namespace": made.levels, "properties": dict(made.properties)})


def _created_namespace(call: Call) -> Response:
    return _namespace(call, tuple(call.json(shapes.CreateNamespaceRequest)["namespace"]))


def load_namespace(call: Call) -> Response:
    """A namespace with its properties."""
    return _namespace(call, call.levels)


def _namespace(call: Call, levels: tuple[str, ...]) -> Response:
    found = call.catalog.namespaces.load(call.caller, call.warehouse, levels)
    return responses.json({"namespace": found.levels, "properties": dict(found.properties)})


def namespace_exists(call: Call) -> Response:
    """Whether it is there."""
    call.catalog.namespaces.load(call.caller, call.warehouse, call.levels)
    return responses.no_content()


def drop_namespace(call: Call) -> Response:
    """Remove an empty namespace."""
    call.catalog.namespaces.drop(call.caller, call.warehouse, call.levels)
    return responses.no_content()


def update_properties(call: Call) -> Response:
    """Set and remove properties of a namespace."""
    request = call.json(shapes.UpdateNamespacePropertiesRequest)
    updates, removals = request.get("updates") or {}, request.get("removals") or []
    return responses.json(call.catalog.namespaces.update(call.caller, call.warehouse, call.levels, updates, removals))


def _updated_properties(call: Call) -> Response:
    """Where the answer itself was not kept: all was set and removed as asked."""
    request = call.json(shapes.UpdateNamespacePropertiesRequest)
    updated, removed = list(request.get("updates") or {}), request.get("removals") or []
    return responses.json({"updated": updated, "removed": removed, "missing": []})


def list_tables(call: Call) -> Response:
    """The tables of a namespace."""
    token, size = call.page()
    return _names(call, *call.catalog.tables.list(call.caller, call.warehouse, call.levels, token, size))


def list_views(call: Call) -> Response:
    """The views of a namespace."""
    token, size = call.page()
    return _names(call, *call.catalog.views.list(call.caller, call.warehouse, call.levels, token, size))


def _names(call: Call, names: Sequence[str], token: str | None) -> Response:
    return responses.identifiers(call.levels, names, token)


def create_table(call: Call) -> Response:
    """A new table, or a staged one."""
    request = call.json(shapes.CreateTableRequest)
    return responses.loaded_table(call.catalog.tables.create(call.caller, call.warehouse, call.levels, request))


def register_table(call: Call) -> Response:
    """A name for a table that is there."""
    request = call.json(shapes.RegisterTableRequest)
    return responses.loaded_table(call.catalog.tables.register(call.caller, call.warehouse, call.levels, request))


def _named_table(call: Call) -> Response:
    """The table that an earlier request, with this body, made."""
    name = call.json(shapes.RequestModel)["name"]
    return responses.loaded_table(call.catalog.tables.load(call.caller, call.warehouse, call.levels, name))


def load_table(call: Call) -> Response:
    """A table's metadata."""
    snapshots = _snapshots(call)
    found = call.catalog.tables.load(call.caller, call.warehouse, call.levels, call.name, snapshots)
    return _unless_known(call, found, snapshots)


def cached_table(call: Call) -> Response | None:
    """The same, if it is at hand."""
    snapshots = _snapshots(call)
    found = call.catalog.tables.cached(call.caller, call.warehouse, call.levels, call.name, snapshots)
    return None if found is None else _unless_known(call, found, snapshots)


def _snapshots(call: Call) -> Snapshots:
    return cast(Snapshots, call.choice("snapshots", ("all", "refs"), "all")) if call.query else "all"


def _unless_known(call: Call, found: Any, snapshots: Snapshots) -> Response:
    """304 if the client has it; never where credentials go with it, which it needs anew."""
    known = call.headers.get("if-none-match")
    if known and not found.credentials:
        tag = responses.etag(found, snapshots)
        if responses.is_known(known, tag):
            return Response(304, headers=[(b"etag", tag)])
    return responses.loaded_table(found, snapshots)


def table_exists(call: Call) -> Response:
    """Whether it is there."""
    call.catalog.tables.find(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def drop_table(call: Call) -> Response:
    """Remove a table, and its files if asked to."""
    purge = call.flag("purgeRequested")
    call.catalog.tables.drop(call.caller, call.warehouse, call.levels, call.name, purge=purge)
    return responses.no_content()


def update_table(call: Call) -> Response:
    """Commit to one table."""
    request = _commit(call.json(shapes.CommitTableRequest), TableName(call.levels, call.name))
    made = call.catalog.commits.commit(call.caller, call.warehouse, call.levels, call.name, request)
    return responses.committed_table(made)


def _updated_table(call: Call) -> Response:
    found = call.catalog.commits.load(call.caller, call.warehouse, call.levels, call.name)
    return responses.committed_table(found)


def _commit(request: Json, name: TableName) -> Json:
    """A commit with both its lists; one that is about another table than the path is refused."""
    given = request.get("identifier")
    if given and _name(given) != name:
        raise InvalidInputError(f"identifier names {_name(given)}, but the path names {name}")
    return {**request, "requirements": request.get("requirements") or [], "updates": request.get("updates") or []}


def commit_transaction(call: Call) -> Response:
    """Commit to several tables, all or none."""
    changes = call.json(shapes.CommitTransactionRequest)["table-changes"]
    whole = [_commit(change, _name(change["identifier"])) for change in changes]
    call.catalog.commits.transaction(call.caller, call.warehouse, whole)
    return responses.no_content()


def rename_table(call: Call) -> Response:
    """Give a table another name."""
    request = call.json(shapes.RenameTableRequest)
    call.catalog.tables.rename(call.caller, call.warehouse, _name(request["source"]), _name(request["destination"]))
    return responses.no_content()


def _name(identifier: Json) -> TableName:
    return TableName(tuple(identifier["namespace"]), identifier["name"])


def load_credentials(call: Call) -> Response:
    """Credentials for a table's files, anew."""
    found = call.catalog.tables.credentials(call.caller, call.warehouse, call.levels, call.name)
    return responses.json({"storage-credentials": found})


def report_metrics(call: Call) -> Response:
    """Take note of how a scan or commit went: the log has it."""
    call.json(shapes.ReportMetricsRequest)
    call.catalog.tables.find(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def plan_scan(call: Call) -> Response:
    """Which files hold the rows that are wanted."""
    request = call.json(shapes.PlanTableScanRequest)
    return responses.json(call.catalog.scans.plan(call.caller, call.warehouse, call.levels, call.name, request))


def fetch_plan(call: Call) -> Response:
    """What became of a plan."""
    plan_id = call.match.plan_id
    return responses.json(call.catalog.scans.fetch(call.caller, call.warehouse, call.levels, call.name, plan_id))


def cancel_plan(call: Call) -> Response:
    """A plan that nobody needs any more."""
    call.catalog.scans.cancel(call.caller, call.warehouse, call.levels, call.name, call.match.plan_id)
    return responses.no_content()


def fetch_tasks(call: Call) -> Response:
    """More of a plan."""
    task = call.json(shapes.FetchScanTasksRequest)["plan-task"]
    return responses.json(call.catalog.scans.tasks(call.caller, call.warehouse, call.levels, call.name, task))


def create_view(call: Call) -> Response:
    """A new view."""
    request = call.json(shapes.CreateViewRequest)
    return responses.loaded_table(call.catalog.views.create(call.caller, call.warehouse, call.levels, request))


def register_view(call: Call) -> Response:
    """A name for a view that is there."""
    request = call.json(shapes.RegisterViewRequest)
    return responses.loaded_table(call.catalog.views.register(call.caller, call.warehouse, call.levels, request))


def _named_view(call: Call) -> Response:
    name = call.json(shapes.RequestModel)["name"]
    return responses.loaded_table(call.catalog.views.load(call.caller, call.warehouse, call.levels, name))


def load_view(call: Call) -> Response:
    """A view's metadata."""
    return responses.loaded_table(call.catalog.views.load(call.caller, call.warehouse, call.levels, call.name))


def view_exists(call: Call) -> Response:
    """Whether it is there."""
    call.catalog.views.find(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def replace_view(call: Call) -> Response:
    """Commit to a view."""
    request = _commit(call.json(shapes.CommitViewRequest), TableName(call.levels, call.name))
    return responses.loaded_table(
        call.catalog.views.commit(call.caller, call.warehouse, call.levels, call.name, request)
    )


def drop_view(call: Call) -> Response:
    """Remove a view."""
    call.catalog.views.drop(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def rename_view(call: Call) -> Response:
    """Give a view another name."""
    request = call.json(shapes.RenameTableRequest)
    call.catalog.views.rename(call.caller, call.warehouse, _name(request["source"]), _name(request["destination"]))
    return responses.no_content()


def done(call: Call) -> Response:  # noqa: ARG001
    """Said again of what was done before."""
    return responses.no_content()


NAMESPACES = "/v1/{prefix}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
TABLE = NAMESPACE + "/tables/{table}"
VIEW = NAMESPACE + "/views/{view}"

ROUTES: tuple[Route, ...] = (
    Route("listNamespaces", "GET", NAMESPACES, list_namespaces, fast=list_namespaces),
    Route("createNamespace", "POST", NAMESPACES, create_namespace, replay=_created_namespace),
    Route("loadNamespaceMetadata", "GET", NAMESPACE, load_namespace, fast=load_namespace),
    Route("namespaceExists", "HEAD", NAMESPACE, namespace_exists, fast=namespace_exists),
    Route("dropNamespace", "DELETE", NAMESPACE, drop_namespace, replay=done),
    Route("updateProperties", "POST", NAMESPACE + "/properties", update_properties, replay=_updated_properties),
    Route("listTables", "GET", NAMESPACE + "/tables", list_tables, fast=list_tables),
    Route("createTable", "POST", NAMESPACE + "/tables", create_table, replay=_named_table),
    Route("registerTable", "POST", NAMESPACE + "/register", register_table, replay=_named_table),
    Route("loadTable", "GET", TABLE, load_table, fast=cached_table),
    Route("updateTable", "POST", TABLE, update_table, replay=_updated_table, commits=True),
    Route("dropTable", "DELETE", TABLE, drop_table, replay=done),
    Route("tableExists", "HEAD", TABLE, table_exists, fast=table_exists),
    Route("renameTable", "POST", "/v1/{prefix}/tables/rename", rename_table, replay=done),
    Route("loadCredentials", "GET", TABLE + "/credentials", load_credentials),
    Route("reportMetrics", "POST", TABLE + "/metrics", report_metrics),
    Route(
        "commitTransaction", "POST", "/v1/{prefix}/transactions/commit", commit_transaction, replay=done, commits=True
    ),
    Route("planTableScan", "POST", TABLE + "/plan", plan_scan, pool="scans"),
    Route("fetchPlanningResult", "GET", TABLE + "/plan/{plan-id}", fetch_plan, pool="scans"),
    Route("cancelPlanning", "DELETE", TABLE + "/plan/{plan-id}", cancel_plan),
    Route("fetchScanTasks", "POST", TABLE + "/tasks", fetch_tasks, pool="scans"),
    Route("listViews", "GET", NAMESPACE + "/views", list_views, fast=list_views),
    Route("createView", "POST", NAMESPACE + "/views", create_view, replay=_named_view),
    Route("registerView", "POST", NAMESPACE + "/register-view", register_view, replay=_named_view),
    Route("loadView", "GET", VIEW, load_view),
    Route("replaceView", "POST", VIEW, replace_view, replay=load_view, commits=True),
    Route("dropView", "DELETE", VIEW, drop_view, replay=done),
    Route("viewExists", "HEAD", VIEW, view_exists, fast=view_exists),
    Route("renameView", "POST", "/v1/{prefix}/views/rename", rename_view, replay=done),
)
"""Every operation of the specification but `signRequest`."""

ENDPOINTS = [route.endpoint for route in ROUTES]
CONFIG = Route("getConfig", "GET", "/v1/config", config)
