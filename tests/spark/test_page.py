"""What docs/spark.md, docs/search.md and docs/columns.md tell a newcomer to do works."""

from __future__ import annotations

import re
import subprocess
import sys
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


def test_the_examples_of_computed_columns(tmp_path: Path) -> None:
    """In a process of its own: a session of other tests does not find the modules of this page."""
    root = tmp_path / "tables"
    page = (PAGE.parent / "columns.md").read_text().replace("/tmp/library", str(root))
    program = []
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
        else:
            program.append(block)
    (tmp_path / "program.py").write_text("\n".join(program))
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True)
    rows = lance.dataset(root / "docs.lance").to_table(["id", "embedding"]).to_pylist()
    assert rows == [{"id": 1, "embedding": [4.0, 1.0]}, {"id": 3, "embedding": [1.5, 1.0]}]
    chunks = lance.dataset(root / "chunks.lance").to_table(["id", "text", "embedding"]).to_pylist()
    assert sorted((row["id"], row["text"], row["embedding"]) for row in chunks) == [
        (1, "One", [1.5, 1.0]),
        (1, "Two", [1.5, 1.0]),
        (3, "New", [1.5, 1.0]),
    ]
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.S)
    for command in commands.splitlines():
        subprocess.run([Path(sys.executable).parent / "lancehouse", *command.split()[1:]], cwd=tmp_path, check=True)
