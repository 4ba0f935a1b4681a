"""The Lance REST Namespace protocol at `/lance/{backend}/v1/…`, over the server's warehouses and any namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from lance_namespace import DescribeTableRequest, ListTablesRequest, ListTablesResponse
from lance_namespace.errors import ErrorCode, InternalError, NamespaceNotFoundError, TableNotFoundError

from lancehouse.catalog import listing
from lancehouse.catalog.callers import Identity, Role
from lancehouse.gateway import answers, requests
from lancehouse.gateway.backends import Backend, ask
from lancehouse.gateway.ids import ids_of, locations_of
from lancehouse.gateway.operations import OPERATIONS, Answer, Body, Needs, Operation
from lancehouse.server.bodies import JSON, ROWS
from lancehouse.server.errors import NoRouteError
from lancehouse.server.responses import Response
from lancehouse.server.routes import LANCE, Match, Route

if TYPE_CHECKING:
    from lancehouse.server.app import Exchange
    from lancehouse.server.calls import Call

PREFIX = "/lance/{backend}/v1/"
ARROW_FILE = b"application/vnd.apache.arrow.file"
RETRY_AFTER_S = 1
IDENTITY = frozenset({"authorization", "x-api-key"})
DESCRIBE = next(operation for operation in OPERATIONS if operation.name == "DescribeTable")
LARGEST_IDENTIFYING = 64 * 1024
"""Bytes of a body that is read to find out who calls."""
ASKED_WHO = (
    "this server asks who you are: send a bearer token, or a static token in the header x-api-key; a body is read to "
    f"find it there only up to {LARGEST_IDENTIFYING} bytes"
)
COMMITS = frozenset({"CreateTableVersion", "BatchCreateTableVersions", "BatchCommitTables"})
"""Who loses the answer must look before it is repeated."""

Backends = Mapping[str, Backend]


def routes(backends: Backends) -> list[Route]:
    """All operations, for all backends."""

    def group(match: Match, _: Mapping[str, str]) -> str:
        backend = backends.get(match.prefix or "")
        return "" if backend is None or backend.is_warehouse else backend.name

    def route(operation: Operation) -> Route:
        streams = operation.body is Body.ARROW
        return Route(
            operation.name,
            operation.method,
            PREFIX + operation.path,
            lambda call: carry_out(operation, backends, call),
            pool="uploads" if streams else "rows" if operation.rows else "requests",
            group=group,
            commits=operation.name in COMMITS,
            alters=operation.needs is not Needs.READ,
            streams=streams,
            takes=ROWS if streams else JSON,
        )

    return [route(operation) for operation in OPERATIONS]


def carry_out(operation: Operation, backends: Backends, call: Call) -> Response:
    """One operation, if the caller may."""
    name = call.match.prefix or ""
    backend = backends.get(name)
    if backend is None:
        seen = ", ".join(filter(call.caller.identity.sees, backends)) or "none that you may see"
        raise NamespaceNotFoundError(f"there is no backend {name!r} here; there is {seen}")
    query = requests.parse_query(call.raw_query)
    named: dict[str, Any] = {}
    if "{id}" in operation.path:
        named["id"] = requests.levels(call.match.name, query)
    if "{index_name}" in operation.path:
        named["index_name"] = call.match.index
    request = requests.read(operation, named, query, call.body, requests.context_of(call.headers))
    backend.check_ids(ids_of(request))
    for about in ids_of(request):
        _require(call.caller.identity, operation, backend, tuple(about))
    for about, location in locations_of(request):
        writes_all = call.caller.identity.may(Role.WRITER, backend.name)
        backend.require_location(location, about[:-1], writes_all=writes_all)
    _consider_vending(call, backend, request)
    if operation.name == "ListAllTables" and backend.is_warehouse:
        return _answer(operation, _list_warehouse(call, backend, request, requests.delimiter_of(query)))
    if operation.name == "ListAllTables":
        more = {"delimiter": requests.delimiter_of(query)}
        request = request.model_copy(update={"context": {**(request.context or {}), **more}})
    reads_all = call.caller.identity.may(Role.READER, backend.name)
    answer = ask(backend, operation, request, token_of(call.headers), call.upload, reads_all=reads_all)
    return _answer(operation, answer)


def _list_warehouse(call: Call, backend: Backend, request: ListTablesRequest, delimiter: str) -> ListTablesResponse:
    """All tables of a warehouse, from its database: its client would ask for every namespace first."""

    def has_data(table: list[str]) -> bool:
        wanted = DescribeTableRequest(id=table, check_declared=True)
        try:
            return not ask(backend, DESCRIBE, wanted, token_of(call.headers), None).is_only_declared
        except TableNotFoundError:
            return False  # dropped meanwhile

    names: list[str] = []
    token, limit = request.page_token, request.limit
    warehouse = call.catalog.warehouse(backend.name)
    while True:
        rest = None if limit is None else limit - len(names)
        tables, token = listing.lance_tables(call.catalog.database, call.caller, warehouse, token, rest)
        shown = [[*levels, name] for levels, name in tables]
        if request.include_declared is False:
            shown = [table for table in shown if has_data(table)]
        names += map(delimiter.join, shown)
        if token is None or limit is None or len(names) >= limit:
            return ListTablesResponse(tables=names, page_token=token)


def _require(identity: Identity, operation: Operation, backend: Backend, id: tuple[str, ...]) -> None:
    """Refuse what no grant allows; grants are on namespaces. Who may read what of a warehouse, its catalog decides."""
    if operation.needs is Needs.ARRANGE:
        identity.require_over(backend.name, id)
    elif operation.needs is Needs.WRITE:
        identity.require(Role.WRITER, backend.name, _namespace(operation, id))
    elif not backend.is_warehouse:
        identity.require(Role.READER, backend.name, _namespace(operation, id))


def _namespace(operation: Operation, id: tuple[str, ...]) -> tuple[str, ...]:
    """The namespace of what an id names: itself, a table, or a transaction of a table."""
    kind = operation.path.partition("/")[0]
    return id if kind == "namespace" else id[:-2] if kind == "transaction" else id[:-1]


def _consider_vending(call: Call, backend: Backend, request: Any) -> None:
    """Credentials are asked for by the request, or by the header field that Iceberg has for it.

    Those of another catalog are vended to the gateway, for all that it may do there: only writers get them.
    """
    if not hasattr(request, "vend_credentials"):
        return
    if call.caller.delegation and request.vend_credentials is None:
        request.vend_credentials = True
    if request.vend_credentials and not backend.is_warehouse:
        call.caller.identity.require(Role.WRITER, backend.name, tuple(request.id[:-1]))


def token_of(headers: Mapping[str, str]) -> str | None:
    """What says who calls: the catalog is asked in their name."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _answer(operation: Operation, made: Any) -> Response:
    match operation.answer:
        case Answer.ARROW:
            return Response(200, content_type=ARROW_FILE, parts=made)
        case Answer.TEXT:
            return Response(200, orjson.dumps(made))
    fields, headers = answers.split(made)
    response = Response(operation.status, headers=headers)
    match operation.answer:
        case Answer.NUMBER:
            response.body = orjson.dumps(fields["count"])
        case Answer.PAIRS:
            response.body = orjson.dumps(fields.get("metadata") or {})
        case Answer.JSON:
            response.body = orjson.dumps(fields)
    return response


def is_of(exchange: Exchange) -> bool:
    """Whether a request is for the gateway."""
    return exchange.raw_path.startswith(LANCE)


def may_identify(exchange: Exchange) -> bool:
    """Whether the body may say who calls: no header field does, and it is not rows."""
    is_json = exchange.route is not None and exchange.route.takes == JSON
    return is_of(exchange) and is_json and not exchange.headers.keys() & IDENTITY


def identify(exchange: Exchange) -> None:
    """Take over what the body says of who calls."""
    if may_identify(exchange):
        exchange.headers.update(requests.identity_of(exchange.body))


def refusal(error: BaseException, request_id: str) -> Response:
    """The answer that an error is, in the protocol's form; its instance is the request's id, which the log has."""
    if isinstance(error, NoRouteError):
        return _error(404, int(ErrorCode.UNSUPPORTED), error, request_id)
    code = answers.code_of(error)
    response = _error(answers.status_of(code), code, error, request_id)
    if response.status == 401:
        response.headers.append((b"www-authenticate", b'Bearer realm="lancehouse"'))
    if response.status in (429, 503):
        response.headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    return response


def failure(request_id: str) -> Response:
    """The answer when something went wrong that nobody foresaw."""
    words = f"the server failed; its log has the reason under the request id {request_id}"
    return _error(500, int(ErrorCode.INTERNAL), InternalError(words), request_id)


def _error(status: int, code: int, error: BaseException, request_id: str) -> Response:
    body = answers.error(code, str(error), request_id)
    return Response(status, body, why=(type(error).__name__, str(error)))
