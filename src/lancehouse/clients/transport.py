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
ONCE = urllib3.Retry(False, redirect=False)
USER_AGENT = f"lancehouse/{version('lancehouse')} (Python {platform.python_version()}; urllib3 {version('urllib3')})"

Pool = urllib3.HTTPConnectionPool | urllib3.ProxyManager


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
        self._pools: dict[tuple[str, str], Pool] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send once and read the whole answer.

        Raises:
            UnreachableError: nothing was sent.
            LostError: the answer did not arrive in time, or not whole.
        """
        pool, where, target = self._way(url)
        deadline = time.monotonic() + self._timeout_s + self._settings.connect_timeout_s
        try:
            answer = pool.urlopen(
                method,
                target,
                body=body,
                headers=dict(headers),
                timeout=self._timeout,
                retries=ONCE,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
            )
            return Reply(answer.status, answer.headers, self._read(answer, deadline, where))
        except urllib3.exceptions.SSLError as error:
            if not isinstance(error.args[0], ssl.SSLCertVerificationError):
                raise LostError(f"the secure connection to {where} broke: {_reason(error)}") from error
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

    def _way(self, url: str) -> tuple[Pool, str, str]:
        """The connections for an address, its name, and what to ask of them."""
        scheme, where, *_ = urlsplit(url)
        if (pool := self._pools.get((scheme, where))) is None:
            pool = self._pools.setdefault((scheme, where), self._pool(scheme, where))
        if isinstance(pool, urllib3.ProxyManager):
            return pool, where, url
        return pool, where, url[len(f"{scheme}://{where}") :] or "/"

    def _pool(self, scheme: str, where: str) -> Pool:
        """Connections: direct, or through the proxy that the environment names for this address."""
        proxy = urllib.request.getproxies().get(scheme)
        if proxy and urllib.request.proxy_bypass(where):
            proxy = None
        secure = "https" in (scheme, urlsplit(proxy).scheme if proxy else "")
        options: dict[str, Any] = {"maxsize": CONNECTIONS, "ssl_context": self._tls() if secure else None}
        if proxy:
            return urllib3.ProxyManager(proxy, **options)
        return urllib3.PoolManager(**options).connection_from_url(f"{scheme}://{where}")

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._settings.ca_bundle)
        if self._settings.client_cert:
            context.load_cert_chain(self._settings.client_cert, self._settings.client_key)
        return context


def _reason(error: Exception) -> str:
    """The innermost words of an error of the HTTP library, which repeat its own objects."""
    text = str(error.args[-1] if error.args else error)
    return text.rsplit(": ", 1)[-1].strip("'\")> ") or type(error).__name__
