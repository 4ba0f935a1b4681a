"""Rows of idempotency keys: requests that were carried out, with their responses."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select, update

from lancehouse.store.column_values import check_indexed, insert_into
from lancehouse.store.model import keys as k
from lancehouse.store.statements import Statement, Tx

FIND = Statement(select(k.c.digest, k.c.status, k.c.body).where(k.c.key == bindparam("called")))
INSERT = Statement(insert_into(k, "key", "digest", "status", "body", "created_ms").on_conflict_do_nothing())
FINISH = Statement(
    update(k).where(k.c.key == bindparam("called")).values(status=bindparam("new_status"), body=bindparam("new_body"))
)
FORGET = Statement(delete(k).where(k.c.created_ms < bindparam("before")))


def find_key(tx: Tx, key: str) -> tuple[str, int, bytes | None] | None:
    """Return digest, status and body stored for a key, or None."""
    row = tx.fetch_one(FIND, {"called": key})
    return None if row is None else (row[0], row[1], row[2])


def insert_key(tx: Tx, key: str, digest: str, status: int, body: bytes | None, now_ms: int) -> bool:
    """Insert a key; return False if it exists already.

    If two transactions insert the same key at once, the second waits until the first has ended.
    """
    values = {"key": check_indexed("an idempotency key", key), "digest": digest, "status": status, "body": body}
    return tx.run(INSERT, {**values, "created_ms": now_ms}) == 1


def finish_key(tx: Tx, key: str, status: int, body: bytes | None) -> None:
    """Store the response of a key."""
    tx.run(FINISH, {"called": key, "new_status": status, "new_body": body})


def delete_keys_before(tx: Tx, before_ms: int) -> int:
    """Delete keys created before a time, and return their number."""
    return tx.run(FORGET, {"before": before_ms})
