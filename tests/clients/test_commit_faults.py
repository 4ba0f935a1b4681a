"""Commits on a bad day: answers that are lost, refusals, writers that die, on Iceberg's own server and on ours."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from lance_namespace import (
    CreateTableRequest,
    CreateTableVersionRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    ListTableVersionsRequest,
    TableExistsRequest,
    errors,
)
from lance_namespace.errors import LanceNamespaceError

from lancehouse import CommitStateUnknownError, IcebergNamespace
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import translate_refusals
from tests.clients.managed import (
    NO,
    Id,
    ManagedCatalog,
    count,
    files_in,
    killed_before_the_manifest_is_final,
    on_the_way,
    rows,
    stage_commit,
    versions,
)
from tests.lake.folder import stream
from tests.servers.faults import ALWAYS, Fault, FaultProxy, answer_after, answer_always, html, lost_answer, reset
from tests.servers.loopback import Answer, Request

Faults = Callable[[str], FaultProxy]
IMPL = {"managed_by": "impl"}
FEW = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}


@pytest.mark.parametrize(
    "fault",
    [lost_answer, answer_after(500), reset, html],
    ids=["made, lost", "made, 500", "reset", "a page"],
)
def test_an_answer_that_is_lost(house: ManagedCatalog, proxy: FaultProxy, fault: Fault) -> None:
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    proxy.add(fault, method="POST", path="/tables/t$")
    house.behind(proxy).create_table_version(request)
    assert house.check(table) == 2
    assert count(house.connect(), table) == 11


@pytest.mark.parametrize(
    ("fault", "look"), [(lost_answer, answer_always(403, NO)), (reset, answer_always(503))], ids=["made", "not made"]
)
def test_an_answer_that_is_lost_for_good(house: ManagedCatalog, proxy: FaultProxy, fault: Fault, look: Fault) -> None:
    """Nobody knows: what was staged stays, for it may be the current version."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
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


def test_a_request_in_doubt_that_is_refused_when_it_is_sent_again(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """The first one was accepted: its manifest stays."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    proxy.add(reset, method="GET", path=r"/tables/t(\?.*)?$", times=2)
    proxy.add(reset, method="POST", path="/tables/t$")
    proxy.add(reset, method="GET", path=r"/tables/t(\?.*)?$", times=2)
    with pytest.raises(CommitStateUnknownError):
        client.create_table_version(request)
    proxy.clear()
    refuse_commit(proxy)
    with pytest.raises(errors.PermissionDeniedError):
        client.create_table_version(request)
    assert house.open(table).count_rows() == 11
    assert house.check(table) == 2


def test_a_look_that_is_refused_once(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """The answer is lost, and the token is over just then: the version was accepted, and its manifest stays."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    client = house.behind(proxy)
    client.list_table_versions(ListTableVersionsRequest(id=table))
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    proxy.add(answer_always(403, NO), method="GET", path=r"/tables/t(\?.*)?$")
    client.create_table_version(request)
    assert house.check(table) == 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answer_always(403, NO), errors.PermissionDeniedError),
        (answer_always(503), errors.ServiceUnavailableError),
        (answer_always(400, '{"error": {"message": "no", "type": "X", "code": 400}}'), errors.InvalidInputError),
    ],
    ids=["403", "503", "400"],
)
def test_a_commit_that_is_refused(
    house: ManagedCatalog, proxy: FaultProxy, fault: Fault, expected: type[LanceNamespaceError]
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


def test_a_first_commit_that_is_refused(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """No entry, no file."""
    new = [*house.levels, "new"]
    places: list[str | None] = []

    def refuse(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        places.append(house.location(new))
        return Answer(403, NO.encode())

    proxy.add(refuse, method="POST", path="/tables/new$", times=ALWAYS)
    with pytest.raises(errors.PermissionDeniedError):
        house.behind(proxy).create_table(CreateTableRequest(id=new), stream(rows()))
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == []
    assert files_in(Path(str(places[0]))) == set()


def test_the_reason_of_another_commit(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """Of one commit, nothing is known; that another one of the same version was refused is no reason for it."""
    table = house.table()
    mine, other = (CreateTableVersionRequest(**stage_commit(house.namespace, table)) for _ in range(2))
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
    with pytest.raises(CommitStateUnknownError), translate_refusals(client, table):
        raise CommitStateUnknownError("Commit result for version 2 is unknown")
    assert house.open(table).version == house.check(table) == 2


def test_the_reason_after_a_doubt(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """Of one commit nothing was known; the next one is refused, and told why."""
    table = house.table()
    client = house.behind(proxy)
    proxy.add(reset, method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(CommitStateUnknownError):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))
    proxy.clear()
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(errors.PermissionDeniedError):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))


def test_a_server_that_fails_after_the_yes(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """It need not be asked again, not even after a change of columns."""
    table = house.table()
    client = house.behind(proxy)
    request = CreateTableVersionRequest(**stage_commit(client, table, lambda dataset: dataset.add_columns({"n": "1"})))

    def then_gone(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        told = forward(request)
        proxy.add(answer_always(503), times=ALWAYS)
        return told

    proxy.add(then_gone, method="POST", path="/tables/t$")
    client.create_table_version(request)
    assert house.check(table) == 2


def test_a_writer_that_died_after_the_yes(house: ManagedCatalog) -> None:
    """The next reader puts the manifest in its place."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    assert house.versions(table) == [1]
    assert house.at(table) == 2
    assert house.open(table).count_rows() == 11
    assert house.check(table) == 2


def test_a_writer_that_comes_back_after_the_yes(house: ManagedCatalog) -> None:
    """It sends the same request again, and is told that it was accepted."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
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
def test_everybody_finishes_what_was_accepted(house: ManagedCatalog, reader: str) -> None:
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.connect().create_table_version(request)
    READERS[reader](house.connect(), table)
    assert house.versions(table)[:2] == [1, 2]
    assert house.check(table) == (3 if reader == "writer" else 2)


def test_a_creator_that_died_after_the_yes(house: ManagedCatalog) -> None:
    """The next one finds a table."""
    table, twin = [*house.levels, "t"], house.table("twin")
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


def refuse_commit(proxy: FaultProxy) -> None:
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)


def fail_commit(proxy: FaultProxy) -> None:
    proxy.add(answer_always(503), method="POST", path="/tables/t$", times=ALWAYS)


def refuse_look_before_commit(proxy: FaultProxy) -> None:
    proxy.add(answer_always(403, NO), path=r"/tables/t(\?.*)?$", times=ALWAYS)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (refuse_commit, errors.PermissionDeniedError),
        (fail_commit, errors.ServiceUnavailableError),
        (refuse_look_before_commit, errors.PermissionDeniedError),
    ],
)
def test_pylance_calls_a_refusal_unknown_and_the_client_has_the_reason(
    house: ManagedCatalog, proxy: FaultProxy, prepare: Callable[[FaultProxy], None], expected: type[LanceNamespaceError]
) -> None:
    table = house.table()
    client = house.behind(proxy)
    dataset = lance.dataset(namespace_client=client, table_id=table)
    client._versions.forget_heads([TableId.parse(table)])
    mark = client.commit_mark()
    prepare(proxy)
    with pytest.raises(OSError, match="Commit result for version 2 is unknown"):
        lance.write_dataset(rows(1), dataset, mode="append")
    proxy.clear()
    assert type(client.commit_refusal(table, 2)) is expected
    assert type(client.commit_refusal(table, 2, since=mark)) is expected
    assert client.commit_refusal(table, 2, since=client.commit_mark()) is None
    assert client.commit_refusal(table, 1) is None


def test_a_doubt_is_no_refusal(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """Whoever asks without a mark must not be told of another writer's refusal what may be untrue of their own."""
    table = house.table()
    client = house.behind(proxy)
    dataset = lance.dataset(namespace_client=client, table_id=table)
    proxy.add(reset, method="POST", path="/tables/t$", times=ALWAYS)
    with pytest.raises(OSError, match="is unknown"):
        lance.write_dataset(rows(1), dataset, mode="append")
    proxy.clear()
    refuse_commit(proxy)
    mark = client.commit_mark()
    with pytest.raises(OSError, match="is unknown"):
        lance.write_dataset(rows(1), dataset, mode="append")
    assert client.commit_refusal(table, 2) is None
    assert isinstance(client.commit_refusal(table, 2, since=mark), errors.PermissionDeniedError)


def test_a_catalog_that_was_restored_from_an_older_copy(house: ManagedCatalog) -> None:
    """Storage is ahead: nothing is committed over what it has, and the reason says how to heal it."""
    table = house.table()
    lance.write_dataset(rows(1), house.location(table), mode="append")  # a version that the catalog has lost
    client = house.connect()
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        lance.write_dataset(rows(1), lance.dataset(namespace_client=client, table_id=table), mode="append")
    reason = client.commit_refusal(table, 3)
    assert isinstance(reason, errors.InvalidTableStateError)
    assert re.search("restored from an older copy.*table manage --by impl --adopt", str(reason))
    with pytest.raises(errors.InvalidTableStateError, match="bypassed the catalog"):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1)))


def test_a_disk_that_is_full_after_the_yes(
    house: ManagedCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is made; the next reader puts its manifest in place."""
    table = house.table()
    client = house.connect()

    def fill(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    with monkeypatch.context() as full:
        full.setattr(Path, "hardlink_to", fill)
        full.setattr(Path, "rename", fill)
        made = lance.write_dataset(rows(1), namespace_client=client, table_id=table, mode="append")
    assert made.version == house.at(table) == 2
    assert "version 2 is committed" in caplog.text
    assert house.versions(table) == [1]
    assert house.open(table).count_rows() == 11
    assert house.check(table) == 2
