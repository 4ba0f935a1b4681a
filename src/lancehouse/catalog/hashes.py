"""Secrets that we make, and what is kept of them: hashes only.

A secret and a token are 256 random bits each, so nobody finds one by trying. A client's secret is kept as scrypt with a
salt of its own; its cost is moderate because a wrong secret must not be a way to keep the server busy. A bearer token
is looked up by its hash, and is kept as plain SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_PREFIX = "lh_"  # noqa: S105
"""How static bearer tokens begin: they are told from others, and found where they leaked."""

COST, BLOCK, PARALLEL = 2**13, 8, 1
MAX_MEMORY = 2**26
"""More than any hash of ours needs, so that a row somebody tampered with cannot ask for all memory."""


def new_client_id() -> str:
    """A name for a client, which is no secret."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """A client's secret: hexadecimal, so that no form, header or shell has to quote it."""
    return secrets.token_hex(32)


def new_token() -> str:
    """A static bearer token."""
    return TOKEN_PREFIX + secrets.token_hex(32)


def digest(text: str) -> str:
    """What is kept of a static token; also the key under which anything secret may be remembered."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_secret(secret: str) -> str:
    """What is kept of a client's secret: `scrypt$n$r$p$salt$hash`."""
    salt = secrets.token_bytes(16)
    return f"scrypt${COST}${BLOCK}${PARALLEL}${salt.hex()}${_scrypt(secret, salt, COST, BLOCK, PARALLEL).hex()}"


def is_secret_valid(secret: str, secret_hash: str | None) -> bool:
    """Whether `secret_hash` was made from `secret`. It takes as long where nothing is kept."""
    _, cost, block, parallel, salt, expected = (secret_hash or _NOBODY).split("$")
    actual = _scrypt(secret, bytes.fromhex(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(actual, bytes.fromhex(expected)) and secret_hash is not None


def _scrypt(secret: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    text = secret.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=cost, r=block, p=parallel, maxmem=MAX_MEMORY, dklen=32)


_NOBODY = f"scrypt${COST}${BLOCK}${PARALLEL}${'00' * 16}${'00' * 32}"
