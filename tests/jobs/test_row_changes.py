from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableNotFoundError,
)

from lancehouse.jobs import Engine, row_changes
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import ChangeResult, WriteOptions
from lancehouse.jobs.row_changes import delete, update
from lancehouse.lake import scans
from lancehouse.lake.row_changes import ATTEMPTS
from tests.spark.homes import KINDS, JobTable, home_of

ROWS = 100
NOTHING = WriteOptions()


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> JobTable:
    """Four fragments that several tasks share."""
    return fill_home(home_of(request, request.param), monkeypatch)


@pytest.fixture
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> JobTable:
    return fill_home(home_of(request, "path"), monkeypatch)


def fill_home(home: JobTable, monkeypatch: pytest.MonkeyPatch) -> JobTable:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    ids = range(ROWS)
    home.write(pa.table({"id": ids, "n": [0] * ROWS, "word": [f"w{number}" for number in ids]}), max_rows_per_file=25)
    return home


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, other: Callable[[], object], times: int = 1) -> None:
    """Let somebody else change the table just before the first commits."""
    commit, left = getattr(row_changes, name), [other] * times

    def commit_late(*arguments: Any, **more: Any) -> int:
        if left:
            left.pop()()
        return int(commit(*arguments, **more))

    monkeypatch.setattr(row_changes, name, commit_late)


def test_rows_are_deleted(engine: Engine, home: JobTable) -> None:
    assert delete(engine, home.address, "id % 10 = 3 OR id >= 75", NOTHING) == ChangeResult(2, deleted=33)
    assert home.rows("id") == sorted([(n,) for n in range(75) if n % 10 != 3], key=repr)
    assert home.open().version == 2


def test_rows_are_updated(engine: Engine, home: JobTable) -> None:
    done = update(engine, home.address, {"n": "n + id", "word": "upper(word)"}, "id < 30", NOTHING)
    assert done == ChangeResult(2, updated=30)
    expected = [(n, n, f"W{n}") if n < 30 else (n, 0, f"w{n}") for n in range(ROWS)]
    assert home.rows() == sorted(expected, key=repr)


def test_all_rows_are_updated(engine: Engine, plain: JobTable) -> None:
    assert update(engine, plain.address, {"n": "7"}, None, NOTHING) == ChangeResult(2, updated=ROWS)
    assert plain.rows("n") == [(7,)] * ROWS


def test_nothing_to_do_makes_no_version(engine: Engine, home: JobTable) -> None:
    before = home.files()
    assert delete(engine, home.address, "id < 0", NOTHING) == ChangeResult(1)
    assert update(engine, home.address, {"n": "1"}, "id < 0", NOTHING) == ChangeResult(1)
    assert home.files() == before


def test_the_same_run_changes_once(engine: Engine, plain: JobTable) -> None:
    how = WriteOptions(run="r1")
    assert update(engine, plain.address, {"n": "n + 1"}, None, how) == ChangeResult(2, updated=ROWS)
    assert update(engine, plain.address, {"n": "n + 1"}, None, how) == ChangeResult(2)
    assert delete(engine, plain.address, "true", how) == ChangeResult(2)
    assert plain.rows("n") == [(1,)] * ROWS


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda engine, at: delete(engine, at, " ", NOTHING), InvalidInputError),
        (lambda engine, at: delete(engine, at, "nope = 1", NOTHING), TableColumnNotFoundError),
        (lambda engine, at: delete(engine, at, "id = = 1", NOTHING), InvalidInputError),
        (lambda engine, at: delete(engine, at, "id > 0 LIMIT 1", NOTHING), InvalidInputError),
        (lambda engine, at: delete(engine, at, "id = 1; id = 2", NOTHING), InvalidInputError),
        (lambda engine, at: update(engine, at, {"n": "1"}, "id > 0 ORDER BY id", NOTHING), InvalidInputError),
        (lambda engine, at: update(engine, at, {"n": "1 WHERE id = 1"}, None, NOTHING), InvalidInputError),
        (lambda engine, at: update(engine, at, {}, None, NOTHING), InvalidInputError),
        (lambda engine, at: update(engine, at, {"nope": "1"}, None, NOTHING), TableColumnNotFoundError),
        (lambda engine, at: update(engine, at, {"n": "word"}, "id = 60", NOTHING), InvalidInputError),
        (lambda engine, at: delete(engine, TableAddress(path=f"{at}2"), "true", NOTHING), TableNotFoundError),
    ],
)
def test_what_fails_leaves_the_table_as_it_was(
    engine: Engine,
    plain: JobTable,
    change: Callable[[Any, TableAddress], ChangeResult],
    error: type[LanceNamespaceError],
) -> None:
    before = plain.files()
    with pytest.raises(error) as raised:
        change(engine, plain.address)
    assert raised.type is error
    assert plain.files() == before


def test_a_condition_may_end_in_a_comment(engine: Engine, plain: JobTable) -> None:
    assert delete(engine, plain.address, "id < 5 -- the first ones", NOTHING).deleted == 5


# Others at the same time


def test_an_append_lands_beside(engine: Engine, home: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    new = pa.table({"id": [3, 1000], "n": [5, 5], "word": ["x", "y"]})
    interrupt(monkeypatch, "commit_deletion", lambda: home.write(new))
    assert delete(engine, home.address, "id = 3", NOTHING) == ChangeResult(3, deleted=1)
    assert home.open().count_rows() == ROWS - 1 + 2
    assert home.open().count_rows("id = 3") == 1


def test_what_others_change_first_is_seen(engine: Engine, home: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, "commit_rewrite", lambda: home.open().update({"n": "100"}, where="id IN (1, 99)"))
    assert update(engine, home.address, {"n": "n + 1"}, "id < 50", NOTHING) == ChangeResult(3, updated=50)
    found = dict(home.rows("id", "n"))
    assert found == {number: {1: 101, 99: 100}.get(number, int(number < 50)) for number in range(ROWS)}


def test_who_always_comes_second_gives_up(engine: Engine, plain: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(range(10, ROWS))
    interrupt(monkeypatch, "commit_deletion", lambda: plain.open().delete(f"id = {next(ids)}"), ATTEMPTS)
    with pytest.raises(ConcurrentModificationError, match="run it again"):
        delete(engine, plain.address, "id = 3", NOTHING)
    assert plain.rows("id") == sorted([(n,) for n in (*range(10), *range(10 + ATTEMPTS, ROWS))], key=repr)
    assert len([file for file in plain.files() if file.startswith("_deletions/")]) == ATTEMPTS, "those of the others"


def test_no_update_is_lost(engine: Engine, home: JobTable) -> None:
    def add(_: int) -> ChangeResult:
        return update(engine, home.address, {"n": "n + 1"}, "id < 30", NOTHING)

    def append(number: int) -> None:
        home.write(pa.table({"id": [1000 + number], "n": [0], "word": ["x"]}))

    with ThreadPoolExecutor(6) as threads:
        added = list(threads.map(add, range(3)))
        list(threads.map(append, range(3)))
    assert len({done.version for done in added}) == 3
    found = home.rows("id", "n")
    assert len(found) == ROWS + 3
    assert all(n == (3 if number < 30 else 0) for number, n in found)


def test_what_was_begun_is_removed(engine: Engine, plain: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks have written files, and then the commit is refused."""

    def refuse(*_: object, **__: object) -> int:
        raise TableNotFoundError("gone")

    before = plain.files()
    monkeypatch.setattr(row_changes, "commit_rewrite", refuse)
    with pytest.raises(TableNotFoundError, match="gone"):
        update(engine, plain.address, {"n": "1"}, "id < 90", NOTHING)
    assert plain.files() == before


def test_stable_row_ids_stay(engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    home = home_of(request, "path")
    home.write(pa.table({"id": range(ROWS), "n": [0] * ROWS}), max_rows_per_file=25, enable_stable_row_ids=True)
    update(engine, home.address, {"n": "1"}, "id % 7 = 0", NOTHING)
    found = lance.dataset(home.folder()).to_table(with_row_id=True)
    assert found.column("_rowid").to_pylist() == found.column("id").to_pylist()
