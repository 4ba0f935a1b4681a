"""How a table lies in storage, for people: its fragments, and what each column takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import to_millis

MAX_LISTED = 2000
"""Fragments that are told one by one."""
MAX_MEASURED = 200
"""Fragments up to which the bytes of each column are told: for that, every file is opened."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some rows, and the files that hold them."""

    id: int
    rows: int
    deleted: int
    files: int
    bytes: int | None
    """None where a file does not say."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """A version in storage."""

    version: int
    count: int
    """Of all fragments."""
    rows: int
    deleted: int
    bytes: int
    fragments: Sequence[Fragment]
    columns: Sequence[tuple[str, int]]
    """What each takes on disk, where it was looked at."""


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """What can be told of a version at once."""

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


def read_summary(table: TableRef) -> VersionSummary:
    """A version in a few numbers."""
    with table.dataset() as dataset:
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
        )


def read_layout(table: TableRef) -> StorageLayout:
    """The fragments of a version, in their order."""
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
    """What each column takes, with all that is nested in it."""
    bytes_by_field = {field.id: int(field.bytes_on_disk) for field in dataset.stats.data_stats().fields}
    return [(field.name(), _size_with_children(field, bytes_by_field)) for field in dataset.lance_schema.fields()]


def _size_with_children(field: Any, bytes_by_field: dict[int, int]) -> int:
    return bytes_by_field.get(field.id(), 0) + sum(
        _size_with_children(child, bytes_by_field) for child in field.children()
    )
