"""Read the versions of tables that the catalog manages; keep tags, branches and clean-up in sync; adopt tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lance_namespace import ListTableVersionsRequest, ListTableVersionsResponse, TableVersion
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.caches import BoundedCache
from lancehouse.clients.managed_versions import (
    CACHE_SIZE,
    E_TAG,
    METADATA,
    SIZE,
    Json,
    ManagedVersions,
    StagedVersion,
    TableHead,
    manifest_path,
    normalize_branch,
    schema_updates,
    snapshot_updates,
    unknown_version_error,
)
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, snapshot_id, version_of_snapshot
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.lake.versions import list_branches, list_manifests, list_tags, root_path
from lancehouse.paging import paginate
from lancehouse.properties import FEW_METADATA_FILES, IMPL, MANAGED_BY, STAGED, STORAGE, managed_by
from lancehouse.wire.iceberg import Snapshot

logger = logging.getLogger(__name__)

NOTHING_REMOVED = (1, 0)
"""Oldest version, and number of versions less the latest version's number, if no version was removed."""
ATTEMPTS = 5
"""Number of attempts to synchronize an entry that others change at the same time."""


class ManagedTables:
    """Tables whose versions the catalog manages: their versions, and the agreement of catalog and storage."""

    def __init__(self, versions: ManagedVersions) -> None:
        self._versions = versions
        self._last_retained: BoundedCache[TableId, tuple[int, int]] = BoundedCache(CACHE_SIZE)
        versions.after_publish = self._sync_if_needed

    # Reading versions

    def list_versions(self, table: TableId, request: ListTableVersionsRequest) -> ListTableVersionsResponse | None:
        """List the versions of a branch as the catalog has them; None if only storage has them."""
        branch = normalize_branch(request.branch)
        only_latest = request.limit == 1 and bool(request.descending) and not request.page_token
        head = self._versions.take_described(table) if only_latest else None
        head = head or self._versions.find_head(table, all_snapshots=not only_latest)
        if head is None:
            return None
        if only_latest:
            return ListTableVersionsResponse(versions=self._list_latest(table, head, branch))
        if branch and head.find_ref(branch) is None:
            return None  # a branch from before the catalog managed the table, or none
        versions = self._list_versions(table, head, branch)
        listing = paginate(versions, request.limit, request.page_token, descending=bool(request.descending))
        return ListTableVersionsResponse(versions=list(listing.items.values()), page_token=listing.token)

    def find_version(self, table: TableId, branch: str | None, version: int | None) -> TableVersion | None:
        """Return one version of a branch, by default the latest; None if only storage has it.

        Raises:
            TableBranchNotFoundError, TableVersionNotFoundError: there is none.
        """
        branch = normalize_branch(branch)
        if version is not None and (latest := self._find_if_latest(table, branch, version)) is not None:
            return latest
        head = self._versions.find_head(table, all_snapshots=version is not None)
        if head is None:
            return None
        wanted_id = head.find_ref(branch or MAIN)
        if branch and wanted_id is None:
            raise TableBranchNotFoundError(f"{table} has no branch {branch}")
        if version is not None:
            wanted_id = snapshot_id(branch, version)
        snapshot = head.snapshots.get(wanted_id) if wanted_id is not None else None
        if snapshot is None and version is not None and version < min(head.snapshots_by_version(branch), default=0):
            return None  # from before the catalog managed the table
        if snapshot is None:
            raise TableVersionNotFoundError(f"{table} has no version {version if version is not None else 'yet'}")
        if version is not None:
            files, final_path = self._versions.store_of(table, head), manifest_path(branch, snapshot)
            staged_path = snapshot.summary.get(STAGED)
            is_in_place = files.exists(final_path)
            # The next version was made of this one, so that what is at its path was accepted.
            if is_in_place and head.find_ref(branch or MAIN) != snapshot.snapshot_id:
                return _to_table_version(table, head, branch, snapshot)
            if not is_in_place and (staged_path is None or not files.exists(staged_path)):
                raise TableVersionNotFoundError(f"{table} has no version {version}: it was cleaned up")
        return self._publish_version(table, head, branch, snapshot)

    def _find_if_latest(self, table: TableId, branch: str | None, version: int) -> TableVersion | None:
        """Return a version if it is the latest of its branch, and known to be in its place; else None.

        Tasks of a job open the version that was the latest when it began, and mostly that one is tagged: this needs
        neither all snapshots nor a look at the store, because the latest version is never cleaned up.
        """
        head = self._versions.take_described(table) or self._versions.find_head(table, all_snapshots=False)
        if head is None or head.find_ref(branch or MAIN) != snapshot_id(branch, version):
            return None
        snapshot = head.snapshots.get(snapshot_id(branch, version))
        if snapshot is None or not head.is_published(branch, snapshot):
            return None
        return _to_table_version(table, head, branch, snapshot)

    def _list_latest(self, table: TableId, head: TableHead, branch: str | None) -> list[TableVersion]:
        """Return the latest version of a branch in a list, which is empty if there is none.

        Raises:
            InvalidTableStateError: the catalog has no version, but storage has one, which Lance would take for the
                table's.
        """
        if branch is not None and head.find_ref(branch) is None:
            # A server may have looked for branches in an object store a while ago; for all snapshots it looks again.
            head = self._versions.find_head(table, all_snapshots=True) or head
        if (latest := head.latest_snapshot(branch)) is not None:
            return [self._publish_version(table, head, branch, latest)]
        if branch is None and (stored_version := find_latest_version(self._versions.storage_ref(head))) is not None:
            # The first version may have been committed and published after the head was loaded: only a head that was
            # loaded after storage was read proves that the catalog does not know it.
            newer_head = self._versions.find_head(table, all_snapshots=False)
            if newer_head is None or newer_head.find_ref(MAIN) is None:
                raise unknown_version_error(table, stored_version)
            return self._list_latest(table, newer_head, branch)
        return []

    def _list_versions(self, table: TableId, head: TableHead, branch: str | None) -> dict[int, TableVersion]:
        """Return the accepted versions that still exist, and those from before the catalog managed the table."""
        accepted = head.snapshots_by_version(branch)
        manifests = list_manifests(self._versions.storage_ref(head, branch))
        oldest, newest = min(accepted, default=0), max(manifests, default=0)
        versions = {
            version: _to_table_version(table, head, branch, _unmanaged_snapshot(branch, version, file))
            for version, file in manifests.items()
            if version < oldest
        }
        # Accepted versions that storage lacks were cleaned up, unless they are newer than all that it has: those are
        # accepted but not yet published.
        for version, snapshot in accepted.items():
            if version in manifests:
                versions[version] = _to_table_version(table, head, branch, snapshot)
            elif version > newest:
                versions[version] = self._publish_version(table, head, branch, snapshot)
        return versions

    def _publish_version(self, table: TableId, head: TableHead, branch: str | None, snapshot: Snapshot) -> TableVersion:
        """Publish the manifest of an accepted version, unless that is done, and return the version."""
        self._versions.publish_version(table, head, branch, snapshot)
        return _to_table_version(table, head, branch, snapshot)

    # Keeping the catalog in sync with storage

    def _sync_if_needed(self, table: TableId) -> None:
        try:
            if self._is_out_of_sync(table):
                self.sync(table)
        except LanceNamespaceError as error:
            logger.warning("%s: cannot check whether the catalog knows the table's latest version: %s", table, error)

    def _is_out_of_sync(self, table: TableId) -> bool:
        """Return whether versions were removed since the last check, or the catalog lacks a tag or has it elsewhere."""
        head = self._versions.cached_head(table)
        manifests = list_manifests(self._versions.storage_ref(head))
        # Versions are numbered without gaps: while the oldest is 1 and there are as many as the latest one's number,
        # none was removed, and the catalog need not be asked.
        retained = (min(manifests, default=0), len(manifests) - max(manifests, default=0))
        has_changed = self._last_retained.get(table) != retained and retained != NOTHING_REMOVED
        self._last_retained.put(table, retained)
        if has_changed or head.is_lance_aware:
            return has_changed
        return any(
            head.find_ref(head.tag_ref_name(name)) != snapshot_id(*at)
            for name, at in list_tags(self._versions.storage_ref(head)).items()
        )

    def prepare_deletion(self, table: TableId, branch: str | None) -> bool:
        """Check, before versions are deleted, that storage is not ahead; return whether the table is managed."""
        branch = normalize_branch(branch)
        head = self._versions.find_head(table, all_snapshots=False)
        if head is None:
            return False
        self._publish_latest(table, head, branch)
        stored_version = find_latest_version(self._versions.storage_ref(head, branch))
        if stored_version != head.latest_version(branch):
            at = self._reload_head(table).latest_version(branch)  # another writer may have committed in between
            if (stored_version or 0) > (at or 0):
                raise _version_mismatch_error(table, branch, at, stored_version)
        return True

    def _reload_head(self, table: TableId) -> TableHead:
        self._versions.heads.forget(table)
        return self._versions.cached_head(table)

    def prepare_branch(self, table: TableId, name: str) -> None:
        """Remove a branch from the catalog that pylance has deleted from storage only, before it is created anew."""
        head = self._versions.find_head(table, all_snapshots=False)
        if head is not None and name in head.branches and name not in list_branches(self._versions.storage_ref(head)):
            self.sync(table, deleted_branch=name)

    def sync(self, table: TableId, *, deleted_tag: str | None = None, deleted_branch: str | None = None) -> None:
        """Remove the snapshots of cleaned-up versions from the catalog, and copy Lance's tags to it.

        The caller's operation is done already, so a failure is only logged; a later commit synchronizes again.
        """
        try:
            for _ in range(ATTEMPTS):
                if self._try_sync(table, deleted_tag, deleted_branch):
                    return
        except LanceNamespaceError as error:
            logger.warning("%s: cannot tell the catalog the table's latest version: %s", table, error)

    def _try_sync(self, table: TableId, deleted_tag: str | None, deleted_branch: str | None) -> bool:
        """Synchronize once; return False if another commit changed the entry at the same time."""
        head = self._versions.find_head(table, all_snapshots=True)
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
            self._versions.commit_updates(table, head, updates)
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
        for name, (branch, version) in list_tags(self._versions.storage_ref(head)).items():
            target, ref = snapshot_id(branch, version), head.tag_ref_name(name)
            if target in snapshots and head.find_ref(ref) != target:
                updates.append({"action": "set-snapshot-ref", "ref-name": ref, "type": "tag", "snapshot-id": target})
        if deleted_tag is not None and head.find_ref(head.tag_ref_name(deleted_tag)) is not None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": head.tag_ref_name(deleted_tag)})
        return updates

    def _snapshot_removals(self, head: TableHead, deleted_branch: str | None) -> list[Json]:
        """Return updates that remove the snapshots of versions that storage no longer has."""
        referenced_ids = {ref.snapshot_id for name, ref in head.table.metadata.refs.items() if name != deleted_branch}
        manifests = list_manifests(self._versions.storage_ref(head))
        current = head.find_ref(MAIN) or 0
        removed_ids = [
            version
            for version in head.snapshots_by_version(None)
            if version < current and version not in manifests and version not in referenced_ids
        ]
        if deleted_branch in head.branches:
            removed_ids += [
                snapshot.snapshot_id
                for snapshot in head.snapshots_by_version(deleted_branch).values()
                if snapshot.snapshot_id not in referenced_ids
            ]
        return [{"action": "remove-snapshots", "snapshot-ids": removed_ids}] if removed_ids else []

    # Moving tables between catalog and storage

    def manage(self, table: TableId, by: str, *, adopt: bool = False) -> int | None:
        """Let the catalog or storage manage the versions of a table, see `IcebergNamespace.manage_table`."""
        manager = managed_by({MANAGED_BY: by})
        head = self._versions.load_head(table, all_snapshots=True)
        is_managed = managed_by(head.entry.properties) == IMPL
        if is_managed:
            for branch in (None, *head.branches):
                self._publish_latest(table, head, branch)
        stored_versions = self._stored_versions(head)
        if manager == STORAGE and not is_managed:
            return stored_versions.get(None)
        ahead = {
            branch: version for branch, version in stored_versions.items() if version != head.latest_version(branch)
        }
        if is_managed or not head.is_lance_aware:
            self._check_agreement(table, head, stored_versions, may_adopt=manager == IMPL and (adopt or not is_managed))
        updates = _property_updates(head, manager)
        if manager == IMPL:
            updates += self._adoption_updates(table, head, ahead)
        if updates:
            self._versions.commit_updates(table, head, updates, (MAIN, *(branch for branch in ahead if branch)))
        return stored_versions.get(None)

    def accept_first(self, table: TableId) -> bool:
        """Accept a first version that was written without the catalog, see `IcebergNamespace.accept_first`."""
        head = self._versions.load_head(table, all_snapshots=False)
        if managed_by(head.entry.properties) != IMPL or find_latest_version(self._versions.storage_ref(head)) != 1:
            return False
        if head.find_ref(MAIN) is None:
            try:
                self.manage(table, IMPL, adopt=True)
            except ConcurrentModificationError:
                logger.debug("%s: its first version was accepted by somebody else", table)
        return True

    def _check_agreement(
        self, table: TableId, head: TableHead, stored_versions: Mapping[str | None, int], *, may_adopt: bool
    ) -> None:
        """Check that catalog and storage are at the same versions, or storage at later ones if `may_adopt`.

        Raises:
            InvalidTableStateError: they are not.
        """
        is_managed = managed_by(head.entry.properties) == IMPL
        for branch in dict.fromkeys((None, *stored_versions)):
            at, version = head.latest_version(branch), stored_versions.get(branch)
            agrees = version == at or (may_adopt and (version or 0) > (at or 0)) or (at is None and not is_managed)
            if not agrees:
                raise _version_mismatch_error(table, branch, at, version)

    def _publish_latest(self, table: TableId, head: TableHead, branch: str | None = None) -> None:
        """Publish the latest version of a branch that the catalog has accepted, unless that is done."""
        if (latest := head.latest_snapshot(branch)) is not None:
            self._versions.publish_version(table, head, branch, latest, trusts_catalog=False)

    def _stored_versions(self, head: TableHead) -> dict[str | None, int]:
        """Return the latest version of each branch in storage; the main branch is None."""
        ref = self._versions.storage_ref(head)
        versions: dict[str | None, int | None] = {None: find_latest_version(ref)}
        if versions[None] is not None:
            versions |= {
                name: find_latest_version(self._versions.storage_ref(head, name)) for name in list_branches(ref)
            }
        return {branch: version for branch, version in versions.items() if version is not None}

    def _adoption_updates(self, table: TableId, head: TableHead, ahead: Mapping[str | None, int]) -> list[Json]:
        """Return updates that add the versions in storage after the catalog's; just the latest if it has none."""
        store = self._versions.store_of(table, head)
        sequence = head.table.metadata.last_sequence_number
        updates: list[Json] = []
        for branch, version in ahead.items():
            at = head.latest_version(branch)
            first = version if at is None else at + 1
            files = list_manifests(self._versions.storage_ref(head, branch))
            new_versions = [
                _read_published_version(table, branch, file, store) for number, file in files.items() if number >= first
            ]
            if branch is None:
                updates += schema_updates(head, new_versions[-1].manifest.schema())
            updates += snapshot_updates(head, branch or MAIN, head.find_ref(branch or MAIN), new_versions, sequence)
            sequence = max(sequence + len(new_versions), version if branch is None else 0)
        return updates


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
    table: TableId, branch: str | None, at: int | None, stored_version: int | None
) -> InvalidTableStateError:
    if (stored_version or 0) > (at or 0):
        remedy = (
            "writers bypassed the catalog; stop them, then `lancehouse table manage --by impl --adopt` accepts what "
            "they wrote"
        )
    else:
        remedy = f"the manifest of version {at} is gone; restore it from a backup"
    of = f" of branch {branch}" if branch else ""
    descriptions = [
        f"no version{of}" if version is None else f"version {version}{of}" for version in (at, stored_version)
    ]
    return InvalidTableStateError(
        f"{table}: the catalog has {descriptions[0]}, storage has {descriptions[1]}: {remedy}"
    )


def _to_table_version(table: TableId, head: TableHead, branch: str | None, snapshot: Snapshot) -> TableVersion:
    version, summary = version_of_snapshot(branch, snapshot.snapshot_id), snapshot.summary
    if version is None:
        raise InvalidTableStateError(
            f"{table}: snapshot {snapshot.snapshot_id} of branch {branch or MAIN} is no version of Lance: an Iceberg "
            "client has written to the table; copy what it wrote, then drop the table and create it again with Lance"
        )
    metadata = {key.removeprefix(METADATA): value for key, value in summary.items() if key.startswith(METADATA)}
    return TableVersion(
        version=version,
        manifest_path=f"{root_path(head.entry.location)}/{manifest_path(branch, snapshot)}",
        manifest_size=int(summary[SIZE]) if summary.get(SIZE, "").isdecimal() else None,
        e_tag=summary.get(E_TAG),
        timestamp_millis=snapshot.timestamp_ms or None,
        metadata=metadata or None,
    )


def _unmanaged_snapshot(branch: str | None, version: int, file: str) -> Snapshot:
    """Return a snapshot for a version from before the catalog managed the table."""
    return Snapshot(snapshot_id=snapshot_id(branch, version), timestamp_ms=0, manifest_list=file)
