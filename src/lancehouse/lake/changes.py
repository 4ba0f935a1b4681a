"""Changes between versions: the rows that each version added; with stable row ids, those it updated and deleted too.

Lance keeps of each row the version that created it and the one that last changed it. Deleted rows are those whose ids
the version before had. Values of computed columns are no changes of their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
from lance.fragment import FragmentMetadata
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.lake.dataset import OFFSET_BITS, TableRef, enclose_sql, find_field_ids
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import find_recorded_transaction
from lancehouse.schema.definitions import COMPANION, COMPUTED

CREATED = "_row_created_at_version"
UPDATED = "_row_last_updated_at_version"
"""Lance's columns with the versions that created and last changed a row, where the table has stable row ids."""
INSERT, UPDATE, DELETE = "insert", "update_postimage", "delete"
"""Kinds of changes, as Delta and Iceberg call them."""

_Done = lance.LanceOperation
_REWRITES = (_Done.Update, _Done.Delete, _Done.Overwrite, _Done.DataOverlay)
"""Operations that may change or remove rows."""


@dataclass(frozen=True, slots=True)
class AddedFragment:
    """A fragment that a version added, or in which it changed rows."""

    id: int
    rows: int
    change: str | None = None
    """What happened to the rows, one of the kinds above; None if all rows of the fragment are new."""


@dataclass(frozen=True, slots=True)
class Increment:
    """The rows that a version added, as they were then: rows that were deleted later are included."""

    version: int
    fragments: tuple[AddedFragment, ...] = ()


def latest_version(table: TableRef) -> int:
    """Return the latest version."""
    return int(table.open().version)


def oldest_version(table: TableRef) -> int:
    """Return the oldest version that still exists."""
    with table.dataset() as dataset:
        return min(int(ref["version"]) for ref in dataset.version_refs())


def whole_version(table: TableRef, version: int) -> Increment:
    """Return all rows of a version as an increment.

    Raises:
        TableVersionNotFoundError: the version no longer exists.
    """
    with table.dataset() as dataset:
        return _to_increment(checkout(table, dataset, version))


def read_increments(table: TableRef, after: int, upto: int, *, lossless: bool = True) -> Iterator[Increment]:
    """Yield what each version added, oldest first; versions are read lazily.

    Appends, inserts and updates add the rows that they wrote, an overwrite all of its rows. Compaction, indices,
    deletions, new columns, values of computed columns and settings add none.

    Args:
        table: to read.
        after: the last version that is not wanted.
        upto: the last version that is wanted.
        lossless: whether to fail at a version whose rows cannot be told; else it is skipped.

    Raises:
        TableVersionNotFoundError: a version was cleaned up.
        UnsupportedOperationError: a version changed rows without recording which.
        InvalidTableStateError: the table was created anew, and has no version `upto` yet.
    """
    return read_each_version(table, after, upto, lambda *at: read_increment(*at)[1], lossless=lossless)


def read_each_version(
    table: TableRef,
    after: int,
    upto: int,
    read: Callable[[TableRef, lance.LanceDataset], Increment],
    *,
    lossless: bool = True,
) -> Iterator[Increment]:
    """Yield what is read of each version, oldest first. See `read_increments`."""
    if after >= upto:
        return
    with table.dataset() as dataset:
        if dataset.version < upto:
            raise InvalidTableStateError(f"{table} was at version {upto} and is at {dataset.version}: it was made anew")
        for version in range(after + 1, upto + 1):
            try:
                added = read(table, checkout(table, dataset, version))
            except (TableVersionNotFoundError, UnsupportedOperationError):
                if lossless:
                    raise
            else:
                yield added


def checkout(table: TableRef, dataset: lance.LanceDataset, version: int) -> lance.LanceDataset:
    """Open another version.

    Raises:
        TableVersionNotFoundError: it was cleaned up.
    """
    try:
        with translate_errors(table, table.storage_options):
            return dataset.checkout_version(version)
    except TableVersionNotFoundError as error:
        raise TableVersionNotFoundError(f"version {version} of {table} was cleaned up") from error


def read_increment(
    table: TableRef, dataset: lance.LanceDataset, *, is_change: bool = False
) -> tuple[lance.LanceOperation.BaseOperation | None, Increment]:
    """Return the operation that created a version, and the rows that it added.

    Args:
        table: the table.
        dataset: the version.
        is_change: whether the caller finds by itself what an operation did that rewrote rows.
    """
    operation = _find_operation(dataset)
    match operation:
        case _Done.Append(fragments=new) | _Done.Update(new_fragments=new, fields_modified=[]):
            return operation, _to_increment(dataset, new)
        case _Done.Overwrite() | _Done.Clone():
            return operation, _to_increment(dataset)
        case _Done.Update(new_fragments=[], fields_modified=fields) if _computed_fields(dataset).issuperset(fields):
            # Computed columns were filled: the rows are the same.
            return None, Increment(dataset.version)
        case _Done.Update() | _Done.DataOverlay() if is_change:
            return operation, Increment(dataset.version)
        case _Done.Update() | _Done.DataOverlay():
            does = "changed values in place, and does not tell in which rows"
        case _Done.Restore():
            does = "restored an older one"
        case None:
            does = "does not tell how it was made"
        case _:
            return operation, Increment(dataset.version)
    raise UnsupportedOperationError(f"version {dataset.version} of {table} {does}")


def _computed_fields(dataset: lance.LanceDataset) -> set[int]:
    """Return the field ids of computed columns and their companions."""
    fields = dataset.schema
    return find_field_ids(
        dataset,
        {field.name for field in fields if COMPUTED in (field.metadata or {}) or field.name.startswith(COMPANION)},
    )


def _find_operation(dataset: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
    """Return the operation that created a version; None if Lance has no record of it any more."""
    transaction = find_recorded_transaction(dataset)
    return None if transaction is None else transaction.operation


def _to_increment(dataset: lance.LanceDataset, new: Iterable[FragmentMetadata] | None = None) -> Increment:
    """Return the fragments of a version: all, or those in `new`.

    A transaction knows its fragments by their files; ids are assigned when it is committed.
    """
    files = None if new is None else {file.path for fragment in new for file in fragment.files}
    return Increment(
        dataset.version,
        tuple(
            AddedFragment(fragment.fragment_id, fragment.count_rows())
            for fragment in dataset.get_fragments()
            if files is None or any(file.path in files for file in fragment.data_files())
        ),
    )


# Rows that were inserted, updated or deleted, by stable row ids


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
    chosen = None if fragments is None else [dataset.get_fragment(fragment) for fragment in fragments]
    scanner = dataset.scanner(columns=[], filter=enclose_sql(condition), with_row_id=True, fragments=chosen)
    return scanner.to_table()["_rowid"].to_numpy()


def read_changes(table: TableRef, after: int, upto: int, *, lossless: bool = True) -> Iterator[Increment]:
    """Yield what each version changed, oldest first: fragments with rows that were inserted, updated or deleted.

    See `read_increments` for the arguments.

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
            row_ids = np.setdiff1d(read_row_ids(before, None, [fragment]), alive)
            if len(row_ids):
                yield AddedFragment(fragment, len(row_ids), DELETE)


def find_deleted_rows(before: lance.LanceDataset, after: lance.LanceDataset, fragments: Sequence[int]) -> Any:
    """Return the ids of rows in some fragments of a version that the next version does not have."""
    alive = read_row_ids(after, None, _changed_fragments(after, before))
    return np.setdiff1d(read_row_ids(before, None, fragments), alive)


def _changed_fragments(one: lance.LanceDataset, other: lance.LanceDataset) -> list[int]:
    """Return the fragments of one version that do not hold the same rows in the other."""
    deletions = {fragment.fragment_id: str(fragment.metadata.deletion_file) for fragment in other.get_fragments()}
    return [
        fragment.fragment_id
        for fragment in one.get_fragments()
        if deletions.get(fragment.fragment_id) != str(fragment.metadata.deletion_file)
    ]


def change_condition(version: int, change: str) -> str:
    """Return the condition of rows that a version inserted or updated."""
    return f"{UPDATED} = {version} AND {CREATED} {'=' if change == INSERT else '<'} {version}"
