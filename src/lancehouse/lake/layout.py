"""How a table lies in storage, for people: its fragments, and what each column takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import millis

SHOWN = 2000
"""Fragments that are told one by one."""
MEASURED = 200
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
class Layout:
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
class Summary:
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


def summary(table: TableRef) -> Summary:
    """A version in a few numbers."""
    with table.opened() as dataset:
        told, stats = dataset.get_version(), dataset.stats.dataset_stats()
        totals = told["metadata"]
        return Summary(
            version=told["version"],
            timestamp_ms=millis(told["timestamp"]),
            schema=dataset.schema,
            rows=int(totals.get("total_rows", 0)),
            bytes=int(totals.get("total_files_size", 0)),
            fragments=int(stats["num_fragments"]),
            deleted=int(stats["num_deleted_rows"]),
            format=str(dataset.data_storage_version),
            indices=len(dataset.describe_indices()),
            has_stable_ids=bool(dataset.has_stable_row_ids),
        )


def read(table: TableRef) -> Layout:
    """The fragments of a version, in their order."""
    with table.opened() as dataset:
        found = [_fragment(each.metadata) for each in dataset.get_fragments()]
        return Layout(
            version=dataset.version,
            count=len(found),
            rows=sum(each.rows for each in found),
            deleted=sum(each.deleted for each in found),
            bytes=sum(each.bytes or 0 for each in found),
            fragments=found[:SHOWN],
            columns=_columns(dataset) if len(found) <= MEASURED else [],
        )


def _fragment(metadata: Any) -> Fragment:
    sizes = [file.file_size_bytes for file in metadata.files]
    return Fragment(
        id=metadata.id,
        rows=metadata.num_rows,
        deleted=metadata.num_deletions,
        files=len(sizes),
        bytes=None if None in sizes else sum(sizes),
    )


def _columns(dataset: lance.LanceDataset) -> list[tuple[str, int]]:
    """What each column takes, with all that is nested in it."""
    taken = {field.id: int(field.bytes_on_disk) for field in dataset.stats.data_stats().fields}
    return [(field.name(), _below(field, taken)) for field in dataset.lance_schema.fields()]


def _below(field: Any, taken: dict[int, int]) -> int:
    return taken.get(field.id(), 0) + sum(_below(child, taken) for child in field.children())
