"""Look up and store responses by idempotency key, so that a repeated request is not carried out again."""

from __future__ import annotations

from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import IdempotencyKey
from lancehouse.catalog.transactions import now_ms
from lancehouse.store import repository
from lancehouse.store.database import Database


@dataclass(frozen=True, slots=True)
class IdempotentResponse:
    """How a request ended. Status 0 or no body: it succeeded, and the response is rebuilt from the catalog."""

    status: int
    body: bytes | None


def find_response(database: Database, key: IdempotencyKey) -> IdempotentResponse | None:
    """Return how the request with this key ended, or None if the key is unknown.

    Raises:
        InvalidInputError: the key was used for a different request.
    """
    row = database.read(lambda tx: repository.find_key(tx, key.key))
    if row is None:
        return None
    digest, status, body = row
    if digest != key.digest:
        raise InvalidInputError(f"Idempotency-Key {key.key} was used for another request; take a new one")
    return IdempotentResponse(status, body)


def record_response(database: Database, key: IdempotencyKey, status: int, body: bytes) -> None:
    """Store the response of a refused request, unless the key is already stored."""
    database.write(lambda tx: repository.insert_key(tx, key.key, key.digest, status, body, now_ms()))


def delete_old_keys(database: Database, older_than_s: float) -> int:
    """Delete keys older than this many seconds, and return how many."""
    return database.write(lambda tx: repository.delete_keys_before(tx, now_ms() - int(older_than_s * 1000)))
