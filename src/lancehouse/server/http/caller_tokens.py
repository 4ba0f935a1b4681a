"""The caller's own identity for another catalog: their token is passed on, or exchanged for one of that catalog.

What this server issued is never passed on: another server could use it here.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import HTTPSHandler, Request

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError

from lancehouse.caches import BoundedCache
from lancehouse.catalog.principals import TOKEN_PREFIX, digest
from lancehouse.server.http.auth import create_opener
from lancehouse.server.http.oauth import ACCESS_TOKEN, ISSUER, TOKEN_EXCHANGE, unverified_issuer

TIMEOUT_S = 10
LARGEST_BYTES = 2**20
KEPT = 10_000
"""Most exchanged tokens that are cached."""
KEPT_S = 300.0
"""Longest time for which one is used, so that who is locked out at their issuer is soon locked out there."""
EARLY_S = 30.0
"""Seconds before its end when a token is no longer used."""


def forward_token(backend: str, token: str | None) -> str:
    """Return the token of the caller, for another catalog.

    Raises:
        UnauthenticatedError: there is none, or this server issued it.
    """
    if not token:
        raise UnauthenticatedError(
            f"backend {backend} asks who you are: send a bearer token of your identity provider, which it takes too"
        )
    if token.startswith(TOKEN_PREFIX) or unverified_issuer(token) == ISSUER:
        raise UnauthenticatedError(
            f"backend {backend} wants a token of your identity provider: tokens of this server are not passed on. "
            "Log in there, and send its token as the bearer token"
        )
    return token


class TokenExchange:
    """Exchanges tokens of callers for tokens of one catalog, by RFC 8693 at its token endpoint. Thread-safe."""

    def __init__(self, backend: str, properties: Mapping[str, str]) -> None:
        """Take from a backend's properties where and how tokens are exchanged.

        Raises:
            InvalidInputError: the file of certificates cannot be read.
        """
        self._backend = backend
        self._uri = properties["oauth2_server_uri"]
        self._scope = properties.get("scope")
        self._credential = properties.get("credential")
        try:
            tls = ssl.create_default_context(cafile=properties.get("ca_bundle") or None)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInputError(f"backend {backend}: ca_bundle cannot be read: {error}") from None
        self._opener = create_opener(HTTPSHandler(context=tls))
        self._tokens: BoundedCache[str, tuple[str, float]] = BoundedCache(KEPT)

    def exchange(self, token: str | None) -> str:
        """Return a token of the catalog for the owner of a token.

        Raises:
            UnauthenticatedError: there is none, this server issued it, or the catalog refuses it.
            ServiceUnavailableError: the token endpoint cannot be reached.
        """
        subject = forward_token(self._backend, token)
        key = digest(subject)
        cached = self._tokens.get(key)
        if cached is not None and time.monotonic() < cached[1]:
            return cached[0]
        started = time.monotonic()
        answer = self._ask(subject)
        new, lifetime = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(new, str) or not new.isascii() or not new.isprintable() or not new:
            raise ServiceUnavailableError(f"the token endpoint of backend {self._backend} sent no access_token")
        good_s = min(KEPT_S, lifetime - EARLY_S) if isinstance(lifetime, int | float) else EARLY_S
        self._tokens.put(key, (new, started + good_s))
        return new

    def _ask(self, subject: str) -> Mapping[str, object]:
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "subject_token": subject,
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": ACCESS_TOKEN,
            **({"scope": self._scope} if self._scope else {}),
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self._credential:
            headers["Authorization"] = f"Basic {_basic(self._credential)}"
        request = Request(self._uri, urlencode(form).encode(), headers, method="POST")  # noqa: S310 - checked at start
        about = f"the token endpoint of backend {self._backend}"
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                body = response.read(LARGEST_BYTES)
        except HTTPError as error:
            error.close()
            if 400 <= error.code < 500 and error.code not in (408, 429):
                raise UnauthenticatedError(f"{about} does not take your token (HTTP {error.code})") from None
            raise ServiceUnavailableError(f"{about} answered HTTP {error.code}") from None
        except (HTTPException, OSError):
            raise ServiceUnavailableError(f"{about} does not answer") from None
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        return answer if isinstance(answer, dict) else {}


def _basic(credential: str) -> str:
    """Return a client's credential as HTTP Basic, in which both parts are encoded as in a form (RFC 6749)."""
    client_id, _, secret = credential.partition(":")
    return base64.b64encode(f"{quote(client_id, safe='')}:{quote(secret, safe='')}".encode()).decode()
