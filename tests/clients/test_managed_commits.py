"""Commits that an Iceberg catalog arbitrates, on Iceberg's own server and on ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import pytest
from lance.optimize import Compaction
from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
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

from lancehouse import IcebergNamespace, transaction
from lancehouse.clients.transactions import Transaction
from lancehouse.conformance.results import CheckOutcome
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import snapshot_id
from tests.clients.managed import (
    Id,
    Json,
    ManagedCatalog,
    append_one,
    count,
    files_in,
    on_the_way,
    open_table,
    rows,
    stage_commit,
    versions,
    write,
    write_to,
)
from tests.lake.folder import stream
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served
from tests.servers.loopback import Answer, Request
from tests.servers.moto import Bucket
from tests.waiting import wait_until

Faults = Callable[[str], FaultProxy]
IMPL = {"managed_by": "impl"}
FEW = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}


# What pylance asks for, one by one


@pytest.mark.parametrize("as_dict", [True, False], ids=["dict", "model"])
def test_a_version_is_accepted(house: ManagedCatalog, as_dict: bool) -> None:
    table = house.table()
    request = stage_commit(house.namespace, table)
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


def test_the_same_request_again(house: ManagedCatalog) -> None:
    """Whoever sends it, and whenever: it was accepted once, and stays so."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    first = house.namespace.create_table_version(request)
    assert house.namespace.create_table_version(request) == first
    assert house.connect().create_table_version(request) == first
    house.append(table)
    assert house.connect().create_table_version(request) == first
    assert house.check(table) == 3
    assert count(house.connect(), table) == 12


def test_a_request_that_comes_too_late(house: ManagedCatalog) -> None:
    table = house.table()
    late = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    house.append(table)
    for namespace in (house.namespace, house.connect()):
        with pytest.raises(errors.ConcurrentModificationError, match=r"t\b"):
            namespace.create_table_version(late)
        assert house.check(table) == 2  # and what was staged is gone


# What comes after a clean-up

CHANGES: dict[str, Callable[[lance.LanceDataset], Any]] = {
    "append": lambda held: lance.write_dataset(rows(1, 500), held, mode="append"),
    "delete rows": lambda held: held.delete("id = 1"),
    "delete other rows": lambda held: held.delete("id = 2"),
    "delete a fragment": lambda held: held.delete("id < 10"),
    "update": lambda held: held.update({"word": "'new'"}, where="id = 1"),
    "merge": lambda held: held.merge_insert("id").when_matched_update_all().execute(rows(2)),
    "compact": lambda held: held.optimize.compact_files(),
    "add a column": lambda held: held.add_columns({"twice": "id * 2"}),
    "drop a column": lambda held: held.drop_columns(["word"]),
}


def plan_compaction(held: lance.LanceDataset) -> Callable[[], Any]:
    """Do the work of a compaction now, and commit it later."""
    results = [task.execute(held) for task in Compaction.plan(held, {}).tasks]
    return lambda: Compaction.commit(held, results)


@pytest.mark.parametrize(
    ("first", "late"),
    [
        ("compact", "delete rows"),
        ("compact", "delete a fragment"),
        ("compact", "update"),
        ("compact", "merge"),
        ("delete rows", "compact"),
        ("delete rows", "delete other rows"),
        ("delete rows", "update"),
        ("update", "compact"),
        ("add a column", "drop a column"),
    ],
)
def test_a_change_after_versions_in_conflict_are_cleaned_up(house: ManagedCatalog, first: str, late: str) -> None:
    """Lance does not see them and would undo what they did: the rows are as those left them, and it can be repeated."""
    table, commit = begin_late_change(house, first, late)
    before = house.open(table)
    mark = house.namespace.commit_mark()
    with pytest.raises(OSError, match="is unknown"):
        commit()
    after = house.open(table)
    # A compaction reserves ids for its fragments first, which is a version of its own.
    assert after.to_table().sort_by("id") == before.to_table().sort_by("id")
    refusal = house.namespace.commit_refusal(table, after.version + 1, mark)
    assert isinstance(refusal, errors.ConcurrentModificationError)
    assert "comes too late" in str(refusal)
    CHANGES[late](after)
    house.check(table)


@pytest.mark.parametrize(("first", "late"), [("append", "compact"), ("append", "append"), ("compact", "append")])
def test_a_harmless_change_after_versions_are_cleaned_up(house: ManagedCatalog, first: str, late: str) -> None:
    table, commit = begin_late_change(house, first, late)
    before = set(house.open(table).to_table()["id"].to_pylist())
    commit()
    assert set(house.open(table).to_table()["id"].to_pylist()) - {500} == before - {500}
    house.check(table)


def begin_late_change(house: ManagedCatalog, first: str, late: str) -> tuple[Id, Callable[[], Any]]:
    """Open a table, let others change it and clean up; return the table, and what commits a change of what was open."""
    table = house.table()
    house.append(table, 10, 10)
    held = open_table(house, table)
    commit = plan_compaction(held) if late == "compact" else lambda: CHANGES[late](held)
    held.tags.create("held", held.version)  # so that its files stay
    CHANGES[first](house.open(table))
    for number in range(4):
        house.append(table, 1, 100 + number)
    latest = lance.dataset(house.location(table))
    latest.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    return table, commit


@pytest.mark.parametrize("late", CHANGES)
def test_a_change_beside_others_that_are_there(house: ManagedCatalog, late: str) -> None:
    """Nothing is cleaned up: Lance compares it with what others have made, and commits what does not conflict."""
    table = house.table()
    house.open(table).delete("id = 9")
    house.append(table, 10, 10)
    held = house.open(table)
    for number in range(5):
        house.append(table, 1, 100 + number)
    if late == "add a column":  # which Lance refuses beside anything
        with pytest.raises(OSError, match="conflict"):
            CHANGES[late](held)
    else:
        CHANGES[late](held)
    assert {100, 101, 102, 103, 104} <= set(house.open(table).to_table()["id"].to_pylist())
    house.check(table)


def test_the_requests_of_a_commit(house: ManagedCatalog) -> None:
    table = house.table()
    with FaultProxy(house.endpoint) as proxy:
        namespace = house.behind(proxy)
        write_to(namespace, table, "append", rows(1))
        for _ in range(3):
            proxy.clear()
            write_to(namespace, table, "append", rows(1))
            assert [method for method, _ in proxy.requests] == ["GET", "POST"]
        held = lance.dataset(namespace_client=namespace, table_id=table)
        for _ in range(3):
            proxy.clear()
            held = lance.write_dataset(rows(1), held, mode="append")
            assert [method for method, _ in proxy.requests] == ["POST"]


@pytest.mark.parametrize("vend", ["auto", "false"])
def test_the_requests_of_an_open(house: ManagedCatalog, vend: str) -> None:
    """One LoadTable, whether or not it asks for credentials; a table that is dropped then is not there any more."""
    table = house.table()
    with FaultProxy(house.endpoint) as proxy:
        namespace = house.behind(proxy, vend_credentials=vend)
        for version in (None, None, 1):
            lance.dataset(namespace_client=namespace, table_id=table, version=version)
            proxy.clear()
            lance.dataset(namespace_client=namespace, table_id=table)
            assert [method for method, _ in proxy.requests] == ["GET"]
        namespace.describe_table(DescribeTableRequest(id=table))
        namespace.deregister_table(DeregisterTableRequest(id=table))
        with pytest.raises(errors.TableNotFoundError):
            namespace.list_table_versions(ListTableVersionsRequest(id=table, limit=1, descending=True))


def test_a_description_without_credentials_serves_no_open(house: ManagedCatalog) -> None:
    """The client asks for them, and one request has declined them."""
    table = house.table()
    with FaultProxy(house.endpoint) as proxy:
        namespace = house.behind(proxy)
        latest = ListTableVersionsRequest(id=table, limit=1, descending=True)
        for vends, loads in ((True, 0), (False, 1), (None, 0)):
            namespace.describe_table(DescribeTableRequest(id=table, vend_credentials=vends))
            proxy.clear()
            namespace.list_table_versions(latest)
            assert proxy.count("GET") == loads


def test_two_requests_at_once(house: ManagedCatalog) -> None:
    """Of eight that all come next, one wins; the others leave nothing."""
    table = house.table()
    requests = [CreateTableVersionRequest(**stage_commit(house.namespace, table)) for _ in range(4)]
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


WRONG: dict[str, tuple[Callable[[ManagedCatalog, Json], Json], type[LanceNamespaceError], str]] = {
    "another table": (
        lambda house, request: {
            **request,
            "manifest_path": stage_commit(house.namespace, house.table("o"))["manifest_path"],
        },
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
        lambda house, request: {**request, "id": [*house.levels, "none"]},
        errors.TableNotFoundError,
        "none",
    ),
}
"""What is wrong with a request, the error, and what it says."""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_request(house: ManagedCatalog, wrong: str) -> None:
    table = house.table()
    request = stage_commit(house.namespace, table)
    change, expected, words = WRONG[wrong]
    with pytest.raises(expected, match=words):
        house.namespace.create_table_version(CreateTableVersionRequest(**change(house, request)))
    house.namespace.create_table_version(CreateTableVersionRequest(**request))  # nothing was harmed
    assert house.check(table) == 2


def test_a_file_that_is_no_manifest(house: ManagedCatalog) -> None:
    table = house.table()
    request = stage_commit(house.namespace, table)
    file = house.folder(table) / "_versions" / request["manifest_path"].rpartition("/")[2]
    whole = file.read_bytes()
    for data in (b"", b"garbage", whole[:-1]):
        file.write_bytes(data)
        with pytest.raises(errors.InvalidInputError, match="no manifest"):
            house.namespace.create_table_version(CreateTableVersionRequest(**request))
    assert house.at(table) == 1


def test_a_manifest_of_another_version_under_this_name(house: ManagedCatalog) -> None:
    table = house.table()
    request = stage_commit(house.namespace, table)
    folder = house.folder(table) / "_versions"
    name = f"{2**64 - 4}.manifest-x"
    (folder / request["manifest_path"].rpartition("/")[2]).rename(folder / name)
    path = f"{request['manifest_path'].rpartition('/')[0]}/{name}"
    with pytest.raises(errors.InvalidInputError, match="holds version 2, not 3"):
        house.namespace.create_table_version(
            CreateTableVersionRequest(**{**request, "version": 3, "manifest_path": path})
        )


def line(house: ManagedCatalog, table: Id, number: int) -> list[Json]:
    """Requests for so many versions after the current one, each made from the one before; none was accepted."""
    twin = [*house.levels, f"twin_of_{table[-1]}"]
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


def test_a_version_that_skips_one(house: ManagedCatalog) -> None:
    table = house.table()
    _, third = line(house, table, 2)
    with pytest.raises((errors.ConcurrentModificationError, errors.InvalidTableStateError)):
        house.namespace.create_table_version(CreateTableVersionRequest(**third))
    assert house.at(table) == 1
    assert house.versions(table) == [1]


def test_a_table_that_storage_manages(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "storage"}))
    write(house, table, "overwrite", rows())
    request = CreateTableVersionRequest(id=table, version=2, manifest_path="x/_versions/2.manifest-x")
    with pytest.raises(errors.InvalidInputError, match=r"by its storage .*`lancehouse table manage --by impl`"):
        house.namespace.create_table_version(request)


def test_another_client_has_handed_the_table_to_storage(house: ManagedCatalog) -> None:
    """What a client remembers of a table does not outlive what it has seen since."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    house.connect().manage_table(table, "storage")
    assert versions(house.namespace, table) == [1]
    with pytest.raises(errors.InvalidInputError, match="managed by its storage"):
        house.namespace.create_table_version(request)
    assert house.versions(table) == [1]


# Several at once


def entries(*requests: Json) -> BatchCreateTableVersionsRequest:
    return BatchCreateTableVersionsRequest(entries=[CreateTableVersionEntry(**request) for request in requests])


def test_a_batch_over_two_tables(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    requests = stage_commit(house.namespace, one), stage_commit(house.namespace, other)
    answer = house.namespace.batch_create_table_versions(entries(*requests))
    assert [version.version for version in answer.versions] == [2, 2]
    assert house.check(one) == house.check(other) == 2
    again = house.namespace.batch_create_table_versions(entries(*requests))
    assert again == answer
    assert house.check(one) == house.check(other) == 2


def test_a_batch_of_which_one_is_late(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    requests = stage_commit(house.namespace, one), stage_commit(house.namespace, other)
    house.append(other)
    with pytest.raises(errors.ConcurrentModificationError):
        house.namespace.batch_create_table_versions(entries(*requests))
    assert (house.check(one), house.check(other)) == (1, 2)


def test_a_batch_of_which_one_was_accepted_before(house: ManagedCatalog) -> None:
    """The other one is not put in its place without the catalog's yes."""
    one, other = house.table("one"), house.table("other")
    requests = stage_commit(house.namespace, one), stage_commit(house.namespace, other)
    house.namespace.create_table_version(CreateTableVersionRequest(**requests[0]))
    try:
        house.namespace.batch_create_table_versions(entries(*requests))
    except errors.ConcurrentModificationError:
        assert (house.check(one), house.check(other)) == (2, 1)
    else:
        assert (house.check(one), house.check(other)) == (2, 2)


def test_a_batch_over_two_branches_of_which_one_is_late(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """The other has not moved, and is no reason to try again."""
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    on_main = stage_commit(house.namespace, table)
    on_dev = stage_commit(house.namespace, table, lambda dataset: append_one(dataset.checkout_version(("dev", None))))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    house.append(table)
    with pytest.raises(errors.ConcurrentModificationError):
        client.batch_create_table_versions(entries(on_main, on_dev))
    assert proxy.count("POST") <= 1
    assert (house.at(table), house.at(table, "dev")) == (2, snapshot_id("dev", 1))


def test_a_batch_of_several_versions_of_one_table(house: ManagedCatalog) -> None:
    table = house.table()
    second, third = line(house, table, 2)
    answer = house.namespace.batch_create_table_versions(entries(second, third))
    assert [version.version for version in answer.versions] == [2, 3]
    assert house.check(table) == 3
    assert sorted(house.snapshots(table)) == house.versions(table) == [1, 2, 3]
    assert house.open(table, 2).count_rows() == 11


def test_a_batch_with_a_gap(house: ManagedCatalog) -> None:
    table = house.table()
    second, _, fourth = line(house, table, 3)
    with pytest.raises((errors.ConcurrentModificationError, errors.InvalidInputError)):
        house.namespace.batch_create_table_versions(entries(second, fourth))
    assert sorted(house.snapshots(table)) == house.versions(table) == [1]


def test_a_batch_over_two_warehouses(house: ManagedCatalog, faults: Faults) -> None:
    """A commit is one request, to one warehouse."""
    table = house.table()
    request = stage_commit(house.namespace, table)
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


def test_commit_tables(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    requests = [CreateTableVersionRequest(**stage_commit(house.namespace, table)) for table in (one, other)]
    operations = [operation(create_table_version=request) for request in requests]
    answer = house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=operations))
    made = [result.create_table_version.version for result in answer.results if result.create_table_version]
    assert [version.version for version in made if version] == [2, 2]
    assert house.check(one) == house.check(other) == 2


def test_commit_tables_that_does_one_other_thing(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
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
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == []


def test_commit_tables_that_is_not_all_or_none(house: ManagedCatalog) -> None:
    table, new = house.table(), [*house.levels, "new"]
    create = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    others = [
        operation(declare_table=DeclareTableRequest(id=new)),
        operation(deregister_table=DeregisterTableRequest(id=table)),
    ]
    for other in others:
        for operations in ([operation(create_table_version=create), other], [other, other]):
            with pytest.raises(errors.UnsupportedOperationError, match="send each of these on its own"):
                house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=operations))
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == ["t"]
    assert house.at(table) == 1
    house.namespace.create_table_version(create)
    with pytest.raises(errors.InvalidInputError, match="nothing to commit"):
        house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=[]))
    both = operation(create_table_version=create, declare_table=DeclareTableRequest(id=new))
    with pytest.raises((errors.InvalidInputError, errors.UnsupportedOperationError)):
        house.namespace.batch_commit_tables(BatchCommitTablesRequest(operations=[both]))
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == ["t"]


# Past the catalog


@pytest.fixture
def stray_table(house: ManagedCatalog) -> Id:
    """A table at version 2, to which a plain writer has added a third one."""
    table = house.table()
    house.append(table)
    lance.write_dataset(rows(1, 5000), house.location(table), mode="append")
    return table


def test_what_was_never_accepted_is_not_seen(house: ManagedCatalog, stray_table: Id) -> None:
    namespace = house.connect()
    assert (count(namespace, stray_table), open_table(house, stray_table).version) == (11, 2)
    assert versions(namespace, stray_table) == [1, 2]
    with pytest.raises(errors.TableVersionNotFoundError):
        namespace.describe_table_version(DescribeTableVersionRequest(id=stray_table, version=3))
    described = namespace.describe_table(DescribeTableRequest(id=stray_table, load_detailed_metadata=True))
    assert described.version == 2
    with pytest.raises(errors.TableVersionNotFoundError):
        namespace.table_exists(TableExistsRequest(id=stray_table, version=3))


def test_nothing_is_committed_over_it(house: ManagedCatalog, stray_table: Id) -> None:
    before = house.files(stray_table)
    for _ in range(2):
        with pytest.raises(errors.InvalidTableStateError, match=r"bypassed the catalog; .*manage --by impl --adopt"):
            house.namespace.insert_into_table(InsertIntoTableRequest(id=stray_table), stream(rows(1)))
    assert house.at(stray_table) == 2
    assert {file for file in before if "manifest" in file} <= house.files(stray_table)
    assert on_the_way(house.files(stray_table)) == set()


def test_a_manifest_that_lies_where_the_next_one_belongs(house: ManagedCatalog) -> None:
    """A plain writer was faster, and asked nobody: the catalog is not made to accept another version 2."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    lance.write_dataset(rows(1, 5000), house.location(table), mode="append")
    stray = house.files(table) - on_the_way(house.files(table))
    for namespace in (house.namespace, house.connect()):
        with pytest.raises(errors.InvalidTableStateError, match=r"bypassed the catalog; .*manage --by impl --adopt"):
            namespace.create_table_version(request)
        assert house.at(table) == 1
    assert house.files(table) == stray  # which stays, and what was staged goes


# Creators


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "new"])
def test_two_creators_at_once(house: ManagedCatalog, is_declared: bool) -> None:
    table = [*house.levels, "t"]
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


def test_a_creator_is_overtaken_at_the_last_moment(house: ManagedCatalog, proxy: FaultProxy) -> None:
    table = [*house.levels, "t"]
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


def test_an_insert_into_a_declared_table_is_overtaken(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """Then it adds to what the other one created."""
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))

    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        house.connect().create_table(CreateTableRequest(id=table), stream(rows(3)))
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$")
    inserted = house.behind(proxy).insert_into_table(InsertIntoTableRequest(id=table), stream(rows(5)))
    assert inserted.version == house.check(table) == 2
    assert house.open(table).count_rows() == 8


def test_create_modes(house: ManagedCatalog) -> None:
    table = house.table()
    with pytest.raises(errors.TableAlreadyExistsError):
        house.namespace.create_table(CreateTableRequest(id=table), stream(rows(1)))
    house.namespace.create_table(CreateTableRequest(id=table, mode="ExistOk"), stream(rows(1)))
    assert (house.check(table), count(house.namespace, table)) == (1, 10)
    made = house.namespace.create_table(CreateTableRequest(id=table, mode="Overwrite"), stream(rows(4)))
    assert made.version == house.check(table) == 2
    assert count(house.namespace, table) == 4
    for mode in ("Create", "ExistOk", "Overwrite"):
        declared = [*house.levels, f"declared_{mode}"]
        house.namespace.declare_table(DeclareTableRequest(id=declared))
        made = house.namespace.create_table(CreateTableRequest(id=declared, mode=mode), stream(rows(4)))
        assert made.version == house.check(declared) == 1


def test_drop_and_create_again(house: ManagedCatalog) -> None:
    """The same names and places, and yet other versions."""
    table = house.table()
    folder = house.folder(table)
    house.append(table)
    stage_commit(house.namespace, table)
    (folder / "_staging" / "a" / "_versions").mkdir(parents=True)
    (folder / "_staging" / "a" / "_versions" / "3.manifest").write_text("of a transaction that never ended")
    house.namespace.drop_table(DropTableRequest(id=table))
    assert not folder.exists() or files_in(folder) == set()
    house.table(count=3)
    assert house.check(table) == 1
    house.append(table)
    assert house.check(table) == 2
    assert house.open(table).count_rows() == 4


def test_another_client_drops_and_creates_again(house: ManagedCatalog) -> None:
    table = house.table()
    dataset = open_table(house, table)
    other = house.connect()
    other.drop_table(DropTableRequest(id=table))
    other.create_table(CreateTableRequest(id=table), stream(rows(3)))
    house.append(table)
    assert house.check(table) == 2
    assert house.open(table).count_rows() == 4
    assert dataset.version == 1


# Writers with other clocks, and many of them


def test_a_writer_whose_clock_is_behind(house: ManagedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = house.table()
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 300 * 10**9)
    house.namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    assert house.check(table) == 2


def test_appends_of_many_all_land(house: ManagedCatalog) -> None:
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


def test_many_threads_share_a_client(house: ManagedCatalog) -> None:
    table = house.table(count=1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: house.append(table, first=number), range(12)))
    assert house.check(table) == 13
    assert sorted(house.open(table).to_table()["id"].to_pylist()) == sorted([0, *range(12)])


def test_nested_namespaces_and_odd_names(house: ManagedCatalog) -> None:
    inner = [*house.levels, "in ner"]
    house.namespace.create_namespace(CreateNamespaceRequest(id=inner))
    table = [*inner, "täble 1"]
    house.namespace.create_table(CreateTableRequest(id=table), stream(rows()))
    house.append(table)
    assert house.open(table).version == 2
    request = stage_commit(house.namespace, table)
    other = house.table()
    batch = entries(request, stage_commit(house.namespace, other))
    assert [version.version for version in house.namespace.batch_create_table_versions(batch).versions] == [3, 2]
    assert house.open(table).version == 3


def test_writers_of_other_branches_do_not_disturb(house: ManagedCatalog) -> None:
    """What a client remembers is out of date: another one has used up the sequence numbers that it would give."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    other = house.connect()
    other.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    for _ in range(3):
        other.insert_into_table(InsertIntoTableRequest(id=table, branch="dev"), stream(rows(1)))
    house.namespace.create_table_version(request)
    assert house.at(table) == 2
    assert count(house.connect(), table) == 11
    numbers = [each["sequence-number"] for each in house.snapshots(table).values()]
    assert len(set(numbers)) == len(numbers) or house.is_ours


def test_writers_of_other_branches_are_many(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """However often they come first, main has not moved, and its commit is made."""
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))

    def other_is_faster(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        house.connect().insert_into_table(InsertIntoTableRequest(id=table, branch="dev"), stream(rows(1)))
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$", times=3)
    house.behind(proxy).create_table_version(request)
    assert house.at(table) == 2
    assert count(house.connect(), table) == 11


def test_credentials_that_are_over_are_renewed(house: ManagedCatalog, proxy: FaultProxy) -> None:
    table = house.table()
    client = house.behind(proxy)
    known_as = TableId.parse(table)
    versions(client, table, limit=1, descending=True)
    proxy.clear()
    client._versions.manifest_store(known_as)
    assert proxy.count("GET") == 0  # known a moment ago
    known = client._versions.heads.get(known_as)
    assert known is not None
    entry = replace(known.entry, vended={"aws_session_token": "old", "expires_at_millis": "1"})
    client._versions.heads.put(known_as, replace(known, entry=entry))
    assert "aws_session_token" not in client._versions.manifest_store(known_as).storage_options
    assert proxy.count("GET", "/tables/t") == 1


def test_a_table_that_is_renamed(house: ManagedCatalog) -> None:
    table, renamed = house.table("old"), [*house.levels, "new"]
    house.append(table)
    house.namespace.rename_table(RenameTableRequest(id=table, new_table_name="new"))
    house.append(renamed)
    assert house.check(renamed) == 3
    assert house.open(renamed, 1).count_rows() == 10
    with pytest.raises(errors.TableNotFoundError):
        house.append(table)


def test_the_suite_holds(house: ManagedCatalog) -> None:
    """Whatever can be done to a table can be done to one that the catalog manages."""
    areas = ("rows", "versions")
    root = str(Path(house.location(house.table())).parent / "tables")
    report = run(
        ConformanceTarget("lancehouse.IcebergNamespace", house.properties, tuple(house.levels), root=root, areas=areas)
    )
    assert {result.check: result.seen for result in report.with_outcome(CheckOutcome.FAILS)} == {}
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
    wait_until(lambda: "/_staging/" not in "".join(s3.keys()))  # what was published is removed in the background
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
    assert s3.keys() == ["a b/.lancehouse/epoch.json"], "what the server keeps of the warehouse itself"
