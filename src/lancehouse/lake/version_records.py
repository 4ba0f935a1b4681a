"""Versions of a table for display: history, tags and branches; key figures, fragments and column sizes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
from lance_namespace.errors import TableVersionNotFoundError

from lancehouse.lake.column_states import ComputedColumn, describe_columns
from lancehouse.lake.commits import MESSAGE
from lancehouse.lake.dataset import MAIN, TableRef, read_tags, to_millis
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.recall_notes import changes_notes
from lancehouse.lake.versions import find_recorded_transaction, operation_name
from lancehouse.schema.definitions import COMPUTED, VIEW, definitions

READERS = 8
"""Versions that are read at once: in an object store each takes several requests."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version and its transaction; what Lance has no record of any more is None."""

    version: int
    timestamp_ms: int
    operation: str | None
    rows: int
    files: int
    bytes: int
    message: str | None
    properties: Mapping[str, str]
    """Properties that the writer gave the transaction, without the message."""


@dataclass(frozen=True, slots=True)
class TableRefs:
    """Branch and version of each tag, and the branch and version that each branch was created from."""

    tags: Mapping[str, tuple[str | None, int]]
    branches: Mapping[str, tuple[str | None, int]]


def read_versions(table: TableRef, versions: Sequence[int]) -> list[VersionRecord]:
    """Read some versions of the main branch. Those that were cleaned up in the meantime are left out."""
    with table.dataset() as dataset, ThreadPoolExecutor(READERS) as readers:
        records = readers.map(partial(_read_version, table, dataset), versions)
        return [record for record in records if record is not None]


def _read_version(table: TableRef, dataset: lance.LanceDataset, version: int) -> VersionRecord | None:
    with suppress(TableVersionNotFoundError), translate_errors(table, table.storage_options):
        return _to_record(dataset.checkout_version((MAIN, version)))
    return None


def read_refs(table: TableRef) -> TableRefs:
    """Read the tags and branches."""
    with table.dataset() as dataset:
        return list_refs(dataset)


def list_refs(dataset: lance.LanceDataset) -> TableRefs:
    """Return the tags and branches of an open dataset."""
    tags, branches = read_tags(dataset), dataset.branches.list()
    return TableRefs(
        {name: (tag["branch"], tag["version"]) for name, tag in sorted(tags.items())},
        {name: (branch["parent_branch"], branch["parent_version"]) for name, branch in sorted(branches.items())},
    )


def _to_record(dataset: lance.LanceDataset) -> VersionRecord:
    info: Mapping[str, Any] = dataset.get_version()
    totals = info["metadata"]
    transaction = find_recorded_transaction(dataset)
    properties = dict((transaction.transaction_properties if transaction else None) or {})
    return VersionRecord(
        version=info["version"],
        timestamp_ms=to_millis(info["timestamp"]),
        operation=operation_name(transaction) if transaction else None,
        rows=int(totals.get("total_rows", 0)),
        files=int(totals.get("total_data_files", 0)),
        bytes=int(totals.get("total_files_size", 0)),
        message=properties.pop(MESSAGE, None) or (_describe_definitions(dataset, transaction) if transaction else None),
        properties=properties,
    )


def _describe_definitions(dataset: lance.LanceDataset, transaction: lance.Transaction) -> str | None:
    """Return which computed columns a version defined; None if none: pylance takes no message for such a change."""
    defined = definitions(dataset.schema)
    match transaction.operation:
        case lance.LanceOperation.Merge():
            names = [name for name, definition in defined.items() if definition.since == dataset.version]
        case lance.LanceOperation.UpdateConfig(field_metadata_updates=dict(updates)):
            ids = {field.id(): field.name() for field in dataset.lance_schema.fields()}
            changed = [ids.get(number) for number, update in updates.items() if COMPUTED.decode() in update.updates]
            names = [name for name in changed if name in defined]
        case lance.LanceOperation.UpdateConfig(config_updates=update) if changes_notes(update):
            return "Keep the measured recall of an index"
        case lance.LanceOperation.UpdateConfig(schema_metadata_updates=update) if update is not None:
            return "Define the view" if VIEW.decode() in update.updates else None
        case _:
            return None
    texts = [f"{name} ({defined[name].title})" for name in names]
    return f"Define {', '.join(texts)}" if texts else None


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
        all_fragments = [_to_fragment(fragment.metadata) for fragment in dataset.get_fragments()]
        return StorageLayout(
            version=dataset.version,
            count=len(all_fragments),
            rows=sum(fragment.rows for fragment in all_fragments),
            deleted=sum(fragment.deleted for fragment in all_fragments),
            bytes=sum(fragment.bytes or 0 for fragment in all_fragments),
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
