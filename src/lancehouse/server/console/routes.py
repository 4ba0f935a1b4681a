"""Routes of the web console: the page at `/` with its files, the read-only API at `/console/v1/`, and its requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError

from lancehouse.catalog.callers import Role, format_scope, restricted_error
from lancehouse.gateway.backends import Backend, run_operation
from lancehouse.gateway.messages import parse_query
from lancehouse.gateway.operations import BY_METHOD
from lancehouse.server.api import maintenance
from lancehouse.server.api.lance import bearer_token
from lancehouse.server.console import lineage, rows, tables
from lancehouse.server.console.backend_tables import BackendTable
from lancehouse.server.http import responses, system_routes
from lancehouse.server.http.pools import PoolKind
from lancehouse.server.http.responses import Header, Response
from lancehouse.server.http.routes import Call, Handler, Match, Route

if TYPE_CHECKING:
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.row_policy import RowPolicy

LONGEST_FILTER = 10_000
LARGEST = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One request of the console."""

    call: Call
    query: Mapping[str, Sequence[str]]
    backends: Mapping[str, Backend]
    is_table: bool
    """Whether the levels are those of a table, not of a namespace."""

    @classmethod
    def from_call(cls, call: Call, backends: Mapping[str, Backend], *, is_table: bool) -> ConsoleRequest:
        """Create a request from a call, by parsing its query."""
        return cls(call, parse_query(call.raw_query), backends, is_table)

    @property
    def backend(self) -> Backend:
        """The backend that the parameter `in` names, after checking that the caller may see it.

        Raises:
            NamespaceNotFoundError: there is no backend of that name.
            InvalidInputError: a level is not a valid name there.
            PermissionDeniedError: the caller has no grant on it. Reads inside a warehouse are checked by its catalog.
        """
        name, identity = self.find_parameter("in") or "", self.call.caller.identity
        backend = self.backends.get(name)
        if backend is None:
            raise NamespaceNotFoundError(f"there is no backend {name!r} here")
        backend.check_ids([self.levels])
        if not backend.is_warehouse:
            if self.is_table and self.levels:
                identity.require_role(Role.READER, name, self.levels[:-1], self.levels[-1])
            else:
                identity.require_sight(name, self.levels)
        else:
            identity.require_sight(name)
        return backend

    @property
    def warehouse(self) -> Warehouse | None:
        """The warehouse of this server that the backend is; None for other backends."""
        backend = self.backend
        return self.call.catalog.warehouses[backend.name] if backend.is_warehouse else None

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the namespace or table, without the backend."""
        levels = tuple(self.query.get("level", ()))
        if "" in levels:
            raise InvalidInputError("no level of a name may be empty")
        return levels

    @property
    def token(self) -> str | None:
        """The caller's token, with which the catalog is called on their behalf."""
        return bearer_token(self.call.headers)

    @property
    def table(self) -> BackendTable:
        """The Lance table, at the requested version."""
        backend, version = self.backend, self.find_number("version")
        if self.find_row_policy() is not None:
            raise self.restricted_error()
        reads_all = self.call.caller.identity.has_role(Role.READER, backend.name)
        return BackendTable.from_backend(backend, self.table_levels(), self.token, version, reads_all=reads_all)

    def run(self, method: str, request: Any) -> Any:
        """Run an operation of the protocol on the backend."""
        return run_operation(self.backend, BY_METHOD[method], request, self.token, None)

    def find_row_policy(self) -> RowPolicy | None:
        """Return what the caller sees of the table, if it is not all of it."""
        if not self.is_table or not self.levels:
            return None
        name = self.find_parameter("in") or ""
        return self.call.caller.identity.find_row_policy(name, self.levels[:-1], self.levels[-1])

    def restricted_error(self) -> PermissionDeniedError:
        """Return the error for a page that is not for callers who see only a part of the table."""
        where = format_scope(self.backend.name, self.levels[:-1], self.levels[-1])
        return restricted_error(self.call.caller.identity.name, where, "this page")

    def refuse(self) -> Response:
        """Refuse a page that is not for callers who see only a part of the table."""
        raise self.restricted_error()

    def table_levels(self) -> tuple[str, ...]:
        """Return the levels of a table or view.

        Raises:
            InvalidInputError: the query names none.
        """
        if not self.levels:
            raise InvalidInputError("no table is named: give its levels, one by one, as level=…")
        return self.levels

    def find_parameter(self, name: str) -> str | None:
        """Return a parameter; None if it is missing or empty."""
        return next(iter(self.query.get(name, ())), None) or None

    def get_parameter(self, name: str) -> str:
        """Return a required parameter.

        Raises:
            InvalidInputError: it is missing.
        """
        value = self.find_parameter(name)
        if value is None:
            raise InvalidInputError(f"{name} is missing in the query")
        return value

    def find_filter(self) -> str | None:
        """Return the filter, a condition in Lance's SQL, or None.

        Raises:
            InvalidInputError: it is too long.
        """
        value = self.find_parameter("filter")
        if value is not None and len(value) > LONGEST_FILTER:
            raise InvalidInputError(f"the filter has more than {LONGEST_FILTER} characters")
        return value.strip() if value else None

    def find_number(self, name: str) -> int | None:
        """Return a number; None if it is missing.

        Raises:
            InvalidInputError: it is not a whole number from 0.
        """
        value = self.find_parameter(name)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) > LARGEST:
            raise InvalidInputError(f"{name} must be a whole number from 0, got {value[:40]!r}")
        return int(value)

    def get_number(self, name: str, default: int, maximum: int, minimum: int = 1) -> int:
        """Return a number, clamped between `minimum` and `maximum`; `default` if it is missing."""
        value = self.find_number(name)
        return default if value is None else max(minimum, min(value, maximum))


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
    "places": tables.backends,
    "namespaces": tables.namespaces,
    "namespace": tables.namespace,
    "entries": tables.entries,
    "search": tables.search,
    "dropped": tables.list_dropped,
    "audit": tables.audit,
    "maintenance": lambda request: maintenance.status(request.call),
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
    "states": rows.states,
    "failures": rows.failures,
    "lineage": lineage.lineage,
}
RESTRICTED_HANDLERS: Mapping[ConsoleHandler, ConsoleHandler] = {
    tables.table: rows.describe_visible_part,
    rows.rows: rows.visible_rows,
    rows.count: rows.count_visible_rows,
}
"""What callers get who see only a part of a table, in place of what others get; they are refused all other pages."""


def routes(backends: Mapping[str, Backend]) -> list[Route]:
    """Return the routes of the page, its files and its API."""

    def handler(console_handler: ConsoleHandler, *, is_table: bool) -> Handler:
        def answer(call: Call) -> Response:
            request = ConsoleRequest.from_call(call, backends, is_table=is_table)
            chosen_handler = console_handler
            if request.find_row_policy() is not None:
                chosen_handler = RESTRICTED_HANDLERS.get(console_handler, ConsoleRequest.refuse)
            response = chosen_handler(request)
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
