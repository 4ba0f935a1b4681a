"""Commits that an Iceberg catalog arbitrates, by compare-and-swap on a ref of the table's entry.

Lance stages the manifest of a new version; the catalog accepts it, or another one that was faster. docs/commits.md
draws the protocol and its points of failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
    BatchDeleteTableVersionsRequest,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeclareTableRequest,
    DeregisterTableRequest,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.commit_table_operation import CommitTableOperation
from lance_namespace_urllib3_client.models.commit_table_result import CommitTableResult
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry

from lancehouse.clients.recent import Recent
from lancehouse.clients.snapshots import STAGED, Staged, change
from lancehouse.clients.versions import ManagedVersions, branch_of, stray
from lancehouse.clients.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError, is_no_route
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.manifests import Manifest, Manifests, staged_file, transaction_file
from lancehouse.wire.iceberg import CommitTransaction, TableChange

logger = logging.getLogger(__name__)

TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"
ATTEMPTS = 10
"""How often a commit is sent again because the table has changed in a way that does not concern it."""
REFUSALS = 100
"""How many refusals a client remembers."""


class _OutOfDateError(ConcurrentModificationError):
    """The catalog refused a commit though no branch has moved: something else of the table has."""


class ManagedCommits(ManagedVersions):
    """The operations that make versions."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._transactional: set[str] = set()
        self._refusals: Recent[tuple[TableId, int], tuple[int, LanceNamespaceError]] = Recent(REFUSALS)
        self._in_doubt: Recent[tuple[TableId, int], int] = Recent(REFUSALS)
        self._ticks = count(1)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Have the catalog accept a manifest that Lance has staged as the next version.

        Sending the same request again does no harm.

        Raises:
            ConcurrentModificationError: another version was accepted; what was staged is gone.
            CommitStateUnknownError: the catalog could not be asked what became of it; what was staged stays.
        """
        version = self.staged(request)
        self.accept([version])
        return version.response()

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Have the catalog accept versions of several tables, all or none."""
        versions = [self.staged(entry) for entry in request.entries]
        self.accept(versions)
        return BatchCreateTableVersionsResponse(versions=[each.described() for each in versions])

    def batch_commit_tables(self, request: BatchCommitTablesRequest) -> BatchCommitTablesResponse:
        """Do several operations, all or none.

        Only the making of versions is all or none with Iceberg: a batch that declares or deregisters tables, or deletes
        versions, holds nothing else.
        """
        if any(sum(each is not None for _, each in operation) != 1 for operation in request.operations):
            raise InvalidInputError("each operation of a batch names one thing to do")
        match request.operations:
            case [CommitTableOperation(declare_table=DeclareTableRequest() as declare)]:
                result = CommitTableResult(declare_table=self.declare_table(declare))
            case [CommitTableOperation(deregister_table=DeregisterTableRequest() as deregister)]:
                result = CommitTableResult(deregister_table=self.deregister_table(deregister))
            case [CommitTableOperation(delete_table_versions=BatchDeleteTableVersionsRequest() as delete)]:
                result = CommitTableResult(delete_table_versions=self.batch_delete_table_versions(delete))
            case operations:
                return BatchCommitTablesResponse(results=self._commit_versions(operations))
        return BatchCommitTablesResponse(results=[result])

    def _commit_versions(self, operations: Sequence[CommitTableOperation]) -> list[CommitTableResult]:
        requests = [each.create_table_version for each in operations if each.create_table_version is not None]
        if len(requests) < len(operations):
            raise UnsupportedOperationError(
                "an Iceberg catalog makes versions of several tables at once, but declares tables, deregisters them "
                "and deletes versions one by one: send each of these on its own"
            )
        versions = [self.staged(each) for each in requests]
        self.accept(versions)
        return [CommitTableResult(create_table_version=each.response()) for each in versions]

    def staged(
        self, request: CreateTableVersionRequest | CreateTableVersionEntry, *, keep_in: str | None = None
    ) -> Staged:
        """What a request says was staged, read and checked.

        Args:
            request: as pylance makes it.
            keep_in: a folder below the table's location to keep the manifest in until it is accepted.

        Raises:
            InvalidInputError: there is no such manifest, or it holds another version.
        """
        table = self.table_id(request.id)
        try:
            return self._read_staged(table, request, keep_in)
        except LanceNamespaceError as error:
            # The catalog was not asked yet, so this is a definite refusal as well.
            self._remember_refusal(table, request.version, error)
            raise

    def _read_staged(
        self, table: TableId, request: CreateTableVersionRequest | CreateTableVersionEntry, keep_in: str | None
    ) -> Staged:
        branch, files = branch_of(request.branch), self.files(table)
        root, staged, final = staged_file(request.manifest_path, branch, request.version)
        data = files.find(staged) or files.find(final)
        if data is None:
            raise InvalidInputError(f"{table}: there is no manifest at {request.manifest_path}")
        manifest = Manifest.parse(data)
        if manifest.version != request.version:
            raise InvalidInputError(f"{table}: {staged} holds version {manifest.version}, not {request.version}")
        if manifest.operation is None and (made := files.find(transaction_file(manifest))) is not None:
            manifest = manifest.made_by(made)
        if keep_in is not None:
            files.move(staged, f"{keep_in}/{final}")
            staged = f"{keep_in}/{final}"
        return Staged(table, branch, manifest, root, staged, final, len(data), request.e_tag, request.metadata, files)

    def accept(self, versions: Sequence[Staged]) -> None:
        """Have the catalog accept staged versions, of one table or of several, all or none; then put them in place."""
        self.offer(versions)
        self.complete(versions)

    def offer(self, versions: Sequence[Staged]) -> None:
        """Have the catalog accept staged versions, of one table or of several, all or none.

        Raises:
            ConcurrentModificationError: a table has moved on; what was staged is gone.
            CommitStateUnknownError: the catalog could not be asked what became of it; what was staged stays.
        """
        if not versions:
            raise InvalidInputError("there is nothing to commit")
        if len({each.table.namespace.catalog for each in versions}) > 1:
            raise InvalidInputError(
                "a commit stays in one warehouse: " + ", ".join(str(each.table) for each in versions)
            )
        for each in versions:
            self._refusals.forget((each.table, each.manifest.version))
        try:
            self._offer(versions)
        except CommitStateUnknownError:
            for each in versions:
                self._in_doubt.put((each.table, each.manifest.version), next(self._ticks))
            raise
        except LanceNamespaceError as error:
            self._refused(versions, error)
            raise

    def complete(self, versions: Sequence[Staged]) -> None:
        """Put versions that the catalog has accepted in their place.

        They are committed already: a store that is full or does not answer leaves this step to the next reader, and
        the writer must not take it for a failed commit and repeat it.

        Raises:
            InvalidTableStateError: another writer put a manifest of its own there, past the catalog.
        """
        for each in versions:
            try:
                self._finish(self._files_of(each), each.staged, each.final)
            except InvalidTableStateError:
                raise
            except LanceNamespaceError as error:
                logger.warning(
                    "%s: version %d is committed; the next reader puts its manifest in place, which failed here: %s",
                    each.table,
                    each.manifest.version,
                    error,
                )

    def _files_of(self, version: Staged) -> Manifests:
        """Where a version lies: known since it was read, so that nobody need be asked after the catalog's yes."""
        return version.files or self.files(version.table)

    def _offer(self, versions: Sequence[Staged]) -> None:
        tables = list(dict.fromkeys(each.table for each in versions))
        if present := [each for each in versions if self._files_of(each).exists(each.final)]:
            self._check_place(present)
            if len(present) == len(versions):
                return
            raise ConcurrentModificationError(
                f"{present[0].table}: its version was accepted before, without the others"
            )
        for attempt in range(ATTEMPTS):
            was_known = attempt < ATTEMPTS - 1 and all(table in self._heads for table in tables)
            try:
                self._send(tables, versions)
                return
            except _OutOfDateError as error:
                # Nobody has moved the branch; something else of the table has, such as another branch.
                if attempt == ATTEMPTS - 1:
                    raise ConcurrentModificationError(str(error)) from error
            except InvalidInputError:
                # What this client remembers of a table may be out of date: its sequence numbers, its schemas.
                if not was_known:
                    raise
            self._forget(tables)

    def _check_place(self, versions: Sequence[Staged]) -> None:
        """Manifests lie where accepted ones would: these versions were accepted before, or others were.

        Raises:
            ConcurrentModificationError: others.
            InvalidTableStateError: they were never accepted: a writer went past the catalog.
        """
        for each in versions:
            landed = self._landed([each])
            if landed is None:
                raise stray(each.table, each.manifest.version)
            if not landed:
                raise ConcurrentModificationError(f"{each.table}: version {each.manifest.version} is another writer's")

    def _send(self, tables: Sequence[TableId], versions: Sequence[Staged]) -> None:
        heads = [self._known(table) for table in tables]
        changes = [
            change(table, head, [each for each in versions if each.table == table])
            for table, head in zip(tables, heads, strict=True)
        ]
        looks: list[bool | None] = []

        def landed() -> bool | None:
            looks.append(self._landed(versions))
            return looks[-1]

        try:
            self._commit(tables, changes, landed)
        except LanceNamespaceError as error:
            self._forget(tables)
            if isinstance(error, ConcurrentModificationError) and looks[-1:] == [None]:
                raise _OutOfDateError(str(error)) from error
            raise
        if len(tables) > 1:
            self._check_whole(versions)
        for table, head, made in zip(tables, heads, changes, strict=True):
            if (now := head.after(made)) is not None:
                self._heads.put(table, now)
            else:
                self._heads.forget(table)

    def _check_whole(self, versions: Sequence[Staged]) -> None:
        """Some servers commit table after table: see that a transaction was made for all, where that can be seen.

        Raises:
            ConcurrentModificationError: somebody else was faster with all of them, and the server did not notice.
            CommitStateUnknownError: it was made for some of them, or for none though nobody else was there.
        """
        try:
            landed = self._landed(versions)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError as error:
            logger.warning("the server said yes to a transaction, and cannot be asked again: %s", error)
            return
        if landed is None:
            raise CommitStateUnknownError("the server said yes to a transaction, and shows none of it")
        if not landed:
            tables = ", ".join(dict.fromkeys(str(each.table) for each in versions))
            raise ConcurrentModificationError(
                f"{tables}: the server said yes to a transaction, but other versions were accepted before"
            )

    def _commit(
        self, tables: Sequence[TableId], changes: Sequence[TableChange], landed: Callable[[], bool | None]
    ) -> None:
        """Change one table, or several at once."""
        catalog = tables[0].namespace.catalog
        if len(changes) > 1:
            self.require_transactions(tables[0])

        def commit(at: Warehouse) -> None:
            one = len(changes) == 1
            path = at.table(tables[0]) if one else f"{at.path}/transactions/commit"
            body = changes[0] if one else CommitTransaction(table_changes=list(changes))
            about = ", ".join(map(str, tables))
            self._rest.commit(path, body, about=about, landed=landed, on={404: TableNotFoundError})

        self._at(catalog, commit)

    def require_transactions(self, table: TableId) -> None:
        """Make sure that the server can change several tables at once.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        self._known(table)  # leads to the server's way of addressing
        catalog = table.namespace.catalog
        if catalog in self._transactional:
            return
        at = self._warehouses[catalog]
        words = f"the server of warehouse {catalog} has no call that changes several tables at once"
        if at.endpoints is None:
            self._try_transaction(at, catalog, words)
        elif TRANSACTIONS not in at.endpoints:
            raise UnsupportedOperationError(words)
        self._transactional.add(catalog)

    def _try_transaction(self, at: Warehouse, catalog: str, words: str) -> None:
        """A server that does not say what it can is asked to change nothing."""
        nothing = CommitTransaction(table_changes=[])
        try:
            self._rest.post(f"{at.path}/transactions/commit", nothing, about=catalog, done=lambda: True)
        except LanceNamespaceError as error:
            if is_no_route(error):
                raise UnsupportedOperationError(f"{words}: {error}") from error

    def _landed(self, versions: Sequence[Staged]) -> bool | None:
        """Whether the catalog has accepted these versions: True if so, False if others, None if neither so far.

        Raises:
            InvalidTableStateError: they come after versions that the catalog never accepted.
            CommitStateUnknownError: it has accepted those of one table and not of another.
        """
        lines: dict[tuple[TableId, str | None], list[Staged]] = {}
        for each in versions:
            lines.setdefault((each.table, each.branch), []).append(each)
        found = {line: self._is_accepted(staged[0], staged[-1]) for line, staged in lines.items()}
        if True in found.values() and not all(found.values()):
            made, others = (
                {str(table) for (table, _), each in found.items() if bool(each) is yes} for yes in (True, False)
            )
            raise CommitStateUnknownError(
                f"the server has made half of a transaction, which it should not: {', '.join(sorted(made))} without "
                f"{', '.join(sorted(others))}; read the tables again before repeating it"
            )
        return False if False in found.values() else None if None in found.values() else True

    def _is_accepted(self, first: Staged, last: Staged) -> bool | None:
        """The same of versions of one branch."""
        head = self._head(first.table, whole=False)
        if head is not None and (head.version(first.branch) or 0) > last.manifest.version:
            head = self._head(first.table, whole=True)
        if head is None:
            return False
        known = head.snapshots.get(last.snapshot_id)
        if known is not None:
            return known.summary.get(STAGED) == last.staged
        if first.branch is None and (head.ref(MAIN) or 0) < first.manifest.version - 1:
            raise stray(first.table, first.manifest.version - 1)
        return None if head.ref(first.ref) == head.before(first) else False

    def _refused(self, versions: Sequence[Staged], error: LanceNamespaceError) -> None:
        """Clear away what was staged for nothing, and remember why: pylance does not pass the reason on."""
        for each in versions:
            self._remember_refusal(each.table, each.manifest.version, error)
            try:
                self._files_of(each).discard(each.staged)
            except LanceNamespaceError as left:
                logger.warning("%s: the staged manifest %s stays: %s", each.table, each.staged, left)

    def _remember_refusal(self, table: TableId, version: int, error: LanceNamespaceError) -> None:
        self._refusals.put((table, version), (next(self._ticks), error))

    def commit_mark(self) -> int:
        """A moment, for `commit_refusal`."""
        return next(self._ticks)

    def commit_refusal(self, id: Sequence[str], version: int, since: int = 0) -> LanceNamespaceError | None:
        """Why a version was refused, for users of pylance, which calls every refusal an unknown result.

        Args:
            id: of the table.
            version: the number that pylance names.
            since: what `commit_mark` returned before the write, to leave out what became of earlier writes.

        Returns:
            None if nothing was refused, or if a commit of this version is in doubt, so that it may have been made.
        """
        key = (self._table(id), version)
        when, error = self._refusals.get(key) or (0, None)
        return None if when < since or (self._in_doubt.get(key) or 0) > since else error
