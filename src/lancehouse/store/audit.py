"""Rows of the audit: every change with who made it, numbered for those who follow the changes as events."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, func, literal_column, or_, select, update

from lancehouse.store.maintenance import find_mark, put_mark
from lancehouse.store.model import AuditRow
from lancehouse.store.model import audit as a
from lancehouse.store.model import webhooks as h
from lancehouse.store.statements import EVERYTHING, JSON, LEVELS, RowType, Statement, Tx, insert_into, limit_rows

CHANGES = RowType(a, AuditRow, levels=LEVELS, before=JSON, after=JSON)
NUMBERING = 1_106_342_171
"""Number of the lock that is held to number changes."""
MOST_NUMBERED = 10_000
"""Most changes that are numbered at once."""
LAST_POSITION = "audit.position"
"""Mark with the last position that was given when changes were deleted."""

INSERT = Statement(insert_into(a, *CHANGES.names))
_RECENT = limit_rows(
    select(a.c.id, *CHANGES.columns)
    .where(a.c.id < bindparam("below"), a.c.at_ms >= bindparam("since"), a.c.at_ms < bindparam("until"))
    .order_by(a.c.id.desc())
)
# Planned anew: a time without a beginning or an end must not be looked for in its index.
RECENT = Statement(_RECENT, is_planned_anew=True)
RECENT_OF = Statement(_RECENT.where(a.c.name == bindparam("called")), is_planned_anew=True)
UNNUMBERED = Statement(limit_rows(select(a.c.id).where(a.c.position.is_(None)).order_by(a.c.id)))
LAST = Statement(select(func.max(a.c.position)))
NUMBER = Statement(update(a).where(a.c.id == bindparam("row")).values(position=bindparam("number")))
AFTER = Statement(
    limit_rows(
        select(a.c.position, *CHANGES.columns)
        .where(a.c.position > bindparam("after"), a.c.warehouse != literal_column("''"))
        .order_by(a.c.position)
    )
)
WEBHOOK = Statement(select(h.c.position).where(h.c.name == bindparam("called")))
INSERT_WEBHOOK = Statement(insert_into(h, "name", "position", "holder", "leased_until_ms").on_conflict_do_nothing())
LEASE_WEBHOOK = Statement(
    update(h)
    .where(
        h.c.name == bindparam("called"),
        or_(h.c.holder == bindparam("new_holder"), h.c.leased_until_ms < bindparam("now")),
    )
    .values(holder=bindparam("new_holder"), leased_until_ms=bindparam("until"))
    .returning(h.c.position)
)
MOVE_WEBHOOK = Statement(
    update(h)
    .where(h.c.name == bindparam("called"), h.c.holder == bindparam("own"))
    .values(position=bindparam("reached"), leased_until_ms=bindparam("until"))
)
DELETE_BEFORE = Statement(delete(a).where(a.c.at_ms < bindparam("until")))


def insert_change(tx: Tx, row: AuditRow) -> None:
    """Insert a change, in the transaction that makes it."""
    tx.run(INSERT, CHANGES.values(row))


def list_changes(
    tx: Tx, *, below: int | None, since_ms: int, until_ms: int | None, name: str | None, limit: int
) -> list[tuple[int, AuditRow]]:
    """Return changes with their ids, newest first: those before an id, within a time, of one name."""
    values = {
        "below": EVERYTHING if below is None else below,
        "since": since_ms,
        "until": EVERYTHING if until_ms is None else until_ms,
        "size": limit,
    }
    rows = tx.fetch_all(RECENT, values) if name is None else tx.fetch_all(RECENT_OF, {**values, "called": name})
    return [(row[0], CHANGES.read(row[1:])) for row in rows]


def number_changes(tx: Tx) -> int:
    """Number changes that have no position yet, in the order of their ids, and return how many.

    Ids are given before a transaction ends, so a change may become visible after others with greater ids, and who reads
    by id would miss it. Positions are given to what is visible, by one at a time. The changes of one table wait for
    each other, so that their ids, and their positions too, are in order.
    """
    tx.lock(NUMBERING, ())
    ids = [row[0] for row in tx.fetch_all(UNNUMBERED, {"size": MOST_NUMBERED})]
    first = find_last_position(tx) + 1
    tx.run_many(NUMBER, [{"row": row, "number": first + offset} for offset, row in enumerate(ids)])
    return len(ids)


def list_numbered(tx: Tx, after: int, limit: int) -> Sequence[tuple[int, AuditRow]]:
    """Return changes of warehouses with their positions, those after one, in order."""
    return [(row[0], CHANGES.read(row[1:])) for row in tx.fetch_all(AFTER, {"after": after, "size": limit})]


def find_last_position(tx: Tx) -> int:
    """Return the last position that was given; 0 if none was."""
    ((last,),) = tx.fetch_all(LAST, {})
    return max(last or 0, find_mark(tx, LAST_POSITION) or 0)


def has_unnumbered(tx: Tx) -> bool:
    """Return whether there are changes without a position."""
    return tx.fetch_one(UNNUMBERED, {"size": 1}) is not None


def find_webhook(tx: Tx, name: str) -> int | None:
    """Return the position up to which a webhook has got events; None if it is new."""
    row = tx.fetch_one(WEBHOOK, {"called": name})
    return None if row is None else int(row[0])


def insert_webhook(tx: Tx, name: str, position: int) -> None:
    """Insert a webhook, unless another server was faster."""
    tx.run(INSERT_WEBHOOK, {"name": name, "position": position, "holder": "", "leased_until_ms": 0})


def lease_webhook(tx: Tx, name: str, holder: str, now_ms: int, until_ms: int) -> int | None:
    """Lease a webhook, or prolong the own lease, and return its position; None if another holds it."""
    values = {"called": name, "new_holder": holder, "now": now_ms, "until": until_ms}
    row = tx.fetch_one(LEASE_WEBHOOK, values)
    return None if row is None else int(row[0])


def move_webhook(tx: Tx, name: str, holder: str, position: int, until_ms: int) -> bool:
    """Record that a webhook has got events up to a position; return False if the lease is another's now."""
    values = {"called": name, "own": holder, "reached": position, "until": until_ms}
    return tx.run(MOVE_WEBHOOK, values) == 1


def delete_changes(tx: Tx, until_ms: int) -> int:
    """Delete the changes before a time, and return how many.

    Webhooks and clients go on from positions that they store. If all changes are deleted, the mark keeps positions from
    starting at 1 again, below those: every event would be missed until they were reached.
    """
    tx.lock(NUMBERING, ())
    put_mark(tx, LAST_POSITION, find_last_position(tx))
    return tx.run(DELETE_BEFORE, {"until": until_ms})
