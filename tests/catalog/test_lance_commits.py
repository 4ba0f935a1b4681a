"""What UpdateTable means for a Lance table: each line is one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.catalog.lance_commits import EntryChange, decide
from lancehouse.lake.dataset import snapshot_id
from lancehouse.store.model import EntryRow, RefRow

UUID = "6f1a0c36-0a51-4b0e-8f0f-0e3a4c6a7f11"
STORED = EntryRow(
    id=1,
    namespace_id=1,
    name="t",
    kind="lance",
    uuid=UUID,
    location="/wh/db/t",
    properties={"table_type": "lance", "managed_by": "storage", "a": "1"},
    revision=7,
    created_ms=0,
    updated_ms=0,
)
MANAGED = replace(STORED, properties={**STORED.properties, "managed_by": "impl"}, version=3)
NEW = replace(MANAGED, version=None)


@dataclass
class TableAtVersion:
    """A table at some version, with the tag `v2` on version 2, and branches by the versions the catalog accepted."""

    current: int | None
    in_storage: int | None
    kept: Mapping[str, int] = field(default_factory=dict)
    branches_in_storage: Mapping[str, int] = field(default_factory=dict)

    def current_version(self) -> int | None:
        return self.current

    def latest_stored_version(self) -> int | None:
        return self.in_storage

    def ref_snapshot_id(self, name: str) -> int | None:
        return {"main": self.current, "v2": 2, **self.branches_in_storage, **self.kept}.get(name)

    def branches(self) -> Mapping[str, int]:
        return self.kept

    def stored_schema(self, version: int) -> dict[str, Any]:
        return {"type": "struct", "schema-id": 1, "fields": [{"id": version}]}

    def stored_branches(self) -> Mapping[str, int]:
        return self.branches_in_storage

    def accepted_snapshot_ids(self, branch: str) -> list[int]:
        return [*range(snapshot_id(branch, 1), self.kept[branch] + 1)]

    def last_column_id(self) -> int:
        return 4

    def has_snapshot(self, snapshot_id: int) -> bool:
        on_branches = {each for name in self.kept for each in self.accepted_snapshot_ids(name)}
        return (self.current is not None and 1 <= snapshot_id <= self.current) or snapshot_id in on_branches


def commit(
    entry: EntryRow,
    *updates: dict[str, Any],
    requires: list[dict[str, Any]] | None = None,
    stored: int | None = 3,
    branches: Mapping[str, int] | None = None,
    stored_branches: Mapping[str, int] | None = None,
) -> EntryChange:
    version = entry.version if entry is not STORED else 3
    return decide(
        entry, TableAtVersion(version, stored, branches or {}, stored_branches or {}), requires or [], updates
    )


def on(ref: str, version: int | None) -> dict[str, Any]:
    return {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": version}


def on_main(version: int | None) -> dict[str, Any]:
    return on("main", version)


def snapshot(version: int, **more: Any) -> dict[str, Any]:
    made = {"snapshot-id": version, "timestamp-ms": 5, "manifest-list": f"lance://{version}", "summary": {}}
    return {"action": "add-snapshot", "snapshot": {**made, **more}}


def main(version: int, **more: Any) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": version, **more}


def branch(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": version, **more}


@pytest.mark.parametrize(("entry", "before", "after"), [(MANAGED, 3, 4), (MANAGED, 3, 9), (NEW, None, 1)])
def test_a_new_version(entry: EntryRow, before: int | None, after: int) -> None:
    made = commit(entry, snapshot(after), main(after), requires=[on_main(before)])
    assert made.values == {"version": after}
    assert [(row.snapshot_id, row.sequence) for row in made.snapshots] == [(after, after)]
    assert made.operation == "append"


def test_several_versions_at_once() -> None:
    made = commit(MANAGED, snapshot(5), snapshot(4), main(5), requires=[on_main(3)])
    assert [row.snapshot_id for row in made.snapshots] == [4, 5]
    assert made.values == {"version": 5}


@pytest.mark.parametrize(
    "requirement",
    [
        on_main(2),
        on_main(4),
        on_main(None),
        {"type": "assert-ref-snapshot-id", "ref": "v2", "snapshot-id": 3},
        {"type": "assert-ref-snapshot-id", "ref": "nope", "snapshot-id": 3},
        {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
        {"type": "assert-create"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 5},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
        {"type": "assert-default-spec-id", "default-spec-id": 1},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
    ],
)
def test_requirements_that_do_not_hold(requirement: dict[str, Any]) -> None:
    with pytest.raises(ConcurrentModificationError, match="Requirement failed"):
        commit(MANAGED, snapshot(4), main(4), requires=[on_main(3), requirement])


@pytest.mark.parametrize(
    "requirement",
    [
        on_main(3),
        {"type": "assert-ref-snapshot-id", "ref": "v2", "snapshot-id": 2},
        {"type": "assert-ref-snapshot-id", "ref": "nope", "snapshot-id": None},
        {"type": "assert-table-uuid", "uuid": UUID.upper()},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
        {"type": "assert-current-schema-id", "current-schema-id": 1},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
        {"type": "assert-default-spec-id", "default-spec-id": 0},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
    ],
)
def test_requirements_that_hold(requirement: dict[str, Any]) -> None:
    assert commit(MANAGED, requires=[requirement]).is_empty


@pytest.mark.parametrize(
    "requirement",
    [
        {},
        {"type": "assert-something"},
        {"type": "assert-table-uuid"},
        {"type": "assert-table-uuid", "uuid": 1},
        {"type": "assert-ref-snapshot-id"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "3"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": True},
        {"type": "assert-default-spec-id"},
        {"type": "assert-current-schema-id", "current-schema-id": True},
        {"type": "assert-current-schema-id", "current-schema-id": None},
        {"type": "assert-view-uuid", "uuid": UUID},
    ],
)
def test_requirements_that_are_none(requirement: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        commit(MANAGED, requires=[requirement])


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([snapshot(3), main(3)], "greater than the current one, 3"),
        ([snapshot(2), main(2)], "greater than the current one, 3"),
        ([snapshot(4)], "needs set-snapshot-ref of main"),
        ([snapshot(4), snapshot(5), main(4)], "the newest snapshot added, 5"),
        ([snapshot(4), snapshot(4), main(4)], "added twice"),
        ([main(2)], "main can only move on"),
        ([main(4)], "unknown snapshot: 4"),
        ([snapshot(4), main(4, type="tag")], "main is a branch"),
        ([snapshot(4, **{"snapshot-id": "4"}), main(4)], "snapshot-id must be a whole number"),
        ([snapshot(4, **{"snapshot-id": 2**63}), main(4)], "snapshot-id must be a whole number"),
        ([snapshot(4, **{"snapshot-id": True}), main(4)], "snapshot-id must be a whole number"),
        ([snapshot(4, **{"timestamp-ms": None}), main(4)], "timestamp-ms must be a whole number"),
        ([snapshot(4, **{"manifest-list": None}), main(4)], "manifest-list"),
        ([snapshot(4, summary={"operation": 1}), main(4)], "summary must be an object"),
        ([{"action": "add-snapshot"}, main(4)], "snapshot must be an object"),
        ([{"action": "set-snapshot-ref", "ref-name": "x", "type": "tag", "snapshot-id": 8}], "unknown snapshot: 8"),
        ([{"action": "set-snapshot-ref", "type": "tag", "snapshot-id": 2}], "needs ref-name"),
        ([{"action": "remove-snapshots", "snapshot-ids": [1, 3]}], "the current snapshot 3"),
        ([{"action": "remove-snapshots", "snapshot-ids": [4]}, snapshot(4), main(4)], "the current snapshot 4"),
        ([snapshot(4), main(4), {"action": "remove-snapshots", "snapshot-ids": [4]}], "the current snapshot 4"),
        ([{"action": "remove-snapshots", "snapshot-ids": "1"}], "a list of numbers"),
        ([{"action": "remove-snapshots", "snapshot-ids": [2**63]}], "must be a whole number"),
        ([{"action": "remove-snapshots", "snapshot-ids": [-1]}], "must be a whole number"),
        ([{"action": "remove-snapshot-ref", "ref-name": "main"}], "main cannot be removed"),
        ([{"action": "set-properties", "updates": {"table_type": "iceberg"}}], "stays 'lance'"),
        ([{"action": "set-properties", "updates": {"managed_by": "me"}}], "expected 'storage' or 'impl'"),
        ([{"action": "set-properties", "updates": {"a": 1}}], "values are texts"),
        ([{"action": "set-properties"}], "values are texts"),
        ([{"action": "remove-properties", "removals": ["table_type"]}], "cannot be removed"),
        ([{"action": "remove-properties", "removals": "a"}], "a list of texts"),
        ([{"action": "set-location", "location": "/elsewhere"}], "stays at /wh/db/t"),
        ([{"action": "assign-uuid", "uuid": "other"}], "Cannot reassign uuid"),
        ([{"action": "upgrade-format-version", "format-version": 3}], "format version 2"),
        ([{"action": "add-spec", "spec": {"fields": [{"name": "p"}]}}], "no Iceberg spec"),
        ([{"action": "set-default-spec", "spec-id": 1}], "only the spec"),
        ([{"action": "add-sort-order", "sort-order": {"fields": [1]}}], "no Iceberg sort-order"),
        ([{"action": "set-current-schema", "schema-id": 2}], "unknown schema: 2"),
        ([{"action": "add-schema", "schema": 1}], "schema of add-schema"),
        ([{"action": "add-schema", "schema": {"type": "struct", "fields": [1]}}], "schema of add-schema"),
        ([{"action": "add-schema", "schema": {"type": "struct", "fields": [{"bogus": 1}]}}], "'name' is missing"),
        ([{"action": "set-statistics"}], "'set-statistics'"),
        ([{"action": "explode"}], "'explode'"),
        ([{}], "None"),
    ],
)
def test_refused(updates: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        commit(MANAGED, *updates, requires=[on_main(3)])


@pytest.mark.parametrize(
    "updates",
    [[snapshot(4), main(4)], [snapshot(4)], [main(4)], [{"action": "remove-snapshots", "snapshot-ids": [1]}]],
)
def test_a_new_version_names_the_one_it_was_made_from(updates: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInputError, match="assert-ref-snapshot-id on main"):
        commit(MANAGED, *updates, requires=[{"type": "assert-table-uuid", "uuid": UUID}])


@pytest.mark.parametrize(
    "update",
    [
        snapshot(4),
        main(2),
        {"action": "set-snapshot-ref", "ref-name": "x", "type": "tag", "snapshot-id": 2},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-snapshot-ref", "ref-name": "v2"},
    ],
)
def test_storage_manages_its_own_versions(update: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="managed by its storage"):
        commit(STORED, update, requires=[on_main(3)])


@pytest.mark.parametrize("entry", [STORED, MANAGED])
def test_properties_change_on_both(entry: EntryRow) -> None:
    made = commit(
        entry,
        {"action": "set-properties", "updates": {"b": "2", "table_type": "LANCE"}},
        {"action": "remove-properties", "removals": ["a", "gone"]},
    )
    assert made.values == {"properties": _without_a(entry)}
    assert made.operation == "properties"


def _without_a(entry: EntryRow) -> dict[str, str]:
    return {**{key: value for key, value in entry.properties.items() if key != "a"}, "b": "2"}


def test_nothing_to_do() -> None:
    assert commit(STORED, {"action": "set-properties", "updates": {"a": "1"}}).is_empty


def test_the_catalog_takes_over_at_the_version_of_storage() -> None:
    made = commit(STORED, {"action": "set-properties", "updates": {"managed_by": "IMPL"}})
    assert made.values.pop("schema")["fields"] == [{"id": 3}]
    assert made.values == {"version": 3, "properties": {**STORED.properties, "managed_by": "impl"}}


@pytest.mark.parametrize("update", [{"updates": {"managed_by": "Storage"}}, {"removals": ["managed_by"]}])
def test_storage_takes_over_only_what_it_has(update: dict[str, Any]) -> None:
    action = "set-properties" if "updates" in update else "remove-properties"
    made = commit(MANAGED, {"action": action, **update}, stored=3)
    assert made.values == {"version": None, "properties": STORED.properties}
    with pytest.raises(InvalidInputError, match="the catalog is at version 3, storage at 2"):
        commit(MANAGED, {"action": action, **update}, stored=2)


def test_refs_besides_main() -> None:
    made = commit(
        MANAGED,
        {"action": "set-snapshot-ref", "ref-name": "best", "type": "tag", "snapshot-id": 2},
        {"action": "remove-snapshot-ref", "ref-name": "v2"},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        requires=[on_main(3)],
    )
    assert made.refs == {"best": RefRow("best", "tag", 2), "v2": None}
    assert made.removed_snapshots == [1]
    assert made.operation == "snapshots"


# Branches besides main


def dev(version: int) -> int:
    return snapshot_id("dev", version)


KEPT = {"dev": dev(2)}
REMOVE_DEV = {"action": "remove-snapshot-ref", "ref-name": "dev"}
TO_STORAGE = {"action": "set-properties", "updates": {"managed_by": "storage"}}


def without(*ids: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": [*ids]}


@pytest.mark.parametrize("entry", [MANAGED, NEW])
@pytest.mark.parametrize(
    ("branches", "stored", "before", "after"),
    [
        ({}, {}, None, dev(1)),
        ({}, {}, None, dev(4)),
        ({}, {"dev": dev(1)}, dev(1), dev(2)),
        (KEPT, {}, dev(2), dev(3)),
        (KEPT, {"dev": dev(5)}, dev(2), dev(3)),
        (KEPT, {}, dev(2), dev(9)),
    ],
)
def test_a_new_version_of_a_branch(
    entry: EntryRow, branches: dict[str, int], stored: dict[str, int], before: int | None, after: int
) -> None:
    updates = [snapshot(after), branch("dev", after)]
    made = commit(entry, *updates, requires=[on("dev", before)], branches=branches, stored_branches=stored)
    assert made.values == {}
    assert made.refs == {"dev": RefRow("dev", "branch", after)}
    assert [(row.snapshot_id, row.sequence) for row in made.snapshots] == [(after, after - dev(0))]
    assert (made.operation, made.snapshot_id, made.removed_snapshots) == ("append", after, [])


def test_a_branch_has_its_own_sequence() -> None:
    updates = [snapshot(dev(1), **{"sequence-number": 17}), branch("dev", dev(1))]
    (row,) = commit(MANAGED, *updates, requires=[on("dev", None)]).snapshots
    assert row.sequence == 17


def test_versions_of_several_branches_at_once() -> None:
    other = snapshot_id("other", 7)
    updates = [
        snapshot(4),
        snapshot(dev(4)),
        snapshot(dev(3)),
        snapshot(other),
        snapshot(5, summary={"operation": "x"}),
    ]
    refs = [main(5), branch("dev", dev(4)), branch("other", other), branch("side", 5), branch("t", dev(3), type="tag")]
    requires = [on_main(3), on("dev", dev(2)), on("other", None)]
    made = commit(MANAGED, *updates, *refs, requires=requires, branches=KEPT)
    assert made.values == {"version": 5}
    assert [row.snapshot_id for row in made.snapshots] == [dev(3), dev(4), other, 4, 5]
    assert {name: ref.snapshot_id for name, ref in made.refs.items() if ref} == {
        "dev": dev(4),
        "other": other,
        "side": 5,
        "t": dev(3),
    }
    assert (made.operation, made.snapshot_id) == ("x", 5)


@pytest.mark.parametrize("expected", [None, dev(1), dev(3), snapshot_id("other", 2), 2])
def test_of_two_writers_on_a_branch_one_wins(expected: int | None) -> None:
    with pytest.raises(ConcurrentModificationError, match="Requirement failed: branch dev"):
        commit(MANAGED, snapshot(dev(3)), branch("dev", dev(3)), requires=[on("dev", expected)], branches=KEPT)


@pytest.mark.parametrize("expected", [dev(2), 3])
def test_a_branch_that_is_not_there(expected: int) -> None:
    with pytest.raises(ConcurrentModificationError, match="branch or tag dev is missing"):
        commit(MANAGED, snapshot(dev(3)), branch("dev", dev(3)), requires=[on("dev", expected)])


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([snapshot(dev(2)), branch("dev", dev(2))], f"greater than the current one, {dev(2)}"),
        ([snapshot(dev(1)), snapshot(dev(3)), branch("dev", dev(3))], f"greater than the current one, {dev(2)}"),
        ([snapshot(dev(3))], "needs set-snapshot-ref of dev"),
        ([snapshot(dev(3)), branch("dev", dev(2))], f"dev must be set to the newest snapshot added, {dev(3)}"),
        ([snapshot(dev(3)), snapshot(dev(4)), branch("dev", dev(3))], f"the newest snapshot added, {dev(4)}"),
        ([snapshot(dev(3)), snapshot(dev(3)), branch("dev", dev(3))], "added twice"),
        ([branch("dev", dev(3)), snapshot(dev(3))], "Cannot set dev to unknown snapshot"),
        ([snapshot(dev(3)), branch("dev", dev(3)), REMOVE_DEV], "needs set-snapshot-ref of dev"),
        ([snapshot(dev(3)), branch("dev", dev(3), type="tag")], "needs set-snapshot-ref of dev"),
        ([snapshot(dev(3)), branch("dev", dev(3)), branch("dev", 2)], "the newest snapshot added"),
        ([snapshot(dev(3)), branch("other", dev(3))], f"snapshot-id {dev(3)} is not one of branch other"),
        ([snapshot(4), branch("dev", 4)], "snapshot-id 4 is not one of branch dev"),
        ([snapshot(3, **{"snapshot-id": [3]}), branch("dev", dev(3))], "snapshot-id must be a whole number"),
        ([snapshot(4), main(4), snapshot(dev(3))], "needs set-snapshot-ref of dev"),
        ([snapshot(4), main(4), snapshot(snapshot_id("x", 1))], "main must be set to the newest snapshot added"),
        ([snapshot(4), snapshot(dev(3)), branch("dev", dev(3))], "needs set-snapshot-ref of main"),
        ([snapshot(dev(3)), main(dev(3)), branch("dev", dev(3))], "main to a snapshot of another branch"),
        ([without(dev(2))], f"Cannot remove the current snapshot of dev, {dev(2)}"),
        ([snapshot(dev(3)), branch("dev", dev(3)), without(dev(3))], "Cannot remove the current snapshot of dev"),
        ([snapshot(dev(3)), branch("dev", dev(3)), TO_STORAGE], "cannot change in the commit of a version"),
    ],
)
def test_refused_on_a_branch(updates: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        commit(MANAGED, *updates, requires=[on_main(3), on("dev", dev(2))], branches=KEPT)


@pytest.mark.parametrize(
    ("requires", "missing"),
    [
        ([], "dev"),
        ([on_main(3)], "dev"),
        ([on("v2", 2)], "dev"),
        ([on("dev", dev(2))], "main"),
    ],
)
def test_each_branch_names_the_version_it_was_made_from(requires: list[dict[str, Any]], missing: str) -> None:
    updates = [snapshot(dev(3)), branch("dev", dev(3)), snapshot(4), main(4)]
    with pytest.raises(InvalidInputError, match=f"assert-ref-snapshot-id on {missing}"):
        commit(MANAGED, *updates, requires=requires, branches=KEPT)


def test_branches_whose_ids_are_the_same() -> None:
    """Their names, whose checksum is all that an id holds of them."""
    one, other = "plumless", "buckeroo"
    assert snapshot_id(one, 1) == snapshot_id(other, 1)
    updates = [snapshot(snapshot_id(other, 9)), branch(other, snapshot_id(other, 9))]
    with pytest.raises(InvalidInputError, match="the same checksum"):
        commit(MANAGED, *updates, requires=[on(other, None)], branches={one: snapshot_id(one, 2)})


@pytest.mark.parametrize(
    ("updates", "requires", "removed"),
    [
        ([REMOVE_DEV], [], [dev(1), dev(2)]),
        ([REMOVE_DEV, without(dev(1), dev(2))], [on("dev", dev(2))], [dev(1), dev(2)]),
        ([without(dev(1), dev(2)), REMOVE_DEV], [on_main(3)], [dev(1), dev(2)]),
        ([without(dev(1))], [on("dev", dev(2))], [dev(1)]),
        ([without(2, dev(1))], [on("dev", dev(2)), on_main(3)], [2, dev(1)]),
        ([branch("dev", dev(1))], [], [dev(2)]),
        ([branch("dev", 2)], [], [dev(1), dev(2)]),
        ([branch("dev", dev(1), type="tag")], [], [dev(1), dev(2)]),
        ([branch("dev", dev(2))], [], []),
        ([branch("x", dev(1))], [], []),
        ([{"action": "remove-snapshot-ref", "ref-name": "x"}], [], []),
        ([snapshot(dev(3)), branch("dev", dev(3)), without(dev(2))], [on("dev", dev(2))], [dev(2)]),
    ],
)
def test_what_goes_from_a_branch(
    updates: list[dict[str, Any]], requires: list[dict[str, Any]], removed: list[int]
) -> None:
    made = commit(MANAGED, *updates, requires=requires, branches=KEPT)
    assert sorted({*made.removed_snapshots}) == removed


@pytest.mark.parametrize("requires", [[], [on("other", None)]])
def test_snapshots_go_from_what_was_read(requires: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInputError, match="assert-ref-snapshot-id on main"):
        commit(MANAGED, without(dev(1)), requires=requires, branches=KEPT)


@pytest.mark.parametrize(("stored", "there"), [({}, "None"), ({"dev": dev(1)}, "1"), ({"dev": dev(3)}, "3")])
def test_storage_takes_over_only_the_branches_it_has(stored: dict[str, int], there: str) -> None:
    with pytest.raises(InvalidInputError, match=f"at version 2 of branch dev, storage at {there}"):
        commit(MANAGED, TO_STORAGE, branches=KEPT, stored_branches=stored)
    assert commit(MANAGED, TO_STORAGE, branches=KEPT, stored_branches={**KEPT, "more": 7}).clears_history
    assert commit(MANAGED, REMOVE_DEV, TO_STORAGE, branches=KEPT, stored_branches=stored).clears_history


def test_the_last_schema_known() -> None:
    schema = {"type": "struct", "schema-id": 9, "fields": []}
    made = commit(
        MANAGED, {"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert made.values == {"schema": {**schema, "schema-id": 1}}


def test_the_schema_of_a_dataset_is_its_own() -> None:
    with pytest.raises(InvalidInputError, match="change it with Lance"):
        commit(STORED, {"action": "add-schema", "schema": {"type": "struct", "fields": []}})


@pytest.mark.parametrize(
    "update",
    [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "set-location", "location": "file:///wh/db/t/"},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": 0},
        {"action": "set-current-schema", "schema-id": 1},
    ],
)
def test_what_is_so_already_may_be_said_again(update: dict[str, Any]) -> None:
    assert commit(MANAGED, update).is_empty
