"""Batches of a file in the schema that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.schema.walk import BLOB, EXTENSION, nullable_hint
from lancehouse.spark.sources.schemas import Partition

BLOB_TYPE = pa.struct(
    [("data", pa.large_binary()), ("uri", pa.string()), ("position", pa.uint64()), ("size", pa.uint64())]
)
"""How Lance takes the values of a blob column."""

_MEANINGS: Sequence[tuple[Callable[[Any], bool], str]] = (
    (pa.types.is_boolean, "boolean"),
    (lambda dtype: pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype), "number"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "duration"),
)
"""Between these pyarrow casts without a word, as if the bits meant the same."""
_SAME = {("date", "timestamp"), ("boolean", "number")}

_untyped: Any = pa
"""pyarrow, of whose arguments its stubs know too few."""


def blob_field(name: str) -> pa.Field[Any]:
    """A column that Lance keeps outside its pages, so that scans do not read it."""
    return pa.field(name, BLOB_TYPE, metadata={EXTENSION: BLOB})


def blobs(values: Any) -> Any:
    """Binaries as the values of a blob column."""
    data = values.cast(pa.large_binary())
    absent = [pa.nulls(len(data), field.type) for field in list(BLOB_TYPE)[1:]]
    mask = data.is_null() if data.null_count else None
    return _untyped.StructArray.from_arrays([data, *absent], fields=list(BLOB_TYPE), mask=mask)


def conformed(batch: pa.RecordBatch, schema: pa.Schema, partition: Partition, name: str) -> pa.RecordBatch:
    """A batch of a file in a schema: its columns by name, the file's partition, and nulls for what it lacks.

    Columns that are right already are not copied.

    Raises:
        TableSchemaValidationError: a column does not fit; names it and the file.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    told = dict(partition)
    there = {column: place for place, column in enumerate(batch.schema.names)}
    arrays = []
    for field in schema:
        try:
            if field.name in there:
                array = _cast(batch.column(there[field.name]), field)
            else:
                array = _repeated(told.get(field.name), field, batch.num_rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise TableSchemaValidationError(
                f"{name}: column {field.name} does not fit {field.type}: {error}"
            ) from error
        if array.null_count and not field.nullable:
            raise TableSchemaValidationError(
                f"{name}: column {field.name} has nulls, which it must not; {nullable_hint(field.name)}"
            )
        arrays.append(array)
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _repeated(value: str | None, field: pa.Field[Any], count: int) -> Any:
    dtype = storage(field.type)
    if value is None:
        return _wrapped(pa.nulls(count, dtype), field.type)
    return _wrapped(_untyped.repeat(_untyped.scalar(value).cast(dtype), count), field.type)


def _cast(array: Any, field: pa.Field[Any]) -> Any:
    wanted: Any = field.type
    if array.type == wanted:
        return array
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    dtype = storage(wanted)
    if array.type == dtype:
        return _wrapped(array, wanted)
    if _is_blob(field) and not isinstance(array.type, pa.StructType):
        return _wrapped(blobs(array).cast(dtype), wanted)
    if lost := _lost(array.type, dtype):
        raise pa.ArrowTypeError(lost)
    return _wrapped(array.cast(dtype), wanted)


def storage(dtype: Any) -> Any:
    """What the values of a type are kept as."""
    return dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype


def _wrapped(array: Any, dtype: Any) -> Any:
    return dtype.wrap_array(array) if isinstance(dtype, pa.BaseExtensionType) else array


def _is_blob(field: pa.Field[Any]) -> bool:
    dtype: Any = field.type
    name = dtype.extension_name if isinstance(dtype, pa.BaseExtensionType) else None
    return BLOB in (name, (field.metadata or {}).get(EXTENSION.encode(), b"").decode())


@lru_cache(maxsize=1024)
def _lost(have: Any, want: Any, name: str = "") -> str:
    """What a cast would lose without a word: a field of a struct, or what a value means; empty if it is nothing."""
    match have, want:
        case pa.StructType(), pa.StructType():
            wanted = {child.name: child.type for child in want}
            above = f"{name}." if name else ""
            found = (_lost(child.type, wanted.get(child.name), above + child.name) for child in have)
            return next(filter(None, found), "")
        case _, None:
            return f"it has {name} besides, which would be lost"
        case pa.MapType(), pa.MapType():
            return _lost(have.key_type, want.key_type, name) or _lost(have.item_type, want.item_type, name)
        case (
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
        ):
            return _lost(have.value_type, want.value_type, name)
    one, other = _meaning(have), _meaning(want)
    is_same = one == other or None in (one, other) or (one, other) in _SAME
    return "" if is_same else f"{name or 'it'} has {one}s, of which {other}s would be made"


def _meaning(dtype: Any) -> str | None:
    return next((word for is_one, word in _MEANINGS if is_one(dtype)), None)
