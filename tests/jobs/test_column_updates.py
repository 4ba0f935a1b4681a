"""Columns are set to values that others bring, by key; only their files are written, and fills see the change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, row_changes
from lancehouse.jobs.row_changes import to_roaring_bitmap
from lancehouse.lake import commits

BLOB = {"lance-encoding:blob": "true"}
VECTOR = pa.list_(pa.float32(), 2)


@lancehouse.column(version="1", inputs="word", returns=pa.int64())
def length(words: Any) -> Any:
    return pc.utf8_length(words)


@lancehouse.column(version="1", inputs="length", returns=pa.int64())
def double(lengths: Any) -> Any:
    return pc.multiply(lengths, 2)


@pytest.fixture(params=["stable", "unstable"])
def docs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Three fragments; two rows are deleted, one has no key."""
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64()),
        pa.field("word", pa.string(), nullable=False),
        pa.field("vector", VECTOR),
        pa.field("score", pa.int32()),
    ]
    ids = [None if number == 7 else number for number in range(40)]
    values = {"id": ids, "word": [f"w{n}" for n in range(40)], "vector": [[n, 0] for n in range(40)], "score": [0] * 40}
    dataset = lance.write_dataset(
        pa.table(values, schema=pa.schema(fields)),
        tmp_path / "docs.lance",
        max_rows_per_file=15,
        enable_stable_row_ids=request.param == "stable",
    )
    dataset.delete("id = 3 OR id = 39")
    return str(tmp_path / "docs.lance")


@pytest.fixture
def jobs(tmp_path: Path) -> TableJobs:
    return TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=2))


def read(docs: str, column: str) -> dict[int, Any]:
    return {row["id"]: row[column] for row in lance.dataset(docs).to_table(["id", column]).to_pylist()}


def files_of(docs: str) -> dict[int, list[str]]:
    return {each.fragment_id: [file.path for file in each.data_files()] for each in lance.dataset(docs).get_fragments()}


@pytest.mark.parametrize("batch_rows", [4, 8192])
def test_only_the_files_of_the_columns_are_written(
    docs: str, jobs: TableJobs, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_changes, "BATCH_ROWS", batch_rows)
    before = files_of(docs)
    rows = pa.table({"id": [14, 1, 20, 99, 3, None], "score": [4, 1, 2, 9, 9, 9], "vector": [[n, 5] for n in range(6)]})
    result = jobs.update_columns("docs", rows, on="id")
    assert (result.version, result.updated, result.unmatched) == (3, 3, 3)
    assert {n: score for n, score in read(docs, "score").items() if score} == {14: 4, 1: 1, 20: 2}
    vectors = read(docs, "vector")
    assert (vectors[14], vectors[1], vectors[20], vectors[2], vectors[None]) == (  # type: ignore[index]
        [0.0, 5.0],
        [1.0, 5.0],
        [2.0, 5.0],
        [2.0, 0.0],
        [7.0, 0.0],
    )
    assert read(docs, "word") == {None if n == 7 else n: f"w{n}" for n in range(39) if n != 3}
    after = files_of(docs)
    assert after[2] == before[2], "no row of the last fragment has a new value"
    for fragment in (0, 1):
        [old, _] = after[fragment]
        assert [old] == before[fragment]
    written = {path.name for path in Path(docs, "data").iterdir()}
    assert written == {path for paths in after.values() for path in paths}, "nothing else is left"
    assert not Path(docs, "_lancehouse").exists()


def test_rows_count_as_changed(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    jobs.add_columns("docs", {"double": double})
    jobs.define_columns("docs", {"other": "score + 1"})
    jobs.backfill("docs", "other")
    jobs.update_columns("docs", pa.table({"id": [20], "word": ["changed"]}), on="id")
    assert jobs.backfill("docs", "length").filled == 1
    assert jobs.backfill("docs", "double").filled == 1
    assert (read(docs, "length")[20], read(docs, "double")[20], read(docs, "length")[21]) == (7, 14, 3)
    assert jobs.backfill("docs", ["length", "double"]).filled == 0
    dataset = lance.dataset(docs)
    if dataset.has_stable_row_ids:
        changed = dataset.to_table(["id"], filter="_row_last_updated_at_version > 2")
        assert changed["id"].to_pylist() == [20], "a fill is no change, an update is one"


def test_an_index_sees_the_new_values(docs: str, jobs: TableJobs) -> None:
    jobs.create_index("docs", "score", "BTREE")
    jobs.update_columns("docs", pa.table({"id": [20, 21], "score": [5, 6]}), on=["id"])
    dataset = lance.dataset(docs)
    assert [dataset.count_rows(f"score = {n}") for n in (0, 5, 6)] == [36, 1, 1]


def test_several_columns_may_be_the_key(docs: str, jobs: TableJobs) -> None:
    rows = pa.table({"word": ["w1", "w2"], "id": [1, 1], "score": [5, 6]})
    result = jobs.update_columns("docs", rows, on=["id", "word"])
    assert (result.updated, result.unmatched, read(docs, "score")[1]) == (1, 1, 5)


def test_a_key_that_several_rows_have_sets_all(docs: str, jobs: TableJobs) -> None:
    result = jobs.update_columns("docs", pa.table({"score": [0], "word": ["same"]}), on="score")
    assert (result.updated, result.unmatched) == (38, 0)
    assert set(read(docs, "word").values()) == {"same"}


@pytest.mark.parametrize("rows", [{"id": [77], "score": [1]}, {"id": [], "score": []}])
def test_keys_that_the_table_lacks_change_nothing(docs: str, jobs: TableJobs, rows: dict[str, list[int]]) -> None:
    schema = pa.schema([("id", pa.int64()), ("score", pa.int64())])
    result = jobs.update_columns("docs", pa.table(rows, schema=schema), "id")
    assert (result.version, result.updated, result.unmatched) == (2, 0, len(rows["id"]))
    assert not Path(docs, "_lancehouse").exists()


def test_a_run_is_repeated_without_an_effect(docs: str, jobs: TableJobs) -> None:
    rows = pa.table({"id": [20], "score": [5]})
    first = jobs.update_columns("docs", rows, "id", run="r")
    assert jobs.update_columns("docs", rows, "id", run="r").version == first.version == 3


REFUSED: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
    ({"id": [1, 1], "score": [1, 2]}, "id", InvalidInputError, "same key, id=1; drop one"),
    ({"id": [1], "colour": [1]}, "id", TableColumnNotFoundError, "no column colour; it has id, word"),
    ({"id": [1], "score": [1]}, "colour", TableColumnNotFoundError, "no column colour"),
    ({"score": [1]}, "id", TableColumnNotFoundError, "the source has no column id"),
    ({"id": [1]}, "id", InvalidInputError, "no column besides the key"),
    ({"id": [1], "length": [1]}, "id", InvalidInputError, "column length is computed"),
    ({"id": [1], "_lancehouse_length": [1]}, "id", InvalidInputError, "_lancehouse_length is computed"),
    ({"id": [1], "image": [b"x"]}, "id", InvalidInputError, "column image has blobs"),
    ({"id": [1], "score": ["many"]}, "id", TableSchemaValidationError, "column score does not fit int32"),
    ({"id": [1], "score": [2**40]}, "id", TableSchemaValidationError, "column score does not fit int32"),
    ({"id": [1], "word": pa.array([None], pa.string())}, "id", TableSchemaValidationError, "column word has nulls"),
    ({"id": [1], "score": [1]}, [], InvalidInputError, "on: name the columns"),
]


@pytest.mark.parametrize(("rows", "on", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_cannot_be_is_refused(
    docs: str, jobs: TableJobs, rows: dict[str, Any], on: Any, error: type[Exception], message: str
) -> None:
    lance.dataset(docs).add_columns(pa.schema([pa.field("image", pa.large_binary(), metadata=BLOB)]))
    jobs.define_columns("docs", {"length": length})
    before = lance.dataset(docs).version
    with pytest.raises(error, match=message):
        jobs.update_columns("docs", pa.table(rows), on=on)
    assert lance.dataset(docs).version == before
    assert not Path(docs, "_lancehouse").exists()


def rename(docs: str) -> None:
    lance.dataset(docs).alter_columns({"path": "score", "name": "points"})


def replace_row(docs: str) -> None:
    lance.dataset(docs).update({"word": "'moved'"}, where="id = 20")


CHANGES: list[tuple[Callable[[str], Any], dict[int, int]]] = [
    (lambda docs: lance.write_dataset(pa.table({"id": [20], "word": ["x"]}), docs, mode="append"), {1: 1, 20: 2}),
    (lambda docs: lance.dataset(docs).delete("id = 1"), {20: 2}),
    (lambda docs: lance.dataset(docs).optimize.compact_files(), {1: 1, 20: 2}),
    (replace_row, {1: 1, 20: 2}),
]


@pytest.mark.parametrize(("change", "scores"), CHANGES, ids=["append", "delete", "compact", "update"])
def test_changes_of_others(
    docs: str, jobs: TableJobs, change: Any, scores: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes the table between the matching and the commit."""
    commit, changed = commits.commit, list[int]()

    def commit_late(*arguments: Any) -> int:
        if not changed:
            changed.append(1)
            change(docs)
        return commit(*arguments)

    monkeypatch.setattr(row_changes, "commit", commit_late)
    result = jobs.update_columns("docs", pa.table({"id": [1, 20], "score": [1, 2]}), on="id")
    assert result.updated == len(scores)
    rows = lance.dataset(docs).to_table(["id", "score", "word"]).to_pylist()
    assert {row["id"]: row["score"] for row in rows if row["score"]} == scores
    if change is replace_row:
        assert read(docs, "word")[20] == "moved", "what the other has written stays"
    used = {path for paths in files_of(docs).values() for path in paths}
    old = {file.path for each in lance.dataset(docs, version=1).get_fragments() for file in each.data_files()}
    old |= {file.path for each in lance.dataset(docs, version=3).get_fragments() for file in each.data_files()}
    assert {path.name for path in Path(docs, "data").iterdir()} <= used | old, "files of the first attempt are removed"


def test_columns_that_changed_meanwhile(docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_changes, "require_distinct_keys", lambda *_: rename(docs))
    with pytest.raises(ConcurrentModificationError, match="columns have changed"):
        jobs.update_columns("docs", pa.table({"id": [1], "score": [1]}), on="id")


def test_offsets_are_as_lance_writes_them(tmp_path: Path) -> None:
    count = 150_000
    rows = pa.table({"x": pa.array(np.zeros(count, np.int8))})
    dataset = lance.write_dataset(rows, tmp_path / "t.lance")
    for chosen in ([0], [5, 70_000, 140_000], range(0, count, 3), range(count)):
        ids = np.array(chosen, np.int64)
        values = pa.table({"_rowid": pa.array(ids, pa.uint64()), "x": pa.array(np.ones(len(ids), np.int8))})
        *_, expected = dataset.get_fragment(0).update_columns(values, with_offsets=True)
        assert to_roaring_bitmap(ids) == expected
