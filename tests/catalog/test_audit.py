from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.catalog import audit
from lancehouse.catalog.audit import AuditFilter
from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import ANYBODY, Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store.audit import delete_changes
from tests.servers.postgres import new_database

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
ADA = Caller(Identity("ada", (Grant(Role.ADMIN),)), "tests/1", "r1", peer="10.0.0.7")
EVERYTHING = AuditFilter()


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    postgres = request.param == "postgres"
    url = new_database(request.getfixturevalue("postgres")) if postgres else f"sqlite:///{tmp_path / 'catalog.db'}"
    database = open_database(url)
    main = Warehouse(0, "main", str(tmp_path / "main"))
    yield Catalog(database, record_warehouses(database, [main], main))
    database.close()


@pytest.fixture
def main(catalog: Catalog) -> Warehouse:
    return catalog.warehouses["main"]


def make(catalog: Catalog, name: str = "t", caller: Caller = ADA) -> None:
    request = {"name": name, "schema": SCHEMA, "properties": {"table_type": "lance"}}
    catalog.tables.create(caller, catalog.warehouses["main"], ("db",), request)


def set_property(catalog: Catalog, key: str, value: str, name: str = "t") -> None:
    update = {"action": "set-properties", "updates": {key: value}}
    catalog.commits.commit(ADA, catalog.warehouses["main"], ("db",), name, {"requirements": [], "updates": [update]})


def actions(catalog: Catalog, wanted: AuditFilter = EVERYTHING) -> list[str]:
    return [row.action for row in catalog.audit.list(ADA, wanted, None, 100)[0]]


def test_every_change_is_told_and_outlives_its_table(catalog: Catalog, main: Warehouse) -> None:
    catalog.namespaces.create(ADA, main, ("db",), {"owner": "ml", "api_token": "hush"})
    catalog.namespaces.update_properties(ADA, main, ("db",), {"owner": "ads"}, ["api_token"])
    make(catalog)
    set_property(catalog, "color", "red")
    set_property(catalog, "storage.aws_secret_access_key", "hush")
    catalog.tables.rename(ADA, main, TableName(("db",), "t"), TableName(("db",), "u"))
    catalog.tables.drop(ADA, main, ("db",), "u", purge=True)
    catalog.dropped_tables.purge(ADA, main, TableName(("db",), "u"))
    catalog.namespaces.drop(ADA, main, ("db",))
    rows = catalog.audit.list(ADA, EVERYTHING, None, 100)[0]
    assert [row.action for row in reversed(rows)] == [
        "namespace.create",
        "namespace.properties",
        "table.create",
        "table.commit",
        "table.commit",
        "table.rename",
        "table.drop",
        "table.expire",
        "namespace.drop",
    ]
    by_action = {row.action: row for row in rows}
    assert by_action["namespace.properties"].before == {"properties": {"api_token": "***", "owner": "ml"}}
    assert by_action["namespace.properties"].after == {"properties": {"owner": "ads"}}
    color = next(row for row in rows if "color" in str(row.after))
    assert color.before == {"properties": {}}
    assert {key: (color.after or {})[key] for key in ("operation", "properties")} == {
        "operation": "properties",
        "properties": {"color": "red"},
    }
    assert {(row.principal, row.peer, row.client, row.request_id) for row in rows} == {
        ("ada", "10.0.0.7", "tests/1", "r1")
    }
    assert "hush" not in str(rows)


def test_what_is_refused_is_not_told(catalog: Catalog, main: Warehouse) -> None:
    catalog.namespaces.create(ADA, main, ("db",), {"protected": "true"})
    make(catalog)
    with pytest.raises(PermissionDeniedError):
        catalog.tables.drop(ADA, main, ("db",), "t")
    assert actions(catalog) == ["table.create", "namespace.create"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AuditFilter(name="u"), ["table.create"]),
        (AuditFilter(action="namespace"), ["namespace.create"]),
        (AuditFilter(action="name"), []),
        (AuditFilter(warehouse="main", levels=("db",)), ["table.create", "table.create", "namespace.create"]),
        (AuditFilter(warehouse="main", levels=("d",)), []),
        (AuditFilter(principal="bob"), []),
        (AuditFilter(until_ms=1), []),
        (AuditFilter(since_ms=1 << 60), []),
    ],
)
def test_filters(catalog: Catalog, main: Warehouse, wanted: AuditFilter, found: list[str]) -> None:
    catalog.namespaces.create(ADA, main, ("db",), {})
    make(catalog)
    make(catalog, "u")
    assert actions(catalog, wanted) == found


def test_pages(catalog: Catalog, main: Warehouse) -> None:
    for number in range(7):
        catalog.namespaces.create(ADA, main, (f"n{number}",), {})
    seen, before = [], None
    while True:
        rows, before = catalog.audit.list(ADA, EVERYTHING, before, 3)
        seen += [row.levels[0] for row in rows]
        if before is None:
            break
    assert seen == [f"n{number}" for number in reversed(range(7))]


def test_who_may_read_it(catalog: Catalog, main: Warehouse) -> None:
    for name in ("db", "other"):
        catalog.namespaces.create(ADA, main, (name,), {})
    writer = Caller(Identity("bob", (Grant(Role.WRITER, "main"),)))
    with pytest.raises(PermissionDeniedError, match="no admin"):
        catalog.audit.list(writer, EVERYTHING, None, 10)
    owner = Caller(Identity("eve", (Grant(Role.ADMIN, "main", ("db",)),)))
    assert [row.levels for row in catalog.audit.list(owner, EVERYTHING, None, 10)[0]] == [("db",)]
    with pytest.raises(PermissionDeniedError):
        catalog.audit.list(owner, AuditFilter(warehouse="main", levels=("other",)), None, 10)


def test_events_come_in_order_from_where_one_was(catalog: Catalog, main: Warehouse) -> None:
    assert catalog.audit.last_position() == 0
    catalog.namespaces.create(ADA, main, ("db",), {})
    make(catalog)
    events, last = catalog.audit.list_events(ADA, main, 0, 100)
    assert [event["type"] for event in events] == ["io.lancehouse.namespace.create", "io.lancehouse.table.create"]
    assert (events[1]["subject"], events[1]["data"]["principal"], events[1]["source"]) == (
        "db.t",
        "ada",
        "/warehouses/main",
    )
    assert "10.0.0.7" not in str(events)
    assert catalog.audit.list_events(ADA, main, last, 100) == ([], last)
    set_property(catalog, "a", "b")
    [event], last = catalog.audit.list_events(ADA, main, last, 100)
    assert event["type"] == "io.lancehouse.table.commit"
    assert catalog.audit.last_position() == last == int(event["id"])


def test_positions_go_on_when_all_changes_are_deleted(catalog: Catalog, main: Warehouse) -> None:
    for name in ("a", "b"):
        catalog.namespaces.create(ADA, main, (name,), {})
    last = catalog.audit.last_position()
    for _ in range(2):
        catalog.database.write(lambda tx: delete_changes(tx, 1 << 60))
        assert catalog.audit.last_position() == last
    catalog.namespaces.create(ADA, main, ("c",), {})
    assert [event["subject"] for event in catalog.audit.list_events(ADA, main, last, 10)[0]] == ["c"]


def test_events_are_waited_for(catalog: Catalog, main: Warehouse) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(catalog.audit.list_events, ADA, main, 0, 10, 30)
        catalog.namespaces.create(ADA, main, ("db",), {})
        assert len(waiting.result(60)[0]) == 1


def test_events_of_others_are_passed_over(catalog: Catalog, main: Warehouse) -> None:
    for name in ("db", "mine"):
        catalog.namespaces.create(ADA, main, (name,), {})
    reader = Caller(Identity("bob", (Grant(Role.READER, "main", ("mine",)),)))
    events, last = catalog.audit.list_events(reader, main, 0, 100)
    assert [event["subject"] for event in events] == ["mine"]
    assert last == 2
    with pytest.raises(PermissionDeniedError):
        catalog.audit.list_events(Caller(Identity("eve", ())), main, 0, 100)


def test_followers_miss_nothing_while_many_write(catalog: Catalog, main: Warehouse) -> None:
    catalog.namespaces.create(ADA, main, ("db",), {})
    for name in ("a", "b", "c"):
        make(catalog, name)
    writes = [(name, number) for number in range(12) for name in ("a", "b", "c")]

    def follow(_: int) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []
        position = 0
        while sum(event["type"].endswith("table.commit") for event in seen) < len(writes):
            events, position = catalog.audit.list_events(ADA, main, position, 5, 5)
            seen += events
        return seen

    with ThreadPoolExecutor(6) as pool:
        followers = [pool.submit(follow, number) for number in range(2)]
        list(pool.map(lambda write: set_property(catalog, "n", str(write[1]), write[0]), writes))
        for follower in followers:
            seen = follower.result(120)
            assert len({event["id"] for event in seen}) == len(seen)
            for name in ("a", "b", "c"):
                revisions = [event["data"]["after"]["revision"] for event in seen if event["data"]["name"] == name]
                assert revisions == sorted(revisions)


def test_anybody_is_told_as_such(catalog: Catalog, main: Warehouse) -> None:
    catalog.namespaces.create(Caller(ANYBODY), main, ("db",), {})
    [event], _ = catalog.audit.list_events(Caller(ANYBODY), main, 0, 10)
    assert event["data"]["principal"] == "anonymous"
    assert event["time"] == audit.format_time(catalog.audit.list(ADA, EVERYTHING, None, 1)[0][0].at_ms)
