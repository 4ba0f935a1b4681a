from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidTableStateError, TableVersionNotFoundError, UnsupportedOperationError

from lancehouse.lake.changes import latest_version, oldest_version, read_increments, whole_version
from lancehouse.lake.dataset import TableRef

Change = Callable[[Any], object]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"s{each}" for each in ids], "n": [0] * len(ids)})


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    """Two versions: of the rows 0 to 3, and of those and 4 and 5."""
    lance.write_dataset(rows(0, 1, 2, 3), tmp_path / "t")
    lance.write_dataset(rows(4, 5), tmp_path / "t", mode="append")
    return TableRef(str(tmp_path / "t"))


def added_ids(table: TableRef, after: int, **how: bool) -> dict[int, list[int]]:
    """The ids that each version added."""
    found = {}
    for increment in read_increments(table, after, table.open().version, **how):
        dataset = lance.dataset(str(table.location), version=increment.version)
        chosen = [dataset.get_fragment(fragment.id) for fragment in increment.fragments]
        ids = dataset.scanner(fragments=chosen).to_table()["id"].to_pylist() if chosen else []
        assert len(ids) == sum(fragment.rows for fragment in increment.fragments)
        found[increment.version] = sorted(ids)
    return found


def merge(dataset: Any, new: pa.Table) -> Any:
    return dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(new)


def update_in_place(dataset: Any) -> None:
    columns = pa.table({"id": pa.array([1], pa.int64()), "n": [7]})
    dataset.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(columns)


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        (lambda dataset: dataset.insert(rows(6, 7)), [6, 7]),
        (lambda dataset: dataset.update({"s": "'new'"}, where="id in (1, 5)"), [1, 5]),
        (lambda dataset: merge(dataset, rows(5, 6)), [5, 6]),
        (lambda dataset: dataset.insert(rows(8, 9), mode="overwrite"), [8, 9]),
        (lambda dataset: dataset.delete("id < 3"), []),
        (lambda dataset: dataset.create_scalar_index("id", "BTREE"), []),
        (lambda dataset: dataset.add_columns({"twice": "id * 2"}), []),
        (lambda dataset: dataset.drop_columns(["n"]), []),
        (lambda dataset: dataset.update_config({"key": "value"}), []),
    ],
    ids=["append", "update", "merge", "overwrite", "delete", "index", "add-column", "drop-column", "config"],
)
def test_each_operation(table: TableRef, change: Change, ids: list[int]) -> None:
    change(table.open())
    assert added_ids(table, 2) == {3: ids}


@pytest.mark.parametrize("indexed", [False, True])
def test_compaction_adds_nothing(table: TableRef, indexed: bool) -> None:
    dataset = table.open()
    if indexed:
        dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    assert len(dataset.get_fragments()) == 1
    assert not any(added_ids(table, 2).values())


def test_rows_deleted_since_are_those_of_their_version(table: TableRef) -> None:
    table.open().delete("id in (0, 4)")
    assert added_ids(table, 0) == {1: [0, 1, 2, 3], 2: [4, 5], 3: []}
    assert sum(fragment.rows for fragment in whole_version(table, 3).fragments) == 4


def test_a_range_ends_where_it_is_told(table: TableRef) -> None:
    assert [each.version for each in read_increments(table, 1, 2)] == [2]
    assert list(read_increments(table, 2, 2)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda dataset: lance.dataset(dataset.uri, version=1).restore(), "restored"),
        (update_in_place, "in place"),
    ],
    ids=["restore", "in-place"],
)
def test_what_cannot_be_told_is_an_error_unless_losses_are_none(table: TableRef, change: Change, reason: str) -> None:
    change(table.open())
    table.open().insert(rows(10))
    with pytest.raises(UnsupportedOperationError, match=f"version 3 .* {reason}"):
        added_ids(table, 2)
    assert added_ids(table, 2, lossless=False) == {4: [10]}


def test_a_version_that_is_gone(table: TableRef) -> None:
    table.open().insert(rows(6))
    table.open().cleanup_old_versions(timedelta(0))
    assert (oldest_version(table), latest_version(table)) == (3, 3)
    with pytest.raises(TableVersionNotFoundError, match=r"version 2 .* cleaned up"):
        added_ids(table, 1)
    with pytest.raises(TableVersionNotFoundError, match=r"version 1 .* cleaned up"):
        whole_version(table, 1)
    assert added_ids(table, 1, lossless=False) == {3: [6]}


def test_a_transaction_that_is_gone(table: TableRef, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("Not found: _transactions/1.txn")

    monkeypatch.setattr(lance.LanceDataset, "read_transaction", fail)
    with pytest.raises(UnsupportedOperationError, match=r"version 2 .* does not tell how"):
        added_ids(table, 1)


def test_a_table_made_anew(table: TableRef) -> None:
    with pytest.raises(InvalidTableStateError, match="made anew"):
        list(read_increments(table, 2, 5))
