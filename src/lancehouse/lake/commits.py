"""Write data files, commit them as a new version (append, overwrite, create, restore), find versions by their run."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, FragmentWriteProgress, write_fragments
from lance_namespace import DescribeTableRequest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableVersionNotFoundError,
    ThrottlingError,
)

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.dataset import (
    StorageOptions,
    TableRef,
    delete_file,
    empty_dataset,
    find_field_ids,
    open_files,
    translate_refusals,
)
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.recall_notes import changes_notes
from lancehouse.lake.row_streams import RowSource
from lancehouse.lake.versions import find_transaction
from lancehouse.locations import local_folder
from lancehouse.schema import walk

logger = logging.getLogger(__name__)

NewFragment = str
"""A fragment that is written but not committed: its metadata as JSON."""


ALIGNMENT = 16
"""Alignment in bytes that Rust requires for values longer than eight bytes."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location and storage options of a table's files."""

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False, hash=False)
    is_managed: bool = False
    """Whether the table's namespace manages its versions."""


def locate_table(table: TableRef) -> TableLocation:
    """Return the location of a table, from its address or from its namespace.

    Raises:
        TableNotFoundError: the namespace has no such table.
    """
    if table.location is not None or table.namespace is None:
        return TableLocation(table.location or "", table.storage_options)
    entry = table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    if not entry.location:
        raise InternalError(f"{table}: the catalog did not say where the table is")
    return TableLocation(entry.location, entry.storage_options or {}, entry.managed_versioning is True)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Options for writing files; None for Lance's default."""

    max_rows_per_file: int | None = None
    max_bytes_per_file: int | None = None
    data_storage_version: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_rows_per_file", "max_bytes_per_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{name} must be 1 or more, not {value!r}")
        if self.data_storage_version is not None:
            require_storage_version(self.data_storage_version)

    def to_arguments(self) -> dict[str, Any]:
        """Return the options as arguments of pylance."""
        chosen = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in chosen.items() if value is not None}


@cache
def require_storage_version(version: str) -> None:
    """Check that Lance can write files of a storage version.

    Raises:
        InvalidInputError: it cannot.
    """
    try:
        lance.write_dataset(pa.table({"id": [0]}), "memory://", data_storage_version=version)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"data_storage_version {version!r} is none that Lance can write") from error


def write_uncommitted(
    table: TableRef, at: TableLocation, rows: pa.RecordBatchReader, *, mode: str, layout: FileLayout | None = None
) -> list[NewFragment]:
    """Write rows as fragments that are not committed. If that fails, their files are deleted.

    Args:
        table: address by name, so that credentials are renewed.
        at: its location.
        rows: in the table's own types.
        mode: `append` if the table has versions and keeps its columns, else `overwrite`.
        layout: options for the files.

    Raises:
        TableSchemaValidationError: in mode `append`, the rows do not have the columns and types of the table.
    """
    progress, source = _WriteProgress(), _RowSource(rows)
    try:
        with translate_errors(table, at.storage_options):
            fragments = write_fragments(
                source.to_reader(),
                at.location,
                schema=rows.schema,
                mode=mode,
                progress=progress,
                storage_options=dict(at.storage_options) or None,
                namespace_client=table.namespace,
                table_id=list(table.id) or None,
                **(layout or FileLayout()).to_arguments(),
            )
    except BaseException as error:
        try_discard_fragments(
            dict.fromkeys(file for fragment in progress.fragments for file in _fragment_files(fragment)), at
        )
        if source.error is not None:
            raise source.error from error
        raise
    return [json.dumps(fragment.to_json()) for fragment in fragments]


class _RowSource:
    """Passes rows to Lance and keeps the exception that they raise, which Lance would reduce to text."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.error: BaseException | None = None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows, with decimals aligned in memory as Rust requires.

        Arrow data from another process may lie at any address.
        """
        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        wide = [position for position, field in enumerate(self._rows.schema) if _has_decimals(field.type)]
        try:
            for batch in self._rows:
                columns = [_align(column) if place in wide else column for place, column in enumerate(batch.columns)]
                yield pa.RecordBatch.from_arrays(columns, schema=batch.schema) if wide else batch
        except Exception as error:  # noqa: BLE001 - it is raised again when Lance has ended
            self.error = error
            # For Lance, pyarrow writes out the traceback, and reads the sources of all its functions for that.
            raise RuntimeError("the rows could not be read") from None


def _has_decimals(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return _has_decimals(dtype.storage_type)
    children = (dtype.field(position).type for position in range(dtype.num_fields))
    return pa.types.is_decimal(dtype) or any(map(_has_decimals, children))


def _align(array: pa.Array[Any]) -> pa.Array[Any]:
    if all(buffer is None or buffer.address % ALIGNMENT == 0 for buffer in array.buffers()):
        return array
    return pa.concat_arrays([array])


class _WriteProgress(FragmentWriteProgress):  # type: ignore[misc]
    """Records every fragment that was begun, whether finished or not, so that its files can be deleted."""

    def __init__(self) -> None:
        self.fragments: list[FragmentMetadata] = []

    def begin(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)

    def complete(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)


def parse_new_fragments(new_fragments: Iterable[NewFragment]) -> list[FragmentMetadata]:
    """Parse new fragments to pylance's fragment metadata."""
    return [FragmentMetadata.from_json(fragment) for fragment in new_fragments]


def find_lost_fragments(new_fragments: Collection[NewFragment], at: TableLocation) -> set[NewFragment]:
    """Return the fragments with a missing file: clean-up may have deleted those that were kept for long."""
    if not new_fragments:
        return set()
    with translate_errors(at.location, at.storage_options):
        session = open_files(at.location, at.storage_options)
        existing = set(session.list("data"))

    def is_whole(fragment: NewFragment) -> bool:
        return all(
            f"data/{file.path}" in existing for metadata in parse_new_fragments([fragment]) for file in metadata.files
        )

    return {fragment for fragment in new_fragments if not is_whole(fragment)}


def discard_fragments(new_fragments: Iterable[NewFragment], at: TableLocation, *, keep: Collection[str] = ()) -> None:
    """Delete the files of fragments that are not committed.

    Args:
        new_fragments: instead of one, the path of a file or folder below the table's location may be given.
        at: location of the table.
        keep: files that stay, as `list_fragment_files` returns them.
    """
    _delete_files([file for file in list_fragment_files(new_fragments) if file not in keep], at)


def try_discard_fragments(new_fragments: Iterable[NewFragment], at: TableLocation) -> None:
    """Delete what `discard_fragments` does after a failure, which a second one must not hide: that is only logged."""
    try:
        discard_fragments(new_fragments, at)
    except LanceNamespaceError as error:
        logger.warning("%s: files may be left over, which remove_orphans removes: %s", at.location, error)


def list_fragment_files(new_fragments: Iterable[NewFragment]) -> list[str]:
    """Return the data and deletion files of new fragments, relative to the table's location, each once."""
    files: dict[str, None] = {}
    for fragment in new_fragments:
        is_fragment = fragment.startswith("{")
        files |= dict.fromkeys(_fragment_files(FragmentMetadata.from_json(fragment)) if is_fragment else [fragment])
    return list(files)


def _fragment_files(fragment: FragmentMetadata) -> Iterator[str]:
    yield from (f"data/{file.path}" for file in fragment.files)
    if fragment.deletion_file is not None:
        yield fragment.deletion_file.path(fragment.id)


def _delete_files(files: Iterable[str], at: TableLocation) -> None:
    """Delete files, data files with their blobs, and folders with all that is in them."""
    options, root = dict(at.storage_options), local_folder(at.location)
    with translate_errors(at.location, options):
        session = open_files(at.location, options)
        for file in files:
            below = [] if file.startswith("_deletions/") else session.list(file.removesuffix(".lance"))
            for path in (*below, *([file] if PurePosixPath(file).suffix else [])):
                delete_file(at.location, options, path)
            if root and below:
                with suppress(OSError):  # it is not there, or not empty
                    (root / file.removesuffix(".lance")).rmdir()


Properties = Mapping[str, str] | None

RUN = "lancehouse.run"
"""Key in a transaction's properties for the id of the run that committed it, to recognize a repeated run."""

MESSAGE = "__lance_commit_message"
"""Lance's key for the commit message in a transaction's properties."""

_MAINTENANCE = (lance.LanceOperation.CreateIndex, lance.LanceOperation.Rewrite)
"""Operations that change no rows."""

STABLE_ROW_IDS = "LANCEHOUSE_STABLE_ROW_IDS"
"""Environment variable that is `false` where new tables shall have no stable row ids."""

RETRIES = 20
"""Number of times that Lance retries a commit over versions that do not conflict with it."""


class CreateConflictError(TableAlreadyExistsError):
    """Another writer created the first version of the table at the same time."""


class ColumnsChangedError(ConcurrentModificationError):
    """The written files do not fit the table's columns any more, so a retry cannot succeed."""


class RunAlreadyCommittedError(ConcurrentModificationError):
    """The same run has committed its version already, so this commit must not be made."""

    def __init__(self, table: TableRef, run: str, version: int) -> None:
        super().__init__(f"{table}: run {run} has just made version {version}")
        self.version = version


def append(
    table: TableRef, at: TableLocation, new_fragments: Sequence[NewFragment], base: int, properties: Properties = None
) -> int:
    """Append rows to the latest version of a table and return the new version.

    If the same run appends its rows twice at the same time, one commit stands; the other returns that one's version.

    Raises:
        RunAlreadyCommittedError: the properties name a run that has committed since `base`.
        ColumnsChangedError: a column got another type since `base`.
    """
    operation = lance.LanceOperation.Append(parse_new_fragments(new_fragments))
    run = (properties or {}).get(RUN)
    if run is None:
        return _append_rows(table, at, operation, base, properties)
    if (earlier := find_version_of_run(table, run, after=base)) is not None:
        raise RunAlreadyCommittedError(table, run, earlier)
    # Lance rebases appends, so both of two processes of one run can get past the check above and commit. Whoever is
    # later finds the other's version below its own and undoes its append.
    version = _append_rows(table, at, operation, base, properties)
    if (earlier := find_version_of_run(table, run, after=base, before=version)) is None:
        return version
    _revert_append(table, at, version)
    return earlier


def _append_rows(
    table: TableRef, at: TableLocation, operation: lance.LanceOperation.Append, base: int, properties: Properties
) -> int:
    """Commit an append; take it back if a column has another type by now.

    Lance rebases an append over a change of types, and the values of the column would be null: such a column is a new
    one, which the written files do not have.
    """
    changed: list[str] = []

    def check(dataset: lance.LanceDataset) -> None:
        changed.extend(_find_changed_columns(table, dataset, operation.fragments, base))

    version = commit(table, at, operation, base, properties, then=check)
    if changed:
        _revert_append(table, at, version)
        raise ColumnsChangedError(f"{table}: {', '.join(changed)} got another type meanwhile; run it again")
    return version


def _find_changed_columns(
    table: TableRef, dataset: lance.LanceDataset, fragments: Iterable[FragmentMetadata], base: int
) -> list[str]:
    """Return the columns that files were written for, and that have another field id by now."""
    current = walk.field_ids(dataset.lance_schema.fields())
    written = {number for fragment in fragments for file in fragment.files for number in file.fields if number >= 0}
    if not (missing_ids := written.difference(current.values())):
        return []
    with replace(table, version=base).dataset() as before:
        paths = walk.field_ids(before.lance_schema.fields())
    return [".".join(path) for path, number in paths.items() if number in missing_ids and path in current]


def _revert_append(table: TableRef, at: TableLocation, version: int) -> None:
    """Delete the fragments that a version added, also if others change columns at the same time.

    Raises:
        ConcurrentModificationError: others kept changing the table.
    """
    before, after = (_fragment_ids(table, number) for number in (version - 1, version))
    operation = lance.LanceOperation.Delete([], sorted(after - before), "an append that does not count")
    for _ in range(RETRIES):
        try:
            commit(table, at, operation, version)
            return
        except ConcurrentModificationError as error:
            last, version = error, int(table.open().version)
    raise last


def _fragment_ids(table: TableRef, version: int) -> set[int]:
    with replace(table, version=version).dataset() as dataset:
        return {fragment.fragment_id for fragment in dataset.get_fragments()}


def overwrite(
    table: TableRef,
    at: TableLocation,
    schema: pa.Schema,
    new_fragments: Sequence[NewFragment],
    base: int,
    properties: Properties = None,
) -> int:
    """Replace all rows of the version `base` and return the new version.

    Raises:
        ConcurrentModificationError: the table was changed since `base`, and those changes would be lost.
    """
    operation = lance.LanceOperation.Overwrite(schema, parse_new_fragments(new_fragments))
    try:
        # Lance rebases an overwrite over anything, which silently drops rows that others appended: so no retries.
        return commit(table, at, operation, base, properties, retries=0)
    except ConcurrentModificationError as error:
        raise ConcurrentModificationError(
            f"{table}: somebody has changed it since version {base}, and overwriting would undo that; run it again"
        ) from error


def restore(table: TableRef, at: TableLocation, version: int, base: int) -> int:
    """Restore an older version as the latest one and return the new version.

    Lance commits a restore over any version that was committed in the meantime. If that happens, this restores that
    version again and raises.

    Raises:
        ConcurrentModificationError: the table was changed since `base`, and those changes would be lost.
    """
    overtaken = ConcurrentModificationError(
        f"{table}: somebody has changed it since version {base}, and to put version {version} back would undo that"
    )
    if table.open().version != base:
        raise overtaken
    new_version = commit(table, at, lance.LanceOperation.Restore(version), base)
    if new_version > base + 1:
        restore(table, at, new_version - 1, new_version)
        raise overtaken
    return new_version


def create(
    table: TableRef,
    at: TableLocation,
    schema: pa.Schema,
    new_fragments: Sequence[NewFragment],
    properties: Properties = None,
) -> int:
    """Commit the first version of a table.

    Raises:
        CreateConflictError: there is a version already.
    """
    operation = lance.LanceOperation.Overwrite(schema, parse_new_fragments(new_fragments))
    try:
        return commit(table, at, operation, 0, properties, retries=0, stable_row_ids=creates_stable_row_ids())
    except LanceNamespaceError as error:
        if is_refusal(error) and table.exists():
            raise CreateConflictError(f"{table}: another writer created it just now") from error
        raise


def creates_stable_row_ids() -> bool:
    """Return whether rows of new tables get ids that they keep when they are changed or moved.

    Computed columns and views need them to find what has changed.
    """
    return os.environ.get(STABLE_ROW_IDS, "true").strip().lower() != "false"


def create_or_append(
    table: TableRef,
    at: TableLocation,
    schema: pa.Schema,
    new_fragments: Sequence[NewFragment],
    properties: Properties = None,
) -> int:
    """Commit the first version of a table, or append if another writer has just created it with the same columns.

    Raises:
        CreateConflictError: it was created with other columns.
        RunAlreadyCommittedError: the properties name a run, and the same run created it.
    """
    try:
        return create(table, at, schema, new_fragments, properties)
    except CreateConflictError:
        dataset, run = table.open(), (properties or {}).get(RUN)
        if run is not None and (first := find_version_of_run(table, run)) is not None:
            raise RunAlreadyCommittedError(table, run, first) from None
        if str(dataset.lance_schema) != str(empty_dataset(schema, dataset.data_storage_version).lance_schema):
            raise
        return append(table, at, new_fragments, dataset.version, properties)


def create_with_rows(table: TableRef, at: TableLocation, rows: RowSource) -> int:
    """Write the first version of a table. Of several writers one succeeds, and the others leave no files.

    `lance.write_dataset(mode="create")` does not do that: of two writers at the same time, the second overwrites the
    first.

    Raises:
        CreateConflictError: there is a version already.
    """
    new_fragments = write_uncommitted(table, at, rows.to_reader(), mode="overwrite")
    with discard_if_refused(new_fragments, at):
        return create(table, at, rows.schema, new_fragments)


def commit(
    table: TableRef,
    at: TableLocation,
    operation: lance.LanceOperation.BaseOperation,
    base: int,
    properties: Properties = None,
    *,
    retries: int = RETRIES,
    stable_row_ids: bool | None = None,
    then: Callable[[lance.LanceDataset], None] | None = None,
) -> int:
    """Commit an operation as a new version, through the namespace if it manages versions; return the version.

    Args:
        table: the table to change.
        at: its location.
        operation: the change.
        base: the version that the change was made for.
        properties: to store with the transaction.
        retries: how often to rebase over versions that do not conflict; 0 for never.
        stable_row_ids: whether a first version gives rows ids that they keep.
        then: called with the new version, which is open already.

    Raises:
        ConcurrentModificationError: a version that was committed in the meantime conflicts.
        CommitStateUnknownError: the commit may or may not have been made.
    """
    transaction = lance.Transaction(base, operation, transaction_properties=dict(properties or {}))
    try:
        with translate_refusals(table.namespace, table.id), translate_errors(table, at.storage_options):
            dataset = lance.LanceDataset.commit(
                at.location,
                transaction,
                storage_options=dict(at.storage_options) or None,
                # Their names count down, so that a listing begins with the latest version.
                enable_v2_manifest_paths=True,
                max_retries=retries,
                enable_stable_row_ids=stable_row_ids,
                namespace_client=table.namespace,
                table_id=list(table.id) or None,
                # Unlike `lance.dataset` and `write_dataset`, this call does not ask the namespace for it.
                namespace_client_managed_versioning=at.is_managed,
            )
    except LanceNamespaceError as error:
        # The error may have come after the commit was made. The transaction's uuid tells: if a version has it, this
        # succeeded.
        landed = None if is_refusal(error) else _find_landed(table, transaction.uuid, base)
        if landed is None:
            raise
        dataset = replace(table, version=landed).open()
    if then is not None:
        then(dataset)
    return int(dataset.version)


def _find_landed(table: TableRef, uuid: str, base: int) -> int | None:
    """Return the version of a transaction; None if there is none, or if it cannot be looked for.

    In the second case the error of the commit must stay: that of the look, such as a missing permission, might count as
    a refusal, after which files are deleted.
    """
    try:
        return find_version(table, lambda transaction: transaction.uuid == uuid, after=base)
    except LanceNamespaceError as error:
        logger.warning("%s: cannot look whether a commit was made: %s", table, error)
        return None


def require_same_table(table: TableRef, base: int, expected_uuid: str) -> None:
    """Check that a table was not dropped and created anew since something was written for it.

    Args:
        table: the table about to be changed.
        base: a version of it.
        expected_uuid: what `manifests.read_transaction_uuid` returned for that version.

    Raises:
        ConcurrentModificationError: the table was created anew, and the written files are gone.
    """
    try:
        with replace(table, version=base).dataset() as dataset:
            current_uuid = read_transaction_uuid(dataset)
    except TableVersionNotFoundError:  # the version was cleaned up
        return
    if current_uuid != expected_uuid:
        raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; run it again")


def is_refusal(error: LanceNamespaceError) -> bool:
    """Return whether this error of a commit means that it was certainly not made."""
    return not isinstance(error, CommitStateUnknownError | InternalError | ServiceUnavailableError | ThrottlingError)


@contextmanager
def discard_if_refused(new_fragments: Iterable[NewFragment], at: TableLocation) -> Iterator[None]:
    """Delete the files of fragments if the commit in the block is refused; after any other error they stay."""
    try:
        yield
    except LanceNamespaceError as error:
        if is_refusal(error):
            discard_fragments(new_fragments, at)
        raise


def find_version(
    table: TableRef, is_wanted: Callable[[lance.Transaction], bool], after: int = 0, before: int | None = None
) -> int | None:
    """Return the latest version after `after` and before `before` whose transaction is wanted; None if none is."""
    # Each of these saves requests where the table is in an object store: nothing is opened, or nothing listed.
    if before is not None and before <= after + 1:
        return None
    if (dataset := table.find()) is None or dataset.version <= after:
        return None
    with translate_errors(table, table.storage_options):
        versions = [ref["version"] for ref in dataset.version_refs() if ref["version"] > after]
        for version in sorted(versions, reverse=True):
            if before is not None and version >= before:
                continue
            transaction = find_transaction(dataset, version)
            if transaction is not None and is_wanted(transaction):
                return int(version)
    return None


def find_version_of_run(table: TableRef, run: str, after: int = 0, before: int | None = None) -> int | None:
    """Return the version that a run has committed, if it still exists; else None."""
    return find_version(
        table, lambda transaction: (transaction.transaction_properties or {}).get(RUN) == run, after, before
    )


def find_restore(table: TableRef, after: int) -> int | None:
    """Return the latest version after `after` that restored an older one, so that rows are as they were; else None.

    One that was cleaned up, or of which Lance has no record, may have done so, and counts.
    """
    if (dataset := table.find()) is None or dataset.version <= after:
        return None
    with translate_errors(table, table.storage_options):
        existing = {ref["version"] for ref in dataset.version_refs()}
        for version in range(int(dataset.version), after, -1):
            transaction = find_transaction(dataset, version) if version in existing else None
            if transaction is None:
                logger.warning("%s: version %d is gone, which may have restored an older one", table, version)
            if transaction is None or isinstance(transaction.operation, lance.LanceOperation.Restore):
                return version
    return None


def find_run(table: TableRef, version: int) -> str | None:
    """Return the id of the run that committed a version; None if there was none, or if Lance has no record of it."""
    with table.dataset() as dataset:
        transaction = find_transaction(dataset, version)
    return None if transaction is None else (transaction.transaction_properties or {}).get(RUN)


def find_latest_if_only_maintenance(table: TableRef, version: int, columns: Sequence[str] = ()) -> int | None:
    """Return the latest version if all after `version` are index builds, compactions, or changes of `columns` alone.

    Args:
        table: the table.
        version: the version.
        columns: columns that may have been added, described or filled since.

    Returns:
        None if any other change was made.
    """
    with table.dataset() as dataset:
        later = sorted(ref["version"] for ref in dataset.version_refs() if ref["version"] > version)
        operations = [
            transaction and transaction.operation
            for transaction in (find_transaction(dataset, number) for number in later)
        ]
        own = find_field_ids(dataset, columns)
        if columns and later:
            before = set(dataset.checkout_version(version).schema.names)
            if not before ^ set(dataset.schema.names) <= set(columns):
                return None
    for one, following in itertools.zip_longest(operations, operations[1:]):
        # A compaction first reserves fragment ids, in a version of its own for which pylance has no class.
        is_reserved = type(one) is lance.LanceOperation.BaseOperation
        if not isinstance(following if is_reserved else one, _MAINTENANCE) and not _changes_only(one, own):
            return None
    return later[-1] if later else version


def _changes_only(operation: lance.LanceOperation.BaseOperation | None, fields: set[int]) -> bool:
    """Return whether an operation changes only these fields, or adds columns; which it adds, the schema shows."""
    match operation:
        case lance.LanceOperation.Merge():
            return bool(fields)
        case lance.LanceOperation.Update(removed_fragment_ids=[], new_fragments=[], fields_modified=modified):
            return bool(modified) and fields.issuperset(modified)
        case lance.LanceOperation.UpdateConfig(config_updates=config) as update:
            others = (
                config and not changes_notes(config),
                update.table_metadata_updates,
                update.schema_metadata_updates,
            )
            return not any(others) and fields.issuperset(update.field_metadata_updates or ())
    return False


def is_reverted(table: TableRef, version: int) -> bool:
    """Return whether a version is undone: an older version was restored later, and that was not undone again."""
    with table.dataset() as dataset:
        current = dataset.version
        for number in sorted((ref["version"] for ref in dataset.version_refs()), reverse=True):
            transaction = find_transaction(dataset, number) if version < number <= current else None
            if transaction is not None and isinstance(transaction.operation, lance.LanceOperation.Restore):
                current = transaction.operation.version
    return bool(current < version)


def count_rows_added(table: TableRef, version: int) -> int | None:
    """Return the number of rows that an append, overwrite or update wrote; None for other or unrecorded operations."""
    with table.dataset() as dataset:
        transaction = find_transaction(dataset, version)
    match transaction and transaction.operation:
        case lance.LanceOperation.Append(fragments) | lance.LanceOperation.Overwrite(_, fragments):
            return sum(int(fragment.physical_rows) for fragment in fragments)
        case lance.LanceOperation.Update() as update:
            return sum(int(fragment.physical_rows) for fragment in update.new_fragments)
    return None
