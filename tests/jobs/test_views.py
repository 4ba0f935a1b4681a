"""Materialized views: rows that are made of those of another table, and made again where it changed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InternalError, InvalidInputError, TableAlreadyExistsError

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, column_filling, views
from lancehouse.jobs.job import FillProgress
from lancehouse.lake import commits, job_records, row_changes

CHUNKS = pa.list_(pa.struct([("position", pa.int64()), ("text", pa.string())]))
calls: Counter[str] = Counter()


@lancehouse.column(version="1", inputs=["words"], returns=CHUNKS)
def chunk(texts: Any) -> Any:
    """One row for each word; none for no words."""
    calls.update(texts.to_pylist())
    return [
        [{"position": place, "text": word} for place, word in enumerate((text or "").split())]
        for text in texts.to_pylist()
    ]


@pytest.fixture
def jobs(tmp_path: Path) -> TableJobs:
    rows = pa.table({"id": range(6), "words": ["a b", "c", "", "d e f", "g", None]})
    lance.write_dataset(rows, tmp_path / "docs.lance", max_rows_per_file=2, enable_stable_row_ids=True)
    calls.clear()
    bad.clear()
    return TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=2))


def docs(tmp_path: Path) -> lance.LanceDataset:
    return lance.dataset(tmp_path / "docs.lance")


def texts(tmp_path: Path, view: str = "chunks") -> list[tuple[int, str]]:
    rows = lance.dataset(tmp_path / f"{view}.lance").to_table(["id", "text"]).to_pylist()
    return sorted((row["id"], row["text"]) for row in rows)


def test_a_row_becomes_none_one_or_many(jobs: TableJobs, tmp_path: Path) -> None:
    result = jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    assert (result.inserted, result.deleted) == (7, 0)
    assert texts(tmp_path) == [(0, "a"), (0, "b"), (1, "c"), (3, "d"), (3, "e"), (3, "f"), (4, "g")]
    ids = docs(tmp_path).to_table(["id"], with_row_id=True).to_pylist()
    by_row_id = {row["_rowid"]: row["id"] for row in ids}
    for row in lance.dataset(tmp_path / "chunks.lance").to_table().to_pylist():
        assert by_row_id[row["_lancehouse_source"]] == row["id"]
    assert not (tmp_path / "chunks.lance" / "_lancehouse").exists()


def test_a_refresh_makes_what_changed(jobs: TableJobs, tmp_path: Path) -> None:
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    jobs.create_index("chunks", "text", "BTREE")
    calls.clear()
    assert jobs.refresh("chunks").inserted == 0
    lance.write_dataset(pa.table({"id": [10], "words": ["x y"]}), tmp_path / "docs.lance", mode="append")
    docs(tmp_path).update({"words": "'changed'"}, where="id = 3")
    docs(tmp_path).delete("id = 0")
    docs(tmp_path).optimize.compact_files()
    result = jobs.refresh("chunks", optimize_indices=True)
    assert (result.inserted, result.deleted) == (3, 5)
    [index] = lance.dataset(tmp_path / "chunks.lance").describe_indices()
    assert index.num_rows_indexed == 5
    assert texts(tmp_path) == [(1, "c"), (3, "changed"), (4, "g"), (10, "x"), (10, "y")]
    assert calls == {"x y": 1, "changed": 1}


def test_progress_of_a_refresh(jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.jobs.job.INTERVAL_S", 0.001)
    seen: list[FillProgress] = []
    result = jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"], report_progress=seen.append)
    assert (seen[-1].name, seen[-1].rows, seen[-1].total) == ("chunks", 6, 6)
    [file] = [each for path in tmp_path.glob("chunks.lance/data") for each in path.iterdir()][:1]
    assert result.bytes >= file.stat().st_size
    assert result.rows_per_s == 7 / result.seconds


def test_a_view_by_sql_of_rows_that_match(jobs: TableJobs, tmp_path: Path) -> None:
    jobs.create_materialized_view("chunks", "docs", columns={"id": "id", "text": "upper(words)"}, where="id < 3")
    assert texts(tmp_path) == [(0, "A B"), (1, "C"), (2, "")]
    docs(tmp_path).update({"id": "7"}, where="id = 1")
    jobs.refresh("chunks")
    assert texts(tmp_path) == [(0, "A B"), (2, "")]


def test_a_view_of_a_view(jobs: TableJobs, tmp_path: Path) -> None:
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    jobs.create_materialized_view("upper", "chunks", columns={"id": "id", "text": "upper(text)"})
    docs(tmp_path).update({"words": "'z'"}, where="id = 4")
    jobs.refresh("chunks")
    jobs.refresh("upper")
    assert texts(tmp_path, "upper")[-1] == (4, "Z")
    rows = jobs.lineage("upper").to_pylist()
    assert [(row["table"], row["source"]) for row in rows] == [("upper", "chunks"), ("chunks", "docs")]
    assert rows[1]["function"] == "tests.jobs.test_views:chunk"


def test_another_version_makes_all_rows_again(jobs: TableJobs, tmp_path: Path) -> None:
    @lancehouse.column(version="2", inputs=["words"], returns=CHUNKS)
    def whole(texts: Any) -> Any:
        return [[{"position": 0, "text": text}] if text else [] for text in texts.to_pylist()]

    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    with pytest.raises(InvalidInputError, match="create_materialized_view takes it over"):
        jobs.refresh("chunks", whole)
    jobs.create_materialized_view("chunks", "docs", whole, columns=["id"])
    assert texts(tmp_path) == [(0, "a b"), (1, "c"), (3, "d e f"), (4, "g")]


@pytest.mark.parametrize("moment", ["commit", "_finish"])
def test_a_refresh_that_died_is_gone_on_with(
    jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    docs(tmp_path).update({"words": "'one two'"}, where="id = 1")
    calls.clear()

    def die(*_: Any, **__: Any) -> Any:
        raise InternalError("killed")

    with monkeypatch.context() as patch, pytest.raises(InternalError):
        if moment == "commit":
            patch.setattr(views, "commit_rewrite", die)
        else:
            patch.setattr(views._Refresh, "_finish", die)
        jobs.refresh("chunks")
    jobs.refresh("chunks")
    assert texts(tmp_path) == [(0, "a"), (0, "b"), (1, "one"), (1, "two"), (3, "d"), (3, "e"), (3, "f"), (4, "g")]
    assert calls == {"one two": 1}
    assert not (tmp_path / "chunks.lance" / "_lancehouse").exists()


def test_a_refresh_that_ends_after_the_view_was_defined_anew(
    jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows, which the function before has made, are made again."""

    @lancehouse.column(version="2", inputs=["words"], returns=CHUNKS)
    def whole(texts: Any) -> Any:
        return [[{"position": 0, "text": text or ""}] for text in texts.to_pylist()]

    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    lance.write_dataset(pa.table({"id": [10], "words": ["x y"]}), tmp_path / "docs.lance", mode="append")
    commit_rewrite = row_changes.commit_rewrite

    def define_before(*given: Any, **named: Any) -> int:
        with monkeypatch.context() as patch, pytest.raises(InternalError):
            patch.setattr(views, "refresh_view", die)
            jobs.create_materialized_view("chunks", "docs", whole, columns=["id"])
        return commit_rewrite(*given, **named)

    def die(*_: Any, **__: Any) -> Any:
        raise InternalError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(views, "commit_rewrite", define_before)
        jobs.refresh("chunks")
    jobs.create_materialized_view("chunks", "docs", whole, columns=["id"])
    assert texts(tmp_path) == [(0, "a b"), (1, "c"), (2, ""), (3, "d e f"), (4, "g"), (5, ""), (10, "x y")]


@pytest.mark.parametrize("how", ["defined", "source restored", "view restored"])
def test_records_of_a_refresh_that_died_after_its_note_are_not_taken(
    jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The view is made by another definition, and then by the first again; or an older version is restored."""

    def die(*_: Any, **__: Any) -> Any:
        raise InternalError("killed")

    with monkeypatch.context() as patch, pytest.raises(InternalError):
        patch.setattr(job_records.JobProgress, "clear", die)
        jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    before = texts(tmp_path)
    assert len(before) == 7
    if how == "defined":
        jobs.create_materialized_view("chunks", "docs", chunk_good_ones, columns=["id"], where="id = 4")
        assert texts(tmp_path) == [(4, "g")]
        jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    elif how == "source restored":
        docs(tmp_path).update({"words": "'z'"}, where="id = 1")
        jobs.refresh("chunks")
        docs(tmp_path).checkout_version(1).restore()
        jobs.refresh("chunks")
    else:
        lance.dataset(tmp_path / "chunks.lance").checkout_version(1).restore()
        jobs.refresh("chunks")
    assert texts(tmp_path) == before


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 30))])
def test_any_history_gives_what_a_new_view_has(jobs: TableJobs, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"], where="id <> 4")
    for number in range(12):
        match chance.choice(["append", "update", "delete", "compact", "compact view", "refresh"]):
            case "append":
                rows = pa.table({"id": [100 + number], "words": [f"n{number} m{number}"]})
                lance.write_dataset(rows, tmp_path / "docs.lance", mode="append")
            case "update":
                docs(tmp_path).update({"words": f"'u{number}'"}, where=f"id % 3 = {chance.randint(0, 2)}")
            case "delete":
                docs(tmp_path).delete(f"id % 7 = {chance.randint(0, 6)}")
            case "compact":
                docs(tmp_path).optimize.compact_files()
            case "compact view":
                lance.dataset(tmp_path / "chunks.lance").optimize.compact_files()
            case "refresh":
                jobs.refresh("chunks")
    jobs.refresh("chunks")
    jobs.create_materialized_view("anew", "docs", chunk, columns=["id"], where="id <> 4")
    assert texts(tmp_path) == texts(tmp_path, "anew")


def test_what_cannot_be_is_refused(jobs: TableJobs, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "plain.lance")
    with pytest.raises(InvalidInputError, match="no stable row ids"):
        jobs.create_materialized_view("v", "plain", columns=["id"])
    with pytest.raises(InvalidInputError, match="at least one column"):
        jobs.create_materialized_view("v", "docs")
    with pytest.raises(TableAlreadyExistsError, match="no view"):
        jobs.create_materialized_view("plain", "docs", columns=["id"])
    with pytest.raises(InvalidInputError, match="no materialized view"):
        jobs.refresh("docs")

    @lancehouse.column(version="1", inputs=["words"], returns=pa.string())
    def flat(texts: Any) -> Any:
        return texts

    with pytest.raises(InvalidInputError, match="must return a list"):
        jobs.create_materialized_view("v", "docs", flat)
    assert not (tmp_path / "v.lance").exists()


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_view_of_a_source_that_was_restored_or_made_anew(jobs: TableJobs, tmp_path: Path, cleaned: bool) -> None:
    """Also if the version that restored an older one is gone, and the one that the view shows is not."""
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    before = texts(tmp_path)
    docs(tmp_path).update({"words": "'z'"}, where="id = 1")
    docs(tmp_path).delete("id = 0")
    jobs.refresh("chunks")
    assert texts(tmp_path) != before
    shown = docs(tmp_path).version
    old = docs(tmp_path).checkout_version(1)
    old.restore()
    if cleaned:
        docs(tmp_path).tags.create("shown", shown)
        docs(tmp_path).optimize.compact_files()
        jobs.cleanup("docs", older_than=timedelta(0))
        assert len(docs(tmp_path).versions()) == 2
    jobs.refresh("chunks")
    assert texts(tmp_path) == before
    rows = pa.table({"id": [1], "words": ["other"]})
    shutil.rmtree(tmp_path / "docs.lance")
    lance.write_dataset(rows, tmp_path / "docs.lance", enable_stable_row_ids=True)
    jobs.refresh("chunks")
    assert texts(tmp_path) == [(1, "other")]


def test_a_fill_of_the_source_beside_a_refresh_is_seen(jobs: TableJobs, tmp_path: Path) -> None:
    """The fill has read before, and is committed after the refresh."""
    refreshes: list[int] = []

    @lancehouse.column(version="2", inputs=["id"], returns=pa.int64())
    def disturbed(ids: Any) -> Any:
        if refreshes:
            refreshes.pop()
            lance.write_dataset(pa.table({"id": [10], "words": ["x"]}), tmp_path / "docs.lance", mode="append")
            jobs.refresh("sizes")
        return [number * 100 for number in ids.to_pylist()]

    jobs.define_columns("docs", {"size": "id + 1"})
    jobs.backfill("docs")
    jobs.create_materialized_view("sizes", "docs", columns=["id", "size"])
    jobs.define_columns("docs", {"size": disturbed})
    refreshes.append(1)
    jobs.backfill("docs", {"size": disturbed}, max_concurrency=1)
    assert jobs.refresh("sizes").inserted == 7
    rows = lance.dataset(tmp_path / "sizes.lance").to_table(["id", "size"]).to_pylist()
    assert {row["id"]: row["size"] for row in rows} == {number: number * 100 for number in (*range(6), 10)}
    assert jobs.refresh("sizes").inserted == 0


@pytest.mark.parametrize(
    ("columns", "where"),
    [(["id", "size"], None), ({"id": "ID + Size"}, None), (["id"], "`size` > 0"), (["id"], "_lancehouse_size.at > 0")],
)
def test_only_fills_of_columns_that_a_view_takes_count(jobs: TableJobs, columns: Any, where: str | None) -> None:
    jobs.define_columns("docs", {"size": "id + 1", "other": "id + 2"})
    jobs.create_materialized_view("sizes", "docs", columns=columns, where=where)
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    calls.clear()
    jobs.backfill("docs", "other")
    assert (jobs.refresh("sizes").inserted, jobs.refresh("chunks").inserted) == (0, 0)
    jobs.backfill("docs", "size")
    assert (jobs.refresh("sizes").inserted, jobs.refresh("chunks").inserted) == (6, 0)
    assert not calls


def test_a_refresh_that_died_is_gone_on_with_after_a_fill_of_the_source(
    jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that the call before took for unchanged are still in the view."""

    def append(number: int) -> None:
        lance.write_dataset(pa.table({"id": [number], "words": ["x"]}), tmp_path / "docs.lance", mode="append")

    def die(*_: Any, **__: Any) -> Any:
        raise InternalError("killed")

    @lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
    def disturbed(ids: Any) -> Any:
        if 2 in ids.to_pylist():  # the first fragment is committed
            append(10)
            jobs.refresh("sizes")
            append(11)
            with monkeypatch.context() as patch, pytest.raises(InternalError):
                patch.setattr(views, "commit_rewrite", die)
                jobs.refresh("sizes")
        return ids

    jobs.define_columns("docs", {"size": disturbed})
    jobs.create_materialized_view("sizes", "docs", columns=["id", "size"])
    jobs.backfill("docs", {"size": disturbed}, commit_every=1, max_concurrency=1)
    for _ in range(2):
        jobs.refresh("sizes")
        rows = lance.dataset(tmp_path / "sizes.lance").to_table(["id", "size"]).to_pylist()
        assert sorted(row["id"] for row in rows) == [*range(6), 10, 11]
    assert all(row["size"] == row["id"] for row in rows)


def test_columns_may_be_computed_in_a_view_and_in_its_source(jobs: TableJobs, tmp_path: Path) -> None:
    @lancehouse.column(version="1", inputs=["text"], returns=pa.int64())
    def size(texts: Any) -> Any:
        return [len(text) for text in texts.to_pylist()]

    def times(factor: int) -> Any:
        @lancehouse.column(version=str(factor), inputs=["id"], returns=pa.int64())
        def multiply(ids: Any) -> Any:
            return [number * factor for number in ids.to_pylist()]

        return multiply

    jobs.add_columns("docs", {"score": times(2)})
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id", "score"])
    jobs.add_columns("chunks", {"size": size})
    jobs.define_columns("docs", {"score": times(3)})
    jobs.backfill("docs", {"score": times(3)})
    docs(tmp_path).update({"words": "'longer'"}, where="id = 4")
    jobs.refresh("chunks")
    jobs.backfill("chunks", {"size": size})
    rows = lance.dataset(tmp_path / "chunks.lance").to_table(["id", "score", "size"]).to_pylist()
    assert {row["id"]: (row["score"], row["size"]) for row in rows}[4] == (12, 6)
    assert all(row["score"] == 3 * row["id"] for row in rows)
    assert jobs.computed_columns("chunks")["column"].to_pylist() == ["size"]


def test_null_lists_have_no_rows(jobs: TableJobs, tmp_path: Path) -> None:
    @lancehouse.column(version="1", inputs=["words"], returns=pa.list_(pa.string()))
    def pieces(texts: Any) -> Any:
        lists: Any = pa.array([["x"]] * len(texts), pa.list_(pa.string()))
        mask = pa.array([place % 2 == 0 for place in range(len(texts))])
        return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=mask)

    jobs.create_materialized_view("v", "docs", pieces)
    assert lance.dataset(tmp_path / "v.lance").count_rows() == 3


bad: set[str] = set()


@lancehouse.column(version="1", inputs=["words"], returns=CHUNKS)
def chunk_good_ones(texts: Any) -> Any:
    """Fails for some texts."""
    calls.update(texts.to_pylist())
    if found := bad.intersection(texts.to_pylist()):
        raise ValueError(f"cannot read {sorted(found)[0]}")
    return [[{"position": 0, "text": text}] for text in texts.to_pylist()]


def test_rows_that_fail_are_left_out_told_and_tried_again(jobs: TableJobs, tmp_path: Path) -> None:
    bad.update({"c", "g"})
    with pytest.raises(InvalidInputError, match=r'chunk_good_ones failed for row id \d: ValueError.* [cg]; .*"skip"'):
        jobs.create_materialized_view("chunks", "docs", chunk_good_ones, columns=["id"])
    with pytest.raises(InvalidInputError, match='"skip" leaves out'):
        jobs.refresh("chunks", on_error="null")
    result = jobs.refresh("chunks", on_error="skip")
    assert (result.inserted, result.failed) == (4, 2)
    errors = jobs.view_errors("chunks", ["id"]).to_pylist()
    assert [(row["id"], row["version"], row["exception"]) for row in errors] == [
        (1, "1", "ValueError: cannot read c"),
        (4, "1", "ValueError: cannot read g"),
    ]
    calls.clear()
    assert jobs.refresh("chunks").inserted == 0
    lance.write_dataset(pa.table({"id": [10], "words": ["new"]}), tmp_path / "docs.lance", mode="append")
    assert (jobs.refresh("chunks").inserted, calls) == (1, {"new": 1})  # what failed has not changed
    bad.discard("c")
    docs(tmp_path).optimize.compact_files()
    result = jobs.refresh("chunks", where_failed=True, on_error="skip")
    assert (result.inserted, result.deleted, result.failed) == (1, 0, 1)
    assert (1, "c") in texts(tmp_path)
    assert [row["id"] for row in jobs.view_errors("chunks", ["id"]).to_pylist()] == [4]
    docs(tmp_path).delete("id = 4")
    jobs.refresh("chunks")
    assert jobs.view_errors("chunks").num_rows == 0
    assert jobs.refresh("chunks", where_failed=True).inserted == 0


def test_errors_of_the_function_before_are_not_told(jobs: TableJobs) -> None:
    bad.add("g")
    jobs.create_materialized_view("chunks", "docs", chunk_good_ones, columns=["id"], on_error="skip")
    assert jobs.view_errors("chunks").num_rows == 1
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    assert jobs.view_errors("chunks").num_rows == 0


def test_a_computed_column_of_a_view_may_be_called_source(jobs: TableJobs, tmp_path: Path) -> None:
    """Its companion does not take the place of the column with the row ids of the source."""
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    before = lance.dataset(tmp_path / "chunks.lance").to_table(["_lancehouse_source"])
    jobs.define_columns("chunks", {"source": "id * 10"})
    assert jobs.backfill("chunks").filled == 7
    rows = lance.dataset(tmp_path / "chunks.lance").to_table(["id", "source"]).to_pylist()
    assert all(row["source"] == row["id"] * 10 for row in rows)
    assert lance.dataset(tmp_path / "chunks.lance").to_table(["_lancehouse_source"]) == before
    assert jobs.refresh("chunks").inserted == 0


def test_checkpoints_are_rows_of_a_fragment(jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"id": range(100), "words": [f"w{number}" for number in range(100)]})
    lance.write_dataset(rows, tmp_path / "big.lance", enable_stable_row_ids=True)
    monkeypatch.setattr(column_filling, "LEAST_BETWEEN_S", 0.0)
    how: dict[str, Any] = {"batch_rows": 10, "checkpoint_rows": 20, "on_error": "skip"}
    write, written = commits.write_uncommitted, list[int]()

    def die_late(*arguments: Any, **options: Any) -> Any:
        if len(written) == 3:
            raise InternalError("killed")
        written.append(1)
        return write(*arguments, **options)

    bad.update({"w5", "w70"})
    with monkeypatch.context() as patch, pytest.raises(InternalError):
        patch.setattr(views, "write_uncommitted", die_late)
        jobs.create_materialized_view("chunks", "big", chunk_good_ones, columns=["id"], **how)
    first = set(calls)
    assert {f"w{number}" for number in range(60)} <= first
    calls.clear()
    result = jobs.refresh("chunks", **how)
    assert set(calls) == {f"w{number}" for number in range(60, 100)}
    assert (result.inserted, result.failed) == (98, 2)
    assert sorted(row for row, _ in texts(tmp_path)) == [number for number in range(100) if number not in (5, 70)]
    assert [row["id"] for row in jobs.view_errors("chunks", ["id"]).to_pylist()] == [5, 70]


@pytest.mark.parametrize("text", ["{", "[]", '{"source": "x"}', '{"source": 5, "columns": 7, "inputs": 3, "names": 2}'])
def test_a_definition_that_cannot_be_read_is_told(jobs: TableJobs, tmp_path: Path, text: str) -> None:
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    lance.dataset(tmp_path / "chunks.lance").update_schema_metadata({"lancehouse.view": text})
    for work in (jobs.refresh, jobs.lineage):
        with pytest.raises(InvalidInputError, match="definition of the view cannot be read"):
            work("chunks")


def test_a_broken_note_of_the_last_refresh_makes_all_rows_again(jobs: TableJobs, tmp_path: Path) -> None:
    jobs.create_materialized_view("chunks", "docs", chunk, columns=["id"])
    before = texts(tmp_path)
    lance.dataset(tmp_path / "chunks.lance").update_config({views.REFRESHED: "{"})
    assert jobs.refresh("chunks").inserted == 7
    assert texts(tmp_path) == before
