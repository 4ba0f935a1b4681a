"""Several tables, one commit: everything becomes visible together, or nothing does."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from uuid import uuid4

import pyarrow as pa
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)

from lancehouse.clients.commits import ManagedCommits
from lancehouse.clients.snapshots import Staged
from lancehouse.clients.versions import branch_of
from lancehouse.errors import CommitStateUnknownError
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import STAGING, Manifest, transaction_file
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.versions import manifests
from lancehouse.paging import page

logger = logging.getLogger(__name__)

Line = tuple[TableId, str | None]
"""A branch of a table, None for the main one."""


class Transaction(TableOperations):
    """A namespace in which every commit is staged, until all of them are made at once.

    It reads its own writes: what was staged is what the next operation on that table sees. Every operation on rows,
    columns and indices works, and so does pylance: `lance.dataset(namespace_client=tx, table_id=…)`. What Lance makes
    no commit of, such as a tag, is refused.
    """

    def __init__(self, namespace: LanceNamespace) -> None:
        if not isinstance(namespace, ManagedCommits):
            raise UnsupportedOperationError(
                f"{type(namespace).__name__} has no transactions over several tables; the `iceberg` client has"
            )
        self._catalog = namespace
        self._id = str(uuid4())
        self._lines: dict[Line, list[Staged]] = {}
        self._is_open = True

    def namespace_id(self) -> str:
        """A name for this transaction."""
        return f"transaction {self._id} of {self._catalog.namespace_id()}"

    # What it is for

    def append(self, id: Sequence[str], rows: pa.Table) -> None:
        """Stage more rows of a table, or its first."""
        self._insert(TableRef.of(self, id), rows, "Append")

    def overwrite(self, id: Sequence[str], rows: pa.Table) -> None:
        """Stage rows in the place of all others of a table."""
        self._insert(TableRef.of(self, id), rows, "Overwrite")

    def delete(self, id: Sequence[str], where: str) -> None:
        """Stage the removal of the rows that an SQL expression names."""
        with TableRef.of(self, id).opened() as dataset:
            dataset.delete(where)

    def commit(self) -> None:
        """Make everything visible.

        Raises:
            ConcurrentModificationError: a table has moved on since it was read here; nothing was changed, and nothing
                is left of what was staged. Begin again.
            CommitStateUnknownError: the catalog could not be asked what became of it; what was staged stays.
        """
        self._require_open()
        staged = [each for line in self._lines.values() for each in line]
        self._is_open = False
        if not staged:
            return
        try:
            self._catalog.offer(staged)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError as error:
            self._clear_after(error)
            raise
        try:
            self._catalog.complete(staged)
        except LanceNamespaceError as error:  # it is made all the same
            logger.warning("the next reader puts the manifests of %s in their place: %s", self.namespace_id(), error)

    def rollback(self) -> None:
        """Leave every table as it was, and remove what was staged."""
        self._require_open()
        self._is_open = False
        self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._is_open:
            return
        if error is None:
            self.commit()
            return
        self._is_open = False
        self._clear_after(error)

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError("the transaction is over: begin another one")

    # What could not be undone

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:  # noqa: ARG002
        """Refused."""
        raise _at_once("a tag")

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:  # noqa: ARG002
        """Refused."""
        raise _at_once("a tag")

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:  # noqa: ARG002
        """Refused."""
        raise _at_once("a tag")

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:  # noqa: ARG002
        """Refused."""
        raise _at_once("a branch")

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:  # noqa: ARG002
        """Refused."""
        raise _at_once("a branch")

    def batch_delete_table_versions(
        self,
        request: BatchDeleteTableVersionsRequest,  # noqa: ARG002
    ) -> BatchDeleteTableVersionsResponse:
        """Refused."""
        raise _at_once("the removal of versions")

    # What Lance asks of a namespace

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """As the catalog has it.

        Raises:
            InvalidInputError: its versions are not managed by the catalog.
            UnsupportedOperationError: the server has no transactions.
        """
        self._require_open()
        table = self._catalog.table_id(request.id)
        self._catalog.require_transactions(table)
        return self._catalog.describe_table(request)

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """As the catalog has them, but for what is staged."""
        staged = {each.manifest.version: self._described(each) for each in self._staged(request.id, request.branch)}
        if not staged:
            return self._catalog.list_table_versions(request)
        everything = ListTableVersionsRequest(id=request.id, branch=request.branch)
        told = self._catalog.list_table_versions(everything).versions
        known = {each.version: each for each in told if each.version < min(staged)}
        found = page({**known, **staged}, request.limit, request.page_token, descending=bool(request.descending))
        return ListTableVersionsResponse(versions=list(found.items.values()), page_token=found.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """As the catalog has it, or as it is staged."""
        for each in reversed(self._staged(request.id, request.branch)):
            if request.version in (None, each.manifest.version):
                return DescribeTableVersionResponse(version=self._described(each))
        return self._catalog.describe_table_version(request)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Keep a version aside."""
        self._require_open()
        before = self._staged(request.id, request.branch)
        if before and request.version != before[-1].manifest.version + 1:
            raise ConcurrentModificationError(f"{before[-1].table} has moved on since it was read here: begin again")
        staged = self._catalog.staged(request, keep_in=f"{STAGING}/{self._id}")
        self._lines.setdefault((staged.table, staged.branch), []).append(staged)
        return CreateTableVersionResponse(version=self._described(staged), transaction_id=staged.manifest.transaction)

    def _staged(self, id: Sequence[str] | None, branch: str | None) -> list[Staged]:
        return self._lines.get((self._catalog.table_id(id), branch_of(branch)), [])

    @staticmethod
    def _described(staged: Staged) -> TableVersion:
        version = staged.described()
        version.manifest_path = f"{staged.root}/{staged.staged}"
        return version

    def _clear_after(self, error: BaseException) -> None:
        """Remove what was staged; a failure to do so is noted on the error that is already on its way."""
        try:
            self._clear()
        except LanceNamespaceError as left:
            error.add_note(f"and what the transaction had staged could not be removed: {left}")

    def _clear(self) -> None:
        """Remove the files that only what was staged needs."""
        for (table, branch), line in self._lines.items():
            files = self._catalog.files(table)
            place, options, first = files.location, files.storage_options, line[0].manifest.version
            before = manifests(TableRef(place, options, branch=branch)).get(first - 1)
            kept = Manifest.parse(files.read(before)).files(place, options) if before else set()
            for each in line:
                needed = each.manifest.files(place, options)
                if each.manifest.operation in (None, "Restore"):  # it may need what an old version needs
                    kept |= needed - {transaction_file(each.manifest)}
                if before or first == 1:  # else it is not known what older versions need
                    for file in needed - kept:
                        files.discard(file)
                files.discard(each.staged)


def _at_once(what: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"{what} is no commit of Lance, and no part of a transaction: do it before or after"
    )


@contextmanager
def transaction(namespace: LanceNamespace) -> Iterator[Transaction]:
    """Change several tables whose versions an Iceberg catalog manages, all or none.

    Leaving the block commits; an exception rolls everything back.

        with lancehouse.transaction(ns) as tx:
            tx.append(["wh", "db", "documents"], rows)
            tx.delete(["wh", "db", "queue"], "id < 100")

    Raises:
        UnsupportedOperationError: the client or its server has no such thing; nothing was written.
    """
    with Transaction(namespace) as begun:
        yield begun
