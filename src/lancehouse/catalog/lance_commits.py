"""Decide what an UpdateTable request changes in the catalog entry of a Lance table.

Nothing is written here: `decide` checks the requirements and turns the updates into an `EntryChange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse import locations as places
from lancehouse.catalog.iceberg import schemas
from lancehouse.catalog.lance_metadata import is_on_branch
from lancehouse.lake.dataset import MAIN, VERSION_BITS, snapshot_id, version_of_snapshot
from lancehouse.maintenance_policy import check_properties
from lancehouse.properties import IMPL, LANCE, MANAGED_BY, STORAGE, TABLE_TYPE, is_lance, managed_by
from lancehouse.store.model import EntryRow, Json, RefRow, SnapshotRow

SNAPSHOT_CHANGES = frozenset({"add-snapshot", "set-snapshot-ref", "remove-snapshots", "remove-snapshot-ref"})
"""Updates that change versions, which only a table with `managed_by=impl` accepts."""

FIXED_IDS: Mapping[str, tuple[str, int, str]] = {
    "assert-current-schema-id": ("current-schema-id", 1, "current schema changed"),
    "assert-last-assigned-partition-id": ("last-assigned-partition-id", 999, "last assigned partition id changed"),
    "assert-default-spec-id": ("default-spec-id", 0, "default partition spec changed"),
    "assert-default-sort-order-id": ("default-sort-order-id", 0, "default sort order changed"),
}
"""Requirements on ids that are the same for every Lance table: key of the id, its value, message of a failure."""

MAX_ID = 2**63 - 1
"""Largest snapshot id."""
LAST_ADDED = -1
"""Schema id by which `set-current-schema` refers to the schema added last."""


class LanceTableState(Protocol):
    """The current state of a table, as far as `decide` asks for it. Each call may read from storage."""

    def current_version(self) -> int | None:
        """Return the current version, or None if the table has no data."""

    def latest_stored_version(self) -> int | None:
        """Return the latest version in storage, whoever manages the table, or None."""

    def ref_snapshot_id(self, name: str) -> int | None:
        """Return the id of the snapshot that a branch or tag points to, or None if there is no such ref."""

    def branches(self) -> Mapping[str, int]:
        """Return the branches besides main whose versions the catalog accepts, with the current snapshot of each."""

    def stored_schema(self, version: int) -> Json:
        """Return the Iceberg schema of a version in storage."""

    def stored_branches(self) -> Mapping[str, int]:
        """Return the branches besides main in storage, whoever manages the table, with the latest snapshot of each."""

    def accepted_snapshot_ids(self, branch: str) -> Sequence[int]:
        """Return the ids of the snapshots that the catalog accepted on a branch besides main."""

    def last_column_id(self) -> int:
        """Return the highest field id."""

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Return whether the table has this snapshot."""


@dataclass
class EntryChange:
    """The changes that a request makes to an entry: new column values, and changes of snapshots and refs."""

    values: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for `repository.advance_entry`."""
    snapshots: list[SnapshotRow] = field(default_factory=list)
    """Snapshots to add, branch by branch, those of main last."""
    removed_snapshots: list[int] = field(default_factory=list)
    """Ids of the snapshots to remove."""
    refs: dict[str, RefRow | None] = field(default_factory=dict)
    """Refs to change, except main: the new ref, or None to remove it."""
    clears_history: bool = False
    """Whether all snapshots and refs of the entry are deleted first, because management passes to or from storage."""

    @property
    def is_empty(self) -> bool:
        """Whether the entry stays as it is."""
        return not (self.values or self.snapshots or self.removed_snapshots or self.refs)

    @property
    def operation(self) -> str:
        """The kind of change in one word, for the record of commits."""
        if self.snapshots:
            return self.snapshots[-1].summary.get("operation", "append")
        return "snapshots" if self.removed_snapshots or self.refs else "properties"

    @property
    def overwrites(self) -> bool:
        """Whether a new version replaces all rows of the one before."""
        return any(row.summary.get("lance.operation") == "Overwrite" for row in self.snapshots)

    @property
    def snapshot_id(self) -> int | None:
        """Id of the new current snapshot, of main or else of a branch, for the record of commits; None if unchanged."""
        if "version" in self.values or not self.snapshots:
            return self.values.get("version")
        return self.snapshots[-1].snapshot_id


def decide(
    entry: EntryRow, state: LanceTableState, requirements: Sequence[Json], updates: Sequence[Json]
) -> EntryChange:
    """Decide what a commit changes in the entry of a Lance table.

    Raises:
        ConcurrentModificationError: a requirement does not hold; the client should read the table again and retry.
        InvalidInputError: the request is not valid for a Lance table; the message says why.
    """
    for requirement in requirements:
        _check_requirement(entry, state, requirement)
    branch_by_prefix = _branches_by_prefix(requirements, updates)
    if any(update.get("action") in SNAPSHOT_CHANGES for update in updates):
        _check_snapshot_change(entry, requirements, updates, branch_by_prefix)
    builder = _ChangeBuilder(entry, state, branch_by_prefix)
    for update in updates:
        apply_update = _ACTIONS.get(str(update.get("action")))
        if apply_update is None:
            raise InvalidInputError(f"a Lance table cannot do the update {update.get('action')!r}")
        apply_update(builder, update)
    return builder.build()


def _check_requirement(entry: EntryRow, state: LanceTableState, requirement: Json) -> None:
    match requirement:
        case {"type": "assert-create"}:
            raise ConcurrentModificationError("Requirement failed: table already exists")
        case {"type": "assert-table-uuid", "uuid": str(uuid)}:
            if uuid.lower() != entry.uuid:
                _fail_requirement(f"UUID does not match: expected {uuid} != {entry.uuid}")
        case {"type": "assert-ref-snapshot-id", "ref": str(ref)}:
            expected, actual = requirement.get("snapshot-id"), state.ref_snapshot_id(ref)
            if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int)):
                raise InvalidInputError(f"assert-ref-snapshot-id: snapshot-id must be a number or null: {expected!r}")
            if expected == actual:
                return
            if expected is None:
                _fail_requirement(f"branch {ref} was created concurrently")
            if actual is None:
                _fail_requirement(f"branch or tag {ref} is missing, expected {expected}")
            _fail_requirement(f"branch {ref} has changed: expected id {expected} != {actual}")
        case {"type": "assert-last-assigned-field-id", "last-assigned-field-id": int(expected)}:
            if expected != (actual := state.last_column_id()):
                _fail_requirement(f"last assigned field id changed: expected id {expected} != {actual}")
        case {"type": str(kind)} if kind in FIXED_IDS:
            key, fixed, words = FIXED_IDS[kind]
            if type(requirement.get(key)) is not int:
                raise InvalidInputError(f"requirement {kind} needs {key}, a whole number")
            if requirement[key] != fixed:
                _fail_requirement(f"{words}: expected id {requirement[key]} != {fixed}")
        case _:
            raise InvalidInputError(f"unknown or incomplete requirement: {requirement.get('type')!r}")


def _fail_requirement(message: str) -> None:
    raise ConcurrentModificationError(f"Requirement failed: {message}")


def _check_snapshot_change(
    entry: EntryRow, requirements: Sequence[Json], updates: Sequence[Json], branch_by_prefix: Mapping[int, str]
) -> None:
    """Refuse a change of versions that lacks the requirement it is compared with, or that the catalog does not manage.

    Without `assert-ref-snapshot-id` on each branch that changes, two writers of the same version would both win.
    """
    if managed_by(entry.properties) == STORAGE:
        raise InvalidInputError(
            f"the versions of this table are managed by its storage ({MANAGED_BY}={STORAGE}): commit with Lance at "
            f"{entry.location}, or let the catalog manage them by the property {MANAGED_BY}={IMPL}"
        )
    _check_branch_targets(updates)
    for branch in _changed_branches(updates, branch_by_prefix):
        if branch not in _asserted_refs(requirements):
            raise InvalidInputError(
                f"a change of versions needs the requirement assert-ref-snapshot-id on {branch}, with the version that "
                "it was made from (null for none)"
            )


def _branches_by_prefix(requirements: Sequence[Json], updates: Sequence[Json]) -> dict[int, str]:
    """Return the branches besides main that a commit names, by the upper half of their snapshot ids.

    All other ids belong to main.
    """
    moved_branches = {name for name, target in _branch_targets(updates) if is_on_branch(name, target)}
    return {
        _id_prefix(snapshot_id(name, 0)): name
        for name in (*_asserted_refs(requirements), *moved_branches)
        if name != MAIN
    }


def _asserted_refs(requirements: Sequence[Json]) -> list[str]:
    return [requirement["ref"] for requirement in requirements if requirement["type"] == "assert-ref-snapshot-id"]


def _branch_targets(updates: Sequence[Json]) -> Iterator[tuple[str, int]]:
    """Yield the branches besides main that are set, with the id of their new snapshot."""
    for update in updates:
        match update:
            case {"action": "set-snapshot-ref", "type": "branch", "ref-name": str(name), "snapshot-id": int(target)}:
                if name not in ("", MAIN):
                    yield name, target


def _check_branch_targets(updates: Sequence[Json]) -> None:
    """Refuse a branch that is set to a new snapshot of another branch.

    A branch may point to a new snapshot of main only if main moves there in the same commit.
    """
    if any((update.get("action"), update.get("ref-name")) == SET_MAIN for update in updates):
        return
    added_ids = [_added_snapshot_id(update) for update in updates if update.get("action") == "add-snapshot"]
    for name, target in _branch_targets(updates):
        if target in added_ids and not is_on_branch(name, target):
            raise InvalidInputError(
                f"snapshot-id {target} is not one of branch {name}, whose version 1 is {snapshot_id(name, 1)}"
            )


def _changed_branches(updates: Sequence[Json], branch_by_prefix: Mapping[int, str]) -> Iterator[str]:
    """Yield the branches whose versions change."""
    for update in updates:
        match update:
            case {"action": "add-snapshot"}:
                yield branch_by_prefix.get(_id_prefix(_added_snapshot_id(update)), MAIN)
            case {"action": "remove-snapshots", "snapshot-ids": [*ids]} if ids:
                yield from (branch_by_prefix.get(_id_prefix(removed_id), MAIN) for removed_id in ids)
            case {"action": "remove-snapshots"} | {"action": "set-snapshot-ref", "ref-name": "main"}:
                yield MAIN


def _added_snapshot_id(update: Json) -> object:
    snapshot = update.get("snapshot")
    return snapshot.get("snapshot-id") if isinstance(snapshot, dict) else None


def _id_prefix(id: object) -> int:
    """Return the upper half of a snapshot id, which identifies the branch: 0 for main and for what is not an id."""
    return id >> VERSION_BITS if type(id) is int else 0


SET_MAIN = ("set-snapshot-ref", MAIN)


class _ChangeBuilder:
    """Applies the updates of one request in order, and builds the resulting `EntryChange`."""

    def __init__(self, entry: EntryRow, state: LanceTableState, branch_by_prefix: Mapping[int, str]) -> None:
        self.entry = entry
        self.state = state
        self.branch_by_prefix = branch_by_prefix
        self.properties = dict(entry.properties)
        self.change = EntryChange()
        self.added: dict[str, dict[int, SnapshotRow]] = {}
        """Added snapshots by id, for each branch."""
        self.main: int | None = None
        """The snapshot that main is set to, or None."""
        self.schemas: dict[int, Json] = {}
        """Added schemas by id."""

    def build(self) -> EntryChange:
        """Return the change, after the checks that need all updates.

        Raises:
            InvalidInputError: the updates do not fit together.
        """
        for branch, rows_by_id in sorted(self.added.items(), key=lambda item: (item[0] == MAIN, item[0])):
            head = self._new_head(branch)
            if head is None:
                raise InvalidInputError(f"add-snapshot needs set-snapshot-ref of {branch} in the same commit")
            if head != max(rows_by_id):
                raise InvalidInputError(f"{branch} must be set to the newest snapshot added, {max(rows_by_id)}")
            self.change.snapshots += [row for _, row in sorted(rows_by_id.items())]
        if self.main is not None:
            if self.main not in self.added.get(MAIN, ()):
                raise InvalidInputError(f"Cannot set main to a snapshot of another branch: {self.main}")
            # Also if the removal stands before the addition in the list: new snapshots are stored first.
            if self.main in self.change.removed_snapshots:
                raise InvalidInputError(f"Cannot remove the current snapshot {self.main}")
            self.change.values["version"] = self.main
        self._decide_branches()
        self._decide_properties()
        return self.change

    def _new_head(self, branch: str) -> int | None:
        """Return the snapshot that this commit sets a branch to, or None."""
        if branch == MAIN:
            return self.main
        ref = self.change.refs.get(branch)
        return ref.snapshot_id if ref is not None and ref.kind == "branch" else None

    def _decide_branches(self) -> None:
        """Remove accepted snapshots after the one that a branch is set back to, and all of a removed branch."""
        if not any(map(_id_prefix, self.change.removed_snapshots)) and not self.change.refs:
            return
        after = self._branches_after()
        for name, head in after.items():
            if head in self.change.removed_snapshots:
                raise InvalidInputError(f"Cannot remove the current snapshot of {name}, {head}")
        for name, before in self.state.branches().items():
            if (head := after.get(name, 0)) < before:
                self.change.removed_snapshots += [
                    accepted_id for accepted_id in self.state.accepted_snapshot_ids(name) if accepted_id > head
                ]

    def _branches_after(self) -> dict[str, int]:
        """Return what `LanceTableState.branches` will return after the change."""
        unchanged = {name: head for name, head in self.state.branches().items() if name not in self.change.refs}
        heads = {name: head for name in self.change.refs if (head := self._new_head(name)) is not None}
        return unchanged | {name: head for name, head in heads.items() if is_on_branch(name, head)}

    def _decide_properties(self) -> None:
        """Add changed properties, and the move between `managed_by=storage` and `impl` that they may imply."""
        properties = {**self.properties, MANAGED_BY: managed_by(self.properties)}
        before, after = self.entry.properties[MANAGED_BY], properties[MANAGED_BY]
        self.change.clears_history = before != after
        if (before, after) == (STORAGE, IMPL):
            version = self.change.values["version"] = self.state.current_version()
            if version is not None:
                # From now on the entry's schema counts. It was not kept up to date while storage managed the versions.
                self.change.values.setdefault("schema", self.state.stored_schema(version))
        elif (before, after) == (IMPL, STORAGE):
            self._hand_over_to_storage()
        if properties != dict(self.entry.properties):
            self.change.values["properties"] = properties

    def _hand_over_to_storage(self) -> None:
        """Let storage manage the versions from now on.

        Raises:
            InvalidInputError: catalog and storage differ: a version whose manifest is not yet in its final location
                would silently be lost.
        """
        if self.added:
            raise InvalidInputError(f"{MANAGED_BY} cannot change in the commit of a version")
        stored = self.state.latest_stored_version()
        if stored != self.entry.version:
            raise InvalidInputError(
                f"the catalog is at version {self.entry.version}, storage at {stored}: {MANAGED_BY} can change to "
                f"{STORAGE} when they agree; open the table once through the catalog, which finishes what is pending"
            )
        branches = self._branches_after()
        stored_heads = self.state.stored_branches() if branches else {}
        for name, head in branches.items():
            if stored_heads.get(name) != head:
                catalog_version, storage_version = (
                    snapshot and version_of_snapshot(name, snapshot) for snapshot in (head, stored_heads.get(name))
                )
                raise InvalidInputError(
                    f"the catalog is at version {catalog_version} of branch {name}, storage at {storage_version}: "
                    f"{MANAGED_BY} can change to "
                    f"{STORAGE} when they agree; open the branch once through the catalog, or remove it"
                )
        self.change.values["version"] = None

    def set_properties(self, update: Json) -> None:
        new = _parse_strings(update, "updates")
        check_properties(new)
        if not is_lance({**self.properties, **new}):
            raise InvalidInputError(f"{TABLE_TYPE} of a Lance table stays {LANCE!r}, not {new[TABLE_TYPE]!r}")
        self.properties |= {**new, TABLE_TYPE: LANCE}

    def remove_properties(self, update: Json) -> None:
        removals = update.get("removals")
        if not isinstance(removals, list) or not all(isinstance(key, str) for key in removals):
            raise InvalidInputError("remove-properties: removals must be a list of texts")
        if TABLE_TYPE in removals:
            raise InvalidInputError(f"{TABLE_TYPE} of a Lance table cannot be removed")
        for key in removals:
            self.properties.pop(key, None)

    def add_snapshot(self, update: Json) -> None:
        row = _parse_snapshot(update.get("snapshot"))
        branch = self.branch_by_prefix.get(_id_prefix(row.snapshot_id), MAIN)
        current = self._current_snapshot_id(branch)
        if row.snapshot_id <= current:
            raise InvalidInputError(f"snapshot-id {row.snapshot_id} must be greater than the current one, {current}")
        if branch != MAIN and "sequence-number" not in update["snapshot"]:
            row = replace(row, sequence=row.snapshot_id - snapshot_id(branch, 0))
        rows_by_id = self.added.setdefault(branch, {})
        if row.snapshot_id in rows_by_id:
            raise InvalidInputError(f"snapshot-id {row.snapshot_id} is added twice")
        rows_by_id[row.snapshot_id] = row

    def _current_snapshot_id(self, branch: str) -> int:
        """Return the id of a branch's current snapshot; before its first own snapshot, an id below all of them."""
        if branch == MAIN:
            return self.entry.version or 0
        for other in self.state.branches():
            if other != branch and _id_prefix(snapshot_id(other, 0)) == _id_prefix(snapshot_id(branch, 0)):
                raise InvalidInputError(f"branch {branch} cannot be beside {other}: their names have the same checksum")
        current, before_first = self.state.ref_snapshot_id(branch), snapshot_id(branch, 0)
        return current if current is not None and is_on_branch(branch, current) else before_first

    def set_snapshot_ref(self, update: Json) -> None:
        name, kind = update.get("ref-name"), update.get("type")
        target = _parse_id(update, "snapshot-id", "set-snapshot-ref")
        if not isinstance(name, str) or not name or kind not in ("branch", "tag"):
            raise InvalidInputError("set-snapshot-ref needs ref-name, and as type branch or tag")
        if name != MAIN:
            if not self._is_added(target) and not self.state.has_snapshot(target):
                raise InvalidInputError(f"Cannot set {name} to unknown snapshot: {target}")
            self.change.refs[name] = RefRow(name, kind, target)
            return
        if kind != "branch":
            raise InvalidInputError("main is a branch")
        if target <= (self.entry.version or 0):
            raise InvalidInputError(
                f"main can only move on: snapshot-id {target} must be greater than the current one, "
                f"{self.entry.version}; to go back, restore the old version with Lance, which makes a new one"
            )
        if not self._is_added(target):
            raise InvalidInputError(f"Cannot set main to unknown snapshot: {target}")
        self.main = target

    def _is_added(self, target: int) -> bool:
        return any(target in rows_by_id for rows_by_id in self.added.values())

    def remove_snapshots(self, update: Json) -> None:
        ids = update.get("snapshot-ids")
        if not isinstance(ids, list):
            raise InvalidInputError("remove-snapshots: snapshot-ids must be a list of numbers")
        ids = [_parse_id({"snapshot-id": value}, "snapshot-id", "remove-snapshots") for value in ids]
        if self.entry.version in ids:
            raise InvalidInputError(f"Cannot remove the current snapshot {self.entry.version}")
        self.change.removed_snapshots += ids

    def remove_snapshot_ref(self, update: Json) -> None:
        name = update.get("ref-name")
        if not isinstance(name, str) or not name:
            raise InvalidInputError("remove-snapshot-ref needs ref-name")
        if name == MAIN:
            raise InvalidInputError("main cannot be removed")
        self.change.refs[name] = None

    def add_schema(self, update: Json) -> None:
        schema = schemas.parse_schema(update.get("schema"), "schema of add-schema")
        if managed_by(self.properties) == STORAGE and self.state.current_version() is not None:
            raise InvalidInputError("the schema of a Lance table is its dataset's: change it with Lance")
        # The request may refer to the new schema by the id it gave or as -1, but every Lance table's schema has id 1.
        self.schemas[schema["schema-id"]] = self.schemas[LAST_ADDED] = {**schema, "schema-id": 1}

    def set_current_schema(self, update: Json) -> None:
        schema_id = update.get("schema-id")
        if type(schema_id) is int and schema_id in self.schemas:
            self.change.values["schema"] = self.schemas[schema_id]
        elif type(schema_id) is not int or schema_id != 1:
            raise InvalidInputError(
                f"Cannot set current schema to unknown schema: {schema_id}; a Lance table has one, 1"
            )

    def assign_uuid(self, update: Json) -> None:
        if update.get("uuid") != self.entry.uuid:
            raise InvalidInputError(f"Cannot reassign uuid: this table's is {self.entry.uuid}")

    def set_location(self, update: Json) -> None:
        location = update.get("location")
        if not isinstance(location, str) or not places.is_same(location, self.entry.location):
            raise InvalidInputError(
                f"a Lance table stays at {self.entry.location}: to move it, copy its data, then register them"
            )

    def upgrade_format_version(self, update: Json) -> None:
        if update.get("format-version") not in (1, 2):
            raise InvalidInputError("a Lance table shows itself in Iceberg's format version 2, which stays")

    def check_no_layout(self, update: Json) -> None:
        """Refuse specs and sort orders that have fields: a Lance table has no partitioning or sort order of Iceberg."""
        for key in ("spec", "sort-order"):
            if isinstance(layout := update.get(key), dict) and layout.get("fields"):
                raise InvalidInputError(f"a Lance table has no Iceberg {key}")
        if update.get("spec-id", update.get("sort-order-id", 0)) not in (0, -1):
            raise InvalidInputError("a Lance table has only the spec and the sort order 0, which are empty")


_ACTIONS: Mapping[str, Callable[[_ChangeBuilder, Json], None]] = {
    "set-properties": _ChangeBuilder.set_properties,
    "remove-properties": _ChangeBuilder.remove_properties,
    "add-snapshot": _ChangeBuilder.add_snapshot,
    "set-snapshot-ref": _ChangeBuilder.set_snapshot_ref,
    "remove-snapshots": _ChangeBuilder.remove_snapshots,
    "remove-snapshot-ref": _ChangeBuilder.remove_snapshot_ref,
    "add-schema": _ChangeBuilder.add_schema,
    "set-current-schema": _ChangeBuilder.set_current_schema,
    "assign-uuid": _ChangeBuilder.assign_uuid,
    "set-location": _ChangeBuilder.set_location,
    "upgrade-format-version": _ChangeBuilder.upgrade_format_version,
    **dict.fromkeys(
        ("add-spec", "set-default-spec", "add-sort-order", "set-default-sort-order"), _ChangeBuilder.check_no_layout
    ),
}


def _parse_snapshot(snapshot: object) -> SnapshotRow:
    if not isinstance(snapshot, dict):
        raise InvalidInputError("add-snapshot: snapshot must be an object")
    where = "snapshot of add-snapshot"
    version = _parse_id(snapshot, "snapshot-id", where)
    summary = _parse_strings(snapshot, "summary") if "summary" in snapshot else {}
    manifest = snapshot.get("manifest-list")
    if not isinstance(manifest, str):
        raise InvalidInputError(f"{where}: manifest-list, the address of the version's manifest, is missing")
    parent = (
        _parse_id(snapshot, "parent-snapshot-id", where) if snapshot.get("parent-snapshot-id") is not None else None
    )
    return SnapshotRow(
        snapshot_id=version,
        parent_id=parent,
        sequence=_parse_id(snapshot, "sequence-number", where) if "sequence-number" in snapshot else version,
        timestamp_ms=_parse_id(snapshot, "timestamp-ms", where),
        manifest_list=manifest,
        summary={"operation": "append", **summary},
    )


def _parse_id(json: Json, key: str, where: str) -> int:
    value = json.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ID:
        raise InvalidInputError(f"{where}: {key} must be a whole number from 0 to 2^63 - 1, got {value!r}")
    return value


def _parse_strings(json: Json, key: str) -> dict[str, str]:
    texts = json.get(key)
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise InvalidInputError(f"{key} must be an object whose values are texts")
    return texts
