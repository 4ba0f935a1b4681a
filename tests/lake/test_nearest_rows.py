from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancehouse.lake import nearest_rows
from lancehouse.lake.nearest_rows import Hits, NearestRows, best_hits, exact_distances, rank_in_runs
from lancehouse.lake.vector_search import METRICS


def to_batch(vectors: Any) -> pa.RecordBatch:
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(vectors, np.float32).ravel()), vectors.shape[1])
    return pa.record_batch({"v": column, "_rowid": pa.array(range(len(vectors)), pa.uint64())})


def find(vectors: Any, queries: Any, k: int, metric: str, size: int = 100) -> list[list[tuple[int, float]]]:
    """Rows and distances of each query, from batches of so many rows."""
    nearest = NearestRows(np.asarray(queries, np.float32), k, metric)
    batch = to_batch(vectors)
    nearest.add(batch.slice(first, size) for first in range(0, batch.num_rows, size))
    hits = nearest.hits()
    found: list[list[tuple[int, float]]] = [[] for _ in queries]
    for number, row, value in zip(hits.queries, hits.rows, hits.values, strict=True):
        found[number].append((int(row), float(value)))
    return found


def find_one_by_one(vectors: Any, query: Any, k: int, metric: str) -> list[tuple[int, float]]:
    with np.errstate(over="ignore", invalid="ignore"):
        distances = exact_distances(np.asarray(vectors, np.float32), np.asarray(query, np.float32), metric)
    order = [row for row in np.argsort(distances, kind="stable") if not np.isnan(distances[row])]
    return [(int(row), float(distances[row])) for row in order[:k]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few rows and queries, so that small tables have many."""
    monkeypatch.setattr(nearest_rows, "LEAST_ROWS", 64)
    monkeypatch.setattr(nearest_rows, "MOST_ROWS", 128)
    monkeypatch.setattr(nearest_rows, "BLOCK_BYTES", 1)
    monkeypatch.setattr(nearest_rows, "PRODUCT_BYTES", 128 * 4 * 7)
    monkeypatch.setattr(nearest_rows, "PAIR_BYTES", 300)


@pytest.mark.parametrize("metric", METRICS)
def test_as_lance_compares(tmp_path: Path, metric: str, small_blocks: None) -> None:
    random = np.random.default_rng(5)
    vectors = random.normal(size=(3000, 24)).astype("f4")
    vectors[7], vectors[8], vectors[9] = np.nan, 0, vectors[10]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 24)
    dataset = lance.write_dataset(pa.table({"v": column}), tmp_path / "t")
    queries = np.vstack([random.normal(size=(20, 24)), np.zeros((1, 24)), vectors[10:11]]).astype("f4")
    found = find(vectors, queries, 9, metric)
    for query, rows in zip(queries, found, strict=True):
        nearest = {"column": "v", "q": query, "k": 9, "metric": metric}
        truth = dataset.scanner(columns=["_distance"], nearest=nearest, with_row_id=True).to_table()
        distances = truth.column("_distance").to_numpy()
        np.testing.assert_allclose([value for _, value in rows], distances, rtol=1e-5, atol=1e-6)
        if len(np.unique(np.round(distances, 4))) == len(distances):  # rows at the same distance come in any order
            assert [row for row, _ in rows] == truth.column("_rowid").to_pylist()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), metric=st.sampled_from(METRICS), k=st.integers(1, 12), width=st.integers(1, 9))
def test_any_vectors(data: st.DataObject, metric: str, k: int, width: int) -> None:
    seed, scale = data.draw(st.integers(0, 1000)), data.draw(st.sampled_from([1.0, 1e-20, 1e18, 1e-3]))
    random = np.random.default_rng(seed)
    vectors = random.integers(-3, 4, size=(data.draw(st.integers(0, 300)), width)).astype("f4") * np.float32(scale)
    vectors += np.float32(data.draw(st.sampled_from([0, 100])))
    queries = random.normal(size=(data.draw(st.integers(1, 5)), width)).astype("f4") * np.float32(scale)
    odd = data.draw(st.sampled_from([None, np.nan, np.inf, 1e30]))
    if odd is not None and len(vectors):
        vectors[random.integers(0, len(vectors)), 0] = odd
    for query, rows in zip(queries, find(vectors, queries, k, metric, size=37), strict=True):
        truth = find_one_by_one(vectors, query, k, metric)
        values = [value for _, value in rows]
        np.testing.assert_allclose(values, [value for _, value in truth], rtol=1e-5, atol=1e-6)
        own = dict(find_one_by_one(vectors, query, len(vectors), metric))
        np.testing.assert_allclose(values, [own[row] for row, _ in rows], rtol=1e-5, atol=1e-6)
        assert len({row for row, _ in rows}) == len(rows)


def test_far_from_the_origin_and_close_together(small_blocks: None) -> None:
    random = np.random.default_rng(3)
    vectors = (1000 + random.normal(scale=0.01, size=(2000, 16))).astype("f4")
    queries = vectors[:30] + np.float32(0.001)
    for query, rows in zip(queries, find(vectors, queries, 5, "l2"), strict=True):
        assert [row for row, _ in rows] == [row for row, _ in find_one_by_one(vectors, query, 5, "l2")]


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_distances_that_differ_by_little_more_than_the_error(metric: str, small_blocks: None) -> None:
    random = np.random.default_rng(4)
    directions = random.normal(size=(2000, 32))
    lengths = 1 + random.uniform(0, 2e-3, size=(2000, 1))
    vectors = (directions / np.linalg.norm(directions, axis=1, keepdims=True) * lengths).astype("f4")
    queries = np.zeros((1, 32), "f4")
    if metric == "dot":
        queries[0, 0] = vectors[:, 0] = 1.0
        vectors[:, 0] += np.linspace(0, 2e-3, 2000).astype("f4")
    [rows] = find(vectors, queries, 5, metric)
    truth = find_one_by_one(vectors, queries[0], 5, metric)
    assert [value for _, value in rows] == [value for _, value in truth]


def test_many_equal_rows(small_blocks: None) -> None:
    vectors = np.ones((5000, 4), "f4")
    [rows] = find(vectors, np.zeros((1, 4)), 6, "l2")
    assert [value for _, value in rows] == [4.0] * 6
    assert len({row for row, _ in rows}) == 6


def test_nulls_and_queries_of_nan() -> None:
    column = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    batch = pa.record_batch({"v": column, "_rowid": pa.array([5, 6, 1 << 40], pa.uint64())})
    nearest = NearestRows(np.array([[np.nan, 0], [3, 4]], "f4"), 3, "l2")
    nearest.add([batch, batch.slice(0, 0)])
    hits = nearest.hits()
    assert (hits.queries.tolist(), hits.rows.tolist()) == ([1, 1], [1 << 40, 5])
    assert Hits.from_ipc(hits.to_ipc()).rows.tolist() == [1 << 40, 5]


def test_the_best_of_several_parts() -> None:
    one = Hits.of([0, 0, 1], [1, 2, 3], [0.5, np.nan, 2.0])
    two = Hits.of([1, 0, 0], [9, 8, 7], [2.0, 0.1, 0.5])
    best, ranks = best_hits([one, two], 2)
    assert [*zip(best.queries, best.rows, ranks, strict=True)] == [(0, 8, 0), (0, 1, 1), (1, 3, 0), (1, 9, 1)]
    largest, _ = best_hits([one, two], 1, largest=True)
    assert [*zip(largest.queries, largest.rows, strict=True)] == [(0, 1), (1, 3)]
    assert len(best_hits([], 3)[0]) == 0
    assert rank_in_runs(np.array([4, 4, 1, 1, 1, 4])).tolist() == [0, 1, 0, 1, 2, 0]
