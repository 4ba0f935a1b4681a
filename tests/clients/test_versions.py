"""Versions that an Iceberg catalog manages, on Iceberg's own server and on ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
    CountTableRowsRequest,
    CreateNamespaceRequest,
    CreateTableBranchRequest,
    CreateTableRequest,
    CreateTableVersionRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    DropTableRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    ListTableVersionsRequest,
    RenameTableRequest,
    TableExistsRequest,
    errors,
)
from lance_namespace.errors import LanceNamespaceError
from lance_namespace_urllib3_client.models.commit_table_operation import CommitTableOperation
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry

from lancehouse import CommitStateUnknownError, IcebergNamespace, transaction
from lancehouse.clients import rest
from lancehouse.clients.transactions import Transaction
from lancehouse.conformance.results import Outcome
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import Target
from lancehouse.lake.dataset import committing
from lancehouse.lake.history import snapshot_id
from tests.clients.managed import (
    NO,
    House,
    Id,
    Json,
    files_in,
    killed_before_the_manifest_is_final,
    on_the_way,
    rows,
    staged,
)
from tests.lake.folder import stream
from tests.schema.storable import STORABLE
from tests.servers.faults import ALWAYS, Fault, FaultProxy, canned, html, lost_answer, reset
from tests.servers.lancehouse import Served
from tests.servers.loopback import Answer, Request
from tests.servers.moto import Bucket

Faults = Callable[[str], FaultProxy]
IMPL = {"managed_by": "impl"}
FEW = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}


@pytest.fixture
def proxy(house: House, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    monkeypatch.setattr(rest, "FIRST_BACKOFF_S", 0.001)
    return faults(house.endpoint)


def versions(namespace: IcebergNamespace, table: Id, **more: Any) -> list[int]:
    found = namespace.list_table_versions(ListTableVersionsRequest(id=table, **more)).versions
    return [version.version for version in found]


def count(namespace: IcebergNamespace, table: Id, branch: str | None = None) -> int | None:
    return namespace.count_table_rows(CountTableRowsRequest(id=table, branch=branch)).count


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
    house: House, client: dict[str, str], properties: dict[str, str], managed: bool | None
) -> None:
    own = {key: value for key, value in house.properties.items() if key != "managed_by"}
    namespace, table = IcebergNamespace(**own, **client), [*house.home, "t"]
    declared = namespace.declare_table(DeclareTableRequest(id=table, properties=properties))
    described = house.connect().describe_table(DescribeTableRequest(id=table))
    assert declared.managed_versioning is described.managed_versioning is managed
    told = house.entry(table)["properties"]
    assert {key: told.get(key) for key in FEW} == (FEW if managed else dict.fromkeys(FEW))


@pytest.mark.parametrize("word", ["catalog", "", "impl "])
def test_nobody_else_manages(house: House, word: str) -> None:
    table = [*house.home, "t"]
    with pytest.raises(errors.InvalidInputError, match="expected 'storage' or 'impl'"):
        house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": word}))
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == []


def test_how_many_metadata_files_is_up_to_the_user(house: House) -> None:
    properties = {**IMPL, "write.metadata.previous-versions-max": "99"}
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties=properties))
    told = house.entry(table)["properties"]
    assert {key: told[key] for key in FEW} == {**FEW, "write.metadata.previous-versions-max": "99"}


def test_few_metadata_files_are_left(house: House) -> None:
    table = house.table()
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    for number in range(13):
        dataset.update_config({"n": str(number)})
    left = list((house.folder(table) / "metadata").glob("*.metadata.json"))
    assert len(left) == (0 if house.is_ours else 11)


# Every commit

Commit = Callable[[House, Id], object]


def opened(house: House, table: Id, version: int | None = None) -> lance.LanceDataset:
    return lance.dataset(namespace_client=house.namespace, table_id=table, version=version)


def write_to(namespace: IcebergNamespace, table: Id, mode: str, data: pa.Table) -> None:
    lance.write_dataset(data, namespace_client=namespace, table_id=table, mode=mode)


def write(house: House, table: Id, mode: str, data: pa.Table) -> None:
    write_to(house.namespace, table, mode, data)


COMMITS: list[tuple[str, Commit, str, str]] = [
    ("create", lambda house, table: write(house, table, "create", rows()), "append", "Overwrite"),
    ("append", lambda house, table: write(house, table, "append", rows(5, 10)), "append", "Append"),
    ("delete", lambda house, table: opened(house, table).delete("id = 3"), "delete", "Delete"),
    ("update", lambda house, table: opened(house, table).update({"word": "'x'"}, "id = 4"), "overwrite", "Update"),
    (
        "merge",
        lambda house, table: (
            opened(house, table)
            .merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(rows(3, 14))
        ),
        "overwrite",
        "Update",
    ),
    ("add columns", lambda house, table: opened(house, table).add_columns({"n": "id * 2"}), "overwrite", "Merge"),
    (
        "alter columns",
        lambda house, table: opened(house, table).alter_columns({"path": "n", "name": "twice"}),
        "replace",
        "Project",
    ),
    ("drop columns", lambda house, table: opened(house, table).drop_columns(["twice"]), "replace", "Project"),
    ("compact", lambda house, table: opened(house, table).optimize.compact_files(), "replace", "Rewrite"),
    ("index", lambda house, table: opened(house, table).create_scalar_index("id", "BTREE"), "replace", "CreateIndex"),
    ("config", lambda house, table: opened(house, table).update_config({"a": "b"}), "replace", "UpdateConfig"),
    ("restore", lambda house, table: opened(house, table, 2).restore(), "overwrite", "Restore"),
    (
        "overwrite",
        lambda house, table: write(house, table, "overwrite", pa.table({"other": ["a"], "id": [1.5]})),
        "overwrite",
        "Overwrite",
    ),
]
"""A commit of pylance, and what Iceberg and Lance call it."""


def test_every_commit_goes_through_the_catalog(house: House) -> None:
    table, before = [*house.home, "t"], 0
    for name, commit, word, lance_word in COMMITS:
        commit(house, table)
        version = house.check(table)
        assert version == before + (2 if name == "compact" else 1), name
        snapshot = house.snapshots(table)[version]
        summary = snapshot["summary"]
        assert (summary["operation"], summary["lance.operation"]) == (word, lance_word), name
        made = opened(house, table).read_transaction(version)
        assert summary["lance.transaction"] == made.uuid
        assert snapshot.get("parent-snapshot-id") == (version - 1 or None)
        assert snapshot["sequence-number"] == version
        before = version
    assert sorted(house.snapshots(table)) == versions(house.namespace, table) == list(range(1, before + 1))
    assert opened(house, table).to_table().to_pydict() == {"other": ["a"], "id": [1.5]}


def test_what_iceberg_sees(house: House) -> None:
    """Real columns everywhere, rows where the server plans the scan; elsewhere an error that says why not."""
    table = house.table()
    opened(house, table).add_columns({"twice": "id * 2"})
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


def test_columns_of_every_type(house: House) -> None:
    table = [*house.home, "t"]
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


def test_a_column_with_a_dictionary(house: House) -> None:
    table = [*house.home, "t"]
    words = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    write(house, table, "create", words)
    write(house, table, "append", words)
    opened(house, table).add_columns({"n": "1"})
    assert house.check(table) == 3
    assert house.open(table).to_table()["word"].to_pylist() == ["a", "b", "a"] * 2


def test_lancedb(house: House) -> None:
    db = lancedb.connect_namespace("lancehouse.IcebergNamespace", dict(house.properties))
    table = [*house.home, "docs"]
    vectors = pa.array([[float(number)] * 4 for number in range(20)], pa.list_(pa.float32(), 4))
    data = pa.table({"id": pa.array(range(20), pa.int64()), "vector": vectors})
    docs = db.create_table("docs", data, namespace_path=house.home)
    assert house.check(table) == 1
    docs.add(data.slice(0, 5))
    docs.delete("id >= 15")
    docs.update(where="id = 1", values={"id": 1000})
    docs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data)
    assert house.check(table) == 5
    assert house.snapshots(table)[3]["summary"]["operation"] == "delete"
    again = db.open_table("docs", namespace_path=house.home)
    assert again.search([7.0] * 4).limit(1).to_arrow()["id"].to_pylist() == [7]
    assert db.open_table("docs", namespace_path=house.home, version=1).count_rows() == 20
    assert db.create_table("docs", data, mode="overwrite", namespace_path=house.home).count_rows() == 20
    assert house.check(table) == 6
    db.drop_table("docs", namespace_path=house.home)
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == []


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


def test_pylance_has_nothing_to_warn_of(house: House) -> None:
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


def test_lists_of_versions(house: House) -> None:
    table = house.table()
    dataset = opened(house, table)
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


def test_what_is_said_of_a_version(house: House) -> None:
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
def test_a_version_that_is_not_there(house: House, version: int) -> None:
    table = house.table()
    house.append(table)
    with pytest.raises(errors.TableVersionNotFoundError, match=f"no version {version}"):
        house.namespace.describe_table_version(DescribeTableVersionRequest(id=table, version=version))


def test_a_table_without_versions(house: House) -> None:
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    assert versions(house.namespace, table) == versions(house.namespace, table, limit=1, descending=True) == []
    for version in (None, 1):
        with pytest.raises(errors.TableVersionNotFoundError):
            house.namespace.describe_table_version(DescribeTableVersionRequest(id=table, version=version))
    with pytest.raises(errors.TableNotFoundError):
        versions(house.namespace, [*house.home, "none"])


def test_versions_of_a_table_that_storage_manages(house: House) -> None:
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "storage"}))
    write(house, table, "overwrite", rows())
    write(house, table, "append", rows(1))
    assert versions(house.namespace, table) == [1, 2]
    asked = DescribeTableVersionRequest(id=table)
    assert house.namespace.describe_table_version(asked).version.version == 2
    if not house.is_ours:
        assert house.snapshots(table) == {}


def test_branches(house: House) -> None:
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


# What pylance asks for, one by one


@pytest.mark.parametrize("as_dict", [True, False], ids=["dict", "model"])
def test_a_version_is_accepted(house: House, as_dict: bool) -> None:
    table = house.table()
    request = staged(house.namespace, table)
    assert on_the_way(house.files(table)) != set()
    assert count(house.connect(), table) == lance.dataset(house.location(table)).count_rows() == 10
    request["metadata"] = {"job": "42"}
    answer: Any
    if as_dict:
        answer = house.namespace.create_table_version(request)["version"]  # type: ignore[arg-type,index]
    else:
        made = house.namespace.create_table_version(CreateTableVersionRequest(**request)).version
        assert made is not None
        answer = made.model_dump(exclude_none=True)
    assert answer["version"] == 2
    assert request["manifest_path"].startswith(answer["manifest_path"])
    assert (answer["e_tag"], answer["metadata"]) == (request["e_tag"], {"job": "42"})
    assert house.check(table) == 2
    described = house.connect().describe_table_version(DescribeTableVersionRequest(id=table)).version
    assert (described.metadata, described.e_tag) == ({"job": "42"}, request["e_tag"])
    assert count(house.connect(), table) == 11


def test_the_same_request_again(house: House) -> None:
    """Whoever sends it, and whenever: it was accepted once, and stays so."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    first = house.namespace.create_table_version(request)
    assert house.namespace.create_table_version(request) == first
    assert house.connect().create_table_version(request) == first
    house.append(table)
    assert house.connect().create_table_version(request) == first
    assert house.check(table) == 3
    assert count(house.connect(), table) == 12


def test_a_request_that_comes_too_late(house: House) -> None:
    table = house.table()
    late = CreateTableVersionRequest(**staged(house.namespace, table))
    house.append(table)
    for namespace in (house.namespace, house.connect()):
        with pytest.raises(errors.ConcurrentModificationError, match=r"t\b"):
            namespace.create_table_version(late)
        assert house.check(table) == 2  # and what was staged is gone


def test_two_requests_at_once(house: House) -> None:
    """Of eight that all come next, one wins; the others leave nothing."""
    table = house.table()
    requests = [CreateTableVersionRequest(**staged(house.namespace, table)) for _ in range(4)]
    start = Barrier(len(requests))

    def send(request: CreateTableVersionRequest) -> bool:
        namespace = house.connect()
        start.wait()
        try:
            namespace.create_table_version(request)
        except errors.ConcurrentModificationError:
            return False
        return True

    with ThreadPoolExecutor(len(requests)) as pool:
        assert sorted(pool.map(send, requests)) == [False, False, False, True]
    assert house.check(table) == 2


WRONG: dict[str, tuple[Callable[[House, Json], Json], type[LanceNamespaceError], str]] = {
    "another table": (
        lambda house, request: {**request, "manifest_path": staged(house.namespace, house.table("o"))["manifest_path"]},
        errors.InvalidInputError,
        "manifest",
    ),
    "another version": (
        lambda house, request: {**request, "version": 3},
        errors.InvalidInputError,
        "is no staged manifest of version 3",
    ),
    "another branch": (
        lambda house, request: {**request, "branch": "dev"},
        errors.InvalidInputError,
        "is no staged manifest of version 2",
    ),
    "no such file": (
        lambda house, request: {**request, "manifest_path": request["manifest_path"] + "x"},
        errors.InvalidInputError,
        "there is no manifest at",
    ),
    "no path": (
        lambda house, request: {**request, "manifest_path": ""},
        errors.InvalidInputError,
        "is no staged manifest",
    ),
    "no such table": (
        lambda house, request: {**request, "id": [*house.home, "none"]},
        errors.TableNotFoundError,
        "none",
    ),
}
"""What is wrong with a request, the error, and what it says."""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_request(house: House, wrong: str) -> None:
    table = house.table()
    request = staged(house.namespace, table)
    change, expected, words = WRONG[wrong]
    with pytest.raises(expected, match=words):
        house.namespace.create_table_version(CreateTableVersionRequest(**change(house, request)))
    house.namespace.create_table_version(CreateTableVersionRequest(**request))  # nothing was harmed
    assert house.check(table) == 2


def test_a_file_that_is_no_manifest(house: House) -> None:
    table = house.table()
    request = staged(house.namespace, table)
    file = house.folder(table) / "_versions" / request["manifest_path"].rpartition("/")[2]
    whole = file.read_bytes()
    for data in (b"", b"garbage", whole[:-1]):
        file.write_bytes(data)
        with pytest.raises(errors.InvalidInputError, match="no manifest"):
            house.namespace.create_table_version(CreateTableVersionRequest(**request))
    assert house.at(table) == 1


def test_a_manifest_of_another_version_under_this_name(house: House) -> None:
    table = house.table()
    request = staged(house.namespace, table)
    folder = house.folder(table) / "_versions"
    name = f"{2**64 - 4}.manifest-x"
    (folder / request["manifest_path"].rpartition("/")[2]).rename(folder / name)
    path = f"{request['manifest_path'].rpartition('/')[0]}/{name}"
    with pytest.raises(errors.InvalidInputError, match="holds version 2, not 3"):
        house.namespace.create_table_version(
            CreateTableVersionRequest(**{**request, "version": 3, "manifest_path": path})
        )


def line(house: House, table: Id, number: int) -> list[Json]:
    """Requests for so many versions after the current one, each made from the one before; none was accepted."""
    twin = [*house.home, f"twin_of_{table[-1]}"]
    house.table(twin[-1])
    there, here = house.folder(twin) / "_versions", house.folder(table) / "_versions"
    found = []
    for _ in range(number):
        house.append(twin)
        version = lance.dataset(house.location(twin)).version
        name = f"{2**64 - 1 - version}.manifest"
        (here / f"{name}-x").write_bytes((there / name).read_bytes())
        root = str(here).strip("/")
        found.append({"id": table, "version": version, "manifest_path": f"{root}/{name}-x", "naming_scheme": "V2"})
    for file in (house.folder(twin) / "data").iterdir():
        (house.folder(table) / "data" / file.name).write_bytes(file.read_bytes())
    return found


def test_a_version_that_skips_one(house: House) -> None:
    table = house.table()
    _, third = line(house, table, 2)
    with pytest.raises((errors.ConcurrentModificationError, errors.InvalidTableStateError)):
        house.namespace.create_table_version(CreateTableVersionRequest(**third))
    assert house.at(table) == 1
    assert house.versions(table) == [1]


def test_a_table_that_storage_manages(house: House) -> None:
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "storage"}))
    write(house, table, "overwrite", rows())
    request = CreateTableVersionRequest(id=table, version=2, manifest_path="x/_versions/2.manifest-x")
    with pytest.raises(errors.InvalidInputError, match=r"by its storage .*`lancehouse table manage --by impl`"):
        house.namespace.create_table_version(request)


def test_another_client_has_handed_the_table_to_storage(house: House) -> None:
    """What a client remembers of a table does not outlive what it has seen since."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    house.connect().manage_table(table, "storage")
    assert versions(house.namespace, table) == [1]
    with pytest.raises(errors.InvalidInputError, match="managed by its storage"):
        house.namespace.create_table_version(request)
    assert house.versions(table) == [1]


# Several at once


def entries(*requests: Json) -> BatchCreateTableVersionsRequest:
    return BatchCreateTableVersionsRequest(entries=[CreateTableVersionEntry(**request) for request in requests])


def test_a_batch_over_two_tables(house: House) -> None:
    one, other = house.table("one"), house.table("other")
    requests = staged(house.namespace, one), staged(house.namespace, other)
    answer = house.namespace.batch_create_table_versions(entries(*requests))
    assert [version.version for version in answer.versions] == [2, 2]
    assert house.check(one) == house.check(other) == 2
    again = house.namespace.batch_create_table_versions(entries(*requests))
    assert again == answer
    assert house.check(one) == house.check(other) == 2


def test_a_batch_of_which_one_is_late(house: House) -> None:
    one, other = house.table("one"), house.table("other")
    requests = staged(house.namespace, one), staged(house.namespace, other)
    house.append(other)
    with pytest.raises(errors.ConcurrentModificationError):
        house.namespace.batch_create_table_versions(entries(*requests))
    assert (house.check(one), house.check(other)) == (1, 2)


def test_a_batch_of_which_one_was_accepted_before(house: House) -> None:
    """The other one is not put in its place without the catalog's yes."""
    one, other = house.table("one"), house.table("other")
    requests = staged(house.namespace, one), staged(house.namespace, other)
    house.namespace.create_table_version(CreateTableVersionRequest(**requests[0]))
    try:
        house.namespace.batch_create_table_versions(entries(*requests))
    except errors.ConcurrentModificationError:
        assert (house.check(one), house.check(other)) == (2, 1)
    else:
        assert (house.check(one), house.check(other)) == (2, 2)


def test_a_batch_of_several_versions_of_one_table(house: House) -> None:
    table = house.table()
    second, third = line(house, table, 2)
    answer = house.namespace.batch_create_table_versions(entries(second, third))
    assert [version.version for version in answer.versions] == [2, 3]
    assert house.check(table) == 3
    assert sorted(house.snapshots(table)) == house.versions(table) == [1, 2, 3]
    assert house.open(table, 2).count_rows() == 11


def test_a_batch_with_a_gap(house: House) -> None:
    table = house.table()
    second, _, fourth = line(house, table, 3)
    with pytest.raises((errors.ConcurrentModificationError, errors.InvalidInputError)):
        house.namespace.batch_create_table_versions(entries(second, fourth))
    assert sorted(house.snapshots(table)) == house.versions(table) == [1]


def test_a_batch_over_two_warehouses(house: House, faults: Faults) -> None:
    """A commit is one request, to one warehouse."""
    table = house.table()
    request = staged(house.namespace, table)
    elsewhere = {**request, "id": ["elsewhere", *table[1:]]}
    if house.is_ours:
        with pytest.raises(LanceNamespaceError, match="elsewhere"):  # this server knows its warehouses
            house.namespace.batch_create_table_versions(entries(request, elsewhere))
        return
    with pytest.raises(errors.InvalidInputError, match="a commit stays in one warehouse"):
        house.namespace.batch_create_table_versions(entries(request, elsewhere))
    assert house.at(table) == 1
    house.namespace.create_table_version(CreateTableVersionRequest(**request))  # it was not thrown away
    assert house.check(table) == 2


def operation(**one: Any) -> CommitTableOperation:
    return CommitTableOperation(**one)


def test_commit_tables(house: House) -> None:
    one, other = house.table("one"), house.table("other")
    requests = [CreateTableVersionRequest(**staged(house.namespace, table)) for table in (one, other)]
    operations = [operation(create_table_version=request) for request in requests]
    answer = house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=operations))
    made = [result.create_table_version.version for result in answer.results if result.create_table_version]
    assert [version.version for version in made if version] == [2, 2]
    assert house.check(one) == house.check(other) == 2


def test_commit_tables_that_does_one_other_thing(house: House) -> None:
    table = [*house.home, "t"]
    commit = house.namespace.batch_commit_tables
    declare = operation(declare_table=DeclareTableRequest(id=table))
    [declared] = commit(BatchCommitTablesRequest(operations=[declare])).results
    assert declared.declare_table is not None
    assert declared.declare_table.managed_versioning is True
    write(house, table, "overwrite", rows())
    house.append(table)
    ranges = [{"start_version": 1, "end_version": 2}]
    [deleted] = commit({"operations": [{"delete_table_versions": {"id": table, "ranges": ranges}}]})["results"]  # type: ignore[arg-type,index]
    assert deleted["delete_table_versions"]["deleted_count"] == 1
    deregister = operation(deregister_table=DeregisterTableRequest(id=table))
    [gone] = commit(BatchCommitTablesRequest(operations=[deregister])).results
    assert gone.deregister_table is not None
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == []


def test_commit_tables_that_is_not_all_or_none(house: House) -> None:
    table, new = house.table(), [*house.home, "new"]
    create = CreateTableVersionRequest(**staged(house.namespace, table))
    others = [
        operation(declare_table=DeclareTableRequest(id=new)),
        operation(deregister_table=DeregisterTableRequest(id=table)),
    ]
    for other in others:
        for operations in ([operation(create_table_version=create), other], [other, other]):
            with pytest.raises(errors.UnsupportedOperationError, match="send each of these on its own"):
                house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=operations))
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == ["t"]
    assert house.at(table) == 1
    house.namespace.create_table_version(create)
    with pytest.raises(errors.InvalidInputError, match="nothing to commit"):
        house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=[]))
    both = operation(create_table_version=create, declare_table=DeclareTableRequest(id=new))
    with pytest.raises((errors.InvalidInputError, errors.UnsupportedOperationError)):
        house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=[both]))
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == ["t"]


# On a bad day


def landed(status: int) -> Fault:
    def answer(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        forward(request)
        return Answer(status)

    return answer


@pytest.mark.parametrize(
    "fault",
    [lost_answer, landed(500), reset, html],
    ids=["made, lost", "made, 500", "reset", "a page"],
)
def test_an_answer_that_is_lost(house: House, proxy: FaultProxy, fault: Fault) -> None:
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    proxy.add(fault, method="POST", path="/tables/t$")
    house.behind(proxy).create_table_version(request)
    assert house.check(table) == 2
    assert count(house.connect(), table) == 11


@pytest.mark.parametrize(
    ("fault", "look"), [(lost_answer, canned(403, NO)), (reset, canned(503))], ids=["made", "not made"]
)
def test_an_answer_that_is_lost_for_good(house: House, proxy: FaultProxy, fault: Fault, look: Fault) -> None:
    """Nobody knows: what was staged stays, for it may be the current version."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    proxy.add(fault, method="POST", path="/tables/t$", times=ALWAYS)
    proxy.add(look, method="GET", path=r"/tables/t(\?.*)?$", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError, match="read the table again before repeating it"):
        client.create_table_version(request)
    assert len(on_the_way(house.files(table))) == 1
    assert count(house.connect(), table) == (11 if fault is lost_answer else 10)
    house.namespace.create_table_version(request)  # it may be sent again
    assert house.check(table) == 2


def test_a_look_that_is_refused_once(house: House, proxy: FaultProxy) -> None:
    """The answer is lost, and the token is over just then: the version was accepted, and its manifest stays."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    proxy.add(canned(403, NO), method="GET", path=r"/tables/t(\?.*)?$")
    client.create_table_version(request)
    assert house.check(table) == 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (canned(403, NO), errors.PermissionDeniedError),
        (canned(503), errors.ServiceUnavailableError),
        (canned(400, '{"error": {"message": "no", "type": "X", "code": 400}}'), errors.InvalidInputError),
    ],
    ids=["403", "503", "400"],
)
def test_a_commit_that_is_refused(
    house: House, proxy: FaultProxy, fault: Fault, expected: type[LanceNamespaceError]
) -> None:
    """The reason arrives, though pylance only knows that the result is unknown; no manifest stays."""
    table = house.table()
    client = house.behind(proxy)
    proxy.add(fault, method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(expected) as error:
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    assert not isinstance(error.value, CommitStateUnknownError)
    assert house.check(table) == 1
    proxy.clear()
    client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    assert house.check(table) == 2


def test_a_first_commit_that_is_refused(house: House, proxy: FaultProxy) -> None:
    """No entry, no file."""
    new = [*house.home, "new"]
    places: list[str | None] = []

    def refuse(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        places.append(house.location(new))
        return Answer(403, NO.encode())

    proxy.add(refuse, method="POST", path="/tables/new$", times=ALWAYS)
    with pytest.raises(errors.PermissionDeniedError):
        house.behind(proxy).create_table(CreateTableRequest(id=new), stream(rows()))
    assert house.namespace.list_tables(ListTablesRequest(id=house.home)).tables == []
    assert files_in(Path(str(places[0]))) == set()


def test_the_reason_of_another_commit(house: House, proxy: FaultProxy) -> None:
    """Of one commit, nothing is known; that another one of the same version was refused is no reason for it."""
    table = house.table()
    mine, other = (CreateTableVersionRequest(**staged(house.namespace, table)) for _ in range(2))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    proxy.add(reset, method="GET", path=r"/tables/t(\?.*)?$", times=2)
    proxy.add(reset, method="POST", path="/tables/t$")
    proxy.add(reset, method="GET", path=r"/tables/t(\?.*)?$", times=2)
    with pytest.raises(CommitStateUnknownError):
        client.create_table_version(mine)
    with pytest.raises(errors.ConcurrentModificationError):
        client.create_table_version(other)
    with pytest.raises(CommitStateUnknownError), committing(client, table):
        raise CommitStateUnknownError("Commit result for version 2 is unknown")
    assert house.open(table).version == house.check(table) == 2


def test_the_reason_after_a_doubt(house: House, proxy: FaultProxy) -> None:
    """Of one commit nothing was known; the next one is refused, and told why."""
    table = house.table()
    client = house.behind(proxy)
    proxy.add(reset, method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    proxy.clear()
    proxy.add(canned(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(errors.PermissionDeniedError):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))


def test_a_server_that_fails_after_the_yes(house: House, proxy: FaultProxy) -> None:
    """It need not be asked again, not even after a change of columns."""
    table = house.table()
    client = house.behind(proxy)
    request = CreateTableVersionRequest(**staged(client, table, lambda dataset: dataset.add_columns({"n": "1"})))

    def then_gone(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        told = forward(request)
        proxy.add(canned(503), times=ALWAYS)
        return told

    proxy.add(then_gone, method="POST", path="/tables/t$")
    client.create_table_version(request)
    assert house.check(table) == 2


def test_a_writer_that_died_after_the_yes(house: House) -> None:
    """The next reader puts the manifest in its place."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    assert house.versions(table) == [1]
    assert house.at(table) == 2
    assert house.open(table).count_rows() == 11
    assert house.check(table) == 2


def test_a_writer_that_comes_back_after_the_yes(house: House) -> None:
    """It sends the same request again, and is told that it was accepted."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    answer = house.connect().create_table_version(request)
    assert answer.version is not None
    assert answer.version.version == house.check(table) == 2
    assert house.connect().create_table_version(request) == answer


READERS: dict[str, Callable[[IcebergNamespace, Id], object]] = {
    "versions": lambda namespace, table: versions(namespace, table),
    "latest": lambda namespace, table: versions(namespace, table, limit=1, descending=True),
    "described": lambda namespace, table: namespace.describe_table_version(DescribeTableVersionRequest(id=table)),
    "by number": lambda namespace, table: namespace.describe_table_version(
        DescribeTableVersionRequest(id=table, version=2)
    ),
    "details": lambda namespace, table: namespace.describe_table(
        DescribeTableRequest(id=table, load_detailed_metadata=True)
    ),
    "version exists": lambda namespace, table: namespace.table_exists(TableExistsRequest(id=table, version=2)),
    "writer": lambda namespace, table: namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1))),
}


@pytest.mark.parametrize("reader", READERS)
def test_everybody_finishes_what_was_accepted(house: House, reader: str) -> None:
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    READERS[reader](house.connect(), table)
    assert house.versions(table)[:2] == [1, 2]
    assert house.check(table) == (3 if reader == "writer" else 2)


def test_a_creator_that_died_after_the_yes(house: House) -> None:
    """The next one finds a table."""
    table, twin = [*house.home, "t"], house.table("twin")
    house.namespace.declare_table(DeclareTableRequest(id=table))
    name = f"{2**64 - 2}.manifest"
    here = house.folder(table)
    for file in house.files(twin):
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / (f"{file}-x" if file.endswith(".manifest") else file)).write_bytes(
            (house.folder(twin) / file).read_bytes()
        )
    path = f"{str(here).strip('/')}/_versions/{name}-x"
    with killed_before_the_manifest_is_final():
        house.namespace.create_table_version(CreateTableVersionRequest(id=table, version=1, manifest_path=path))
    described = house.connect().describe_table(DescribeTableRequest(id=table, check_declared=True))
    assert described.is_only_declared is False
    with pytest.raises(errors.TableAlreadyExistsError):
        house.connect().create_table(CreateTableRequest(id=table), stream(rows(3)))
    assert house.check(table) == 1
    assert house.open(table).count_rows() == 10


# Past the catalog


@pytest.fixture
def strayed(house: House) -> Id:
    """A table at version 2, to which a plain writer has added a third one."""
    table = house.table()
    house.append(table)
    lance.write_dataset(rows(1, 5000), house.location(table), mode="append")
    return table


def test_what_was_never_accepted_is_not_seen(house: House, strayed: Id) -> None:
    namespace = house.connect()
    assert (count(namespace, strayed), opened(house, strayed).version) == (11, 2)
    assert versions(namespace, strayed) == [1, 2]
    with pytest.raises(errors.TableVersionNotFoundError):
        namespace.describe_table_version(DescribeTableVersionRequest(id=strayed, version=3))
    described = namespace.describe_table(DescribeTableRequest(id=strayed, load_detailed_metadata=True))
    assert described.version == 2
    with pytest.raises(errors.TableVersionNotFoundError):
        namespace.table_exists(TableExistsRequest(id=strayed, version=3))


def test_nothing_is_committed_over_it(house: House, strayed: Id) -> None:
    before = house.files(strayed)
    for _ in range(2):
        with pytest.raises(errors.InvalidTableStateError, match=r"past the catalog; .*manage --by impl --adopt"):
            house.namespace.insert_into_table(InsertIntoTableRequest(id=strayed), stream(rows(1)))
    assert house.at(strayed) == 2
    assert {file for file in before if "manifest" in file} <= house.files(strayed)
    assert on_the_way(house.files(strayed)) == set()


def test_a_manifest_that_lies_where_the_next_one_belongs(house: House) -> None:
    """A plain writer was faster, and asked nobody: the catalog is not made to accept another version 2."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    lance.write_dataset(rows(1, 5000), house.location(table), mode="append")
    stray = house.files(table) - on_the_way(house.files(table))
    for namespace in (house.namespace, house.connect()):
        with pytest.raises(errors.InvalidTableStateError, match=r"past the catalog; .*manage --by impl --adopt"):
            namespace.create_table_version(request)
        assert house.at(table) == 1
    assert house.files(table) == stray  # which stays, and what was staged goes


# Creators


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "new"])
def test_two_creators_at_once(house: House, is_declared: bool) -> None:
    table = [*house.home, "t"]
    if is_declared:
        house.namespace.declare_table(DeclareTableRequest(id=table))
    start = Barrier(4)

    def create(number: int) -> int | None:
        namespace = house.connect()
        start.wait()
        try:
            namespace.create_table(CreateTableRequest(id=table), stream(rows(number + 1)))
        except errors.TableAlreadyExistsError:
            return None
        return number + 1

    with ThreadPoolExecutor(4) as pool:
        [winner] = [made for made in pool.map(create, range(4)) if made is not None]
    assert house.check(table) == 1
    assert house.open(table).count_rows() == winner
    assert len([file for file in house.files(table) if file.startswith("data/")]) == 1


def test_a_creator_is_overtaken_at_the_last_moment(house: House, proxy: FaultProxy) -> None:
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))

    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        house.connect().create_table(CreateTableRequest(id=table), stream(rows(3)))
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$")
    with pytest.raises(errors.TableAlreadyExistsError, match="another writer created it just now"):
        house.behind(proxy).create_table(CreateTableRequest(id=table), stream(rows(5)))
    assert house.check(table) == 1
    assert house.open(table).count_rows() == 3
    assert len([file for file in house.files(table) if file.startswith("data/")]) == 1


def test_an_insert_into_a_declared_table_is_overtaken(house: House, proxy: FaultProxy) -> None:
    """Then it adds to what the other one created."""
    table = [*house.home, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))

    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        house.connect().create_table(CreateTableRequest(id=table), stream(rows(3)))
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$")
    inserted = house.behind(proxy).insert_into_table(InsertIntoTableRequest(id=table), stream(rows(5)))
    assert inserted.version == house.check(table) == 2
    assert house.open(table).count_rows() == 8


def test_create_modes(house: House) -> None:
    table = house.table()
    with pytest.raises(errors.TableAlreadyExistsError):
        house.namespace.create_table(CreateTableRequest(id=table), stream(rows(1)))
    house.namespace.create_table(CreateTableRequest(id=table, mode="ExistOk"), stream(rows(1)))
    assert (house.check(table), count(house.namespace, table)) == (1, 10)
    made = house.namespace.create_table(CreateTableRequest(id=table, mode="Overwrite"), stream(rows(4)))
    assert made.version == house.check(table) == 2
    assert count(house.namespace, table) == 4
    for mode in ("Create", "ExistOk", "Overwrite"):
        declared = [*house.home, f"declared_{mode}"]
        house.namespace.declare_table(DeclareTableRequest(id=declared))
        made = house.namespace.create_table(CreateTableRequest(id=declared, mode=mode), stream(rows(4)))
        assert made.version == house.check(declared) == 1


def test_drop_and_create_again(house: House) -> None:
    """The same names and places, and yet other versions."""
    table = house.table()
    folder = house.folder(table)
    house.append(table)
    staged(house.namespace, table)
    (folder / "_staging" / "a" / "_versions").mkdir(parents=True)
    (folder / "_staging" / "a" / "_versions" / "3.manifest").write_text("of a transaction that never ended")
    house.namespace.drop_table(DropTableRequest(id=table))
    assert not folder.exists() or files_in(folder) == set()
    house.table(count=3)
    assert house.check(table) == 1
    house.append(table)
    assert house.check(table) == 2
    assert house.open(table).count_rows() == 4


def test_another_client_drops_and_creates_again(house: House) -> None:
    table = house.table()
    dataset = opened(house, table)
    other = house.connect()
    other.drop_table(DropTableRequest(id=table))
    other.create_table(CreateTableRequest(id=table), stream(rows(3)))
    house.append(table)
    assert house.check(table) == 2
    assert house.open(table).count_rows() == 4
    assert dataset.version == 1


# Writers with other clocks, and many of them


def test_a_writer_whose_clock_is_behind(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    table = house.table()
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 300 * 10**9)
    house.namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    assert house.check(table) == 2


def test_appends_of_many_all_land(house: House) -> None:
    table = house.table(count=1)

    def work(number: int) -> None:
        namespace = house.connect()
        for turn in range(4):
            data = rows(1, 100 + 10 * number + turn)
            lance.write_dataset(data, namespace_client=namespace, table_id=table, mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert house.check(table) == 17
    assert sorted(house.snapshots(table)) == house.versions(table) == list(range(1, 18))
    found = sorted(house.open(table).to_table()["id"].to_pylist())
    assert found == [0, *(100 + 10 * number + turn for number in range(4) for turn in range(4))]


def test_many_threads_share_a_client(house: House) -> None:
    table = house.table(count=1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: house.append(table, first=number), range(12)))
    assert house.check(table) == 13
    assert sorted(house.open(table).to_table()["id"].to_pylist()) == sorted([0, *range(12)])


def test_nested_namespaces_and_odd_names(house: House) -> None:
    inner = [*house.home, "in ner"]
    house.namespace.create_namespace(CreateNamespaceRequest(id=inner))
    table = [*inner, "täble 1"]
    house.namespace.create_table(CreateTableRequest(id=table), stream(rows()))
    house.append(table)
    assert house.open(table).version == 2
    request = staged(house.namespace, table)
    other = house.table()
    batch = entries(request, staged(house.namespace, other))
    assert [version.version for version in house.namespace.batch_create_table_versions(batch).versions] == [3, 2]
    assert house.open(table).version == 3


def test_writers_of_other_branches_do_not_disturb(house: House) -> None:
    """What a client remembers is out of date: another one has used up the sequence numbers that it would give."""
    table = house.table()
    request = CreateTableVersionRequest(**staged(house.namespace, table))
    other = house.connect()
    other.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    for _ in range(3):
        other.insert_into_table(InsertIntoTableRequest(id=table, branch="dev"), stream(rows(1)))
    house.namespace.create_table_version(request)
    assert house.at(table) == 2
    assert count(house.connect(), table) == 11
    numbers = [each["sequence-number"] for each in house.snapshots(table).values()]
    assert len(set(numbers)) == len(numbers) or house.is_ours


def test_writers_of_other_branches_are_many(house: House, proxy: FaultProxy) -> None:
    """However often they come first, main has not moved, and its commit is made."""
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    request = CreateTableVersionRequest(**staged(house.namespace, table))

    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        house.connect().insert_into_table(InsertIntoTableRequest(id=table, branch="dev"), stream(rows(1)))
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$", times=3)
    house.behind(proxy).create_table_version(request)
    assert house.at(table) == 2
    assert count(house.connect(), table) == 11


def test_credentials_that_are_over_are_renewed(house: House, proxy: FaultProxy) -> None:
    table = house.table()
    client = house.behind(proxy)
    known_as = client.table_id(table)
    versions(client, table, limit=1, descending=True)
    proxy.clear()
    client.files(known_as)
    assert proxy.count("GET") == 0  # known a moment ago
    known = client._heads.get(known_as)
    assert known is not None
    entry = replace(known.entry, vended={"aws_session_token": "old", "expires_at_millis": "1"})
    client._heads.put(known_as, replace(known, entry=entry))
    assert "aws_session_token" not in client.files(known_as).storage_options
    assert proxy.count("GET", "/tables/t") == 1


def test_a_table_that_is_renamed(house: House) -> None:
    table, renamed = house.table("old"), [*house.home, "new"]
    house.append(table)
    house.namespace.rename_table(RenameTableRequest(id=table, new_table_name="new"))
    house.append(renamed)
    assert house.check(renamed) == 3
    assert house.open(renamed, 1).count_rows() == 10
    with pytest.raises(errors.TableNotFoundError):
        house.append(table)


def test_the_suite_holds(house: House) -> None:
    """Whatever can be done to a table can be done to one that the catalog manages."""
    areas = ("rows", "versions")
    root = str(Path(house.location(house.table())).parent / "tables")
    report = run(Target("lancehouse.IcebergNamespace", house.properties, tuple(house.home), root=root, areas=areas))
    assert {result.check: result.seen for result in report.of(Outcome.FAILS)} == {}
    assert (report.ok, report.trouble) == (True, [])


def test_tables_in_a_bucket(
    serving: Callable[..., Served], s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be renamed: with credentials of the server's, and no others."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config = tmp_path / "server.yaml"
    config.write_text(json.dumps({"warehouses": {"main": {"storage": dict(s3.options), "vend": "static"}}}))
    server = serving(warehouses={"main": f"{s3.uri}/a b"}, options=["--config", str(config)])
    vend = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
    namespace = IcebergNamespace(endpoint=server.iceberg, managed_by="impl", **vend)
    namespace.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
    one, other = ["main", "db", "one"], ["main", "db", "other"]
    for table in (one, other):
        write_to(namespace, table, "create", rows())
        write_to(namespace, table, "append", rows(5, 10))
    with transaction(namespace) as tx:
        tx.append(one, rows(1, 100))
        tx.append(one, rows(1, 200))
        tx.delete(other, "id < 5")
    before = set(s3.keys())
    undone = Transaction(namespace)
    undone.append(one, rows(3, 300))
    undone.delete(other, "id < 9")
    assert any("/_staging/" in key for key in set(s3.keys()) - before)
    undone.rollback()
    assert set(s3.keys()) == before
    assert not [key for key in before if "/_staging/" in key or ".manifest-" in key]
    fresh = IcebergNamespace(endpoint=server.iceberg, **vend)
    assert (versions(fresh, one), versions(fresh, other)) == ([1, 2, 3, 4], [1, 2, 3])
    assert (count(fresh, one), count(fresh, other)) == (17, 10)
    location = fresh.describe_table(DescribeTableRequest(id=one)).location
    assert lance.dataset(location, storage_options=dict(s3.options)).count_rows() == 17
    namespace.drop_table(DropTableRequest(id=one))
    namespace.drop_table(DropTableRequest(id=other))
    assert s3.keys() == []
