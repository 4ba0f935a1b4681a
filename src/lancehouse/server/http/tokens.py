"""Access tokens that the server issues: signed JWTs that expire and end when the principal's secret changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any

import jwt
from lance_namespace.errors import UnauthenticatedError

from lancehouse.catalog.principals import Principal, Principals

ISSUER = AUDIENCE = "urn:lancehouse"
ALGORITHM = "HS256"
LIFETIME_S = 3600

MALFORMED = (jwt.PyJWTError, ArithmeticError, TypeError, ValueError, RecursionError)
"""Exceptions that parsing a token may raise, whatever it contains."""


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
        except MALFORMED:
            raise UnauthenticatedError("the bearer token is malformed; ask for a new one") from None

    @cached_property
    def _key(self) -> bytes:
        return bytes.fromhex(self._principals.get_signing_key())


def unverified_issuer(token: str) -> str | None:
    """Return the issuer that a token claims, without any verification; None if it is not a JWT or has no issuer."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except MALFORMED:
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None
