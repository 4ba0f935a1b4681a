"""Versions made of what was written before: one commit, whoever wrote it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import lance
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    ThrottlingError,
)

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.dataset import TableRef, committing
from lancehouse.lake.errors import translated
from lancehouse.lake.fragments import Piece, Place, discard, metadata, write
from lancehouse.lake.streams import Given
from lancehouse.lake.versions import transaction_of

Properties = Mapping[str, str] | None

RUN = "lancehouse.run"
"""Key of a transaction's properties: the run that made it, by which it is known when it comes again."""

_UPKEEP = (lance.LanceOperation.CreateIndex, lance.LanceOperation.Rewrite)

RETRIES = 20
"""How often Lance tries to commit again over versions that are not in the way."""


class OvertakenError(TableAlreadyExistsError):
    """Another writer made the first version of the table while this one was about to."""


def append(table: TableRef, at: Place, pieces: Sequence[Piece], base: int, properties: Properties = None) -> int:
    """Add rows to whatever the table holds by now; the version that this made."""
    return commit(table, at, lance.LanceOperation.Append(metadata(pieces)), base, properties)


def overwrite(
    table: TableRef, at: Place, schema: pa.Schema, pieces: Sequence[Piece], base: int, properties: Properties = None
) -> int:
    """Put rows in the place of all that the table held at a version; the version that this made.

    Raises:
        ConcurrentModificationError: somebody has changed the table since: their rows would be gone.
    """
    operation = lance.LanceOperation.Overwrite(schema, metadata(pieces))
    try:
        return commit(table, at, operation, base, properties, retries=0)
    except ConcurrentModificationError as error:
        raise ConcurrentModificationError(
            f"{table}: somebody has changed it since version {base}, and overwriting would undo that; run it again"
        ) from error


def restore(table: TableRef, at: Place, version: int, base: int) -> int:
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
    made = commit(table, at, lance.LanceOperation.Restore(version), base)
    if made > base + 1:
        restore(table, at, made - 1, made)
        raise overtaken
    return made


def create(
    table: TableRef, at: Place, schema: pa.Schema, pieces: Sequence[Piece], properties: Properties = None
) -> int:
    """Make the first version of a table.

    Raises:
        OvertakenError: there is one already.
    """
    operation = lance.LanceOperation.Overwrite(schema, metadata(pieces))
    try:
        return commit(table, at, operation, 0, properties, retries=0)
    except LanceNamespaceError as error:
        if is_refusal(error) and table.exists():
            raise OvertakenError(f"{table}: another writer created it just now") from error
        raise


def create_with(table: TableRef, at: Place, rows: Given) -> int:
    """Write the first version of a table. Of several writers one succeeds, and the others leave no files.

    `lance.write_dataset(mode="create")` will not do: of two at the same time the second overwrites the first.

    Raises:
        OvertakenError: there is a version already.
    """
    pieces = write(table, at, rows.to_reader(), mode="overwrite")
    try:
        return create(table, at, rows.schema, pieces)
    except LanceNamespaceError as error:
        if is_refusal(error):
            discard(pieces, at)
        raise


def commit(
    table: TableRef,
    at: Place,
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
        with committing(table.namespace, table.id), translated(table, at.storage_options):
            made = lance.LanceDataset.commit(
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
        landed = None if is_refusal(error) else find(table, lambda known: known.uuid == transaction.uuid, after=base)
        if landed is None:
            raise
        return landed
    return int(made.version)


def is_refusal(error: LanceNamespaceError) -> bool:
    """Whether a commit that failed so was surely not made."""
    return not isinstance(error, CommitStateUnknownError | InternalError | ServiceUnavailableError | ThrottlingError)


def find(table: TableRef, is_wanted: Callable[[lance.Transaction], bool], after: int = 0) -> int | None:
    """The latest version that was made by a certain transaction, of those that are still there."""
    if not table.exists():
        return None
    with table.opened() as dataset:
        versions = sorted((each["version"] for each in dataset.version_refs()), reverse=True)
        for version in itertools.takewhile(lambda each: each > after, versions):
            made = transaction_of(dataset, version)
            if made is not None and is_wanted(made):
                return int(version)
    return None


def version_of_run(table: TableRef, run: str) -> int | None:
    """The version that a run has made, if it did and that version is still there."""
    return find(table, lambda made: (made.transaction_properties or {}).get(RUN) == run)


def run_of(table: TableRef, version: int) -> str | None:
    """The run that has made a version, if one did and Lance still knows it."""
    with table.opened() as dataset:
        made = transaction_of(dataset, version)
    return None if made is None else (made.transaction_properties or {}).get(RUN)


def only_upkeep_since(table: TableRef, version: int) -> int | None:
    """The latest version, if all that came after another one are of indices and compactions; None if some are not."""
    with table.opened() as dataset:
        later = sorted(each["version"] for each in dataset.version_refs() if each["version"] > version)
        made = [known and known.operation for known in (transaction_of(dataset, each) for each in later)]
    for one, following in itertools.zip_longest(made, made[1:]):
        # A compaction takes numbers for its fragments first, by a version of a kind that pylance has no class for.
        is_reserved = type(one) is lance.LanceOperation.BaseOperation
        if not isinstance(following if is_reserved else one, _UPKEEP):
            return None
    return later[-1] if later else version


def is_undone(table: TableRef, version: int) -> bool:
    """Whether a version from before was put back after this one."""

    def undoes(made: lance.Transaction) -> bool:
        return isinstance(made.operation, lance.LanceOperation.Restore) and made.operation.version < version

    return find(table, undoes, after=version) is not None


def rows_added(table: TableRef, version: int) -> int | None:
    """How many rows a version has written, as far as Lance still knows."""
    with table.opened() as dataset:
        made = transaction_of(dataset, version)
    match made and made.operation:
        case lance.LanceOperation.Append(fragments) | lance.LanceOperation.Overwrite(_, fragments):
            return sum(int(fragment.physical_rows) for fragment in fragments)
        case lance.LanceOperation.Update() as update:
            return sum(int(fragment.physical_rows) for fragment in update.new_fragments)
    return None
