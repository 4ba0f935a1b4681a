from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.maintenance import SWEPT, Seen, find_reason, next_time
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.maintenance_policy import Windows, resolve_policy
from lancehouse.row_policy import Restriction
from lancehouse.store import maintenance as rows
from lancehouse.store.model import MaintenanceRun

ON = {"maintenance.enabled": "true"}
HOUR = 3_600_000
SEEN = Seen(version=100, rows=100_000, files=10, versions=3, cleaned_at=98)


@pytest.mark.parametrize(
    ("properties", "seen", "version", "totals", "words"),
    [
        ({}, {}, 107, (100_000, 17), None),
        ({}, {}, 108, (100_000, 10), "8 commits"),
        ({}, {}, 101, (100_000, 18), "8 more files"),
        ({"compact": "false"}, {}, 150, (100_000, 60), None),
        ({"compact.min-fragments": "2"}, {}, 102, (100_000, 12), "2 commits"),
        ({}, {}, 101, (90_000, 10), "10000 fewer rows"),
        ({}, {}, 101, (90_001, 10), None),
        ({}, {"indices": 1}, 101, (110_000, 11), "10000 rows since"),
        ({}, {"indices": 0}, 101, (110_000, 11), None),
        ({"index": "false"}, {"indices": 1}, 101, (110_000, 11), None),
        ({}, {"indices": 1}, 101, None, "1 commits since"),
        ({}, {}, 101, None, None),
        ({"fill": "true"}, {"computed": 1}, 101, (100_000, 10), "computed columns"),
        ({}, {"computed": 1}, 101, (100_000, 10), None),
        ({"cleanup.max-versions": "5"}, {}, 101, (100_000, 10), "more than 5 versions"),
        ({"cleanup.max-versions": "6"}, {}, 101, (100_000, 10), None),
    ],
)
def test_reasons(
    properties: dict[str, str],
    seen: dict[str, Any],
    version: int,
    totals: tuple[int, int] | None,
    words: str | None,
) -> None:
    policy = resolve_policy([ON, {f"maintenance.{key}": value for key, value in properties.items()}])
    summary = {} if totals is None else {"total-records": str(totals[0]), "total-data-files": str(totals[1])}
    why = find_reason(policy, Seen.from_json({**SEEN.to_json(), **seen}), version, summary)
    assert (why is None) == (words is None), why
    assert words is None or words in str(why)


def test_totals_that_no_table_has_are_unknown() -> None:
    """Writers may put any text into a summary; Python's `int` raises for one of thousands of digits."""
    summary = {"total-records": "9" * 5000, "total-data-files": "9" * 5000}
    assert find_reason(resolve_policy([ON]), SEEN, 101, summary) is None


@pytest.mark.parametrize(
    ("properties", "seen", "expected"),
    [
        ({}, {"done_ms": {"cleanup": HOUR, "orphans": HOUR}}, 25 * HOUR),
        ({}, {"done_ms": {"cleanup": HOUR, "orphans": HOUR}, "versions": 1, "cleaned_at": 100}, (7 * 24 + 1) * HOUR),
        ({"orphans": "false"}, {"versions": 1, "cleaned_at": 100}, None),
        ({"cleanup": "false", "orphans": "false", "refresh": "true"}, {"is_view": True}, HOUR),
        ({"cleanup": "false", "orphans": "false", "refresh": "true"}, {}, None),
    ],
)
def test_times(properties: dict[str, str], seen: dict[str, Any], expected: int | None) -> None:
    policy = resolve_policy([ON, {f"maintenance.{key}": value for key, value in properties.items()}])
    after = next_time(policy, Seen.from_json({**SEEN.to_json(), **seen}), 100)
    assert (after and after[0]) == expected


def test_a_look_of_another_release_can_be_read() -> None:
    assert Seen.from_json({"version": 3, "unheard_of": 1}) == Seen(version=3)


def test_a_policy_of_a_namespace_lets_all_tables_be_planned(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a",), {})
    catalog.maintenance.sweep(3600)
    assert catalog.maintenance.sweep(3600) is None
    catalog.namespaces.update_properties(caller, main, ("a",), {"owner": "me"}, [])
    assert catalog.maintenance.sweep(3600) is None
    catalog.namespaces.update_properties(caller, main, ("a",), ON, [])
    assert catalog.database.read(lambda tx: rows.find_mark(tx, SWEPT)) == 0
    assert catalog.maintenance.sweep(3600) == 0


@pytest.mark.parametrize("change", ["create", "update", "table", "commit"])
def test_wrong_policies_are_refused(catalog: Catalog, main: Warehouse, caller: Caller, change: str) -> None:
    wrong = {"maintenance.enabled": "perhaps"}
    catalog.namespaces.create(caller, main, ("a",), {})
    table: dict[str, Any] = {"name": "t", "schema": {"type": "struct", "fields": []}}
    with pytest.raises(InvalidInputError, match=r"maintenance\.enabled must be true or false, got 'perhaps'"):
        if change == "create":
            catalog.namespaces.create(caller, main, ("b",), wrong)
        elif change == "update":
            catalog.namespaces.update_properties(caller, main, ("a",), wrong, [])
        elif change == "table":
            catalog.tables.create(caller, main, ("a",), {**table, "properties": {"table_type": "lance", **wrong}})
        else:
            catalog.tables.create(caller, main, ("a",), {**table, "properties": {"table_type": "lance"}})
            update = {"action": "set-properties", "updates": wrong}
            catalog.commits.commit(caller, main, ("a",), "t", {"requirements": [], "updates": [update]})


def test_a_policy_that_changes_during_a_sweep(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep was itself asked for by a change; what it has passed already must be looked at again."""
    catalog.namespaces.create(caller, main, ("a",), {})
    catalog.namespaces.update_properties(caller, main, ("a",), ON, [])
    sweep_tables = rows.sweep_tables

    def change_after(*args: Any) -> Any:
        page = sweep_tables(*args)
        with ThreadPoolExecutor() as pool:
            change = catalog.namespaces.update_properties
            pool.submit(change, caller, main, ("a",), {"maintenance.window": "01:00-02:00"}, []).result()
        return page

    monkeypatch.setattr(rows, "sweep_tables", change_after)
    assert catalog.maintenance.sweep(3600) is not None
    monkeypatch.undo()
    assert catalog.maintenance.sweep(3600) is not None
    assert catalog.maintenance.sweep(3600) is None


def policy_of(catalog: Catalog, caller: Caller, *levels: str) -> dict[str, tuple[str, str]]:
    values = catalog.maintenance.explain(caller, catalog.warehouses["main"], levels)
    return {value.key: (value.value, value.source) for value in values if value.source != "default"}


def test_a_namespace_with_the_name_of_a_table(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    """It is not above the table, so its policy does not count for it; who reads one need not read the other."""
    namespace_own, table_own = {"maintenance.window": "01:00-02:00"}, {"maintenance.settle": "5m"}
    catalog.namespaces.create(caller, main, ("a",), ON)
    catalog.namespaces.create(caller, main, ("a", "t"), namespace_own)
    on = {"maintenance.enabled": ("true", "namespace a")}
    window = {"maintenance.window": ("01:00-02:00", "namespace a.t")}
    settle = {"maintenance.settle": ("5m", "table a.t")}
    assert policy_of(catalog, caller, "a", "t") == on | window

    body = {"name": "t", "schema": {"type": "struct", "fields": []}, "properties": {"table_type": "lance", **table_own}}
    catalog.tables.create(caller, main, ("a",), body)
    assert policy_of(catalog, caller, "a", "t") == on | settle
    catalog.maintenance.request(caller, "main", ("a", "t"), [])
    [table] = catalog.maintenance.claim("w", 1, 1)
    policy = catalog.maintenance.policy(table, {})
    assert (policy.enabled, policy.window, policy.settle) == (True, Windows(), timedelta(minutes=5))

    of_table = replace(caller, identity=Identity("me", (Grant(Role.READER, "main", ("a",), "t"),)))
    of_namespace = replace(caller, identity=Identity("me", (Grant(Role.READER, "main", ("a", "t")),)))
    assert policy_of(catalog, of_table, "a", "t") == on | settle
    assert policy_of(catalog, of_namespace, "a", "t") == on | window
    catalog.tables.drop(caller, main, ("a",), "t")
    with pytest.raises(PermissionDeniedError, match=r"me is no reader of namespace a\.t"):
        policy_of(catalog, of_table, "a", "t")


def test_the_status_of_those_who_read_little_is_not_empty(catalog: Catalog, caller: Caller, main: Warehouse) -> None:
    """What a caller may read comes after much that they may not."""
    schema = {"type": "struct", "fields": []}
    for namespace in ("a", "b"):
        catalog.namespaces.create(caller, main, (namespace,), ON)
        for number in range(6):
            body = {"name": f"t{number}", "schema": schema, "properties": {"table_type": "lance"}}
            catalog.tables.create(caller, main, (namespace,), body)
            catalog.maintenance.request(caller, "main", (namespace, f"t{number}"), ["compact"])
    for table in catalog.maintenance.claim("w", 12, 12):
        run = MaintenanceRun(1, 2, "w", "compact", "done", "why", 1, 2, 3, 4, 5, "")
        catalog.maintenance.finish(table, "w", Seen(), [run], next_ms=table.id)

    def list_names(*grants: Grant, limit: int = 3) -> tuple[list[str], list[str]]:
        status = catalog.maintenance.status(limit, Caller(Identity("somebody", grants)))
        assert status.counts["known"] == 12
        return [".".join(table.levels) for table in status.tables], [".".join(levels) for _, levels, _ in status.runs]

    everything = ["a.t0", "a.t1", "a.t2"], ["b.t5", "b.t4", "b.t3"]
    assert list_names(Grant(Role.READER)) == list_names(Grant(Role.READER, "main")) == everything
    assert list_names(Grant(Role.READER, "main", ("b",))) == (["b.t0", "b.t1", "b.t2"], ["b.t5", "b.t4", "b.t3"])
    assert list_names(Grant(Role.READER, "main", ("a",))) == (["a.t0", "a.t1", "a.t2"], ["a.t5", "a.t4", "a.t3"])
    assert list_names(Grant(Role.READER, "main", ("b",), "t4")) == (["b.t4"], ["b.t4"])
    assert list_names(Grant(Role.READER, "other")) == ([], [])
    part = Grant(Role.READER, "main", ("b",), "t4", Restriction("id = 1", ("id",)))
    assert list_names(part, limit=12) == ([], [])
