from __future__ import annotations

import re
import shlex
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from lancehouse.cli.main import main
from lancehouse.cli.manual import MARK, update_page
from tests.servers.lancehouse import Served

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert MARK in page
    assert update_page(page) == page, "run `python -m lancehouse.cli.manual docs/cli.md`"


def test_what_the_page_says(lancehouse_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"page_{uuid4().hex[:8]}"
    page = PAGE.read_text().replace("http://127.0.0.1:8181/iceberg", lancehouse_server.iceberg)
    (file,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (tmp_path / ".lancehouse.yaml").write_text(file)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LANCEHOUSE_CONFIG", raising=False)
    page = re.sub(r"\bdb\b", name, page)
    first, second = re.findall(r"```bash\n(.*?)```", page, re.S)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    run(first)
    exec(code, {})
    run(second)


def run(commands: str) -> None:
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        assert program == "lancehouse"
        done = CliRunner().invoke(main, words, env={"COLUMNS": "80"})
        assert (done.exit_code, done.stderr) == (0, ""), f"{line}: {done.output}"
