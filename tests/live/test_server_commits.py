"""The catalog decides between writers: each version once, none lost, whatever happens to the server."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from tests.live.committers import Account, CommitClient, commit, race
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.postgres import new_database

CLIENTS = 16
TABLES = 4

Start = Callable[..., Served]
Database = Callable[[], str | None]
Pair = tuple[Served, Served]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """Makes an empty database; None is SQLite in the server's folder."""
    if request.param == "sqlite":
        return lambda: None
    server = request.getfixturevalue("postgres")
    return lambda: new_database(server)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Pair]:
    """Two servers on one Postgres and one warehouse."""
    folder = tmp_path_factory.mktemp("pair")
    db, warehouses = new_database(postgres), {"main": folder / "warehouse"}
    with (
        start_lancehouse(folder / "first", db=db, warehouses=warehouses) as first,
        start_lancehouse(folder / "second", db=db, warehouses=warehouses) as second,
    ):
        yield first, second


@contextmanager
def client_of(server: Served, name: str = "test") -> Iterator[CommitClient]:
    client = CommitClient(server.tables, name)
    try:
        yield client
    finally:
        client.close()


def make_tables(server: Served, number: int = TABLES) -> list[str]:
    """New tables in a new namespace; their paths."""
    namespace = f"race_{uuid4().hex[:8]}"
    with client_of(server) as client:
        client.expect("POST", "/namespaces", {"namespace": [namespace]})
        return [client.create(namespace, f"t{index}") for index in range(number)]


def check(server: Served, account: Account, tables: list[str]) -> int:
    """All versions of all tables; how many."""
    with client_of(server) as client:
        return sum(account.check(table, client.load(table)) for table in tables)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_version_exactly_once(serving: Start, database: Database, workers: int, soak: bool) -> None:
    commits = 2000 if soak else 20
    server = serving(db=database(), workers=workers)
    tables = make_tables(server)
    clients = [CommitClient(server.tables, f"client-{number}") for number in range(CLIENTS)]
    race(tables, clients, commits)
    account = Account()
    account.add(clients)
    assert not account.unanswered
    assert account.conflicts > 0
    assert check(server, account, tables) == CLIENTS * commits


@pytest.mark.timeout(3600)
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, database: Database, soak: bool) -> None:
    db = database()
    account = Account()
    tables: list[str] = []
    chance = random.Random(4)
    for number in range(20 if soak else 2):
        with start_lancehouse(tmp_path, db=db) as server:
            if not tables:
                tables = make_tables(server)
            check(server, account, tables)
            clients = [CommitClient(server.tables, f"client-{number}-{index}") for index in range(CLIENTS)]
            racing = threading.Thread(target=race, args=(tables, clients, 1_000_000))
            racing.start()
            wait_for_commits(clients, chance.randint(50, 150))
            server.kill()
            racing.join()
            account.add(clients)
    assert account.unanswered
    with start_lancehouse(tmp_path, db=db) as server:
        assert check(server, account, tables) >= len(account.acknowledged) > 0


def wait_for_commits(clients: list[CommitClient], number: int) -> None:
    deadline = monotonic() + 120
    while sum(len(client.acknowledged) for client in clients) < number:
        assert monotonic() < deadline, "the clients make no progress"
        sleep(0.005)


@pytest.mark.timeout(1200)
def test_two_servers_decide_as_one(pair: Pair, soak: bool) -> None:
    commits = 250 if soak else 10
    first, second = pair
    tables = make_tables(first, 1)
    clients = [CommitClient((first, second)[number % 2].tables, f"client-{number}") for number in range(CLIENTS)]
    race(tables, clients, commits)
    account = Account()
    account.add(clients)
    assert check(first, account, tables) == check(second, account, tables) == CLIENTS * commits


def test_a_cached_answer_is_never_old(pair: Pair, soak: bool) -> None:
    first, second = pair
    [table] = make_tables(first, 1)
    with client_of(first) as one, client_of(second) as other:
        for version in range(1, 200 if soak else 20):
            writer, reader = (one, other) if version % 2 else (other, one)
            assert reader.current(table) == (version - 1 or None)
            assert reader.load(table).get("current-snapshot-id") == (version - 1 or None)
            assert writer.swap(table, version - 1 or None)
            assert reader.current(table) == version
            assert [snapshot["snapshot-id"] for snapshot in reader.load(table)["snapshots"]][-1] == version


def test_another_server_sees_every_change_at_once(pair: Pair) -> None:
    first, second = pair
    with client_of(first) as one, client_of(second) as other:
        one.expect("POST", "/namespaces", {"namespace": ["n"], "properties": {"a": "1"}})
        assert other.expect("GET", "/namespaces/n")["properties"]["a"] == "1"
        other.expect("POST", "/namespaces/n/properties", {"updates": {"a": "2"}})
        assert one.expect("GET", "/namespaces/n")["properties"]["a"] == "2"

        table = one.create("n", "t")
        assert other.load(table)["properties"]["managed_by"] == "impl"
        update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"colour": "red"}}]}
        other.expect("POST", table, update)
        assert one.load(table)["properties"]["colour"] == "red"

        here, there = {"namespace": ["n"], "name": "t"}, {"namespace": ["n"], "name": "u"}
        one.expect("POST", "/tables/rename", {"source": here, "destination": there})
        assert other.send("GET", table)[0] == 404
        renamed = "/namespaces/n/tables/u"
        assert other.load(renamed)["properties"]["colour"] == "red"
        other.expect("DELETE", renamed)
        assert one.send("GET", renamed)[0] == 404


def test_an_etag_of_one_server_is_known_to_the_other(pair: Pair) -> None:
    first, second = pair
    [table] = make_tables(first, 1)
    with client_of(first) as one, client_of(second) as other:
        for version in range(1, 6):
            etag = one.headers("GET", table)["etag"]
            assert etag == other.headers("GET", table)["etag"]
            assert other.send("GET", table, **{"If-None-Match": etag})[0] == 304
            assert one.swap(table, version - 1 or None)
            assert other.send("GET", table, **{"If-None-Match": etag})[0] == 200


def test_a_plain_lance_commit_shows_on_every_server(pair: Pair) -> None:
    first, second = pair
    with client_of(first) as one, client_of(second) as other:
        one.expect("POST", "/namespaces", {"namespace": ["plain"]})
        location = str(first.location / "plain" / "t")
        lance.write_dataset(pa.table({"id": [1]}), location)
        properties = {"table_type": "lance"}
        body = {"name": "t", "location": location, "schema": {"type": "struct", "fields": []}, "properties": properties}
        one.expect("POST", "/namespaces/plain/tables", body)
        for version in range(2, 8):
            lance.write_dataset(pa.table({"id": [version]}), location, mode="append")
            for client in (one, other):
                assert client.current("/namespaces/plain/tables/t") == version


def test_a_transaction_is_all_or_nothing_on_both(pair: Pair) -> None:
    first, second = pair
    tables = make_tables(first, 2)
    with client_of(first) as one, client_of(second) as other:

        def change(table: str, expected: int | None) -> dict[str, object]:
            _, _, namespace, _, name = table.split("/")
            identifier = {"namespace": [namespace], "name": name}
            return {"identifier": identifier, **commit(expected, (expected or 0) + 1, "both")}

        one.expect("POST", "/transactions/commit", {"table-changes": [change(table, None) for table in tables]})
        assert [other.current(table) for table in tables] == [1, 1]
        stale = {"table-changes": [change(tables[0], 1), change(tables[1], None)]}
        status, said = other.send("POST", "/transactions/commit", stale)
        assert (status, json.loads(said)["error"]["type"]) == (409, "CommitFailedException")
        assert [client.current(table) for client in (one, other) for table in tables] == [1, 1, 1, 1]
