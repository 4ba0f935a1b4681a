"""Batches are as PySpark demands them, by its own word for a schema, and hold the same values."""

from __future__ import annotations

import json
import pickle
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lancehouse.schema import array_conversion
from lancehouse.schema.spark_rows import LanceToSpark, to_spark_rows
from tests.schema.rows import batch_of, spark_values
from tests.schema.storable import BFLOAT16, LEGACY_BLOB, STORABLE, label, schemas


def spark_schema(outgoing: LanceToSpark) -> pa.Schema:
    made: pa.Schema = to_arrow_schema(StructType.fromJson(json.loads(json.dumps(outgoing.struct))), timezone="UTC")
    return made


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_every_type_is_as_pyspark_demands(field: pa.Field[Any]) -> None:
    outgoing = to_spark_rows(pa.schema([field]))
    assert outgoing.schema.equals(spark_schema(outgoing))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(schemas(), st.integers(0, 2**32), st.integers(0, 6))
def test_any_schema(schema: pa.Schema, seed: int, skipped: int) -> None:
    assume(len(schema) > 0 and "blob" not in str(schema))
    batch = batch_of(schema, 6, seed).slice(skipped)
    outgoing = to_spark_rows(schema)
    assert outgoing.schema.equals(spark_schema(outgoing))
    rows = outgoing.convert_batch(batch)
    rows.validate(full=True)
    assert rows.schema.equals(outgoing.schema)
    for position, field in enumerate(schema):
        assert repr(rows.column(position).to_pylist()) == repr(spark_values(batch.column(position))), field


@pytest.mark.parametrize(
    "dtype",
    [
        pa.int64(),
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.list_(pa.field("item", pa.float32())),
        pa.struct([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.list_(pa.binary())))]),
    ],
    ids=label,
)
def test_what_spark_takes_is_not_copied(dtype: pa.DataType) -> None:
    batch = batch_of(pa.schema([("c", dtype)]), 6, 0)
    assert addresses(to_spark_rows(batch.schema).convert_batch(batch)) == addresses(batch)


@pytest.mark.parametrize("dtype", [pa.list_(pa.float32(), 4), pa.large_list(pa.string())], ids=label)
def test_values_of_lists_are_not_copied(dtype: pa.DataType) -> None:
    batch = batch_of(pa.schema([pa.field("c", dtype, nullable=False)]), 6, 0)
    assert addresses(batch)[-1] == addresses(to_spark_rows(batch.schema).convert_batch(batch))[-1]


def addresses(batch: pa.RecordBatch) -> list[int]:
    return [buffer.address for column in batch.columns for buffer in column.buffers() if buffer]


def test_vectors_with_nulls_keep_their_values() -> None:
    vectors = pa.array([[1.0, 2.0], None, [3.0, 4.0], None], pa.list_(pa.float32(), 2))
    rows = to_spark_rows(pa.schema([("v", vectors.type)])).convert_batch(
        pa.record_batch([vectors], names=["v"]).slice(1)
    )
    assert rows.to_pydict() == {"v": [None, [3.0, 4.0], None]}


@pytest.mark.parametrize("dtype", [pa.list_(BFLOAT16, 4), pa.list_(BFLOAT16), pa.list_(pa.uuid())], ids=label)
def test_lists_that_are_all_null(dtype: Any) -> None:
    batch = pa.record_batch([pa.nulls(2, dtype)], names=["c"])
    for rows in (batch, batch.slice(2)):
        assert to_spark_rows(batch.schema).convert_batch(rows).to_pydict() == {"c": [None] * rows.num_rows}


def test_blobs_are_as_lance_hands_them_out() -> None:
    schema = pa.schema([field for field in STORABLE if "blob" in str(field.type)][:1])
    batch = pa.record_batch([pa.array([b"x", None, b""], pa.large_binary())], names=["c"])
    assert to_spark_rows(schema).convert_batch(batch).column(0).equals(pa.array([b"x", None, b""]))


def test_rows_without_columns_are_still_counted() -> None:
    batch = batch_of(pa.schema([("c", pa.int8())]), 6, 0).select([])
    assert to_spark_rows(pa.schema([])).convert_batch(batch).num_rows == 6


def test_it_travels() -> None:
    batch = batch_of(pa.schema([("c", pa.uint64()), ("d", pa.uuid())]), 6, 0)
    outgoing = to_spark_rows(batch.schema)
    assert pickle.loads(pickle.dumps(outgoing)).convert_batch(batch).equals(outgoing.convert_batch(batch))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**62], pa.timestamp("s")),
        pa.array([2**62], pa.duration("ms")),
        pa.array([2**62], pa.int64()).view(pa.date64()),
    ],
    ids=lambda array: str(array.type),
)
def test_what_spark_cannot_hold(array: Any) -> None:
    batch = pa.record_batch([array], names=["far"])
    with pytest.raises(InvalidInputError, match="column far: a value is out of the range of its Spark type"):
        to_spark_rows(batch.schema).convert_batch(batch)


def test_what_is_hidden_by_a_null_struct_is_no_value() -> None:
    far = pa.array([2**62, 0], pa.timestamp("s"))
    hidden = pa.StructArray.from_arrays([far], names=["t"], mask=pa.array([True, False]))
    batch = pa.record_batch([hidden], names=["s"])
    assert to_spark_rows(batch.schema).convert_batch(batch).to_pydict() == {"s": [None, {"t": datetime(1970, 1, 1)}]}


LARGE: list[Any] = [
    pa.array(["x" * 30] * 8, pa.large_string()),
    pa.array([[True] * 30] * 8, pa.list_(pa.bool_(), 30)),
    pa.array([[1] * 30] * 8, pa.large_list(pa.int8())),
    pa.array([b"x" * 30] * 8, pa.binary(30)),
    pa.array(["x" * 30] * 8).dictionary_encode(),
    pa.array([[(1, 1)] * 30] * 8, pa.map_(pa.int8(), pa.uint8())),
]


@pytest.mark.parametrize("array", LARGE, ids=lambda array: str(array.type))
def test_too_much_for_one_batch_is_cut(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_conversion, "MAX_OFFSET", 100)
    outgoing, batch = to_spark_rows(pa.schema([("c", array.type)])), pa.record_batch([array], names=["c"])
    with pytest.raises(InvalidInputError, match=r"column c: .* in one array of .*: read fewer rows at once"):
        outgoing.convert_batch(batch)
    parts = list(outgoing.convert_batches(batch))
    assert len(parts) > 1
    assert [value for part in parts for value in part.column(0).to_pylist()] == array.to_pylist()
    monkeypatch.setattr(array_conversion, "MAX_OFFSET", 1)
    with pytest.raises(InvalidInputError, match="column c: "):
        list(outgoing.convert_batches(batch))


def test_a_slice_at_the_end_of_much_is_not_large() -> None:
    # Pages that nobody touches take no memory.
    data = pa.py_buffer(np.zeros(2**31 + 3, np.uint8).data)
    ends = pa.py_buffer(np.array([2**31, 2**31 + 3], np.int64).data)
    array = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data])
    batch = pa.record_batch([array], names=["c"])
    assert to_spark_rows(batch.schema).convert_batch(batch).to_pydict() == {"c": [bytes(3)]}
