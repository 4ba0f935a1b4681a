"""What became of a table, for people: its versions with what made each, its tags and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lance
from lance_namespace.errors import TableVersionNotFoundError

from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import find_transaction, operation_name, to_millis

MESSAGE = "__lance_commit_message"
"""Lance's key for what a writer said of a commit."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version, and what made it; None where Lance does not know any more."""

    version: int
    timestamp_ms: int
    operation: str | None
    rows: int
    files: int
    bytes: int
    message: str | None
    properties: Mapping[str, str]
    """That its writer gave it."""


@dataclass(frozen=True, slots=True)
class TableRefs:
    """Names of versions: of each tag its branch and version, of each branch those that it came from."""

    tags: Mapping[str, tuple[str | None, int]]
    branches: Mapping[str, tuple[str | None, int]]


def read_versions(table: TableRef, versions: Sequence[int]) -> list[VersionRecord]:
    """What is known of some versions of the main branch. One that was cleaned up meanwhile is left out."""
    records = []
    with table.dataset() as dataset:
        for version in versions:
            with suppress(TableVersionNotFoundError), translate_errors(table, table.storage_options):
                records.append(_to_record(dataset.checkout_version((MAIN, version))))
    return records


def read_refs(table: TableRef) -> TableRefs:
    """The tags and branches."""
    with table.dataset() as dataset:
        tags, branches = dataset.tags.list(), dataset.branches.list()
    return TableRefs(
        {name: (tag["branch"], tag["version"]) for name, tag in sorted(tags.items())},
        {name: (told["parent_branch"], told["parent_version"]) for name, told in sorted(branches.items())},
    )


def _to_record(dataset: lance.LanceDataset) -> VersionRecord:
    info: Mapping[str, Any] = dataset.get_version()
    totals = info["metadata"]
    transaction = _find_transaction(dataset)
    properties = dict((transaction.transaction_properties if transaction else None) or {})
    return VersionRecord(
        version=info["version"],
        timestamp_ms=to_millis(info["timestamp"]),
        operation=operation_name(transaction) if transaction else None,
        rows=int(totals.get("total_rows", 0)),
        files=int(totals.get("total_data_files", 0)),
        bytes=int(totals.get("total_files_size", 0)),
        message=properties.pop(MESSAGE, None),
        properties=properties,
    )


def _find_transaction(dataset: lance.LanceDataset) -> lance.Transaction | None:
    try:
        return find_transaction(dataset, dataset.version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
