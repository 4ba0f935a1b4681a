"""What Spark hands over becomes what the table holds, or an error that names the column."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.schema.spark_rows import from_spark_rows, to_spark_rows
from tests.schema.rows import batch_of, spark_values
from tests.schema.storable import BFLOAT16, BLOB, LEGACY_BLOB, label, schemas


def column(type_: Any, name: str = "c") -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}}


def struct(*columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def array_of(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def convert(type_: Any, values: Any, target: pa.DataType | pa.Field[Any]) -> Any:
    """Values of a Spark type as a column of the table."""
    field = target if isinstance(target, pa.Field) else pa.field("c", target)
    return (
        from_spark_rows(struct(column(type_)), pa.schema([field]))
        .convert_batch(pa.record_batch([values], names=["c"]))
        .column(0)
    )


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(schemas(), st.integers(0, 2**32), st.integers(0, 6))
def test_there_and_back(schema: pa.Schema, seed: int, skipped: int) -> None:
    assume(len(schema) > 0 and "blob" not in str(schema))
    batch = batch_of(schema, 6, seed).slice(skipped)
    outgoing = to_spark_rows(schema)
    back = from_spark_rows(outgoing.struct, schema).convert_batch(outgoing.convert_batch(batch))
    back.validate(full=True)
    assert back.schema.equals(schema, check_metadata=True)
    for position, field in enumerate(schema):
        before, after = batch.column(position), back.column(position)
        assert repr(spark_values(after)) == repr(spark_values(before)), field
        if "ns" not in str(field.type) and "date64" not in str(field.type):
            assert repr(after.to_pylist()) == repr(before.to_pylist()), field


NOON = datetime(2024, 2, 29, 12, 0, 0, 123456)
FIRST = datetime(1969, 12, 31, 23, 59, 59, 999000)
EAST = pa.timestamp("us", "Asia/Kathmandu")
NAN, INF = float("nan"), float("inf")

CONVERTED: list[tuple[Any, Any, pa.DataType, list[Any]]] = [
    ("long", pa.array([255, None]), pa.uint8(), [255, None]),
    ("integer", pa.array([7], pa.int32()), pa.int64(), [7]),
    ("long", pa.array([2**24]), pa.float32(), [2.0**24]),
    ("long", pa.array([12]), pa.decimal128(5, 2), [Decimal("12.00")]),
    ("decimal(20,0)", pa.array([Decimal(2**64 - 1)]), pa.uint64(), [2**64 - 1]),
    ("decimal(10,2)", pa.array([Decimal("1.20")]), pa.decimal256(50, 1), [Decimal("1.2")]),
    ("double", pa.array([0.1, NAN, -INF, None]), pa.float32(), [0.10000000149011612, NAN, -INF, None]),
    ("float", pa.array([0.1, NAN, INF, None], pa.float32()), pa.float16(), [0.0999755859375, NAN, INF, None]),
    ("float", pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
    ("string", pa.array(["12300"]), pa.decimal128(10, -2), [Decimal("12300")]),
    ("string", pa.array(["a", "b", "a", None]), pa.dictionary(pa.uint8(), pa.large_string()), ["a", "b", "a", None]),
    ("varchar(3)", pa.array(["a"]), pa.large_string(), ["a"]),
    ("string", pa.array(["{}"], pa.large_string()), pa.json_(), ["{}"]),
    ("binary", pa.array([b"ab", None]), pa.binary(2), [b"ab", None]),
    ("date", pa.array([NOON.date()]), pa.date64(), [NOON.date()]),
    ("timestamp", pa.array([NOON], EAST), pa.timestamp("s", "UTC"), [NOON.replace(microsecond=0)]),
    ("timestamp_ntz", pa.array([-1], pa.timestamp("us")), pa.timestamp("ms"), [FIRST]),
    ("interval day to second", pa.array([-1], pa.duration("us")), pa.duration("s"), [timedelta(seconds=-1)]),
    ("long", pa.array([86_399_999]), pa.time32("ms"), [time(23, 59, 59, 999000)]),
    ("time(6)", pa.array([1_999], pa.time64("ns")), pa.time64("us"), [time(0, 0, 0, 1)]),
    ("void", pa.nulls(2), pa.list_(pa.float32(), 2), [None, None]),
    (array_of("double"), pa.array([[1.5], None, [-0.0]]), pa.list_(pa.float32(), 1), [[1.5], None, [-0.0]]),
    (array_of("float"), pa.array([None, None], pa.list_(pa.float32())), pa.list_(pa.float32(), 2), [None, None]),
    (array_of("string"), pa.array([["a"], None, [None]]), pa.list_(pa.string(), 1), [["a"], None, [None]]),
]


@pytest.mark.parametrize(("type_", "values", "target", "expected"), CONVERTED, ids=label)
def test_values_convert(type_: Any, values: Any, target: pa.DataType, expected: list[Any]) -> None:
    made = convert(type_, values, target)
    made.validate(full=True)
    assert made.type == target
    expected_array: Any = pa.array(
        expected, target.storage_type if isinstance(target, pa.BaseExtensionType) else target
    )
    assert repr(made.to_pylist()) == repr(expected_array.to_pylist())


REFUSED: list[tuple[Any, Any, pa.DataType, str]] = [
    ("long", pa.array([256]), pa.uint8(), "does not fit uint8 .*256"),
    ("integer", pa.array([-1], pa.int32()), pa.uint64(), "does not fit uint64 .*-1"),
    ("long", pa.array([2**24 + 1]), pa.float32(), "does not fit float"),
    ("long", pa.array([1000]), pa.decimal128(5, 2), "does not fit decimal"),
    ("decimal(20,0)", pa.array([Decimal(2**64)]), pa.uint64(), "does not fit uint64"),
    ("decimal(3,2)", pa.array([Decimal("1.25")]), pa.decimal128(3, 1), "does not fit decimal"),
    ("double", pa.array([1e39, None]), pa.float32(), r"does not fit float .*1e\+39"),
    ("float", pa.array([65520], pa.float32()), pa.float16(), "does not fit halffloat"),
    ("float", pa.array([3.4e38], pa.float32()), BFLOAT16, "does not fit .*bfloat16"),
    ("string", pa.array(["x"]), pa.decimal256(50, 1), "does not fit decimal256"),
    (
        "string",
        pa.array([str(i) for i in range(200)]),
        pa.dictionary(pa.int8(), pa.string()),
        "does not fit dictionary",
    ),
    ("binary", pa.array([b"abc"]), pa.binary(2), "does not fit fixed_size_binary"),
    ("binary", pa.array([b"abc"]), pa.uuid(), "does not fit .*uuid"),
    ("timestamp_ntz", pa.array([2**62], pa.timestamp("us")), pa.timestamp("ns"), "does not fit timestamp"),
    ("interval day", pa.array([2**62], pa.duration("us")), pa.duration("ns"), "does not fit duration"),
    ("long", pa.array([86_400]), pa.time32("s"), "86400 is not in a day"),
    ("long", pa.array([-1, None]), pa.time64("ns"), "-1 is not in a day"),
    (array_of("float"), pa.array([[1.0, 2.0], None, [1.0]]), pa.list_(pa.float32(), 2), "a vector of 1 values.* has 2"),
    (array_of("long"), pa.array([[1, 300]]), pa.list_(pa.uint8(), 2), "element: a value does not fit uint8"),
    (
        array_of("long"),
        pa.array([[1, None]]),
        pa.list_(pa.field("item", pa.int8(), nullable=False), 2),
        "element: a null",
    ),
    (array_of("long"), pa.array([[None]]), pa.list_(pa.field("item", pa.int8(), nullable=False)), "element: a null"),
]


@pytest.mark.parametrize(("type_", "values", "target", "problem"), REFUSED, ids=label)
def test_values_that_do_not_fit(type_: Any, values: Any, target: pa.DataType, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"column c.*{problem}"):
        convert(type_, values, target)


def test_floats_are_rounded_to_the_nearest_bfloat16() -> None:
    given = [1.0, 1.00390625, 1.01171875, -3.0e38, NAN, INF, None]
    made = convert("float", pa.array(given, pa.float32()), BFLOAT16)
    assert repr(spark_values(made)) == repr([1.0, 1.0, 1.015625, -3.00405527047391e38, NAN, INF, None])


@pytest.mark.parametrize(
    ("field", "version"), [(LEGACY_BLOB, "2.1"), (LEGACY_BLOB, "2.2"), (pa.field("c", BLOB), "2.2")]
)
def test_lance_takes_blobs(field: pa.Field[Any], version: Any, tmp_path: Path) -> None:
    values = pa.array([b"x", None, b"", b"y" * 100_000])
    first = pa.Table.from_arrays([convert("binary", values, field)], schema=pa.schema([field]))
    schema = lance.write_dataset(first, tmp_path, data_storage_version=version).schema
    second = pa.Table.from_arrays([convert("binary", values.slice(1), schema.field("c"))], schema=schema)
    read = lance.write_dataset(second, tmp_path, mode="append").scanner(blob_handling="all_binary").to_table()
    assert read["c"].to_pylist() == [*values.to_pylist(), *values.slice(1).to_pylist()]


INNER: pa.DataType = pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.list_(pa.float32(), 2))])


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    table = pa.schema({"id": pa.int64(), "json": pa.json_(), "s": INNER, "v": pa.list_(BFLOAT16, 2)})
    incoming = from_spark_rows(struct(column(struct(column("long", "a")), "s"), column("long", "id")), table)
    rows = pa.record_batch([pa.array([{"a": 1}, None]), pa.array([1, 2])], names=["s", "id"])
    made = incoming.convert_batch(rows)
    made.validate(full=True)
    assert made.to_pydict() == {"id": [1, 2], "json": [None] * 2, "s": [{"a": 1, "b": None}, None], "v": [None] * 2}
    assert incoming.convert_batch(rows.slice(2)).num_rows == 0
    assert addresses(made.column("id")) == addresses(rows.column("id"))


def addresses(array: Any) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer]


def test_nulls_are_refused_where_the_table_allows_none() -> None:
    required = pa.field("c", pa.int64(), nullable=False)
    with pytest.raises(InvalidInputError, match="column c: a null"):
        convert("long", pa.array([1, None]), required)
    with pytest.raises(InvalidInputError, match=r"column c\.a: a null"):
        convert(struct(column("long", "a")), pa.array([None, {"a": 1}, {"a": None}]), INNER)
    many = pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False))  # type: ignore[call-overload]
    as_map = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    with pytest.raises(InvalidInputError, match=r"column c\.value: a null"):
        convert(as_map, pa.array([[("a", None)]], pa.map_(pa.string(), pa.int64())), many)


UNFIT: list[tuple[Any, pa.DataType]] = [
    ("string", pa.int64()),
    ("string", pa.decimal128(5, 2)),
    ("string", BLOB),
    ("string", BFLOAT16),
    ("string", pa.binary()),
    ("binary", pa.json_()),
    ("double", pa.int64()),
    ("double", pa.decimal128(5, 2)),
    ("decimal(5,2)", pa.float64()),
    ("boolean", pa.int8()),
    ("date", pa.timestamp("us")),
    ("timestamp", pa.timestamp("us")),
    ("timestamp_ntz", pa.timestamp("us", "UTC")),
    ("variant", pa.string()),
    ("interval year to month", pa.duration("s")),
    ("long", pa.null()),
    ("long", pa.dictionary(pa.int8(), pa.string())),
    ({"type": "udt", "class": "x"}, pa.struct([("a", pa.int8())])),
    (array_of("float"), pa.float32()),
    (array_of("float"), BLOB),
    ("float", pa.list_(pa.float32(), 1)),
    (struct(column("long")), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("type_", "target"), UNFIT, ids=label)
def test_types_that_do_not_convert(type_: Any, target: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c is .* and cannot become .*: cast it to "):
        from_spark_rows(struct(column(type_)), pa.schema([("c", target)]))


def test_all_that_does_not_fit_is_named_at_once() -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())]
    table = pa.schema([*fields, pa.field("s", INNER)])
    inner = struct(column("void", "a"), column(array_of("string"), "b"), column("long", "x"))
    rows = struct(
        column("long", "ID"), column("long", "name"), column(inner, "s"), column("long", "y"), column("long", "y")
    )
    with pytest.raises(TableSchemaValidationError) as caught:
        from_spark_rows(rows, table)
    assert str(caught.value).endswith(
        "the rows do not fit the table: column ID is not in the table, which has id; column y is not in the table; "
        "column y is there twice; column id is missing and may not be null; "
        "column name is bigint and cannot become string: cast it to string; column s.a is void and may not be null; "
        "column s.b.element is string and cannot become float: cast it to float; column s.x is not in the table"
    )


def test_it_travels() -> None:
    incoming = from_spark_rows(struct(column("long")), pa.schema([("c", pa.uint8())]))
    rows = pa.record_batch([pa.array([1])], names=["c"])
    assert pickle.loads(pickle.dumps(incoming)).convert_batch(rows).equals(incoming.convert_batch(rows))
