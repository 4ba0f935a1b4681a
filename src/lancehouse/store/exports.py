"""Rows of Parquet copies in the scan cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import bindparam, delete, func, select, update

from lancehouse.store.model import ExportRow
from lancehouse.store.model import exports as x
from lancehouse.store.statements import RowType, Statement, Tx, check_indexed, insert_into, limit_rows

EXPORT = RowType(x, ExportRow)
TOUCHED = 64
"""Copies that one statement marks."""

EXPORTS = select(*EXPORT.columns)
OF_TABLE = Statement(EXPORTS.where(x.c.table_uuid == bindparam("uuid")).order_by(x.c.id))
OLDEST = Statement(
    limit_rows(
        EXPORTS.where(x.c.warehouse == bindparam("place"), x.c.planned_ms < bindparam("before")).order_by(
            x.c.planned_ms, x.c.id
        )
    )
)
INSERT = Statement(insert_into(x, *EXPORT.names[1:]).returning(x.c.id))
TOUCH = Statement(
    update(x)
    .where(x.c.id.in_([bindparam(f"id_{number}") for number in range(TOUCHED)]))
    .values(planned_ms=bindparam("now"))
    .returning(x.c.id)
)
SIZE = Statement(select(func.sum(x.c.bytes)).where(x.c.warehouse == bindparam("place")))
DELETE = Statement(delete(x).where(x.c.id == bindparam("export"), x.c.planned_ms < bindparam("before")))


def list_exports(tx: Tx, table_uuid: str) -> list[ExportRow]:
    """Return all copies of a table."""
    return EXPORT.fetch_all(tx, OF_TABLE, {"uuid": table_uuid})


def list_oldest_exports(tx: Tx, warehouse: str, planned_before_ms: int, limit: int) -> list[ExportRow]:
    """Return copies that no plan has named since a time, least recently named first."""
    values = {"place": warehouse, "before": planned_before_ms, "size": limit}
    return EXPORT.fetch_all(tx, OLDEST, values)


def insert_export(tx: Tx, new: ExportRow) -> ExportRow:
    """Insert a copy, whatever its id is, and return it with the id that it got."""
    check_indexed("a uuid", new.table_uuid)
    check_indexed("a version", new.version)
    values = EXPORT.values(new)
    del values["id"]
    (row,) = tx.fetch_all(INSERT, values)
    return replace(new, id=row[0])


def touch_exports(tx: Tx, ids: Collection[int], now_ms: int) -> set[int]:
    """Record that a plan names these copies now; return the ids of those that still exist."""
    touched_ids: set[int] = set()
    ordered = sorted(ids)
    for start in range(0, len(ordered), TOUCHED):
        batch = ordered[start : start + TOUCHED]
        # The statement has a fixed number of parameters, so that it is compiled once; repeated ids do no harm.
        padded = batch + batch[-1:] * (TOUCHED - len(batch))
        rows = tx.fetch_all(TOUCH, {"now": now_ms, **{f"id_{number}": export for number, export in enumerate(padded)}})
        touched_ids.update(row[0] for row in rows)
    return touched_ids


def count_export_bytes(tx: Tx, warehouse: str) -> int:
    """Return the bytes of all copies of a warehouse."""
    (row,) = tx.fetch_all(SIZE, {"place": warehouse})
    return int(row[0] or 0)


def delete_export(tx: Tx, id: int, planned_before_ms: int) -> bool:
    """Delete a copy's row; return False if it no longer exists, or if a plan has named it since.

    The condition on `planned_ms` makes this atomic against a plan that is just about to use the copy.
    """
    return tx.run(DELETE, {"export": id, "before": planned_before_ms}) == 1
