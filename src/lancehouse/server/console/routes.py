"""Routes of the web console: the page at `/` with its files, and the read-only API at `/console/v1/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lancehouse.gateway.backends import Backend
from lancehouse.server.console import rows, tables, tree
from lancehouse.server.console.requests import ConsoleRequest
from lancehouse.server.http import responses, system_routes
from lancehouse.server.http.calls import Call
from lancehouse.server.http.pools import PoolKind
from lancehouse.server.http.responses import Header, Response
from lancehouse.server.http.routes import Handler, Match, Route

if TYPE_CHECKING:
    from lancehouse.server.http.calls import Call

FOLDER = Path(__file__).parent / "files"
PAGE = "index.html"
PLACEHOLDER = "{base}"
"""Placeholder in the page for the path of the other files."""

TYPES: Mapping[str, bytes] = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}

POLICY = b"; ".join(
    (
        b"default-src 'none'",
        b"script-src 'self'",
        b"style-src 'self'",
        b"connect-src 'self'",
        b"img-src 'self' blob:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
SAFETY: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Security headers that every file of the console is sent with."""

FOREVER = b"public, max-age=31536000, immutable"
ASK_AGAIN = b"no-cache"


class StaticFile:
    """A file of the console, with the entity tag of its content."""

    def __init__(self, body: bytes, content_type: bytes, caching: bytes) -> None:
        self._body = body
        self._type = content_type
        self._etag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
        self._headers = (*SAFETY, (b"etag", self._etag), (b"cache-control", caching))

    def respond(self, call: Call) -> Response:
        """Return the file, or 304 if the client has it."""
        if responses.is_not_modified(call.headers.get("if-none-match"), self._etag):
            return Response(304, headers=list(self._headers))
        return Response(200, self._body, list(self._headers), self._type)


def _page_routes() -> list[Route]:
    """Return the routes of the page at `/`, and of its files below a path that changes with their content."""
    contents = {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in TYPES}
    digest = sha256(b"\0".join(part for name in contents for part in (name.encode(), contents[name]))).hexdigest()
    base = f"/console/files/{digest[:16]}"
    html = contents.pop(PAGE).replace(PLACEHOLDER.encode(), base.encode())
    page = StaticFile(html, TYPES[".html"], ASK_AGAIN)

    def root(call: Call) -> Response:
        """Return the page to browsers, and the list of APIs to programs."""
        is_browser = "text/html" in call.headers.get("accept", "")
        response = page.respond(call) if is_browser else system_routes.root(call)
        response.headers.append((b"vary", b"accept"))
        return response

    files = {f"{base}/{name}": StaticFile(body, TYPES[Path(name).suffix], FOREVER) for name, body in contents.items()}
    handlers = {"/": root, **{path: file.respond for path, file in files.items()}}
    return [
        Route(
            "console" if path != "/" else "root", method, path, handler, inline=True, is_public=True, quiet=path != "/"
        )
        for path, handler in handlers.items()
        for method in ("GET", "HEAD")
    ]


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
        *_page_routes(),
        *(route(name, question, "requests", is_table=False) for name, question in CATALOG_HANDLERS.items()),
        *(route(name, question, "requests") for name, question in TABLE_HANDLERS.items()),
        *(route(name, question, "rows") for name, question in DATA_HANDLERS.items()),
    ]
