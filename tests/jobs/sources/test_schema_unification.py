"""One schema for many files, and batches in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.jobs.sources.ingest_source import open_source
from lancehouse.jobs.sources.schemas import conform
from lancehouse.schema.blob_references import BLOB_TYPE, blob_field
from tests.jobs.sources.reading import read

VECTOR = pa.list_(pa.float32(), 2)

untyped: Any = pa
"""pyarrow, of whose arguments its stubs know too few."""


def put(folder: Path, *types: pa.DataType) -> None:
    for number, dtype in enumerate(types):
        pq.write_table(pa.table({"a": untyped.nulls(1, dtype)}), folder / f"{number}.parquet")


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.int64(), pa.int8(), pa.int64()], pa.int64()),
        ([pa.int16(), pa.float32()], pa.float32()),
        ([pa.int64(), pa.float64()], pa.float64()),
        ([pa.int64(), pa.decimal128(10, 2)], pa.decimal128(22, 2)),
        ([pa.decimal128(10, 2), pa.decimal128(12, 4)], pa.decimal128(12, 4)),
        ([pa.null(), pa.string()], pa.string()),
        ([pa.string(), pa.large_string()], pa.large_string()),
        ([pa.string(), pa.dictionary(pa.int8(), pa.string())], pa.string()),
        ([pa.timestamp("ms"), pa.timestamp("us")], pa.timestamp("us")),
        ([pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int64()))], pa.list_(pa.int64())),
        ([VECTOR, VECTOR], VECTOR),
        (
            [pa.struct([("x", pa.int8())]), pa.struct([("y", pa.string()), ("x", pa.int16())])],
            pa.struct([("x", pa.int16()), ("y", pa.string())]),
        ),
        ([pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())], pa.map_(pa.string(), pa.int64())),
    ],
)
def test_types_that_go_together(tmp_path: Path, types: list[pa.DataType], expected: pa.DataType) -> None:
    put(tmp_path, *types)
    source = open_source(tmp_path)
    assert source.schema == pa.schema([("a", expected)])
    assert read(source).num_rows == len(types)


@pytest.mark.parametrize(
    "types",
    [
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.bool_(), pa.int8()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.float64()),
        (VECTOR, pa.list_(pa.float32(), 3)),
        (VECTOR, pa.list_(pa.float32())),
        (pa.struct([("x", pa.int8())]), pa.int8()),
        (pa.struct([("x", VECTOR)]), pa.struct([("x", pa.list_(pa.float32()))])),
        (pa.list_(pa.string()), pa.list_(pa.binary())),
    ],
    ids=str,
)
def test_types_that_do_not(tmp_path: Path, types: tuple[pa.DataType, ...]) -> None:
    for order in (types, types[::-1]):
        put(tmp_path, *order)
        with pytest.raises(TableSchemaValidationError) as caught:
            open_source(tmp_path)
        assert f"column a is {order[1]} in {tmp_path}/1.parquet but {order[0]} in {tmp_path}/0.parquet" in str(
            caught.value
        ).replace("element", "item")


def test_columns_come_and_go(tmp_path: Path) -> None:
    required: list[pa.Field[Any]] = [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.int64(), nullable=False),
    ]
    columns: list[Any] = [pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(required)), tmp_path / "1.parquet")
    others: list[pa.Field[Any]] = [pa.field("c", pa.string()), required[1]]
    pq.write_table(pa.table({"c": ["x"], "b": [3]}, pa.schema(others)), tmp_path / "2.parquet")
    source = open_source(tmp_path)
    nullable = {field.name: field.nullable for field in source.schema}
    assert nullable == {"a": True, "b": False, "c": True}
    assert read(source).to_pylist() == [{"a": 1, "b": 2, "c": None}, {"a": None, "b": 3, "c": "x"}]


def test_values_that_are_too_wide(tmp_path: Path) -> None:
    """Widening never changes a value in silence."""
    pq.write_table(pa.table({"a": [2**60 + 1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1.5]}), tmp_path / "2.parquet")
    with pytest.raises(TableSchemaValidationError, match=f"{tmp_path}/1.parquet: column a does not fit double"):
        read(open_source(tmp_path))


def batch(array: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], names=["a"])


def test_what_is_right_already_is_not_copied() -> None:
    given = batch(pa.array(["a", "b"]))
    wanted = pa.schema([pa.field("a", pa.string(), metadata={"k": "v"})])
    got = conform(given, wanted, (), "f")
    assert got.schema.equals(wanted, check_metadata=True)
    one, other = (each.column(0).buffers()[2] for each in (given, got))
    assert one is not None
    assert other is not None
    assert one.address == other.address


@pytest.mark.parametrize(
    ("have", "want", "lost"),
    [
        (pa.struct([("x", pa.int8()), ("y", pa.int8())]), pa.struct([("x", pa.int8())]), "y"),
        (pa.struct([("x", pa.struct([("y", pa.int8())]))]), pa.struct([("x", pa.struct([("z", pa.int8())]))]), "x.y"),
        (pa.list_(pa.struct([("y", pa.int8())])), pa.list_(pa.struct([("x", pa.int8())])), "y"),
        (
            pa.map_(pa.string(), pa.struct([("y", pa.int8())])),
            pa.map_(pa.string(), pa.struct([("x", pa.int8())])),
            "y",
        ),
    ],
)
def test_no_field_of_a_struct_is_lost(have: pa.DataType, want: pa.DataType, lost: str) -> None:
    with pytest.raises(TableSchemaValidationError, match=f"f: column a does not fit .*it has {lost} besides"):
        conform(batch(untyped.nulls(1, have)), pa.schema([("a", want)]), (), "f")


@pytest.mark.parametrize(
    ("values", "want", "says"),
    [
        (pa.array([5]), pa.bool_(), "it has numbers, of which booleans would be made"),
        (pa.array([1.5]), pa.bool_(), "it has numbers, of which booleans"),
        (pa.array([1700]), pa.timestamp("us"), "it has numbers, of which timestamps"),
        (pa.array([1700], pa.int32()), pa.date32(), "it has numbers, of which dates"),
        (pa.array([1], pa.timestamp("us")), pa.date32(), "it has timestamps, of which dates"),
        (pa.array([1], pa.timestamp("us")), pa.int64(), "it has timestamps, of which numbers"),
        (pa.array([[5]]), pa.list_(pa.bool_()), "it has numbers, of which booleans"),
        (pa.array([{"x": 5}]), pa.struct([("x", pa.bool_())]), "x has numbers, of which booleans"),
    ],
)
def test_no_value_comes_to_mean_something_else(values: Any, want: pa.DataType, says: str) -> None:
    with pytest.raises(TableSchemaValidationError, match=f"f: column a does not fit .*: {says}"):
        conform(batch(values), pa.schema([("a", want)]), (), "f")


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (pa.array([5]), pa.float64()),
        (pa.array([5]), pa.decimal128(21, 2)),
        (pa.array([True]), pa.int8()),
        (pa.array([1], pa.date32()), pa.timestamp("us")),
        (pa.array(["true"]), pa.bool_()),
        (pa.nulls(1), pa.timestamp("us")),
    ],
)
def test_what_means_the_same(values: Any, want: pa.DataType) -> None:
    [made] = conform(batch(values), pa.schema([("a", want)]), (), "f").columns
    assert made.type == want


@pytest.mark.parametrize("values", [pa.array([b"x", None, b""]), pa.array(["x", None, ""], pa.large_string())])
def test_binaries_for_a_blob_column(values: Any) -> None:
    """Of a new table, and of one that Lance shows."""
    shown: list[pa.Field[Any]] = [lance.blob_field("a"), blob_field("a")]
    for field in shown:
        got: Any = conform(batch(values), pa.schema([field]), (), "f").column(0)
        storage = got.storage if field.type != BLOB_TYPE else got
        assert [row and row["data"] for row in storage.to_pylist()] == [b"x", None, b""]
        assert storage.null_count == 1
        assert got.type == field.type


def test_extension_types(tmp_path: Path) -> None:
    ids = pa.array([b"0" * 16, None], pa.uuid())
    assert conform(batch(ids), pa.schema([("a", pa.binary(16))]), (), "f").column(0).to_pylist() == [b"0" * 16, None]
    back = conform(batch(pa.array([b"0" * 16], pa.binary(16))), pa.schema([("a", pa.uuid())]), (), "f")
    assert back.column(0).type == pa.uuid()
    assert conform(batch(pa.array([1])), pa.schema([("b", pa.uuid())]), (), "f").column(0).null_count == 1
