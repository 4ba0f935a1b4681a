"""Read the versions of tables whose versions an Iceberg catalog manages, as snapshots of the table's entry.

A client that finds an accepted version whose manifest is still staged publishes it: it moves the manifest to its final
path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lance_namespace import (
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
)
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.caches import BoundedCache
from lancehouse.clients import vended_credentials
from lancehouse.clients.catalog_namespace import Entry, get_location
from lancehouse.clients.snapshots import E_TAG, METADATA, SIZE, STAGED, TableHead
from lancehouse.clients.warehouse_namespace import VEND_HEADERS, WarehouseNamespace
from lancehouse.credentials import expires_soon
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, TableRef, manifest_folder, snapshot_id, version_of_snapshot
from lancehouse.lake.history import find_latest_version
from lancehouse.lake.manifests import (
    STAGING,
    ManifestStore,
    previous_manifest,
)
from lancehouse.lake.versions import list_manifests, root_path
from lancehouse.paging import paginate
from lancehouse.properties import IMPL, MANAGED_BY, STORAGE, managed_by, require_lance
from lancehouse.wire.iceberg import LatestTable, Snapshot, VersionedTable

logger = logging.getLogger(__name__)

REFS_ONLY = "snapshots=refs"
"""Query that asks a server to leave out the snapshots that no branch or tag refers to."""
CACHE_SIZE = 10_000
"""Number of tables, and of published manifests, that a client remembers."""


class ManagedVersions(WarehouseNamespace):
    """Versions of tables: from the catalog for tables with `managed_by=impl`, else from storage."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._heads: BoundedCache[TableId, TableHead] = BoundedCache(CACHE_SIZE)
        self._published: BoundedCache[tuple[str, str], None] = BoundedCache(CACHE_SIZE)

    def _is_managed(self, table: TableId, properties: Mapping[str, str]) -> bool:  # noqa: ARG002
        return managed_by(properties) == IMPL

    def _table_ref(self, table: TableId, entry: Entry, **at: Any) -> TableRef:
        """Refer to a managed table by its name, so that Lance asks the catalog for its versions."""
        if managed_by(entry.properties) == IMPL:
            return TableRef.in_namespace(self, table.parts, **at)
        return super()._table_ref(table, entry, **at)

    # Reading versions

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """List the versions of a branch, oldest first unless `descending`."""
        table, branch = self._parse_table_id(request.id), normalize_branch(request.branch)
        only_latest = request.limit == 1 and bool(request.descending) and not request.page_token
        head = self._find_managed_head(table, all_snapshots=not only_latest)
        if head is None:
            return super().list_table_versions(request)
        if only_latest:
            return ListTableVersionsResponse(versions=self._list_latest(table, head, branch))
        if branch and head.find_ref(branch) is None:
            return super().list_table_versions(request)  # a branch from before the catalog managed the table, or none
        versions = self._list_versions(table, head, branch)
        listing = paginate(versions, request.limit, request.page_token, descending=bool(request.descending))
        return ListTableVersionsResponse(versions=list(listing.items.values()), page_token=listing.token)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Return one version of a branch, by default the latest."""
        table, branch, version = self._parse_table_id(request.id), normalize_branch(request.branch), request.version
        head = self._find_managed_head(table, all_snapshots=version is not None)
        if head is None:
            return super().describe_table_version(request)
        wanted_id = head.find_ref(branch or MAIN)
        if branch and wanted_id is None:
            raise TableBranchNotFoundError(f"{table} has no branch {branch}")
        if version is not None:
            wanted_id = snapshot_id(branch, version)
        snapshot = head.snapshots.get(wanted_id) if wanted_id is not None else None
        if snapshot is None and version is not None and version < min(head.snapshots_by_version(branch), default=0):
            return super().describe_table_version(request)  # from before the catalog managed the table
        if snapshot is None or (version is not None and not self._is_stored(table, head, branch, snapshot)):
            raise TableVersionNotFoundError(f"{table} has no version {version if version is not None else 'yet'}")
        return DescribeTableVersionResponse(version=self._publish_version(table, head, branch, snapshot))

    def _list_latest(self, table: TableId, head: TableHead, branch: str | None) -> list[TableVersion]:
        """Return the latest version of a branch in a list, which is empty if there is none.

        Raises:
            InvalidTableStateError: the catalog has no version, but storage has one, which Lance would take for the
                table's.
        """
        head_id = head.find_ref(branch or MAIN)
        if head_id is not None:
            return [self._publish_version(table, head, branch, head.snapshots[head_id])]
        if branch is None and (stored := find_latest_version(self._storage_ref(head))) is not None:
            # The first version may have been committed and published after the head was loaded: only a head that was
            # loaded after storage was read proves that the catalog does not know it.
            reloaded = self._find_managed_head(table, all_snapshots=False)
            if reloaded is None or reloaded.find_ref(MAIN) is None:
                raise unknown_version_error(table, stored)
            return self._list_latest(table, reloaded, branch)
        return []

    def _find_managed_head(self, table: TableId, *, all_snapshots: bool) -> TableHead | None:
        """Load the table's head from the catalog and cache it; return None if its versions are managed by storage."""
        head = self._load_head(table, all_snapshots=all_snapshots)
        if managed_by(head.entry.properties) == IMPL:
            return self._heads.put(table, head)
        self._heads.forget(table)
        return None

    def _load_head(self, table: TableId, *, all_snapshots: bool) -> TableHead:
        loaded = self._call_warehouse(
            table.namespace.catalog,
            lambda at: self._rest.get(
                at.table_path(table),
                VersionedTable if all_snapshots else LatestTable,
                query="" if all_snapshots else REFS_ONLY,
                about=table,
                headers=VEND_HEADERS,
                on={404: TableNotFoundError},
            ),
        )
        properties = loaded.metadata.properties or {}
        require_lance(table, properties)
        location = loaded.metadata.location or ""
        vended = vended_credentials.from_iceberg(location, loaded.config, loaded.storage_credentials)
        return TableHead(Entry(location, properties, vended), loaded)

    def _cached_head(self, table: TableId) -> TableHead:
        """Return the table's cached head, or load it. It may be out of date: the catalog checks every commit.

        Raises:
            InvalidInputError: the table's versions are not managed by the catalog.
        """
        head = self._heads.get(table)
        if head is not None and not expires_soon(head.entry.vended):
            return head
        head = self._find_managed_head(table, all_snapshots=False)
        if head is None:
            raise InvalidInputError(
                f"{table}: its versions are managed by its storage ({MANAGED_BY}={STORAGE}); "
                f"`lancehouse table manage --by {IMPL}` lets the catalog manage them"
            )
        return head

    def _forget_heads(self, tables: Iterable[TableId]) -> None:
        for table in tables:
            self._heads.forget(table)

    def _list_versions(self, table: TableId, head: TableHead, branch: str | None) -> dict[int, TableVersion]:
        """Return the accepted versions that still exist, and those from before the catalog managed the table."""
        accepted, stored = head.snapshots_by_version(branch), list_manifests(self._storage_ref(head, branch))
        oldest, newest = min(accepted, default=0), max(stored, default=0)
        versions = {
            version: _to_table_version(head, branch, _unmanaged_snapshot(branch, version, file))
            for version, file in stored.items()
            if version < oldest
        }
        # Accepted versions that storage lacks were cleaned up, unless they are newer than all that it has: those are
        # accepted but not yet published.
        for version, snapshot in accepted.items():
            if version in stored:
                versions[version] = _to_table_version(head, branch, snapshot)
            elif version > newest:
                versions[version] = self._publish_version(table, head, branch, snapshot)
        return versions

    def _publish_version(self, table: TableId, head: TableHead, branch: str | None, snapshot: Snapshot) -> TableVersion:
        """Publish the manifest of an accepted version, unless that is done, and return the version."""
        if staged := snapshot.summary.get(STAGED):
            files = ManifestStore(get_location(table, head.entry), self._storage_options(head.entry))
            self._publish_manifest(files, staged, _manifest_path(branch, snapshot))
        return _to_table_version(head, branch, snapshot)

    def _is_stored(self, table: TableId, head: TableHead, branch: str | None, snapshot: Snapshot) -> bool:
        """Return whether storage still has the manifest of an accepted version, published or staged."""
        files = ManifestStore(get_location(table, head.entry), self._storage_options(head.entry))
        staged = snapshot.summary.get(STAGED)
        return files.exists(_manifest_path(branch, snapshot)) or (staged is not None and files.exists(staged))

    def _publish_manifest(self, files: ManifestStore, staged: str, final: str) -> None:
        """Move a staged manifest to its final path, unless this client has seen it there."""
        if (files.location, staged) in self._published:
            return
        # A transaction may stage several versions of a table, of which the catalog's ref names the last: publish the
        # earlier ones first.
        if staged.startswith(STAGING) and files.exists(previous_manifest(staged)):
            self._publish_manifest(files, previous_manifest(staged), previous_manifest(final))
        files.publish(staged, final)
        self._published.put((files.location, staged), None)

    def manifest_store(self, table: TableId) -> ManifestStore:
        """Return the store of a table's manifests, with location and storage options."""
        entry = self._cached_head(table).entry
        return ManifestStore(get_location(table, entry), self._storage_options(entry))

    def _storage_ref(self, head: TableHead, branch: str | None = None) -> TableRef:
        return TableRef(
            head.entry.location, self._storage_options(head.entry), branch=branch, confinement=self.confinement
        )

    def table_id(self, id: Sequence[str] | None) -> TableId:
        """Parse the table id of a request."""
        return self._parse_table_id(id)


def unknown_version_error(table: TableId, version: int) -> InvalidTableStateError:
    """Return the error for a table of which storage has a version that the catalog does not know."""
    return InvalidTableStateError(
        f"{table}: storage has a version {version} that the catalog does not know: the catalog was restored from an "
        "older copy, or a writer went past the catalog; stop the writers, then "
        "`lancehouse table manage --by impl --adopt` accepts what is there"
    )


def _to_table_version(head: TableHead, branch: str | None, snapshot: Snapshot) -> TableVersion:
    version, summary = version_of_snapshot(branch, snapshot.snapshot_id), snapshot.summary
    assert version is not None
    metadata = {key.removeprefix(METADATA): value for key, value in summary.items() if key.startswith(METADATA)}
    return TableVersion(
        version=version,
        manifest_path=f"{root_path(head.entry.location)}/{_manifest_path(branch, snapshot)}",
        manifest_size=int(summary[SIZE]) if summary.get(SIZE, "").isdecimal() else None,
        e_tag=summary.get(E_TAG),
        timestamp_millis=snapshot.timestamp_ms or None,
        metadata=metadata or None,
    )


def _manifest_path(branch: str | None, snapshot: Snapshot) -> str:
    return f"{manifest_folder(branch)}/{snapshot.manifest_list.rpartition('/')[2]}"


def _unmanaged_snapshot(branch: str | None, version: int, file: str) -> Snapshot:
    """Return a snapshot for a version from before the catalog managed the table."""
    return Snapshot(snapshot_id=snapshot_id(branch, version), timestamp_ms=0, manifest_list=file)


def normalize_branch(name: str | None) -> str | None:
    """Return the branch that a request names; None for the main branch."""
    return None if name in (None, "", MAIN) else name
