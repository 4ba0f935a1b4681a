"""Rows of Spark as values of a Lance table: what `mapInArrow` and the writers of Python data sources are handed.

Whether the columns fit is decided by the schemas, before any row. A number that its column cannot hold, a vector of
another length and a null where none may be are errors; what a timestamp has beyond the unit of its column is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.schema.arrays import (
    Convert,
    Typed,
    bfloat16_of_float,
    cast,
    floored,
    list_array,
    map_array,
    mask,
    narrow_floats,
    nulls,
    struct_array,
)
from lancehouse.schema.ddl import SparkType, to_ddl
from lancehouse.schema.spark import named, to_spark
from lancehouse.schema.walk import BFLOAT16, BLOB, Folded, Node, Path, fold, narrow_decimal, nullable_hint

_VOID = "void"
_PER_SECOND: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Incoming:
    """Turns batches that Spark hands to Python into batches of a Lance table."""

    struct: Mapping[str, Any]
    schema: pa.Schema
    """Of the table."""
    _columns: Sequence[_Part]

    def __reduce__(self) -> tuple[Callable[..., Incoming], tuple[Mapping[str, Any], pa.Schema]]:
        return from_rows, (self.struct, self.schema)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with the columns of the table; those that Spark does not have are null.

        They come in the order of the StructType, whatever the batch calls them.

        Raises:
            InvalidInputError: a value that its column cannot hold.
        """
        given = dict(zip((field["name"] for field in self.struct["fields"]), batch.columns, strict=True))
        absent = pa.nulls(batch.num_rows)
        made = [column.of(given.get(column.field.name, absent)) for column in self._columns]
        return pa.RecordBatch.from_arrays(made, schema=self.schema)


def from_rows(struct: Mapping[str, Any], target: pa.Schema) -> Incoming:
    """A converter for rows of a StructType, given as JSON, that go into a table; columns are matched by name.

    Raises:
        TableSchemaValidationError: columns that the table does not have or that do not convert, or columns missing that
            may not be null; the message names all of them.
    """
    fitting = _Fitting(struct)
    fitting.match((), struct["fields"], target)
    folded = fold(target, fitting)
    if fitting.problems:
        raise TableSchemaValidationError(f"the rows do not fit the table: {'; '.join(fitting.problems)}")
    return Incoming(struct, target, [_part(column, field) for column, field in zip(folded, target, strict=True)])


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of the table, and how arrays of Spark become its values."""

    path: Path
    field: pa.Field[Any]
    convert: Convert

    def of(self, array: Any, hidden: int = 0) -> Any:
        """Values for the field; `hidden` nulls are those of what the field stands in."""
        dtype = self.field.type
        if not self.field.nullable and array.null_count > hidden:
            path = ".".join(self.path)
            raise InvalidInputError(
                f"column {path}: a null, which the table does not allow there; {nullable_hint(path)}"
            )
        if array.type == dtype:
            return array
        try:
            made = self.convert(array)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {'.'.join(self.path)}: a value does not fit {dtype} ({error})") from error
        return pa.ExtensionArray.from_storage(dtype, made) if isinstance(dtype, pa.BaseExtensionType) else made


def _part(folded: Folded[Typed], field: pa.Field[Any]) -> _Part:
    return _Part(folded.node.path, field, folded.type.convert)


def _types(path: Path, spark: Any) -> Iterator[tuple[Path, SparkType]]:
    """What Spark has at each path, as the walk over the table's types reaches it."""
    match spark:
        case {"type": "struct", "fields": fields}:
            children = [(field["name"], field["type"]) for field in fields]
        case {"type": "array", "elementType": element}:
            children = [("element", element)]
        case {"type": "map", "keyType": key, "valueType": value}:
            children = [("key", key), ("value", value)]
        case _:
            children = []
    for step, type_ in children:
        yield (*path, step), type_
        yield from _types((*path, step), type_)


class _Fitting:
    """Folds to conversions from Spark's values, and collects what has none."""

    def __init__(self, struct: Mapping[str, Any]) -> None:
        self._types = dict(_types((), {"type": "struct", "fields": struct["fields"]}))
        self.problems: list[str] = []

    def match(self, path: Path, fields: Iterable[Mapping[str, Any]], target: Iterable[pa.Field[Any]]) -> None:
        """Note the fields that Spark has twice, or the table not at all."""
        seen: set[str] = set()
        known = {field.name for field in target}
        for name in (field["name"] for field in fields):
            if name in seen:
                self._note((*path, name), "is there twice")
            elif name not in known:
                meant = [other for other in known if other.casefold() == name.casefold()]
                self._note((*path, name), "is not in the table" + "".join(f", which has {other}" for other in meant))
            seen.add(name)

    def enter(self, node: Node) -> Typed | None:
        source = self._types.get(node.path)
        if source is None or source == _VOID:
            if not node.nullable:
                self._note(node.path, f"is {'missing' if source is None else source} and may not be null")
            return _nothing(node)
        if _kind(source) != _kind_of(node):
            return self._refused(node, source)
        if node.extension == BLOB:
            return Typed(node.type, _blobs(node.type)) if source == "binary" else self._refused(node, source)
        if node.extension == BFLOAT16:
            return Typed(node.type, bfloat16_of_float) if source in ("float", "double") else self._refused(node, source)
        return None

    def leaf(self, node: Node) -> Typed:
        source = self._types[node.path]
        try:
            convert = _leaf(named(str(source), node.path), node.type)
        except TableSchemaValidationError:
            convert = None
        return self._refused(node, source) if convert is None else Typed(node.type, convert)

    def dictionary(self, node: Node, values: Typed) -> Typed:
        return Typed(node.type, _encoded(node.type, values.convert))

    def list(self, node: Node, element: Folded[Typed]) -> Typed:
        dtype: Any = node.type
        part = _part(element, dtype.value_field)
        if isinstance(dtype, pa.FixedSizeListType):
            return Typed(dtype, _vectors(node, part))
        return Typed(dtype, lambda array: list_array(array, dtype, part.of))

    def map(self, node: Node, key: Folded[Typed], value: Folded[Typed]) -> Typed:
        dtype: Any = node.type
        keys, values = _part(key, dtype.key_field), _part(value, dtype.item_field)
        return Typed(dtype, lambda array: map_array(array, dtype, keys.of, values.of))

    def struct(self, node: Node, fields: Sequence[Folded[Typed]]) -> Typed:
        dtype: Any = node.type
        source: Any = self._types[node.path]
        self.match(node.path, source["fields"], dtype)
        parts = [_part(folded, field) for folded, field in zip(fields, dtype, strict=True)]

        def convert(array: Any) -> Any:
            given = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
            absent = pa.nulls(len(array))
            children = [part.of(given.get(part.field.name, absent), array.null_count) for part in parts]
            return struct_array(array, list(dtype), children)

        return Typed(dtype, convert)

    def _refused(self, node: Node, source: SparkType) -> Typed:
        (wanted,) = to_spark(pa.schema([pa.field(node.name, node.type, metadata={**node.metadata})]))["fields"]
        became = f"cannot become {node.extension or node.type}: cast it to {to_ddl(wanted['type'])}"
        self._note(node.path, f"is {_text(source)} and {became}")
        return _nothing(node)

    def _note(self, path: Path, problem: str) -> None:
        self.problems.append(f"column {'.'.join(path)} {problem}")


def _nothing(node: Node) -> Typed:
    dtype: Any = node.type
    return Typed(dtype, lambda array: pa.nulls(len(array), dtype))


def _kind(spark: SparkType) -> str:
    return "leaf" if isinstance(spark, str) else str(spark["type"])


def _kind_of(node: Node) -> str:
    match node.type:
        case pa.StructType() if node.extension != BLOB:
            return "struct"
        case pa.MapType():
            return "map"
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return "array"
    return "leaf"


def _text(spark: SparkType) -> str:
    return to_ddl(spark) if _kind(spark) in ("leaf", "struct", "map", "array") else _kind(spark)


def _leaf(source: Any, to: Any) -> Convert | None:
    """How values of Spark become those of another type; None where only the caller can know how."""
    kinds = pa.types
    match source, to:
        case _ if source == to:
            # What a session sends in large types is cast too.
            return cast(to)
        case pa.TimestampType(), pa.TimestampType():
            return _in_unit(source.unit, to) if (source.tz is None) == (to.tz is None) else None
        case (pa.DurationType(), pa.DurationType()) | (pa.Time64Type(), pa.Time32Type() | pa.Time64Type()):
            return _in_unit(source.unit, to)
        case _, pa.Time32Type() | pa.Time64Type() if source == pa.int64():
            return _times(to)
        case pa.Decimal128Type(), _ if kinds.is_decimal(to) or kinds.is_integer(to):
            return cast(to)
        case _, pa.Decimal128Type() | pa.Decimal256Type() if source == pa.string() and narrow_decimal(to) is None:
            return cast(to)
        case _, pa.Decimal128Type() | pa.Decimal256Type() if kinds.is_integer(source):
            return lambda array: array.cast(pa.decimal128(19, 0)).cast(to)
    if kinds.is_integer(source) and (kinds.is_integer(to) or to in (pa.float32(), pa.float64())):
        return cast(to)
    if kinds.is_floating(source) and kinds.is_floating(to):
        return cast(to) if to.bit_width > source.bit_width else narrow_floats(to)
    if (source, to) in _CASTS or (source == pa.binary() and kinds.is_fixed_size_binary(to)):
        return cast(to)
    return None


_CASTS = {
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.date32(), pa.date64()),
}


def _in_unit(unit: str, to: Any) -> Convert:
    by = _PER_SECOND[unit] // _PER_SECOND[to.unit]
    return floored(by, to) if by > 1 else cast(to)


def _times(to: Any) -> Convert:
    """Times of day from numbers in the unit of the column."""
    end = _DAY_SECONDS * _PER_SECOND[to.unit]

    def convert(array: Any) -> Any:
        for number in pc.min_max(array).values():
            if number.is_valid and not 0 <= number.as_py() < end:
                raise pa.ArrowInvalid(f"{number} is not in a day")
        return array.cast(pa.int32() if to.bit_width == 32 else pa.int64()).view(to)

    return convert


def _blobs(dtype: Any) -> Convert:
    """Blobs whose bytes are at hand: Lance takes them with the places where they might be otherwise."""
    elsewhere = [field.type for field in dtype][1:]

    def convert(array: Any) -> Any:
        children = [array.cast(pa.large_binary()), *(pa.nulls(len(array), other) for other in elsewhere)]
        return struct_array(array, list(dtype), children)

    return convert


def _encoded(dtype: Any, convert: Convert) -> Convert:
    def encode(array: Any) -> Any:
        encoded = convert(array).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(dtype.index_type), encoded.dictionary)

    return encode


def _vectors(node: Node, element: _Part) -> Convert:
    dtype: Any = node.type
    size = dtype.list_size

    def convert(array: Any) -> Any:
        for length in pc.min_max(pc.list_value_length(array)).values():
            if length.is_valid and length.as_py() != size:
                raise InvalidInputError(
                    f"column {'.'.join(node.path)}: a vector of {length} values, where the table has {size}"
                )
        values = element.of(array.flatten())
        if array.null_count:
            values = _spread(values, ~nulls(array), size)
        return pa.FixedSizeListArray.from_arrays(values, type=dtype, mask=mask(array))

    return convert


def _spread(values: Any, valid: Any, size: int) -> Any:
    """The values of the vectors that are not null, with something that is valid in the places of the others."""
    if not values.null_count and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        numbers = values.to_numpy(zero_copy_only=False)
        room = np.zeros((len(valid), size), numbers.dtype)
        room[valid] = numbers.reshape(-1, size)
        return pa.array(room.ravel())
    if not len(values):
        return pa.nulls(len(valid) * size, values.type)
    places = np.zeros((len(valid), size), np.int64)
    places[valid] = np.arange(len(values)).reshape(-1, size)
    return values.take(pa.array(places.ravel()))
