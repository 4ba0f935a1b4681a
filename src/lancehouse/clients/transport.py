"""One HTTP request, one answer: connections, TLS, proxies, time-outs. The only user of the HTTP library."""

from __future__ import annotations

import platform
import ssl
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import urllib3
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.settings import ClientSettings

CONNECTIONS = 16
"""How many requests of one client are under way at once, at most."""

CHUNK = 1 << 16
USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that arrived whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UnreachableError(ServiceUnavailableError):
    """The request was not sent."""


class LostError(ServiceUnavailableError):
    """The request was sent, or may have been; its answer did not arrive."""


class Transport:
    """One attempt: bytes there, bytes back, within the time-outs."""

    def __init__(self, settings: ClientSettings) -> None:
        self._timeout_s = settings.read_timeout_s
        self._timeout = urllib3.Timeout(connect=settings.connect_timeout_s, read=settings.read_timeout_s)
        self._settings = settings
        self._pools: dict[tuple[str, str], urllib3.PoolManager] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send once and read the whole answer.

        Raises:
            UnreachableError: nothing was sent.
            LostError: the answer did not arrive in time, or not whole.
        """
        where = urlsplit(url).netloc
        deadline = time.monotonic() + self._timeout_s + self._settings.connect_timeout_s
        try:
            answer = self._pool(url).urlopen(
                method,
                url,
                body=body,
                headers=dict(headers),
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            return Reply(answer.status, answer.headers, self._read(answer, deadline, where))
        except urllib3.exceptions.SSLError as error:
            raise UnreachableError(f"no secure connection to {where}: {_reason(error)}; see `ca_bundle`") from error
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise UnreachableError(f"no connection to {where}: {_reason(error)}") from error
        except urllib3.exceptions.ProxyError as error:
            raise UnreachableError(f"no connection to {where} through the proxy: {_reason(error)}") from error
        except urllib3.exceptions.TimeoutError as error:
            raise LostError(f"{where} gave no answer within {self._timeout_s:g} s") from error
        except urllib3.exceptions.HTTPError as error:
            raise LostError(f"the answer of {where} was lost: {_reason(error)}") from error

    def _read(self, answer: urllib3.BaseHTTPResponse, deadline: float, where: str) -> bytes:
        """The body, with an end to servers that drip it."""
        chunks = []
        while chunk := answer.read1(CHUNK):
            chunks.append(chunk)
            if time.monotonic() > deadline:
                answer.close()
                raise LostError(f"the answer of {where} was not complete within {self._timeout_s:g} s")
        answer.release_conn()
        return b"".join(chunks)

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The pool for this address. Reading the environment and loading certificates is slow: once for each address."""
        parts = urlsplit(url)
        address = (parts.scheme, parts.netloc)
        if (pool := self._pools.get(address)) is None:
            pool = self._pools.setdefault(address, self._connect(*address))
        return pool

    def _connect(self, scheme: str, host: str) -> urllib3.PoolManager:
        """A pool: direct, or through the proxy that the environment names for this address."""
        proxy = urllib.request.getproxies().get(scheme)
        if proxy and urllib.request.proxy_bypass(host):
            proxy = None
        secure = "https" in (scheme, urlsplit(proxy).scheme if proxy else "")
        options: dict[str, Any] = {"maxsize": CONNECTIONS, "ssl_context": self._tls() if secure else None}
        return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._settings.ca_bundle)
        if self._settings.client_cert:
            context.load_cert_chain(self._settings.client_cert, self._settings.client_key)
        return context


def _reason(error: Exception) -> str:
    """The innermost words of an error of the HTTP library, which repeat its own objects."""
    text = str(error.args[-1] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("'\")> ") or type(error).__name__
