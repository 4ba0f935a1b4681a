"""Versions that an Iceberg catalog manages, as snapshots of the table's entry: which there are, and where they lie.

Whoever sees that a version was accepted puts its manifest in its final place.
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

from lancehouse.clients import credentials
from lancehouse.clients.namespace import Entry, place
from lancehouse.clients.recent import Recent
from lancehouse.clients.snapshots import E_TAG, METADATA, SIZE, STAGED, Head
from lancehouse.clients.warehouses import VEND, WarehouseNamespace
from lancehouse.credentials import expires_soon
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.lake.history import latest, snapshot_id, version_of_snapshot
from lancehouse.lake.manifests import (
    STAGING,
    Manifests,
    before,
)
from lancehouse.lake.versions import folder_of, manifests, root_path
from lancehouse.paging import page
from lancehouse.properties import IMPL, MANAGED_BY, STORAGE, managed_by, require_lance
from lancehouse.wire.iceberg import LatestTable, Snapshot, VersionedTable

logger = logging.getLogger(__name__)

LEAST = "snapshots=refs"
"""Asks a server to leave out the snapshots that no branch or tag needs."""
REMEMBERED = 10_000
"""How many tables and manifests a client remembers."""


class ManagedVersions(WarehouseNamespace):
    """The versions of tables, by the catalog for those with `managed_by=impl`, else as storage has them."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._heads: Recent[TableId, Head] = Recent(REMEMBERED)
        self._finished: Recent[tuple[str, str], None] = Recent(REMEMBERED)

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
                VersionedTable if whole else LatestTable,
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
        return TableRef(head.entry.location, self._options(head.entry), branch=branch, confinement=self.confinement)

    def table_id(self, id: Sequence[str] | None) -> TableId:
        """The table that a request names."""
        return self._table(id)


def stray(table: TableId, version: int) -> InvalidTableStateError:
    """What is wrong with a table of which storage has a version that the catalog does not know."""
    return InvalidTableStateError(
        f"{table}: storage has a version {version} that the catalog does not know: the catalog was restored from an "
        "older copy, or a writer went past the catalog; stop the writers, then "
        "`lancehouse table manage --by impl --adopt` accepts what is there"
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
    """The branch that a request names; None for the main one."""
    return None if name in (None, "", MAIN) else name
