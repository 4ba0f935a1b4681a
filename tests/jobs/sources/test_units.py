"""How sources are cut into units, and under which keys."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.jobs.sources import ingest_source
from lancehouse.jobs.sources.formats import split_into_runs
from lancehouse.jobs.sources.ingest_source import (
    OPENING_BYTES,
    group_by_size,
    joint_key,
    open_source,
    target_bytes,
)
from tests.jobs.sources.reading import read

SIZES = st.lists(st.integers(0, 1000), max_size=40)


@given(SIZES, st.integers(1, 500))
def test_runs_cover_everything_once(sizes: list[int], target: int) -> None:
    found = split_into_runs(sizes, target)
    assert [place for run in found for place in run] == list(range(len(sizes)))
    assert all(found) or not sizes
    largest = max(sizes, default=0)
    assert all(sum(sizes[place] for place in run) <= target + largest for run in found)


@pytest.mark.parametrize(
    ("sizes", "target", "lengths"),
    [
        ([60, 60, 30], 75, [1, 2]),
        ([40, 40, 40, 30], 75, [2, 2]),
        ([10] * 10, 50, [5, 5]),
        ([100, 1, 1, 1], 60, [1, 3]),
        ([], 10, [0]),
        ([0, 0], 10, [2]),
    ],
)
def test_runs_are_even(sizes: list[int], target: int, lengths: list[int]) -> None:
    assert [len(run) for run in split_into_runs(sizes, target)] == lengths


@given(st.lists(st.integers(0, 20 * OPENING_BYTES), max_size=40), st.integers(1, 10 * OPENING_BYTES))
def test_groups_hold_everything_in_order(sizes: list[int], target: int) -> None:
    groups = group_by_size(sizes, lambda size: size, target)
    assert [size for group in groups for size in group] == sizes
    assert all(len(group) == 1 or sum(group) + len(group) * OPENING_BYTES <= target for group in groups)


def test_a_large_file_stays_alone() -> None:
    """So what comes or goes before it does not change the groups after it."""
    small, large = 10, 80 << 20
    assert group_by_size([small, small, large, small, small], int, 96 << 20) == [[small] * 2, [large], [small] * 2]


def test_enough_units_for_every_core() -> None:
    assert target_bytes([10 << 30], 8) == ingest_source.TARGET_BYTES
    assert target_bytes([(64 << 20) - OPENING_BYTES], 4) == 16 << 20
    assert target_bytes([100], 4) == ingest_source.LEAST_BYTES


def write(path: Path, first: int, count: int, row_group_size: int | None = None) -> None:
    table = pa.table({"a": range(first, first + count)})
    pq.write_table(table, path, row_group_size, use_dictionary=False, compression="none")


def test_a_parquet_file_is_cut_at_row_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 0, 1_000_000, row_group_size=50_000)
    source = open_source(tmp_path, parallelism=5)
    assert len(source.units) == 5
    assert [read(replace(source, units=[unit])).num_rows for unit in source.units] == [200_000] * 5
    assert source.bytes == pytest.approx((tmp_path / "a.parquet").stat().st_size, rel=0.01)
    assert read(source)["a"].to_pylist() == list(range(1_000_000))
    assert len({unit.key for unit in source.units}) == 5


def test_small_files_share_a_unit(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"{number:02}.parquet", number, 1)
    source = open_source(tmp_path)
    assert len(source.units) == 1
    assert read(source)["a"].to_pylist() == list(range(30))
    assert open_source(tmp_path, parallelism=4).units[0].key != source.units[0].key


def keys(folder: Path) -> list[str]:
    return [unit.key for unit in open_source(folder, parallelism=2).units]


def test_keys_stay_while_the_files_do(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", 0, 500_000, row_group_size=250_000)
    write(tmp_path / "c.parquet", 1, 5)
    before = keys(tmp_path)
    assert keys(tmp_path) == before
    assert len(before) == 3
    write(tmp_path / "d.parquet", 2, 5)
    assert keys(tmp_path)[:2] == before[:2]
    assert keys(tmp_path)[2] != before[2]
    (tmp_path / "d.parquet").unlink()
    stat = (tmp_path / "c.parquet").stat()
    os.utime(tmp_path / "c.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert keys(tmp_path)[2] != before[2]
    assert all(str(tmp_path) in key for key in before)


def test_a_key_of_several_says_all_of_them() -> None:
    assert joint_key(["a"]) == "a"
    assert len({joint_key(parts) for parts in (["a", "b"], ["a", "c"], ["a", "b", "c"], ["a"], ["ab"])}) == 5


def test_more_files_than_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_source, "MAX_SURVEYED", 4)
    for number in range(10):
        write(tmp_path / f"{number}.parquet", number, 1)
    source = open_source(tmp_path)
    assert read(source)["a"].to_pylist() == list(range(10))
    pq.write_table(pa.table({"a": [1], "new": [1]}), tmp_path / "1.parquet")
    with pytest.raises(TableSchemaValidationError, match=rf"{tmp_path}/1.parquet has a column new that was not seen"):
        read(open_source(tmp_path))
    assert read(open_source(tmp_path, columns=["a"])).num_rows == 10
