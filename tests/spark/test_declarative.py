"""Spark's own declarative pipelines, run by its own program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
def test_a_lance_table_is_a_source_and_a_sink() -> None:
    """Two runs: the second takes the rows that came after the first, and each row comes once."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.declarative"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "large_orders is at version 1, with 100 rows" in done.stdout
    assert "large_orders is at version 2, with 200 rows" in done.stdout


def test_the_page_shows_the_example() -> None:
    [block] = re.findall(r"```py\n(dp\..*?)```", (ROOT / "docs" / "spark.md").read_text(), re.S)
    code = (ROOT / "examples" / "declarative" / "transformations" / "orders.py").read_text()
    assert all(part.strip() in code for part in block.split("\n\n\n"))
