"""HTTP calls to a catalog with typed responses: authentication, retries, paging, recovery from lost responses."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    UnauthenticatedError,
)
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from lancehouse.caches import SingleFlight
from lancehouse.clients.http import (
    USER_AGENT,
    Reply,
    ResponseLostError,
    Transport,
    UnreachableError,
    UnreadableResponseError,
)
from lancehouse.errors import FOREIGN_PAGE, NO_OVERRIDES, CommitStateUnknownError, ErrorMap, from_wire
from lancehouse.secrets import mask
from lancehouse.settings import ClientSettings
from lancehouse.wire.iceberg import Token
from lancehouse.wire.model import Paged

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=Paged)

Headers = Mapping[str, str]
FetchToken = Callable[[str, Mapping[str, str]], Token]
"""Sends a form to a token endpoint and returns the token."""

RENEW_BEFORE_S = 60.0
"""A token is renewed this many seconds before it expires, or after nine tenths of its lifetime if that is later."""

LOST = frozenset({502, 504})
"""Statuses of a gateway that gave up: the server may have handled the request."""
NOT_HANDLED = frozenset({429, 503})
"""Statuses by which a server says that it did not handle the request, for now."""
NOT_MADE = frozenset({501, 503})
"""Server errors after which a commit was certainly not made; after any other 5xx its state is unknown."""
MAX_PAGES = 100_000
"""Most pages of a list that are requested: a server may make up a new token for each."""
BULK_THRESHOLD = 8
"""Number of objects from which on they are requested in bulk."""
NO_CONTENT = 204
CONFLICT = 409
REFUSED = frozenset({401, 419})
"""Statuses that refuse a token: a new one may help."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0


class CallState(Enum):
    """What is known about a request after one attempt."""

    DONE = "done"
    REFUSED = "refused"
    NOT_HANDLED = "not handled"
    """The server did nothing: any request may be sent again."""
    UNKNOWN = "unknown"
    """The server may or may not have handled the request."""


STATE_BY_STATUS = MappingProxyType(
    {**dict.fromkeys(LOST, CallState.UNKNOWN), **dict.fromkeys(NOT_HANDLED, CallState.NOT_HANDLED)}
)
"""What an error status means for the request; all other statuses are refusals."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Result of one attempt."""

    state: CallState
    reply: Reply | None = None
    error: LanceNamespaceError | None = None

    @property
    def status(self) -> int:
        """HTTP status; 0 if there was no response."""
        return self.reply.status if self.reply else 0

    def result(self) -> Reply:
        """Return the response, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply


class Rest:
    """A catalog's API below one base URL: typed calls, authenticated, retried where that is safe. Thread-safe."""

    def __init__(self, settings: ClientSettings, *, base: str, token_uri: str) -> None:
        self._base = base
        self._transport = Transport(settings)
        self._auth = create_signer(settings, token_uri, self._fetch_token)
        self._retries = settings.max_retries
        self._longest_wait_s = settings.read_timeout_s
        custom_headers = {name.title(): value for name, value in settings.headers.items()}
        self._headers = {"User-Agent": USER_AGENT, "Accept": "application/json", **custom_headers}
        self._secrets = [*settings.headers.values()]

    def close(self) -> None:
        """Close idle connections; the next call opens a new one."""
        self._transport.close()

    def get(
        self,
        path: str,
        model: type[M],
        *,
        about: object,
        query: str = "",
        headers: Headers | None = None,
        on: ErrorMap = NO_OVERRIDES,
    ) -> M:
        """GET one object."""
        return parse_reply(self.get_reply(path, about=about, query=query, headers=headers, on=on), model, about)

    def get_reply(
        self, path: str, *, about: object, query: str = "", headers: Headers | None = None, on: ErrorMap = NO_OVERRIDES
    ) -> Reply:
        """GET one object as an unparsed response, with retries."""
        for outcome in self._attempts("GET", path, query, None, headers, about, on):
            if outcome.state in (CallState.DONE, CallState.REFUSED):
                break
        return outcome.result()

    def get_replies(self, requests: Sequence[tuple[str, Headers]], *, query: str) -> list[Reply | None]:
        """GET many objects concurrently, each by its path and with its own headers; return unparsed responses in order.

        An object whose response is not 200 or 304 is None: call `get_reply` for it, which retries and raises the error.
        So are all of them if they are few, for which this is not worth its while.
        """
        if len(requests) < BULK_THRESHOLD:
            return [None] * len(requests)
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(self._base))
        signed_requests = []
        for path, headers in requests:
            url = f"{self._base}{path}?{query}" if query else self._base + path
            signature = self._auth.sign("GET", url, None)
            signed_requests.append((url.removeprefix(origin), {**self._headers, **headers, **signature}))
        started = time.perf_counter()
        replies = self._transport.send_many(origin, signed_requests)
        elapsed_ms = (time.perf_counter() - started) * 1000
        logger.debug("%d reads such as %s in %.0f ms", len(signed_requests), signed_requests[0][0], elapsed_ms)
        return [reply if reply is not None and reply.status in (200, 304) else None for reply in replies]

    def ping(self, path: str) -> None:
        """GET a path once. A refusal of the request is an answer too, unless it is about who sent it.

        Raises:
            LanceNamespaceError: no answer came, or the server failed, or it does not know the sender.
        """
        outcome = self._attempt("GET", self._base + path, None, self._headers, "the catalog", NO_OVERRIDES)
        if outcome.status in (0, *REFUSED, 403, 429) or outcome.status >= 500:
            outcome.result()

    def list_pages(
        self,
        path: str,
        model: type[P],
        *,
        about: object,
        query: str = "",
        token_name: str = "pageToken",  # noqa: S107
        first: str | None = "",
        on: ErrorMap = NO_OVERRIDES,
    ) -> Iterator[P]:
        """Yield every page. The empty first token asks an Iceberg server to page at all; None sends no first token."""
        token = first
        seen_tokens: set[str] = set()
        while True:
            parts = [query] if query else []
            parts += [urlencode({token_name: token})] if token is not None else []
            page = self.get(path, model, about=about, query="&".join(parts), on=on)
            yield page
            token = page.next_page_token
            if not token:
                return
            # A server that ignores the token would return its first page forever.
            if token in seen_tokens or len(seen_tokens) >= MAX_PAGES:
                number = len(seen_tokens) + 1
                raise InternalError(f"{about}: the server's list does not end: page {number:,} has the token {token!r}")
            seen_tokens.add(token)

    def create(
        self,
        path: str,
        body: BaseModel,
        model: type[M],
        *,
        about: object,
        lookup: Callable[[], M | None],
        headers: Headers | None = None,
        on: ErrorMap = NO_OVERRIDES,
    ) -> M:
        """Create an object that must not exist yet.

        If the response is lost, `lookup` finds out what became of the request: it returns the object if it is the one
        that was asked for, else None. The request is sent again only if there is no such object, so that it is neither
        lost nor made twice.
        """
        in_doubt = False
        for outcome in self._attempts("POST", path, "", body, headers, about, on):
            if outcome.state is CallState.DONE:
                try:
                    return parse_reply(outcome.result(), model, about)
                except InternalError as error:
                    in_doubt, outcome = True, CallOutcome(CallState.REFUSED, error=error)
            # Once in doubt, always in doubt: a later "already exists" may be about the object that the lost attempt
            # created.
            in_doubt = in_doubt or outcome.state is CallState.UNKNOWN
            if in_doubt and (existing := lookup()) is not None:
                return existing
            if outcome.state is CallState.REFUSED:
                break
        return parse_reply(outcome.result(), model, about)  # raises

    def post(
        self, path: str, body: BaseModel, *, about: object, is_done: Callable[[], bool], on: ErrorMap = NO_OVERRIDES
    ) -> Reply | None:
        """Send a change that must be made at most once.

        If the response is lost, `is_done` checks whether the change was made. Returns None if it was, else the
        response.
        """
        for attempt in self._attempts("POST", path, "", body, None, about, on):
            outcome = _doubt_page(attempt, about)
            if outcome.state is CallState.UNKNOWN and is_done():
                return None
            if outcome.state is not CallState.NOT_HANDLED:
                break
        return outcome.result()

    def commit(
        self,
        path: str,
        body: BaseModel,
        *,
        about: object,
        is_committed: Callable[[], bool | None],
        on: ErrorMap = NO_OVERRIDES,
    ) -> None:
        """Send a change that the server makes only if nobody else was faster.

        If the result is not known, `is_committed` checks: True if the change was made, False if it never will be, None
        if neither is certain yet; then the request is sent again, which is safe because the server applies it once. A
        conflict is checked as well: the change may have been made by an earlier attempt of the same request.

        Raises:
            ConcurrentModificationError: another commit was faster.
            CommitStateUnknownError: the server could not be asked what became of the commit.
        """
        in_doubt = False
        for outcome in self._attempts("POST", path, "", body, None, about, on):
            if outcome.state is CallState.DONE and _is_commit_response(outcome.result()):
                return
            # A 2xx response that is not the catalog's own, such as a proxy's page, proves nothing. Iceberg's
            # specification says the same of 500, which is a plain refusal for all other calls.
            is_lost = outcome.state in (CallState.DONE, CallState.UNKNOWN)
            in_doubt = in_doubt or is_lost or (outcome.status >= 500 and outcome.status not in NOT_MADE)
            if in_doubt or outcome.status == CONFLICT:
                is_made = self._find_commit_state(is_committed)
                if is_made is True:
                    return
                if is_made is False or not in_doubt:
                    raise _conflict_error(about, outcome)
            elif outcome.state is CallState.REFUSED:
                break
        if in_doubt:
            raise CommitStateUnknownError(
                f"{about}: whether the commit was made is not known; read the table again before repeating it: "
                f"{outcome.error or _excerpt(outcome.result().body, 200)}"
            ) from outcome.error
        outcome.result()

    def _find_commit_state(self, is_committed: Callable[[], bool | None]) -> bool | None:
        try:
            return is_committed()
        except (CommitStateUnknownError, InvalidTableStateError):
            raise
        except LanceNamespaceError as error:
            logger.debug("cannot find out whether a commit succeeded: %s", error)
            return None

    def delete(self, path: str, *, about: object, query: str = "", on: ErrorMap = NO_OVERRIDES) -> None:
        """Delete one object. A 404 after an attempt whose response was lost is a success: that attempt deleted it."""
        in_doubt = False
        for attempt in self._attempts("DELETE", path, query, None, None, about, on):
            outcome = _doubt_page(attempt, about)
            if outcome.state is CallState.DONE or (in_doubt and outcome.status == 404):
                return
            in_doubt = in_doubt or outcome.state is CallState.UNKNOWN
            if outcome.state is CallState.REFUSED:
                break
        outcome.result()

    def _attempts(
        self,
        method: str,
        path: str,
        query: str,
        body: BaseModel | None,
        headers: Headers | None,
        about: object,
        on: ErrorMap,
    ) -> Iterator[CallOutcome]:
        """Send a request as long as the caller wants another outcome and retries are left, with pauses in between."""
        url = f"{self._base}{path}?{query}" if query else self._base + path
        data = _encode_body(body, about) if body is not None else None
        all_headers = {**self._headers, **(headers or {}), **({"Content-Type": "application/json"} if data else {})}
        for attempt in count():
            outcome = self._attempt(method, url, data, all_headers, about, on)
            yield outcome
            if not self._wait_before_retry(attempt, outcome):
                return

    def _attempt(
        self, method: str, url: str, data: bytes | None, headers: Headers, about: object, on: ErrorMap
    ) -> CallOutcome:
        """Send a request once; a second time if its token was refused and there is a newer one."""
        try:
            signature = self._auth.sign(method, url, data)
            outcome = self._send_once(method, url, data, {**headers, **signature}, about, on)
            if outcome.status in REFUSED and self._auth.renew(signature):
                signature = self._auth.sign(method, url, data)
                outcome = self._send_once(method, url, data, {**headers, **signature}, about, on)
        except LanceNamespaceError as error:
            # There is no token, so the server did nothing. An earlier attempt of the same call may be in doubt all the
            # same, and its caller has to look it up: an exception would pass for a refusal of the whole call, after
            # which staged manifests are deleted.
            return CallOutcome(CallState.REFUSED, error=error)
        return outcome

    def _send_once(
        self, method: str, url: str, data: bytes | None, headers: Headers, about: object, on: ErrorMap
    ) -> CallOutcome:
        try:
            reply = self._send(method, url, headers, data)
        except UnreachableError as error:
            return CallOutcome(CallState.NOT_HANDLED, error=_prefix_error(about, error))
        except (ResponseLostError, UnreadableResponseError) as error:
            return CallOutcome(CallState.UNKNOWN, error=_prefix_error(about, error))
        if reply.status < 300 or (reply.status == 304 and "If-None-Match" in headers):
            return CallOutcome(CallState.DONE, reply)
        return CallOutcome(
            STATE_BY_STATUS.get(reply.status, CallState.REFUSED), reply, self._error_from_reply(reply, about, on)
        )

    def _error_from_reply(self, reply: Reply, about: object, on: ErrorMap) -> LanceNamespaceError:
        """Convert an error response to an exception with the server's message, with our own secrets masked."""
        type_, message = _parse_error(reply)
        message = mask(message, (*self._secrets, *self._auth.secrets()))
        return from_wire(reply.status, type_, message, about=str(about), on=on)

    def _send(self, method: str, url: str, headers: Headers, body: bytes | None) -> Reply:
        started = time.perf_counter()
        reply = self._transport.send(method, url, headers, body)
        logger.debug("%s %s -> %d in %.0f ms", method, url, reply.status, (time.perf_counter() - started) * 1000)
        return reply

    def _wait_before_retry(self, attempt: int, outcome: CallOutcome) -> bool:
        """Sleep before the next attempt; return False if none is left, or if the server asks for too long a wait."""
        if attempt >= self._retries:
            return False
        backoff_s = min(FIRST_BACKOFF_S * 2**attempt, LONGEST_BACKOFF_S) * random.uniform(0.5, 1)  # noqa: S311
        wait_s = max(backoff_s, _retry_after_s(outcome.reply))
        if wait_s > self._longest_wait_s:
            return False
        time.sleep(wait_s)
        return True

    def _fetch_token(self, uri: str, form: Mapping[str, str]) -> Token:
        """Request an OAuth2 token, with retries. A token server on another host does not get the custom headers."""
        base_headers = (
            self._headers if urlsplit(uri).netloc == urlsplit(self._base).netloc else {"User-Agent": USER_AGENT}
        )
        headers = {**base_headers, "Content-Type": "application/x-www-form-urlencoded"}
        about = f"token from {uri}"
        for attempt in count():
            try:
                reply = self._send("POST", uri, headers, urlencode(form).encode())
            except (UnreachableError, ResponseLostError) as error:
                if not self._wait_before_retry(attempt, CallOutcome(CallState.UNKNOWN)):
                    raise _prefix_error(about, error) from error
                continue
            # Some token endpoints refuse with status 200 and an error of OAuth2 in the body.
            is_refused = reply.status >= 300 or _parse_error(reply)[0]
            if not is_refused:
                return parse_reply(reply, Token, about)
            if reply.status not in STATE_BY_STATUS or not self._wait_before_retry(
                attempt, CallOutcome(CallState.UNKNOWN, reply)
            ):
                raise self._error_from_reply(reply, about, {200: UnauthenticatedError, 400: UnauthenticatedError})
        raise AssertionError("count() does not end")


def _encode_body(body: BaseModel, about: object) -> bytes:
    """Return the JSON of a request.

    Raises:
        InvalidInputError: it contains text that JSON cannot.
    """
    try:
        return body.model_dump_json(exclude_none=True).encode()
    except PydanticSerializationError as error:
        raise InvalidInputError(f"{about}: the request cannot be written as JSON: {error}") from None


def parse_reply(reply: Reply, model: type[M], about: object) -> M:
    """Parse a response as a model.

    Raises:
        InternalError: it is not what the API specifies.
    """
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        # Values in JSON may be secret, so only the field is named; anything else is a proxy's page, whose text helps.
        reason = f"{field}: {first['msg']}" if field else f"it begins with {_excerpt(reply.body, 80)!r}"
        raise InternalError(
            f"{about}: the answer of the server cannot be read: {reason} (HTTP {reply.status})"
        ) from None


def _doubt_page(outcome: CallOutcome, about: object) -> CallOutcome:
    """Return the outcome of a change, as unknown if its 2xx response is an HTML page.

    The response to such a change has no body that must be parsed, so a proxy's sign-in page would pass for a success.
    """
    if outcome.state is not CallState.DONE or not outcome.result().body.lstrip().startswith(b"<"):
        return outcome
    reply = outcome.result()
    message = f"{about}: the answer is a page, not a catalog's: it begins with {_excerpt(reply.body, 80)!r}"
    return CallOutcome(CallState.UNKNOWN, reply, InternalError(f"{message} (HTTP {reply.status})"))


def _is_commit_response(reply: Reply) -> bool:
    """Return whether a 2xx response to a commit is the catalog's own: 204, or a body with the table's metadata."""
    return reply.status == NO_CONTENT or b'"metadata"' in reply.body


def _conflict_error(about: object, outcome: CallOutcome) -> LanceNamespaceError:
    if isinstance(outcome.error, ConcurrentModificationError):
        return outcome.error
    return ConcurrentModificationError(f"{about}: another commit was faster ({outcome.error})")


def _prefix_error(about: object, error: LanceNamespaceError) -> LanceNamespaceError:
    new_error = type(error)(f"{about}: {error}")
    new_error.__cause__ = error.__cause__
    return new_error


def _parse_error(reply: Reply) -> tuple[str, str]:
    """Return type and message of an error response of Iceberg REST, Unity or OAuth2; of other bodies, an excerpt."""
    if 300 <= reply.status < 400 and (address := reply.headers.get("location")):
        address = re.sub(r"//[^/]*@", "//***@", re.split("[?#]", address)[0])  # without what may be secret
        return "", f"the server redirects to {address}; set `endpoint` to its new address"
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        return (FOREIGN_PAGE if reply.body else ""), _excerpt(reply.body, 200)
    match body:
        case {"error": {"message": str(message), **rest}}:
            return str(rest.get("type") or ""), message
        case {"error_code": str(code), **rest}:
            return code, str(rest.get("message") or "")
        case {"error": str(code), **rest}:
            return code, str(rest.get("error_description") or "")
        case {"message": str(message)}:
            return "", message
    return "", _excerpt(reply.body, 200)


def _excerpt(body: bytes, length: int) -> str:
    text = re.sub(
        r"<(style|script|head)\b.*?</\1>|<[^>]*>", " ", body[:4096].decode("utf-8", "replace"), flags=re.S | re.I
    )
    return " ".join(text.split())[:length]


def _retry_after_s(reply: Reply | None) -> float:
    value = reply.headers.get("retry-after", "").strip() if reply else ""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else 0.0
    except ValueError:
        return 0.0


# Authentication: bearer token, OAuth2 client credentials, AWS SigV4, or nothing


class RequestSigner:
    """Adds authentication to requests: a fixed token, or none."""

    def __init__(self, token: str | None = None) -> None:
        self._headers = bearer_headers(token)

    def sign(self, method: str, url: str, body: bytes | None) -> Headers:
        """Return the headers that authenticate a request."""
        return self._headers

    def renew(self, rejected: Headers) -> bool:
        """Return whether a request whose headers were rejected is worth another attempt, after fetching a new token."""
        return False

    def secrets(self) -> list[str]:
        """Return the secrets to mask in error messages, because a server may repeat them."""
        return [value.removeprefix("Bearer ") for value in self._headers.values()]


class ClientCredentials(RequestSigner):
    """OAuth2 client credentials: one token for all threads, renewed before it expires and when it is refused."""

    def __init__(self, settings: ClientSettings, token_uri: str, fetch: FetchToken) -> None:
        assert settings.credential is not None
        super().__init__(settings.auth_token)
        client_id, _, client_secret = settings.credential.partition(":")
        self._form = {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": client_secret,
            "scope": settings.scope,
        }
        self._token_uri = token_uri
        self._fetch = fetch
        self._token_flight: SingleFlight[None] = SingleFlight()
        # A token that the user gave does not say how long it lives: it is used until the server refuses it.
        self._renew_at = float("inf") if settings.auth_token else 0.0

    def sign(self, method: str, url: str, body: bytes | None) -> Headers:
        """Return the current token's header; when it is due, one thread fetches the next one while the others wait."""
        if time.monotonic() >= self._renew_at:
            self.renew(self._headers)
        return self._headers

    def renew(self, rejected: Headers) -> bool:
        """Fetch a new token, unless another thread has done so since the rejected request was signed."""
        self._token_flight.run("token", lambda: self._renew(rejected))
        return True

    def secrets(self) -> list[str]:
        """Return the client's secret, plain and form-encoded, and the token."""
        secret = self._form["client_secret"]
        return [secret, quote_plus(secret), *super().secrets()]

    def _renew(self, rejected: Headers) -> None:
        # Compared by identity: each renewal makes a new mapping, also if the server returns an equal token.
        if self._headers is not rejected:
            return
        token = self._fetch(self._token_uri, self._form)
        life_s = token.expires_in
        self._headers = bearer_headers(token.access_token)
        self._renew_at = (
            float("inf") if life_s is None else time.monotonic() + max(life_s - RENEW_BEFORE_S, life_s * 0.9)
        )


class SigV4(RequestSigner):
    """AWS Signature Version 4, with the credentials that botocore finds.

    They are looked up for each request, so there are no newer ones. The secret key is not sent, and a signature is
    valid for its request only: there is nothing to mask.
    """

    def __init__(self, region: str, service: str) -> None:
        super().__init__()
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.session import Session
        except ImportError as error:
            raise InvalidInputError("property 'sigv4.region' needs botocore: pip install 'lancehouse[aws]'") from error
        logging.getLogger("botocore.auth").addFilter(_is_loggable)
        self._request = AWSRequest
        self._signer = SigV4Auth
        self._session = Session()
        self._region = region
        self._service = service

    def sign(self, method: str, url: str, body: bytes | None) -> Headers:
        """Return the signature over method, URL and body."""
        credentials = self._session.get_credentials()
        if credentials is None:
            raise UnauthenticatedError("property 'sigv4.region' is set, but no AWS credentials were found")
        request = self._request(method=method, url=url, headers={"Content-Type": "application/json"}, data=body)
        self._signer(credentials.get_frozen_credentials(), self._service, self._region).add_auth(request)
        return dict(request.headers)


def _is_loggable(record: logging.LogRecord) -> bool:
    """Return False for botocore's debug record of the signed request, which contains the session token."""
    return not str(record.msg).startswith("CanonicalRequest")


def create_signer(settings: ClientSettings, token_uri: str, fetch: FetchToken) -> RequestSigner:
    """Create the signer that the settings ask for. `token_uri` is the catalog's own token endpoint."""
    if settings.sigv4_region and settings.sigv4_service:
        return SigV4(settings.sigv4_region, settings.sigv4_service)
    if settings.credential:
        return ClientCredentials(settings, settings.oauth2_server_uri or token_uri, fetch)
    return RequestSigner(settings.auth_token)


def bearer_headers(token: str | None) -> dict[str, str]:
    """Return the Authorization header for a token; no header for None."""
    return {"Authorization": f"Bearer {token}"} if token else {}
