from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from lancehouse.cli.main import main
from lancehouse.cli.sql import list_names, number_duplicates, split_statements


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2;\nSELECT", ["SELECT 1", "SELECT 2"], "\nSELECT"),
        ("SELECT ';', \"a;b\", `c;d` FROM t;", ["SELECT ';', \"a;b\", `c;d` FROM t"], ""),
        ("SELECT 1 -- a; b\n, 2; /* c; d */ SELECT 3;", ["SELECT 1 -- a; b\n, 2", "/* c; d */ SELECT 3"], ""),
        (";; ; -- only a comment", [], ""),
        ("SELECT 'no end;", [], "SELECT 'no end;"),
    ],
)
def test_statements_end_with_semicolons_outside_of_texts(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)


class Names:
    """A catalog of three levels, which cannot list the tables of its warehouse, nor read one table."""

    def __init__(self, *namespace: str) -> None:
        self.current_namespace = namespace

    def namespaces(self, parent: tuple[str, ...]) -> list[str]:
        return ["main.ml", "main.`a.b`"] if parent == ("main",) else []

    def tables(self, namespace: tuple[str, ...]) -> list[str]:
        if namespace != ("main", "ml"):
            raise InvalidInputError("a namespace id is [warehouse, namespace...]")
        return ["main.ml.docs", "main.ml.declared"]

    def schema(self, table: str) -> pa.Schema:
        if table != "main.ml.docs":
            raise TableNotFoundError(table)
        columns: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("title", pa.string())]
        return pa.schema(columns)


def test_names_below_the_current_namespace_are_completed() -> None:
    assert list_names(Names("main", "ml")) == ["declared", "docs", "id", "title"]  # type: ignore[arg-type]
    assert list_names(Names("main")) == ["`a.b`", "ml"]  # type: ignore[arg-type]
    assert list_names(Names()) == []  # type: ignore[arg-type]


def test_columns_of_the_same_name_are_numbered() -> None:
    assert number_duplicates(["id", "name", "id", "id"]) == ["id", "name", "id (2)", "id (3)"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["SELECT 1", "--file", "-"], "give SQL or --file, not both"),
        ([" ; -- nothing"], "there is no statement"),
        (["SELECT 1; SELECT 2", "--output", "json"], "--output json needs one statement"),
        (["SELECT 1", "--impl", "nothing"], "nothing"),
        (["SELECT 1; SELECT 'no end"], "the statement cannot be read: Error tokenizing"),
        (["SELECT 1 /* no end"], "the statement cannot be read: Error tokenizing"),
    ],
)
def test_what_cannot_be_is_told_before_spark_starts(words: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["sql", *words, "--property", f"root={tmp_path}"], env={"JAVA_HOME": "/nowhere"})
    assert result.exit_code != 0
    assert message in result.output
