"""`lancehouse sql`, its shell, and the magic of notebooks, on a real session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from lancehouse.cli import sql as sql_command
from lancehouse.cli.main import CliContext, main
from lancehouse.spark import LanceCatalog


@pytest.fixture
def cat(spark: Any, tmp_path: Path) -> LanceCatalog:
    rows = pa.table({"id": range(5), "title": ["a", "b", "c", "d", "e"]})
    lance.write_dataset(rows, tmp_path / "papers.lance", enable_stable_row_ids=True)
    return LanceCatalog(spark, "dir", {"root": str(tmp_path)})


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "history"
    monkeypatch.setattr(sql_command, "HISTORY", file)
    return file


def run(tmp_path: Path, *words: str, **how: Any) -> Result:
    where = ["--impl", "dir", "--property", f"root={tmp_path}"]
    return CliRunner().invoke(main, [*words, *where], **how)


@pytest.mark.usefixtures("cat")
def test_a_query_and_its_rows(tmp_path: Path) -> None:
    found = run(tmp_path, "--output", "json", "sql", "SELECT title, id FROM papers WHERE id > 1 ORDER BY id", "-n", "2")
    assert json.loads(found.stdout) == {
        "count": 2,
        "has_more": True,
        "rows": [{"title": "c", "id": 2}, {"title": "d", "id": 3}],
    }
    twice = run(tmp_path, "--output", "json", "sql", "SELECT a.id, b.id FROM papers a JOIN papers b ON a.id = b.id + 4")
    assert json.loads(twice.stdout)["rows"] == [{"id": 4, "id (2)": 0}]


@pytest.mark.usefixtures("cat")
def test_statements_up_to_the_first_that_fails(tmp_path: Path) -> None:
    text = "UPDATE papers SET title = 'x' WHERE id = 0; SELECT nope FROM papers; DELETE FROM papers"
    found = run(tmp_path, "sql", input=text)
    assert found.exit_code == 1
    assert "nope" in found.output
    titles = lance.dataset(tmp_path / "papers.lance").to_table()["title"].to_pylist()
    assert sorted(titles) == ["b", "c", "d", "e", "x"]
    explained = run(tmp_path, "sql", "--explain", "SELECT title FROM papers WHERE id = 5")
    assert "id" in explained.stdout
    assert "title" in explained.stdout


def test_the_shell_goes_on_after_errors(cat: LanceCatalog, history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = sql_command.StatementRunner(CliContext(), cat, 10)
    lines = [
        "SELECT title",
        "FROM papers WHERE id = 3;",
        "SELECT nope FROM papers;",
        "help",
        "SELECT 'a;b' AS s;",
        "quit",
    ]
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text("".join(f"{line}\r" for line in lines))
        sql_command.run_shell(runner)
    shown = capsys.readouterr()
    assert "d" in shown.out.split()
    assert "a;b" in shown.out
    assert "ends the shell" in shown.out
    assert "nope" in shown.err
    assert "FROM papers WHERE id = 3;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_names_are_completed(cat: LanceCatalog) -> None:
    words = sql_command.CatalogWords(cat)
    assert {"SELECT", "VACUUM", "papers", "title"} <= set(words.list())
    lance.write_dataset(pa.table({"more": [1]}), Path(cat._catalog.properties["root"]) / "new.lance")
    assert "new" not in words.list()
    words.forget()
    assert {"new", "more"} <= set(words.list())


@pytest.fixture
def notebook(cat: LanceCatalog) -> Any:
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    shell.run_line_magic("load_ext", "lancehouse.spark")
    shell.user_ns["cat"] = cat
    return shell


def test_a_cell_of_sql(notebook: Any, cat: LanceCatalog) -> None:
    found = notebook.run_cell_magic("lance", "-n 2", "SELECT id FROM papers ORDER BY id DESC")
    assert found["id"].tolist() == [4, 3]
    assert notebook.run_cell_magic("lance", "cat -o few", "SELECT id FROM papers WHERE id < 2") is None
    assert notebook.user_ns["few"].count() == 2
    assert notebook.run_line_magic("lance", "SELECT count(*) AS n FROM papers")["n"].tolist() == [5]
    for line, cell, message in [
        ("", "SELECT nope FROM papers", "nope"),
        ("--what", "SELECT 1", "--what is not known"),
        ("few", "SELECT 1", "few is no LanceCatalog"),
        ("-n x", "SELECT 1", "%%lance"),
        ("'cat", "SELECT 1", "'cat is not known"),
    ]:
        with pytest.raises(UsageError, match=message):
            notebook.run_cell_magic("lance", line, cell)
    notebook.user_ns["other"] = LanceCatalog(cat.spark, "dir", cat._catalog.properties)
    with pytest.raises(UsageError, match="name one of cat, other"):
        notebook.run_cell_magic("lance", "", "SELECT 1")
