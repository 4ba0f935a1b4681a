"""Data files that no version of a table names yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, write_fragments
from lance_namespace import LanceNamespace
from lance_namespace.errors import TableAlreadyExistsError, TableVersionNotFoundError

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.dataset import StorageOptions, committing, delete_file
from lancehouse.lake.errors import translated


class OvertakenError(TableAlreadyExistsError):
    """Another writer made the first version of the table while this one was about to."""


def create(
    rows: pa.Table,
    location: str,
    storage_options: StorageOptions,
    *,
    namespace: LanceNamespace,
    id: list[str],
    managed: bool,
) -> int:
    """Write the first version of a table. Of several writers one succeeds, and the others leave no files.

    `lance.write_dataset(mode="create")` will not do: of two at the same time the second overwrites the first.

    Args:
        rows: all of them.
        location: where the catalog has the table.
        storage_options: to write with; the namespace renews them.
        namespace: the catalog.
        id: of the table there.
        managed: whether the namespace manages the table's versions.

    Raises:
        OvertakenError: there is a version already.
    """
    options = dict(storage_options) or None
    about = f"table {'.'.join(id)}"
    with translated(about, storage_options):
        written = write_fragments(
            rows,
            location,
            mode="create",
            return_transaction=True,
            storage_options=options,
            namespace_client=namespace,
            table_id=id,
        )
    try:
        with committing(namespace, id), translated(about, storage_options):
            committed = lance.LanceDataset.commit(
                location,
                written,
                storage_options=options,
                enable_v2_manifest_paths=True,
                max_retries=0,
                namespace_client=namespace,
                table_id=id,
                namespace_client_managed_versioning=managed,
            )
    except CommitStateUnknownError:
        raise
    except (TableAlreadyExistsError, TableVersionNotFoundError) as error:
        # Lance looks for version 0, which the commit says it has read, as soon as there is a version 1.
        discard(written.operation.fragments, location, storage_options)
        raise OvertakenError(f"{about}: another writer created it just now") from error
    return int(committed.version)


def discard(fragments: Iterable[FragmentMetadata], location: str, storage_options: StorageOptions) -> None:
    """Delete the files of fragments that were not committed."""
    options = dict(storage_options)
    with translated(location, options):
        session = LanceFileSession(location, storage_options=options or None)
        for file in (file.path for fragment in fragments for file in fragment.files):
            blobs = session.list(f"data/{PurePosixPath(file).stem}")
            for path in (f"data/{file}", *blobs):
                delete_file(location, options, path)
