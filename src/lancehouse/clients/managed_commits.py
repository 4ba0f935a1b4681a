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

from lancehouse.caches import BoundedCache
from lancehouse.clients.managed_versions import ManagedVersions, normalize_branch, unknown_version_error
from lancehouse.clients.snapshots import STAGED, StagedVersion, commit_request
from lancehouse.clients.warehouse_namespace import WarehousePaths
from lancehouse.errors import CommitStateUnknownError, is_no_route
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.manifests import Manifest, ManifestStore, parse_staged_path, transaction_path
from lancehouse.wire.iceberg import CommitTable, CommitTransaction

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
        self._refusals: BoundedCache[tuple[TableId, int], tuple[int, LanceNamespaceError]] = BoundedCache(REFUSALS)
        self._doubtful_commits: BoundedCache[tuple[TableId, int], int] = BoundedCache(REFUSALS)
        self._ticks = count(1)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Have the catalog accept a manifest that Lance has staged as the next version.

        Sending the same request again does no harm.

        Raises:
            ConcurrentModificationError: another version was accepted; what was staged is gone.
            CommitStateUnknownError: the catalog could not be asked what became of it; what was staged stays.
        """
        version = self.read_staged_version(request)
        self.commit_versions([version])
        return version.to_response()

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Have the catalog accept versions of several tables, all or none."""
        versions = [self.read_staged_version(entry) for entry in request.entries]
        self.commit_versions(versions)
        return BatchCreateTableVersionsResponse(versions=[version.to_table_version() for version in versions])

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
                return BatchCommitTablesResponse(results=self._commit_operations(operations))
        return BatchCommitTablesResponse(results=[result])

    def _commit_operations(self, operations: Sequence[CommitTableOperation]) -> list[CommitTableResult]:
        requests = [
            operation.create_table_version for operation in operations if operation.create_table_version is not None
        ]
        if len(requests) < len(operations):
            raise UnsupportedOperationError(
                "an Iceberg catalog makes versions of several tables at once, but declares tables, deregisters them "
                "and deletes versions one by one: send each of these on its own"
            )
        versions = [self.read_staged_version(each) for each in requests]
        self.commit_versions(versions)
        return [CommitTableResult(create_table_version=each.to_response()) for each in versions]

    def read_staged_version(
        self, request: CreateTableVersionRequest | CreateTableVersionEntry, *, keep_in: str | None = None
    ) -> StagedVersion:
        """What a request says was staged, read and checked.

        Args:
            request: as pylance makes it.
            keep_in: a folder below the table's location to keep the manifest in until it is accepted.

        Raises:
            InvalidInputError: there is no such manifest, or it holds another version.
        """
        table = self.table_id(request.id)
        try:
            return self._read_staged_manifest(table, request, keep_in)
        except LanceNamespaceError as error:
            # The catalog was not asked yet, so this is a definite refusal as well.
            self._remember_refusal(table, request.version, error)
            raise

    def _read_staged_manifest(
        self, table: TableId, request: CreateTableVersionRequest | CreateTableVersionEntry, keep_in: str | None
    ) -> StagedVersion:
        branch, files = normalize_branch(request.branch), self.manifest_store(table)
        root, staged, final = parse_staged_path(request.manifest_path, branch, request.version)
        data = files.find(staged) or files.find(final)
        if data is None:
            raise InvalidInputError(f"{table}: there is no manifest at {request.manifest_path}")
        manifest = Manifest.parse(data)
        if manifest.version != request.version:
            raise InvalidInputError(f"{table}: {staged} holds version {manifest.version}, not {request.version}")
        if manifest.operation is None and (transaction := files.find(transaction_path(manifest))) is not None:
            manifest = manifest.with_transaction(transaction)
        if keep_in is not None:
            files.move(staged, f"{keep_in}/{final}")
            staged = f"{keep_in}/{final}"
        return StagedVersion(
            table, branch, manifest, root, staged, final, len(data), request.e_tag, request.metadata, files
        )

    def commit_versions(self, versions: Sequence[StagedVersion]) -> None:
        """Have the catalog accept staged versions, of one table or of several, all or none; then put them in place."""
        self.request_commit(versions)
        self.publish_manifests(versions)

    def request_commit(self, versions: Sequence[StagedVersion]) -> None:
        """Have the catalog accept staged versions, of one table or of several, all or none.

        Raises:
            ConcurrentModificationError: a table has moved on; what was staged is gone.
            CommitStateUnknownError: the catalog could not be asked what became of it; what was staged stays.
        """
        if not versions:
            raise InvalidInputError("there is nothing to commit")
        if len({version.table.namespace.catalog for version in versions}) > 1:
            raise InvalidInputError(
                "a commit stays in one warehouse: " + ", ".join(str(version.table) for version in versions)
            )
        for version in versions:
            self._refusals.forget((version.table, version.manifest.version))
        try:
            self._commit_with_retries(versions)
        except CommitStateUnknownError:
            for version in versions:
                self._doubtful_commits.put((version.table, version.manifest.version), next(self._ticks))
            raise
        except LanceNamespaceError as error:
            self._discard_refused(versions, error)
            raise

    def publish_manifests(self, versions: Sequence[StagedVersion]) -> None:
        """Put versions that the catalog has accepted in their place.

        They are committed already: a store that is full or does not answer leaves this step to the next reader, and
        the writer must not take it for a failed commit and repeat it.

        Raises:
            InvalidTableStateError: another writer put a manifest of its own there, past the catalog.
        """
        for version in versions:
            try:
                self._publish_manifest(self._manifest_store_of(version), version.staged_path, version.final_path)
            except InvalidTableStateError:
                raise
            except LanceNamespaceError as error:
                logger.warning(
                    "%s: version %d is committed; the next reader puts its manifest in place, which failed here: %s",
                    version.table,
                    version.manifest.version,
                    error,
                )

    def _manifest_store_of(self, version: StagedVersion) -> ManifestStore:
        """Where a version lies: known since it was read, so that nobody need be asked after the catalog's yes."""
        return version.manifest_store or self.manifest_store(version.table)

    def _commit_with_retries(self, versions: Sequence[StagedVersion]) -> None:
        tables = list(dict.fromkeys(version.table for version in versions))
        if present := [version for version in versions if self._manifest_store_of(version).exists(version.final_path)]:
            self._check_existing_manifests(present)
            if len(present) == len(versions):
                return
            raise ConcurrentModificationError(
                f"{present[0].table}: its version was accepted before, without the others"
            )
        for attempt in range(ATTEMPTS):
            was_cached = attempt < ATTEMPTS - 1 and all(table in self._heads for table in tables)
            try:
                self._commit_once(tables, versions)
                return
            except _OutOfDateError as error:
                # Nobody has moved the branch; something else of the table has, such as another branch.
                if attempt == ATTEMPTS - 1:
                    raise ConcurrentModificationError(str(error)) from error
            except InvalidInputError:
                # What this client remembers of a table may be out of date: its sequence numbers, its schemas.
                if not was_cached:
                    raise
            self._forget_heads(tables)

    def _check_existing_manifests(self, versions: Sequence[StagedVersion]) -> None:
        """Manifests lie where accepted ones would: these versions were accepted before, or others were.

        Raises:
            ConcurrentModificationError: others.
            InvalidTableStateError: they were never accepted: a writer went past the catalog.
        """
        for version in versions:
            is_committed = self._is_committed([version])
            if is_committed is None:
                raise unknown_version_error(version.table, version.manifest.version)
            if not is_committed:
                raise ConcurrentModificationError(
                    f"{version.table}: version {version.manifest.version} is another writer's"
                )

    def _commit_once(self, tables: Sequence[TableId], versions: Sequence[StagedVersion]) -> None:
        heads = [self._cached_head(table) for table in tables]
        changes = [
            commit_request(table, head, [version for version in versions if version.table == table])
            for table, head in zip(tables, heads, strict=True)
        ]
        answers: list[bool | None] = []

        def is_committed() -> bool | None:
            answers.append(self._is_committed(versions))
            return answers[-1]

        try:
            self._send_commit(tables, changes, is_committed)
        except LanceNamespaceError as error:
            self._forget_heads(tables)
            if isinstance(error, ConcurrentModificationError) and answers[-1:] == [None]:
                raise _OutOfDateError(str(error)) from error
            raise
        if len(tables) > 1:
            self._check_all_committed(versions)
        for table, head, change_request in zip(tables, heads, changes, strict=True):
            if (new_head := head.apply_change(change_request)) is not None:
                self._heads.put(table, new_head)
            else:
                self._heads.forget(table)

    def _check_all_committed(self, versions: Sequence[StagedVersion]) -> None:
        """Some servers commit table after table: see that a transaction was made for all, where that can be seen.

        Raises:
            ConcurrentModificationError: somebody else was faster with all of them, and the server did not notice.
            CommitStateUnknownError: it was made for some of them, or for none though nobody else was there.
        """
        try:
            is_committed = self._is_committed(versions)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError as error:
            logger.warning("the server said yes to a transaction, and cannot be asked again: %s", error)
            return
        if is_committed is None:
            raise CommitStateUnknownError("the server said yes to a transaction, and shows none of it")
        if not is_committed:
            tables = ", ".join(dict.fromkeys(str(version.table) for version in versions))
            raise ConcurrentModificationError(
                f"{tables}: the server said yes to a transaction, but other versions were accepted before"
            )

    def _send_commit(
        self, tables: Sequence[TableId], changes: Sequence[CommitTable], is_committed: Callable[[], bool | None]
    ) -> None:
        """Change one table, or several at once."""
        catalog = tables[0].namespace.catalog
        if len(changes) > 1:
            self.require_transactions(tables[0])

        def commit(at: WarehousePaths) -> None:
            is_single = len(changes) == 1
            path = at.table_path(tables[0]) if is_single else f"{at.base_path}/transactions/commit"
            body = changes[0] if is_single else CommitTransaction(table_changes=list(changes))
            about = ", ".join(map(str, tables))
            self._rest.commit(path, body, about=about, is_committed=is_committed, on={404: TableNotFoundError})

        self._call_warehouse(catalog, commit)

    def require_transactions(self, table: TableId) -> None:
        """Make sure that the server can change several tables at once.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        self._cached_head(table)  # leads to the server's way of addressing
        catalog = table.namespace.catalog
        if catalog in self._transactional:
            return
        at = self._resolved_paths[catalog]
        words = f"the server of warehouse {catalog} has no call that changes several tables at once"
        if at.endpoints is None:
            self._probe_transactions(at, catalog, words)
        elif TRANSACTIONS not in at.endpoints:
            raise UnsupportedOperationError(words)
        self._transactional.add(catalog)

    def _probe_transactions(self, at: WarehousePaths, catalog: str, words: str) -> None:
        """A server that does not say what it can is asked to change nothing."""
        nothing = CommitTransaction(table_changes=[])
        try:
            self._rest.post(f"{at.base_path}/transactions/commit", nothing, about=catalog, is_done=lambda: True)
        except LanceNamespaceError as error:
            if is_no_route(error):
                raise UnsupportedOperationError(f"{words}: {error}") from error

    def _is_committed(self, versions: Sequence[StagedVersion]) -> bool | None:
        """Whether the catalog has accepted these versions: True if so, False if others, None if neither so far.

        Raises:
            InvalidTableStateError: they come after versions that the catalog never accepted.
            CommitStateUnknownError: it has accepted those of one table and not of another.
        """
        branches: dict[tuple[TableId, str | None], list[StagedVersion]] = {}
        for each in versions:
            branches.setdefault((each.table, each.branch), []).append(each)
        states = {line: self._is_branch_committed(staged[0], staged[-1]) for line, staged in branches.items()}
        if True in states.values() and not all(states.values()):
            committed, others = (
                {str(table) for (table, _), each in states.items() if bool(each) is yes} for yes in (True, False)
            )
            raise CommitStateUnknownError(
                "the server has made half of a transaction, which it should not: "
                f"{', '.join(sorted(committed))} without "
                f"{', '.join(sorted(others))}; read the tables again before repeating it"
            )
        return False if False in states.values() else None if None in states.values() else True

    def _is_branch_committed(self, first: StagedVersion, last: StagedVersion) -> bool | None:
        """The same of versions of one branch."""
        head = self._find_managed_head(first.table, all_snapshots=False)
        if head is not None and (head.latest_version(first.branch) or 0) > last.manifest.version:
            head = self._find_managed_head(first.table, all_snapshots=True)
        if head is None:
            return False
        snapshot = head.snapshots.get(last.snapshot_id)
        if snapshot is not None:
            return snapshot.summary.get(STAGED) == last.staged_path
        if first.branch is None and (head.find_ref(MAIN) or 0) < first.manifest.version - 1:
            raise unknown_version_error(first.table, first.manifest.version - 1)
        return None if head.find_ref(first.ref_name) == head.parent_snapshot_id(first) else False

    def _discard_refused(self, versions: Sequence[StagedVersion], error: LanceNamespaceError) -> None:
        """Clear away what was staged for nothing, and remember why: pylance does not pass the reason on."""
        for version in versions:
            self._remember_refusal(version.table, version.manifest.version, error)
            try:
                self._manifest_store_of(version).discard(version.staged_path)
            except LanceNamespaceError as left:
                logger.warning("%s: the staged manifest %s stays: %s", version.table, version.staged_path, left)

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
        key = (self._parse_table_id(id), version)
        refused_at, error = self._refusals.get(key) or (0, None)
        return None if refused_at < since or (self._doubtful_commits.get(key) or 0) > since else error
