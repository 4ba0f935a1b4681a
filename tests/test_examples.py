"""Every example runs by itself, with one command, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(tmp_path: Path, module: str, *words: str) -> str:
    """What an example says; all that it makes is in a folder that it has to itself, and is gone at the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert [path.name for path in folder.iterdir() if path.name.startswith("lancehouse")] == []
    return done.stdout


def test_documents(tmp_path: Path) -> None:
    said = run(tmp_path, "examples.documents")
    assert "version 1 of main.library.documents has 2560 rows" in said
    for question, subject in [
        ("my vector index", "search"),
        ("how do I bake", "kitchen"),
        ("old snapshots", "storage"),
    ]:
        assert re.search(rf"{question}.*│ 0\.\d\d +│ {subject}", said), said


def test_images(tmp_path: Path) -> None:
    page = tmp_path / "alike.html"
    said = run(tmp_path, "examples.images", "--page", str(page))
    assert "version 1 has 96 images" in said
    assert "12 of 12 neighbours are of the same scene" in said
    assert page.read_text().count("data:image/png;base64,iVBOR") == 16


@pytest.mark.parametrize("name", ["documents", "images", "declarative"])
def test_examples_are_in_the_docs(name: str) -> None:
    assert f"python -m examples.{name}" in (ROOT / "docs" / "spark.md").read_text()
