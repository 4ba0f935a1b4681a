"""Plan scans of Iceberg tables: find data files that may match a filter, and the delete files that apply."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol, TypeVar
from uuid import UUID

from pyiceberg.conversions import to_json
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    residual_evaluator_of,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import manifests
from lancehouse.catalog.scans.scan_requests import Filter, Json, ScanRequest, encode_task, scan_tasks, task_not_found

_CONTENT: Mapping[DataFileContent, str] = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_LOWER_BOUNDS, _UPPER_BOUNDS = 10, 11
"""Positions of a file's bounds."""
_FIRST_ROW_ID, _REFERENCED, _OFFSET, _SIZE = 16, 17, 18, 19
"""Positions of fields that format version 3 adds to a file; pyiceberg reads them but has no names for them."""
_FIRST_ROW_ID_OF_MANIFEST = 15
"""The same of a manifest in a manifest list."""


def first_row_id(file: DataFile) -> int | None:
    """Return the row id of a file's first row, or None."""
    number: int | None = _version_3_field(file, _FIRST_ROW_ID)
    return number


def referenced_file(file: DataFile) -> str | None:
    """Return the only data file that a delete file applies to, or None."""
    path = _version_3_field(file, _REFERENCED)
    return None if path is None else str(path)


def content_offset(file: DataFile) -> int | None:
    """Return the offset of a deletion vector in its file; None for other files."""
    offset: int | None = _version_3_field(file, _OFFSET)
    return offset


def content_file_json(
    file: DataFile, partition: list[Any], *, row_id: int | None = None, stats: Collection[int] = ()
) -> Json:
    """Return a file as JSON.

    Args:
        file: a file from a manifest that was read with the schema of version 3.
        partition: its partition values, from `partition_json`.
        row_id: the row id of its first row, if it is a data file that has one.
        stats: ids of the fields whose statistics are included.
    """
    json: Json = {
        "spec-id": file.spec_id,
        "content": _CONTENT[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.lower(),
        "partition": partition,
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
        "split-offsets": file.split_offsets,
        "equality-ids": file.equality_ids if file.content == DataFileContent.EQUALITY_DELETES else None,
        "sort-order-id": file.sort_order_id,
        "key-metadata": None if file.key_metadata is None else file.key_metadata.hex().upper(),
        "first-row-id": row_id,
    }
    if file.content == DataFileContent.POSITION_DELETES:
        json |= {
            "referenced-data-file": referenced_file(file),
            "content-offset": content_offset(file),
            "content-size-in-bytes": _version_3_field(file, _SIZE),
        }
    if stats:
        json |= _stats_json(file, stats)
    return {key: value for key, value in json.items() if value is not None}


def partition_json(spec: PartitionSpec, file: DataFile, schemas: Collection[Schema]) -> list[Any]:
    """Return the partition values of a file, in the order of the spec's fields."""
    values: list[Any] = []
    for position, field in enumerate(spec.fields):
        value = file.partition[position]
        dtype = _partition_type(field, schemas)
        values.append(to_json(dtype, value) if value is not None and isinstance(dtype, PrimitiveType) else None)
    return values


_CLASSES: Mapping[type[IcebergType], tuple[type, ...]] = {
    BooleanType: (bool,),
    **dict.fromkeys((IntegerType, LongType, DateType, TimeType), (int,)),
    **dict.fromkeys((TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType), (int,)),
    **dict.fromkeys((FloatType, DoubleType), (float,)),
    DecimalType: (Decimal,),
    StringType: (str,),
    UUIDType: (UUID, bytes),
    **dict.fromkeys((FixedType, BinaryType), (bytes,)),
}
"""Python's classes for partition values of a type."""
_PRIMITIVE_CLASSES = (bool, int, float, str, bytes, Decimal, UUID)


def _value_classes(field: PartitionField, schemas: Collection[Schema]) -> tuple[type, ...]:
    dtype = _partition_type(field, schemas)
    return _PRIMITIVE_CLASSES if dtype is None else _CLASSES.get(type(dtype), ())


def _partition_type(field: PartitionField, schemas: Collection[Schema]) -> IcebergType | None:
    """Return the type of a partition field's values; None if its column was dropped."""
    sources = (_find_source(schema, field.source_id) for schema in schemas)
    source = next((candidate for candidate in sources if candidate is not None), None)
    return None if source is None else field.transform.result_type(source.field_type)


def _find_source(schema: Schema, field_id: int) -> NestedField | None:
    try:
        return schema.find_field(field_id)
    except ValueError:
        return None


def _version_3_field(file: DataFile, position: int) -> Any:
    return file._data[position] if len(file._data) > position else None


def _stats_json(file: DataFile, ids: Collection[int]) -> Json:
    counts = {
        "column-sizes": file.column_sizes,
        "value-counts": file.value_counts,
        "null-value-counts": file.null_value_counts,
        "nan-value-counts": file.nan_value_counts,
    }
    bounds = {"lower-bounds": file.lower_bounds, "upper-bounds": file.upper_bounds}
    stats: Json = {name: _key_value_lists(values, ids) for name, values in counts.items() if values is not None}
    for name, values in bounds.items():
        if values is not None:
            stats[name] = _key_value_lists({key: value.hex().upper() for key, value in values.items()}, ids)
    return stats


def _key_value_lists(values: Mapping[int, Any], ids: Collection[int]) -> Json:
    selected = {key: value for key, value in values.items() if key in ids}
    return {"keys": list(selected), "values": list(selected.values())}


PATH_ID = 2147483546
"""Field id of the path column in position delete files."""

SequencedFile = tuple[int, DataFile]
"""A delete file with its sequence number."""
Partition = tuple[object, ...]
"""Spec id and partition values."""


class DeleteFiles:
    """The delete files of a snapshot, indexed by what they apply to."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._vectors: dict[str, list[SequencedFile]] = defaultdict(list)
        self._by_path: dict[str, list[SequencedFile]] = defaultdict(list)
        self._positions: dict[Partition, list[SequencedFile]] = defaultdict(list)
        self._equality: dict[Partition, list[SequencedFile]] = defaultdict(list)
        self._everywhere: list[SequencedFile] = []
        for entry in entries:
            _keep_path_bounds(entry.data_file)
            self._add(entry.sequence_number or 0, entry.data_file, specs)

    def _add(self, sequence: int, file: DataFile, specs: Mapping[int, PartitionSpec]) -> None:
        numbered = sequence, file
        if file.content == DataFileContent.EQUALITY_DELETES:
            if specs[file.spec_id].is_unpartitioned():
                self._everywhere.append(numbered)
            else:
                self._equality[_partition(file)].append(numbered)
        elif content_offset(file) is not None:
            self._vectors[referenced_file(file) or ""].append(numbered)
        elif (path := referenced_file(file) or _single_path(file)) is not None:
            self._by_path[path].append(numbered)
        else:
            self._positions[_partition(file)].append(numbered)

    def list_for(self, entry: ManifestEntry) -> list[DataFile]:
        """Return the delete files that apply to a data file.

        Position deletes apply from the same commit or a later one, equality deletes only from a later one. A deletion
        vector holds all deleted positions of its data file, so position deletes are then ignored.
        """
        sequence, file = entry.sequence_number or 0, entry.data_file
        partition = _partition(file)
        deletes = [delete for number, delete in self._vectors.get(file.file_path, ()) if number >= sequence]
        if not deletes:
            by_position = (*self._by_path.get(file.file_path, ()), *self._positions.get(partition, ()))
            deletes = [
                delete for number, delete in by_position if number >= sequence and _can_name(delete, file.file_path)
            ]
        by_value = (*self._everywhere, *self._equality.get(partition, ()))
        return deletes + [delete for number, delete in by_value if number > sequence]


def _keep_path_bounds(file: DataFile) -> None:
    """Drop the bounds of all columns but the path, because delete files are held in memory."""
    for position in (_LOWER_BOUNDS, _UPPER_BOUNDS):
        bound = (file[position] or {}).get(PATH_ID)
        file[position] = None if bound is None else {PATH_ID: bound}


def _partition(file: DataFile) -> Partition:
    return file.spec_id, *file.partition._data


def _single_path(file: DataFile) -> str | None:
    lower, upper = _path_bounds(file)
    return lower.decode() if lower is not None and lower == upper else None


def _can_name(delete: DataFile, path: str) -> bool:
    lower, upper = _path_bounds(delete)
    # Bounds may be truncated: an upper one was then increased, a lower one is a prefix. Both still enclose the path.
    return lower is None or upper is None or lower <= path.encode() <= upper


def _path_bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(PATH_ID), (file.upper_bounds or {}).get(PATH_ID)


FILES = 10_000
"""Approximate number of data files in one response; the others become plan tasks."""

MAX_FILES = 10 * FILES
"""Data files in one response, or manifests or delete files of a snapshot, beyond which a scan is refused."""

_Record = TypeVar("_Record")


class FileAccess(Protocol):
    """Decides which files may be named to a caller."""

    def check_readable(self, file: str, what: str) -> None:
        """Raise if the caller may not read this file."""


def plan(
    metadata: TableMetadata,
    read_file: manifests.ReadFile,
    request: ScanRequest,
    files: FileAccess,
    *,
    has_nulls: bool = True,
) -> Json:
    """Return the tasks of a scan.

    Args:
        metadata: the table's metadata.
        read_file: reads its manifests.
        request: the client's request.
        files: refuses files that the caller may not read.
        has_nulls: whether the client accepts nulls among partition values; pyiceberg 0.12 does not.

    Raises:
        InvalidInputError: the request names a snapshot or a column that does not exist, or a snapshot that is
            scanned names a manifest outside of the table.
        PermissionDeniedError: a manifest names a file that the caller may not read.
        MetadataNotFoundError: a manifest cannot be read.
    """
    scan = _Scan(metadata, read_file, request, files, has_nulls)
    groups = list(_group_manifests(scan.matching_manifests))
    later = [encode_task({"request": request.json, "manifests": group}) for group in groups[1:]]
    return scan.build_tasks(groups[0] if groups else [], later)


def fetch_tasks(
    metadata: TableMetadata, read_file: manifests.ReadFile, content: Json, files: FileAccess, *, has_nulls: bool = True
) -> Json:
    """Return the tasks that a plan task stands for.

    Raises:
        PlanTaskNotFoundError: it is not from a plan of this table, or the table has changed too much since.
    """
    scan = _Scan(metadata, read_file, ScanRequest.from_json(content.get("request")), files, has_nulls)
    paths = content.get("manifests")
    known_paths = {manifest.manifest_path for manifest in scan.matching_manifests}
    if not isinstance(paths, list) or not all(isinstance(path, str) and path in known_paths for path in paths):
        raise task_not_found()
    return scan.build_tasks(paths, [])


def _group_manifests(manifests: Sequence[ManifestFile]) -> Iterator[list[str]]:
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
    read_file: manifests.ReadFile
    request: ScanRequest
    files: FileAccess
    has_nulls: bool

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The snapshot to scan; of an incremental scan, the last one. None for an empty table."""
        snapshot_id = self.request.end_id if self.request.is_incremental else self.request.snapshot_id
        if snapshot_id is None:
            return self.metadata.current_snapshot()
        if (snapshot := self.metadata.snapshot_by_id(snapshot_id)) is None:
            raise IllegalArgumentError(f"Cannot find snapshot with ID {snapshot_id}")
        return snapshot

    @cached_property
    def schema(self) -> Schema:
        """The schema that the names in the filter refer to."""
        if self.request.use_snapshot_schema and self.snapshot is not None and self.snapshot.schema_id is not None:
            schema_id = self.snapshot.schema_id
            return next(
                (candidate for candidate in self.metadata.schemas if candidate.schema_id == schema_id),
                self.metadata.schema(),
            )
        return self.metadata.schema()

    @cached_property
    def schemas(self) -> list[Schema]:
        return [self.schema, self.metadata.schema(), *reversed(self.metadata.schemas)]

    @cached_property
    def filter(self) -> Filter:
        return self.request.parse_filter(self.schema)

    @cached_property
    def appended_snapshot_ids(self) -> frozenset[int] | None:
        """Of an incremental scan, the snapshots that only appended rows; else None."""
        if not self.request.is_incremental:
            return None
        ancestors, current = [], self.snapshot
        while current is not None and current.snapshot_id != self.request.start_id:
            ancestors.append(current)
            # The start itself may have expired: that a snapshot names it as its parent is enough.
            if current.parent_snapshot_id == self.request.start_id:
                break
            current = (
                None if current.parent_snapshot_id is None else self.metadata.snapshot_by_id(current.parent_snapshot_id)
            )
            if current is None:
                raise IllegalArgumentError(
                    f"Starting snapshot (exclusive) {self.request.start_id} is not a parent ancestor of "
                    f"end snapshot {self.request.end_id}"
                )
        return frozenset(
            snapshot.snapshot_id
            for snapshot in ancestors
            if snapshot.summary and snapshot.summary.operation == Operation.APPEND
        )

    @cached_property
    def all_manifests(self) -> list[ManifestFile]:
        if self.snapshot is None:
            return []
        return [*self._read_manifest_list(self.snapshot)]

    @cached_property
    def matching_manifests(self) -> list[ManifestFile]:
        """Manifests of data files that may match the filter."""
        # Called for their errors: columns that do not exist are refused before anything is read.
        self.request.selected_ids(*self.schemas)
        self.request.stats_field_ids(*self.schemas)
        if isinstance(self.filter.superset, AlwaysFalse):
            return []
        candidates = self._appended_manifests() if self.appended_snapshot_ids is not None else self.all_manifests
        return [
            manifest
            for manifest in candidates
            if manifest.content == ManifestContent.DATA
            and _may_match(self._partition_filter(manifest).matches_manifest, manifest)
        ]

    def _appended_manifests(self) -> list[ManifestFile]:
        appended = self.appended_snapshot_ids or frozenset()
        by_path: dict[str, ManifestFile] = {}
        for snapshot in self.metadata.snapshots:
            if snapshot.snapshot_id in appended:
                for manifest in self._read_manifest_list(snapshot):
                    if manifest.added_snapshot_id in appended:
                        by_path[manifest.manifest_path] = manifest
        return list(by_path.values())

    def build_tasks(self, paths: Sequence[str], later: Sequence[str]) -> Json:
        """Return the tasks for the data files of some manifests; `later` are plan tasks to include."""
        path_set = frozenset(paths)
        deletes = self._read_deletes() if paths and self.appended_snapshot_ids is None else DeleteFiles((), {})
        files: list[Json] = []
        delete_indexes: dict[tuple[str, int | None], int] = {}
        delete_files: list[Json] = []
        entries = (
            entry
            for manifest in self.matching_manifests
            if manifest.manifest_path in path_set
            for entry in self._data_entries(manifest)
        )
        for entry, row_id in _limit(entries, "data files"):
            if (task := self._file_task(entry, row_id)) is None:
                continue
            references = []
            for delete in deletes.list_for(entry):
                key = delete.file_path, content_offset(delete)
                if key not in delete_indexes:
                    delete_indexes[key] = len(delete_files)
                    delete_files.append(self._content_file(delete))
                references.append(delete_indexes[key])
            files.append(task | ({"delete-file-references": references} if references else {}))
        return scan_tasks(files, delete_files, later)

    def _file_task(self, entry: ManifestEntry, row_id: int | None) -> Json | None:
        residual = self._residual(entry.data_file)
        if residual is False:
            return None
        stats = self.request.stats_field_ids(*self.schemas)
        task: Json = {"data-file": self._content_file(entry.data_file, row_id, stats)}
        # Iceberg's Java library fails without a residual on a file of a partitioned spec; otherwise none is needed if
        # nothing is left to filter.
        if residual is not None or not self._get_spec(entry.data_file.spec_id).is_unpartitioned():
            task["residual-filter"] = True if residual is None else residual
        return task

    def _residual(self, file: DataFile) -> Any:
        """Return the filter that is left to apply to a file's rows; None for none, False if no row can match."""
        expression = self.filter.superset
        spec = self._get_spec(file.spec_id)
        if spec.is_unpartitioned() or self.filter.residual is None:
            return self.filter.residual
        try:
            residual = residual_evaluator_of(spec, expression, self.request.case_sensitive, self.schema).residual_for(
                file.partition
            )
        except (ValueError, TypeError):
            return self.filter.residual
        if isinstance(residual, AlwaysFalse):
            return False
        return None if isinstance(residual, AlwaysTrue) and self.filter.is_exact else self.filter.residual

    def _content_file(self, file: DataFile, row_id: int | None = None, stats: set[int] | None = None) -> Json:
        self.files.check_readable(
            file.file_path, "data file" if file.content == DataFileContent.DATA else "delete file"
        )
        partition = partition_json(self._get_spec(file.spec_id), file, self.schemas)
        visible = partition if self.has_nulls or None not in partition else []
        return content_file_json(file, visible, row_id=row_id, stats=stats or ())

    def _data_entries(self, manifest: ManifestFile) -> Iterator[tuple[ManifestEntry, int | None]]:
        """Yield data files that may have matching rows, with the row id of their first row.

        Deleted entries are counted before they are skipped: row ids are inherited by position in the manifest.
        """
        partition_filter = self._partition_filter(manifest)
        next_id = manifest._data[_FIRST_ROW_ID_OF_MANIFEST]
        needs_statistics = self.request.stats_field_ids(*self.schemas) or not isinstance(
            self.filter.superset, AlwaysTrue
        )
        skip = frozenset() if needs_statistics else manifests.STATISTICS
        for entry in self._read_entries(manifest, skip=skip):
            file = entry.data_file
            row_id = first_row_id(file)
            if row_id is None and next_id is not None:
                row_id, next_id = next_id, next_id + file.record_count
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            if self.appended_snapshot_ids is not None and (
                entry.status != ManifestEntryStatus.ADDED or entry.snapshot_id not in self.appended_snapshot_ids
            ):
                continue
            self._check_partition(file)
            if partition_filter.matches_partition(file) and _may_match(self._matches_metrics, file):
                yield entry, row_id

    def _read_deletes(self) -> DeleteFiles:
        entries = (
            entry
            for manifest in self.all_manifests
            if manifest.content == ManifestContent.DELETES
            for entry in self._read_entries(manifest, skip=manifests.STATISTICS - manifests.BOUNDS, keep=True)
            if entry.status != ManifestEntryStatus.DELETED
        )
        return DeleteFiles(map(self._check_entry, _limit(entries, "delete files")), self.metadata.specs())

    def _check_entry(self, entry: ManifestEntry) -> ManifestEntry:
        self._check_partition(entry.data_file)
        return entry

    def _check_partition(self, file: DataFile) -> None:
        """Check that a file's partition values have the types of its spec, because clients write manifests.

        Raises:
            IllegalArgumentError: they have not.
        """
        classes = self._partition_classes(file.spec_id)
        values = file.partition._data
        if len(values) != len(classes) or not all(
            value is None or isinstance(value, expected) for value, expected in zip(values, classes, strict=True)
        ):
            raise IllegalArgumentError(
                f"the partition of {file.file_path} does not fit partition spec {file.spec_id}: {str(values)[:200]}"
            )

    def _partition_classes(self, spec_id: int) -> list[tuple[type, ...]]:
        if spec_id not in self._classes_by_spec:
            fields = self._get_spec(spec_id).fields
            self._classes_by_spec[spec_id] = [_value_classes(field, self.schemas) for field in fields]
        return self._classes_by_spec[spec_id]

    @cached_property
    def _classes_by_spec(self) -> dict[int, list[tuple[type, ...]]]:
        return {}

    def _get_spec(self, spec_id: int) -> PartitionSpec:
        if (spec := self.metadata.specs().get(spec_id)) is None:
            raise IllegalArgumentError(f"Cannot find partition spec with ID {spec_id}, which a manifest names")
        return spec

    @cached_property
    def _matches_metrics(self) -> Callable[[DataFile], bool]:
        if isinstance(self.filter.superset, AlwaysTrue):
            return lambda _: True
        return _InclusiveMetricsEvaluator(self.schema, self.filter.superset, self.request.case_sensitive).eval

    @cached_property
    def _partition_filters(self) -> dict[int, _PartitionFilter]:
        return {}

    def _partition_filter(self, manifest: ManifestFile) -> _PartitionFilter:
        spec_id = manifest.partition_spec_id
        if spec_id not in self._partition_filters:
            self._partition_filters[spec_id] = _build_partition_filter(
                self._get_spec(spec_id), self.schema, self.filter, case_sensitive=self.request.case_sensitive
            )
        return self._partition_filters[spec_id]

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        return manifests.manifest_roots(self.metadata.location, self.metadata.properties)

    def _read_manifest_list(self, snapshot: Snapshot) -> Iterator[ManifestFile]:
        if not manifests.is_below(self._roots, snapshot.manifest_list):
            raise manifests.outside_error(snapshot.snapshot_id, "manifest list")
        yield from _limit(self._reader.read_list(snapshot.manifest_list), "manifests")

    def _read_entries(
        self, manifest: ManifestFile, *, skip: frozenset[int], keep: bool = False
    ) -> Iterator[ManifestEntry]:
        if not manifests.is_below(self._roots, manifest.manifest_path):
            raise manifests.outside_error(manifest.added_snapshot_id, "manifest")
        yield from self._reader.read_entries(manifest, skip=skip, keep=keep)

    @cached_property
    def _reader(self) -> manifests.ManifestReader:
        return manifests.ManifestReader(self.read_file)


def _may_match(evaluate: Callable[[_Record], bool], item: _Record) -> bool:
    """Return whether rows may match by statistics; those that cannot be decoded leave nothing out."""
    try:
        return evaluate(item)
    except (ValueError, TypeError, LookupError, ArithmeticError, struct.error):
        return True


def _limit(records: Iterable[_Record], what: str) -> Iterator[_Record]:
    for count, record in enumerate(records):
        if count == MAX_FILES:
            raise IllegalArgumentError(
                f"the scan reads more than {MAX_FILES} {what}: filter by partition, or rewrite the table's manifests"
            )
        yield record


@dataclass(frozen=True)
class _PartitionFilter:
    """Filters manifests and data files by the partitions of one spec."""

    matches_manifest: Callable[[ManifestFile], bool]
    matches_partition: Callable[[DataFile], bool]


_ALL = _PartitionFilter(lambda _: True, lambda _: True)


def _build_partition_filter(
    spec: PartitionSpec, schema: Schema, filter: Filter, *, case_sensitive: bool
) -> _PartitionFilter:
    if spec.is_unpartitioned() or isinstance(filter.superset, AlwaysTrue):
        return _ALL
    try:
        projected = inclusive_projection(schema, spec, case_sensitive)(filter.superset)
        partitions = Schema(*spec.partition_type(schema).fields)
        by_summary = manifest_evaluator(spec, schema, projected, case_sensitive)
        by_value = expression_evaluator(partitions, projected, case_sensitive)
    except (ValueError, TypeError):
        # A spec on a dropped column cannot be evaluated, so nothing is filtered out.
        return _ALL
    return _PartitionFilter(by_summary, lambda file: by_value(file.partition))
