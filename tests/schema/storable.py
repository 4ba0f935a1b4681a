"""Every kind of field that Lance stores, and those it does not: tables for all tests here, proven by `test_walk.py`."""

from __future__ import annotations

from typing import Any

import lance  # registers Lance's extension types
import lance.arrow
import pyarrow as pa
from hypothesis import strategies as st

BFLOAT16 = lance.arrow.BFloat16Type()
BLOB = lance.blob.BlobType()
ZONES = (None, "UTC", "+02:00", "America/New_York")
UNITS: tuple[Any, ...] = ("s", "ms", "us", "ns")

LEAVES: list[pa.DataType] = [
    *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(1), pa.binary(16)),
    *(pa.decimal128(1, 0), pa.decimal128(38, 10), pa.decimal128(10, -2), pa.decimal128(2, 5)),
    *(pa.decimal256(20, 2), pa.decimal256(38, 38), pa.decimal256(39, 1), pa.decimal256(76, 10), pa.decimal256(5, -3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES),
    *(pa.duration(unit) for unit in UNITS),
]

DICTIONARIES: list[pa.DataType] = [
    *(
        pa.dictionary(indices, pa.string())
        for indices in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
        )
    ),
    *(
        pa.dictionary(pa.int16(), values)
        for values in (
            pa.large_string(),
            pa.binary(),
            pa.large_binary(),
            pa.bool_(),
            pa.int8(),
            pa.uint64(),
            pa.float64(),
        )
    ),
]

EXTENSIONS: list[pa.DataType] = [
    *(BLOB, BFLOAT16, pa.json_(), pa.uuid(), pa.bool8()),
    pa.fixed_shape_tensor(pa.float32(), [2, 3]),
    pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["x", "y"], permutation=[1, 0]),
    pa.opaque(pa.int32(), "a", "b"),
    lance.arrow.ImageURIType(),
    lance.arrow.EncodedImageType(),
    lance.arrow.FixedShapeImageTensorType(pa.uint8(), (2, 2)),
]


def _map(key: Any, value: Any) -> pa.DataType:
    return pa.map_(key, value)


NESTED: list[pa.DataType] = [
    pa.list_(pa.int32()),
    pa.large_list(pa.string()),
    pa.list_(pa.field("item", pa.int32(), nullable=False)),
    pa.list_(pa.field("other", pa.int32())),
    pa.list_(pa.field("item", pa.int32(), metadata={"k": "v"})),
    pa.large_list(pa.list_(pa.large_list(pa.binary()))),
    *(pa.list_(dtype, 4) for dtype in (pa.float32(), pa.float16(), pa.uint8(), pa.bool_(), pa.string(), BFLOAT16)),
    pa.list_(pa.timestamp("ns", "UTC"), 1),
    pa.list_(pa.list_(pa.float32(), 4), 3),
    pa.list_(pa.list_(pa.float32(), 4)),
    pa.list_(pa.struct([("a", pa.int32()), ("v", pa.list_(pa.float32(), 2))]), 4),
    pa.struct([]),
    pa.struct([pa.field("a", pa.uint8(), nullable=False), pa.field("A", pa.string()), pa.field("b", pa.date64())]),
    pa.struct([pa.field("a.b", pa.int32(), metadata={"k": "é"}), pa.field("x`y ,:<>()", pa.int32())]),
    pa.struct([("deep", pa.struct([("er", pa.list_(pa.struct([("est", pa.list_(pa.float16(), 8))])))]))]),
    pa.struct([("j", pa.json_()), ("b", BLOB), ("u", pa.uuid()), ("d", pa.dictionary(pa.int8(), pa.string()))]),
    _map(pa.string(), pa.int32()),
    _map(pa.int64(), pa.field("value", pa.float64(), nullable=False)),
    _map(pa.string(), pa.field("value", pa.int32(), metadata={"k": "v"})),
    _map(pa.string(), pa.list_(pa.float32(), 4)),
    _map(pa.struct([("a", pa.uint32())]), _map(pa.string(), pa.list_(pa.date32()))),
    *(
        pa.list_(dtype)
        for dtype in (pa.null(), pa.json_(), BLOB, BFLOAT16, pa.uuid(), pa.dictionary(pa.int8(), pa.string()))
    ),
]

STORABLE: list[pa.Field[Any]] = [
    *(pa.field("c", dtype) for dtype in (*LEAVES, *DICTIONARIES, *EXTENSIONS, *NESTED)),
    pa.field("c", pa.int32(), nullable=False),
    pa.field("c", pa.list_(pa.float32(), 768), nullable=False, metadata={"doc": "of the text", "k": "v"}),
    pa.field("c", BLOB, nullable=False, metadata={"lance-encoding:blob-inline-size-threshold": "10"}),
    pa.field("c", pa.string(), metadata={"ARROW:extension:name": "nobody.knows", "ARROW:extension:metadata": "x"}),
    pa.field("Ünï `quoted` ,:<>()", pa.int64()),
]
"""What Lance gives back as it was given."""

LEGACY_BLOB: pa.Field[Any] = pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
"""Stored as it is up to file version 2.1, as `BLOB` from 2.2 on."""

CHANGED: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.json_(pa.large_string()), pa.json_()),
    (pa.dictionary(pa.int8(), pa.string(), ordered=True), pa.dictionary(pa.int8(), pa.string())),
]
"""What Lance takes, and what it gives back."""

REFUSED: list[pa.DataType] = [
    *(pa.decimal32(5, 2), pa.decimal64(10, 2), pa.month_day_nano_interval()),
    *(pa.list_view(pa.int32()), pa.large_list_view(pa.int32())),
    pa.map_(pa.string(), pa.int32(), keys_sorted=True),  # type: ignore[call-overload]
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.sparse_union([pa.field("a", pa.int32())]),
    pa.dense_union([pa.field("a", pa.int32())]),
]


def label(case: object) -> str:
    """How a row of these tables is called in a test's name."""
    return str(case.type if isinstance(case, pa.Field) else case).replace("extension", "")[:60]


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0."), min_size=1, max_size=6)
_METADATA = st.dictionaries(st.sampled_from(["k", "doc", "comment"]), _NAMES, max_size=2)
_FLAT = [*LEAVES, *DICTIONARIES, *EXTENSIONS]


@st.composite
def schemas(draw: st.DrawFn) -> pa.Schema:
    """Schemas that Lance stores, up to five levels deep."""
    return pa.schema(_struct(draw, 4))


def _struct(draw: st.DrawFn, depth: int) -> list[pa.Field[Any]]:
    names = draw(st.lists(_NAMES, max_size=4 if depth > 2 else 2, unique=True))
    return [_field(draw, name, depth) for name in names]


def _field(draw: st.DrawFn, name: str, depth: int) -> pa.Field[Any]:
    dtype = _type(draw, depth)
    metadata: Any = draw(_METADATA)
    return pa.field(name, dtype, nullable=draw(st.booleans()) or dtype == pa.null(), metadata=metadata)


def _type(draw: st.DrawFn, depth: int) -> pa.DataType:
    match draw(st.integers(0, 6 if depth else 1)):
        case 2:
            return pa.list_(_field(draw, "item", depth - 1))
        case 3:
            return pa.large_list(_field(draw, "item", depth - 1))
        case 4:
            return pa.struct(_struct(draw, depth - 1))
        case 5:
            key = pa.field("key", draw(st.sampled_from(LEAVES[1:])), nullable=False)
            return _map(key, _field(draw, "value", depth - 1))
        case 6:
            return pa.list_(
                draw(st.sampled_from([*LEAVES, BFLOAT16, pa.list_(pa.float32(), 3)])), draw(st.integers(1, 4096))
            )
    return draw(st.sampled_from(_FLAT))
