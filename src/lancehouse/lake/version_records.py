"""Version history of a table for display: operation, size and commit message of each version; tags and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
from lance_namespace.errors import TableVersionNotFoundError

from lancehouse.lake.commits import MESSAGE
from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.recall_notes import changes_notes
from lancehouse.lake.versions import find_recorded_transaction, operation_name, to_millis
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
    tags, branches = dataset.tags.list(), dataset.branches.list()
    return TableRefs(
        {name: (tag["branch"], tag["version"]) for name, tag in sorted(tags.items())},
        {name: (told["parent_branch"], told["parent_version"]) for name, told in sorted(branches.items())},
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
            names = [name for name, known in defined.items() if known.since == dataset.version]
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
