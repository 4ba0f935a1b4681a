"""Run each change in one transaction, at most once for each idempotency key, and look up what a key did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import TypeVar

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import Caller, IdempotencyKey
from lancehouse.catalog.errors import AlreadyDoneError
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx

T = TypeVar("T")


def write_once(
    database: Database, caller: Caller, work: Callable[[Tx], T], *, body: Callable[[T], bytes] | None = None
) -> T:
    """Run `work` in a write transaction, at most once for each idempotency key; it is durable on return.

    Args:
        database: the database to write to.
        caller: the caller; their idempotency key, if any, is stored in the same transaction.
        work: the change to make.
        body: makes the response that a repeated request gets, where it cannot be rebuilt from the catalog's state.

    Raises:
        AlreadyDoneError: the key is already stored; nothing was changed.
    """
    key = caller.key
    if key is None:
        return database.write(work)

    def write_with_key(tx: Tx) -> T:
        # The key goes first: of two requests with the same key that run at once, the second waits for the first here,
        # and fails before it changes anything.
        if not repository.insert_key(tx, key.key, key.digest, 0, None, now_ms()):
            raise AlreadyDoneError
        result = work(tx)
        if body is not None:
            repository.finish_key(tx, key.key, 200, body(result))
        return result

    return database.write(write_with_key)


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch, the unit of Iceberg's metadata."""
    return int(time() * 1000)


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
