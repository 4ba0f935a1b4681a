"""Versions made of what was written before: one commit, whoever wrote it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import lance
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableVersionNotFoundError,
    ThrottlingError,
)

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.dataset import TableRef, translate_refusals
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.fragments import Piece, TableLocation, discard_pieces, parse_pieces, write_pieces
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.row_streams import RowSource
from lancehouse.lake.scans import empty_dataset
from lancehouse.lake.versions import find_transaction

Properties = Mapping[str, str] | None

RUN = "lancehouse.run"
"""Key of a transaction's properties: the run that made it, by which it is known when it comes again."""

_MAINTENANCE = (lance.LanceOperation.CreateIndex, lance.LanceOperation.Rewrite)

RETRIES = 20
"""How often Lance tries to commit again over versions that are not in the way."""


class CreateConflictError(TableAlreadyExistsError):
    """Another writer made the first version of the table while this one was about to."""


class RunAlreadyCommittedError(ConcurrentModificationError):
    """The same run has made its version in the meantime, so that this one must not."""

    def __init__(self, table: TableRef, run: str, version: int) -> None:
        super().__init__(f"{table}: run {run} has just made version {version}")
        self.version = version


def append(
    table: TableRef, at: TableLocation, pieces: Sequence[Piece], base: int, properties: Properties = None
) -> int:
    """Add rows to whatever the table holds by now; the version that this made.

    Of two that add the rows of one run at the same time, one does; the other is told the version of the first.

    Raises:
        RunAlreadyCommittedError: the properties name a run that has made its version since `base`.
    """
    operation = lance.LanceOperation.Append(parse_pieces(pieces))
    run = (properties or {}).get(RUN)
    if run is None:
        return commit(table, at, operation, base, properties)
    if (earlier := find_version_of_run(table, run, after=base)) is not None:
        raise RunAlreadyCommittedError(table, run, earlier)
    version = commit(table, at, operation, base, properties)
    if (earlier := find_version_of_run(table, run, after=base, before=version)) is None:
        return version
    _revert_append(table, at, version)
    return earlier


def _revert_append(table: TableRef, at: TableLocation, version: int) -> None:
    """Have a table hold again what it held before a version added to it."""
    before, after = (_fragment_ids(table, each) for each in (version - 1, version))
    operation = lance.LanceOperation.Delete([], sorted(after - before), "its run was done twice at once")
    commit(table, at, operation, version)


def _fragment_ids(table: TableRef, version: int) -> set[int]:
    with replace(table, version=version).dataset() as dataset:
        return {each.fragment_id for each in dataset.get_fragments()}


def overwrite(
    table: TableRef,
    at: TableLocation,
    schema: pa.Schema,
    pieces: Sequence[Piece],
    base: int,
    properties: Properties = None,
) -> int:
    """Put rows in the place of all that the table held at a version; the version that this made.

    Raises:
        ConcurrentModificationError: somebody has changed the table since: their rows would be gone.
    """
    operation = lance.LanceOperation.Overwrite(schema, parse_pieces(pieces))
    try:
        return commit(table, at, operation, base, properties, retries=0)
    except ConcurrentModificationError as error:
        raise ConcurrentModificationError(
            f"{table}: somebody has changed it since version {base}, and overwriting would undo that; run it again"
        ) from error


def restore(table: TableRef, at: TableLocation, version: int, base: int) -> int:
    """Put an older version in the place of the one that is the latest; the version that this made.

    Lance lets a restore pass over whatever came meanwhile. If something did, it is put back at once.

    Raises:
        ConcurrentModificationError: somebody has changed the table since `base`, which would be gone.
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
    table: TableRef, at: TableLocation, schema: pa.Schema, pieces: Sequence[Piece], properties: Properties = None
) -> int:
    """Make the first version of a table.

    Raises:
        CreateConflictError: there is one already.
    """
    operation = lance.LanceOperation.Overwrite(schema, parse_pieces(pieces))
    try:
        return commit(table, at, operation, 0, properties, retries=0)
    except LanceNamespaceError as error:
        if is_refusal(error) and table.exists():
            raise CreateConflictError(f"{table}: another writer created it just now") from error
        raise


def create_or_append(
    table: TableRef, at: TableLocation, schema: pa.Schema, pieces: Sequence[Piece], properties: Properties = None
) -> int:
    """Make the first version of a table, or add to one that somebody else has just made with the same columns.

    Raises:
        CreateConflictError: they made it with others.
        RunAlreadyCommittedError: the properties name a run, and the same run made it.
    """
    try:
        return create(table, at, schema, pieces, properties)
    except CreateConflictError:
        dataset, run = table.open(), (properties or {}).get(RUN)
        if run is not None and (first := find_version_of_run(table, run)) is not None:
            raise RunAlreadyCommittedError(table, run, first) from None
        if str(dataset.lance_schema) != str(empty_dataset(schema, dataset.data_storage_version).lance_schema):
            raise
        return append(table, at, pieces, dataset.version, properties)


def create_with_rows(table: TableRef, at: TableLocation, rows: RowSource) -> int:
    """Write the first version of a table. Of several writers one succeeds, and the others leave no files.

    `lance.write_dataset(mode="create")` will not do: of two at the same time the second overwrites the first.

    Raises:
        CreateConflictError: there is a version already.
    """
    pieces = write_pieces(table, at, rows.to_reader(), mode="overwrite")
    try:
        return create(table, at, rows.schema, pieces)
    except LanceNamespaceError as error:
        if is_refusal(error):
            discard_pieces(pieces, at)
        raise


def commit(
    table: TableRef,
    at: TableLocation,
    operation: lance.LanceOperation.BaseOperation,
    base: int,
    properties: Properties = None,
    *,
    retries: int = RETRIES,
) -> int:
    """Make a version, through the namespace where it manages versions.

    Args:
        table: what to change.
        at: where it is.
        operation: what to change in it.
        base: the version that the change was made for.
        properties: to keep with the version.
        retries: over versions that came meanwhile and are not in the way; 0: over none.

    Raises:
        ConcurrentModificationError: a version that came meanwhile is in the way.
        CommitStateUnknownError: it may have been made, or not.
    """
    transaction = lance.Transaction(base, operation, transaction_properties=dict(properties or {}))
    try:
        with translate_refusals(table.namespace, table.id), translate_errors(table, at.storage_options):
            dataset = lance.LanceDataset.commit(
                at.location,
                transaction,
                storage_options=dict(at.storage_options) or None,
                enable_v2_manifest_paths=True,
                max_retries=retries,
                namespace_client=table.namespace,
                table_id=list(table.id) or None,
                namespace_client_managed_versioning=at.is_managed,
            )
    except LanceNamespaceError as error:
        landed = (
            None if is_refusal(error) else find_version(table, lambda known: known.uuid == transaction.uuid, after=base)
        )
        if landed is None:
            raise
        return landed
    return int(dataset.version)


def require_same_table(table: TableRef, base: int, expected_uuid: str) -> None:
    """See that a table is still the one that something was written for.

    Args:
        table: what is about to be changed.
        base: a version of it.
        expected_uuid: what `manifests.read_transaction_uuid` said of that version.

    Raises:
        ConcurrentModificationError: the table was dropped and made anew meanwhile, and what was written is gone.
    """
    try:
        with replace(table, version=base).dataset() as dataset:
            current_uuid = read_transaction_uuid(dataset)
    except TableVersionNotFoundError:  # it was cleaned up
        return
    if current_uuid != expected_uuid:
        raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; run it again")


def is_refusal(error: LanceNamespaceError) -> bool:
    """Whether a commit that failed so was surely not made."""
    return not isinstance(error, CommitStateUnknownError | InternalError | ServiceUnavailableError | ThrottlingError)


def find_version(
    table: TableRef, is_wanted: Callable[[lance.Transaction], bool], after: int = 0, before: int | None = None
) -> int | None:
    """The latest version that was made by a certain transaction, of those that are still there."""
    if not table.exists():
        return None
    with table.dataset() as dataset:
        versions = sorted((each["version"] for each in dataset.version_refs()), reverse=True)
        for version in itertools.takewhile(lambda each: each > after, versions):
            if before is not None and version >= before:
                continue
            transaction = find_transaction(dataset, version)
            if transaction is not None and is_wanted(transaction):
                return int(version)
    return None


def find_version_of_run(table: TableRef, run: str, after: int = 0, before: int | None = None) -> int | None:
    """The version that a run has made, if it did and that version is still there."""
    return find_version(table, lambda made: (made.transaction_properties or {}).get(RUN) == run, after, before)


def find_run(table: TableRef, version: int) -> str | None:
    """The run that has made a version, if one did and Lance still knows it."""
    with table.dataset() as dataset:
        transaction = find_transaction(dataset, version)
    return None if transaction is None else (transaction.transaction_properties or {}).get(RUN)


def find_latest_if_only_maintenance(table: TableRef, version: int) -> int | None:
    """The latest version, if all that came after another one are of indices and compactions; None if some are not."""
    with table.dataset() as dataset:
        later = sorted(each["version"] for each in dataset.version_refs() if each["version"] > version)
        made = [known and known.operation for known in (find_transaction(dataset, each) for each in later)]
    for one, following in itertools.zip_longest(made, made[1:]):
        # A compaction takes numbers for its fragments first, by a version of a kind that pylance has no class for.
        is_reserved = type(one) is lance.LanceOperation.BaseOperation
        if not isinstance(following if is_reserved else one, _MAINTENANCE):
            return None
    return later[-1] if later else version


def is_reverted(table: TableRef, version: int) -> bool:
    """Whether the table is not what became of a version: one from before was put back, and that was not undone."""
    with table.dataset() as dataset:
        current = dataset.version
        for number in sorted((ref["version"] for ref in dataset.version_refs()), reverse=True):
            transaction = find_transaction(dataset, number) if version < number <= current else None
            if transaction is not None and isinstance(transaction.operation, lance.LanceOperation.Restore):
                current = transaction.operation.version
    return bool(current < version)


def count_rows_added(table: TableRef, version: int) -> int | None:
    """How many rows a version has written, as far as Lance still knows."""
    with table.dataset() as dataset:
        transaction = find_transaction(dataset, version)
    match transaction and transaction.operation:
        case lance.LanceOperation.Append(fragments) | lance.LanceOperation.Overwrite(_, fragments):
            return sum(int(fragment.physical_rows) for fragment in fragments)
        case lance.LanceOperation.Update() as update:
            return sum(int(fragment.physical_rows) for fragment in update.new_fragments)
    return None
