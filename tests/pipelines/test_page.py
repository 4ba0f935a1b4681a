"""What docs/pipelines.md tells a newcomer to do works, and each key that there is stands in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pytest

from lancehouse.pipelines import load
from lancehouse.pipelines.spec import VARIABLES, PipelineSpec, SpecPart

PAGE = Path(__file__).parent.parent.parent / "docs" / "pipelines.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def write_files(folder: Path) -> None:
    """Write the files whose names the first lines of the blocks contain, and the rows."""
    for block in [*blocks("yaml"), *blocks("python")]:
        if name := re.match(r"# (\w+\.(yml|py))", block):
            (folder / name[1]).write_text(block)
    subprocess.run([sys.executable, "rows.py"], cwd=folder, check=True)


def test_the_examples(spark: Any, tmp_path: Path) -> None:
    write_files(tmp_path)
    exec(blocks("python")[-1].replace("local()", "spark"), {"file": tmp_path / "pipeline.yml", "spark": spark})
    table = lance.dataset(tmp_path / "tables" / "docs.lance", version="checked")
    assert table.to_table().to_pylist() == [
        {"id": 2, "title": "B", "text": "Drei", "vector": [4.0, 0.0]},
        {"id": 3, "title": "C", "text": "", "vector": [0.0, 0.0]},
    ]
    assert [index.name for index in table.describe_indices()] == ["id_idx"]


def test_the_example_of_columns_and_views(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert load(tmp_path / "chunks.yml").run().has_passed
    rows = lance.dataset(tmp_path / "tables" / "papers.lance", version="checked").to_table(["id", "words", "summary"])
    assert rows.to_pylist() == [
        {"id": 1, "words": 8, "summary": "One"},
        {"id": 2, "words": 4, "summary": "Drei"},
        {"id": 3, "words": 0, "summary": ""},
    ]
    chunks = lance.dataset(tmp_path / "tables" / "chunks.lance")
    assert chunks.to_table(["id", "text", "embedding"]).to_pylist() == [
        {"id": 1, "text": "One", "embedding": [1.5, 1.0]},
        {"id": 1, "text": "Two", "embedding": [1.5, 1.0]},
        {"id": 2, "text": "Drei", "embedding": [2.0, 1.0]},
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
