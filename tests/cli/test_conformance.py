from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lance.namespace import DirectoryNamespace
from lance_namespace import DeclareTableRequest, DeclareTableResponse, ListNamespacesRequest, connect

from lancehouse.cli.main import main

MODEL = "tests.conformance.model.ModelNamespace"
BROKEN = "tests.conformance.broken.{}"
ROOT = Path(__file__).parent.parent.parent


class Struck(DirectoryNamespace):  # type: ignore[misc]
    """Someone stops the run while it makes its fifth table."""

    count = 0

    def __init__(self, *, by: str, **properties: Any) -> None:
        super().__init__(**properties)
        self.by = signal.Signals[by]

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        declared: DeclareTableResponse = super().declare_table(request)
        Struck.count += 1
        if Struck.count == 5:
            os.kill(os.getpid(), self.by)
        return declared


def conformance(root: Path, *arguments: str, impl: str = MODEL, output: str = "text") -> Result:
    options = ["--output", output, "conformance", "--impl", impl, "--property", f"root={root}", *arguments]
    return CliRunner().invoke(main, options, env={"COLUMNS": "80"}, catch_exceptions=False)


def test_table_fits_80_columns(tmp_path: Path) -> None:
    done = conformance(tmp_path, "--area", "namespaces", "--area", "names")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["Area", "Check", "Result", "What", "was", "seen"]
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith(f"{MODEL} in the root: ")
    assert lines[-1].endswith(" hold")
    assert "fails" not in done.stdout


def test_a_failure_is_exit_1(tmp_path: Path) -> None:
    done = conformance(tmp_path, "--area", "lists", impl=BROKEN.format("Unsorted"))
    assert done.exit_code == 1
    assert done.stdout.count("fails") == 2
    assert "2 fail" in done.stdout.splitlines()[-1]


def test_known_failures_are_exit_0(tmp_path: Path) -> None:
    known = ["--known", "lists.tables_sorted", "--known", "lists.pages_in_order"]
    done = conformance(tmp_path, "--area", "lists", *known, impl=BROKEN.format("Unsorted"))
    assert done.exit_code == 0
    assert "2 known" in done.stdout


def test_json(tmp_path: Path) -> None:
    done = conformance(tmp_path, "--area", "tables", "--entries", "7", output="json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["implementation"] == MODEL
    assert report["ok"] is True
    assert report["counts"]["fails"] == 0
    assert {"area", "check", "sentence", "outcome", "seen", "seconds"} == set(report["rows"][0])
    assert {row["area"] for row in report["rows"]} == {"tables", "cleanup"}


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("impl", ["ShowsSecret", "TellsSecret", "WantsServer"])
def test_secrets_never_appear(tmp_path: Path, impl: str, output: str) -> None:
    secret = ["--property", "token=s3cr3t-t0ken", "--property", "endpoint=http://user:pa55word@localhost:1"]
    areas = ["--area", "connection", "--area", "tables"]
    done = conformance(tmp_path, *secret, *areas, impl=BROKEN.format(impl), output=output)
    assert done.exit_code == 1
    assert "s3cr3t" not in done.output
    assert "pa55word" not in done.output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--impl", "nowhere.Namespace", "--property", "token=s3cr3t-t0ken"], 1, "No module named 'nowhere'"),
        (["--impl", MODEL, "--property", "root=r", "--parent", "missing"], 1, "there is no namespace missing"),
        (["--impl", MODEL, "--property", "nonsense=s3cr3t-t0ken"], 1, "nonsense"),
        (["--impl", "dir", "--property", "s3cr3t-t0ken"], 2, "a property is key=value"),
        (["--impl", "dir", "--parent", "a."], 2, "is no id"),
        (["--impl", "dir", "--area", "nonsense"], 2, "--area"),
        ([], 2, "--impl"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], status: int, words: str) -> None:
    done = CliRunner().invoke(main, ["conformance", *arguments])
    assert done.exit_code == status
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert "s3cr3t" not in done.output


def test_pytest_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in ("pytest", "lancehouse.conformance.runner")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delattr("lancehouse.conformance.runner", raising=False)
    done = conformance(tmp_path)
    assert done.exit_code == 1
    assert "pip install 'lancehouse[conformance]'" in done.stderr


@pytest.mark.parametrize("by", ["SIGINT", "SIGTERM"])
def test_nothing_is_left_after_an_interrupt(tmp_path: Path, by: str) -> None:
    impl = ["--impl", "tests.cli.test_conformance.Struck", "--property", f"by={by}", "--property", f"root={tmp_path}"]
    # A shell starts programs in the background with SIGINT ignored, and so would be whatever they start.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program += "; from lancehouse.cli.main import main; main()"
    command = [sys.executable, "-c", program, "conformance", *impl]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "interrupted" in done.stderr
    assert connect("dir", {"root": str(tmp_path)}).list_namespaces(ListNamespacesRequest(id=[])).namespaces == []
    assert [folder.name for folder in tmp_path.iterdir()] == ["__manifest"]
