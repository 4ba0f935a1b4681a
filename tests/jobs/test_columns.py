"""Computed columns: defined by functions with a version, filled in place, resumed, filled again where rows changed."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    PermissionDeniedError,
    TableColumnNotFoundError,
)

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, column_filling, column_functions, columns, views
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_functions import CallRules, ColumnFunction, FunctionCaller, to_array
from lancehouse.jobs.engine import is_repeated
from lancehouse.jobs.job import FillProgress
from lancehouse.lake import column_states, commits, version_records
from lancehouse.lake.dataset import TableRef
from lancehouse.server.console import row_pages

VECTOR = pa.list_(pa.float32(), 2)
BLOB = {"lance-encoding:blob": "true"}
made: list[int] = []


@lancehouse.column(version="1", inputs=["word"], returns=VECTOR)
class Embed:
    """Made once in a process."""

    def __init__(self) -> None:
        made.append(1)

    def __call__(self, words: Any) -> Any:
        return np.array([[len(word), 1] for word in words.to_pylist()], np.float32)


@lancehouse.column(version="1", inputs="word", returns=pa.int64())
def length(words: Any) -> Any:
    return pc.utf8_length(words)


@lancehouse.column(version="1", inputs=["word", "id"])
def label(words: Any, ids: Any) -> Any:
    return [f"{word}:{number}" for word, number in zip(words.to_pylist(), ids.to_pylist(), strict=True)]


def refuse(*bad: str, version: str = "1", error: type[BaseException] = ValueError) -> Any:
    """A function that fails for some words, and counts for how many rows it was called."""
    calls: Counter[str] = Counter()

    @lancehouse.column(version=version, inputs=["word"], returns=pa.string())
    def upper(words: Any) -> Any:
        texts = words.to_pylist()
        if found := [word for word in texts if word in bad]:
            raise error(f"no {found[0]}")
        calls.update(texts)
        return [f"{word.upper()}{version}" for word in texts]

    return upper, calls


class KilledError(BaseException):
    """As if the process were killed."""


KILLED = (KilledError, InternalError)
"""What the driver sees of it: Lance reduces it to text."""


@pytest.fixture(params=["stable", "unstable"])
def is_stable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "stable")


@pytest.fixture
def docs(tmp_path: Path, is_stable: bool) -> str:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("word", pa.string())]
    schema = pa.schema(fields)
    rows = pa.table({"id": range(40), "word": [f"w{number}" for number in range(40)]}, schema=schema)
    dataset = lance.write_dataset(rows, tmp_path / "docs.lance", max_rows_per_file=15, enable_stable_row_ids=is_stable)
    dataset.delete("id = 3 OR id = 39")
    return str(tmp_path / "docs.lance")


@pytest.fixture
def jobs(tmp_path: Path) -> TableJobs:
    return TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=2))


def read(docs: str, *columns: str) -> dict[int, Any]:
    rows = lance.dataset(docs).to_table(columns=["id", *columns]).to_pylist()
    return {row["id"]: row[columns[0]] if len(columns) == 1 else row for row in rows}


def data_files(docs: str) -> set[str]:
    return {path.name for path in Path(docs, "data").iterdir()}


def test_a_column_is_defined_and_filled_in_place(docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data_files(docs)
    made.clear()
    monkeypatch.setattr(column_functions, "_instances", {})
    assert jobs.add_columns("docs", {"embedding": Embed}) == 4
    assert read(docs, "embedding") == {n: [len(f"w{n}"), 1.0] for n in range(39) if n != 3}
    assert len(made) == 1, "a class is made once in a process"
    assert len(data_files(docs) - before) == 3, "one file for each fragment"
    assert not Path(docs, "_lancehouse").exists(), "nothing is left of the job"
    [row] = jobs.computed_columns("docs").to_pylist()
    assert (row["function"], row["version"]) == ("tests.jobs.test_columns:Embed", "1")
    assert (row["inputs"], row["since"], row["filled"], row["missing"], row["failed"]) == (["word"], 3, 38, 0, 0)


def test_only_what_is_missing_is_filled(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    assert jobs.backfill("docs").filled == 0
    lance.write_dataset(pa.table({"id": [50, 51], "word": ["new", "newer"]}), docs, mode="append")
    assert jobs.backfill("docs").filled == 2
    assert read(docs, "length")[51] == 5


def test_rows_whose_inputs_changed_are_filled_again(docs: str, jobs: TableJobs, is_stable: bool) -> None:
    jobs.add_columns("docs", {"length": length})
    lance.dataset(docs).update({"word": "'changed'"}, where="id = 20")
    assert jobs.backfill("docs").filled == (1 if is_stable else 0)
    assert read(docs, "length")[20] == (7 if is_stable else 3)
    assert jobs.backfill("docs").filled == 0, "a fill is no change"


def test_another_version_fills_all_rows_again(docs: str, jobs: TableJobs) -> None:
    first, _ = refuse(version="1")
    second, _ = refuse(version="2")
    jobs.add_columns("docs", {"upper": first})
    jobs.define_columns("docs", {"upper": second})
    with pytest.raises(InvalidInputError, match=r"of version 2, and this is .* of version 1"):
        jobs.backfill("docs", {"upper": first})
    assert jobs.backfill("docs", {"upper": second}, where="id < 10").filled == 9
    assert read(docs, "upper")[5] == "W52"
    assert read(docs, "upper")[15] == "W151"
    assert jobs.backfill("docs", {"upper": second}, version="2").filled == 29
    with pytest.raises(InvalidInputError, match="version 2, not 7"):
        jobs.backfill("docs", {"upper": second}, version="7")


def test_code_that_changed_without_its_version_is_refused(docs: str, jobs: TableJobs) -> None:
    one, _ = refuse("x")
    other, _ = refuse("y")
    jobs.define_columns("docs", {"upper": one})
    with pytest.raises(InvalidInputError, match="its version is still 1"):
        jobs.define_columns("docs", {"upper": other})
    with pytest.raises(InvalidInputError, match="whose code has changed"):
        jobs.backfill("docs", {"upper": other})
    jobs.define_columns("docs", {"upper": other}, allow_changed=True)
    assert jobs.backfill("docs", {"upper": other}).filled == 38


def test_recompute_fills_what_is_up_to_date(docs: str, jobs: TableJobs) -> None:
    function, calls = refuse()
    jobs.add_columns("docs", {"upper": function})
    assert jobs.backfill("docs", {"upper": function}, where="id < 10", recompute=True).filled == 9
    assert (calls["w5"], calls["w15"]) == (2, 1)
    assert jobs.backfill("docs", {"upper": function}, recompute=True, commit_every=1).filled == 38
    assert (calls["w5"], calls["w15"]) == (3, 2)


def test_columns_of_sql_follow_the_columns_that_they_name_alone(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"twice": "id * 2", "length": "length(word) + 0 * length('twice')", "one": "1"})
    jobs.define_columns("docs", {"more": "`twice` + 1"})
    assert jobs.backfill("docs").filled == 4 * 38
    assert jobs.backfill("docs").filled == 0
    inputs = {row["column"]: row["inputs"] for row in jobs.computed_columns("docs").to_pylist()}
    assert inputs == {"twice": ["id"], "length": ["word"], "one": [], "more": ["twice"]}
    jobs.define_columns("docs", {"twice": "id * 2 + 0"})
    assert jobs.backfill("docs").filled == 2 * 38, "the column, and the one that is computed from it"


def test_a_column_of_sql(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"twice": "id * 2"})
    assert jobs.backfill("docs", "twice").filled == 38
    assert read(docs, "twice")[20] == 40
    jobs.define_columns("docs", {"twice": "id + id + 1"})
    jobs.backfill("docs")
    assert read(docs, "twice")[20] == 41


@pytest.mark.parametrize(
    ("sql", "inputs"),
    [
        ("id * 2", ["id"]),
        ("length(word) + id", ["id", "word"]),
        ("`Odd name` + 1", ["Odd name"]),
        ("'id' || word", ["word"]),
        ("nested.id + 1", ["nested"]),
        ("coalesce(word, 'id')", ["word"]),
        ("7", []),
    ],
)
def test_the_inputs_of_sql_are_found(tmp_path: Path, jobs: TableJobs, sql: str, inputs: list[str]) -> None:
    rows = pa.table({"id": [1], "word": ["a"], "Odd name": [2], "nested": [{"id": 3}]})
    lance.write_dataset(rows, tmp_path / "odd.lance")
    jobs.define_columns("odd", {"x": sql})
    assert jobs.computed_columns("odd")["inputs"].to_pylist() == [inputs]
    assert jobs.lineage("odd")["inputs"].to_pylist() == [inputs]
    assert jobs.backfill("odd").filled == 1


def test_sql_follows_what_it_is_computed_from(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"length": length})
    jobs.define_columns("docs", {"big": "length * 100"})
    lance.dataset(docs).alter_columns({"path": "word", "name": "text"})
    jobs.backfill("docs")
    assert read(docs, "big")[20] == 300
    with pytest.raises(InvalidInputError, match="big cannot be computed from itself"):
        jobs.define_columns("docs", {"big": "big + 1"})
    lance.dataset(docs).alter_columns({"path": "length", "name": "size"})
    assert jobs.computed_columns("docs")["inputs"].to_pylist() == [["text"], ["size"]]
    with pytest.raises(InvalidInputError, match="and length is called size now: define it anew"):
        jobs.backfill("docs", "big")
    jobs.define_columns("docs", {"big": "size * 10"})
    assert jobs.backfill("docs").filled == 38
    assert read(docs, "big")[20] == 30


@pytest.mark.parametrize("on_error", ["fail", "null", "skip"])
def test_a_row_for_which_sql_fails_is_found(docs: str, jobs: TableJobs, on_error: str) -> None:
    jobs.define_columns("docs", {"number": "id + 1"})
    jobs.backfill("docs")
    lance.dataset(docs).update({"word": "'7'"}, where="id NOT IN (20, 31)")
    jobs.define_columns("docs", {"number": "cast(word AS bigint)"})
    if on_error == "fail":
        with pytest.raises(
            InvalidInputError, match=r"SQL 'cast.*' failed for row id \d+: .*Cannot cast string 'w(20|31)'"
        ):
            jobs.backfill("docs", batch_rows=4, retries=5, backoff_s=60)
        return
    result = jobs.backfill("docs", on_error=on_error, batch_rows=4)
    assert (result.filled, result.failed + result.skipped) == (36, 2)
    found = read(docs, "number")
    assert (found[20], found[31], found[21], found[38]) == (
        (None, None, 7, 7) if on_error == "null" else (21, 32, 7, 7)
    )
    with pytest.raises(TableColumnNotFoundError, match="has no column nope; it has id, "):
        jobs.column_errors("docs", "number", ["nope"])
    errors = jobs.column_errors("docs", "number", ["id"]).to_pylist()
    assert {(row["id"], "Cannot cast string 'w" in row["exception"]) for row in errors} == {(20, True), (31, True)}


def test_values_of_sql_that_do_not_fit_are_found(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"small": "arrow_cast(id, 'Int8')"})
    jobs.backfill("docs")
    jobs.define_columns("docs", {"small": "id * 10"})
    assert (jobs.backfill("docs", on_error="null").failed, read(docs, "small")[12]) == (26, 120)


def test_a_type_that_is_not_given_is_found_out(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"label": label})
    assert read(docs, "label")[7] == "w7:7"


def test_a_column_computed_from_a_computed_one(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["length"], returns=pa.int64())
    def double(lengths: Any) -> Any:
        return pc.multiply(lengths, 2)

    jobs.define_columns("docs", {"length": length})
    jobs.define_columns("docs", {"double": double})
    jobs.backfill("docs", {"double": double, "length": length})
    assert read(docs, "double")[20] == 6


def test_an_input_may_be_renamed(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"length": length})
    lance.dataset(docs).alter_columns({"path": "word", "name": "text"})
    assert jobs.backfill("docs").filled == 38
    assert jobs.computed_columns("docs")["inputs"].to_pylist() == [["text"]]


def test_an_input_that_was_dropped_is_named(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"length": length})
    lance.dataset(docs).drop_columns(["word"])
    with pytest.raises(InvalidInputError, match="computed from word, which was dropped"):
        jobs.backfill("docs")


def test_definitions_and_states_survive_compaction(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    jobs.compact("docs")
    assert len(lance.dataset(docs).get_fragments()) == 1
    assert jobs.backfill("docs").filled == 0
    assert jobs.backfill("docs", recompute=True).filled == 38, "also where the column is in a file with others"
    assert read(docs, "length")[20] == 3
    assert read(docs, "word")[20] == "w20"


def test_an_index_on_the_column_sees_new_values(docs: str, jobs: TableJobs) -> None:
    first, _ = refuse(version="1")
    second, _ = refuse(version="2")
    jobs.add_columns("docs", {"upper": first})
    jobs.create_index("docs", "upper", "BTREE")
    jobs.define_columns("docs", {"upper": second})
    jobs.backfill("docs", {"upper": second})
    dataset = lance.dataset(docs)
    assert dataset.count_rows("upper = 'W201'") == 0
    assert dataset.count_rows("upper = 'W202'") == 1


def test_an_index_is_brought_up_to_date_if_asked(docs: str, jobs: TableJobs) -> None:
    first, _ = refuse(version="1")
    second, _ = refuse(version="2")
    jobs.add_columns("docs", {"upper": first})
    jobs.create_index("docs", "upper", "BTREE")
    jobs.create_index("docs", "id", "BTREE")
    lance.write_dataset(pa.table({"id": [50], "word": ["new"]}), docs, mode="append")

    def indexed() -> dict[str, int]:
        return {each.name: each.num_rows_indexed for each in lance.dataset(docs).describe_indices()}

    jobs.define_columns("docs", {"upper": second})
    result = jobs.backfill("docs", {"upper": second}, where="id < 20", optimize_indices=True)
    assert result.version == lance.dataset(docs).version
    assert indexed() == {"upper_idx": 39, "id_idx": 38}, "the other index is not touched"
    dataset = lance.dataset(docs)
    assert [dataset.count_rows(f"upper = '{word}'") for word in ("W51", "W52", "W251", "W252")] == [0, 1, 1, 0]
    jobs.backfill("docs", {"upper": second})
    jobs.backfill("docs", {"upper": second}, optimize_indices=True)
    assert indexed()["upper_idx"] == 39, "also if an earlier call has filled the rows"


def test_progress_is_reported_and_the_result_says_what_was_done(
    docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch, often: dict[str, Any]
) -> None:
    monkeypatch.setattr("lancehouse.jobs.job.INTERVAL_S", 0.001)
    function, _ = refuse("w20")
    seen: list[FillProgress] = []
    jobs.define_columns("docs", {"upper": function})
    result = jobs.backfill("docs", {"upper": function}, on_error="null", report_progress=seen.append, **often)
    assert (seen[0].name, seen[-1].rows, {each.total for each in seen}) == ("upper", 38, {38})
    assert [each.rows for each in seen] == sorted(each.rows for each in seen), "it only grows"
    [part] = result.columns.values()
    assert (part.rows, part.failed, part.seconds) == (38, 1, result.seconds)
    names = {file.path for each in lance.dataset(docs).get_fragments() for file in each.data_files()[1:]}
    assert result.bytes == sum(Path(docs, "data", name).stat().st_size for name in names)
    assert result.rows_per_s == 38 / result.seconds
    with pytest.raises(InvalidInputError, match="report_progress must be a function"):
        jobs.backfill("docs", {"upper": function}, report_progress="yes")


def test_progress_counts_rows_once() -> None:
    def values(fragment: int, rows: int, base: str | None, errors: int = 0) -> str:
        result = column_filling.FillResult(0, rows)
        made = (((0, "x"),) * errors,)
        return column_filling.ComputedValues(fragment, "", 1, "", (), base, result, *made).to_json()

    records = {
        "a": values(0, 5, None),
        "b": values(0, 5, None, 1),
        "c": values(1, 4, None),
        "d": values(1, 9, "base", 2),
    }
    assert column_filling._count_rows({**records, "start": 7}) == (19, 3)
    now = FillProgress("x", 500, 2000, 3, 2.0)
    assert str(now) == "x: 500 of 2,000 rows, 3 failed, 250 a second, 6 s left"


# Bad rows


def test_a_bad_row_fails_the_job_and_is_named(docs: str, jobs: TableJobs) -> None:
    function, calls = refuse("w20")
    with pytest.raises(InvalidInputError, match=r"failed for row id \d+: ValueError: no w20"):
        jobs.add_columns("docs", {"upper": function})
    assert set(read(docs, "upper").values()) == {None}
    assert calls["w20"] == 0


@pytest.mark.parametrize("on_error", ["null", "skip"])
def test_bad_rows_are_left_and_told(docs: str, jobs: TableJobs, on_error: str) -> None:
    good, _ = refuse(version="1")
    bad, calls = refuse("w20", "w22", version="2")
    jobs.add_columns("docs", {"upper": good})
    jobs.define_columns("docs", {"upper": bad})
    result = jobs.backfill("docs", {"upper": bad}, on_error=on_error)
    assert (result.filled, result.failed, result.skipped) == ((36, 2, 0) if on_error == "null" else (36, 0, 2))
    found = read(docs, "upper")
    assert found[20] == (None if on_error == "null" else "W201")
    assert found[21] == "W212"
    assert max(calls.values()) == 1, "rows beside a bad one are computed once"
    errors = jobs.column_errors("docs", "upper", ["id"]).to_pylist()
    assert {(row["id"], row["exception"], row["version"]) for row in errors} == {
        (20, "ValueError: no w20", "2"),
        (22, "ValueError: no w22", "2"),
    }
    assert jobs.backfill("docs", {"upper": bad}).filled == 0, "a row that failed is not missing"
    mended, _ = refuse("w22", version="2")
    jobs.define_columns("docs", {"upper": mended}, allow_changed=True)
    result = jobs.backfill("docs", {"upper": mended}, where_failed=True, on_error=on_error)
    assert (result.filled, result.failed + result.skipped) == (1, 1)
    assert read(docs, "upper")[20] == "W202"
    assert [row["id"] for row in jobs.column_errors("docs", "upper", ["id"]).to_pylist()] == [22]


def test_rows_that_failed_since_a_call_that_came_to_nothing_are_tried_again(docs: str, jobs: TableJobs) -> None:
    bad = {"w5"}

    @lancehouse.column(version="1", inputs=["word"], returns=pa.string())
    def upper(words: Any) -> Any:
        if bad.intersection(words.to_pylist()):
            raise ValueError("no")
        return [word.upper() for word in words.to_pylist()]

    jobs.define_columns("docs", {"upper": upper})
    jobs.backfill("docs", {"upper": upper}, on_error="null")
    with pytest.raises(InvalidInputError, match="failed for"):
        jobs.backfill("docs", {"upper": upper}, where_failed=True)
    bad.add("w50")
    lance.write_dataset(pa.table({"id": [50], "word": ["w50"]}), docs, mode="append")
    jobs.backfill("docs", {"upper": upper}, on_error="null")
    bad.clear()
    assert jobs.backfill("docs", {"upper": upper}, where_failed=True).filled == 2
    assert jobs.column_errors("docs", "upper").num_rows == 0


def test_errors_stay_when_orphans_are_removed(docs: str, jobs: TableJobs) -> None:
    function, _ = refuse("w20")
    jobs.add_columns("docs", {"upper": function}, on_error="null")
    jobs.remove_orphans("docs", no_writers=True)
    assert jobs.column_errors("docs", "upper")["exception"].to_pylist() == ["ValueError: no w20"]


def error_files(docs: str) -> list[Path]:
    return list(Path(docs, "_lancehouse", "errors").glob("*/*.json"))


def test_errors_of_rows_that_are_filled_go(docs: str, jobs: TableJobs) -> None:
    function, _ = refuse("w20", "w25")
    jobs.add_columns("docs", {"upper": function}, on_error="null")
    mended, _ = refuse("w25")
    jobs.define_columns("docs", {"upper": mended}, allow_changed=True)
    jobs.backfill("docs", {"upper": mended}, where_failed=True, on_error="null")
    [file] = error_files(docs)
    assert [row[1] for row in json.loads(file.read_text())["value"]] == ["ValueError: no w25"]
    lance.dataset(docs).alter_columns({"path": "upper", "name": "renamed"})
    assert jobs.column_errors("docs", "renamed")["exception"].to_pylist() == ["ValueError: no w25"]
    good, _ = refuse()
    jobs.define_columns("docs", {"renamed": good}, allow_changed=True)
    jobs.backfill("docs", {"renamed": good}, where_failed=True)
    assert not Path(docs, "_lancehouse").exists()


def test_only_the_newest_errors_are_kept(docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_filling, "MOST_ERRORS", 3)
    function, _ = refuse("w20", "w25", "w50", "w51")
    jobs.add_columns("docs", {"upper": function}, on_error="null")
    lance.write_dataset(pa.table({"id": [50, 51], "word": ["w50", "w51"]}), docs, mode="append")
    result = jobs.backfill("docs", {"upper": function}, on_error="null")
    assert result.failed == 2
    errors = jobs.column_errors("docs", "upper", ["id"]).to_pylist()
    assert {row["id"] for row in errors} == {20, 25, 50, 51}, "all rows are told"
    assert {row["id"] for row in errors if row["exception"]} >= {50, 51}
    assert len([row for row in errors if row["exception"]]) == 3


@pytest.mark.parametrize("how", ["dropped", "defined anew"])
def test_errors_of_columns_that_are_gone_go(docs: str, jobs: TableJobs, how: str) -> None:
    function, _ = refuse("w20")
    jobs.add_columns("docs", {"upper": function}, on_error="null")
    other, _ = refuse("w21", version="2")
    if how == "dropped":
        lance.dataset(docs).drop_columns(["upper", "_lancehouse_upper"])
        jobs.remove_orphans("docs")
        assert len(error_files(docs)) == 1, "a week is not over"
        jobs.remove_orphans("docs", no_writers=True)
    jobs.define_columns("docs", {"upper": other})
    assert not error_files(docs)
    assert len(jobs.column_errors("docs", "upper")) == 0
    jobs.backfill("docs", {"upper": other}, on_error="null")
    assert jobs.column_errors("docs", "upper")["exception"].to_pylist() == ["ValueError: no w21"]


def test_errors_are_kept_before_the_commit(docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    function, _ = refuse("w20")
    jobs.define_columns("docs", {"upper": function})
    commit = column_filling._commit_values

    def die(*arguments: Any) -> Any:
        commit(*arguments)
        raise KilledError

    monkeypatch.setattr(column_filling, "_commit_values", die)
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"upper": function}, on_error="null")
    assert jobs.column_errors("docs", "upper")["exception"].to_pylist() == ["ValueError: no w20"]


def test_files_that_were_not_committed_are_taken_as_they_are(
    docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, _ = refuse("none of them")
    jobs.define_columns("docs", {"upper": function})

    def die(*_: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KILLED):
        patch.setattr(column_filling, "_commit_values", die)
        jobs.backfill("docs", {"upper": function})
    written = {file.name for file in Path(docs, "data").iterdir()}
    jobs.backfill("docs", {"upper": function})
    dataset = lance.dataset(docs)
    assert dataset.count_rows("upper IS NULL") == 0
    assert {file.name for file in Path(docs, "data").iterdir()} == written
    assert {str(file.path) for each in dataset.get_fragments() for file in each.metadata.files} == written


def test_named_exceptions_are_retried() -> None:
    attempts: list[int] = []

    @lancehouse.column(version="1", inputs=["word"], returns=pa.int64())
    def limited(words: Any) -> Any:
        attempts.append(len(words))
        if len(attempts) < 3:
            raise TimeoutError("slow down")
        return pa.array([1] * len(words))

    rules = CallRules(retries=2, retry_on=("TimeoutError",), backoff_s=0)
    function = ColumnFunction.of(limited)
    assert FunctionCaller(function, pa.int64(), rules).compute([pa.array(["a", "b"])], str).array.to_pylist() == [1, 1]
    attempts.clear()
    others = CallRules(retries=2, retry_on=("ConnectionError",), backoff_s=0)
    with pytest.raises(InvalidInputError, match="TimeoutError: slow down"):
        FunctionCaller(function, pa.int64(), others).compute([pa.array(["a"])], str)
    assert attempts == [1]


def test_a_call_that_takes_too_long_fails() -> None:
    never = Event()

    @lancehouse.column(version="1", inputs=["word"], returns=pa.int64())
    def hang(words: Any) -> Any:
        never.wait(30)
        return words

    try:
        rules = CallRules(on_error="null", timeout_s=0.01)
        values = FunctionCaller(ColumnFunction.of(hang), pa.int64(), rules).compute([pa.array(["a"])], str)
        assert (values.array.to_pylist(), values.errors[0].exception) == (
            [None],
            "TimeoutError: it took more than 0.01 s",
        )
        with pytest.raises(InvalidInputError, match=r"hang: .* 0\.01 s, 31 times in a row: no row is to blame"):
            FunctionCaller(ColumnFunction.of(hang), pa.int64(), rules).compute([pa.array(["a"] * 64)], str)
    finally:
        never.set()


def test_a_class_that_cannot_be_made_fails_the_job(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["word"], returns=pa.int64())
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("no weights")

        def __call__(self, words: Any) -> Any:
            return words

    with pytest.raises(InvalidInputError, match="Broken cannot be made: RuntimeError: no weights"):
        jobs.add_columns("docs", {"x": Broken}, on_error="null")


# Resuming, and changes of others


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Checkpoints after every few rows, however fast the function."""
    monkeypatch.setattr(column_filling, "LEAST_BETWEEN_S", 0.0)
    return {"batch_rows": 2, "checkpoint_rows": 4}


def test_no_row_is_computed_twice_beyond_a_checkpoint(docs: str, tmp_path: Path, often: dict[str, Any]) -> None:
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    flag = tmp_path / "killed"
    COUNTS.clear()
    KILL[:] = [str(flag), "w25"]
    jobs.define_columns("docs", {"counted": counted})
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"counted": counted}, **often)
    before = COUNTS.copy()
    assert before["w20"] == 1
    result = jobs.backfill("docs", {"counted": counted}, **often)
    assert result.filled == 38
    assert sum(COUNTS.values()) <= 38 + often["checkpoint_rows"]
    assert COUNTS["w20"] == 1, "its checkpoint was used"
    assert read(docs, "counted") == {n: f"W{n}" for n in range(39) if n != 3}
    assert not Path(docs, "_lancehouse").exists()
    jobs.remove_orphans("docs", no_writers=True)
    assert read(docs, "counted")[20] == "W20"


@pytest.mark.parametrize("cleaned", [False, True])
def test_values_of_rows_that_a_restore_has_undone_are_not_used(
    docs: str, tmp_path: Path, often: dict[str, Any], cleaned: bool
) -> None:
    """Nor if the version that restored them is gone."""
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    jobs.define_columns("docs", {"counted": counted})
    before = lance.dataset(docs)
    lance.dataset(docs).update({"word": "concat('new', word)"}, where="id < 15")
    COUNTS.clear()
    KILL[:] = [str(tmp_path / "killed"), "neww13"]
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"counted": counted}, **often)
    assert COUNTS["neww5"] == 1
    before.restore()
    if cleaned:
        lance.dataset(docs).delete("id = 38")
        jobs.cleanup("docs", older_than=timedelta(0))
        assert len(lance.dataset(docs).versions()) == 1
    jobs.backfill("docs", {"counted": counted}, **often)
    assert read(docs, "counted") == {n: f"W{n}" for n in range(39 - cleaned) if n != 3}
    assert COUNTS["w20"] <= 1, "what is computed of the same files is used"


def test_rows_that_are_skipped_keep_their_values_however_many(
    docs: str, tmp_path: Path, often: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the fill is gone on with, and not all exceptions were kept."""
    monkeypatch.setattr(column_filling, "MOST_ERRORS", 1)
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    flag = tmp_path / "killed"

    @lancehouse.column(version="2", inputs=["word"], returns=pa.string())
    def fails(words: Any) -> Any:
        if "w8" in words.to_pylist() and not flag.exists():
            flag.touch()
            raise KilledError
        raise ValueError("no")

    upper, _ = refuse()
    jobs.add_columns("docs", {"upper": upper})
    before = read(docs, "upper")
    jobs.define_columns("docs", {"upper": fails})
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"upper": fails}, on_error="skip", **often)
    assert jobs.backfill("docs", {"upper": fails}, on_error="skip", **often).skipped == 38
    assert read(docs, "upper") == before


def test_clean_up_knows_what_an_interrupted_fill_needs(docs: str, tmp_path: Path, often: dict[str, Any]) -> None:
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    COUNTS.clear()
    KILL[:] = [str(tmp_path / "killed"), "w25"]
    jobs.define_columns("docs", {"counted": counted})
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"counted": counted}, **often)
    jobs.remove_orphans("docs", no_writers=True)
    jobs.cleanup("docs", older_than=timedelta(0))
    assert jobs.backfill("docs", {"counted": counted}, **often).filled == 38
    assert COUNTS["w20"] == 1, "its checkpoint was used"
    KILL[:] = [str(tmp_path / "again"), "w25"]
    with pytest.raises(KILLED):
        jobs.backfill("docs", {"counted": counted}, recompute=True, **often)
    used = {file.path for each in lance.dataset(docs).get_fragments() for file in each.data_files()}
    assert data_files(docs) - used
    jobs.remove_orphans("docs", no_writers=True, older_than=timedelta(0))
    assert not list(Path(docs, "_lancehouse").rglob("*.json")), "nobody resumes a job that is as old"
    assert data_files(docs) == used


COUNTS: Counter[str] = Counter()
KILL: list[str] = []


@lancehouse.column(version="1", inputs=["word"], returns=pa.string())
def counted(words: Any) -> Any:
    """Fails once, as if the process were killed."""
    texts = words.to_pylist()
    if KILL and KILL[1] in texts and not Path(KILL[0]).exists():
        Path(KILL[0]).touch()
        raise KilledError
    COUNTS.update(texts)
    return [text.upper() for text in texts]


CHANGES: dict[str, Callable[[str], object]] = {
    "append": lambda docs: lance.write_dataset(pa.table({"id": [60], "word": ["late"]}), docs, mode="append"),
    "delete": lambda docs: lance.dataset(docs).delete("id = 5"),
    "update": lambda docs: lance.dataset(docs).update({"word": "'other'"}, where="id = 6"),
    "compaction": lambda docs: lance.dataset(docs).optimize.compact_files(),
}
CHANGE: list[Callable[[], object]] = []


@lancehouse.column(version="1", inputs=["word"], returns=pa.string())
def disturbed(words: Any) -> Any:
    """Somebody changes the table while it is first called."""
    COUNTS.update(words.to_pylist())
    while CHANGE:
        CHANGE.pop()()
    return pc.utf8_upper(words)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_computed_twice_beside_changes_of_others(
    docs: str, tmp_path: Path, change: str, is_stable: bool
) -> None:
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    COUNTS.clear()
    jobs.define_columns("docs", {"upper": disturbed})
    CHANGE[:] = [lambda: CHANGES[change](docs)]
    jobs.backfill("docs", {"upper": disturbed})
    rows = read(docs, "word", "upper").values()
    assert all(row["upper"] == row["word"].upper() for row in rows if is_stable or row["id"] != 6)
    assert None not in {row["upper"] for row in rows}
    if change != "compaction" or is_stable:
        assert max(COUNTS.values()) == 1
    assert jobs.backfill("docs", {"upper": disturbed}).filled == 0


def test_a_column_that_is_defined_anew_meanwhile_is_not_filled(docs: str, jobs: TableJobs) -> None:
    other, _ = refuse(version="2")
    jobs.define_columns("docs", {"upper": disturbed})
    CHANGE[:] = [lambda: jobs.define_columns("docs", {"upper": other})]
    with pytest.raises(ConcurrentModificationError, match="defined anew"):
        jobs.backfill("docs", {"upper": disturbed})
    assert set(read(docs, "upper").values()) == {None}


def test_a_large_fragment_is_computed_by_several_pieces(
    docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_filling, "LEAST_SPLIT", 5)
    jobs.compact("docs")
    COUNTS.clear()
    jobs.add_columns("docs", {"upper": disturbed})
    assert read(docs, "upper") == {n: f"W{n}" for n in range(39) if n != 3}
    assert max(COUNTS.values()) == 1
    assert not Path(docs, "_lancehouse").exists()
    assert jobs.remove_orphans("docs", no_writers=True, dry_run=True).files == 0


# What functions give, and what is refused


@pytest.mark.parametrize(
    ("result", "dtype"),
    [
        (np.array([[1, 2], [3, 4]], np.float64), VECTOR),
        (pa.chunked_array([[1], [2]]), pa.int32()),
        (pa.chunked_array([[1.0, None]]).to_pandas(), pa.float64()),
        ([None, "a"], pa.string()),
        (np.array([1, 2]), pa.int64()),
        ([[1.0, 2.0], [3.0, 4.0]], VECTOR),
    ],
    ids=["matrix", "chunks", "series", "list", "numpy", "lists"],
)
def test_functions_give_arrow_numpy_pandas_or_lists(result: Any, dtype: pa.DataType) -> None:
    array = to_array(result, 2, dtype)
    assert (array.type, len(array)) == (dtype, 2)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([[1.0, 2.0]], "1 values for 2 rows"),
        (np.zeros((2, 3), np.float32), "vectors of 3 values, not 2"),
        (["a", "b"], "no column of fixed_size_list"),
        ({"a": [1, 2]}, "one column, not dict"),
    ],
)
def test_wrong_results_are_named(result: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        to_array(result, 2, VECTOR)


def test_nothing_but_nulls_has_no_type(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["word"])
    def nothing(words: Any) -> Any:
        return [None] * len(words)

    with pytest.raises(InvalidInputError, match="returns="):
        jobs.define_columns("docs", {"x": nothing})
    assert "x" not in lance.dataset(docs).schema.names


@pytest.mark.parametrize("blobs", ["bytes", "file"])
def test_blobs_come_as_bytes_or_as_files(tmp_path: Path, jobs: TableJobs, blobs: str) -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("image", pa.large_binary(), metadata=BLOB)]
    rows = pa.table({"id": range(5), "image": [b"x" * n for n in range(1, 6)]}, schema=pa.schema(fields))
    lance.write_dataset(rows, tmp_path / "images.lance", data_storage_version="2.1")

    @lancehouse.column(version="1", inputs=["image"], returns=pa.int64(), blobs=blobs)
    def size(images: Any) -> Any:
        return [len(each.read()) for each in images] if blobs == "file" else pc.binary_length(images)

    jobs.add_columns("images", {"size": size})
    assert read(str(tmp_path / "images.lance"), "size") == {n: n + 1 for n in range(5)}


def test_what_cannot_be_is_refused(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["absent"], returns=pa.int64())
    def lost(values: Any) -> Any:
        return values

    with pytest.raises(TableColumnNotFoundError, match="no column absent"):
        jobs.define_columns("docs", {"x": lost})
    with pytest.raises(InvalidInputError, match="word that is not computed"):
        jobs.define_columns("docs", {"word": length})
    with pytest.raises(InvalidInputError, match="_lancehouse_ are taken"):
        jobs.define_columns("docs", {"_lancehouse_x": length})
    with pytest.raises(InvalidInputError, match="no function with a version"):
        jobs.define_columns("docs", {"x": len})
    with pytest.raises(InvalidInputError, match="word is no computed column"):
        jobs.backfill("docs", "word")
    with pytest.raises(InvalidInputError, match="on_error must be one of"):
        jobs.backfill("docs", on_error="ignore")
    with pytest.raises(InvalidInputError, match=r"no argument 'batch_row'.*batch_rows"):
        jobs.backfill("docs", batch_row=3)
    with pytest.raises(InvalidInputError, match="batch_rows must be"):
        jobs.backfill("docs", batch_rows=0)


@pytest.mark.parametrize(
    "arguments", [{"version": ""}, {"version": None}, {"inputs": []}, {"returns": pa.null()}, {"blobs": "x"}]
)
def test_a_wrong_mark_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        lancehouse.column(**{"version": "1", "inputs": ["a"], **arguments})


# What a first reader found


def times(factor: int, version: str = "1") -> Any:
    @lancehouse.column(version=version, inputs=["id"], returns=pa.int64())
    def multiply(ids: Any) -> Any:
        return pc.multiply(ids, factor)

    return multiply


@lancehouse.column(version="1", inputs=["a"], returns=pa.int64())
def plus_one(values: Any) -> Any:
    return pc.add(values, 1)


def test_what_is_computed_from_a_column_follows_its_new_version(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"a": times(2)})
    jobs.add_columns("docs", {"b": plus_one})
    new = times(100, "2")
    jobs.define_columns("docs", {"a": new})
    jobs.backfill("docs", {"b": plus_one, "a": new})
    assert read(docs, "b")[20] == 2001
    assert jobs.backfill("docs", {"b": plus_one, "a": new}).filled == 0


def test_an_input_that_is_filled_beside_what_is_computed_from_it(docs: str, jobs: TableJobs) -> None:
    """The input is read first and committed last: what was computed of it in between is stale, and is seen to be."""

    @lancehouse.column(version="2", inputs=["id"], returns=pa.int64())
    def disturbed(ids: Any) -> Any:
        while CHANGE:
            CHANGE.pop()()
        return pc.multiply(ids, 100)

    def fill_other() -> None:
        lance.write_dataset(pa.table({"id": [70], "word": ["late"]}), docs, mode="append")
        jobs.backfill("docs", {"b": plus_one}, recompute=True)

    jobs.add_columns("docs", {"a": times(2)})
    jobs.add_columns("docs", {"b": plus_one})
    jobs.define_columns("docs", {"a": disturbed})
    CHANGE[:] = [fill_other]
    jobs.backfill("docs", {"a": disturbed}, max_concurrency=1)
    jobs.backfill("docs", {"b": plus_one})
    assert read(docs, "b") == {n: a + 1 for n, a in read(docs, "a").items()}
    assert read(docs, "a")[20] == 2000
    assert jobs.backfill("docs", {"a": disturbed, "b": plus_one}).filled == 0


def test_another_function_of_the_same_version_fills_all_rows_again(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
    def negate(ids: Any) -> Any:
        return pc.negate(ids)

    jobs.add_columns("docs", {"a": times(2)})
    jobs.define_columns("docs", {"a": negate})
    assert jobs.backfill("docs", {"a": negate}).filled == 38
    assert read(docs, "a")[20] == -20


def test_a_definition_says_by_which_version_it_was_made(
    docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside changes of others, and fills of the function before, whose values are not of the new one."""
    jobs.add_columns("docs", {"size": label})
    plan_definition, disturbances = columns.plan_definition, [1]
    other, _ = refuse()

    def disturb(*given: Any, **named: Any) -> Any:
        planned = plan_definition(*given, **named)
        if disturbances:
            disturbances.pop()
            lance.write_dataset(pa.table({"id": [50], "word": ["new"]}), docs, mode="append")
            jobs.backfill("docs", {"size": label})
        return planned

    with monkeypatch.context() as patch:
        patch.setattr(columns, "plan_definition", disturb)
        version = jobs.define_columns("docs", {"size": other})
    assert jobs.computed_columns("docs")["since"].to_pylist() == [version]
    jobs.backfill("docs", {"size": other})
    assert read(docs, "size")[50] == "NEW1"
    version = jobs.define_columns("docs", {"size": label, "length": length})
    assert jobs.computed_columns("docs")["since"].to_pylist() == [version, version - 1]


def test_values_and_errors_of_the_function_before_are_not_counted(docs: str, jobs: TableJobs) -> None:
    before, _ = refuse("w5")
    after, _ = refuse("w6")
    after.__qualname__ = "another"
    jobs.define_columns("docs", {"upper": before})
    jobs.backfill("docs", {"upper": before}, on_error="null")
    jobs.define_columns("docs", {"upper": after})
    [row] = jobs.computed_columns("docs").to_pylist()
    assert (row["filled"], row["failed"], row["missing"]) == (0, 0, 38)
    assert jobs.column_errors("docs", "upper").num_rows == 0
    jobs.backfill("docs", {"upper": after}, on_error="null")
    [row] = jobs.computed_columns("docs").to_pylist()
    assert (row["filled"], row["failed"], row["missing"]) == (37, 1, 0)


def test_one_value_for_a_whole_batch_is_an_error_of_the_function(docs: str, jobs: TableJobs) -> None:
    called: list[int] = []

    @lancehouse.column(version="1", inputs=["id"], returns=pa.float64())
    def mean(ids: Any) -> Any:
        called.append(len(ids))
        return [pc.mean(ids).as_py()]

    with pytest.raises(InvalidInputError, match=r"1 values for (15|14|9) rows"):
        jobs.add_columns("docs", {"mean": mean}, on_error="null")
    assert min(called) > 1, "no row is to blame"


def test_a_computed_column_may_be_dropped_renamed_and_made_again(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"a": times(2)})
    lance.dataset(docs).alter_columns({"path": "a", "name": "renamed"})
    assert jobs.backfill("docs", {"renamed": times(2)}).filled == 0
    jobs.add_columns("docs", {"a": times(3)})
    assert (read(docs, "a")[20], read(docs, "renamed")[20]) == (60, 40)
    lance.dataset(docs).drop_columns(["a"])
    jobs.add_columns("docs", {"a": times(4)})
    assert read(docs, "a")[20] == 80
    [companion] = [name for name in lance.dataset(docs).schema.names if name.startswith("_lancehouse_a_")]
    lance.dataset(docs).drop_columns([companion])
    with pytest.raises(InvalidInputError, match="was dropped; define_columns adds it again"):
        jobs.backfill("docs", {"a": times(4)})
    jobs.define_columns("docs", {"a": times(4)})
    assert jobs.backfill("docs", {"a": times(4)}).filled == 38


@pytest.mark.parametrize("when_matched", ["update", "ignore"])
def test_merged_rows_are_filled(docs: str, jobs: TableJobs, when_matched: str) -> None:
    jobs.add_columns("docs", {"length": length})
    schema = lance.dataset(docs).schema
    rows = pa.table({"id": [20, 70], "word": ["longer", "new"]}, schema=pa.schema([schema.field(0), schema.field(1)]))
    jobs.merge(rows, "docs", on="id", when_matched=when_matched)
    jobs.backfill("docs")
    found = read(docs, "length")
    assert (found[20], found[21], found[70]) == (6 if when_matched == "update" else 3, 3, 3)


def test_errors_of_resumed_values_are_told(docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_filling, "LEAST_SPLIT", 5)
    jobs.compact("docs")
    function, _ = refuse("w20")
    jobs.add_columns("docs", {"upper": function}, on_error="null")
    assert jobs.column_errors("docs", "upper")["exception"].to_pylist() == ["ValueError: no w20"]


def test_values_that_another_call_has_removed_are_computed_again(
    docs: str, jobs: TableJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_filling, "LEAST_SPLIT", 5)
    jobs.compact("docs")
    compute = column_filling._compute_ranges

    def remove(*arguments: Any) -> Any:
        made = compute(*arguments)
        column_filling._remove_checkpoints(arguments[1])
        return made

    monkeypatch.setattr(column_filling, "_compute_ranges", remove)
    jobs.add_columns("docs", {"length": length})
    assert read(docs, "length")[20] == 3


def test_sparse_rows_are_filled_in_little_memory(docs: str, jobs: TableJobs) -> None:
    jobs.compact("docs")
    jobs.add_columns("docs", {"length": length})
    lance.dataset(docs).delete("id = 30")
    assert jobs.backfill("docs", where="id IN (1, 37)", recompute=True, batch_rows=4).filled == 2
    assert read(docs, "length") == {n: len(f"w{n}") for n in range(39) if n not in (3, 30)}


@pytest.mark.parametrize("has_values", [True, False])
def test_rows_that_keep_their_values_are_not_held_in_memory(tmp_path: Path, jobs: TableJobs, has_values: bool) -> None:
    rows, vector = 20_000, pa.list_(pa.float32(), 64)

    @lancehouse.column(version="1", inputs=["id"], returns=vector)
    def embed(ids: Any) -> Any:
        return np.ones((len(ids), 64), np.float32)

    lance.write_dataset(pa.table({"id": range(rows)}), tmp_path / "docs.lance")
    jobs.define_columns("docs", {"embedding": embed})
    if has_values:
        jobs.backfill("docs", {"embedding": embed})
    held: list[int] = []
    write = commits.write_uncommitted

    def watch(table: Any, at: Any, reader: Any, **how: Any) -> Any:
        batches = list(reader)
        held.extend(batch.num_rows for batch in batches)
        return write(table, at, pa.RecordBatchReader.from_batches(reader.schema, batches), **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_filling, "write_uncommitted", watch)
        where = f"id IN (5000, {rows - 1})"
        assert jobs.backfill("docs", {"embedding": embed}, where=where, recompute=True, batch_rows=1000).filled == 2
    assert (sum(held), max(held)) == (rows, 1000)


def test_old_values_are_read_when_they_are_needed(docs: str, jobs: TableJobs) -> None:
    jobs.compact("docs")
    jobs.add_columns("docs", {"length": length})
    [fragment] = lance.dataset(docs).get_fragments()
    connection = Connection("dir", {"root": str(Path(docs).parent)})
    table, function = TableAddress(connection, ("docs",)).to_ref(), ColumnFunction.of(length)
    options = column_filling.FillOptions(batch_rows=4)
    plan = column_filling.plan_column(table, lance.dataset(docs), "length", function, options, 1)
    old = column_filling._OldValues(fragment, plan, is_empty=False)
    taken: list[int] = []
    assert old._batches is not None
    old._batches = (taken.append(each.num_rows) or each for each in old._batches)  # type: ignore[func-returns-value]
    read = iter(old.read(30))
    assert (next(read).num_rows, taken) == (4, [4])


def test_a_changed_class_of_the_same_digest_is_made_anew(docs: str, jobs: TableJobs) -> None:
    def make(factor: int) -> Any:
        @lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
        class Scale:
            options: ClassVar = {"factor": factor}

            def __call__(self, ids: Any) -> Any:
                return pc.multiply(ids, self.options["factor"])

        return Scale

    jobs.add_columns("docs", {"a": make(2)})
    jobs.backfill("docs", {"a": make(3)}, recompute=True)
    assert read(docs, "a")[20] == 60


def test_secrets_in_exceptions_are_not_kept(docs: str, jobs: TableJobs) -> None:
    @lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
    def call(ids: Any) -> Any:
        raise OSError("cannot reach https://api/v1?api_key=SECRET123&x=1")

    jobs.add_columns("docs", {"a": call}, on_error="null")
    [one, *_] = jobs.column_errors("docs", "a")["exception"].to_pylist()
    assert one == "OSError: cannot reach https://api/v1"


@pytest.mark.parametrize(
    "wrong",
    [{"batch_rows": "x"}, {"retry_on": 5}, {"retry_on": [5]}, {"timeout_s": float("inf")}, {"resources": {"gpu": "x"}}],
)
def test_wrong_options_are_named(docs: str, jobs: TableJobs, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))} must be (?!the name of a column)"):
        jobs.backfill("docs", **wrong)


def test_only_functions_and_classes_are_marked() -> None:
    for other in (partial(len), len, "x".upper):
        with pytest.raises(InvalidInputError, match="marks a function or a class"):
            lancehouse.column(version="1", inputs=["a"])(other)


def test_a_condition_that_cannot_be_is_told_before_anything_is_begun(docs: str, jobs: TableJobs) -> None:
    jobs.define_columns("docs", {"length": length})
    with pytest.raises(InvalidInputError, match="id ==="):
        jobs.backfill("docs", where="id ===")
    assert not Path(docs, "_lancehouse").exists()


def test_records_that_are_none_are_left_out(docs: str, tmp_path: Path, often: dict[str, Any]) -> None:
    """Whoever writes the table can write anything there."""
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    COUNTS.clear()
    KILL[:] = [str(tmp_path / "killed"), "w25"]
    jobs.define_columns("docs", {"counted": counted})
    with pytest.raises(KILLED):
        jobs.backfill("docs", **often)
    for file in Path(docs).glob("_lancehouse/jobs/*/*.json"):
        record = json.loads(file.read_text())
        if record["key"] != column_filling.START:
            file.write_text(json.dumps({**record, "value": "[1, 2]"}))
    assert jobs.backfill("docs", **often).filled == 38
    assert read(docs, "counted")[20] == "W20"


def test_a_column_without_its_companion_is_listed(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    lance.dataset(docs).drop_columns(["_lancehouse_length"])
    [row] = jobs.computed_columns("docs").to_pylist()
    assert (row["filled"], row["missing"]) == (0, 38)
    with pytest.raises(InvalidInputError, match="was dropped"):
        jobs.column_errors("docs", "length")


def test_a_piece_that_is_repeated_goes_on_with_what_was_recorded(tmp_path: Path) -> None:
    """An engine may try a piece again in another process, which knows no more than the first did when it began."""
    lance.write_dataset(pa.table({"id": range(100)}), tmp_path / "t.lance", enable_stable_row_ids=True)
    called: list[int] = []
    deaths: list[InvalidInputError] = []

    @lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
    def double(ids: Any) -> Any:
        if len(called) == 60 and not deaths:
            raise SystemExit("the process is gone")
        called.extend(ids.to_pylist())
        time.sleep(0.003)
        return [number * 2 for number in ids.to_pylist()]

    class Repeating(LocalEngine):
        """Tries each piece a second time, as Spark does."""

        def run(self, pieces: Any, work: Any, resources: Any = None) -> list[str]:
            texts: list[str] = []
            for piece in pieces:
                try:
                    texts += list(work(piece))
                except InvalidInputError as death:
                    deaths.append(death)
                    token = is_repeated.set(True)
                    texts += list(work(piece))
                    is_repeated.reset(token)
            return texts

    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), Repeating(threads=1))
    jobs.add_columns("t", {"double": double}, batch_rows=10, checkpoint_rows=10, checkpoint_s=0.001)
    assert deaths
    assert sorted(set(called)) == list(range(100))
    assert len(called) <= 100 + 10, "a checkpoint at most"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that says on import that it was imported."""
    name, other = "lancehouse_trap", "lancehouse_trap_of_others"
    text = "import lancehouse, pyarrow as pa\n@lancehouse.column(version='1', inputs=['word'], returns=RETURNS)\n"
    for module, returns in ((name, "pa.int64()"), (other, "pa.list_(pa.int64())")):
        value = "[1 for _ in words]" if module == name else "[[1] for _ in words]"
        code = text.replace("RETURNS", returns) + f"def one(words):\n    return {value}\n"
        (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in (name, other):
        sys.modules.pop(module, None)


def forget(*modules: str) -> None:
    for module in modules:
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        (None, True),
        (["lancehouse_trap"], True),
        ("lancehouse_trap:one", True),
        ([], False),
        (["lancehouse_trap:other"], False),
        (["lancehouse_trap_of_others", "lancehouse_tra"], False),
        (["lancehouse_trap.inner"], False),
    ],
)
def test_what_is_not_allowed_is_never_imported(tmp_path: Path, trap: str, allowed: Any, is_allowed: bool) -> None:
    other = f"{trap}_of_others"
    rows = pa.table({"id": [1, 2], "word": ["a", "b"]})
    lance.write_dataset(rows, tmp_path / "docs.lance", enable_stable_row_ids=True)
    trusting = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    trusting.define_columns("docs", {"one": import_module(trap).one, "up": "upper(word)"})
    trusting.create_materialized_view("view", "docs", import_module(other).one, columns=["id"])
    forget(trap, other)
    careful = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1), functions=allowed)
    assert careful.backfill("docs", ["up"]).filled == 2
    if is_allowed:
        assert careful.backfill("docs", ["one"]).filled == 2
    else:
        with pytest.raises(PermissionDeniedError, match=f"{trap}:one is not imported: only"):
            careful.backfill("docs")
        assert trap not in sys.modules
    if allowed is not None and other not in allowed:
        with pytest.raises(PermissionDeniedError, match="is not imported"):
            careful.refresh("view")
        assert other not in sys.modules
    assert careful.backfill("docs", {"one": import_module(trap).one}).failed == 0, "what the caller has is used"


def test_reading_imports_nothing(tmp_path: Path, trap: str) -> None:
    """All that a server does with a table whose columns and rows functions make."""
    other = f"{trap}_of_others"
    rows = pa.table({"id": [1, 2], "word": ["a", "b"]})
    lance.write_dataset(rows, tmp_path / "docs.lance", enable_stable_row_ids=True)
    jobs = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1))
    jobs.add_columns("docs", {"one": import_module(trap).one})
    jobs.create_materialized_view("view", "docs", import_module(other).one, columns=["id"])
    forget(trap, other)
    for name in ("docs", "view"):
        table = TableRef(str(tmp_path / f"{name}.lance"))
        version_records.read_summary(table)
        row_pages.read_page(table, limit=10)
        version_records.read_versions(table, [1, 2])
        views.list_lineage(TableAddress.parse(Connection("dir", {"root": str(tmp_path)}), name))
    columns.list_columns(TableRef(str(tmp_path / "docs.lance")))
    column_states.read_failed_rows(TableRef(str(tmp_path / "docs.lance")), "one", ())
    assert not {trap, other} & sys.modules.keys()


def test_history_says_what_was_defined_and_filled(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    jobs.define_columns("docs", {"up": "upper(word)"})
    jobs.define_columns("docs", {"up": "lower(word)", "low": "lower(word)"})
    jobs.backfill("docs", ["up"])
    lance.dataset(docs).update_field_metadata({"word": {"note": "x"}})
    made = version_records.read_versions(TableRef(docs), range(2, lance.dataset(docs).version + 1))
    assert [each.message for each in made] == [
        None,
        "Define length (tests.jobs.test_columns:length 1)",
        "Fill length (tests.jobs.test_columns:length 1)",
        "Define up (SQL 'upper(word)')",
        "Define low (SQL 'lower(word)')",
        "Define up (SQL 'lower(word)')",
        "Fill up (SQL 'lower(word)')",
        None,
    ]


def test_rows_are_appended_without_companions(docs: str, jobs: TableJobs) -> None:
    jobs.add_columns("docs", {"length": length})
    lance.write_dataset(pa.table({"id": [90], "word": ["late"]}), docs, mode="append")
    assert jobs.backfill("docs").filled == 1
    assert read(docs, "length")[90] == 4
