"""Console API for the catalog tree: backends, namespaces, tables and views page by page, and search by name."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from lance_namespace import DescribeNamespaceRequest, ListNamespacesRequest, ListTablesRequest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.catalog import listing
from lancehouse.catalog.callers import Role
from lancehouse.gateway.backends import run_operation
from lancehouse.gateway.operations import OPERATIONS
from lancehouse.server.http import responses

if TYPE_CHECKING:
    from lancehouse.server.console.requests import ConsoleRequest
    from lancehouse.server.http.responses import Response

PAGE = 1000
LARGEST_PAGE = 5000
MAX_HITS = 100
"""Most names that a search returns."""
SEARCH_S = 3.0
"""Time limit of a search in seconds; it returns what was found until then."""
_CALLS = {operation.name: operation for operation in OPERATIONS}
_NOT_HERE = (InvalidInputError, UnsupportedOperationError)
"""Errors of a backend for a level that cannot hold what is listed."""

SearchHit = tuple[int, str, tuple[str, ...], str]
"""Rank of the match, warehouse, levels, and kind."""


def backends(request: ConsoleRequest) -> Response:
    """Return the caller's name, and the backends of which they may see anything."""
    identity, catalog = request.call.caller.identity, request.call.catalog
    visible = [
        {
            "name": backend.name,
            "warehouse": backend.is_warehouse,
            "impl": None if backend.is_warehouse else backend.impl,
            "location": catalog.warehouses[backend.name].location if backend.is_warehouse else None,
        }
        for backend in request.backends.values()
        if identity.can_see(backend.name)
    ]
    return responses.json({"principal": identity.name, "backends": visible})


def namespaces(request: ConsoleRequest) -> Response:
    """List the namespaces directly below one, by their last level."""
    size, token = request.get_number("limit", PAGE, LARGEST_PAGE), request.find_parameter("token")
    if (warehouse := request.warehouse) is not None:
        caller = request.call.caller
        children, next_token = request.call.catalog.namespaces.list(
            caller, warehouse, request.levels, token or "", size
        )
        return _names_response([levels[-1] for levels in children], next_token)
    lance_request = ListNamespacesRequest(id=list(request.levels), limit=size, page_token=token)
    try:
        response = run_operation(request.backend, _CALLS["ListNamespaces"], lance_request, request.token, None)
    except _NOT_HERE:
        if not request.levels:
            return _names_response([], None, is_listed=False)  # Iceberg REST and Polaris cannot list warehouses
        _describe_namespace(request)  # raises, unless this is the deepest level that the catalog has
        return _names_response([], None)
    return _names_response(response.namespaces, response.page_token)


def namespace(request: ConsoleRequest) -> Response:
    """Return the properties of a namespace; a backend itself has none."""
    if not request.levels:
        warehouse = request.warehouse
        return responses.json({"properties": {"location": warehouse.location} if warehouse else {}})
    if (warehouse := request.warehouse) is not None:
        row = request.call.catalog.namespaces.load(request.call.caller, warehouse, request.levels)
        return responses.json({"properties": dict(row.properties)})
    try:
        return responses.json({"properties": _describe_namespace(request)})
    except _NOT_HERE:
        # A warehouse of another server; listing it fails if it does not exist.
        return responses.json({"properties": {}})


def entries(request: ConsoleRequest) -> Response:
    """List the tables and views in a namespace, with their kinds."""
    size, token = request.get_number("limit", PAGE, LARGEST_PAGE), request.find_parameter("token")
    if (warehouse := request.warehouse) is not None:
        if not request.levels or not request.call.caller.identity.has_role(Role.READER, warehouse.name, request.levels):
            # The warehouse itself holds no tables; a namespace that is only above a granted one shows none.
            return _entries_response([], None)
        call = request.call
        return _entries_response(
            *listing.list_entries(call.catalog.database, call.caller, warehouse, request.levels, token or "", size)
        )
    lance_request = ListTablesRequest(id=list(request.levels), limit=size, page_token=token)
    try:
        response = run_operation(request.backend, _CALLS["ListTables"], lance_request, request.token, None)
    except _NOT_HERE:
        return _entries_response([], None)  # most catalogs have levels that hold namespaces only
    return _entries_response([(name, "lance") for name in response.tables], response.page_token)


def search(request: ConsoleRequest) -> Response:
    """Find namespaces, tables and views of the server's warehouses whose names contain all words."""
    words = request.get_parameter("q").lower().split()
    deadline = monotonic() + SEARCH_S
    hits: list[SearchHit] = []
    is_complete = True
    for entry in listing.walk_visible(request.call.catalog, request.call.caller):
        rank = _rank(words, entry) if words else None
        if rank is not None:
            hits.append((rank, *entry))
        if monotonic() > deadline or len(hits) > MAX_HITS * 20:
            is_complete = False
            break
    hits.sort()
    results = [{"in": place, "levels": levels, "kind": kind} for _, place, levels, kind in hits[:MAX_HITS]]
    return responses.json({"found": results, "whole": is_complete and len(hits) <= MAX_HITS})


def _describe_namespace(request: ConsoleRequest) -> dict[str, str]:
    lance_request = DescribeNamespaceRequest(id=list(request.levels))
    response = run_operation(request.backend, _CALLS["DescribeNamespace"], lance_request, request.token, None)
    return response.properties or {}


def _rank(words: list[str], entry: listing.ListedEntry) -> int | None:
    """Return how well a name matches the words, 0 being the best; None if it does not."""
    warehouse, levels, _ = entry
    name, full_name = levels[-1].lower(), ".".join((warehouse, *levels)).lower()
    if not all(word in full_name for word in words):
        return None
    if name == words[-1]:
        return 0
    return 1 if name.startswith(words[-1]) else 2 if words[-1] in name else 3


def _names_response(names: Any, token: str | None, *, is_listed: bool = True) -> Response:
    """Build a list of names.

    `is_listed` is False where a backend cannot list them, so that the user has to know one.
    """
    return responses.json({"names": list(names), "next": token or None, "listed": is_listed})


def _entries_response(entries: Sequence[tuple[str, str]], token: str | None) -> Response:
    """Build a list of names and kinds as two arrays, instead of one object for each of thousands of entries."""
    names, kinds = [name for name, _ in entries], [kind for _, kind in entries]
    return responses.json({"names": names, "kinds": kinds, "next": token or None})
