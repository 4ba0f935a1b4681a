"""Commit versions through an Iceberg catalog, by compare-and-swap on a branch of the table's entry.

Lance stages the manifest of a new version; the catalog accepts it, or has accepted another one before. docs/commits.md
describes the protocol and its points of failure.
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
"""Endpoint, as a server announces it, that commits to several tables at once."""
ATTEMPTS = 10
"""Number of attempts of a commit that the catalog refuses although the branch has not moved."""
REFUSALS = 100
"""Number of refused commits, and of commits in doubt, that a client remembers."""


class _OutOfDateError(ConcurrentModificationError):
    """The catalog refused a commit although no branch has moved: something else in the table's entry has changed."""


class ManagedCommits(ManagedVersions):
    """Operations that create versions of tables."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._transactional: set[str] = set()
        self._refusals: BoundedCache[tuple[TableId, int], tuple[int, LanceNamespaceError]] = BoundedCache(REFUSALS)
        self._doubtful_commits: BoundedCache[tuple[TableId, int], int] = BoundedCache(REFUSALS)
        # A logical clock that orders refusals, commits in doubt, and the marks that callers take before a write.
        self._ticks = count(1)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Commit a manifest that Lance has staged as the next version. Sending the same request again is safe.

        Raises:
            ConcurrentModificationError: another version was accepted; the staged manifest was removed.
            CommitStateUnknownError: the catalog could not be asked what became of the commit; the staged manifest
                stays.
        """
        version = self.read_staged_version(request)
        self.commit_versions([version])
        return version.to_response()

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Commit staged versions of several tables, all or none."""
        versions = [self.read_staged_version(entry) for entry in request.entries]
        self.commit_versions(versions)
        return BatchCreateTableVersionsResponse(versions=[version.to_table_version() for version in versions])

    def batch_commit_tables(self, request: BatchCommitTablesRequest) -> BatchCommitTablesResponse:
        """Execute a batch of operations, all or none.

        Iceberg can commit versions of several tables atomically, nothing else: an operation that declares or
        deregisters a table, or deletes versions, must be alone in its batch.
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
        """Read and check the staged manifest that a request names.

        Args:
            request: the request as pylance sends it.
            keep_in: folder below the table's location to move the manifest to until it is accepted; None leaves it in
                place.

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
        """Commit staged versions of one table or several, all or none; then publish their manifests."""
        self.request_commit(versions)
        self.publish_manifests(versions)

    def request_commit(self, versions: Sequence[StagedVersion]) -> None:
        """Ask the catalog to accept staged versions of one table or several, all or none, without publishing them.

        Raises:
            ConcurrentModificationError: a table has moved on; the staged manifests were removed.
            CommitStateUnknownError: the catalog could not be asked what became of the commit; the staged manifests
                stay.
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
        """Publish the manifests of versions that the catalog has accepted.

        The versions are committed already. If the store is full or unavailable, this step is left to the next reader
        and only logged: the writer must not take it for a failed commit and repeat it.

        Raises:
            InvalidTableStateError: a writer that went past the catalog has put its own manifest there.
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
        """Return the store of a version's manifest: the one that it was read from, so that no request is needed."""
        return version.manifest_store or self.manifest_store(version.table)

    def _commit_with_retries(self, versions: Sequence[StagedVersion]) -> None:
        tables = list(dict.fromkeys(version.table for version in versions))
        # A manifest at the final path means a repeated request (pylance or a user sent it again), a lost race, or a
        # writer that went past the catalog. The catalog's snapshots tell which.
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
                # The branch has not moved, but something else in the entry has, such as another branch: load it again.
                if attempt == ATTEMPTS - 1:
                    raise ConcurrentModificationError(str(error)) from error
            except InvalidInputError:
                # The cached head may be out of date (sequence numbers, schemas), which makes the request invalid.
                if not was_cached:
                    raise
            self._forget_heads(tables)

    def _check_existing_manifests(self, versions: Sequence[StagedVersion]) -> None:
        """Find out whose manifests are at the final paths; return if they are those of these versions.

        Raises:
            ConcurrentModificationError: other versions were accepted under these numbers.
            InvalidTableStateError: the catalog never accepted them: a writer went past the catalog.
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
            # A conflict although the branch is still at the parent: the server refused because of something else.
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
        """Check that a transaction was made for all tables, because some servers commit table after table.

        Does nothing but log if the server cannot be asked.

        Raises:
            ConcurrentModificationError: other versions were accepted before, and the server did not notice.
            CommitStateUnknownError: it was made for some of the tables, or for none although no other commit was made.
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
        """Send changes to the server: UpdateTable for one table, CommitTransaction for several."""
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
        """Check that the server can commit to several tables at once.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        self._cached_head(table)  # fills `_resolved_paths` for the warehouse
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
        """Send an empty transaction to a server that announces no endpoints, to see whether it has the route."""
        nothing = CommitTransaction(table_changes=[])
        try:
            self._rest.post(f"{at.base_path}/transactions/commit", nothing, about=catalog, is_done=lambda: True)
        except LanceNamespaceError as error:
            if is_no_route(error):
                raise UnsupportedOperationError(f"{words}: {error}") from error

    def _is_committed(self, versions: Sequence[StagedVersion]) -> bool | None:
        """Return whether the catalog has accepted these versions: True; False if it has others; None if neither so far.

        Raises:
            InvalidTableStateError: they follow versions that the catalog never accepted.
            CommitStateUnknownError: it has accepted the versions of one table and not those of another.
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
        """Return what `_is_committed` does, for versions of one branch from `first` to `last`."""
        head = self._find_managed_head(first.table, all_snapshots=False)
        # The short response contains only the snapshots that refs name: once the branch has moved beyond these
        # versions, whether they were accepted shows only in the full list.
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
        """Remove the staged manifests of a refused commit, and remember the reason, which pylance does not pass on."""
        for version in versions:
            self._remember_refusal(version.table, version.manifest.version, error)
            try:
                self._manifest_store_of(version).discard(version.staged_path)
            except LanceNamespaceError as left:
                logger.warning("%s: the staged manifest %s stays: %s", version.table, version.staged_path, left)

    def _remember_refusal(self, table: TableId, version: int, error: LanceNamespaceError) -> None:
        self._refusals.put((table, version), (next(self._ticks), error))

    def commit_mark(self) -> int:
        """Return a new tick of this client's commits, for the argument `since` of `commit_refusal`."""
        return next(self._ticks)

    def commit_refusal(self, id: Sequence[str], version: int, since: int = 0) -> LanceNamespaceError | None:
        """Return why a version was refused, for users of pylance, which reports every refusal as an unknown result.

        Args:
            id: of the table.
            version: the number in pylance's error message.
            since: what `commit_mark` returned before the write; earlier commits are ignored.

        Returns:
            The error; None if no commit of this version was refused, or if one is in doubt and may have been made.
        """
        key = (self._parse_table_id(id), version)
        refused_at, error = self._refusals.get(key) or (0, None)
        return None if refused_at < since or (self._doubtful_commits.get(key) or 0) > since else error
