"""Rows of namespaces, which may be nested."""

from __future__ import annotations

from collections.abc import Mapping

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError
from sqlalchemy import bindparam, delete, select, update

from lancehouse.store.column_values import (
    EVERYTHING,
    NONE,
    check_indexed,
    from_json,
    index_key,
    insert_into,
    join_levels,
    to_json,
)
from lancehouse.store.database_errors import ForeignKeyViolationError
from lancehouse.store.model import namespaces as n
from lancehouse.store.rows import NamespaceRow
from lancehouse.store.statements import Statement, Tx

HERE = (n.c.warehouse_id == bindparam("warehouse"), n.c.path_key == bindparam("here"))
CHILDREN = select(n.c.name).where(n.c.warehouse_id == bindparam("warehouse"), n.c.name > bindparam("after"))

FIND = Statement(select(n.c.id, n.c.properties).where(*HERE))
LOCK = Statement(select(n.c.id, n.c.properties).where(*HERE).with_for_update(key_share=True))
ROOTS = Statement(CHILDREN.where(n.c.parent_id.is_(None)).order_by(n.c.name).limit(bindparam("size")).offset(NONE))
BELOW = Statement(
    CHILDREN.where(n.c.parent_id == bindparam("parent")).order_by(n.c.name).limit(bindparam("size")).offset(NONE)
)
INSERT = Statement(
    insert_into(n, "warehouse_id", "parent_id", "name", "path", "path_key", "properties")
    .on_conflict_do_nothing()
    .returning(n.c.id)
)
UPDATE = Statement(update(n).where(n.c.id == bindparam("namespace")).values(properties=bindparam("new")))
DELETE = Statement(delete(n).where(n.c.id == bindparam("namespace")))


def find_namespace(tx: Tx, warehouse_id: int, levels: tuple[str, ...], *, lock: bool = False) -> NamespaceRow | None:
    """Return a namespace, or None. With `lock`, nobody else can change its properties until the transaction ends."""
    row = tx.fetch_one(LOCK if lock else FIND, {"warehouse": warehouse_id, "here": index_key(join_levels(levels))})
    return None if row is None else NamespaceRow(row[0], warehouse_id, levels, from_json(row[1]))


def list_namespaces(
    tx: Tx, warehouse_id: int, parent: tuple[str, ...], after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the names of the namespaces directly below `parent`, ordered by code point; none if it does not exist."""
    values = {"warehouse": warehouse_id, "after": after or "", "size": EVERYTHING if limit is None else limit}
    if not parent:
        return [row[0] for row in tx.fetch_all(ROOTS, values)]
    parent_row = find_namespace(tx, warehouse_id, parent)
    return [] if parent_row is None else [row[0] for row in tx.fetch_all(BELOW, {**values, "parent": parent_row.id})]


def insert_namespace(
    tx: Tx, warehouse_id: int, levels: tuple[str, ...], properties: Mapping[str, str]
) -> NamespaceRow | None:
    """Insert a namespace and return it; None if it exists already.

    Raises:
        NamespaceNotFoundError: its parent does not exist.
        InvalidInputError: a name is empty, or cannot be stored.
    """
    if not all(levels) or not levels:
        raise InvalidInputError(f"a namespace and its levels have names: {list(levels)}")
    parent = find_namespace(tx, warehouse_id, levels[:-1]) if levels[1:] else None
    if levels[1:] and parent is None:
        raise _namespace_not_found(levels[:-1])
    here = join_levels(levels)
    values = {
        "warehouse_id": warehouse_id,
        "parent_id": parent and parent.id,
        "name": check_indexed("a namespace's name", levels[-1]),
        "path": here,
        "path_key": index_key(here),
        "properties": to_json(properties),
    }
    try:
        with tx.savepoint():
            row = tx.fetch_one(INSERT, values)
    except ForeignKeyViolationError:  # the parent was dropped meanwhile
        raise _namespace_not_found(levels[:-1]) from None
    return None if row is None else NamespaceRow(row[0], warehouse_id, levels, dict(properties))


def update_namespace(tx: Tx, id: int, properties: Mapping[str, str]) -> bool:
    """Replace all properties of a namespace; return False if it no longer exists."""
    return tx.run(UPDATE, {"namespace": id, "new": to_json(properties)}) == 1


def delete_namespace(tx: Tx, id: int) -> bool:
    """Delete an empty namespace; return False if it is not empty.

    Foreign keys decide that, so an entry that is created at the same moment is not lost.
    """
    try:
        with tx.savepoint():
            tx.run(DELETE, {"namespace": id})
    except ForeignKeyViolationError:
        return False
    return True


def _namespace_not_found(levels: tuple[str, ...]) -> NamespaceNotFoundError:
    return NamespaceNotFoundError(f"Namespace does not exist: {'.'.join(levels)}")
