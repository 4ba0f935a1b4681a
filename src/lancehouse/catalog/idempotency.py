"""Idempotency keys: what became of requests, so that the same one sent again is answered and not carried out again."""

from __future__ import annotations

from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import IdempotencyKey
from lancehouse.catalog.transactions import now_ms
from lancehouse.store import repository
from lancehouse.store.database import Database


@dataclass(frozen=True, slots=True)
class IdempotentResponse:
    """How a request ended. Status 0 or no body: it succeeded, and the catalog's state tells what to answer."""

    status: int
    body: bytes | None


def find_response(database: Database, key: IdempotencyKey) -> IdempotentResponse | None:
    """What became of the request with this key; None if it was not seen.

    Raises:
        InvalidInputError: the key was sent with another request.
    """
    row = database.read(lambda tx: repository.find_key(tx, key.key))
    if row is None:
        return None
    digest, status, body = row
    if digest != key.digest:
        raise InvalidInputError(f"Idempotency-Key {key.key} was used for another request; take a new one")
    return IdempotentResponse(status, body)


def record_response(database: Database, key: IdempotencyKey, status: int, body: bytes) -> None:
    """Keep a refusal, unless the key is taken."""
    database.write(lambda tx: repository.insert_key(tx, key.key, key.digest, status, body, now_ms()))


def delete_old_keys(database: Database, older_than_s: float) -> int:
    """Drop keys that no client may send any more; how many."""
    return database.write(lambda tx: repository.delete_keys_before(tx, now_ms() - int(older_than_s * 1000)))
