"""Merges, compared with a model in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance_namespace import DeclareTableRequest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
)
from pyspark.sql import DataFrame

from lancehouse.jobs import merge as merge_module
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import ChangeResult, WriteOptions
from lancehouse.jobs.merge import FEW_ROWS
from lancehouse.jobs.merge_keys import MergeRules
from lancehouse.lake import scans
from lancehouse.lake.row_changes import commit_rewrite
from lancehouse.spark.merge import merge
from tests.spark.homes import KINDS, JobTable, home_of

Row = tuple[int | None, str | None, str]
"""Two columns that may be keys, and a value."""

NOTHING = WriteOptions()
STRUCT = "id long, part string, value string"
FIELDS: list[Any] = [("id", pa.int64()), ("part", pa.string()), ("value", pa.string())]
SCHEMA = pa.schema(FIELDS)
RULES = [
    MergeRules(matched, not_matched, delete_by_source=by_source)
    for matched in ("update", "ignore", "delete")
    for not_matched in ("insert", "ignore")
    for by_source in (False, True)
    if (matched, not_matched, by_source) != ("ignore", "ignore", False)
]


@pytest.fixture(autouse=True)
def _several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For few rows too."""
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest) -> JobTable:
    return home_of(request, request.param)


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> JobTable:
    return home_of(request, "path")


@pytest.fixture(params=["few", "many"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that tasks hold, and keys that Spark joins."""
    if request.param == "many":
        monkeypatch.setattr(merge_module, "FEW_ROWS", -1)


def model(target: list[Row], source: list[Row], keys: int, rules: MergeRules) -> tuple[list[Row], tuple[int, int, int]]:
    """The rows afterwards, and how many were inserted, updated and deleted."""

    def key(row: Row) -> tuple[object, ...] | None:
        return None if None in row[:keys] else row[:keys]

    known = {key(row): row for row in source if key(row) is not None}
    kept, seen, updated, deleted = list[Row](), set[object](), 0, 0
    for row in target:
        if (found := known.get(key(row))) is None:
            kept += [] if rules.delete_by_source else [row]
            deleted += rules.delete_by_source
            continue
        seen.add(key(row))
        updated += rules.when_matched == "update"
        deleted += rules.when_matched == "delete"
        kept += {"update": [found], "ignore": [row], "delete": []}[rules.when_matched]
    new = [row for row in source if rules.when_not_matched == "insert" and key(row) not in seen]
    return sorted([*kept, *new], key=repr), (len(new), updated, deleted)


def table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table([list(column) for column in columns], schema=SCHEMA)


def frame(spark: Any, rows: list[Row]) -> DataFrame:
    found: DataFrame = spark.createDataFrame(rows, STRUCT)
    return found


def counts(done: ChangeResult) -> tuple[int, int, int]:
    return done.inserted, done.updated, done.deleted


TARGET: list[Row] = [
    *((number, "a", f"old {number}") for number in range(12)),
    (None, "a", "old null"),
    (3, "a", "old again"),
    (4, "b", "old 4b"),
    (5, None, "old half"),
]
SOURCE: list[Row] = [
    *((number, "a", f"new {number}") for number in (3, 4, 7, 20, 21)),
    (None, "a", "new null"),
    (None, "a", "new other null"),
]


@pytest.mark.parametrize(("rules", "few"), [*zip(RULES, cycle([FEW_ROWS, -1]))], ids=str)
def test_every_rule(spark: Any, plain: JobTable, monkeypatch: pytest.MonkeyPatch, rules: MergeRules, few: int) -> None:
    monkeypatch.setattr(merge_module, "FEW_ROWS", few)
    plain.write(table(TARGET), max_rows_per_file=4)
    plain.open().delete("value IN ('old 7', 'old 8')")
    rows = [row for row in TARGET if row[2] not in ("old 7", "old 8")]
    done = merge(frame(spark, SOURCE), plain.address, ["id"], rules, NOTHING)
    expected, numbers = model(rows, SOURCE, 1, rules)
    assert plain.rows() == expected
    assert counts(done) == numbers
    assert done.version == plain.open().version == 3
    check_files(plain)


@pytest.mark.parametrize("rules", [MergeRules(), MergeRules("update", "ignore", delete_by_source=True)], ids=str)
def test_every_home(spark: Any, home: JobTable, rules: MergeRules) -> None:
    home.write(table(TARGET), max_rows_per_file=4)
    done = merge(frame(spark, SOURCE), home.address, ["id", "part"], rules, NOTHING)
    expected, numbers = model(TARGET, SOURCE, 2, rules)
    assert home.rows() == expected
    assert counts(done) == numbers
    check_files(home)


KEYS = st.tuples(st.none() | st.integers(0, 6), st.none() | st.sampled_from("ab"))


@st.composite
def merges(draw: st.DrawFn) -> dict[str, Any]:
    """A table, rows to merge, and how."""
    keys = draw(st.integers(1, 2))
    target = [(*key, f"old {number}") for number, key in enumerate(draw(st.lists(KEYS, max_size=12)))]
    unique = draw(st.lists(KEYS, max_size=8, unique_by=lambda key: (key[:keys], None in key[:keys] and object())))
    return {
        "target": target,
        "source": [(*key, f"new {number}") for number, key in enumerate(unique)],
        "keys": keys,
        "rules": draw(st.sampled_from(RULES)),
        "gone": draw(st.sets(st.integers(0, 11), max_size=4)),
        "rows_in_file": draw(st.integers(1, 5)),
        "stable": draw(st.booleans()),
        "many": draw(st.booleans()),
    }


@pytest.mark.filterwarnings("ignore:No existing dataset")
@settings(max_examples=12, deadline=None, suppress_health_check=[*HealthCheck])
@example(
    case={
        "target": [(1, "a", "old 0"), (1, "a", "old 1"), (2, "a", "old 2"), (None, "a", "old 3")],
        "source": [(1, "a", "new 0"), (3, "a", "new 1"), (2, "a", "new 2"), (None, "a", "new 3")],
        "keys": 1,
        "rules": MergeRules(),
        "gone": {2},
        "rows_in_file": 2,
        "stable": True,
        "many": True,
    }
)
@given(case=merges())
def test_generated_merges(spark: Any, case: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if case["many"]:
            patch.setattr(merge_module, "FEW_ROWS", -1)
        home = JobTable(TableAddress(path=folder + "/t"))
        home.write(table(case["target"]), max_rows_per_file=case["rows_in_file"], enable_stable_row_ids=case["stable"])
        gone = {f"old {number}" for number in case["gone"]}
        home.open().delete(f"value IN ({', '.join(map(repr, sorted(gone)))})" if gone else "false")
        target = [row for row in case["target"] if row[2] not in gone]
        ids = row_ids(home)
        on = ["id", "part"][: case["keys"]]
        done = merge(frame(spark, case["source"]), home.address, on, case["rules"], NOTHING)
        expected, numbers = model(target, case["source"], case["keys"], case["rules"])
        assert home.rows() == expected
        assert counts(done) == numbers
        check_files(home)
        after = row_ids(home)
        assert len(after) == len(expected)
        if case["stable"]:
            same = [
                row[: case["keys"]] == after[number][: case["keys"]] for number, row in ids.items() if number in after
            ]
            assert all(same)
            assert len(same) == len(target) - done.deleted


def row_ids(home: JobTable) -> dict[int, Row]:
    found = home.open().to_table(with_row_id=True).to_pylist()
    return {row["_rowid"]: (row["id"], row["part"], row["value"]) for row in found}


def check_files(home: JobTable) -> None:
    """See that each data file and each deletion file is one of a version, and that no record is left."""
    named = set[str]()
    latest = home.open()
    for version in latest.versions():
        for fragment in latest.checkout_version(version["version"]).get_fragments():
            found = fragment.metadata
            named |= {f"data/{file.path}" for file in found.files}
            named |= {found.deletion_file.path(found.id)} if found.deletion_file else set()
    there = {file for file in home.files() if file.startswith(("data/", "_deletions/", "_lancehouse/"))}
    assert there == named


def test_other_types_of_keys(spark: Any, plain: JobTable) -> None:
    """As the table has them, not as Spark does: these differ by a nanosecond."""
    times = pa.array([1_000_000_001, 1_000_000_002], pa.timestamp("ns"))
    plain.write(pa.table({"at": times, "value": ["old 1", "old 2"]}))
    source = spark.sql("SELECT timestamp_ntz'1970-01-01 00:00:01' AS at, 'new' AS value")
    assert counts(merge(source, plain.address, ["at"], MergeRules(), NOTHING)) == (1, 0, 0)
    assert counts(merge(source, plain.address, ["at"], MergeRules(), NOTHING)) == (0, 1, 0)
    assert plain.open().count_rows() == 3


def test_indices_find_what_was_merged(spark: Any, plain: JobTable) -> None:
    plain.write(table(TARGET), max_rows_per_file=4)
    plain.open().create_scalar_index("id", "BTREE")
    plain.open().create_scalar_index("value", "BITMAP")
    merge(frame(spark, SOURCE), plain.address, ["id"], MergeRules(), NOTHING)

    def find(where: str) -> list[str]:
        assert "ScalarIndex" in plain.open().scanner(filter=where).explain_plan()
        return sorted(plain.open().to_table(["value"], filter=where).column("value").to_pylist())

    assert find("id = 3") == ["new 3", "new 3"]
    assert find("id = 20") == ["new 20"]
    assert find("value = 'old 3'") == []
    assert find("value = 'new 7'") == ["new 7"]


def test_the_frame_is_evaluated_once(spark: Any, plain: JobTable, tmp_path: Path) -> None:
    plain.write(table(TARGET), max_rows_per_file=4)
    log = tmp_path / "evaluated"

    def count_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with log.open("a") as file:
                file.write(f"{batch.num_rows}\n")
            yield batch

    source = frame(spark, SOURCE).mapInArrow(count_batch, STRUCT)
    for rules in (MergeRules(), MergeRules("ignore"), MergeRules("update", "ignore"), MergeRules("delete", "ignore")):
        log.write_text("")
        merge(source, plain.address, ["id"], rules, NOTHING)
        assert sum(map(int, log.read_text().split())) == len(SOURCE)


# What is refused


@pytest.mark.parametrize(
    ("select", "on", "rules", "error"),
    [
        (["*"], [], MergeRules(), InvalidInputError),
        (["*"], "nope", MergeRules(), TableColumnNotFoundError),
        (["part", "value"], "id", MergeRules(), TableColumnNotFoundError),
        (["id", "part"], "id", MergeRules(), TableSchemaValidationError),
        (["*", "1 AS more"], "id", MergeRules(), TableSchemaValidationError),
        (["array(id) AS id", "part", "value"], "id", MergeRules(), TableSchemaValidationError),
        (["array(id) AS id"], "id", MergeRules("delete", "ignore"), TableSchemaValidationError),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_work_starts(
    spark: Any,
    plain: JobTable,
    select: list[str],
    on: str | list[str],
    rules: MergeRules,
    error: type[LanceNamespaceError],
) -> None:
    def evaluate(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("too late")

    plain.write(table(TARGET))
    source = frame(spark, SOURCE).mapInArrow(evaluate, STRUCT).selectExpr(*select)
    before = plain.files()
    with pytest.raises(error) as raised:
        merge(source, plain.address, on, rules, NOTHING)
    assert raised.type is error
    assert plain.files() == before


@pytest.mark.usefixtures("_ways")
def test_a_key_that_is_there_twice(spark: Any, home: JobTable) -> None:
    home.write(table(TARGET))
    before = home.files()
    twice: list[Row] = [*SOURCE, (7, "b", "new 7b")]
    with pytest.raises(InvalidInputError, match="same key, id=7;"):
        merge(frame(spark, twice), home.address, ["id"], MergeRules(), NOTHING)
    assert home.files() == before


TWICE = "id long, part string, value string, at int, n int"


@pytest.mark.usefixtures("_ways")
def test_the_last_row_of_each_key(spark: Any, plain: JobTable) -> None:
    plain.write(table(TARGET))
    rows: list[Any] = [(7, "a", "second", 2, 0), (7, "a", "first", 1, 0)]
    rows += [(900, "a", "null", None, 0), (900, "a", "one", 1, 0)]
    rows += [(None, "a", "no key", 1, 0), (None, "a", "no key", 1, 0)]
    source = spark.createDataFrame(rows, TWICE).drop("n")
    found = merge(source, plain.address, ["id"], MergeRules(), NOTHING, latest_by=["at"])
    assert (found.inserted, found.updated) == (3, 1)
    merged = [row for row in plain.rows() if row[0] in (7, 900)]
    assert sorted((row[0], row[2]) for row in merged) == [(7, "second"), (900, "one")]


def test_rows_that_nothing_tells_apart(spark: Any, plain: JobTable) -> None:
    plain.write(table(TARGET))
    before = plain.files()
    frame = spark.createDataFrame([(7, "a", "x", 1, 1), (7, "a", "y", 1, 2), (7, "a", "z", 0, 3)], TWICE)
    with pytest.raises(InvalidInputError, match="same key, id=7; both are the last by at: name a further column"):
        merge(frame.drop("n"), plain.address, ["id"], MergeRules(), NOTHING, latest_by=["at"])
    with pytest.raises(InvalidInputError, match="same key, id=7; drop one of them, or name in latest_by"):
        merge(frame.drop("n", "at"), plain.address, ["id"], MergeRules(), NOTHING)
    assert plain.files() == before
    merge(frame, plain.address, ["id"], MergeRules(), NOTHING, latest_by=["at", "n"])
    assert [row[2] for row in plain.rows() if row[0] == 7] == ["y"]


@pytest.mark.parametrize(
    ("latest_by", "error", "says"),
    [
        ("nope", TableColumnNotFoundError, "has no column nope for latest_by; it has id, value"),
        ("id", InvalidInputError, "latest_by names id, which is in the key"),
        ("m", InvalidInputError, "latest_by names m, and values of type map have no order"),
    ],
)
def test_what_is_no_order(spark: Any, plain: JobTable, latest_by: str, error: type[Exception], says: str) -> None:
    plain.write(table(TARGET))
    frame = spark.range(3).selectExpr("id", "'v' AS value", "map(1, 2) AS m")
    with pytest.raises(error, match=says):
        merge(frame, plain.address, ["id"], MergeRules(), NOTHING, latest_by=[latest_by])


def test_a_value_that_does_not_fit_leaves_nothing(spark: Any, home: JobTable) -> None:
    home.write(pa.table({"id": pa.array(range(9), pa.int16()), "value": ["old"] * 9}))
    before = home.files()
    source = spark.range(1, 9, 1, 4).selectExpr("cast(id * 4096 AS int) AS id", "'new' AS value")
    with pytest.raises(InvalidInputError, match="column id"):
        merge(source, home.address, ["id"], MergeRules(), NOTHING)
    assert home.files() == before


def test_a_function_that_fails_leaves_nothing(spark: Any, plain: JobTable) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 8 in batch.column(0).to_pylist():
                raise ValueError("not eight")
            yield batch

    plain.write(pa.table({"id": range(9)}))
    before = plain.files()
    source = spark.range(1, 9, 1, 4).mapInArrow(fails, "id long")
    with pytest.raises(InternalError, match="not eight"):
        merge(source, plain.address, ["id"], MergeRules(), NOTHING)
    assert plain.files() == before


def test_a_table_that_is_not_there(spark: Any, request: pytest.FixtureRequest) -> None:
    with pytest.raises(TableNotFoundError):
        merge(frame(spark, SOURCE), home_of(request, "dir").address, ["id"], MergeRules(), NOTHING)


@pytest.mark.parametrize("kind", ["dir", "managed"])
def test_a_table_that_is_only_declared(spark: Any, request: pytest.FixtureRequest, kind: str) -> None:
    home = home_of(request, kind)
    table = home.address.to_ref()
    assert table.namespace is not None
    table.namespace.declare_table(DeclareTableRequest(id=list(table.id)))
    with pytest.raises(TableNotFoundError):
        merge(frame(spark, SOURCE), home.address, ["id"], MergeRules("update", "ignore"), NOTHING)
    before = home.files()
    with pytest.raises(InvalidInputError, match="same key, part='a'"):
        merge(frame(spark, SOURCE), home.address, ["part"], MergeRules(), NOTHING)
    assert home.files() == before
    assert merge(frame(spark, SOURCE), home.address, ["id"], MergeRules(), NOTHING) == ChangeResult(
        1, inserted=len(SOURCE)
    )
    assert home.rows() == sorted(SOURCE, key=repr)
    check_files(home)


def test_the_same_run_merges_once(spark: Any, plain: JobTable) -> None:
    plain.write(table(TARGET))
    how = WriteOptions(run="r1")
    first = merge(frame(spark, SOURCE), plain.address, ["id"], MergeRules(), how)
    assert merge(frame(spark, SOURCE), plain.address, ["id"], MergeRules(), how) == ChangeResult(first.version)
    assert plain.rows("value").count(("new null",)) == 1


# Others at the same time


def interrupt(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], object]) -> None:
    """Let others change the table, each just before a commit."""
    left = list(others)

    def commit_late(*arguments: Any, **more: Any) -> int:
        if left:
            left.pop(0)()
        return commit_rewrite(*arguments, **more)

    monkeypatch.setattr(merge_module, "commit_rewrite", commit_late)


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("rules", [MergeRules(), MergeRules("update", "ignore"), MergeRules("delete")], ids=str)
def test_what_others_change_first_is_seen(
    spark: Any, plain: JobTable, monkeypatch: pytest.MonkeyPatch, rules: MergeRules
) -> None:
    """A row that matched is gone, and one that did not is there: by two others, the second of whom merges."""
    plain.write(table(TARGET), max_rows_per_file=4)
    new: list[Row] = [(20, "a", "theirs")]
    interrupt(
        monkeypatch,
        lambda: plain.open().delete("id IN (3, 5)"),
        lambda: merge(frame(spark, new), plain.address, ["id"], MergeRules(), NOTHING),
    )
    done = merge(frame(spark, SOURCE), plain.address, ["id"], rules, NOTHING)
    seen = [row for row in TARGET if row[0] not in (3, 5)] + new
    expected, numbers = model(seen, SOURCE, 1, rules)
    assert plain.rows() == expected
    assert counts(done) == numbers
    check_files(plain)


@pytest.mark.usefixtures("_ways")
def test_a_key_that_others_insert_first_is_there_once(
    spark: Any, plain: JobTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.write(table(TARGET), max_rows_per_file=4)
    new: list[Row] = [(20, "a", "theirs")]
    interrupt(monkeypatch, lambda: merge(frame(spark, new), plain.address, ["id"], MergeRules("ignore"), NOTHING))
    done = merge(frame(spark, SOURCE), plain.address, ["id"], MergeRules("ignore"), NOTHING)
    expected, numbers = model([*TARGET, *new], SOURCE, 1, MergeRules("ignore"))
    assert plain.rows() == expected
    assert counts(done) == numbers
    check_files(plain)


def test_merges_of_pylance_are_seen(spark: Any, home: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """They insert a key, and do not tell what they are."""
    home.write(table(TARGET), max_rows_per_file=4)
    theirs: list[Row] = [(20, "a", "theirs")]
    interrupt(monkeypatch, lambda: home.open().merge_insert("id").when_not_matched_insert_all().execute(table(theirs)))
    merge(frame(spark, SOURCE), home.address, ["id"], MergeRules("ignore"), NOTHING)
    assert home.rows() == model([*TARGET, *theirs], SOURCE, 1, MergeRules("ignore"))[0]


def test_an_append_lands_beside(spark: Any, home: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write(table(TARGET), max_rows_per_file=4)
    theirs: list[Row] = [(20, "a", "theirs")]
    interrupt(monkeypatch, lambda: home.write(table(theirs)))
    merge(frame(spark, SOURCE), home.address, ["id"], MergeRules(), NOTHING)
    assert home.rows() == sorted([*model(TARGET, SOURCE, 1, MergeRules())[0], *theirs], key=repr)


def test_other_columns_are_in_the_way(spark: Any, plain: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.write(table(TARGET), max_rows_per_file=4)
    other = pa.table({"value": ["x"], "id": pa.array([3], pa.int64()), "part": ["a"]})
    interrupt(monkeypatch, lambda: lance.write_dataset(other, plain.folder(), mode="overwrite"))
    with pytest.raises(ConcurrentModificationError, match="columns have changed"):
        merge(frame(spark, SOURCE), plain.address, ["id"], MergeRules(), NOTHING)
    assert plain.rows("value") == [("x",)]
    check_files(plain)


@pytest.mark.parametrize("rows", [TARGET, []], ids=["rows", "no rows"])
def test_no_row_is_lost_or_doubled(spark: Any, home: JobTable, rows: list[Row]) -> None:
    """Three merges of the same keys, each with one of its own, and appends beside them."""
    home.write(table(rows), max_rows_per_file=4)

    def upsert(number: int) -> ChangeResult:
        mine: list[Row] = [*((key, "a", f"merge {number}") for key in (3, 7, 20)), (100 + number, "a", "mine")]
        return merge(frame(spark, mine), home.address, ["id"], MergeRules(), NOTHING)

    def append(number: int) -> None:
        home.write(table([(1000 + number, "a", "beside")]))

    with ThreadPoolExecutor(6) as threads:
        done = threads.map(upsert, range(3))
        list(threads.map(append, range(3)))
        versions = {each.version: number for number, each in enumerate(done)}
    last = versions[max(versions)]
    keys = [3, 3, 7, 20] if rows else [3, 7, 20]
    expected = [
        *(row for row in rows if row[0] not in (3, 7, 20)),
        *((key, "a", f"merge {last}") for key in keys),
        *((100 + number, "a", "mine") for number in range(3)),
        *((1000 + number, "a", "beside") for number in range(3)),
    ]
    assert home.rows() == sorted(expected, key=repr)
    check_files(home)
