"""Spark's StructType, checked by Spark's own reader of its JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError
from pyspark.sql.types import StructType

from lancehouse.schema.spark import ARROW, from_spark, table_schema, to_ddl, to_spark
from tests.schema.storable import BFLOAT16, BLOB, CHANGED, LEGACY_BLOB, REFUSED, STORABLE, label, schemas

AS_SPARK: list[tuple[pa.DataType, str]] = [
    (pa.null(), "void"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.uint8(), "smallint"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.float16(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary(3), "binary"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.decimal128(2, 5), "decimal(5,5)"),
    (pa.decimal128(10, -2), "string"),
    (pa.decimal256(38, 2), "decimal(38,2)"),
    (pa.decimal256(39, 2), "string"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.time32("s"), "bigint"),
    (pa.time64("ns"), "bigint"),
    (pa.timestamp("ns"), "timestamp_ntz"),
    (pa.timestamp("us", "UTC"), "timestamp"),
    (pa.timestamp("s", "+02:00"), "timestamp"),
    (pa.duration("us"), "interval day to second"),
    (pa.list_(pa.int8()), "array<tinyint>"),
    (pa.large_list(pa.string()), "array<string>"),
    (pa.list_(pa.float32(), 768), "array<float>"),
    (pa.list_(pa.float16(), 768), "array<float>"),
    (pa.list_(BFLOAT16, 768), "array<float>"),
    (pa.list_(pa.list_(pa.float32(), 4)), "array<array<float>>"),
    (pa.struct([("a", pa.int32()), ("b c", pa.list_(pa.int64()))]), "struct<a:int,`b c`:array<bigint>>"),
    (pa.map_(pa.string(), pa.int32()), "map<string,int>"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (BLOB, "binary"),
    (BFLOAT16, "float"),
    (pa.json_(), "string"),
    (pa.uuid(), "binary"),
    (pa.fixed_shape_tensor(pa.float32(), [2, 2]), "array<float>"),
]


def through_spark(schema: pa.Schema) -> pa.Schema:
    return from_spark(json.loads(StructType.fromJson(to_spark(schema)).json()))


@pytest.mark.parametrize(("dtype", "expected"), AS_SPARK, ids=label)
def test_types(dtype: pa.DataType, expected: str) -> None:
    (field,) = to_spark(pa.schema([("c", dtype)]))["fields"]
    assert to_ddl(field["type"]) == expected


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_round_trip_through_spark(field: pa.Field[Any]) -> None:
    schema = pa.schema([field])
    assert through_spark(schema).equals(schema, check_metadata=True)


@settings(deadline=None)
@given(schema=schemas())
def test_round_trip_of_random_schemas(schema: pa.Schema) -> None:
    assert through_spark(schema).equals(schema, check_metadata=True)


@pytest.mark.parametrize(("given_type", "kept"), CHANGED[:2], ids=label)
def test_a_view_is_what_lance_makes_of_it(given_type: pa.DataType, kept: pa.DataType) -> None:
    nested = pa.schema([("c", given_type), ("v", pa.list_(given_type, 2))])
    assert through_spark(nested).equals(pa.schema([("c", kept), ("v", pa.list_(kept, 2))]))


@pytest.mark.parametrize(
    "dtype", [pa.int64(), pa.list_(pa.string()), pa.struct([("a", pa.int64())]), pa.json_()], ids=label
)
def test_nothing_is_kept_without_need(dtype: pa.DataType) -> None:
    assert ARROW not in json.dumps(to_spark(pa.schema([("c", dtype)])))


def test_deep_nesting_keeps_each_type_once() -> None:
    dtype: pa.DataType = pa.uint8()
    for _ in range(60):
        dtype = pa.struct([("s", dtype)])
    schema = pa.schema([("c", dtype)])
    assert json.dumps(to_spark(schema)).count(ARROW) == 1
    assert from_spark(to_spark(schema)).equals(schema)


def field(type_: object, **more: object) -> dict[str, Any]:
    return {"name": "c", "type": type_, "nullable": True, "metadata": {}, **more}


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("void", pa.null()),
        ("byte", pa.int8()),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("char(3)", pa.string()),
        ("varchar(3)", pa.string()),
        ("string collate UTF8_LCASE", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("time(6)", pa.time64("ns")),
        ("interval day to second", pa.duration("us")),
        ("interval hour", pa.duration("us")),
        (
            {"type": "array", "elementType": "integer", "containsNull": False},
            pa.list_(pa.field("item", pa.int32(), nullable=False)),
        ),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            pa.map_(pa.string(), pa.int64()),
        ),
        ({"type": "struct", "fields": [field("void", nullable=False)]}, pa.struct([("c", pa.null())])),
    ],
    ids=str,
)
def test_plain_types_of_spark(type_: object, expected: pa.DataType) -> None:
    assert from_spark({"fields": [field(type_)]}).field("c").type.equals(expected, check_metadata=True)


@pytest.mark.parametrize(
    "type_",
    [
        "bigint",
        "variant",
        "decimal(99,0)",
        "interval year to month",
        {"type": "udt"},
        {"type": "array"},
        {"type": "array", "elementType": "variant", "containsNull": True},
        7,
    ],
    ids=str,
)
def test_what_arrow_cannot_hold(type_: object) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c.*: Arrow has no type for Spark"):
        from_spark({"fields": [field(type_)]})


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_what_lance_cannot_store(dtype: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c\.element: Lance has no type for Arrow"):
        to_spark(pa.schema([("c", pa.list_(dtype))]))


@pytest.mark.parametrize(
    ("kept", "now", "expected"),
    [
        (pa.uint8(), "short", pa.uint8()),
        (pa.uint8(), "long", pa.int64()),
        (BLOB, "string", pa.string()),
        (pa.uuid(), "string", pa.string()),
        (pa.json_(), "long", pa.int64()),
        (
            pa.list_(pa.float32(), 2),
            {"type": "array", "elementType": "double", "containsNull": True},
            pa.list_(pa.float64()),
        ),
        (
            pa.list_(pa.field("item", pa.float32(), nullable=False), 2),
            {"type": "array", "elementType": "float", "containsNull": True},
            pa.list_(pa.field("item", pa.float32(), nullable=False), 2),
        ),
    ],
    ids=str,
)
def test_a_kept_type_counts_while_it_fits(kept: pa.DataType, now: object, expected: pa.DataType) -> None:
    (written,) = to_spark(pa.schema([("c", kept)]))["fields"]
    read = from_spark({"fields": [{**written, "type": now}]}).field("c")
    assert read.type.equals(expected, check_metadata=True)


def test_metadata_of_spark_are_text_in_arrow() -> None:
    metadata = {"comment": "of the text", "ml": {"min": 1}}
    read = from_spark({"fields": [field("long", metadata=metadata)]}).field("c")
    assert read.metadata == {b"comment": b"of the text", b"ml": b'{"min": 1}'}


def test_a_kept_type_that_is_no_json() -> None:
    with pytest.raises(TableSchemaValidationError, match="column c: "):
        from_spark({"fields": [field("long", metadata={ARROW: "{"})]})


def array_of(element: str) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


@pytest.mark.parametrize(
    ("type_", "element"), [("float", pa.float32()), ("double", pa.float64()), ("byte", pa.int8())], ids=str
)
def test_vectors_of_a_new_table(type_: str, element: pa.DataType) -> None:
    made = table_schema({"fields": [field(array_of(type_), nullable=False), field("long", name="d")]}, {"c": 3})
    assert made == pa.schema([pa.field("c", pa.list_(element, 3), nullable=False), pa.field("d", pa.int64())])


def test_vectors_in_structs() -> None:
    struct = {"type": "struct", "fields": [field(array_of("float")), field("long", name="d")]}
    made = table_schema({"fields": [field(struct, name="s"), field(array_of("float"), name="s.c")]}, {"s.c": 2})
    assert made.field("s").type.field("c").type == pa.list_(pa.float32())
    assert made.field("s.c").type == pa.list_(pa.float32(), 2)
    made = table_schema({"fields": [field(struct, name="s")]}, {"s.c": 2})
    assert made.field("s").type == pa.struct([("c", pa.list_(pa.float32(), 2)), ("d", pa.int64())])


def test_a_new_table_for_rows_of_another() -> None:
    schema = pa.schema([("v", pa.list_(BFLOAT16, 2)), ("b", BLOB)])
    assert table_schema(to_spark(schema)) == schema
    assert table_schema(to_spark(schema), {"v": 2}) == schema


@pytest.mark.parametrize(
    ("vectors", "problem"),
    [
        ({"x": 2}, "vector column x: there is no x among c, s$"),
        ({"s.x": 2}, r"vector column s\.x: there is no x among c$"),
        ({"c": 2}, "vector column c: c is no array of numbers, but list<item: string>$"),
        ({"c.d": 2}, r"vector column c\.d: c is no array of numbers"),
        ({"s": 2}, "vector column s: s is no array of numbers"),
        ({"c": 0}, "vector column c: the dimension is 0, not a positive number"),
    ],
    ids=str,
)
def test_vectors_that_are_none(vectors: dict[str, int], problem: str) -> None:
    struct = {"type": "struct", "fields": [field("long")]}
    with pytest.raises(InvalidInputError, match=problem):
        table_schema({"fields": [field(array_of("string")), field(struct, name="s")]}, vectors)


def test_two_columns_of_one_name() -> None:
    with pytest.raises(TableSchemaValidationError, match=r"more than one column is called c$"):
        table_schema({"fields": [field("long"), field("string"), field("long", name="d")]})
