"""Versions that an Iceberg catalog manages: each is a snapshot of the table's entry, accepted by compare-and-swap.

Lance stages the manifest of a new version; the catalog accepts it, or another one that was faster; whoever sees that it
was accepted puts it in its final place. docs/commits.md draws the protocol and its points of failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

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
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.commit_table_operation import CommitTableOperation
from lance_namespace_urllib3_client.models.commit_table_result import CommitTableResult
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry

from lancehouse.clients import credentials
from lancehouse.clients.namespace import Entry, place
from lancehouse.clients.recent import Recent
from lancehouse.clients.snapshots import E_TAG, METADATA, SIZE, STAGED, Head, Staged, change
from lancehouse.clients.warehouses import VEND, Warehouse, WarehouseNamespace
from lancehouse.credentials import expires_soon
from lancehouse.errors import CommitStateUnknownError, is_no_route
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.lake.history import latest, snapshot_id, version_of_snapshot
from lancehouse.lake.manifests import (
    STAGING,
    Manifest,
    Manifests,
    before,
    folder_of,
    staged_file,
    transaction_file,
)
from lancehouse.lake.versions import manifests, root_path
from lancehouse.paging import page
from lancehouse.properties import IMPL, MANAGED_BY, STORAGE, managed_by, require_lance
from lancehouse.wire.iceberg import CommitTransaction, Snapshot, TableChange, VersionedTable

logger = logging.getLogger(__name__)

LEAST = "snapshots=refs"
"""Asks a server to leave out the snapshots that no branch or tag needs."""
TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"
REMEMBERED = 10_000
ATTEMPTS = 10
"""How often a commit is sent again because the table has changed in a way that does not concern it."""
REFUSALS = 100
"""How many tables and manifests, and how many refusals, are remembered."""


class _OutOfDateError(ConcurrentModificationError):
    """The catalog refused a commit though no branch has moved: something else of the table has."""


class ManagedVersions(WarehouseNamespace):
    """The operations on versions, by the catalog for tables with `managed_by=impl`, else as storage has them."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._heads: Recent[TableId, Head] = Recent(REMEMBERED)
        self._finished: Recent[tuple[str, str], None] = Recent(REMEMBERED)
        self._refusals: Recent[tuple[TableId, int], tuple[int, LanceNamespaceError]] = Recent(REFUSALS)
        self._in_doubt: Recent[tuple[TableId, int], int] = Recent(REFUSALS)
        self._ticks = count()

    def _manages(self, table: TableId, properties: Mapping[str, str]) -> bool:  # noqa: ARG002
        return managed_by(properties) == IMPL

    def _ref(self, table: TableId, entry: Entry, **at: Any) -> TableRef:
        """By its name, so that the catalog says which version it is at, and what is accepted is put in its place."""
        if managed_by(entry.properties) == IMPL:
            return TableRef.of(self, table.parts, **at)
        return super()._ref(table, entry, **at)

    # Reading

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """The versions, oldest first unless `descending`."""
        table, branch = self._table(request.id), branch_of(request.branch)
        only_latest = request.limit == 1 and bool(request.descending) and not request.page_token
        head = self._head(table, whole=not only_latest)
        if head is None:
            return super().list_table_versions(request)
        if only_latest:
            return ListTableVersionsResponse(versions=self._latest(table, head, branch))
        if branch and head.ref(branch) is None:
            return super().list_table_versions(request)  # from before the catalog took over, if there is one
        versions = self._versions(table, head, branch)
        found = page(versions, request.limit, request.page_token, descending=bool(request.descending))
        return ListTableVersionsResponse(versions=list(found.items.values()), page_token=found.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """One version, by default the latest."""
        table, branch, version = self._table(request.id), branch_of(request.branch), request.version
        head = self._head(table, whole=version is not None)
        if head is None:
            return super().describe_table_version(request)
        at = head.ref(branch or MAIN)
        if branch and at is None:
            raise TableBranchNotFoundError(f"{table} has no branch {branch}")
        if version is not None:
            at = snapshot_id(branch, version)
        found = head.snapshots.get(at) if at is not None else None
        if found is None and version is not None and version < min(head.versions(branch), default=0):
            return super().describe_table_version(request)  # from before the catalog took over
        if found is None or (version is not None and not self._is_kept(table, head, branch, found)):
            raise TableVersionNotFoundError(f"{table} has no version {version if version is not None else 'yet'}")
        return DescribeTableVersionResponse(version=self._completed(table, head, branch, found))

    def _latest(self, table: TableId, head: Head, branch: str | None) -> list[TableVersion]:
        """The latest version, if there is one.

        Raises:
            InvalidTableStateError: there is none, but storage has one: Lance would take it for the table's.
        """
        at = head.ref(branch or MAIN)
        if at is not None:
            return [self._completed(table, head, branch, head.snapshots[at])]
        if branch is None and (stored := latest(self._place(head))) is not None:
            again = self._head(table, whole=False)
            if again is None or again.ref(MAIN) is None:
                raise stray(table, stored)
            return self._latest(table, again, branch)
        return []

    def _head(self, table: TableId, *, whole: bool) -> Head | None:
        """The table as the catalog has it now; None if its versions are its storage's."""
        head = self._loaded(table, whole=whole)
        if managed_by(head.entry.properties) == IMPL:
            return self._heads.put(table, head)
        self._heads.forget(table)
        return None

    def _loaded(self, table: TableId, *, whole: bool) -> Head:
        loaded = self._at(
            table.namespace.catalog,
            lambda at: self._rest.get(
                at.table(table),
                VersionedTable,
                query="" if whole else LEAST,
                about=table,
                headers=VEND,
                on={404: TableNotFoundError},
            ),
        )
        properties = loaded.metadata.properties or {}
        require_lance(table, properties)
        location = loaded.metadata.location or ""
        vended = credentials.from_iceberg(location, loaded.config, loaded.storage_credentials)
        return Head(Entry(location, properties, vended), loaded)

    def _known(self, table: TableId) -> Head:
        """The table as it was known lately: what comes of it is checked by the catalog.

        Raises:
            InvalidInputError: its versions are not the catalog's.
        """
        head = self._heads.get(table)
        if head is not None and not expires_soon(head.entry.vended):
            return head
        head = self._head(table, whole=False)
        if head is None:
            raise InvalidInputError(
                f"{table}: its versions are managed by its storage ({MANAGED_BY}={STORAGE}); "
                f"`lancehouse table manage --by {IMPL}` lets the catalog manage them"
            )
        return head

    def _forget(self, tables: Iterable[TableId]) -> None:
        for table in tables:
            self._heads.forget(table)

    def _versions(self, table: TableId, head: Head, branch: str | None) -> dict[int, TableVersion]:
        """What the catalog has and was not cleaned up, and what storage had before the catalog took over."""
        told, stored = head.versions(branch), manifests(self._place(head, branch))
        oldest, newest = min(told, default=0), max(stored, default=0)
        versions = {
            version: _described(head, branch, _inherited(branch, version, file))
            for version, file in stored.items()
            if version < oldest
        }
        for version, snapshot in told.items():
            if version in stored:
                versions[version] = _described(head, branch, snapshot)
            elif version > newest:
                versions[version] = self._completed(table, head, branch, snapshot)
        return versions

    def _completed(self, table: TableId, head: Head, branch: str | None, snapshot: Snapshot) -> TableVersion:
        """A version that the catalog has accepted, once its manifest is in its final place."""
        if staged := snapshot.summary.get(STAGED):
            files = Manifests(place(table, head.entry), self._options(head.entry))
            self._finish(files, staged, _file(branch, snapshot))
        return _described(head, branch, snapshot)

    def _is_kept(self, table: TableId, head: Head, branch: str | None, snapshot: Snapshot) -> bool:
        """Whether storage still has a version of the catalog, in its place or on its way there."""
        files = Manifests(place(table, head.entry), self._options(head.entry))
        staged = snapshot.summary.get(STAGED)
        return files.exists(_file(branch, snapshot)) or (staged is not None and files.exists(staged))

    def _finish(self, files: Manifests, staged: str, final: str) -> None:
        """Put a manifest in its place, unless this client knows that it is there."""
        if (files.location, staged) in self._finished:
            return
        if staged.startswith(STAGING) and files.exists(before(staged)):  # a transaction may make several versions
            self._finish(files, before(staged), before(final))
        files.finish(staged, final)
        self._finished.put((files.location, staged), None)

    def files(self, table: TableId) -> Manifests:
        """Where the manifests of a table lie, and how to reach them."""
        entry = self._known(table).entry
        return Manifests(place(table, entry), self._options(entry))

    def _place(self, head: Head, branch: str | None = None) -> TableRef:
        return TableRef(head.entry.location, self._options(head.entry), branch=branch)

    # Committing

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
        table, branch = self.table_id(request.id), branch_of(request.branch)
        files = self.files(table)
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

    def table_id(self, id: Sequence[str] | None) -> TableId:
        """The table that a request names."""
        return self._table(id)

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
        """Put versions that the catalog has accepted in their place."""
        for each in versions:
            self._finish(each.files or self.files(each.table), each.staged, each.final)

    def _offer(self, versions: Sequence[Staged]) -> None:
        tables = list(dict.fromkeys(each.table for each in versions))
        if present := [each for each in versions if self.files(each.table).exists(each.final)]:
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
            CommitStateUnknownError: it was not.
        """
        try:
            landed = self._landed(versions)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError as error:
            logger.warning("the server said yes to a transaction, and cannot be asked again: %s", error)
            return
        if not landed:
            raise CommitStateUnknownError("the server said yes to a transaction, and shows none of it")

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
        at = self._warehouses[catalog]
        words = f"the server of warehouse {catalog} has no call that changes several tables at once"
        if at.endpoints is not None:
            if TRANSACTIONS not in at.endpoints:
                raise UnsupportedOperationError(words)
            return
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
        found = {str(line[0].table): self._is_accepted(line[0], line[-1]) for line in lines.values()}
        made = [table for table, accepted in found.items() if accepted]
        if made and len(made) < len(found):
            others = [table for table in found if table not in made]
            raise CommitStateUnknownError(
                f"the server has made half of a transaction, which it should not: {', '.join(made)} without "
                f"{', '.join(others)}; read the tables again before repeating it"
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
            self._refusals.put((each.table, each.manifest.version), (next(self._ticks), error))
            try:
                (each.files or self.files(each.table)).discard(each.staged)
            except LanceNamespaceError as left:
                logger.warning("%s: the staged manifest %s stays: %s", each.table, each.staged, left)

    def commit_mark(self) -> int:
        """A moment, for `commit_refusal`."""
        return next(self._ticks)

    def commit_refusal(self, id: Sequence[str], version: int, since: int) -> LanceNamespaceError | None:
        """Why the catalog refused a version since a moment; None if it may have accepted one of this number."""
        key = (self._table(id), version)
        when, error = self._refusals.get(key) or (-1, None)
        return None if when < since or (self._in_doubt.get(key) or -1) > since else error


def stray(table: TableId, version: int) -> InvalidTableStateError:
    """What is wrong with a table of which storage has a version that the catalog does not know."""
    return InvalidTableStateError(
        f"{table}: storage has a version {version} that the catalog never accepted: a writer went past the catalog; "
        "stop it, then `lancehouse table manage --by impl --adopt` accepts what is there"
    )


def _described(head: Head, branch: str | None, snapshot: Snapshot) -> TableVersion:
    version, summary = version_of_snapshot(branch, snapshot.snapshot_id), snapshot.summary
    assert version is not None
    told = {key.removeprefix(METADATA): value for key, value in summary.items() if key.startswith(METADATA)}
    return TableVersion(
        version=version,
        manifest_path=f"{root_path(head.entry.location)}/{_file(branch, snapshot)}",
        manifest_size=int(summary[SIZE]) if summary.get(SIZE, "").isdecimal() else None,
        e_tag=summary.get(E_TAG),
        timestamp_millis=snapshot.timestamp_ms or None,
        metadata=told or None,
    )


def _file(branch: str | None, snapshot: Snapshot) -> str:
    return f"{folder_of(branch)}/{snapshot.manifest_list.rpartition('/')[2]}"


def _inherited(branch: str | None, version: int, file: str) -> Snapshot:
    """A version from before the catalog took over."""
    return Snapshot(snapshot_id=snapshot_id(branch, version), timestamp_ms=0, manifest_list=file)


def branch_of(name: str | None) -> str | None:
    return None if name in (None, "", MAIN) else name
