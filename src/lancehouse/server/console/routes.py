"""Routes of the web console at `/` and of its read-only API at `/console/v1/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lancehouse.gateway.backends import Backend
from lancehouse.server.console import rows, static, tables, tree
from lancehouse.server.console.requests import ConsoleRequest
from lancehouse.server.http.calls import Call
from lancehouse.server.http.pools import PoolKind
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Handler, Match, Route

BASE = "/console/v1/"
LIMIT_S = 30.0
"""Time limit of each request in seconds: users do not wait longer."""
OWN = "console"
"""Group of the thread pools for the console, so that it delays no other client, nor a slow backend the console."""

ConsoleHandler = Callable[[ConsoleRequest], Response]

CATALOG_HANDLERS: Mapping[str, ConsoleHandler] = {
    "places": tree.backends,
    "namespaces": tree.namespaces,
    "namespace": tree.namespace,
    "entries": tree.entries,
    "search": tree.search,
}
TABLE_HANDLERS: Mapping[str, ConsoleHandler] = {"changes": tables.changes}
DATA_HANDLERS: Mapping[str, ConsoleHandler] = {
    "table": tables.table,
    "versions": tables.versions,
    "rows": rows.rows,
    "count": rows.count,
    "value": rows.value,
    "image": rows.image,
    "plane": rows.vector_projection,
    "neighbours": rows.neighbours,
    "fragments": rows.fragments,
    "indices": rows.indices,
}


def routes(backends: Mapping[str, Backend]) -> list[Route]:
    """Return the routes of the page, its files and its API."""

    def handler(console_handler: ConsoleHandler, *, is_table: bool) -> Handler:
        def answer(call: Call) -> Response:
            response = console_handler(ConsoleRequest.from_call(call, backends, is_table=is_table))
            response.headers.append((b"cache-control", b"no-store"))
            return response

        return answer

    def group(_: Match, query: Mapping[str, str]) -> str:
        backend = backends.get(query.get("in", ""))
        return OWN if backend is None or backend.is_warehouse else f"{OWN} {backend.name}"

    def route(name: str, console_handler: ConsoleHandler, pool: PoolKind, *, is_table: bool = True) -> Route:
        answer = handler(console_handler, is_table=is_table)
        return Route(f"console {name}", "GET", BASE + name, answer, pool=pool, limit_s=LIMIT_S, group=group)

    return [
        *static.routes(),
        *(route(name, question, "requests", is_table=False) for name, question in CATALOG_HANDLERS.items()),
        *(route(name, question, "requests") for name, question in TABLE_HANDLERS.items()),
        *(route(name, question, "rows") for name, question in DATA_HANDLERS.items()),
    ]
