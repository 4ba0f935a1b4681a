"""Rows of fences: what the database knows of the epoch file in each warehouse, and who renews it."""

from __future__ import annotations

from sqlalchemy import bindparam, func, literal_column, select, update

from lancehouse.store.model import FenceRow
from lancehouse.store.model import audit as a
from lancehouse.store.model import fences as f
from lancehouse.store.statements import Row, Statement, Tx, bind_values, insert_into

NAMES = (
    "catalog",
    "epoch",
    "tokens",
    "position",
    "state",
    "reason",
    "renewed_ms",
    "holder",
    "leased_until_ms",
)
"""Columns in the order of FenceRow, after the warehouse's id."""

ALL = Statement(select(f.c.warehouse_id, *(f.c[name] for name in NAMES)))
_OF_WAREHOUSE = select(f.c.warehouse_id, *(f.c[name] for name in NAMES)).where(
    f.c.warehouse_id == bindparam("warehouse")
)
FIND = Statement(_OF_WAREHOUSE)
LOCK = Statement(_OF_WAREHOUSE.with_for_update())
INSERT = Statement(insert_into(f, "warehouse_id", *NAMES).on_conflict_do_nothing())
UPDATE = Statement(update(f).where(f.c.warehouse_id == bindparam("warehouse")).values(bind_values(*NAMES)))
is_closed = f.c.state.in_([literal_column("'fenced'"), literal_column("'adopting'")])
"""Whether a warehouse takes no changes."""
LAST_CHANGE = Statement(select(func.max(a.c.id)))


def list_fences(tx: Tx) -> dict[int, FenceRow]:
    """Return the rows of all warehouses by the warehouse's id."""
    return {row[0]: _row(row) for row in tx.fetch_all(ALL, {})}


def find_fence(tx: Tx, warehouse_id: int) -> FenceRow | None:
    """Return the row of a warehouse, or None."""
    row = tx.fetch_one(FIND, {"warehouse": warehouse_id})
    return None if row is None else _row(row)


def lock_fence(tx: Tx, warehouse_id: int, new_catalog: str) -> FenceRow:
    """Return the row of a warehouse, which nobody else changes until the transaction ends; insert it if it is new."""
    new = FenceRow(warehouse_id, new_catalog, 1, (), 0, "open", "", None, "", 0)
    row = tx.fetch_one(LOCK, {"warehouse": warehouse_id})
    if row is None:
        tx.run(INSERT, {"warehouse_id": warehouse_id, **_values(new)})
        row = tx.fetch_one(LOCK, {"warehouse": warehouse_id})
    return new if row is None else _row(row)


def put_fence(tx: Tx, row: FenceRow) -> None:
    """Replace the row of a warehouse."""
    tx.run(UPDATE, {"warehouse": row.warehouse_id, **_values(row)})


def find_last_change(tx: Tx) -> int:
    """Return the id of the last change in the audit; 0 if there is none."""
    ((last,),) = tx.fetch_all(LAST_CHANGE, {})
    return int(last or 0)


def _values(row: FenceRow) -> dict[str, object]:
    return {**{name: getattr(row, name) for name in NAMES}, "tokens": " ".join(row.tokens)}


def _row(row: Row) -> FenceRow:
    warehouse_id, catalog, epoch, tokens, *rest = row
    return FenceRow(warehouse_id, catalog, epoch, tuple(tokens.split()), *rest)
