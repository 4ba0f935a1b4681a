"""What docs/spark.md tells a newcomer to do works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"


def test_the_examples(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "trips.parquet")
    found: dict[str, Any] = {"root": str(tmp_path / "tables"), "folder": str(tmp_path / "trips.parquet")}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, found)
    rows = lance.dataset(tmp_path / "tables" / "docs.lance")
    assert rows.count_rows() == 1501
    assert rows.schema.names == ["id", "text", "emb", "length", "twice"]
    assert [each.operation for each in found["cat"].history("trips").collect()] == ["Overwrite"]
