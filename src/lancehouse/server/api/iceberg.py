"""Routes and handlers of the Iceberg REST API; each handler calls the catalog once."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import cast
from urllib.parse import quote

import orjson
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError

from lancehouse.catalog.callers import Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.metadata_loader import SERVER_PLANS, LoadResult, Snapshots
from lancehouse.catalog.tables import Tables
from lancehouse.catalog.views import Views
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import is_same
from lancehouse.properties import FENCED, PUBLISHED_HEADER, UNGUARDED
from lancehouse.server.api import management
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import LIFETIME, Call, Json, Route
from lancehouse.wire import iceberg_requests as shapes


def config(call: Call) -> Response:
    """Return prefix, defaults and endpoints of a warehouse. The parameter `warehouse` is a name or a location.

    A client may plan scans of Iceberg tables itself; for Lance tables LoadTable's config requires planning by the
    server.
    """
    name_or_location = call.query.get("warehouse")
    warehouse = _get_warehouse(call.catalog, name_or_location or None)
    if not call.caller.identity.can_see(warehouse.name):
        raise PermissionDeniedError(f"{call.caller.identity.name} may see nothing of warehouse {warehouse.name}")
    return responses.json(
        {
            "defaults": {"root": warehouse.location, **SERVER_PLANS, **_fence_properties(call.catalog, warehouse)},
            "overrides": {"prefix": quote(warehouse.name, safe=""), "namespace-separator": "%1F"},
            "endpoints": [
                endpoint for endpoint in ENDPOINTS if warehouse.retention_s or endpoint not in management.UNDO
            ],
            "idempotency-key-lifetime": LIFETIME,
        }
    )


def _fence_properties(catalog: Catalog, warehouse: Warehouse) -> dict[str, str]:
    """Return what `lancehouse doctor` shows of a warehouse that takes no changes, or is not guarded."""
    reasons = {FENCED: catalog.fence.refusal(warehouse), UNGUARDED: catalog.fence.gap(warehouse)}
    return {key: reason for key, reason in reasons.items() if reason is not None}


def _get_warehouse(catalog: Catalog, name_or_location: str | None) -> Warehouse:
    """Return a warehouse by its name, else by its location; without either the first one."""
    if name_or_location and name_or_location not in catalog.warehouses:
        for warehouse in catalog.warehouses.values():
            if is_same(warehouse.location, name_or_location):
                return warehouse
    return catalog.warehouses[name_or_location]


def _scope(call: Call) -> tuple[Caller, Warehouse, tuple[str, ...]]:
    """Return what the services are asked with: who asks, and the warehouse and the namespace of the path.

    Raises:
        WarehouseNotFoundError: there is no warehouse of that name.
    """
    return call.caller, call.catalog.warehouses[call.match.prefix], call.match.levels


def list_namespaces(call: Call) -> Response:
    """List the namespaces directly below one, or those of the warehouse."""
    token, size = call.page_request()
    (caller, warehouse, _), parents = _scope(call), call.parent_candidates()
    for parent in parents[:-1]:
        try:
            return _namespaces_response(*call.catalog.namespaces.list(caller, warehouse, parent, token, size))
        except (NamespaceNotFoundError, PermissionDeniedError):
            continue
    return _namespaces_response(*call.catalog.namespaces.list(caller, warehouse, parents[-1], token, size))


def _namespaces_response(namespaces: Sequence[Sequence[str]], token: str | None) -> Response:
    return responses.json({"namespaces": namespaces, "next-page-token": token})


def create_namespace(call: Call) -> Response:
    """Create a namespace."""
    request = call.parse_body(shapes.CreateNamespaceRequest)
    caller, warehouse, _ = _scope(call)
    namespace = call.catalog.namespaces.create(
        caller, warehouse, tuple(request["namespace"]), request.get("properties") or {}
    )
    return responses.json({"namespace": namespace.levels, "properties": dict(namespace.properties)})


def _replay_create_namespace(call: Call) -> Response:
    return _namespace_response(call, tuple(call.parse_body(shapes.CreateNamespaceRequest)["namespace"]))


def load_namespace(call: Call) -> Response:
    """Return a namespace with its properties."""
    return _namespace_response(call, call.match.levels)


def _namespace_response(call: Call, levels: tuple[str, ...]) -> Response:
    caller, warehouse, _ = _scope(call)
    namespace = call.catalog.namespaces.load(caller, warehouse, levels)
    return responses.json({"namespace": namespace.levels, "properties": dict(namespace.properties)})


def namespace_exists(call: Call) -> Response:
    """Check that a namespace exists."""
    call.catalog.namespaces.load(*_scope(call))
    return responses.no_content()


def drop_namespace(call: Call) -> Response:
    """Drop an empty namespace."""
    call.catalog.namespaces.drop(*_scope(call))
    return responses.no_content()


def update_properties(call: Call) -> Response:
    """Set and remove properties of a namespace."""
    request = call.parse_body(shapes.UpdateNamespacePropertiesRequest)
    updates, removals = request.get("updates") or {}, request.get("removals") or []
    return responses.json(call.catalog.namespaces.update_properties(*_scope(call), updates, removals))


def _replay_update_properties(call: Call) -> Response:
    """Build the response where the first one was not stored: everything was set and removed as requested."""
    request = call.parse_body(shapes.UpdateNamespacePropertiesRequest)
    updated, removed = list(request.get("updates") or {}), request.get("removals") or []
    return responses.json({"updated": updated, "removed": removed, "missing": []})


def list_tables(call: Call) -> Response:
    """List the tables of a namespace."""
    token, size = call.page_request()
    return identifiers(call.match.levels, *call.catalog.tables.list(*_scope(call), token, size))


def list_views(call: Call) -> Response:
    """List the views of a namespace."""
    token, size = call.page_request()
    return identifiers(call.match.levels, *call.catalog.views.list(*_scope(call), token, size))


def _parse_new(call: Call, model: type[shapes.RequestModel]) -> Json:
    request = call.parse_body(model)
    call.note_tables((*call.match.levels, request["name"]))
    return request


def create_table(call: Call) -> Response:
    """Create a table, or stage its creation."""
    request = _parse_new(call, shapes.CreateTableRequest)
    return table_response(call.catalog.tables.create(*_scope(call), request))


def register_table(call: Call) -> Response:
    """Register an existing table under a name."""
    request = _parse_new(call, shapes.RegisterTableRequest)
    return table_response(call.catalog.tables.register(*_scope(call), request))


def _replay_create_table(call: Call) -> Response:
    """Return the table that an earlier request with this body created."""
    name = call.parse_body(shapes.RequestModel)["name"]
    return table_response(call.catalog.tables.load(*_scope(call), name))


def load_table(call: Call) -> Response:
    """Load a table's metadata."""
    snapshots = _parse_snapshots(call)
    if (published := call.headers.get(PUBLISHED_HEADER.lower())) is not None:
        if not call.blocking:
            raise WouldBlockError
        call.catalog.tables.set_published(*_scope(call), call.match.name, published)
    loaded = call.catalog.tables.load(*_scope(call), call.match.name, snapshots, blocking=call.blocking)
    return _table_or_not_modified(call, loaded, snapshots)


def _parse_snapshots(call: Call) -> Snapshots:
    return cast(Snapshots, call.choice("snapshots", ("all", "refs"), "all")) if call.query else "all"


def _table_or_not_modified(call: Call, loaded: LoadResult, snapshots: Snapshots) -> Response:
    """Return the table, or 304 if the client has it.

    The entity tag covers the credentials too: who has others than would be handed out now gets these.
    """
    if_none_match = call.headers.get("if-none-match")
    if if_none_match and not (loaded.credentials and if_none_match.strip() == "*"):
        tag = etag(loaded, snapshots)
        if responses.is_not_modified(if_none_match, tag):
            return Response(304, headers=[(b"etag", tag)])
    return table_response(loaded, snapshots)


def table_exists(call: Call) -> Response:
    """Check that a table exists."""
    call.catalog.tables.require_listed(*_scope(call), call.match.name)
    return responses.no_content()


def drop_table(call: Call) -> Response:
    """Drop a table, and delete its files if requested.

    `deleteData` is what Lance's clients mean by dropping a table: its data go too, also of tables with
    `gc.enabled=false`, which protects Lance's files from the maintenance of Iceberg's clients.
    """
    deletes = call.flag("deleteData")
    purge = call.flag("purgeRequested") or deletes
    call.catalog.tables.drop(*_scope(call), call.match.name, purge=purge, ignore_gc=deletes)
    return responses.no_content()


def update_table(call: Call) -> Response:
    """Commit to one table."""
    request = _parse_commit(call, shapes.CommitTableRequest)
    committed = call.catalog.commits.commit(*_scope(call), call.match.name, request)
    return commit_response(committed)


def _replay_update_table(call: Call) -> Response:
    loaded = call.catalog.commits.load_committed(*_scope(call), call.match.name)
    return commit_response(loaded)


def _parse_commit(call: Call, model: type[shapes.RequestModel]) -> Json:
    return _complete_commit(call.parse_body(model), TableName(call.match.levels, call.match.name))


def _complete_commit(request: Json, name: TableName) -> Json:
    """Return a commit with both its lists; refuse one that names another table than the path."""
    identifier = request.get("identifier")
    if identifier and _table_name(identifier) != name:
        raise InvalidInputError(f"identifier names {_table_name(identifier)}, but the path names {name}")
    return {**request, "requirements": request.get("requirements") or [], "updates": request.get("updates") or []}


def commit_transaction(call: Call) -> Response:
    """Commit to several tables, all or none."""
    changes = call.parse_body(shapes.CommitTransactionRequest)["table-changes"]
    call.note_tables(*(_table_name(change["identifier"]).full_name for change in changes))
    commits = [_complete_commit(change, _table_name(change["identifier"])) for change in changes]
    caller, warehouse, _ = _scope(call)
    call.catalog.commits.commit_transaction(caller, warehouse, commits)
    return responses.no_content()


def rename_table(call: Call) -> Response:
    """Rename a table."""
    return _rename(call, call.catalog.tables)


def _rename(call: Call, service: Tables | Views) -> Response:
    request = call.parse_body(shapes.RenameTableRequest)
    caller, warehouse, _ = _scope(call)
    source, destination = _table_name(request["source"]), _table_name(request["destination"])
    call.note_tables(source.full_name, destination.full_name)
    service.rename(caller, warehouse, source, destination)
    return responses.no_content()


def _table_name(identifier: Json) -> TableName:
    return TableName(tuple(identifier["namespace"]), identifier["name"])


def load_credentials(call: Call) -> Response:
    """Return new credentials for a table's files."""
    credentials = call.catalog.tables.load_credentials(*_scope(call), call.match.name)
    return responses.json({"storage-credentials": credentials})


def report_metrics(call: Call) -> Response:
    """Accept a report on a scan or commit; it is validated, and not stored."""
    call.parse_body(shapes.ReportMetricsRequest)
    call.catalog.tables.require_listed(*_scope(call), call.match.name)
    return responses.no_content()


def plan_scan(call: Call) -> Response:
    """Plan a scan: return the files that hold the rows."""
    request = call.parse_body(shapes.PlanTableScanRequest)
    return responses.json(call.catalog.scans.plan(*_scope(call), call.match.name, request))


def fetch_plan(call: Call) -> Response:
    """Return the state and result of a plan."""
    plan_id = call.match.plan_id
    return responses.json(call.catalog.scans.fetch_plan(*_scope(call), call.match.name, plan_id))


def cancel_plan(call: Call) -> Response:
    """Cancel a plan."""
    call.catalog.scans.cancel_plan(*_scope(call), call.match.name, call.match.plan_id)
    return responses.no_content()


def fetch_tasks(call: Call) -> Response:
    """Return the files of one plan task."""
    task = call.parse_body(shapes.FetchScanTasksRequest)["plan-task"]
    return responses.json(call.catalog.scans.fetch_tasks(*_scope(call), call.match.name, task))


def create_view(call: Call) -> Response:
    """Create a view."""
    request = _parse_new(call, shapes.CreateViewRequest)
    return table_response(call.catalog.views.create(*_scope(call), request))


def register_view(call: Call) -> Response:
    """Register an existing view under a name."""
    request = _parse_new(call, shapes.RegisterViewRequest)
    return table_response(call.catalog.views.register(*_scope(call), request))


def _replay_create_view(call: Call) -> Response:
    name = call.parse_body(shapes.RequestModel)["name"]
    return table_response(call.catalog.views.load(*_scope(call), name))


def load_view(call: Call) -> Response:
    """Load a view's metadata."""
    return table_response(call.catalog.views.load(*_scope(call), call.match.name))


def view_exists(call: Call) -> Response:
    """Check that a view exists."""
    call.catalog.views.get_entry(*_scope(call), call.match.name)
    return responses.no_content()


def replace_view(call: Call) -> Response:
    """Commit to a view."""
    request = _parse_commit(call, shapes.CommitViewRequest)
    return table_response(call.catalog.views.commit(*_scope(call), call.match.name, request))


def drop_view(call: Call) -> Response:
    """Drop a view."""
    call.catalog.views.drop(*_scope(call), call.match.name)
    return responses.no_content()


def rename_view(call: Call) -> Response:
    """Rename a view."""
    return _rename(call, call.catalog.views)


def replay_no_content(call: Call) -> Response:  # noqa: ARG001
    """Build the empty response to a repeated request."""
    return responses.no_content()


def identifiers(levels: Sequence[str], names: Sequence[str], token: str | None) -> Response:
    """Build a ListTablesResponse; of ten thousand names, without an object for each."""
    namespace = orjson.dumps(levels).decode()
    joined_names = f'}},{{"namespace":{namespace},"name":'.join(map(encode_basestring, names))
    items = f'{{"namespace":{namespace},"name":{joined_names}}}' if names else ""
    return Response(200, b'{"identifiers":[%b],"next-page-token":%b}' % (items.encode(), orjson.dumps(token)))


def etag(loaded: LoadResult, snapshots: str) -> bytes:
    """Return the entity tag; responses with other snapshots, settings or credentials have another one."""
    access = f"-{loaded.access_tag}" if loaded.access_tag else ""
    return b'"%b"' % f"{loaded.etag}-{snapshots}{access}".encode("ascii", "replace")


def table_response(loaded: LoadResult, snapshots: str = "all") -> Response:
    """Build a LoadTableResult from the metadata's bytes, without parsing them."""
    tag = etag(loaded, snapshots)
    parts = [b"{"]
    if loaded.metadata_location is not None:
        parts += (b'"metadata-location":', orjson.dumps(loaded.metadata_location), b",")
    parts += (b'"metadata":', loaded.metadata, b',"config":', orjson.dumps(loaded.config))
    if loaded.credentials:
        parts += (b',"storage-credentials":', orjson.dumps(loaded.credentials))
    parts.append(b"}")
    # The tag covers the credentials: only who would get the same bytes shares a compressed body.
    variant = None if loaded.credentials and not loaded.access_tag else b"%b %d" % (tag, sum(map(len, parts)))
    headers = [(b"etag", tag), (b"cache-control", b"private, no-cache")] if loaded.credentials else [(b"etag", tag)]
    return Response(200, b"".join(parts), headers, variant=variant)


def commit_response(loaded: LoadResult) -> Response:
    """Build a CommitTableResponse, which always has a metadata location."""
    body = b'{"metadata-location":%b,"metadata":%b}' % (orjson.dumps(loaded.metadata_location), loaded.metadata)
    return Response(200, body, [(b"etag", etag(loaded, "all" if loaded.has_all_snapshots else "refs"))])


NAMESPACES = "/v1/{prefix}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
TABLE = NAMESPACE + "/tables/{table}"
VIEW = NAMESPACE + "/views/{view}"

ROUTES: tuple[Route, ...] = (
    Route("listNamespaces", "GET", NAMESPACES, list_namespaces, inline=True),
    Route("createNamespace", "POST", NAMESPACES, create_namespace, replay=_replay_create_namespace),
    Route("loadNamespaceMetadata", "GET", NAMESPACE, load_namespace, inline=True),
    Route("namespaceExists", "HEAD", NAMESPACE, namespace_exists, inline=True),
    Route("dropNamespace", "DELETE", NAMESPACE, drop_namespace, replay=replay_no_content),
    Route("updateProperties", "POST", NAMESPACE + "/properties", update_properties, replay=_replay_update_properties),
    Route("listTables", "GET", NAMESPACE + "/tables", list_tables, inline=True),
    Route("createTable", "POST", NAMESPACE + "/tables", create_table, replay=_replay_create_table),
    Route("registerTable", "POST", NAMESPACE + "/register", register_table, replay=_replay_create_table),
    Route("loadTable", "GET", TABLE, load_table, inline=True),
    Route("updateTable", "POST", TABLE, update_table, replay=_replay_update_table, commits=True),
    Route("dropTable", "DELETE", TABLE, drop_table, replay=replay_no_content),
    Route("tableExists", "HEAD", TABLE, table_exists, inline=True),
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
    Route("listViews", "GET", NAMESPACE + "/views", list_views, inline=True),
    Route("createView", "POST", NAMESPACE + "/views", create_view, replay=_replay_create_view),
    Route("registerView", "POST", NAMESPACE + "/register-view", register_view, replay=_replay_create_view),
    Route("loadView", "GET", VIEW, load_view),
    Route("replaceView", "POST", VIEW, replace_view, replay=load_view, commits=True),
    Route("dropView", "DELETE", VIEW, drop_view, replay=replay_no_content),
    Route("viewExists", "HEAD", VIEW, view_exists, inline=True),
    Route("renameView", "POST", "/v1/{prefix}/views/rename", rename_view, replay=replay_no_content),
)
"""Every operation of the specification except `signRequest`."""

ENDPOINTS = [route.endpoint for route in (*ROUTES, *management.ROUTES)]
CONFIG = Route("getConfig", "GET", "/v1/config", config)
