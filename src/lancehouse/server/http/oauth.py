"""The OAuth2 token endpoint, as Iceberg clients use it.

- `client_credentials`, with id and secret in the form or as HTTP Basic: a token for the principal.
- token exchange (RFC 8693): a new token for one of ours that has not expired; for an expired one too if the client's
  credential comes with it, as Iceberg's Java library sends it. A static token is returned unchanged.

A scope is accepted and ignored: grants say what a principal may do.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import UnauthenticatedError

from lancehouse.catalog.hashes import TOKEN_PREFIX
from lancehouse.catalog.principals import Principal, Principals
from lancehouse.server.http.login_throttling import LoginAttempts
from lancehouse.server.http.tokens import Tokens

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
