"""The ASGI application: authenticates and routes a request, runs its handler, sends the response, logs one line."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from secrets import token_hex
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, UnauthenticatedError

from lancehouse import in_process, measures, tracing
from lancehouse.catalog.callers import ANYBODY, Caller, IdempotencyKey, Identity
from lancehouse.catalog.entries import delete_old_keys
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.errors import is_panic
from lancehouse.gateway import messages
from lancehouse.identifiers import format_levels
from lancehouse.log_lines import log_about
from lancehouse.server.api import iceberg, lance, management
from lancehouse.server.api.maintenance import maintenance_metrics
from lancehouse.server.http import bodies, routes, system_routes
from lancehouse.server.http.bodies import MemoryBudget, Reservation
from lancehouse.server.http.errors import (
    FORESEEN,
    ChangeDeadlineError,
    CommitDeadlineError,
    DeadlineError,
    PayloadTooLargeError,
    error_response,
    failure_response,
)
from lancehouse.server.http.health import Check, Health, catalog_checks, health_metrics
from lancehouse.server.http.oauth import LoginQueue
from lancehouse.server.http.observability import Log, Metrics
from lancehouse.server.http.origins import READS, Origins
from lancehouse.server.http.pools import PoolKey, Pools, is_done_within
from lancehouse.server.http.protocol import has_body
from lancehouse.server.http.responses import GZIP_LEAST, GzipCache, Response
from lancehouse.server.http.routes import LANCE, Call, Match, Route, RouteTable, match_path, parse_query
from lancehouse.server.http.streaming import ResponseStreamer, Upload
from lancehouse.server.process_memory import HeapTrimmer
from lancehouse.server.setting_table import ServerLimits

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog
    from lancehouse.server.http.bodies import Receive, Scope, Send

logger = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}")
_NO_MATCH = Match("")
BODILESS = frozenset({204, 304})
LONGEST_CLIENT = 200
LONGEST_NAME = 500
MOST_TABLES = 20
"""Tables of a request that are logged."""
LONGEST_MESSAGE = 300
"""Characters of an error message that are logged."""
FORGET_EVERY_S = 3600.0
MEASURE_EVERY_S = 1.0
TIDY_EVERY_S = 2.0


class RequestAuthenticator(Protocol):
    """Finds out who sends a request."""

    def identify(self, headers: Mapping[str, str], *, blocking: bool = True) -> Identity:
        """Return the identity of the sender; raise `WouldBlockError` if that takes a while and it may not block."""

    def answer_token_request(
        self, form: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, dict[str, Any]]:
        """Return status and body of the OAuth2 token endpoint's response to a form sent from the address `peer`."""


@dataclass(slots=True)
class Exchange:
    """One request while it is handled, and the fields that the log shows of it."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: dict[str, str]
    id: str
    match: Match = _NO_MATCH
    route: Route | None = None
    query: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    upload: Upload | None = None
    principal: str = ""
    tables: list[str] = field(default_factory=list)
    """The tables that the body names, as users write them."""
    span: tracing.RequestSpan | None = None
    peer: str = ""
    """The address at the other end of the connection, whatever the header fields say."""

    @property
    def is_lance(self) -> bool:
        """Whether the request is for the Lance API, whose errors look different."""
        return self.raw_path.startswith(LANCE)


class RequestIds:
    """Generates request ids: a random prefix for the process, and a counter."""

    def __init__(self) -> None:
        self._prefix = token_hex(6)
        self._numbers = count(1)

    def next(self) -> str:
        """Return a new id."""
        return f"{self._prefix}-{next(self._numbers):x}"


class App:
    """The application. Handlers run in threads, except those that take less time than the switch to a thread."""

    def __init__(
        self,
        catalog: Catalog,
        authentication: RequestAuthenticator,
        *,
        log: Log,
        limits: ServerLimits | None = None,
        extra_routes: Sequence[Route] = (),
        origins: Origins | None = None,
        extra_checks: Sequence[Check] = (),
        background: Sequence[Callable[[Event], None]] = (),
    ) -> None:
        """Serve Iceberg REST, health and metrics, and `extra_routes`; `extra_checks` are of what these need.

        Each of `background` runs in a thread of its own, until the event that it gets is set.
        """
        self.catalog = catalog
        self._auth = authentication
        self._limits = limits or ServerLimits()
        self._origins = origins or Origins()
        self._log = log
        self._is_traced = tracing.configure("lancehouse")
        self._metrics = Metrics()
        self._health = Health((*catalog_checks(catalog), *extra_checks))
        self._ids = RequestIds()
        self._gzip = GzipCache()
        self._in_flight = 0
        self._answered_count = 0
        self._routes = RouteTable(
            (
                *iceberg.ROUTES,
                iceberg.CONFIG,
                *management.ROUTES,
                management.AUDIT,
                *system_routes.routes(self._metrics, authentication, self._health, self._find_identity),
                *extra_routes,
            )
        )
        self._pools = Pools(self._limits)
        self._logins = LoginQueue()
        self._streaming = ResponseStreamer(self._pools, self._limits)
        self._budget = MemoryBudget(max(self._limits.body_memory, self._limits.body))
        self._tasks: list[asyncio.Task[None]] = []
        self._background = background
        self._stopping = Event()
        self._metrics.add_source(lambda: health_metrics(self.catalog, self._health))
        self._metrics.add_source(lambda: maintenance_metrics(self.catalog.maintenance))
        measures.publish_to(self._metrics.receive)

    def start(self) -> None:
        """Start the threads and the periodic background tasks."""
        self._pools.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(coroutine)
            for coroutine in (self._delete_expired(), self._report_load(), self._trim_memory())
        ]
        for work in self._background:
            Thread(target=work, args=(self._stopping,), daemon=True).start()

    def close(self) -> None:
        """Stop the background tasks, accept no more work in the threads, and close the database."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        self._pools.close()
        self.catalog.scans.exports.close()
        self.catalog.fence.close()
        self.catalog.database.close()

    def change(self, origins: Origins, *, scan_cache_bytes: int, storage_refresh_s: float) -> None:
        """Take new settings, from any thread; requests that are at work may see either."""
        self._origins = origins
        self.catalog.change_limits(scan_cache_bytes=scan_cache_bytes, storage_refresh_s=storage_refresh_s)

    async def _report_load(self) -> None:
        """Measure now and then how much of what is limited is in use."""
        while True:
            measured = {
                "requests_in_flight": self._in_flight,
                "streams": self._streaming.count,
                "body_bytes": self._budget.used,
                "log_lines_waiting": self._log.waiting,
            }
            for name, value in measured.items():
                self._metrics.set_gauge(name, value)
            if dropped := self._log.take_dropped():
                self._metrics.count_dropped_lines(dropped)
            pools: dict[tuple[str, str], measures.PoolState] = {
                ("database", ""): self.catalog.database.pool_state,
                ("exports", ""): self.catalog.scans.exports.pool_state,
                **{(key.kind, key.group): state for key, state in self._pools.states().items()},
            }
            for labels, state in pools.items():
                self._metrics.set_gauge("pool_size", state.size, *labels)
                self._metrics.set_gauge("pool_in_use", state.in_use, *labels)
                self._metrics.set_gauge("pool_waiting", state.waiting, *labels)
            await asyncio.sleep(MEASURE_EVERY_S)

    async def _trim_memory(self) -> None:
        """Return unused heap memory to the operating system now and then."""
        trimmer, answered_count = HeapTrimmer(), 0
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            count_before, answered_count = answered_count, self._answered_count
            work = self._pools.submit(
                PoolKey("requests"), trimmer.trim, is_idle=count_before == answered_count and not self._in_flight
            )
            # `wait` does not raise what the work raised, so that an error does not end this loop.
            await asyncio.wait([asyncio.wrap_future(work)])

    async def _delete_expired(self) -> None:
        """Delete old idempotency keys, and dropped tables whose time is over, now and then; every worker does it."""
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            keys = self._pools.submit(PoolKey("requests"), delete_old_keys, self.catalog.database, routes.KEPT_S)
            # Files of large tables take their time: as scans do, not as short requests.
            tables = self._pools.submit(PoolKey("scans"), self.catalog.delete_expired_tables)
            for work in (keys, tables):
                await asyncio.wait([asyncio.wrap_future(work)])

    def answer_inline(
        self,
        method: str,
        raw_path: bytes,
        raw_query: bytes,
        headers: dict[str, str],
        body: bytes,
        state: dict[str, Any] | None = None,
    ) -> Response | None:
        """Answer a read on the event loop's thread, where that is quicker than a thread; None: use `__call__`.

        `state` is ASGI's, in which `__call__` finds the request as far as it was handled here, with its whole body.
        """
        started = perf_counter()
        exchange = self._create_exchange(method, raw_path, raw_query, headers)
        exchange.body = body
        if state is not None:
            state["exchange"] = exchange
        # A read of a local SQLite file takes microseconds; a database over the network would block the event loop.
        if not self.catalog.database.is_local:
            return None
        try:
            response = self._answer_now(exchange, blocking=False)
        except WouldBlockError:
            return None
        self._record_request(exchange, response, perf_counter() - started)
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        started = perf_counter()
        exchange: Exchange | None = scope["state"].get("exchange")
        if exchange is None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            exchange = self._create_exchange(scope["method"], scope["raw_path"], scope["query_string"], headers)
        exchange.peer = self._origins.find_peer((scope.get("client") or ("",))[0], exchange.headers)
        self._in_flight += 1
        try:
            response = await self._answer(exchange, receive)
        except Exception as error:  # noqa: BLE001  # it is logged there
            response = _respond_to_error(exchange, error)
        finally:
            self._in_flight -= 1
        if response.parts is not None and self._streaming.is_full:
            await self._streaming.discard(response.parts, self._pool_key(exchange))
            response = _respond_to_error(exchange, self._streaming.busy_error())
        _finish_response(exchange, response)
        try:
            if response.parts is None:
                await scope["state"]["respond"](response)
            else:
                await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
                pool_key = self._pool_key(exchange)
                response.why = await self._streaming.send(response.parts, pool_key, receive, send, exchange.id)
                if response.why is not None:
                    # Cut the connection: a regular end would tell the client that the body is complete.
                    scope["state"]["abort"]()
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._record_request(exchange, response, perf_counter() - started)

    def answer_in_process(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> in_process.Answer:
        """Handle a request of a client in this process, in the calling thread."""
        path, _, query = target.encode().partition(b"?")
        exchange = self._create_exchange(method, path, query, {name.lower(): value for name, value in headers.items()})
        exchange.body = body or b""
        response = self._answer_now(exchange, blocking=True)
        if exchange.span is not None:
            _end_span(exchange, response)
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        return response.status, fields, response.body

    def _create_exchange(self, method: str, raw_path: bytes, raw_query: bytes, headers: dict[str, str]) -> Exchange:
        sent_id = headers.get("x-request-id")
        request_id = sent_id if sent_id and _SANE_ID.fullmatch(sent_id) else self._ids.next()
        exchange = Exchange(method, raw_path, raw_query, headers, request_id)
        if self._is_traced:
            exchange.span = tracing.RequestSpan(headers, method)
        return exchange

    def _find_route(self, exchange: Exchange) -> Route:
        exchange.match = match_path(exchange.raw_path)
        exchange.route = self._routes.find(exchange.match, exchange.method)
        if exchange.raw_query:
            exchange.query = parse_query(exchange.raw_query)
        return exchange.route

    def _answer_now(self, exchange: Exchange, *, blocking: bool) -> Response:
        """Answer a request whose body is here, in this thread.

        Raises:
            WouldBlockError: it may not block, and would have to.
        """
        try:
            route = self._find_route(exchange)
            if not blocking:
                # `>=`, where `_answer` has `>`: a request that is answered inline is not counted in `_in_flight`.
                if self._in_flight >= self._limits.requests and not route.quiet:
                    raise self._busy_error()
                if not route.inline or (route.group and route.group(exchange.match, exchange.query)):
                    raise WouldBlockError
                self._check_origin(exchange)
            if not blocking and has_body(exchange.headers):
                response = self._answer_small_body(exchange, route)
            else:
                response = self._handle(exchange, route, blocking=blocking)
        except WouldBlockError:
            raise
        except Exception as error:  # noqa: BLE001  # it is logged there
            response = _respond_to_error(exchange, error)
        _finish_response(exchange, response)
        return response

    def _answer_small_body(self, exchange: Exchange, route: Route) -> Response:
        """Do what `_answer` does for a request with a body, in the same order."""
        bodies.check_content_type(exchange.headers, route.content_type)
        self._identify(exchange, route, blocking=False)
        with self._budget.reserve() as memory:
            body = bodies.take(exchange.body, route.max_body or self._limits.body, memory)
            return self._handle(exchange, route, body, blocking=False)

    async def _answer(self, exchange: Exchange, receive: Receive) -> Response:
        """Handle a request up to its response, which the caller sends."""
        route = exchange.route or self._find_route(exchange)
        if self._in_flight > self._limits.requests and not route.quiet:
            raise self._busy_error()
        # The order matters: pages of other sites and unknown callers are refused by their header fields alone, before
        # any of the body is read into memory.
        self._check_origin(exchange)
        if exchange.method in READS or not has_body(exchange.headers):
            return await self._handle_in_thread(exchange, route)
        bodies.check_content_type(exchange.headers, route.content_type)
        is_identified = await self._authenticate(exchange, route)
        with self._budget.reserve() as memory:
            if route.streams:
                return await self._answer_upload(exchange, route, receive, memory)
            try:
                return await self._answer_body(exchange, route, receive, memory, is_identified=is_identified)
            except PayloadTooLargeError as error:
                # Without an identity the limit was that of a body that may name one, not the limit of the route.
                if is_identified:
                    raise
                raise UnauthenticatedError(lance.IDENTITY_REQUIRED) from error

    def _check_origin(self, exchange: Exchange) -> None:
        """Refuse what a page of another site has a browser send; only browsers say which page it is."""
        if "origin" in exchange.headers or "sec-fetch-site" in exchange.headers:
            self._origins.check_origin(exchange.method, exchange.headers)

    async def _authenticate(self, exchange: Exchange, route: Route) -> bool:
        """Identify the caller by the header fields, before the body is read; False: only the body may still do so.

        Raises:
            UnauthenticatedError: the caller is unknown, and the body of this route cannot name them: it is not read.
        """
        try:
            if not route.is_public:
                self._auth.identify(exchange.headers, blocking=False)
        except WouldBlockError:
            return await self._authenticate_in_thread(exchange, route)
        return True

    async def _authenticate_in_thread(self, exchange: Exchange, route: Route) -> bool:
        limit_s = self._limits.handle_s
        work = self._pools.submit(PoolKey("requests"), self._identify, exchange, route)
        if not await is_done_within(work, limit_s):
            work.cancel()
            raise DeadlineError(f"the server could not find out who calls within {limit_s:g} s; try again")
        try:
            work.result()
        except UnauthenticatedError:
            if not lance.can_body_identify(exchange):
                raise
            return False
        return True

    async def _answer_body(
        self, exchange: Exchange, route: Route, receive: Receive, memory: Reservation, *, is_identified: bool
    ) -> Response:
        limit = route.max_body or self._limits.body
        if not is_identified:
            limit = min(limit, lance.LARGEST_IDENTIFYING)
        if exchange.body:
            body = bodies.take(exchange.body, limit, memory)
        else:
            body = await bodies.read(receive, exchange.headers, limit, self._limits.read_s, memory)
        with self._logins.enter(exchange.peer) if route.pool == "secrets" else nullcontext():
            return await self._handle_in_thread(exchange, route, body, memory)

    async def _answer_upload(self, exchange: Exchange, route: Route, receive: Receive, memory: Reservation) -> Response:
        upload = exchange.upload = Upload(receive, exchange.headers, self._limits.read_s, memory)
        try:
            await upload.wait_for_start()
            return await self._handle_in_thread(exchange, route, memory=memory)
        finally:
            upload.stop()

    def _busy_error(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(f"the server answers {self._limits.requests} requests already; try again")

    async def _handle_in_thread(
        self,
        exchange: Exchange,
        route: Route,
        body: bodies.RequestBody | None = None,
        memory: Reservation | None = None,
    ) -> Response:
        pool_key = self._pool_key(exchange)
        work = self._pools.submit(pool_key, self._handle, exchange, route, body)
        if memory is not None:
            memory.release_after(work)  # the thread may still use the body after the deadline
        limit_s = route.limit_s or self._pools.limit_s(pool_key)
        if not await is_done_within(work, limit_s):
            # A future can be cancelled only before a thread has started on it.
            if work.cancel():
                raise DeadlineError(f"the server was too busy to start within {limit_s:g} s; nothing was done")
            work.add_done_callback(_log_late_failure)
            deadline_error = _deadline_error(route, limit_s)
            if exchange.upload is not None:
                exchange.upload.stop(deadline_error)
            raise deadline_error
        return work.result()

    def _pool_key(self, exchange: Exchange) -> PoolKey:
        assert exchange.route is not None
        return exchange.route.pool_key(exchange.match, exchange.query)

    def _handle(
        self, exchange: Exchange, route: Route, body: bodies.RequestBody | None = None, *, blocking: bool = True
    ) -> Response:
        """Decompress the body, identify the caller and run the handler; in a thread, or inline if it may not block."""
        try:
            if body is not None:
                exchange.body = body.decompress()
                lance.add_identity_headers(exchange)
            call = self._create_call(exchange, self._identify(exchange, route, blocking=blocking), blocking=blocking)
            if blocking or exchange.span is not None:
                with _attach_request(exchange, route):
                    response = route.handler(call) if call.caller.key is None else routes.run_once(route, call)
            else:
                response = route.handler(call) if call.caller.key is None else routes.run_once(route, call)
        except BaseException as error:
            # A panic in Rust is no Exception: no handler of errors further up would catch it.
            if is_panic(error):
                raise RuntimeError(f"Lance gave up: {error}") from error
            raise
        if len(response.body) >= GZIP_LEAST:
            self._gzip.apply(response, exchange.headers.get("accept-encoding"))
        return response

    def _identify(self, exchange: Exchange, route: Route, *, blocking: bool = True) -> Identity:
        """Return the caller's identity, after checking that the request was sent to a host name of this server."""
        if route.is_public:  # it shows no data, under whatever name
            return system_routes.NOBODY
        identity = self._auth.identify(exchange.headers, blocking=blocking)
        self._origins.check_host(exchange.headers.get("host"), identity is ANYBODY)
        return identity

    def _find_identity(self, headers: Mapping[str, str]) -> Identity:
        """Return the identity of a caller of a public route, who may have none."""
        try:
            identity = self._auth.identify(headers)
            self._origins.check_host(headers.get("host"), identity is ANYBODY)
        except LanceNamespaceError:
            return system_routes.NOBODY
        return identity

    def _create_call(self, exchange: Exchange, identity: Identity, *, blocking: bool) -> Call:
        headers = exchange.headers
        exchange.principal = identity.name
        key = None if exchange.is_lance else headers.get(routes.HEADER)
        delegation = headers.get("x-iceberg-access-delegation")
        caller = Caller(
            identity,
            headers.get("user-agent", "")[:LONGEST_CLIENT],
            exchange.id,
            self._idempotency_key(exchange, identity, key)
            if key is not None and exchange.method not in READS
            else None,
            delegation is not None and "vended-credentials" in delegation,
            exchange.peer,
        )
        return Call(
            self.catalog,
            caller,
            exchange.match,
            exchange.query,
            headers,
            exchange.body,
            exchange.raw_query,
            exchange.upload.open_reader() if exchange.upload is not None else None,
            blocking,
            exchange.tables,
        )

    def _idempotency_key(self, exchange: Exchange, identity: Identity, key: str) -> IdempotencyKey:
        target = exchange.raw_path + b"?" + exchange.raw_query
        return routes.parse_key(key, identity.name, exchange.method, target, exchange.body)

    def _record_request(self, exchange: Exchange, response: Response, seconds: float) -> None:
        """Count a request in the metrics, and write its line to the log."""
        self._answered_count += 1
        route = exchange.route.name if exchange.route else "none"
        self._metrics.count_request(route, exchange.method, response.status, seconds)
        if exchange.span is not None:
            _end_span(exchange, response)
        level = logging.ERROR if response.status >= 500 else logging.INFO
        if exchange.route is not None and exchange.route.quiet:
            level = logging.DEBUG
        if level < self._log.level:
            return
        error, message = response.why or ("", "")
        self._log.write_line(
            level,
            {
                "request": exchange.id,
                "method": exchange.method,
                "path": exchange.raw_path.decode("latin-1"),
                "route": route,
                "status": response.status,
                "ms": round(seconds * 1000, 2),
                "bytes": len(response.body),
                "principal": exchange.principal,
                "client": exchange.headers.get("user-agent", "")[:LONGEST_CLIENT],
                "warehouse": exchange.match.prefix,
                **_table_fields(exchange),
                **(_trace_fields(exchange) if self._is_traced or tracing.TRACEPARENT in exchange.headers else {}),
                **({"error": error, "message": message[:LONGEST_MESSAGE]} if response.why else {}),
            },
        )


@contextmanager
def _attach_request(exchange: Exchange, route: Route) -> Iterator[None]:
    """Attach the request to what happens in the block: to lines of the log, spans, and calls of other servers."""
    with log_about(request=exchange.id, **_table_fields(exchange)):
        if exchange.span is not None:
            with exchange.span.activate(), tracing.span(f"catalog {route.name}"):
                yield
        elif tracing.TRACEPARENT in exchange.headers:
            with tracing.pass_on(exchange.headers):
                yield
        else:
            yield


def _end_span(exchange: Exchange, response: Response) -> None:
    assert exchange.span is not None
    route, match = exchange.route, exchange.match
    attributes = {
        "http.request.method": exchange.method,
        "http.route": route.template if route else "",
        "lancehouse.request": exchange.id,
        "lancehouse.warehouse": match.prefix or "",
        **{f"lancehouse.{key}": value for key, value in _table_fields(exchange).items()},
    }
    if response.why is not None:
        attributes["error.type"] = response.why[0]
    exchange.span.end(f"{exchange.method} {route.name if route else 'none'}", response.status, attributes)


def _trace_fields(exchange: Exchange) -> dict[str, str]:
    if exchange.span is not None:
        return {"trace_id": exchange.span.trace_id}
    if tracing.TRACEPARENT in exchange.headers and (trace_id := tracing.find_trace_id(exchange.headers)):
        return {"trace_id": trace_id}
    return {}


def _table_fields(exchange: Exchange) -> dict[str, Any]:
    """Return the fields of the log that name the tables and views of a request."""
    tables, match = exchange.tables, exchange.match
    if not tables and match.name and exchange.is_lance:
        delimiter = exchange.query.get("delimiter") or messages.DELIMITER
        tables = [format_levels(match.name.split(delimiter))] if match.pattern.startswith(lance.TABLES) else []
    elif not tables and match.name:
        return _format_fields(match.levels, match.name)
    if not tables:
        return {}
    return {"table": tables[0][:LONGEST_NAME]} | (
        {"tables": [name[:LONGEST_NAME] for name in tables[:MOST_TABLES]]} if len(tables) > 1 else {}
    )


@lru_cache(4096)
def _format_fields(levels: tuple[str, ...], name: str) -> dict[str, Any]:
    return {"table": format_levels((*levels, name))[:LONGEST_NAME]}


def _respond_to_error(exchange: Exchange, error: Exception) -> Response:
    """Build the response for an error, in the protocol that the path belongs to.

    The response to an unexpected one shows no details, which are in the log.
    """
    if isinstance(error, bodies.ClientDisconnectedError):
        return Response(499, why=("ClientClosedRequest", "the client hung up"))  # for the log only
    if not isinstance(error, FORESEEN):
        logger.error("request %s failed", exchange.id, exc_info=error)
        if exchange.is_lance:
            return lance.failure_response(exchange.id)
        return failure_response(exchange.id, commits=exchange.route is not None and exchange.route.commits)
    if exchange.is_lance:
        return lance.error_response(error, exchange.id)
    response = error_response(error)
    if exchange.route is not None and exchange.route.name == system_routes.TOKEN and response.status < 500:
        response.body = system_routes.token_error_body(error)
    return response


def _finish_response(exchange: Exchange, response: Response) -> None:
    """Add the header fields that every response has."""
    response.headers.append((b"x-request-id", exchange.id.encode()))
    if exchange.method == "HEAD" or response.status in BODILESS:
        response.body = b""
    else:
        response.headers.append((b"content-type", response.content_type))
        if response.parts is None:
            response.headers.append((b"content-length", b"%d" % len(response.body)))


def _deadline_error(route: Route, limit_s: float) -> LanceNamespaceError:
    """Build the error for a request that exceeds its time limit while its thread runs on."""
    if route.commits:
        return CommitDeadlineError(f"the commit took more than {limit_s:g} s; read the table before you repeat it")
    if route.takes_idempotency_key or route.alters:
        return ChangeDeadlineError(f"the change took more than {limit_s:g} s; look whether it was made")
    return DeadlineError(f"it took more than {limit_s:g} s; try again")


def _log_late_failure(future: Future[Response]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, FORESEEN):
        logger.error("a request failed after its time was over", exc_info=error)
