"""Searches of many queries on Spark; what they find is that of `tests/jobs/test_search.py`, or of Lance itself."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.lake import search as searches
from lancehouse.lake.scans import MIN_TASK_ROWS
from lancehouse.spark import LanceCatalog

ROWS, WIDTH = 2 * MIN_TASK_ROWS + 100, 4
VECTORS = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype("f4")
QUERIES = np.random.default_rng(3).normal(size=(5, WIDTH)).astype("f4")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that is compared in two parts, and has an index of words."""
    folder = tmp_path_factory.mktemp("searches")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), WIDTH)
    rows = pa.table(
        {"id": np.arange(ROWS), "v": vectors, "words": [f"w{number % 100} n{number}" for number in range(ROWS)]}
    )
    dataset = lance.write_dataset(rows, folder / "t.lance", max_rows_per_file=ROWS // 3, enable_stable_row_ids=True)
    dataset.create_scalar_index("words", "INVERTED")
    return folder


@pytest.fixture
def catalog(spark: Any, root: Path) -> LanceCatalog:
    return LanceCatalog(spark, "dir", {"root": str(root)})


def nearest_ids(query: Any, k: int) -> list[int]:
    return [int(row) for row in np.argsort(((VECTORS - query) ** 2).sum(axis=1), kind="stable")[:k]]


def ids_by_query(frame: Any) -> dict[Any, list[int]]:
    ids: dict[Any, list[int]] = {}
    for row in sorted(frame.collect(), key=lambda row: row["rank"]):
        ids.setdefault(row.query_id, []).append(row.id)
        assert row["rank"] == len(ids[row.query_id])
    return ids


def test_compared_in_parts(catalog: LanceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.spark.search.WIRE_BYTES", 3 * WIDTH * 4)  # two plans
    assert "2 tasks, then their hits are merged" in catalog.explain_search("t", QUERIES)
    found = catalog.search("t", QUERIES, 6, columns=["id"])
    assert found.columns == ["query_id", "rank", "_distance", "id"]
    assert ids_by_query(found) == {number: nearest_ids(query, 6) for number, query in enumerate(QUERIES)}


@pytest.mark.parametrize(
    ("type", "ids"),
    [
        ("string", ["a", "b", "c"]),
        ("timestamp", [datetime(2026, 1, day) for day in (1, 2, 3)]),
        ("decimal(9,2)", [Decimal("1.50"), Decimal("2.50"), Decimal("3.50")]),
        ("struct<x: int, y: array<string>>", [(1, ["a"]), (2, []), (3, None)]),
    ],
)
def test_a_frame_of_queries(catalog: LanceCatalog, type: str, ids: list[Any]) -> None:
    vectors = [QUERIES[0].tolist(), None, QUERIES[1].tolist()]
    frame = catalog.spark.createDataFrame([*zip(ids, vectors, strict=True)], f"query_id {type}, vector array<double>")
    found = catalog.search("t", frame, 2, columns=["id"])
    assert found.schema["query_id"].dataType == frame.schema["query_id"].dataType
    expected = {repr(row.query_id): row.vector for row in frame.collect() if row.vector is not None}
    ids_found: dict[str, list[int]] = {}
    for row in sorted(found.collect(), key=lambda row: row["rank"]):
        ids_found.setdefault(repr(row.query_id), []).append(row.id)
    assert ids_found == {key: nearest_ids(np.array(vector, "f4"), 2) for key, vector in expected.items()}


def test_words_and_both(catalog: LanceCatalog) -> None:
    one = catalog.search("t", text="n77", columns=["id"])
    assert [(row.id, row._score > 0) for row in one.collect()] == [(77, True)]
    frame = catalog.spark.createDataFrame(
        [("a", VECTORS[5].tolist(), "n500"), ("b", None, "n9"), ("c", VECTORS[7].tolist(), None)],
        "query_id string, vector array<float>, text string",
    )
    by_words = catalog.search("t", text=frame.drop("vector"), k=1, columns=["id"])
    assert ids_by_query(by_words) == {"a": [500], "b": [9]}
    both = catalog.search("t", frame, 2, columns=["id"], hybrid={"vector": 1, "text": 1})
    assert both.columns == ["query_id", "rank", "_distance", "_score", "id"]
    found = ids_by_query(both)
    assert ({*found["a"]}, found["b"], found["c"]) == ({5, 500}, [9], nearest_ids(VECTORS[7], 2))
    after = catalog.search("t", VECTORS[5], 3, filter="id != 5", columns=["id"], prefilter=False)
    assert [row.id for row in after.collect()] == nearest_ids(VECTORS[5], 3)[1:]


def test_by_index_and_what_it_lacks(spark: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "INDEX_S", 0)
    monkeypatch.setattr(searches, "EXACT_WORTH", 0)
    rows = lance.dataset(root / "t.lance").to_table(columns=["id", "v"])
    dataset = lance.write_dataset(rows.slice(0, 1000), tmp_path / "t.lance")
    dataset.create_index("v", "IVF_FLAT", num_partitions=1)
    lance.write_dataset(rows.slice(1000), tmp_path / "t.lance", mode="append", max_rows_per_file=50_000)
    catalog = LanceCatalog(spark, "dir", {"root": str(tmp_path)})
    plan = catalog.explain_search("t", QUERIES)
    assert "by the index v_idx" in plan
    assert f"{ROWS - 1000:,} rows that it lacks are compared" in plan
    found = ids_by_query(catalog.search("t", QUERIES, 6, columns=["id"]))
    assert found == {number: nearest_ids(query, 6) for number, query in enumerate(QUERIES)}
    few = ids_by_query(catalog.search("t", QUERIES, 2, filter="id < 1000", columns=["id"]))
    assert all(row < 1000 for rows in few.values() for row in rows)


def test_a_frame_that_cannot_be(catalog: LanceCatalog) -> None:
    doubles = catalog.spark.createDataFrame([(1, [0.5] * WIDTH)] * 2, "query_id int, vector array<float>")
    with pytest.raises(InvalidInputError, match="query_id: several queries have 1"):
        catalog.search("t", doubles)
    with pytest.raises(InvalidInputError, match="lacks vector"):
        catalog.search("t", doubles.drop("vector"))
    with pytest.raises(InvalidInputError, match="vectors of 4 numbers, the one given has 2"):
        catalog.search("t", doubles.limit(1).selectExpr("query_id", "slice(vector, 1, 2) AS vector"))
