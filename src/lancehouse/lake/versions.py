"""List and describe the versions of a table in storage; their manifest files and transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import lance
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

from lancehouse.lake.dataset import (
    LAST_VERSION,
    MAIN,
    TableRef,
    manifest_folder,
    open_files,
    parse_version,
    read_tags,
    to_millis,
)
from lancehouse.lake.errors import translate_errors
from lancehouse.locations import local_folder
from lancehouse.paging import paginate

OTHER = "Other"
"""Operation of a version for which pylance has no class, such as Lance's reservation of fragment ids."""


class VersionOperations(LanceNamespace):
    """Operations of the Lance interface on versions, as storage has them.

    The first three open a table by its location: opened by name, a table with managed versions would ask its namespace
    for them.
    """

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """List the versions, oldest first unless `descending`.

        `e_tag` is never set, `manifest_size` only for tables on a local disk.
        """
        table = self._ref_by_location(request.id, request.branch)
        with table.dataset() as dataset:
            manifest_page = paginate(
                list_manifests(table), request.limit, request.page_token, descending=bool(request.descending)
            )
            versions = _describe_versions(table, dataset, manifest_page.items)
        return ListTableVersionsResponse(versions=versions, page_token=manifest_page.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Return one version, by default the latest."""
        table = self._ref_by_location(request.id, request.branch)
        with table.dataset() as dataset:
            files = list_manifests(table)
            version = dataset.version if request.version is None else request.version
            if version not in files:
                raise TableVersionNotFoundError(f"{table} has no version {version}")
            (described,) = _describe_versions(table, dataset, {version: files[version]})
        return DescribeTableVersionResponse(version=described)

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions and the data that no other version needs.

        Raises:
            InvalidInputError: a range contains the current version, which cannot be deleted, or a tagged one.
        """
        table = self._ref_by_location(request.id, request.branch)
        with table.dataset() as dataset:
            versions = [ref["version"] for ref in dataset.version_refs() if _is_within(ref["version"], request.ranges)]
            if dataset.latest_version in versions:
                raise InvalidInputError(f"{table}: version {dataset.latest_version} is the current one and has to stay")
            deleted = dataset.cleanup_old_versions(versions=versions).old_versions if versions else 0
        return BatchDeleteTableVersionsResponse(deleted_count=deleted)

    def restore_table(self, request: RestoreTableRequest) -> RestoreTableResponse:
        """Make an old version the current one, by committing a new version with the same content."""
        table = TableRef.in_namespace(self, request.id, version=request.version, branch=request.branch)
        with table.dataset() as dataset:
            dataset.restore()
            return RestoreTableResponse(transaction_id=transaction_id(dataset))

    def describe_transaction(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """Describe a commit of a table, by its uuid or by its version. Lance records successful transactions only."""
        *table_id, transaction_name = request.id or [""]
        if not table_id:
            raise InvalidInputError(f"a transaction id is [..., table, transaction]; got {request.id!r}")
        with TableRef.in_namespace(self, table_id).dataset() as dataset:
            version, transaction = _get_transaction(dataset, transaction_name)
        properties = {"uuid": transaction.uuid, "version": str(version), "read_version": str(transaction.read_version)}
        return DescribeTransactionResponse(
            status="SUCCEEDED", properties={**properties, "operation": operation_name(transaction)}
        )

    def _ref_by_location(self, id: Sequence[str] | None, branch: str | None) -> TableRef:
        table = TableRef.in_namespace(self, id, branch=branch)
        entry = self.describe_table(DescribeTableRequest(id=list(table.id)))
        return TableRef(entry.location, entry.storage_options or {}, branch=branch, confinement=table.confinement)


def list_manifests(table: TableRef) -> dict[int, str]:
    """Return the path of each version's manifest below the table's location, ordered by version; costs one listing."""
    folder = manifest_folder(table.branch)
    with translate_errors(table, table.storage_options):
        entries = ((parse_version(name), f"{folder}/{name}") for name in _list_files(table, folder))
        return dict(sorted((version, file) for version, file in entries if version is not None))


def find_manifest(table: TableRef, version: int) -> str | None:
    """Return the path of the manifest of a version on the main branch, by testing for this file alone.

    None if it does not exist, or if the table is not on this machine's disk.
    """
    if (root := local_folder(str(table.location))) is None:
        return None
    files = (f"_versions/{LAST_VERSION - version:020}.manifest", f"_versions/{version}.manifest")
    return next((file for file in files if os.path.exists(f"{root}/{file}")), None)  # noqa: PTH110


def find_transaction(dataset: lance.LanceDataset, version: int) -> lance.Transaction | None:
    """Return the transaction that created a version; None if Lance has no record of it any more.

    pylance 14 cannot parse that of a compaction which rewrote an index; an empty `Rewrite` is returned for it.
    """
    try:
        return dataset.read_transaction(version)
    except TypeError as error:
        if "RewrittenIndex" not in str(error):
            raise
        return lance.Transaction(version - 1, lance.LanceOperation.Rewrite([], []), uuid="")


def find_recorded_transaction(dataset: lance.LanceDataset) -> lance.Transaction | None:
    """Return the transaction that created the dataset's version; None if Lance has no record of it."""
    try:
        return find_transaction(dataset, dataset.version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None


def transaction_id(dataset: lance.LanceDataset) -> str | None:
    """Return the uuid of the transaction that created the dataset's version; None if it is not known."""
    transaction = find_transaction(dataset, dataset.version)
    return None if transaction is None else str(transaction.uuid)


def operation_name(transaction: lance.Transaction) -> str:
    """Return Lance's name for the operation of a transaction."""
    lance_operation = transaction.operation
    if type(lance_operation) is lance.LanceOperation.BaseOperation:
        return OTHER
    dropped = isinstance(lance_operation, lance.LanceOperation.CreateIndex) and not lance_operation.new_indices
    return "DropIndex" if dropped else type(lance_operation).__name__


def root_path(location: str) -> str:
    """Return a table's location as Lance writes it in the paths of manifests: without scheme and bucket."""
    folder = local_folder(location)
    return (str(folder) if folder else unquote(urlsplit(location).path)).strip("/")


def list_tags(table: TableRef) -> dict[str, tuple[str | None, int]]:
    """Return the branch (None for the main one) and the version of each tag."""
    with table.dataset() as dataset:
        return {name: (tag["branch"], tag["version"]) for name, tag in read_tags(dataset).items()}


def list_branches(table: TableRef) -> list[str]:
    """Return the names of all branches but main."""
    with table.dataset() as dataset:
        return sorted(dataset.branches.list())


def _list_files(table: TableRef, folder: str) -> Iterator[str]:
    if root := local_folder(str(table.location)):
        with suppress(FileNotFoundError), os.scandir(root / folder) as files:
            yield from (file.name for file in files)
        return
    session = open_files(str(table.location), table.storage_options)
    yield from (file.rpartition("/")[2] for file in session.list_with_delimiter(folder).objects)


def _describe_versions(table: TableRef, dataset: lance.LanceDataset, files: Mapping[int, str]) -> list[TableVersion]:
    folder, above = local_folder(str(table.location)), root_path(str(table.location))
    branch = table.branch or MAIN
    return [
        TableVersion(
            version=version,
            manifest_path=f"{above}/{file}",
            manifest_size=(folder / file).stat().st_size if folder else None,
            timestamp_millis=to_millis(dataset.checkout_version((branch, version)).get_version()["timestamp"]),
        )
        for version, file in files.items()
    ]


def _is_within(version: int, ranges: Sequence[VersionRange]) -> bool:
    return any(
        span.start_version <= version and (version < span.end_version or span.end_version == -1) for span in ranges
    )


def _get_transaction(dataset: lance.LanceDataset, name: str) -> tuple[int, lance.Transaction]:
    versions = [ref["version"] for ref in dataset.version_refs()]
    candidates = [int(name)] if name.isdecimal() else reversed(versions)
    for version in candidates:
        transaction = find_transaction(dataset, version) if version in versions else None
        if transaction is not None and (name.isdecimal() or transaction.uuid == name):
            return version, transaction
    raise TransactionNotFoundError(f"transaction {name} not found")
