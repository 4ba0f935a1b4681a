"""A server that chooses where tables lie, behind a prefix that comes percent-encoded, as Nessie does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow.parquet as pq
import pytest
from lance_namespace import (
    CreateTableRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    RegisterTableRequest,
    RenameTableRequest,
    connect,
    errors,
)

import lancehouse
from lancehouse.admin.copy import Action, Copier, NamedCatalog
from lancehouse.cli.client import Client
from lancehouse.clients import rest
from lancehouse.clients.rest import BULK_THRESHOLD
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, table_copy
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.table_copy import CopyPlan
from tests.catalogs import ICEBERG
from tests.clients.managed import ManagedCatalog, rows
from tests.lake.folder import stream
from tests.servers.faults import lost_answer
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.nessie import PREFIX, Nessie

Id = list[str]


@pytest.fixture
def chosen(house: ManagedCatalog, tmp_path: Path, lancehouse_server: Served) -> Path:
    """Where the server puts tables."""
    return (lancehouse_server.location if house.is_ours else tmp_path) / "chosen"


@pytest.fixture
def guess(tmp_path: Path) -> Iterator[Path]:
    """Where the client asks for tables, and where nothing may ever be."""
    yield tmp_path / "guess"
    assert not (tmp_path / "guess").exists()


@pytest.fixture
def nessie(house: ManagedCatalog, chosen: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nessie]:
    monkeypatch.setattr(rest, "FIRST_BACKOFF_S", 0.001)
    with Nessie(house.endpoint, str(chosen), house.parent[0] if house.is_ours else "") as server:
        yield server
        strays = [target for _, target in server.requests if f"/v1/{PREFIX}/" not in target]
        assert all("/v1/config" in target for target in strays), strays


@pytest.fixture
def client(house: ManagedCatalog, nessie: Nessie, guess: Path) -> lancehouse.IcebergNamespace:
    return house.connect(endpoint=nessie.uri, root=str(guess))


def write_by_lance(client: lancehouse.IcebergNamespace, table: Id) -> None:
    lance.write_dataset(rows(2), namespace_client=client, table_id=table, mode="create")
    lance.write_dataset(rows(3), namespace_client=client, table_id=table, mode="append")


def write_by_operations(client: lancehouse.IcebergNamespace, table: Id) -> None:
    client.create_table(CreateTableRequest(id=table), stream(rows(2)))
    client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(3)))


def declare_first(client: lancehouse.IcebergNamespace, table: Id) -> None:
    client.declare_table(DeclareTableRequest(id=table))
    for count in (2, 3):
        client.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(count)))


def write_in_a_transaction(client: lancehouse.IcebergNamespace, table: Id) -> None:
    other = [*table[:-1], "other"]
    for each in (table, other):
        client.declare_table(DeclareTableRequest(id=each))
    with lancehouse.transaction(client) as both:
        both.append(table, rows(2))
        both.append(other, rows(1))
        both.append(table, rows(3))


@pytest.mark.parametrize("write", [write_by_lance, write_by_operations, declare_first, write_in_a_transaction])
def test_commits(
    house: ManagedCatalog, client: lancehouse.IcebergNamespace, chosen: Path, write: Callable[..., None]
) -> None:
    table = house.id("t")
    write(client, table)
    assert house.check(table) == 2
    assert house.open(table).count_rows() == 5
    assert house.folder(table).parent == chosen
    client.drop_table(DropTableRequest(id=table))
    assert list(chosen.glob("t_*")) == []


def test_the_answer_is_what_counts(house: ManagedCatalog, client: lancehouse.IcebergNamespace, guess: Path) -> None:
    """Of a location that the caller chose, too."""
    table = house.id("t")
    properties = {"managed_by": "storage"}
    declared = client.declare_table(DeclareTableRequest(id=table, location=str(guess / "mine"), properties=properties))
    assert declared.location == client.describe_table(DescribeTableRequest(id=table)).location
    assert declared.location == house.location(table) != str(guess / "mine")
    lance.write_dataset(rows(2), namespace_client=client, table_id=table, mode="append")
    assert lance.dataset(house.location(table)).count_rows() == 2


def test_a_create_whose_answer_is_lost(
    house: ManagedCatalog, client: lancehouse.IcebergNamespace, nessie: Nessie
) -> None:
    """It lies elsewhere than it was asked for, and is ours all the same: it is not made twice."""
    nessie.add(lost_answer, method="POST", path="/tables$")
    declared = client.declare_table(DeclareTableRequest(id=house.id("t")))
    assert declared.location == house.location("t")
    assert client.list_tables(ListTablesRequest(id=house.levels)).tables == ["t"]


def test_a_create_that_somebody_else_has_made(
    house: ManagedCatalog, client: lancehouse.IcebergNamespace, nessie: Nessie
) -> None:
    """What has other properties is not ours, wherever it lies."""
    house.namespace.declare_table(DeclareTableRequest(id=house.id("t"), properties={"owner": "you"}))
    nessie.add(lost_answer, method="POST", path="/tables$")
    with pytest.raises(errors.TableAlreadyExistsError):
        client.declare_table(DeclareTableRequest(id=house.id("t"), properties={"owner": "me"}))


def test_data_that_exists_is_not_registered_elsewhere(
    house: ManagedCatalog, client: lancehouse.IcebergNamespace, tmp_path: Path
) -> None:
    place = str(tmp_path / "existing")
    lance.write_dataset(rows(4), place)
    with pytest.raises(errors.UnsupportedOperationError, match=r"chooses where tables lie.*lancehouse copy --data"):
        client.register_table(RegisterTableRequest(id=house.id("t"), location=place))
    assert client.list_tables(ListTablesRequest(id=house.levels)).tables == []
    assert lance.dataset(place).count_rows() == 4


def test_an_entry_that_cannot_be_replaced_stays(
    house: ManagedCatalog, client: lancehouse.IcebergNamespace, nessie: Nessie, tmp_path: Path
) -> None:
    """Once it was removed, nobody could make it again: the server would choose another location."""
    table, place = house.id("t"), str(tmp_path / "existing")
    write_by_lance(client, table)
    before = house.location(table)
    lance.write_dataset(rows(4), place)
    nessie.clear()
    with pytest.raises(errors.UnsupportedOperationError, match="chooses where tables lie"):
        client.register_table(RegisterTableRequest(id=table, location=place, mode="Overwrite"))
    assert nessie.count("DELETE") == 0
    assert (house.location(table), house.open(table).count_rows()) == (before, 5)


def test_renames_and_lists(house: ManagedCatalog, client: lancehouse.IcebergNamespace, nessie: Nessie) -> None:
    """Below the prefix as it came, also where many tables are loaded at once."""
    names = [f"t{number}" for number in range(BULK_THRESHOLD)]
    for name in names:
        client.declare_table(DeclareTableRequest(id=house.id(name)))
    write_by_lance(client, house.id("before"))
    place = house.location("before")
    client.rename_table(RenameTableRequest(id=house.id("before"), new_table_name="renamed"))
    assert house.location("renamed") == place
    lance.write_dataset(rows(1), namespace_client=client, table_id=house.id("renamed"), mode="append")
    assert house.check(house.id("renamed")) == 3
    assert client.list_tables(ListTablesRequest(id=house.levels)).tables == ["renamed", *names]
    assert nessie.count("POST", f"/v1/{PREFIX}/tables/rename$") == 1


def test_jobs(house: ManagedCatalog, nessie: Nessie, guess: Path, tmp_path: Path) -> None:
    """An ingest declares its table, and a compaction commits to it."""
    pq.write_table(rows(4), tmp_path / "rows.parquet")
    connection = Connection(ICEBERG, {**house.properties, "endpoint": nessie.uri, "root": str(guess)})
    jobs = TableJobs(connection, LocalEngine(threads=1))
    for _ in range(2):
        jobs.ingest(tmp_path / "rows.parquet", house.id("t"))
    jobs.compact(house.id("t"))
    assert house.check(house.id("t")) > 2
    assert house.open("t").count_rows() == 8


def copier(house: ManagedCatalog, nessie: Nessie, guess: Path, *, with_data: bool, replaces: bool = False) -> Copier:
    """From a folder of tables to the server; the copies are asked for below `guess`."""
    targets = [
        ConformanceTarget("dir", {"root": str(guess.parent / "folder")}),
        ConformanceTarget(ICEBERG, {**house.properties, "endpoint": nessie.uri}, tuple(house.levels)),
    ]
    here, there = (NamedCatalog(target.impl, Client(target.connect(), target)) for target in targets)
    return Copier(here, there, with_data=with_data, root=str(guess) if with_data else None, replaces=replaces)


def test_copies(house: ManagedCatalog, nessie: Nessie, guess: Path, chosen: Path) -> None:
    for count in (2, 3):
        lance.write_dataset(rows(count), guess.parent / "folder" / "t.lance", mode="append")
    for replaces in (False, True):
        entries = copier(house, nessie, guess, with_data=False, replaces=replaces)
        [step] = entries.execute(entries.plan([("t",)]))
        assert (step.action, "chooses where tables lie" in step.why) == (Action.FAILS, True)
    copies = copier(house, nessie, guess, with_data=True)

    def copy_data(_: object, table: tuple[str, ...]) -> CopyPlan:
        here = TableAddress.parse(copies.source.catalog.target, ("t",))
        there = TableAddress.parse(copies.target.catalog.target, table)
        return table_copy.copy(LocalEngine(threads=1), here, there)

    [step] = copies.execute(copies.plan([("t",)]), copy_data)
    assert (step.action, Path(step.target).parent) == (Action.DONE, chosen)
    assert house.check(house.id("t")) == 2
    assert house.open("t").count_rows() == 5
    assert [each.action for each in copies.plan([("t",)])] == [Action.PRESENT]


@pytest.mark.engines  # starts a server of its own, which takes longer than all other tests here
@pytest.mark.parametrize("house", ["reference"], indirect=True)
def test_the_gateway(house: ManagedCatalog, nessie: Nessie, guess: Path, chosen: Path, tmp_path: Path) -> None:
    """Tables are made where the server says, if that is below the roots of the backend; else nothing is left."""
    properties = {**house.properties, "endpoint": nessie.uri, "root": str(guess)}
    backends = {
        name: {"impl": "iceberg", "properties": properties, "roots": [root]}
        for name, root in (("wide", str(chosen)), ("narrow", str(guess)))
    }
    config = tmp_path / "server.yaml"
    config.write_text(json.dumps({"backends": backends}))
    with start_lancehouse(tmp_path / "gateway", options=["--config", str(config)]) as server:
        wide, narrow = (connect("rest", {"uri": f"{server.uri}/lance/{name}"}) for name in backends)
        wide.create_table(CreateTableRequest(id=house.id("t")), stream(rows(2)))
        lance.write_dataset(rows(3), namespace_client=wide, table_id=house.id("t"), mode="append")
        assert house.check(house.id("t")) == 2
        assert (house.open("t").count_rows(), house.folder("t").parent) == (5, chosen)
        with pytest.raises(errors.PermissionDeniedError):
            narrow.create_table(CreateTableRequest(id=house.id("u")), stream(rows(2)))
        assert house.connect().list_tables(ListTablesRequest(id=house.levels)).tables == ["t"]
