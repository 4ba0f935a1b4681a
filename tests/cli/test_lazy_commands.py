from __future__ import annotations

import ast
import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from lancehouse import CATALOGS
from lancehouse.cli.lazy_commands import LazyCommand, LazyGroup
from lancehouse.cli.main import main
from lancehouse.cli.manual import all_command_contexts
from tests.cli.commands import error_text, run

HEAVY = {"lance", "lance_namespace", "pyarrow", "pydantic", "numpy", "pandas", "pyspark", "rich", "urllib3", "yaml"}
CONTEXTS = list(all_command_contexts())
LAZY = [
    (context.command, name)
    for context in CONTEXTS
    if isinstance(context.command, LazyGroup)
    for name, command in context.command.commands.items()
    if isinstance(command, LazyCommand)
]


def slow_modules(*commands: list[str]) -> dict[str, list[str]]:
    """What is slow and loaded by each of these, one after the other, in a process of their own."""
    code = f"""if True:
        import sys
        from lancehouse.cli.main import main
        found, before = {{}}, set()
        for words in {list(commands)}:
            try:
                main(words, "lancehouse")
            except SystemExit:
                now = {HEAVY} & set(sys.modules)
                found[" ".join(words)], before = sorted(now - before), now
        print(found)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, list[str]] = ast.literal_eval(done.stdout.splitlines()[-1])
    return found


def test_nothing_that_is_slow_is_loaded_for_any_help() -> None:
    found = slow_modules(*([*context.command_path.split()[1:], "--help"] for context in CONTEXTS))
    assert len(found) == len(CONTEXTS)
    assert {words: slow for words, slow in found.items() if slow} == {}


def test_nothing_that_is_slow_is_loaded_for_words_that_are_typed_wrongly() -> None:
    words = [["xyz"], ["--xyz"], ["table", "xyz"], ["table", "compact", "--xyz"], ["table", "count"]]
    assert list(slow_modules(*words).values()) == [[]] * len(words)


def test_what_is_slow_is_seen() -> None:
    assert "lance_namespace" in slow_modules(["table", "count", "a..b"])["table count a..b"]


def test_the_package_registers_when_the_interface_is_imported() -> None:
    code = (
        "import sys, lancehouse; assert 'lance_namespace' not in sys.modules; import lance_namespace; "
        "print(lance_namespace._REGISTERED_IMPLS['iceberg'], lance_namespace.connect('iceberg', {'endpoint': 'http://h'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("lancehouse.IcebergNamespace IcebergNamespace"), done.stderr
    code = "import lance_namespace, lancehouse; print(sorted(lance_namespace._REGISTERED_IMPLS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{sorted(CATALOGS)}\n"


@pytest.mark.parametrize(("group", "name"), LAZY, ids=[name for _, name in LAZY])
def test_what_stands_for_a_command_says_the_same(group: LazyGroup, name: str) -> None:
    lazy, command = group.commands[name], group.load(name)
    assert isinstance(lazy, LazyCommand)
    assert (command.name, isinstance(command, click.Group)) == (name, lazy.is_group)
    assert " ".join((command.help or "").split("\n\n")[0].split()).startswith(lazy.does)
    assert lazy.does.endswith(".")
    width = 78 - 6 - max(map(len, group.commands))
    assert lazy.get_short_help_str(width) == lazy.does, "too long for its line"


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.command_path)
def test_help_fits_80_columns(context: click.Context) -> None:
    done = CliRunner().invoke(main, [*context.command_path.split()[1:], "-h"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    if not isinstance(context.command, click.Group):
        assert done.stdout.endswith("Every command takes --output text|json and --debug too.\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel"], "No such command 'tabel'. Did you mean `lancehouse table`?"),
        (["table", "lst"], "No such command 'lst'. Did you mean `lancehouse table list`?"),
        (["list"], "No such command 'list'. Did you mean `lancehouse namespace list`"),
        (["preview"], "No such command 'preview'. Did you mean `lancehouse table preview`?"),
        (["table", "ls"], "No such command 'ls'. Did you mean `lancehouse table list`?"),
        (["table", "rm"], "No such command 'rm'. Did you mean `lancehouse table drop`?"),
        (["db", "show"], "No such command 'show'. Did you mean `lancehouse db status`?"),
        (["xyz"], "No such command 'xyz'.\n"),
        (["table", "list", "--recursiv"], "Did you mean --recursive?"),
        (["--catalg", "x"], "Did you mean --catalog?"),
        (["--output", "xml", "version"], "'xml' is not one of 'text', 'json'"),
        (["table", "count"], "Missing argument 'ID'."),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_words_that_are_typed_wrongly(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, words, prog_name="lancehouse")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said.replace("'--", "--") in done.stderr.replace("'--", "--").replace("'?", "?")


def test_wrong_words_for_programs() -> None:
    done = run("--output", "json", "table", "lst")
    assert json.loads(error_text(done, 2))["error"].startswith("No such command 'lst'.")
    late = run("table", "count", "--output", "json")
    assert json.loads(error_text(late, 2)) == {"error": "Missing argument 'ID'."}


def test_an_error_for_programs(tmp_path: object) -> None:
    given = ["--impl", "dir", "--property", f"root={tmp_path}"]
    done = run("table", "count", *given, "nothing", "--output", "json")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["hints"] == [
        f"`lancehouse table list {' '.join(given)}` shows the tables that are there"
    ]
