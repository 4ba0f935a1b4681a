"""Users' commits that come while maintenance works on the same table: theirs are made, ours give way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError
from lance.dataset import DatasetOptimizer
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.jobs import LocalEngine, TableJobs, compaction
from tests.maintenance.places import QUICK, Place, open_place

ROWS = list(range(60))
Change = Callable[[lance.LanceDataset], object]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def merge(dataset: lance.LanceDataset) -> object:
    return dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(3, 100))


CHANGES: dict[str, tuple[Change, list[int], str]] = {
    "append": (lambda dataset: lance.write_dataset(rows(100), dataset, mode="append"), [*ROWS, 100], "done"),
    "delete": (lambda dataset: dataset.delete("id = 3"), [*ROWS[:3], *ROWS[4:]], "overtaken"),
    "update": (lambda dataset: dataset.update({"id": "100"}, "id = 59"), [*ROWS[:-1], 100], "overtaken"),
    "merge": (merge, [*ROWS, 100], "overtaken"),
    "overwrite": (lambda dataset: lance.write_dataset(rows(7), dataset, mode="overwrite"), [7], "overtaken"),
    "index": (lambda dataset: dataset.create_scalar_index("id", "BTREE"), ROWS, "overtaken"),
}
"""What a user does, the rows that the table has then, and what becomes of a compaction that began before."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    # No clean-up: versions would be old at once here, and a user needs the one that they began with.
    with open_place(tmp_path, policy={**QUICK, "maintenance.cleanup": "false"}) as place:
        place.create("docs", commits=6)
        yield place


def ids(place: Place) -> list[int]:
    return sorted(place.open("docs").to_table()["id"].to_pylist())


def once(work: Callable[[], object]) -> Callable[[], None]:
    """Do it the first time that it is asked for."""
    left = [work]

    def run() -> None:
        if left:
            left.pop()()

    return run


@pytest.mark.parametrize("kind", CHANGES)
def test_a_commit_between_plan_and_commit_of_a_compaction(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is made. What was compacted is thrown away if it cannot be kept, and planned again on what the user made."""
    change, expected, outcome = CHANGES[kind]
    real = compaction.commit
    users_commit = once(lambda: change(place.open("docs")))

    def commit(*arguments: object) -> object:
        users_commit()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "commit", commit)
    place.plan()
    place.work()
    assert place.runs()[0] == ("docs", "compact", outcome)
    assert ids(place) == expected
    if outcome == "overtaken":
        table = place.table("docs")
        assert (table.why, table.failures, table.error) == ("overtaken by a commit", 0, "")
        place.ask("docs")
        place.work()
    assert len(place.open("docs").get_fragments()) <= 2
    assert ids(place) == expected
    assert {run for _, _, run in place.runs()} <= {"done", "overtaken"}
    assert not list((place.folder / "main").rglob("_lancehouse/jobs/*/*"))


@pytest.mark.parametrize("outcome", ["overtaken", "failed"])
def test_old_versions_go_where_no_compaction_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """A table whose rows are changed all the time, or whose compaction fails, must not fill the storage."""
    with open_place(tmp_path) as place:
        place.create("docs", commits=6)
        real = compaction.commit

        def commit(*arguments: object) -> object:
            if outcome == "failed":
                raise ServiceUnavailableError("the disk is full")
            dataset = place.open("docs")
            dataset.delete(f"id = {dataset.version}")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(compaction, "commit", commit)
        place.plan()
        place.work()
        assert place.runs() == [("docs", "compact", outcome), ("docs", "cleanup", "done")]
        assert len(place.open("docs").versions()) <= 2
        assert place.table("docs").why.startswith("overtaken" if outcome == "overtaken" else "failed")


@pytest.mark.parametrize("kind", CHANGES)
def test_a_compaction_between_a_users_look_and_commit(place: Place, kind: str) -> None:
    """The user has opened the table before it was compacted, and commits afterwards: that is no error either.

    But for an index, which Lance does not build again by itself; the page says so.
    """
    change, expected, _ = CHANGES[kind]
    held = place.open("docs")
    place.plan()
    place.ask("docs", "compact")
    place.work()
    assert ("docs", "compact", "done") in place.runs()
    with pytest.raises(CommitConflictError, match="Rewrite") if kind == "index" else nullcontext():
        change(held)
    assert ids(place) == expected


class Interrupted(LocalEngine):
    """Does something else between the pieces of a job and its commit."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(1)
        self._work = work

    def run(self, *arguments: Any, **more: Any) -> list[str]:
        results = super().run(*arguments, **more)
        self._work()
        return results


JOBS: dict[str, tuple[Callable[[TableJobs, list[str]], object], list[int]]] = {
    "delete": (lambda jobs, table: jobs.delete(table, "id = 3"), [*ROWS[:3], *ROWS[4:]]),
    "update": (lambda jobs, table: jobs.update(table, {"id": "100"}, "id = 59"), [*ROWS[:-1], 100]),
    "merge": (lambda jobs, table: jobs.merge(rows(3, 100), table, "id"), [*ROWS, 100]),
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_compaction_between_the_pieces_of_a_job_and_its_commit(place: Place, kind: str) -> None:
    """The job of a user is done again on what was compacted, without a word."""
    work, expected = JOBS[kind]
    place.plan()

    def compact() -> None:
        place.ask("docs", "compact")
        place.work()

    work(TableJobs(place.client, Interrupted(once(compact))), ["main", "db", "docs"])
    assert ("docs", "compact", "done") in place.runs()
    assert ids(place) == expected


@pytest.mark.parametrize("kind", CHANGES)
def test_a_commit_while_rows_are_added_to_an_index(place: Place, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    change, expected, _ = CHANGES[kind]
    dataset = place.open("docs")
    dataset.delete("id >= 40")
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    place.write("docs", rows=20, start=40)
    real = DatasetOptimizer.optimize_indices
    users_commit = once(lambda: change(place.open("docs")))

    def optimize(optimizer: Any, **options: Any) -> object:
        users_commit()
        return real(optimizer, **options)

    monkeypatch.setattr(DatasetOptimizer, "optimize_indices", optimize)
    place.plan()
    place.ask("docs", "index")
    place.work()
    (outcome,) = {outcome for _, operation, outcome in place.runs() if operation == "index"}
    assert outcome in ("done", "overtaken")
    assert ids(place) == expected
    assert place.open("docs").count_rows(f"id = {expected[0]}") == 1
