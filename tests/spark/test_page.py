"""What docs/spark.md and docs/search.md tell a newcomer to do works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from lancehouse.spark import LanceCatalog

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"


def test_the_examples(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "trips.parquet")
    (tmp_path / "people.csv").write_bytes("zip;name;born\n00712;Müller;-\n".encode("latin-1"))
    found: dict[str, Any] = {"folder": str(tmp_path / "trips.parquet"), "people": str(tmp_path / "people.csv")}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block.replace("/tmp/tables", str(tmp_path / "tables")), found)
    rows = lance.dataset(tmp_path / "tables" / "docs.lance")
    assert rows.count_rows() == 1501
    assert rows.schema.names == ["id", "text", "emb", "length", "twice"]
    assert [each.operation for each in found["cat"].history("trips").collect()] == ["Overwrite"]
    people = lance.dataset(tmp_path / "tables" / "people.lance").to_table().to_pylist()
    assert people == [{"zip": "00712", "name": "Müller", "born": None}]


def test_the_examples_of_search(spark: Any, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (PAGE.parent / "search.md").read_text(), re.S)
    found: dict[str, Any] = {}
    exec(block.replace("/tmp/books", str(tmp_path)), found)
    ids = found["cat"].search("docs", text="whales 42", k=1, columns=["id"]).collect()
    assert [row.id for row in ids] == [42]


def test_the_example_of_foreach_batch(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "tables")
    cat = LanceCatalog(spark, "dir", {"root": root})
    cat.create(spark.range(3), "docs")
    cat.create(spark.range(1), "copy")
    (block,) = re.findall(r"```py\n(def upsert.*?)```", PAGE.read_text(), re.S)
    before = set(spark.streams.active)
    exec(block, {"DataFrame": DataFrame, "cat": cat, "spark": spark, "root": root})
    (query,) = set(spark.streams.active) - before
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(lance.dataset(tmp_path / "tables" / "copy.lance").to_table()["id"].to_pylist()) == [0, 1, 2]
