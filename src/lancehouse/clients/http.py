"""HTTP/1.1 requests to a catalog: connections, TLS, proxies, timeouts, and an error class for each way to fail.

urllib3 opens connections, TLS included, and talks to proxies. Requests and responses are encoded and parsed here, which
takes less than a third of the processor time that urllib3 takes for it: docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import platform
import socket
import ssl
import time
import urllib.request
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from string import punctuation
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import httptools
import urllib3
from lance_namespace.errors import InternalError, InvalidInputError, ServiceUnavailableError
from urllib3.connection import HTTPConnection, HTTPSConnection

from lancehouse import in_process, tracing
from lancehouse.in_process import InProcessServer
from lancehouse.settings import ClientSettings

CONNECTIONS = 16
"""Number of concurrent requests of one list operation."""

NO_RETRIES = urllib3.Retry(False, redirect=False)
USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"

MAX_IDLE = 64
"""Number of idle connections that are kept, enough for many threads that share a client."""

RECEIVE_BYTES = 65_536

PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers with names in lower case, body."""

LENGTH_HEADERS = {"content-length", "transfer-encoding"}
"""Headers that say where a response ends; a response with neither ends when the connection is closed."""

Channel: TypeAlias = "ConnectionPool | InProcessServer | urllib3.ProxyManager"
"""How a server is reached: directly, in this process, or through a proxy."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response that arrived completely."""

    status: int
    headers: Mapping[str, str]
    """Headers, with names in lower case."""
    body: bytes


class UnreachableError(ServiceUnavailableError):
    """The request was certainly not sent."""


class ResponseLostError(ServiceUnavailableError):
    """The request was sent, or may have been, but its response did not arrive."""


class UnreadableResponseError(InternalError):
    """A response arrived, but it cannot be decoded."""


class Transport:
    """Sends single requests, without retries, within the timeouts of the settings. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._timeout = urllib3.Timeout(connect=settings.connect_timeout_s, read=settings.read_timeout_s)
        self._tls = _tls_context(settings) if settings.endpoint.startswith("https:") or settings.ca_bundle else None
        self._channels: dict[tuple[str, str], Channel] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request once and read the whole response.

        Raises:
            UnreachableError: nothing was sent.
            ResponseLostError: the response did not arrive in time, or not completely.
            UnreadableResponseError: the response is not encoded as it says.
        """
        channel, host, target = self._resolve_channel(url)
        with tracing.span(method, {"http.request.method": method, "server.address": host}, "CLIENT") as span:
            reply = self._send(channel, host, target, method, url, tracing.add_headers(headers), body)
            if span is not None:
                span.set_attribute("http.response.status_code", reply.status)
            return reply

    def _send(
        self,
        channel: Channel,
        host: str,
        target: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Reply:
        try:
            if isinstance(channel, urllib3.ProxyManager):
                return self._send_through_proxy(channel, method, url, headers, body)
            return _decode_body(Reply(*channel.send(method, target, headers, body)))
        except (ssl.SSLError, urllib3.exceptions.SSLError) as error:
            cause = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) else error
            # A certificate is verified before the request is sent; any other TLS error may happen after that.
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise UnreachableError(f"no secure connection to {host}: {_reason(error)}; see `ca_bundle`") from error
            raise ResponseLostError(f"the secure connection to {host} broke: {_reason(error)}") from error
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise UnreachableError(f"no connection to {host}: {_reason(error)}") from error
        except urllib3.exceptions.ProxyError as error:
            raise UnreachableError(f"no connection to {host} through the proxy: {_reason(error)}") from error
        except (TimeoutError, urllib3.exceptions.TimeoutError) as error:
            seconds = self._settings.read_timeout_s
            raise ResponseLostError(f"{host} gave no whole answer within {seconds:g} s") from error
        except urllib3.exceptions.DecodeError as error:
            raise UnreadableResponseError(
                f"the answer of {host} is not encoded as it says: {_reason(error)}"
            ) from error
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise ResponseLostError(f"the answer of {host} was lost: {_reason(error)}") from error

    def _send_through_proxy(
        self, proxy: urllib3.ProxyManager, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Reply:
        answer = proxy.urlopen(
            method,
            url,
            body=body,
            headers=headers,
            timeout=self._timeout,
            retries=NO_RETRIES,
            redirect=False,
            assert_same_host=False,
        )
        return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)

    def send_many(self, origin: str, requests: Sequence[tuple[str, Mapping[str, str]]]) -> list[Reply | None]:
        """GET many targets of one server concurrently; None for each that has to be requested again with `send`."""
        channel, host, _ = self._resolve_channel(origin)
        with tracing.span("GET", {"server.address": host, "lancehouse.requests": len(requests)}, "CLIENT"):
            traced = [(target, tracing.add_headers(headers)) for target, headers in requests]
            return self._send_many(channel, origin, traced)

    def _send_many(
        self, channel: Channel, origin: str, requests: Sequence[tuple[str, Mapping[str, str]]]
    ) -> list[Reply | None]:
        if isinstance(channel, InProcessServer):  # no network, so nothing is gained by concurrency
            return [_decode_body(Reply(*channel.send("GET", target, headers, None))) for target, headers in requests]
        if not isinstance(channel, ConnectionPool):
            return [None] * len(requests)
        limits = FetchLimits(self._settings.connect_timeout_s, self._settings.read_timeout_s, CONNECTIONS)
        answers = fetch_many(origin, requests, self._tls, limits)
        return [Reply(*answer) if answer is not None else None for answer in answers]

    def close(self) -> None:
        """Close idle connections; the next request opens a new one."""
        for channel in list(self._channels.values()):
            match channel:
                case ConnectionPool():
                    channel.close()
                case urllib3.ProxyManager():
                    channel.clear()

    def _resolve_channel(self, url: str) -> tuple[Channel, str, str]:
        """Return the channel to a URL's server, the server's name, and the request target."""
        scheme, host, *_ = urlsplit(url)
        if (channel := self._channels.get((scheme, host))) is None:
            channel = self._channels.setdefault((scheme, host), self._open_channel(scheme, host))
        return channel, host, url[len(f"{scheme}://{host}") :] or "/"

    def _open_channel(self, scheme: str, host: str) -> Channel:
        """Open a channel: direct, or through the proxy that the environment names for this host."""
        if scheme == in_process.SCHEME:
            if (server := in_process.find_server(host)) is None:
                raise UnreachableError(f"there is no server {host!r} in this process")
            return server
        proxies = urllib.request.getproxies()
        proxy = proxies.get(scheme) or proxies.get("all")
        if proxy and not urllib.request.proxy_bypass(host):
            return _proxy_manager(proxy, {"maxsize": MAX_IDLE, "ssl_context": self._tls})
        seconds = {"connect_s": self._settings.connect_timeout_s, "read_s": self._settings.read_timeout_s}
        return ConnectionPool(f"{scheme}://{host}", self._tls, **seconds)


def _decode_body(reply: Reply) -> Reply:
    """Decompress a body: some servers compress although the request asks for `identity`."""
    if "content-encoding" not in reply.headers:
        return reply
    response = urllib3.HTTPResponse(io.BytesIO(reply.body), headers=reply.headers, status=reply.status)
    return Reply(reply.status, reply.headers, response.data)


def _proxy_manager(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Create a pool of connections through a proxy, whose URL may lack its scheme and may contain user and password."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(f"the environment names a proxy that is not http: {parts.scheme}://{parts.hostname}")
    headers = None
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=user)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    manager = urllib3.ProxyManager(address, proxy_headers=headers, **options)
    # urllib3's read timeout applies to each packet, not to the whole response; these classes add a deadline.
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


def _tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Create the TLS context of a client's settings.

    Raises:
        InvalidInputError: a certificate file is not PEM.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_bundle)
    except ssl.SSLError as error:
        raise InvalidInputError(
            f"property 'ca_bundle' is no PEM file with certificates: {settings.ca_bundle}"
        ) from error
    if settings.client_cert:
        try:
            context.load_cert_chain(settings.client_cert, settings.client_key)
        except ssl.SSLError as error:
            raise InvalidInputError(
                f"property 'client_cert' is no PEM file with a certificate and its key: {settings.client_cert}"
            ) from error
    return context


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until the time for the whole response is over.

    A socket's own timeout starts anew with every packet, so a server that sends one byte at a time would never exceed
    it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._timeout_s = connection.gettimeout()
        self._until = time.monotonic() + self._timeout_s if self._timeout_s is not None else float("inf")
        self._first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._timeout_s is not None and not self._first:
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer is not complete")
            self._socket.settimeout(left_s)
        self._first = False
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed and self._socket.fileno() >= 0:
            # The socket may go back to its pool: the next response must not start with what was left of this one's
            # time.
            self._socket.settimeout(self._timeout_s)
        self._raw.close()
        super().close()


class _DeadlineSocket:
    """Stands in for a socket in `http.client.HTTPResponse`, which uses nothing but `makefile`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._connection))


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(_DeadlineSocket(sock), *args, **kwargs)  # type: ignore[arg-type]


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _reason(error: Exception) -> str:
    """Return the innermost message of an error of urllib3, without the representations of its objects."""
    text = str(error.args[-1] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("'\")> ") or type(error).__name__


# One connection


class ConnectionPool:
    """Keep-alive connections to one server. Thread-safe."""

    def __init__(self, origin: str, tls: ssl.SSLContext | None, *, connect_s: float, read_s: float) -> None:
        parts = urlsplit(origin)
        self._host = host_header(origin)
        self._address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        self._is_secure = parts.scheme == "https"
        self._tls = tls
        self._connect_s = connect_s
        self._read_s = read_s
        self._idle: deque[HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request once and read the whole response.

        Raises:
            urllib3.exceptions.HTTPError: no connection could be opened.
            OSError: the connection broke, or the response did not arrive in time.
        """
        data = encode_request(method, self._host, target, headers, body)
        connection = self._acquire_connection()
        try:
            response = self._exchange(connection, data)
        except BaseException:
            connection.close()
            raise
        if response.is_last or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        assert response.answer is not None
        return response.answer

    def close(self) -> None:
        """Close the idle connections. A connection in use returns to the pool, which stays usable."""
        _close_all(self._idle)

    def _acquire_connection(self) -> HTTPConnection:
        """Return an idle connection that the server has not closed, else a new one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_connected:
                    return connection
                connection.close()
        host, port = self._address
        connection = (
            HTTPSConnection(host, port, timeout=self._connect_s, ssl_context=self._tls)
            if self._is_secure
            else HTTPConnection(host, port, timeout=self._connect_s)
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, connection: HTTPConnection, data: bytes) -> ResponseParser:
        """Send a request and read its response within `read_s` seconds in total, however slowly it arrives."""
        wire, response = connection.sock, ResponseParser()
        assert wire is not None
        wire.settimeout(self._connect_s)
        # A server may refuse a request before it has read all of it, and close: its response can still be received.
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.sendall(data)
        until, left_s = time.monotonic() + self._read_s, self._read_s
        while response.answer is None:
            if left_s <= 0:
                raise TimeoutError("the answer is not complete")
            wire.settimeout(left_s)
            response.feed(wire.recv(RECEIVE_BYTES))
            left_s = until - time.monotonic()
        return response


def _close_all(connections: deque[HTTPConnection]) -> None:
    with suppress(IndexError):  # other threads may take connections at the same time, so there is no safe count
        while True:
            connections.pop().close()


class BrokenResponseError(ConnectionError):
    """The received bytes are not HTTP, or ended too early."""


def host_header(origin: str) -> str:
    """Return the Host header of an origin; without the scheme's default port, as AWS signatures are computed."""
    parts = urlsplit(origin)
    name = (parts.hostname or "").encode("idna").decode()
    name = f"[{name}]" if ":" in name else name
    return name if parts.port in (None, PORTS[parts.scheme]) else f"{name}:{parts.port}"


def encode_request(method: str, host: str, target: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """Return the bytes of a whole request.

    Raises:
        ValueError: a header contains a line break.
    """
    fields = {"Host": host, "Accept-Encoding": "identity", **headers}
    if body is not None or method == "POST":
        fields["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {quote(target, safe=punctuation)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the request has more than one line")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ResponseParser:
    """Parses one response as its bytes arrive."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """The response, as soon as it is complete; None before."""
        self.is_last = False
        """Whether the connection cannot be reused after this response."""
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def feed(self, data: bytes) -> None:
        """Parse received bytes; empty bytes mean that the server has closed the connection.

        Raises:
            BrokenResponseError: the response can no longer become complete.
        """
        if not data:
            self._end_at_eof()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.answer is None:
                raise BrokenResponseError(f"the answer is no HTTP: {error}") from error
            self.is_last = True  # garbage after a complete response: the connection must not be reused

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._has_headers = False

    def _end_at_eof(self) -> None:
        if not self._has_headers or LENGTH_HEADERS & self._headers.keys():
            raise BrokenResponseError("the connection was closed before the end of the answer")
        self.is_last = True
        self.answer = (self._parser.get_status_code(), self._headers, b"".join(self._body))

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        if self.answer is not None:
            self.is_last = True  # a second response that no request asked for
        self._reset()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.answer is None and status >= 200:  # 1xx responses are interim: the final one follows
            self.answer = (status, self._headers, b"".join(self._body))
            self.is_last = not self._parser.should_keep_alive()


# Many requests at once


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Timeouts in seconds, and the number of connections."""

    connect_s: float
    read_s: float
    connections: int


def fetch_many(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: FetchLimits
) -> list[Answer | None]:
    """GET many targets of one server, each with its headers; None for each response that did not arrive completely.

    A list of tables loads every table separately. A few connections in one event loop take a fraction of the processor
    time of one worker thread for each request, which is what a list waits for if the server is near. What does not
    arrive completely is left to the caller, who sends that request again with retries and error messages.
    """
    # A thread of its own: the caller may run inside an event loop, where `asyncio.run` is not allowed.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _fetch_many(origin, requests, tls, limits)).result()


async def _fetch_many(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: FetchLimits
) -> list[Answer | None]:
    parts, host = urlsplit(origin), host_header(origin)
    secure = parts.scheme == "https"
    answers: list[Answer | None] = [None] * len(requests)
    pending = iter([(number, encode_request("GET", host, *each)) for number, each in enumerate(requests)])
    loop = asyncio.get_running_loop()

    async def fetch_pending() -> None:
        connecting = loop.create_connection(
            lambda: _BulkConnection(pending, answers, limits.read_s),
            parts.hostname or "",
            parts.port or PORTS[parts.scheme],
            ssl=tls if secure else None,
        )
        try:
            _, protocol = await asyncio.wait_for(connecting, limits.connect_s)
        except (OSError, TimeoutError):
            return
        await protocol.closed

    await asyncio.gather(*(fetch_pending() for _ in range(min(limits.connections, len(requests)))))
    return answers


class _BulkConnection(asyncio.Protocol):
    """Sends one request after the other over a connection, as long as requests are pending and responses arrive.

    All connections take their requests from the same iterator, so that a slow one delays nobody.
    """

    def __init__(self, pending: Iterator[tuple[int, bytes]], answers: list[Answer | None], read_s: float) -> None:
        self._pending = pending
        self._answers = answers
        self._read_s = read_s
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_next()

    def _send_next(self) -> None:
        self._number, data = next(self._pending, (-1, b""))
        if not data:
            self._transport.close()
            return
        self._parser = ResponseParser()
        self._timeout = self._loop.call_later(self._read_s, self._transport.abort)
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except BrokenResponseError:
            self._transport.abort()
            return
        if (answer := self._parser.answer) is None:
            return
        self._timeout.cancel()
        # Compressed bodies are left to the caller's ordinary path, which decodes them.
        if "content-encoding" not in answer[1]:
            self._answers[self._number] = answer
        if self._parser.is_last:
            self._transport.close()
        else:
            self._send_next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._number >= 0:
            self._timeout.cancel()
        self.closed.set_result(None)
