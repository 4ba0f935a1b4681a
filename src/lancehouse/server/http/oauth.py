"""The OAuth2 token endpoint, as Iceberg clients use it: the tokens that it issues, and throttling of logins.

- `client_credentials`, with id and secret in the form or as HTTP Basic: a token for the principal.
- token exchange (RFC 8693): a new token for one of ours that has not expired; for an expired one too if the client's
  credential comes with it, as Iceberg's Java library sends it. A static token is returned unchanged.

A scope is accepted and ignored: grants say what a principal may do.

Failed logins are counted by client id and peer address together. By client id alone, anybody could lock a principal out
by guessing; by address alone, one misconfigured program would lock out all others behind the same proxy.

`jwt` is imported with the first token: it takes 8 MB, which a server without authentication can spare.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from ipaddress import IPv6Address, ip_address
from secrets import token_hex
from typing import Any

from lance_namespace.errors import ServiceUnavailableError, ThrottlingError, UnauthenticatedError

from lancehouse.catalog.principals import TOKEN_PREFIX, Principal, Principals, digest

ISSUER = AUDIENCE = "urn:lancehouse"
ALGORITHM = "HS256"
LIFETIME_S = 3600


@cache
def malformed_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that parsing a token may raise, whatever it contains."""
    import jwt

    return (jwt.PyJWTError, ArithmeticError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token of this server, once its signature is verified."""

    name: str
    generation: str
    expires_at: float


class Tokens:
    """Issues and verifies tokens.

    The signing key comes from the database at first use; all servers on it share the key.
    """

    def __init__(self, principals: Principals, lifetime_s: int = LIFETIME_S) -> None:
        self._principals = principals
        self.lifetime_s = lifetime_s

    def issue(self, principal: Principal) -> str:
        """Return a new token for a principal that has authenticated."""
        import jwt

        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal.name,
            "gen": principal.generation,
            "iat": now,
            "exp": now + self.lifetime_s,
            "jti": token_hex(8),
        }
        return jwt.encode(claims, self._key, ALGORITHM)

    def verify(self, token: str, *, allow_expired: bool = False) -> Claims:
        """Return the claims of a token; with `allow_expired`, also of an expired one.

        Raises:
            UnauthenticatedError: it is not signed by this server, has expired, or is malformed.
        """
        import jwt

        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={
                    "require": ["iss", "aud", "sub", "gen", "iat", "exp", "jti"],
                    "verify_exp": not allow_expired,
                    "verify_iat": False,  # another server's clock may be a little ahead
                },
            )
            return Claims(str(claims["sub"]), str(claims["gen"]), float(claims["exp"]))
        except jwt.ExpiredSignatureError:
            raise UnauthenticatedError("the bearer token has expired; ask for a new one") from None
        except jwt.InvalidSignatureError:
            raise UnauthenticatedError("the bearer token's signature is wrong; ask for a new one") from None
        except malformed_errors():
            raise UnauthenticatedError("the bearer token is malformed; ask for a new one") from None

    @cached_property
    def _key(self) -> bytes:
        return bytes.fromhex(self._principals.get_signing_key())


def unverified_issuer(token: str) -> str | None:
    """Return the issuer that a token claims, without any verification; None if it is not a JWT or has no issuer."""
    import jwt

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except malformed_errors():
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


FREE = 5
"""Wrong secrets in a row without a delay: people mistype, and programs start with an old secret."""
FIRST_S = 1.0
LONGEST_S = 60.0
"""The delay after a failure starts at `FIRST_S` and doubles with each further one, up to this many seconds."""
FORGOTTEN_S = 900.0
"""Seconds after the last failure when failures no longer count."""
COUNTED = 10_000
"""Pairs of client id and address that are tracked at most.

Evicting one takes that many wrong secrets, which takes longer than its delay.
"""

WAITING = 256
"""Logins that wait for a thread at once. More could take up all requests that a worker handles at once."""
WAITING_OF_A_PEER = 128


class SlowDownError(ThrottlingError):
    """Too many wrong secrets were sent; the next attempt is accepted after `retry_after_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = max(1, -int(-wait_s // 1))
        super().__init__(f"too many wrong secrets for this client id from your address; wait {self.retry_after_s} s")


@dataclass(slots=True)
class _Failures:
    count: int
    last_at: float

    @property
    def pause_s(self) -> float:
        over = self.count - FREE
        return min(FIRST_S * 2.0 ** min(over, 32), LONGEST_S) if over >= 0 else 0.0


class LoginAttempts:
    """Counts wrong secrets, in the memory of this process only. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, client_id: str, peer: str) -> None:
        """Refuse an attempt before its delay is over.

        Raises:
            SlowDownError: it says how long to wait.
        """
        with self._lock:
            failures = self._failures.get(_attempt_key(client_id, peer))
            wait_s = 0.0 if failures is None else failures.last_at + failures.pause_s - self._clock()
        if wait_s > 0:
            raise SlowDownError(wait_s)

    def count_failure(self, client_id: str, peer: str) -> None:
        """Record a wrong secret."""
        key, now = _attempt_key(client_id, peer), self._clock()
        with self._lock:
            before = self._failures.pop(key, None)
            count = before.count if before and now - before.last_at < FORGOTTEN_S else 0
            self._failures[key] = _Failures(count + 1, now)
            while len(self._failures) > COUNTED:
                self._failures.popitem(last=False)

    def reset(self, client_id: str, peer: str) -> None:
        """Forget the failures after the right secret came."""
        with self._lock:
            self._failures.pop(_attempt_key(client_id, peer), None)


class LoginQueue:
    """Limits how many logins wait for a thread, in total and from one peer. For the event loop's thread only."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()

    @contextmanager
    def enter(self, peer: str) -> Iterator[None]:
        """Count a login as waiting while the context is open.

        Raises:
            ServiceUnavailableError: too many are waiting already.
        """
        key = peer_network(peer)
        if self._peers.total() >= WAITING or self._peers[key] >= WAITING_OF_A_PEER:
            raise ServiceUnavailableError("too many clients ask for tokens at once; try again")
        self._peers[key] += 1
        try:
            yield
        finally:
            self._peers[key] -= 1
            if not self._peers[key]:
                del self._peers[key]


def peer_network(peer: str) -> str:
    """Return the address that attempts are counted by.

    Of IPv6 these are the first 64 bits, as a single host may use all addresses of the rest.
    """
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address.exploded[:19])
    return str(address)


def _attempt_key(client_id: str, peer: str) -> str:
    """Return a key of constant length, however long the client id is."""
    return digest(f"{peer_network(peer)} {client_id}")


Json = dict[str, Any]
Fields = Mapping[str, str]

CLIENT_CREDENTIALS = "client_credentials"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105
JWT = "urn:ietf:params:oauth:token-type:jwt"


class OAuthError(Exception):
    """An error response of the endpoint; `error` is one of OAuth's error codes."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(description)
        self.answer = status, {"error": error, "error_description": description}


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Answers requests for tokens."""

    principals: Principals
    tokens: Tokens
    attempts: LoginAttempts = field(default_factory=LoginAttempts)

    def answer(self, form: Fields, headers: Fields, peer: str = "") -> tuple[int, Json]:
        """Return status and body of the response to a form sent from the address `peer`.

        Raises:
            SlowDownError: too many wrong secrets came for this client from that address.
        """
        grants = {CLIENT_CREDENTIALS: self._client_credentials, TOKEN_EXCHANGE: self._exchange_token}
        try:
            kind = form.get("grant_type")
            if not kind:
                raise OAuthError(400, "invalid_request", "grant_type is missing; is the request a form?")
            if kind not in grants:
                raise OAuthError(400, "unsupported_grant_type", f"grant_type must be one of {', '.join(grants)}")
            return 200, grants[kind](form, headers, peer)
        except OAuthError as error:
            return error.answer

    def _client_credentials(self, form: Fields, headers: Fields, peer: str) -> Json:
        principal = self._authenticate_client(form, headers, peer)
        if principal is None:
            raise OAuthError(401, "invalid_client", "client_id and client_secret are missing")
        return self._token_response(principal)

    def _exchange_token(self, form: Fields, headers: Fields, peer: str) -> Json:
        subject = form.get("subject_token")
        if not subject:
            raise OAuthError(400, "invalid_request", "subject_token is missing")
        if form.get("actor_token"):
            raise OAuthError(400, "invalid_request", "actor_token is not supported: nobody acts for others here")
        for name in ("subject_token_type", "requested_token_type"):
            if form.get(name, ACCESS_TOKEN) not in (ACCESS_TOKEN, JWT):
                raise OAuthError(400, "invalid_request", f"{name} must be {ACCESS_TOKEN} or {JWT}")
        client = self._authenticate_client(form, headers, peer)
        try:
            if subject.startswith(TOKEN_PREFIX):
                self.principals.authenticate_token(subject)
                return {"access_token": subject, "token_type": "bearer", "issued_token_type": ACCESS_TOKEN}
            return self._token_response(self._principal_to_renew(subject, client))
        except UnauthenticatedError as error:
            raise OAuthError(400, "invalid_request", f"subject_token: {error}") from None

    def _principal_to_renew(self, subject: str, client: Principal | None) -> Principal:
        """Return the principal to renew a token for: the token is valid, or the client has proved to be its owner."""
        claims = self.tokens.verify(subject, allow_expired=client is not None)
        if client is not None:
            if client.name != claims.name:
                raise UnauthenticatedError("it was issued to another client")
            return client
        return check_current_principal(self.principals.find(claims.name), claims.generation)

    def _authenticate_client(self, form: Fields, headers: Fields, peer: str) -> Principal | None:
        """Return the principal whose credential came with the request; None where none came.

        Clients that renew a token send the old one as bearer along with their credential: it is ignored.
        """
        credential = _parse_basic(headers)
        client_id, secret = form.get("client_id"), form.get("client_secret")
        if secret and not client_id:
            raise OAuthError(401, "invalid_client", "client_id is missing: a credential is client_id:client_secret")
        if client_id and secret:
            if credential not in (None, (client_id, secret)):
                raise OAuthError(400, "invalid_request", "the form and the Authorization header name different clients")
            credential = client_id, secret
        if credential is None:
            return None
        try:
            # A secret that was proved before needs no scrypt and is never delayed by others who try wrong ones.
            return self.principals.recognize_secret(*credential) or self._authenticate_secret(*credential, peer)
        except UnauthenticatedError as error:
            raise OAuthError(401, "invalid_client", str(error)) from None

    def _authenticate_secret(self, client_id: str, secret: str, peer: str) -> Principal:
        # Before the secret is verified: scrypt keeps a core busy for a moment.
        self.attempts.check(client_id, peer)
        try:
            principal = self.principals.authenticate_secret(client_id, secret)
        except UnauthenticatedError:
            self.attempts.count_failure(client_id, peer)
            raise
        self.attempts.reset(client_id, peer)
        return principal

    def _token_response(self, principal: Principal) -> Json:
        return {
            "access_token": self.tokens.issue(principal),
            "token_type": "bearer",
            "issued_token_type": ACCESS_TOKEN,
            "expires_in": self.tokens.lifetime_s,
        }


def check_current_principal(principal: Principal | None, generation: str) -> Principal:
    """Return the principal of a token, if it still exists and its secret has not changed since.

    Raises:
        UnauthenticatedError: it was deleted, or has a new secret.
    """
    if principal is None or principal.generation != generation:
        raise UnauthenticatedError("the principal of this token was deleted or has a new secret; ask for a new token")
    return principal


def _parse_basic(headers: Fields) -> tuple[str, str] | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        client_id, colon, secret = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise OAuthError(401, "invalid_client", "the Authorization header is no HTTP Basic")
    return client_id, secret
