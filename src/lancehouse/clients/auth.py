"""Authenticate requests: bearer token, OAuth2 client credentials, AWS SigV4, or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote_plus

from lance_namespace.errors import InvalidInputError, UnauthenticatedError

from lancehouse.caches import SingleFlight
from lancehouse.settings import ClientSettings
from lancehouse.wire.iceberg import Token

Headers = Mapping[str, str]
FetchToken = Callable[[str, Mapping[str, str]], Token]
"""Sends a form to a token endpoint and returns the token."""

RENEW_BEFORE_S = 60.0
"""A token is renewed this many seconds before it expires, or after nine tenths of its lifetime if that is later."""


class RequestSigner(Protocol):
    """Adds authentication to requests."""

    def sign(self, method: str, url: str, body: bytes | None) -> Headers:
        """Return the headers that authenticate a request."""

    def renew(self, rejected: Headers) -> bool:
        """Return whether a request whose headers were rejected is worth another attempt, after fetching a new token."""

    def secrets(self) -> Sequence[str]:
        """Return the secrets to mask in error messages, because a server may repeat them."""


class StaticToken:
    """Sends the same headers with every request: a fixed token, or none."""

    def __init__(self, token: str | None) -> None:
        self._headers = bearer_headers(token)

    def sign(self, method: str, url: str, body: bytes | None) -> Headers:
        """Return the token's header, whatever the request."""
        return self._headers

    def renew(self, rejected: Headers) -> bool:
        """Return False: there is no other token."""
        return False

    def secrets(self) -> Sequence[str]:
        """Return the token."""
        return bearer_tokens(self._headers)


class ClientCredentials:
    """OAuth2 client credentials: one token for all threads, renewed before it expires and when it is refused."""

    def __init__(self, settings: ClientSettings, token_uri: str, fetch: FetchToken) -> None:
        assert settings.credential is not None
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
        self._headers = bearer_headers(settings.auth_token)
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

    def secrets(self) -> Sequence[str]:
        """Return the client's secret, plain and form-encoded, and the token."""
        secret = self._form["client_secret"]
        return [secret, quote_plus(secret), *bearer_tokens(self._headers)]

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


class SigV4:
    """AWS Signature Version 4, with the credentials that botocore finds."""

    def __init__(self, region: str, service: str) -> None:
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

    def renew(self, rejected: Headers) -> bool:
        """Return False: credentials are looked up for each request, so there are no newer ones."""
        return False

    def secrets(self) -> Sequence[str]:
        """Return nothing: the secret key is not sent, and a signature is valid for its request only."""
        return []


def _is_loggable(record: logging.LogRecord) -> bool:
    """Return False for botocore's debug record of the signed request, which contains the session token."""
    return not str(record.msg).startswith("CanonicalRequest")


def create_signer(settings: ClientSettings, token_uri: str, fetch: FetchToken) -> RequestSigner:
    """Create the signer that the settings ask for. `token_uri` is the catalog's own token endpoint."""
    if settings.sigv4_region and settings.sigv4_service:
        return SigV4(settings.sigv4_region, settings.sigv4_service)
    if settings.credential:
        return ClientCredentials(settings, settings.oauth2_server_uri or token_uri, fetch)
    return StaticToken(settings.auth_token)


def bearer_headers(token: str | None) -> dict[str, str]:
    """Return the Authorization header for a token; no header for None."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def bearer_tokens(headers: Headers) -> list[str]:
    """Return the tokens in headers that `bearer_headers` made."""
    return [value.removeprefix("Bearer ") for value in headers.values()]
