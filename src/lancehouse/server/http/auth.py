"""Who sends a request: tokens of this server and of identity providers (OpenID); and their token for other catalogs."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)

from lancehouse.caches import BoundedCache
from lancehouse.catalog.callers import ANYBODY, Identity
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.principals import TOKEN_PREFIX, Principals, digest
from lancehouse.server.http.oauth import (
    ACCESS_TOKEN,
    ISSUER,
    LIFETIME_S,
    TOKEN_EXCHANGE,
    TokenEndpoint,
    Tokens,
    check_current_principal,
    malformed_errors,
    unverified_issuer,
)
from lancehouse.settings import is_http_url

if TYPE_CHECKING:
    import jwt

# Asymmetric ones only: with HMAC, anybody could sign with the issuer's public key as the secret.
ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY_S = 60
"""Seconds by which an issuer's clock may differ."""

SELF_ASSERTED = ("email", "phone_number")
"""Claims that OpenID Connect pairs with a claim, `…_verified`, that says whether the issuer has verified them."""

FETCH_TIMEOUT_S = 5
LARGEST_BYTES = 2**20
SHORTEST_RSA_BITS = 2048

KEYS_FRESH_S = 300.0
"""Seconds for which fetched keys are used without fetching them again."""
STALE_S = 3600.0
"""Seconds for which they are used while the issuer cannot be reached."""
PAUSE_S = 5.0
"""Least seconds between two requests to an issuer, however many tokens name unknown keys."""


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """An issuer that the server trusts to authenticate users; grants say what they may do.

    Raises:
        InvalidInputError: a field is empty, or is not a URL where it must be one.
    """

    issuer: str
    audience: str
    """What the claim `aud` must contain: tokens for other services are refused."""
    jwks_uri: str | None = None
    """URL of its keys; None: its OpenID configuration names it."""
    name_claim: str = "sub"
    """The claim that holds the principal's name."""
    name_prefix: str = ""
    """Put before that name, and before those of groups, so that two issuers cannot vouch for the same principal."""
    groups_claim: str = ""
    """The claim that lists the names of groups; empty: the issuer does not say who is in which group."""

    def __post_init__(self) -> None:
        for name in ("issuer", "audience", "name_claim"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidInputError(f"issuers: {name!r} must be a text that is not empty")
        if self.issuer == ISSUER:
            raise InvalidInputError(f"issuers: {ISSUER!r} is this server itself")
        _check_url("jwks_uri" if self.jwks_uri else "issuer", self.jwks_uri or self.issuer)


@dataclass(frozen=True, slots=True)
class _KeySet:
    by_id: Mapping[str | None, jwt.PyJWK] = field(default_factory=dict)
    fetched_at: float = float("-inf")

    def find(self, kid: str | None) -> jwt.PyJWK | None:
        """Return the key with an id; without an id, the only key there is; else None."""
        if kid is None and len(self.by_id) == 1:
            return next(iter(self.by_id.values()))
        return self.by_id.get(kid)


class VerifiedToken(NamedTuple):
    """What an issuer's token says."""

    name: str
    """Of the principal."""
    expires_at: float
    """Seconds since 1970, leeway included."""
    groups: tuple[str, ...] = ()


class Issuer:
    """One issuer and its cached keys. Thread-safe."""

    def __init__(self, settings: IssuerSettings, *, fresh_s: float = KEYS_FRESH_S, pause_s: float = PAUSE_S) -> None:
        self.settings = settings
        self._fresh_s = fresh_s
        self._pause_s = pause_s
        self._keys = _KeySet()
        self._fetch_error = ""
        self._last_fetch_at = float("-inf")
        self._lock = threading.Lock()

    def verify(self, token: str) -> VerifiedToken:
        """Verify a token; return what it says.

        Raises:
            UnauthenticatedError: the token is invalid.
            ServiceUnavailableError: the issuer's keys cannot be fetched.
        """
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except malformed_errors():
            raise UnauthenticatedError("the bearer token is malformed") from None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise UnauthenticatedError(f"the bearer token must be signed with {', '.join(ALGORITHMS)}")
        key = self._get_key(header.get("kid"))
        if key.algorithm_name != algorithm:
            raise UnauthenticatedError("the bearer token names a key of its issuer that signs in another way")
        return self._verify_claims(token, key)

    def _verify_claims(self, token: str, key: jwt.PyJWK) -> VerifiedToken:
        import jwt

        settings = self.settings
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["iss", "aud", "exp"]},
            )
            name, expires_at = claims.get(settings.name_claim), float(claims["exp"])
        except jwt.ExpiredSignatureError:
            raise UnauthenticatedError("the bearer token has expired; ask its issuer for a new one") from None
        except jwt.InvalidAudienceError:
            raise UnauthenticatedError(f"the bearer token is not for {settings.audience!r}") from None
        except jwt.ImmatureSignatureError:
            raise UnauthenticatedError("the bearer token is not valid yet") from None
        except jwt.MissingRequiredClaimError as error:
            raise UnauthenticatedError(f"the bearer token has no claim {error.claim!r}") from None
        except jwt.InvalidSignatureError:
            raise UnauthenticatedError("the bearer token's signature is wrong") from None
        except malformed_errors():
            raise UnauthenticatedError("the bearer token is malformed") from None
        if not isinstance(name, str) or not name:
            raise UnauthenticatedError(f"the bearer token has no text in its claim {settings.name_claim!r}")
        _check_verified(claims, settings.name_claim, name)
        return VerifiedToken(settings.name_prefix + name, expires_at + LEEWAY_S, self._groups(claims))

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the groups that a token names; some issuers send a single one as a text."""
        claim = claims.get(self.settings.groups_claim) if self.settings.groups_claim else None
        names = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
        return tuple(self.settings.name_prefix + name for name in names if isinstance(name, str) and name)

    def _get_key(self, kid: str | None) -> jwt.PyJWK:
        if fresh := self._find_cached_key(kid, self._fresh_s):
            return fresh
        stale = self._find_cached_key(kid, STALE_S)
        # Only one thread fetches. Those that have a stale key use it; only those that have none wait.
        if not self._lock.acquire(blocking=stale is None) and stale:
            return stale  # another thread is fetching newer keys
        try:
            if self._find_cached_key(kid, self._fresh_s) is None:
                self._refresh()
            fetch_error, keys = self._fetch_error, self._keys
        finally:
            self._lock.release()
        if key := self._find_cached_key(kid, STALE_S):
            return key
        if fetch_error or not keys.by_id:
            raise ServiceUnavailableError(f"the keys of issuer {self.settings.issuer} cannot be had: {fetch_error}")
        raise UnauthenticatedError("the bearer token is signed with a key that its issuer does not publish")

    def _find_cached_key(self, kid: str | None, age_s: float) -> jwt.PyJWK | None:
        keys = self._keys
        return keys.find(kid) if time.monotonic() - keys.fetched_at < age_s else None

    def _refresh(self) -> None:
        """Fetch the keys, unless that was tried less than the pause ago; the caller holds the lock."""
        if time.monotonic() - self._last_fetch_at < self._pause_s:
            return
        try:
            self._keys = _KeySet(_parse_keys(_fetch_json(self._jwks_uri())), time.monotonic())
            self._fetch_error = ""
        except (HTTPException, OSError):
            self._fetch_error = "no answer"
        except ValueError as error:
            self._fetch_error = str(error)
        self._last_fetch_at = time.monotonic()

    def _jwks_uri(self) -> str:
        if self.settings.jwks_uri:
            return self.settings.jwks_uri
        configuration = _fetch_json(self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
        # OpenID Connect Discovery requires this check.
        if configuration.get("issuer") != self.settings.issuer:
            raise ValueError("its OpenID configuration is that of another issuer")
        uri = configuration.get("jwks_uri")
        if not isinstance(uri, str) or not (is_http_url(uri) and uri.isascii()):
            raise ValueError("its OpenID configuration has no jwks_uri")
        return uri


def _check_verified(claims: Mapping[str, Any], name_claim: str, name: str) -> None:
    """Refuse a name that its issuer says it has not verified: users may enter any address in their profile.

    An issuer that does not say is trusted. Some send `"true"` instead of `true`. An issuer may repeat the address in
    `preferred_username` or `sub`, so the value is compared, whichever claim it was read from.
    """
    for claim in dict.fromkeys((name_claim, *SELF_ASSERTED)):
        value, verified = claims.get(claim), claims.get(f"{claim}_verified", True)
        if isinstance(value, str) and value.casefold() == name.casefold() and str(verified).lower() != "true":
            raise UnauthenticatedError(
                f"the bearer token's claim '{claim}_verified' is not true: its issuer has not verified {claim}"
            )


def create_opener(tls: HTTPSHandler | None = None) -> OpenerDirector:
    """Create a client for HTTP and HTTPS that follows no redirects."""
    opener = OpenerDirector()
    handlers = (ProxyHandler(), HTTPHandler(), tls or HTTPSHandler(), HTTPDefaultErrorHandler(), HTTPErrorProcessor())
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _fetch_json(url: str) -> dict[str, Any]:
    try:
        with create_opener().open(url, timeout=FETCH_TIMEOUT_S) as response:
            body = response.read(LARGEST_BYTES + 1)
    except HTTPError as error:
        error.close()
        raise ValueError(f"it answered HTTP {error.code}") from None
    if len(body) > LARGEST_BYTES:
        raise ValueError("its answer is too long")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("its answer is no JSON") from None
    if not isinstance(document, dict):
        raise ValueError("its answer is no JSON object")
    return document


def _parse_keys(document: Mapping[str, Any]) -> dict[str | None, jwt.PyJWK]:
    """Return the keys that may sign tokens by id; keys of other kinds, for encryption, or too short are left out."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    entries = document.get("keys")
    if not isinstance(entries, list):
        raise ValueError("its answer has no keys")
    keys = {}
    for data in entries:
        if not isinstance(data, dict) or data.get("kty") not in ("RSA", "EC", "OKP") or data.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(data)
        except malformed_errors():
            continue
        short = isinstance(key.key, RSAPublicKey) and key.key.key_size < SHORTEST_RSA_BITS
        if key.algorithm_name in ALGORITHMS and not short:
            keys[key.key_id] = key
    if not keys:
        raise ValueError(f"its answer has no key for {', '.join(ALGORITHMS)}")
    return keys


def _check_url(name: str, text: str) -> None:
    if not (is_http_url(text) and text.isascii()):
        hint = "" if name == "jwks_uri" else ", or `jwks_uri` must be given"
        raise InvalidInputError(f"issuers: {name!r} must be a URL that starts with http:// or https://{hint}")


FRESH_S = 1.5
"""Seconds for which an identity is cached: deleting a principal, token or grant takes effect within that time.

Two seconds are promised.
"""

REMEMBERED = 10_000
"""Most identities that are cached."""

LONGEST = 16_384
"""Longest token, in characters."""

Headers = Mapping[str, str]
"""Header fields by name, in lower case unless the mapping ignores case."""


class Authenticator:
    """Finds the identity that a request's header fields prove. Thread-safe.

    Where authentication is not `required` and no outside issuer is configured, anybody may call until a principal
    exists. Seconds after the first one was created, every caller must authenticate; deleting the last one does not open
    a running server again.
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
        self._cache: BoundedCache[str, tuple[Identity, float]] = BoundedCache(REMEMBERED)

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
            principal, ends_at = self._principals.authenticate_token(token)
            identity = principal.identity
        elif unverified_issuer(token) == ISSUER:
            claims = self._tokens.verify(token)
            identity = check_current_principal(self._principals.find(claims.name), claims.generation).identity
            ends_at = claims.expires_at
        else:
            identity, ends_at = self._authenticate_external(token)
        good_s = min(self._fresh_s, ends_at - time.time())
        self._cache.put(digest(_credential_text(headers)), (identity, started_at + good_s))
        return identity

    def _authenticate_external(self, token: str) -> tuple[Identity, float]:
        """Return the principal that an outside issuer's token names, and when the token expires."""
        issuer = self._issuers.get(unverified_issuer(token) or "")
        if issuer is None:
            raise UnauthenticatedError("the bearer token is none of this server's, nor of an issuer that it trusts")
        name, ends_at, groups = issuer.verify(token)
        principal, identity = self._principals.find_external(name, groups)
        if identity is None:
            raise PermissionDeniedError(
                f"{name!r} is no principal here, nor in a group that is known; an administrator adds it: "
                f"lancehouse principal create {name!r} --external --role reader"
            )
        if principal is not None and not principal.is_external:
            raise PermissionDeniedError(
                f"the principal {name!r} has a secret of its own, so that no outside issuer can speak for it; "
                f"an administrator may add another name: lancehouse principal create NAME --external --role reader"
            )
        return identity, ends_at


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


TIMEOUT_S = 10
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
