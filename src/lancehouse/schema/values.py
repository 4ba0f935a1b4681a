"""Arrow values as Iceberg's readers see them, with the field ids of the table: what a Parquet file of Iceberg holds.

The types are those of `schema/iceberg.py`, except that strings and binaries stay large where they are large: Parquet
knows no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from lancehouse.schema.walk import BFLOAT16, BLOB, JSON, UUID, Folded, Node, Path, fold, map_type, narrow_decimal

FIELD_ID = "PARQUET:field_id"
"""Key of Arrow field metadata that pyarrow writes as a Parquet field id."""

PLACEHOLDER_ID = 2_147_000_000
"""The id of a field that stands in a struct without fields, which Parquet does not have; no reader asks for it."""

_DAY_MS = 86_400_000

Convert = Callable[..., Any]
"""Arrays in, arrays out; pyarrow's stubs know too little of nested ones to say more."""


@dataclass(frozen=True, slots=True)
class Converter:
    """Turns batches of some columns into what a Parquet file of Iceberg holds."""

    schema: pa.Schema
    _columns: Sequence[Convert]

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; columns by position.

        Raises:
            InvalidInputError: a value that Iceberg's type cannot hold.
        """
        arrays = []
        for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True):
            try:
                arrays.append(convert(array))
            except pa.ArrowInvalid as error:
                raise InvalidInputError(
                    f"column {field.name}: a value is out of the range of its Iceberg type ({error}); "
                    "select other columns to read the table"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def converter(fields: Iterable[pa.Field[Any]], iceberg: Mapping[str, Any]) -> Converter:
    """A converter for columns of a table.

    Args:
        fields: of the columns, as Lance has them.
        iceberg: the table's schema, as `schema.iceberg.to_iceberg` gives it, which has the ids.

    Raises:
        TableSchemaValidationError: a type that Iceberg has no word for.
    """
    ids = dict(_ids((), iceberg))
    folded = fold(fields, _Values(ids))
    return Converter(pa.schema([_field(column, ids) for column in folded]), [column.type.convert for column in folded])


def _ids(path: Path, json: Any) -> Iterator[tuple[Path, int]]:
    match json:
        case {"type": "struct", "fields": fields}:
            for nested in fields:
                yield (*path, nested["name"]), nested["id"]
                yield from _ids((*path, nested["name"]), nested["type"])
        case {"type": "list", "element-id": id, "element": element}:
            yield (*path, "element"), id
            yield from _ids((*path, "element"), element)
        case {"type": "map", "key-id": key_id, "key": key, "value-id": value_id, "value": value}:
            yield (*path, "key"), key_id
            yield (*path, "value"), value_id
            yield from _ids((*path, "key"), key)
            yield from _ids((*path, "value"), value)


@dataclass(frozen=True, slots=True)
class _Typed:
    type: pa.DataType
    convert: Convert


def _field(folded: Folded[_Typed], ids: Mapping[Path, int], name: str | None = None) -> pa.Field[Any]:
    node = folded.node
    # A column of nulls is a column of strings to Iceberg, and those may be null.
    nullable = node.nullable or node.type == pa.null()
    return pa.field(name or node.name, folded.type.type, nullable=nullable, metadata={FIELD_ID: str(ids[node.path])})


class _Values:
    """Folds to a type and a way to convert arrays to it."""

    def __init__(self, ids: Mapping[Path, int]) -> None:
        self._ids = ids

    def enter(self, node: Node) -> _Typed | None:
        return _EXTENSIONS.get(node.extension or "")

    def leaf(self, node: Node) -> _Typed:
        return _leaf(node)

    def dictionary(self, _: Node, values: _Typed) -> _Typed:
        return _Typed(values.type, lambda array: values.convert(_storage(array).dictionary_decode()))

    def list(self, _: Node, element: Folded[_Typed]) -> _Typed:
        dtype = pa.large_list(_field(element, self._ids, "element"))
        return _Typed(dtype, lambda array: _list(_storage(array), dtype, element.type.convert))

    def map(self, _: Node, key: Folded[_Typed], value: Folded[_Typed]) -> _Typed:
        dtype = map_type(_field(key, self._ids, "key"), _field(value, self._ids, "value"))
        return _Typed(dtype, lambda array: _map(_storage(array), dtype, key.type.convert, value.type.convert))

    def struct(self, _: Node, fields: Sequence[Folded[_Typed]]) -> _Typed:
        if not fields:
            return _empty_struct()
        # Where the struct is null, so are fields that are required in it: Parquet's writer must not mind.
        arrow = [_field(field, self._ids).with_nullable(True) for field in fields]
        converts = [field.type.convert for field in fields]
        return _Typed(pa.struct(arrow), lambda array: _struct(_storage(array), arrow, converts))


def _storage(array: Any) -> Any:
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def _leaf(node: Node) -> _Typed:
    match dtype := node.type:
        case pa.TimestampType():
            to: pa.DataType = pa.timestamp("us", None if dtype.tz is None else "UTC")
            return _Typed(to, _floored(1000, to) if dtype.unit == "ns" else _cast(to))
        case pa.Time32Type() | pa.Time64Type():
            to = pa.time64("us")
            return _Typed(to, _floored(1000, to) if dtype.unit == "ns" else _cast(to))
        case pa.DurationType():
            return _Typed(pa.int64(), _cast(pa.int64()))
        case pa.Decimal128Type() | pa.Decimal256Type():
            if (digits := narrow_decimal(dtype)) is None:
                return _Typed(pa.string(), _plain_digits)
            return _Typed(pa.decimal128(*digits), _cast(pa.decimal128(*digits)))
    if dtype == pa.date64():
        return _Typed(pa.date32(), _floored(_DAY_MS, pa.date32()))
    to = _WIDER.get(dtype, dtype)
    return _Typed(to, _storage if to == dtype else _cast(to))


_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.null(): pa.string(),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), pa.int32()),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def _cast(to: pa.DataType) -> Convert:
    return lambda array: _storage(array).cast(to)


def _floored(by: int, to: pa.DataType) -> Convert:
    """Coarser units, rounded down as Iceberg does; pyarrow rounds towards zero."""

    def convert(array: Any) -> Any:
        plain = _storage(array)
        numbers = plain.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // by
        coarse = pa.array(numbers, mask=_nulls(plain))
        return (coarse.cast(pa.int32()) if to == pa.date32() else coarse).view(to)

    return convert


def _plain_digits(array: Any) -> Any:
    return pa.array(
        [None if value is None else format(value, "f") for value in _storage(array).to_pylist()], pa.string()
    )


def _bfloat16(array: Any) -> Any:
    plain = _storage(array)
    nulls = _nulls(plain)
    bits = plain.view(pa.binary(2)) if plain.type != pa.binary(2) else plain
    raw = np.frombuffer(bits.buffers()[1] or b"", dtype="<u2")[bits.offset : bits.offset + len(bits)]
    return pa.array((raw.astype("<u4") << 16).view("<f4"), mask=nulls)


def _list(array: Any, dtype: pa.DataType, convert: Convert) -> Any:
    # What a null list may hide is left out: Parquet's writer refuses it.
    values = convert(array.flatten())
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.LargeListArray.from_arrays(_offsets(lengths, np.int64), values, type=dtype, mask=_mask(array))


def _map(array: Any, dtype: pa.DataType, convert_key: Convert, convert_value: Convert) -> Any:
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.where(_nulls(array), 0, np.diff(offsets))
    starts = np.repeat(offsets[:-1] - np.concatenate(([0], np.cumsum(lengths)))[:-1], lengths)
    chosen = pa.array(starts + np.arange(len(starts)))
    # `keys` and `items` are those of the whole array, of which this may be a slice; so are the offsets.
    keys, values = convert_key(array.keys.take(chosen)), convert_value(array.items.take(chosen))
    from_arrays: Convert = pa.MapArray.from_arrays
    return from_arrays(_offsets(lengths, np.int32), keys, values, type=dtype, mask=_mask(array))


def _struct(array: Any, fields: Sequence[pa.Field[Any]], converts: Sequence[Convert]) -> Any:
    children = [convert(array.field(position)) for position, convert in enumerate(converts)]
    return pa.StructArray.from_arrays(children, fields=list(fields), mask=_mask(array))


def _empty_struct() -> _Typed:
    placeholder = pa.field("_", pa.bool_(), metadata={FIELD_ID: str(PLACEHOLDER_ID)})

    def convert(array: Any) -> Any:
        plain = _storage(array)
        return pa.StructArray.from_arrays([pa.nulls(len(plain), pa.bool_())], fields=[placeholder], mask=_mask(plain))

    return _Typed(pa.struct([placeholder]), convert)


def _nulls(array: Any) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False)


def _mask(array: Any) -> Any:
    return array.is_null() if array.null_count else None


def _offsets(lengths: Any, dtype: Any) -> Any:
    return pa.array(np.concatenate((np.zeros(1, dtype), np.cumsum(lengths, dtype=dtype))))


_EXTENSIONS: Mapping[str, _Typed] = {
    **dict.fromkeys(JSON, _Typed(pa.string(), _cast(pa.string()))),
    BLOB: _Typed(pa.large_binary(), _cast(pa.large_binary())),
    BFLOAT16: _Typed(pa.float32(), _bfloat16),
    UUID: _Typed(pa.uuid(), lambda array: pa.ExtensionArray.from_storage(pa.uuid(), _storage(array))),
}
"""Extensions that mean something else than their storage type; Lance hands out blobs as binaries if asked to."""
