"""Commits: who was first, for one table or several, on a real database and a real disk."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import orjson
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake.dataset import snapshot_id
from lancehouse.store import repository

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
LEVELS = ("db",)


@pytest.fixture(autouse=True)
def db(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, LEVELS, {})


def create(catalog: Catalog, caller: Caller, name: str, managed_by: str | None = "impl") -> str:
    """A table; without `managed_by` an Iceberg one."""
    properties = {"table_type": "lance", "managed_by": managed_by} if managed_by else {}
    request = {"name": name, "schema": SCHEMA, "properties": properties}
    made = catalog.tables.create(caller, catalog.warehouses["main"], LEVELS, request)
    return str(orjson.loads(made.metadata)["location"])


def version(before: int | None, after: int, branch: str = "main", **summary: str) -> dict[str, Any]:
    """What FACTS calls a commit of a Lance version."""
    made, parent = snapshot_id(branch, after), None if before is None else snapshot_id(branch, before)
    folder = "_versions" if branch == "main" else f"tree/{branch}/_versions"
    snapshot = {
        "snapshot-id": made,
        "sequence-number": after,
        "timestamp-ms": 1_700_000_000_000 + after,
        "manifest-list": f"lance:///db/t/{folder}/{after}.manifest",
        "summary": {"operation": "append", **summary},
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": parent}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": made},
        ],
    }


def together(*requests: dict[str, Any]) -> dict[str, Any]:
    return {key: [each for request in requests for each in request[key]] for key in ("requirements", "updates")}


def update(action: str, **more: Any) -> dict[str, Any]:
    """Without requirements."""
    return {"requirements": [], "updates": [{"action": action, **more}]}


def dev(version: int) -> int:
    return snapshot_id("dev", version)


def snapshots_and_refs(metadata: dict[str, Any]) -> tuple[list[int], dict[str, int]]:
    """Snapshots and refs."""
    refs = {name: ref["snapshot-id"] for name, ref in metadata["refs"].items()}
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]], refs


def property_change(**updates: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": updates}]}


def commit(catalog: Catalog, caller: Caller, name: str, request: dict[str, Any]) -> LoadResult:
    return catalog.commits.commit(caller, catalog.warehouses["main"], LEVELS, name, request)


def load(catalog: Catalog, caller: Caller, name: str) -> dict[str, Any]:
    found = catalog.tables.load(caller, catalog.warehouses["main"], LEVELS, name)
    metadata: dict[str, Any] = orjson.loads(found.metadata)
    return metadata


def change(name: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"identifier": {"namespace": ["db"], "name": name}, **request}


def test_versions_one_after_the_other(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, "t")
    for before, after in [(None, 1), (1, 2), (2, 5)]:
        made = commit(catalog, caller, "t", version(before, after))
        assert made.metadata_location == f"lance:///db/t/_versions/{after}.manifest"
        metadata = orjson.loads(made.metadata)
        assert metadata["current-snapshot-id"] == after
        assert metadata["refs"]["main"] == {"snapshot-id": after, "type": "branch"}
    assert [snapshot["snapshot-id"] for snapshot in load(catalog, caller, "t")["snapshots"]] == [1, 2, 5]


def test_the_answer_to_a_commit_does_not_grow_for_ever(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, caller, "t")
    commit(catalog, caller, "t", version(None, 1))
    monkeypatch.setattr("lancehouse.catalog.commits.WHOLE_BYTES", 100)
    made = commit(catalog, caller, "t", version(1, 2))
    assert not made.has_all_snapshots
    assert [snapshot["snapshot-id"] for snapshot in orjson.loads(made.metadata)["snapshots"]] == [2]
    assert made.metadata == catalog.tables.load(caller, main, LEVELS, "t", "refs").metadata
    assert [snapshot["snapshot-id"] for snapshot in load(catalog, caller, "t")["snapshots"]] == [1, 2]


def test_of_two_who_read_the_same_version_one_wins(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, "t")
    commit(catalog, caller, "t", version(None, 1))
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(commit, catalog, caller, "t", version(1, 2)) for _ in range(8)]
    failures = [error for attempt in tries if (error := attempt.exception()) is not None]
    assert len(failures) == 7
    assert {type(error) for error in failures} == {ConcurrentModificationError}
    assert all("has changed: expected id 1 != 2" in str(error) for error in failures)
    assert [snapshot["snapshot-id"] for snapshot in load(catalog, caller, "t")["snapshots"]] == [1, 2]


def test_each_commit_records_who_when_and_with_which_client(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller, "t")
    commit(catalog, caller, "t", version(None, 1))
    commit(catalog, caller, "t", property_change(x="1"))
    entry = catalog.tables.get_entry(caller, main, LEVELS, "t")
    rows = catalog.database.read(lambda tx: repository.list_commits(tx, entry.id))
    assert [(row.operation, row.snapshot_id) for row in rows] == [("properties", None), ("append", 1), ("create", None)]
    assert {(row.principal, row.client, row.request_id) for row in rows} == {("anonymous", "tests/1", "request-1")}
    summary = load(catalog, caller, "t")["snapshots"][0]["summary"]
    assert summary["lancehouse.committed-by"] == "anonymous"
    assert summary["lancehouse.committed-with"] == "tests/1"
    assert int(summary["lancehouse.committed-at-ms"]) == rows[1].at_ms


def test_the_manifest_need_not_be_there_yet(catalog: Catalog, caller: Caller) -> None:
    location = create(catalog, caller, "t")
    commit(catalog, caller, "t", version(None, 1))
    assert [field["name"] for field in load(catalog, caller, "t")["schemas"][0]["fields"]] == ["a"]
    lance.write_dataset(ROWS.append_column("b", ROWS["a"]), location)
    assert [field["name"] for field in load(catalog, caller, "t")["schemas"][0]["fields"]] == ["a", "b"]
    lance.write_dataset(ROWS.append_column("b", ROWS["a"]), location, mode="append")
    assert load(catalog, caller, "t")["current-snapshot-id"] == 1  # the catalog did not accept version 2
    commit(catalog, caller, "t", version(1, 2))
    assert load(catalog, caller, "t")["snapshots"][-1]["summary"]["total-records"] == "6"


@pytest.mark.parametrize("managed_by", ["impl", "storage", None])
def test_properties(catalog: Catalog, caller: Caller, managed_by: str | None) -> None:
    create(catalog, caller, "t", managed_by)
    made = commit(catalog, caller, "t", property_change(x="1"))
    assert made.metadata_location
    assert load(catalog, caller, "t")["properties"]["x"] == "1"


def test_a_storage_managed_table_says_why_not(catalog: Catalog, caller: Caller) -> None:
    location = create(catalog, caller, "t", "storage")
    lance.write_dataset(ROWS, location)
    with pytest.raises(InvalidInputError, match="managed by its storage"):
        commit(catalog, caller, "t", version(1, 2))
    commit(catalog, caller, "t", property_change(managed_by="impl"))
    commit(catalog, caller, "t", version(1, 2))
    with pytest.raises(InvalidInputError, match="the catalog is at version 2, storage at 1"):
        commit(catalog, caller, "t", property_change(managed_by="storage"))
    lance.write_dataset(ROWS, location, mode="append")
    commit(catalog, caller, "t", property_change(managed_by="storage"))
    lance.write_dataset(ROWS, location, mode="append")
    assert load(catalog, caller, "t")["current-snapshot-id"] == 3


def test_to_storage_and_back_keeps_every_version(catalog: Catalog, caller: Caller) -> None:
    location = create(catalog, caller, "t")
    lance.write_dataset(ROWS, location)
    commit(catalog, caller, "t", version(None, 1))
    commit(catalog, caller, "t", property_change(managed_by="storage"))
    for _ in range(2):
        lance.write_dataset(ROWS, location, mode="append")
    commit(catalog, caller, "t", property_change(managed_by="impl"))
    commit(catalog, caller, "t", version(3, 4))
    snapshots = load(catalog, caller, "t")["snapshots"]
    assert [snapshot["snapshot-id"] for snapshot in snapshots] == [1, 2, 3, 4]
    assert [snapshot["summary"].get("total-records") for snapshot in snapshots] == ["3", "6", "9", None]


def test_a_dataset_made_again_while_storage_managed_it(catalog: Catalog, caller: Caller) -> None:
    location = create(catalog, caller, "t")
    for before, after in [(None, 1), (1, 2)]:
        lance.write_dataset(ROWS, location, mode="append" if before else "create")
        commit(catalog, caller, "t", version(before, after))
    commit(catalog, caller, "t", property_change(managed_by="storage"))
    shutil.rmtree(location)
    lance.write_dataset(ROWS, location)
    commit(catalog, caller, "t", property_change(managed_by="impl"))
    commit(catalog, caller, "t", version(1, 2))
    assert [snapshot["snapshot-id"] for snapshot in load(catalog, caller, "t")["snapshots"]] == [1, 2]


def test_versions_of_a_branch_one_after_the_other(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    """Storage has nothing of it, nor of the table."""
    create(catalog, caller, "t")
    accepted: list[int] = []
    for before, after in [(None, 3), (3, 4), (4, 9)]:
        accepted.append(dev(after))
        made = commit(catalog, caller, "t", version(before, after, "dev", key="value"))
        assert snapshots_and_refs(orjson.loads(made.metadata)) == (accepted, {"dev": dev(after)})
        assert snapshots_and_refs(load(catalog, caller, "t")) == (accepted, {"dev": dev(after)})
    last = load(catalog, caller, "t")["snapshots"][-1]
    assert (last["parent-snapshot-id"], last["sequence-number"]) == (dev(4), 9)
    assert (last["summary"]["key"], last["summary"]["lancehouse.committed-by"]) == ("value", "anonymous")
    entry = catalog.tables.get_entry(caller, main, LEVELS, "t")
    rows = catalog.database.read(lambda tx: repository.list_commits(tx, entry.id))
    assert [(row.operation, row.snapshot_id) for row in rows[:2]] == [("append", dev(9)), ("append", dev(4))]
    assert entry.version is None


def test_of_two_who_read_the_same_version_of_a_branch_one_wins(catalog: Catalog, caller: Caller) -> None:
    """Writers of other branches do not disturb."""
    create(catalog, caller, "t")
    for branch in ("main", "dev", "other"):
        commit(catalog, caller, "t", version(None, 1, branch))
    with ThreadPoolExecutor(6) as pool:
        tries = [
            pool.submit(commit, catalog, caller, "t", version(1, 2, branch))
            for branch in ("dev", "main", "dev", "other", "dev", "dev")
        ]
    failures = [error for attempt in tries if (error := attempt.exception()) is not None]
    assert [type(error) for error in failures] == [ConcurrentModificationError] * 3
    assert all(f"branch dev has changed: expected id {dev(1)} != {dev(2)}" in str(error) for error in failures)
    other = snapshot_id("other", 2)
    assert snapshots_and_refs(load(catalog, caller, "t"))[1] == {"main": 2, "dev": dev(2), "other": other}


def test_main_and_a_branch_in_one_commit(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for name in ("t", "u"):
        create(catalog, caller, name)
    both = together(version(None, 1), version(None, 1, "dev"))
    assert snapshots_and_refs(orjson.loads(commit(catalog, caller, "t", both).metadata)) == (
        [1, dev(1)],
        {"main": 1, "dev": dev(1)},
    )
    changes = [change("t", together(version(1, 2), version(1, 2, "dev"))), change("u", version(None, 1, "dev"))]
    catalog.commits.commit_transaction(caller, main, changes)
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([1, 2, dev(1), dev(2)], {"main": 2, "dev": dev(2)})
    assert snapshots_and_refs(load(catalog, caller, "u")) == ([dev(1)], {"dev": dev(1)})
    with pytest.raises(ConcurrentModificationError):
        commit(catalog, caller, "t", together(version(2, 3), version(1, 3, "dev")))
    assert snapshots_and_refs(load(catalog, caller, "t"))[1] == {"main": 2, "dev": dev(2)}


def adopt_branch(catalog: Catalog, caller: Caller) -> str:
    """A table at version 1 whose storage has the version 1 of dev."""
    location = create(catalog, caller, "t")
    commit(catalog, caller, "t", version(None, 1))
    lance.write_dataset(ROWS, location).create_branch("dev", 1)
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([1, dev(1)], {"main": 1, "dev": dev(1)})
    return location


def append_to_dev(location: str) -> None:
    lance.write_dataset(ROWS, lance.dataset(location).checkout_version(("dev", None)), mode="append")


def test_a_branch_goes_on_from_what_storage_has(catalog: Catalog, caller: Caller) -> None:
    location = adopt_branch(catalog, caller)
    for before in (None, 2):
        with pytest.raises(ConcurrentModificationError):
            commit(catalog, caller, "t", version(before, 3, "dev"))
    commit(catalog, caller, "t", version(1, 2, "dev"))
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([1, dev(1), dev(2)], {"main": 1, "dev": dev(2)})
    for _ in range(2):
        append_to_dev(location)
    metadata = load(catalog, caller, "t")
    assert snapshots_and_refs(metadata) == ([1, dev(1), dev(2)], {"main": 1, "dev": dev(2)})  # 3 was not accepted
    assert metadata["snapshots"][-1]["summary"]["total-records"] == "6"
    commit(catalog, caller, "t", version(2, 3, "dev"))
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([1, dev(1), dev(2), dev(3)], {"main": 1, "dev": dev(3)})


def test_a_branch_is_removed_and_made_again(catalog: Catalog, caller: Caller) -> None:
    location = create(catalog, caller, "t")
    for before, after in [(None, 1), (1, 2)]:
        commit(catalog, caller, "t", version(before, after, "dev"))
    removal = update("remove-snapshot-ref", **{"ref-name": "dev"})
    commit(catalog, caller, "t", removal)
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([], {})
    with pytest.raises(ConcurrentModificationError, match="missing"):
        commit(catalog, caller, "t", version(2, 3, "dev"))
    commit(catalog, caller, "t", version(None, 2, "dev", life="second"))
    (only,) = load(catalog, caller, "t")["snapshots"]
    assert (only["snapshot-id"], only["summary"]["life"]) == (dev(2), "second")
    asserted = {"requirements": version(2, 3, "dev")["requirements"], "updates": []}
    commit(
        catalog,
        caller,
        "t",
        together(asserted, removal, update("remove-snapshots", **{"snapshot-ids": [dev(2)]})),
    )
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([], {})
    commit(catalog, caller, "t", version(None, 1))
    lance.write_dataset(ROWS, location).create_branch("dev", 1)
    commit(catalog, caller, "t", version(1, 2, "dev"))
    commit(catalog, caller, "t", removal)
    assert snapshots_and_refs(load(catalog, caller, "t")) == (
        [1, dev(1)],
        {"main": 1, "dev": dev(1)},
    )  # as storage still has it


def test_the_other_branch_stays(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, "t")
    names = ["dev", "other"]
    for name in names:
        commit(catalog, caller, "t", version(None, 1, name))
    for name, left in (names, names[::-1]):
        commit(catalog, caller, "t", update("remove-snapshot-ref", **{"ref-name": name}))
        metadata = load(catalog, caller, "t")
        assert snapshots_and_refs(metadata) == ([snapshot_id(left, 1)], {left: snapshot_id(left, 1)})
        assert "lancehouse.committed-by" in metadata["snapshots"][0]["summary"]
        commit(catalog, caller, "t", version(None, 1, name))


def test_a_branch_goes_back_and_on_again(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, "t")
    for before, after in [(None, 1), (1, 2), (2, 3)]:
        commit(catalog, caller, "t", version(before, after, "dev"))
    back = {"ref-name": "dev", "type": "branch", "snapshot-id": dev(1)}
    commit(catalog, caller, "t", update("set-snapshot-ref", **back))
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([dev(1)], {"dev": dev(1)})
    commit(catalog, caller, "t", version(1, 2, "dev", life="second"))
    metadata = load(catalog, caller, "t")
    assert snapshots_and_refs(metadata) == ([dev(1), dev(2)], {"dev": dev(2)})
    assert metadata["snapshots"][-1]["summary"]["life"] == "second"


def test_branches_to_storage_and_back(catalog: Catalog, caller: Caller) -> None:
    location = adopt_branch(catalog, caller)
    commit(catalog, caller, "t", version(1, 2, "dev", key="value"))
    with pytest.raises(InvalidInputError, match="at version 2 of branch dev, storage at 1"):
        commit(catalog, caller, "t", property_change(managed_by="storage"))
    append_to_dev(location)
    commit(catalog, caller, "t", property_change(managed_by="storage"))
    append_to_dev(location)
    metadata = load(catalog, caller, "t")
    assert snapshots_and_refs(metadata) == ([1, dev(1), dev(2), dev(3)], {"main": 1, "dev": dev(3)})
    assert not any("key" in snapshot["summary"] for snapshot in metadata["snapshots"])
    with pytest.raises(InvalidInputError, match="managed by its storage"):
        commit(catalog, caller, "t", version(3, 4, "dev"))
    commit(catalog, caller, "t", property_change(managed_by="impl"))
    assert snapshots_and_refs(load(catalog, caller, "t")) == snapshots_and_refs(metadata)
    append_to_dev(location)
    commit(catalog, caller, "t", version(4, 5, "dev"))  # nothing of the catalog's own is left: storage says 4
    assert snapshots_and_refs(load(catalog, caller, "t"))[0] == [1, *map(dev, range(1, 6))]


def test_a_ref_set_with_the_hand_over_is_left_behind(catalog: Catalog, caller: Caller) -> None:
    location = adopt_branch(catalog, caller)
    ref = {"ref-name": "dev", "type": "branch", "snapshot-id": dev(1)}
    commit(catalog, caller, "t", together(update("set-snapshot-ref", **ref), property_change(managed_by="storage")))
    append_to_dev(location)
    assert snapshots_and_refs(load(catalog, caller, "t")) == ([1, dev(1), dev(2)], {"main": 1, "dev": dev(2)})
    asserted = {"requirements": version(2, 3, "dev")["requirements"], "updates": []}
    commit(catalog, caller, "t", together(asserted, property_change(x="1")))


def test_only_the_first_commit_on_a_branch_looks_at_storage(
    catalog: Catalog, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_branch(catalog, caller)
    commit(catalog, caller, "t", version(1, 2, "dev"))
    monkeypatch.setattr("lancehouse.lake.history.read_history", None)
    made = commit(catalog, caller, "t", version(2, 3, "dev"))
    assert snapshots_and_refs(orjson.loads(made.metadata)) == ([1, dev(1), dev(2), dev(3)], {"main": 1, "dev": dev(3)})


def test_after_a_commit_refs_are_told_without_a_list_of_versions(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = adopt_branch(catalog, caller)
    load(catalog, caller, "t")
    commit(catalog, caller, "t", version(1, 2))
    lance.write_dataset(ROWS, location, mode="append")
    monkeypatch.setattr("lancehouse.lake.history.read_history", None)
    metadata = orjson.loads(catalog.tables.load(caller, main, LEVELS, "t", "refs").metadata)
    assert snapshots_and_refs(metadata)[1] == {"main": 2, "dev": dev(1)}
    assert metadata["snapshots"][0]["summary"]["total-records"] == str(2 * ROWS.num_rows)


def test_an_iceberg_table_stays_one(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, "i", None)
    with pytest.raises(InvalidInputError, match="cannot become a Lance table"):
        commit(catalog, caller, "i", property_change(table_type="Lance"))


@pytest.mark.parametrize("file", ["no location", "hdfs://h/x/../y", "/elsewhere/00000-a.metadata.json"])
def test_a_metadata_log_may_name_anything(catalog: Catalog, main: Warehouse, caller: Caller, file: str) -> None:
    """What leaves the log is deleted only if it lies below the table's location; other entries hinder no commit."""
    location = Path(create(catalog, caller, "t", None))
    (metadata_file,) = (location / "metadata").iterdir()
    metadata = orjson.loads(metadata_file.read_bytes())
    metadata["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": file}]
    metadata["properties"] = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "1",
    }
    registered = location / "metadata" / "00001-b.metadata.json"
    registered.write_bytes(orjson.dumps(metadata))
    catalog.tables.drop(caller, main, LEVELS, "t")
    request = {"name": "u", "metadata-location": str(registered)}
    catalog.tables.register(caller, main, LEVELS, request)
    commit(catalog, caller, "u", property_change(a="b"))
    assert load(catalog, caller, "u")["properties"]["a"] == "b"


def test_several_tables_all(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for name, managed_by in [("l", "impl"), ("m", "impl"), ("i", None), ("s", "storage")]:
        create(catalog, caller, name, managed_by)
    changes = [
        change("l", version(None, 1)),
        change("m", version(None, 7)),
        change("i", property_change(x="1")),
        change("s", property_change(x="1")),
    ]
    catalog.commits.commit_transaction(caller, main, changes)
    assert [load(catalog, caller, name).get("current-snapshot-id") for name in "lm"] == [1, 7]
    assert [load(catalog, caller, name)["properties"]["x"] for name in "is"] == ["1", "1"]


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (change("m", version(3, 4)), ConcurrentModificationError),
        (change("m", version(None, 0)), InvalidInputError),
        (change("nope", property_change(x="1")), TableNotFoundError),
        (change("m", {"requirements": [{"type": "assert-create"}], "updates": []}), TableAlreadyExistsError),
        (change("l", property_change(x="1")), InvalidInputError),
    ],
)
def test_or_none(
    catalog: Catalog, main: Warehouse, caller: Caller, last: dict[str, Any], error: type[Exception]
) -> None:
    for name, managed_by in [("l", "impl"), ("m", "impl"), ("i", None)]:
        create(catalog, caller, name, managed_by)
    before = [load(catalog, caller, name) for name in "lmi"]
    files = sorted(Path(main.location).rglob("*.metadata.json"))
    with pytest.raises(error):
        catalog.commits.commit_transaction(
            caller, main, [change("l", version(None, 1)), change("i", property_change(x="1")), last]
        )
    assert [load(catalog, caller, name) for name in "lmi"] == before
    assert sorted(Path(main.location).rglob("*.metadata.json")) == files


def test_iceberg_commits_are_decided_anew_when_another_came_between(
    catalog: Catalog, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancehouse.catalog.commits.ATTEMPTS", 1000)  # a busy machine may let one lose many times
    create(catalog, caller, "i", None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: commit(catalog, caller, "i", property_change(**{f"p{n}": "1"})), range(12)))
    properties = load(catalog, caller, "i")["properties"]
    assert {key for key in properties if key.startswith("p")} == {f"p{n}" for n in range(12)}


def test_a_staged_table_is_created_by_its_commit(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    request = {"name": "i", "schema": SCHEMA, "stage-create": True}
    staged = orjson.loads(catalog.tables.create(caller, main, LEVELS, request).metadata)
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        {"action": "set-properties", "updates": {"x": "1"}},
    ]
    creation = {"requirements": [{"type": "assert-create"}], "updates": updates}
    commit(catalog, caller, "i", creation)
    found = load(catalog, caller, "i")
    assert (found["table-uuid"], found["location"]) == (staged["table-uuid"], staged["location"])
    with pytest.raises(TableAlreadyExistsError, match="Requirement failed: table already exists"):
        commit(catalog, caller, "i", creation)


def test_who_may_commit(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller, "t")
    reader = Caller(Identity("r", (Grant(Role.READER),)))
    with pytest.raises(PermissionDeniedError):
        commit(catalog, reader, "t", version(None, 1))
    with pytest.raises(PermissionDeniedError):
        catalog.commits.commit_transaction(reader, main, [change("t", version(None, 1))])
    assert "current-snapshot-id" not in load(catalog, caller, "t")
