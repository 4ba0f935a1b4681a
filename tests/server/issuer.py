"""An identity provider on 127.0.0.1: it publishes keys, and signs tokens with them or with whatever a test likes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from lancehouse.server.http.auth import IssuerSettings
from tests.servers.loopback import Answer, Loopback, Request

AUDIENCE = "lakehouse"


def new_key(algorithm: str, bits: int = 2048) -> Any:
    """A private key."""
    match algorithm:
        case "RS256":
            return rsa.generate_private_key(65537, bits)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
    raise ValueError(algorithm)


def public(algorithm: str, key: Any, kid: str | None, **more: str) -> dict[str, Any]:
    """The public half, as a JWKS has it."""
    data = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**data, **({"kid": kid} if kid else {}), **more}


class OpenId(Loopback):
    """Answers its configuration and its keys; `says` replaces the answer to a path."""

    def __init__(self) -> None:
        self.private: dict[str, tuple[str, Any]] = {}
        self.keys: list[dict[str, Any]] = []
        self.says: dict[str, Answer] = {}
        super().__init__()

    def add(self, kid: str, algorithm: str = "ES256") -> None:
        """Publish a new key."""
        key = new_key(algorithm)
        self.private[kid] = algorithm, key
        self.keys.append(public(algorithm, key, kid))

    def answer(self, request: Request) -> Answer:
        if request.path in self.says:
            return self.says[request.path]
        if request.path == "/.well-known/openid-configuration":
            return Answer.json({"issuer": self.uri, "jwks_uri": f"{self.uri}/keys"})
        return Answer.json({"keys": self.keys}) if request.path == "/keys" else Answer.json({}, 404)

    def settings(self, **more: Any) -> IssuerSettings:
        """What a server that trusts it is told."""
        return IssuerSettings(**{"issuer": self.uri, "audience": AUDIENCE, **more})

    def token(self, kid: str, changes: Mapping[str, Any] | None = None, /, **header: Any) -> str:
        """A good token for `ada`, with claims changed, or removed where the change is None."""
        now = int(time.time())
        claims = {"iss": self.uri, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600, **(changes or {})}
        algorithm, key = self.private[kid]
        present = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(present, key, algorithm, headers={"kid": kid, **header})

    def count_fetches(self) -> int:
        """How often the keys were fetched."""
        return sum(target == "/keys" for _, target in list(self.requests))


def unsigned_token(claims: Mapping[str, Any]) -> str:
    """A token with `alg` none."""
    return jwt.encode(dict(claims), None, "none")  # type: ignore[arg-type]


def pieces(token: str) -> list[dict[str, Any]]:
    """Header and claims of a token."""
    return [json.loads(jwt.utils.base64url_decode(part)) for part in token.split(".")[:2]]
