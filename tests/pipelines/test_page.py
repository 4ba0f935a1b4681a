"""What docs/pipelines.md tells a newcomer to do works, and each key that there is stands in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancehouse.pipelines import load
from lancehouse.pipelines.spec import VARIABLES, PipelineSpec, SpecPart

PAGE = Path(__file__).parent.parent.parent / "docs" / "pipelines.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def test_the_examples(spark: Any, tmp_path: Path) -> None:
    [pipeline, _], [module, _, code] = blocks("yaml"), blocks("python")
    (tmp_path / "pipeline.yml").write_text(pipeline)
    (tmp_path / "embedding.py").write_text(module)
    (tmp_path / "data").mkdir()
    rows = {"id": [1, 2, 3], "title": ["a", "b", "c"], "text": ["x y", "z", "zz"], "lang": ["en", "de", "de"]}
    pq.write_table(pa.table(rows), tmp_path / "data" / "1.parquet")
    exec(code.replace("local()", "spark"), {"file": tmp_path / "pipeline.yml", "spark": spark})
    table = lance.dataset(tmp_path / "tables" / "docs.lance", version="checked")
    assert table.to_table().to_pylist() == [
        {"id": 2, "title": "B", "text": "z", "vector": [1.0, 0.0]},
        {"id": 3, "title": "C", "text": "zz", "vector": [2.0, 0.0]},
    ]
    assert [index.name for index in table.describe_indices()] == ["id_idx"]


def test_the_example_of_columns_and_views(tmp_path: Path) -> None:
    (tmp_path / "chunks.yml").write_text(blocks("yaml")[1])
    (tmp_path / "features.py").write_text(blocks("python")[1])
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "text": ["One. Two", ""]}), tmp_path / "data" / "1.parquet")
    assert load(tmp_path / "chunks.yml").run().has_passed
    rows = lance.dataset(tmp_path / "tables" / "docs.lance", version="checked").to_table(["id", "words", "summary"])
    assert rows.to_pylist() == [{"id": 1, "words": 8, "summary": "One"}, {"id": 2, "words": 0, "summary": ""}]
    chunks = lance.dataset(tmp_path / "tables" / "chunks.lance")
    assert chunks.to_table(["id", "text", "embedding"]).to_pylist() == [
        {"id": 1, "text": "One", "embedding": [1.5, 1.0]},
        {"id": 1, "text": "Two", "embedding": [1.5, 1.0]},
    ]
    assert [index.name for index in chunks.describe_indices()] == ["text_idx"]


@pytest.mark.parametrize(
    "part", [PipelineSpec, *(each for each in SpecPart.__subclasses__() if each is not PipelineSpec)]
)
def test_each_key_is_explained(part: type[SpecPart]) -> None:
    page = PAGE.read_text()
    keys = [field.alias or name for name, field in part.model_fields.items()]
    missing = [key for key in (VARIABLES, *keys) if not re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`", page)]
    assert missing == []
