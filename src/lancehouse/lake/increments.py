"""Read which rows each version of a table added, for streaming readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import lance
from lance.fragment import FragmentMetadata
from lance_namespace.errors import InvalidTableStateError, TableVersionNotFoundError, UnsupportedOperationError

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import find_transaction

_Done = lance.LanceOperation


@dataclass(frozen=True, slots=True)
class AddedFragment:
    """A fragment that a version added."""

    id: int
    rows: int


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
        return min(int(each["version"]) for each in dataset.version_refs())


def whole_version(table: TableRef, version: int) -> Increment:
    """Return all rows of a version as an increment.

    Raises:
        TableVersionNotFoundError: the version no longer exists.
    """
    with table.dataset() as dataset:
        return _to_increment(_checkout(table, dataset, version))


def read_increments(table: TableRef, after: int, upto: int, *, lossless: bool = True) -> Iterator[Increment]:
    """Yield what each version added, oldest first; versions are read lazily.

    Appends, inserts and updates add the rows that they wrote, an overwrite all of its rows. Compaction, indices,
    deletions, new columns and settings add none.

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
    if after >= upto:
        return
    with table.dataset() as dataset:
        if dataset.version < upto:
            raise InvalidTableStateError(f"{table} was at version {upto} and is at {dataset.version}: it was made anew")
        for version in range(after + 1, upto + 1):
            try:
                added = _read_increment(table, _checkout(table, dataset, version))
            except (TableVersionNotFoundError, UnsupportedOperationError):
                if lossless:
                    raise
            else:
                yield added


def _checkout(table: TableRef, dataset: lance.LanceDataset, version: int) -> lance.LanceDataset:
    try:
        with translate_errors(table, table.storage_options):
            return dataset.checkout_version(version)
    except TableVersionNotFoundError as error:
        raise TableVersionNotFoundError(f"version {version} of {table} was cleaned up") from error


def _read_increment(table: TableRef, dataset: lance.LanceDataset) -> Increment:
    match _find_operation(dataset):
        case _Done.Append(fragments=new) | _Done.Update(new_fragments=new, fields_modified=[]):
            return _to_increment(dataset, new)
        case _Done.Overwrite() | _Done.Clone():
            return _to_increment(dataset)
        case _Done.Update() | _Done.DataOverlay():
            does = "changed values in place, and does not tell in which rows"
        case _Done.Restore():
            does = "restored an older one"
        case None:
            does = "does not tell how it was made"
        case _:
            return Increment(dataset.version)
    raise UnsupportedOperationError(f"version {dataset.version} of {table} {does}")


def _find_operation(dataset: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
    """Return the operation that created a version; None if Lance has no record of it any more."""
    try:
        transaction = find_transaction(dataset, dataset.version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
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
