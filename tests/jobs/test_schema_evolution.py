from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableSchemaValidationError,
)

import lancehouse
from lancehouse.lake import commits
from lancehouse.lake.commits import ColumnsChangedError, write_uncommitted
from lancehouse.schema.spark import parse_schema
from tests.jobs.test_table_changes import Place, folder, place  # noqa: F401

ROWS = pa.table({"id": pa.array([1, 2], pa.int32()), "word": ["a", "b"]})


@pytest.fixture
def source(tmp_path: Path) -> Callable[[pa.Table], str]:
    """Writes rows to a file to ingest."""

    def write(rows: pa.Table) -> str:
        file = tmp_path / f"source-{abs(hash(str(rows.to_pylist())))}.parquet"
        pq.write_table(rows, file)
        return str(file)

    return write


def rows_of(home: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home.open().to_table().to_pylist()
    return sorted(found, key=lambda row: (row["id"], repr(row)))


def test_an_ingest_adds_columns_and_widens_types(place: Place, source: Callable[..., str]) -> None:  # noqa: F811
    table = place.write(rows=ROWS)
    new = pa.table({"id": pa.array([2**40], pa.int64()), "n": [7]})
    with pytest.raises(TableSchemaValidationError, match="has no column n"):
        place.jobs.ingest(source(new), table)
    place.jobs.ingest(source(new), table, schema_mode="evolve")
    assert place.jobs.schema(table) == parse_schema("id bigint, word string, n bigint")
    assert rows_of(place) == [
        {"id": 1, "word": "a", "n": None},
        {"id": 2, "word": "b", "n": None},
        {"id": 2**40, "word": None, "n": 7},
    ]
    version = place.open().version
    place.jobs.ingest(source(new.slice(0, 0)), table, schema_mode="evolve")
    assert place.open().version == version + 1, "columns that fit are no commit"


def test_a_merge_adds_columns_and_widens_types(place: Place) -> None:  # noqa: F811
    table = place.write(rows=ROWS)
    new = pa.table({"id": pa.array([2, 3], pa.int64()), "word": ["B", "C"], "s": [{"a": 1}, {"a": 2}]})
    place.jobs.merge(new, table, "id", schema_mode="evolve")
    more = pa.table({"id": [3, 4], "word": ["c", "d"], "s": [{"a": 3, "b": "x"}, {"a": 4, "b": "y"}]})
    place.jobs.merge(more, table, "id", schema_mode="evolve")
    assert rows_of(place) == [
        {"id": 1, "word": "a", "s": None},
        {"id": 2, "word": "B", "s": {"a": 1, "b": None}},
        {"id": 3, "word": "c", "s": {"a": 3, "b": "x"}},
        {"id": 4, "word": "d", "s": {"a": 4, "b": "y"}},
    ]
    with pytest.raises(TableSchemaValidationError, match="no column word, s, and a row that matches is replaced"):
        place.jobs.merge(pa.table({"id": [9], "other": [1]}), table, "id", schema_mode="evolve")
    assert "other" not in place.open().schema.names
    place.jobs.merge(pa.table({"id": [9], "other": [1]}), table, "id", when_matched="ignore", schema_mode="evolve")
    assert rows_of(place)[-1] == {"id": 9, "word": None, "s": None, "other": 1}


REFUSED: list[tuple[pa.Table, type[LanceNamespaceError], str]] = [
    (pa.table({"id": ["text"], "n": [1]}), TableSchemaValidationError, "column id is int32 and cannot hold string"),
    (pa.table({"id": [1], "WORD": ["a"]}), TableSchemaValidationError, "column WORD differs from word by case alone"),
    (pa.table({"id": [1], "n": pa.nulls(1)}), LanceNamespaceError, "column n has the type null"),
    (pa.table({"id": [1], "a.b": [1]}), TableSchemaValidationError, "no column with a dot"),
    (pa.table({"id": [1], "_lancehouse_x": [1]}), InvalidInputError, "are taken"),
]


@pytest.mark.parametrize(("rows", "kind", "says"), REFUSED, ids=[says[:20] for _, _, says in REFUSED])
@pytest.mark.parametrize("call", ["ingest", "merge"])
def test_what_cannot_evolve_changes_nothing(
    folder: Place,  # noqa: F811
    source: Callable[..., str],
    call: str,
    rows: pa.Table,
    kind: type[LanceNamespaceError],
    says: str,
) -> None:
    table = folder.write(rows=ROWS)
    with pytest.raises(kind, match=says):
        if call == "ingest":
            folder.jobs.ingest(source(rows), table, schema_mode="evolve")
        else:
            folder.jobs.merge(rows, table, "id", when_matched="ignore", schema_mode="evolve")
    assert folder.open().version == 1


def test_where_columns_do_not_evolve(folder: Place, source: Callable[..., str]) -> None:  # noqa: F811
    table = folder.write(rows=ROWS)
    with pytest.raises(InvalidInputError, match="columns evolve in mode append, not in mode overwrite"):
        folder.jobs.ingest(source(ROWS), table, mode="overwrite", schema_mode="evolve")
    with pytest.raises(InvalidInputError, match="columns evolve by append, merge, ingest, not by delete"):
        folder.jobs.delete(table, "true", schema_mode="evolve")
    with pytest.raises(InvalidInputError, match="schema_mode must be fixed or evolve, not 'merge'"):
        folder.jobs.ingest(source(ROWS), table, schema_mode="merge")


def test_computed_columns_keep_their_types(folder: Place, source: Callable[..., str]) -> None:  # noqa: F811
    @lancehouse.column(version="1", inputs=["id"], returns=pa.int32())
    def twice(ids: Any) -> Any:
        return [number * 2 for number in ids.to_pylist()]

    table = folder.write(rows=ROWS)
    folder.jobs.add_columns(table, {"twice": twice})
    folder.jobs.ingest(source(pa.table({"id": [3], "twice": [6], "n": [1]})), table, schema_mode="evolve")
    assert folder.open().schema.field("twice").type == pa.int32()


def test_a_failure_in_between_leaves_a_whole_table(
    folder: Place,  # noqa: F811
    source: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, file = folder.write(rows=ROWS), source(pa.table({"id": [2**40], "n": [7]}))
    with monkeypatch.context() as broken:
        broken.setattr(lance.LanceDataset, "add_columns", fail)
        with pytest.raises(ServiceUnavailableError):
            folder.jobs.ingest(file, table, schema_mode="evolve")
    assert rows_of(folder) == ROWS.to_pylist(), "one column is wider, and no row is new"
    with monkeypatch.context() as broken:
        broken.setattr(commits, "append", fail)
        with pytest.raises(ServiceUnavailableError):
            folder.jobs.ingest(file, table, schema_mode="evolve")
    assert rows_of(folder) == [{**row, "n": None} for row in ROWS.to_pylist()]
    folder.jobs.ingest(file, table, schema_mode="evolve")
    folder.jobs.ingest(file, table, schema_mode="evolve", run="again")
    folder.jobs.ingest(file, table, schema_mode="evolve", run="again")
    assert [row["id"] for row in rows_of(folder)] == [1, 2, 2**40, 2**40]


def fail(*_: Any, **__: Any) -> Any:
    raise ServiceUnavailableError("the store is away")


def test_writers_that_evolve_at_once(place: Place, source: Callable[..., str]) -> None:  # noqa: F811
    """Each adds a column of its own, one that all add, and rows; some widen the key."""
    table, writers = place.write(rows=ROWS), 4

    def write(number: int) -> None:
        dtype = pa.int64() if number % 2 else pa.int32()
        rows = pa.table({"id": pa.array([100 + number], dtype), f"own{number}": [number], "common": ["x"]})
        place.jobs.ingest(source(rows), table, schema_mode="evolve")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    schema = place.jobs.schema(table)
    assert {*schema.names} == {"id", "word", "common", *(f"own{number}" for number in range(writers))}
    assert schema.field("id").type == pa.int64()
    new = [row for row in rows_of(place) if row["id"] >= 100]
    assert [row["id"] for row in new] == [100, 101, 102, 103]
    assert all(row[f"own{row['id'] - 100}"] == row["id"] - 100 and row["common"] == "x" for row in new)


def test_an_append_does_not_lose_values_to_a_change_of_type(place: Place) -> None:  # noqa: F811
    """Lance would rebase it, and the column would be null in the new rows."""
    table = place.write(rows=ROWS)
    ref = place.jobs._address(table).to_ref()
    at = commits.locate_table(ref)
    pieces = write_uncommitted(ref, at, ROWS.to_reader(), mode="append")
    place.jobs.alter_columns(table, {"id": {"type": "bigint"}})
    with pytest.raises(ColumnsChangedError, match="id got another type meanwhile; run it again"):
        commits.append(ref, at, pieces, 1)
    assert rows_of(place) == ROWS.to_pylist()
    pieces = write_uncommitted(ref, at, ROWS.cast(place.jobs.schema(table)).to_reader(), mode="append")
    base = place.open().version
    place.jobs.drop_columns(table, "word")
    place.jobs.rename_columns(table, {"id": "key"})
    commits.append(ref, at, pieces, base)
    assert place.open().to_table()["key"].to_pylist() == [1, 2, 1, 2], "other changes of columns are no reason to fail"


def test_rows_are_written_again_if_a_type_changes_meanwhile(
    folder: Place,  # noqa: F811
    source: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, append = folder.write(rows=ROWS), commits.append
    others = [lambda: folder.jobs.alter_columns(table, {"id": {"type": "bigint"}})]

    def append_late(*arguments: Any) -> int:
        if others:
            others.pop()()
        return append(*arguments)

    monkeypatch.setattr(commits, "append", append_late)
    folder.jobs.ingest(source(ROWS), table, schema_mode="evolve")
    assert folder.open().to_table()["id"].to_pylist() == [1, 2, 1, 2]
    others.append(lambda: folder.jobs.alter_columns(table, {"word": {"type": pa.large_string()}}))
    with pytest.raises(ColumnsChangedError):
        folder.jobs.ingest(source(ROWS), table)
    folder.jobs.ingest(source(ROWS), table)
    assert folder.open().count_rows() == 6
