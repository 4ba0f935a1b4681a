"""Convert record batches of a file to the requested schema, refusing casts that would lose data silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.jobs.sources.schema_unification import Partition
from lancehouse.schema.walk import BLOB, EXTENSION, nullable_hint

BLOB_TYPE = pa.struct(
    [("data", pa.large_binary()), ("uri", pa.string()), ("position", pa.uint64()), ("size", pa.uint64())]
)
"""Arrow type of the values of a blob column, as Lance expects them on write."""

_MEANINGS: Sequence[tuple[Callable[[Any], bool], str]] = (
    (pa.types.is_boolean, "boolean"),
    (lambda dtype: pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype), "number"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "duration"),
)
"""Groups of types. pyarrow casts between them silently, as if the bits meant the same."""
_SAME = {("date", "timestamp"), ("boolean", "number")}
"""Casts between groups that are allowed."""

_untyped: Any = pa
"""pyarrow, for arguments that its type stubs lack."""


def blob_field(name: str) -> pa.Field[Any]:
    """Return a blob column, which Lance stores outside its pages, so that scans do not read it."""
    return pa.field(name, BLOB_TYPE, metadata={EXTENSION: BLOB})


def to_blobs(values: Any) -> Any:
    """Convert an array of binaries to the values of a blob column."""
    data = values.cast(pa.large_binary())
    absent = [pa.nulls(len(data), field.type) for field in list(BLOB_TYPE)[1:]]
    mask = data.is_null() if data.null_count else None
    return _untyped.StructArray.from_arrays([data, *absent], fields=list(BLOB_TYPE), mask=mask)


def conform(batch: pa.RecordBatch, schema: pa.Schema, partition: Partition, name: str) -> pa.RecordBatch:
    """Convert a batch to a schema: columns by name, then the file's partition values, and nulls for what it lacks.

    Columns that have the right type already are not copied.

    Raises:
        TableSchemaValidationError: a column does not fit; the message names it and the file.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    partition_values = dict(partition)
    positions = {column: place for place, column in enumerate(batch.schema.names)}
    arrays = []
    for field in schema:
        try:
            if field.name in positions:
                array = _cast_array(batch.column(positions[field.name]), field)
            else:
                array = _repeat_value(partition_values.get(field.name), field, batch.num_rows)
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


def _repeat_value(value: str | None, field: pa.Field[Any], count: int) -> Any:
    dtype = storage_type(field.type)
    if value is None:
        return _wrap(pa.nulls(count, dtype), field.type)
    return _wrap(_untyped.repeat(_untyped.scalar(value).cast(dtype), count), field.type)


def _cast_array(array: Any, field: pa.Field[Any]) -> Any:
    target_type: Any = field.type
    if array.type == target_type:
        return array
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    dtype = storage_type(target_type)
    if array.type == dtype:
        return _wrap(array, target_type)
    if _is_blob(field) and not isinstance(array.type, pa.StructType):
        return _wrap(to_blobs(array).cast(dtype), target_type)
    if lost := _describe_loss(array.type, dtype):
        raise pa.ArrowTypeError(lost)
    return _wrap(array.cast(dtype), target_type)


def storage_type(dtype: Any) -> Any:
    """Return the storage type of an extension type, or the type itself."""
    return dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype


def _wrap(array: Any, dtype: Any) -> Any:
    return dtype.wrap_array(array) if isinstance(dtype, pa.BaseExtensionType) else array


def _is_blob(field: pa.Field[Any]) -> bool:
    dtype: Any = field.type
    name = dtype.extension_name if isinstance(dtype, pa.BaseExtensionType) else None
    return BLOB in (name, (field.metadata or {}).get(EXTENSION.encode(), b"").decode())


@lru_cache(maxsize=1024)
def _describe_loss(have: Any, want: Any, name: str = "") -> str:
    """Return what a cast would lose silently (a field of a struct, or the meaning of a value); empty if nothing."""
    match have, want:
        case pa.StructType(), pa.StructType():
            target_types = {child.name: child.type for child in want}
            above = f"{name}." if name else ""
            losses = (_describe_loss(child.type, target_types.get(child.name), above + child.name) for child in have)
            return next(filter(None, losses), "")
        case _, None:
            return f"it has {name} besides, which would be lost"
        case pa.MapType(), pa.MapType():
            return _describe_loss(have.key_type, want.key_type, name) or _describe_loss(
                have.item_type, want.item_type, name
            )
        case (
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
        ):
            return _describe_loss(have.value_type, want.value_type, name)
    one, other = _find_meaning(have), _find_meaning(want)
    is_same = one == other or None in (one, other) or (one, other) in _SAME
    return "" if is_same else f"{name or 'it'} has {one}s, of which {other}s would be made"


def _find_meaning(dtype: Any) -> str | None:
    return next((word for is_one, word in _MEANINGS if is_one(dtype)), None)
