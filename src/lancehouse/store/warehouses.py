"""Rows of warehouses."""

from __future__ import annotations

from sqlalchemy import bindparam, exists, select, update

from lancehouse.store.column_values import check_indexed, insert_into
from lancehouse.store.model import namespaces as n
from lancehouse.store.model import warehouses as w
from lancehouse.store.rows import WarehouseRow
from lancehouse.store.statements import Statement, Tx

ALL = Statement(select(w.c.id, w.c.name, w.c.location).order_by(w.c.id))
INSERT = Statement(insert_into(w, "name", "location").on_conflict_do_nothing().returning(w.c.id))
MOVE = Statement(update(w).where(w.c.id == bindparam("warehouse")).values(location=bindparam("place")))
IS_USED = Statement(select(exists().where(n.c.warehouse_id == bindparam("warehouse"))))


def list_warehouses(tx: Tx) -> list[WarehouseRow]:
    """Return all warehouses that this database has served, oldest first."""
    return [WarehouseRow(*row) for row in tx.fetch_all(ALL, {})]


def insert_warehouse(tx: Tx, name: str, location: str) -> WarehouseRow | None:
    """Insert a warehouse and return it; None if the name is taken."""
    row = tx.fetch_one(INSERT, {"name": check_indexed("a warehouse's name", name), "location": location})
    return None if row is None else WarehouseRow(row[0], name, location)


def move_warehouse(tx: Tx, id: int, location: str) -> None:
    """Change a warehouse's location."""
    tx.run(MOVE, {"warehouse": id, "place": location})


def is_warehouse_empty(tx: Tx, id: int) -> bool:
    """Return whether a warehouse has no namespaces."""
    (row,) = tx.fetch_all(IS_USED, {"warehouse": id})
    return not row[0]
