"""One HTTP request, one answer: TLS, proxies, time-outs, and what is known when no answer comes."""

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

from lancehouse import inside
from lancehouse.clients import bulk
from lancehouse.clients.connections import KEPT, Connections
from lancehouse.inside import Inside
from lancehouse.settings import ClientSettings

CONNECTIONS = 16
"""How many requests of one list are under way at once."""

ONCE = urllib3.Retry(False, redirect=False)
USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"

Way = Connections | Inside | urllib3.ProxyManager
"""To a server: direct, within this process, or through a proxy."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that arrived whole."""

    status: int
    headers: Mapping[str, str]
    """With their names in lower case."""
    body: bytes


class UnreachableError(ServiceUnavailableError):
    """The request was not sent."""


class LostError(ServiceUnavailableError):
    """The request was sent, or may have been; its answer did not arrive."""


class UnreadableError(InternalError):
    """An answer arrived, and makes no sense."""


class Transport:
    """One attempt: bytes there, bytes back, within the time-outs."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._timeout = urllib3.Timeout(connect=settings.connect_timeout_s, read=settings.read_timeout_s)
        self._tls = _tls(settings) if settings.endpoint.startswith("https:") or settings.ca_bundle else None
        self._ways: dict[tuple[str, str], Way] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send once and read the whole answer.

        Raises:
            UnreachableError: nothing was sent.
            LostError: the answer did not arrive in time, or not whole.
            UnreadableError: it is no HTTP, or not encoded as it says.
        """
        way, where, target = self._way(url)
        try:
            if isinstance(way, urllib3.ProxyManager):
                return self._send_through(way, method, url, headers, body)
            return _decoded(Reply(*way.send(method, target, headers, body)))
        except (ssl.SSLError, urllib3.exceptions.SSLError) as error:
            cause = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise UnreachableError(f"no secure connection to {where}: {_reason(error)}; see `ca_bundle`") from error
            raise LostError(f"the secure connection to {where} broke: {_reason(error)}") from error
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise UnreachableError(f"no connection to {where}: {_reason(error)}") from error
        except urllib3.exceptions.ProxyError as error:
            raise UnreachableError(f"no connection to {where} through the proxy: {_reason(error)}") from error
        except (TimeoutError, urllib3.exceptions.TimeoutError) as error:
            seconds = self._settings.read_timeout_s
            raise LostError(f"{where} gave no whole answer within {seconds:g} s") from error
        except urllib3.exceptions.DecodeError as error:
            raise UnreadableError(f"the answer of {where} is not encoded as it says: {_reason(error)}") from error
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise LostError(f"the answer of {where} was lost: {_reason(error)}") from error

    def _send_through(
        self, proxy: urllib3.ProxyManager, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Reply:
        answer = proxy.urlopen(
            method,
            url,
            body=body,
            headers=headers,
            timeout=self._timeout,
            retries=ONCE,
            redirect=False,
            assert_same_host=False,
        )
        return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)

    def send_many(self, origin: str, requests: Sequence[tuple[str, Mapping[str, str]]]) -> list[Reply | None]:
        """GET many targets of one server; None for each that must be asked for again by `send`."""
        way, _, _ = self._way(origin)
        if isinstance(way, Inside):  # nobody is waited for
            return [_decoded(Reply(*way.send("GET", target, headers, None))) for target, headers in requests]
        if not isinstance(way, Connections):
            return [None] * len(requests)
        limits = bulk.Limits(self._settings.connect_timeout_s, self._settings.read_timeout_s, CONNECTIONS)
        answers = bulk.fetch(origin, requests, self._tls, limits)
        return [Reply(*answer) if answer is not None else None for answer in answers]

    def close(self) -> None:
        """Close idle connections; the next request opens a new one."""
        for way in list(self._ways.values()):
            match way:
                case Connections():
                    way.close()
                case urllib3.ProxyManager():
                    way.clear()

    def _way(self, url: str) -> tuple[Way, str, str]:
        """The way to an address, its name, and what to ask for there."""
        scheme, where, *_ = urlsplit(url)
        if (way := self._ways.get((scheme, where))) is None:
            way = self._ways.setdefault((scheme, where), self._new_way(scheme, where))
        return way, where, url[len(f"{scheme}://{where}") :] or "/"

    def _new_way(self, scheme: str, where: str) -> Way:
        """Direct, or through the proxy that the environment names for this address."""
        if scheme == inside.SCHEME:
            if (server := inside.find(where)) is None:
                raise UnreachableError(f"there is no server {where!r} in this process")
            return server
        proxies = urllib.request.getproxies()
        proxy = proxies.get(scheme) or proxies.get("all")
        if proxy and not urllib.request.proxy_bypass(where):
            return _through(proxy, {"maxsize": KEPT, "ssl_context": self._tls})
        seconds = {"connect_s": self._settings.connect_timeout_s, "read_s": self._settings.read_timeout_s}
        return Connections(f"{scheme}://{where}", self._tls, **seconds)


def _decoded(reply: Reply) -> Reply:
    """Some servers compress though nobody asked them to."""
    if "content-encoding" not in reply.headers:
        return reply
    whole = urllib3.HTTPResponse(io.BytesIO(reply.body), headers=reply.headers, status=reply.status)
    return Reply(reply.status, reply.headers, whole.data)


def _through(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Connections through a proxy, whose address may lack its scheme and may carry a user and a password."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(f"the environment names a proxy that is not http: {parts.scheme}://{parts.hostname}")
    headers = None
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=user)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    manager = urllib3.ProxyManager(address, proxy_headers=headers, **options)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


def _tls(settings: ClientSettings) -> ssl.SSLContext:
    """Raises InvalidInputError for a file that is no PEM."""
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


class _Timed(io.RawIOBase):
    """What arrives on a socket, until the time for the whole answer is over, however slowly it drips."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._each_s = connection.gettimeout()
        self._until = time.monotonic() + self._each_s if self._each_s is not None else float("inf")
        self._first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._each_s is not None and not self._first:
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer is not complete")
            self._socket.settimeout(left_s)
        self._first = False
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed and self._socket.fileno() >= 0:
            self._socket.settimeout(self._each_s)
        self._raw.close()
        super().close()


class _Readable:
    """A socket of which only `makefile` is used."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._connection))


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(_Readable(sock), *args, **kwargs)  # type: ignore[arg-type]


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _reason(error: Exception) -> str:
    """The innermost words of an error of the HTTP library, which repeat its own objects."""
    text = str(error.args[-1] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("'\")> ") or type(error).__name__
