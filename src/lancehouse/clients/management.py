"""Tables whose versions an Iceberg catalog manages: taken over and handed back, and kept in step with their storage."""

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

from lancehouse.clients.commits import ManagedCommits
from lancehouse.clients.namespace import Entry, place
from lancehouse.clients.recent import Recent
from lancehouse.clients.snapshots import Head, Json, Staged, additions, schema_updates
from lancehouse.clients.versions import REMEMBERED, branch_of
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.history import latest, snapshot_id
from lancehouse.lake.manifests import Manifest, Manifests
from lancehouse.lake.versions import branches, manifests, tags
from lancehouse.properties import FEW_METADATA_FILES, IMPL, MANAGED_BY, STORAGE, managed_by
from lancehouse.wire.iceberg import TableChange

logger = logging.getLogger(__name__)

IN_STEP_EVERY = 20
"""How often a commit looks whether old versions were cleaned up, and has the catalog forget them too."""
NOTHING_REMOVED = (1, 0)
"""The oldest version, and how many fewer there are than the latest one's number."""
ATTEMPTS = 5


class ManagedTables(ManagedCommits):
    """What a catalog has to do besides accepting versions."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        self._last_kept: Recent[TableId, tuple[int, int]] = Recent(REMEMBERED)

    def complete(self, versions: Sequence[Staged]) -> None:
        """As `ManagedCommits`; and now and then, the catalog forgets what was cleaned up."""
        super().complete(versions)
        for each in versions:
            if each.branch is None and each.manifest.version % IN_STEP_EVERY == 0:
                self._look_after(each.table)

    def _look_after(self, table: TableId) -> None:
        try:
            if self._is_out_of_step(table):
                self._keep_in_step(table)
        except LanceNamespaceError as error:
            logger.warning("%s: whether the catalog is in step with the table cannot be seen: %s", table, error)

    def _is_out_of_step(self, table: TableId) -> bool:
        """Whether versions were cleaned up since the last look, or tags made that the catalog does not know."""
        head = self._known(table)
        stored = manifests(self._place(head))
        kept = (min(stored, default=0), len(stored) - max(stored, default=0))
        is_new = self._last_kept.get(table) != kept and kept != NOTHING_REMOVED
        self._last_kept.put(table, kept)
        if is_new or head.is_aware:
            return is_new
        return any(head.ref(head.tag(name)) != snapshot_id(*at) for name, at in tags(self._place(head)).items())

    def _register(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Make an entry for data that is there; the catalog accepts its latest version."""
        entry = super()._register(table, location, properties)
        if managed_by(entry.properties) == IMPL:
            try:
                self.manage_table(table.parts, IMPL, adopt=True)
            except LanceNamespaceError:
                self._delete_table(table)
                raise
        return entry

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions and the data that no other version needs; then the catalog forgets them."""
        table = self._table(request.id)
        head = self._head(table, whole=False)
        if head is not None:
            branch = branch_of(request.branch)
            self._complete(table, head, branch)
            stored = latest(self._place(head, branch))
            if stored != head.version(branch):
                at = self._known_now(table).version(branch)  # somebody may have committed in between
                if (stored or 0) > (at or 0):
                    raise _disagreement(table, branch, at, stored)
        response = super().batch_delete_table_versions(request)
        if head is not None:
            self._keep_in_step(table)
        return response

    def _known_now(self, table: TableId) -> Head:
        self._heads.forget(table)
        return self._known(table)

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        """Tag a version, by default one of the main branch; the catalog knows the tag too."""
        response = super().create_table_tag(request)
        self._keep_in_step(self._table(request.id))
        return response

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        """Let a tag point to another version, in the catalog too."""
        response = super().update_table_tag(request)
        self._keep_in_step(self._table(request.id))
        return response

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        """Delete a tag, in the catalog too; its version stays."""
        response = super().delete_table_tag(request)
        self._keep_in_step(self._table(request.id), gone_tag=request.tag)
        return response

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        """Delete a branch that no other one came from, in the catalog too."""
        response = super().delete_table_branch(request)
        self._keep_in_step(self._table(request.id), gone_branch=request.name)
        return response

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        """Branch off a version of another branch; one of the same name that pylance deleted is forgotten first."""
        table = self._table(request.id)
        head = self._head(table, whole=False)
        if head is not None and request.name in head.branches and request.name not in branches(self._place(head)):
            self._keep_in_step(table, gone_branch=request.name)
        return super().create_table_branch(request)

    def _keep_in_step(self, table: TableId, *, gone_tag: str | None = None, gone_branch: str | None = None) -> None:
        """Have the catalog forget versions that were cleaned up, and know Lance's tags.

        What was asked for is done already; if this cannot be, it is tried again at a later commit.
        """
        try:
            for _ in range(ATTEMPTS):
                if self._brought_in_step(table, gone_tag, gone_branch):
                    return
        except LanceNamespaceError as error:
            logger.warning("%s: the catalog could not be brought in step with the table: %s", table, error)

    def _brought_in_step(self, table: TableId, gone_tag: str | None, gone_branch: str | None) -> bool:
        head = self._head(table, whole=True)
        if head is None or head.ref(MAIN) is None:
            return True
        for branch in (None, *(head.branches - {gone_branch})):
            self._complete(table, head, branch)
        updates = self._ref_updates(head, gone_tag)
        if gone_branch in head.branches:
            updates.append({"action": "remove-snapshot-ref", "ref-name": gone_branch})
        updates += self._removals(head, gone_branch)
        if not updates:
            return True
        try:
            self._update(table, head, updates)
        except ConcurrentModificationError:
            return False
        return True

    def _ref_updates(self, head: Head, gone: str | None) -> list[Json]:
        """Tags of Lance that the catalog does not know, and one that goes. A server that knows Lance knows them."""
        if head.is_aware:
            return []
        updates: list[Json] = []
        known = head.snapshots
        for name, (branch, version) in tags(self._place(head)).items():
            target, ref = snapshot_id(branch, version), head.tag(name)
            if target in known and head.ref(ref) != target:
                updates.append({"action": "set-snapshot-ref", "ref-name": ref, "type": "tag", "snapshot-id": target})
        if gone is not None and head.ref(head.tag(gone)) is not None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": head.tag(gone)})
        return updates

    def _removals(self, head: Head, gone: str | None) -> list[Json]:
        """Snapshots of versions that storage has no more."""
        named = {ref.snapshot_id for name, ref in head.table.metadata.refs.items() if name != gone}
        stored = manifests(self._place(head))
        current = head.ref(MAIN) or 0
        doomed = [
            version
            for version in head.versions(None)
            if version < current and version not in stored and version not in named
        ]
        if gone in head.branches:
            doomed += [each.snapshot_id for each in head.versions(gone).values() if each.snapshot_id not in named]
        return [{"action": "remove-snapshots", "snapshot-ids": doomed}] if doomed else []

    # Who manages

    def manage_table(self, id: Sequence[str], by: str, *, adopt: bool = False) -> int | None:
        """Let the catalog (`impl`) or storage (`storage`) decide which version of a table is the current one.

        Writers that have the table open go on as they were told when they opened it: stop them first.

        Args:
            id: of the table.
            by: `impl` or `storage`.
            adopt: whether the catalog accepts versions that writers put into storage past it.

        Returns:
            The current version, None for a table without data.

        Raises:
            InvalidTableStateError: storage and catalog disagree on the versions; the text says how to heal it.
        """
        table, wanted = self._table(id), managed_by({MANAGED_BY: by})
        head = self._loaded(table, whole=True)
        is_managed = managed_by(head.entry.properties) == IMPL
        if is_managed:
            for branch in (None, *head.branches):
                self._complete(table, head, branch)
        stored = self._stored(head)
        if wanted == STORAGE and not is_managed:
            return stored.get(None)
        ahead = {branch: version for branch, version in stored.items() if version != head.version(branch)}
        if is_managed or not head.is_aware:
            self._check_agreement(table, head, stored, may_adopt=wanted == IMPL and (adopt or not is_managed))
        updates = _property_updates(head, wanted)
        if wanted == IMPL:
            updates += self._adoption(table, head, ahead)
        if updates:
            self._update(table, head, updates, (MAIN, *(branch for branch in ahead if branch)))
        return stored.get(None)

    def accept_first(self, id: Sequence[str]) -> bool:
        """Accept the first version of a table that was only declared, and that its creator put into storage alone.

        Lance 4 creates so, and commits through the catalog from then on. No version of the catalog is passed over.

        Returns:
            Whether there is a first version now; if not, nothing was done.
        """
        table = self._table(id)
        head = self._loaded(table, whole=False)
        if managed_by(head.entry.properties) != IMPL or latest(self._place(head)) != 1:
            return False
        if head.ref(MAIN) is None:
            try:
                self.manage_table(id, IMPL, adopt=True)
            except ConcurrentModificationError:
                logger.debug("%s: its first version was accepted by somebody else", table)
        return True

    def _check_agreement(
        self, table: TableId, head: Head, stored: Mapping[str | None, int], *, may_adopt: bool
    ) -> None:
        """See that catalog and storage are at the same versions, or storage at later ones if those may be adopted.

        Raises:
            InvalidTableStateError: they are not.
        """
        is_managed = managed_by(head.entry.properties) == IMPL
        for branch in dict.fromkeys((None, *stored)):
            at, version = head.version(branch), stored.get(branch)
            agrees = version == at or (may_adopt and (version or 0) > (at or 0)) or (at is None and not is_managed)
            if not agrees:
                raise _disagreement(table, branch, at, version)

    def _complete(self, table: TableId, head: Head, branch: str | None = None) -> None:
        """Put the latest version that the catalog accepted in its place, if it is not."""
        at = head.ref(branch or MAIN)
        if at is not None:
            self._completed(table, head, branch, head.snapshots[at])

    def _stored(self, head: Head) -> dict[str | None, int]:
        """The latest version of each branch that storage has."""
        ref = self._place(head)
        found: dict[str | None, int | None] = {None: latest(ref)}
        if found[None] is not None:
            found |= {name: latest(self._place(head, name)) for name in branches(ref)}
        return {branch: version for branch, version in found.items() if version is not None}

    def _adoption(self, table: TableId, head: Head, ahead: Mapping[str | None, int]) -> list[Json]:
        """Updates by which the catalog accepts what storage has after the version that it is at, or the latest."""
        options = self._options(head.entry)
        reader = Manifests(place(table, head.entry), options)
        sequence = head.table.metadata.last_sequence_number
        updates: list[Json] = []
        for branch, version in ahead.items():
            at = head.version(branch)
            first = version if at is None else at + 1
            files = manifests(self._place(head, branch))
            line = [_in_place(table, branch, file, reader) for each, file in files.items() if each >= first]
            if branch is None:
                updates += schema_updates(head, line[-1].manifest.schema())
            updates += additions(head, branch or MAIN, head.ref(branch or MAIN), line, sequence)
            sequence = max(sequence + len(line), version if branch is None else 0)
        return updates

    def _update(self, table: TableId, head: Head, updates: Sequence[Json], refs: Sequence[str] = (MAIN,)) -> None:
        """Change an entry whose branches must not have moved on."""
        requirements: list[Json] = [{"type": "assert-table-uuid", "uuid": head.table.metadata.table_uuid}]
        requirements += [{"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head.ref(ref)} for ref in refs]
        change = TableChange(requirements=requirements, updates=list(updates))
        try:
            self._commit([table], [change], lambda: self._is_updated(table, updates))
        finally:
            self._heads.forget(table)

    def _is_updated(self, table: TableId, updates: Sequence[Json]) -> bool | None:
        """Whether all of some updates show; if not, they may yet."""
        head = self._loaded(table, whole=True)
        return all(map(head.shows, updates)) or None


def _property_updates(head: Head, wanted: str) -> list[Json]:
    """What makes an entry say who manages its versions; what its user has set stays."""
    few = FEW_METADATA_FILES if wanted == IMPL else {}
    new = {key: value for key, value in few.items() if key not in head.entry.properties}
    if managed_by(head.entry.properties) != wanted:
        new[MANAGED_BY] = wanted
    return [{"action": "set-properties", "updates": new}] if new else []


def _in_place(table: TableId, branch: str | None, file: str, reader: Manifests) -> Staged:
    """A version whose manifest is where it belongs already."""
    data = reader.read(file)
    return Staged(table, branch, Manifest.parse(data), "", "", file, len(data))


def _disagreement(table: TableId, branch: str | None, at: int | None, stored: int | None) -> InvalidTableStateError:
    if (stored or 0) > (at or 0):
        heal = (
            "writers went past the catalog; stop them, then `lancehouse table manage --by impl --adopt` accepts what "
            "they wrote"
        )
    else:
        heal = f"the manifest of version {at} is gone; restore it from a backup"
    of = f" of branch {branch}" if branch else ""
    said = [f"no version{of}" if version is None else f"version {version}{of}" for version in (at, stored)]
    return InvalidTableStateError(f"{table}: the catalog has {said[0]}, storage has {said[1]}: {heal}")
