from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.lake import history, scans
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "s": [{"a": number} for number in range(100)]})
    lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=30).delete("id < 5")
    return TableRef(str(tmp_path / "t"))


def read(table: TableRef, scan: Scan, parts: list[FragmentRange]) -> list[int | None]:
    batches = list(scan.batches(table, table.open(), parts))
    return [number for batch in batches for number in batch.column("id").to_pylist()]


@pytest.mark.parametrize(
    ("tasks", "split", "expected"),
    [
        (1, True, [[FragmentRange(0), FragmentRange(1), FragmentRange(2), FragmentRange(3)]]),
        (
            2,
            True,
            [
                [FragmentRange(0), FragmentRange(1, 0, 23)],
                [FragmentRange(1, 23, 7), FragmentRange(2), FragmentRange(3)],
            ],
        ),
        (2, False, [[FragmentRange(0), FragmentRange(1)], [FragmentRange(2), FragmentRange(3)]]),
        (50, False, [[FragmentRange(0)], [FragmentRange(1)], [FragmentRange(2)], [FragmentRange(3)]]),
    ],
)
def test_groups_of_similar_size(
    table: TableRef, monkeypatch: pytest.MonkeyPatch, tasks: int, split: bool, expected: list[list[FragmentRange]]
) -> None:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    assert split_fragments(table.open(), tasks, split=split) == expected


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 40, 95, 1000])
def test_groups_hold_every_row_once(table: TableRef, monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    made = split_fragments(table.open(), tasks, split=True)
    assert len(made) == -(-95 // -(-95 // tasks))
    assert [number for parts in made for number in read(table, Scan(("id",)), parts)] == list(range(5, 100))


def test_a_small_table_is_one_group(table: TableRef) -> None:
    assert len(split_fragments(table.open(), 8, split=True)) == 1


def test_a_table_without_rows_has_no_group(table: TableRef) -> None:
    table.open().delete("true")
    assert split_fragments(table.open(), 8, split=True) == []


def test_filter_limit_and_row_id(table: TableRef) -> None:
    scan = Scan(("id",), "id >= 28", limit=4, with_row_id=True)
    assert scan.schema(table, table.open()).names == ["id", "_rowid"]
    assert read(table, scan, [FragmentRange(0), FragmentRange(1)]) == [28, 29, 30, 31]


def test_a_limit_holds_for_each_part(table: TableRef) -> None:
    assert read(table, Scan(("id",), limit=2), [FragmentRange(0, 3, 10), FragmentRange(1, 0, 1)]) == [8, 9, 30]


def test_counting(table: TableRef) -> None:
    assert Scan(filter="id % 2 = 0").count(table, table.open(), [FragmentRange(0), FragmentRange(3)]) == 12 + 5


def test_the_index_is_used_in_a_group(table: TableRef) -> None:
    table.open().create_scalar_index("id", "BTREE")
    dataset = table.open()
    scanner = Scan(("id",), "id = 33")._scanner(dataset, [1])
    assert "ScalarIndexQuery" in scanner.explain_plan(True)
    assert read(table, Scan(("id",), "id = 33"), [FragmentRange(1)]) == [33]


def test_blobs_are_bytes(tmp_path: Path) -> None:
    field = lance.blob_field("image")
    image = pa.chunked_array([lance.blob_array([b"one", None])])
    lance.write_dataset(pa.table([image], schema=pa.schema([field])), tmp_path / "t", data_storage_version="2.2")
    table = TableRef(str(tmp_path / "t"))
    [batch] = Scan().batches(table, table.open(), [FragmentRange(0)])
    assert batch.column("image").to_pylist() == [b"one", None]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [(pa.int64(), 1 << 15), (pa.list_(pa.float32(), 128), 1 << 13), (pa.list_(pa.float32(), 2048), 1 << 9)],
    ids=str,
)
def test_long_rows_come_in_small_batches(tmp_path: Path, dtype: pa.DataType, rows: int) -> None:
    lance.write_dataset(pa.table({"v": pa.array([None] * (rows + 1), dtype)}), tmp_path / "t")
    table = TableRef(str(tmp_path / "t"))
    assert [len(batch) for batch in Scan().batches(table, table.open(), [FragmentRange(0)])] == [rows, 1]


@pytest.mark.parametrize(
    ("scan", "error", "says"),
    [
        (Scan(("nope", "id")), TableColumnNotFoundError, "has no column nope; it has id, s"),
        (Scan(filter="nope = 1"), TableColumnNotFoundError, "nope"),
        (
            Scan(filter="id ="),
            InvalidInputError,
            "statement: id = .sql parser error: Expected: an expression, found: EOF",
        ),
        (
            Scan(filter="id > 1 LIMIT 1"),
            InvalidInputError,
            "statement: id > 1 LIMIT 1 .sql parser error: Expected: EOF",
        ),
        (
            Scan(filter="id > 1) LIMIT 1 --"),
            InvalidInputError,
            r"id > 1\) LIMIT 1 -- closes a parenthesis that it does",
        ),
        (Scan(filter="id > 1) OR (id = 0"), InvalidInputError, "closes a parenthesis that it does not open"),
        (Scan(filter="id > 1)"), InvalidInputError, "closes a parenthesis that it does not open"),
        (Scan(filter="s = 'a"), InvalidInputError, "statement: s = 'a .Unterminated string literal.$"),
        (Scan(filter="id = 'x'"), InvalidInputError, "filter expression id = 'x': .*\"x\""),
        (Scan(("id", "id")), InvalidInputError, "id"),
        (Scan(limit=-1), InvalidInputError, "limit -1"),
    ],
)
def test_what_is_wrong_is_said_before_reading(table: TableRef, scan: Scan, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        scan.schema(table, table.open())


def test_a_filter_that_is_known_to_be_valid_is_not_checked(table: TableRef) -> None:
    scan = Scan(("id",), "id =", is_checked=True)
    assert scan.schema(table, table.open()).names == ["id"]


def test_moments(table: TableRef) -> None:
    dataset = table.open()
    dataset.tags.create("first", 1)
    dataset.create_branch("dev", 1)
    dataset.tags.create("dev-first", ("dev", None))
    [first, second] = dataset.versions()
    moment = first["timestamp"].astimezone(UTC)
    cases = {
        VersionSelector(): TableRef(table.location, version=2),
        VersionSelector(version=1): TableRef(table.location, version=1),
        VersionSelector(tag="first"): TableRef(table.location, version=1),
        VersionSelector(tag="dev-first"): TableRef(table.location, version=1, branch="dev"),
        VersionSelector(as_of=moment): TableRef(table.location, version=1),
        VersionSelector(as_of=datetime.now(UTC) + timedelta(days=1)): TableRef(table.location, version=2),
    }
    for asked, expected in cases.items():
        found, opened = asked.open(table)
        assert found == expected
        assert (opened.version, opened.count_rows()) == (expected.version, found.open().count_rows())
    assert second["version"] == 2


@pytest.mark.parametrize(
    ("moment", "error", "says"),
    [
        (VersionSelector(version=9), TableVersionNotFoundError, "9"),
        (VersionSelector(tag="nope"), TableTagNotFoundError, "nope"),
        (
            VersionSelector(as_of=datetime(2001, 1, 1, tzinfo=UTC)),
            TableVersionNotFoundError,
            "had no version yet at 2001",
        ),
    ],
)
def test_moments_that_never_were(table: TableRef, moment: VersionSelector, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        moment.open(table)


def test_a_moment_of_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        VersionSelector().open(TableRef(str(tmp_path / "nope")))


def test_one_moment_at_a_time() -> None:
    with pytest.raises(InvalidInputError, match="give one of them"):
        VersionSelector(version=1, tag="first")


def test_each_version_is_read_by_the_time_that_its_history_tells(tmp_path: Path) -> None:
    for _ in range(8):
        lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t", mode="append")
    table = TableRef(str(tmp_path / "t"))
    known = history.read_history(table)
    assert known is not None
    for made in known.versions:
        told = datetime.fromtimestamp(made.timestamp_ms / 1000, UTC)
        newest = max(each.version for each in known.versions if each.timestamp_ms == made.timestamp_ms)
        for moment in (told, told.isoformat(), told.astimezone().replace(tzinfo=None)):
            assert VersionSelector(as_of=moment).open(table)[0].version == newest, (made, moment)


@pytest.mark.parametrize(
    "condition",
    ["'x' <> ')'", "'x' <> 'it''s )' -- )", "'x' <> ')' /* ) */", "`id` > 1 -- it's )", "((id > 0)) OR (id = 0)"],
)
def test_a_parenthesis_in_a_text_or_a_comment_closes_nothing(table: TableRef, condition: str) -> None:
    Scan(filter=condition).schema(table, table.open())
