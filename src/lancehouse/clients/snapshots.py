"""Map Lance versions to Iceberg snapshots: read them from a table's entry, build the request of a commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lance_namespace import CreateTableVersionResponse, TableVersion
from lance_namespace.errors import InvalidInputError

from lancehouse import locations
from lancehouse.clients.catalog_namespace import Entry
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN, snapshot_id, version_of_snapshot
from lancehouse.lake.history import ICEBERG_OPERATION_NAMES
from lancehouse.lake.manifests import Manifest, ManifestStore
from lancehouse.wire.iceberg import (
    CommitTable,
    Snapshot,
    SnapshotRef,
    TableIdentifier,
    VersionedTable,
)

Json = dict[str, Any]

STAGED, SIZE, E_TAG = "lance.manifest.staged", "lance.manifest.size", "lance.manifest.e-tag"
"""Path of the staged manifest below the table's location, size of the manifest in bytes, and its entity tag."""
COLUMNS, TRANSACTION, VERSION, BRANCH = "lance.columns", "lance.transaction", "lance.version", "lance.branch"
"""Digest of the columns, uuid of Lance's transaction, version number, and branch unless it is main."""
OPERATION, METADATA = "lance.operation", "lance.metadata."
"""Lance's operation, and the prefix of metadata that a client gave. All of these are keys of a snapshot's summary."""

LAST_ADDED = -1
"""Schema id that stands for the schema added by the same request."""


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

    @property
    def ref_name(self) -> str:
        """Name of the branch in Iceberg."""
        return self.branch or MAIN

    @property
    def snapshot_id(self) -> int:
        """Snapshot id of the version in the catalog."""
        return snapshot_id(self.branch, self.manifest.version)

    def to_table_version(self) -> TableVersion:
        """Convert to the interface's model of a version."""
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

    @property
    def is_lance_aware(self) -> bool:
        """Whether the server knows Lance tables, and therefore returns no location of Iceberg metadata."""
        return self.table.metadata_location is None

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """Snapshots by id."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}

    @property
    def branches(self) -> set[str]:
        """Names of all branches but main."""
        return {name for name, ref in self.table.metadata.refs.items() if ref.type == "branch" and name != MAIN}

    @property
    def latest_snapshot(self) -> Snapshot | None:
        """Current snapshot of the main branch; None before the first version."""
        head_id = self.find_ref(MAIN)
        return None if head_id is None else self.snapshots[head_id]

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

    def tag_ref_name(self, name: str) -> str:
        """Return the ref name of a Lance tag: in Iceberg, unlike in Lance, a tag cannot have the name of a branch."""
        return f"tag:{name}" if name == MAIN or name in self.branches else name

    def has_update(self, update: Json) -> bool:
        """Return whether the effect of an update is visible in this head."""
        match update:
            case {"action": "set-properties", "updates": new}:
                return bool(new.items() <= self.entry.properties.items())
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
        numbered = (
            (version_of_snapshot(branch, snapshot.snapshot_id), snapshot) for snapshot in self.table.metadata.snapshots
        )
        return {version: snapshot for version, snapshot in numbered if version is not None}

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
        referenced_ids = {ref.snapshot_id for ref in refs.values()}
        new_metadata = {
            "snapshots": [snapshot for snapshot in snapshots if snapshot.snapshot_id in referenced_ids],
            "refs": refs,
            "last_sequence_number": sequence,
        }
        return TableHead(
            self.entry, self.table.model_copy(update={"metadata": metadata.model_copy(update=new_metadata)})
        )


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
    if head.latest_snapshot is not None and head.latest_snapshot.summary.get(COLUMNS) == version.manifest.columns:
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
