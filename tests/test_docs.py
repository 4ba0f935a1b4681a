"""What the documents tell a newcomer to do works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.servers.lancehouse import Served

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_readme_example(reference: str, tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block
    code = block[1].replace("http://localhost:8181", reference).replace("s3://bucket/lance", str(tmp_path))
    code = code.replace('    "credential": "client_id:client_secret",\n', "").replace('"db"', '"readme"')
    found: dict[str, object] = {"table": pa.table({"a": [1, 2, 3]})}
    exec(code, found)
    assert found["docs"].count_rows() == 3  # type: ignore[attr-defined]


def test_the_example_of_the_server(served: Served) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "server.md").read_text(), re.S)
    assert block
    code = block[1].replace("http://127.0.0.1:8181/iceberg", served.iceberg).replace("db", "example")
    *lines, last = code.strip().splitlines()
    found: dict[str, object] = {}
    exec("\n".join([*lines, f"rows = {last}"]), found)
    assert found["rows"] == pa.table({"id": [2, 3]})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 80


def test_the_demo_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(ROOT.iterdir())
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "version 2 has 2 archived rows, version 1 has 0" in run.stdout
    assert "data left: False" in run.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("lancehouse-demo")]
    assert set(ROOT.iterdir()) == before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
