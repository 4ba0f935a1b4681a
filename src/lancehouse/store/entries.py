"""Rows of tables and views: find, list, insert, change, rename and delete entries; find overlapping locations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError
from sqlalchemy import bindparam, delete, func, literal_column, or_, select, update

from lancehouse.store.column_values import (
    EVERYTHING,
    NONE,
    SEPARATOR,
    check_indexed,
    from_json,
    index_key,
    insert_into,
    join_levels,
    split_levels,
    to_json,
)
from lancehouse.store.database_errors import ForeignKeyViolationError, UniqueViolationError
from lancehouse.store.model import entries as e
from lancehouse.store.model import namespaces as n
from lancehouse.store.model import warehouses as w
from lancehouse.store.rows import EntryRow, Json, Kind
from lancehouse.store.statements import Row, Statement, Tx

COLUMNS = (
    e.c.id,
    e.c.namespace_id,
    e.c.name,
    e.c.kind,
    e.c.uuid,
    e.c.location,
    e.c.properties,
    e.c.revision,
    e.c.created_ms,
    e.c.updated_ms,
    e.c.schema,
    e.c.version,
    e.c.metadata_location,
)
"""Columns in the order of EntryRow."""
NEW = (*(column.name for column in COLUMNS[1:]), "location_key")
KINDS = ("kind_0", "kind_1", "kind_2")
JSON = frozenset({"properties", "schema"})
"""Columns that hold JSON."""
CHANGEABLE = frozenset({*JSON, "version", "metadata_location", "location", "location_key", "uuid"})
"""Columns that `advance_entry` may change."""
ABOVE = 16
"""Parent folders that one statement looks up."""

FIND = Statement(
    select(*COLUMNS)
    .join(n, n.c.id == e.c.namespace_id)
    .where(
        n.c.warehouse_id == bindparam("warehouse"), n.c.path_key == bindparam("here"), e.c.name == bindparam("called")
    )
)
LIST = Statement(
    select(e.c.name)
    .where(
        e.c.namespace_id == bindparam("namespace"),
        e.c.kind.in_([bindparam(kind) for kind in KINDS]),
        e.c.name > bindparam("after"),
    )
    .order_by(e.c.name)
    .limit(bindparam("size"))
    .offset(NONE)
)
LIST_REST = Statement(
    select(e.c.name)
    .join(n, n.c.id == e.c.namespace_id)
    .where(
        n.c.warehouse_id == bindparam("warehouse"),
        n.c.path_key == bindparam("here"),
        e.c.kind == bindparam("kind_0"),
        e.c.name > bindparam("after"),
    )
    .order_by(e.c.name)
    .limit(bindparam("size"))
    .offset(NONE)
)
INSERT = Statement(
    insert_into(e, *NEW).on_conflict_do_nothing(index_elements=[e.c.namespace_id, e.c.name]).returning(e.c.id)
)
RENAME = Statement(
    update(e)
    .where(e.c.id == bindparam("entry"))
    .values(namespace_id=bindparam("namespace"), name=bindparam("called"), updated_ms=bindparam("now"))
)
DELETE = Statement(delete(e).where(e.c.id == bindparam("entry")))
OVERLAPPING = Statement(
    select(n.c.path, e.c.name)
    .join(n, n.c.id == e.c.namespace_id)
    .where(
        or_(
            (e.c.location_key >= bindparam("first")) & (e.c.location_key < bindparam("end")),
            e.c.location_key.in_([bindparam(f"above_{number}") for number in range(ABOVE)]),
        ),
        e.c.kind != literal_column("'view'"),
        e.c.id != bindparam("exclude"),
    )
    .limit(literal_column("1"))
    .offset(NONE)
)

ENCLOSING = Statement(
    select(w.c.name, n.c.path)
    .select_from(e)
    .join(n, n.c.id == e.c.namespace_id)
    .join(w, w.c.id == n.c.warehouse_id)
    .where(
        e.c.location_key.in_([bindparam(f"above_{number}") for number in range(ABOVE)]),
        e.c.kind != literal_column("'view'"),
    )
    .limit(literal_column("1"))
    .offset(NONE)
)


def find_entry(tx: Tx, warehouse_id: int, levels: tuple[str, ...], name: str) -> EntryRow | None:
    """Return a table or view, or None."""
    row = tx.fetch_one(FIND, {"warehouse": warehouse_id, "here": index_key(join_levels(levels)), "called": name})
    return None if row is None else _entry_row(row)


def list_entries(
    tx: Tx, namespace_id: int, kinds: Collection[Kind], after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the names of a namespace's entries of these kinds, ordered by code point."""
    if not kinds:
        return []
    padded_kinds = [*kinds, *[next(iter(kinds))] * len(KINDS)]
    values = {"namespace": namespace_id, "after": after or "", "size": EVERYTHING if limit is None else limit}
    return [row[0] for row in tx.fetch_all(LIST, {**values, **dict(zip(KINDS, padded_kinds, strict=False))})]


def list_entries_in_warehouse(
    tx: Tx,
    warehouse_id: int,
    kind: Kind,
    after: tuple[tuple[str, ...], str] | None = None,
    limit: int | None = None,
    below: Collection[tuple[str, ...]] = (),
) -> list[tuple[tuple[str, ...], str]]:
    """Return namespace and name of all entries of a kind in a warehouse, in the order of an index.

    Args:
        tx: the transaction.
        warehouse_id: id of the warehouse.
        kind: kind of the entries.
        after: the last entry of the previous page, which may have been deleted since.
        limit: most entries to return.
        below: return only entries in these namespaces and below; if empty, in all.
    """
    size = EVERYTHING if limit is None else limit
    entries: list[tuple[tuple[str, ...], str]] = []
    namespace_key = ""
    if after is not None:
        # The rest of one namespace, then the namespaces after it: each is one range of an index.
        namespace_key = index_key(join_levels(after[0]))
        values = {"warehouse": warehouse_id, "here": namespace_key, "kind_0": kind, "after": after[1], "size": size}
        entries = [(after[0], row[0]) for row in tx.fetch_all(LIST_REST, values)]
    paths = [join_levels(levels) for levels in below]
    values = {"warehouse": warehouse_id, "here": namespace_key, "kind_0": kind, "size": size - len(entries)}
    for number, root in enumerate(paths):
        start = f"{root}{SEPARATOR}"
        values |= {f"place_{number}": root, f"start_{number}": start, f"length_{number}": len(start)}
    return entries + [(split_levels(row[0]), row[1]) for row in tx.fetch_all(_list_statement(len(paths)), values)]


@cache
def _list_statement(places: int) -> Statement:
    """Return the statement that lists entries after a namespace, restricted to that many subtrees."""
    clause = (
        select(n.c.path, e.c.name)
        .join(e, e.c.namespace_id == n.c.id)
        .where(
            n.c.warehouse_id == bindparam("warehouse"),
            n.c.path_key > bindparam("here"),
            e.c.kind == bindparam("kind_0"),
        )
    )
    if places:
        within = [
            (n.c.path == bindparam(f"place_{number}"))
            | (
                func.substr(n.c.path, literal_column("1"), bindparam(f"length_{number}"))
                == bindparam(f"start_{number}")
            )
            for number in range(places)
        ]
        clause = clause.where(or_(*within))
    return Statement(clause.order_by(n.c.path_key, e.c.name).limit(bindparam("size")).offset(NONE))


def insert_entry(
    tx: Tx,
    namespace_id: int,
    *,
    name: str,
    kind: Kind,
    uuid: str,
    location: str,
    location_key: str,
    properties: Mapping[str, str],
    now_ms: int,
    schema: Json | None = None,
    version: int | None = None,
    metadata_location: str | None = None,
) -> EntryRow | None:
    """Insert an entry at revision 1 and return it; None if the name is taken.

    Raises:
        NamespaceNotFoundError: the namespace has been dropped.
        InvalidInputError: a value cannot be stored.
    """
    values: dict[str, Any] = {
        "namespace_id": namespace_id,
        "name": check_indexed("a name", name),
        "kind": kind,
        "uuid": uuid,
        "location": check_indexed("a location", location),
        "properties": dict(properties),
        "revision": 1,
        "created_ms": now_ms,
        "updated_ms": now_ms,
        "schema": schema,
        "version": version,
        "metadata_location": metadata_location,
    }
    try:
        with tx.savepoint():
            row = tx.fetch_one(
                INSERT, {**_to_columns(values), "location_key": check_indexed("a location", location_key)}
            )
    except ForeignKeyViolationError:
        raise _namespace_dropped() from None
    return None if row is None else EntryRow(id=row[0], **values)


def advance_entry(tx: Tx, id: int, expected_revision: int, *, now_ms: int, **changes: Any) -> bool:
    """Change an entry if it is still at the expected revision; return False if it has changed or no longer exists.

    This is the compare-and-swap by which one of two concurrent commits wins.

    Args:
        tx: the transaction.
        id: id of the entry.
        expected_revision: the revision that the changes were made from.
        now_ms: the current time.
        changes: new values of properties, schema, version, metadata_location, uuid, or location with location_key.
    """
    unknown = changes.keys() - CHANGEABLE
    if unknown or ("location" in changes) != ("location_key" in changes):
        raise TypeError(f"an entry does not change like this: {sorted(changes)}")
    for name in ("location", "location_key"):
        if name in changes:
            check_indexed("a location", changes[name])
    values = {f"new_{name}": value for name, value in _to_columns(changes).items()}
    return (
        tx.run(
            _advance_statement(frozenset(changes)),
            {**values, "entry": id, "expected": expected_revision, "now": now_ms},
        )
        == 1
    )


def rename_entry(tx: Tx, id: int, namespace_id: int, name: str, now_ms: int) -> bool:
    """Rename an entry, possibly into another namespace; return False if the name is taken.

    Raises:
        NamespaceNotFoundError, TableNotFoundError: the namespace or the entry has been dropped.
    """
    values = {"entry": id, "namespace": namespace_id, "called": check_indexed("a name", name), "now": now_ms}
    try:
        with tx.savepoint():
            renamed = tx.run(RENAME, values)
    except UniqueViolationError:
        return False
    except ForeignKeyViolationError:
        raise _namespace_dropped() from None
    if not renamed:
        raise TableNotFoundError(f"Table does not exist: it was dropped before it could be renamed to {name}")
    return True


def delete_entry(tx: Tx, id: int) -> bool:
    """Delete an entry with its snapshots, refs and commits; return False if it no longer exists."""
    return tx.run(DELETE, {"entry": id}) == 1


def find_overlapping_table(
    tx: Tx, location_key: str, exclude_id: int | None = None
) -> tuple[tuple[str, ...], str] | None:
    """Return a table of any warehouse whose location is this one, contains it, or lies in it; None if there is none.

    In a write transaction the result stays true until its end: others that check an overlapping location wait.
    """
    above = _folders_above(location_key)
    # Exclusive on the location, shared on all folders above it: siblings do not block each other, while a check of a
    # folder waits for all checks below it.
    tx.lock(_lock_number(location_key), map(_lock_number, above))
    values = {"first": location_key, "end": location_key[:-1] + chr(ord("/") + 1), "exclude": exclude_id or 0}
    for folders in _folder_parameters(location_key, above):
        row = tx.fetch_one(OVERLAPPING, {**values, **folders})
        if row is not None:
            return split_levels(row[0]), row[1]
    return None


def find_enclosing_table(tx: Tx, location_key: str) -> tuple[str, tuple[str, ...]] | None:
    """Return warehouse and namespace of the table at this location or above it, or None."""
    for folders in _folder_parameters(location_key, [*_folders_above(location_key), location_key]):
        row = tx.fetch_one(ENCLOSING, folders)
        if row is not None:
            return row[0], split_levels(row[1])
    return None


def _folders_above(location_key: str) -> list[str]:
    cuts = [index + 1 for index, character in enumerate(location_key[:-1]) if character == "/"]
    return [location_key[:cut] for cut in cuts]


def _folder_parameters(location_key: str, above: list[str]) -> Iterator[dict[str, str]]:
    """Yield parent folders in groups, as parameters of a statement; the last group is padded with the location."""
    for start in range(0, max(len(above), 1), ABOVE):
        group = [*above[start : start + ABOVE], *[location_key] * ABOVE][:ABOVE]
        yield {f"above_{number}": folder for number, folder in enumerate(group)}


@cache
def _advance_statement(names: frozenset[str]) -> Statement:
    return Statement(
        update(e)
        .where(e.c.id == bindparam("entry"), e.c.revision == bindparam("expected"))
        .values(
            revision=e.c.revision + literal_column("1"),
            updated_ms=bindparam("now"),
            **{name: bindparam(f"new_{name}") for name in sorted(names)},
        )
    )


def _to_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) if name in JSON and value is not None else value for name, value in values.items()}


def _entry_row(row: Row) -> EntryRow:
    entry, namespace, name, kind, uuid, location, properties, revision, created, updated, schema, version, metadata = (
        row
    )
    return EntryRow(
        entry,
        namespace,
        name,
        kind,
        uuid,
        location,
        from_json(properties),
        revision,
        created,
        updated,
        None if schema is None else from_json(schema),
        version,
        metadata,
    )


def _lock_number(location_key: str) -> int:
    """Return the number of a location's advisory lock."""
    digest = blake2b(location_key.encode(errors="surrogatepass"), digest_size=8, person=b"lancehouse").digest()
    return int.from_bytes(digest, signed=True)


def _namespace_dropped() -> NamespaceNotFoundError:
    return NamespaceNotFoundError("Namespace does not exist: it was dropped meanwhile")
