"""HTTP connections: uvicorn's protocol with limits on request heads, and the application while it is loading.

Requests that can be answered at once are answered here: a task and messages for each request, as ASGI needs them, cost
more than most reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lancehouse.server.http.errors import error_envelope
from lancehouse.server.http.responses import Response
from lancehouse.server.setting_table import ServerLimits

if TYPE_CHECKING:
    from lancehouse.server.http.application import App
    from lancehouse.server.http.bodies import Receive, Scope, Send

logger = logging.getLogger(__name__)

LARGEST_HEAD = 64 * 1024
READS_PER_TURN = 4
"""Reads of bodies, of up to 256 KB each, before the event loop turns to other connections."""
LONGEST_WAIT_S = 0.05
"""Seconds for which bodies may wait for new connections."""

TYPES = {
    400: "BadRequestException",
    408: "RequestTimeoutException",
    431: "RequestHeaderFieldsTooLargeException",
    503: "ServiceUnavailableException",
}


INLINE = frozenset({b"GET", b"HEAD", b"POST"})
"""Methods of requests that may be answered here."""
LARGEST_INLINE = 4096
"""Most bytes of a body with which a request may be answered here."""
UNUSUAL = frozenset({"transfer-encoding", "content-encoding", "expect"})
"""Header fields of bodies that are left to the application."""

InlineAnswer = Callable[[str, bytes, bytes, dict[str, str], bytes, dict[str, Any]], Response | None]
"""Takes method, path, query, headers, body and ASGI's state; returns the whole response, or None.

Then the application is called, which finds in the state what is known of the request already.
"""


class BodyReads:
    """Lets connections that receive bodies take turns, a few at a time, and new connections go first.

    Otherwise the event loop would read from all of them, and up to 8 MB from each, before it turned to anything else.
    It accepts one connection each time, so that two hundred clients with large bodies would keep others out for a
    second.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._reads_left = READS_PER_TURN
        """Reads that are left of this turn."""
        self._is_turn_planned = False
        self._has_new_connection = False
        self._last_turn_s = 0.0

    def give_way(self) -> None:
        """Let a new connection go first."""
        self._has_new_connection = True

    def request(self, resume: Callable[[], None]) -> None:
        """Call `resume`, which lets a connection read once: now, or in one of the next turns."""
        if self._reads_left and not self._has_new_connection:
            self._reads_left -= 1
            resume()
        else:
            self._waiting.append(resume)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if not self._is_turn_planned:
            self._is_turn_planned = True
            asyncio.get_running_loop().call_soon(self._start_turn)

    def _start_turn(self) -> None:
        self._is_turn_planned = False
        now = asyncio.get_running_loop().time()
        if self._has_new_connection and now - self._last_turn_s < LONGEST_WAIT_S:
            self._has_new_connection = False
            self._plan_turn()
            return
        self._reads_left, self._last_turn_s, self._has_new_connection = READS_PER_TURN, now, False
        for _ in range(min(READS_PER_TURN, len(self._waiting))):
            self.request(self._waiting.popleft())


class SharedFlow(FlowControl):
    """The flow of one connection, whose reads of bodies take turns with those of others."""

    def __init__(self, transport: asyncio.Transport, reads: BodyReads) -> None:
        """Create the flow of a connection."""
        super().__init__(transport)
        self._reads = reads
        self._is_waiting = False

    def resume_reading(self) -> None:
        """Read on when it is this connection's turn."""
        if self.read_paused and not self._is_waiting:
            self._is_waiting = True
            self._reads.request(self._resume)

    def _resume(self) -> None:
        self._is_waiting = False
        if not self._transport.is_closing():
            super().resume_reading()


def has_body(headers: Mapping[str, str]) -> bool:
    """Return whether a request announces a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `create_protocol` sets what all connections of a server share."""

    limits: ServerLimits
    reads: BodyReads
    answer_inline: InlineAnswer

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    """Bytes received of the current head."""
    _is_reading_head = False
    _is_reading_body = False
    """Whether the body of a request that the application answers is being received."""
    _is_discarding = False
    """Whether that request was refused before its body was received."""
    _held_headers: dict[str, str] | None = None
    """Headers of a request that is answered here if its whole body comes together with them; else None."""
    _held_body = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = SharedFlow(transport, self.reads)
        self.reads.give_way()
        if len(self.connections) > self.limits.connections:
            self._send_error(503, "the server has no connection left; try again", b"retry-after: 1\r\n")
        else:
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._held_headers is not None:
            self._call_application()  # which receives the rest
        if self._is_discarding:
            self.flow.pause_reading()
            self.flow.resume_reading()
        if not self._is_reading_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD:
            self._send_error(431, f"the head of the request is larger than {LARGEST_HEAD} bytes")
        elif self._deadline is None:
            self._start_deadline()

    def on_message_begin(self) -> None:
        self._is_reading_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        self._cancel_deadline()
        if self.transport.is_closing():
            return
        # Responses to pipelined requests must be sent in order: an inline one must not overtake the one before.
        waits = self.cycle is not None and not self.cycle.response_complete
        headers = None if waits else self._inline_headers()
        if headers is not None and has_body(headers):
            self._held_headers = headers
        elif headers is None or not self._try_answer_inline(headers):
            self._call_application()

    def on_body(self, body: bytes) -> None:
        if self._held_headers is not None:
            self._held_body += body
            return
        cycle: Any = self.cycle
        # uvicorn appends to a bytearray, and copies that into its message. A part that comes alone, as most of a
        # large body do, becomes the message as it is; from the second on it is a bytearray, which is cheap to
        # append to.
        if not cycle.body and not cycle.response_complete:
            cycle.body, body = body, b""
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def _call_application(self) -> None:
        body, self._held_body, self._held_headers = self._held_body, b"", None
        self._is_reading_body = True
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["state"]["respond"] = partial(self._respond, cycle)
        start = partial(super()._start_asgi_task, cycle, app)
        if self._has_large_body():
            self.reads.request(start)
        else:
            start()

    def _has_large_body(self) -> bool:
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"0")
        return b"transfer-encoding" in headers or not length.isdigit() or int(length) > HIGH_WATER_LIMIT

    def on_message_complete(self) -> None:
        if self._held_headers is not None:
            if self._try_answer_inline(self._held_headers, self._held_body):
                self._held_body, self._held_headers = b"", None
            else:
                self._call_application()
        self._is_reading_body = self._is_discarding = False
        self._cancel_deadline()
        # A request that was answered inline has no cycle.
        if self.cycle is not None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_reading_body and self.cycle is not None and self.cycle.response_complete and self._deadline is None:
            # The request was refused before its body was read. The rest is discarded for a while, so that the
            # client can read the response; one that never stops sending must not keep the connection.
            self._deadline = self.loop.call_later(self.limits.read_s, self.transport.close)
            self._is_discarding = True

    def _inline_headers(self) -> dict[str, str] | None:
        """Return the headers of a request that may be answered here; None if only the application may."""
        method = self.parser.get_method()
        if method not in INLINE or self.flow.write_paused or self.parser.should_upgrade():
            return None
        if not self.url.startswith(b"/") or b"#" in self.url or not self.url.isascii():
            return None  # left to uvicorn, which handles unusual request targets
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        if not has_body(headers):
            return headers
        length = headers.get("content-length", "")
        is_small = length.isdecimal() and len(length) < 5 and int(length) <= LARGEST_INLINE
        return headers if method == b"POST" and is_small and not headers.keys() & UNUSUAL else None

    def _try_answer_inline(self, headers: dict[str, str], body: bytes = b"") -> bool:
        """Answer the request, and return whether that was possible."""
        path, _, query = self.url.partition(b"?")
        method, state = self.parser.get_method().decode(), self.scope["state"]
        response = self.answer_inline(method, path, query, headers, body, state)
        if response is not None:
            is_last = not self.parser.should_keep_alive() or self.parser.get_http_version() == "1.0"
            self._send_response(response, is_last=is_last)
        return response is not None

    async def _respond(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Send the whole response of the application at once.

        uvicorn would send its head first: one system call more, and one wake-up more of the client.
        """
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if not cycle.disconnected:
            cycle.response_started = cycle.response_complete = True
            cycle.message_event.set()
            self._send_response(response, is_last=not cycle.keep_alive)

    def _send_response(self, response: Response, *, is_last: bool) -> None:
        head = [STATUS_LINE[response.status]]
        head += [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *response.headers)]
        if is_last:
            head.append(b"connection: close\r\n")
        self.transport.write(b"".join((*head, b"\r\n", response.body)))
        if is_last:
            self.transport.close()
        self.on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond to data that is not HTTP."""
        self._send_error(400, msg)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.limits.head_s, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._is_reading_head:
            self._send_error(408, f"the head of the request did not come within {self.limits.head_s:g} s")
        else:
            self.transport.close()

    def _send_error(self, status: int, message: str, headers: bytes = b"") -> None:
        if self.transport.is_closing():
            return
        body = error_envelope(status, TYPES[status], message)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + headers + b"\r\n" + body)
        self.transport.close()


def create_protocol(limits: ServerLimits, answer_inline: InlineAnswer) -> type[HttpToolsProtocol]:
    """Create the protocol class of connections with these limits."""
    shared = {"limits": limits, "reads": BodyReads(), "answer_inline": staticmethod(answer_inline)}
    return type("ServerProtocol", (LimitedProtocol,), shared)


class StartupApp:
    """An ASGI application that loads the real one in a thread, and passes requests on to it."""

    def __init__(self, create_app: Callable[[], App], on_failure: Callable[[], None]) -> None:
        """Store `create_app`, which takes seconds; if it fails, `on_failure` is called to end the server."""
        self._create_app = create_app
        self._on_failure = on_failure
        self._app: App | None = None
        self._calls: SimpleQueue[Callable[[App], None]] = SimpleQueue()
        self._app_future: asyncio.Future[App] | None = None

    @property
    def is_loading(self) -> bool:
        """Whether the application is still loading."""
        return self._app_future is not None and not self._app_future.done()

    def call_when_loaded(self, call: Callable[[App], None]) -> None:
        """Call a function with the application: now, or when it has loaded; from any thread."""
        self._calls.put(call)
        if self._app is not None:
            self._make_calls(self._app)

    def _make_calls(self, app: App) -> None:
        while True:
            try:
                call = self._calls.get_nowait()  # two threads may be here
            except Empty:
                return
            call(app)

    def answer_inline(self, *request: Any) -> Response | None:
        """Call `App.answer_inline`; None while the application is not loaded."""
        return None if self._app is None else self._app.answer_inline(*request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, after waiting for the application."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        app = self._app
        if app is None:
            assert self._app_future is not None
            # Shielded, because a request that is cancelled must not cancel the loading for all others.
            app = self._app = await asyncio.shield(self._app_future)
        await app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        executor = ThreadPoolExecutor(1, "loading")
        self._app_future = asyncio.get_running_loop().run_in_executor(executor, self._create_app)
        self._app_future.add_done_callback(self._install_app)
        executor.shutdown(wait=False)
        await send({"type": "lifespan.startup.complete"})
        with contextlib.suppress(asyncio.CancelledError):  # a forced stop cancels instead of sending a message
            await receive()
        if self._app is not None:
            self._app.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _install_app(self, future: asyncio.Future[App]) -> None:
        if future.cancelled():
            return
        try:
            app = future.result()
            app.start()
        except BaseException as error:
            logger.error("the server cannot start", exc_info=error)
            self._on_failure()
            return
        self._app = app
        self._make_calls(app)
