"""The console at `/`: a page for people, and the small questions that it asks of the server. It only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lancehouse.gateway.backends import Backend
from lancehouse.server import console_rows, console_static, console_tables, console_tree
from lancehouse.server.calls import Call
from lancehouse.server.console_asked import ConsoleRequest
from lancehouse.server.pools import PoolKind
from lancehouse.server.responses import Response
from lancehouse.server.routes import Handler, Match, Route

BASE = "/console/v1/"
LIMIT_S = 30.0
"""For each question: people do not wait longer."""
OWN = "console"
"""The threads that its questions wait in: they keep nobody else waiting, nor does another server keep those of this."""

ConsoleHandler = Callable[[ConsoleRequest], Response]

CATALOG_HANDLERS: Mapping[str, ConsoleHandler] = {
    "places": console_tree.backends,
    "namespaces": console_tree.namespaces,
    "namespace": console_tree.namespace,
    "entries": console_tree.entries,
    "search": console_tree.search,
}
TABLE_HANDLERS: Mapping[str, ConsoleHandler] = {"changes": console_tables.changes}
DATA_HANDLERS: Mapping[str, ConsoleHandler] = {
    "table": console_tables.table,
    "versions": console_tables.versions,
    "rows": console_rows.rows,
    "count": console_rows.count,
    "value": console_rows.value,
    "image": console_rows.image,
    "plane": console_rows.vector_projection,
    "neighbours": console_rows.neighbours,
    "fragments": console_rows.fragments,
    "indices": console_rows.indices,
}


def routes(backends: Mapping[str, Backend]) -> list[Route]:
    """The page, its files, and its questions."""

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
        *console_static.routes(),
        *(route(name, question, "requests", is_table=False) for name, question in CATALOG_HANDLERS.items()),
        *(route(name, question, "requests") for name, question in TABLE_HANDLERS.items()),
        *(route(name, question, "rows") for name, question in DATA_HANDLERS.items()),
    ]
