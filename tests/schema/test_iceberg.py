"""Iceberg schemas, checked by pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from lance_namespace.errors import TableSchemaValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from lancehouse.schema.iceberg import from_iceberg, last_column_id, to_iceberg
from lancehouse.schema.walk import field_ids
from tests.schema.storable import BFLOAT16, BLOB, LEGACY_BLOB, REFUSED, STORABLE, label, schemas


def list_type(element: object, required: bool = False) -> dict[str, Any]:
    return {"type": "list", "element-id": 2, "element": element, "element-required": required}


AS_ICEBERG: list[tuple[pa.DataType, object, pa.DataType]] = [
    (pa.null(), "string", pa.string()),
    (pa.bool_(), "boolean", pa.bool_()),
    (pa.int8(), "int", pa.int32()),
    (pa.int16(), "int", pa.int32()),
    (pa.int32(), "int", pa.int32()),
    (pa.int64(), "long", pa.int64()),
    (pa.uint8(), "int", pa.int32()),
    (pa.uint16(), "int", pa.int32()),
    (pa.uint32(), "long", pa.int64()),
    (pa.uint64(), "decimal(20, 0)", pa.decimal128(20, 0)),
    (pa.float16(), "float", pa.float32()),
    (pa.float32(), "float", pa.float32()),
    (pa.float64(), "double", pa.float64()),
    (pa.string(), "string", pa.string()),
    (pa.large_string(), "string", pa.string()),
    (pa.string_view(), "string", pa.string()),
    (pa.binary(), "binary", pa.binary()),
    (pa.large_binary(), "binary", pa.binary()),
    (pa.binary(4), "fixed[4]", pa.binary(4)),
    (pa.decimal128(38, 10), "decimal(38, 10)", pa.decimal128(38, 10)),
    (pa.decimal128(2, 5), "decimal(5, 5)", pa.decimal128(5, 5)),
    (pa.decimal128(10, -2), "string", pa.string()),
    (pa.decimal256(38, 2), "decimal(38, 2)", pa.decimal128(38, 2)),
    (pa.decimal256(39, 2), "string", pa.string()),
    (pa.date32(), "date", pa.date32()),
    (pa.date64(), "date", pa.date32()),
    (pa.time32("s"), "time", pa.time64("us")),
    (pa.time64("ns"), "time", pa.time64("us")),
    (pa.timestamp("s"), "timestamp", pa.timestamp("us")),
    (pa.timestamp("ns"), "timestamp", pa.timestamp("us")),
    (pa.timestamp("us", "UTC"), "timestamptz", pa.timestamp("us", "UTC")),
    (pa.timestamp("ns", "America/New_York"), "timestamptz", pa.timestamp("us", "UTC")),
    (pa.duration("s"), "long", pa.int64()),
    (pa.dictionary(pa.int8(), pa.string()), "string", pa.string()),
    (BLOB, "binary", pa.binary()),
    (BFLOAT16, "float", pa.float32()),
    (pa.json_(), "string", pa.string()),
    (pa.uuid(), "uuid", pa.uuid()),
    (pa.bool8(), "int", pa.int32()),
    (pa.list_(pa.int8()), list_type("int"), pa.list_(pa.int32())),
    (
        pa.large_list(pa.field("x", pa.int8(), False)),
        list_type("int", True),
        pa.list_(pa.field("item", pa.int32(), False)),
    ),
    (pa.list_(pa.float16(), 4), list_type("float"), pa.list_(pa.float32(), 4)),
    (pa.list_(BFLOAT16, 4), list_type("float"), pa.list_(pa.float32(), 4)),
    (pa.list_(pa.uuid()), list_type("uuid"), pa.list_(pa.uuid())),
]


@pytest.mark.parametrize(("dtype", "expected", "back"), AS_ICEBERG, ids=label)
def test_types(dtype: pa.DataType, expected: object, back: pa.DataType) -> None:
    iceberg = to_iceberg(pa.schema([("c", dtype)]))
    assert iceberg["fields"][0]["type"] == expected
    assert from_iceberg(iceberg).field("c").type.equals(back, check_metadata=True)


def test_the_whole_of_a_schema() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"doc": "the key"}),
            pa.field("m", pa.map_(pa.string(), pa.struct([("v", pa.list_(pa.float32(), 2))]))),
            pa.field("last", pa.string()),
        ]
    )
    vector = {
        "id": 5,
        "name": "v",
        "required": False,
        "doc": "[dimension 2]",
        "type": {"type": "list", "element-id": 6, "element": "float", "element-required": False},
    }
    mapped = {
        "type": "map",
        "key-id": 3,
        "key": "string",
        "value-id": 4,
        "value-required": False,
        "value": {"type": "struct", "fields": [vector]},
    }
    assert to_iceberg(schema, schema_id=7) == {
        "type": "struct",
        "schema-id": 7,
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long", "doc": "the key"},
            {"id": 2, "name": "m", "required": False, "type": mapped},
            {"id": 7, "name": "last", "required": False, "type": "string"},
        ],
    }


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_pyiceberg_takes_all_that_lance_stores(field: pa.Field[Any]) -> None:
    iceberg = to_iceberg(pa.schema([field]))
    model = Schema.model_validate(iceberg)
    assert model.highest_field_id == last_column_id(iceberg)
    assert from_iceberg(model.model_dump(by_alias=True)).equals(from_iceberg(iceberg), check_metadata=True)


@settings(deadline=None)
@given(schema=schemas())
def test_random_schemas(schema: pa.Schema) -> None:
    iceberg = to_iceberg(schema)
    assert Schema.model_validate(iceberg).highest_field_id == last_column_id(iceberg)
    back = from_iceberg(iceberg)
    assert back.names == schema.names
    assert [column.nullable for column in back] == [column.nullable for column in schema]
    assert to_iceberg(back) == iceberg


@pytest.mark.parametrize(
    "dtype",
    [
        pa.list_(pa.float32(), 4),
        pa.list_(pa.list_(pa.float32(), 4), 3),
        pa.list_(pa.list_(pa.float32(), 4)),
        pa.list_(pa.list_(pa.list_(pa.float32(), 4)), 3),
        pa.map_(pa.list_(pa.int32(), 2), pa.list_(pa.list_(pa.float32(), 4))),
        pa.struct([("v", pa.list_(pa.float32(), 4)), ("w", pa.list_(pa.float32(), 5))]),
        pa.list_(pa.struct([("v", pa.list_(pa.float32(), 4))]), 3),
    ],
    ids=label,
)
@pytest.mark.parametrize("doc", [None, "of the text", "two\nlines [and more]"])
def test_the_dimension_of_vectors_stays(dtype: pa.DataType, doc: str | None) -> None:
    schema = pa.schema([pa.field("c", dtype, metadata={"doc": doc} if doc else None)])
    assert from_iceberg(to_iceberg(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("dtype", "doc", "expected"),
    [
        (pa.list_(pa.float32(), 4), None, "[dimension 4]"),
        (pa.list_(pa.float32(), 4), "of the text", "of the text [dimension 4]"),
        (pa.list_(pa.list_(pa.float32(), 4), 3), None, "[dimension 3, element dimension 4]"),
        (pa.map_(pa.string(), pa.list_(pa.list_(pa.int8(), 4))), None, "[value.element dimension 4]"),
        (pa.int8(), "[dimension 4]", "[dimension 4]"),
        (pa.int8(), None, None),
    ],
    ids=label,
)
def test_docs(dtype: pa.DataType, doc: str | None, expected: str | None) -> None:
    schema = pa.schema([pa.field("c", dtype, metadata={"doc": doc} if doc else None)])
    iceberg = to_iceberg(schema)
    assert iceberg["fields"][0].get("doc") == expected
    assert (from_iceberg(iceberg).field("c").metadata or {}).get(b"doc", b"").decode() == (doc or "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal(9,2)", pa.decimal128(9, 2)),
        ("decimal(9, 2)", pa.decimal128(9, 2)),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("timestamp_ns", pa.timestamp("ns")),
        ("timestamptz_ns", pa.timestamp("ns", "UTC")),
        ("string", pa.string()),
        ("uuid", pa.uuid()),
        ("fixed[16]", pa.binary(16)),
        ("binary", pa.binary()),
        ("unknown", pa.null()),
    ],
)
def test_every_primitive_of_iceberg(name: str, expected: pa.DataType) -> None:
    iceberg = {"type": "struct", "fields": [{"id": 1, "name": "c", "required": False, "type": name}]}
    read = from_iceberg(iceberg)
    assert read.field("c").type == expected
    if name not in ("uuid", "string", "binary", "unknown"):  # pyiceberg reads into large types
        assert schema_to_pyarrow(Schema.model_validate(iceberg), include_field_ids=False).field("c").type == expected


@pytest.mark.parametrize(
    "type_",
    ["variant", "geometry(srid:4326)", "decimal(99,0)", "Int", {"type": "list"}, {"type": "set"}, None],
    ids=str,
)
def test_what_arrow_cannot_hold(type_: object) -> None:
    inner = {"type": "struct", "fields": [{"id": 2, "name": "below", "required": False, "type": type_}]}
    with pytest.raises(TableSchemaValidationError, match=r"column top\.below: Arrow has no type for Iceberg"):
        from_iceberg({"fields": [{"id": 1, "name": "top", "required": False, "type": inner}]})


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_what_lance_cannot_store(dtype: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c: Lance has no type for Arrow"):
        to_iceberg(pa.schema([("c", dtype)]))


def test_no_two_fields_of_one_name() -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column s\.a: "):
        to_iceberg(pa.schema([("s", pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]))]))


def test_ids_are_those_of_lance(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("gone", pa.list_(pa.int8())),
            ("l", pa.list_(pa.int8())),
            ("v", pa.list_(pa.float32(), 4)),
            ("vv", pa.list_(pa.list_(pa.float32(), 4), 3)),
            ("sv", pa.list_(pa.struct([("a", pa.int8())]), 4)),
            ("m", pa.map_(pa.string(), pa.list_(pa.float32(), 4))),
            ("b", BLOB),
            ("last", pa.json_()),
        ]
    )
    lance.write_dataset(pa.Table.from_batches([], schema), str(tmp_path / "t"))
    dataset = lance.dataset(str(tmp_path / "t"))
    dataset.drop_columns(["gone"])
    iceberg = to_iceberg(dataset.schema, field_ids(dataset.lance_schema.fields()))
    model = Schema.model_validate(iceberg)
    assert {model.find_column_name(id_): id_ for id_ in ids_of(model)} == {
        "l": 3,
        "l.element": 4,
        "v": 5,
        "v.element": 1_000_005,
        "vv": 6,
        "vv.element": 1_000_006,
        "vv.element.element": 2_000_006,
        "sv": 7,
        "sv.element": 8,
        "sv.element.a": 9,
        "m": 10,
        "m.key": 12,
        "m.value": 13,
        "m.value.element": 1_000_013,
        "b": 14,
        "last": 19,
    }
    assert last_column_id(iceberg) == 2_000_006


def ids_of(model: Schema) -> Mapping[int, object]:
    return model._lazy_id_to_field


def test_all_that_lance_stores_has_an_id(tmp_path: Path) -> None:
    schema = pa.schema([field.with_name(f"{at}{field.name}") for at, field in enumerate(STORABLE)])
    lance.write_dataset(pa.Table.from_batches([], schema), str(tmp_path / "t"))
    dataset = lance.dataset(str(tmp_path / "t"))
    iceberg = to_iceberg(dataset.schema, field_ids(dataset.lance_schema.fields()))
    assert len(ids_of(Schema.model_validate(iceberg))) == len(ids_of(Schema.model_validate(to_iceberg(schema))))


@pytest.mark.parametrize("dtype", [pa.list_(pa.int8()), pa.struct([("element", pa.int8())])], ids=label)
def test_a_field_without_an_id(dtype: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c\.element: Lance gave no field id"):
        to_iceberg(pa.schema([("c", dtype)]), {("c",): 0})


def test_a_schema_without_columns() -> None:
    iceberg = to_iceberg(pa.schema([]))
    assert iceberg == {"type": "struct", "schema-id": 0, "fields": []}
    assert last_column_id(iceberg) == 0
    assert len(from_iceberg(iceberg)) == 0
