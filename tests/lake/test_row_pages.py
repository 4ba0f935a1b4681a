from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from lancehouse.lake.dataset import TableRef
from lancehouse.server.console import row_pages


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableRef:
    """Rows in several fragments, some of them deleted."""
    place = tmp_path_factory.mktemp("pages") / "t"
    rows = pa.table(
        {"id": range(100), "text": [f"n{each}" for each in range(100)], "raw": [b"x" * each for each in range(100)]}
    )
    dataset = lance.write_dataset(rows, place, max_rows_per_file=30)
    dataset.delete("id % 10 = 0")
    return TableRef(str(place))


def test_pages_are_all_rows_in_their_order(table: TableRef) -> None:
    found: list[object] = []
    offset = 0
    while True:
        page = row_pages.read_page(table, columns=["id"], offset=offset, limit=7)
        found += [row[0] for row in page.rows]
        offset += len(page.rows)
        if not page.has_more:
            break
    assert found == [each for each in range(100) if each % 10]
    assert page.version == 2


def test_a_page_after_the_last_is_empty(table: TableRef) -> None:
    page = row_pages.read_page(table, offset=10_000, limit=5)
    assert (page.rows, page.ids, page.has_more) == ([], [], False)


def test_filters_and_counts_agree(table: TableRef) -> None:
    page = row_pages.read_page(table, columns=["id"], filter="text LIKE 'n1%'", limit=50)
    assert [row[0] for row in page.rows] == [1, *range(11, 20)]
    assert row_pages.count_matching_rows(table, "text LIKE 'n1%'") == len(page.rows)
    assert row_pages.count_matching_rows(table, None) == 90


def test_a_row_is_found_again_by_its_id(table: TableRef) -> None:
    page = row_pages.read_page(table, columns=["id"], filter="id >= 64", limit=3)
    assert [row_pages.read_value(table, "text", row) for row in page.ids] == ["n64", "n65", "n66"]
    assert row_pages.read_content(table, "raw", page.ids[0], most=64) == b"x" * 64


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [("raw", 64, "has 64 bytes, and at most 10 are shown"), ("text", 64, "column text holds text, no bytes")],
)
def test_what_is_not_shown(table: TableRef, column: str, row: int, message: str) -> None:
    (found,) = row_pages.read_page(table, columns=["id"], filter=f"id = {row}", limit=1).ids
    with pytest.raises(InvalidInputError, match=message):
        row_pages.read_content(table, column, found, most=10)


def test_no_such_row_and_no_such_column(table: TableRef) -> None:
    with pytest.raises(InvalidInputError, match="has no row with the id 99999999"):
        row_pages.read_value(table, "text", 99_999_999)
    with pytest.raises(TableColumnNotFoundError, match="has no column nope"):
        row_pages.read_page(table, columns=["nope"], limit=1)


def test_of_very_many_columns_the_first_are_shown(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({f"c{each}": [each] for each in range(300)}), tmp_path / "wide")
    page = row_pages.read_page(TableRef(str(tmp_path / "wide")), limit=1)
    assert len(page.columns) == row_pages.MAX_DEFAULT_COLUMNS
    assert row_pages.read_page(TableRef(str(tmp_path / "wide")), columns=["c299"], limit=1).rows == [[299]]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_are_described_and_read_one_by_one(tmp_path: Path, version: str) -> None:
    old = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = [b"abc", None, b""]
    column = pa.array(data, pa.large_binary()) if version == "2.1" else blob_array(data)
    rows = pa.table({"b": column}, schema=pa.schema([old if version == "2.1" else blob_field("b")]))
    lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    table = TableRef(str(tmp_path / "t"))
    page = row_pages.read_page(table, limit=5)
    assert page.rows[0] == [{"kind": "blob", "size": 3}]
    assert page.rows[2] == [{"kind": "blob", "size": 0}]
    assert row_pages.read_content(table, "b", page.ids[0], most=3) == b"abc"
    assert row_pages.read_content(table, "b", page.ids[1], most=3) is None
    assert row_pages.read_value(table, "b", page.ids[0]) == {"kind": "blob", "size": 3}
    with pytest.raises(InvalidInputError, match="has 3 bytes"):
        row_pages.read_content(table, "b", page.ids[0], most=2)


def test_large_values_are_not_held_together(tmp_path: Path) -> None:
    """A page of rows with megabytes each is read a few at a time, and cut before the next."""
    raw = [np.random.default_rng(each).bytes(2 << 20) for each in range(12)]
    lance.write_dataset(pa.table({"raw": raw}), tmp_path / "t")
    before = pa.total_allocated_bytes()
    page = row_pages.read_page(TableRef(str(tmp_path / "t")), limit=12)
    assert [row[0]["size"] for row in page.rows] == [2 << 20] * 12  # type: ignore[index]
    assert pa.total_allocated_bytes() - before < 8 << 20
