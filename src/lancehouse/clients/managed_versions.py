"""Commit versions of tables through an Iceberg catalog: stage → commit → publish.

Lance stages the manifest of a new version; the catalog accepts it by compare-and-swap on a branch of the table's entry,
or has accepted another one before; then the manifest is moved to its final path. A version is a snapshot of the entry.
docs/commits.md describes the protocol and its points of failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from lance_namespace import CreateTableVersionRequest, CreateTableVersionResponse, TableVersion
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
)
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry

from lancehouse import locations
from lancehouse.caches import BoundedCache
from lancehouse.clients.catalog_namespace import Entry, StorageAccess, get_location
from lancehouse.credentials import expires_soon
from lancehouse.errors import CommitStateUnknownError
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, TableRef, manifest_folder, snapshot_id, version_of_snapshot
from lancehouse.lake.history import ICEBERG_OPERATION_NAMES
from lancehouse.lake.manifests import (
    STAGING,
    Manifest,
    ManifestStore,
    find_missed_conflict,
    parse_staged_path,
    previous_manifest,
    transaction_path,
)
from lancehouse.properties import IMPL, MANAGED_BY, PUBLISHED, STAGED, STORAGE, managed_by
from lancehouse.wire.iceberg import CommitTable, Snapshot, SnapshotRef, TableIdentifier, VersionedTable

if TYPE_CHECKING:
    from lancehouse.clients.iceberg import IcebergTables

logger = logging.getLogger(__name__)

Json = dict[str, Any]
VersionRequest = CreateTableVersionRequest | CreateTableVersionEntry

SIZE, E_TAG = "lance.manifest.size", "lance.manifest.e-tag"
"""Size of the manifest in bytes, and its entity tag."""
COLUMNS, TRANSACTION, VERSION, BRANCH = "lance.columns", "lance.transaction", "lance.version", "lance.branch"
"""Digest of the columns, uuid of Lance's transaction, version number, and branch unless it is main."""
OPERATION, METADATA = "lance.operation", "lance.metadata."
"""Lance's operation, and the prefix of metadata that a client gave. All of these are keys of a snapshot's summary."""

LAST_ADDED = -1
"""Schema id that stands for the schema added by the same request."""

CACHE_SIZE = 10_000
"""Number of tables, and of published manifests, that a client remembers."""
ATTEMPTS = 10
"""Number of attempts of a commit that the catalog refuses although the branch has not moved."""
REFUSALS = 100
"""Number of refused commits, and of commits in doubt, that a client remembers."""
LOOKED_S = 10.0
"""Seconds after a look at the final path of a version within which it is published by one write."""
SYNC_EVERY = 20
"""A commit whose version is a multiple of this checks whether versions were cleaned up or tags created in storage."""


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version whose manifest Lance has staged, for the catalog to accept."""

    table: TableId
    branch: str | None
    manifest: Manifest
    root: str
    """The table's location, as Lance writes it in the paths of manifests."""
    staged_path: str
    final_path: str
    """Paths below the table's location; `staged_path` is empty for a manifest that is at its final path already."""
    size: int
    e_tag: str | None = None
    metadata: Mapping[str, str] | None = None
    manifest_store: ManifestStore | None = field(default=None, repr=False, compare=False)
    """Store that holds the manifest."""
    totals: Mapping[str, str] = field(default_factory=dict)
    """Rows, files and bytes for the summary, so that a server need not open the manifest in an object store."""

    @property
    def ref_name(self) -> str:
        """Name of the branch in Iceberg."""
        return self.branch or MAIN

    @property
    def snapshot_id(self) -> int:
        """Snapshot id of the version in the catalog."""
        return snapshot_id(self.branch, self.manifest.version)

    def to_table_version(self) -> TableVersion:
        """Convert to the interface's model of a version.

        Its path is the final one, also before the manifest is there. If pylance were given the staged path, it would
        publish the manifest itself, leave the staged file behind, and log a warning each time the table is opened.
        """
        return TableVersion(
            version=self.manifest.version,
            manifest_path=f"{self.root}/{self.final_path}",
            manifest_size=self.size,
            e_tag=self.e_tag,
            metadata=dict(self.metadata or {}) or None,
        )

    def to_response(self) -> CreateTableVersionResponse:
        """Build the response to the request that staged the version."""
        return CreateTableVersionResponse(
            version=self.to_table_version(), transaction_id=self.manifest.transaction_uuid
        )


@dataclass(frozen=True, slots=True)
class TableHead:
    """A managed table as loaded from the catalog: its entry and the snapshots that the server returned."""

    entry: Entry
    table: VersionedTable
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options to access the table's storage."""

    @property
    def is_lance_aware(self) -> bool:
        """Whether the server knows Lance tables, and therefore returns no location of Iceberg metadata."""
        return self.table.metadata_location is None

    def is_published(self, branch: str | None, snapshot: Snapshot) -> bool:
        """Return whether the server knows that the manifest of a version is at its final path."""
        published = (self.table.config or {}).get(PUBLISHED)
        return branch is None and published is not None and published == str(snapshot.snapshot_id)

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """Snapshots by id."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}

    @property
    def branches(self) -> set[str]:
        """Names of all branches but main."""
        return {name for name, ref in self.table.metadata.refs.items() if ref.type == "branch" and name != MAIN}

    @property
    def timestamp_ms(self) -> int:
        """Time of the last change, in milliseconds.

        Iceberg refuses a snapshot that is older than the table's last update, and the clocks of writers differ: new
        snapshots get at least this timestamp.
        """
        metadata = self.table.metadata
        return max([metadata.last_updated_ms, *(snapshot.timestamp_ms for snapshot in metadata.snapshots)])

    def find_ref(self, name: str) -> int | None:
        """Return the snapshot id that a branch or tag refers to; None if there is no such ref."""
        ref = self.table.metadata.refs.get(name)
        return None if ref is None else ref.snapshot_id

    def latest_snapshot(self, branch: str | None) -> Snapshot | None:
        """Return the snapshot that a branch is at; None before its first version.

        Raises:
            InternalError: the response of the server lacks it.
        """
        if (head_id := self.find_ref(branch or MAIN)) is None:
            return None
        if (snapshot := self.snapshots.get(head_id)) is None:
            raise InternalError(
                f"the catalog's response lacks snapshot {head_id}, to which branch {branch or MAIN} of the table at "
                f"{self.entry.location} refers"
            )
        return snapshot

    def tag_ref_name(self, name: str) -> str:
        """Return the ref name of a Lance tag: in Iceberg, unlike in Lance, a tag cannot have the name of a branch."""
        return f"tag:{name}" if name == MAIN or name in self.branches else name

    def has_update(self, update: Json) -> bool:
        """Return whether the effect of an update is visible in this head."""
        match update:
            case {"action": "set-properties", "updates": new}:
                return bool(new.items() <= self.entry.properties.items())
            case {"action": "remove-properties", "removals": keys}:
                return not self.entry.properties.keys() & set(keys)
            case {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": target}:
                return bool(self.find_ref(name) == target)
            case {"action": "remove-snapshot-ref", "ref-name": name}:
                return self.find_ref(name) is None
            case {"action": "remove-snapshots", "snapshot-ids": ids}:
                return not self.snapshots.keys() & set(ids)
        return True

    def latest_version(self, branch: str | None) -> int | None:
        """Return the latest version of a branch; None if the catalog has none."""
        head_id = self.find_ref(branch or MAIN)
        return None if head_id is None else version_of_snapshot(branch, head_id)

    def snapshots_by_version(self, branch: str | None) -> dict[int, Snapshot]:
        """Return the snapshots of a branch by version number."""
        pairs = (
            (version_of_snapshot(branch, snapshot.snapshot_id), snapshot) for snapshot in self.table.metadata.snapshots
        )
        return {version: snapshot for version, snapshot in pairs if version is not None}

    def parent_snapshot_id(self, first: StagedVersion) -> int | None:
        """Return the snapshot that a branch must be at for a version to come next.

        None means that there must be no snapshot yet: the version is the first one of the table, or of a new branch.
        """
        parent_version = first.manifest.version - 1
        if first.branch is None:
            return parent_version or None
        return None if self.find_ref(first.branch) is None else snapshot_id(first.branch, parent_version)

    def apply_change(self, change: CommitTable) -> TableHead | None:
        """Return the head after a change that the server has made; None if only the server can tell."""
        metadata = self.table.metadata
        snapshots, refs, sequence = list(metadata.snapshots), dict(metadata.refs), metadata.last_sequence_number
        for update in change.updates:
            if update["action"] == "add-snapshot":
                snapshots.append(Snapshot.model_validate(update["snapshot"]))
                sequence = max(sequence, snapshots[-1].sequence_number)
            elif update["action"] == "set-snapshot-ref":
                refs[update["ref-name"]] = SnapshotRef(snapshot_id=update["snapshot-id"], type=update["type"])
            else:
                return None
        # As in the response for `snapshots=refs`: a cached head does not grow with each commit.
        referenced_ids = {ref.snapshot_id for ref in refs.values()}
        new_metadata = {
            "snapshots": [snapshot for snapshot in snapshots if snapshot.snapshot_id in referenced_ids],
            "refs": refs,
            "last_sequence_number": sequence,
        }
        return replace(self, table=self.table.model_copy(update={"metadata": metadata.model_copy(update=new_metadata)}))


class _OutOfDateError(ConcurrentModificationError):
    """The catalog refused a commit although no branch has moved: something else in the table's entry has changed."""


class ManagedVersions:
    """Versions of tables that the catalog manages: stage → commit → publish, and the heads of tables."""

    def __init__(self, tables: IcebergTables, access: StorageAccess) -> None:
        self._tables = tables
        self._access = access
        self.heads: BoundedCache[TableId, TableHead] = BoundedCache(CACHE_SIZE)
        self.after_publish: Callable[[TableId], None] = lambda _: None
        """Called for a table after every `SYNC_EVERY` versions."""
        self._published: BoundedCache[tuple[str, str], None] = BoundedCache(CACHE_SIZE)
        self._absent: BoundedCache[str, float] = BoundedCache(REFUSALS)
        """When nothing was at the final path of a version, by the path where it is staged, which is unique."""
        self._refusals: BoundedCache[tuple[TableId, int], tuple[int, LanceNamespaceError]] = BoundedCache(REFUSALS)
        self._doubtful_commits: BoundedCache[tuple[TableId, int], tuple[int, str]] = BoundedCache(REFUSALS)
        """When a commit came in doubt, and where its manifest is staged."""
        # A logical clock that orders refusals, commits in doubt, and the marks that callers take before a write.
        self._ticks = count(1)

    def create(self, requests: Sequence[VersionRequest]) -> list[StagedVersion]:
        """Commit the manifests that requests name, of one table or several, all or none."""
        versions = [self.stage(request) for request in requests]
        self.commit(versions)
        self.publish(versions)
        return versions

    def stage(self, request: VersionRequest, *, keep_in: str | None = None) -> StagedVersion:
        """Read and check the staged manifest that a request names.

        Args:
            request: the request as pylance sends it.
            keep_in: folder below the table's location to move the manifest to until it is accepted; None leaves it in
                place.

        Raises:
            InvalidInputError: there is no such manifest, or it holds another version.
        """
        table = TableId.parse(request.id)
        try:
            return self._read_staged_manifest(table, request, keep_in)
        except LanceNamespaceError as error:
            # The catalog was not asked yet, so this is a definite refusal as well.
            self._remember_refusal(table, request.version, error)
            raise

    def _read_staged_manifest(self, table: TableId, request: VersionRequest, keep_in: str | None) -> StagedVersion:
        branch, files = normalize_branch(request.branch), self.manifest_store(table)
        root, staged_path, final_path = parse_staged_path(request.manifest_path, branch, request.version)
        data = files.find(staged_path) or files.find(final_path)
        if data is None:
            raise InvalidInputError(f"{table}: there is no manifest at {request.manifest_path}")
        manifest = Manifest.parse(data)
        if manifest.version != request.version:
            raise InvalidInputError(f"{table}: {staged_path} holds version {manifest.version}, not {request.version}")
        if manifest.operation is None and (transaction := files.find(transaction_path(manifest))) is not None:
            manifest = manifest.with_transaction(transaction)
        if keep_in is not None:
            files.move(staged_path, f"{keep_in}/{final_path}")
            staged_path = f"{keep_in}/{final_path}"
        return StagedVersion(
            table,
            branch,
            manifest,
            root,
            staged_path,
            final_path,
            len(data),
            request.e_tag,
            request.metadata,
            files,
            manifest.totals() if files.is_remote else {},
        )

    def commit(self, versions: Sequence[StagedVersion]) -> None:
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
                state = (next(self._ticks), version.staged_path)
                self._doubtful_commits.put((version.table, version.manifest.version), state)
            raise
        except LanceNamespaceError as error:
            self._discard_refused(versions, error)
            raise

    def publish(self, versions: Sequence[StagedVersion]) -> None:
        """Publish the manifests of versions that the catalog has accepted.

        The versions are committed already. If the store is full or unavailable, this step is left to the next reader
        and only logged: the writer must not take it for a failed commit and repeat it.

        Raises:
            InvalidTableStateError: a writer that bypassed the catalog has put its own manifest there.
        """
        for version in versions:
            try:
                looked_at = self._absent.get(version.staged_path)
                self._absent.forget(version.staged_path)
                # Later the version may have been published by others and cleaned up: it must not come back.
                is_recent = looked_at is not None and time.monotonic() - looked_at < LOOKED_S
                data = version.manifest.data if is_recent else None
                self._publish_manifest(self._manifest_store_of(version), version.staged_path, version.final_path, data)
                self._note_published(version.table, self.heads.get(version.table), version.branch, version.snapshot_id)
            except InvalidTableStateError:
                raise
            except LanceNamespaceError as error:
                logger.warning(
                    "%s: version %d is committed; the next reader puts its manifest in place, which failed here: %s",
                    version.table,
                    version.manifest.version,
                    error,
                )
        for version in versions:
            if version.branch is None and version.manifest.version % SYNC_EVERY == 0:
                self.after_publish(version.table)

    def _publish_manifest(
        self, files: ManifestStore, staged_path: str, final_path: str, data: bytes | None = None
    ) -> bool:
        """Move a staged manifest to its final path; return False if this client has seen it there before."""
        if (files.location, staged_path) in self._published:
            return False
        # A transaction may stage several versions of a table, of which the catalog's ref names the last: publish the
        # earlier ones first.
        if staged_path.startswith(STAGING) and files.exists(previous_manifest(staged_path)):
            self._publish_manifest(files, previous_manifest(staged_path), previous_manifest(final_path))
        files.publish(staged_path, final_path, data)
        self._published.put((files.location, staged_path), None)
        return True

    def _note_published(self, table: TableId, head: TableHead | None, branch: str | None, snapshot_id: int) -> None:
        """Let the next request for a table in an object store tell the server that readers need not look."""
        snapshot = head.snapshots.get(snapshot_id) if head is not None and head.is_lance_aware else None
        if head is None or branch is not None or snapshot is None or head.find_ref(MAIN) != snapshot_id:
            return
        staged_path = snapshot.summary.get(STAGED)
        if staged_path and locations.local_folder(head.entry.location) is None:
            self._tables.note_published(table, f"{head.table.metadata.table_uuid}/{snapshot_id}/{staged_path}")

    # How a commit is made

    def _manifest_store_of(self, version: StagedVersion) -> ManifestStore:
        """Return the store of a version's manifest: the one that it was read from, so that no request is needed."""
        return version.manifest_store or self.manifest_store(version.table)

    def _commit_with_retries(self, versions: Sequence[StagedVersion]) -> None:
        tables = list(dict.fromkeys(version.table for version in versions))
        # A manifest at the final path means a repeated request (pylance or a user sent it again), a lost race, or a
        # writer that bypassed the catalog. The catalog's snapshots tell which.
        if present := [version for version in versions if self._manifest_store_of(version).exists(version.final_path)]:
            self._check_existing_manifests(present)
            if len(present) == len(versions):
                return
            raise ConcurrentModificationError(
                f"{present[0].table}: its version was accepted before, without those of the other tables"
            )
        # Nothing is there yet: `publish` may write the manifest without another look, if the catalog answers soon.
        for version in versions:
            self._absent.put(version.staged_path, time.monotonic())
        if (conflict := self._find_missed_conflict(versions)) is not None:
            if self._is_committed(versions):
                return  # a repeated request
            raise conflict
        for attempt in range(ATTEMPTS):
            was_cached = attempt < ATTEMPTS - 1 and all(table in self.heads for table in tables)
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
            self.forget_heads(tables)

    def _check_existing_manifests(self, versions: Sequence[StagedVersion]) -> None:
        """Find out whose manifests are at the final paths; return if they are those of these versions.

        Raises:
            ConcurrentModificationError: other versions were accepted under these numbers.
            InvalidTableStateError: the catalog never accepted them: a writer bypassed the catalog.
        """
        for version in versions:
            is_committed = self._is_committed([version])
            if is_committed is None:
                raise unknown_version_error(version.table, version.manifest.version)
            if not is_committed:
                raise ConcurrentModificationError(
                    f"{version.table}: version {version.manifest.version} is another writer's"
                )

    def _find_missed_conflict(self, versions: Sequence[StagedVersion]) -> ConcurrentModificationError | None:
        """Return an error if a version may undo changes that Lance could not see, because they are cleaned up."""
        for version in versions:
            line = (version.table, version.branch)
            own = {other.manifest.version for other in versions if (other.table, other.branch) == line}
            files = self._manifest_store_of(version)
            if (why := find_missed_conflict(files, version.manifest, version.final_path, own)) is not None:
                return ConcurrentModificationError(
                    f"{version.table}: this commit comes too late and might undo changes of others: {why}; open the "
                    "table again and repeat it, and keep versions for longer than a change takes"
                )
        return None

    def _commit_once(self, tables: Sequence[TableId], versions: Sequence[StagedVersion]) -> None:
        heads = [self.cached_head(table) for table in tables]
        changes = [
            commit_request(table, head, [version for version in versions if version.table == table])
            for table, head in zip(tables, heads, strict=True)
        ]
        answers: list[bool | None] = []

        def is_committed() -> bool | None:
            answers.append(self._is_committed(versions))
            return answers[-1]

        try:
            self._note_changes(tables)
            self._tables.commit(tables, changes, is_committed)
            self._note_changes(tables)
        except LanceNamespaceError as error:
            self.forget_heads(tables)
            # A conflict although the branch is still at the parent: the server refused because of something else.
            if isinstance(error, ConcurrentModificationError) and answers[-1:] == [None]:
                raise _OutOfDateError(str(error)) from error
            raise
        if len(tables) > 1:
            self._check_all_committed(versions)
        for table, head, change_request in zip(tables, heads, changes, strict=True):
            if (new_head := head.apply_change(change_request)) is not None:
                self.heads.put(table, new_head)
            else:
                self.heads.forget(table)

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
            logger.warning("the server accepted a transaction, but cannot be reached to confirm it: %s", error)
            return
        if is_committed is None:
            raise CommitStateUnknownError(
                "the server reported success for a transaction, but shows none of its versions"
            )
        if not is_committed:
            tables = ", ".join(dict.fromkeys(str(version.table) for version in versions))
            raise ConcurrentModificationError(
                f"{tables}: the server reported success for a transaction, but had accepted other versions before"
            )

    def _is_committed(self, versions: Sequence[StagedVersion]) -> bool | None:
        """Return whether the catalog has accepted these versions: True; False if it has others; None if neither so far.

        Raises:
            InvalidTableStateError: they follow versions that the catalog never accepted.
            CommitStateUnknownError: it has accepted the versions of one table and not those of another.
        """
        branches: dict[tuple[TableId, str | None], list[StagedVersion]] = {}
        for version in versions:
            branches.setdefault((version.table, version.branch), []).append(version)
        states = {
            line: self._is_branch_committed(branch_versions[0], branch_versions[-1])
            for line, branch_versions in branches.items()
        }
        if True in states.values() and not all(states.values()):
            committed, others = (
                {str(table) for (table, _), state in states.items() if bool(state) is yes} for yes in (True, False)
            )
            raise CommitStateUnknownError(
                "the server has made half of a transaction, which it should not: "
                f"{', '.join(sorted(committed))} without "
                f"{', '.join(sorted(others))}; read the tables again before repeating it"
            )
        return False if False in states.values() else None if None in states.values() else True

    def _is_branch_committed(self, first: StagedVersion, last: StagedVersion) -> bool | None:
        """Return what `_is_committed` does, for versions of one branch from `first` to `last`."""
        head = self.find_head(first.table, all_snapshots=False)
        # The short response contains only the snapshots that refs name: once the branch has moved beyond these
        # versions, whether they were accepted shows only in the full list.
        if head is not None and (head.latest_version(first.branch) or 0) > last.manifest.version:
            head = self.find_head(first.table, all_snapshots=True)
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
            _, doubtful_path = self._doubtful_commits.get((version.table, version.manifest.version)) or (0, None)
            if version.staged_path == doubtful_path:
                continue  # an earlier request for the same manifest may have been accepted
            try:
                self._manifest_store_of(version).discard(version.staged_path)
            except LanceNamespaceError as failure:
                logger.warning(
                    "%s: cannot delete the staged manifest %s: %s", version.table, version.staged_path, failure
                )

    def _remember_refusal(self, table: TableId, version: int, error: LanceNamespaceError) -> None:
        self._refusals.put((table, version), (next(self._ticks), error))

    def commit_mark(self) -> int:
        """Return a new tick of this client's commits, see `IcebergNamespace.commit_mark`."""
        return next(self._ticks)

    def commit_refusal(self, table: TableId, version: int, since: int) -> LanceNamespaceError | None:
        """Return why a version was refused, see `IcebergNamespace.commit_refusal`."""
        refused_at, error = self._refusals.get((table, version)) or (0, None)
        in_doubt_at, _ = self._doubtful_commits.get((table, version)) or (0, None)
        return None if refused_at < since or in_doubt_at > since else error

    def require_transactions(self, table: TableId) -> None:
        """Check that a table is managed, and that its server can commit to several tables at once.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        self.cached_head(table)
        self._tables.require_transactions(table.namespace.catalog)

    # Heads: tables as the catalog has them

    def take_described(self, table: TableId) -> TableHead | None:
        """Return the head of a managed table that this client has just described, once; None if that is a while ago."""
        described = self._tables.take_described(table)
        return None if described is None else self.heads.put(table, self._to_head(*described))

    def find_head(self, table: TableId, *, all_snapshots: bool) -> TableHead | None:
        """Load the table's head from the catalog and cache it; return None if its versions are managed by storage."""
        head = self.load_head(table, all_snapshots=all_snapshots)
        if managed_by(head.entry.properties) == IMPL:
            return self.heads.put(table, head)
        self.heads.forget(table)
        return None

    def load_head(self, table: TableId, *, all_snapshots: bool) -> TableHead:
        """Load the table's head from the catalog, whoever manages its versions."""
        return self._to_head(*self._tables.load_versions(table, all_snapshots=all_snapshots, vend=self._access.vends))

    def _to_head(self, entry: Entry, table: VersionedTable) -> TableHead:
        return TableHead(entry, table, self._access.merge(entry.properties, entry.vended))

    def cached_head(self, table: TableId) -> TableHead:
        """Return the table's cached head, or load it. It may be out of date: the catalog checks every commit.

        Raises:
            InvalidInputError: the table's versions are not managed by the catalog.
        """
        head = self.heads.get(table)
        if head is not None and not (head.entry.vended and expires_soon(head.entry.vended)):
            return head
        head = self.find_head(table, all_snapshots=False)
        if head is None:
            raise InvalidInputError(
                f"{table}: its versions are managed by its storage ({MANAGED_BY}={STORAGE}); "
                f"`lancehouse table manage --by {IMPL}` lets the catalog manage them"
            )
        return head

    def forget_heads(self, tables: Iterable[TableId]) -> None:
        """Drop cached heads that may be out of date."""
        for table in tables:
            self.heads.forget(table)
        self._note_changes(tables)

    def _note_changes(self, tables: Iterable[TableId]) -> None:
        """Discard what was loaded of tables before a change, including responses that are still on their way."""
        for table in tables:
            self._tables.note_change(table)

    # Storage of tables

    def manifest_store(self, table: TableId) -> ManifestStore:
        """Return the store of a table's manifests, with location and storage options."""
        return self.store_of(table, self.cached_head(table))

    def store_of(self, table: TableId, head: TableHead) -> ManifestStore:
        """Return the store of a table's manifests.

        Raises:
            InternalError: the catalog has no location for the table.
            OutsideConfinementError: the table must not be opened.
        """
        # Confinement is checked at each use: what the location leads to may have changed since the head was loaded.
        if self._access.confinement is not None:
            self._access.require(head.entry)
        return ManifestStore(head.entry.location or get_location(table, head.entry), head.options)

    def storage_ref(self, head: TableHead, branch: str | None = None) -> TableRef:
        """Refer to a table by its location, without the catalog."""
        self._access.require(head.entry)
        return TableRef(head.entry.location, head.options, branch=branch, confinement=self._access.confinement)

    def publish_version(
        self, table: TableId, head: TableHead, branch: str | None, snapshot: Snapshot, *, trusts_catalog: bool = True
    ) -> None:
        """Publish the manifest of an accepted version, unless that is done, as the catalog may know."""
        staged_path = snapshot.summary.get(STAGED)
        if not staged_path or (trusts_catalog and head.is_published(branch, snapshot)):
            return
        if self._publish_manifest(self.store_of(table, head), staged_path, manifest_path(branch, snapshot)):
            self._note_published(table, head, branch, snapshot.snapshot_id)

    # Changes to an entry other than new versions

    def commit_updates(
        self, table: TableId, head: TableHead, updates: Sequence[Json], refs: Sequence[str] = (MAIN,)
    ) -> None:
        """Commit updates to an entry, on condition that the given branches have not moved."""
        requirements: list[Json] = [{"type": "assert-table-uuid", "uuid": head.table.metadata.table_uuid}]
        requirements += [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head.find_ref(ref)} for ref in refs
        ]
        change = CommitTable(requirements=requirements, updates=list(updates))
        try:
            self._tables.commit([table], [change], lambda: self._has_updates(table, updates))
        finally:
            self.forget_heads([table])

    def _has_updates(self, table: TableId, updates: Sequence[Json]) -> bool | None:
        """Return True if all updates are visible in the entry, else None: they may still be made."""
        head = self.load_head(table, all_snapshots=True)
        return all(map(head.has_update, updates)) or None


def commit_request(table: TableId, head: TableHead, versions: Sequence[StagedVersion]) -> CommitTable:
    """Build the request that asks the catalog to accept versions of a table, each branch from where it is.

    Raises:
        InvalidInputError: the versions of a branch are not consecutive.
    """
    requirements: list[Json] = [{"type": "assert-table-uuid", "uuid": head.table.metadata.table_uuid}]
    updates: list[Json] = []
    sequence = head.table.metadata.last_sequence_number
    for ref in dict.fromkeys(version.ref_name for version in versions):
        branch_versions = [version for version in versions if version.ref_name == ref]
        numbers = [version.manifest.version for version in branch_versions]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise InvalidInputError(f"{table}: versions are accepted one after the other, not {numbers}")
        parent = head.parent_snapshot_id(branch_versions[0])
        requirements.append({"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": parent})
        if ref == MAIN:
            updates += _schema_updates_of(head, branch_versions[-1])
        updates += snapshot_updates(head, ref, parent, branch_versions, sequence)
        sequence += len(branch_versions)
    identifier = TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
    return CommitTable(identifier=identifier, requirements=requirements, updates=updates)


def snapshot_updates(
    head: TableHead, ref: str, parent: int | None, versions: Sequence[StagedVersion], sequence: int
) -> list[Json]:
    """Return updates that add versions of one branch after a parent snapshot and move the branch to the last one."""
    updates: list[Json] = []
    for version in versions:
        # Iceberg wants each sequence number above all earlier ones of the table, those of other branches included.
        sequence = max(sequence + 1, version.manifest.version if ref == MAIN else 0)
        updates.append({"action": "add-snapshot", "snapshot": _to_snapshot(version, head, parent, sequence)})
        parent = version.snapshot_id
    return [*updates, {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": parent}]


def schema_updates(head: TableHead, schema: Json) -> list[Json]:
    """Return updates that make a schema the entry's current one, reusing an equal older one; none if it is current."""
    metadata = head.table.metadata
    matching_ids = [
        candidate["schema-id"] for candidate in metadata.schemas if candidate.get("fields") == schema["fields"]
    ]
    if metadata.current_schema_id in matching_ids:
        return []
    if matching_ids:
        return [{"action": "set-current-schema", "schema-id": matching_ids[-1]}]
    return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": LAST_ADDED}]


def _schema_updates_of(head: TableHead, version: StagedVersion) -> list[Json]:
    """Return updates that bring the entry's schema up to date with a version; none if the columns are unchanged."""
    latest = head.latest_snapshot(None)
    if latest is not None and latest.summary.get(COLUMNS) == version.manifest.columns:
        return []
    return schema_updates(head, version.manifest.schema())


def _to_snapshot(version: StagedVersion, head: TableHead, parent: int | None, sequence: int) -> Json:
    operation = version.manifest.operation
    is_first = operation == "Overwrite" and version.manifest.version == 1
    summary = {
        "operation": "append" if is_first else ICEBERG_OPERATION_NAMES.get(operation, "replace"),
        OPERATION: operation,
        VERSION: str(version.manifest.version),
        BRANCH: version.branch,
        TRANSACTION: version.manifest.transaction_uuid,
        COLUMNS: version.manifest.columns,
        STAGED: version.staged_path or None,
        SIZE: str(version.size),
        E_TAG: version.e_tag,
        **version.totals,
        **{f"{METADATA}{key}": value for key, value in (version.metadata or {}).items()},
    }
    return {
        "snapshot-id": version.snapshot_id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": max(time.time_ns() // 1_000_000, head.timestamp_ms),
        # A scheme that Iceberg's readers refuse with an error: without a snapshot they would read the table as empty.
        "manifest-list": f"{locations.to_lance_uri(head.entry.location)}/{version.final_path}",
        "summary": {key: value for key, value in summary.items() if value is not None},
    }


def unknown_version_error(table: TableId, version: int) -> InvalidTableStateError:
    """Return the error for a table of which storage has a version that the catalog does not know."""
    return InvalidTableStateError(
        f"{table}: storage has a version {version} that the catalog does not know: the catalog was restored from an "
        "older copy, or a writer bypassed the catalog; stop the writers, then "
        "`lancehouse table manage --by impl --adopt` accepts what is there"
    )


def manifest_path(branch: str | None, snapshot: Snapshot) -> str:
    """Return the path of an accepted version's manifest below the table's location."""
    return f"{manifest_folder(branch)}/{snapshot.manifest_list.rpartition('/')[2]}"


def normalize_branch(name: str | None) -> str | None:
    """Return the branch that a request names; None for the main branch."""
    return None if name in (None, "", MAIN) else name
