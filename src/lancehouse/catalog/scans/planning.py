"""Scans of Iceberg tables: which files hold rows that a filter lets through, and what is deleted in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pyiceberg.avro.file import AvroFile
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    residual_evaluator_of,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lancehouse.catalog.errors import IllegalArgumentError, MetadataNotFoundError, PlanTaskNotFoundError
from lancehouse.catalog.iceberg import manifests
from lancehouse.catalog.scans.content_files import content_file, content_offset, first_row_id, partition_json
from lancehouse.catalog.scans.delete_files import DeleteFiles
from lancehouse.catalog.scans.expressions import Filter
from lancehouse.catalog.scans.requests import Json, ScanRequest, scan_tasks, token

logger = logging.getLogger(__name__)

FILES = 10_000
"""Data files of one answer, about; the others are plan tasks."""

_VERSION = 3
"""Manifests of all versions are read with the schema of this one."""


class NamedFiles(Protocol):
    """Knows which files a caller may be told to read."""

    def require(self, file: str, what: str) -> None:
        """Refuse one that they may not."""


def plan(
    metadata: TableMetadata, io: FileIO, request: ScanRequest, files: NamedFiles, *, has_nulls: bool = True
) -> Json:
    """The tasks of a scan.

    Args:
        metadata: of the table.
        io: to read its manifests with.
        request: of the client.
        files: refuses files that the caller may not read.
        has_nulls: whether the client reads nulls among partition values; pyiceberg 0.12 does not.

    Raises:
        InvalidInputError: the request names a snapshot or a column that the table has not, or a snapshot that is
            scanned names a manifest outside of the table.
        PermissionDeniedError: a manifest names a file that the caller may not read.
        MetadataNotFoundError: a manifest cannot be read.
    """
    scan = _Scan(metadata, io, request, files, has_nulls)
    groups = list(_grouped(scan.manifests))
    later = [token({"request": request.json, "manifests": group}) for group in groups[1:]]
    return scan.tasks(groups[0] if groups else [], later)


def tasks(metadata: TableMetadata, io: FileIO, content: Json, files: NamedFiles, *, has_nulls: bool = True) -> Json:
    """What a plan task stands for.

    Raises:
        PlanTaskNotFoundError: no plan gave it out, or the table has changed too much since.
    """
    scan = _Scan(metadata, io, ScanRequest.of(content.get("request")), files, has_nulls)
    wanted = content.get("manifests")
    there = {manifest.manifest_path for manifest in scan.manifests}
    if not isinstance(wanted, list) or not all(isinstance(path, str) and path in there for path in wanted):
        raise PlanTaskNotFoundError("Plan task does not exist: plan the scan again")
    return scan.tasks(wanted, [])


def _grouped(manifests: Sequence[ManifestFile]) -> Iterator[list[str]]:
    group: list[str] = []
    files = 0
    for manifest in manifests:
        group.append(manifest.manifest_path)
        files += (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        if files >= FILES:
            yield group
            group, files = [], 0
    if group:
        yield group


@dataclass(frozen=True)
class _Scan:
    metadata: TableMetadata
    io: FileIO
    request: ScanRequest
    files: NamedFiles
    has_nulls: bool

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The one that is scanned, or the last one of a range."""
        wanted = self.request.end_id if self.request.is_incremental else self.request.snapshot_id
        if wanted is None:
            return self.metadata.current_snapshot()
        if (found := self.metadata.snapshot_by_id(wanted)) is None:
            raise IllegalArgumentError(f"Cannot find snapshot with ID {wanted}")
        return found

    @cached_property
    def schema(self) -> Schema:
        """That the names of the filter are of."""
        if self.request.use_snapshot_schema and self.snapshot is not None and self.snapshot.schema_id is not None:
            wanted = self.snapshot.schema_id
            return next((one for one in self.metadata.schemas if one.schema_id == wanted), self.metadata.schema())
        return self.metadata.schema()

    @cached_property
    def schemas(self) -> list[Schema]:
        return [self.schema, self.metadata.schema(), *reversed(self.metadata.schemas)]

    @cached_property
    def filter(self) -> Filter:
        return self.request.filter(self.schema)

    @cached_property
    def appended(self) -> frozenset[int] | None:
        """Of an incremental scan: the snapshots that only added rows."""
        if not self.request.is_incremental:
            return None
        between, at = [], self.snapshot
        while at is not None and at.snapshot_id != self.request.start_id:
            between.append(at)
            if at.parent_snapshot_id == self.request.start_id:
                break
            at = None if at.parent_snapshot_id is None else self.metadata.snapshot_by_id(at.parent_snapshot_id)
            if at is None:
                raise IllegalArgumentError(
                    f"Starting snapshot (exclusive) {self.request.start_id} is not a parent ancestor of "
                    f"end snapshot {self.request.end_id}"
                )
        return frozenset(
            each.snapshot_id for each in between if each.summary and each.summary.operation == Operation.APPEND
        )

    @cached_property
    def all_manifests(self) -> list[ManifestFile]:
        if self.snapshot is None:
            return []
        return [*self._manifest_list(self.snapshot)]

    @cached_property
    def manifests(self) -> list[ManifestFile]:
        """Those of data files that the filter lets through."""
        self.request.selected(*self.schemas)
        self.request.with_stats(*self.schemas)
        if isinstance(self.filter.superset, AlwaysFalse):
            return []
        found = self._appended_manifests() if self.appended is not None else self.all_manifests
        return [each for each in found if each.content == ManifestContent.DATA and self._pruning(each).manifest(each)]

    def _appended_manifests(self) -> list[ManifestFile]:
        appended = self.appended or frozenset()
        found: dict[str, ManifestFile] = {}
        for snapshot in self.metadata.snapshots:
            if snapshot.snapshot_id in appended:
                for manifest in self._manifest_list(snapshot):
                    if manifest.added_snapshot_id in appended:
                        found[manifest.manifest_path] = manifest
        return list(found.values())

    def tasks(self, paths: Sequence[str], later: Sequence[str]) -> Json:
        """The tasks for data files of some manifests."""
        wanted = frozenset(paths)
        deletes = self._deletes() if paths and self.appended is None else DeleteFiles((), {})
        files: list[Json] = []
        known: dict[tuple[str, int | None], int] = {}
        told: list[Json] = []
        for manifest in self.manifests:
            if manifest.manifest_path not in wanted:
                continue
            for entry, row_id in self._data_entries(manifest):
                if (task := self._task(entry, row_id)) is None:
                    continue
                references = []
                for delete in deletes.of(entry):
                    key = delete.file_path, content_offset(delete)
                    if key not in known:
                        known[key] = len(told)
                        told.append(self._content_file(delete))
                    references.append(known[key])
                files.append(task | ({"delete-file-references": references} if references else {}))
        return scan_tasks(files, told, later)

    def _task(self, entry: ManifestEntry, row_id: int | None) -> Json | None:
        residual = self._residual(entry.data_file)
        if residual is False:
            return None
        stats = self.request.with_stats(*self.schemas)
        task: Json = {"data-file": self._content_file(entry.data_file, row_id, stats)}
        # Java fails on a file of a partition without a residual; else none is needed where nothing is left to filter.
        if residual is not None or not self._spec(entry.data_file.spec_id).is_unpartitioned():
            task["residual-filter"] = True if residual is None else residual
        return task

    def _residual(self, file: DataFile) -> Any:
        """What is left to filter in a file; None for nothing, False if no row can match."""
        expression = self.filter.superset
        spec = self._spec(file.spec_id)
        if spec.is_unpartitioned() or self.filter.residual is None:
            return self.filter.residual
        try:
            left = residual_evaluator_of(spec, expression, self.request.case_sensitive, self.schema).residual_for(
                file.partition
            )
        except (ValueError, TypeError):
            return self.filter.residual
        if isinstance(left, AlwaysFalse):
            return False
        return None if isinstance(left, AlwaysTrue) and self.filter.is_exact else self.filter.residual

    def _content_file(self, file: DataFile, row_id: int | None = None, stats: set[int] | None = None) -> Json:
        self.files.require(file.file_path, "data file" if file.content == DataFileContent.DATA else "delete file")
        partition = partition_json(self._spec(file.spec_id), file, self.schemas)
        shown = partition if self.has_nulls or None not in partition else []
        return content_file(file, shown, row_id=row_id, stats=stats or ())

    def _data_entries(self, manifest: ManifestFile) -> Iterator[tuple[ManifestEntry, int | None]]:
        """Data files that may hold rows, with the row id of their first row."""
        pruning = self._pruning(manifest)
        next_id = manifest._data[15]
        for entry in self._entries(manifest):
            file = entry.data_file
            row_id = first_row_id(file)
            if row_id is None and next_id is not None:
                row_id, next_id = next_id, next_id + file.record_count
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            if self.appended is not None and (
                entry.status != ManifestEntryStatus.ADDED or entry.snapshot_id not in self.appended
            ):
                continue
            if pruning.partition(file) and self._metrics(file):
                yield entry, row_id

    def _deletes(self) -> DeleteFiles:
        entries = (
            entry
            for manifest in self.all_manifests
            if manifest.content == ManifestContent.DELETES
            for entry in self._entries(manifest)
            if entry.status != ManifestEntryStatus.DELETED
        )
        return DeleteFiles(entries, self.metadata.specs())

    def _spec(self, spec_id: int) -> PartitionSpec:
        if (found := self.metadata.specs().get(spec_id)) is None:
            raise IllegalArgumentError(f"Cannot find partition spec with ID {spec_id}, which a manifest names")
        return found

    @cached_property
    def _metrics(self) -> Callable[[DataFile], bool]:
        if isinstance(self.filter.superset, AlwaysTrue):
            return lambda _: True
        return _InclusiveMetricsEvaluator(self.schema, self.filter.superset, self.request.case_sensitive).eval

    @cached_property
    def _prunings(self) -> dict[int, _Pruning]:
        return {}

    def _pruning(self, manifest: ManifestFile) -> _Pruning:
        spec_id = manifest.partition_spec_id
        if spec_id not in self._prunings:
            self._prunings[spec_id] = _pruning(
                self._spec(spec_id), self.schema, self.filter, case_sensitive=self.request.case_sensitive
            )
        return self._prunings[spec_id]

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        return manifests.roots(self.metadata.location, self.metadata.properties)

    def _manifest_list(self, snapshot: Snapshot) -> Iterator[ManifestFile]:
        if not manifests.is_below(self._roots, snapshot.manifest_list):
            raise manifests.outside(snapshot.snapshot_id, "manifest list")
        yield from self._read(
            snapshot.manifest_list,
            MANIFEST_LIST_FILE_SCHEMAS[_VERSION],
            {-1: ManifestFile, 508: PartitionFieldSummary},
            {517: ManifestContent},
        )

    def _entries(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        if not manifests.is_below(self._roots, manifest.manifest_path):
            raise manifests.outside(manifest.added_snapshot_id, "manifest")
        read = self._read(
            manifest.manifest_path,
            MANIFEST_ENTRY_SCHEMAS[_VERSION],
            {-1: ManifestEntry, 2: DataFile},
            {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        )
        for entry in read:
            yield _inherit_from_manifest(entry, manifest)

    def _read(self, path: str, schema: Schema, types: Mapping[int, Any], enums: Mapping[int, Any]) -> Iterator[Any]:
        try:
            with AvroFile[Any](self.io.new_input(path), schema, read_types=dict(types), read_enums=dict(enums)) as file:
                yield from file
        except manifests.UNREADABLE as error:
            logger.warning("manifest %s cannot be read: %s", path, error)
            raise MetadataNotFoundError(f"Failed to open input stream for file: {path}") from error


@dataclass(frozen=True)
class _Pruning:
    """What partitions of one spec tell."""

    manifest: Callable[[ManifestFile], bool]
    partition: Callable[[DataFile], bool]


_ALL = _Pruning(lambda _: True, lambda _: True)


def _pruning(spec: PartitionSpec, schema: Schema, filter: Filter, *, case_sensitive: bool) -> _Pruning:
    if spec.is_unpartitioned() or isinstance(filter.superset, AlwaysTrue):
        return _ALL
    try:
        projected = inclusive_projection(schema, spec, case_sensitive)(filter.superset)
        partitions = Schema(*spec.partition_type(schema).fields)
        by_summary = manifest_evaluator(spec, schema, projected, case_sensitive)
        by_value = expression_evaluator(partitions, projected, case_sensitive)
    except (ValueError, TypeError):
        # A spec over a column that was dropped tells nothing of those that are left.
        return _ALL
    return _Pruning(by_summary, lambda file: by_value(file.partition))
