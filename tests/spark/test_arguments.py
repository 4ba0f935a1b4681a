"""Arguments that cannot be are said by name, and no Python error comes out; no Spark is needed to see it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.spark import LanceCatalog

FRAME = SimpleNamespace(mapInArrow=lambda: None)


@pytest.fixture
def catalog(tmp_path: Path) -> LanceCatalog:
    session: Any = SimpleNamespace(version="4.3.0")
    vectors = pa.array([[0.5, 0.5]], pa.list_(pa.float32(), 2))
    lance.write_dataset(pa.table({"id": [1], "emb": vectors}), tmp_path / "t.lance")
    return LanceCatalog(session, "dir", {"root": str(tmp_path)})


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda cat: cat.read("t", as_of="yesterday"), "as_of must be a time.*not 'yesterday'"),
    (lambda cat: cat.read("t", as_of=1700000000), "as_of must be a time.*not 1700000000"),
    (lambda cat: cat.read("t", as_of="2026-13-01"), "as_of must be a time.*not '2026-13-01'"),
    (lambda cat: cat.read("t", as_of="0001-01-01T00:00+14:00"), "as_of must be a time.*not '0001-01-01T00:00"),
    (lambda cat: cat.read("t", tag=7), "tag must be the name of a tag, not 7"),
    (lambda cat: cat.read("t", version="1"), "a version is a number, not '1'"),
    (lambda cat: cat.read("t", columns=7), "columns must be the name of a column, or a list of names, not 7"),
    (lambda cat: cat.read("t", filter=True), "filter must be a condition in SQL, as a text, not True"),
    (lambda cat: cat.read("t", limit="7"), "limit must be a whole number, not '7'"),
    (lambda cat: cat.read("t", blobs="file"), "blobs must be bytes or reference, not 'file'"),
    (lambda cat: cat.sql("SELECT 1", blobs=None), "blobs must be bytes or reference, not None"),
    (lambda cat: cat.read_blobs([1], "image"), "df must be a DataFrame of Spark"),
    (lambda cat: cat.read_blobs(FRAME, 7), "column must be the name of a column"),
    (lambda cat: cat.blob_reader(tables=7), "tables must be"),
    (lambda cat: cat.blob_reader(tables=["a.`b"]), "is no id"),
    (lambda cat: cat.read(7), "a table is named by text such as 'wh.db.docs', or by a list, not 7"),
    (lambda cat: cat.read(["a", 7]), "a table is named by"),
    (lambda cat: cat.count("t", 7), "filter must be a condition"),
    (lambda cat: cat.aggregate("t", sum=7), "sum must be the name of a column"),
    (lambda cat: cat.aggregate("t", 7), "group_by must be the name of a column"),
    (lambda cat: cat.create(pa.table({"a": [1]}), "new"), "df must be a DataFrame of Spark"),
    (lambda cat: cat.append([1], "t"), "df must be a DataFrame of Spark"),
    (lambda cat: cat.overwrite(None, "t"), "df must be a DataFrame of Spark"),
    (lambda cat: cat.append(FRAME, "t", vector_column={}), "append has no argument 'vector_column'; did you mean"),
    (lambda cat: cat.append(FRAME, "t", vector_columns=["emb"]), "vector_columns must be columns and dimensions"),
    (lambda cat: cat.append(FRAME, "t", vector_columns={"emb": "2"}), "vector_columns: emb must be the number"),
    (lambda cat: cat.append(FRAME, "t", max_rows_per_file="many"), "max_rows_per_file must be a whole number"),
    (lambda cat: cat.append(FRAME, "t", run=7), "run must be a text, not 7"),
    (lambda cat: cat.append(FRAME, "t", nullable="no"), "nullable must be True, or False"),
    (lambda cat: cat.delete("t", None), "where must be a text, not None"),
    (lambda cat: cat.update("t", {"id": lambda batch: batch}), "set: id is a function, and update takes SQL"),
    (lambda cat: cat.update("t", {"id": 7}), "set: id must be SQL, as a text such as '7', not 7"),
    (lambda cat: cat.update("t", "id = 7"), "set must be columns and SQL"),
    (lambda cat: cat.update("t", {"id": "7"}, where=7), "where must be a condition"),
    (lambda cat: cat.merge(FRAME, "t", on=7), "on must be the name of a column"),
    (lambda cat: cat.merge(FRAME, "t", on="id", when_matched=None), "when_matched must be a text"),
    (lambda cat: cat.add_columns("t", "id * 2"), "columns must be new columns, such as"),
    (lambda cat: cat.add_columns("t", {"a": 7}), "all SQL, or all functions"),
    (lambda cat: cat.add_columns("t", {"a": "id"}, read_columns=7), "read_columns must be the name of a column"),
    (lambda cat: cat.ingest("a.csv", "t", delimiter=";"), "delimiter is an option of the format: give it as opt"),
    (lambda cat: cat.ingest("a.csv", "t", nulable=True), "ingest has no argument 'nulable'; did you mean nullable"),
    (lambda cat: cat.ingest("a.csv", "t", options="x"), "options must be options, such as"),
    (lambda cat: cat.ingest("a.csv", "t", format=7), "format must be a text, not 7"),
    (lambda cat: cat.ingest("a.csv", "t", mode=None), "mode must be a text"),
    (lambda cat: cat.create_table("new", 7), "schema must be columns, as an Arrow schema or as text"),
    (lambda cat: cat.alter_columns("t", {"id": 7}), "changes: id must be"),
    (lambda cat: cat.alter_columns("t", {"id": {"type": 7}}), "changes: id: type must be a type"),
    (lambda cat: cat.alter_columns("t", {"id": {"nullable": 1}}), "changes: id: nullable must be True or False"),
    (lambda cat: cat.rename_columns("t", {"id": 7}), "names must be old and new names of columns"),
    (lambda cat: cat.set_properties("t", {"a": 7}), "properties must be texts by name"),
    (lambda cat: cat.create_namespace(""), "namespace: name at least one level"),
    (lambda cat: cat.rename("t", ""), "new_name: name at least one level"),
    (lambda cat: type(cat).named(cat.spark, 7), "name must be a text, not 7"),
    (lambda cat: cat.ingest(7, "t"), "a source is a file, a folder or a glob, not 7"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), CALLS, ids=[says[:40] for _, says in CALLS])
def test_what_cannot_be(catalog: LanceCatalog, call: Callable[[Any], Any], says: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("lancehouse.spark.engine.parallelism", lambda _: 1)
    with pytest.raises(InvalidInputError, match=says):
        call(catalog)


RIGHT: dict[str, dict[str, Any]] = {
    "sql": {"text": "SELECT 1"},
    "explain": {"text": "SELECT 1"},
    "use": {"namespace": "main"},
    "attach": {"alias": "dev", "catalog": None},
    "namespaces": {},
    "create_namespace": {"namespace": "n"},
    "drop_namespace": {"namespace": "n"},
    "tables": {},
    "exists": {"table": "t"},
    "create_table": {"table": "new", "schema": "id int"},
    "drop": {"table": "t"},
    "rename": {"table": "t", "new_name": "new"},
    "schema": {"table": "t"},
    "drop_columns": {"table": "t", "columns": "id"},
    "rename_columns": {"table": "t", "names": {"id": "key"}},
    "alter_columns": {"table": "t", "changes": {"id": {"nullable": True}}},
    "indices": {"table": "t"},
    "drop_index": {"table": "t", "name": "id_idx"},
    "tag": {"table": "t", "name": "best"},
    "untag": {"table": "t", "name": "best"},
    "branch": {"table": "t", "name": "dev"},
    "drop_branch": {"table": "t", "name": "dev"},
    "restore": {"table": "t"},
    "properties": {"table": "t"},
    "set_properties": {"table": "t", "properties": {"a": "1"}},
    "unset_properties": {"table": "t", "names": "a"},
    "read": {"table": "t"},
    "read_blobs": {"df": FRAME, "column": "image"},
    "blob_reader": {},
    "read_changes": {"table": "t", "from_version": 0},
    "count": {"table": "t"},
    "aggregate": {"table": "t", "sum": "id"},
    "search": {"table": "t", "vector": [0.5, 0.5]},
    "explain_search": {"table": "t", "vector": [0.5, 0.5]},
    "recall": {"table": "t"},
    "history": {"table": "t"},
    "register_views": {"namespace": ""},
    "create": {"df": FRAME, "table": "t"},
    "append": {"df": FRAME, "table": "t"},
    "overwrite": {"df": FRAME, "table": "t"},
    "delete": {"table": "t", "where": "true"},
    "update": {"table": "t", "set": {"id": "1"}},
    "merge": {"df": FRAME, "table": "t", "on": "id"},
    "update_columns": {"table": "t", "df": FRAME, "on": "id"},
    "add_columns": {"table": "t", "columns": {"new": "id"}},
    "define_columns": {"table": "t", "columns": {"new": "id"}},
    "backfill": {"table": "t"},
    "keep_filled": {"table": "t", "checkpoint": "c"},
    "computed_columns": {"table": "t"},
    "column_errors": {"table": "t", "column": "id"},
    "view_errors": {"view": "t"},
    "create_materialized_view": {"view": "v", "source": "t", "columns": "id"},
    "refresh": {"view": "t"},
    "lineage": {"table": "t"},
    "ingest": {"source": "a.csv", "table": "t"},
    "compact": {"table": "t"},
    "create_index": {"table": "t", "column": "id", "kind": "BTREE"},
    "optimize_indices": {"table": "t"},
    "cleanup": {"table": "t"},
    "remove_orphans": {"table": "t"},
}
"""What each method cannot do without."""


def parameters() -> list[tuple[str, str]]:
    """Every argument of every method."""
    found = []
    for method, function in inspect.getmembers(LanceCatalog, inspect.isfunction):
        if not method.startswith("_"):
            taken = inspect.signature(function).parameters.values()
            named = [each.name for each in taken if each.kind is not each.VAR_KEYWORD and each.name != "self"]
            found += [(method, name) for name in named]
    return found


@pytest.mark.parametrize(("method", "name"), parameters())
def test_nothing_can_be_just_anything(
    catalog: LanceCatalog, method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is of no use at all is refused by a Lance error that says which argument it is."""
    monkeypatch.setattr("lancehouse.spark.engine.parallelism", lambda _: 1)
    given = {**RIGHT[method], name: object()}
    if name == "namespace":
        given.pop("table", None)
    with pytest.raises(InvalidInputError, match=rf"\b{name}\b"):
        getattr(catalog, method)(**given)


@pytest.mark.parametrize(
    "moment",
    ["2126-01-31", "2126-01-31T12:00:00Z", " 2126-01-31 12:00:00.5+05:30 ", date(2126, 1, 31), datetime(2126, 1, 1)],
)
def test_times_are_taken(catalog: LanceCatalog, moment: Any) -> None:
    assert catalog.count("t", as_of=moment) == 1


def test_a_time_before_the_first_version(catalog: LanceCatalog) -> None:
    from lance_namespace.errors import TableVersionNotFoundError

    for moment in ("2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)):
        with pytest.raises(TableVersionNotFoundError, match="had no version yet at 2024-01-01"):
            catalog.count("t", as_of=moment)
