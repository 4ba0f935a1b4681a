"""Several tables, one commit: on Iceberg's own server and on ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    CreateNamespaceRequest,
    CreateTableBranchRequest,
    CreateTableTagRequest,
    DeclareTableRequest,
    DeleteFromTableRequest,
    DeleteTableBranchRequest,
    DeleteTableTagRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    DropTableRequest,
    InsertIntoTableRequest,
    ListTableVersionsRequest,
    RestoreTableRequest,
    UpdateTableRequest,
    UpdateTableTagRequest,
    errors,
)
from lance_namespace.errors import LanceNamespaceError
from lance_namespace_urllib3_client.models.version_range import VersionRange

import lancehouse
from lancehouse import CommitStateUnknownError, transaction
from lancehouse.clients.transactions import Transaction
from lancehouse.lake.dataset import snapshot_id
from lancehouse.lake.manifests import ManifestStore
from tests.clients.managed import (
    NO,
    Id,
    ManagedCatalog,
    count,
    files_in,
    killed_before_the_manifest_is_final,
    on_the_way,
    rows,
    versions,
)
from tests.lake.folder import stream
from tests.servers.faults import ALWAYS, Fault, FaultProxy, answer_after, answer_always, html, lost_answer, reset
from tests.servers.loopback import Answer, Request
from tests.servers.polaris import Polaris

Faults = Callable[[str], FaultProxy]
COMMIT = "/transactions/commit$"


class ChangeOfMindError(Exception):
    """Raised in a block that ought to leave nothing."""


# All


def test_several_tables(house: ManagedCatalog) -> None:
    one, two, three = (house.table(name) for name in ("one", "two", "three"))
    with transaction(house.namespace) as tx:
        tx.append(one, rows(5, 100))
        tx.overwrite(two, pa.table({"other": [1.5]}))
        tx.delete(three, "id < 4")
        for table in (one, two, three):
            assert house.at(table) == 1
            assert count(house.connect(), table) == lance.dataset(house.location(table)).count_rows() == 10
    assert [house.check(table) for table in (one, two, three)] == [2, 2, 2]
    assert [count(house.connect(), table) for table in (one, two, three)] == [15, 1, 6]
    assert house.columns(two) == ["other"]
    words = [house.snapshots(table)[2]["summary"]["operation"] for table in (one, two, three)]
    assert words == ["append", "overwrite", "delete"]


def test_several_operations_on_one_table(house: ManagedCatalog) -> None:
    """Each sees what the one before has done, and each is a version."""
    one, other = house.table("one"), house.table("other")
    with transaction(house.namespace) as tx:
        tx.append(one, rows(5, 100))
        tx.delete(one, "id < 3")
        tx.append(other, rows(1, 100))
        tx.append(one, rows(2, 200))
        assert count(tx, one) == 14
        assert versions(tx, one) == [1, 2, 3, 4]
        assert versions(house.connect(), one) == [1]
    assert (house.check(one), house.check(other)) == (4, 2)
    assert sorted(house.snapshots(one)) == house.versions(one) == versions(house.connect(), one) == [1, 2, 3, 4]
    assert [house.open(one, version).count_rows() for version in (1, 2, 3, 4)] == [10, 15, 12, 14]
    house.append(one)
    assert house.check(one) == 5


def test_one_table(house: ManagedCatalog, proxy: FaultProxy) -> None:
    table = house.table()
    with transaction(house.behind(proxy)) as tx:
        tx.append(table, rows(1, 100))
        tx.delete(table, "id = 3")
    assert house.check(table) == 3
    assert count(house.connect(), table) == 10


def test_no_table(house: ManagedCatalog, proxy: FaultProxy) -> None:
    with transaction(house.behind(proxy)):
        pass
    assert proxy.requests == []


def test_tables_that_are_only_declared(house: ManagedCatalog) -> None:
    one, two, three = ([*house.levels, name] for name in ("one", "two", "three"))
    for table in (one, two, three):
        house.namespace.declare_table(DeclareTableRequest(id=table))
    with transaction(house.namespace) as tx:
        tx.append(one, rows(3))
        tx.append(one, rows(2, 3))
        tx.overwrite(two, rows(4))
        assert count(tx, one) == 5
    assert (house.check(one), house.check(two), house.at(three)) == (2, 1, None)
    assert (count(house.connect(), one), count(house.connect(), two)) == (5, 4)


def test_a_namespace_within(house: ManagedCatalog) -> None:
    inner = [*house.levels, "in ner"]
    house.namespace.create_namespace(CreateNamespaceRequest(id=inner))
    deep, flat = [*inner, "täble"], house.table()
    house.namespace.declare_table(DeclareTableRequest(id=deep))
    with transaction(house.namespace) as tx:
        tx.append(deep, rows(3))
        tx.append(flat, rows(3))
    assert (count(house.connect(), deep), count(house.connect(), flat)) == (3, 13)


def test_what_it_reads_is_what_it_wrote(house: ManagedCatalog) -> None:
    table = house.table()
    with transaction(house.namespace) as tx:
        tx.append(table, rows(5, 100))
        dataset = lance.dataset(namespace_client=tx, table_id=table)
        assert (dataset.version, dataset.count_rows()) == (2, 15)
        dataset.merge_insert("id").when_matched_delete().execute(rows(3))
        tx.update_table(UpdateTableRequest(id=table, updates=[["word", "'new'"]], predicate="id = 100"))
        assert lance.dataset(namespace_client=tx, table_id=table).count_rows("word = 'new'") == 1
        assert lance.dataset(namespace_client=tx, table_id=table, version=1).count_rows() == 10
        assert lance.dataset(namespace_client=tx, table_id=table, version=2).count_rows() == 15
        described = tx.describe_table_version(DescribeTableVersionRequest(id=table)).version
        assert described.version == 4
        plain: Any = tx.describe_table_version({"id": table, "version": 3})  # type: ignore[arg-type]
        assert plain["version"]["version"] == 3
        with pytest.raises(errors.TableVersionNotFoundError):
            tx.describe_table_version(DescribeTableVersionRequest(id=table, version=5))
    assert house.check(table) == 4
    assert house.open(table).count_rows() == 12


@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_what_it_reads(house: ManagedCatalog, descending: bool) -> None:
    """Every version once, in order."""
    table = house.table()
    for _ in range(3):
        house.append(table)
    tx = Transaction(house.namespace)
    for _ in range(3):
        tx.append(table, rows(1))
    everything = [1, 2, 3, 4, 5, 6, 7]
    assert versions(tx, table, descending=descending) == (everything[::-1] if descending else everything)
    found: list[int] = []
    token = None
    for _ in range(9):
        request = ListTableVersionsRequest(id=table, limit=2, page_token=token, descending=descending)
        answer = tx.list_table_versions(request)
        assert len(answer.versions) <= 2
        found += [version.version for version in answer.versions]
        token = answer.page_token
        if token is None:
            break
    tx.rollback()
    assert found == (everything[::-1] if descending else everything)


def test_branches(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    house.namespace.create_table_branch(CreateTableBranchRequest(id=one, name="dev"))
    with transaction(house.namespace) as tx:
        tx.insert_into_table(InsertIntoTableRequest(id=one, branch="dev"), stream(rows(5, 100)))
        tx.append(one, rows(1, 200))
        tx.delete_from_table(DeleteFromTableRequest(id=one, branch="dev", predicate="id < 3"))
        tx.append(other, rows(1, 200))
        assert (count(tx, one), count(tx, one, "dev")) == (11, 12)
        assert (count(house.connect(), one), count(house.connect(), one, "dev")) == (10, 10)
    assert (house.check(one), house.check(other), house.at(one, "dev")) == (2, 2, snapshot_id("dev", 3))
    assert (count(house.connect(), one), count(house.connect(), one, "dev")) == (11, 12)
    assert house.versions(one, "dev") == [1, 2, 3]


def test_anything_that_pylance_does(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    with transaction(house.namespace) as tx:
        dataset = lance.dataset(namespace_client=tx, table_id=one)
        dataset.add_columns({"twice": "id * 2"})
        dataset.create_scalar_index("id", "BTREE")
        dataset.update_config({"a": "b"})
        dataset.optimize.compact_files()
        tx.restore_table(RestoreTableRequest(id=other, version=1))
    assert house.check(one) == 4
    assert house.columns(one) == ["id", "word", "twice"]
    assert house.check(other) == 2


# Or none


def state(house: ManagedCatalog, *tables: Id) -> list[tuple[set[str], int | None, int | None]]:
    return [(house.files(table), house.at(table), count(house.connect(), table)) for table in tables]


def several(tx: Transaction, table: Id) -> None:
    tx.append(table, rows(3, 100))
    tx.delete(table, "id < 4")
    tx.append(table, rows(3, 200))
    tx.overwrite(table, rows(1))


def on_a_branch(tx: Transaction, table: Id) -> None:
    tx.insert_into_table(InsertIntoTableRequest(id=table, branch="dev"), stream(rows(3, 100)))
    tx.delete_from_table(DeleteFromTableRequest(id=table, branch="dev", predicate="id < 4"))


def open_table(tx: Transaction, table: Id) -> lance.LanceDataset:
    return lance.dataset(namespace_client=tx, table_id=table)


STAGE: dict[str, Callable[[Transaction, Id], object]] = {
    "append": lambda tx, table: tx.append(table, rows(3, 100)),
    "overwrite": lambda tx, table: tx.overwrite(table, rows(3, 100)),
    "delete": lambda tx, table: tx.delete(table, "id < 4"),
    "several": several,
    "columns": lambda tx, table: open_table(tx, table).add_columns({"n": "id"}),
    "index": lambda tx, table: open_table(tx, table).create_scalar_index("id", "BTREE"),
    "restore": lambda tx, table: tx.restore_table(RestoreTableRequest(id=table, version=1)),
    "branch": on_a_branch,
}


def create_history(house: ManagedCatalog, name: str = "t") -> Id:
    """A table with a history: its second version has nothing of the first, its last a deletion; and a branch."""
    table = house.table(name)
    lance.write_dataset(rows(10), namespace_client=house.namespace, table_id=table, mode="overwrite")
    house.append(table)
    lance.dataset(namespace_client=house.namespace, table_id=table).delete("id = 9")
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    return table


@pytest.mark.parametrize("stage", STAGE)
def test_a_rollback_leaves_exactly_what_was_there(house: ManagedCatalog, stage: str) -> None:
    table = create_history(house)
    before = state(house, table)
    tx = Transaction(house.namespace)
    STAGE[stage](tx, table)
    assert len(on_the_way(house.files(table))) >= 1
    tx.rollback()
    assert state(house, table) == before
    assert not (house.folder(table) / "_staging").exists()
    for version in house.versions(table):  # every old version can still be read
        assert house.open(table, version).to_table().num_rows == (10, 10, 11, 10)[version - 1]
    assert count(house.connect(), table, "dev") == 10


def test_a_rollback_of_blobs(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    fields = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])
    data = pa.table({"id": [1, 2], "b": lance.blob_array([b"x", b"y" * 5_000_000])}, schema=fields)
    made = {"namespace_client": house.namespace, "table_id": table, "mode": "create", "data_storage_version": "2.2"}
    lance.write_dataset(data, **made)
    before = house.files(table)
    tx = Transaction(house.namespace)
    tx.append(table, data)
    assert any(file.endswith(".blob") for file in house.files(table) - before)
    tx.rollback()
    assert house.files(table) == before


def test_an_exception_rolls_back(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    before = state(house, one, other)
    with pytest.raises(ChangeOfMindError), transaction(house.namespace) as tx:
        tx.append(one, rows(3, 100))
        tx.delete(other, "id < 4")
        raise ChangeOfMindError
    assert state(house, one, other) == before


def test_a_rollback_of_first_versions(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    tx = Transaction(house.namespace)
    tx.append(table, rows(3))
    tx.append(table, rows(3))
    tx.rollback()
    assert files_in(house.folder(table)) == set()
    with transaction(house.namespace) as tx:
        tx.append(table, rows(3))
    assert house.check(table) == 1


@pytest.mark.parametrize("stage", ["several", "restore", "branch"])
def test_a_conflict_leaves_nothing(house: ManagedCatalog, stage: str) -> None:
    one, other = create_history(house, "one"), house.table("other")
    tx = Transaction(house.namespace)
    STAGE[stage](tx, one)
    tx.append(other, rows(1))
    staged = house.files(one)
    house.connect().insert_into_table(InsertIntoTableRequest(id=other), stream(rows(7, 300)))
    with pytest.raises(errors.ConcurrentModificationError):
        tx.commit()
    assert (house.check(one), house.check(other)) == (4, 2)
    assert count(house.connect(), other) == 17
    assert len(house.files(one)) < len(staged)
    for version in house.versions(one):
        assert house.open(one, version).to_table().num_rows == (10, 10, 11, 10)[version - 1]
    assert {file for file in house.files(other) if file.startswith("data/")} == {
        f"data/{file.path}" for fragment in house.open(other).get_fragments() for file in fragment.metadata.files
    }


def test_a_conflict_leaves_exactly_what_was_there(house: ManagedCatalog) -> None:
    one, other = create_history(house, "one"), house.table("other")
    before = house.files(one)
    tx = Transaction(house.namespace)
    STAGE["several"](tx, one)
    tx.append(other, rows(1))
    house.append(other)
    with pytest.raises(errors.ConcurrentModificationError):
        tx.commit()
    assert house.files(one) == before


def test_a_table_moves_on_by_more_than_was_staged(house: ManagedCatalog) -> None:
    """The transaction goes on seeing what it wrote, and learns of the conflict when it commits."""
    table = house.table()
    tx = Transaction(house.namespace)
    tx.append(table, rows(1, 100))
    for _ in range(3):
        house.connect().insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1, 200)))
    before = house.files(table)
    assert count(tx, table) == 11
    assert versions(tx, table, limit=1, descending=True) == [2]
    with pytest.raises(errors.ConcurrentModificationError):
        tx.commit()
    assert house.files(table) < before
    assert house.check(table) == 4
    assert count(house.connect(), table) == 13


def test_one_of_two_transactions(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    first, second = Transaction(house.namespace), Transaction(house.connect())
    for tx, number in ((first, 100), (second, 200)):
        tx.append(one, rows(1, number))
        tx.append(other, rows(1, number))
    second.commit()
    with pytest.raises(errors.ConcurrentModificationError):
        first.commit()
    assert (house.check(one), house.check(other)) == (2, 2)
    for table in (one, other):
        assert house.open(table).to_table()["id"].to_pylist()[-1] == 200


# Refused before anything is written


def test_a_table_that_storage_manages(house: ManagedCatalog) -> None:
    table, plain = house.table(), [*house.levels, "plain"]
    house.namespace.declare_table(DeclareTableRequest(id=plain, properties={"managed_by": "storage"}))
    lance.write_dataset(rows(), house.location(plain))
    before = [house.files(table), house.files(plain)]
    calls: list[Callable[[Transaction], None]] = [
        lambda tx: tx.append(plain, rows(1)),
        lambda tx: tx.overwrite(plain, rows(1)),
        lambda tx: tx.delete(plain, "id = 1"),
    ]
    for call in calls:
        with (
            pytest.raises(errors.InvalidInputError, match=r"by its storage .*`lancehouse table manage --by impl`"),
            transaction(house.namespace) as tx,
        ):
            tx.append(table, rows(1))
            call(tx)
    assert [house.files(table), house.files(plain)] == before


def test_no_such_table(house: ManagedCatalog) -> None:
    table = house.table()
    before = house.files(table)
    with pytest.raises(errors.TableNotFoundError), transaction(house.namespace) as tx:
        tx.append(table, rows(1))
        tx.append([*house.levels, "none"], rows(1))
    assert house.files(table) == before


def without_transactions(announced: bool) -> Fault:
    """A server's configuration, without the call; or without saying which calls there are."""

    def answer(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        told = forward(request)
        config = json.loads(told.body)
        endpoints = [each for each in config.pop("endpoints") if "transactions" not in each]
        return replace(told, body=json.dumps(config | ({"endpoints": endpoints} if announced else {})).encode())

    return answer


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        answer_always(404, "<h1>Not found</h1>"),
        answer_always(406, '{"error": {"message": "no", "type": "UnsupportedOperationException", "code": 406}}'),
        answer_always(
            400,
            '{"error": {"message": "No route for request: POST v1/transactions/commit", "type": "BadRequestException",'
            ' "code": 400}}',
        ),
    ],
    ids=["not announced", "a page", "406", "no route"],
)
def test_a_server_without_transactions(house: ManagedCatalog, proxy: FaultProxy, refusal: Fault | None) -> None:
    table = house.table()
    before = house.files(table)
    proxy.add(without_transactions(announced=refusal is None), path="/v1/config", times=ALWAYS)
    if refusal is not None:
        proxy.add(refusal, method="POST", path=COMMIT, times=ALWAYS)
    client = house.behind(proxy)
    with (
        pytest.raises(errors.UnsupportedOperationError, match="no call that changes several tables at once"),
        transaction(client) as tx,
    ):
        tx.append(table, rows(1))
    assert house.files(table) == before
    client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))  # all else goes on
    assert house.check(table) == 2


@pytest.mark.parametrize(
    "answer",
    [
        None,
        answer_always(204),
        answer_always(
            400, '{"error": {"message": "table-changes is empty", "type": "ValidationException", "code": 400}}'
        ),
    ],
    ids=["the server's own", "204", "400 because it is empty"],
)
def test_a_server_that_does_not_say_what_it_can(house: ManagedCatalog, proxy: FaultProxy, answer: Fault | None) -> None:
    one, other = house.table("one"), house.table("other")
    proxy.add(without_transactions(announced=False), path="/v1/config", times=ALWAYS)

    asked: list[bool] = []

    def of_nothing(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        is_empty = not json.loads(request.body)["table-changes"]
        asked.append(is_empty)
        return answer(request, forward) if is_empty and answer else forward(request)

    proxy.add(of_nothing, method="POST", path=COMMIT, times=ALWAYS)
    with transaction(house.behind(proxy)) as tx:
        tx.append(one, rows(1))
        tx.append(other, rows(1))
    assert asked == [True, False]  # once, and then the transaction itself
    assert (house.check(one), house.check(other)) == (2, 2)


def test_other_clients(polaris: Polaris) -> None:
    namespace = lancehouse.PolarisNamespace(endpoint=polaris.uri, credential=polaris.credential)
    before = len(polaris.requests)
    with (
        pytest.raises(errors.UnsupportedOperationError, match=r"PolarisNamespace .*the `iceberg` client"),
        transaction(namespace) as tx,
    ):
        tx.append(["test_catalog", "db", "t"], rows(1))
    with pytest.raises(errors.UnsupportedOperationError, match="the `iceberg` client"):
        Transaction(lancehouse.UnityNamespace(endpoint="http://127.0.0.1:1", catalog="c"))
    assert len(polaris.requests) == before


def test_what_cannot_be_staged_is_refused(house: ManagedCatalog) -> None:
    """Lance makes no commit of tags, branches and clean-ups: a rollback could not undo them."""
    table = house.table()
    house.append(table)
    house.namespace.create_table_tag(CreateTableTagRequest(id=table, tag="one", version=1))
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    before = house.files(table)
    tx = Transaction(house.namespace)
    tx.append(table, rows(1))
    ranges = [VersionRange(start_version=1, end_version=2)]
    calls: list[Callable[[], object]] = [
        partial(tx.create_table_tag, CreateTableTagRequest(id=table, tag="two", version=3)),
        partial(tx.update_table_tag, UpdateTableTagRequest(id=table, tag="one", version=2)),
        partial(tx.delete_table_tag, DeleteTableTagRequest(id=table, tag="one")),
        partial(tx.create_table_branch, CreateTableBranchRequest(id=table, name="new")),
        partial(tx.delete_table_branch, DeleteTableBranchRequest(id=table, name="dev")),
        partial(tx.batch_delete_table_versions, BatchDeleteTableVersionsRequest(id=table, ranges=ranges)),
        partial(tx.declare_table, DeclareTableRequest(id=[*house.levels, "new"])),
        partial(tx.drop_table, DropTableRequest(id=table)),
    ]
    for call in calls:
        with pytest.raises(errors.UnsupportedOperationError):
            call()
    tx.rollback()
    assert house.files(table) == before


# After the end


def test_after_the_end(house: ManagedCatalog) -> None:
    table = house.table()
    committed, rolled_back = Transaction(house.namespace), Transaction(house.namespace)
    committed.append(table, rows(1))
    held = lance.dataset(namespace_client=committed, table_id=table)
    committed.commit()
    rolled_back.append(table, rows(1))
    rolled_back.rollback()
    before = house.files(table)
    for tx in (committed, rolled_back):
        calls: list[Callable[[], object]] = [
            tx.commit,
            tx.rollback,
            partial(tx.append, table, rows(1)),
            partial(tx.overwrite, table, rows(1)),
            partial(tx.delete, table, "id = 1"),
            partial(tx.describe_table, DescribeTableRequest(id=table)),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidInputError, match="the transaction is over"):
                call()
    assert house.files(table) == before
    with pytest.raises(OSError, match="unknown"):  # all that pylance says
        held.delete("id = 1")
    assert house.at(table) == 2
    assert count(house.connect(), table) == 11


def test_the_block_after_a_commit_of_ones_own(house: ManagedCatalog) -> None:
    table = house.table()
    with transaction(house.namespace) as tx:
        tx.append(table, rows(1))
        tx.commit()
    with transaction(house.namespace) as tx:
        tx.append(table, rows(1))
        tx.rollback()
    with pytest.raises(ChangeOfMindError), transaction(house.namespace) as tx:
        tx.append(table, rows(1))
        tx.commit()
        raise ChangeOfMindError
    assert house.check(table) == 3


def test_a_table_that_is_dropped_meanwhile(house: ManagedCatalog) -> None:
    one, other = house.table("one"), house.table("other")
    folder = house.folder(one)
    tx = Transaction(house.namespace)
    tx.append(one, rows(1))
    tx.append(other, rows(1))
    house.connect().drop_table(DropTableRequest(id=one))
    assert not folder.exists() or files_in(folder) == set()
    with pytest.raises(LanceNamespaceError):
        tx.commit()
    assert house.check(other) == 1


# On a bad day


@pytest.mark.parametrize(
    "fault",
    [lost_answer, answer_after(500), reset, html],
    ids=["made, lost", "made, 500", "reset", "a page"],
)
def test_an_answer_that_is_lost(house: ManagedCatalog, proxy: FaultProxy, fault: Fault) -> None:
    one, other = house.table("one"), house.table("other")
    proxy.add(fault, method="POST", path=COMMIT)
    with transaction(house.behind(proxy)) as tx:
        tx.append(one, rows(1))
        tx.append(one, rows(1))
        tx.append(other, rows(1))
    assert (house.check(one), house.check(other)) == (3, 2)


@pytest.mark.parametrize(
    ("fault", "look"), [(lost_answer, answer_always(403, NO)), (reset, answer_always(503))], ids=["made", "not made"]
)
def test_nobody_knows_what_became_of_it(house: ManagedCatalog, proxy: FaultProxy, fault: Fault, look: Fault) -> None:
    """Nothing is thrown away, for it may be the current version."""
    one, other = house.table("one"), house.table("other")
    client = house.behind(proxy)
    tx = Transaction(client)
    tx.append(one, rows(1))
    tx.append(other, rows(1))
    before = house.files(one) | house.files(other)
    proxy.add(fault, method="POST", path=COMMIT, times=ALWAYS)
    proxy.add(look, method="GET", path="/tables/", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError):
        tx.commit()
    assert house.files(one) | house.files(other) == before
    made = fault is lost_answer
    assert (count(house.connect(), one), count(house.connect(), other)) == ((11, 11) if made else (10, 10))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(answer_always(403, NO), errors.PermissionDeniedError), (answer_always(503), errors.ServiceUnavailableError)],
    ids=["403", "503"],
)
def test_a_commit_that_is_refused(
    house: ManagedCatalog, proxy: FaultProxy, fault: Fault, expected: type[LanceNamespaceError]
) -> None:
    one, other = house.table("one"), house.table("other")
    before = state(house, one, other)
    proxy.add(fault, method="POST", path=COMMIT, times=ALWAYS)
    with pytest.raises(expected), transaction(house.behind(proxy)) as tx:
        tx.append(one, rows(1))
        tx.append(other, rows(1))
    assert state(house, one, other) == before


def test_a_store_that_fails_after_the_yes(house: ManagedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog has accepted it: nothing of it may be removed, whatever goes wrong then."""

    def fail(*_: object) -> None:
        raise errors.ServiceUnavailableError("the store is away")

    one, other = house.table("one"), house.table("other")
    with monkeypatch.context() as away:
        tx = Transaction(house.namespace)
        tx.append(one, rows(1))
        tx.append(other, rows(1))
        away.setattr(ManifestStore, "publish", fail)
        tx.commit()
    assert (house.at(one), house.at(other)) == (2, 2)
    for table in (one, other):
        assert house.open(table).to_table().num_rows == 11
        assert house.check(table) == 2


def test_a_server_that_fails_after_the_yes(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """It need not be asked again."""
    one, other = [*house.levels, "one"], house.table("other")
    house.namespace.declare_table(DeclareTableRequest(id=one))

    def then_gone(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        told = forward(request)
        proxy.add(answer_always(503), times=ALWAYS)
        return told

    proxy.add(then_gone, method="POST", path=COMMIT)
    tx = Transaction(house.behind(proxy))
    tx.append(one, rows(1))
    tx.append(other, rows(1))
    tx.commit()
    assert (house.check(one), house.check(other)) == (1, 2)


def test_a_store_that_fails_after_the_no(house: ManagedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """That something stays does not hide why."""

    def fail(*_: object) -> None:
        raise errors.ServiceUnavailableError("the store is away")

    table = house.table()
    tx = Transaction(house.namespace)
    tx.append(table, rows(1))
    house.append(table)
    monkeypatch.setattr(ManifestStore, "discard", fail)
    with pytest.raises(errors.ConcurrentModificationError):
        tx.commit()


def test_a_writer_that_died_after_the_yes(house: ManagedCatalog) -> None:
    """Readers put all of it in its place: the versions in between too."""
    one, other = house.table("one"), house.table("other")
    tx = Transaction(house.connect())
    for number in range(3):
        tx.append(one, rows(1, 100 + number))
    tx.append(other, rows(1))
    with killed_before_the_manifest_is_final():
        tx.commit()
    assert (house.at(one), house.at(other)) == (4, 2)
    assert house.open(one).count_rows() == 13
    assert versions(house.connect(), one) == [1, 2, 3, 4]
    assert [house.open(one, version).count_rows() for version in (1, 2, 3, 4)] == [10, 11, 12, 13]
    assert house.versions(one) == [1, 2, 3, 4]
    assert house.open(other).count_rows() == 11
    assert (house.check(one), house.check(other)) == (4, 2)


def test_what_is_pending_is_not_forgotten(house: ManagedCatalog) -> None:
    """A version that is not in its place yet was not cleaned up."""
    table = house.table()
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    for number in range(16):
        dataset.update_config({"n": str(number)})
    tx = Transaction(house.connect())
    tx.append(table, rows(1, 100))
    tx.append(table, rows(1, 200))
    with killed_before_the_manifest_is_final():
        tx.commit()
    house.append(table)  # the 20th, at which the catalog forgets what was cleaned up
    assert sorted(house.snapshots(table)) == versions(house.connect(), table) == list(range(1, 21))
    assert house.open(table, 18).count_rows() == 11


def test_a_name_of_its_own(house: ManagedCatalog) -> None:
    """By which pylance tells connections apart: two transactions must not share what they have seen."""
    first, second = Transaction(house.namespace), Transaction(house.namespace)
    assert len({first.namespace_id(), second.namespace_id(), house.namespace.namespace_id()}) == 3


def test_two_transactions_do_not_see_each_other(house: ManagedCatalog) -> None:
    table = house.table()
    first, second = Transaction(house.namespace), Transaction(house.namespace)
    first.append(table, rows(1))
    second.append(table, rows(2))
    assert (count(first, table), count(second, table), count(house.namespace, table)) == (11, 12, 10)
    first.rollback()
    assert count(second, table) == 12
    second.commit()
    assert house.check(table) == 2
    assert count(house.connect(), table) == 12


def test_the_address_of_a_table_in_another_form(house: ManagedCatalog, tmp_path: Path) -> None:
    """`file:` locations, as servers like to tell them."""
    table = [*house.levels, "t"]
    base = Path(house.location(house.table("other"))).parent
    location = (base / "by uri").as_uri()
    house.namespace.declare_table(DeclareTableRequest(id=table, location=location))
    with transaction(house.namespace) as tx:
        tx.append(table, rows(3))
        tx.append(table, rows(3))
    tx = Transaction(house.namespace)
    before = house.files(table)
    tx.append(table, rows(3))
    tx.rollback()
    assert house.files(table) == before
    assert house.check(table) == 2
