"""Arrow arrays turned into arrays of other types, nested ones part by part: what the converters of all formats share.

A converter folds a schema (`schema/walk.py`) to types and ways to get there. What a null hides, be it a list's values
or a struct's fields, is masked or left out on the way, so that it never counts as a value that does not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancehouse.schema.walk import Folded, Node, map_type, narrow_decimal

DAY_MS = 86_400_000

MAX_OFFSET = 2**31 - 1
"""What the offsets of strings, binaries, lists and maps reach that are not large."""

Convert = Callable[..., Any]
"""Arrays in, arrays out; pyarrow's stubs know too little of nested ones to say more."""


class TooLargeError(pa.ArrowInvalid):
    """The values of one array need large offsets; those of half its rows may not."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A type, and how arrays become it."""

    type: pa.DataType
    convert: Convert


class Conversion(ABC):
    """Folds to a type and a way to convert arrays to it; a format says what its fields, leaves and extensions are."""

    list_of: ClassVar[Callable[..., pa.DataType]] = staticmethod(pa.list_)

    @abstractmethod
    def field(self, folded: Folded[Typed], name: str | None = None) -> pa.Field[Any]:
        """The field of what was folded, under its own name unless another is given."""

    @abstractmethod
    def enter(self, node: Node) -> Typed | None:
        """An extension that means something else than its storage type."""

    @abstractmethod
    def leaf(self, node: Node) -> Typed:
        """A type without children."""

    def dictionary(self, _: Node, values: Typed) -> Typed:
        """The values themselves."""
        return Typed(values.type, lambda array: values.convert(decoded(storage(array))))

    def list(self, _: Node, element: Folded[Typed]) -> Typed:
        """A list of one kind, whatever it was."""
        dtype = self.list_of(self.field(element, "element"))
        return Typed(dtype, lambda array: list_array(storage(array), dtype, element.type.convert))

    def map(self, _: Node, key: Folded[Typed], value: Folded[Typed]) -> Typed:
        """A map."""
        dtype = map_type(self.field(key, "key"), self.field(value, "value"))
        return Typed(dtype, lambda array: map_array(storage(array), dtype, key.type.convert, value.type.convert))

    def struct(self, _: Node, fields: Sequence[Folded[Typed]]) -> Typed:
        """A struct."""
        arrow = [self.field(field) for field in fields]
        converts = [field.type.convert for field in fields]

        def convert(array: Any) -> Any:
            plain = storage(array)
            children = [convert(child) for convert, child in zip(converts, plain.flatten(), strict=True)]
            return struct_array(plain, arrow, children)

        return Typed(pa.struct(arrow), convert)


def storage(array: Any) -> Any:
    """The array without its extension type: what converts to itself."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def cast(to: pa.DataType) -> Convert:
    """Arrow's own cast, which fails where a value does not fit."""
    return lambda array: storage(array).cast(to)


def narrowed(dtype: pa.DataType) -> Typed | None:
    """Timestamps in microseconds, dates in days, decimals of 38 digits or text; None for every other type."""
    match dtype:
        case pa.TimestampType():
            to: pa.DataType = pa.timestamp("us", None if dtype.tz is None else "UTC")
            return Typed(to, floored(1000, to) if dtype.unit == "ns" else cast(to))
        case pa.Decimal128Type() | pa.Decimal256Type():
            if (digits := narrow_decimal(dtype)) is None:
                return Typed(pa.string(), plain_digits)
            return Typed(pa.decimal128(*digits), cast(pa.decimal128(*digits)))
    return Typed(pa.date32(), floored(DAY_MS, pa.date32())) if dtype == pa.date64() else None


def floored(by: int, to: pa.DataType) -> Convert:
    """Coarser units, rounded down; pyarrow rounds towards zero."""

    def convert(array: Any) -> Any:
        plain = storage(array)
        numbers = plain.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // by
        coarse = masked(numbers, plain)
        return (coarse.cast(pa.int32()) if to.bit_width == 32 else coarse).view(to)

    return convert


def short(to: pa.DataType) -> Convert:
    """Strings and binaries that are not large.

    Raises:
        TooLargeError: they hold too much for that.
    """

    def convert(array: Any) -> Any:
        plain = storage(array)
        if plain.type == to:
            return plain
        if plain.nbytes > MAX_OFFSET:
            raise TooLargeError(f"{plain.nbytes:,} bytes in one array of {to}")
        try:
            return plain.cast(to)
        except pa.ArrowInvalid:
            # Its offsets count from the start of the array that this is a slice of.
            return pa.concat_arrays([plain]).cast(to)

    return convert


def decoded(array: Any) -> Any:
    """A dictionary array as its values.

    Raises:
        TooLargeError: values that are not large come to too much.
    """
    words = array.dictionary
    if words.type in (pa.string(), pa.binary()) and len(array) * words.nbytes > MAX_OFFSET:
        size = pc.sum(pc.binary_length(words).cast(pa.int64()).take(array.indices)).as_py() or 0
        if size > MAX_OFFSET:
            raise TooLargeError(f"{size:,} bytes in one array of {words.type}")
    return array.dictionary_decode()


def plain_digits(array: Any) -> Any:
    """Decimals as text, without exponents."""
    return pa.array(
        [None if value is None else format(value, "f") for value in storage(array).to_pylist()], pa.string()
    )


def float_of_bfloat16(array: Any) -> Any:
    """The float whose upper half each two bytes are."""
    plain = storage(array)
    bits = plain.view(pa.binary(2)) if plain.type != pa.binary(2) else plain
    raw = np.frombuffer(bits.buffers()[1] or b"", dtype="<u2")[bits.offset : bits.offset + len(bits)]
    return masked((raw.astype("<u4") << 16).view("<f4"), plain)


def bfloat16_of_float(array: Any) -> Any:
    """Two bytes for each float, rounded to the nearest and to even between two; `float_of_bfloat16` undoes it."""
    floats = _rounded(array, np.float32)
    bits = floats.view(np.uint32)
    upper = np.where(np.isnan(floats), bits >> 16 | 0x40, bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    _check_finite(floats, (upper.astype(np.uint32) << 16).view(np.float32))
    return masked(upper.astype(np.uint16), array).view(pa.binary(2))


def narrow_floats(to: pa.DataType) -> Convert:
    """Shorter floats; Arrow's own cast makes large numbers infinite."""
    return lambda array: masked(_rounded(array, to.to_pandas_dtype()), array)


def _rounded(array: Any, to: Any) -> Any:
    given = array.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        made = given.astype(to)
    _check_finite(given, made)
    return made


def _check_finite(given: Any, made: Any) -> None:
    infinite = np.isinf(made)
    if infinite.any() and len(lost := given[infinite & np.isfinite(given)]):
        raise pa.ArrowInvalid(f"{lost[0]} is beyond its largest number")


def list_array(array: Any, dtype: Any, convert: Convert) -> Any:
    """Any kind of list as a list or large list of type `dtype`."""
    # pyarrow does not flatten lists that are all null if their values are of an extension type.
    values = convert(array.values[:0] if array.null_count == len(array) else array.flatten())
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    kind: Any = pa.LargeListArray if isinstance(dtype, pa.LargeListType) else pa.ListArray
    return kind.from_arrays(_offsets(lengths, dtype), values, type=dtype, mask=mask(array))


def map_array(array: Any, dtype: Any, convert_key: Convert, convert_value: Convert) -> Any:
    """A map as a map of type `dtype`."""
    # `keys` and `items` are those of the whole array, of which this may be a slice; so are the offsets.
    keys, values, offsets = array.keys, array.items, array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.where(nulls(array), 0, np.diff(offsets))
    first, last = offsets[0], offsets[-1]
    if lengths.sum() == last - first:
        keys, values = keys[first:last], values[first:last]
    else:
        starts = np.repeat(offsets[:-1] - np.concatenate(([0], np.cumsum(lengths)))[:-1], lengths)
        chosen = pa.array(starts + np.arange(len(starts)))
        keys, values = keys.take(chosen), values.take(chosen)
    from_arrays: Convert = pa.MapArray.from_arrays
    made = convert_key(keys), convert_value(values)
    return from_arrays(_offsets(lengths, dtype), *made, type=dtype, mask=mask(array))


def struct_array(array: Any, fields: Sequence[pa.Field[Any]], children: Sequence[Any]) -> Any:
    """A struct of these fields, null where `array` is."""
    if not fields:
        return pa.array([{}] * len(array), pa.struct([]), mask=nulls(array))
    return pa.StructArray.from_arrays(list(children), fields=list(fields), mask=mask(array))


def masked(numbers: Any, like: Any) -> Any:
    """Numbers of numpy as an array that is null where `like` is."""
    return pa.array(numbers, mask=nulls(like) if like.null_count else None)


def nulls(array: Any) -> Any:
    """Which values are null, for numpy."""
    return array.is_null().to_numpy(zero_copy_only=False)


def mask(array: Any) -> Any:
    """Which values are null, for Arrow; None where none is."""
    return array.is_null() if array.null_count else None


def _offsets(lengths: Any, dtype: pa.DataType) -> Any:
    width = np.int64 if isinstance(dtype, pa.LargeListType) else np.int32
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    if width is np.int32 and total[-1] > MAX_OFFSET:
        raise TooLargeError(f"{total[-1]:,} values in one array of {dtype}")
    return pa.array(total.astype(width))
