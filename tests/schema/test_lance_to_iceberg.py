from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lancehouse.schema.iceberg import FIELD_ID, from_iceberg, iceberg_converter, to_iceberg
from tests.lake.icebergs import iceberg_values, sample
from tests.schema.storable import schemas


def ids(field: pa.Field[Any]) -> list[int]:
    """Field ids, parents first, as a reader of the file finds them."""
    own = int((field.metadata or {})[FIELD_ID.encode()])
    dtype = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    return [own, *(below for position in range(dtype.num_fields) for below in children(dtype, position))]


def children(dtype: pa.DataType, position: int) -> list[int]:
    if isinstance(dtype, pa.MapType):
        return [*ids(dtype.key_field), *ids(dtype.item_field)] if position == 0 else []
    return ids(dtype.field(position))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(schemas(), st.integers(0, 2**32), st.integers(0, 3))
def test_any_schema_goes_through_parquet(schema: pa.Schema, seed: int, skipped: int) -> None:
    assume(len(schema) > 0 and "blob" not in str(schema))
    batch = pa.record_batch([sample(field, 6, seed) for field in schema], schema=schema).slice(skipped)
    iceberg = to_iceberg(schema)
    convert = iceberg_converter(schema, iceberg)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, convert.schema, store_schema=False) as writer:
        writer.write_batch(convert.convert_batch(batch))
    read = pq.read_table(sink)
    for position, field in enumerate(schema):
        expected = repr(iceberg_values(batch.column(position)))
        assert without_placeholders(read.column(position).to_pylist()) == expected, field
    assert len(from_iceberg(iceberg)) == len(read.schema)
    assert [ids(field)[0] for field in read.schema] == [column["id"] for column in iceberg["fields"]]


def without_placeholders(values: list[Any]) -> str:
    return repr(values).replace("{'_': None}", "{}")


def test_every_field_has_its_id() -> None:
    schema = pa.schema(
        [
            ("s", pa.struct([("l", pa.list_(pa.int8())), ("m", pa.map_(pa.string(), pa.list_(pa.float32(), 2)))])),
            ("e", pa.struct([])),
        ]
    )
    iceberg = to_iceberg(schema)
    sink = io.BytesIO()
    convert = iceberg_converter(schema, iceberg)
    pq.write_table(convert.schema.empty_table(), sink, store_schema=False)
    first, second = pq.read_schema(sink)
    assert ids(first) == list(range(1, 8))
    assert ids(second)[0] == 8
