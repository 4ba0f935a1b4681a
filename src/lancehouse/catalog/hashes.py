"""Generate client secrets and bearer tokens, and hash them for storage.

Only hashes are stored. Secrets and tokens are 256 random bits each, so they cannot be guessed. A client's secret is
stored as scrypt with its own salt; the cost is moderate, because wrong secrets must not be a way to keep the server
busy. A bearer token is looked up by its hash, so it is stored as plain SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_PREFIX = "lh_"  # noqa: S105
"""Prefix of static bearer tokens, which tells them from other tokens and makes leaked ones easy to find."""

COST, BLOCK, PARALLEL = 2**13, 8, 1
"""Parameters n, r and p of scrypt."""
MAX_MEMORY = 2**26
"""Memory limit of scrypt, more than our hashes need: a manipulated row must not claim all memory."""


def new_client_id() -> str:
    """Return a new client id, which is not secret."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """Return a new client secret, in hexadecimal, so that no form, header or shell has to quote it."""
    return secrets.token_hex(32)


def new_token() -> str:
    """Return a new static bearer token."""
    return TOKEN_PREFIX + secrets.token_hex(32)


def digest(text: str) -> str:
    """Return the SHA-256 of a text: what is stored of a static token, and a safe cache key for any secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_secret(secret: str) -> str:
    """Return the hash of a client's secret to store: `scrypt$n$r$p$salt$hash`."""
    salt = secrets.token_bytes(16)
    return f"scrypt${COST}${BLOCK}${PARALLEL}${salt.hex()}${_scrypt(secret, salt, COST, BLOCK, PARALLEL).hex()}"


def is_secret_valid(secret: str, secret_hash: str | None) -> bool:
    """Return whether `secret_hash` was made from `secret`.

    It takes the same time if `secret_hash` is None, so that the time does not tell which client ids exist.
    """
    _, cost, block, parallel, salt, expected = (secret_hash or _NOBODY).split("$")
    actual = _scrypt(secret, bytes.fromhex(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(actual, bytes.fromhex(expected)) and secret_hash is not None


def _scrypt(secret: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    text = secret.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=cost, r=block, p=parallel, maxmem=MAX_MEMORY, dklen=32)


_NOBODY = f"scrypt${COST}${BLOCK}${PARALLEL}${'00' * 16}${'00' * 32}"
"""Hash that no secret has, checked in place of that of an unknown client."""
