"""Versions that an Iceberg catalog manages, on Iceberg's own server and on ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateTableBranchRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    ListTableVersionsRequest,
    errors,
)

from lancehouse import IcebergNamespace
from lancehouse.lake.dataset import snapshot_id
from tests.clients.managed import (
    Id,
    ManagedCatalog,
    count,
    open_table,
    rows,
    versions,
    write,
)
from tests.lake.folder import stream
from tests.schema.storable import STORABLE
from tests.servers.faults import FaultProxy

Faults = Callable[[str], FaultProxy]
IMPL = {"managed_by": "impl"}
FEW = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}


# Who manages


@pytest.mark.parametrize(
    ("client", "properties", "managed"),
    [
        ({}, {}, None),
        ({}, {"managed_by": "storage"}, None),
        ({}, {"managed_by": "Storage"}, None),
        ({}, IMPL, True),
        ({}, {"managed_by": "IMPL"}, True),
        (IMPL, {}, True),
        (IMPL, {"managed_by": "storage"}, None),  # the table's own property wins
        ({"managed_by": "storage"}, IMPL, True),
    ],
)
def test_who_manages_a_table(
    house: ManagedCatalog, client: dict[str, str], properties: dict[str, str], managed: bool | None
) -> None:
    own = {key: value for key, value in house.properties.items() if key != "managed_by"}
    namespace, table = IcebergNamespace(**own, **client), [*house.levels, "t"]
    declared = namespace.declare_table(DeclareTableRequest(id=table, properties=properties))
    described = house.connect().describe_table(DescribeTableRequest(id=table))
    assert declared.managed_versioning is described.managed_versioning is managed
    told = house.entry(table)["properties"]
    assert {key: told.get(key) for key in FEW} == (FEW if managed else dict.fromkeys(FEW))


@pytest.mark.parametrize("word", ["catalog", "", "impl "])
def test_nobody_else_manages(house: ManagedCatalog, word: str) -> None:
    table = [*house.levels, "t"]
    with pytest.raises(errors.InvalidInputError, match="expected 'storage' or 'impl'"):
        house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": word}))
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == []


def test_how_many_metadata_files_is_up_to_the_user(house: ManagedCatalog) -> None:
    properties = {**IMPL, "write.metadata.previous-versions-max": "99"}
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties=properties))
    told = house.entry(table)["properties"]
    assert {key: told[key] for key in FEW} == {**FEW, "write.metadata.previous-versions-max": "99"}


def test_few_metadata_files_are_left(house: ManagedCatalog) -> None:
    table = house.table()
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    for number in range(13):
        dataset.update_config({"n": str(number)})
    left = list((house.folder(table) / "metadata").glob("*.metadata.json"))
    assert len(left) == (0 if house.is_ours else 11)


# Every commit

Commit = Callable[[ManagedCatalog, Id], object]


COMMITS: list[tuple[str, Commit, str, str]] = [
    ("create", lambda house, table: write(house, table, "create", rows()), "append", "Overwrite"),
    ("append", lambda house, table: write(house, table, "append", rows(5, 10)), "append", "Append"),
    ("delete", lambda house, table: open_table(house, table).delete("id = 3"), "delete", "Delete"),
    ("update", lambda house, table: open_table(house, table).update({"word": "'x'"}, "id = 4"), "overwrite", "Update"),
    (
        "merge",
        lambda house, table: (
            open_table(house, table)
            .merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(rows(3, 14))
        ),
        "overwrite",
        "Update",
    ),
    ("add columns", lambda house, table: open_table(house, table).add_columns({"n": "id * 2"}), "overwrite", "Merge"),
    (
        "alter columns",
        lambda house, table: open_table(house, table).alter_columns({"path": "n", "name": "twice"}),
        "replace",
        "Project",
    ),
    ("drop columns", lambda house, table: open_table(house, table).drop_columns(["twice"]), "replace", "Project"),
    ("compact", lambda house, table: open_table(house, table).optimize.compact_files(), "replace", "Rewrite"),
    (
        "index",
        lambda house, table: open_table(house, table).create_scalar_index("id", "BTREE"),
        "replace",
        "CreateIndex",
    ),
    ("config", lambda house, table: open_table(house, table).update_config({"a": "b"}), "replace", "UpdateConfig"),
    ("restore", lambda house, table: open_table(house, table, 2).restore(), "overwrite", "Restore"),
    (
        "overwrite",
        lambda house, table: write(house, table, "overwrite", pa.table({"other": ["a"], "id": [1.5]})),
        "overwrite",
        "Overwrite",
    ),
]
"""A commit of pylance, and what Iceberg and Lance call it."""


def test_every_commit_goes_through_the_catalog(house: ManagedCatalog) -> None:
    table, before = [*house.levels, "t"], 0
    for name, commit, word, lance_word in COMMITS:
        commit(house, table)
        version = house.check(table)
        assert version == before + (2 if name == "compact" else 1), name
        snapshot = house.snapshots(table)[version]
        summary = snapshot["summary"]
        assert (summary["operation"], summary["lance.operation"]) == (word, lance_word), name
        made = open_table(house, table).read_transaction(version)
        assert summary["lance.transaction"] == made.uuid
        assert snapshot.get("parent-snapshot-id") == (version - 1 or None)
        assert snapshot["sequence-number"] == version
        before = version
    assert sorted(house.snapshots(table)) == versions(house.namespace, table) == list(range(1, before + 1))
    assert open_table(house, table).to_table().to_pydict() == {"other": ["a"], "id": [1.5]}


def test_what_iceberg_sees(house: ManagedCatalog) -> None:
    """Real columns everywhere, rows where the server plans the scan; elsewhere an error that says why not."""
    table = house.table()
    open_table(house, table).add_columns({"twice": "id * 2"})
    theirs = house.iceberg().load_table((table[1], "t"))
    assert [field.name for field in theirs.schema().fields] == ["id", "word", "twice"]
    assert [(each.snapshot_id, each.summary.operation.value) for each in theirs.snapshots() if each.summary] == [
        (1, "append"),
        (2, "overwrite"),
    ]
    current = theirs.current_snapshot()
    assert current is not None
    assert current.snapshot_id == 2
    if house.is_ours:
        assert sorted(theirs.scan().to_arrow()["twice"].to_pylist()) == list(range(0, 20, 2))
        assert theirs.scan(snapshot_id=1).to_arrow().num_rows == 10
    else:
        with pytest.raises(ValueError, match="lance"):
            theirs.scan().to_arrow()


def test_columns_of_every_type(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    schema = pa.schema([field.with_name(f"c{number}") for number, field in enumerate(STORABLE)])
    empty = pa.Table.from_batches([], schema)
    options = {"namespace_client": house.namespace, "table_id": table, "data_storage_version": "2.2"}
    lance.write_dataset(empty, mode="create", **options)
    assert house.check(table) == 1
    dataset = lance.dataset(namespace_client=house.connect(), table_id=table)
    dataset.add_columns({"more": "1"})
    dataset.drop_columns(["more"])
    assert house.check(table) == 3
    told = house.entry(table)["schemas"]
    assert len(told) == (1 if house.is_ours else 3)  # the dummy, this one, and with `more`: it was known again
    assert len(house.iceberg().load_table((table[1], "t")).schema().fields) == len(schema)


def test_a_column_with_a_dictionary(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    words = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    write(house, table, "create", words)
    write(house, table, "append", words)
    open_table(house, table).add_columns({"n": "1"})
    assert house.check(table) == 3
    assert house.open(table).to_table()["word"].to_pylist() == ["a", "b", "a"] * 2


def test_lancedb(house: ManagedCatalog) -> None:
    db = lancedb.connect_namespace("lancehouse.IcebergNamespace", dict(house.properties))
    table = [*house.levels, "docs"]
    vectors = pa.array([[float(number)] * 4 for number in range(20)], pa.list_(pa.float32(), 4))
    data = pa.table({"id": pa.array(range(20), pa.int64()), "vector": vectors})
    docs = db.create_table("docs", data, namespace_path=house.levels)
    assert house.check(table) == 1
    docs.add(data.slice(0, 5))
    docs.delete("id >= 15")
    docs.update(where="id = 1", values={"id": 1000})
    docs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data)
    assert house.check(table) == 5
    assert house.snapshots(table)[3]["summary"]["operation"] == "delete"
    again = db.open_table("docs", namespace_path=house.levels)
    assert again.search([7.0] * 4).limit(1).to_arrow()["id"].to_pylist() == [7]
    assert db.open_table("docs", namespace_path=house.levels, version=1).count_rows() == 20
    assert db.create_table("docs", data, mode="overwrite", namespace_path=house.levels).count_rows() == 20
    assert house.check(table) == 6
    db.drop_table("docs", namespace_path=house.levels)
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == []


QUIET = """
import json, sys
import lance, pyarrow as pa
from lance_namespace import connect
properties, table = json.loads(sys.argv[1]), json.loads(sys.argv[2])
namespace = connect("lancehouse.IcebergNamespace", properties)
at = {"namespace_client": namespace, "table_id": table}
rows = pa.table({"id": pa.array([1], pa.int64()), "word": ["x"]})
assert lance.dataset(**at).version == 1
lance.write_dataset(rows, mode="append", **at)
lance.dataset(**at).delete("id = 1")
lance.dataset(**at).tags.create("two", 2)
assert lance.dataset(version=1, **at).count_rows() == 10
assert lance.dataset(version="two", **at).count_rows() == 11
assert lance.dataset(**at).version == 3
print("done")
"""


def test_pylance_has_nothing_to_warn_of(house: ManagedCatalog) -> None:
    table = house.table()
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", QUIET, json.dumps(dict(house.properties)), json.dumps(table)],
        env={**os.environ, "LANCE_LOG": "warn"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.stdout.split(), run.stderr) == (["done"], "")


# Lists


def test_lists_of_versions(house: ManagedCatalog) -> None:
    table = house.table()
    dataset = open_table(house, table)
    for number in range(63):
        dataset.update_config({"n": str(number)})
    everything = list(range(1, 65))
    for namespace in (house.namespace, house.connect()):
        assert versions(namespace, table) == everything
        assert versions(namespace, table, descending=True) == everything[::-1]
        assert versions(namespace, table, limit=3) == [1, 2, 3]
        assert versions(namespace, table, limit=3, descending=True) == [64, 63, 62]
        assert versions(namespace, table, limit=1, descending=True) == [64]
        assert versions(namespace, table, limit=1) == [1]
        assert versions(namespace, table, limit=1000) == everything
        assert versions(namespace, table, limit=0) == []
        for descending in (False, True):
            assert pages(namespace, table, descending) == (everything[::-1] if descending else everything)
    with pytest.raises(errors.InvalidInputError, match="negative"):
        versions(house.namespace, table, limit=-1)
    with pytest.raises(errors.InvalidInputError, match="page_token"):
        versions(house.namespace, table, page_token="nonsense!")
    assert [each["version"] for each in dataset.versions()] == everything
    plain = house.namespace.list_table_versions({"id": table, "limit": 2})  # type: ignore[arg-type]
    assert [each["version"] for each in plain["versions"]] == [1, 2]  # type: ignore[index]


def pages(namespace: IcebergNamespace, table: Id, descending: bool) -> list[int]:
    found: list[int] = []
    token = None
    while True:
        request = ListTableVersionsRequest(id=table, limit=10, page_token=token, descending=descending)
        answer = namespace.list_table_versions(request)
        assert len(answer.versions) <= 10
        found += [version.version for version in answer.versions]
        token = answer.page_token
        if token is None:
            return found


def test_what_is_said_of_a_version(house: ManagedCatalog) -> None:
    table = house.table()
    house.append(table)
    for namespace in (house.namespace, house.connect()):
        [first, second] = namespace.list_table_versions(ListTableVersionsRequest(id=table)).versions
        assert first.manifest_path is not None
        file = house.folder(table) / "_versions" / first.manifest_path.rpartition("/")[2]
        assert str(file).endswith(first.manifest_path)
        assert first.manifest_size == file.stat().st_size
        assert first.e_tag
        assert first.timestamp_millis is not None
        assert second.timestamp_millis is not None
        assert first.timestamp_millis <= second.timestamp_millis
        asked = DescribeTableVersionRequest(id=table, version=1)
        assert namespace.describe_table_version(asked).version == first
        assert namespace.describe_table_version(DescribeTableVersionRequest(id=table)).version == second
        plain: Any = namespace.describe_table_version({"id": table, "version": 2})  # type: ignore[arg-type]
        assert plain["version"]["manifest_path"] == second.manifest_path


@pytest.mark.parametrize("version", [0, 3, 99])
def test_a_version_that_is_not_there(house: ManagedCatalog, version: int) -> None:
    table = house.table()
    house.append(table)
    with pytest.raises(errors.TableVersionNotFoundError, match=f"no version {version}"):
        house.namespace.describe_table_version(DescribeTableVersionRequest(id=table, version=version))


def test_a_table_without_versions(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    assert versions(house.namespace, table) == versions(house.namespace, table, limit=1, descending=True) == []
    for version in (None, 1):
        with pytest.raises(errors.TableVersionNotFoundError):
            house.namespace.describe_table_version(DescribeTableVersionRequest(id=table, version=version))
    with pytest.raises(errors.TableNotFoundError):
        versions(house.namespace, [*house.levels, "none"])


def test_versions_of_a_table_that_storage_manages(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "storage"}))
    write(house, table, "overwrite", rows())
    write(house, table, "append", rows(1))
    assert versions(house.namespace, table) == [1, 2]
    asked = DescribeTableVersionRequest(id=table)
    assert house.namespace.describe_table_version(asked).version.version == 2
    if not house.is_ours:
        assert house.snapshots(table) == {}


def test_branches(house: ManagedCatalog) -> None:
    table = house.table()
    house.append(table)
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    for number in range(3):
        added = InsertIntoTableRequest(id=table, branch="dev")
        house.namespace.insert_into_table(added, stream(rows(1, 2000 + number)))
    house.append(table)
    assert house.at(table, "dev") == snapshot_id("dev", 5)
    assert house.at(table) == house.check(table) == 3
    assert sorted(house.snapshots(table)) == [1, 2, 3, *(snapshot_id("dev", version) for version in (2, 3, 4, 5))]
    summary = house.snapshots(table)[snapshot_id("dev", 5)]["summary"]
    assert (summary["lance.branch"], summary["lance.version"], summary["operation"]) == ("dev", "5", "append")
    for namespace in (house.namespace, house.connect()):
        assert versions(namespace, table, branch="dev") == [2, 3, 4, 5]
        assert versions(namespace, table, branch="dev", limit=1, descending=True) == [5]
        assert versions(namespace, table, branch="main") == versions(namespace, table) == [1, 2, 3]
        assert (count(namespace, table, "dev"), count(namespace, table)) == (14, 12)
        asked = DescribeTableVersionRequest(id=table, branch="dev", version=3)
        described = namespace.describe_table_version(asked).version
        assert (described.version, "/tree/dev/_versions/" in str(described.manifest_path)) == (3, True)
        latest = namespace.describe_table_version(DescribeTableVersionRequest(id=table, branch="dev")).version
        assert latest.version == 5
        with pytest.raises(errors.TableVersionNotFoundError):
            namespace.describe_table_version(DescribeTableVersionRequest(id=table, branch="dev", version=6))
    for call in (
        lambda: versions(house.namespace, table, branch="none"),
        lambda: house.namespace.describe_table_version(DescribeTableVersionRequest(id=table, branch="none")),
    ):
        with pytest.raises(errors.TableBranchNotFoundError, match="branch none"):
            call()
