"""Scans of Lance tables: of each fragment that may hold a matching row, a Parquet copy of the columns asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError, TableNotFoundError, TableVersionNotFoundError
from pyiceberg.schema import Schema

from lancehouse.catalog.errors import IllegalArgumentError, PlanTaskNotFoundError
from lancehouse.catalog.metadata import LanceTables
from lancehouse.catalog.places import ReadablePlaces
from lancehouse.catalog.scans.conditions import FALSE, TRUE, condition
from lancehouse.catalog.scans.exports import Exports, Wanted
from lancehouse.catalog.scans.expressions import Filter
from lancehouse.catalog.scans.requests import Json, ScanRequest, scan_tasks, token
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.history import from_snapshot_id
from lancehouse.lake.parquet import Fragment, Version
from lancehouse.store.rows import EntryRow, ExportRow

COPIED_BYTES = 64 << 20
COPIES = 32
"""What one answer copies at most, of Lance's data; what is more is left to plan tasks. One copy is no larger."""

REPLACING = frozenset({"Overwrite", "Restore"})
"""Operations of Lance after which a column's id may be another column's."""

FIRST = 1
"""The version that made the table."""

PRUNED_S = 3.0
"""How long a plan may look for fragments that hold no matching row."""


class LanceScans:
    """Plans of scans, and what their plan tasks stand for."""

    def __init__(self, tables: LanceTables, exports: Exports) -> None:
        self._tables = tables
        self._exports = exports

    def plan(self, places: ReadablePlaces, entry: EntryRow, request: ScanRequest) -> Json:
        """The tasks of a scan, in the name of whom these places may be read by.

        Raises:
            InvalidInputError: the request names a snapshot or a column that the table has not.
            PermissionDeniedError: the table takes files from places that the caller may not read.
        """
        table, warehouse = self._table(places, entry), places.warehouse
        rows = request.filter(table.schema)
        ids = table.columns(request.selected(table.schema), rows)
        request.with_stats(table.schema)
        answer = _Answer(rows.residual)
        for snapshot_id, version, fragments in table.scanned(request):
            columns = _present(ids, version.columns)
            kept = _pruned(version, fragments, rows, table.schema, case_sensitive=request.case_sensitive)
            self._add(
                answer,
                warehouse,
                entry,
                snapshot_id,
                version,
                [Wanted(each, columns, range(each.rows)) for each in kept],
            )
        return answer.json()

    def tasks(self, places: ReadablePlaces, entry: EntryRow, content: Json) -> Json:
        """What a plan task stands for.

        Raises:
            PlanTaskNotFoundError: no plan of this table gave it out.
        """
        table, warehouse = self._table(places, entry), places.warehouse
        match content:
            case {"snapshot": int(snapshot_id), "rows": list(parts), "columns": list(ids), "filter": residual}:
                pass
            case _:
                raise _no_task()
        if snapshot_id not in table.snapshots or not all(isinstance(key, int) for key in ids):
            raise _no_task()
        version = table.version(snapshot_id)
        if not ids or not set(ids) <= set(version.columns):
            raise _no_task()
        fragments = {fragment.id: fragment for fragment in version.fragments}
        wanted = [_wanted(part, fragments, frozenset(ids)) for part in parts]
        answer = _Answer(residual)
        self._add(answer, warehouse, entry, snapshot_id, version, wanted)
        return answer.json()

    def _add(
        self,
        answer: _Answer,
        warehouse: Warehouse,
        entry: EntryRow,
        snapshot_id: int,
        version: Version,
        wanted: Sequence[Wanted],
    ) -> None:
        parts: list[ExportRow | Wanted] = []
        for part in self._exports.find(warehouse, entry.uuid, wanted):
            parts += [part] if isinstance(part, ExportRow) else _split(part, _size(version, part))
        now = [
            place
            for place, part in enumerate(parts)
            if isinstance(part, Wanted) and answer.has_room(_size(version, part))
        ]
        making = [part for place in now if isinstance(part := parts[place], Wanted)]
        made = self._exports.make(warehouse, entry.uuid, version, making)
        for place, row in zip(now, made, strict=True):
            parts[place] = row
        answer.files += [part for part in parts if isinstance(part, ExportRow)]
        left = [part for part in parts if isinstance(part, Wanted)]
        left += [part.of(rest) for part, row in zip(making, made, strict=True) if (rest := part.rows[row.rows :])]
        answer.later += [
            token(
                {
                    "snapshot": snapshot_id,
                    "rows": [[each.fragment.id, each.rows.start, each.rows.stop] for each in group],
                    "columns": sorted(group[0].columns),
                    "filter": answer.residual,
                }
            )
            for group in _grouped(left, version)
        ]

    def _table(self, places: ReadablePlaces, entry: EntryRow) -> _Table:
        warehouse = places.warehouse
        places.require_table(entry.location)
        table = self._tables.cached(warehouse, entry) or self._tables.load(warehouse, entry)
        return _Table(table.metadata, TableRef(entry.location, warehouse.storage, confinement=places))


@dataclass(frozen=True)
class _Table:
    """A table as its clients see it."""

    metadata: Json
    ref: TableRef

    @cached_property
    def schema(self) -> Schema:
        return Schema.model_validate(self._schema)

    @property
    def _schema(self) -> Json:
        current = self.metadata["current-schema-id"]
        found: Json = next(schema for schema in self.metadata["schemas"] if schema["schema-id"] == current)
        return found

    @cached_property
    def snapshots(self) -> dict[int, Json]:
        return {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata.get("snapshots") or ()}

    def columns(self, selected: set[int] | None, filter: Filter) -> set[int]:
        """The ids of the columns that readers need: those selected, or all, and those that they filter by."""
        roots = {below: column.field_id for column in self.schema.fields for below in Schema(column).field_ids}
        wanted = set(roots) if selected is None else selected
        return {roots[each] for each in wanted | filter.fields}

    def version(self, snapshot_id: int) -> Version:
        """The version that a snapshot stands for."""
        refs = self.metadata.get("refs") or {}
        branches = [name for name, ref in refs.items() if ref["type"] == "branch"]
        branch, version = from_snapshot_id(snapshot_id, branches)
        like = self._schema if self._is_replaced_since(snapshot_id) else None
        try:
            return Version.open(replace(self.ref, version=version, branch=branch), like=like)
        except (TableNotFoundError, TableVersionNotFoundError) as error:
            raise IllegalArgumentError(
                f"version {version} cannot be read: its manifest is not in place yet, or not any more; try again"
            ) from error

    def _is_replaced_since(self, snapshot_id: int) -> bool:
        """Whether the schema may have been written over between a snapshot and now, in any branch but its own past."""
        on_branch = snapshot_id >> 32
        return any(
            other != FIRST and (on_branch or other > snapshot_id)
            for other, snapshot in self.snapshots.items()
            if snapshot["summary"].get("lance.operation") in REPLACING
        )

    def scanned(self, request: ScanRequest) -> Iterator[tuple[int, Version, Sequence[Fragment]]]:
        """Versions, each with the fragments of it that a scan is about."""
        if request.is_incremental:
            yield from self._appended(request)
            return
        snapshot_id = self.metadata.get("current-snapshot-id") if request.snapshot_id is None else request.snapshot_id
        if snapshot_id is None or snapshot_id == -1:
            return
        self._known(snapshot_id)
        version = self.version(snapshot_id)
        yield snapshot_id, version, version.fragments

    def _appended(self, request: ScanRequest) -> Iterator[tuple[int, Version, Sequence[Fragment]]]:
        """Versions that only added rows, each with the fragments that it added."""
        for snapshot_id in self._between(request):
            snapshot = self.snapshots[snapshot_id]
            if snapshot.get("summary", {}).get("operation") != "append":
                continue
            parent = snapshot.get("parent-snapshot-id")
            before = {each.id for each in self.version(parent).fragments} if parent in self.snapshots else set()
            version = self.version(snapshot_id)
            yield snapshot_id, version, [each for each in version.fragments if each.id not in before]

    def _between(self, request: ScanRequest) -> list[int]:
        """Snapshots after the start up to the end, oldest first."""
        found: list[int] = []
        at: Any = self._known(request.end_id)
        while at != request.start_id:
            if at not in self.snapshots:
                raise IllegalArgumentError(
                    f"Starting snapshot (exclusive) {request.start_id} is not a parent ancestor of "
                    f"end snapshot {request.end_id}"
                )
            found.append(at)
            at = self.snapshots[at].get("parent-snapshot-id")
        return found[::-1]

    def _known(self, snapshot_id: int | None) -> int:
        if snapshot_id is None or snapshot_id not in self.snapshots:
            raise IllegalArgumentError(f"Cannot find snapshot with ID {snapshot_id}")
        return snapshot_id


class _Answer:
    """What is told, and what it has cost until now."""

    def __init__(self, residual: Any) -> None:
        self.residual = residual
        self.files: list[ExportRow] = []
        self.later: list[str] = []
        self._bytes = 0
        self._copies = 0

    def has_room(self, size: int) -> bool:
        """Whether something of a size is copied for this answer; the first one always is."""
        is_first = not self._copies
        self._bytes += size
        self._copies += 1
        return is_first or (self._bytes <= COPIED_BYTES and self._copies <= COPIES)

    def json(self) -> Json:
        return scan_tasks([self._task(row) for row in self.files if row.rows], plan_tasks=self.later)

    def _task(self, row: ExportRow) -> Json:
        task: Json = {
            "data-file": {
                "spec-id": 0,
                "content": "data",
                "file-path": row.path,
                "file-format": "parquet",
                "partition": [],
                "file-size-in-bytes": row.bytes,
                "record-count": row.rows,
            }
        }
        return task if self.residual is None else task | {"residual-filter": self.residual}


def _wanted(part: object, fragments: Mapping[int, Fragment], columns: frozenset[int]) -> Wanted:
    match part:
        case [int(number), int(start), int(stop)] if number in fragments:
            if 0 <= start < stop <= fragments[number].rows:
                return Wanted(fragments[number], columns, range(start, stop))
    raise _no_task()


def _size(version: Version, wanted: Wanted) -> int:
    return int(version.row_bytes(wanted.fragment, wanted.columns) * len(wanted.rows))


def _split(wanted: Wanted, size: int) -> Iterator[Wanted]:
    """Parts of about the same size, each small enough for one answer."""
    count = -(-len(wanted.rows) // max(1, -(-size // COPIED_BYTES)))
    for start in range(0, len(wanted.rows), count):
        yield wanted.of(wanted.rows[start : start + count])


def _grouped(wanted: Iterable[Wanted], version: Version) -> Iterator[list[Wanted]]:
    group: list[Wanted] = []
    held = 0
    for each in wanted:
        size = _size(version, each)
        if group and (held + size > COPIED_BYTES or len(group) == COPIES):
            yield group
            group, held = [], 0
        group.append(each)
        held += size
    if group:
        yield group


def _present(ids: set[int], columns: Mapping[int, pa.Field[Any]]) -> frozenset[int]:
    """The columns of a version that are needed; where it has none of them, a small one, for the number of rows."""
    present = frozenset(ids & columns.keys())
    return present or frozenset([min(columns, key=lambda key: _width(columns[key].type))])


def _width(dtype: pa.DataType) -> int:
    try:
        return int(dtype.bit_width)
    except ValueError:
        return 1 << 32


def _pruned(
    version: Version, fragments: Sequence[Fragment], filter: Filter, schema: Schema, *, case_sensitive: bool
) -> Iterator[Fragment]:
    """Fragments without those of which Lance can soon tell that no row of them matches."""
    wanted = condition(filter.superset, schema, version.columns, case_sensitive=case_sensitive)
    until = time.monotonic() + PRUNED_S
    for fragment in fragments if wanted != FALSE else ():
        if wanted != TRUE and time.monotonic() < until:
            try:
                if not version.holds(fragment.id, wanted):
                    continue
            except LanceNamespaceError:
                # Lance has no way to compare this.
                wanted = TRUE
        yield fragment


def _no_task() -> PlanTaskNotFoundError:
    return PlanTaskNotFoundError("Plan task does not exist: plan the scan again")
