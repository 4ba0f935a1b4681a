"""Rows of fences: what the database knows of the epoch file in each warehouse, and who renews it."""

from __future__ import annotations

from sqlalchemy import bindparam, func, literal_column, select, update

from lancehouse.store.model import FenceRow
from lancehouse.store.model import audit as a
from lancehouse.store.model import fences as f
from lancehouse.store.statements import WORDS, RowType, Statement, Tx, bind_values, insert_into

FENCE = RowType(f, FenceRow, tokens=WORDS)

ALL = select(*FENCE.columns)
_OF_WAREHOUSE = ALL.where(f.c.warehouse_id == bindparam("warehouse"))
LIST = Statement(ALL)
FIND = Statement(_OF_WAREHOUSE)
LOCK = Statement(_OF_WAREHOUSE.with_for_update())
INSERT = Statement(insert_into(f, *FENCE.names).on_conflict_do_nothing())
UPDATE = Statement(update(f).where(f.c.warehouse_id == bindparam("warehouse")).values(bind_values(*FENCE.names[1:])))
is_closed = f.c.state.in_([literal_column("'fenced'"), literal_column("'adopting'")])
"""Whether a warehouse takes no changes."""
LAST_CHANGE = Statement(select(func.max(a.c.id)))


def list_fences(tx: Tx) -> dict[int, FenceRow]:
    """Return the rows of all warehouses by the warehouse's id."""
    return {row.warehouse_id: row for row in FENCE.fetch_all(tx, LIST, {})}


def find_fence(tx: Tx, warehouse_id: int) -> FenceRow | None:
    """Return the row of a warehouse, or None."""
    return FENCE.fetch_one(tx, FIND, {"warehouse": warehouse_id})


def lock_fence(tx: Tx, warehouse_id: int, new_catalog: str) -> FenceRow:
    """Return the row of a warehouse, locked until the transaction ends; insert it if it is new."""
    new = FenceRow(warehouse_id, new_catalog, 1, (), 0, "open", "", None, "", 0)
    row = FENCE.fetch_one(tx, LOCK, {"warehouse": warehouse_id})
    if row is None:
        tx.run(INSERT, FENCE.values(new))
        row = FENCE.fetch_one(tx, LOCK, {"warehouse": warehouse_id})
    return row or new


def put_fence(tx: Tx, row: FenceRow) -> None:
    """Replace the row of a warehouse."""
    tx.run(UPDATE, {"warehouse": row.warehouse_id, **FENCE.values(row)})


def find_last_change(tx: Tx) -> int:
    """Return the id of the last change in the audit; 0 if there is none."""
    ((last,),) = tx.fetch_all(LAST_CHANGE, {})
    return int(last or 0)
