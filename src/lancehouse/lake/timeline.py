"""What became of a table, for people: its versions with what made each, its tags and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lance
from lance_namespace.errors import TableVersionNotFoundError

from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.lake.errors import translated
from lancehouse.lake.versions import millis, operation, transaction_of

MESSAGE = "__lance_commit_message"
"""Lance's key for what a writer said of a commit."""


@dataclass(frozen=True, slots=True)
class Made:
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
class Refs:
    """Names of versions: of each tag its branch and version, of each branch those that it came from."""

    tags: Mapping[str, tuple[str | None, int]]
    branches: Mapping[str, tuple[str | None, int]]


def read(table: TableRef, versions: Sequence[int]) -> list[Made]:
    """What is known of some versions of the main branch. One that was cleaned up meanwhile is left out."""
    made = []
    with table.opened() as dataset:
        for version in versions:
            with suppress(TableVersionNotFoundError), translated(table, table.storage_options):
                made.append(_made(dataset.checkout_version((MAIN, version))))
    return made


def refs(table: TableRef) -> Refs:
    """The tags and branches."""
    with table.opened() as dataset:
        tags, branches = dataset.tags.list(), dataset.branches.list()
    return Refs(
        {name: (tag["branch"], tag["version"]) for name, tag in sorted(tags.items())},
        {name: (told["parent_branch"], told["parent_version"]) for name, told in sorted(branches.items())},
    )


def _made(dataset: lance.LanceDataset) -> Made:
    told: Mapping[str, Any] = dataset.get_version()
    totals = told["metadata"]
    transaction = _transaction(dataset)
    properties = dict((transaction.transaction_properties if transaction else None) or {})
    return Made(
        version=told["version"],
        timestamp_ms=millis(told["timestamp"]),
        operation=operation(transaction) if transaction else None,
        rows=int(totals.get("total_rows", 0)),
        files=int(totals.get("total_data_files", 0)),
        bytes=int(totals.get("total_files_size", 0)),
        message=properties.pop(MESSAGE, None),
        properties=properties,
    )


def _transaction(dataset: lance.LanceDataset) -> lance.Transaction | None:
    try:
        return transaction_of(dataset, dataset.version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
