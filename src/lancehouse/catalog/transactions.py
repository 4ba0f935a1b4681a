"""Run each change in one database transaction that also stores the request's idempotency key."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import TypeVar

from lancehouse.catalog.callers import Caller
from lancehouse.catalog.errors import AlreadyDoneError
from lancehouse.store import repository
from lancehouse.store.database import Database, Tx

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
