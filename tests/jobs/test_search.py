from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.lake import scans
from lancehouse.lake import search as searches

ROWS, WIDTH = 900, 8
WORDS = ("alpha", "beta", "gamma", "delta", "omega")
VECTORS = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype("f4")
QUERIES = np.random.default_rng(3).normal(size=(7, WIDTH)).astype("f4")


def make_rows(first: int = 0, count: int = ROWS) -> pa.Table:
    vectors = [None if number == 11 else VECTORS[number].tolist() for number in range(first, first + count)]
    texts = [f"{WORDS[number % 5]} {WORDS[number % 3]} {number}" for number in range(first, first + count)]
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": numbers, "v": pa.array(vectors, pa.list_(pa.float32(), WIDTH)), "words": texts})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lance.LanceDataset:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    dataset = lance.write_dataset(make_rows(), tmp_path / "t.lance", max_rows_per_file=250, enable_stable_row_ids=True)
    dataset.delete("id = 5")
    return dataset


@pytest.fixture
def jobs(tmp_path: Path, table: lance.LanceDataset) -> TableJobs:
    return TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=3))


def nearest_ids(query: Any, k: int, keep: Any = lambda _: True) -> list[int]:
    distances = ((VECTORS - query) ** 2).sum(axis=1)
    return [int(row) for row in np.argsort(distances) if row not in (5, 11) and keep(row)][:k]


def ids_by_query(found: pa.Table) -> dict[Any, list[int]]:
    ids: dict[Any, list[int]] = {}
    assert found.column("rank").to_pylist()[0] == 1
    for row in found.sort_by([("rank", "ascending")]).to_pylist():
        ids.setdefault(row["query_id"], []).append(row["id"])
        assert row["rank"] == len(ids[row["query_id"]])
    return ids


@pytest.mark.parametrize("way", ["compare", "index", "index of a part"])
@pytest.mark.parametrize("filter", [None, "id % 3 = 0"])
def test_many_vectors(
    jobs: TableJobs, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch, way: str, filter: str | None
) -> None:
    monkeypatch.setattr(searches, "INDEX_S", 0)
    if way != "compare":
        table.create_index("v", "IVF_FLAT", num_partitions=1)
    if way == "index of a part":
        table.delete("id >= 600")
        lance.write_dataset(make_rows(600, 300), table.uri, mode="append", max_rows_per_file=100)
    found = jobs.search("t", QUERIES, 4, filter=filter, columns=["id"])
    assert found.schema.names == ["query_id", "rank", "_distance", "id"]
    keep = (lambda row: row % 3 == 0) if filter else (lambda _: True)
    assert ids_by_query(found) == {number: nearest_ids(query, 4, keep) for number, query in enumerate(QUERIES)}
    plan = jobs.explain_search("t", QUERIES, 4, filter=filter)
    assert ("by the index v_idx" in plan) == (way != "compare"), plan
    assert ("rows that it lacks" in plan) == (way == "index of a part"), plan


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("row_s", [0.0, 1.0], ids=["by ids", "all vectors"])
def test_candidates_of_an_index_are_compared_as_lance_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, row_s: float
) -> None:
    """Whether their vectors are read by the ids of the rows or all, and in parts."""
    monkeypatch.setattr(searches, "ROW_S", row_s)
    monkeypatch.setattr(searches, "MOST_CANDIDATES", 100)
    monkeypatch.setattr(searches, "CALL_QUERIES", 2)
    monkeypatch.setattr(searches, "ROWS_AT_ONCE", 7)
    vectors = np.random.default_rng(3).normal(size=(1200, 8)).astype("f4")
    rows = pa.table({"id": range(1200), "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)})
    table = lance.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=500)
    table.create_index("v", "IVF_PQ", metric=metric, num_partitions=2, num_sub_vectors=2)
    queries = vectors[:7] + np.float32(0.01)
    effort: dict[str, Any] = {"nprobes": 2, "refine_factor": 5}
    found = TableJobs(Connection("dir", {"root": str(tmp_path)}), LocalEngine(threads=1)).search(
        "t", queries, 4, filter="id % 2 = 0", columns=["id"], **effort
    )
    expected = []
    for query in queries:
        nearest = {"column": "v", "q": query, "k": 4, **effort}
        scanned = table.scanner(columns=["id", "_distance"], nearest=nearest, filter="id % 2 = 0", prefilter=True)
        expected += [(row["id"], pytest.approx(row["_distance"], abs=1e-4)) for row in scanned.to_table().to_pylist()]
    assert list(zip(found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True)) == expected


def test_the_way_is_chosen_by_cost(jobs: TableJobs, table: lance.LanceDataset) -> None:
    table.create_index("v", "IVF_FLAT", num_partitions=1)
    assert "all are compared (l2) by products of matrices, estimated" in jobs.explain_search("t", QUERIES)
    assert "by the index v_idx (IVF_FLAT, l2), as its effort is given" in jobs.explain_search("t", QUERIES, nprobes=1)
    assert "the index v_idx is for l2" in jobs.explain_search("t", QUERIES, metric="cosine", refine_factor=3)
    assert "3 tasks, then" not in jobs.explain_search("t", QUERIES, nprobes=1)
    few, many = (searches.comparison_seconds(count, 10**6, 128) for count in (1, 10_000))
    assert few > searches.INDEX_S
    assert many < 10_000 * searches.INDEX_S * searches.EXACT_WORTH


@pytest.mark.parametrize("ids", [["b", "a", "c"], [3, 1, 2], [{"x": 1}, {"x": 2}, {"x": 3}], [1.5, 2.5, 3.5]])
def test_a_table_of_queries(jobs: TableJobs, ids: list[Any]) -> None:
    vectors = pa.array([QUERIES[0].tolist(), None, QUERIES[1].tolist()], pa.list_(pa.float64()))
    found = jobs.search("t", pa.table({"query_id": ids, "vector": vectors, "more": [1, 2, 3]}), 2)
    assert found.schema.names == ["query_id", "rank", "_distance", "id", "v", "words"]
    expected = [*zip([ids[0]] * 2 + [ids[2]] * 2, nearest_ids(QUERIES[0], 2) + nearest_ids(QUERIES[1], 2), strict=True)]
    assert [(row["query_id"], row["id"]) for row in found.to_pylist()] == expected


def test_vectors_may_come_one_by_one(jobs: TableJobs) -> None:
    found = jobs.search("t", (vector for vector in QUERIES[:2]), 2, columns=["id"])
    assert ids_by_query(found) == {number: nearest_ids(QUERIES[number], 2) for number in (0, 1)}


def test_one_query_has_no_id(jobs: TableJobs) -> None:
    found = jobs.search("t", QUERIES[0], 3, columns=["id"])
    assert found.schema.names == ["id", "_distance"]
    assert found.column("id").to_pylist() == nearest_ids(QUERIES[0], 3)


@pytest.mark.parametrize(
    ("k", "filter", "count"),
    [(5000, None, ROWS - 2), (5, "id < 0", 0), (5, "id = 5", 0), (3, "id IN (7, 11)", 1)],
)
def test_fewer_rows_than_wanted(jobs: TableJobs, k: int, filter: str | None, count: int) -> None:
    found = jobs.search("t", QUERIES[:2], k, filter=filter, columns=["id"])
    assert found.num_rows == 2 * count
    assert found.schema.names == ["query_id", "rank", "_distance", "id"]


def test_no_queries(jobs: TableJobs) -> None:
    none = pa.table({"query_id": pa.array([], pa.string()), "vector": pa.array([], pa.list_(pa.float32()))})
    assert jobs.search("t", none).num_rows == 0
    nulls = pa.table({"query_id": ["a"], "vector": pa.array([None], pa.list_(pa.float32()))})
    assert jobs.search("t", nulls).num_rows == 0


def test_a_filter_afterwards(jobs: TableJobs) -> None:
    found = jobs.search("t", QUERIES, 9, filter="id % 2 = 0 -- even", columns=["id"], prefilter=False)
    nearest = {number: [row for row in nearest_ids(query, 9) if row % 2 == 0] for number, query in enumerate(QUERIES)}
    assert ids_by_query(found) == nearest
    assert "after the search" in jobs.explain_search("t", QUERIES, filter="id % 2 = 0", prefilter=False)


@pytest.mark.parametrize("indexed", [False, True])
def test_words(jobs: TableJobs, table: lance.LanceDataset, indexed: bool) -> None:
    if indexed:
        table.create_scalar_index("words", "INVERTED")
    named: dict[str, Any] = {} if indexed else {"text_column": "words"}
    one = jobs.search("t", text="77", columns=["id", "words"], **named)
    assert one.schema.names == ["id", "words", "_score"]
    assert one.column("id").to_pylist() == [77]
    several = jobs.search("t", text=["77", "nothing", "78 alpha"], k=2, columns=["id"], **named)
    assert several.schema.names == ["query_id", "rank", "_score", "id"]
    found = ids_by_query(several)
    assert (found[0], [*found], found[2][0]) == ([77], [0, 2], 78)
    queries = pa.table({"query_id": ["x", "y"], "text": ["42", None]})
    assert ids_by_query(jobs.search("t", text=queries, columns=["id"], **named)) == {"x": [42]}
    assert ("which has no full-text index" in jobs.explain_search("t", text="77", **named)) != indexed


def test_words_without_an_index(jobs: TableJobs) -> None:
    with pytest.raises(InvalidInputError, match=r"no full-text index: build one with create_index\("):
        jobs.search("t", text="77")


def test_words_and_vectors(jobs: TableJobs, table: lance.LanceDataset) -> None:
    table.create_scalar_index("words", "INVERTED")
    found = jobs.search("t", VECTORS[100], 5, text="200 201", columns=["id"])
    assert found.schema.names == ["id", "_distance", "_score"]
    # The nearest row and the best words are each first in one ranking; rows of both rankings would come before.
    assert {*found.column("id").to_pylist()[:3]} == {100, 200, 201}
    row = found.to_pylist()[found.column("id").to_pylist().index(100)]
    assert (row["_distance"], row["_score"]) == (0.0, None)
    by_words = jobs.search("t", VECTORS[100], 5, text="200 201", columns=["id"], hybrid={"vector": 0.1, "text": 1})
    assert {*by_words.column("id").to_pylist()[:2]} == {200, 201}
    alone = jobs.search("t", VECTORS[100], 5, text="200 201", columns=["id"], hybrid={"vector": 1})
    assert alone.column("id").to_pylist() == nearest_ids(VECTORS[100], 5)
    queries = pa.table({"query_id": [7, 8], "vector": [VECTORS[100].tolist(), None], "text": ["200", "201"]})
    both = ids_by_query(jobs.search("t", queries, 2, columns=["id"], hybrid="rrf"))
    assert ({*both[7]}, both[8]) == ({100, 200}, [201])
    pairs = jobs.search("t", VECTORS[100:102], 1, text=["100", "101"], columns=["id"])
    assert ids_by_query(pairs) == {0: [100], 1: [101]}
    assert "reciprocal rank fusion of the best 50, weights 1 and 1" in jobs.explain_search("t", QUERIES[0], text="a")


def queries_of(**columns: Any) -> pa.Table:
    return pa.table({"query_id": [1, 2], "vector": [[0.5] * WIDTH] * 2, "text": ["a", "b"], **columns})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a search needs a vector, or a text, or both"),
        ({"vector": []}, "vector must be"),
        ({"vector": "0.5"}, "vector must be"),
        ({"vector": [[1.0], [1.0, 2.0]]}, "several have the same length"),
        ({"vector": [[0.5] * WIDTH, None]}, "None is no vector"),
        ({"vector": np.zeros((2, 2, 2))}, "shape"),
        ({"vector": [[0.5] * WIDTH, [np.nan] * WIDTH]}, "vector 1: .*finite numbers only"),
        ({"vector": [1e39] * WIDTH}, "finite numbers only"),
        ({"vector": np.zeros((2, 3))}, "vectors of 8 numbers, the one given has 3"),
        ({"vector": queries_of(query_id=[1, 1])}, "query_id: several queries have 1"),
        ({"vector": queries_of(query_id=[{"a": 1}, {"a": 1}])}, "query_id: several queries have"),
        ({"vector": queries_of(query_id=[1, None])}, "query_id: 1 queries have none"),
        ({"vector": queries_of(vector=[[0.5] * WIDTH, [0.5]])}, "vectors of 8 and 1 numbers"),
        ({"vector": queries_of(vector=[[0.5], [0.5]])}, "vectors of 8 numbers, the one given has 1"),
        ({"vector": queries_of(vector=[[0.5] * WIDTH, [None] * WIDTH])}, "of query 2: .*finite numbers only"),
        ({"vector": queries_of(vector=["a", "b"])}, "must hold lists of numbers, not string"),
        ({"vector": queries_of().drop_columns("vector")}, "has the columns query_id, vector; this one lacks vector"),
        ({"vector": queries_of().drop_columns("query_id")}, "lacks query_id"),
        ({"text": queries_of(text=[1, 2])}, "must hold texts, not int64"),
        ({"vector": queries_of(), "text": "words"}, "give it once"),
        ({"vector": [0.5] * WIDTH, "text": ["a", "b"]}, "one vector and one text"),
        ({"vector": [[0.5] * WIDTH], "text": ["a", "b"]}, "as many texts as vectors"),
        ({"vector": [0.5] * WIDTH, "hybrid": True}, "hybrid is for a search with a vector and a text"),
        ({"vector": [0.5] * WIDTH, "text": "a", "hybrid": {"vector": -1}}, "hybrid must be True"),
        ({"vector": [0.5] * WIDTH, "text": "a", "hybrid": {"words": 1}}, "hybrid must be True"),
        ({"vector": [0.5] * WIDTH, "text_column": "words"}, "text_column is for a search with a text"),
        ({"text": "a", "nprobes": 3, "text_column": "words"}, "are for a search with a vector"),
        ({"text": "a", "text_column": "id"}, "column id holds int64, no text"),
        ({"text": "a", "text_column": "nope"}, "no column nope"),
        ({"text": ["a", 7], "text_column": "words"}, "text must be a text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(jobs: TableJobs, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(LanceNamespaceError, match=says):
        jobs.search("t", **arguments)


def test_columns_that_the_result_has_too(jobs: TableJobs, tmp_path: Path) -> None:
    rows = make_rows().append_column("rank", pa.array(range(ROWS)))
    lance.write_dataset(rows, tmp_path / "ranked.lance")
    with pytest.raises(InvalidInputError, match="has a column rank, as the result has: name other columns"):
        jobs.search("ranked", QUERIES)
    assert jobs.search("ranked", QUERIES, 1, columns=["id"]).num_rows == len(QUERIES)
    alone = jobs.search("ranked", QUERIES[0], 1)
    assert alone.schema.names == ["id", "v", "words", "rank", "_distance"]
    assert alone.column("rank") == alone.column("id")
