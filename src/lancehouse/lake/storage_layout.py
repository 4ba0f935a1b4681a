"""Describe how a table is stored, for display: its fragments, and the size of each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance

from lancehouse.lake.column_states import ComputedColumn, describe_columns
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import to_millis
from lancehouse.schema.definitions import VIEW

MAX_LISTED = 2000
"""Number of fragments that are listed individually."""
MAX_MEASURED = 200
"""Number of fragments up to which the size of each column is read, which opens every file."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment and the size of its files."""

    id: int
    rows: int
    deleted: int
    files: int
    bytes: int | None
    """None if the size of a file is not recorded."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Fragments and columns of a version."""

    version: int
    count: int
    """Number of all fragments."""
    rows: int
    deleted: int
    bytes: int
    fragments: Sequence[Fragment]
    columns: Sequence[tuple[str, int]]
    """Name and bytes on disk of each column; empty if there are more than `MAX_MEASURED` fragments."""


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """Key figures of a version."""

    version: int
    timestamp_ms: int
    schema: Any
    rows: int
    bytes: int
    fragments: int
    deleted: int
    format: str
    indices: int
    has_stable_ids: bool
    computed: Sequence[ComputedColumn]
    is_view: bool
    """Whether it is a materialized view."""


def read_summary(table: TableRef) -> VersionSummary:
    """Read the key figures of a version."""
    with table.dataset() as dataset:
        return summarize(dataset)


def summarize(dataset: lance.LanceDataset) -> VersionSummary:
    """Return the key figures of an open version."""
    info, stats = dataset.get_version(), dataset.stats.dataset_stats()
    totals = info["metadata"]
    return VersionSummary(
        version=info["version"],
        timestamp_ms=to_millis(info["timestamp"]),
        schema=dataset.schema,
        rows=int(totals.get("total_rows", 0)),
        bytes=int(totals.get("total_files_size", 0)),
        fragments=int(stats["num_fragments"]),
        deleted=int(stats["num_deleted_rows"]),
        format=str(dataset.data_storage_version),
        indices=len(dataset.describe_indices()),
        has_stable_ids=bool(dataset.has_stable_row_ids),
        computed=describe_columns(dataset),
        is_view=VIEW in (dataset.schema.metadata or {}),
    )


def read_layout(table: TableRef) -> StorageLayout:
    """Read the fragments of a version, in order, and the size of its columns."""
    with table.dataset() as dataset:
        all_fragments = [_to_fragment(each.metadata) for each in dataset.get_fragments()]
        return StorageLayout(
            version=dataset.version,
            count=len(all_fragments),
            rows=sum(each.rows for each in all_fragments),
            deleted=sum(each.deleted for each in all_fragments),
            bytes=sum(each.bytes or 0 for each in all_fragments),
            fragments=all_fragments[:MAX_LISTED],
            columns=_column_sizes(dataset) if len(all_fragments) <= MAX_MEASURED else [],
        )


def _to_fragment(metadata: Any) -> Fragment:
    sizes = [file.file_size_bytes for file in metadata.files]
    return Fragment(
        id=metadata.id,
        rows=metadata.num_rows,
        deleted=metadata.num_deletions,
        files=len(sizes),
        bytes=None if None in sizes else sum(sizes),
    )


def _column_sizes(dataset: lance.LanceDataset) -> list[tuple[str, int]]:
    """Return the bytes on disk of each column, including nested ones."""
    bytes_by_field = {field.id: int(field.bytes_on_disk) for field in dataset.stats.data_stats().fields}
    return [(field.name(), _size_with_children(field, bytes_by_field)) for field in dataset.lance_schema.fields()]


def _size_with_children(field: Any, bytes_by_field: dict[int, int]) -> int:
    return bytes_by_field.get(field.id(), 0) + sum(
        _size_with_children(child, bytes_by_field) for child in field.children()
    )
