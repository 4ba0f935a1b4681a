"""Columns of Unity Catalog: their layout, and the text of Spark's types."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from lance_namespace.errors import TableSchemaValidationError
from pyspark.sql.types import StructField

from lancehouse.schema.spark import from_ddl, from_spark, to_ddl, to_spark
from lancehouse.schema.unity import from_unity, to_unity
from tests.schema.storable import LEGACY_BLOB, REFUSED, STORABLE, label, schemas

TYPE_NAMES = {
    *("BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING"),
    *(
        "BINARY",
        "DECIMAL",
        "INTERVAL",
        "ARRAY",
        "STRUCT",
        "MAP",
        "VARIANT",
        "CHAR",
        "NULL",
        "USER_DEFINED_TYPE",
        "TABLE_TYPE",
    ),
}
"""ColumnTypeName of Unity Catalog 0.6.0."""


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (pa.int64(), {"type_text": "bigint", "type_name": "LONG"}),
        (pa.int32(), {"type_text": "int", "type_name": "INT"}),
        (pa.int8(), {"type_text": "tinyint", "type_name": "BYTE"}),
        (pa.string(), {"type_text": "string", "type_name": "STRING"}),
        (pa.binary(), {"type_text": "binary", "type_name": "BINARY"}),
        (pa.null(), {"type_text": "void", "type_name": "NULL"}),
        (pa.timestamp("ns"), {"type_text": "timestamp_ntz", "type_name": "TIMESTAMP_NTZ"}),
        (pa.duration("s"), {"type_text": "interval day to second", "type_name": "INTERVAL"}),
        (
            pa.decimal128(10, 2),
            {"type_text": "decimal(10,2)", "type_name": "DECIMAL", "type_precision": 10, "type_scale": 2},
        ),
        (pa.uint64(), {"type_text": "decimal(20,0)", "type_name": "DECIMAL", "type_precision": 20, "type_scale": 0}),
        (pa.list_(pa.float32(), 768), {"type_text": "array<float>", "type_name": "ARRAY"}),
        (pa.map_(pa.string(), pa.int32()), {"type_text": "map<string,int>", "type_name": "MAP"}),
        (pa.struct([("a`b", pa.int32())]), {"type_text": "struct<`a``b`:int>", "type_name": "STRUCT"}),
    ],
    ids=label,
)
def test_columns(dtype: pa.DataType, expected: dict[str, Any]) -> None:
    schema = pa.schema([pa.field("first", pa.int8()), pa.field("c", dtype)])
    column = to_unity(schema)[1]
    told = json.loads(column.pop("type_json"))
    assert column == {"name": "c", "position": 1, "nullable": True, **expected}
    assert told == to_spark(schema)["fields"][1]


def test_the_placeholder_of_the_real_server() -> None:
    (column,) = to_unity(pa.schema([("__placeholder_id", pa.int64())]))
    assert column["type_json"] == '{"name":"__placeholder_id","type":"long","nullable":true,"metadata":{}}'


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_round_trip(field: pa.Field[Any]) -> None:
    schema = pa.schema([field])
    columns = to_unity(schema)
    assert {column["type_name"] for column in columns} <= TYPE_NAMES
    assert from_unity(columns).equals(schema, check_metadata=True)
    for column in columns:
        StructField.fromJson(json.loads(column["type_json"]))


@settings(deadline=None)
@given(schema=schemas())
def test_round_trip_of_random_schemas(schema: pa.Schema) -> None:
    assert from_unity(to_unity(schema)).equals(schema, check_metadata=True)


@settings(deadline=None)
@given(schema=schemas())
def test_the_text_alone_gives_the_plain_types(schema: pa.Schema) -> None:
    columns = [{**column, "type_json": None} for column in to_unity(schema)]
    for column, field in zip(columns, from_unity(columns), strict=True):
        assert to_ddl(to_spark(pa.schema([field]))["fields"][0]["type"]) == column["type_text"]


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_what_lance_cannot_store(dtype: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match="column c: Lance has no type for Arrow"):
        to_unity(pa.schema([("c", dtype)]))


STRUCT_FIELD = '{"name":"c","type":"short","nullable":true,"metadata":{}}'


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"type_json": STRUCT_FIELD}, pa.field("c", pa.int16())),
        ({"type_json": STRUCT_FIELD, "type_text": "bigint", "unheard": "of"}, pa.field("c", pa.int16())),
        ({"type_json": STRUCT_FIELD, "nullable": False}, pa.field("c", pa.int16(), nullable=False)),
        ({"type_json": STRUCT_FIELD, "nullable": None}, pa.field("c", pa.int16())),
        ({"type_json": STRUCT_FIELD, "comment": "x"}, pa.field("c", pa.int16(), metadata={"comment": "x"})),
        ({"type_json": '{"name":"c","type":"bigint"}'}, pa.field("c", pa.int64())),
        ({"type_json": '"long"', "type_text": "int"}, pa.field("c", pa.int32())),
        ({"type_json": '{"type":"long"}', "type_text": "int"}, pa.field("c", pa.int32())),
        ({"type_json": "long", "type_text": "array<float>"}, pa.field("c", pa.list_(pa.float32()))),
        (
            {"type_json": "", "type_text": "ARRAY<FLOAT>", "nullable": False},
            pa.field("c", pa.list_(pa.float32()), False),
        ),
        ({"type_text": "Decimal(10, 2)", "type_name": "DECIMAL"}, pa.field("c", pa.decimal128(10, 2))),
    ],
    ids=str,
)
def test_columns_of_others(column: dict[str, Any], expected: pa.Field[Any]) -> None:
    assert from_unity([{"name": "c", **column}]).field("c").equals(expected, check_metadata=True)


@pytest.mark.parametrize(
    "column", [{}, {"type_text": ""}, {"type_text": "geography(4326)"}, {"type_text": "array<"}], ids=str
)
def test_columns_that_cannot_be_read(column: dict[str, Any]) -> None:
    with pytest.raises(TableSchemaValidationError):
        from_unity([{"name": "c", **column}])


def test_columns_come_in_the_order_of_their_positions() -> None:
    columns = to_unity(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8())]))
    assert from_unity(columns[::-1]).names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bigint", pa.int64()),
        ("LONG", pa.int64()),
        (" integer ", pa.int32()),
        ("smallint", pa.int16()),
        ("real", pa.float32()),
        ("void", pa.null()),
        ("timestamp_ltz", pa.timestamp("us", "UTC")),
        ("decimal", pa.decimal128(10, 0)),
        ("numeric(3)", pa.decimal128(3, 0)),
        ("varchar(10)", pa.string()),
        ("string collate UTF8_LCASE", pa.string()),
        ("interval day to second", pa.duration("us")),
        ("map<string, array<map<int,decimal(10,2)>>>", None),
        ("struct<>", pa.struct([])),
        ("struct<a:int,B:string>", pa.struct([("a", pa.int32()), ("B", pa.string())])),
        ("struct<a int, b: string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<`x``y ,:<>()`:int>", pa.struct([("x`y ,:<>()", pa.int32())])),
        ("STRUCT<a: INT NOT NULL>", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
        (
            r"struct<not: int comment 'it\'s, <this>', comment: string>",
            pa.struct([pa.field("not", pa.int32(), metadata={"comment": "it's, <this>"}), ("comment", pa.string())]),
        ),
        ("struct<1a:int,i:interval day to second not null>", None),
    ],
)
def test_text_of_types(text: str, expected: pa.DataType | None) -> None:
    read = from_spark({"fields": [{"name": "c", "type": from_ddl(text)}]}).field("c").type
    assert expected is None or read.equals(expected, check_metadata=True)
    assert from_ddl(to_ddl(from_ddl(text)))


@pytest.mark.parametrize(
    "text",
    [
        *("", "array", "array<int", "array<int>>", "map<int>", "struct<a:>", "struct<a:int,>", "int int"),
        *("decimal(1", "`a", "struct<:int>", "struct<a:int comment>", "struct<a:int comment b>"),
        "struct<a:int comment 'b>",
    ],
)
def test_what_is_no_text_of_a_type(text: str) -> None:
    with pytest.raises(TableSchemaValidationError, match="is not the text of a Spark type"):
        from_ddl(text)
