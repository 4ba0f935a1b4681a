"""What the console's tree shows: backends, namespaces, and the tables and views in them, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from lance_namespace import DescribeNamespaceRequest, ListNamespacesRequest, ListTablesRequest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.catalog import listing
from lancehouse.catalog.callers import Role
from lancehouse.gateway.backends import ask
from lancehouse.gateway.operations import OPERATIONS
from lancehouse.server import responses

if TYPE_CHECKING:
    from lancehouse.server.console_asked import Asked
    from lancehouse.server.responses import Response

PAGE = 1000
LARGEST_PAGE = 5000
FOUND = 100
"""Names that a search tells."""
SEARCH_S = 3.0
"""For which a search goes on."""
_CALLS = {operation.name: operation for operation in OPERATIONS}
_NOT_HERE = (InvalidInputError, UnsupportedOperationError)
"""What a backend answers for a level that cannot hold what was asked for."""

Found = tuple[int, str, tuple[str, ...], str]
"""How well a name fits, the warehouse, the levels, and what it is."""


def places(asked: Asked) -> Response:
    """Who calls, and the backends that they see anything of."""
    identity, catalog = asked.call.caller.identity, asked.call.catalog
    shown = [
        {
            "name": backend.name,
            "warehouse": backend.is_warehouse,
            "impl": None if backend.is_warehouse else backend.impl,
            "location": catalog.warehouse(backend.name).location if backend.is_warehouse else None,
        }
        for backend in asked.backends.values()
        if identity.sees(backend.name)
    ]
    return responses.json({"principal": identity.name, "backends": shown})


def namespaces(asked: Asked) -> Response:
    """The namespaces directly in one, by their last levels."""
    size, token = asked.number("limit", PAGE, LARGEST_PAGE), asked.text("token")
    if (warehouse := asked.warehouse) is not None:
        caller = asked.call.caller
        found, after = asked.call.catalog.namespaces.list(caller, warehouse, asked.levels, token or "", size)
        return _names([levels[-1] for levels in found], after)
    request = ListNamespacesRequest(id=list(asked.levels), limit=size, page_token=token)
    try:
        listed = ask(asked.backend, _CALLS["ListNamespaces"], request, asked.token, None)
    except _NOT_HERE:
        if not asked.levels:
            return _names([], None, is_listed=False)  # Iceberg REST and Polaris do not tell their warehouses
        _described(asked)  # raises, unless the catalog's levels end here
        return _names([], None)
    return _names(listed.namespaces, listed.page_token)


def namespace(asked: Asked) -> Response:
    """The properties of a namespace; a backend itself has none."""
    if not asked.levels:
        warehouse = asked.warehouse
        return responses.json({"properties": {"location": warehouse.location} if warehouse else {}})
    if (warehouse := asked.warehouse) is not None:
        row = asked.call.catalog.namespaces.load(asked.call.caller, warehouse, asked.levels)
        return responses.json({"properties": dict(row.properties)})
    try:
        return responses.json({"properties": _described(asked)})
    except _NOT_HERE:
        return responses.json({"properties": {}})  # a warehouse of another server; its listing says if it is none


def entries(asked: Asked) -> Response:
    """The tables and views in a namespace, with what each is."""
    size, token = asked.number("limit", PAGE, LARGEST_PAGE), asked.text("token")
    if (warehouse := asked.warehouse) is not None:
        if not asked.levels or not asked.call.caller.identity.may(Role.READER, warehouse.name, asked.levels):
            return _entries([], None)  # tables are in namespaces; one that is only on the way to another shows none
        call = asked.call
        return _entries(
            *listing.entries(call.catalog.database, call.caller, warehouse, asked.levels, token or "", size)
        )
    request = ListTablesRequest(id=list(asked.levels), limit=size, page_token=token)
    try:
        listed = ask(asked.backend, _CALLS["ListTables"], request, asked.token, None)
    except _NOT_HERE:
        return _entries([], None)  # tables are in namespaces, and most catalogs have levels above these
    return _entries([(name, "lance") for name in listed.tables], listed.page_token)


def search(asked: Asked) -> Response:
    """Namespaces, tables and views of the server's warehouses whose names have all the words."""
    words = asked.needed("q").lower().split()
    ends = monotonic() + SEARCH_S
    found: list[Found] = []
    is_whole = True
    for each in listing.everything(asked.call.catalog, asked.call.caller):
        fit = _fit(words, each) if words else None
        if fit is not None:
            found.append((fit, *each))
        if monotonic() > ends or len(found) > FOUND * 20:
            is_whole = False
            break
    found.sort()
    shown = [{"in": place, "levels": levels, "kind": kind} for _, place, levels, kind in found[:FOUND]]
    return responses.json({"found": shown, "whole": is_whole and len(found) <= FOUND})


def _described(asked: Asked) -> dict[str, str]:
    request = DescribeNamespaceRequest(id=list(asked.levels))
    described = ask(asked.backend, _CALLS["DescribeNamespace"], request, asked.token, None)
    return described.properties or {}


def _fit(words: list[str], each: listing.Named) -> int | None:
    """How well a name fits what is looked for, the least the best; None if not at all."""
    place, levels, _ = each
    name, whole = levels[-1].lower(), ".".join((place, *levels)).lower()
    if not all(word in whole for word in words):
        return None
    if name == words[-1]:
        return 0
    return 1 if name.startswith(words[-1]) else 2 if words[-1] in name else 3


def _names(names: Any, token: str | None, *, is_listed: bool = True) -> Response:
    """Names; where a backend cannot be asked for them, whoever looks has to know one."""
    return responses.json({"names": list(names), "next": token or None, "listed": is_listed})


def _entries(entries: Sequence[tuple[str, str]], token: str | None) -> Response:
    """Names with kinds, as two lists: ten thousand of them are many objects."""
    names, kinds = [name for name, _ in entries], [kind for _, kind in entries]
    return responses.json({"names": names, "kinds": kinds, "next": token or None})
