"""Authentication of requests: no principal, a static token, a token of this server, or one of an outside issuer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lance_namespace.errors import PermissionDeniedError, UnauthenticatedError

from lancehouse.catalog.callers import ANYBODY, Identity
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.principals import TOKEN_PREFIX, Principals, digest
from lancehouse.server.http.issuers import Issuer, IssuerSettings
from lancehouse.server.http.oauth import (
    ISSUER,
    LIFETIME_S,
    TokenEndpoint,
    Tokens,
    check_current_principal,
    unverified_issuer,
)

FRESH_S = 3.0
"""Seconds for which an identity is cached: deleting a principal, token or grant takes effect within that time."""

REMEMBERED = 10_000
"""Most identities that are cached."""

LONGEST = 16_384
"""Longest token, in characters."""

Headers = Mapping[str, str]
"""Header fields by name, in lower case unless the mapping ignores case."""


class Authenticator:
    """Finds the identity that a request's header fields prove. Thread-safe.

    Where authentication is not `required` and no outside issuer is configured, anybody may call until a principal
    exists.
    From then on, seconds after the first one was created, every caller must authenticate; deleting the last one does
    not
    open a running server again.
    """

    def __init__(
        self,
        principals: Principals,
        issuers: Sequence[IssuerSettings] = (),
        *,
        required: bool,
        lifetime_s: int = LIFETIME_S,
        fresh_s: float = FRESH_S,
    ) -> None:
        self._principals = principals
        self._issuers = {settings.issuer: Issuer(settings) for settings in issuers}
        self._tokens = Tokens(principals, lifetime_s)
        self._endpoint = TokenEndpoint(principals, self._tokens)
        self._fresh_s = fresh_s
        self._required = required or bool(issuers)
        self._open_until = float("-inf")
        self._cache: dict[str, tuple[Identity, float]] = {}
        self._lock = threading.Lock()

    def identify(self, headers: Headers, *, blocking: bool = True) -> Identity:
        """Return the identity of the caller, which is cached for seconds.

        If it is not, the database is read, and keys of outside issuers may be fetched.

        Raises:
            UnauthenticatedError: there is no credential, or it is invalid or has expired.
            PermissionDeniedError: an outside issuer vouches for somebody who is no principal here.
            ServiceUnavailableError: the database or the issuer cannot be reached.
            WouldBlockError: it may not block, and the identity is not cached. Nothing else is raised then.
        """
        now = time.monotonic()
        if not self._required:
            if now < self._open_until:
                return ANYBODY
        elif (entry := self._cache.get(digest(_credential_text(headers)))) and now < entry[1]:
            return entry[0]
        if not blocking:
            raise WouldBlockError
        return ANYBODY if self._is_open() else self._authenticate(headers)

    def answer_token_request(
        self, form: Mapping[str, str], headers: Headers, peer: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Return status and body of the OAuth2 token endpoint's response to a form sent from the address `peer`.

        It blocks.

        Raises:
            SlowDownError: too many wrong secrets came for this client from that address.
        """
        return self._endpoint.answer(form, headers, peer)

    def _is_open(self) -> bool:
        if not self._required and self._principals.has_any():
            self._required = True
        if not self._required:
            self._open_until = time.monotonic() + self._fresh_s
        return not self._required

    def _authenticate(self, headers: Headers) -> Identity:
        # The cached identity expires by the time before the database is read, so that a deletion during the read is
        # noticed within `fresh_s` too.
        started_at = time.monotonic()
        token = _parse_token(headers)
        if token.startswith(TOKEN_PREFIX):
            identity, ends_at = self._principals.authenticate_token(token).identity, float("inf")
        elif unverified_issuer(token) == ISSUER:
            claims = self._tokens.verify(token)
            identity = check_current_principal(self._principals.find(claims.name), claims.generation).identity
            ends_at = claims.expires_at
        else:
            identity, ends_at = self._authenticate_external(token)
        good_s = min(self._fresh_s, ends_at - time.time())
        self._cache_identity(digest(_credential_text(headers)), identity, started_at + good_s)
        return identity

    def _authenticate_external(self, token: str) -> tuple[Identity, float]:
        """Return the principal that an outside issuer's token names, and when the token expires."""
        issuer = self._issuers.get(unverified_issuer(token) or "")
        if issuer is None:
            raise UnauthenticatedError("the bearer token is none of this server's, nor of an issuer that it trusts")
        name, ends_at = issuer.verify(token)
        principal = self._principals.find(name)
        if principal is None:
            raise PermissionDeniedError(
                f"{name!r} is no principal here; an administrator adds it: "
                f"lancehouse principal create {name!r} --external --role reader"
            )
        if not principal.is_external:
            raise PermissionDeniedError(
                f"the principal {name!r} has a secret of its own, so that no outside issuer can speak for it; "
                f"an administrator may add another name: lancehouse principal create NAME --external --role reader"
            )
        return principal.identity, ends_at

    def _cache_identity(self, key: str, identity: Identity, until: float) -> None:
        with self._lock:
            self._cache.pop(key, None)
            while len(self._cache) >= REMEMBERED:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = identity, until


def _credential_text(headers: Headers) -> str:
    """Return the header value that identifies the caller: the one of the two that `_parse_token` reads."""
    return headers.get("authorization", "").strip() or "x-api-key " + headers.get("x-api-key", "")


def _parse_token(headers: Headers) -> str:
    value = headers.get("authorization", "").strip()
    if not value:
        key = headers.get("x-api-key", "").strip()
        if not key:
            raise UnauthenticatedError("this server asks who you are: send a bearer token, or set a credential")
        if not key.startswith(TOKEN_PREFIX):
            raise UnauthenticatedError(f"x-api-key must be a static token, which begins with {TOKEN_PREFIX}")
        return key
    scheme, _, token = value.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise UnauthenticatedError("the Authorization header must have the form: Bearer TOKEN")
    if token == "None":  # noqa: S105  # sent by pyiceberg without any credential
        raise UnauthenticatedError("this server asks who you are: set a token or a credential in the client")
    if len(token) > LONGEST or not token.isascii() or not token.isprintable():
        raise UnauthenticatedError("the bearer token is malformed: too long, or with characters that no token has")
    return token
