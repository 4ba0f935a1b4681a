"""What a commit asks of the catalog, and what comes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InternalError
from pydantic import ValidationError

from lancehouse.clients.catalog_namespace import Entry
from lancehouse.clients.managed_versions import (
    COLUMNS,
    StagedVersion,
    TableHead,
    commit_request,
    schema_updates,
    snapshot_updates,
)
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import TableRef, manifest_folder, snapshot_id
from lancehouse.lake.manifests import Manifest
from lancehouse.lake.versions import list_manifests
from lancehouse.wire.iceberg import LatestTable, VersionedTable

TABLE = TableId.parse(["wh", "a", "b", "t"])
LOCATION = "/data of 100 %/t"
UUID = "6d6a1b0c-0000-4000-8000-000000000000"
NOW_MS = 1_800_000_000_000
DEV = snapshot_id("dev", 0)

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)


@pytest.fixture
def _any_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """For manifests that are no files, where the schema does not matter."""
    monkeypatch.setattr(Manifest, "schema", lambda *_: fields("a"))


def manifest(version: int, columns: str = "same", operation: str | None = "Append") -> Manifest:
    return Manifest(version, f"{version - 1}-uuid-{version}.txn", operation, columns, b"")


def stage_version(version: int, branch: str | None = None, **more: Any) -> StagedVersion:
    folder = manifest_folder(branch)
    made = StagedVersion(
        table=TABLE,
        branch=branch,
        manifest=manifest(version),
        root="data of 100 %/t",
        staged_path=f"{folder}/{version}.manifest-x",
        final_path=f"{folder}/{version}.manifest",
        size=123,
    )
    return replace(made, **more)


def head(
    refs: Mapping[str, int] | None = None,
    *,
    sequence: int = 0,
    columns: str = "same",
    schemas: Sequence[Json] = (),
    current: int = 0,
    timestamp_ms: int = 0,
    location: str = LOCATION,
    metadata_location: str | None = "file:///m.json",
) -> TableHead:
    named = refs or {}
    snapshots = [
        {"snapshot-id": at, "timestamp-ms": timestamp_ms, "sequence-number": sequence, "summary": {COLUMNS: columns}}
        for at in set(named.values())
    ]
    metadata = {
        "table-uuid": UUID,
        "location": location,
        "properties": {},
        "last-sequence-number": sequence,
        "snapshots": snapshots,
        "schemas": list(schemas),
        "current-schema-id": current,
        "refs": {
            name: {"snapshot-id": at, "type": "tag" if name.startswith("v") else "branch"} for name, at in named.items()
        },
    }
    table = VersionedTable.model_validate({"metadata": metadata, "metadata-location": metadata_location})
    return TableHead(Entry(location, {}), table)


def requirements(asked: Any) -> dict[str, int | None]:
    """The refs that a change requires, and where they have to be."""
    first, *others = asked.requirements
    assert first == {"type": "assert-table-uuid", "uuid": UUID}
    assert all(each["type"] == "assert-ref-snapshot-id" for each in others)
    found = {each["ref"]: each["snapshot-id"] for each in others}
    assert len(found) == len(others), "a branch can only be at one place"
    return found


def added_snapshots(updates: Sequence[Json]) -> list[Json]:
    return [update["snapshot"] for update in updates if update["action"] == "add-snapshot"]


def moved_refs(updates: Sequence[Json]) -> dict[str, int]:
    refs = [update for update in updates if update["action"] == "set-snapshot-ref"]
    assert all(update["type"] == "branch" for update in refs)
    return {update["ref-name"]: update["snapshot-id"] for update in refs}


# A change


@pytest.mark.usefixtures("_any_schema")
@pytest.mark.parametrize(
    ("before", "versions", "required", "after"),
    [
        ({}, [stage_version(1)], {"main": None}, {"main": 1}),
        ({"main": 1}, [stage_version(2)], {"main": 1}, {"main": 2}),
        ({"main": 7}, [stage_version(3)], {"main": 2}, {"main": 3}),  # the catalog will say no
        ({"main": 1}, [stage_version(2), stage_version(3), stage_version(4)], {"main": 1}, {"main": 4}),
        ({}, [stage_version(1), stage_version(2)], {"main": None}, {"main": 2}),
        (
            {"main": 4},
            [stage_version(4, "dev")],
            {"dev": None},
            {"dev": DEV + 4},
        ),  # a new branch begins where it came from
        ({"main": 4, "dev": DEV + 4}, [stage_version(5, "dev")], {"dev": DEV + 4}, {"dev": DEV + 5}),
        ({"main": 4, "dev": DEV + 9}, [stage_version(5, "dev")], {"dev": DEV + 4}, {"dev": DEV + 5}),
        (
            {"main": 4, "dev": DEV + 4},
            [stage_version(5), stage_version(6), stage_version(5, "dev")],
            {"main": 4, "dev": DEV + 4},
            {"main": 6, "dev": DEV + 5},
        ),
        (
            {"main": 4, "dev": DEV + 4},
            [stage_version(5, "dev"), stage_version(5), stage_version(6, "dev"), stage_version(6)],
            {"main": 4, "dev": DEV + 4},
            {"main": 6, "dev": DEV + 6},
        ),
    ],
    ids=[
        "first",
        "next",
        "late",
        "several",
        "the first ones",
        "new branch",
        "branch",
        "branch, late",
        "main and branch",
        "main and branch by turns",
    ],
)
def test_what_a_change_requires_and_moves(
    before: dict[str, int], versions: list[StagedVersion], required: dict[str, int | None], after: dict[str, int]
) -> None:
    asked = commit_request(TABLE, head(before), versions)
    assert requirements(asked) == required
    assert moved_refs(asked.updates) == after
    assert sorted(each["snapshot-id"] for each in added_snapshots(asked.updates)) == sorted(
        each.snapshot_id for each in versions
    )
    parents = {each["snapshot-id"]: each.get("parent-snapshot-id") for each in added_snapshots(asked.updates)}
    for version in versions:
        own_before = version.snapshot_id - 1
        is_first = required[version.ref_name] is None and own_before not in parents
        assert parents[version.snapshot_id] == (None if is_first else own_before)


def test_the_table_is_named() -> None:
    """As CommitTransaction needs it; UpdateTable does not mind."""
    sent = commit_request(TABLE, head({"main": 1}), [stage_version(2)]).model_dump(mode="json", by_alias=True)
    assert sent["identifier"] == {"namespace": ["a", "b"], "name": "t"}


@pytest.mark.parametrize(
    ("sequence", "versions", "expected"),
    [
        (0, [stage_version(1)], [1]),
        (1, [stage_version(2)], [2]),
        (9, [stage_version(2)], [10]),  # branches count too
        (0, [stage_version(40)], [40]),
        (3, [stage_version(4), stage_version(5)], [4, 5]),
        (3, [stage_version(7, "dev")], [4]),
        (3, [stage_version(4), stage_version(4, "dev"), stage_version(5, "dev")], [4, 5, 6]),
    ],
)
def test_sequence_numbers_only_grow(sequence: int, versions: list[StagedVersion], expected: list[int]) -> None:
    asked = commit_request(TABLE, head({"main": 1}, sequence=sequence), versions)
    assert [each["sequence-number"] for each in added_snapshots(asked.updates)] == expected


def test_no_snapshot_is_older_than_the_one_before() -> None:
    """Iceberg's server refuses that, and the clocks of writers are not the same."""
    late = head({"main": 1}, sequence=1, timestamp_ms=NOW_MS + 120_000)
    [snapshot] = added_snapshots(commit_request(TABLE, late, [stage_version(2)]).updates)
    assert snapshot["timestamp-ms"] >= NOW_MS + 120_000
    [snapshot] = added_snapshots(
        commit_request(TABLE, head({"main": 1}, sequence=1, timestamp_ms=NOW_MS - 5), [stage_version(2)]).updates
    )
    assert snapshot["timestamp-ms"] == NOW_MS


# A snapshot


def summary(version: StagedVersion) -> Json:
    [snapshot] = added_snapshots(commit_request(TABLE, head({"main": 1}), [version]).updates)
    found: Json = snapshot["summary"]
    assert all(isinstance(value, str) for value in found.values())
    return found


def test_a_snapshot() -> None:
    version = stage_version(2, e_tag='"e"', metadata={"job": "42", "who": "me"})
    [snapshot] = added_snapshots(commit_request(TABLE, head({"main": 1}), [version]).updates)
    assert snapshot == {
        "snapshot-id": 2,
        "parent-snapshot-id": 1,
        "sequence-number": 2,
        "timestamp-ms": NOW_MS,
        "manifest-list": "lance:///data%20of%20100%20%25/t/_versions/2.manifest",
        "summary": {
            "operation": "append",
            "lance.operation": "Append",
            "lance.version": "2",
            "lance.transaction": "uuid-2",
            "lance.columns": "same",
            "lance.manifest.staged": "_versions/2.manifest-x",
            "lance.manifest.size": "123",
            "lance.manifest.e-tag": '"e"',
            "lance.metadata.job": "42",
            "lance.metadata.who": "me",
        },
    }


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://b/x y/t", "lance://b/x y/t/_versions/2.manifest"),
        ("s3://b/t/", "lance://b/t/_versions/2.manifest"),
        ("file:///a%20b/t", "lance:///a%20b/t/_versions/2.manifest"),
        ("file:/a/t", "lance:///a/t/_versions/2.manifest"),
    ],
)
def test_no_reader_of_iceberg_opens_the_manifest(location: str, expected: str) -> None:
    [snapshot] = added_snapshots(
        commit_request(TABLE, head({"main": 1}, location=location), [stage_version(2)]).updates
    )
    assert snapshot["manifest-list"] == expected


@pytest.mark.parametrize(
    ("operation", "version", "word"),
    [
        ("Append", 2, "append"),
        ("Delete", 2, "delete"),
        ("Overwrite", 1, "append"),  # nothing was there to be overwritten
        ("Overwrite", 2, "overwrite"),
        ("Update", 2, "overwrite"),
        ("Merge", 2, "overwrite"),
        ("Restore", 2, "overwrite"),
        ("DataReplacement", 2, "overwrite"),
        ("Rewrite", 2, "replace"),
        ("CreateIndex", 2, "replace"),
        ("UpdateConfig", 2, "replace"),
        ("Project", 2, "replace"),
        ("ReserveFragments", 2, "replace"),
        (None, 2, "overwrite"),
    ],
)
def test_words_for_operations(operation: str | None, version: int, word: str) -> None:
    found = summary(stage_version(version, manifest=manifest(version, operation=operation)))
    assert (found["operation"], found.get("lance.operation")) == (word, operation)


def test_a_snapshot_of_a_branch() -> None:
    version = stage_version(5, "dev")
    found = summary(version)
    assert (found["lance.branch"], found["lance.version"]) == ("dev", "5")
    assert "lance.branch" not in summary(stage_version(5))
    assert (version.ref_name, version.snapshot_id) == ("dev", DEV + 5)
    assert (stage_version(5).ref_name, stage_version(5).snapshot_id) == ("main", 5)


def test_a_manifest_that_is_in_its_place() -> None:
    [snapshot] = added_snapshots(snapshot_updates(head(), "main", None, [stage_version(3, staged_path="")], 0))
    assert "lance.manifest.staged" not in snapshot["summary"]
    assert "parent-snapshot-id" not in snapshot


def test_what_the_writer_is_told() -> None:
    answer = stage_version(2, e_tag='"e"', metadata={"job": "42"}).to_response()
    assert answer.transaction_id == "uuid-2"
    version = answer.version
    assert version is not None
    assert (version.version, version.manifest_path, version.manifest_size, version.e_tag, version.metadata) == (
        2,
        "data of 100 %/t/_versions/2.manifest",
        123,
        '"e"',
        {"job": "42"},
    )


# The schema


def fields(*names: str) -> Json:
    told = [{"id": number, "name": name, "type": "long"} for number, name in enumerate(names, 1)]
    return {"type": "struct", "schema-id": 1, "fields": told}


@pytest.mark.parametrize(
    ("known", "current", "wanted", "actions"),
    [
        ([], 0, fields("a"), [("add-schema", None), ("set-current-schema", -1)]),
        ([{**fields("a"), "schema-id": 0}], 0, fields("a"), []),
        ([{**fields("a"), "schema-id": 0}], 0, fields("a", "b"), [("add-schema", None), ("set-current-schema", -1)]),
        (
            [{**fields("a"), "schema-id": 3}, {**fields("b"), "schema-id": 4}],
            4,
            fields("a"),
            [("set-current-schema", 3)],
        ),
        ([{**fields("a"), "schema-id": 3}, {**fields("a"), "schema-id": 4}], 3, fields("a"), []),
    ],
    ids=["first", "same", "new", "one that it had", "twice the same"],
)
def test_what_makes_a_schema_the_current_one(
    known: list[Json], current: int, wanted: Json, actions: list[tuple[str, int | None]]
) -> None:
    updates = schema_updates(head(schemas=known, current=current), wanted)
    assert [(update["action"], update.get("schema-id")) for update in updates] == actions


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """Two versions; the second has one column more."""
    location = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1]}), location)
    lance.dataset(location).add_columns({"twice": "id * 2"})
    return location


def version_of(location: str, version: int, branch: str | None = None) -> StagedVersion:
    file = list_manifests(TableRef(location, branch=branch))[version]
    return stage_version(version, branch, manifest=Manifest.parse((Path(location) / file).read_bytes()))


def test_the_schema_follows_the_dataset(dataset: str) -> None:
    first, second = version_of(dataset, 1), version_of(dataset, 2)
    before = head(schemas=[fields("dummy")], current=1, location=dataset)
    asked = commit_request(TABLE, before, [first])
    added_schema, current, *_ = asked.updates
    assert [field["name"] for field in added_schema["schema"]["fields"]] == ["id"]
    assert current == {"action": "set-current-schema", "schema-id": -1}
    asked = commit_request(TABLE, before, [first, second])
    schemas = [update["schema"] for update in asked.updates if update["action"] == "add-schema"]
    assert [[field["name"] for field in schema["fields"]] for schema in schemas] == [["id", "twice"]]  # the last counts


def test_the_same_columns_are_not_looked_at() -> None:
    """Nothing is at that location."""
    asked = commit_request(TABLE, head({"main": 1}, columns="same"), [stage_version(2)])
    assert [update["action"] for update in asked.updates] == ["add-snapshot", "set-snapshot-ref"]


def test_a_branch_does_not_change_the_schema(dataset: str) -> None:
    lance.dataset(dataset).create_branch("dev").add_columns({"more": "id * 3"})
    asked = commit_request(TABLE, head({"main": 2}, location=dataset), [version_of(dataset, 3, "dev")])
    assert [update["action"] for update in asked.updates] == ["add-snapshot", "set-snapshot-ref"]


# A head


def test_what_a_head_knows() -> None:
    found = head({"main": 4, "dev": DEV + 5, "v1": 1}, sequence=7)
    assert found.branches == {"dev"}
    assert (found.find_ref("main"), found.find_ref("dev"), found.find_ref("v1"), found.find_ref("none")) == (
        4,
        DEV + 5,
        1,
        None,
    )
    assert sorted(found.snapshots_by_version(None)) == sorted(found.snapshots_by_version("main")) == [1, 4]
    assert sorted(found.snapshots_by_version("dev")) == [5]
    assert found.snapshots_by_version("other") == {}
    latest = found.latest_snapshot(None)
    assert latest is not None
    assert latest.snapshot_id == 4
    metadata = found.table.metadata.model_copy(update={"snapshots": []})
    half = replace(found, table=found.table.model_copy(update={"metadata": metadata}))
    with pytest.raises(InternalError, match="lacks snapshot 4, to which branch main of the table at"):
        half.latest_snapshot(None)
    assert head().latest_snapshot(None) is None


@pytest.mark.parametrize(("metadata_location", "is_aware"), [("file:///m.json", False), (None, True)])
def test_a_server_that_knows_lance_has_no_metadata_file(metadata_location: str | None, is_aware: bool) -> None:
    assert head(metadata_location=metadata_location).is_lance_aware is is_aware


@pytest.mark.parametrize(
    "versions",
    [
        [stage_version(5)],
        [stage_version(5), stage_version(6)],
        [stage_version(5, "dev")],
        [stage_version(5, "dev"), stage_version(5)],
        [stage_version(4, "other")],
    ],
)
def test_what_a_change_makes_of_a_head(versions: list[StagedVersion]) -> None:
    before = head({"main": 4, "dev": DEV + 4, "v1": 1}, sequence=6)
    asked = commit_request(TABLE, before, versions)
    after = before.apply_change(asked)
    assert after is not None
    for name in ("main", "dev", "other", "v1"):
        assert after.find_ref(name) == moved_refs(asked.updates).get(name, before.find_ref(name))
        if (at := after.find_ref(name)) is not None:
            assert at in after.snapshots
    last = max(each["sequence-number"] for each in added_snapshots(asked.updates))
    assert after.table.metadata.last_sequence_number == last
    assert set(after.snapshots) == {ref.snapshot_id for ref in after.table.metadata.refs.values()}
    assert before.find_ref("main") == 4, "and the head that it was made from stays"
    following = versions[-1].manifest.version + 1
    again = commit_request(TABLE, after, [stage_version(following, versions[-1].branch)])
    assert requirements(again) == {versions[-1].ref_name: versions[-1].snapshot_id}
    assert next(each["sequence-number"] for each in added_snapshots(again.updates)) > last


def test_only_the_server_knows_what_comes_of_a_new_schema(dataset: str) -> None:
    before = head(location=dataset)
    assert before.apply_change(commit_request(TABLE, before, [version_of(dataset, 1)])) is None


SNAPSHOTS = [{"snapshot-id": number, "timestamp-ms": number} for number in range(1, 6)]
REFS = {"main": {"snapshot-id": 5, "type": "branch"}, "old": {"snapshot-id": 2, "type": "tag"}}


@pytest.mark.parametrize(("refs", "kept"), [(REFS, [2, 5]), ({}, [])], ids=["some", "none"])
def test_snapshots_that_nothing_names_are_not_kept(refs: Json, kept: list[int]) -> None:
    told = json.dumps({"metadata": {"table-uuid": UUID, "snapshots": SNAPSHOTS, "refs": refs}})
    latest, whole = LatestTable.model_validate_json(told), VersionedTable.model_validate_json(told)
    assert [each.snapshot_id for each in latest.metadata.snapshots] == kept
    assert [each.snapshot_id for each in whole.metadata.snapshots] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("snapshots", "refs"),
    [(None, {}), ([1], {}), ([{"snapshot-id": 5}], REFS), (SNAPSHOTS, {"main": 5}), (SNAPSHOTS, [])],
)
def test_snapshots_that_make_no_sense(snapshots: object, refs: object) -> None:
    told = json.dumps({"metadata": {"table-uuid": UUID, "snapshots": snapshots, "refs": refs}})
    with pytest.raises(ValidationError):
        LatestTable.model_validate_json(told)
