"""A Lance table in the shape of Iceberg's table metadata. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from lancehouse import locations
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.history import SCHEMA_ID, History, Version
from lancehouse.properties import IMPL, LANCE, MANAGED_BY, TABLE_TYPE, managed_by
from lancehouse.schema.iceberg import last_column_id
from lancehouse.store.rows import EntryRow, Json, RefRow, SnapshotRow

EMPTY_SCHEMA: Json = {"type": "struct", "schema-id": SCHEMA_ID, "fields": []}

OPERATIONS: Mapping[str | None, str] = {
    "Append": "append",
    "Delete": "delete",
    **dict.fromkeys(("Overwrite", "Update", "Merge", "Restore", "DataReplacement"), "overwrite"),
    None: "overwrite",
}
"""Iceberg's word for Lance's; what is not here changes no row, which Iceberg calls `replace`."""

ICEBERG_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})


@dataclass(frozen=True, slots=True)
class LanceTable:
    """A table's metadata as JSON, with all snapshots, and with only those that a branch or tag names."""

    all: bytes
    refs: bytes
    etag: str
    """Of `all`: the same wherever and whenever it is computed from the same state."""
    manifest: str
    """Where the current version is."""

    @property
    def refs_etag(self) -> str:
        """Of `refs`."""
        return f"{self.etag}-refs"

    @property
    def metadata(self) -> Json:
        """All of it, parsed anew each time: do not ask for it on the way of every request."""
        parsed: Json = orjson.loads(self.all)
        return parsed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version as Iceberg's snapshot, in JSON."""

    id: int
    sequence: int
    timestamp_ms: int
    on_main: bool
    manifest: str
    json: bytes
    version: Version | None = None
    """What storage says of it."""


def build(
    entry: EntryRow, history: History | None, snapshots: Sequence[Snapshot], refs: Iterable[RefRow] = ()
) -> LanceTable:
    """Put a table's metadata together.

    Args:
        entry: the table in the catalog.
        history: what its storage holds; None for nothing.
        snapshots: from `stored` or `managed`, each branch in order.
        refs: tags and branches that are kept in the catalog; they win over those in storage.
    """
    current = next((each for each in reversed(snapshots) if each.on_main), None)
    named = _refs(current, history, {snapshot.id for snapshot in snapshots}, refs)
    referenced = {ref["snapshot-id"] for ref in named.values()}
    head = orjson.dumps(_head(entry, history, snapshots, current) | {"refs": named})[:-1]
    log = b",".join(_log(snapshots))

    def joined(shown: Iterable[Snapshot]) -> bytes:
        return b"".join(
            (head, b',"snapshots":[', b",".join(each.json for each in shown), b'],"snapshot-log":[', log, b"]}")
        )

    whole = joined(snapshots)
    few = [each for each in snapshots if each.id in referenced]
    return LanceTable(
        all=whole,
        refs=whole if len(few) == len(snapshots) else joined(few),
        etag=blake2b(whole, digest_size=16).hexdigest(),
        manifest=current.manifest if current else f"{entry.location.rstrip('/')}/_versions",
    )


def stored(entry: EntryRow, history: History | None, before: int | None = None) -> list[Snapshot]:
    """The versions that storage has; of the main branch, only those before a given one."""
    if history is None:
        return []
    shown: list[Snapshot] = []
    root, unreadable = entry.location.rstrip("/"), _unreadable(entry.location)
    parent: Version | None = None
    for version in history.versions:
        if parent is not None and parent.branch != version.branch:
            parent = None
        if before is None or version.branch is not None or version.version < before:
            shown.append(_of_version(version, parent, history, root, unreadable))
        parent = version
    return shown


def managed(
    entry: EntryRow, history: History | None, rows: Sequence[SnapshotRow], known: Mapping[int, Snapshot]
) -> list[Snapshot]:
    """The snapshots of a table that the catalog manages.

    They are those that the catalog accepted, and before the first of them those that storage had then. What storage
    has besides was never committed, and is not shown.

    Args:
        entry: the table in the catalog.
        history: what its storage holds; None for nothing.
        rows: the versions that the catalog accepted.
        known: snapshots of this table that were made before, by id; those that are still right are taken again.
    """
    if entry.version is None:
        return []
    accepted = sorted((row for row in rows if row.snapshot_id <= entry.version), key=lambda row: row.snapshot_id)
    first = accepted[0].snapshot_id if accepted else entry.version + 1
    inherited = stored(entry, history, before=first)
    on_main = [each for each in inherited if each.on_main]
    versions = history.of(None) if history else {}
    for row in accepted:
        version = versions.get(row.snapshot_id)
        held = known.get(row.snapshot_id)
        on_main.append(held if held is not None and held.version is version else _of_row(row, version))
    if not on_main or on_main[-1].id != entry.version:
        on_main.append(_unknown(entry))
    return on_main + [each for each in inherited if not each.on_main]


def is_managed(entry: EntryRow) -> bool:
    """Whether the catalog decides which version is the current one."""
    return managed_by(entry.properties) == IMPL


def manifest_location(location: str, version: int) -> str:
    """Where Lance puts the manifest of a version of the main branch."""
    return f"{location.rstrip('/')}/_versions/{2**64 - 1 - version:020}.manifest"


def _head(entry: EntryRow, history: History | None, snapshots: Sequence[Snapshot], current: Snapshot | None) -> Json:
    schema = history.schema if history else {**(entry.schema or EMPTY_SCHEMA), "schema-id": SCHEMA_ID}
    head: Json = {
        "format-version": 2,
        "table-uuid": entry.uuid,
        "location": entry.location,
        "last-sequence-number": max((each.sequence for each in snapshots), default=0),
        "last-updated-ms": max((each.timestamp_ms for each in snapshots if each.on_main), default=0),
        "last-column-id": history.last_column_id if history else last_column_id(schema),
        "current-schema-id": SCHEMA_ID,
        "schemas": [schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**entry.properties, TABLE_TYPE: LANCE, MANAGED_BY: managed_by(entry.properties)},
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    head["last-updated-ms"] = max(head["last-updated-ms"], entry.updated_ms)
    return head | ({"current-snapshot-id": current.id} if current else {})


def _refs(
    current: Snapshot | None, history: History | None, shown: set[int], rows: Iterable[RefRow]
) -> dict[str, Json]:
    """Branches and tags share their names in Iceberg and not in Lance: there, a branch's name is not a tag's too."""
    named: dict[str, tuple[str, int]] = {}
    if history is not None:
        latest = {each.branch: each.snapshot_id for each in history.versions}
        named = {name: ("branch", latest[name]) for name in history.branches if name in latest}
        for name, target in history.tags.items():
            named[f"tag:{name}" if name in named or name == MAIN else name] = ("tag", target)
    named |= {row.name: (row.kind, row.snapshot_id) for row in rows}
    if current is not None:
        named = {MAIN: ("branch", current.id)} | {name: ref for name, ref in named.items() if name != MAIN}
    return {name: {"snapshot-id": at, "type": kind} for name, (kind, at) in named.items() if at in shown}


def _log(snapshots: Iterable[Snapshot]) -> Iterator[bytes]:
    """When each version became the current one. Iceberg's readers refuse a log that goes back in time."""
    now = 0
    for snapshot in snapshots:
        if snapshot.on_main:
            now = max(now, snapshot.timestamp_ms)
            yield b'{"snapshot-id":%d,"timestamp-ms":%d}' % (snapshot.id, now)


def _of_version(version: Version, before: Version | None, history: History, root: str, unreadable: str) -> Snapshot:
    if before is not None:
        parent: int | None = before.snapshot_id
    else:
        parent = history.branches[version.branch].parent if version.branch else None
    return _snapshot(
        id=version.snapshot_id,
        parent=parent,
        sequence=version.version,
        timestamp_ms=version.timestamp_ms,
        manifest=f"{root}/{version.manifest}",
        manifest_list=f"{unreadable}/{version.manifest}",
        summary=_summary(version, before),
        version=version,
    )


def _of_row(row: SnapshotRow, version: Version | None) -> Snapshot:
    summary = {**(_summary(version, None) if version else {}), **row.summary}
    if summary.get("operation") not in ICEBERG_OPERATIONS:
        summary["operation"] = OPERATIONS[None]
    return _snapshot(
        id=row.snapshot_id,
        parent=row.parent_id,
        sequence=row.sequence,
        timestamp_ms=row.timestamp_ms,
        manifest=row.manifest_list,
        manifest_list=row.manifest_list,
        summary=summary,
        version=version,
    )


def _unknown(entry: EntryRow) -> Snapshot:
    """The current version, of which nothing else is known (any more)."""
    assert entry.version is not None
    manifest = manifest_location(entry.location, entry.version)
    summary = {"operation": OPERATIONS[None], "lance.version": str(entry.version)}
    return _snapshot(
        id=entry.version,
        parent=None,
        sequence=entry.version,
        timestamp_ms=entry.updated_ms,
        manifest=manifest,
        manifest_list=_unreadable(entry.location) + manifest.removeprefix(entry.location.rstrip("/")),
        summary=summary,
    )


def _snapshot(
    *,
    id: int,
    parent: int | None,
    sequence: int,
    timestamp_ms: int,
    manifest: str,
    manifest_list: str,
    summary: Mapping[str, str],
    version: Version | None = None,
) -> Snapshot:
    json = {
        "snapshot-id": id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": SCHEMA_ID,
    }
    on_main = version is None or version.branch is None
    return Snapshot(id, sequence, timestamp_ms, on_main, manifest, orjson.dumps(json), version)


def _summary(version: Version, before: Version | None) -> dict[str, str]:
    summary = {
        "operation": OPERATIONS.get(version.operation, "replace"),
        **({} if version.operation is None else {"lance.operation": version.operation}),
        "lance.version": str(version.version),
        **({} if version.branch is None else {"lance.branch": version.branch}),
        **_changes(version, before),
        "total-records": str(version.rows),
        "total-data-files": str(version.files),
        "total-files-size": str(version.bytes),
    }
    if version.operation == "Overwrite" and version.version == 1:
        summary["operation"] = "append"  # nothing was there to be overwritten
    return summary


def _changes(version: Version, before: Version | None) -> dict[str, str]:
    """Rows that came and went, where that follows from the totals."""
    if version.operation == "Overwrite" and version.version == 1:
        return {"added-records": str(version.rows)}
    if before is None or before.version + 1 != version.version:
        return {}
    match version.operation:
        case "Append":
            return {"added-records": str(version.rows - before.rows)}
        case "Delete":
            return {"deleted-records": str(before.rows - version.rows)}
        case "Overwrite":
            return {"added-records": str(version.rows), "deleted-records": str(before.rows)}
    return {}


def _unreadable(location: str) -> str:
    """The address under a scheme that no Iceberg reader takes for one of a manifest list, so that it says so."""
    return "lance://" + locations.uri(location.rstrip("/")).partition("://")[2]
