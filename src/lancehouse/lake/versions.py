"""Versions of a table, the files that hold them, and the transactions that made them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlsplit

import lance
from lance.file import LanceFileSession
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    RestoreTableRequest,
    RestoreTableResponse,
    TableVersion,
)
from lance_namespace.errors import InvalidInputError, TableVersionNotFoundError, TransactionNotFoundError
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse.lake.dataset import MAIN, TableRef, local_folder, require_branch
from lancehouse.lake.errors import translated
from lancehouse.paging import page

_MANIFEST = re.compile(r"(\d+)\.manifest")
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_LAST = 2**64 - 1
"""Names of the second scheme count down from here, so that the latest version is listed first."""


class Versions(LanceNamespace):
    """The operations on versions, as storage has them.

    The first three open a table by its location: opened by its name, a table whose versions are managed would ask its
    namespace for them.
    """

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """The versions, oldest first unless `descending`. `e_tag` is unknown, `manifest_size` too in object stores."""
        table = self._located(request.id, request.branch)
        with table.opened() as dataset:
            found = page(manifests(table), request.limit, request.page_token, descending=bool(request.descending))
            versions = _described(table, dataset, found.items)
        return ListTableVersionsResponse(versions=versions, page_token=found.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """One version, by default the latest."""
        table = self._located(request.id, request.branch)
        with table.opened() as dataset:
            files = manifests(table)
            version = dataset.version if request.version is None else request.version
            if version not in files:
                raise TableVersionNotFoundError(f"{table} has no version {version}")
            (described,) = _described(table, dataset, {version: files[version]})
        return DescribeTableVersionResponse(version=described)

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions and the data that no other version needs.

        Raises:
            InvalidInputError: a range holds the current version, which a table cannot do without, or a tagged one.
        """
        table = self._located(request.id, request.branch)
        with table.opened() as dataset:
            doomed = [ref["version"] for ref in dataset.version_refs() if _within(ref["version"], request.ranges)]
            if dataset.latest_version in doomed:
                raise InvalidInputError(f"{table}: version {dataset.latest_version} is the current one and has to stay")
            deleted = dataset.cleanup_old_versions(versions=doomed).old_versions if doomed else 0
        return BatchDeleteTableVersionsResponse(deleted_count=deleted)

    def restore_table(self, request: RestoreTableRequest) -> RestoreTableResponse:
        """Make an old version the current one, by a new version that looks the same."""
        table = TableRef.of(self, request.id, version=request.version, branch=request.branch)
        with table.opened() as dataset:
            dataset.restore()
            return RestoreTableResponse(transaction_id=transaction_id(dataset))

    def describe_transaction(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """A commit of a table, by its uuid or by the version it made. Lance keeps none but those that succeeded."""
        *table_id, wanted = request.id or [""]
        if not table_id:
            raise InvalidInputError(f"a transaction id is [..., table, transaction]; got {request.id!r}")
        with TableRef.of(self, table_id).opened() as dataset:
            version, found = _transaction(dataset, wanted)
        properties = {"uuid": found.uuid, "version": str(version), "read_version": str(found.read_version)}
        return DescribeTransactionResponse(status="SUCCEEDED", properties={**properties, "operation": operation(found)})

    def _located(self, id: Sequence[str] | None, branch: str | None) -> TableRef:
        named = TableRef.of(self, id, branch=branch)
        entry = self.describe_table(DescribeTableRequest(id=list(named.id)))
        return TableRef(entry.location, entry.storage_options or {}, branch=branch, confinement=named.confinement)


def folder_of(branch: str | None) -> str:
    """Where the manifests of a branch lie, below the table's location.

    Raises:
        InvalidInputError: no branch can have such a name; it might lead out of the table.
    """
    if branch is None or branch == MAIN:
        return "_versions"
    require_branch(branch)
    return f"tree/{branch}/_versions"


def manifests(table: TableRef) -> dict[int, str]:
    """Where each version's manifest is, below the location; one listing, nothing is read."""
    folder = folder_of(table.branch)
    with translated(table, table.storage_options):
        named = ((version_of(name), f"{folder}/{name}") for name in _files(table, folder))
        return dict(sorted((version, file) for version, file in named if version is not None))


def manifest_in_place(table: TableRef, version: int) -> str | None:
    """Where the manifest of a version of the main branch is, below the location, told by a look for this file alone.

    None if it is not there, or the table is not on this machine.
    """
    if (root := local_folder(str(table.location))) is None:
        return None
    files = (f"_versions/{_LAST - version:020}.manifest", f"_versions/{version}.manifest")
    return next((file for file in files if os.path.exists(f"{root}/{file}")), None)  # noqa: PTH110


def transaction_of(dataset: lance.LanceDataset, version: int) -> lance.Transaction | None:
    """What made a version, if Lance still knows it.

    pylance 14 cannot read that of a compaction which rewrote an index: of it, only that it was one is known.
    """
    try:
        return dataset.read_transaction(version)
    except TypeError as error:
        if "RewrittenIndex" not in str(error):
            raise
        return lance.Transaction(version - 1, lance.LanceOperation.Rewrite([], []), uuid="")


def transaction_id(dataset: lance.LanceDataset) -> str | None:
    """The uuid of the commit that made the dataset's version."""
    made = transaction_of(dataset, dataset.version)
    return None if made is None else str(made.uuid)


def operation(transaction: lance.Transaction) -> str:
    """Lance's word for what a commit did."""
    done = transaction.operation
    dropped = isinstance(done, lance.LanceOperation.CreateIndex) and not done.new_indices
    return "DropIndex" if dropped else type(done).__name__


def millis(moment: datetime) -> int:
    """A time in whole milliseconds since 1970, as Iceberg, Lance's interface and we tell times.

    One without a zone is of this machine, as Lance and Python have it.
    """
    # In integers: as a float, a quarter of all times of 2038 and 2039 come out a millisecond early.
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND


def root_path(location: str) -> str:
    """A table's location, as Lance writes it in the paths of manifests: without the store's name."""
    folder = local_folder(location)
    return (str(folder) if folder else unquote(urlsplit(location).path)).strip("/")


def tags(table: TableRef) -> dict[str, tuple[str | None, int]]:
    """The branch, None for the main one, and the version that each tag names."""
    with table.opened() as dataset:
        return {name: (tag["branch"], tag["version"]) for name, tag in dataset.tags.list().items()}


def branches(table: TableRef) -> list[str]:
    """The names of all but the main one."""
    with table.opened() as dataset:
        return sorted(dataset.branches.list())


def _files(table: TableRef, folder: str) -> Iterator[str]:
    if root := local_folder(str(table.location)):
        with suppress(FileNotFoundError), os.scandir(root / folder) as files:
            yield from (file.name for file in files)
        return
    session = LanceFileSession(str(table.location), storage_options=dict(table.storage_options) or None)
    yield from (file.rpartition("/")[2] for file in session.list_with_delimiter(folder).objects)


def version_of(manifest: str) -> int | None:
    """The version that a manifest of this name holds; None if it is no such name."""
    match = _MANIFEST.fullmatch(manifest)
    if match is None:
        return None
    digits = match[1]
    return _LAST - int(digits) if len(digits) == len(str(_LAST)) else int(digits)


def _described(table: TableRef, dataset: lance.LanceDataset, files: Mapping[int, str]) -> list[TableVersion]:
    folder, above = local_folder(str(table.location)), root_path(str(table.location))
    branch = table.branch or MAIN
    return [
        TableVersion(
            version=version,
            manifest_path=f"{above}/{file}",
            manifest_size=(folder / file).stat().st_size if folder else None,
            timestamp_millis=millis(dataset.checkout_version((branch, version)).get_version()["timestamp"]),
        )
        for version, file in files.items()
    ]


def _within(version: int, ranges: Sequence[VersionRange]) -> bool:
    return any(
        each.start_version <= version and (version < each.end_version or each.end_version == -1) for each in ranges
    )


def _transaction(dataset: lance.LanceDataset, wanted: str) -> tuple[int, lance.Transaction]:
    versions = [ref["version"] for ref in dataset.version_refs()]
    candidates = [int(wanted)] if wanted.isdecimal() else reversed(versions)
    for version in candidates:
        found = transaction_of(dataset, version) if version in versions else None
        if found is not None and (wanted.isdecimal() or found.uuid == wanted):
            return version, found
    raise TransactionNotFoundError(f"transaction {wanted} not found")
