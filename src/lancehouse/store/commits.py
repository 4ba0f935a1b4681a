"""Rows of snapshots, refs and the record of commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import bindparam, delete, func, select

from lancehouse.store.column_values import EVERYTHING, NONE, check_indexed, from_json, insert_into, to_json
from lancehouse.store.model import commits as c
from lancehouse.store.model import refs as r
from lancehouse.store.model import snapshots as s
from lancehouse.store.rows import CommitRow, RefRow, SnapshotRow
from lancehouse.store.statements import Statement, Tx

COMMIT = ("at_ms", "principal", "client", "request_id", "revision", "snapshot_id", "operation")
"""Columns in the order of CommitRow."""

BEFORE_ALL = -1
"""Less than any snapshot id."""

INSERT_SNAPSHOT = Statement(
    insert_into(s, "entry_id", "snapshot_id", "parent_id", "sequence", "timestamp_ms", "manifest_list", "summary")
)
SNAPSHOTS = Statement(
    select(s.c.snapshot_id, s.c.parent_id, s.c.sequence, s.c.timestamp_ms, s.c.manifest_list, s.c.summary)
    .where(s.c.entry_id == bindparam("entry"), s.c.snapshot_id > bindparam("after"))
    .order_by(s.c.sequence, s.c.snapshot_id)
)
COUNT_SNAPSHOTS = Statement(select(func.count()).select_from(s).where(s.c.entry_id == bindparam("entry")))
DELETE_SNAPSHOT = Statement(
    delete(s).where(s.c.entry_id == bindparam("entry"), s.c.snapshot_id == bindparam("snapshot"))
)
_put = insert_into(r, "entry_id", "name", "kind", "snapshot_id")
PUT_REF = Statement(
    _put.on_conflict_do_update(
        index_elements=[r.c.entry_id, r.c.name],
        set_={"kind": _put.excluded.kind, "snapshot_id": _put.excluded.snapshot_id},
    )
)
DELETE_REF = Statement(delete(r).where(r.c.entry_id == bindparam("entry"), r.c.name == bindparam("called")))
REFS = Statement(
    select(r.c.name, r.c.kind, r.c.snapshot_id).where(r.c.entry_id == bindparam("entry")).order_by(r.c.name)
)
INSERT_COMMIT = Statement(insert_into(c, "entry_id", *COMMIT))
COMMITS = Statement(
    select(*(c.c[name] for name in COMMIT))
    .where(c.c.entry_id == bindparam("entry"))
    .order_by(c.c.id.desc())
    .limit(bindparam("size"))
    .offset(NONE)
)


COMMITS_BETWEEN = Statement(
    select(*(c.c[name] for name in COMMIT))
    .where(
        c.c.entry_id == bindparam("entry"),
        c.c.snapshot_id >= bindparam("first"),
        c.c.snapshot_id <= bindparam("last"),
    )
    .order_by(c.c.id.desc())
)


def insert_snapshots(tx: Tx, entry_id: int, rows: Sequence[SnapshotRow]) -> None:
    """Insert snapshots."""
    tx.run_many(
        INSERT_SNAPSHOT,
        [
            {
                "entry_id": entry_id,
                "snapshot_id": row.snapshot_id,
                "parent_id": row.parent_id,
                "sequence": row.sequence,
                "timestamp_ms": row.timestamp_ms,
                "manifest_list": row.manifest_list,
                "summary": to_json(row.summary),
            }
            for row in rows
        ],
    )


def list_snapshots(tx: Tx, entry_id: int, after: int | None = None) -> list[SnapshotRow]:
    """Return all snapshots, or those with an id greater than `after`, ordered by sequence number."""
    values = {"entry": entry_id, "after": BEFORE_ALL if after is None else after}
    return [_snapshot_row(*row) for row in tx.fetch_all(SNAPSHOTS, values)]


def count_snapshots(tx: Tx, entry_id: int) -> int:
    """Return the number of snapshots."""
    ((count,),) = tx.fetch_all(COUNT_SNAPSHOTS, {"entry": entry_id})
    return int(count)


def delete_snapshots(tx: Tx, entry_id: int, ids: Collection[int]) -> None:
    """Delete snapshots."""
    tx.run_many(DELETE_SNAPSHOT, [{"entry": entry_id, "snapshot": snapshot} for snapshot in ids])


def put_ref(tx: Tx, entry_id: int, ref: RefRow) -> None:
    """Create or move a tag or branch."""
    name = check_indexed("a ref's name", ref.name)
    tx.run(PUT_REF, {"entry_id": entry_id, "name": name, "kind": ref.kind, "snapshot_id": ref.snapshot_id})


def delete_ref(tx: Tx, entry_id: int, name: str) -> None:
    """Delete a tag or branch."""
    tx.run(DELETE_REF, {"entry": entry_id, "called": name})


def list_refs(tx: Tx, entry_id: int) -> list[RefRow]:
    """Return all tags and branches, ordered by name."""
    return [RefRow(*row) for row in tx.fetch_all(REFS, {"entry": entry_id})]


def insert_commit(tx: Tx, entry_id: int, row: CommitRow) -> None:
    """Insert the record of a commit."""
    tx.run(INSERT_COMMIT, {"entry_id": entry_id, **{name: getattr(row, name) for name in COMMIT}})


def list_commits(tx: Tx, entry_id: int, limit: int | None = None) -> list[CommitRow]:
    """Return the commits of an entry, newest first."""
    size = EVERYTHING if limit is None else limit
    return [CommitRow(*row) for row in tx.fetch_all(COMMITS, {"entry": entry_id, "size": size})]


def list_commits_between(tx: Tx, entry_id: int, first: int, last: int) -> list[CommitRow]:
    """Return the commits of an entry with a snapshot id from `first` to `last`, newest first."""
    return [CommitRow(*row) for row in tx.fetch_all(COMMITS_BETWEEN, {"entry": entry_id, "first": first, "last": last})]


def _snapshot_row(
    snapshot_id: int, parent_id: int | None, sequence: int, timestamp_ms: int, manifest_list: str, summary: str
) -> SnapshotRow:
    return SnapshotRow(snapshot_id, parent_id, sequence, timestamp_ms, manifest_list, from_json(summary))
