from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from lance.blob import blob_field

from lancehouse.schema.display import (
    WHOLE,
    Cell,
    DisplayLimits,
    field_to_json,
    format_cell,
    format_type,
    image_type,
    value_kind,
)

NAN, LONG = float("nan"), "é" * 1000


def one(value: Any, dtype: pa.DataType) -> Any:
    return pa.array([value], dtype)[0]


@pytest.mark.parametrize(
    ("value", "dtype", "shown"),
    [
        (None, pa.int64(), None),
        (True, pa.bool_(), True),
        (-7, pa.int8(), -7),
        (2**53 - 1, pa.int64(), 2**53 - 1),
        (2**53, pa.int64(), {"kind": "number", "text": "9007199254740992"}),
        (2**64 - 1, pa.uint64(), {"kind": "number", "text": "18446744073709551615"}),
        (0.1, pa.float32(), 0.1),
        (0.1, pa.float64(), 0.1),
        (0.5, pa.float16(), 0.5),
        (NAN, pa.float32(), {"kind": "number", "text": "nan"}),
        (float("inf"), pa.float64(), {"kind": "number", "text": "inf"}),
        (Decimal("1.50"), pa.decimal128(10, 2), {"kind": "number", "text": "1.50"}),
        ("a <b>", pa.string(), "a <b>"),
        ("", pa.large_string(), ""),
        (LONG, pa.string(), {"kind": "text", "size": 2000, "text": LONG[:240]}),
        ("x", pa.dictionary(pa.int8(), pa.string()), "x"),
        (b"ab", pa.binary(), {"kind": "bytes", "size": 2, "image": None}),
        (b"\x89PNG\r\n\x1a\n....", pa.large_binary(), {"kind": "bytes", "size": 12, "image": "image/png"}),
        (dt.date(2026, 3, 1), pa.date32(), "2026-03-01"),
        (dt.datetime(2026, 3, 1, 9, 30), pa.timestamp("ms"), "2026-03-01 09:30:00"),
        (1_700_000_000_123_456_789, pa.timestamp("ns"), "2023-11-14 22:13:20.123456789"),
        (0, pa.timestamp("us", "UTC"), "1970-01-01 00:00:00Z"),
        (dt.time(1, 2, 3), pa.time64("us"), "01:02:03"),
        ([1.5, 2, None], pa.list_(pa.float32(), 3), {"kind": "vector", "size": 3, "text": "[1.5, 2.0, null]"}),
        ([1, 2], pa.list_(pa.int64()), {"kind": "nested", "size": 2, "text": "[1, 2]"}),
        (
            {"a": 1, "b": "x"},
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            {"kind": "nested", "size": 2, "text": '{"a": 1, "b": "x"}'},
        ),
        ({"a": b"xy"}, pa.struct([("a", pa.binary())]), {"kind": "nested", "size": 1, "text": '{"a": <2 bytes>}'}),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, pa.DataType) else "",
)
def test_values(value: Any, dtype: pa.DataType, shown: Cell) -> None:
    found = format_cell(one(value, dtype))
    assert found == shown
    assert orjson.loads(orjson.dumps(found)) == found, "JSON says the same"


def test_extensions() -> None:
    number = uuid.UUID(int=7)
    assert format_cell(pa.ExtensionArray.from_storage(pa.uuid(), pa.array([number.bytes], pa.binary(16)))[0]) == str(
        number
    )
    assert format_cell(pa.ExtensionArray.from_storage(pa.uuid(), pa.array([None], pa.binary(16)))[0]) is None


def test_what_is_long_or_deep_is_cut() -> None:
    vector = one([0.25] * 500, pa.list_(pa.float32(), 500))
    assert format_cell(vector) == {"kind": "vector", "size": 500, "text": "[" + "0.25, " * 8 + "…]"}
    whole = format_cell(vector, WHOLE)
    assert isinstance(whole, dict)
    assert json.loads(whole["text"]) == [0.25] * 500
    deep: pa.DataType = pa.int8()
    value: Any = 1
    for _ in range(9):
        deep, value = pa.list_(deep), [value]
    shown = format_cell(one(value, deep))
    assert isinstance(shown, dict)
    assert shown["text"] == "[[[[…]]]]"
    wide = one([["x" * 50] * 50] * 50, pa.list_(pa.list_(pa.string())))
    brief = format_cell(wide, DisplayLimits(text=100))
    assert isinstance(brief, dict)
    assert len(brief["text"]) == 101
    assert isinstance(format_cell(one("x" * 500_000, pa.string()), WHOLE), dict)


def test_columns() -> None:
    point = pa.struct([pa.field("x", pa.float64(), nullable=False)])
    told = field_to_json(pa.field("p", pa.list_(point), metadata={"k": "v"}))
    assert (told["type"], told["kind"], told["metadata"]) == ("list<struct<x>>", "list", {"k": "v"})
    assert [(each["name"], each["type"]) for each in told["fields"]] == [("item", "struct<x>")]
    assert told["fields"][0]["fields"][0]["nullable"] is False
    vector = field_to_json(pa.field("v", pa.list_(pa.float32(), 128)))
    assert (vector["type"], vector["kind"], vector["size"]) == ("float32[128]", "vector", 128)
    blob = field_to_json(blob_field("b"))
    assert (blob["type"], blob["kind"], blob["fields"]) == ("blob", "blob", [])


@pytest.mark.parametrize(
    ("dtype", "kind", "text"),
    [
        (pa.bool_(), "bool", "bool"),
        (pa.float64(), "number", "float64"),
        (pa.decimal128(5, 1), "number", "decimal128(5, 1)"),
        (pa.large_string(), "text", "string"),
        (pa.dictionary(pa.int8(), pa.string()), "text", "string"),
        (pa.binary(16), "bytes", "fixed_size_binary[16]"),
        (pa.duration("s"), "time", "duration[s]"),
        (pa.list_(pa.string(), 2), "list", "string[2]"),
        (pa.map_(pa.string(), pa.int8()), "list", "map<string, int8>"),
        (pa.struct([("a", pa.int8())]), "struct", "struct<a>"),
        (pa.json_(), "json", "json"),
        (pa.null(), "other", "null"),
    ],
    ids=str,
)
def test_kinds_and_types(dtype: pa.DataType, kind: str, text: str) -> None:
    assert value_kind(pa.field("c", dtype)) == kind
    assert format_type(dtype) == text


def test_a_blob_of_the_older_format() -> None:
    assert value_kind(pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})) == "blob"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"<svg onload=alert(1)>", None),
        (b"<!doctype html>", None),
        (b"", None),
    ],
)
def test_images_are_told_by_their_first_bytes(head: bytes, kind: str | None) -> None:
    assert image_type(head) == kind
