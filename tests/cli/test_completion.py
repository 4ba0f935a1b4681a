from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.lancehouse import PROGRAM


def complete(words: str, **env: str) -> list[str]:
    """What bash would be told at the end of these words."""
    typed = words.split(" ")
    told = {"_LANCEHOUSE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(typed) - 1)}
    done = subprocess.run([PROGRAM], env={**os.environ, **told, **env}, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_options_and_catalogs(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("catalogs: {prod: {}, preview: {}, dev: {}}")
    assert complete("lancehouse ta") == ["table"]
    assert complete("lancehouse table pre") == ["preview"]
    assert "--recursive" in complete("lancehouse table list --")
    assert {"--catalog", "--output"} <= set(complete("lancehouse table list --"))
    assert complete("lancehouse --output ") == ["text", "json"]
    file = f"{tmp_path}/c.yaml"
    assert complete("lancehouse --catalog p", LANCEHOUSE_CONFIG=file) == ["preview", "prod"]
    assert complete("lancehouse table list --catalog d", LANCEHOUSE_CONFIG=file) == ["dev"]
    assert complete("lancehouse --catalog p", LANCEHOUSE_CONFIG="/nowhere") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_shells_read(shell: str) -> None:
    done = subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, check=True)
    assert f"_LANCEHOUSE_COMPLETE={shell}_complete" in done.stdout


def test_in_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = """
    eval "$(lancehouse completion bash)"
    COMP_WORDS=(lancehouse table pre); COMP_CWORD=2
    _lancehouse_completion lancehouse pre table
    echo "${COMPREPLY[@]}"
    """
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    done = subprocess.run([bash, "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("preview\n", 0), done.stderr
