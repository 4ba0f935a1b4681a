"""What docs/migration.md tells users of lance-ray to do works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PAGE = Path(__file__).parent.parent.parent / "docs" / "migration.md"


def test_the_example(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "points.parquet")
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "LanceCatalog" in each)
    found: dict[str, Any] = {"spark": spark, "root": str(tmp_path / "tables"), "files": str(tmp_path / "*.parquet")}
    exec(block, found)
    assert sorted(found["twice"]) == [2, 4]
