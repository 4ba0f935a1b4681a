"""Batches of a Lance table, and what Spark must then see: the mapping once more, value by value and without casts."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from tests.lake import icebergs

EPOCH = datetime(1970, 1, 1)
MICROS = {"s": 10**6, "ms": 10**3, "us": 1}


def batch_of(schema: pa.Schema, count: int, seed: int) -> pa.RecordBatch:
    """Rows with nulls and unusual values; blobs, if there are any, are as Lance takes them."""
    with patch.object(icebergs, "leaf_value", _leaf_value):
        arrays = [icebergs.sample(field, count, seed + place) for place, field in enumerate(schema)]
    return pa.record_batch(arrays, schema=schema)


def _leaf_value(dtype: Any, chance: random.Random) -> Any:
    if isinstance(dtype, pa.DurationType):
        # Such that it is one in every unit.
        return chance.choice([0, -1, 10**12 + 1, -(10**12) - 1])
    if pa.types.is_floating(dtype) and chance.random() < 0.1:
        return float("nan")
    return _plain_leaf_value(dtype, chance)


_plain_leaf_value = icebergs.leaf_value


def spark_values(array: Any) -> list[Any]:
    """Values as Spark has them, in Arrow's Python objects."""
    return [_spark_value(array.type, value) for value in array]


def _spark_value(dtype: Any, scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(dtype, pa.BaseExtensionType):
        return _seen_extension(dtype, scalar.value)
    match dtype:
        case pa.StructType():
            return {field.name: _spark_value(field.type, scalar[place]) for place, field in enumerate(dtype)}
        case pa.MapType():
            pairs = [(entry["key"], entry["value"]) for entry in scalar.values]
            return [(_spark_value(dtype.key_type, key), _spark_value(dtype.item_type, value)) for key, value in pairs]
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return [_spark_value(dtype.value_type, value) for value in scalar.values]
        case pa.DictionaryType():
            return _spark_value(dtype.value_type, pa.scalar(scalar.as_py(), dtype.value_type))
        case pa.TimestampType():
            moment = EPOCH + _exact(scalar.value, dtype.unit)
            return moment if dtype.tz is None else moment.replace(tzinfo=ZoneInfo("UTC"))
        case pa.DurationType():
            return _exact(scalar.value, dtype.unit)
        case pa.Time32Type() | pa.Time64Type():
            return scalar.value
        case pa.Decimal128Type() | pa.Decimal256Type():
            fits = dtype.scale >= 0 and max(dtype.precision, dtype.scale) <= 38
            return scalar.as_py() if fits else format(scalar.as_py(), "f")
    if dtype == pa.date64():
        return date(1970, 1, 1) + timedelta(days=scalar.value // 86_400_000)
    if dtype == pa.uint64():
        return Decimal(scalar.as_py())
    return float(scalar.as_py()) if dtype == pa.float16() else scalar.as_py()


def _seen_extension(dtype: Any, value: Any) -> Any:
    match dtype.extension_name:
        case "lance.bfloat16":
            return float((np.frombuffer(value.as_py(), "<u2").astype("<u4") << 16).view("<f4")[0])
        case "lance.blob.v2":
            return value["data"].as_py()
    return _spark_value(dtype.storage_type, value)


def _exact(value: int, unit: str) -> timedelta:
    return timedelta(microseconds=value // 1000 if unit == "ns" else value * MICROS[unit])
