"""Routes and handlers of the Lance REST Namespace API at `/lance/{backend}/v1/…`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from lance_namespace import DescribeTableRequest, ListNamespacesResponse, ListTablesRequest, ListTablesResponse
from lance_namespace.errors import (
    ErrorCode,
    InternalError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
)

from lancehouse.caches import BoundedCache
from lancehouse.catalog import listing
from lancehouse.catalog.callers import Identity, Role, format_scope, restricted_error
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.gateway import messages, restricted
from lancehouse.gateway.backends import Backend, request_ids, request_locations, request_parts, run_operation
from lancehouse.gateway.operations import (
    BY_METHOD,
    OPERATIONS,
    Operation,
    RequestEncoding,
    RequiredAccess,
    ResponseEncoding,
)
from lancehouse.properties import IMPL, is_lance, managed_by, storage_options
from lancehouse.server.http.bodies import JSON, ROWS
from lancehouse.server.http.errors import NoRouteError
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Match, Route
from lancehouse.wire.iceberg import TableMetadata

if TYPE_CHECKING:
    from lancehouse.server.http.application import Exchange
    from lancehouse.server.http.routes import Call

PREFIX = "/lance/{backend}/v1/"
TABLES = PREFIX + "table"
"""Start of the routes of tables."""
ARROW_FILE = b"application/vnd.apache.arrow.file"
RETRY_AFTER_S = 1
IDENTITY = frozenset({"authorization", "x-api-key"})
DESCRIBE = BY_METHOD["describe_table"]
LARGEST_IDENTIFYING = 64 * 1024
"""Most bytes of a body that is read to identify the caller."""
IDENTITY_REQUIRED = (
    "this server asks who you are: send a bearer token, or a static token in the header x-api-key; a body is read to "
    f"find it there only up to {LARGEST_IDENTIFYING} bytes"
)
PLAIN = frozenset({"id", "delimiter", "with_table_uri", "load_detailed_metadata", "check_declared", "vend_credentials"})
"""Fields of a plain DescribeTable: the id, and flags that are not set."""
LARGEST_RECALLED = 32 * 1024
"""Most bytes of metadata that are parsed on the event loop's thread."""
COMMITS = frozenset({"CreateTableVersion", "BatchCreateTableVersions", "BatchCommitTables"})
"""Operations that must not be repeated without a check if their response is lost."""

Backends = Mapping[str, Backend]
DescriptionKey = tuple[str, tuple[str, ...], str, str, str]
Descriptions = BoundedCache[DescriptionKey, bytes]
DESCRIBED_BYTES = 8 * 2**20
"""Most bytes of descriptions with credentials that are cached."""


def routes(backends: Backends) -> list[Route]:
    """Return the routes of all operations, for all backends."""

    def group(match: Match, _: Mapping[str, str]) -> str:
        backend = backends.get(match.prefix or "")
        return "" if backend is None or backend.is_warehouse else backend.name

    described: Descriptions = BoundedCache(DESCRIBED_BYTES, len)

    def route(operation: Operation) -> Route:
        streams = operation.body is RequestEncoding.ARROW
        return Route(
            operation.name,
            operation.method,
            PREFIX + operation.path,
            lambda call: handle_operation(operation, backends, call, described),
            inline=operation is DESCRIBE,
            pool="uploads" if streams else "rows" if operation.rows else "requests",
            group=group,
            commits=operation.name in COMMITS,
            alters=operation.required_access is not RequiredAccess.READ,
            streams=streams,
            content_type=ROWS if streams else JSON,
        )

    return [route(operation) for operation in OPERATIONS]


def handle_operation(operation: Operation, backends: Backends, call: Call, described: Descriptions) -> Response:
    """Check the caller's grants, and run one operation."""
    name = call.match.prefix or ""
    backend = backends.get(name)
    if backend is None:
        visible_names = ", ".join(filter(call.caller.identity.can_see, backends)) or "none that you may see"
        raise NamespaceNotFoundError(f"there is no backend {name!r} here; there is {visible_names}")
    if not call.blocking:
        return _recall_table(call, backend, described)
    query = messages.parse_query(call.raw_query)
    path_fields: dict[str, Any] = {}
    if "{id}" in operation.path:
        path_fields["id"] = messages.parse_id(call.match.name, query)
    if "{index_name}" in operation.path:
        path_fields["index_name"] = call.match.index
    request = messages.parse_request(
        operation, path_fields, query, call.body, messages.headers_to_context(call.headers)
    )
    if call.match.pattern.startswith(TABLES):
        call.note_tables(*request_ids(request))
    # All ids, grants and locations are checked before the backend is called: nothing of a table is opened before.
    backend.check_ids(request_ids(request))
    for part, part_id in request_parts(operation, request):
        _check_grant(call.caller.identity, part, backend, tuple(part_id))
    for table_id, location in request_locations(request):
        writes_all = call.caller.identity.has_role(Role.WRITER, backend.name)
        backend.check_location(location, table_id[:-1], writes_all=writes_all)
    if _is_restricted(call, operation, backend, request):
        return _to_response(operation, _run_restricted(call, operation, backend, request))
    _apply_vending(call, backend, request)
    if operation.name == "ListAllTables" and backend.is_warehouse:
        return _to_response(operation, _list_warehouse_tables(call, backend, request, messages.get_delimiter(query)))
    if operation.name == "ListAllTables":
        context = {"delimiter": messages.get_delimiter(query)}
        request = request.model_copy(update={"context": {**(request.context or {}), **context}})
    reads_all = call.caller.identity.has_role(Role.READER, backend.name)
    key = _find_description(call, backend) if operation is DESCRIBE and request.vend_credentials else None
    answer = run_operation(backend, operation, request, bearer_token(call.headers), call.upload, reads_all=reads_all)
    if not backend.is_warehouse:
        answer = filter_names(call.caller.identity, backend, tuple(getattr(request, "id", None) or ()), answer)
    response = _to_response(operation, answer)
    # What was described may have changed before or after that: it is kept only if it did not change meanwhile.
    if key is not None and key == _find_description(call, backend):
        described.put(key, response.body)
    return response


def _is_restricted(call: Call, operation: Operation, backend: Backend, request: Any) -> bool:
    """Return whether a request concerns a table of which the caller sees only a part."""
    identity = call.caller.identity
    split = (_split_id(part, tuple(part_id)) for part, part_id in request_parts(operation, request))
    return backend.is_warehouse and any(
        table is not None and identity.find_row_policy(backend.name, levels, table) is not None
        for levels, table in split
    )


def _run_restricted(call: Call, operation: Operation, backend: Backend, request: Any) -> Any:
    """Run an operation for a caller who sees only a part of the table.

    Raises:
        PermissionDeniedError: it is none of the operations that show no more than that part.
    """
    *levels, table = request_ids(request)[0] or [""]
    run = restricted.ALLOWED.get(operation.name)
    if run is None:
        where = format_scope(backend.name, tuple(levels), table)
        raise restricted_error(call.caller.identity.name, where, operation.name)
    place = call.caller, call.catalog.warehouses[backend.name], tuple(levels), table
    with backend.translate_errors(operation):
        return run(partial(call.catalog.restricted_tables.open, *place), request)


def _recall_table(call: Call, backend: Backend, described: Descriptions) -> Response:
    """Describe a table of a warehouse from memory, as the warehouse's client does from the same metadata.

    The models of request and response would take as long as all the rest. With credentials, the bytes of the client's
    last response are sent again if the same credentials would be.

    Raises:
        WouldBlockError: memory does not have it, more is asked for than a plain description, or it is an error: the
            client answers.
    """
    plain = _parse_plain(call, backend)
    if plain is None:
        raise WouldBlockError
    try:
        loaded = _load_plain(call, backend, plain, blocking=False)
    except LanceNamespaceError as error:
        raise WouldBlockError from error
    if plain.vends:
        body = described.get(plain.key(backend, loaded))
        if body is None:
            raise WouldBlockError
        return Response(DESCRIBE.status, body)
    if len(loaded.metadata) > LARGEST_RECALLED:
        raise WouldBlockError
    metadata = TableMetadata.model_validate_json(loaded.metadata)
    location, properties = metadata.location or "", metadata.properties or {}
    if not is_lance(properties) or storage_options(properties):
        raise WouldBlockError
    description = {"location": location, "storage_options": {}, "properties": properties}
    is_managed = managed_by(properties) == IMPL
    return Response(DESCRIBE.status, orjson.dumps(description | ({"managed_versioning": True} if is_managed else {})))


@dataclass(frozen=True, slots=True)
class PlainDescription:
    """A request to describe a table of a warehouse, without details."""

    levels: tuple[str, ...]
    name: str
    vends: bool

    def key(self, backend: Backend, loaded: LoadResult) -> DescriptionKey:
        """Return the key of its response in the cache: the response changes with the metadata and the credentials."""
        return backend.name, self.levels, self.name, loaded.etag, loaded.access_tag


def _parse_plain(call: Call, backend: Backend) -> PlainDescription | None:
    """Return the request if it is one for a plain description; else None."""
    query = messages.parse_query(call.raw_query)
    table_id = messages.parse_id(call.match.name, query)
    *levels, name = table_id or [""]
    fields = messages.parse_object(call.body)
    vends = fields.get("vend_credentials")
    ignored = {"id", "vend_credentials"} if vends is True else {"id"}
    asks: dict[str, Any] = {
        key: value for key, value in fields.items() if value is not None and value is not False and key not in ignored
    }
    asks |= {key: values for key, values in query.items() if values != ["false"] and key != "delimiter"}
    is_plain = not asks and fields.keys() | query.keys() <= PLAIN and fields.get("id", table_id) == table_id
    if not (backend.is_warehouse and levels and is_plain):
        return None
    return PlainDescription(tuple(levels), name, call.caller.delegation if vends is None else vends)


def _load_plain(call: Call, backend: Backend, plain: PlainDescription, *, blocking: bool) -> LoadResult:
    caller, warehouse = replace(call.caller, delegation=plain.vends), call.catalog.warehouses[backend.name]
    return call.catalog.tables.load(caller, warehouse, plain.levels, plain.name, "refs", blocking=blocking)


def _find_description(call: Call, backend: Backend) -> DescriptionKey | None:
    """Return the key of the current response to a plain request with credentials; None for other requests."""
    plain = _parse_plain(call, backend)
    if plain is None or not plain.vends:
        return None
    try:
        return plain.key(backend, _load_plain(call, backend, plain, blocking=True))
    except LanceNamespaceError:
        return None  # the operation itself says what is wrong


def _list_warehouse_tables(
    call: Call, backend: Backend, request: ListTablesRequest, delimiter: str
) -> ListTablesResponse:
    """List all tables of a warehouse from its database; its client would first have to list every namespace."""

    def has_data(table: list[str]) -> bool:
        describe_request = DescribeTableRequest(id=table, check_declared=True)
        try:
            return not run_operation(
                backend, DESCRIBE, describe_request, bearer_token(call.headers), None
            ).is_only_declared
        except TableNotFoundError:
            return False  # dropped in the meantime

    names: list[str] = []
    token, limit = request.page_token, request.limit
    warehouse = call.catalog.warehouses[backend.name]
    while True:
        remaining = None if limit is None else limit - len(names)
        tables, token = listing.list_lance_tables(call.catalog.database, call.caller, warehouse, token, remaining)
        table_ids = [[*levels, name] for levels, name in tables]
        if request.include_declared is False:
            table_ids = [table for table in table_ids if has_data(table)]
        names += map(delimiter.join, table_ids)
        if token is None or limit is None or len(names) >= limit:
            return ListTablesResponse(tables=names, page_token=token)


def _check_grant(identity: Identity, operation: Operation, backend: Backend, id: tuple[str, ...]) -> None:
    """Refuse an operation that no grant allows.

    Reads of a warehouse are checked by its catalog.
    """
    levels, table = _split_id(operation, id)
    match operation.required_access:
        case RequiredAccess.MANAGE:
            identity.require_alter_namespace(backend.name, id)
        case RequiredAccess.CREATE:
            identity.require_role(Role.WRITER, backend.name, levels)
        case RequiredAccess.DROP:
            identity.require_drop(backend.name, levels, table or "")
        case RequiredAccess.WRITE:
            identity.require_role(Role.WRITER, backend.name, levels, table)
        case RequiredAccess.READ if not backend.is_warehouse:
            if table is None and operation.name != "ListAllTables":
                identity.require_sight(backend.name, levels)
            else:
                identity.require_role(Role.READER, backend.name, levels, table)


def _split_id(operation: Operation, id: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Return the namespace and the table of an id: of a namespace itself, a table, or a transaction of a table."""
    kind = operation.path.partition("/")[0]
    if kind == "namespace":
        return id, None
    of_table = id[:-1] if kind == "transaction" else id
    return of_table[:-1], of_table[-1] if of_table else None


def filter_names(identity: Identity, backend: Backend, levels: tuple[str, ...], answer: Any) -> Any:
    """Return the answer of another catalog; a list of names without those that the caller may not see.

    Who may read only some tables sees the namespaces above these.
    """
    if isinstance(answer, ListNamespacesResponse) and not identity.has_role(Role.READER, backend.name, levels):
        names = [name for name in answer.namespaces if identity.can_see(backend.name, (*levels, name))]
        return answer.model_copy(update={"namespaces": names})
    if isinstance(answer, ListTablesResponse) and not identity.has_role(Role.READER, backend.name, levels):
        names = [name for name in answer.tables if identity.has_role(Role.READER, backend.name, levels, name)]
        return answer.model_copy(update={"tables": names})
    return answer


def _apply_vending(call: Call, backend: Backend, request: Any) -> None:
    """Request credentials if Iceberg's header field asks for them, and check who may have those of other catalogs.

    Another catalog vends credentials to the gateway, for all that the gateway may do there: only writers get them, but
    where the catalog is asked in the name of the caller.
    """
    if not hasattr(request, "vend_credentials"):
        return
    if call.caller.delegation and request.vend_credentials is None:
        request.vend_credentials = True
    if request.vend_credentials and not backend.is_warehouse and backend.caller_token is None:
        *levels, table = request.id or [""]
        call.caller.identity.require_role(Role.WRITER, backend.name, tuple(levels), table)


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the caller's token, with which the catalog is called on their behalf; None if there is none."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _to_response(operation: Operation, result: Any) -> Response:
    match operation.response:
        case ResponseEncoding.ARROW:
            return Response(200, content_type=ARROW_FILE, parts=result)
        case ResponseEncoding.TEXT:
            return Response(200, orjson.dumps(result))
    fields, headers = messages.split_response(result)
    response = Response(operation.status, headers=headers)
    match operation.response:
        case ResponseEncoding.NUMBER:
            response.body = orjson.dumps(fields["count"])
        case ResponseEncoding.PAIRS:
            response.body = orjson.dumps(fields.get("metadata") or {})
        case ResponseEncoding.JSON:
            response.body = orjson.dumps(fields)
    return response


def can_body_identify(exchange: Exchange) -> bool:
    """Return whether the body may identify the caller: no header field does, and it is JSON, not rows."""
    is_json = exchange.route is not None and exchange.route.content_type == JSON
    return exchange.is_lance and is_json and not exchange.headers.keys() & IDENTITY


def add_identity_headers(exchange: Exchange) -> None:
    """Copy the caller's identity from the body to the header fields."""
    if can_body_identify(exchange):
        exchange.headers.update(messages.identity_headers(exchange.body))


def error_response(error: BaseException, request_id: str) -> Response:
    """Build the response for an error, in the protocol's format; `instance` is the request's id, as in the log."""
    if isinstance(error, NoRouteError):
        return _build_error(404, int(ErrorCode.UNSUPPORTED), error, request_id)
    code = messages.error_code(error)
    response = _build_error(messages.http_status(code), code, error, request_id)
    if response.status == 401:
        response.headers.append((b"www-authenticate", b'Bearer realm="lancehouse"'))
    if response.status in (429, 503):
        response.headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    return response


def failure_response(request_id: str) -> Response:
    """Build the response for an unexpected error."""
    words = f"the server failed; its log has the reason under the request id {request_id}"
    return _build_error(500, int(ErrorCode.INTERNAL), InternalError(words), request_id)


def _build_error(status: int, code: int, error: BaseException, request_id: str) -> Response:
    body = messages.error_body(code, str(error), request_id)
    return Response(status, body, why=(type(error).__name__, str(error)))
