from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import orjson
import pyarrow as pa
import pytest
import yaml
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
)
from openapi_schema_validator import OAS31Validator
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from lancehouse.catalog.lance_metadata import LanceTableMetadata, build_managed, manifest_location
from lancehouse.catalog.metadata_loader import LanceMetadataCache, Snapshots
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import history
from lancehouse.lake.dataset import TableRef, snapshot_id
from lancehouse.lake.versions import list_manifests
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow, Json, RefRow, SnapshotRow
from tests.from_memory import from_memory
from tests.lake.store import BUCKET, FakeStore
from tests.waiting import PATIENCE_S, wait_until

SPECS = os.environ.get("LANCEHOUSE_SPECS", "")

ROWS = pa.table({"id": [1, 2, 3], "v": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2))})
IMPL = {"table_type": "lance", "managed_by": "impl"}
DECLARED: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "declared", "required": False, "type": "long"}],
}


def append(at: str | lance.LanceDataset) -> lance.LanceDataset:
    return lance.write_dataset(ROWS, at, mode="append")


def remove_folder(folder: str) -> str:
    shutil.rmtree(folder)
    return folder


class CachedCatalog:
    """A catalog with one warehouse, and its tables as Iceberg sees them."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(f"sqlite:///{folder}/c.db")
        migrate.create_if_empty(self.database)
        row = self.database.write(lambda tx: repository.insert_warehouse(tx, "main", str(folder)))
        assert row is not None
        self.warehouse = Warehouse(row.id, row.name, row.location)
        space = self.database.write(lambda tx: repository.insert_namespace(tx, row.id, ("n",), {}))
        assert space is not None
        self.space_id = space.id
        self.tables = LanceMetadataCache(self.database)

    def create(self, name: str = "t", **more: Any) -> EntryRow:
        location = more.pop("location", f"{self.warehouse.location}/n/{name}")
        values: Json = {"properties": {"table_type": "LANCE"}, "uuid": str(uuid4())}
        values |= {"kind": "lance", "location": location, "location_key": f"{location}/", "now_ms": 1_000} | more
        made = self.database.write(lambda tx: repository.insert_entry(tx, self.space_id, name=name, **values))
        assert made is not None
        return made

    def find(self, name: str = "t") -> EntryRow:
        found = self.database.read(lambda tx: repository.find_entry(tx, self.warehouse.id, ("n",), name))
        assert found is not None
        return found

    def commit(
        self, entry: EntryRow, *versions: int, refs: tuple[RefRow, ...] = (), branch: str = "main", **summary: str
    ) -> EntryRow:
        """Versions that the catalog accepts; the last of them is the current one."""
        if branch != "main":
            refs = (*refs, RefRow(branch, "branch", snapshot_id(branch, versions[-1])))

        def work(tx: Any) -> None:
            rows = [
                SnapshotRow(
                    snapshot_id(branch, version),
                    snapshot_id(branch, version - 1) if version > 1 else None,
                    version,
                    2_000 + version,
                    f"{entry.location}/{version}.staged",
                    {"operation": "append", **summary},
                )
                for version in versions
            ]
            repository.insert_snapshots(tx, entry.id, rows)
            for ref in refs:
                repository.put_ref(tx, entry.id, ref)
            changes = {"version": versions[-1]} if versions and branch == "main" else {}
            assert repository.advance_entry(tx, entry.id, entry.revision, now_ms=2_000, **changes)

        self.database.write(work)
        return self.find(entry.name)

    def load(self, entry: EntryRow) -> Json:
        return check_metadata(self.tables.load(self.warehouse, entry))

    def find_cached(self, entry: EntryRow) -> LanceTableMetadata | None:
        return from_memory(self.tables.load, self.warehouse, entry)

    def settle(self, entry: EntryRow) -> LanceTableMetadata:
        """Load until it is held in memory."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.find_cached(entry)) is None:
            assert time.monotonic() < deadline
            self.tables.load(self.warehouse, entry)
            time.sleep(0.01)
        return found


def check_metadata(table: LanceTableMetadata) -> Json:
    """The metadata, if they are what pyiceberg and Iceberg's Java library take."""
    metadata = table.metadata
    for raw in (table.full_json, table.refs_json):
        assert parse_metadata(raw).location == metadata["location"]
    ids = {each["snapshot-id"] for each in metadata["snapshots"]}
    assert len(ids) == len(metadata["snapshots"])
    assert {ref["snapshot-id"] for ref in metadata["refs"].values()} <= ids
    assert metadata.get("current-snapshot-id") == metadata["refs"].get("main", {}).get("snapshot-id")
    assert all(each["sequence-number"] <= metadata["last-sequence-number"] for each in metadata["snapshots"])
    times = [each["timestamp-ms"] for each in metadata["snapshot-log"]]
    assert times == sorted(times)
    assert all(each <= metadata["last-updated-ms"] for each in times)
    few = orjson.loads(table.refs_json)
    named = {ref["snapshot-id"] for ref in metadata["refs"].values()}
    for key in ("snapshots", "snapshot-log"):
        assert few.pop(key) == [each for each in metadata[key] if each["snapshot-id"] in named]
    assert few == {key: value for key, value in metadata.items() if key not in ("snapshots", "snapshot-log")}
    return metadata


def parse_metadata(raw: bytes) -> TableMetadata:
    return TableMetadataUtil.parse_raw(raw.decode())


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[CachedCatalog]:
    made = CachedCatalog(tmp_path)
    yield made
    made.database.close()


def ids(metadata: Json) -> list[int]:
    return [each["snapshot-id"] for each in metadata["snapshots"]]


def summaries(metadata: Json) -> list[dict[str, str]]:
    return [each["summary"] for each in metadata["snapshots"]]


def test_declared(catalog: CachedCatalog) -> None:
    empty = catalog.load(catalog.create("empty"))
    assert "current-snapshot-id" not in empty
    assert empty["schemas"] == [{"type": "struct", "schema-id": 1, "fields": []}]
    assert (empty["refs"], empty["snapshots"], empty["snapshot-log"], empty["last-column-id"]) == ({}, [], [], 0)
    declared = catalog.load(catalog.create("declared", schema=DECLARED, properties=IMPL))
    assert declared["schemas"] == [{**DECLARED, "schema-id": 1}]
    assert (declared["current-schema-id"], declared["last-column-id"]) == (1, 1)


def test_the_seed_point_by_point(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties={"table_type": "LANCE", "managed_by": "Storage", "gc.enabled": "false"})
    for _ in range(3):
        append(entry.location)
    table = catalog.load(entry)
    assert table["location"] == entry.location
    assert table["properties"] == {"table_type": "lance", "managed_by": "storage", "gc.enabled": "false"}
    assert (table["current-snapshot-id"], table["current-schema-id"], table["format-version"]) == (3, 1, 2)
    (schema,) = table["schemas"]
    assert schema["schema-id"] == 1
    assert [(field["id"], field["name"]) for field in schema["fields"]] == [(1, "id"), (2, "v")]
    assert table["last-column-id"] == 1_000_002
    assert ids(table) == [1, 2, 3]
    assert [each["snapshot-id"] for each in table["snapshot-log"]] == [1, 2, 3]
    assert table["refs"] == {"main": {"snapshot-id": 3, "type": "branch"}}
    assert table["last-updated-ms"] == table["snapshots"][-1]["timestamp-ms"]
    assert table["table-uuid"] == entry.uuid
    for key in ("metadata-log", "statistics", "partition-statistics"):
        assert table[key] == []


def test_summaries(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    append(entry.location)
    append(entry.location)
    lance.dataset(entry.location).delete("id = 1")
    lance.dataset(entry.location).optimize.compact_files()
    lance.dataset(entry.location).update({"id": "7"}, where="id = 2")
    lance.write_dataset(ROWS, entry.location, mode="overwrite")
    told = [
        (each["operation"], each["lance.operation"], each.get("added-records"), each.get("deleted-records"))
        for each in summaries(catalog.load(entry))
    ]
    assert told[:3] == [
        ("append", "Overwrite", "3", None),
        ("append", "Append", "3", None),
        ("delete", "Delete", None, "2"),
    ]
    assert ("replace", "Rewrite", None, None) in told
    assert told[-2:] == [("overwrite", "Update", None, None), ("overwrite", "Overwrite", "3", "4")]
    last = catalog.load(entry)["snapshots"][-1]
    assert last["summary"]["total-records"] == "3"
    assert last["summary"]["total-data-files"] == "1"
    assert int(last["summary"]["total-files-size"]) > 0
    assert last["summary"]["lance.version"] == str(last["snapshot-id"]) == str(last["sequence-number"])
    assert last["parent-snapshot-id"] == last["snapshot-id"] - 1
    assert last["manifest-list"].startswith(f"lance://{entry.location}/_versions/")
    assert Path(last["manifest-list"].removeprefix("lance://")).exists()


def test_tags_and_branches(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    append(entry.location)
    append(entry.location).tags.create("v1", 1)
    dataset = lance.dataset(entry.location)
    dataset.create_branch("b", 1)
    append(dataset.checkout_version(("b", None)))
    for name in ("main", "b"):
        dataset.tags.create(name, 2)
    table = catalog.load(entry)
    base, head = snapshot_id("b", 1), snapshot_id("b", 2)
    assert {name: (ref["type"], ref["snapshot-id"]) for name, ref in table["refs"].items()} == {
        "main": ("branch", 2),
        "b": ("branch", head),
        "v1": ("tag", 1),
        "tag:main": ("tag", 2),
        "tag:b": ("tag", 2),
    }
    assert ids(table) == [1, 2, base, head]
    assert [each.get("parent-snapshot-id") for each in table["snapshots"]] == [None, 1, 1, base]
    assert table["snapshots"][-1]["summary"]["lance.branch"] == "b"
    assert [each["snapshot-id"] for each in table["snapshot-log"]] == [1, 2]


CHANGES: dict[str, tuple[Callable[[str], object], Callable[[Json], bool]]] = {
    "append": (append, lambda table: table["current-snapshot-id"] == 4),
    "cleanup": (
        lambda at: lance.dataset(at).cleanup_old_versions(older_than=timedelta(0)),
        lambda table: ids(table)[:1] == [3],
    ),
    "tag": (lambda at: lance.dataset(at).tags.create("x", 2), lambda table: table["refs"]["x"]["snapshot-id"] == 2),
    "branch": (lambda at: lance.dataset(at).create_branch("x", 2), lambda table: "x" in table["refs"]),
    "made again": (
        lambda at: lance.write_dataset(ROWS, remove_folder(at)),
        lambda table: ids(table) == [1],
    ),
    "removed": (shutil.rmtree, lambda table: ids(table) == []),
}


@pytest.mark.parametrize(("change", "shows"), CHANGES.values(), ids=CHANGES)
def test_a_change_with_plain_pylance_shows_at_once(
    catalog: CachedCatalog, change: Callable[[str], object], shows: Callable[[Json], bool]
) -> None:
    entry = catalog.create()
    for _ in range(3):
        append(entry.location)
    before = catalog.settle(entry)
    assert catalog.find_cached(entry) is before
    change(entry.location)
    assert catalog.find_cached(entry) is None
    after = catalog.tables.load(catalog.warehouse, entry)
    assert shows(check_metadata(after))
    assert after.etag != before.etag
    assert catalog.settle(entry).full_json == after.full_json


def test_a_table_that_comes_to_be(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    catalog.settle(entry)
    append(entry.location)
    assert catalog.find_cached(entry) is None
    assert catalog.load(entry)["current-snapshot-id"] == 1


def test_every_version_shows_at_once_under_load(catalog: CachedCatalog) -> None:
    """A reader that asks after a commit sees it, however fast commits follow each other."""
    entry = catalog.create()
    dataset = append(entry.location)
    for version in range(2, 42):
        dataset = append(dataset)
        table = catalog.find_cached(entry) or catalog.tables.load(catalog.warehouse, entry)
        assert table.metadata["current-snapshot-id"] == version


def test_a_new_revision_is_built_anew(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    append(entry.location)
    before = catalog.settle(entry)
    changed = replace(
        entry, revision=entry.revision + 1, updated_ms=10**14, properties={"table_type": "lance", "a": "b"}
    )
    assert catalog.find_cached(changed) is None
    table = catalog.load(changed)
    assert table["properties"]["a"] == "b"
    assert table["last-updated-ms"] == 10**14
    assert catalog.settle(changed).etag != before.etag


def test_etags(catalog: CachedCatalog, tmp_path: Path) -> None:
    entry = catalog.create()
    append(entry.location)
    append(entry.location)
    here = catalog.tables.load(catalog.warehouse, entry)
    elsewhere = LanceMetadataCache(catalog.database).load(catalog.warehouse, entry)
    assert (here.etag, here.full_json, here.refs_json) == (elsewhere.etag, elsewhere.full_json, elsewhere.refs_json)
    lance.dataset(entry.location).tags.create("x", 1)
    assert catalog.tables.load(catalog.warehouse, entry).etag != here.etag


def test_time_goes_back(catalog: CachedCatalog) -> None:
    """Writers with clocks apart: Iceberg's Java library refuses a log that is not in order."""
    entry = catalog.create(properties=IMPL)
    row = SnapshotRow(1, None, 1, 10**13, "m", {"operation": "append"})
    catalog.database.write(lambda tx: repository.insert_snapshots(tx, entry.id, [row]))
    table = catalog.load(catalog.commit(entry, 2))
    assert [each["timestamp-ms"] for each in table["snapshots"]] == [10**13, 2_002]
    assert [each["timestamp-ms"] for each in table["snapshot-log"]] == [10**13, 10**13]
    assert table["last-updated-ms"] == 10**13


@pytest.mark.parametrize("form", ["{}", "file://{}", "{}/"])
def test_locations(catalog: CachedCatalog, form: str) -> None:
    path = f"{catalog.warehouse.location}/n/with space"
    append(path)
    entry = catalog.create(location=form.format(path if form == "{}" else path.replace(" ", "%20")))
    if form == "{}/":
        append(entry.location)
    table = catalog.load(entry)
    assert table["location"] == entry.location
    assert table["current-snapshot-id"] == 1
    assert "//_versions" not in table["snapshots"][0]["manifest-list"]
    assert catalog.settle(entry).manifest.startswith(entry.location.rstrip("/") + "/_versions/")


# Managed by the catalog


def test_the_catalog_decides(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties=IMPL, schema=DECLARED)
    for _ in range(3):
        append(entry.location)
    assert "current-snapshot-id" not in catalog.load(entry)
    entry = catalog.commit(entry, 1, 2, key="value")
    table = catalog.load(entry)
    assert (table["current-snapshot-id"], ids(table)) == (2, [1, 2])
    assert table["schemas"][0]["fields"][0]["name"] == "id"
    assert summaries(table)[1] == {
        "operation": "append",
        "key": "value",
        "lance.operation": "Append",
        "lance.version": "2",
        "total-records": "6",
        "total-data-files": "2",
        "total-files-size": summaries(table)[1]["total-files-size"],
    }
    assert table["snapshots"][1]["manifest-list"] == f"{entry.location}/2.staged"
    assert catalog.settle(entry).manifest == f"{entry.location}/2.staged"
    append(entry.location)
    assert catalog.find_cached(entry) is not None
    lance.dataset(entry.location).tags.create("one", 1)
    assert catalog.find_cached(entry) is None
    lance.dataset(entry.location).tags.create("later", 3)
    assert set(catalog.load(entry)["refs"]) == {"main", "one"}


def test_a_manifest_that_is_not_in_place_yet(catalog: CachedCatalog) -> None:
    entry = catalog.commit(catalog.create(properties=IMPL, schema=DECLARED), 1)
    table = catalog.load(entry)
    assert (table["current-snapshot-id"], table["schemas"][0]["fields"]) == (1, DECLARED["fields"])
    time.sleep(0.1)
    catalog.load(entry)
    assert catalog.find_cached(entry) is None
    append(entry.location)
    assert [field["name"] for field in catalog.load(entry)["schemas"][0]["fields"]] == ["id", "v"]
    assert catalog.settle(entry)
    entry = catalog.commit(entry, 2)
    table = catalog.load(entry)
    assert [field["name"] for field in table["schemas"][0]["fields"]] == ["id", "v"]
    assert ["total-records" in summary for summary in summaries(table)] == [True, False]
    assert catalog.find_cached(entry) is None


def test_versions_from_before_the_catalog(catalog: CachedCatalog) -> None:
    """An adopted dataset: what it had then is shown; what storage got later behind the catalog's back is not."""
    entry = catalog.create(properties=IMPL, version=2)
    for _ in range(5):
        append(entry.location)
    assert ids(catalog.load(entry)) == [1, 2]
    entry = catalog.commit(entry, 3)
    assert ids(catalog.load(entry)) == [1, 2, 3]
    entry = catalog.commit(entry, 5)
    assert ids(catalog.load(entry)) == [1, 2, 3, 5]


def test_an_adopted_version_that_is_gone(catalog: CachedCatalog) -> None:
    table = catalog.load(catalog.create(properties=IMPL, version=7, schema=DECLARED))
    assert (table["current-snapshot-id"], ids(table)) == (7, [7])
    assert table["snapshots"][0]["manifest-list"].endswith("_versions/18446744073709551608.manifest")


def test_refs_of_the_catalog(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties=IMPL)
    for _ in range(3):
        append(entry.location)
    dataset = lance.dataset(entry.location)
    dataset.tags.create("both", 1)
    dataset.tags.create("storage", 1)
    refs = (RefRow("both", "tag", 2), RefRow("side", "branch", 1), RefRow("nowhere", "tag", 9))
    table = catalog.load(catalog.commit(entry, 1, 2, 3, refs=refs))
    assert {name: (ref["type"], ref["snapshot-id"]) for name, ref in table["refs"].items()} == {
        "main": ("branch", 3),
        "both": ("tag", 2),
        "side": ("branch", 1),
        "storage": ("tag", 1),
    }


def test_an_operation_that_iceberg_does_not_know(catalog: CachedCatalog) -> None:
    entry = catalog.commit(catalog.create(properties=IMPL), 1, operation="compaction")
    assert summaries(catalog.load(entry)) == [{"operation": "overwrite"}]


def test_a_schema_that_is_missing_is_filled_in(catalog: CachedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that fails: a database on a full disk can still be read."""
    entry = catalog.create(properties=IMPL)
    append(entry.location)
    entry = catalog.commit(entry, 1)

    def refuse(*_: object) -> None:
        raise ServiceUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(catalog.database, "write", refuse)
        assert [field["name"] for field in catalog.load(entry)["schemas"][0]["fields"]] == ["id", "v"]
    assert catalog.find().schema is None
    LanceMetadataCache(catalog.database).load(catalog.warehouse, entry)
    schema = catalog.find().schema
    assert schema is not None
    assert [field["name"] for field in schema["fields"]] == ["id", "v"]


def test_after_a_commit_storage_is_left_alone(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties=IMPL, schema=DECLARED)
    append(entry.location)
    entry = catalog.commit(entry, 1)
    catalog.settle(entry)
    shutil.rmtree(entry.location)
    Path(entry.location).write_text("whatever needs storage now fails")
    entry = catalog.commit(entry, 2)
    table = check_metadata(catalog.tables.load_committed(catalog.warehouse, entry))
    assert (table["current-snapshot-id"], ids(table)) == (2, [1, 2])
    assert [field["name"] for field in table["schemas"][0]["fields"]] == ["id", "v"]
    assert catalog.find_cached(entry) is None


def test_a_commit_is_answered_whatever_storage_says(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties=IMPL)
    Path(entry.location).parent.mkdir()
    Path(entry.location).write_text("no dataset")
    entry = catalog.commit(entry, 1)
    assert check_metadata(catalog.tables.load_committed(catalog.warehouse, entry))["current-snapshot-id"] == 1


def test_after_a_commit_of_properties(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    append(entry.location)
    assert check_metadata(catalog.tables.load_committed(catalog.warehouse, entry))["current-snapshot-id"] == 1


# Managed by the catalog, on branches


def dev(version: int) -> int:
    return snapshot_id("dev", version)


def refs_of(metadata: Json) -> dict[str, tuple[str, int]]:
    return {name: (ref["type"], ref["snapshot-id"]) for name, ref in metadata["refs"].items()}


def create_branched(catalog: CachedCatalog, name: str = "dev", versions: int = 3) -> EntryRow:
    """A table at version 2, with a branch of as many versions that only storage knows of, the first from version 2."""
    entry = catalog.create(properties=IMPL, version=2)
    append(entry.location)
    append(entry.location).create_branch(name, 2)
    for _ in range(versions - 1):
        append(lance.dataset(entry.location).checkout_version((name, None)))
    return entry


def test_a_branch_that_storage_has_nothing_of(catalog: CachedCatalog) -> None:
    """Nor has it a main branch."""
    entry = catalog.create(properties=IMPL, schema=DECLARED)
    entry = catalog.commit(entry, 4, 5, branch="dev", key="value")
    table = catalog.load(entry)
    assert "current-snapshot-id" not in table
    assert (ids(table), refs_of(table)) == ([dev(4), dev(5)], {"dev": ("branch", dev(5))})
    assert table["snapshots"][1] == {
        "snapshot-id": dev(5),
        "parent-snapshot-id": dev(4),
        "sequence-number": 5,
        "timestamp-ms": 2_005,
        "manifest-list": f"{entry.location}/5.staged",
        "summary": {"operation": "append", "key": "value"},
        "schema-id": 1,
    }
    assert (table["snapshot-log"], table["last-sequence-number"]) == ([], 5)
    assert ids(orjson.loads(catalog.tables.load(catalog.warehouse, entry).refs_json)) == [dev(5)]
    table = catalog.load(catalog.commit(entry, 1))
    assert (ids(table), refs_of(table)["main"]) == ([1, dev(4), dev(5)], ("branch", 1))
    assert [each["snapshot-id"] for each in table["snapshot-log"]] == [1]


def test_a_branch_before_and_after_its_manifest_is_there(catalog: CachedCatalog) -> None:
    entry = create_branched(catalog)
    assert ids(catalog.load(entry)) == [1, 2, dev(2), dev(3), dev(4)]
    catalog.settle(entry)
    entry = catalog.commit(entry, 5, branch="dev", key="value")
    table = catalog.load(entry)
    assert ids(table) == [1, 2, dev(2), dev(3), dev(4), dev(5)]
    assert refs_of(table) == {"main": ("branch", 2), "dev": ("branch", dev(5))}
    assert summaries(table)[-1] == {"operation": "append", "key": "value"}
    time.sleep(0.1)
    before = catalog.settle(entry)
    dataset = lance.dataset(entry.location)
    append(dataset.checkout_version(("dev", None)))
    assert catalog.find_cached(entry) is None
    table = catalog.load(entry)
    assert ids(table) == [1, 2, dev(2), dev(3), dev(4), dev(5)]
    assert summaries(table)[-1] == {
        "operation": "append",
        "key": "value",
        "lance.operation": "Append",
        "lance.version": "5",
        "lance.branch": "dev",
        "total-records": "15",
        "total-data-files": "5",
        "total-files-size": summaries(table)[-1]["total-files-size"],
    }
    assert table["snapshots"][-1]["manifest-list"] == f"{entry.location}/5.staged"
    assert catalog.settle(entry).etag != before.etag


def test_what_storage_has_beyond_a_branch_of_the_catalog(catalog: CachedCatalog) -> None:
    entry = create_branched(catalog)
    dataset = lance.dataset(entry.location)
    dataset.create_branch("other", 1)
    dataset.tags.create("good", ("dev", 3))
    dataset.tags.create("beyond", ("dev", 4))
    entry = catalog.commit(entry, 3, branch="dev")
    table = catalog.load(entry)
    assert ids(table) == [1, 2, dev(2), dev(3), snapshot_id("other", 1)]
    assert refs_of(table) == {
        "main": ("branch", 2),
        "dev": ("branch", dev(3)),
        "other": ("branch", snapshot_id("other", 1)),
        "good": ("tag", dev(3)),
    }


def test_a_branch_of_the_catalog_at_a_version_of_storage(catalog: CachedCatalog) -> None:
    """A ref that a client set without a new version: up to there."""
    entry = catalog.commit(create_branched(catalog), refs=(RefRow("dev", "branch", dev(3)),))
    table = catalog.load(entry)
    assert (ids(table), refs_of(table)["dev"]) == ([1, 2, dev(2), dev(3)], ("branch", dev(3)))
    lance.dataset(entry.location).branches.delete("dev")
    table = catalog.load(entry)
    assert (ids(table), refs_of(table)["dev"]) == ([1, 2, dev(3)], ("branch", dev(3)))
    last = table["snapshots"][-1]
    assert last["summary"] == {"operation": "overwrite", "lance.version": "3", "lance.branch": "dev"}
    assert last["manifest-list"].endswith("/tree/dev/_versions/18446744073709551612.manifest")


def test_a_ref_of_the_catalog_that_is_no_branch_of_lance(catalog: CachedCatalog) -> None:
    entry = create_branched(catalog)
    for ref in (RefRow("dev", "branch", 1), RefRow("dev", "tag", dev(3))):
        entry = catalog.commit(entry, refs=(ref,))
        table = catalog.load(entry)
        assert ids(table) == [1, 2, dev(2), dev(3), dev(4)]
        assert refs_of(table)["dev"] == (ref.kind, ref.snapshot_id)


def test_a_tag_of_storage_beside_a_branch_of_the_catalog(catalog: CachedCatalog) -> None:
    entry = catalog.create(properties=IMPL, version=1)
    append(entry.location).tags.create("dev", 1)
    entry = catalog.commit(entry, 2, branch="dev")
    assert refs_of(catalog.load(entry)) == {
        "main": ("branch", 1),
        "dev": ("branch", dev(2)),
        "tag:dev": ("tag", 1),
    }


def test_another_server_sees_a_branch_at_once(catalog: CachedCatalog) -> None:
    elsewhere = LanceMetadataCache(catalog.database)
    entry = create_branched(catalog)
    for version in (5, 6):
        for tables in (catalog.tables, elsewhere):
            tables.load(catalog.warehouse, entry)
        entry = catalog.commit(entry, version, branch="dev")
        here = catalog.tables.load_committed(catalog.warehouse, entry)
        assert from_memory(elsewhere.load, catalog.warehouse, entry) is None
        there = elsewhere.load(catalog.warehouse, entry)
        assert texts(there) == texts(here)
        assert refs_of(check_metadata(there))["dev"] == ("branch", dev(version))


def test_ids_of_main_that_look_like_those_of_a_branch(catalog: CachedCatalog) -> None:
    """No Lance table has so many versions; a client may say so all the same."""
    first, second = 2**62, 2**62 + 1
    entry = catalog.commit(catalog.create(properties=IMPL), first, second)
    assert ids(catalog.load(entry)) == [first, second]
    catalog.database.write(lambda tx: repository.delete_snapshots(tx, entry.id, [first]))
    entry = catalog.commit(entry, 1, branch="dev")
    assert ids(catalog.load(entry)) == [second, dev(1)]
    table = catalog.load(catalog.commit(entry, 2, branch="dev"))
    assert ids(table) == [second, dev(1), dev(2)]
    assert [each["snapshot-id"] for each in table["snapshot-log"]] == [second]


# One more: what is there already is not made again


class Steps:
    """A table of one catalog that changes step by step, in storage and in the catalog."""

    def __init__(self, catalog: CachedCatalog, **entry: Any) -> None:
        self.catalog = catalog
        self.entry = catalog.create(**entry)

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.entry.location)

    def append(self, times: int = 1) -> None:
        for _ in range(times):
            append(self.entry.location)

    def append_to_branch(self, times: int = 1) -> None:
        for _ in range(times):
            append(self.dataset.checkout_version(("b", None)))

    def clean(self) -> None:
        self.dataset.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)

    def commit(self, *versions: int, **more: Any) -> None:
        self.entry = self.catalog.commit(self.entry, *versions, **more)

    def write(self, work: Callable[[Any], object], **changes: Any) -> None:
        """Rows, in a commit that changes the entry."""

        def advance(tx: Any) -> None:
            work(tx)
            assert repository.advance_entry(tx, self.entry.id, self.entry.revision, now_ms=3_000, **changes)

        self.catalog.database.write(advance)
        self.entry = self.catalog.find(self.entry.name)

    def change(self, **changes: Any) -> None:
        self.write(lambda _: None, **changes)

    def remove(self, *ids: int, adding: tuple[int, ...] = (), adding_to_a: int = 0) -> None:
        def work(tx: Any) -> None:
            repository.delete_snapshots(tx, self.entry.id, ids)
            manifest = f"of revision {self.entry.revision}"
            rows = [SnapshotRow(each, None, each, 5_000, manifest, {"operation": "append"}) for each in adding]
            if adding_to_a:
                rows.append(
                    SnapshotRow(snapshot_id("a", adding_to_a), None, 9, 5_000, manifest, {"operation": "append"})
                )
                repository.put_ref(tx, self.entry.id, RefRow("a", "branch", rows[-1].snapshot_id))
            repository.insert_snapshots(tx, self.entry.id, rows)

        self.write(work, **({"version": max(adding)} if adding else {}))

    def use_again(self, version: int, *ids: int) -> None:
        """Go back to a version, as a table does whose dataset was made again, and on from there."""
        self.change(version=version)
        self.remove(*ids, adding=ids)

    def forget_ref(self, name: str) -> None:
        self.write(lambda tx: repository.delete_ref(tx, self.entry.id, name))

    def at_once(self) -> LanceTableMetadata:
        """The table, made anew from what the catalog has and what is known of storage."""
        read, entry = self.catalog.database.read, self.entry
        rows = read(lambda tx: repository.list_snapshots(tx, entry.id))
        refs = read(lambda tx: repository.list_refs(tx, entry.id))
        (held,) = self.catalog.tables._tables.values()
        return build_managed(entry, held.history, rows, refs).table


def texts(table: LanceTableMetadata) -> tuple[bytes, bytes, str, str]:
    return table.full_json, table.refs_json, table.etag, table.manifest


MANAGED_STEPS: list[tuple[str, Callable[[Steps], object]]] = [
    ("a version", lambda at: at.commit(5)),
    ("one before it in storage", lambda at: at.append()),
    ("another", lambda at: at.commit(6)),
    ("several", lambda at: at.commit(7, 8, 9, key='ü\u2028"')),
    ("a property", lambda at: at.change(properties={**IMPL, "a": "b"})),
    ("a ref", lambda at: at.commit(refs=(RefRow("x", "tag", 5), RefRow("y", "branch", 9)))),
    ("their manifests", lambda at: at.append(6)),
    ("a version that storage has", lambda at: at.commit(10)),
    ("removed", lambda at: at.remove(5, 7)),
    ("a version after that", lambda at: at.commit(11)),
    ("removed with the first", lambda at: at.remove(6)),
    ("one for another", lambda at: at.remove(8, adding=(12,))),
    ("a version and a ref", lambda at: at.commit(13, refs=(RefRow("x", "tag", 13),))),
    ("no ref", lambda at: at.forget_ref("x")),
    ("a schema", lambda at: at.change(schema=DECLARED)),
    ("a tag in storage", lambda at: at.dataset.tags.create("s", 2)),
    ("a branch in storage", lambda at: at.dataset.create_branch("b", 3)),
    ("a version of it", lambda at: at.append_to_branch()),
    ("a version beside it", lambda at: at.commit(14)),
    ("a version of it in the catalog", lambda at: at.commit(6, branch="b")),
    ("its manifest", lambda at: at.append_to_branch(3)),
    ("another branch in the catalog", lambda at: at.commit(1, 2, branch="a")),
    ("a version beside them", lambda at: at.commit(15)),
    ("one more", lambda at: at.commit(7, branch="b")),
    ("one more on the other", lambda at: at.commit(3, branch="a")),
    ("one of a branch removed, one of main added", lambda at: at.remove(snapshot_id("a", 2), adding=(16,))),
    ("one of main removed", lambda at: at.remove(15)),
    ("one of main removed, one of a branch added", lambda at: at.remove(11, adding_to_a=4)),
    ("a branch as storage has it", lambda at: at.forget_ref("b")),
    ("and again as the catalog has it", lambda at: at.commit(refs=(RefRow("b", "branch", snapshot_id("b", 6)),))),
    ("one branch in the catalog", lambda at: at.forget_ref("a")),
    ("none in the catalog", lambda at: at.forget_ref("b")),
    ("no old versions in storage", lambda at: at.clean()),
    ("a gap", lambda at: at.commit(20)),
    ("an older one current", lambda at: at.change(version=13)),
    ("ids used again", lambda at: at.remove(14, 20, adding=(14, 20))),
    ("a version after those", lambda at: at.commit(22)),
    ("ids used again, unseen", lambda at: at.use_again(14, 20, 22)),
    ("another dataset", lambda at: lance.write_dataset(ROWS, remove_folder(at.entry.location))),
    ("none known", lambda at: at.change(version=23)),
    ("none", lambda at: at.change(version=None)),
    ("again", lambda at: at.change(version=14)),
]


@pytest.mark.parametrize("looks", ["after each", "after some", "never", "at refs after each", "at refs after some"])
def test_step_by_step_is_as_at_once(catalog: CachedCatalog, looks: str) -> None:
    """Whatever is taken from before: the bytes, the etag and the refs are those of a table that is made anew."""
    at = Steps(catalog, properties=IMPL, version=3)
    at.append(3)
    catalog.load(at.entry)
    states: dict[str, bytes] = {}
    for number, (name, step) in enumerate(MANAGED_STEPS):
        step(at)
        table = catalog.tables.load_committed(catalog.warehouse, at.entry)
        assert texts(table) == texts(at.at_once()), name
        check_metadata(table)
        assert states.setdefault(table.etag, table.full_json) == table.full_json, name
        if "after each" in looks or ("after some" in looks and number % 4 == 3):
            asked: Snapshots = "refs" if "at refs" in looks else "all"
            loaded = catalog.tables.load(catalog.warehouse, at.entry, asked)
            anew = LanceMetadataCache(catalog.database).load(catalog.warehouse, at.entry)
            assert (loaded.refs_json, loaded.manifest) == (anew.refs_json, anew.manifest), name
            assert asked == "refs" or texts(loaded) == texts(anew), name
            check_metadata(loaded)
            assert states.setdefault(loaded.etag, loaded.full_json) == loaded.full_json, name
    assert len(set(states.values())) == len(states)


STORED_STEPS: list[tuple[str, Callable[[Steps], object]]] = [
    ("the first", lambda at: at.append()),
    ("a version", lambda at: at.append()),
    ("several", lambda at: at.append(3)),
    ("a tag", lambda at: at.dataset.tags.create("s", 2)),
    ("a branch", lambda at: at.dataset.create_branch("b", 3)),
    ("a version of it", lambda at: at.append_to_branch()),
    ("another", lambda at: at.append_to_branch()),
    ("a version beside it", lambda at: at.append()),
    ("another branch", lambda at: at.dataset.create_branch("a", 4)),
    ("a property", lambda at: at.change(properties={"table_type": "lance", "a": "b"})),
    ("managed", lambda at: at.change(properties=IMPL, version=6)),
    ("a commit", lambda at: at.commit(7)),
    ("no longer managed", lambda at: at.change(properties={"table_type": "lance"}, version=None)),
    ("without the branches", lambda at: [at.dataset.branches.delete(name) for name in ("a", "b")]),
    ("without old versions", lambda at: at.clean()),
    ("a version after that", lambda at: at.append()),
    ("made again", lambda at: lance.write_dataset(ROWS, remove_folder(at.entry.location))),
    ("gone", lambda at: shutil.rmtree(at.entry.location)),
]


def test_version_by_version_is_as_at_once(catalog: CachedCatalog) -> None:
    at = Steps(catalog)
    states: dict[str, bytes] = {}
    for name, step in STORED_STEPS:
        step(at)
        table = catalog.tables.load(catalog.warehouse, at.entry)
        assert texts(table) == texts(LanceMetadataCache(catalog.database).load(catalog.warehouse, at.entry)), name
        check_metadata(table)
        assert states.setdefault(table.etag, table.full_json) == table.full_json, name
    assert len(set(states.values())) == len(states)


def test_a_commit_costs_what_is_new(catalog: CachedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    listed = repository.list_snapshots

    def count_rows(*args: Any) -> list[SnapshotRow]:
        found = listed(*args)
        rows.append(len(found))
        return found

    monkeypatch.setattr(repository, "list_snapshots", count_rows)
    at = Steps(catalog, properties=IMPL)
    at.commit(*range(1, 51))
    before = at.entry

    def cost(entry: EntryRow) -> list[int]:
        rows.clear()
        catalog.tables.load_committed(catalog.warehouse, entry)
        return [*rows]

    assert cost(at.entry) == [50]
    at.commit(51)
    assert cost(at.entry) == [2]
    assert cost(before) == [2]  # two commits, and the first one is answered last
    at.commit(52, 53)
    assert cost(at.entry) == [3]
    at.commit()
    assert cost(at.entry) == [1]
    at.remove(7)
    assert cost(at.entry) == [1, 52]
    at.commit(54)
    assert cost(at.entry) == [2]


def test_the_first_load_of_all_snapshots_reads_each_row_once(
    catalog: CachedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in an object store, where the rows tell what would else be read of manifests."""
    rows: list[int] = []
    listed = repository.list_snapshots

    def count_rows(*args: Any) -> list[SnapshotRow]:
        found = listed(*args)
        rows.append(len(found))
        return found

    monkeypatch.setattr(repository, "list_snapshots", count_rows)
    totals: Json = {"total-records": "3", "total-data-files": "1", "total-files-size": "9"}
    with FakeStore() as store:
        warehouse = replace(catalog.warehouse, location=f"s3://{BUCKET}", storage=store.options)
        entry = catalog.create(location=f"s3://{BUCKET}/n/t", properties=IMPL, schema=DECLARED)
        lance.write_dataset(ROWS, entry.location, storage_options=store.options)
        entry = catalog.commit(entry, 1, **totals)
        asked: list[tuple[Snapshots, ...]] = [("all",), ("refs", "all"), ("all", "all")]
        for loads in asked:
            tables = LanceMetadataCache(catalog.database)
            for load in loads:
                rows.clear()
                assert ids(check_metadata(tables.load(warehouse, entry, load))) == [1]
                assert sum(rows) <= 1


@pytest.fixture
def listed_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are listed for manifests."""
    folders: list[str] = []

    def note_folder(table: TableRef) -> dict[int, str]:
        folders.append(table.branch or "main")
        return list_manifests(table)

    monkeypatch.setattr(history, "list_manifests", note_folder)
    return folders


def test_refs_after_a_commit_cost_what_is_new(catalog: CachedCatalog, listed_folders: list[str]) -> None:
    """Versions are not listed: neither with the manifest in its place, nor before, nor if another server committed."""
    at = Steps(catalog, properties=IMPL, version=3)
    at.append(3)
    catalog.load(at.entry)
    elsewhere = LanceMetadataCache(catalog.database)
    for version in range(4, 8):
        listed_folders.clear()
        at.commit(version)
        if version % 2:
            catalog.tables.load_committed(catalog.warehouse, at.entry)
        before = catalog.tables.load(catalog.warehouse, at.entry, "refs").refs_json
        at.append()
        table = catalog.tables.load(catalog.warehouse, at.entry, "refs")
        assert table.refs_json != before
        assert listed_folders == []
        assert table.refs_json == elsewhere.load(catalog.warehouse, at.entry).refs_json


def test_refs_after_a_commit_that_was_answered_here_cost_no_read_of_snapshots(
    catalog: CachedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Steps(catalog, properties=IMPL, version=3)
    at.append(3)
    catalog.load(at.entry)
    for version in range(4, 8):
        at.commit(version, refs=(RefRow("x", "tag", version - 1),))
        catalog.tables.load_committed(catalog.warehouse, at.entry)
        at.append()
        with monkeypatch.context() as patched:
            patched.setattr(repository, "list_snapshots", None)
            table = catalog.tables.load(catalog.warehouse, at.entry, "refs")
        assert texts(table) == texts(LanceMetadataCache(catalog.database).load(catalog.warehouse, at.entry))


def test_what_is_held_for_refs_does_not_serve_all(catalog: CachedCatalog, listed_folders: list[str]) -> None:
    at = Steps(catalog, properties=IMPL, version=3)
    at.append(4)
    catalog.settle(at.entry)
    at.commit(4)
    catalog.tables.load_committed(catalog.warehouse, at.entry)
    time.sleep(0.1)
    table = catalog.tables.load(catalog.warehouse, at.entry, "refs")
    assert from_memory(catalog.tables.load, catalog.warehouse, at.entry, "refs") is table
    assert catalog.find_cached(at.entry) is None
    listed_folders.clear()
    assert ids(catalog.load(at.entry)) == [1, 2, 3, 4]
    assert listed_folders == ["main"]
    assert (
        catalog.find_cached(at.entry)
        is from_memory(catalog.tables.load, catalog.warehouse, at.entry, "refs")
        is not None
    )


def without_manifest(at: Steps, version: int) -> None:
    (Path(at.entry.location) / f"_versions/{2**64 - 1 - version:020}.manifest").unlink()


@pytest.mark.parametrize("gone", [[1], [2], [1, 2], [3], [5], [4, 5], [1, 4, 5]])
def test_versions_that_are_gone(catalog: CachedCatalog, gone: list[int]) -> None:
    """Of those from before the catalog and of those that it accepted, named by a ref of the catalog or by none."""
    at = Steps(catalog, properties=IMPL, version=3)
    at.append(6)
    at.commit(4, 5, refs=(RefRow("x", "tag", 2), RefRow("y", "branch", 5)))
    catalog.settle(at.entry)
    for version in gone:
        without_manifest(at, version)
    at.commit(6)
    catalog.tables.load_committed(catalog.warehouse, at.entry)
    table = catalog.tables.load(catalog.warehouse, at.entry, "refs")
    assert table.refs_json == LanceMetadataCache(catalog.database).load(catalog.warehouse, at.entry).refs_json
    shown = catalog.load(at.entry)
    assert ids(shown) == [each for each in range(1, 7) if each > 3 or each not in gone]
    assert [each["snapshot-id"] for each in shown["snapshots"] if "total-records" not in each["summary"]] == [
        each for each in gone if each > 3
    ]


def test_json_is_encoded_once_and_joined_on_demand(catalog: CachedCatalog) -> None:
    entry = catalog.commit(catalog.create(properties=IMPL), *range(1, 101))
    before = catalog.tables.load(catalog.warehouse, entry)
    table = catalog.tables.load_committed(catalog.warehouse, catalog.commit(entry, 101))
    assert all(old is new for old, new in zip(before.main[:99], table.main, strict=False))
    assert len(table.refs_json) < table.full_size / 2
    assert "full_json" not in vars(table)
    assert table.refs_json is table.refs_json
    assert len(table.full_json) <= table.full_size < len(table.full_json) + 10
    again = catalog.tables.load_committed(catalog.warehouse, catalog.find())
    assert again is not table
    assert again.full_json is table.full_json
    (held,) = catalog.tables._tables.values()
    in_memory = len(table.full_json) + len(table.refs_json) + sum(len(each.json) for each in table.main)
    assert in_memory < held.size_bytes < 3 * in_memory  # the shorter the paths, the more the rest counts


# What is broken, or shared


def test_broken(catalog: CachedCatalog) -> None:
    entry = catalog.create()
    append(entry.location)
    (manifest,) = Path(entry.location, "_versions").glob("*.manifest")
    manifest.write_bytes(b"no manifest" * 10)
    with pytest.raises(InvalidTableStateError, match=entry.location):
        catalog.load(entry)
    with pytest.raises(InvalidInputError, match=entry.location):
        catalog.tables.find_latest_version(catalog.warehouse, entry.location)


def test_storage_out_of_reach(catalog: CachedCatalog) -> None:
    with FakeStore() as store:
        warehouse = replace(catalog.warehouse, location=f"s3://{BUCKET}", storage=store.options)
        stored = catalog.create("stored", location=f"s3://{BUCKET}/n/stored")
        managed = catalog.create("managed", location=f"s3://{BUCKET}/n/managed", properties=IMPL, schema=DECLARED)
        for entry in (stored, managed):
            lance.write_dataset(ROWS, entry.location, storage_options=store.options)
        managed = catalog.commit(managed, 1)
        for entry in (stored, managed):
            table = check_metadata(catalog.tables.load(warehouse, entry))
            assert table["current-snapshot-id"] == 1
            assert from_memory(catalog.tables.load, warehouse, entry) is None
        assert table["schemas"][0]["fields"][0]["name"] == "id"
        assert catalog.tables.find_latest_version(warehouse, stored.location) == 1
        store.refusal = (403, "AccessDenied")
        for call in (
            lambda: catalog.tables.load(warehouse, stored),
            lambda: catalog.tables.find_latest_version(warehouse, stored.location),
            lambda: catalog.tables.current_version(warehouse, stored),
        ):
            with pytest.raises(PermissionDeniedError) as refused:
                call()
            assert "verysecretvalue" not in str(refused.value)
        table = check_metadata(catalog.tables.load(warehouse, managed))
        assert (table["current-snapshot-id"], table["schemas"][0]["fields"][0]["name"]) == (1, "id")


def test_what_commits_ask(catalog: CachedCatalog) -> None:
    tables, warehouse = catalog.tables, catalog.warehouse
    stored, managed = catalog.create("stored"), catalog.create("managed", properties=IMPL, version=7)
    assert tables.current_version(warehouse, stored) is None
    assert tables.find_latest_version(warehouse, stored.location) is None
    with pytest.raises(TableNotFoundError):
        tables.read_schema(warehouse, stored.location)
    append(stored.location)
    append(stored.location)
    assert tables.current_version(warehouse, stored) == tables.find_latest_version(warehouse, stored.location) == 2
    assert tables.current_version(warehouse, managed) == 7
    assert tables.read_schema(warehouse, stored.location, 1) == catalog.load(stored)["schemas"][0]
    assert Path(manifest_location(stored.location, 2)).exists()


def test_threads_share_one_look(catalog: CachedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalog.create()
    append(entry.location)
    looks: list[int] = []
    read, gate = history.read_history, threading.Event()

    def slow(*args: Any, **more: Any) -> Any:
        looks.append(1)
        gate.wait(PATIENCE_S)
        return read(*args, **more)

    monkeypatch.setattr(history, "read_history", slow)
    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(catalog.tables.load, catalog.warehouse, entry) for _ in range(8)]
        wait_until(lambda: sum(turn.waiting for turn in catalog.tables._key_locks.values()) == 8)
        gate.set()
        tables = [load.result() for load in loads]
    assert len(looks) == 2  # those that came during the first look cannot trust it
    assert len({table.etag for table in tables}) == 1
    assert not catalog.tables._key_locks


def test_readers_beside_a_writer(catalog: CachedCatalog) -> None:
    """No reader ever goes back, and each sees what was there when it asked."""
    entry = catalog.create()
    append(entry.location)
    done, latest = threading.Event(), [1]

    def read() -> int:
        seen = 0
        while not done.is_set():
            least = latest[0]
            table = catalog.find_cached(entry) or catalog.tables.load(catalog.warehouse, entry)
            current = table.metadata["current-snapshot-id"]
            assert current >= max(seen, least)
            seen = current
            time.sleep(0.002)
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for version in range(2, 40):
            append(entry.location)
            latest[0] = version
            time.sleep(0.005 if version % 5 else 0.08)
        done.set()
        assert all(reader.result() >= 1 for reader in readers)


@pytest.mark.parametrize(("limit", "limit_in_tables", "held"), [(3, 1000, 3), (100, 3.5, 3), (100, 0, 1)])
def test_limits(catalog: CachedCatalog, limit: int, limit_in_tables: float, held: int) -> None:
    entries = [catalog.create(f"t{n}", schema=DECLARED) for n in range(6)]
    catalog.load(entries[0])
    tables = LanceMetadataCache(catalog.database, limit, int(limit_in_tables * catalog.tables._bytes))
    for entry in entries:
        tables.load(catalog.warehouse, entry)
        from_memory(tables.load, catalog.warehouse, entries[0])
    assert len(tables._tables) == held
    assert tables._bytes == sum(each.size_bytes for each in tables._tables.values())
    is_held = [from_memory(tables.load, catalog.warehouse, entry) is not None for entry in entries]
    assert is_held == ([True] + [False] * (6 - held) + [True] * (held - 1) if held > 1 else [False] * 5 + [True])


# The document


@pytest.mark.skipif(not SPECS, reason="LANCEHOUSE_SPECS names no folder with OpenAPI documents")
@pytest.mark.parametrize("document", ["iceberg-rest-1.11.0.yaml", "iceberg-rest-1.9.0.yaml"])
def test_as_the_document_says(catalog: CachedCatalog, document: str) -> None:
    loaded = yaml.safe_load((Path(SPECS) / document).read_text())
    registry = Registry[Any]().with_resource("iceberg", DRAFT202012.create_resource(loaded))
    validator = OAS31Validator({"$ref": "iceberg#/components/schemas/TableMetadata"}, registry=registry)
    entry, managed = catalog.create(), catalog.create("managed", properties=IMPL)
    tables = [catalog.load(entry)]
    append(entry.location).tags.create("x", 1)
    lance.dataset(entry.location).create_branch("b", 1)
    tables += [catalog.load(entry), catalog.load(catalog.commit(managed, 1, 2))]
    for table in tables:
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(table)] == []
