"""Rows of dropped tables: entries without a namespace, which keep their location until they are restored or expire."""

from __future__ import annotations

from lance_namespace.errors import TableNotFoundError
from sqlalchemy import bindparam, delete, literal_column, select, update

from lancehouse.store.model import DroppedRow, EntryRow
from lancehouse.store.model import dropped as d
from lancehouse.store.model import entries as e
from lancehouse.store.repository import ENTRY, STILL_THERE, name_values, namespace_dropped_error
from lancehouse.store.statements import (
    FLAG,
    LEVELS,
    ForeignKeyViolationError,
    RowType,
    Statement,
    Tx,
    UniqueViolationError,
    index_key,
    insert_into,
    join_levels,
    limit_rows,
)

DROPPED = RowType(d, DroppedRow, levels=LEVELS, purge=FLAG)

LEAVE_NAMESPACE = Statement(update(e).where(*STILL_THERE).values(namespace_id=literal_column("NULL")))
INSERT = Statement(insert_into(d, *DROPPED.names, "path_key"))
_IN_WAREHOUSE = select(*DROPPED.columns).where(d.c.warehouse_id == bindparam("warehouse"))
_LAST_FIRST = (d.c.dropped_ms.desc(), d.c.entry_id.desc())
OF_TABLE = Statement(
    _IN_WAREHOUSE.where(d.c.path_key == bindparam("here"), d.c.name == bindparam("called")).order_by(*_LAST_FIRST)
)
OF_WAREHOUSE = Statement(limit_rows(_IN_WAREHOUSE.order_by(*_LAST_FIRST)))
EXPIRED = Statement(limit_rows(_IN_WAREHOUSE.where(d.c.expires_ms <= bindparam("now")).order_by(d.c.expires_ms)))
ENTRY_OF = Statement(select(*ENTRY.columns).where(e.c.id == bindparam("entry"), e.c.namespace_id.is_(None)))
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
TAKE_BACK = Statement(delete(d).where(d.c.entry_id == bindparam("entry"), d.c.expires_ms > bindparam("now")))
DELETE_ENTRY = Statement(delete(e).where(e.c.id == bindparam("entry"), e.c.namespace_id.is_(None)))
RELEASE = Statement(
    delete(d)
    .where(
        d.c.purge.is_(literal_column("FALSE")),
        d.c.entry_id.in_(select(e.c.id).where(e.c.namespace_id.is_(None), e.c.location_key == bindparam("place"))),
    )
    .returning(d.c.entry_id)
)


def insert_dropped(tx: Tx, row: DroppedRow, entry: EntryRow) -> bool:
    """Take an entry out of its namespace; return False if it was dropped or renamed meanwhile."""
    if tx.run(LEAVE_NAMESPACE, name_values(entry)) != 1:
        return False
    tx.run(INSERT, {**DROPPED.values(row), "path_key": index_key(join_levels(row.levels))})
    return True


def find_dropped(tx: Tx, warehouse_id: int, levels: tuple[str, ...], name: str) -> list[DroppedRow]:
    """Return the dropped tables that had a name, the one dropped last first."""
    values = {"warehouse": warehouse_id, "here": index_key(join_levels(levels)), "called": name}
    return DROPPED.fetch_all(tx, OF_TABLE, values)


def list_dropped(tx: Tx, warehouse_id: int, limit: int) -> list[DroppedRow]:
    """Return dropped tables of a warehouse, the one dropped last first."""
    return DROPPED.fetch_all(tx, OF_WAREHOUSE, {"warehouse": warehouse_id, "size": limit})


def list_expired(tx: Tx, warehouse_id: int, now_ms: int, limit: int) -> list[DroppedRow]:
    """Return dropped tables of a warehouse whose time is over."""
    return DROPPED.fetch_all(tx, EXPIRED, {"warehouse": warehouse_id, "now": now_ms, "size": limit})


def find_dropped_entry(tx: Tx, entry_id: int) -> EntryRow | None:
    """Return the entry of a dropped table; None if it was restored or deleted meanwhile."""
    return ENTRY.fetch_one(tx, ENTRY_OF, {"entry": entry_id})


def take_back(tx: Tx, entry_id: int, now_ms: int) -> bool:
    """Have a dropped table expire no more; return False if its time is over, or it was restored or deleted.

    Whoever restores it does this first, and whoever purges it sets its time first. Both change the same row, so that
    one of two that do so at once waits, and then finds what the other has done.
    """
    return tx.run(TAKE_BACK, {"entry": entry_id, "now": now_ms}) == 1


def restore_entry(tx: Tx, entry_id: int, namespace_id: int, name: str, now_ms: int) -> bool:
    """Put an entry that was taken back into a namespace again; return False if the name is taken there.

    Raises:
        TableNotFoundError: it was restored or deleted meanwhile.
        NamespaceNotFoundError: the namespace has been dropped.
    """
    values = {"entry": entry_id, "namespace": namespace_id, "called": name, "now": now_ms}
    try:
        with tx.savepoint():
            row_count = tx.run(RESTORE, values)
    except UniqueViolationError:
        return False
    except ForeignKeyViolationError:
        raise namespace_dropped_error() from None
    if not row_count:
        raise TableNotFoundError(f"Table does not exist: it was restored or deleted before it could become {name}")
    return True


def expire(tx: Tx, entry_id: int, expires_ms: int) -> bool:
    """Set until when a dropped table can be restored; its files are deleted then. False: it is none any more."""
    return tx.run(EXPIRE, {"entry": entry_id, "when": expires_ms}) == 1


def delete_dropped_entry(tx: Tx, entry_id: int) -> bool:
    """Delete the entry of a dropped table; return False if it was restored or deleted meanwhile."""
    return tx.run(DELETE_ENTRY, {"entry": entry_id}) == 1


def release_location(tx: Tx, location_key: str) -> None:
    """Delete dropped entries at a location whose files are to stay, so that a new entry can have the files."""
    for row in tx.fetch_all(RELEASE, {"place": location_key}):
        delete_dropped_entry(tx, row[0])
