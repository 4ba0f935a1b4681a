"""Parquet files read as an Iceberg client reads them, and what the rows must then be."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import lance
import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from lancehouse.schema.iceberg import last_column_id

EPOCH = datetime(1970, 1, 1)

_untyped: Any = pa
"""pyarrow, of whose arguments its stubs know too few."""


def metadata(schema: dict[str, Any]) -> TableMetadata:
    """Of a table with this schema, whose ids stay."""
    made = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///nowhere")
    kept = Schema.model_validate(schema)
    return made.model_copy(
        update={"schemas": [kept], "current_schema_id": kept.schema_id, "last_column_id": last_column_id(schema)}
    )


def scan(
    schema: dict[str, Any],
    paths: Iterable[str],
    *,
    where: BooleanExpression | None = None,
    select: tuple[str, ...] = ("*",),
) -> pa.Table:
    """What pyiceberg reads from files of a table."""
    table = metadata(schema)
    tasks = [FileScanTask(_file(path)) for path in paths]
    projected = table.schema() if "*" in select else table.schema().select(*select)
    return ArrowScan(table, PyArrowFileIO(), projected, where or AlwaysTrue()).to_table(tasks)


def _file(path: str) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
    )
    file.spec_id = 0
    return file


def iceberg_values(array: Any) -> list[Any]:
    """Values as Iceberg's readers must see them: the mapping once more, value by value and without Arrow's casts."""
    return [_iceberg_value(array.type, value) for value in array]


def _iceberg_value(dtype: Any, scalar: Any) -> Any:
    if isinstance(dtype, pa.BaseExtensionType):
        return None if not scalar.is_valid else _seen_extension(dtype, scalar)
    if not scalar.is_valid:
        return None
    match dtype:
        case pa.StructType():
            return {field.name: _iceberg_value(field.type, scalar[position]) for position, field in enumerate(dtype)}
        case pa.MapType():
            pairs = [(entry["key"], entry["value"]) for entry in scalar.values]
            return [
                (_iceberg_value(dtype.key_type, key), _iceberg_value(dtype.item_type, value)) for key, value in pairs
            ]
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return [_iceberg_value(dtype.value_type, value) for value in scalar.values]
        case pa.DictionaryType():
            return _iceberg_value(dtype.value_type, pa.scalar(scalar.as_py(), dtype.value_type))
        case pa.TimestampType():
            moment = EPOCH + timedelta(microseconds=_micros(scalar.value, dtype.unit))
            return moment if dtype.tz is None else moment.replace(tzinfo=ZoneInfo("UTC"))
        case pa.Time32Type() | pa.Time64Type():
            return (EPOCH + timedelta(microseconds=_micros(scalar.value, dtype.unit))).time()
        case pa.DurationType():
            return scalar.value
        case pa.Decimal128Type() | pa.Decimal256Type():
            precision = max(dtype.precision, dtype.scale)
            return scalar.as_py() if dtype.scale >= 0 and precision <= 38 else format(scalar.as_py(), "f")
    if dtype == pa.date64():
        return date(1970, 1, 1) + timedelta(days=scalar.value // 86_400_000)
    if dtype == pa.uint64():
        return Decimal(scalar.as_py())
    return float(scalar.as_py()) if dtype == pa.float16() else scalar.as_py()


def _seen_extension(dtype: Any, scalar: Any) -> Any:
    match dtype.extension_name:
        case "lance.bfloat16":
            raw = np.frombuffer(scalar.value.as_py(), "<u2").astype("<u4") << 16
            return float(raw.view("<f4")[0])
        case "arrow.uuid":
            return UUID(bytes=scalar.value.as_py())
        case "arrow.json":
            return scalar.value.as_py()
    return _iceberg_value(dtype.storage_type, scalar.value)


def _micros(value: int, unit: str) -> int:
    return {"s": value * 10**6, "ms": value * 1000, "us": value, "ns": value // 1000}[unit]


def sample(field: pa.Field[Any], count: int, seed: int) -> Any:
    """Values of a field, some of them null where they may be."""
    return _sample(field, count, random.Random(seed))


def _sample(field: pa.Field[Any], count: int, chance: random.Random) -> Any:
    nulls = [field.nullable and chance.random() < 0.25 for _ in range(count)]
    return _sample_array(field.type, nulls, chance)


def _sample_array(dtype: Any, nulls: list[bool], chance: random.Random) -> Any:
    count = len(nulls)
    mask = pa.array(nulls, pa.bool_())
    match dtype:
        case pa.BaseExtensionType() if dtype.extension_name == "lance.blob.v2":
            return lance.blob_array([None if null else chance.randbytes(chance.randrange(9)) for null in nulls])
        case pa.BaseExtensionType() if dtype.extension_name == "arrow.json":
            texts = [None if null else chance.choice(['{"a":1}', "[1,2]", '"x"', "null"]) for null in nulls]
            return pa.ExtensionArray.from_storage(dtype, pa.array(texts, dtype.storage_type))
        case pa.BaseExtensionType():
            return pa.ExtensionArray.from_storage(dtype, _sample_array(dtype.storage_type, nulls, chance))
        case pa.StructType():
            if not dtype.num_fields:
                return pa.array([None if null else {} for null in nulls], dtype)
            children = [_sample(field, count, chance) for field in dtype]
            return pa.StructArray.from_arrays(children, fields=list(dtype), mask=mask)
        case pa.FixedSizeListType():
            values = _sample(dtype.value_field, count * dtype.list_size, chance)
            return _untyped.FixedSizeListArray.from_arrays(values, type=dtype, mask=mask)
        case pa.MapType():
            lengths = [0 if null else chance.randrange(3) for null in nulls]
            keys = _sample(dtype.key_field, sum(lengths), chance)
            items = _sample(dtype.item_field, sum(lengths), chance)
            return _untyped.MapArray.from_arrays(_offsets(lengths, pa.int32()), keys, items, type=dtype, mask=mask)
        case pa.ListType() | pa.LargeListType():
            kind, offsets = (
                (pa.ListArray, pa.int32()) if isinstance(dtype, pa.ListType) else (pa.LargeListArray, pa.int64())
            )
            lengths = [0 if null else chance.randrange(4) for null in nulls]
            values = _sample(dtype.value_field, sum(lengths), chance)
            return kind.from_arrays(_offsets(lengths, offsets), values, type=dtype, mask=mask)
        case pa.DictionaryType():
            words = _sample_array(dtype.value_type, [False] * 2, chance)
            indices = pa.array([None if null else chance.randrange(2) for null in nulls], dtype.index_type)
            return pa.DictionaryArray.from_arrays(indices, words)
    return _leaves(dtype, nulls, chance)


def _offsets(lengths: list[int], dtype: pa.DataType) -> Any:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)).cast(dtype)


def _leaves(dtype: Any, nulls: list[bool], chance: random.Random) -> Any:
    values = [None if null else leaf_value(dtype, chance) for null in nulls]
    match dtype:
        case pa.TimestampType() | pa.Time64Type() | pa.DurationType():
            return pa.array(values, pa.int64()).view(dtype)
        case pa.Time32Type():
            return pa.array(values, pa.int32()).view(dtype)
        case pa.Decimal128Type():
            return pa.array(values, pa.decimal128(dtype.precision, 0)).view(dtype)
        case pa.Decimal256Type():
            return pa.array(values, pa.decimal256(dtype.precision, 0)).view(dtype)
    return pa.array(values, pa.int64()).view(dtype) if dtype == pa.date64() else pa.array(values, dtype)


def leaf_value(dtype: Any, chance: random.Random) -> Any:
    """One value, often an unusual one; times as numbers."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    match dtype:
        case pa.TimestampType():
            return chance.choice([0, -1, -(10**3) - 1, chance.randrange(-(10**9), 10**9)]) * (
                per_second[dtype.unit] if chance.random() < 0.5 else 1
            )
        case pa.Time32Type() | pa.Time64Type():
            return chance.randrange(86_400 * per_second[dtype.unit])
        case pa.DurationType():
            return chance.choice([0, -1, 2**63 - 1, -(2**63)])
        case pa.Decimal128Type() | pa.Decimal256Type():
            digits = min(dtype.precision, 27)
            return Decimal(chance.randrange(-(10**digits) + 1, 10**digits))
        case pa.FixedSizeBinaryType():
            return chance.randbytes(dtype.byte_width)
    if pa.types.is_integer(dtype):
        low = 0 if pa.types.is_unsigned_integer(dtype) else -(2 ** (dtype.bit_width - 1))
        high = low + 2**dtype.bit_width - 1
        return chance.choice([low, high, 0, 1])
    if pa.types.is_floating(dtype):
        value = chance.choice([0.0, -0.0, 1.5, float("inf"), -2.25])
        return np.float16(value) if dtype == pa.float16() else value
    if dtype == pa.bool_():
        return chance.random() < 0.5
    if dtype == pa.date32():
        return date(1970, 1, 1) + timedelta(days=chance.randrange(-10_000, 40_000))
    if dtype == pa.date64():
        return chance.choice([0, -1, 86_399_999, -86_400_001, 10**12])
    if dtype == pa.null():
        return None
    text = chance.choice(["", "a", "é", "🙂", "it's", "x" * 40])
    return text.encode() if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) else text
