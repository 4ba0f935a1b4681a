"""Changes of the catalog: one transaction each, which also remembers the request's idempotency key."""

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
    """Carry out `work`, once for each idempotency key; it is durable when this returns.

    Args:
        database: where.
        caller: whose key, if there is one, is remembered in the same transaction.
        work: the change.
        body: what is to be answered again to the same request, where the catalog's state does not tell.

    Raises:
        AlreadyDoneError: the key is known; nothing was done.
    """
    key = caller.key
    if key is None:
        return database.write(work)

    def write_with_key(tx: Tx) -> T:
        if not repository.insert_key(tx, key.key, key.digest, 0, None, now_ms()):
            raise AlreadyDoneError
        result = work(tx)
        if body is not None:
            repository.finish_key(tx, key.key, 200, body(result))
        return result

    return database.write(write_with_key)


def now_ms() -> int:
    """The time, in the unit of Iceberg's metadata."""
    return int(time() * 1000)
