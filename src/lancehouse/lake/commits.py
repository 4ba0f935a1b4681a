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
from lancehouse.lake.dataset import TableRef, committing
from lancehouse.lake.errors import translated
from lancehouse.lake.fragments import Piece, Place, discard, metadata, write
from lancehouse.lake.manifests import made_by
from lancehouse.lake.scans import like
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


class RunMadeError(ConcurrentModificationError):
    """The same run has made its version in the meantime, so that this one must not."""

    def __init__(self, table: TableRef, run: str, version: int) -> None:
        super().__init__(f"{table}: run {run} has just made version {version}")
        self.version = version


def append(table: TableRef, at: Place, pieces: Sequence[Piece], base: int, properties: Properties = None) -> int:
    """Add rows to whatever the table holds by now; the version that this made.

    Of two that add the rows of one run at the same time, one does; the other is told the version of the first.

    Raises:
        RunMadeError: the properties name a run that has made its version since `base`.
    """
    operation = lance.LanceOperation.Append(metadata(pieces))
    run = (properties or {}).get(RUN)
    if run is None:
        return commit(table, at, operation, base, properties)
    if (first := version_of_run(table, run, after=base)) is not None:
        raise RunMadeError(table, run, first)
    made = commit(table, at, operation, base, properties)
    if (first := version_of_run(table, run, after=base, before=made)) is None:
        return made
    _take_out(table, at, made)
    return first


def _take_out(table: TableRef, at: Place, version: int) -> None:
    """Have a table hold again what it held before a version added to it."""
    before, after = (_fragments(table, each) for each in (version - 1, version))
    operation = lance.LanceOperation.Delete([], sorted(after - before), "its run was done twice at once")
    commit(table, at, operation, version)


def _fragments(table: TableRef, version: int) -> set[int]:
    with replace(table, version=version).opened() as dataset:
        return {each.fragment_id for each in dataset.get_fragments()}


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


def create_or_append(
    table: TableRef, at: Place, schema: pa.Schema, pieces: Sequence[Piece], properties: Properties = None
) -> int:
    """Make the first version of a table, or add to one that somebody else has just made with the same columns.

    Raises:
        OvertakenError: they made it with others.
        RunMadeError: the properties name a run, and the same run made it.
    """
    try:
        return create(table, at, schema, pieces, properties)
    except OvertakenError:
        dataset, run = table.open(), (properties or {}).get(RUN)
        if run is not None and (first := version_of_run(table, run)) is not None:
            raise RunMadeError(table, run, first) from None
        if str(dataset.lance_schema) != str(like(schema, dataset.data_storage_version).lance_schema):
            raise
        return append(table, at, pieces, dataset.version, properties)


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


def require_same(table: TableRef, base: int, known: str) -> None:
    """See that a table is still the one that something was written for.

    Args:
        table: what is about to be changed.
        base: a version of it.
        known: what `manifests.made_by` said of that version.

    Raises:
        ConcurrentModificationError: the table was dropped and made anew meanwhile, and what was written is gone.
    """
    try:
        with replace(table, version=base).opened() as dataset:
            now = made_by(dataset)
    except TableVersionNotFoundError:  # it was cleaned up
        return
    if now != known:
        raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; run it again")


def is_refusal(error: LanceNamespaceError) -> bool:
    """Whether a commit that failed so was surely not made."""
    return not isinstance(error, CommitStateUnknownError | InternalError | ServiceUnavailableError | ThrottlingError)


def find(
    table: TableRef, is_wanted: Callable[[lance.Transaction], bool], after: int = 0, before: int | None = None
) -> int | None:
    """The latest version that was made by a certain transaction, of those that are still there."""
    if not table.exists():
        return None
    with table.opened() as dataset:
        versions = sorted((each["version"] for each in dataset.version_refs()), reverse=True)
        for version in itertools.takewhile(lambda each: each > after, versions):
            if before is not None and version >= before:
                continue
            made = transaction_of(dataset, version)
            if made is not None and is_wanted(made):
                return int(version)
    return None


def version_of_run(table: TableRef, run: str, after: int = 0, before: int | None = None) -> int | None:
    """The version that a run has made, if it did and that version is still there."""
    return find(table, lambda made: (made.transaction_properties or {}).get(RUN) == run, after, before)


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
    """Whether the table is not what became of a version: one from before was put back, and that was not undone."""
    with table.opened() as dataset:
        now = dataset.version
        for each in sorted((ref["version"] for ref in dataset.version_refs()), reverse=True):
            made = transaction_of(dataset, each) if version < each <= now else None
            if made is not None and isinstance(made.operation, lance.LanceOperation.Restore):
                now = made.operation.version
    return bool(now < version)


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
