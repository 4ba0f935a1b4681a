from __future__ import annotations

import json
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lancehouse.cli.main import main
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs

FEATURES = """
import lancehouse, pyarrow as pa

@lancehouse.column(version="1", inputs=["word"], returns=pa.int64())
def size(words):
    if "bad" in words.to_pylist():
        raise ValueError("no bad")
    return [len(word) for word in words.to_pylist()]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lance.write_dataset(pa.table({"id": [1, 2], "word": ["one", "bad"]}), tmp_path / "docs.lance")
    (tmp_path / "features_of_cli.py").write_text(FEATURES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "features_of_cli", raising=False)  # of the folder of another test
    monkeypatch.setenv("PYTHONPATH", "")
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    where = ["--impl", "dir", "--property", f"root={folder}"]
    return CliRunner().invoke(main, ["--output", "json", "table", words[0], "docs", *words[1:], *where])


def test_columns_are_defined_filled_and_shown(folder: Path) -> None:
    define = ("--define", "size=features_of_cli:size", "--modules", str(folder))
    failed = run(folder, "backfill", *define)
    assert failed.exit_code == 1
    assert "size failed for row id 1: ValueError: no bad" in failed.output
    filled = json.loads(
        run(folder, "backfill", "--modules", str(folder), "--on-error", "null", "--optimize-indices").stdout
    )
    assert (filled["filled"], filled["failed"]) == (1, 1)
    [part] = filled["columns"]
    assert (part["column"], part["failed"], part["bytes"]) == ("size", 1, filled["bytes"])
    [row] = json.loads(run(folder, "columns").stdout)["rows"]
    assert (row["column"], row["function"], row["failed"]) == ("size", "features_of_cli:size", 1)
    [error] = json.loads(run(folder, "errors", "size", "--column", "id").stdout)["rows"]
    assert (error["id"], error["exception"]) == (2, "ValueError: no bad")


def test_a_view_is_refreshed(folder: Path) -> None:
    lance.write_dataset(pa.table({"id": [1, 2]}), folder / "source.lance", enable_stable_row_ids=True)
    jobs = TableJobs(Connection("dir", {"root": str(folder)}), LocalEngine(threads=1))
    jobs.create_materialized_view("docs2", "source", columns=["id"])
    lance.write_dataset(pa.table({"id": [3]}), folder / "source.lance", mode="append")
    where = ["--impl", "dir", "--property", f"root={folder}"]
    shown = CliRunner().invoke(main, ["--output", "json", "table", "refresh", "docs2", *where])
    assert json.loads(shown.stdout)["inserted"] == 1


def test_describe_history_and_preview(folder: Path) -> None:
    run(folder, "backfill", "--define", "size=features_of_cli:size", "--modules", str(folder), "--on-error", "null")
    about = json.loads(run(folder, "describe").stdout)
    assert (about["columns"], about["computed"]) == (["id", "word", "size"], ["size (features_of_cli:size 1 of word)"])
    assert "view" not in about
    messages = [version["message"] for version in json.loads(run(folder, "history").stdout)["versions"]]
    assert messages == ["Fill size (features_of_cli:size 1)", "Define size (features_of_cli:size 1)", None]
    assert "Message" in run(folder, "history", "--output", "text").output
    assert list(json.loads(run(folder, "preview").stdout)["rows"][0]) == ["id", "word", "size"]
    companion = json.loads(run(folder, "preview", "--column", "_lancehouse_size").stdout)["rows"][0]
    assert companion["_lancehouse_size"]["state"] == "filled"


def test_only_allowed_modules_are_imported(folder: Path) -> None:
    define = ("--define", "size=features_of_cli:size", "--modules", str(folder), "--on-error", "null")
    assert run(folder, "backfill", *define, "--allow", "others").exit_code == 0, "what --define names is allowed"
    sys.modules.pop("features_of_cli")
    again = ("backfill", "--recompute", "--modules", str(folder), "--on-error", "null")
    refused = run(folder, *again, "--allow", "others")
    assert refused.exit_code == 1
    assert "features_of_cli:size is not imported: only others is allowed here" in refused.output
    assert "features_of_cli" not in sys.modules
    done = run(folder, *again, "--allow", "features_of_cli")
    assert done.exit_code == 0, done.output


def test_lineage(folder: Path) -> None:
    lance.write_dataset(pa.table({"id": [1, 2]}), folder / "source.lance", enable_stable_row_ids=True)
    jobs = TableJobs(Connection("dir", {"root": str(folder)}), LocalEngine(threads=1))
    jobs.define_columns("source", {"twice": "id * 2"})
    jobs.create_materialized_view("middle", "source", columns=["id"], where="id > 0")
    jobs.create_materialized_view("docs2", "middle", columns=["id"])
    where = ["--impl", "dir", "--property", f"root={folder}"]
    shown = CliRunner().invoke(main, ["table", "lineage", "docs2", *where])
    assert [line.rstrip() for line in shown.output.splitlines()[2:]] == [
        "docs2            middle   SQL",
        "  middle         source   SQL",
        "    source",
        "      .twice     id       SQL 'id * 2'",
        "docs2: 3 definitions",
    ]
    rows = json.loads(CliRunner().invoke(main, ["--output", "json", "table", "lineage", "docs2", *where]).stdout)[
        "rows"
    ]
    assert [(row["table"], row["column"], row["source"]) for row in rows] == [
        ("docs2", None, "middle"),
        ("middle", None, "source"),
        ("source", "twice", "source"),
    ]
    view = json.loads(CliRunner().invoke(main, ["--output", "json", "table", "describe", "middle", *where]).stdout)
    assert view["view"] == "of source where id > 0 (SQL)"
    (folder / "source.lance").rename(folder / "gone")
    assert CliRunner().invoke(main, ["table", "lineage", "docs2", *where]).exit_code == 0


PARTS = """
import lancehouse, pyarrow as pa

@lancehouse.column(version="1", inputs=["word"], returns=pa.list_(pa.string()))
def parts(words):
    if "bad" in words.to_pylist():
        raise ValueError("no bad")
    return [list(word) for word in words.to_pylist()]
"""


def test_rows_that_a_view_leaves_out_are_shown(folder: Path) -> None:
    lance.write_dataset(pa.table({"word": ["ab", "bad"]}), folder / "source.lance", enable_stable_row_ids=True)
    (folder / "parts_of_cli.py").write_text(PARTS)
    sys.path.insert(0, str(folder))
    from parts_of_cli import parts  # type: ignore[import-not-found]

    jobs = TableJobs(Connection("dir", {"root": str(folder)}), LocalEngine(threads=1))
    jobs.create_materialized_view("view", "source", parts, on_error="skip")
    where = ["--impl", "dir", "--property", f"root={folder}"]
    shown = CliRunner().invoke(main, ["--output", "json", "table", "errors", "view", "--column", "word", *where])
    [row] = json.loads(shown.stdout)["rows"]
    assert (row["word"], row["exception"]) == ("bad", "ValueError: no bad")
    again = CliRunner().invoke(main, ["table", "refresh", "view", "--failed", "--modules", str(folder), *where])
    assert again.exit_code == 1
    assert "ValueError: no bad" in again.output
