from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner
from lance_namespace.errors import TableNotFoundError

from lancehouse.cli.main import main


@pytest.fixture
def failing() -> Iterator[None]:
    @main.command("fail")
    @click.option("--how", type=click.Choice(["catalog", "interrupt", "bug"]))
    def fail(how: str) -> None:
        raise {"catalog": TableNotFoundError("table a.b is [gone]"), "interrupt": KeyboardInterrupt()}[how]

    yield
    del main.commands["fail"]


@pytest.mark.parametrize("arguments", [["version"], ["--output", "json", "version"]])
def test_version(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert version("lancehouse") in done.stdout
    if "json" in arguments:
        assert json.loads(done.stdout)["lancehouse"] == version("lancehouse")


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "Error: table a.b is [gone]\n"), (["--output", "json"], '{"error": "table a.b is [gone]"}\n')],
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
    assert isinstance(done.exception, TableNotFoundError)


@pytest.mark.usefixtures("failing")
def test_a_bug_is_not_dressed_up() -> None:
    done = CliRunner().invoke(main, ["fail", "--how", "bug"])
    assert isinstance(done.exception, KeyError)


@pytest.mark.usefixtures("failing")
def test_an_interrupt_is_130() -> None:
    assert CliRunner().invoke(main, ["fail", "--how", "interrupt"]).exit_code == 130


@pytest.mark.parametrize("arguments", [["nonsense"], ["--output", "xml", "version"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_help_names_every_command() -> None:
    words = CliRunner().invoke(main, ["-h"]).stdout
    assert all(name in words for name in main.commands)
