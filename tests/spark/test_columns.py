"""Computed columns on Spark: functions go to the tasks, models are made there, errors come back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from lancehouse.jobs import merge
from lancehouse.spark import LanceCatalog, column

VECTOR = pa.list_(pa.float32(), 2)


@column(version="1", inputs=["word"], returns=VECTOR)
class Embed:
    """Says in which process it is made, and refuses one word."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def __call__(self, words: Any) -> Any:
        if "w13" in words.to_pylist():
            raise ValueError("no w13")
        return np.array([[len(word), self.process] for word in words.to_pylist()], np.float32)


@pytest.fixture
def catalog(tmp_path: Path, spark: Any) -> LanceCatalog:
    rows = pa.table({"id": range(40), "word": [f"w{number}" for number in range(40)]})
    lance.write_dataset(rows, tmp_path / "docs.lance", max_rows_per_file=10, enable_stable_row_ids=True)
    return LanceCatalog(spark, "dir", {"root": str(tmp_path)})


def test_columns_are_filled_by_tasks(catalog: LanceCatalog, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="Embed failed for row id 13: ValueError: no w13"):
        catalog.add_columns("docs", {"embedding": Embed})
    result = catalog.backfill("docs", on_error="null", commit_every=2)
    assert (result.filled, result.failed) == (39, 1)
    vectors = lance.dataset(tmp_path / "docs.lance").to_table(["id", "embedding"]).to_pydict()["embedding"]
    assert vectors[12][0] == 3
    assert float(np.float32(os.getpid())) not in {vector[1] for vector in vectors if vector}, "nothing on the driver"
    [row] = catalog.computed_columns("docs").collect()
    assert (row["column"], row["filled"], row["missing"], row["failed"]) == ("embedding", 39, 0, 1)
    [error] = catalog.column_errors("docs", "embedding", ["id"]).collect()
    assert (error["id"], error["exception"]) == (13, "ValueError: no w13")
    assert catalog.read("docs").columns == ["id", "word", "embedding"]
    assert catalog.search("docs", [3.0, 0.0], k=1).columns == ["id", "word", "embedding", "_distance"]
    options = {"impl": "dir", "root": str(tmp_path), "table": "docs"}
    assert catalog.spark.read.format("lance").options(**options).load().columns == ["id", "word", "embedding"]
    assert catalog.register_views([], "seen_") == ["seen_docs"]
    assert catalog.spark.sql("SELECT * FROM seen_docs").columns == ["id", "word", "embedding"]
    messages = [each["message"] for each in catalog.history("docs").collect()]
    assert messages[-2:] == ["Define embedding (tests.spark.test_columns:Embed 1)", None]
    assert set(messages[:-2]) == {"Fill embedding (tests.spark.test_columns:Embed 1)"}
    assert "_lancehouse_embedding" in catalog.read("docs", columns=["_lancehouse_embedding"]).columns
    new = catalog.spark.createDataFrame([(50, "late")], ["id", "word"])
    catalog.append(new, "docs")
    assert catalog.backfill("docs").filled == 1


def require_active(query: StreamingQuery) -> None:
    if not query.isActive:
        raise query.exception() or AssertionError("the query has ended")


def test_a_stream_keeps_columns_filled(catalog: LanceCatalog, tmp_path: Path) -> None:
    def docs() -> lance.LanceDataset:
        return lance.dataset(tmp_path / "docs.lance")

    catalog.define_columns("docs", {"length": "length(word)"})
    place = str(tmp_path / "checkpoint")
    catalog.keep_filled("docs", place, trigger={"availableNow": True}).awaitTermination()
    assert (docs().count_rows("length IS NULL"), docs().version) == (0, 3)
    query = catalog.keep_filled("docs", place, "length", trigger="0 seconds")
    try:
        catalog.append(catalog.spark.createDataFrame([(50, "late")], ["id", "word"]), "docs")
        while docs().version < 5:
            require_active(query)
            time.sleep(0.2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert (docs().count_rows("length IS NULL"), docs().version) == (0, 5), "nothing else is new"


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_stream_that_is_stopped_in_the_middle_goes_on(catalog: LanceCatalog, tmp_path: Path, version: str) -> None:
    """Also with another version of the function, while tasks of the first one may still be at work."""
    begun, gate, place = tmp_path / "begun", tmp_path / "gate", str(tmp_path / "checkpoint")

    def loud(version: str) -> Any:
        @column(version=version, inputs=["word"], returns=pa.string())
        def shout(words: Any) -> Any:
            while "w25" in words.to_pylist() and not gate.exists():
                begun.touch()
                time.sleep(0.05)
            return [f"{word} {version}" for word in words.to_pylist()]

        return shout

    first, second = loud("1"), loud(version)
    catalog.define_columns("docs", {"loud": first})
    query = catalog.keep_filled("docs", place, {"loud": first}, trigger="0 seconds", commit_every=1, batch_rows=4)
    while not begun.exists():
        require_active(query)
        time.sleep(0.05)
    query.stop()
    catalog.define_columns("docs", {"loud": second})
    gate.touch()
    lance.write_dataset(pa.table({"id": [50], "word": ["late"]}), tmp_path / "docs.lance", mode="append")
    catalog.keep_filled("docs", place, {"loud": second}, trigger={"availableNow": True}).awaitTermination()
    rows = lance.dataset(tmp_path / "docs.lance").to_table(["word", "loud"]).to_pylist()
    assert [row["loud"] for row in rows] == [f"{row['word']} {version}" for row in rows]
    [row] = catalog.computed_columns("docs").collect()
    assert (row["version"], row["filled"], row["missing"]) == (version, 41, 0)


def test_a_stream_imports_only_what_is_allowed(catalog: LanceCatalog, tmp_path: Path) -> None:
    catalog.define_columns("docs", {"embedding": Embed})
    options = {"root": str(tmp_path)}
    careful = LanceCatalog(catalog.spark, "dir", options, functions=["features"])
    query = careful.keep_filled("docs", str(tmp_path / "checkpoint"), trigger={"availableNow": True})
    with pytest.raises(StreamingQueryException, match="Embed is not imported: only features is allowed here"):
        query.awaitTermination()


def test_tables_are_created_with_stable_row_ids(
    catalog: LanceCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = catalog.spark.createDataFrame([(1, "a")], ["id", "word"])
    catalog.create(rows, "new")
    assert lance.dataset(tmp_path / "new.lance").has_stable_row_ids
    monkeypatch.setenv("LANCEHOUSE_STABLE_ROW_IDS", "false")
    catalog.create(rows, "plain")
    assert not lance.dataset(tmp_path / "plain.lance").has_stable_row_ids


@pytest.mark.parametrize("keys", ["few", "many"])
def test_columns_are_updated_by_tasks(
    catalog: LanceCatalog, tmp_path: Path, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keys == "many":
        monkeypatch.setattr(merge, "FEW_ROWS", 0)
    rows = catalog.spark.createDataFrame([(1, "x"), (25, "y"), (26, None), (99, "z")], ["id", "word"])
    result = catalog.update_columns("docs", rows, on="id")
    assert (result.updated, result.unmatched) == (3, 1)
    words = lance.dataset(tmp_path / "docs.lance").to_table(["id", "word"], filter="word < 'w' OR word >= 'x'")
    assert {row["id"]: row["word"] for row in words.to_pylist()} == {1: "x", 25: "y"}
    assert lance.dataset(tmp_path / "docs.lance").count_rows("_row_last_updated_at_version > 1") == 3
    with pytest.raises(InvalidInputError, match="same key, id=1"):
        catalog.update_columns("docs", rows.union(rows), on=["id"])
