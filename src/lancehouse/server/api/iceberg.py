"""Routes and handlers of the Iceberg REST API; each handler calls the catalog once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError

from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.metadata_loader import SERVER_PLANS
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.server.http import responses
from lancehouse.server.http.calls import Call, Json
from lancehouse.server.http.idempotency import LIFETIME
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Route
from lancehouse.wire import iceberg_requests as shapes

Snapshots = Literal["all", "refs"]


def config(call: Call) -> Response:
    """Return prefix, defaults and endpoints of a warehouse. The parameter `warehouse` is a name or a location.

    A client may plan scans of Iceberg tables itself; for Lance tables LoadTable's config requires planning by the
    server.
    """
    name_or_location = call.query.get("warehouse")
    warehouse = _get_warehouse(call.catalog, name_or_location) if name_or_location else call.catalog.get_warehouse(None)
    if not call.caller.identity.can_see(warehouse.name):
        raise PermissionDeniedError(f"{call.caller.identity.name} may see nothing of warehouse {warehouse.name}")
    return responses.json(
        {
            "defaults": {"root": warehouse.location, **SERVER_PLANS},
            "overrides": {"prefix": quote(warehouse.name, safe=""), "namespace-separator": "%1F"},
            "endpoints": ENDPOINTS,
            "idempotency-key-lifetime": LIFETIME,
        }
    )


def _get_warehouse(catalog: Catalog, name_or_location: str) -> Warehouse:
    """Return a warehouse by its name, else by its location."""
    if name_or_location not in catalog.warehouses:
        for warehouse in catalog.warehouses.values():
            if is_same(warehouse.location, name_or_location):
                return warehouse
    return catalog.get_warehouse(name_or_location)


def list_namespaces(call: Call) -> Response:
    """List the namespaces directly below one, or those of the warehouse."""
    token, size = call.page_request()
    warehouse, parents = call.warehouse, call.parent_candidates()
    for parent in parents[:-1]:
        try:
            return _namespaces_response(*call.catalog.namespaces.list(call.caller, warehouse, parent, token, size))
        except (NamespaceNotFoundError, PermissionDeniedError):
            continue
    return _namespaces_response(*call.catalog.namespaces.list(call.caller, warehouse, parents[-1], token, size))


def _namespaces_response(namespaces: Sequence[Sequence[str]], token: str | None) -> Response:
    return responses.json({"namespaces": namespaces, "next-page-token": token})


def create_namespace(call: Call) -> Response:
    """Create a namespace."""
    request = call.parse_body(shapes.CreateNamespaceRequest)
    namespace = call.catalog.namespaces.create(
        call.caller, call.warehouse, tuple(request["namespace"]), request.get("properties") or {}
    )
    return responses.json({"namespace": namespace.levels, "properties": dict(namespace.properties)})


def _replay_create_namespace(call: Call) -> Response:
    return _namespace_response(call, tuple(call.parse_body(shapes.CreateNamespaceRequest)["namespace"]))


def load_namespace(call: Call) -> Response:
    """Return a namespace with its properties."""
    return _namespace_response(call, call.levels)


def _namespace_response(call: Call, levels: tuple[str, ...]) -> Response:
    namespace = call.catalog.namespaces.load(call.caller, call.warehouse, levels)
    return responses.json({"namespace": namespace.levels, "properties": dict(namespace.properties)})


def namespace_exists(call: Call) -> Response:
    """Check that a namespace exists."""
    call.catalog.namespaces.load(call.caller, call.warehouse, call.levels)
    return responses.no_content()


def drop_namespace(call: Call) -> Response:
    """Drop an empty namespace."""
    call.catalog.namespaces.drop(call.caller, call.warehouse, call.levels)
    return responses.no_content()


def update_properties(call: Call) -> Response:
    """Set and remove properties of a namespace."""
    request = call.parse_body(shapes.UpdateNamespacePropertiesRequest)
    updates, removals = request.get("updates") or {}, request.get("removals") or []
    return responses.json(
        call.catalog.namespaces.update_properties(call.caller, call.warehouse, call.levels, updates, removals)
    )


def _replay_update_properties(call: Call) -> Response:
    """Build the response where the first one was not stored: everything was set and removed as requested."""
    request = call.parse_body(shapes.UpdateNamespacePropertiesRequest)
    updated, removed = list(request.get("updates") or {}), request.get("removals") or []
    return responses.json({"updated": updated, "removed": removed, "missing": []})


def list_tables(call: Call) -> Response:
    """List the tables of a namespace."""
    token, size = call.page_request()
    return _identifiers_response(call, *call.catalog.tables.list(call.caller, call.warehouse, call.levels, token, size))


def list_views(call: Call) -> Response:
    """List the views of a namespace."""
    token, size = call.page_request()
    return _identifiers_response(call, *call.catalog.views.list(call.caller, call.warehouse, call.levels, token, size))


def _identifiers_response(call: Call, names: Sequence[str], token: str | None) -> Response:
    return responses.identifiers(call.levels, names, token)


def create_table(call: Call) -> Response:
    """Create a table, or stage its creation."""
    request = call.parse_body(shapes.CreateTableRequest)
    return responses.table_response(call.catalog.tables.create(call.caller, call.warehouse, call.levels, request))


def register_table(call: Call) -> Response:
    """Register an existing table under a name."""
    request = call.parse_body(shapes.RegisterTableRequest)
    return responses.table_response(call.catalog.tables.register(call.caller, call.warehouse, call.levels, request))


def _replay_create_table(call: Call) -> Response:
    """Return the table that an earlier request with this body created."""
    name = call.parse_body(shapes.RequestModel)["name"]
    return responses.table_response(call.catalog.tables.load(call.caller, call.warehouse, call.levels, name))


def load_table(call: Call) -> Response:
    """Load a table's metadata."""
    snapshots = _parse_snapshots(call)
    loaded = call.catalog.tables.load(call.caller, call.warehouse, call.levels, call.name, snapshots)
    return _table_or_not_modified(call, loaded, snapshots)


def load_cached_table(call: Call) -> Response | None:
    """Load a table's metadata from memory, or return None."""
    snapshots = _parse_snapshots(call)
    loaded = call.catalog.tables.find_cached(call.caller, call.warehouse, call.levels, call.name, snapshots)
    return None if loaded is None else _table_or_not_modified(call, loaded, snapshots)


def _parse_snapshots(call: Call) -> Snapshots:
    return cast(Snapshots, call.choice("snapshots", ("all", "refs"), "all")) if call.query else "all"


def _table_or_not_modified(call: Call, loaded: Any, snapshots: Snapshots) -> Response:
    """Return the table, or 304 if the client has it; never 304 with credentials, which the client needs anew."""
    if_none_match = call.headers.get("if-none-match")
    if if_none_match and not loaded.credentials:
        tag = responses.etag(loaded, snapshots)
        if responses.is_not_modified(if_none_match, tag):
            return Response(304, headers=[(b"etag", tag)])
    return responses.table_response(loaded, snapshots)


def table_exists(call: Call) -> Response:
    """Check that a table exists."""
    call.catalog.tables.get_entry(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def drop_table(call: Call) -> Response:
    """Drop a table, and delete its files if requested."""
    purge = call.flag("purgeRequested")
    call.catalog.tables.drop(call.caller, call.warehouse, call.levels, call.name, purge=purge)
    return responses.no_content()


def update_table(call: Call) -> Response:
    """Commit to one table."""
    request = _complete_commit(call.parse_body(shapes.CommitTableRequest), TableName(call.levels, call.name))
    committed = call.catalog.commits.commit(call.caller, call.warehouse, call.levels, call.name, request)
    return responses.commit_response(committed)


def _replay_update_table(call: Call) -> Response:
    loaded = call.catalog.commits.load_committed(call.caller, call.warehouse, call.levels, call.name)
    return responses.commit_response(loaded)


def _complete_commit(request: Json, name: TableName) -> Json:
    """Return a commit with both its lists; refuse one that names another table than the path."""
    identifier = request.get("identifier")
    if identifier and _table_name(identifier) != name:
        raise InvalidInputError(f"identifier names {_table_name(identifier)}, but the path names {name}")
    return {**request, "requirements": request.get("requirements") or [], "updates": request.get("updates") or []}


def commit_transaction(call: Call) -> Response:
    """Commit to several tables, all or none."""
    changes = call.parse_body(shapes.CommitTransactionRequest)["table-changes"]
    commits = [_complete_commit(change, _table_name(change["identifier"])) for change in changes]
    call.catalog.commits.commit_transaction(call.caller, call.warehouse, commits)
    return responses.no_content()


def rename_table(call: Call) -> Response:
    """Rename a table."""
    request = call.parse_body(shapes.RenameTableRequest)
    call.catalog.tables.rename(
        call.caller, call.warehouse, _table_name(request["source"]), _table_name(request["destination"])
    )
    return responses.no_content()


def _table_name(identifier: Json) -> TableName:
    return TableName(tuple(identifier["namespace"]), identifier["name"])


def load_credentials(call: Call) -> Response:
    """Return new credentials for a table's files."""
    credentials = call.catalog.tables.load_credentials(call.caller, call.warehouse, call.levels, call.name)
    return responses.json({"storage-credentials": credentials})


def report_metrics(call: Call) -> Response:
    """Accept a report on a scan or commit; it is validated, and not stored."""
    call.parse_body(shapes.ReportMetricsRequest)
    call.catalog.tables.get_entry(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def plan_scan(call: Call) -> Response:
    """Plan a scan: return the files that hold the rows."""
    request = call.parse_body(shapes.PlanTableScanRequest)
    return responses.json(call.catalog.scans.plan(call.caller, call.warehouse, call.levels, call.name, request))


def fetch_plan(call: Call) -> Response:
    """Return the state and result of a plan."""
    plan_id = call.match.plan_id
    return responses.json(call.catalog.scans.fetch_plan(call.caller, call.warehouse, call.levels, call.name, plan_id))


def cancel_plan(call: Call) -> Response:
    """Cancel a plan."""
    call.catalog.scans.cancel_plan(call.caller, call.warehouse, call.levels, call.name, call.match.plan_id)
    return responses.no_content()


def fetch_tasks(call: Call) -> Response:
    """Return the files of one plan task."""
    task = call.parse_body(shapes.FetchScanTasksRequest)["plan-task"]
    return responses.json(call.catalog.scans.fetch_tasks(call.caller, call.warehouse, call.levels, call.name, task))


def create_view(call: Call) -> Response:
    """Create a view."""
    request = call.parse_body(shapes.CreateViewRequest)
    return responses.table_response(call.catalog.views.create(call.caller, call.warehouse, call.levels, request))


def register_view(call: Call) -> Response:
    """Register an existing view under a name."""
    request = call.parse_body(shapes.RegisterViewRequest)
    return responses.table_response(call.catalog.views.register(call.caller, call.warehouse, call.levels, request))


def _replay_create_view(call: Call) -> Response:
    name = call.parse_body(shapes.RequestModel)["name"]
    return responses.table_response(call.catalog.views.load(call.caller, call.warehouse, call.levels, name))


def load_view(call: Call) -> Response:
    """Load a view's metadata."""
    return responses.table_response(call.catalog.views.load(call.caller, call.warehouse, call.levels, call.name))


def view_exists(call: Call) -> Response:
    """Check that a view exists."""
    call.catalog.views.get_entry(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def replace_view(call: Call) -> Response:
    """Commit to a view."""
    request = _complete_commit(call.parse_body(shapes.CommitViewRequest), TableName(call.levels, call.name))
    return responses.table_response(
        call.catalog.views.commit(call.caller, call.warehouse, call.levels, call.name, request)
    )


def drop_view(call: Call) -> Response:
    """Drop a view."""
    call.catalog.views.drop(call.caller, call.warehouse, call.levels, call.name)
    return responses.no_content()


def rename_view(call: Call) -> Response:
    """Rename a view."""
    request = call.parse_body(shapes.RenameTableRequest)
    call.catalog.views.rename(
        call.caller, call.warehouse, _table_name(request["source"]), _table_name(request["destination"])
    )
    return responses.no_content()


def replay_no_content(call: Call) -> Response:  # noqa: ARG001
    """Build the empty response to a repeated request."""
    return responses.no_content()


NAMESPACES = "/v1/{prefix}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
TABLE = NAMESPACE + "/tables/{table}"
VIEW = NAMESPACE + "/views/{view}"

ROUTES: tuple[Route, ...] = (
    Route("listNamespaces", "GET", NAMESPACES, list_namespaces, fast=list_namespaces),
    Route("createNamespace", "POST", NAMESPACES, create_namespace, replay=_replay_create_namespace),
    Route("loadNamespaceMetadata", "GET", NAMESPACE, load_namespace, fast=load_namespace),
    Route("namespaceExists", "HEAD", NAMESPACE, namespace_exists, fast=namespace_exists),
    Route("dropNamespace", "DELETE", NAMESPACE, drop_namespace, replay=replay_no_content),
    Route("updateProperties", "POST", NAMESPACE + "/properties", update_properties, replay=_replay_update_properties),
    Route("listTables", "GET", NAMESPACE + "/tables", list_tables, fast=list_tables),
    Route("createTable", "POST", NAMESPACE + "/tables", create_table, replay=_replay_create_table),
    Route("registerTable", "POST", NAMESPACE + "/register", register_table, replay=_replay_create_table),
    Route("loadTable", "GET", TABLE, load_table, fast=load_cached_table),
    Route("updateTable", "POST", TABLE, update_table, replay=_replay_update_table, commits=True),
    Route("dropTable", "DELETE", TABLE, drop_table, replay=replay_no_content),
    Route("tableExists", "HEAD", TABLE, table_exists, fast=table_exists),
    Route("renameTable", "POST", "/v1/{prefix}/tables/rename", rename_table, replay=replay_no_content),
    Route("loadCredentials", "GET", TABLE + "/credentials", load_credentials),
    Route("reportMetrics", "POST", TABLE + "/metrics", report_metrics),
    Route(
        "commitTransaction",
        "POST",
        "/v1/{prefix}/transactions/commit",
        commit_transaction,
        replay=replay_no_content,
        commits=True,
    ),
    Route("planTableScan", "POST", TABLE + "/plan", plan_scan, pool="scans"),
    Route("fetchPlanningResult", "GET", TABLE + "/plan/{plan-id}", fetch_plan, pool="scans"),
    Route("cancelPlanning", "DELETE", TABLE + "/plan/{plan-id}", cancel_plan),
    Route("fetchScanTasks", "POST", TABLE + "/tasks", fetch_tasks, pool="scans"),
    Route("listViews", "GET", NAMESPACE + "/views", list_views, fast=list_views),
    Route("createView", "POST", NAMESPACE + "/views", create_view, replay=_replay_create_view),
    Route("registerView", "POST", NAMESPACE + "/register-view", register_view, replay=_replay_create_view),
    Route("loadView", "GET", VIEW, load_view),
    Route("replaceView", "POST", VIEW, replace_view, replay=load_view, commits=True),
    Route("dropView", "DELETE", VIEW, drop_view, replay=replay_no_content),
    Route("viewExists", "HEAD", VIEW, view_exists, fast=view_exists),
    Route("renameView", "POST", "/v1/{prefix}/views/rename", rename_view, replay=replay_no_content),
)
"""Every operation of the specification except `signRequest`."""

ENDPOINTS = [route.endpoint for route in ROUTES]
CONFIG = Route("getConfig", "GET", "/v1/config", config)
