"""Changes of rows between versions: which rows a version inserted, updated or deleted, by stable row ids.

Lance keeps of each row the version that created it and the one that last changed it. Deleted rows are those whose ids
the version before had. Values of computed columns are no changes of their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import lance
import numpy as np
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.scans import AddedFragment, Increment, checkout, read_each_version, read_increment

CREATED = "_row_created_at_version"
UPDATED = "_row_last_updated_at_version"
"""Lance's columns with the versions that created and last changed a row, where the table has stable row ids."""
INSERT, UPDATE, DELETE = "insert", "update_postimage", "delete"
"""Kinds of changes, as Delta and Iceberg call them."""
OFFSET_BITS = 32
"""A row's address is its fragment's id, and in the lower bits its position there."""

_Done = lance.LanceOperation
_REWRITES = (_Done.Update, _Done.Delete, _Done.Overwrite, _Done.DataOverlay)
"""Operations that may change or remove rows."""


def require_stable_row_ids(table: TableRef, *, has_them: bool) -> None:
    """Refuse a table in which nobody can tell which rows changed.

    Raises:
        InvalidInputError: it has no stable row ids.
    """
    if not has_them:
        raise InvalidInputError(
            f"{table} has no stable row ids, so that nobody can tell which rows changed: copy it into a new table"
        )


def changed_since(version: int) -> str:
    """Return the condition that holds for rows which are new or were changed after a version."""
    return f"{UPDATED} > {version}"


def read_row_ids(dataset: lance.LanceDataset, condition: str | None, fragments: Sequence[int] | None = None) -> Any:
    """Return the ids of the rows that match, in all fragments or in some."""
    if fragments is not None and not fragments:
        return np.array([], np.uint64)
    chosen = None if fragments is None else [dataset.get_fragment(each) for each in fragments]
    scanner = dataset.scanner(columns=[], filter=condition, with_row_id=True, fragments=chosen)
    return scanner.to_table()["_rowid"].to_numpy()


def read_changes(table: TableRef, after: int, upto: int, *, lossless: bool = True) -> Iterator[Increment]:
    """Yield what each version changed, oldest first: fragments with rows that were inserted, updated or deleted.

    See `lake.scans.read_increments` for the arguments.

    Raises:
        InvalidInputError: the table has no stable row ids.
        TableVersionNotFoundError: a version, or the one before, was cleaned up.
        UnsupportedOperationError: a version restored an older one, or does not tell how it was made.
    """
    return read_each_version(table, after, upto, _read_changes, lossless=lossless)


def _read_changes(table: TableRef, dataset: lance.LanceDataset) -> Increment:
    require_stable_row_ids(table, has_them=dataset.has_stable_row_ids)
    operation, added = read_increment(table, dataset, is_change=True)
    if not isinstance(operation, _REWRITES):
        return added
    with translate_errors(table, table.storage_options):
        written = _find_written(dataset)
    if dataset.version == 1:
        return Increment(1, written)
    return Increment(dataset.version, (*_find_deleted(table, dataset), *written))


def _find_written(dataset: lance.LanceDataset) -> tuple[AddedFragment, ...]:
    """Return the fragments with rows that a version inserted or updated."""
    version = dataset.version
    rows = dataset.scanner(columns=[CREATED], filter=f"{UPDATED} = {version}", with_row_address=True).to_table()
    fragments = (rows["_rowaddr"].to_numpy() >> np.uint64(OFFSET_BITS)).tolist()
    is_new = (rows[CREATED].to_numpy() == version).tolist()
    counts = Counter(zip(fragments, is_new, strict=True))
    return tuple(
        AddedFragment(int(fragment), count, INSERT if new else UPDATE)
        for (fragment, new), count in sorted(counts.items())
    )


def _find_deleted(table: TableRef, dataset: lance.LanceDataset) -> Iterator[AddedFragment]:
    """Yield the fragments of the version before that hold rows which a version deleted."""
    before = checkout(table, dataset, dataset.version - 1)
    with translate_errors(table, table.storage_options):
        alive = read_row_ids(dataset, None, _changed_fragments(dataset, before))
        for fragment in _changed_fragments(before, dataset):
            gone = np.setdiff1d(read_row_ids(before, None, [fragment]), alive)
            if len(gone):
                yield AddedFragment(fragment, len(gone), DELETE)


def find_deleted_rows(before: lance.LanceDataset, after: lance.LanceDataset, fragments: Sequence[int]) -> Any:
    """Return the ids of rows in some fragments of a version that the next version does not have."""
    alive = read_row_ids(after, None, _changed_fragments(after, before))
    return np.setdiff1d(read_row_ids(before, None, fragments), alive)


def _changed_fragments(one: lance.LanceDataset, other: lance.LanceDataset) -> list[int]:
    """Return the fragments of one version that do not hold the same rows in the other."""
    deletions = {each.fragment_id: str(each.metadata.deletion_file) for each in other.get_fragments()}
    return [
        each.fragment_id
        for each in one.get_fragments()
        if deletions.get(each.fragment_id) != str(each.metadata.deletion_file)
    ]


def change_condition(version: int, change: str) -> str:
    """Return the condition of rows that a version inserted or updated."""
    return f"{UPDATED} = {version} AND {CREATED} {'=' if change == INSERT else '<'} {version}"
