"""Convert Arrow arrays to other types, nested ones included: what the converters of all formats share.

A converter folds a schema (`schema/walk.py`) to target types and functions that convert arrays. Values hidden by a null
(of a list or a struct) are masked or left out, so that they never count as values that do not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancehouse.schema.walk import FoldedField, Node, map_type, narrow_decimal

DAY_MS = 86_400_000

MAX_OFFSET = 2**31 - 1
"""Largest offset of strings, binaries, lists and maps that are not large."""

Convert = Callable[..., Any]
"""Takes an array and returns an array; pyarrow's type stubs do not cover nested ones."""


class ArrayTooLargeError(pa.ArrowInvalid):
    """The values of one array need large offsets; those of half its rows may not."""


@dataclass(frozen=True, slots=True)
class TargetType:
    """A type, and the function that converts arrays to it."""

    type: pa.DataType
    convert: Convert


class ConversionVisitor(ABC):
    """Folds types to a target type and a conversion; a format defines its fields, leaves and extensions."""

    list_of: ClassVar[Callable[..., pa.DataType]] = staticmethod(pa.list_)

    @abstractmethod
    def field(self, folded: FoldedField[TargetType], name: str | None = None) -> pa.Field[Any]:
        """Return the Arrow field of a converted field, under its own name unless another is given."""

    @abstractmethod
    def enter(self, node: Node) -> TargetType | None:
        """Convert an extension whose values differ from those of its storage type; None for all others."""

    @abstractmethod
    def leaf(self, node: Node) -> TargetType:
        """Convert a type without children."""

    def dictionary(self, _: Node, values: TargetType) -> TargetType:
        """Convert a dictionary to its values."""
        return TargetType(values.type, lambda array: values.convert(decode_dictionary(to_storage(array))))

    def list(self, _: Node, element: FoldedField[TargetType]) -> TargetType:
        """Convert any list to the format's kind of list."""
        dtype = self.list_of(self.field(element, "element"))
        return TargetType(dtype, lambda array: convert_list(to_storage(array), dtype, element.type.convert))

    def map(self, _: Node, key: FoldedField[TargetType], value: FoldedField[TargetType]) -> TargetType:
        """Convert a map."""
        dtype = map_type(self.field(key, "key"), self.field(value, "value"))
        return TargetType(
            dtype, lambda array: convert_map(to_storage(array), dtype, key.type.convert, value.type.convert)
        )

    def struct(self, _: Node, fields: Sequence[FoldedField[TargetType]]) -> TargetType:
        """Convert a struct."""
        arrow = [self.field(field) for field in fields]
        converts = [field.type.convert for field in fields]

        def convert(array: Any) -> Any:
            plain = to_storage(array)
            children = [convert(child) for convert, child in zip(converts, plain.flatten(), strict=True)]
            return build_struct(plain, arrow, children)

        return TargetType(pa.struct(arrow), convert)


def to_storage(array: Any) -> Any:
    """Return the storage of an extension array, or the array itself."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def cast_to(to: pa.DataType) -> Convert:
    """Return Arrow's own cast, which fails where a value does not fit."""
    return lambda array: to_storage(array).cast(to)


def narrow_type(dtype: pa.DataType) -> TargetType | None:
    """Return the target of types that Iceberg and Spark hold in fewer variants; None for every other type.

    Timestamps are in microseconds, dates in days, and decimals have 38 digits or become text.
    """
    match dtype:
        case pa.TimestampType():
            to: pa.DataType = pa.timestamp("us", None if dtype.tz is None else "UTC")
            return TargetType(to, floor_to(1000, to) if dtype.unit == "ns" else cast_to(to))
        case pa.Decimal128Type() | pa.Decimal256Type():
            if (digits := narrow_decimal(dtype)) is None:
                return TargetType(pa.string(), decimal_to_text)
            return TargetType(pa.decimal128(*digits), cast_to(pa.decimal128(*digits)))
    return TargetType(pa.date32(), floor_to(DAY_MS, pa.date32())) if dtype == pa.date64() else None


def floor_to(by: int, to: pa.DataType) -> Convert:
    """Return a conversion to a coarser unit that rounds down; pyarrow's cast rounds towards zero."""

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        numbers = plain.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // by
        coarse = mask_like(numbers, plain)
        return (coarse.cast(pa.int32()) if to.bit_width == 32 else coarse).view(to)

    return convert


def to_small_offsets(to: pa.DataType) -> Convert:
    """Return a conversion to strings or binaries that are not large.

    Raises:
        ArrayTooLargeError: when called, if the array holds too much for that.
    """

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        if plain.type == to:
            return plain
        if plain.nbytes > MAX_OFFSET:
            raise ArrayTooLargeError(f"{plain.nbytes:,} bytes in one array of {to}")
        try:
            return plain.cast(to)
        except pa.ArrowInvalid:
            # The offsets of a slice count from the start of the whole array, which may exceed the limit: copy it.
            return pa.concat_arrays([plain]).cast(to)

    return convert


def decode_dictionary(array: Any) -> Any:
    """Return the values of a dictionary array.

    Raises:
        ArrayTooLargeError: the values need large offsets.
    """
    words = array.dictionary
    if words.type in (pa.string(), pa.binary()) and len(array) * words.nbytes > MAX_OFFSET:
        size = pc.sum(pc.binary_length(words).cast(pa.int64()).take(array.indices)).as_py() or 0
        if size > MAX_OFFSET:
            raise ArrayTooLargeError(f"{size:,} bytes in one array of {words.type}")
    return array.dictionary_decode()


def decimal_to_text(array: Any) -> Any:
    """Convert decimals to text, without exponents."""
    return pa.array(
        [None if value is None else format(value, "f") for value in to_storage(array).to_pylist()], pa.string()
    )


def from_bfloat16(array: Any) -> Any:
    """Convert bfloat16 to float32, of which each pair of bytes is the upper half."""
    plain = to_storage(array)
    bits = plain.view(pa.binary(2)) if plain.type != pa.binary(2) else plain
    raw = np.frombuffer(bits.buffers()[1] or b"", dtype="<u2")[bits.offset : bits.offset + len(bits)]
    return mask_like((raw.astype("<u4") << 16).view("<f4"), plain)


def to_bfloat16(array: Any) -> Any:
    """Convert floats to bfloat16, rounded to nearest, ties to even; the inverse of `from_bfloat16`."""
    floats = _round_floats(array, np.float32)
    bits = floats.view(np.uint32)
    # Adding 0x7FFF and the lowest bit that is kept rounds to nearest, ties to even. A NaN must not be rounded, as the
    # carry could make another value of it; its quiet bit is set, or one with bits only in the lower half would be lost.
    upper = np.where(np.isnan(floats), bits >> 16 | 0x40, bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    _check_finite(floats, (upper.astype(np.uint32) << 16).view(np.float32))
    return mask_like(upper.astype(np.uint16), array).view(pa.binary(2))


def narrow_floats(to: pa.DataType) -> Convert:
    """Return a conversion to shorter floats that refuses overflow; Arrow's own cast makes large numbers infinite."""
    return lambda array: mask_like(_round_floats(array, to.to_pandas_dtype()), array)


def _round_floats(array: Any, to: Any) -> Any:
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        rounded = numbers.astype(to)
    _check_finite(numbers, rounded)
    return rounded


def _check_finite(before: Any, after: Any) -> None:
    infinite = np.isinf(after)
    if infinite.any() and len(overflows := before[infinite & np.isfinite(before)]):
        raise pa.ArrowInvalid(f"{overflows[0]} is beyond its largest number")


def convert_list(array: Any, dtype: Any, convert: Convert) -> Any:
    """Convert any kind of list to a list or large list of type `dtype`."""
    # pyarrow does not flatten lists that are all null if their values are of an extension type.
    values = convert(array.values[:0] if array.null_count == len(array) else array.flatten())
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    kind: Any = pa.LargeListArray if isinstance(dtype, pa.LargeListType) else pa.ListArray
    return kind.from_arrays(_build_offsets(lengths, dtype), values, type=dtype, mask=arrow_null_mask(array))


def convert_map(array: Any, dtype: Any, convert_key: Convert, convert_value: Convert) -> Any:
    """Convert a map to a map of type `dtype`."""
    # `keys`, `items` and offsets are those of the whole array, of which this may be a slice.
    keys, values, offsets = array.keys, array.items, array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.where(numpy_null_mask(array), 0, np.diff(offsets))
    first, last = offsets[0], offsets[-1]
    if lengths.sum() == last - first:
        keys, values = keys[first:last], values[first:last]
    else:
        starts = np.repeat(offsets[:-1] - np.concatenate(([0], np.cumsum(lengths)))[:-1], lengths)
        indices = pa.array(starts + np.arange(len(starts)))
        keys, values = keys.take(indices), values.take(indices)
    from_arrays: Convert = pa.MapArray.from_arrays
    entries = convert_key(keys), convert_value(values)
    return from_arrays(_build_offsets(lengths, dtype), *entries, type=dtype, mask=arrow_null_mask(array))


def build_struct(array: Any, fields: Sequence[pa.Field[Any]], children: Sequence[Any]) -> Any:
    """Return a struct of these fields, null where `array` is."""
    if not fields:
        return pa.array([{}] * len(array), pa.struct([]), mask=numpy_null_mask(array))
    return pa.StructArray.from_arrays(list(children), fields=list(fields), mask=arrow_null_mask(array))


def mask_like(numbers: Any, like: Any) -> Any:
    """Return NumPy numbers as an Arrow array that is null where `like` is."""
    return pa.array(numbers, mask=numpy_null_mask(like) if like.null_count else None)


def numpy_null_mask(array: Any) -> Any:
    """Return which values are null, as a NumPy array."""
    return array.is_null().to_numpy(zero_copy_only=False)


def arrow_null_mask(array: Any) -> Any:
    """Return which values are null, as an Arrow array; None if none is."""
    return array.is_null() if array.null_count else None


def _build_offsets(lengths: Any, dtype: pa.DataType) -> Any:
    width = np.int64 if isinstance(dtype, pa.LargeListType) else np.int32
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    if width is np.int32 and total[-1] > MAX_OFFSET:
        raise ArrayTooLargeError(f"{total[-1]:,} values in one array of {dtype}")
    return pa.array(total.astype(width))
