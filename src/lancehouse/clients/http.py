"""HTTP/1.1 requests to a catalog: connections, TLS, proxies, timeouts, and an error class for each way to fail.

urllib3 opens connections, TLS included, and talks to proxies. Requests and responses are encoded and parsed here, which
takes less than a third of the processor time that urllib3 takes for it: docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import asyncio
import io
import platform
import ssl
import time
import urllib.request
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from string import punctuation
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httptools
import urllib3
from lance_namespace.errors import InternalError, InvalidInputError, ServiceUnavailableError
from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.exceptions import ConnectTimeoutError, DecodeError, HTTPError, NewConnectionError, ProxyError

from lancehouse import in_process, tracing
from lancehouse.in_process import InProcessServer
from lancehouse.settings import ClientSettings

CONNECTIONS = 16
"""Number of concurrent requests of one list operation."""

USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"

MAX_IDLE = 64
"""Number of idle connections that are kept, enough for many threads that share a client."""

RECEIVE_BYTES = 65_536

PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})

LENGTH_HEADERS = {"content-length", "transfer-encoding"}
"""Headers that say where a response ends; a response with neither ends when the connection is closed."""


class Reply(NamedTuple):
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
        self._tls = _tls_context(settings) if settings.endpoint.startswith("https:") or settings.ca_bundle else None
        self._channels: dict[tuple[str, str], ConnectionPool | InProcessServer] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request once and read the whole response.

        Raises:
            UnreachableError: nothing was sent.
            ResponseLostError: the response did not arrive in time, or not completely.
            UnreadableResponseError: the response is not encoded as it says.
        """
        channel, host, target = self._resolve_channel(url)
        with tracing.span(method, {"http.request.method": method, "server.address": host}, "CLIENT") as span:
            try:
                reply = _decode_body(Reply(*channel.send(method, target, tracing.add_headers(headers), body)))
            except (OSError, HTTPError) as error:
                raise self._explain(error, host) from error
            if span is not None:
                span.set_attribute("http.response.status_code", reply.status)
            return reply

    def _explain(self, error: OSError | HTTPError, host: str) -> ServiceUnavailableError | InternalError:
        """Return the error that says what became of a request."""
        match error:
            # A certificate is verified before the request is sent; any other TLS error may happen after that.
            case ssl.SSLCertVerificationError():
                return UnreachableError(f"no secure connection to {host}: {_reason(error)}; see `ca_bundle`")
            case ssl.SSLError():
                return ResponseLostError(f"the secure connection to {host} broke: {_reason(error)}")
            case ProxyError():
                return UnreachableError(f"no connection to {host} through the proxy: {_reason(error)}")
            case NewConnectionError() | ConnectTimeoutError():
                return UnreachableError(f"no connection to {host}: {_reason(error)}")
            case TimeoutError():
                return ResponseLostError(
                    f"{host} did not respond completely within {self._settings.read_timeout_s:g} s"
                )
            case DecodeError():
                return UnreadableResponseError(f"the answer of {host} is not encoded as it says: {_reason(error)}")
        return ResponseLostError(f"the answer of {host} was lost: {_reason(error)}")

    def send_many(self, origin: str, requests: Sequence[tuple[str, Mapping[str, str]]]) -> list[Reply | None]:
        """GET many targets of one server concurrently; None for each that has to be requested again with `send`."""
        channel, host, _ = self._resolve_channel(origin)
        with tracing.span("GET", {"server.address": host, "lancehouse.requests": len(requests)}, "CLIENT"):
            traced_requests = [(target, tracing.add_headers(headers)) for target, headers in requests]
            if isinstance(channel, ConnectionPool):
                return channel.fetch_many(traced_requests)
            # no network, so nothing is gained by concurrency
            return [
                _decode_body(Reply(*channel.send("GET", target, headers, None))) for target, headers in traced_requests
            ]

    def close(self) -> None:
        """Close idle connections; the next request opens a new one."""
        for channel in list(self._channels.values()):
            if isinstance(channel, ConnectionPool):
                channel.close()

    def _resolve_channel(self, url: str) -> tuple[ConnectionPool | InProcessServer, str, str]:
        """Return the channel to a URL's server, the server's name, and the request target."""
        scheme, host, *_ = urlsplit(url)
        if (channel := self._channels.get((scheme, host))) is None:
            # Of two threads that come here at once, both use the pool of the first; the other one has no connection.
            channel = self._channels.setdefault((scheme, host), self._open_channel(scheme, host))
        return channel, host, url[len(f"{scheme}://{host}") :] or "/"

    def _open_channel(self, scheme: str, host: str) -> ConnectionPool | InProcessServer:
        if scheme == in_process.SCHEME:
            if (server := in_process.find_server(host)) is None:
                raise UnreachableError(f"there is no server {host!r} in this process")
            return server
        connect_s, read_s = self._settings.connect_timeout_s, self._settings.read_timeout_s
        proxy = _find_proxy(scheme, host)
        return ConnectionPool(f"{scheme}://{host}", self._tls, connect_s=connect_s, read_s=read_s, proxy=proxy)


def _decode_body(reply: Reply) -> Reply:
    """Decompress a body: some servers compress although the request asks for `identity`."""
    if "content-encoding" not in reply.headers:
        return reply
    response = urllib3.HTTPResponse(io.BytesIO(reply.body), headers=reply.headers, status=reply.status)
    return Reply(reply.status, reply.headers, response.data)


@dataclass(frozen=True, slots=True)
class Proxy:
    """Address of a proxy, and the headers by which it knows the user."""

    scheme: str
    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)


def _find_proxy(scheme: str, host: str) -> Proxy | None:
    """Return the proxy that the environment names for a host: its URL may lack the scheme, and may contain a user."""
    proxies = urllib.request.getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in PORTS or not parts.hostname:
        raise InvalidInputError(f"the environment names a proxy that is not http: {parts.scheme}://{parts.hostname}")
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    headers = dict(urllib3.make_headers(proxy_basic_auth=user))
    return Proxy(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme], headers)


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


def _reason(error: Exception) -> str:
    """Return the innermost message of an error of urllib3, without the representations of its objects."""
    text = str(error.args[-1] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("'\")> ") or type(error).__name__


# One connection


class ConnectionPool:
    """Keep-alive connections to one server, directly or through a proxy. Thread-safe."""

    def __init__(
        self,
        origin: str,
        tls: ssl.SSLContext | None,
        *,
        connect_s: float,
        read_s: float,
        proxy: Proxy | None = None,
    ) -> None:
        parts = urlsplit(origin)
        self._origin = origin
        self._proxy = proxy
        self._host = host_header(origin)
        self._address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        self._is_secure = parts.scheme == "https"
        self._tls = tls
        self._connect_s = connect_s
        self._read_s = read_s
        self._idle: deque[HTTPConnection] = deque()
        # Closes the connections of a pool that nobody closed. It takes the deque, because a finalizer that holds the
        # pool itself would keep it alive.
        weakref.finalize(self, _close_all, self._idle)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request once and read the whole response.

        Raises:
            urllib3.exceptions.HTTPError: no connection could be opened.
            OSError: the connection broke, or the response did not arrive in time.
        """
        if self._proxy is not None and not self._is_secure:  # it is sent the whole URL; TLS goes through a tunnel
            target, headers = f"{self._origin}{target}", {**self._proxy.headers, **headers}
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

    def fetch_many(self, requests: Sequence[tuple[str, Mapping[str, str]]]) -> list[Reply | None]:
        """GET many targets, each with its headers; None for each response that did not arrive completely.

        A list of tables loads every table separately. A few connections in one event loop take a fraction of the
        processor time of one worker thread for each request, which is what a list waits for if the server is near.
        What does not arrive completely is left to the caller, who sends that request again with retries and error
        messages; so is all of it behind a proxy.
        """
        if self._proxy is not None:
            return [None] * len(requests)
        # A thread of its own: the caller may run inside an event loop, where `asyncio.run` is not allowed.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, self._fetch_many(requests)).result()

    async def _fetch_many(self, requests: Sequence[tuple[str, Mapping[str, str]]]) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(requests)
        pending = iter(
            [(number, encode_request("GET", self._host, *request)) for number, request in enumerate(requests)]
        )
        loop = asyncio.get_running_loop()

        async def fetch_pending() -> None:
            connecting = loop.create_connection(
                lambda: _BulkConnection(pending, replies, self._read_s),
                *self._address,
                ssl=self._tls if self._is_secure else None,
            )
            try:
                _, protocol = await asyncio.wait_for(connecting, self._connect_s)
            except (OSError, TimeoutError):
                return
            await protocol.closed

        await asyncio.gather(*(fetch_pending() for _ in range(min(CONNECTIONS, len(requests)))))
        return replies

    def _acquire_connection(self) -> HTTPConnection:
        """Return an idle connection that the server has not closed, else a new one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_connected:
                    return connection
                connection.close()
        connection = self._create_connection()
        try:
            connection.connect()
        except BaseException as error:
            connection.close()
            if self._proxy and isinstance(error, OSError | HTTPError) and not isinstance(error, ssl.SSLError):
                raise ProxyError("the proxy cannot be reached, or refuses", error) from error
            raise
        return connection

    def _create_connection(self) -> HTTPConnection:
        proxy, timeout = self._proxy, self._connect_s
        host, port = self._address if proxy is None else (proxy.host, proxy.port)
        if not self._is_secure and (proxy is None or proxy.scheme == "http"):
            return HTTPConnection(host, port, timeout=timeout)
        config = ProxyConfig(None, use_forwarding_for_https=False, assert_hostname=None, assert_fingerprint=None)
        connection = HTTPSConnection(host, port, timeout=timeout, ssl_context=self._tls, proxy_config=config)
        if proxy is not None and self._is_secure:
            connection.set_tunnel(*self._address, proxy.headers, proxy.scheme)
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
                raise TimeoutError("the response is not complete")
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
        self.answer: Reply | None = None
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
                raise BrokenResponseError(f"the response is not HTTP: {error}") from error
            self.is_last = True  # garbage after a complete response: the connection must not be reused

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._has_headers = False

    def _end_at_eof(self) -> None:
        if not self._has_headers or LENGTH_HEADERS & self._headers.keys():
            raise BrokenResponseError("the connection was closed before the end of the response")
        self.is_last = True
        self.answer = Reply(self._parser.get_status_code(), self._headers, b"".join(self._body))

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
            self.answer = Reply(status, self._headers, b"".join(self._body))
            self.is_last = not self._parser.should_keep_alive()


class _BulkConnection(asyncio.Protocol):
    """Sends one request after the other over a connection, as long as requests are pending and responses arrive.

    All connections take their requests from the same iterator, so that a slow one delays nobody.
    """

    def __init__(self, pending: Iterator[tuple[int, bytes]], answers: list[Reply | None], read_s: float) -> None:
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
        if self._number < 0:
            return  # after the last response; TLS passes on what it has decrypted even after `close`
        try:
            self._parser.feed(data)
        except BrokenResponseError:
            self._transport.abort()
            return
        if (answer := self._parser.answer) is None:
            return
        self._timeout.cancel()
        # Compressed bodies are left to the caller's ordinary path, which decodes them.
        if "content-encoding" not in answer.headers:
            self._answers[self._number] = answer
        if self._parser.is_last:
            self._transport.close()
        else:
            self._send_next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._number >= 0:
            self._timeout.cancel()
        self.closed.set_result(None)
