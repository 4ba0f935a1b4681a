"""Unify the schemas of many files, and infer the types of partition columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.schema.walk import MAX_DECIMAL_DIGITS, map_children

INTEGER_DIGITS = 20
"""Number of decimal digits of the largest 64-bit integer, unsigned ones included."""

Partition = Sequence[tuple[str, str | None]]

_VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the columns of all files, each in the widest type; a column that some file lacks becomes nullable.

    Args:
        schemas: the name and the schema of each file.

    Raises:
        TableSchemaValidationError: two files have types of a column that cannot be widened; the message names them.
    """
    merged, first = pa.schema([]), ""
    seen: set[pa.Schema] = set()
    for name, schema in schemas:
        if schema in seen:
            continue
        seen.add(schema)
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
    bare = field.with_type(_VIEWS.get(dtype, dtype)).remove_metadata()
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
