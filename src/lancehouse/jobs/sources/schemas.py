"""Schemas of sources: one that fits those of all files, and batches that conform to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.schema.blob_references import has_blob_type, to_blobs
from lancehouse.schema.walk import MAX_DECIMAL_DIGITS, VIEWS, map_children, nullable_hint, storage_type

INTEGER_DIGITS = 20
"""Number of decimal digits of the largest 64-bit integer, unsigned ones included."""

Partition = Sequence[tuple[str, str | None]]


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the columns of all files, each in the widest type; a column that some file lacks becomes nullable.

    Args:
        schemas: the name and the schema of each file.

    Raises:
        TableSchemaValidationError: two files have types of a column that cannot be widened; the message names them.
    """
    merged, first = pa.schema([]), ""
    earlier_schemas: set[pa.Schema] = set()
    for name, schema in schemas:
        if schema in earlier_schemas:
            continue
        earlier_schemas.add(schema)
        plain = _normalize_schema(name, schema)
        merged = plain if not first else _merge_schemas(merged, first, plain, name)
        first = first or name
    return merged


def partition_fields(partitions: Iterable[Partition], schema: pa.Schema) -> list[pa.Field[Any]]:
    """Return the columns that only partition folders have: integers, dates, or else strings."""
    values: dict[str, set[str]] = {}
    for partition in set(map(tuple, partitions)):
        for name, value in partition:
            if name not in schema.names:
                values.setdefault(name, set()).update(() if value is None else (value,))
    return [pa.field(name, _infer_type(texts)) for name, texts in values.items()]


def _infer_type(texts: Iterable[str]) -> pa.DataType:
    if not texts:
        return pa.string()
    for parse, dtype in ((_is_integer, pa.int64()), (_is_date, pa.date32())):
        if all(map(parse, texts)):
            return dtype
    return pa.string()


def _is_integer(text: str) -> bool:
    # `007` stays text: as a number it would lose its zeros.
    digits = text.removeprefix("-")
    return digits.isdecimal() and str(int(text)) == text and abs(int(text)) < 2**63


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _normalize_schema(name: str, schema: pa.Schema) -> pa.Schema:
    twice = [column for column, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise TableSchemaValidationError(f"{name} has more than one column {', '.join(twice)}: rename them")
    return pa.schema([_normalize_field(field) for field in schema])


def _normalize_field(field: pa.Field[Any], *, decode: bool = False) -> pa.Field[Any]:
    """Return a field without traces of its file: no Parquet field ids, no view types and, if `decode`, no
    dictionaries.
    """
    metadata: Any = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(b"PARQUET:")}
    dtype = map_children(field.type, lambda child: _normalize_field(child, decode=decode))
    if decode and isinstance(dtype, pa.DictionaryType):
        dtype = dtype.value_type
    bare = field.with_type(VIEWS.get(dtype, dtype)).remove_metadata()
    return bare.with_metadata(metadata) if metadata else bare


def replace_null_types(dtype: Any) -> Any:
    """Return a type with strings in place of Arrow's null type."""
    return (
        pa.string()
        if dtype == pa.null()
        else map_children(dtype, lambda child: child.with_type(replace_null_types(child.type)))
    )


def _merge_schemas(merged: pa.Schema, first: str, schema: pa.Schema, name: str) -> pa.Schema:
    fields = {field.name: field for field in merged}
    for column in schema:
        existing = fields.get(column.name)
        wider = column.with_nullable(True) if existing is None else _widen_field(existing, column)
        if wider is None:
            assert existing is not None
            raise TableSchemaValidationError(
                f"column {column.name} is {column.type} in {name} "
                f"but {existing.type} in {first} and the files after it: "
                "read them one after the other, or make them the same"
            )
        fields[column.name] = wider
    for missing in fields.keys() - set(schema.names):
        fields[missing] = fields[missing].with_nullable(True)
    return pa.schema(list(fields.values()))


def _widen_field(one: pa.Field[Any], other: pa.Field[Any]) -> pa.Field[Any] | None:
    if one.equals(other):
        return one
    # As they are, so that dictionaries stay where both have some; else by the types of their values.
    for left, right in ((one, other), (_normalize_field(one, decode=True), _normalize_field(other, decode=True))):
        try:
            (merged,) = pa.unify_schemas([pa.schema([left]), pa.schema([right])], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            continue
        if all(_is_widening(field.type, merged.type) for field in (left, right)):
            return merged.with_type(_widen_decimal(merged.type, left.type, right.type))
    return None


def _widen_decimal(merged: Any, *types: Any) -> Any:
    """Return a decimal that can hold all 64-bit integers; pyarrow's own choice has one digit too few."""
    if not isinstance(merged, pa.Decimal128Type) or not any(map(pa.types.is_integer, types)):
        return merged
    return pa.decimal128(min(MAX_DECIMAL_DIGITS, max(merged.precision, INTEGER_DIGITS + merged.scale)), merged.scale)


def _is_widening(have: Any, want: Any) -> bool:
    """Return whether pyarrow's common type keeps the meaning of values."""
    match have, want:
        case pa.StructType(), pa.StructType():
            return all(_is_widening(child.type, want.field(child.name).type) for child in have)
        case pa.FixedSizeListType(), _ if not isinstance(want, pa.FixedSizeListType):
            return False
        case (pa.MapType(), pa.MapType()):
            return _is_widening(have.key_type, want.key_type) and _is_widening(have.item_type, want.item_type)
        case (
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
            (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()),
        ):
            return _is_widening(have.value_type, want.value_type)
    is_text = pa.types.is_string(have) or pa.types.is_large_string(have)
    is_binary = pa.types.is_binary(want) or pa.types.is_large_binary(want)
    return not (is_text and is_binary) and not (pa.types.is_decimal(have) and pa.types.is_floating(want))


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
    if has_blob_type(field) and not isinstance(array.type, pa.StructType):
        return _wrap(to_blobs(array).cast(dtype), target_type)
    if lost := _describe_loss(array.type, dtype):
        raise pa.ArrowTypeError(lost)
    return _wrap(array.cast(dtype), target_type)


def _wrap(array: Any, dtype: Any) -> Any:
    return dtype.wrap_array(array) if isinstance(dtype, pa.BaseExtensionType) else array


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
