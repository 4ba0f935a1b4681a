from __future__ import annotations

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from time import time

import pytest

from lancehouse.store import maintenance as rows
from lancehouse.store.database import Database
from lancehouse.store.model import MaintainedTable, MaintenanceRun

LEASE_MS = 60_000


def plan(database: Database, count: int, due_ms: int = 1) -> None:
    planned = [("other", ("a", f"t{number:03}"), due_ms + number, "new") for number in range(count)]
    database.write(lambda tx: rows.plan_tables(tx, planned))


def claim(database: Database, worker: str, count: int = 1, most: int = 100, lease_ms: int = LEASE_MS) -> list[str]:
    taken, _ = database.write(lambda tx: rows.claim_tables(tx, worker, count, most, lease_ms))
    return [table.levels[-1] for table in taken]


def find(database: Database, name: str) -> MaintainedTable:
    table = database.read(lambda tx: rows.find_maintained_table(tx, "other", ("a", name)))
    assert table is not None
    return table


def test_the_clock_is_the_databases(database: Database) -> None:
    assert abs(database.read(rows.read_clock) - time() * 1000) < 5000


def test_what_is_due_for_longest_goes_first(database: Database) -> None:
    plan(database, 5)
    assert claim(database, "one", 2) == ["t000", "t001"]
    assert claim(database, "two", 2) == ["t002", "t003"]
    assert claim(database, "one", 5) == ["t004"]
    assert claim(database, "one", 5) == []


def test_limits_hold_over_all_workers(database: Database) -> None:
    plan(database, 10)
    assert len(claim(database, "one", 5, most=3)) == 3
    assert claim(database, "two", 5, most=3) == []


def test_no_table_is_leased_twice(database: Database) -> None:
    plan(database, 60)

    def take(worker: int) -> list[str]:
        taken: list[str] = []
        while some := claim(database, f"w{worker}", 3):
            taken += some
        return taken

    with ThreadPoolExecutor(6) as pool:
        taken = [name for names in pool.map(take, range(6)) for name in names]
    assert len(taken) == len(set(taken)) == 60


def test_a_lease_that_is_not_renewed_ends(database: Database) -> None:
    plan(database, 1)
    taken, _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, -1))
    again, abandoned = database.write(lambda tx: rows.claim_tables(tx, "two", 1, 9, LEASE_MS))
    assert [table.worker for table in abandoned] == ["one"]
    assert not database.write(lambda tx: rows.renew_lease(tx, taken[0], "one", LEASE_MS))
    assert database.write(lambda tx: rows.renew_lease(tx, again[0], "two", LEASE_MS))
    # What the first one did does not count any more.
    assert not finish(database, taken[0], "one")
    assert finish(database, again[0], "two", runs=[run()])
    assert find(database, "t000").lease_until_ms is None
    assert len(database.read(lambda tx: rows.list_runs(tx, taken[0].id, 9))) == 1


def run(outcome: str = "done") -> MaintenanceRun:
    return MaintenanceRun(1, 2, "w", "compact", outcome, "why", 1, 2, 100, 50, 7, "message")


def finish(
    database: Database,
    table: MaintainedTable,
    worker: str,
    next_ms: int | None = None,
    failures: int = 0,
    runs: list[MaintenanceRun] | None = None,
    *,
    is_done: bool = True,
) -> bool:
    return database.write(
        lambda tx: rows.finish_lease(
            tx,
            table,
            worker,
            next_ms=next_ms,
            why="",
            failures=failures,
            error="",
            is_done=is_done,
            seen={"version": 3},
            runs=runs or [],
        )
    )


def test_plans_become_sooner_and_never_later(database: Database) -> None:
    for due_ms, expected in ((500, 500), (900, 500), (100, 100)):
        plan(database, 1, due_ms)
        assert find(database, "t000").due_ms == expected


def test_a_table_that_failed_waits(database: Database) -> None:
    plan(database, 1)
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    finish(database, table, "one", next_ms=10**15, failures=1)
    plan(database, 1)
    assert find(database, "t000").due_ms == 10**15


def test_a_request_while_a_table_is_worked_on_stays(database: Database) -> None:
    plan(database, 1)
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    database.write(lambda tx: rows.request_maintenance(tx, "other", ("a", "t000"), "me", ["compact"], "me"))
    assert claim(database, "two") == []
    finish(database, table, "one", next_ms=10**15)
    again = find(database, "t000")
    assert (again.due_ms, again.requested) == (0, "compact")
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "two", 1, 9, LEASE_MS))
    finish(database, table, "two", next_ms=1, failures=1, is_done=False)
    again = find(database, "t000")
    assert (again.due_ms, again.requested, again.requested_by) == (1, "compact", "me")  # it was not done
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "two", 1, 9, LEASE_MS))
    finish(database, table, "two")
    assert (find(database, "t000").due_ms, find(database, "t000").requested) == (None, "")


def ask(database: Database, *operations: str) -> None:
    database.write(lambda tx: rows.request_maintenance(tx, "other", ("a", "t000"), "me", operations, "me"))


def test_what_is_requested_again_while_it_is_done_is_done_again(database: Database) -> None:
    """It may have been asked for because of what was written after the work had begun."""
    ask(database, "compact")
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    ask(database, "compact")
    finish(database, table, "one", next_ms=10**15)
    assert (find(database, "t000").due_ms, find(database, "t000").requested) == (0, "compact")
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    plan(database, 1, 500)  # a commit is no request
    finish(database, table, "one", next_ms=10**15)
    assert find(database, "t000").requested == ""


def test_a_request_that_failed_stays_beside_a_later_one(database: Database) -> None:
    ask(database, "compact")
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    ask(database, "index")
    finish(database, table, "one", next_ms=10**15, failures=1, is_done=False)
    again = find(database, "t000")
    assert (again.due_ms, sorted(again.requested.split(","))) == (0, ["compact", "index"])
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    ask(database, "cleanup")
    finish(database, table, "one")
    assert find(database, "t000").requested == "cleanup"


def test_a_request_that_is_repeated_while_it_fails_stays_short(database: Database) -> None:
    for _ in range(5):
        ask(database, "compact")
        (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
        ask(database, "compact")
        finish(database, table, "one", next_ms=10**15, failures=1, is_done=False)
        (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
        ask(database, "compact")
        finish(database, table, "one", next_ms=10**15, failures=1, is_done=False)
    assert find(database, "t000").requested == "compact,compact"


def test_marks_and_counters(database: Database) -> None:
    assert database.write(lambda tx: rows.take_mark(tx, "s", "one", 100, 50))
    assert not database.write(lambda tx: rows.take_mark(tx, "s", "two", 200, 60))
    assert database.write(lambda tx: rows.take_mark(tx, "s", "one", 120, 60))
    assert database.write(lambda tx: rows.take_mark(tx, "s", "two", 300, 130))
    plan(database, 1)
    (table,), _ = database.write(lambda tx: rows.claim_tables(tx, "one", 1, 9, LEASE_MS))
    finish(database, table, "one", runs=[run(), run(), run("failed")])
    assert database.read(lambda tx: rows.list_marks(tx, "runs.")) == {"compact.done": 2, "compact.failed": 1}
    assert database.read(lambda tx: rows.list_marks(tx, "bytes.")) == {"removed": 21}
    counts = database.read(rows.count_tables)
    assert (database.read(rows.count_known_tables), counts["due"], counts["running"]) == (1, 0, 0)
    assert database.write(lambda tx: rows.delete_runs_before(tx, 3)) == 3
    database.write(lambda tx: rows.forget_table(tx, "other", ("a", "t000")))
    assert database.read(rows.count_known_tables) == 0


@pytest.mark.parametrize("name", ["HAS_DUE", "DUE", "EXPIRED", "COUNT_LEASES", "COUNTS", "LISTED", "CHANGED", "SWEPT"])
def test_what_is_asked_often_reads_no_whole_table(database: Database, kind: str, name: str) -> None:
    if kind != "sqlite":
        pytest.skip("Postgres reads small tables as a whole; make bench-scale measures large ones")
    values = dict.fromkeys(("now", "upto", "after", "size"), 1)
    with closing(sqlite3.connect(str(database.file))) as connection:
        rows_of_plan = connection.execute(f"EXPLAIN QUERY PLAN {getattr(rows, name).sqlite}", values).fetchall()
    steps = [step for *_, step in rows_of_plan]
    # A subquery of few rows is read as a whole, and so is an index of what is leased or fails.
    whole = [
        step for step in steps if step.startswith("SCAN") and not re.search("anon|CONSTANT|_(leased|failing)$", step)
    ]
    assert steps
    assert whole == []
    assert not [step for step in steps if "(lease_until_ms=?)" in step], "it looks among all that are not leased"


@pytest.mark.parametrize("few", [1_000, 0])
def test_lists_of_some_tables_are_cut_after_the_others_were_left_out(
    database: Database, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(rows, "FEW", few)
    monkeypatch.setattr(rows, "PAGE", 7)  # several pages
    plan(database, 250)
    tables, _ = database.write(lambda tx: rows.claim_tables(tx, "one", 250, 999, LEASE_MS))
    for table in tables:
        finish(database, table, "one", next_ms=table.id, runs=[run()])
    known = {levels[-1]: table for table, _, levels in database.read(lambda tx: list(rows.list_known_tables(tx)))}
    assert len(known) == 250
    names = [f"t{number:03}" for number in range(249, 100, -1)]
    some = {known[name] for name in names}
    for limit in (3, 120, 999):
        listed = database.read(partial(rows.list_maintained_tables, upto_ms=10**15, limit=limit, among=some))
        assert [table.levels[-1] for table in listed] == names[::-1][:limit]
        runs = database.read(partial(rows.list_recent_runs, limit=limit, among=some))
        assert [levels[-1] for _, levels, _ in runs] == names[:limit]
    assert database.read(lambda tx: rows.list_maintained_tables(tx, 10**15, 9, set())) == []
    assert database.read(lambda tx: rows.list_recent_runs(tx, 9, set())) == []
