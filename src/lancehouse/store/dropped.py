"""Rows of dropped tables: entries without a namespace, which keep their location until they are restored or expire."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, literal_column, select, update

from lancehouse.store.model import DroppedRow, EntryRow
from lancehouse.store.model import dropped as d
from lancehouse.store.model import entries as e
from lancehouse.store.repository import COLUMNS as ENTRY
from lancehouse.store.repository import entry_row
from lancehouse.store.statements import (
    NONE,
    Row,
    Statement,
    Tx,
    UniqueViolationError,
    index_key,
    insert_into,
    join_levels,
    split_levels,
)

COLUMNS = (
    d.c.entry_id,
    d.c.warehouse_id,
    d.c.path,
    d.c.name,
    d.c.dropped_ms,
    d.c.expires_ms,
    d.c.principal,
    d.c.purge,
)
"""Columns in the order of DroppedRow."""

LEAVE_NAMESPACE = Statement(
    update(e)
    .where(e.c.id == bindparam("entry"), e.c.namespace_id.is_not(None))
    .values(namespace_id=literal_column("NULL"))
)
INSERT = Statement(
    insert_into(
        d,
        "entry_id",
        "warehouse_id",
        "path",
        "path_key",
        "name",
        "dropped_ms",
        "expires_ms",
        "principal",
        "purge",
    )
)
OF_TABLE = Statement(
    select(*COLUMNS)
    .where(
        d.c.warehouse_id == bindparam("warehouse"), d.c.path_key == bindparam("here"), d.c.name == bindparam("called")
    )
    .order_by(d.c.dropped_ms.desc(), d.c.entry_id.desc())
)
OF_WAREHOUSE = Statement(
    select(*COLUMNS)
    .where(d.c.warehouse_id == bindparam("warehouse"))
    .order_by(d.c.dropped_ms.desc(), d.c.entry_id.desc())
    .limit(bindparam("size"))
    .offset(NONE)
)
EXPIRED = Statement(
    select(*COLUMNS)
    .where(d.c.warehouse_id == bindparam("warehouse"), d.c.expires_ms <= bindparam("now"))
    .order_by(d.c.expires_ms)
    .limit(bindparam("size"))
    .offset(NONE)
)
ENTRY_OF = Statement(select(*ENTRY).where(e.c.id == bindparam("entry"), e.c.namespace_id.is_(None)))
RESTORE = Statement(
    update(e)
    .where(e.c.id == bindparam("entry"), e.c.namespace_id.is_(None))
    .values(namespace_id=bindparam("namespace"), name=bindparam("called"), updated_ms=bindparam("now"))
)
EXPIRE = Statement(
    update(d)
    .where(d.c.entry_id == bindparam("entry"))
    .values(expires_ms=bindparam("when"), purge=literal_column("TRUE"))
)
DELETE = Statement(delete(d).where(d.c.entry_id == bindparam("entry")))
DELETE_ENTRY = Statement(delete(e).where(e.c.id == bindparam("entry"), e.c.namespace_id.is_(None)))
RELEASE = Statement(
    delete(e).where(
        e.c.namespace_id.is_(None),
        e.c.location_key == bindparam("place"),
        e.c.id.in_(select(d.c.entry_id).where(d.c.purge.is_(literal_column("FALSE")))),
    )
)


def insert_dropped(tx: Tx, row: DroppedRow) -> bool:
    """Take an entry out of its namespace; return False if it is in none any more."""
    if tx.run(LEAVE_NAMESPACE, {"entry": row.entry_id}) != 1:
        return False
    here = join_levels(row.levels)
    tx.run(
        INSERT,
        {
            "entry_id": row.entry_id,
            "warehouse_id": row.warehouse_id,
            "path": here,
            "path_key": index_key(here),
            "name": row.name,
            "dropped_ms": row.dropped_ms,
            "expires_ms": row.expires_ms,
            "principal": row.principal,
            "purge": row.purge,
        },
    )
    return True


def find_dropped(tx: Tx, warehouse_id: int, levels: tuple[str, ...], name: str) -> list[DroppedRow]:
    """Return the dropped tables that had a name, the one dropped last first."""
    values = {"warehouse": warehouse_id, "here": index_key(join_levels(levels)), "called": name}
    return [_row(row) for row in tx.fetch_all(OF_TABLE, values)]


def list_dropped(tx: Tx, warehouse_id: int, limit: int) -> list[DroppedRow]:
    """Return dropped tables of a warehouse, the one dropped last first."""
    return [_row(row) for row in tx.fetch_all(OF_WAREHOUSE, {"warehouse": warehouse_id, "size": limit})]


def list_expired(tx: Tx, warehouse_id: int, now_ms: int, limit: int) -> list[DroppedRow]:
    """Return dropped tables of a warehouse whose time is over."""
    return [_row(row) for row in tx.fetch_all(EXPIRED, {"warehouse": warehouse_id, "now": now_ms, "size": limit})]


def find_dropped_entry(tx: Tx, entry_id: int) -> EntryRow | None:
    """Return the entry of a dropped table; None if it was restored or deleted meanwhile."""
    row = tx.fetch_one(ENTRY_OF, {"entry": entry_id})
    return None if row is None else entry_row(row)


def restore_entry(tx: Tx, entry_id: int, namespace_id: int, name: str, now_ms: int) -> bool:
    """Put a dropped entry into a namespace again; return False if the name is taken there, or the entry is gone."""
    try:
        with tx.savepoint():
            values = {"entry": entry_id, "namespace": namespace_id, "called": name, "now": now_ms}
            restored = tx.run(RESTORE, values) == 1
    except UniqueViolationError:
        return False
    tx.run(DELETE, {"entry": entry_id})
    return restored


def expire(tx: Tx, entry_id: int, expires_ms: int) -> None:
    """Set until when a dropped table can be restored; its files are deleted then."""
    tx.run(EXPIRE, {"entry": entry_id, "when": expires_ms})


def delete_dropped_entry(tx: Tx, entry_id: int) -> bool:
    """Delete the entry of a dropped table; return False if it was restored or deleted meanwhile."""
    return tx.run(DELETE_ENTRY, {"entry": entry_id}) == 1


def release_location(tx: Tx, location_key: str) -> None:
    """Delete dropped entries at a location whose files nobody wants to delete: a new entry may have the files."""
    tx.run(RELEASE, {"place": location_key})


def _row(row: Row) -> DroppedRow:
    entry, warehouse, path, name, dropped_ms, expires_ms, principal, purge = row
    return DroppedRow(entry, warehouse, split_levels(path), name, dropped_ms, expires_ms, principal, bool(purge))
