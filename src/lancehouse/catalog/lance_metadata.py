"""Build Iceberg table metadata for a Lance table from its catalog entry and its version history.

Nothing is read here. What was built before is reused as far as it is still correct, so that a new version costs the
same however many there are.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import compress, count, groupby
from operator import is_not
from typing import NamedTuple

import orjson

from lancehouse import locations
from lancehouse.lake.dataset import MAIN, VERSION_BITS, manifest_folder, snapshot_id, version_of_snapshot
from lancehouse.lake.history import ICEBERG_OPERATION_NAMES, SCHEMA_ID, History, Version
from lancehouse.properties import (
    IMPL,
    LANCE,
    MANAGED_BY,
    TABLE_TYPE,
    TOTAL_BYTES,
    TOTAL_FILES,
    TOTAL_ROWS,
    managed_by,
)
from lancehouse.schema.iceberg import last_column_id
from lancehouse.store.model import EntryRow, Json, RefRow, SnapshotRow

DIGEST = 16
"""Bytes of a digest."""
ITEM_BYTES = 400
"""Approximate memory in bytes of a listed snapshot, besides its JSON."""


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A Lance version as an Iceberg snapshot, encoded as JSON."""

    id: int
    sequence: int
    timestamp_ms: int
    on_main: bool
    """Whether it is on the main branch, so that the snapshot log has it."""
    manifest: str
    """Location of the version's manifest."""
    json: bytes
    version: Version | None = None
    """The version as storage has it; None if that is not known."""


class ListedSnapshot(NamedTuple):
    """A snapshot in a list, and running totals of the list up to and including it."""

    id: int
    json: bytes
    log: bytes
    """Entry in the snapshot log: when it became current; empty outside the main branch."""
    version: Version | None
    size: int
    """Bytes of the JSON and the log so far, with commas."""
    sequence: int
    """Highest sequence number so far."""
    timestamp_ms: int
    """Latest timestamp so far."""
    digest: bytes
    """Digest of all snapshots so far."""


START = ListedSnapshot(0, b"", b"", None, 0, 0, 0, bytes(DIGEST))


class SnapshotList(tuple[ListedSnapshot, ...]):
    """Encoded snapshots, with what is needed to continue after any of them."""

    __slots__ = ()

    def after(self, count: int) -> ListedSnapshot:
        """Return the totals after the first `count` snapshots."""
        return self[count - 1] if count else START

    @property
    def end(self) -> ListedSnapshot:
        """Totals after the last snapshot."""
        return self.after(len(self))

    @property
    def versions(self) -> list[Version | None]:
        """For each snapshot, the version as storage has it, or None."""
        return [snapshot.version for snapshot in self]

    def find(self, id: int) -> ListedSnapshot | None:
        """Return a snapshot, or None. The list must be ordered by id."""
        index = self.count_before(id)
        return self[index] if index < len(self) and self[index].id == id else None

    def count_before(self, id: int) -> int:
        """Return how many snapshots have a lower id. The list must be ordered by id."""
        return bisect_left(self, id, key=lambda snapshot: snapshot.id)

    def replace_tail(self, keep: int, new_snapshots: Sequence[EncodedSnapshot]) -> SnapshotList:
        """Return a list of the first `keep` snapshots, followed by `more`."""
        last, new_items = self.after(keep), list[ListedSnapshot]()
        for snapshot in new_snapshots:
            # Iceberg's readers refuse a snapshot log that goes back in time, and clocks of writers differ.
            timestamp_ms = max(last.timestamp_ms, snapshot.timestamp_ms)
            log = b'{"snapshot-id":%d,"timestamp-ms":%d}' % (snapshot.id, timestamp_ms) if snapshot.on_main else b""
            last = ListedSnapshot(
                snapshot.id,
                snapshot.json,
                log,
                snapshot.version,
                last.size + len(snapshot.json) + len(log) + 2,
                max(last.sequence, snapshot.sequence),
                timestamp_ms,
                blake2b(last.digest + snapshot.json, digest_size=DIGEST).digest(),
            )
            new_items.append(last)
        return SnapshotList((*self[:keep], *new_items))


EMPTY_SCHEMA: Json = {"type": "struct", "schema-id": SCHEMA_ID, "fields": []}
"""Schema of a table that was declared without one."""

JOINED_INLINE = 2**18
"""Most bytes of metadata that are joined on the event loop."""

_TOTAL = re.compile(r"[0-9]{1,19}")
"""A total as a client may send it."""
ICEBERG_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})
"""Values that Iceberg allows for `operation` in a snapshot's summary."""


@dataclass(frozen=True)
class LanceTableMetadata:
    """A table's metadata as JSON, with all snapshots or only with those that refs point to."""

    head: bytes = field(repr=False)
    """The JSON up to the first snapshot."""
    main: SnapshotList = field(repr=False)
    """Snapshots of the main branch."""
    side: SnapshotList = field(repr=False)
    """Snapshots of all other branches."""
    ref_ids: Collection[int] = field(repr=False)
    """Ids of the snapshots that refs point to."""
    manifest: str
    """Location of the current version's manifest."""

    @cached_property
    def etag(self) -> str:
        """ETag of `full_json`: every server computes the same one from the same state."""
        return blake2b(self.head + self.main.end.digest + self.side.end.digest, digest_size=DIGEST).hexdigest()

    @cached_property
    def full_json(self) -> bytes:
        """The metadata with all snapshots, joined on first use."""
        return self._join(self.main, self.side)

    @cached_property
    def refs_json(self) -> bytes:
        """The metadata with only those snapshots that refs point to, joined on first use."""
        on_main = [snapshot for snapshot in map(self.main.find, sorted(self.ref_ids)) if snapshot is not None]
        on_side = [snapshot for snapshot in self.side if snapshot.id in self.ref_ids]
        has_all = len(on_main) + len(on_side) == len(self.main) + len(self.side)
        return self.full_json if has_all else self._join(on_main, on_side)

    def _join(self, main: Sequence[ListedSnapshot], side: Sequence[ListedSnapshot]) -> bytes:
        snapshots = [snapshot.json for snapshot in main]
        snapshots += [snapshot.json for snapshot in side]
        tail = b'],"snapshot-log":[' + b",".join([snapshot.log for snapshot in main]) + b"]}"
        if not snapshots:
            return self.head + tail
        # One join: a second one would copy megabytes once more.
        snapshots[0] = self.head + snapshots[0]
        snapshots[-1] += tail
        return b",".join(snapshots)

    def share_json(self, before: LanceTableMetadata) -> None:
        """Take over what an earlier state has joined, if it was the same: it is loaded more often than it changes."""
        if before.etag == self.etag:
            vars(self).update({name: vars(before)[name] for name in ("full_json", "refs_json") if name in vars(before)})

    @property
    def full_size(self) -> int:
        """Bytes of `full_json`, or a few more; known without joining it."""
        return len(self.head) + self.main.end.size + self.side.end.size + len(b'],"snapshot-log":[]}')

    @property
    def is_slow_to_join(self) -> bool:
        """Whether `full_json` has still to be joined, of many snapshots."""
        return self.full_size > JOINED_INLINE and "full_json" not in vars(self)

    @property
    def metadata(self) -> Json:
        """All metadata, parsed again at each access: too slow for every request."""
        parsed: Json = orjson.loads(self.full_json)
        return parsed

    @property
    def size_bytes(self) -> int:
        """Approximate memory in bytes, including `full_json` and `refs_json`, which may be joined later."""
        snapshots = (len(self.main) + len(self.side)) * ITEM_BYTES + self.main.end.size + self.side.end.size
        return 2 * len(self.head) + self.full_size + snapshots


@dataclass(frozen=True, slots=True)
class BuiltMetadata:
    """A table's metadata, and what they were built from, so that the next state can reuse it."""

    table: LanceTableMetadata
    location: str
    history: History | None
    inherited_count: int
    """How many snapshots of main come from storage, from before the first that the catalog accepted."""
    last_accepted: SnapshotRow | None
    """The last snapshot of main that the catalog accepted, or None."""
    refs: Sequence[RefRow]
    """Tags and branches that are stored in the catalog."""

    @property
    def main(self) -> SnapshotList:
        """Snapshots of the main branch."""
        return self.table.main

    @property
    def ref_snapshot_ids(self) -> set[int]:
        """The snapshots of the main branch that `table.refs_json` depends on.

        The last inherited one is among them: timestamps in the snapshot log must not go back behind it.
        """
        tags = self.history.tags.values() if self.history else ()
        ids = {
            self.main.end.id,
            self.main.after(self.inherited_count).id,
            *tags,
            *(ref.snapshot_id for ref in self.refs),
        }
        return {candidate for candidate in ids if candidate <= self.main.end.id}


@dataclass(frozen=True, slots=True)
class ReusablePrefix:
    """How many snapshots of main can be reused, provided that the catalog still has the rows it had."""

    snapshot_count: int
    """Reusable snapshots."""
    accepted_count: int
    """Those of them that the catalog accepted."""
    after_id: int
    """Only snapshots with a greater id must be read from the catalog."""
    last_accepted: SnapshotRow
    version: int

    @property
    def needs_only_last(self) -> bool:
        """Whether, unless there are new ones, the last known snapshot is the only one of main to be read again."""
        return self.after_id == self.last_accepted.snapshot_id - 1

    def is_continued_by(self, rows: Sequence[SnapshotRow], count: int) -> bool:
        """Return whether rows read from the catalog continue this prefix, given the number of all its rows.

        Ids only grow. So if the last known row is still there, the number of all rows equals that of known and new ones
        only if none was removed. Rows of other branches have greater ids, so they are among `rows`.
        """
        is_there = self.last_accepted in rows and any(row.snapshot_id <= self.version for row in rows)
        return is_there and count - len(rows) == self.accepted_count


def find_reusable_prefix(
    entry: EntryRow, history: History | None, before: BuiltMetadata | None, *, is_extended: bool = False
) -> ReusablePrefix | None:
    """Return what can be reused of a table that the catalog manages, or None.

    Args:
        entry: the table's entry.
        history: the versions in storage.
        before: the metadata as they were built last.
        is_extended: whether `history` is that of `before` with more versions at its end.
    """
    if before is None or before.last_accepted is None or entry.version is None or before.location != entry.location:
        return None
    if entry.version >> VERSION_BITS:
        return None  # such ids look like those of other branches
    main, inherited = before.main, before.inherited_count
    # The last accepted snapshot is never kept: its row is read again, which shows whether the catalog still has it (see
    # `is_continued_by`).
    keep_count = last_count = main.count_before(before.last_accepted.snapshot_id)
    first = main.after(inherited + 1).id
    if is_extended and before.history is not None and before.history.version + 1 >= first:
        keep_count = min(keep_count, main.count_before(before.history.version + 1))
    elif history is not before.history:
        older = _versions_before(history, first)
        if len(older) != inherited:
            return None
        stored_versions = history.versions_on(None) if history else {}
        accepted = [stored_versions.get(snapshot.id) for snapshot in main[inherited:last_count]]
        keep_count = _common_prefix_length((*older, *accepted), main.versions)
    keep_count = min(keep_count, main.count_before(entry.version))
    if keep_count < inherited:
        return None
    return ReusablePrefix(
        keep_count,
        keep_count - inherited,
        main.after(keep_count + 1).id - 1,
        before.last_accepted,
        entry.version,
    )


def build_from_storage(entry: EntryRow, history: History | None, before: BuiltMetadata | None = None) -> BuiltMetadata:
    """Build the metadata of a table whose versions are those in storage.

    Args:
        entry: the table's entry.
        history: the versions in storage; None if there is no dataset.
        before: the metadata as they were built last; what is still correct is reused.
    """
    versions = history.on_main if history else ()
    keep_count = _count_reusable(entry, before, versions)
    snapshots = _snapshots_from_versions(entry, history, versions, keep_count)
    main = (before.main if before else SnapshotList()).replace_tail(keep_count, snapshots)
    return _build(
        entry,
        history,
        main,
        _build_side_branches(entry, history, before, {}, {}),
        (),
        snapshots,
        before,
        inherited=len(versions),
    )


def build_managed(
    entry: EntryRow,
    history: History | None,
    rows: Sequence[SnapshotRow],
    refs: Sequence[RefRow],
    before: BuiltMetadata | None = None,
    keep: int = 0,
) -> BuiltMetadata:
    """Build the metadata of a table whose versions the catalog manages.

    Its snapshots are those that the catalog accepted and, before the first of them, those that storage had then. Other
    versions in storage were never committed, and are left out. The same holds for each other branch that has a ref in
    the catalog; the remaining branches are taken from storage.

    Args:
        entry: the table's entry.
        history: the versions in storage; None if there is no dataset.
        rows: the snapshots that the catalog accepted, except those that are reused.
        refs: tags and branches that are stored in the catalog; they take precedence over those in storage.
        before: the metadata as they were built last.
        keep: how many of their snapshots are reused, according to a `ReusablePrefix` that is still valid.
    """
    branches = managed_branches(refs)
    by_branch = _group_by_branch(rows, branches)
    if entry.version is None:
        return _build(
            entry, history, SnapshotList(), _build_side_branches(entry, None, None, branches, by_branch), refs, ()
        )
    accepted = _rows_up_to(entry.version, by_branch[MAIN])
    snapshots: list[EncodedSnapshot] = []
    inherited = before.inherited_count if before else 0
    if not keep:
        versions = _versions_before(history, accepted[0].snapshot_id if accepted else entry.version + 1)
        inherited, keep = len(versions), _count_reusable(entry, before, versions)
        snapshots += _snapshots_from_versions(entry, history, versions, keep)
    snapshots += [
        _snapshot_from_row(row, history.find_on_main(row.snapshot_id) if history else None) for row in accepted
    ]
    if not snapshots or snapshots[-1].id != entry.version:
        snapshots.append(_placeholder_snapshot(entry, MAIN, entry.version))
    main = (before.main if before else SnapshotList()).replace_tail(keep, snapshots)
    last = accepted[-1] if accepted else None
    side = _build_side_branches(entry, history, before, branches, by_branch)
    return _build(entry, history, main, side, refs, snapshots, before, inherited=inherited, last=last)


def managed_branches(refs: Iterable[RefRow]) -> dict[str, int]:
    """Return the branches whose versions the catalog accepts, with the current snapshot of each.

    These are the branches that point to a snapshot of their own; others are only names for a snapshot elsewhere. If the
    ids of two branches have the same upper half, only the first counts.
    """
    heads_by_prefix: dict[int, tuple[str, int]] = {}
    for ref in refs:
        if ref.kind == "branch" and is_on_branch(ref.name, ref.snapshot_id):
            heads_by_prefix.setdefault(ref.snapshot_id >> VERSION_BITS, (ref.name, ref.snapshot_id))
    return dict(heads_by_prefix.values())


def is_on_branch(branch: str, snapshot_id: int) -> bool:
    """Return whether a snapshot is a version of this branch."""
    return version_of_snapshot(branch, snapshot_id) is not None


def version_from_row(row: SnapshotRow) -> Version | None:
    """Return a version of the main branch as its row describes it; None for other branches, or if it has no totals.

    Clients send the totals of versions in object stores, so that no manifest is read for them.
    """
    totals = [row.summary.get(key, "") for key in (TOTAL_ROWS, TOTAL_FILES, TOTAL_BYTES)]
    version = version_of_snapshot(None, row.snapshot_id)
    if version is None or not all(map(_TOTAL.fullmatch, totals)):
        return None
    manifest = f"{manifest_folder(None)}/{row.manifest_list.rpartition('/')[2]}"
    rows, files, size = map(int, totals)
    operation = row.summary.get("lance.operation")
    return Version(None, version, manifest, row.timestamp_ms, operation, rows, files, size, is_told=True)


def is_managed(entry: EntryRow) -> bool:
    """Return whether the catalog decides which version is current (`managed_by=impl`)."""
    return managed_by(entry.properties) == IMPL


def manifest_location(location: str, version: int, branch: str = MAIN) -> str:
    """Return where Lance puts the manifest of a version. File names count down, so that the newest is listed first."""
    return f"{location.rstrip('/')}/{manifest_folder(branch)}/{2**64 - 1 - version:020}.manifest"


def _build(
    entry: EntryRow,
    history: History | None,
    main: SnapshotList,
    side: SnapshotList,
    rows: Sequence[RefRow],
    new_snapshots: Sequence[EncodedSnapshot],
    before: BuiltMetadata | None = None,
    *,
    inherited: int = 0,
    last: SnapshotRow | None = None,
) -> BuiltMetadata:
    """Assemble a table's metadata; `new_snapshots` are the last snapshots of its main branch."""
    refs = _refs_json(main, side, history, rows)
    head = orjson.dumps(_metadata_head(entry, history, main, side, last) | {"refs": refs})[:-1] + b',"snapshots":['
    table = LanceTableMetadata(
        head,
        main,
        side,
        ref_ids={ref["snapshot-id"] for ref in refs.values()},
        manifest=new_snapshots[-1].manifest if new_snapshots else f"{entry.location.rstrip('/')}/_versions",
    )
    if before is not None:
        table.share_json(before.table)
    return BuiltMetadata(table, entry.location, history, inherited, last, rows)


def _count_reusable(entry: EntryRow, before: BuiltMetadata | None, versions: Sequence[Version]) -> int:
    """Return how many versions of main are already encoded as storage has them.

    The last one never counts, because `_build` takes the current manifest from it.
    """
    if before is None or before.location != entry.location or not versions:
        return 0
    return min(_common_prefix_length(before.main.versions[: before.inherited_count], versions), len(versions) - 1)


def _group_by_branch(rows: Iterable[SnapshotRow], branches: Collection[str]) -> dict[str, list[SnapshotRow]]:
    """Return the rows that the catalog accepted for main and for each of these branches."""
    name_by_prefix = {snapshot_id(name, 0) >> VERSION_BITS: name for name in branches}
    rows_by_branch: dict[str, list[SnapshotRow]] = {name: [] for name in (MAIN, *branches)}
    for row in rows:
        rows_by_branch[name_by_prefix.get(row.snapshot_id >> VERSION_BITS, MAIN)].append(row)
    return rows_by_branch


def _rows_up_to(id: int, rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    return sorted((row for row in rows if row.snapshot_id <= id), key=lambda row: row.snapshot_id)


def _build_side_branches(
    entry: EntryRow,
    history: History | None,
    before: BuiltMetadata | None,
    branches: Mapping[str, int],
    rows: Mapping[str, Sequence[SnapshotRow]],
) -> SnapshotList:
    """Return the snapshots of all branches but main, from storage or, where it manages a branch, from the catalog.

    If a branch was deleted and created again under its name, all its versions were read again, so none is reused.
    """
    versions = history.on_branches if history else ()
    if not branches:
        side = before.table.side if before and before.location == entry.location else SnapshotList()
        keep_count = _common_prefix_length(side.versions, versions)
        return side.replace_tail(keep_count, _snapshots_from_versions(entry, history, versions, keep_count))
    stored_branches = {str(name): tuple(group) for name, group in groupby(versions, key=lambda version: version.branch)}
    encoded: list[EncodedSnapshot] = []
    for name in sorted({*stored_branches, *branches}):
        if name in branches:
            encoded += _branch_snapshots(
                entry, history, name, branches[name], stored_branches.get(name, ()), rows[name]
            )
        else:
            encoded += _snapshots_from_versions(entry, history, stored_branches[name], 0)
    return SnapshotList().replace_tail(0, encoded)


def _branch_snapshots(
    entry: EntryRow,
    history: History | None,
    name: str,
    current: int,
    versions: Sequence[Version],
    rows: Sequence[SnapshotRow],
) -> list[EncodedSnapshot]:
    """Return the snapshots of a branch that the catalog manages, from its first version to the current one."""
    accepted = _rows_up_to(current, rows)
    first = accepted[0].snapshot_id if accepted else current + 1
    snapshots = _snapshots_from_versions(
        entry, history, [version for version in versions if version.snapshot_id < first], 0
    )
    version_by_id = {version.snapshot_id: version for version in versions}
    snapshots += [_snapshot_from_row(row, version_by_id.get(row.snapshot_id), on_main=False) for row in accepted]
    if not snapshots or snapshots[-1].id != current:
        snapshots.append(_placeholder_snapshot(entry, name, current))
    return snapshots


def _common_prefix_length(left: Sequence[Version | None], right: Sequence[Version | None]) -> int:
    """Return the length of the common prefix of two sequences.

    Versions are compared by identity: a history that is read again reuses the objects of the versions that it knew. The
    loop runs in C, since it goes over all versions of a table each time that one is added.
    """
    return next(compress(count(), map(is_not, left, right)), min(len(left), len(right)))


def _versions_before(history: History | None, version: int) -> Sequence[Version]:
    """Return the versions of main below a version."""
    if history is None:
        return ()
    versions = history.on_main
    return versions[: bisect_left(versions, version, key=lambda candidate: candidate.version)]


def _metadata_head(
    entry: EntryRow, history: History | None, main: SnapshotList, side: SnapshotList, last: SnapshotRow | None
) -> Json:
    # A client that sends the totals of a version, so that its manifest need not be read, sends the schema as well.
    is_described = last is not None and version_from_row(last) is not None
    if history is not None and (history.version == entry.version or not is_described):
        schema = history.schema
    else:
        schema = {**(entry.schema or EMPTY_SCHEMA), "schema-id": SCHEMA_ID}
    head: Json = {
        "format-version": 2,
        "table-uuid": entry.uuid,
        "location": entry.location,
        "last-sequence-number": max(main.end.sequence, side.end.sequence),
        "last-updated-ms": max(main.end.timestamp_ms, entry.updated_ms),
        "last-column-id": max(history.last_column_id if history else 0, last_column_id(schema)),
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
    return head | ({"current-snapshot-id": main.end.id} if main else {})


def _refs_json(
    main: SnapshotList, side: SnapshotList, history: History | None, rows: Collection[RefRow]
) -> dict[str, Json]:
    """Return the refs of the metadata.

    In Iceberg, branches and tags share one set of names, in Lance they do not: a tag with a branch's name becomes
    `tag:NAME`.
    """
    targets: dict[str, tuple[str, int]] = {}
    if history is not None:
        latest = {version.branch: version.snapshot_id for version in history.on_branches}
        branches = (*(name for name in history.branches if name in latest), *managed_branches(rows))
        targets = {name: ("branch", latest.get(name, 0)) for name in branches}
        for name, target in history.tags.items():
            targets[f"tag:{name}" if name in targets or name == MAIN else name] = ("tag", target)
    targets |= {row.name: (row.kind, row.snapshot_id) for row in rows}
    if main:
        targets = {MAIN: ("branch", main.end.id)} | {name: ref for name, ref in targets.items() if name != MAIN}
    on_side = {snapshot.id for snapshot in side}
    return {
        name: {"snapshot-id": snapshot, "type": kind}
        for name, (kind, snapshot) in targets.items()
        if snapshot in on_side or main.find(snapshot) is not None
    }


def _snapshots_from_versions(
    entry: EntryRow, history: History | None, versions: Sequence[Version], skip: int
) -> list[EncodedSnapshot]:
    """Encode versions, branch by branch, except the first `skip`."""
    if history is None or skip == len(versions):
        return []
    root, unreadable = entry.location.rstrip("/"), locations.to_lance_uri(entry.location)
    snapshots: list[EncodedSnapshot] = []
    previous = versions[skip - 1] if skip else None
    for version in versions[skip:]:
        parent = previous if previous is not None and previous.branch == version.branch else None
        snapshots.append(_snapshot_from_version(version, parent, history, root, unreadable))
        previous = version
    return snapshots


def _snapshot_from_version(
    version: Version, previous: Version | None, history: History, root: str, unreadable: str
) -> EncodedSnapshot:
    if previous is not None:
        parent: int | None = previous.snapshot_id
    else:
        parent = history.branches[version.branch].parent if version.branch else None
    return _encode_snapshot(
        id=version.snapshot_id,
        parent=parent,
        sequence=version.version,
        timestamp_ms=version.timestamp_ms,
        manifest=f"{root}/{version.manifest}",
        manifest_list=f"{unreadable}/{version.manifest}",
        summary=_summary(version, previous),
        on_main=version.branch is None,
        version=version,
    )


def _snapshot_from_row(row: SnapshotRow, version: Version | None, *, on_main: bool = True) -> EncodedSnapshot:
    summary = {**(_summary(version, None) if version else {}), **row.summary}
    if summary.get("operation") not in ICEBERG_OPERATIONS:
        summary["operation"] = ICEBERG_OPERATION_NAMES[None]
    return _encode_snapshot(
        id=row.snapshot_id,
        parent=row.parent_id,
        sequence=row.sequence,
        timestamp_ms=row.timestamp_ms,
        manifest=row.manifest_list,
        manifest_list=row.manifest_list,
        summary=summary,
        on_main=on_main,
        version=version if on_main else None,  # a row's snapshot is never reused as one from storage
    )


def _placeholder_snapshot(entry: EntryRow, branch: str, id: int) -> EncodedSnapshot:
    """Return a snapshot for the current version of a branch about which nothing else is known (any more)."""
    version = id - snapshot_id(branch, 0)
    manifest = manifest_location(entry.location, version, branch)
    details = {"lance.version": str(version), **({} if branch == MAIN else {"lance.branch": branch})}
    return _encode_snapshot(
        id=id,
        parent=None,
        sequence=version,
        timestamp_ms=entry.updated_ms,
        manifest=manifest,
        manifest_list=locations.to_lance_uri(entry.location) + manifest.removeprefix(entry.location.rstrip("/")),
        summary={"operation": ICEBERG_OPERATION_NAMES[None], **details},
        on_main=branch == MAIN,
    )


def _encode_snapshot(
    *,
    id: int,
    parent: int | None,
    sequence: int,
    timestamp_ms: int,
    manifest: str,
    manifest_list: str,
    summary: Mapping[str, str],
    on_main: bool,
    version: Version | None = None,
) -> EncodedSnapshot:
    json = {
        "snapshot-id": id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": SCHEMA_ID,
    }
    # A copy is of minimal size: the buffer of orjson's result is larger.
    encoded = bytes(memoryview(orjson.dumps(json)))
    return EncodedSnapshot(id, sequence, timestamp_ms, on_main, manifest, encoded, version)


def _summary(version: Version, previous: Version | None) -> dict[str, str]:
    summary = {
        "operation": ICEBERG_OPERATION_NAMES.get(version.operation, "replace"),
        **({} if version.operation is None else {"lance.operation": version.operation}),
        "lance.version": str(version.version),
        **({} if version.branch is None else {"lance.branch": version.branch}),
        **_changed_records(version, previous),
        TOTAL_ROWS: str(version.rows),
        TOTAL_FILES: str(version.files),
        TOTAL_BYTES: str(version.bytes),
    }
    if version.operation == "Overwrite" and version.version == 1:
        summary["operation"] = "append"  # nothing was there to be overwritten
    return summary


def _changed_records(version: Version, previous: Version | None) -> dict[str, str]:
    """Return how many rows were added and deleted, where that follows from the totals."""
    if version.operation == "Overwrite" and version.version == 1:
        return {"added-records": str(version.rows)}
    if previous is None or previous.version + 1 != version.version:
        return {}
    match version.operation:
        case "Append":
            return {"added-records": str(version.rows - previous.rows)}
        case "Delete":
            return {"deleted-records": str(previous.rows - version.rows)}
        case "Overwrite":
            return {"added-records": str(version.rows), "deleted-records": str(previous.rows)}
    return {}
