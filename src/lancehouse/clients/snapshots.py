"""Lance's versions as Iceberg's snapshots: what an entry says of them, and what a commit asks for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lance_namespace import CreateTableVersionResponse, TableVersion
from lance_namespace.errors import InvalidInputError

from lancehouse import locations
from lancehouse.clients.namespace import Entry
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import MAIN
from lancehouse.lake.history import ICEBERG_WORDS, snapshot_id, version_of_snapshot
from lancehouse.lake.manifests import Manifest, Manifests
from lancehouse.wire.iceberg import (
    Snapshot,
    SnapshotRef,
    TableChange,
    TableIdentifier,
    VersionedTable,
)

Json = dict[str, Any]

STAGED, SIZE, E_TAG = "lance.manifest.staged", "lance.manifest.size", "lance.manifest.e-tag"
COLUMNS, TRANSACTION, VERSION, BRANCH = "lance.columns", "lance.transaction", "lance.version", "lance.branch"
OPERATION, METADATA = "lance.operation", "lance.metadata."
"""What the summary of a snapshot says besides Iceberg's own words."""

LAST_ADDED = -1


@dataclass(frozen=True, slots=True)
class Staged:
    """A version that Lance has staged, for the catalog to accept."""

    table: TableId
    branch: str | None
    manifest: Manifest
    root: str
    """The table's location, as Lance writes it in the paths of manifests."""
    staged: str
    final: str
    """Files below the table's location; `staged` is empty for a manifest that is in its place."""
    size: int
    e_tag: str | None = None
    metadata: Mapping[str, str] | None = None
    files: Manifests | None = field(default=None, repr=False, compare=False)
    """Where it lies."""

    @property
    def ref(self) -> str:
        """The branch, as Iceberg calls it."""
        return self.branch or MAIN

    @property
    def snapshot_id(self) -> int:
        """What the catalog knows the version by."""
        return snapshot_id(self.branch, self.manifest.version)

    def described(self) -> TableVersion:
        """The version, as the interface tells it."""
        return TableVersion(
            version=self.manifest.version,
            manifest_path=f"{self.root}/{self.final}",
            manifest_size=self.size,
            e_tag=self.e_tag,
            metadata=dict(self.metadata or {}) or None,
        )

    def response(self) -> CreateTableVersionResponse:
        """The answer to whoever staged it."""
        return CreateTableVersionResponse(version=self.described(), transaction_id=self.manifest.transaction)


@dataclass(frozen=True, slots=True)
class Head:
    """A table as the catalog has it, with the snapshots that the server told."""

    entry: Entry
    table: VersionedTable

    @property
    def is_aware(self) -> bool:
        """Whether the server knows what a Lance table is, and therefore tells no address of Iceberg metadata."""
        return self.table.metadata_location is None

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """By their ids."""
        return {each.snapshot_id: each for each in self.table.metadata.snapshots}

    @property
    def branches(self) -> set[str]:
        """All but the main one."""
        return {name for name, ref in self.table.metadata.refs.items() if ref.type == "branch" and name != MAIN}

    @property
    def latest(self) -> Snapshot | None:
        """The current version of the main branch; None before the first."""
        at = self.ref(MAIN)
        return None if at is None else self.snapshots[at]

    @property
    def timestamp_ms(self) -> int:
        """When it was last changed. Iceberg takes no snapshot from before, and the clocks of writers differ."""
        metadata = self.table.metadata
        return max([metadata.last_updated_ms, *(each.timestamp_ms for each in metadata.snapshots)])

    def ref(self, name: str) -> int | None:
        """The snapshot that a branch or tag names; None if there is none."""
        named = self.table.metadata.refs.get(name)
        return None if named is None else named.snapshot_id

    def tag(self, name: str) -> str:
        """What the catalog calls a tag of Lance: branches and tags share their names in Iceberg, and not in Lance."""
        return f"tag:{name}" if name == MAIN or name in self.branches else name

    def shows(self, update: Json) -> bool:
        """Whether an update can be seen in it."""
        match update:
            case {"action": "set-properties", "updates": new}:
                return bool(new.items() <= self.entry.properties.items())
            case {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": target}:
                return bool(self.ref(name) == target)
            case {"action": "remove-snapshot-ref", "ref-name": name}:
                return self.ref(name) is None
            case {"action": "remove-snapshots", "snapshot-ids": ids}:
                return not self.snapshots.keys() & set(ids)
        return True

    def version(self, branch: str | None) -> int | None:
        """The latest version of a branch; None if there is none."""
        at = self.ref(branch or MAIN)
        return None if at is None else version_of_snapshot(branch, at)

    def versions(self, branch: str | None) -> dict[int, Snapshot]:
        """The versions of a branch by their numbers."""
        told = ((version_of_snapshot(branch, each.snapshot_id), each) for each in self.table.metadata.snapshots)
        return {version: each for version, each in told if version is not None}

    def before(self, first: Staged) -> int | None:
        """Where a branch must be for a version to come next; None for the first one of all or of a new branch."""
        before = first.manifest.version - 1
        if first.branch is None:
            return before or None
        return None if self.ref(first.branch) is None else snapshot_id(first.branch, before)

    def after(self, change: TableChange) -> Head | None:
        """What a change that was made makes of it; None where only the server can tell."""
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
        named = {ref.snapshot_id for ref in refs.values()}
        changed = {
            "snapshots": [each for each in snapshots if each.snapshot_id in named],
            "refs": refs,
            "last_sequence_number": sequence,
        }
        return Head(self.entry, self.table.model_copy(update={"metadata": metadata.model_copy(update=changed)}))


def change(table: TableId, head: Head, versions: Sequence[Staged]) -> TableChange:
    """The request that has the catalog accept versions of a table, each branch from where it is.

    Raises:
        InvalidInputError: versions do not follow each other.
    """
    requirements: list[Json] = [{"type": "assert-table-uuid", "uuid": head.table.metadata.table_uuid}]
    updates: list[Json] = []
    sequence = head.table.metadata.last_sequence_number
    for ref in dict.fromkeys(each.ref for each in versions):
        line = [each for each in versions if each.ref == ref]
        numbers = [each.manifest.version for each in line]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise InvalidInputError(f"{table}: versions are accepted one after the other, not {numbers}")
        parent = head.before(line[0])
        requirements.append({"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": parent})
        if ref == MAIN:
            updates += _schema_updates(head, line[-1])
        updates += additions(head, ref, parent, line, sequence)
        sequence += len(line)
    identifier = TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
    return TableChange(identifier=identifier, requirements=requirements, updates=updates)


def additions(head: Head, ref: str, parent: int | None, line: Sequence[Staged], sequence: int) -> list[Json]:
    """Updates that put versions of one branch after its parent, and the branch at the last of them."""
    updates: list[Json] = []
    for each in line:
        sequence = max(sequence + 1, each.manifest.version if ref == MAIN else 0)
        updates.append({"action": "add-snapshot", "snapshot": _snapshot(each, head, parent, sequence)})
        parent = each.snapshot_id
    return [*updates, {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": parent}]


def schema_updates(head: Head, schema: Json) -> list[Json]:
    """What makes a schema the current one of an entry: a new one, or one that it has had; nothing if it is already."""
    metadata = head.table.metadata
    same = [each["schema-id"] for each in metadata.schemas if each.get("fields") == schema["fields"]]
    if metadata.current_schema_id in same:
        return []
    if same:
        return [{"action": "set-current-schema", "schema-id": same[-1]}]
    return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": LAST_ADDED}]


def _schema_updates(head: Head, newest: Staged) -> list[Json]:
    """What brings the entry's schema in step with the dataset's; as long as the columns are the same, nothing."""
    if head.latest is not None and head.latest.summary.get(COLUMNS) == newest.manifest.columns:
        return []
    return schema_updates(head, newest.manifest.schema())


def _snapshot(each: Staged, head: Head, parent: int | None, sequence: int) -> Json:
    operation = each.manifest.operation
    is_first = operation == "Overwrite" and each.manifest.version == 1
    summary = {
        "operation": "append" if is_first else ICEBERG_WORDS.get(operation, "replace"),
        OPERATION: operation,
        VERSION: str(each.manifest.version),
        BRANCH: each.branch,
        TRANSACTION: each.manifest.transaction,
        COLUMNS: each.manifest.columns,
        STAGED: each.staged or None,
        SIZE: str(each.size),
        E_TAG: each.e_tag,
        **{f"{METADATA}{key}": value for key, value in (each.metadata or {}).items()},
    }
    return {
        "snapshot-id": each.snapshot_id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": max(time.time_ns() // 1_000_000, head.timestamp_ms),
        "manifest-list": f"{locations.unreadable(head.entry.location)}/{each.final}",
        "summary": {key: value for key, value in summary.items() if value is not None},
    }
