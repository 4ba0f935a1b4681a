"""Idempotency keys: requests that were carried out, so that they are not carried out again."""

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
    """The digest of the request that had this key, and the status and body of its answer."""
    row = tx.fetch_one(FIND, {"called": key})
    return None if row is None else (row[0], row[1], row[2])


def insert_key(tx: Tx, key: str, digest: str, status: int, body: bytes | None, now_ms: int) -> bool:
    """Take a key; False if it is there already. Of two who take it at once, one waits for what becomes of the other."""
    values = {"key": check_indexed("an idempotency key", key), "digest": digest, "status": status, "body": body}
    return tx.run(INSERT, {**values, "created_ms": now_ms}) == 1


def finish_key(tx: Tx, key: str, status: int, body: bytes | None) -> None:
    """Keep the answer with a key."""
    tx.run(FINISH, {"called": key, "new_status": status, "new_body": body})


def delete_keys_before(tx: Tx, before_ms: int) -> int:
    """Forget the keys that were taken before that time, and count them."""
    return tx.run(FORGET, {"before": before_ms})
