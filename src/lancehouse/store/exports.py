"""Parquet copies of Lance tables that scans read."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, delete, func, select, update

from lancehouse.store.columns import NONE, indexed, insertion
from lancehouse.store.model import exports as x
from lancehouse.store.rows import ExportRow
from lancehouse.store.statements import Statement, Tx

COLUMNS = ("warehouse", "table_uuid", "version", "fragment", "columns", "path", "bytes", "rows", "planned_ms")
"""In the order of ExportRow, but for its id."""
TOUCHED = 64
"""Copies that are touched at once."""

EXPORTS = select(x.c.id, *(x.c[name] for name in COLUMNS))
FIND = Statement(
    EXPORTS.where(x.c.table_uuid == bindparam("uuid"), x.c.version == bindparam("wanted")).order_by(x.c.id)
)
OF_TABLE = Statement(EXPORTS.where(x.c.table_uuid == bindparam("uuid")).order_by(x.c.id))
OLDEST = Statement(
    EXPORTS.where(x.c.warehouse == bindparam("place"), x.c.planned_ms < bindparam("before"))
    .order_by(x.c.planned_ms, x.c.id)
    .limit(bindparam("size"))
    .offset(NONE)
)
INSERT = Statement(insertion(x, *COLUMNS).returning(x.c.id))
TOUCH = Statement(
    update(x)
    .where(x.c.id.in_([bindparam(f"id_{number}") for number in range(TOUCHED)]))
    .values(planned_ms=bindparam("now"))
    .returning(x.c.id)
)
SIZE = Statement(select(func.sum(x.c.bytes)).where(x.c.warehouse == bindparam("place")))
DELETE = Statement(delete(x).where(x.c.id == bindparam("export"), x.c.planned_ms < bindparam("before")))


def find_exports(tx: Tx, table_uuid: str, version: str) -> list[ExportRow]:
    """The copies of a version."""
    return [ExportRow(*row) for row in tx.all(FIND, {"uuid": table_uuid, "wanted": version})]


def exports_of(tx: Tx, table_uuid: str) -> list[ExportRow]:
    """The copies of all versions of a table."""
    return [ExportRow(*row) for row in tx.all(OF_TABLE, {"uuid": table_uuid})]


def oldest_exports(tx: Tx, warehouse: str, planned_before_ms: int, limit: int) -> list[ExportRow]:
    """Copies that no plan has named since then, those first that have been unused for longest."""
    values = {"place": warehouse, "before": planned_before_ms, "size": limit}
    return [ExportRow(*row) for row in tx.all(OLDEST, values)]


def insert_export(
    tx: Tx,
    *,
    warehouse: str,
    table_uuid: str,
    version: str,
    fragment: int,
    columns: str,
    path: str,
    bytes: int,
    rows: int,
    planned_ms: int,
) -> ExportRow:
    """Remember a copy."""
    given = (
        warehouse,
        indexed("a uuid", table_uuid),
        indexed("a version", version),
        fragment,
        columns,
        path,
        bytes,
        rows,
        planned_ms,
    )
    (row,) = tx.all(INSERT, dict(zip(COLUMNS, given, strict=True)))
    return ExportRow(row[0], *given)


def touch_exports(tx: Tx, ids: Collection[int], now_ms: int) -> set[int]:
    """Say that a plan names these copies now. Those returned still exist, and are kept for a while."""
    found: set[int] = set()
    ordered = sorted(ids)
    for start in range(0, len(ordered), TOUCHED):
        some = ordered[start : start + TOUCHED]
        padded = some + some[-1:] * (TOUCHED - len(some))
        rows = tx.all(TOUCH, {"now": now_ms, **{f"id_{number}": export for number, export in enumerate(padded)}})
        found.update(row[0] for row in rows)
    return found


def exports_size(tx: Tx, warehouse: str) -> int:
    """Bytes of all copies of a warehouse."""
    (row,) = tx.all(SIZE, {"place": warehouse})
    return int(row[0] or 0)


def delete_export(tx: Tx, id: int, planned_before_ms: int) -> bool:
    """Forget a copy; False if it is gone already, or if a plan has named it meanwhile."""
    return tx.run(DELETE, {"export": id, "before": planned_before_ms}) == 1
