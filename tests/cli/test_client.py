from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lance_namespace import (
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
)
from lance_namespace.errors import InternalError, LanceNamespaceError, PermissionDeniedError, UnsupportedOperationError

from lancehouse.cli.client import Client
from lancehouse.cli.main import main
from lancehouse.conformance.target import ConformanceTarget


class Foreign(LanceNamespace):
    """Lists in pages of two, or without end."""

    def __init__(self, *, endless: bool = False) -> None:
        self.endless = endless

    def namespace_id(self) -> str:
        return "foreign"

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        first = int(request.page_token or 0)
        names = [f"t{number}" for number in range(5, 0, -1)][first : first + 2]
        token = "1" if self.endless else str(first + 2) if first < 4 else ""
        return ListTablesResponse(tables=names, page_token=token)

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        raise RuntimeError("cannot log in with s3cr3t-t0ken")

    def describe_table(self, request: Any) -> Any:
        raise PermissionDeniedError("no access for s3cr3t-t0ken")

    def drop_table(self, request: Any) -> Any:
        raise NotImplementedError


TARGET = ConformanceTarget("foreign", {"token": "s3cr3t-t0ken"}, ("main",))


def test_all_pages() -> None:
    assert Client(Foreign(), TARGET).tables(["main", "db"]) == [("main", "db", f"t{number}") for number in range(1, 6)]


def test_a_list_without_end() -> None:
    with pytest.raises(InternalError, match="gives the same page again and again"):
        Client(Foreign(endless=True), TARGET).tables(["main", "db"])


def test_ids_as_they_are_typed() -> None:
    client = Client(Foreign(), TARGET)
    assert client.format_id(["main", "db", "a.b"]) == "db.`a.b`"
    assert client.format_id(["other", "db"]) == "other.db"


@pytest.mark.parametrize(
    ("operation", "kind", "said"),
    [
        ("list_namespaces", InternalError, "db: cannot log in with ***"),
        ("describe_table", PermissionDeniedError, "no access for ***"),
        ("rename_table", UnsupportedOperationError, "Not supported: rename_table"),
        ("drop_table", UnsupportedOperationError, "db: this catalog has no drop_table"),
    ],
)
def test_what_others_raise(operation: str, kind: type[LanceNamespaceError], said: str) -> None:
    with pytest.raises(kind) as error:
        Client(Foreign(), TARGET).ask(operation, ListTablesRequest(id=["main", "db"]))
    assert "s3cr3t" not in str(error.value)
    assert str(error.value) == said


def test_hints_name_the_options_that_stand_for_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin.csv").write_bytes("id,s\n1,ä\n".encode("latin-1"))
    (tmp_path / "more.csv").write_text("id,more\n1,2\n")
    (tmp_path / "numbers.csv").write_text("id,s\n1,a\n")
    (tmp_path / "hinted.py").write_text(
        "import lancehouse, pyarrow\n"
        "@lancehouse.column(version='1', inputs=['id'], returns=pyarrow.int64())\n"
        "def fail(ids): raise ValueError\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    place = ["--impl", "dir", "--property", f"root={tmp_path / 'root'}", "--engine", "local"]

    def hint(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, *place])
        return done.stderr.partition("Hint: ")[2].strip()

    def load(file: str) -> str:
        return hint("ingest", str(tmp_path / file), "--table", "t")

    assert load("numbers.csv") == ""
    assert load("latin.csv") == "--option encoding=latin-1 names it"
    (tmp_path / "words.csv").write_text("id\none\n")
    assert load("words.csv") == "--type COLUMN=TYPE gives a column a type"
    assert load("more.csv") == "--column NAME loads only that column; repeat it for each"
    index = ("table", "index", "t", "--column", "id", "--kind", "BTREE")
    assert hint(*index) == ""
    assert hint(*index) == "add --replace to build it anew, or choose another --name"
    fill = ("table", "backfill", "t", "--define", "x=hinted:fail", "--modules", str(tmp_path))
    assert hint(*fill) == "--on-error null sets such rows to null, --on-error skip leaves them as they are"
    (tmp_path / "hinted.py").write_text((tmp_path / "hinted.py").read_text().replace("ValueError", "TypeError"))
    monkeypatch.delitem(sys.modules, "hinted")
    assert hint(*fill) == "--allow-changed accepts it"
