"""JSON Arrow: in the words of native code, and exact where those are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from lance_namespace import DescribeTableRequest, connect
from lance_namespace.errors import TableSchemaValidationError
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from lancehouse.schema.jsonarrow import (
    DETAILS,
    from_jsonarrow,
    to_jsonarrow,
    type_from_jsonarrow,
    type_to_jsonarrow,
)
from tests.schema.storable import BLOB, CHANGED, LEGACY_BLOB, NESTED, REFUSED, STORABLE, label, schemas

Json = dict[str, Any]


def item(type_: Json, name: str = "item", nullable: bool = True) -> Json:
    return {"name": name, "nullable": nullable, "type": type_}


NATIVE: list[tuple[pa.DataType, Json]] = [
    (pa.null(), {"type": "null"}),
    (pa.bool_(), {"type": "bool"}),
    (pa.int8(), {"type": "int8"}),
    (pa.int16(), {"type": "int16"}),
    (pa.int32(), {"type": "int32"}),
    (pa.int64(), {"type": "int64"}),
    (pa.uint8(), {"type": "uint8"}),
    (pa.uint16(), {"type": "uint16"}),
    (pa.uint32(), {"type": "uint32"}),
    (pa.uint64(), {"type": "uint64"}),
    (pa.float16(), {"type": "float16"}),
    (pa.float32(), {"type": "float32"}),
    (pa.float64(), {"type": "float64"}),
    (pa.string(), {"type": "utf8"}),
    (pa.large_string(), {"type": "large_utf8"}),
    (pa.binary(), {"type": "binary"}),
    (pa.large_binary(), {"type": "large_binary"}),
    (pa.binary(4), {"type": "fixed_size_binary", "length": 4}),
    (pa.decimal128(38, 10), {"type": "decimal128", "length": 38010}),
    (pa.decimal128(10, -2), {"type": "decimal128", "length": 9998}),
    (pa.decimal256(76, 10), {"type": "decimal256", "length": 76010}),
    (pa.date32(), {"type": "date32"}),
    (pa.date64(), {"type": "date64"}),
    (pa.time32("s"), {"type": "time32"}),
    (pa.time64("ns"), {"type": "time64"}),
    (pa.timestamp("ns", "UTC"), {"type": "timestamp"}),
    (pa.duration("s"), {"type": "duration"}),
    (pa.list_(pa.int32()), {"type": "list", "fields": [item({"type": "int32"})]}),
    (pa.large_list(pa.int32()), {"type": "large_list", "fields": [item({"type": "int32"})]}),
    (pa.list_(pa.float32(), 4), {"type": "fixed_size_list", "length": 4, "fields": [item({"type": "float32"})]}),
    (pa.struct([]), {"type": "struct", "fields": []}),
    (
        pa.struct([pa.field("a", pa.int8(), nullable=False)]),
        {"type": "struct", "fields": [item({"type": "int8"}, "a", nullable=False)]},
    ),
    (
        pa.map_(pa.string(), pa.int32()),
        {
            "type": "map",
            "fields": [
                item(
                    {
                        "type": "struct",
                        "fields": [item({"type": "utf8"}, "key", nullable=False), item({"type": "int32"}, "value")],
                    },
                    "entries",
                    nullable=False,
                )
            ],
        },
    ),
    (pa.dictionary(pa.int8(), pa.string()), {"type": "utf8"}),
    (pa.json_(), {"type": "large_binary"}),
    (pa.uuid(), {"type": "fixed_size_binary", "length": 16}),
]
"""What native code says, as DescribeTable of the `dir` namespace answers."""


def describe_schema(schema: pa.Schema, root: Path) -> Json:
    lance.write_dataset(pa.Table.from_batches([], schema), str(root / "t.lance"))
    namespace = connect("dir", {"root": str(root)})
    response = namespace.describe_table(DescribeTableRequest(id=["t"], load_detailed_metadata=True))
    assert response.var_schema is not None
    answer: Json = response.var_schema.to_dict()
    return answer


def without_details(value: Any) -> Any:
    match value:
        case dict():
            rest = {key: without_details(inner) for key, inner in value.items() if key != DETAILS}
            return {key: inner for key, inner in rest.items() if (key, inner) != ("metadata", {})}
        case list():
            return [without_details(inner) for inner in value]
    return value


@pytest.mark.parametrize(("dtype", "expected"), NATIVE, ids=label)
def test_the_words_are_those_of_native_code(tmp_path: Path, dtype: pa.DataType, expected: Json) -> None:
    schema = pa.schema([("c", dtype)])
    assert describe_schema(schema, tmp_path)["fields"][0]["type"] == expected
    assert to_jsonarrow(schema).to_dict()["fields"][0]["type"] == expected


def test_all_that_lance_stores_is_said_as_native_code_says_it(tmp_path: Path) -> None:
    schema = pa.schema([field.with_name(f"{at}{field.name}") for at, field in enumerate(STORABLE)], metadata={"k": "v"})
    assert without_details(to_jsonarrow(schema).to_dict()) == describe_schema(schema, tmp_path)


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_round_trip(field: pa.Field[Any]) -> None:
    schema = pa.schema([field], metadata={"k": "v"})
    wire = to_jsonarrow(schema).to_json()
    assert from_jsonarrow(JsonArrowSchema.model_validate_json(wire)).equals(schema, check_metadata=True)


@settings(deadline=None)
@given(schema=schemas())
def test_round_trip_of_random_schemas(schema: pa.Schema) -> None:
    assert from_jsonarrow(to_jsonarrow(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(("given_type", "kept"), CHANGED[:2], ids=label)
def test_a_view_is_what_lance_makes_of_it(given_type: pa.DataType, kept: pa.DataType) -> None:
    assert from_jsonarrow(to_jsonarrow(pa.schema([("c", given_type)]))).field("c").type == kept


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in CHANGED[2:]], ids=label)
def test_what_lance_changes_is_told_exactly(dtype: pa.DataType) -> None:
    schema = pa.schema([("c", dtype)])
    assert from_jsonarrow(to_jsonarrow(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize("dtype", [field.type for field in STORABLE if field.type not in NESTED], ids=label)
def test_round_trip_of_a_type_alone(dtype: pa.DataType) -> None:
    storage = dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype
    wire = json.loads(json.dumps(type_to_jsonarrow(storage)))
    assert type_from_jsonarrow(wire).equals(storage, check_metadata=True)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"type": "INT64"}, pa.int64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string"}, pa.string()),
        ({"type": "timestamp"}, pa.timestamp("us")),
        ({"type": "Timestamp", "unit": "ms", "timezone": "+01:00"}, pa.timestamp("ms", "+01:00")),
        ({"type": "duration"}, pa.duration("us")),
        ({"type": "time64"}, pa.time64("us")),
        ({"type": "time32", "unit": "s"}, pa.time32("s")),
        ({"type": "decimal128", "length": 2005}, pa.decimal128(2, 5)),
        ({"type": "utf8", "dictionary": {"indices": "int8"}}, pa.dictionary(pa.int8(), pa.string())),
        ({"type": "int64", "unit": "ns", "unheard": "of"}, pa.int64()),
        ({"type": "LIST", "fields": [item({"type": "Utf8"})]}, pa.list_(pa.string())),
    ],
    ids=str,
)
def test_a_type_alone_as_people_write_it(wire: Json, expected: pa.DataType) -> None:
    assert type_from_jsonarrow(wire) == expected


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"type": "geometry"},
        {"type": None},
        {"type": "decimal128"},
        {"type": "decimal128", "length": 99000},
        {"type": "fixed_size_list", "fields": [item({"type": "int8"})]},
        {"type": "fixed_size_binary"},
        {"type": "list"},
        {"type": "list", "fields": []},
        {"type": "map", "fields": [item({"type": "int8"})]},
        {"type": "timestamp", "unit": "h"},
        {"type": "time32", "unit": "ns"},
        {"type": "utf8", "dictionary": {"indices": "utf8"}},
        {"type": "struct", "fields": [item({"type": "geometry"}, "below")]},
    ],
    ids=str,
)
def test_what_is_no_type(wire: Json) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column a\.b"):
        type_from_jsonarrow(wire, ("a", "b"))


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_what_lance_cannot_store(dtype: pa.DataType) -> None:
    with pytest.raises(TableSchemaValidationError, match="column c: Lance has no type for Arrow"):
        to_jsonarrow(pa.schema([("c", dtype)]))


def test_details_that_are_no_json() -> None:
    wire = {"fields": [item({"type": "int8"}, "c") | {"metadata": {DETAILS: "{"}}]}
    with pytest.raises(TableSchemaValidationError, match="column c: "):
        from_jsonarrow(JsonArrowSchema.model_validate(wire))


def test_schema_metadata_must_be_text() -> None:
    with pytest.raises(TableSchemaValidationError, match="schema: "):
        to_jsonarrow(pa.schema([], metadata={b"k": b"\xff"}))


def test_what_native_code_says_of_a_blob_is_read(tmp_path: Path) -> None:
    wire = describe_schema(pa.schema([("c", BLOB), ("j", pa.json_())]), tmp_path)
    schema = from_jsonarrow(JsonArrowSchema.model_validate(wire))
    assert schema.equals(pa.schema([("c", BLOB), ("j", pa.json_())]), check_metadata=True)
