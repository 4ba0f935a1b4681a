"""Transactions over several tables: `lancehouse.transaction` commits staged versions of all tables at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self
from uuid import uuid4

import pyarrow as pa
from lance_namespace import (
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)

from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.clients.managed_versions import StagedVersion, normalize_branch
from lancehouse.errors import CommitStateUnknownError
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import STAGING, Manifest, transaction_path
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.versions import list_manifests
from lancehouse.paging import paginate

logger = logging.getLogger(__name__)

TableBranch = tuple[TableId, str | None]
"""A table and a branch of it, None for the main one."""


def _refuse(what: str) -> Any:
    """Return an operation that raises UnsupportedOperationError."""

    def refuse(_self: object, _request: object) -> NoReturn:
        raise UnsupportedOperationError(
            f"{what} is no commit of Lance, and no part of a transaction: do it before or after"
        )

    return refuse


class Transaction(TableOperations):
    """A namespace in which every commit is staged, until all of them are made at once.

    It reads its own writes: the next operation on a table sees what was staged. Every operation on rows, columns and
    indices works, and so does pylance: `lance.dataset(namespace_client=tx, table_id=…)`. Operations that are not
    commits in Lance, such as creating a tag, are refused.
    """

    def __init__(self, namespace: LanceNamespace) -> None:
        if not isinstance(namespace, IcebergNamespace):
            raise UnsupportedOperationError(
                f"{type(namespace).__name__} has no transactions over several tables; the `iceberg` client has"
            )
        self._catalog = namespace
        self._versions = namespace._versions
        self._id = str(uuid4())
        self._staged_by_branch: dict[TableBranch, list[StagedVersion]] = {}
        self._is_open = True

    def namespace_id(self) -> str:
        """Return a name for this transaction."""
        return f"transaction {self._id} of {self._catalog.namespace_id()}"

    # Changes

    def append(self, id: Sequence[str], rows: pa.Table) -> None:
        """Stage rows to append to a table, or its first rows."""
        self._insert(TableRef.in_namespace(self, id), rows, "Append")

    def overwrite(self, id: Sequence[str], rows: pa.Table) -> None:
        """Stage rows that replace all rows of a table."""
        self._insert(TableRef.in_namespace(self, id), rows, "Overwrite")

    def delete(self, id: Sequence[str], where: str) -> None:
        """Stage the deletion of the rows that match an SQL expression."""
        with TableRef.in_namespace(self, id).dataset() as dataset:
            dataset.delete(where)

    def commit(self) -> None:
        """Commit everything that was staged.

        Raises:
            ConcurrentModificationError: a table has moved on since this transaction wrote to it; nothing was changed,
                and what was staged was removed. Begin a new transaction.
            CommitStateUnknownError: the catalog could not be asked what became of the commit; what was staged stays.
        """
        self._require_open()
        versions = [version for line in self._staged_by_branch.values() for version in line]
        # A commit that fails must not be sent again from here: what was staged is removed, or its state is unknown.
        self._is_open = False
        if not versions:
            return
        try:
            self._versions.commit(versions)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError as error:
            self._discard_staged_after(error)
            raise
        try:
            self._versions.publish(versions)
        except LanceNamespaceError as error:  # the commit is made: the next reader publishes the manifests
            logger.warning(
                "the manifests of %s are committed but not published; the next reader publishes them: %s",
                self.namespace_id(),
                error,
            )

    def rollback(self) -> None:
        """Leave every table as it was, and remove what was staged."""
        self._require_open()
        self._is_open = False
        self._discard_staged()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._is_open:
            return
        if error is None:
            self.commit()
            return
        self._is_open = False
        self._discard_staged_after(error)

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError("the transaction is over: begin another one")

    # Operations that are not commits in Lance, so that a rollback could not undo them

    create_table_tag = update_table_tag = delete_table_tag = _refuse("a tag")
    create_table_branch = delete_table_branch = _refuse("a branch")
    batch_delete_table_versions = _refuse("the removal of versions")

    # Calls that Lance makes to open a table and to commit

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """Describe a table as the catalog does, after checking that it can take part in a transaction.

        Raises:
            InvalidInputError: the table's versions are not managed by the catalog.
            UnsupportedOperationError: the server has no transactions.
        """
        self._require_open()
        self._versions.require_transactions(TableId.parse(request.id))
        return self._catalog.describe_table(request)

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """List the versions of the catalog and those staged in this transaction."""
        staged = {
            version.manifest.version: self._to_table_version(version)
            for version in self._staged_versions(request.id, request.branch)
        }
        if not staged:
            return self._catalog.list_table_versions(request)
        unpaged_request = ListTableVersionsRequest(id=request.id, branch=request.branch)
        versions = self._catalog.list_table_versions(unpaged_request).versions
        committed = {version.version: version for version in versions if version.version < min(staged)}
        listing = paginate(
            {**committed, **staged}, request.limit, request.page_token, descending=bool(request.descending)
        )
        return ListTableVersionsResponse(versions=list(listing.items.values()), page_token=listing.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Return a version, staged in this transaction or from the catalog."""
        for version in reversed(self._staged_versions(request.id, request.branch)):
            if request.version in (None, version.manifest.version):
                return DescribeTableVersionResponse(version=self._to_table_version(version))
        return self._catalog.describe_table_version(request)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Stage a version of a table until the transaction commits.

        Raises:
            ConcurrentModificationError: the version does not follow the one that this transaction staged last.
        """
        self._require_open()
        earlier = self._staged_versions(request.id, request.branch)
        if earlier and request.version != earlier[-1].manifest.version + 1:
            raise ConcurrentModificationError(f"{earlier[-1].table} has moved on since it was read here: begin again")
        staged = self._versions.stage(request, keep_in=f"{STAGING}/{self._id}")
        self._staged_by_branch.setdefault((staged.table, staged.branch), []).append(staged)
        return CreateTableVersionResponse(
            version=self._to_table_version(staged), transaction_id=staged.manifest.transaction_uuid
        )

    def _staged_versions(self, id: Sequence[str] | None, branch: str | None) -> list[StagedVersion]:
        return self._staged_by_branch.get((TableId.parse(id), normalize_branch(branch)), [])

    @staticmethod
    def _to_table_version(staged: StagedVersion) -> TableVersion:
        version = staged.to_table_version()
        version.manifest_path = f"{staged.root}/{staged.staged_path}"
        return version

    def _discard_staged_after(self, error: BaseException) -> None:
        """Remove what was staged; if that fails, add a note to the error that is being raised."""
        try:
            self._discard_staged()
        except LanceNamespaceError as left:
            error.add_note(f"and what the transaction had staged could not be removed: {left}")

    def _discard_staged(self) -> None:
        """Remove staged manifests and the files that only they refer to."""
        for (table, branch), versions in self._staged_by_branch.items():
            store = self._versions.manifest_store(table)
            location, options, first = store.location, store.storage_options, versions[0].manifest.version
            previous = list_manifests(TableRef(location, options, branch=branch)).get(first - 1)
            retained = Manifest.parse(store.read(previous)).files(location, options) if previous else set()
            for version in versions:
                files = version.manifest.files(location, options)
                if version.manifest.operation in (None, "Restore"):  # may refer to files of any older version
                    retained |= files - {transaction_path(version.manifest)}
                if previous or first == 1:  # else it is not known which files older versions refer to
                    for file in files - retained:
                        store.discard(file)
                store.discard(version.staged_path)


@contextmanager
def transaction(namespace: LanceNamespace) -> Iterator[Transaction]:
    """Change several tables whose versions an Iceberg catalog manages, all or none.

    Leaving the block commits; an exception rolls everything back.

        with lancehouse.transaction(ns) as tx:
            tx.append(["wh", "db", "documents"], rows)
            tx.delete(["wh", "db", "queue"], "id < 100")

    Raises:
        UnsupportedOperationError: the client or its server has no transactions; nothing was written.
    """
    with Transaction(namespace) as tx:
        yield tx
