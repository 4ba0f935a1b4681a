"""Move tables between catalog-managed and storage-managed versions; keep tags, branches and clean-up in sync."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    LanceNamespaceError,
)

from lancehouse.caches import BoundedCache
from lancehouse.clients.catalog_namespace import Entry, get_location
from lancehouse.clients.managed_commits import ManagedCommits
from lancehouse.clients.managed_versions import CACHE_SIZE, normalize_branch
from lancehouse.clients.snapshots import Json, StagedVersion, TableHead, schema_updates, snapshot_updates
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, snapshot_id
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.lake.versions import list_branches, list_manifests, list_tags
from lancehouse.properties import FEW_METADATA_FILES, IMPL, MANAGED_BY, STORAGE, managed_by
from lancehouse.wire.iceberg import CommitTable

logger = logging.getLogger(__name__)

SYNC_EVERY = 20
"""A commit whose version is a multiple of this checks whether versions were cleaned up or tags created in storage."""
NOTHING_REMOVED = (1, 0)
"""Oldest version, and number of versions less the latest version's number, if no version was removed."""
ATTEMPTS = 5
"""Number of attempts to synchronize an entry that others change at the same time."""


class ManagedTables(ManagedCommits):
    """Operations that keep the catalog's entry in sync with the table's storage."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._last_retained: BoundedCache[TableId, tuple[int, int]] = BoundedCache(CACHE_SIZE)

    def publish_manifests(self, versions: Sequence[StagedVersion]) -> None:
        """Publish manifests as `ManagedCommits` does; every `SYNC_EVERY` versions also synchronize the catalog."""
        super().publish_manifests(versions)
        for version in versions:
            if version.branch is None and version.manifest.version % SYNC_EVERY == 0:
                self._sync_if_needed(version.table)

    def _sync_if_needed(self, table: TableId) -> None:
        try:
            if self._is_out_of_sync(table):
                self._sync_catalog(table)
        except LanceNamespaceError as error:
            logger.warning("%s: whether the catalog is in step with the table cannot be seen: %s", table, error)

    def _is_out_of_sync(self, table: TableId) -> bool:
        """Return whether versions were removed since the last check, or the catalog lacks a tag or has it elsewhere."""
        head = self._cached_head(table)
        stored = list_manifests(self._storage_ref(head))
        retained = (min(stored, default=0), len(stored) - max(stored, default=0))
        has_changed = self._last_retained.get(table) != retained and retained != NOTHING_REMOVED
        self._last_retained.put(table, retained)
        if has_changed or head.is_lance_aware:
            return has_changed
        return any(
            head.find_ref(head.tag_ref_name(name)) != snapshot_id(*at)
            for name, at in list_tags(self._storage_ref(head)).items()
        )

    def _register(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Create an entry for existing data; if the catalog manages its versions, adopt the latest one."""
        entry = super()._register(table, location, properties)
        if managed_by(entry.properties) == IMPL:
            try:
                self.manage_table(table.parts, IMPL, adopt=True)
            except LanceNamespaceError:
                self._delete_table(table)
                raise
        return entry

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions and the data that no other version needs, then their snapshots in the catalog."""
        table = self._parse_table_id(request.id)
        head = self._find_managed_head(table, all_snapshots=False)
        if head is not None:
            branch = normalize_branch(request.branch)
            self._publish_latest(table, head, branch)
            stored = find_latest_version(self._storage_ref(head, branch))
            if stored != head.latest_version(branch):
                at = self._reload_head(table).latest_version(branch)  # another writer may have committed in between
                if (stored or 0) > (at or 0):
                    raise _version_mismatch_error(table, branch, at, stored)
        response = super().batch_delete_table_versions(request)
        if head is not None:
            self._sync_catalog(table)
        return response

    def _reload_head(self, table: TableId) -> TableHead:
        self._heads.forget(table)
        return self._cached_head(table)

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        """Create a tag of a version, by default of the main branch, in storage and in the catalog."""
        response = super().create_table_tag(request)
        self._sync_catalog(self._parse_table_id(request.id))
        return response

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        """Point a tag to another version, in storage and in the catalog."""
        response = super().update_table_tag(request)
        self._sync_catalog(self._parse_table_id(request.id))
        return response

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        """Delete a tag in storage and in the catalog; its version stays."""
        response = super().delete_table_tag(request)
        self._sync_catalog(self._parse_table_id(request.id), deleted_tag=request.tag)
        return response

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        """Delete a branch in storage and in the catalog, unless another branch was created from it."""
        response = super().delete_table_branch(request)
        self._sync_catalog(self._parse_table_id(request.id), deleted_branch=request.name)
        return response

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        """Create a branch from a version of another branch.

        A branch of that name that pylance has deleted from storage only is first removed from the catalog.
        """
        table = self._parse_table_id(request.id)
        head = self._find_managed_head(table, all_snapshots=False)
        if (
            head is not None
            and request.name in head.branches
            and request.name not in list_branches(self._storage_ref(head))
        ):
            self._sync_catalog(table, deleted_branch=request.name)
        return super().create_table_branch(request)

    def _sync_catalog(
        self, table: TableId, *, deleted_tag: str | None = None, deleted_branch: str | None = None
    ) -> None:
        """Remove the snapshots of cleaned-up versions from the catalog, and copy Lance's tags to it.

        The caller's operation is done already, so a failure is only logged; a later commit synchronizes again.
        """
        try:
            for _ in range(ATTEMPTS):
                if self._try_sync(table, deleted_tag, deleted_branch):
                    return
        except LanceNamespaceError as error:
            logger.warning("%s: the catalog could not be brought in step with the table: %s", table, error)

    def _try_sync(self, table: TableId, deleted_tag: str | None, deleted_branch: str | None) -> bool:
        """Synchronize once; return False if another commit changed the entry at the same time."""
        head = self._find_managed_head(table, all_snapshots=True)
        if head is None or head.find_ref(MAIN) is None:
            return True
        for branch in (None, *(head.branches - {deleted_branch})):
            self._publish_latest(table, head, branch)
        updates = self._tag_updates(head, deleted_tag)
        if deleted_branch in head.branches:
            updates.append({"action": "remove-snapshot-ref", "ref-name": deleted_branch})
        updates += self._snapshot_removals(head, deleted_branch)
        if not updates:
            return True
        try:
            self._commit_updates(table, head, updates)
        except ConcurrentModificationError:
            return False
        return True

    def _tag_updates(self, head: TableHead, deleted_tag: str | None) -> list[Json]:
        """Return updates for tags that the catalog lacks or has elsewhere, and for a deleted one.

        A server that knows Lance reads the tags from storage itself and needs none.
        """
        if head.is_lance_aware:
            return []
        updates: list[Json] = []
        snapshots = head.snapshots
        for name, (branch, version) in list_tags(self._storage_ref(head)).items():
            target, ref = snapshot_id(branch, version), head.tag_ref_name(name)
            if target in snapshots and head.find_ref(ref) != target:
                updates.append({"action": "set-snapshot-ref", "ref-name": ref, "type": "tag", "snapshot-id": target})
        if deleted_tag is not None and head.find_ref(head.tag_ref_name(deleted_tag)) is not None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": head.tag_ref_name(deleted_tag)})
        return updates

    def _snapshot_removals(self, head: TableHead, deleted_branch: str | None) -> list[Json]:
        """Return updates that remove the snapshots of versions that storage no longer has."""
        referenced_ids = {ref.snapshot_id for name, ref in head.table.metadata.refs.items() if name != deleted_branch}
        stored = list_manifests(self._storage_ref(head))
        current = head.find_ref(MAIN) or 0
        removed_ids = [
            version
            for version in head.snapshots_by_version(None)
            if version < current and version not in stored and version not in referenced_ids
        ]
        if deleted_branch in head.branches:
            removed_ids += [
                snapshot.snapshot_id
                for snapshot in head.snapshots_by_version(deleted_branch).values()
                if snapshot.snapshot_id not in referenced_ids
            ]
        return [{"action": "remove-snapshots", "snapshot-ids": removed_ids}] if removed_ids else []

    # Moving tables between catalog and storage

    def manage_table(self, id: Sequence[str], by: str, *, adopt: bool = False) -> int | None:
        """Let the catalog (`impl`) or storage (`storage`) decide which version of a table is the current one.

        Writers that have the table open keep committing the way they did when they opened it: stop them first.

        Args:
            id: of the table.
            by: `impl` or `storage`.
            adopt: whether the catalog accepts versions that writers put into storage past it.

        Returns:
            The current version of the main branch; None for a table without data.

        Raises:
            InvalidTableStateError: storage and catalog disagree on the versions; the message says how to repair it.
        """
        table, manager = self._parse_table_id(id), managed_by({MANAGED_BY: by})
        head = self._load_head(table, all_snapshots=True)
        is_managed = managed_by(head.entry.properties) == IMPL
        if is_managed:
            for branch in (None, *head.branches):
                self._publish_latest(table, head, branch)
        stored = self._stored_versions(head)
        if manager == STORAGE and not is_managed:
            return stored.get(None)
        ahead = {branch: version for branch, version in stored.items() if version != head.latest_version(branch)}
        if is_managed or not head.is_lance_aware:
            self._check_agreement(table, head, stored, may_adopt=manager == IMPL and (adopt or not is_managed))
        updates = _property_updates(head, manager)
        if manager == IMPL:
            updates += self._adoption_updates(table, head, ahead)
        if updates:
            self._commit_updates(table, head, updates, (MAIN, *(branch for branch in ahead if branch)))
        return stored.get(None)

    def accept_first(self, id: Sequence[str]) -> bool:
        """Accept the first version of a declared table whose creator wrote it to storage without the catalog.

        Lance 4 creates tables in this way, and commits through the catalog from then on. Only a table for which the
        catalog has no version yet is changed.

        Returns:
            Whether the table has a first version now; if not, nothing was changed.
        """
        table = self._parse_table_id(id)
        head = self._load_head(table, all_snapshots=False)
        if managed_by(head.entry.properties) != IMPL or find_latest_version(self._storage_ref(head)) != 1:
            return False
        if head.find_ref(MAIN) is None:
            try:
                self.manage_table(id, IMPL, adopt=True)
            except ConcurrentModificationError:
                logger.debug("%s: its first version was accepted by somebody else", table)
        return True

    def _check_agreement(
        self, table: TableId, head: TableHead, stored: Mapping[str | None, int], *, may_adopt: bool
    ) -> None:
        """Check that catalog and storage are at the same versions, or storage at later ones if `may_adopt`.

        Raises:
            InvalidTableStateError: they are not.
        """
        is_managed = managed_by(head.entry.properties) == IMPL
        for branch in dict.fromkeys((None, *stored)):
            at, version = head.latest_version(branch), stored.get(branch)
            agrees = version == at or (may_adopt and (version or 0) > (at or 0)) or (at is None and not is_managed)
            if not agrees:
                raise _version_mismatch_error(table, branch, at, version)

    def _publish_latest(self, table: TableId, head: TableHead, branch: str | None = None) -> None:
        """Publish the latest version of a branch that the catalog has accepted, unless that is done."""
        at = head.find_ref(branch or MAIN)
        if at is not None:
            self._publish_version(table, head, branch, head.snapshots[at])

    def _stored_versions(self, head: TableHead) -> dict[str | None, int]:
        """Return the latest version of each branch in storage; the main branch is None."""
        ref = self._storage_ref(head)
        versions: dict[str | None, int | None] = {None: find_latest_version(ref)}
        if versions[None] is not None:
            versions |= {name: find_latest_version(self._storage_ref(head, name)) for name in list_branches(ref)}
        return {branch: version for branch, version in versions.items() if version is not None}

    def _adoption_updates(self, table: TableId, head: TableHead, ahead: Mapping[str | None, int]) -> list[Json]:
        """Return updates that add the versions in storage after the catalog's; just the latest if it has none."""
        options = self._storage_options(head.entry)
        store = ManifestStore(get_location(table, head.entry), options)
        sequence = head.table.metadata.last_sequence_number
        updates: list[Json] = []
        for branch, version in ahead.items():
            at = head.latest_version(branch)
            first = version if at is None else at + 1
            files = list_manifests(self._storage_ref(head, branch))
            adopted = [
                _read_published_version(table, branch, file, store) for each, file in files.items() if each >= first
            ]
            if branch is None:
                updates += schema_updates(head, adopted[-1].manifest.schema())
            updates += snapshot_updates(head, branch or MAIN, head.find_ref(branch or MAIN), adopted, sequence)
            sequence = max(sequence + len(adopted), version if branch is None else 0)
        return updates

    def _commit_updates(
        self, table: TableId, head: TableHead, updates: Sequence[Json], refs: Sequence[str] = (MAIN,)
    ) -> None:
        """Commit updates to an entry, on condition that the given branches have not moved."""
        requirements: list[Json] = [{"type": "assert-table-uuid", "uuid": head.table.metadata.table_uuid}]
        requirements += [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head.find_ref(ref)} for ref in refs
        ]
        change = CommitTable(requirements=requirements, updates=list(updates))
        try:
            self._send_commit([table], [change], lambda: self._has_updates(table, updates))
        finally:
            self._heads.forget(table)

    def _has_updates(self, table: TableId, updates: Sequence[Json]) -> bool | None:
        """Return True if all updates are visible in the entry, else None: they may still be made."""
        head = self._load_head(table, all_snapshots=True)
        return all(map(head.has_update, updates)) or None


def _property_updates(head: TableHead, manager: str) -> list[Json]:
    """Return updates that set who manages an entry's versions; properties that the user has set are kept."""
    defaults = FEW_METADATA_FILES if manager == IMPL else {}
    properties = {key: value for key, value in defaults.items() if key not in head.entry.properties}
    if managed_by(head.entry.properties) != manager:
        properties[MANAGED_BY] = manager
    return [{"action": "set-properties", "updates": properties}] if properties else []


def _read_published_version(table: TableId, branch: str | None, file: str, store: ManifestStore) -> StagedVersion:
    """Read a version whose manifest is at its final path already."""
    data = store.read(file)
    return StagedVersion(table, branch, Manifest.parse(data), "", "", file, len(data))


def _version_mismatch_error(
    table: TableId, branch: str | None, at: int | None, stored: int | None
) -> InvalidTableStateError:
    if (stored or 0) > (at or 0):
        remedy = (
            "writers went past the catalog; stop them, then `lancehouse table manage --by impl --adopt` accepts what "
            "they wrote"
        )
    else:
        remedy = f"the manifest of version {at} is gone; restore it from a backup"
    of = f" of branch {branch}" if branch else ""
    descriptions = [f"no version{of}" if version is None else f"version {version}{of}" for version in (at, stored)]
    return InvalidTableStateError(
        f"{table}: the catalog has {descriptions[0]}, storage has {descriptions[1]}: {remedy}"
    )
