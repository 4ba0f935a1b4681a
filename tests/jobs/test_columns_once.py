from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.jobs.columns import (
    AddedColumns,
    ColumnsToAdd,
    Function,
    commit_columns,
    compute_fragment,
    missing_fragments,
)
from lancehouse.lake.commits import locate_table
from lancehouse.lake.dataset import TableRef

BLOB = {"lance-encoding:blob": "true"}


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "word": [f"w{number}" for number in range(100)]})
    lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=30).delete("id < 5")
    return TableRef(str(tmp_path / "t"))


def double_ids(batch: pa.RecordBatch) -> Any:
    return pc.multiply(batch.column("id"), 2)


def sizes(batch: pa.RecordBatch) -> Any:
    images: Any = batch.column("image")
    return pc.binary_length(images)


def add_columns(table: TableRef, columns: Mapping[str, str | Function], **options: Any) -> int:
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, columns, **options)
    done = [compute_fragment(table, dataset, fragment, adding) for fragment in missing_fragments(dataset, [])]
    done = [AddedColumns.from_json(each.to_json()) for each in done]
    return commit_columns(table, locate_table(table), dataset, adding, done)


@pytest.mark.parametrize("value", ["id * 2", double_ids], ids=["sql", "function"])
def test_a_column_is_added_in_place(table: TableRef, value: str | Function) -> None:
    before = {file.path for fragment in table.open().get_fragments() for file in fragment.data_files()}
    assert add_columns(table, {"twice": value}) == 3
    now = table.open()
    assert now.to_table().column("twice").to_pylist() == [2 * number for number in range(5, 100)]
    assert before < {file.path for fragment in now.get_fragments() for file in fragment.data_files()}


def test_a_function_gets_the_columns_that_it_reads(table: TableRef) -> None:
    seen: list[list[str]] = []

    def one(batch: pa.RecordBatch) -> Any:
        seen.append(batch.schema.names)
        return pa.array([1] * batch.num_rows)

    add_columns(table, {"one": one}, reads=["word"])
    assert all(each == ["word"] for each in seen)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_function_gets_the_bytes_of_blobs(tmp_path: Path, version: str) -> None:
    """Also where rows before are deleted, and in several fragments."""
    images = [b"a" * number for number in range(20)]
    is_new = version == "2.2"
    field = lance.blob_field("image") if is_new else pa.field("image", pa.large_binary(), metadata=BLOB)
    image = lance.blob_array(images) if is_new else pa.array(images, pa.large_binary())
    rows = pa.table([pa.array(range(20), pa.int64()), image], schema=pa.schema([pa.field("id", pa.int64()), field]))
    lance.write_dataset(rows, tmp_path / "t", data_storage_version=version, max_rows_per_file=8).delete("id % 3 = 1")
    table = TableRef(str(tmp_path / "t"))
    add_columns(table, {"size": sizes}, reads=["id", "image"])
    found = table.open().to_table(["id", "size"]).to_pydict()
    assert found["size"] == found["id"] == [number for number in range(20) if number % 3 != 1]


def test_an_empty_table_gets_its_columns(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t")
    table = TableRef(str(tmp_path / "t"))
    add_columns(table, {"twice": "id * 2"})
    assert table.open().schema.names == ["id", "twice"]


def test_what_was_done_stays_done(table: TableRef) -> None:
    """After an append and a delete, only the new fragment and one more are computed."""
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, {"twice": "id * 2"})
    kept = [
        compute_fragment(table, dataset, each, adding).to_json(keep=True) for each in missing_fragments(dataset, [])
    ]
    lance.write_dataset(pa.table({"id": [200], "word": ["x"]}), table.location, mode="append")
    table.open().delete("id = 50")
    now, done = table.open(), [AddedColumns.from_json(each) for each in kept]
    assert missing_fragments(now, done) == [4]
    done.append(compute_fragment(table, now, 4, adding))
    commit_columns(table, locate_table(table), now, adding, done)
    rows = table.open().to_table()
    assert rows.column("twice").to_pylist() == [2 * number for number in rows.column("id").to_pylist()]
    assert rows.num_rows == 95


def test_one_fragment_tells_the_schema(table: TableRef) -> None:
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, {"twice": "id * 2"})
    done = [compute_fragment(table, dataset, each, adding) for each in missing_fragments(dataset, [])]
    assert missing_fragments(dataset, done) == []
    assert missing_fragments(dataset, [AddedColumns.from_json(each.to_json(keep=True)) for each in done]) == [0]


def test_another_schema_means_other_columns(table: TableRef) -> None:
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, {"twice": "id * 2"})
    done = [compute_fragment(table, dataset, each, adding) for each in missing_fragments(dataset, [])]
    table.open().add_columns({"other": "id + 1"})
    assert missing_fragments(table.open(), done) == [0, 1, 2, 3]


def test_somebody_appends_before_the_commit(table: TableRef) -> None:
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, {"twice": "id * 2"})
    done = [compute_fragment(table, dataset, each, adding) for each in missing_fragments(dataset, [])]
    lance.write_dataset(pa.table({"id": [200], "word": ["x"]}), table.location, mode="append")
    with pytest.raises(ConcurrentModificationError):
        commit_columns(table, locate_table(table), dataset, adding, done)
    assert table.open().schema.names == ["id", "word"]


@pytest.mark.parametrize(
    ("columns", "reads", "error", "says"),
    [
        ({}, None, InvalidInputError, "all SQL, or all functions"),
        ({"a": "id", "b": double_ids}, None, InvalidInputError, "all SQL, or all functions"),
        ({"word": "id"}, None, InvalidInputError, "has a column word already"),
        ({"a": "nope + 1"}, None, TableColumnNotFoundError, "nope"),
        ({"a": "id * 2 LIMIT 1"}, None, InvalidInputError, "found: LIMIT"),
        ({"a": "id, word"}, None, InvalidInputError, "not supported SQL"),
        ({"a": "id FROM t"}, None, InvalidInputError, "found: FROM"),
        ({"a": double_ids}, ["nope"], TableColumnNotFoundError, "has no column nope; it has id, word"),
        ({"a": lambda batch: [1]}, None, InvalidInputError, "gave list, not an Arrow array"),
        ({"a": lambda batch: pa.array([1])}, None, InvalidInputError, "of 16 rows its function made 1 values"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    table: TableRef, columns: dict[str, Any], reads: list[str] | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ColumnsToAdd.for_table(table, table.open(), columns, reads)


def test_the_digest_knows_functions_by_what_they_do(table: TableRef) -> None:
    dataset = table.open()

    def digest(function: Function) -> str:
        return ColumnsToAdd.for_table(table, dataset, {"a": function}).fingerprint().digest

    assert digest(double_ids) == digest(double_ids)
    assert digest(lambda batch: pc.add(batch.column("id"), 1)) != digest(lambda batch: pc.add(batch.column("id"), 2))


class Times:
    """A function with something to remember."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, batch: pa.RecordBatch) -> Any:
        return pc.multiply(batch.column("id"), self.number)

    def method(self, batch: pa.RecordBatch) -> Any:
        return self(batch)


def times(batch: pa.RecordBatch, number: int = 1) -> Any:
    return pc.multiply(batch.column("id"), number)


def closed_over(number: Any) -> Function:
    return lambda batch: times(batch, number)


def deeply(number: int) -> Function:
    if number == 1:
        return lambda batch: times(batch, (lambda: 1)())
    return lambda batch: times(batch, (lambda: 2)())


SCALE = 1


def scale_ids(batch: pa.RecordBatch) -> Any:
    return pc.multiply(batch.column("id"), SCALE)


@pytest.mark.parametrize(
    "make",
    [
        Times,
        lambda number: Times(number).method,
        lambda number: partial(times, number=number),
        closed_over,
        lambda number: closed_over(pa.scalar(number)),
        deeply,
        lambda number: FunctionType(times.__code__, globals(), argdefs=(number,)),
        lambda number: FunctionType(scale_ids.__code__, {"pc": pc, "SCALE": number}),
    ],
    ids=["object", "method", "partial", "closure", "closure of a value", "nested", "default", "global"],
)
def test_the_digest_knows_what_functions_were_given(table: TableRef, make: Any) -> None:
    dataset = table.open()
    one, again, other = (
        ColumnsToAdd.for_table(table, dataset, {"a": make(number)}).fingerprint().digest for number in (1, 1, 2)
    )
    assert one == again != other


def test_functions_that_cannot_be_told_apart_are_others(table: TableRef) -> None:
    """No work of before is better than that of another."""
    dataset = table.open()

    def make() -> Function:
        lock = Lock()
        return lambda batch: double_ids(batch) if lock else None

    one, other = (ColumnsToAdd.for_table(table, dataset, {"a": make()}).fingerprint().digest for _ in range(2))
    assert one != other


def test_columns_of_others_that_came_meanwhile_stay(tmp_path: Path) -> None:
    """Also when the fragment that told the schema is gone."""
    table = TableRef(str(tmp_path / "t"))
    lance.write_dataset(pa.table({"id": list(range(10))}), tmp_path / "t", max_rows_per_file=5)
    dataset = table.open()
    adding = ColumnsToAdd.for_table(table, dataset, {"twice": "id * 2"})
    done = [compute_fragment(table, dataset, each, adding) for each in missing_fragments(dataset, [])]
    table.open().optimize.compact_files()
    table.open().add_columns({"other": "id + 100"})
    with pytest.raises(ConcurrentModificationError):
        commit_columns(table, locate_table(table), dataset, adding, done)
    dataset = table.open()
    done += [compute_fragment(table, dataset, each, adding) for each in missing_fragments(dataset, done)]
    commit_columns(table, locate_table(table), dataset, adding, done)
    assert table.open().to_table(filter="id = 7").to_pylist() == [{"id": 7, "other": 107, "twice": 14}]


def test_a_function_of_an_empty_table_gets_its_columns(tmp_path: Path) -> None:
    table = TableRef(str(tmp_path / "t"))
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t")
    add_columns(table, {"twice": double_ids})
    assert table.open().schema == pa.schema([("id", pa.int64()), ("twice", pa.int64())])


def test_a_function_that_changes_its_type(table: TableRef) -> None:
    def odd(batch: pa.RecordBatch) -> Any:
        ids: Any = batch.column("id")
        return ids if ids[0].as_py() < 30 else batch.column("word")

    with pytest.raises(InvalidInputError, match="column odd: its function gave string, but int64 of the first 16 rows"):
        add_columns(table, {"odd": odd})


def test_new_columns_may_be_null(tmp_path: Path) -> None:
    """Also where they are computed from what may not be, and where rows are deleted."""
    fields: list[Any] = [pa.field("id", pa.int64(), nullable=False)]
    rows = pa.table([pa.array(range(10), pa.int64())], schema=pa.schema(fields))
    lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=4).delete("id % 3 = 0")
    table = TableRef(str(tmp_path / "t"))
    add_columns(table, {"twice": "id * 2", "one": "1"})
    add_columns(table, {"none": "cast(NULL AS bigint)"})
    found = table.open()
    assert {field.name: field.nullable for field in found.schema} == {
        "id": False,
        "twice": True,
        "one": True,
        "none": True,
    }
    assert found.to_table().to_pylist() == [
        {"id": number, "twice": 2 * number, "one": 1, "none": None} for number in range(10) if number % 3
    ]


@pytest.mark.parametrize(
    "value",
    ["NULL", lambda batch: pa.array([None] * batch.num_rows), lambda batch: pa.array([[]] * batch.num_rows)],
    ids=["sql", "function", "lists of nothing"],
)
def test_a_column_without_a_type(table: TableRef, value: Any) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column odd has the type .*pa\.array\(values, pa\.string"):
        ColumnsToAdd.for_table(table, table.open(), {"odd": value})
