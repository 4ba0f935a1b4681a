"""A Lance table in the shape of Iceberg's table metadata. Nothing is read here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import compress, count, groupby
from operator import is_not

import orjson

from lancehouse import locations
from lancehouse.catalog.snapshot_lines import DIGEST, WIDTH, Line, Snapshot
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.history import (
    ICEBERG_WORDS,
    SCHEMA_ID,
    VERSION_BITS,
    History,
    Version,
    snapshot_id,
    version_of_snapshot,
)
from lancehouse.lake.versions import folder_of
from lancehouse.properties import IMPL, LANCE, MANAGED_BY, TABLE_TYPE, managed_by
from lancehouse.schema.iceberg import last_column_id
from lancehouse.store.rows import EntryRow, Json, RefRow, SnapshotRow

EMPTY_SCHEMA: Json = {"type": "struct", "schema-id": SCHEMA_ID, "fields": []}

ICEBERG_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})


@dataclass(frozen=True)
class LanceTable:
    """A table's metadata as JSON, with all snapshots, and with only those that a branch or tag names."""

    all: bytes = field(repr=False)
    etag: str
    """Of `all`: the same wherever and whenever it is computed from the same state."""
    manifest: str
    """Where the current version is."""
    places: Sequence[slice] = field(repr=False)
    """Where `all` has the snapshots, and the log of them."""
    named: Sequence[Sequence[slice]] | None = field(repr=False)
    """Where it has those that a branch or tag names, and the log of them; None if that are all."""

    @cached_property
    def refs(self) -> bytes:
        """Made when it is first asked for."""
        if self.named is None:
            return self.all
        view, at = memoryview(self.all), 0
        parts: list[bytes | memoryview] = []
        for place, named in zip(self.places, self.named, strict=True):
            parts += [view[at : place.start], b",".join([view[each] for each in named])]
            at = place.stop
        return b"".join((*parts, view[at:]))

    @property
    def metadata(self) -> Json:
        """All of it, parsed anew each time: do not ask for it on the way of every request."""
        parsed: Json = orjson.loads(self.all)
        return parsed

    @property
    def bytes(self) -> int:
        """What the JSON takes, with that of `refs`, which may be asked for."""
        if self.named is None:
            return len(self.all)
        named = sum(each.stop - each.start + 1 for part in self.named for each in part)
        return int(2 * len(self.all) - sum(place.stop - place.start for place in self.places) + named)


@dataclass(frozen=True, slots=True)
class Built:
    """A table's metadata, and what it was put together from, so that the next can be like it."""

    table: LanceTable
    location: str
    history: History | None
    main: Line
    side: Line
    """The other branches."""
    inherited: int
    """How many of the main branch are there because storage has them, before those that the catalog accepted."""
    last: SnapshotRow | None
    """The last that the catalog accepted."""
    refs: Sequence[RefRow]
    """Tags and branches that are kept in the catalog."""

    @property
    def named(self) -> set[int]:
        """The versions of the main branch that `table.refs` depends on.

        The last of those from before the catalog is one of them: the log never goes back behind its time.
        """
        tags = self.history.tags.values() if self.history else ()
        ids = {self.main.end.id, self.main.mark(self.inherited).id, *tags, *(ref.snapshot_id for ref in self.refs)}
        return {each for each in ids if each <= self.main.end.id}

    @property
    def bytes(self) -> int:
        """About what it takes, without the history."""
        return self.table.bytes + self.main.bytes + self.side.bytes


@dataclass(frozen=True, slots=True)
class Resumption:
    """How much of the main branch can stay as it is, if the catalog still has what it had."""

    keep: int
    """Snapshots."""
    kept: int
    """Those of them that the catalog accepted."""
    after: int
    """The catalog has to tell of the snapshots with a greater id."""
    last: SnapshotRow
    version: int

    @property
    def is_of_last(self) -> bool:
        """Whether the last known is the only one of main that the catalog has to tell, unless there are new ones."""
        return self.after == self.last.snapshot_id - 1

    def fits(self, rows: Sequence[SnapshotRow], count: int) -> bool:
        """Whether these rows go on where it stops, told how many there are in all.

        Ids only grow. So if the last known is still there, there are as many as known and new ones together only if
        none was removed. Those of other branches have greater ids, so these are among the rows.
        """
        is_there = self.last in rows and any(row.snapshot_id <= self.version for row in rows)
        return is_there and count - len(rows) == self.kept


def resumption(
    entry: EntryRow, history: History | None, before: Built | None, *, is_extended: bool = False
) -> Resumption | None:
    """What of a table that the catalog manages need not be made again; None if nothing.

    Args:
        entry: the table in the catalog.
        history: what its storage holds.
        before: the table as it was.
        is_extended: whether the history is the one from before with more versions after its last one.
    """
    if before is None or before.last is None or entry.version is None or before.location != entry.location:
        return None
    if entry.version >> VERSION_BITS:
        return None  # its ids are not apart from those of other branches
    main, inherited = before.main, before.inherited
    keep = last = main.before(before.last.snapshot_id)
    first = main.mark(inherited + 1).id
    if is_extended and before.history is not None and before.history.version + 1 >= first:
        keep = min(keep, main.before(before.history.version + 1))
    elif history is not before.history:
        older = _versions_before(history, first)
        if len(older) != inherited:
            return None
        told = history.of(None) if history else {}
        accepted = main.marks[inherited * WIDTH : last * WIDTH : WIDTH]
        keep = _shared((*older, *map(told.get, accepted)), main.versions)
    keep = min(keep, main.before(entry.version))
    if keep < inherited:
        return None
    return Resumption(keep, keep - inherited, main.mark(keep + 1).id - 1, before.last, entry.version)


def stored(entry: EntryRow, history: History | None, before: Built | None = None) -> Built:
    """A table whose versions are those that storage has.

    Args:
        entry: the table in the catalog.
        history: what its storage holds; None for nothing.
        before: the same table as it was, from which is taken what is still right.
    """
    versions = history.on_main if history else ()
    keep = _keep(entry, before, versions)
    more = _of_versions(entry, history, versions, keep)
    main = before.main.extended(keep, more) if before else Line().extended(0, more)
    return _built(entry, history, main, _side(entry, history, before, {}, {}), (), more, inherited=len(versions))


def managed(
    entry: EntryRow,
    history: History | None,
    rows: Sequence[SnapshotRow],
    refs: Sequence[RefRow],
    before: Built | None = None,
    keep: int = 0,
) -> Built:
    """A table that the catalog manages.

    Its snapshots are those that the catalog accepted, and before the first of them those that storage had then. What
    storage has besides was never committed, and is not shown. The same holds for each other branch that has a ref in
    the catalog; the rest of them are as storage has them.

    Args:
        entry: the table in the catalog.
        history: what its storage holds; None for nothing.
        rows: the versions that the catalog accepted, but for those that are kept.
        refs: tags and branches that are kept in the catalog; they win over those in storage.
        before: the same table as it was.
        keep: as many of its snapshots stay, according to a `Resumption` that fits.
    """
    branches = branches_of(refs)
    by_branch = _by_branch(rows, branches)
    if entry.version is None:
        return _built(entry, history, Line(), _side(entry, None, None, branches, by_branch), refs, ())
    accepted = _up_to(entry.version, by_branch[MAIN])
    more: list[Snapshot] = []
    inherited = before.inherited if before else 0
    if not keep:
        versions = _versions_before(history, accepted[0].snapshot_id if accepted else entry.version + 1)
        inherited, keep = len(versions), _keep(entry, before, versions)
        more += _of_versions(entry, history, versions, keep)
    more += [_of_row(row, history.on_main_at(row.snapshot_id) if history else None) for row in accepted]
    if not more or more[-1].id != entry.version:
        more.append(_unknown(entry, MAIN, entry.version))
    main = before.main.extended(keep, more) if before else Line().extended(0, more)
    last = accepted[-1] if accepted else None
    side = _side(entry, history, before, branches, by_branch)
    return _built(entry, history, main, side, refs, more, inherited=inherited, last=last)


def branches_of(refs: Iterable[RefRow]) -> dict[str, int]:
    """The branches whose versions the catalog accepts, and the current one of each.

    Those that stand at a version of their own; others are mere names. Of two whose ids are the same, one counts.
    """
    found: dict[int, tuple[str, int]] = {}
    for ref in refs:
        if ref.kind == "branch" and is_of(ref.name, ref.snapshot_id):
            found.setdefault(ref.snapshot_id >> VERSION_BITS, (ref.name, ref.snapshot_id))
    return dict(found.values())


def is_of(branch: str, snapshot_id: int) -> bool:
    """Whether a snapshot is a version of this branch."""
    return version_of_snapshot(branch, snapshot_id) is not None


def is_managed(entry: EntryRow) -> bool:
    """Whether the catalog decides which version is the current one."""
    return managed_by(entry.properties) == IMPL


def manifest_location(location: str, version: int, branch: str = MAIN) -> str:
    """Where Lance puts the manifest of a version."""
    return f"{location.rstrip('/')}/{folder_of(branch)}/{2**64 - 1 - version:020}.manifest"


def _built(
    entry: EntryRow,
    history: History | None,
    main: Line,
    side: Line,
    rows: Sequence[RefRow],
    more: Sequence[Snapshot],
    *,
    inherited: int = 0,
    last: SnapshotRow | None = None,
) -> Built:
    """Put a table's metadata together; `more` are the snapshots that end its main branch."""
    refs = _refs(main, side, history, rows)
    head = orjson.dumps(_head(entry, history, main, side) | {"refs": refs})[:-1] + b',"snapshots":['
    between = b"," if main and side else b""
    whole = b"".join((head, *main.json, between, *side.json, b'],"snapshot-log":[', *main.log, b"]}"))
    side_start = len(head) + main.end.end + len(between)
    log_start = len(whole) - len(b"]}") - main.end.log_end
    starts = (len(head), side_start, log_start)
    named = _named(main, side, {ref["snapshot-id"] for ref in refs.values()}, starts)
    table = LanceTable(
        all=whole,
        etag=blake2b(head + main.digest + side.digest, digest_size=DIGEST).hexdigest(),
        manifest=more[-1].manifest if more else f"{entry.location.rstrip('/')}/_versions",
        places=(slice(len(head), side_start + side.end.end), slice(log_start, log_start + main.end.log_end)),
        named=None if len(named[0]) == len(main) + len(side) else named,
    )
    view = memoryview(whole)
    main, side = main.placed(view, len(head), log_start), side.placed(view, side_start, log_start)
    return Built(table, entry.location, history, main, side, inherited, last, rows)


def _keep(entry: EntryRow, before: Built | None, versions: Sequence[Version]) -> int:
    """How many of the versions of the main branch, but never the last, are there already as storage tells them."""
    if before is None or before.location != entry.location or not versions:
        return 0
    return min(_shared(before.main.versions[: before.inherited], versions), len(versions) - 1)


def _by_branch(rows: Iterable[SnapshotRow], branches: Collection[str]) -> dict[str, list[SnapshotRow]]:
    """What the catalog accepted for each of these branches, and for main."""
    names = {snapshot_id(name, 0) >> VERSION_BITS: name for name in branches}
    found: dict[str, list[SnapshotRow]] = {name: [] for name in (MAIN, *branches)}
    for row in rows:
        found[names.get(row.snapshot_id >> VERSION_BITS, MAIN)].append(row)
    return found


def _up_to(id: int, rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    return sorted((row for row in rows if row.snapshot_id <= id), key=lambda row: row.snapshot_id)


def _side(
    entry: EntryRow,
    history: History | None,
    before: Built | None,
    branches: Mapping[str, int],
    rows: Mapping[str, Sequence[SnapshotRow]],
) -> Line:
    """The other branches: as storage has them, but for those whose versions the catalog accepts.

    Of a branch that was made again under its name, all versions were read again, so none is kept.
    """
    versions = history.on_branches if history else ()
    if not branches:
        keep = _shared(before.side.versions, versions) if before and before.location == entry.location else 0
        more = _of_versions(entry, history, versions, keep)
        return before.side.extended(keep, more) if before else Line().extended(0, more)
    told = {str(name): tuple(each) for name, each in groupby(versions, key=lambda version: version.branch)}
    made: list[Snapshot] = []
    for name in sorted({*told, *branches}):
        if name in branches:
            made += _of_branch(entry, history, name, branches[name], told.get(name, ()), rows[name])
        else:
            made += _of_versions(entry, history, told[name], 0)
    return Line().extended(0, made)


def _of_branch(
    entry: EntryRow,
    history: History | None,
    name: str,
    current: int,
    versions: Sequence[Version],
    rows: Sequence[SnapshotRow],
) -> list[Snapshot]:
    """A branch whose versions the catalog accepts, from its first version to the current one."""
    accepted = _up_to(current, rows)
    first = accepted[0].snapshot_id if accepted else current + 1
    made = _of_versions(entry, history, [each for each in versions if each.snapshot_id < first], 0)
    stored = {each.snapshot_id: each for each in versions}
    made += [_of_row(row, stored.get(row.snapshot_id), on_main=False) for row in accepted]
    if not made or made[-1].id != current:
        made.append(_unknown(entry, name, current))
    return made


def _shared(one: Sequence[Version | None], other: Sequence[Version | None]) -> int:
    """With how many of the same two sequences begin."""
    return next(compress(count(), map(is_not, one, other)), min(len(one), len(other)))


def _versions_before(history: History | None, version: int) -> Sequence[Version]:
    """Those of the main branch."""
    if history is None:
        return ()
    versions = history.on_main
    return versions[: bisect_left(versions, version, key=lambda each: each.version)]


def _head(entry: EntryRow, history: History | None, main: Line, side: Line) -> Json:
    schema = history.schema if history else {**(entry.schema or EMPTY_SCHEMA), "schema-id": SCHEMA_ID}
    head: Json = {
        "format-version": 2,
        "table-uuid": entry.uuid,
        "location": entry.location,
        "last-sequence-number": max(main.end.sequence, side.end.sequence),
        "last-updated-ms": max(main.end.timestamp_ms, entry.updated_ms),
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
    return head | ({"current-snapshot-id": main.end.id} if main else {})


def _refs(main: Line, side: Line, history: History | None, rows: Collection[RefRow]) -> dict[str, Json]:
    """Branches and tags share their names in Iceberg and not in Lance: there, a branch's name is not a tag's too."""
    named: dict[str, tuple[str, int]] = {}
    if history is not None:
        latest = {each.branch: each.snapshot_id for each in history.on_branches}
        branches = (*(name for name in history.branches if name in latest), *branches_of(rows))
        named = {name: ("branch", latest.get(name, 0)) for name in branches}
        for name, target in history.tags.items():
            named[f"tag:{name}" if name in named or name == MAIN else name] = ("tag", target)
    named |= {row.name: (row.kind, row.snapshot_id) for row in rows}
    if main:
        named = {MAIN: ("branch", main.end.id)} | {name: ref for name, ref in named.items() if name != MAIN}
    on_side = set(side.ids)
    return {
        name: {"snapshot-id": at, "type": kind}
        for name, (kind, at) in named.items()
        if at in on_side or main.find(at) is not None
    }


def _named(main: Line, side: Line, ids: Collection[int], starts: tuple[int, int, int]) -> list[list[slice]]:
    """Where the JSON of these snapshots is, and that of their log, in the order of the table's."""
    start, side_start, log_start = starts
    found = sorted(index for index in map(main.find, ids) if index is not None)
    on_side = [side.place(index, side_start) for index, each in enumerate(side.ids) if each in ids]
    logged = [main.log_place(index, log_start) for index in found]
    return [[*(main.place(index, start) for index in found), *on_side], logged]


def _of_versions(entry: EntryRow, history: History | None, versions: Sequence[Version], skip: int) -> list[Snapshot]:
    """Versions of one branch after the other, but for the first ones."""
    if history is None or skip == len(versions):
        return []
    root, unreadable = entry.location.rstrip("/"), locations.unreadable(entry.location)
    made: list[Snapshot] = []
    before = versions[skip - 1] if skip else None
    for version in versions[skip:]:
        parent = before if before is not None and before.branch == version.branch else None
        made.append(_of_version(version, parent, history, root, unreadable))
        before = version
    return made


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
        on_main=version.branch is None,
        version=version,
    )


def _of_row(row: SnapshotRow, version: Version | None, *, on_main: bool = True) -> Snapshot:
    summary = {**(_summary(version, None) if version else {}), **row.summary}
    if summary.get("operation") not in ICEBERG_OPERATIONS:
        summary["operation"] = ICEBERG_WORDS[None]
    return _snapshot(
        id=row.snapshot_id,
        parent=row.parent_id,
        sequence=row.sequence,
        timestamp_ms=row.timestamp_ms,
        manifest=row.manifest_list,
        manifest_list=row.manifest_list,
        summary=summary,
        on_main=on_main,
        version=version if on_main else None,  # none of a side line counts as told by storage alone
    )


def _unknown(entry: EntryRow, branch: str, id: int) -> Snapshot:
    """The current version of a branch, of which nothing else is known (any more)."""
    version = id - snapshot_id(branch, 0)
    manifest = manifest_location(entry.location, version, branch)
    told = {"lance.version": str(version), **({} if branch == MAIN else {"lance.branch": branch})}
    return _snapshot(
        id=id,
        parent=None,
        sequence=version,
        timestamp_ms=entry.updated_ms,
        manifest=manifest,
        manifest_list=locations.unreadable(entry.location) + manifest.removeprefix(entry.location.rstrip("/")),
        summary={"operation": ICEBERG_WORDS[None], **told},
        on_main=branch == MAIN,
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
    on_main: bool,
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
    return Snapshot(id, sequence, timestamp_ms, on_main, manifest, orjson.dumps(json), version)


def _summary(version: Version, before: Version | None) -> dict[str, str]:
    summary = {
        "operation": ICEBERG_WORDS.get(version.operation, "replace"),
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
