from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.lake import row_changes
from lancehouse.lake.commits import FileLayout, NewFragment, TableLocation, discard_fragments, write_uncommitted
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.row_changes import (
    ColumnUpdate,
    RowChange,
    commit_deletion,
    commit_rewrite,
    delete_rows,
    delete_where,
    merge_changes,
)

ROWS = 1000
SIZE = 8


def vectors(count: int = ROWS) -> Any:
    numbers = np.random.default_rng(3).normal(size=count * SIZE).astype("f4")
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), SIZE)


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableRef:
    """Four fragments, of which one has lost a row already."""
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "kind": pa.array([number % 10 for number in range(ROWS)], pa.int32()),
            "word": [f"w{number}" for number in range(ROWS)],
            "emb": vectors(),
        }
    )
    where = tmp_path / "dätä of 100 %"
    dataset = lance.write_dataset(rows, where, max_rows_per_file=250, enable_stable_row_ids=request.param)
    dataset.delete("id = 0")
    return TableRef(str(where))


def place_of(table: TableRef) -> TableLocation:
    assert table.location is not None
    return TableLocation(table.location, table.storage_options)


def writer(table: TableRef, rows_in_file: int | None = None) -> Any:
    """Writes new rows where a table is."""

    def write(rows: pa.RecordBatchReader) -> list[NewFragment]:
        return write_uncommitted(
            table, place_of(table), rows, mode="append", layout=FileLayout(max_rows_per_file=rows_in_file)
        )

    return write


def files(table: TableRef) -> set[str]:
    assert table.location is not None
    return {str(path) for path in Path(table.location).rglob("*") if path.is_file()}


def delete(table: TableRef, where: str, dataset: lance.LanceDataset | None = None) -> int:
    """Delete in as many pieces as there are fragments."""
    base = dataset or table.open()
    parts = [delete_where(table, base, [each.fragment_id], where) for each in base.get_fragments()]
    change = merge_changes(RowChange.from_json(part.to_json()) for part in parts)
    return commit_deletion(table, place_of(table), base, change, where)


def update(table: TableRef, setting: ColumnUpdate, dataset: lance.LanceDataset | None = None, **how: Any) -> RowChange:
    base = dataset or table.open()
    setting.check(table, base)
    pieces = [[each.fragment_id] for each in base.get_fragments()]
    parts = [setting.update(table, base, piece, writer(table, **how)) for piece in pieces]
    change = merge_changes(RowChange.from_json(part.to_json()) for part in parts)
    commit_rewrite(table, place_of(table), base, change, setting.expressions)
    return change


def values(table: TableRef, column: str = "id", where: str | None = None) -> list[Any]:
    return sorted(table.open().to_table([column], filter=where).column(column).to_pylist())


# Deleting


def test_rows_that_match_are_deleted(table: TableRef) -> None:
    version = delete(table, "kind = 3 OR id >= 750")
    assert values(table) == [number for number in range(1, 750) if number % 10 != 3]
    assert version == table.open().version == 3
    assert [each.fragment_id for each in table.open().get_fragments()] == [0, 1, 2]
    assert table.open().read_transaction(version).operation.predicate == "kind = 3 OR id >= 750"


def test_an_index_finds_the_rows(table: TableRef) -> None:
    table.open().create_scalar_index("kind", "BTREE")
    delete(table, "kind = 3")
    assert values(table) == [number for number in range(1, ROWS) if number % 10 != 3]


def test_no_match_makes_no_version(table: TableRef) -> None:
    before = files(table)
    assert delete(table, "id < 0") == 2
    assert update(table, ColumnUpdate({"kind": "0"}, "id < 0")) == RowChange()
    assert files(table) == before


def test_rows_are_deleted_by_offset(table: TableRef) -> None:
    dataset = table.open()
    change = delete_rows(table, dataset, {0: np.array([1, 249]), 3: np.arange(250)})
    assert change.removed == (3,)
    assert change.rows == 252
    commit_deletion(table, place_of(table), dataset, change, "")
    assert values(table) == list(range(2, 249)) + list(range(250, 750))


def test_what_is_not_committed_can_be_discarded(table: TableRef) -> None:
    before = files(table)
    dataset = table.open()
    change = merge_changes(
        [
            delete_where(table, dataset, [0, 1], "kind = 1"),
            ColumnUpdate({"kind": "0"}, "kind = 2").update(table, dataset, [2], writer(table)),
        ]
    )
    assert len(files(table)) == len(before) + 4
    discard_fragments(change.files, place_of(table))
    assert files(table) == before


# Updating


def test_rows_that_match_are_set(table: TableRef) -> None:
    change = update(table, ColumnUpdate({"word": "concat(word, '!')", "kind": "kind + 100"}, "id < 300 AND kind = 5"))
    assert change.rows == 30
    found = {row["id"]: row for row in table.open().to_table(["id", "kind", "word"]).to_pylist()}
    for number in range(1, ROWS):
        changed = number < 300 and number % 10 == 5
        assert found.pop(number) == {
            "id": number,
            "kind": number % 10 + (100 if changed else 0),
            "word": f"w{number}!" if changed else f"w{number}",
        }
    assert found == {}


def test_all_rows_are_set(table: TableRef) -> None:
    assert update(table, ColumnUpdate({"kind": "7"})).rows == ROWS - 1
    assert values(table, "kind") == [7] * (ROWS - 1)
    assert values(table) == list(range(1, ROWS))


def test_row_ids_stay_if_the_table_keeps_them(table: TableRef) -> None:
    def ids() -> dict[int, int]:
        found = table.open().to_table(["id"], with_row_id=True)
        return dict(zip(found.column("id").to_pylist(), found.column("_rowid").to_pylist(), strict=True))

    before = ids()
    update(table, ColumnUpdate({"kind": "0"}, "kind < 5"), rows_in_file=20)
    more = table.open().to_table(limit=3)
    new = more.set_column(0, "id", pa.array([2000, 2001, 2002], pa.int64()))
    lance.write_dataset(new, table.location, mode="append")
    after = ids()
    assert len(set(after.values())) == len(after) == ROWS + 2
    if table.open().has_stable_row_ids:
        assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("is_merge", [False, True])
def test_indices_find_new_rows_and_not_the_old(table: TableRef, *, is_merge: bool) -> None:
    dataset = table.open()
    for column in ("id", "kind"):
        dataset.create_scalar_index(column, "BTREE")
    dataset.create_index("emb", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    dataset = table.open()
    setting = ColumnUpdate({"kind": "100", "emb": "[9.0,9.0,9.0,9.0,9.0,9.0,9.0,9.0]"}, "id IN (13, 600)")
    old = dataset.to_table(["emb"], filter="id = 13").column("emb")[0].as_py()
    change = merge_changes(setting.update(table, dataset, [number], writer(table)) for number in range(4))
    commit_rewrite(table, place_of(table), dataset, change, setting.expressions, is_merge=is_merge)

    assert "ScalarIndex" in table.open().scanner(filter="kind = 100").explain_plan()
    assert values(table, where="kind = 100") == [13, 600]
    assert values(table, where="kind = 3") == [number for number in range(1, ROWS) if number % 10 == 3 and number != 13]
    assert values(table, where="id = 13") == [13]

    def nearest(vector: list[float], k: int) -> list[int]:
        query = {"column": "emb", "q": vector, "k": k, "refine_factor": 50}
        return sorted(table.open().to_table(["id", "_distance"], nearest=query).column("id").to_pylist())

    assert nearest([9.0] * SIZE, 2) == [13, 600]
    assert 13 not in nearest(old, 5)


def test_blobs_stay(tmp_path: Path) -> None:
    inside = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3]), blob_array([b"p", None, b"r" * 70_000])],
        fields=[pa.field("n", pa.int64()), blob_field("b")],
    )
    rows = pa.table(
        [pa.array([1, 2, 3]), blob_array([b"x", b"y" * 70_000, None]), inside],
        schema=pa.schema([pa.field("id", pa.int64()), blob_field("data"), pa.field("in", inside.type)]),
    )
    table = TableRef(lance.write_dataset(rows, tmp_path / "t").uri)
    update(table, ColumnUpdate({"id": "id + 10"}, "id > 1"))
    found = table.open().to_table(blob_handling="all_binary").sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "data": b"x", "in": {"n": 1, "b": b"p"}},
        {"id": 12, "data": b"y" * 70_000, "in": {"n": 2, "b": None}},
        {"id": 13, "data": None, "in": {"n": 3, "b": b"r" * 70_000}},
    ]


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (ColumnUpdate({}), InvalidInputError),
        (ColumnUpdate({"nope": "1"}), TableColumnNotFoundError),
        (ColumnUpdate({"kind": "nope + 1"}), TableColumnNotFoundError),
        (ColumnUpdate({"kind": "1"}, "nope = 1"), TableColumnNotFoundError),
        (ColumnUpdate({"kind": "1 +"}), InvalidInputError),
        (ColumnUpdate({"emb": "id"}), TableSchemaValidationError),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_first(table: TableRef, setting: ColumnUpdate, error: type[Exception]) -> None:
    with pytest.raises(error):
        setting.check(table, table.open())


@pytest.mark.parametrize("expression", ["3000000000", "nullif(id, 700)", "word"])
def test_a_value_that_does_not_fit_leaves_nothing(tmp_path: Path, expression: str) -> None:
    fields: list[Any] = [("id", pa.int64()), pa.field("kind", pa.int32(), nullable=False), ("word", pa.string())]
    schema = pa.schema(fields)
    rows = pa.table([range(ROWS), [1] * ROWS, ["w"] * ROWS], schema=schema)
    table = TableRef(lance.write_dataset(rows, tmp_path / "t").uri)
    before = files(table)
    setting = ColumnUpdate({"kind": expression}, "id > 10")
    setting.check(table, table.open())
    with pytest.raises(InvalidInputError, match="column kind"):
        setting.update(table, table.open(), [0], writer(table))
    assert files(table) == before


# Others at the same time


def test_an_append_lands_beside(table: TableRef) -> None:
    base = table.open()
    lance.write_dataset(base.to_table(limit=2), table.location, mode="append")
    delete(table, "kind = 3", base)
    assert table.open().count_rows() == ROWS - 1 - 100 + 2


@pytest.mark.parametrize("where", ["id = 500", "id = 990"], ids=["same fragment", "another"])
@pytest.mark.parametrize("way", ["delete", "update", "compact"])
def test_a_change_of_the_same_fragment_is_in_the_way(table: TableRef, where: str, way: str) -> None:
    base = table.open()
    other = table.open()
    if way == "delete":
        other.delete(where)
    elif way == "update":
        other.update({"kind": "1"}, where=where)
    elif where == "id = 500":
        other.optimize.compact_files()
    if where == "id = 500":
        with pytest.raises(ConcurrentModificationError):
            update(table, ColumnUpdate({"kind": "100"}, "id >= 500 AND id < 510"), base)
        assert values(table, where="kind = 100") == []
    else:
        update(table, ColumnUpdate({"kind": "100"}, "id >= 500 AND id < 510"), base)
        assert values(table, where="kind = 100") == list(range(500, 510))


def test_an_overwrite_is_in_the_way(table: TableRef) -> None:
    base = table.open()
    lance.write_dataset(base.to_table(limit=5), table.location, mode="overwrite")
    with pytest.raises(ConcurrentModificationError):
        delete(table, "kind = 3", base)


@pytest.mark.parametrize("rows", [10, 0], ids=["rows", "no rows"])
@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
def test_of_two_merges_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, *, is_late: bool
) -> None:
    """They insert the same key, and share no fragment; the other comes before the last look at the table, or after."""
    if is_late:
        monkeypatch.setattr(row_changes, "find_version", lambda *_, **__: None)
    data = pa.table({"id": pa.array(range(rows), pa.int64())})
    table = TableRef(lance.write_dataset(data, tmp_path / "t").uri)
    base = table.open()

    def merge(dataset: lance.LanceDataset) -> None:
        new = writer(table)(pa.table({"id": [77]}).to_reader())
        commit_rewrite(table, place_of(table), dataset, RowChange(new=tuple(new)), ["id"], is_merge=True)

    merge(base)
    with pytest.raises(ConcurrentModificationError):
        merge(base)
    assert values(table) == [*range(rows), 77]
    merge(table.open())
    table.open().optimize.compact_files()
    table.open().validate()
    assert table.open().count_rows() == rows + 2


def test_changes_are_small_text(table: TableRef) -> None:
    change = delete_where(table, table.open(), [0, 1], "kind = 3")
    assert [json.loads(piece)["files"] for piece in change.updated] == [[], []]
    assert RowChange.from_json(change.to_json()) == change
