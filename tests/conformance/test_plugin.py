"""The suite as a plain pytest plug-in, in a process and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = ["-p", "lancehouse.conformance.plugin", "--pyargs", "lancehouse.conformance.checks"]


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_files = nothing_*.py\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *CHECKS, *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_reports_as_pytest_does(tmp_path: Path) -> None:
    selected = "(connection and pickle) or (tables and declare_existing) or (modes and drop)"
    known = ["--namespace-known", "modes.spelling_drop[skip]"]
    target = ["--namespace-impl", "dir", "--namespace-property", f"root={tmp_path / 'root'}"]
    done = run(tmp_path, *target, *known, "-k", selected)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unsupported: pickle" in done.stdout
    assert "mode Skip is not heeded: error 1" in done.stdout
    assert "3 failed, 2 passed, 1 skipped" in done.stdout
    assert "1 xfailed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--namespace-impl says which implementation to check"),
        (["--namespace-impl", "dir", "--namespace-property", "s3cr3t"], "a property is key=value"),
    ],
)
def test_says_what_is_missing(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 4
    assert words in done.stdout + done.stderr
