"""Where a request comes from: the caller's address behind proxies, and whether a page of another site sent it.

Protection against such pages (CSRF and DNS rebinding) is by the `Origin` and `Host` of a request.

A browser sends what any page asks it to, to any address that it can reach, loopback included. Two things distinguish
such requests from those of programs. `Origin` and `Sec-Fetch-Site` say which page sends them; no page can change them.
And `Host` is the name by which the page reached the server: a page whose own name resolves to this machine (DNS
rebinding) has the same origin as the server, but under a name that is not the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network

from lance_namespace.errors import PermissionDeniedError

READS = frozenset({"GET", "HEAD"})
OTHERS = frozenset({"cross-site", "same-site"})
"""Values of `Sec-Fetch-Site` of pages that are not this server's; `same-site` may be any port of the same host."""
_ORIGIN = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)
_PORT = re.compile(r":[0-9]*$")
REMEMBERED = 64
"""Most good values of `Host` that are remembered: an address is parsed in microseconds, but with every request."""
MOST_PROXIES = 10
"""Most addresses of X-Forwarded-For that are read, from its end."""
_DEFAULT_PORT = re.compile(r":(80|443)?$")


class Origins:
    """The host names of a server."""

    def __init__(self, allowed: Iterable[str] = (), host: str = "localhost", proxies: Iterable[str] = ()) -> None:
        """Store the names that the settings allow, NAME or NAME:PORT, the one that it listens on, and its proxies."""
        self._proxies = tuple(map(ip_network, proxies))
        self._authorities = frozenset(map(_normalize_authority, allowed))
        self._names = frozenset(map(_host_name, (*self._authorities, host)))
        self.check_host = lru_cache(REMEMBERED)(self._check_host)

    def find_peer(self, peer: str, headers: Mapping[str, str]) -> str:
        """Return the address of the caller: that of the connection, or the one that trusted proxies report.

        Each proxy adds the address that it sees at the end of X-Forwarded-For, so the last one that is no proxy of ours
        counts; what stands before it anybody may have written.
        """
        forwarded = headers.get("x-forwarded-for") if self._proxies else None
        for text in reversed((forwarded or "").split(",")[-MOST_PROXIES:]):
            address = _parse_address(text)
            if address is None or not self._is_proxy(peer):
                break
            peer = address
        return peer

    def _is_proxy(self, peer: str) -> bool:
        address = _parse_address(peer)
        return address is not None and any(ip_address(address) in network for network in self._proxies)

    def check_origin(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse a request that a page of another origin has a browser send.

        Clients other than browsers name no origin.

        Following a link is allowed: the page with the link cannot read what this server shows then.

        Raises:
            PermissionDeniedError: a page of another origin sent it.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None:
            is_link = method in READS and headers.get("sec-fetch-mode") == "navigate"
            if site in OTHERS and not is_link:
                raise _foreign_origin_error("another site")
        elif site != "same-origin" and not self._is_own(origin, headers.get("host", "")):
            raise _foreign_origin_error(f"the origin {origin[:200]!r}")

    def _check_host(self, host: str | None, is_open: bool) -> None:
        """Refuse a request to a host name that is not this server's; good ones are remembered.

        IP addresses and localhost cannot be rebound, so they are allowed; and a client that sends no `Host` is no
        browser. Where callers must authenticate, names are checked only if the settings list some: no page knows a
        token.

        Raises:
            PermissionDeniedError: the name is not one of this server's.
        """
        if host is None or not (is_open or self._authorities):
            return
        name = _host_name(host)
        if name not in self._names and not _is_local(name):
            raise PermissionDeniedError(
                f"this server is not known by the name {name[:200]!r}; its operator can allow it: --allowed-hosts NAME"
            )

    def _is_own(self, origin: str, host: str) -> bool:
        match = _ORIGIN.fullmatch(origin)
        authority = _normalize_authority(match[1]) if match else None
        return authority is not None and (authority == _normalize_authority(host) or authority in self._authorities)


def _normalize_authority(text: str) -> str:
    """Return name and port in one form.

    A proxy may speak TLS for the server, so ports 80 and 443 both count as default.
    """
    name, port = _PORT.sub("", text), _PORT.search(_DEFAULT_PORT.sub("", text))
    return name.lower().removesuffix(".") + (port[0] if port else "")


def _host_name(authority: str) -> str:
    return _PORT.sub("", authority).lower().removesuffix(".")


def _is_local(name: str) -> bool:
    """Return whether a name is an IP address, or one that browsers resolve to this machine whatever DNS says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    return True


def _parse_address(text: str) -> str | None:
    """Return an address, which may stand in brackets or have a port; None if it is none."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def _foreign_origin_error(who: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"a page of {who} has sent this, and only the server's own pages may; if it is one of them, behind a proxy, "
        "allow the name that people see: --allowed-hosts NAME"
    )
