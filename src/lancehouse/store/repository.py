"""Rows of warehouses, namespaces, tables and views, their snapshots, refs and commits, and idempotency keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Any, cast

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError
from sqlalchemy import bindparam, delete, exists, func, literal_column, or_, select, update

from lancehouse.store.model import CommitRow, EntryRow, Json, Kind, NamespaceRow, RefRow, SnapshotRow, WarehouseRow
from lancehouse.store.model import commits as c
from lancehouse.store.model import dropped as d
from lancehouse.store.model import entries as e
from lancehouse.store.model import keys as k
from lancehouse.store.model import namespaces as n
from lancehouse.store.model import refs as r
from lancehouse.store.model import snapshots as s
from lancehouse.store.model import warehouses as w
from lancehouse.store.statements import (
    EVERYTHING,
    JSON,
    NONE,
    SEPARATOR,
    ForeignKeyViolationError,
    RowType,
    Statement,
    Tx,
    UniqueViolationError,
    check_indexed,
    from_json,
    index_key,
    insert_into,
    join_levels,
    limit_rows,
    split_levels,
    to_json,
)

WAREHOUSE = RowType(w, WarehouseRow)
WAREHOUSES = Statement(select(*WAREHOUSE.columns).order_by(w.c.id))
INSERT_WAREHOUSE = Statement(insert_into(w, "name", "location").on_conflict_do_nothing().returning(w.c.id))
MOVE_WAREHOUSE = Statement(update(w).where(w.c.id == bindparam("warehouse")).values(location=bindparam("place")))
IS_WAREHOUSE_USED = Statement(
    select(
        exists().where(n.c.warehouse_id == bindparam("warehouse"))
        | exists().where(d.c.warehouse_id == bindparam("warehouse"))
    )
)


def list_warehouses(tx: Tx) -> list[WarehouseRow]:
    """Return all warehouses that this database has served, oldest first."""
    return WAREHOUSE.fetch_all(tx, WAREHOUSES, {})


def insert_warehouse(tx: Tx, name: str, location: str) -> WarehouseRow | None:
    """Insert a warehouse and return it; None if the name is taken."""
    row = tx.fetch_one(INSERT_WAREHOUSE, {"name": check_indexed("a warehouse's name", name), "location": location})
    return None if row is None else WarehouseRow(row[0], name, location)


def move_warehouse(tx: Tx, id: int, location: str) -> None:
    """Change a warehouse's location."""
    tx.run(MOVE_WAREHOUSE, {"warehouse": id, "place": location})


def is_warehouse_empty(tx: Tx, id: int) -> bool:
    """Return whether a warehouse has no namespaces and no dropped tables."""
    (row,) = tx.fetch_all(IS_WAREHOUSE_USED, {"warehouse": id})
    return not row[0]


HERE = (n.c.warehouse_id == bindparam("warehouse"), n.c.path_key == bindparam("here"))
CHILDREN = (
    select(n.c.name).where(n.c.warehouse_id == bindparam("warehouse"), n.c.name > bindparam("after")).order_by(n.c.name)
)

FIND_NAMESPACE = Statement(select(n.c.id, n.c.properties).where(*HERE))
LOCK_NAMESPACE = Statement(select(n.c.id, n.c.properties).where(*HERE).with_for_update(key_share=True))
ROOT_NAMESPACES = Statement(limit_rows(CHILDREN.where(n.c.parent_id.is_(None))))
NAMESPACES_BELOW = Statement(limit_rows(CHILDREN.where(n.c.parent_id == bindparam("parent"))))
INSERT_NAMESPACE = Statement(
    insert_into(n, "warehouse_id", "parent_id", "name", "path", "path_key", "properties")
    .on_conflict_do_nothing()
    .returning(n.c.id)
)
UPDATE_NAMESPACE = Statement(update(n).where(n.c.id == bindparam("namespace")).values(properties=bindparam("new")))
DELETE_NAMESPACE = Statement(delete(n).where(n.c.id == bindparam("namespace")))


def find_namespace(tx: Tx, warehouse_id: int, levels: tuple[str, ...], *, lock: bool = False) -> NamespaceRow | None:
    """Return a namespace, or None. With `lock`, nobody else can change its properties until the transaction ends."""
    row = tx.fetch_one(
        LOCK_NAMESPACE if lock else FIND_NAMESPACE, {"warehouse": warehouse_id, "here": index_key(join_levels(levels))}
    )
    return None if row is None else NamespaceRow(row[0], warehouse_id, levels, from_json(row[1]))


def list_namespaces(
    tx: Tx, warehouse_id: int, parent: tuple[str, ...], after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the names of the namespaces directly below `parent`, ordered by code point; none if it does not exist."""
    values = {"warehouse": warehouse_id, "after": after or "", "size": EVERYTHING if limit is None else limit}
    if not parent:
        return [row[0] for row in tx.fetch_all(ROOT_NAMESPACES, values)]
    parent_row = find_namespace(tx, warehouse_id, parent)
    if parent_row is None:
        return []
    return [row[0] for row in tx.fetch_all(NAMESPACES_BELOW, {**values, "parent": parent_row.id})]


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
        # The insert locks the parent's row on Postgres, by its foreign key: a drop of the parent waits, or was first.
        with tx.savepoint():
            row = tx.fetch_one(INSERT_NAMESPACE, values)
    except ForeignKeyViolationError:  # the parent was dropped meanwhile
        raise _namespace_not_found(levels[:-1]) from None
    return None if row is None else NamespaceRow(row[0], warehouse_id, levels, dict(properties))


def update_namespace(tx: Tx, id: int, properties: Mapping[str, str]) -> bool:
    """Replace all properties of a namespace; return False if it no longer exists."""
    return tx.run(UPDATE_NAMESPACE, {"namespace": id, "new": to_json(properties)}) == 1


def delete_namespace(tx: Tx, id: int) -> bool:
    """Delete an empty namespace; return False if it is not empty.

    Foreign keys decide that, so an entry that is created at the same moment is not lost.
    """
    try:
        with tx.savepoint():
            tx.run(DELETE_NAMESPACE, {"namespace": id})
    except ForeignKeyViolationError:
        return False
    return True


def _namespace_not_found(levels: tuple[str, ...]) -> NamespaceNotFoundError:
    return NamespaceNotFoundError(f"Namespace does not exist: {'.'.join(levels)}")


ENTRY = RowType(e, EntryRow, properties=JSON, schema=JSON)
NEW = (*ENTRY.names[1:-1], "location_key")
KINDS = ("kind_0", "kind_1", "kind_2")
CHANGEABLE = frozenset({"properties", "schema", "version", "metadata_location", "location", "location_key", "uuid"})
"""Columns that `advance_entry` may change."""
ABOVE = 16
"""Parent folders that one statement looks up."""

FIND_ENTRY = Statement(
    select(*ENTRY.columns).join(n, n.c.id == e.c.namespace_id).where(*HERE, e.c.name == bindparam("called"))
)
NAMES_AFTER = limit_rows(select(e.c.name).where(e.c.name > bindparam("after")).order_by(e.c.name))
ENTRIES = Statement(
    NAMES_AFTER.where(e.c.namespace_id == bindparam("namespace"), e.c.kind.in_([bindparam(kind) for kind in KINDS]))
)
ENTRIES_AFTER = Statement(NAMES_AFTER.join(n, n.c.id == e.c.namespace_id).where(*HERE, e.c.kind == bindparam("kind_0")))
OF_KIND = limit_rows(
    select(n.c.path, e.c.name)
    .join(e, e.c.namespace_id == n.c.id)
    .where(n.c.warehouse_id == bindparam("warehouse"), e.c.kind == bindparam("kind_0"))
    .order_by(n.c.path_key, e.c.name)
)
# The text of the JSON: an index of every property would cost each change of a table more than this look does.
ENTRIES_WITH = Statement(OF_KIND.where(e.c.properties.like(bindparam("pattern"), escape="/")))
INSERT_ENTRY = Statement(
    insert_into(e, *NEW).on_conflict_do_nothing(index_elements=[e.c.namespace_id, e.c.name]).returning(e.c.id)
)
STILL_THERE = (
    e.c.id == bindparam("entry"),
    e.c.namespace_id == bindparam("old_namespace"),
    e.c.name == bindparam("old_name"),
)
"""Whether an entry still has the name under which it was found; `name_values` has the values."""
RENAME_ENTRY = Statement(
    update(e)
    .where(*STILL_THERE)
    .values(namespace_id=bindparam("namespace"), name=bindparam("called"), updated_ms=bindparam("now"))
)
PUBLISH_ENTRY = Statement(
    update(e)
    .where(e.c.id == bindparam("entry"), e.c.version == bindparam("current"))
    .values(published=bindparam("current"))
)
SET_SCHEMA = Statement(
    update(e)
    .where(e.c.id == bindparam("entry"), e.c.revision == bindparam("expected"))
    .values(schema=bindparam("new_schema"))
)
DELETE_ENTRY = Statement(delete(e).where(*STILL_THERE))
OVERLAPPING = Statement(
    select(n.c.path, e.c.name)
    .select_from(e)
    .outerjoin(n, n.c.id == e.c.namespace_id)  # a dropped table, which has no namespace, keeps its location too
    .where(
        or_(
            (e.c.location_key >= bindparam("first")) & (e.c.location_key < bindparam("end")),
            e.c.location_key.in_([bindparam(f"above_{number}") for number in range(ABOVE)]),
        ),
        e.c.kind != literal_column("'view'"),
        e.c.id != bindparam("exclude"),
    )
    .limit(literal_column("1"))
    .offset(NONE),
    # For locations that it does not know, Postgres expects some that overlap, and looks at all tables for the first.
    is_planned_anew=True,
)

ENCLOSING = Statement(
    select(w.c.name, n.c.path, e.c.name)
    .select_from(e)
    .outerjoin(n, n.c.id == e.c.namespace_id)
    .outerjoin(w, w.c.id == n.c.warehouse_id)
    .where(
        e.c.location_key.in_([bindparam(f"above_{number}") for number in range(ABOVE)]),
        e.c.kind != literal_column("'view'"),
    )
    .limit(literal_column("1"))
    .offset(NONE)
)


def find_entry(tx: Tx, warehouse_id: int, levels: tuple[str, ...], name: str) -> EntryRow | None:
    """Return a table or view, or None."""
    here = index_key(join_levels(levels))
    return ENTRY.fetch_one(tx, FIND_ENTRY, {"warehouse": warehouse_id, "here": here, "called": name})


def list_entries(
    tx: Tx, namespace_id: int, kinds: Collection[Kind], after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the names of a namespace's entries of these kinds, ordered by code point."""
    if not kinds:
        return []
    # The statement has a fixed number of parameters, so that there is only one; repeated kinds do no harm.
    padded_kinds = [*kinds, *[next(iter(kinds))] * len(KINDS)]
    values = {"namespace": namespace_id, "after": after or "", "size": EVERYTHING if limit is None else limit}
    return [row[0] for row in tx.fetch_all(ENTRIES, {**values, **dict(zip(KINDS, padded_kinds, strict=False))})]


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
        entries = [(after[0], row[0]) for row in tx.fetch_all(ENTRIES_AFTER, values)]
    paths = [join_levels(levels) for levels in below]
    values = {"warehouse": warehouse_id, "here": namespace_key, "kind_0": kind, "size": size - len(entries)}
    for number, root in enumerate(paths):
        start = f"{root}{SEPARATOR}"
        values |= {f"place_{number}": root, f"start_{number}": start, f"length_{number}": len(start)}
    return entries + [(split_levels(row[0]), row[1]) for row in tx.fetch_all(_list_statement(len(paths)), values)]


def list_entries_with_property(
    tx: Tx, warehouse_id: int, kind: Kind, key: str, value: str, limit: int
) -> list[tuple[tuple[str, ...], str]]:
    """Return namespace and name of the entries of a warehouse that may have a property of this value.

    All entries of the warehouse are read, and another property may contain the same text.
    """
    pair = to_json({key: value})[1:-1]
    for special in "/%_":
        pair = pair.replace(special, f"/{special}")
    values = {"warehouse": warehouse_id, "kind_0": kind, "pattern": f"%{pair}%", "size": limit}
    return [(split_levels(row[0]), row[1]) for row in tx.fetch_all(ENTRIES_WITH, values)]


NAMESPACES = Statement(select(n.c.id, n.c.path).where(n.c.warehouse_id == bindparam("warehouse")))
MOST_PATTERNS = 4
"""Most words of a search that the database looks for; the longest say most."""
MOST_SEARCHED = 16
"""Most namespaces that a search names; with more, it looks into all."""


def list_all_namespaces(tx: Tx, warehouse_id: int) -> list[tuple[int, tuple[str, ...]]]:
    """Return id and levels of all namespaces of a warehouse."""
    return [(row[0], split_levels(row[1])) for row in tx.fetch_all(NAMESPACES, {"warehouse": warehouse_id})]


def search_entries(
    tx: Tx, warehouse_id: int, words: Sequence[str], namespaces: Sequence[int], after: int, limit: int
) -> list[tuple[int, int, str, Kind]]:
    """Return id, namespace, name and kind of entries whose names may contain all words, those after an id, in order.

    All that do are among them: letters beyond ASCII, which a database may not know in both cases, are left open. With
    Postgres' extension pg_trgm an index finds those that contain a word of three letters; else all names are read.

    Args:
        tx: the transaction.
        warehouse_id: id of the warehouse.
        words: parts of names, in lower case.
        namespaces: where to look; in the whole warehouse if there are more than `MOST_SEARCHED` of them.
        after: the last id of the previous page.
        limit: most entries to return.
    """
    patterns = [_like_pattern(word) for word in sorted(words, key=len)[-MOST_PATTERNS:]]
    places = namespaces if len(namespaces) <= MOST_SEARCHED else ()
    values: dict[str, Any] = {"warehouse": warehouse_id, "after": after, "size": limit}
    values |= {f"word_{number}": pattern for number, pattern in enumerate(patterns)}
    if places:
        values |= {f"place_{number}": places[number % len(places)] for number in range(MOST_SEARCHED)}
    return cast(
        "list[tuple[int, int, str, Kind]]", tx.fetch_all(_search_statement(len(patterns), bool(places)), values)
    )


@cache
def _search_statement(words: int, has_places: bool) -> Statement:
    clause = (
        select(e.c.id, e.c.namespace_id, e.c.name, e.c.kind)
        .join(n, n.c.id == e.c.namespace_id)
        .where(n.c.warehouse_id == bindparam("warehouse"), e.c.id > bindparam("after"))
    )
    for number in range(words):
        clause = clause.where(func.lower(e.c.name).like(bindparam(f"word_{number}"), escape="/"))
    if has_places:
        clause = clause.where(e.c.namespace_id.in_([bindparam(f"place_{number}") for number in range(MOST_SEARCHED)]))
    # Of a rare word the index of words finds all, of a frequent one the first in the order of ids are enough.
    return Statement(limit_rows(clause.order_by(e.c.id)), is_planned_anew=True)


def _like_pattern(text: str) -> str:
    """Return a pattern of LIKE for what contains a text, with anything in the place of letters beyond ASCII."""
    return "".join(
        ["%", *("%" if ord(letter) > 127 else f"/{letter}" if letter in "/%_" else letter for letter in text), "%"]
    )


@cache
def _list_statement(places: int) -> Statement:
    """Return the statement that lists entries after a namespace, restricted to that many subtrees."""
    clause = OF_KIND.where(n.c.path_key > bindparam("here"))
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
    return Statement(clause)


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
    new = EntryRow(
        0,
        namespace_id,
        check_indexed("a name", name),
        kind,
        uuid,
        check_indexed("a location", location),
        dict(properties),
        1,
        now_ms,
        now_ms,
        schema,
        version,
        metadata_location,
    )
    values = {**ENTRY.values(new), "location_key": check_indexed("a location", location_key)}
    try:
        with tx.savepoint():
            row = tx.fetch_one(INSERT_ENTRY, {name: values[name] for name in NEW})
    except ForeignKeyViolationError:
        raise namespace_dropped_error() from None
    return None if row is None else replace(new, id=row[0])


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
    encoded = {
        name: JSON.encode(value) if name in ("properties", "schema") else value for name, value in changes.items()
    }
    values = {f"new_{name}": value for name, value in encoded.items()}
    values |= {"entry": id, "expected": expected_revision, "now": now_ms}
    return tx.run(_advance_statement(frozenset(changes)), values) == 1


def name_values(entry: EntryRow) -> dict[str, Any]:
    """Return the values of `STILL_THERE`."""
    return {"entry": entry.id, "old_namespace": entry.namespace_id, "old_name": entry.name}


def rename_entry(tx: Tx, entry: EntryRow, namespace_id: int, name: str, now_ms: int) -> bool:
    """Rename an entry, possibly into another namespace; return False if the name is taken.

    Raises:
        NamespaceNotFoundError: the namespace has been dropped.
        TableNotFoundError: the entry has been dropped, or renamed by somebody else.
    """
    new = {"namespace": namespace_id, "called": check_indexed("a name", name), "now": now_ms}
    values = {**name_values(entry), **new}
    try:
        with tx.savepoint():
            row_count = tx.run(RENAME_ENTRY, values)
    except UniqueViolationError:
        return False
    except ForeignKeyViolationError:
        raise namespace_dropped_error() from None
    if not row_count:
        raise TableNotFoundError(
            f"Table does not exist: it was dropped or renamed before it could be renamed to {name}"
        )
    return True


def set_schema(tx: Tx, id: int, expected_revision: int, schema: Json) -> bool:
    """Fill in the schema of an entry that lacks it; False if the entry has changed. The revision stays."""
    values = {"entry": id, "expected": expected_revision, "new_schema": to_json(schema)}
    return tx.run(SET_SCHEMA, values) == 1


def set_published(tx: Tx, id: int, version: int) -> bool:
    """Record that the manifest of an entry's current version is at its final path; False if it has moved on.

    The revision stays: nothing that clients see of the table changes.
    """
    return tx.run(PUBLISH_ENTRY, {"entry": id, "current": version}) == 1


def delete_entry(tx: Tx, entry: EntryRow) -> bool:
    """Delete an entry with its snapshots, refs and commits; return False if it was dropped or renamed meanwhile."""
    return tx.run(DELETE_ENTRY, name_values(entry)) == 1


def find_overlapping_table(
    tx: Tx, location_key: str, exclude_id: int | None = None
) -> tuple[tuple[str, ...], str] | None:
    """Return a table of any warehouse whose location is this one, contains it, or lies in it; None if there is none.

    A dropped table, which has no levels, is one.

    In a write transaction the result stays true until its end: others that check an overlapping location wait.
    """
    above = _folders_above(location_key)
    # Exclusive on the location, shared on all folders above it: siblings do not block each other, while a check of a
    # folder waits for all checks below it.
    tx.lock(_lock_number(location_key), map(_lock_number, above))
    # A key ends with a slash. The same key with the next character in its place ends the range of all keys below it,
    # which an index finds.
    values = {"first": location_key, "end": location_key[:-1] + chr(ord("/") + 1), "exclude": exclude_id or 0}
    for folders in _folder_parameters(location_key, above):
        row = tx.fetch_one(OVERLAPPING, {**values, **folders})
        if row is not None:
            return split_levels(row[0] or ""), row[1]
    return None


def find_enclosing_table(tx: Tx, location_key: str) -> tuple[str | None, tuple[str, ...], str] | None:
    """Return warehouse, namespace and name of the table at this location or above it, or None.

    A dropped table has neither warehouse nor namespace.
    """
    for folders in _folder_parameters(location_key, [*_folders_above(location_key), location_key]):
        row = tx.fetch_one(ENCLOSING, folders)
        if row is not None:
            return row[0], split_levels(row[1] or ""), row[2]
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
            # Versions may come again under the same number, after storage was in charge for a while.
            **({"published": literal_column("NULL")} if "version" in names else {}),
        )
    )


def _lock_number(location_key: str) -> int:
    """Return the number of a location's advisory lock."""
    digest = blake2b(location_key.encode(errors="surrogatepass"), digest_size=8, person=b"lancehouse").digest()
    return int.from_bytes(digest, signed=True)


def namespace_dropped_error() -> NamespaceNotFoundError:
    """Build the error for a namespace that was dropped between the lookup and the change."""
    return NamespaceNotFoundError("Namespace does not exist: it was dropped meanwhile")


COMMIT = RowType(c, CommitRow)
SNAPSHOT = RowType(s, SnapshotRow, summary=JSON)
REF = RowType(r, RefRow)

BEFORE_ALL = -1
"""Less than any snapshot id."""

INSERT_SNAPSHOT = Statement(insert_into(s, "entry_id", *SNAPSHOT.names))
_SNAPSHOTS = select(*SNAPSHOT.columns).where(s.c.entry_id == bindparam("entry"))
SNAPSHOTS = Statement(_SNAPSHOTS.where(s.c.snapshot_id > bindparam("after")).order_by(s.c.sequence, s.c.snapshot_id))
FIND_SNAPSHOT = Statement(_SNAPSHOTS.where(s.c.snapshot_id == bindparam("snapshot")))
COUNT_SNAPSHOTS = Statement(select(func.count()).select_from(s).where(s.c.entry_id == bindparam("entry")))
DELETE_SNAPSHOT = Statement(
    delete(s).where(s.c.entry_id == bindparam("entry"), s.c.snapshot_id == bindparam("snapshot"))
)
_put = insert_into(r, "entry_id", *REF.names)
PUT_REF = Statement(
    _put.on_conflict_do_update(
        index_elements=[r.c.entry_id, r.c.name],
        set_={"kind": _put.excluded.kind, "snapshot_id": _put.excluded.snapshot_id},
    )
)
DELETE_REF = Statement(delete(r).where(r.c.entry_id == bindparam("entry"), r.c.name == bindparam("called")))
REFS = Statement(select(*REF.columns).where(r.c.entry_id == bindparam("entry")).order_by(r.c.name))
INSERT_COMMIT = Statement(insert_into(c, "entry_id", *COMMIT.names))
_COMMITS = select(*COMMIT.columns).where(c.c.entry_id == bindparam("entry")).order_by(c.c.id.desc())
COMMITS = Statement(limit_rows(_COMMITS))
COMMITS_BETWEEN = Statement(_COMMITS.where(c.c.snapshot_id >= bindparam("first"), c.c.snapshot_id <= bindparam("last")))


def insert_snapshots(tx: Tx, entry_id: int, rows: Sequence[SnapshotRow]) -> None:
    """Insert snapshots."""
    tx.run_many(INSERT_SNAPSHOT, [{"entry_id": entry_id, **SNAPSHOT.values(row)} for row in rows])


def list_snapshots(tx: Tx, entry_id: int, after: int | None = None) -> list[SnapshotRow]:
    """Return all snapshots, or those with an id greater than `after`, ordered by sequence number."""
    values = {"entry": entry_id, "after": BEFORE_ALL if after is None else after}
    return SNAPSHOT.fetch_all(tx, SNAPSHOTS, values)


def find_snapshot(tx: Tx, entry_id: int, snapshot_id: int) -> SnapshotRow | None:
    """Return one snapshot, or None."""
    return SNAPSHOT.fetch_one(tx, FIND_SNAPSHOT, {"entry": entry_id, "snapshot": snapshot_id})


def count_snapshots(tx: Tx, entry_id: int) -> int:
    """Return the number of snapshots."""
    ((count,),) = tx.fetch_all(COUNT_SNAPSHOTS, {"entry": entry_id})
    return int(count)


def delete_snapshots(tx: Tx, entry_id: int, ids: Collection[int]) -> None:
    """Delete snapshots."""
    tx.run_many(DELETE_SNAPSHOT, [{"entry": entry_id, "snapshot": snapshot} for snapshot in ids])


def put_ref(tx: Tx, entry_id: int, ref: RefRow) -> None:
    """Create or move a tag or branch."""
    check_indexed("a ref's name", ref.name)
    tx.run(PUT_REF, {"entry_id": entry_id, **REF.values(ref)})


def delete_ref(tx: Tx, entry_id: int, name: str) -> None:
    """Delete a tag or branch."""
    tx.run(DELETE_REF, {"entry": entry_id, "called": name})


def list_refs(tx: Tx, entry_id: int) -> list[RefRow]:
    """Return all tags and branches, ordered by name."""
    return REF.fetch_all(tx, REFS, {"entry": entry_id})


def insert_commit(tx: Tx, entry_id: int, row: CommitRow) -> None:
    """Insert the record of a commit."""
    tx.run(INSERT_COMMIT, {"entry_id": entry_id, **COMMIT.values(row)})


def list_commits(tx: Tx, entry_id: int, limit: int | None = None) -> list[CommitRow]:
    """Return the commits of an entry, newest first."""
    size = EVERYTHING if limit is None else limit
    return COMMIT.fetch_all(tx, COMMITS, {"entry": entry_id, "size": size})


def list_commits_between(tx: Tx, entry_id: int, first: int, last: int) -> list[CommitRow]:
    """Return the commits of an entry with a snapshot id from `first` to `last`, newest first."""
    return COMMIT.fetch_all(tx, COMMITS_BETWEEN, {"entry": entry_id, "first": first, "last": last})


FIND_KEY = Statement(select(k.c.digest, k.c.status, k.c.body).where(k.c.key == bindparam("called")))
INSERT_KEY = Statement(insert_into(k, "key", "digest", "status", "body", "created_ms").on_conflict_do_nothing())
FINISH_KEY = Statement(
    update(k).where(k.c.key == bindparam("called")).values(status=bindparam("new_status"), body=bindparam("new_body"))
)
SIGN_OF_LIFE = "sign of life"
"""Key of a row that only shows that the database can be written. Clients' keys are UUIDs."""
_sign = insert_into(k, "key", "digest", "status", "created_ms")
PUT_SIGN_OF_LIFE = Statement(
    _sign.on_conflict_do_update(index_elements=[k.c.key], set_={"created_ms": _sign.excluded.created_ms})
)
DELETE_KEYS = Statement(delete(k).where(k.c.created_ms < bindparam("before")))


def find_key(tx: Tx, key: str) -> tuple[str, int, bytes | None] | None:
    """Return digest, status and body stored for a key, or None."""
    row = tx.fetch_one(FIND_KEY, {"called": key})
    return None if row is None else (row[0], row[1], row[2])


def insert_key(tx: Tx, key: str, digest: str, status: int, body: bytes | None, now_ms: int) -> bool:
    """Insert a key; return False if it exists already.

    If two transactions insert the same key at once, the second waits until the first has ended.
    """
    values = {"key": check_indexed("an idempotency key", key), "digest": digest, "status": status, "body": body}
    return tx.run(INSERT_KEY, {**values, "created_ms": now_ms}) == 1


def finish_key(tx: Tx, key: str, status: int, body: bytes | None) -> None:
    """Store the response of a key."""
    tx.run(FINISH_KEY, {"called": key, "new_status": status, "new_body": body})


def put_sign_of_life(tx: Tx, now_ms: int) -> None:
    """Write the time to a row of its own."""
    tx.run(PUT_SIGN_OF_LIFE, {"key": SIGN_OF_LIFE, "digest": "", "status": 0, "created_ms": now_ms})


def delete_keys_before(tx: Tx, before_ms: int) -> int:
    """Delete keys created before a time, and return their number."""
    return tx.run(DELETE_KEYS, {"before": before_ms})
