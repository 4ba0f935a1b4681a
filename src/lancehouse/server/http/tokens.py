"""The tokens that the server issues: signed, expiring, worth nothing after their principal's secret has changed."""

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
"""What taking a token apart may raise, whatever somebody put into it."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token of ours says, once its signature is checked."""

    name: str
    generation: str
    expires_at: float


class Tokens:
    """Issues and verifies; the key comes from the database at first need, the same for all servers on it."""

    def __init__(self, principals: Principals, lifetime_s: int = LIFETIME_S) -> None:
        self._principals = principals
        self.lifetime_s = lifetime_s

    def issue(self, principal: Principal) -> str:
        """A new token for a principal that has proved who it is."""
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
        """What a token says; with `allow_expired`, also one whose time is over.

        Raises:
            UnauthenticatedError: not signed by us, expired, or malformed.
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
    """Who a token says it comes from; nothing is checked yet. None: it is no token of that kind."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except MALFORMED:
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None
