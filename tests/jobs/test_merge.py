from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from lancehouse.jobs.merge_keys import (
    SOURCE,
    TARGET,
    MatchResult,
    MergeRules,
    MergeSource,
    RowSelector,
    SelectedRows,
    check_keys,
    find_duplicate,
    format_key,
    key_schema,
    merge_small_source,
    read_keys,
)
from lancehouse.lake.commits import FileLayout, NewFragment, TableLocation, write_uncommitted
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.row_changes import commit_rewrite
from lancehouse.lake.scans import FragmentRange
from tests.lake.store import BUCKET, FakeStore

KEYS: dict[str, Any] = {
    "int8": pa.array([1, -1, 127, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, 2**63, 1, None], pa.uint64()),
    "bool": pa.array([True, False, None]),
    "half": pa.array(np.array([0.5, -1], "f2")),
    "float": pa.array([0.0, math.nan, math.inf, 0.1, None], pa.float32()),
    "double": pa.array([0.0, math.nan, 1e300, 5e-324, None]),
    "text": pa.array(["", "a", "A", "é", "e\u0301", None]),
    "large text": pa.array(["", "a", None], pa.large_string()),
    "binary": pa.array([b"", b"\x00", b"\x00\x00", None]),
    "fixed": pa.array([b"ab", b"ac", None], pa.binary(2)),
    "words": pa.array(["a", "b", "c", None]).dictionary_encode(),
    "decimal": pa.array([Decimal("1.50"), Decimal("-1.50"), None], pa.decimal128(30, 2)),
    "large decimal": pa.array([Decimal("1.50"), Decimal("-1.50"), None], pa.decimal256(60, 2)),
    "date": pa.array([0, 1, -1, None], pa.date32()),
    "date64": pa.array([0, 86_400_000, None], pa.date64()),
    "nanoseconds": pa.array([0, 1, 999, 1000, -1, None], pa.timestamp("ns")),
    "zone": pa.array([0, 1, None], pa.timestamp("us", "Asia/Tokyo")),
    "time": pa.array([0, 1, None], pa.time64("ns")),
    "time32": pa.array([0, 1, None], pa.time32("ms")),
    "duration": pa.array([0, 1, None], pa.duration("ns")),
    "uuid": pa.array([UUID(int=1).bytes, UUID(int=2).bytes, None], pa.uuid()),
}


def table_of(where: Path | str, rows: pa.Table, options: dict[str, str] | None = None, **more: Any) -> TableRef:
    dataset = lance.write_dataset(rows, str(where), storage_options=options, **more)
    return TableRef(dataset.uri, options or {})


def source_of(table: TableRef, *rows: pa.Table, on: tuple[str, ...] = ("id",)) -> MergeSource:
    """Rows that are written where a table is; each of these becomes a piece."""
    pieces = [piece for each in rows for piece in writer(table)(each.to_reader())]
    return MergeSource(tuple(pieces), on)


def place_of(table: TableRef) -> TableLocation:
    assert table.location is not None
    return TableLocation(table.location, table.storage_options)


def writer(table: TableRef) -> Any:
    return lambda rows: write_uncommitted(table, place_of(table), rows, mode="append", layout=FileLayout())


def keys_of(table: TableRef, dataset: lance.LanceDataset, on: tuple[str, ...] = ("id",)) -> pa.Table:
    parts = [FragmentRange(each.fragment_id) for each in dataset.get_fragments()]
    return pa.Table.from_batches(read_keys(table, dataset, parts, on), key_schema(dataset.schema, on))


# Rules and keys


@pytest.mark.parametrize("words", [("Update", "insert"), ("update", "add"), (None, "insert"), ("ignore", "ignore")])
def test_rules_that_mean_nothing(words: tuple[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=r"when_matched|when_not_matched|does nothing"):
        MergeRules(*words)


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_equal_where_values_are(tmp_path: Path, name: str) -> None:
    values = KEYS[name]
    rows = pa.table({"id": values})
    table = table_of(tmp_path / "t", rows)
    check_keys(table, rows.schema, ["id"])
    found = keys_of(table, table.open())
    again = keys_of(table, source_of(table, rows).open(table, place_of(table), table.open()))
    assert found.column("k0").equals(again.column("k0"))
    known = found.column("k0").to_pylist()
    assert known.count(None) == values.null_count
    assert all(one != other for one, other in combinations(known, 2))


def test_a_zero_has_no_sign_and_nan_is_nan(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", pa.table({"id": [0.0, -0.0, math.nan, -math.nan]}))
    zero, negative, nan, other = keys_of(table, table.open()).column("k0").to_pylist()
    assert (zero, nan) == (negative, other)


@pytest.mark.parametrize(
    ("on", "error"),
    [
        ([], InvalidInputError),
        (["id", "id"], InvalidInputError),
        (["nope"], TableColumnNotFoundError),
        (["in.n"], TableColumnNotFoundError),
        (["in"], InvalidInputError),
        (["many"], InvalidInputError),
        (["data"], InvalidInputError),
        (["json"], InvalidInputError),
    ],
    ids=str,
)
def test_keys_that_cannot_be(on: list[str], error: type[Exception]) -> None:
    fields = [("id", pa.int64()), ("in", pa.struct([("n", pa.int64())])), ("many", pa.list_(pa.int64()))]
    schema = pa.schema([*fields, blob_field("data"), ("json", pa.json_())])
    with pytest.raises(error):
        check_keys("t", schema, on)


# Rows that are not committed


@pytest.fixture(params=["folder", "uri", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if request.param == "folder":
        yield str(tmp_path / "dätä of 100 %"), {}
    elif request.param == "uri":
        yield (tmp_path / "dätä of 100 %").as_uri(), {}
    else:
        with FakeStore() as store:
            yield f"s3://{BUCKET}/a b/t", store.options


def test_rows_are_read_before_they_are_committed(place: tuple[str, dict[str, str]]) -> None:
    where, options = place
    schema = pa.schema([("id", pa.int64()), ("gone", pa.int64()), blob_field("data")])

    def rows(first: int) -> pa.Table:
        data = blob_array([b"x" * 70_000, None])
        return pa.table([pa.array([first, first + 1]), pa.array([0, 0]), data], schema=schema)

    table = table_of(where, rows(0), options)
    table.open().drop_columns(["gone"])
    source = source_of(table, rows(10).drop(["gone"]), rows(20).drop(["gone"]))
    opened = source.open(table, place_of(table), table.open())
    assert opened.to_table(blob_handling="all_binary", with_row_address=True).to_pylist() == [
        {"id": 10, "data": b"x" * 70_000, "_rowaddr": 0},
        {"id": 11, "data": None, "_rowaddr": 1},
        {"id": 20, "data": b"x" * 70_000, "_rowaddr": 1 << 32},
        {"id": 21, "data": None, "_rowaddr": (1 << 32) + 1},
    ]
    assert table.open().count_rows() == 2


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2, None, None], pa.int64()), "day": ["a", "a", "a", "a"]})
    table = table_of(tmp_path / "t", rows)
    on = ("id", "day")
    once = source_of(table, rows, on=on).open(table, place_of(table), table.open())
    assert find_duplicate(keys_of(table, once, on)) is None
    twice = source_of(table, rows, rows.slice(1, 1), on=on).open(table, place_of(table), table.open())
    found = find_duplicate(keys_of(table, twice, on))
    assert found is not None
    assert format_key(table, twice, on, found) == "id=2, day='a'"


# Matching


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableRef:
    """Keys 0 to 9 in two fragments, 8 twice, and one that is null."""
    rows = pa.table({"id": pa.array([*range(10), 8, None], pa.int64()), "word": ["old"] * 12})
    return table_of(tmp_path / "t", rows, max_rows_per_file=6, enable_stable_row_ids=request.param)


def words(*keys: int | None) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "word": [f"new {key}" for key in keys]})


def match(table: TableRef, source: MergeSource, rules: MergeRules) -> tuple[MatchResult, RowSelector]:
    """Match in one go; and what chooses then."""
    dataset = table.open()
    opened = source.open(table, place_of(table), dataset)
    parts = [FragmentRange(each.fragment_id) for each in dataset.get_fragments()]
    found = merge_small_source(table, dataset, parts, keys_of(table, opened), source.on, rules)
    choice = RowSelector(table, dataset, source, opened, rules, writer(table))
    return MatchResult.from_json(found.to_json()), choice


def test_matches(table: TableRef) -> None:
    found, _ = match(table, source_of(table, words(3, 20), words(8, None)), MergeRules())
    assert found.matches is not None
    pairs = {(row[TARGET], row[SOURCE]) for row in found.matches.to_pylist()}
    assert pairs == {(3, 0), ((1 << 32) + 2, 1 << 32), ((1 << 32) + 4, 1 << 32)}
    assert found.change.rows == 3


def test_rows_that_nothing_matches(table: TableRef) -> None:
    found, _ = match(table, source_of(table, words(3, None)), MergeRules("ignore", "ignore", delete_by_source=True))
    assert found.change.rows == 11
    assert found.matches is not None
    assert found.matches.num_rows == 0


@pytest.mark.parametrize(
    ("rules", "expected", "counts"),
    [
        (MergeRules(), [3, 8, 8, 20], (1, 3)),
        (MergeRules("update", "ignore"), [3, 8, 8], (0, 3)),
        (MergeRules("ignore"), [20], (1, 0)),
        (MergeRules("delete"), [20], (1, 0)),
    ],
    ids=str,
)
def test_rows_are_chosen(table: TableRef, rules: MergeRules, expected: list[int], counts: tuple[int, int]) -> None:
    source = source_of(table, words(20, 3, 8))
    found, choice = match(table, source, rules)
    assert found.matches is not None
    columns = found.matches.to_pydict()
    chosen = choice.select(0, np.array(columns[SOURCE]), np.array(columns["_rowid"]))
    assert SelectedRows.from_json(chosen.to_json()) == chosen
    assert (chosen.inserted, chosen.updated) == counts
    pieces = tuple(piece for piece in (chosen.reused, *chosen.new) if piece is not None)
    new = MergeSource(pieces, ("id",)).open(table, place_of(table), table.open()).to_table()
    assert sorted(new.column("id").to_pylist()) == expected
    assert set(new.column("word").to_pylist()) == {f"new {key}" for key in expected}


@pytest.mark.parametrize(
    ("keys", "is_kept"),
    [((3, 4), True), ((4, 3), True), ((3, 20), True), ((20, 3), False), ((20, 21), True), ((8,), False)],
    ids=str,
)
def test_rows_that_are_all_wanted_stay_where_they_are(table: TableRef, keys: tuple[int, ...], is_kept: bool) -> None:
    """Where row ids are stable, rows that are there already have to come first; a row that is there twice is copied."""
    source = source_of(table, words(*keys))
    before = {row["_rowid"]: row["id"] for row in table.open().to_table(with_row_id=True).to_pylist()}
    found, choice = match(table, source, MergeRules())
    assert found.matches is not None
    columns = found.matches.to_pydict()
    chosen = choice.select(0, np.array(columns[SOURCE], np.int64), np.array(columns["_rowid"], np.int64))
    stable = table.open().has_stable_row_ids
    assert (chosen.reused is not None) == (is_kept or not stable)
    new: tuple[NewFragment, ...] = tuple(piece for piece in (chosen.reused, *chosen.new) if piece is not None)
    merged = replace(found.change, new=new)
    commit_rewrite(table, place_of(table), table.open(), merged, ["id", "word"], is_merge=True)
    after = {row["_rowid"]: row["id"] for row in table.open().to_table(with_row_id=True).to_pylist()}
    assert len(after) == table.open().count_rows() == 12 + len({20, 21} & set(keys))
    if stable:
        assert {row: after[row] for row in before} == before
