from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.jobs.compaction import CompactionResult, commit, compact, execute, plan
from lancehouse.jobs.engine import LocalEngine
from lancehouse.lake.dataset import TableRef
from tests.clients.managed import managed_by_lancehouse
from tests.jobs.maintenance import Worn, worn_in
from tests.lake.folder import rows
from tests.servers.lancehouse import Served

Change = Callable[[lance.LanceDataset], object]


def ids(table: Worn) -> list[int]:
    found: list[int] = table.open().to_table(columns=["id"])["id"].to_pylist()
    return sorted(found)


def sizes(dataset: lance.LanceDataset) -> list[int]:
    return [fragment.count_rows() for fragment in dataset.get_fragments()]


def results_of(table: Worn, tasks: list[str]) -> list[str]:
    return [execute(table.ref, task) for task in tasks]


def test_pieces(worn_table: Worn) -> None:
    tasks = plan(worn_table.ref, 20)
    assert len(tasks) == 3
    results = results_of(worn_table, tasks)
    assert worn_table.open().version == 6
    done = commit(worn_table.ref, results)
    assert done == CompactionResult(worn_table.open().version, 6, 3, 6, 3)
    assert sizes(worn_table.open()) == [20, 20, 20]
    assert ids(worn_table) == list(range(60))
    worn_table.check()


def test_some_of_the_results(worn_table: Worn) -> None:
    first, *_ = results_of(worn_table, plan(worn_table.ref, 20))
    commit(worn_table.ref, [first])
    assert sorted(sizes(worn_table.open())) == [10, 10, 10, 10, 20]
    assert ids(worn_table) == list(range(60))


def test_nothing_to_do(worn_table: Worn) -> None:
    assert plan(worn_table.ref, 10) == []
    assert compact(LocalEngine(1), worn_table.address, {"target_rows_per_fragment": 10}) == CompactionResult(6)
    assert worn_table.open().version == 6


def test_deleted_rows_go(worn_table: Worn) -> None:
    worn_table.open().delete("id % 2 = 0")
    commit(worn_table.ref, results_of(worn_table, plan(worn_table.ref, 10)))
    assert all(fragment.num_deletions == 0 for fragment in worn_table.open().get_fragments())
    assert ids(worn_table) == list(range(1, 60, 2))


def test_indices_are_kept(plain: Worn) -> None:
    plain.open().create_scalar_index("id", "BTREE")
    commit(plain.ref, results_of(plain, plan(plain.ref)))
    assert len(sizes(plain.open())) == 1
    found = plain.open().scanner(filter="id = 33", columns=["id"])
    assert "ScalarIndexQuery" in found.explain_plan()
    assert found.to_table()["id"].to_pylist() == [33]


def test_indices_are_kept_in_a_catalog(lancehouse_server: Served) -> None:
    table = worn_in(managed_by_lancehouse(lancehouse_server))
    table.open().create_scalar_index("id", "BTREE")
    commit(table.ref, results_of(table, plan(table.ref)))
    assert table.open().to_table(filter="id = 33", columns=["id"]) == pa.table({"id": [33]})


def test_an_append_beside_it_lands(worn_table: Worn) -> None:
    results = results_of(worn_table, plan(worn_table.ref))
    worn_table.append(rows(5, 1000))
    commit(worn_table.ref, results)
    assert ids(worn_table) == [*range(60), *range(1000, 1005)]
    assert sorted(sizes(worn_table.open())) == [5, 60]
    worn_table.check()


CHANGES: dict[str, Change] = {
    "Delete": lambda t: t.delete("id = 3"),
    "Update": lambda t: t.update({"s": "'x'"}, "id = 3"),
    "Rewrite": lambda t: t.optimize.compact_files(),
    "Merge": lambda t: t.add_columns({"more": "id * 2"}),
    "CreateIndex": lambda t: t.create_scalar_index("id", "BTREE"),
    "Overwrite": lambda t: lance.write_dataset(rows(3), t, mode="overwrite"),
    "Restore": lambda t: t.checkout_version(2).restore(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_have_changed(worn_table: Worn, change: str) -> None:
    results = results_of(worn_table, plan(worn_table.ref))
    CHANGES[change](worn_table.open())
    expected = ids(worn_table)
    with pytest.raises(ConcurrentModificationError, match=rf"\({change}\) meanwhile.* plan it again") as raised:
        commit(worn_table.ref, results)
    assert raised.value.code == 14
    assert ids(worn_table) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"zz": 1},
        {"target_rows_per_fragment": 0},
        {"target_rows_per_fragment": -1},
        {"target_rows_per_fragment": "many"},
        {"compaction_mode": "zz"},
        {"data_storage_version": "9.9"},
    ],
    ids=str,
)
def test_options_that_cannot_be(plain: Worn, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        plan(plain.ref, **options)


def test_options(plain: Worn) -> None:
    [task] = plan(plain.ref, max_source_fragments=3, target_rows_per_fragment=30)
    assert len(json.loads(task)["task"]["fragments"]) == 3


def test_what_cannot_be_compacted(plain: Worn, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not one of its versions"):
        plan(replace(plain.ref, version=1))
    with pytest.raises(TableNotFoundError):
        plan(TableRef(str(tmp_path / "none")))


def on_branch(table: Worn) -> Worn:
    table.open().create_branch("side")
    return replace(table, ref=replace(table.ref, branch="side"))


def test_a_branch(worn_table: Worn) -> None:
    side = on_branch(worn_table)
    side.append(rows(10, 100))
    results = results_of(side, plan(side.ref))
    assert len(side.files("tree/side/data")) == 2
    commit(side.ref, results)
    assert sizes(side.open()) == [70]
    assert ids(side) == [*range(60), *range(100, 110)]
    assert len(sizes(worn_table.open())) == 6


def test_what_others_have_changed_on_a_branch(plain: Worn) -> None:
    side = on_branch(plain)
    results = results_of(side, plan(side.ref))
    side.open().delete("id = 3")
    with pytest.raises(ConcurrentModificationError):
        commit(side.ref, results)
    assert ids(side) == [*range(3), *range(4, 60)]


def test_indices_from_another_branch(plain: Worn) -> None:
    plain.open().create_scalar_index("id", "BTREE")
    side = on_branch(plain)
    with pytest.raises(UnsupportedOperationError, match="id_idx"):
        plan(side.ref)
    side.open().create_scalar_index("id", "BTREE", replace=True)
    commit(side.ref, results_of(side, plan(side.ref)))
    assert side.open().to_table(filter="id = 33", columns=["id"]) == pa.table({"id": [33]})


def test_indices_from_another_branch_whose_change_is_deferred(plain: Worn) -> None:
    plain.open().create_scalar_index("id", "BTREE")
    side = on_branch(plain)
    commit(side.ref, results_of(side, plan(side.ref, defer_index_remap=True)), {"defer_index_remap": True})
    assert side.open().to_table(filter="id = 33", columns=["id"]) == pa.table({"id": [33]})
