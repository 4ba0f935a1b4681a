from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from lance_namespace.errors import PermissionDeniedError

from lancehouse.cli.main import main
from tests.cli.commands import error_text, run

FAILURES = {
    "catalog": PermissionDeniedError("table a.b is [hidden]"),
    "interrupt": KeyboardInterrupt(),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
    "file": PermissionError(errno.EACCES, "Permission denied", "/a/[b]"),
    "pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
}


@pytest.fixture
def failing() -> Iterator[None]:
    @main.command("fail")
    @click.option("--how", type=click.Choice([*FAILURES, "bug"]))
    def fail(how: str) -> None:
        raise FAILURES[how]

    yield
    del main.commands["fail"]


@pytest.mark.parametrize("arguments", [["version"], ["--output", "json", "version"]])
def test_version(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert version("lancehouse") in done.stdout
    if "json" in arguments:
        assert json.loads(done.stdout)["lancehouse"] == version("lancehouse")


def test_the_option_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"lancehouse {version('lancehouse')}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "Error: table a.b is [hidden]\n"), (["--output", "json"], '{"error": "table a.b is [hidden]"}\n')],
)
@pytest.mark.usefixtures("failing")
def test_an_error_of_the_catalog_is_one_sentence(options: list[str], words: str) -> None:
    done = CliRunner().invoke(main, [*options, "fail", "--how", "catalog"])
    assert done.exit_code == 1
    assert done.stderr == words
    assert done.stdout == ""


@pytest.mark.usefixtures("failing")
def test_debug_shows_the_trace() -> None:
    done = CliRunner().invoke(main, ["--debug", "fail", "--how", "catalog"])
    assert isinstance(done.exception, PermissionDeniedError)


@pytest.mark.usefixtures("failing")
def test_a_bug_is_called_one() -> None:
    done = CliRunner().invoke(main, ["fail", "--how", "bug"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: internal error: KeyError: ")
    assert "run it again with --debug" in done.stderr
    told = CliRunner().invoke(main, ["--output", "json", "fail", "--how", "bug"])
    assert json.loads(told.stderr)["error"].startswith("internal error: KeyError: ")
    assert isinstance(CliRunner().invoke(main, ["--debug", "fail", "--how", "bug"]).exception, KeyError)


@pytest.mark.parametrize("words", [["nope"], ["table", "list", "--bogus"], ["table", "count"]])
@pytest.mark.parametrize("kind", [["--output", "json"], ["--output=json"]])
def test_a_wrong_command_is_json_where_that_is_wanted(words: list[str], kind: list[str]) -> None:
    for typed in ([*kind, *words], [*words, *kind]):
        done = CliRunner().invoke(main, typed)
        assert (done.exit_code, done.stdout) == (2, "")
        assert set(json.loads(done.stderr)) == {"error"}


@pytest.mark.parametrize(
    ("how", "words"),
    [("disk", "Error: No space left on device\n"), ("file", "Error: /a/[b]: Permission denied\n"), ("pipe", "")],
)
@pytest.mark.usefixtures("failing")
def test_an_error_of_the_machine_is_one_sentence(how: str, words: str) -> None:
    done = CliRunner().invoke(main, ["fail", "--how", how])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", words)
    told = CliRunner().invoke(main, ["--output", "json", "fail", "--how", how])
    assert (told.exit_code, told.stderr[:9]) == (1, '{"error":' if words else "")


@pytest.mark.usefixtures("failing")
def test_debug_shows_the_trace_of_the_machine() -> None:
    assert isinstance(CliRunner().invoke(main, ["--debug", "fail", "--how", "disk"]).exception, OSError)


@pytest.mark.usefixtures("failing")
def test_an_interrupt_is_130() -> None:
    assert CliRunner().invoke(main, ["fail", "--how", "interrupt"]).exit_code == 130


@pytest.mark.parametrize("arguments", [["nonsense"], ["--output", "xml", "version"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_help_names_every_command() -> None:
    words = CliRunner().invoke(main, ["-h"]).stdout
    assert all(name in words for name in main.commands)


@pytest.mark.parametrize(
    "words",
    [
        ["audit"],
        ["audit", "prune", "--before", "2020-01", "--yes"],
        ["db", "adopt", "--yes"],
        ["maintenance", "run", "main.db.docs"],
        ["maintenance", "status"],
        ["maintenance", "worker"],
        ["principal", "delete", "alice"],
        ["principal", "group", "list"],
        ["principal", "list"],
        ["principal", "who-can", "main.db.docs"],
    ],
)
def test_a_database_that_does_not_exist(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mistyped" / "catalog.db"
    assert error_text(run(*words, "--db", f"sqlite:///{file}")) == (
        f"Error: there is no database {file}\nHint: check --db; `lancehouse serve` creates a database\n"
    )
    assert not file.parent.exists()
