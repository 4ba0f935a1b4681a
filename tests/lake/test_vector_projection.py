from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.dataset import TableRef
from lancehouse.server.console import row_pages


def vectors(matrix: Any, dtype: pa.DataType | None = None) -> pa.Array[Any]:
    values = pa.array(np.asarray(matrix).ravel(), dtype or pa.float32())
    return pa.FixedSizeListArray.from_arrays(values, np.asarray(matrix).shape[1])


def table(place: Path, matrix: Any, **more: Any) -> TableRef:
    lance.write_dataset(pa.table({"id": range(len(matrix)), "v": vectors(matrix), **more}), place)
    return TableRef(str(place))


@pytest.mark.parametrize("shape", [(50, 3), (300, 40), (5, 200), (40, 2), (30, 1)], ids=str)
def test_the_plane_is_that_of_a_whole_decomposition(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal(shape) * np.linspace(5, 1, shape[1])).astype(np.float32)
    found = row_pages.principal_axes(matrix)
    centred = matrix - matrix.mean(axis=0)
    _, sizes, turn = np.linalg.svd(centred, full_matrices=False)
    expected = np.zeros((shape[0], 2))
    expected[:, : len(turn[:2])] = centred @ turn[:2].T
    assert np.allclose(np.abs(found.project(matrix)), np.abs(expected), atol=2e-2 * sizes[0])
    assert found.spread[0] == pytest.approx(float(sizes[0] ** 2 / (sizes**2).sum()), rel=1e-3)


@pytest.mark.parametrize("matrix", [np.zeros((0, 4)), np.ones((1, 4)), np.ones((9, 4))], ids=["none", "one", "same"])
def test_without_variance_all_lie_in_one_point(matrix: Any) -> None:
    found = row_pages.principal_axes(matrix.astype(np.float32))
    assert set(found.project(matrix)) <= {(0.0, 0.0)}
    assert found.spread == (0.0, 0.0)


def test_rows_without_a_vector_are_left_out(tmp_path: Path) -> None:
    values: list[list[float] | None] = [[float(each), 1.0] for each in range(10)]
    values[3], values[5] = None, [float("nan"), 0.0]
    rows = pa.table({"id": range(10), "v": pa.array(values, pa.list_(pa.float32(), 2))})
    lance.write_dataset(rows, tmp_path / "t")
    ref = TableRef(str(tmp_path / "t"))
    drawn = row_pages.project_sample(ref, "v", "id")
    assert drawn.labels == [0, 1, 2, 4, 6, 7, 8, 9]
    assert (drawn.rows, len(drawn.points)) == (10, 8)
    with pytest.raises(InvalidInputError, match="the row has no vector in v"):
        row_pages.find_neighbours(ref, "v", 3, 2)


@pytest.mark.parametrize("dtype", [pa.float16(), pa.float64(), pa.int8(), pa.uint8()], ids=str)
def test_vectors_of_every_type(tmp_path: Path, dtype: pa.DataType) -> None:
    matrix = np.arange(40).reshape(10, 4)
    lance.write_dataset(pa.table({"v": vectors(matrix, dtype)}), tmp_path / "t")
    drawn = row_pages.project_sample(TableRef(str(tmp_path / "t")), "v")
    assert drawn.spread[0] == pytest.approx(1.0)
    assert len(drawn.points) == 10


def test_a_large_table_is_drawn_from_a_sample_that_is_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.random.default_rng(1).standard_normal((500, 8)).astype(np.float32)
    ref = table(tmp_path / "t", matrix)
    monkeypatch.setattr(row_pages, "SAMPLE", 100)
    first = row_pages.project_sample(ref, "v")
    assert (len(first.ids), first.rows, row_pages.project_sample(ref, "v")) == (100, 500, first)
    monkeypatch.setattr(row_pages, "SAMPLE_BYTES", 8 * 4 * 30)
    assert len(row_pages.project_sample(ref, "v").ids) == 30


@pytest.mark.parametrize(("compared", "searched"), [(1 << 30, "table"), (100, "sample")], ids=["all", "sample"])
def test_the_nearest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: int, searched: str) -> None:
    matrix = np.stack([np.arange(60), np.zeros(60)], axis=1).astype(np.float32)
    ref = table(tmp_path / "t", matrix)
    monkeypatch.setattr(row_pages, "COMPARED_BYTES", compared)
    found = row_pages.find_neighbours(ref, "v", 30, 4, ["id"])
    assert {row[0] for row in found.page.rows} == {28, 29, 31, 32}
    assert (list(found.distances), found.searched, found.own) == ([1.0, 1.0, 4.0, 4.0], searched, [30])
    drawn = row_pages.project_sample(ref, "v")
    assert found.point == pytest.approx(drawn.points[30])
    assert [point for point in found.points if point] == [pytest.approx(drawn.points[each]) for each in found.page.ids]


def test_planes_of_two_versions_are_not_mixed_up(tmp_path: Path) -> None:
    ref = table(tmp_path / "t", np.eye(6, 2, dtype=np.float32))
    first = row_pages.find_neighbours(ref, "v", 0, 1).point
    lance.write_dataset(
        pa.table({"id": range(6), "v": vectors(np.eye(6, 2, dtype=np.float32) * 9)}), tmp_path / "t", mode="overwrite"
    )
    (row, *_) = row_pages.read_page(ref, limit=1).ids
    assert row_pages.find_neighbours(ref, "v", row, 1).point == pytest.approx((first[0] * 9, first[1] * 9))


def test_what_holds_no_vectors(tmp_path: Path) -> None:
    ref = table(tmp_path / "t", np.eye(3, dtype=np.float32))
    with pytest.raises(InvalidInputError, match="column id holds int64, no vectors of numbers"):
        row_pages.project_sample(ref, "id")


def test_an_empty_table(tmp_path: Path) -> None:
    ref = table(tmp_path / "t", np.zeros((0, 3), dtype=np.float32))
    assert (row_pages.project_sample(ref, "v").points, row_pages.project_sample(ref, "v").rows) == (
        [],
        0,
    )
