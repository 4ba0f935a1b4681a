"""Send one HTTP request and return its response: TLS, proxies, timeouts, and an error class for each way to fail."""

from __future__ import annotations

import http.client
import io
import platform
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from lance_namespace.errors import InternalError, InvalidInputError, ServiceUnavailableError
from urllib3.connection import HTTPConnection, HTTPSConnection

from lancehouse import in_process
from lancehouse.clients import bulk_fetch
from lancehouse.clients.connection_pool import MAX_IDLE, ConnectionPool
from lancehouse.in_process import InProcessServer
from lancehouse.settings import ClientSettings

CONNECTIONS = 16
"""Number of concurrent requests of one list operation."""

NO_RETRIES = urllib3.Retry(False, redirect=False)
USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"

Channel = ConnectionPool | InProcessServer | urllib3.ProxyManager
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
        channel, _, _ = self._resolve_channel(origin)
        if isinstance(channel, InProcessServer):  # no network, so nothing is gained by concurrency
            return [_decode_body(Reply(*channel.send("GET", target, headers, None))) for target, headers in requests]
        if not isinstance(channel, ConnectionPool):
            return [None] * len(requests)
        limits = bulk_fetch.FetchLimits(self._settings.connect_timeout_s, self._settings.read_timeout_s, CONNECTIONS)
        answers = bulk_fetch.fetch_many(origin, requests, self._tls, limits)
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
