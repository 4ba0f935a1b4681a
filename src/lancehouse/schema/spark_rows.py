"""Convert rows of Lance tables to what PySpark accepts from Python, and rows that Spark passes to Python back.

They pass through `mapInArrow` and Python data sources. The types are those of `schema/spark.py`. To Spark, times of day
are integers in the unit of their column; timestamps and durations finer than a microsecond are rounded down. To Lance,
whether the columns fit is decided by the schemas, before any row. A number that its column cannot hold, a vector of
another dimension and a null in a column that is not nullable are errors; timestamps are truncated to the unit of their
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.schema import array_conversion
from lancehouse.schema.array_conversion import (
    ArrayTooLargeError,
    ConversionVisitor,
    Convert,
    TargetType,
    arrow_null_mask,
    build_struct,
    cast_to,
    convert_list,
    convert_map,
    floor_to,
    narrow_floats,
    numpy_null_mask,
    to_bfloat16,
    to_small_offsets,
    to_storage,
)
from lancehouse.schema.blob_references import Place, find_references, to_blobs
from lancehouse.schema.spark import SparkType, exchange_type, from_spark_name, to_ddl, to_spark
from lancehouse.schema.walk import BFLOAT16, BLOB, JSON, FoldedField, Node, Path, fold, narrow_decimal, nullable_hint


@dataclass(frozen=True, slots=True)
class LanceToSpark:
    """Converts batches of a Lance table to batches that PySpark accepts for the table's StructType; can be pickled."""

    source: pa.Schema
    struct: dict[str, Any]
    """The JSON of the StructType."""
    schema: pa.Schema
    """The Arrow schema that PySpark requires of batches; since 4.2 it checks each batch exactly."""
    _columns: Sequence[Convert]

    def __reduce__(self) -> tuple[Callable[[pa.Schema], LanceToSpark], tuple[pa.Schema]]:
        return to_spark_rows, (self.source,)

    def convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; columns are matched by position, blobs are binaries. Unchanged columns are not copied.

        Raises:
            InvalidInputError: Spark's type cannot hold a value, or a column has more than 2 GiB.
        """
        try:
            return self._convert_columns(batch)
        except ArrayTooLargeError as error:
            raise InvalidInputError(f"{error}: read fewer rows at once, or select other columns") from error

    def convert_batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Convert a batch, and split it into several where a column would have more than 2 GiB.

        Raises:
            InvalidInputError: Spark's type cannot hold a value, or a single row has more than 2 GiB.
        """
        half = batch.num_rows // 2
        try:
            yield self._convert_columns(batch) if half else self.convert_batch(batch)
        except ArrayTooLargeError:
            yield from self.convert_batches(batch.slice(0, half))
            yield from self.convert_batches(batch.slice(half))

    def _convert_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._columns:
            return batch  # A new batch without columns would lose the number of rows.
        converted = [
            _convert_column(field.name, convert, array)
            for field, convert, array in zip(self.schema, self._columns, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(converted, schema=self.schema)


def to_spark_rows(schema: pa.Schema) -> LanceToSpark:
    """Return a converter for batches of these columns of a table.

    Raises:
        TableSchemaValidationError: Lance cannot store a type.
    """
    rows = _SparkVisitor()
    folded = fold(schema, rows)
    fields = [rows.field(column) for column in folded]
    return LanceToSpark(schema, to_spark(schema), pa.schema(fields), [column.type.convert for column in folded])


def _convert_column(name: str, convert: Convert, array: Any) -> Any:
    try:
        return convert(array)
    except ArrayTooLargeError as error:
        raise ArrayTooLargeError(f"column {name}: {error}") from error
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name}: a value is out of the range of its Spark type ({error}); select other columns"
        ) from error


class _SparkVisitor(ConversionVisitor):
    """Converts to the Arrow types in which Spark accepts values."""

    def field(self, folded: FoldedField[TargetType], name: str | None = None) -> pa.Field[Any]:
        return pa.field(name or folded.node.name, folded.type.type, nullable=folded.node.nullable)

    def enter(self, node: Node) -> TargetType | None:
        return self.leaf(node) if node.extension in _LEAVES else None

    def leaf(self, node: Node) -> TargetType:
        to = exchange_type(node)
        return TargetType(to, _leaf_to_spark(node, to))

    def list(self, node: Node, element: FoldedField[TargetType]) -> TargetType:
        target = _skip_if_unchanged(node, super().list(node, element))
        if isinstance(node.type, pa.FixedSizeListType) and node.type.value_type == element.type.type:
            return TargetType(target.type, _vector_to_spark(target.type))
        return target

    def map(self, node: Node, key: FoldedField[TargetType], value: FoldedField[TargetType]) -> TargetType:
        return _skip_if_unchanged(node, super().map(node, key, value))

    def struct(self, node: Node, fields: Sequence[FoldedField[TargetType]]) -> TargetType:
        return _skip_if_unchanged(node, super().struct(node, fields))


_LEAVES = JSON | {BLOB, BFLOAT16}
"""Extensions whose values differ from those of their storage type."""


def _skip_if_unchanged(node: Node, typed: TargetType) -> TargetType:
    return TargetType(typed.type, to_storage) if node.type == typed.type else typed


def _leaf_to_spark(node: Node, to: pa.DataType) -> Convert:
    if node.extension == BFLOAT16:
        return array_conversion.from_bfloat16
    if (narrow := array_conversion.narrow_type(node.type)) is not None:
        return narrow.convert
    match dtype := node.type:
        case pa.DurationType():
            return floor_to(1000, to) if dtype.unit == "ns" else cast_to(to)
        case pa.Time32Type():
            return lambda array: to_storage(array).view(pa.int32()).cast(to)
        case pa.Time64Type():
            return lambda array: to_storage(array).view(to)
    return to_small_offsets(to) if to in (pa.string(), pa.binary()) else cast_to(to)


def _vector_to_spark(to: pa.DataType) -> Convert:
    """Return a conversion of vectors to lists that share their values, without a copy."""

    def convert(array: Any) -> Any:
        plain = to_storage(array)
        if (count := len(plain) * plain.type.list_size) > array_conversion.MAX_OFFSET:
            raise ArrayTooLargeError(f"{count:,} values in one array of {to}")
        return plain.cast(to)

    return convert


_VOID = "void"
_PER_SECOND: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class SparkToLance:
    """Converts batches that Spark passes to Python to batches of a Lance table; can be pickled."""

    struct: Mapping[str, Any]
    schema: pa.Schema
    """Schema of the table."""
    references: Sequence[Place]
    """Columns and fields of structs with references to blobs, which are replaced by bytes before batches come here."""
    _columns: Sequence[_FieldConverter]

    def __reduce__(self) -> tuple[Callable[..., SparkToLance], tuple[Mapping[str, Any], pa.Schema]]:
        return from_spark_rows, (self.struct, self.schema)

    def convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch to the columns of the table; those that Spark lacks are null.

        The batch has the columns in the order of the StructType, whatever it calls them.

        Raises:
            InvalidInputError: a column cannot hold a value.
        """
        columns = dict(zip((field["name"] for field in self.struct["fields"]), batch.columns, strict=True))
        absent = pa.nulls(batch.num_rows)
        arrays = [column.convert_array(columns.get(column.field.name, absent)) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def from_spark_rows(struct: Mapping[str, Any], target: pa.Schema) -> SparkToLance:
    """Return a converter for rows of a StructType, given as JSON, into a table; columns are matched by name.

    Raises:
        TableSchemaValidationError: columns are not in the table, cannot be converted, or are missing and not nullable;
            the message names all of them.
    """
    references = find_references(struct["fields"], target)
    fitting = _FitVisitor({"fields": _with_binaries(struct["fields"], references)})
    fitting.match_fields((), struct["fields"], target)
    folded = fold(target, fitting)
    if fitting.problems:
        raise TableSchemaValidationError(f"the rows do not fit the table: {'; '.join(fitting.problems)}")
    converters = [_field_converter(column, field) for column, field in zip(folded, target, strict=True)]
    return SparkToLance(struct, target, references, converters)


def _with_binaries(fields: Sequence[Mapping[str, Any]], places: Sequence[Place]) -> list[Mapping[str, Any]]:
    """Return fields of a StructType with binaries in place of references."""
    new_fields: list[Mapping[str, Any]] = []
    for at, field in enumerate(fields):
        inside = [place[1:] for place in places if place[0] == at]
        if () in inside:
            new_fields.append({**field, "type": "binary"})
        elif inside:
            within = _with_binaries(field["type"]["fields"], inside)
            new_fields.append({**field, "type": {**field["type"], "fields": within}})
        else:
            new_fields.append(field)
    return new_fields


@dataclass(frozen=True, slots=True)
class _FieldConverter:
    """A field of the table, and how arrays of Spark are converted to it."""

    path: Path
    field: pa.Field[Any]
    convert: Convert

    def convert_array(self, array: Any, hidden: int = 0) -> Any:
        """Convert an array to the field.

        Args:
            array: values of Spark.
            hidden: number of nulls that come from the enclosing struct, which are allowed in any field.
        """
        dtype = self.field.type
        if not self.field.nullable and array.null_count > hidden:
            path = ".".join(self.path)
            raise InvalidInputError(
                f"column {path}: a null, which the table does not allow there; {nullable_hint(path)}"
            )
        if array.type == dtype:
            return array
        try:
            converted = self.convert(array)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {'.'.join(self.path)}: a value does not fit {dtype} ({error})") from error
        return (
            pa.ExtensionArray.from_storage(dtype, converted) if isinstance(dtype, pa.BaseExtensionType) else converted
        )


def _field_converter(folded: FoldedField[TargetType], field: pa.Field[Any]) -> _FieldConverter:
    return _FieldConverter(folded.node.path, field, folded.type.convert)


def _types_by_path(path: Path, spark: Any) -> Iterator[tuple[Path, SparkType]]:
    """Yield the Spark types of all fields by path, in the form that the walk over the table's types uses."""
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
        yield from _types_by_path((*path, step), type_)


class _FitVisitor:
    """Builds conversions from Spark's values, and collects the fields that do not fit."""

    def __init__(self, struct: Mapping[str, Any]) -> None:
        self._types = dict(_types_by_path((), {"type": "struct", "fields": struct["fields"]}))
        self.problems: list[str] = []

    def match_fields(self, path: Path, fields: Iterable[Mapping[str, Any]], target: Iterable[pa.Field[Any]]) -> None:
        """Record fields that Spark has twice, or that the table lacks."""
        previous_names: set[str] = set()
        names = {field.name for field in target}
        for name in (field["name"] for field in fields):
            if name in previous_names:
                self._note_problem((*path, name), "is there twice")
            elif name not in names:
                similar = [other for other in names if other.casefold() == name.casefold()]
                self._note_problem(
                    (*path, name), "is not in the table" + "".join(f", which has {other}" for other in similar)
                )
            previous_names.add(name)

    def enter(self, node: Node) -> TargetType | None:
        source = self._types.get(node.path)
        if source is None or source == _VOID:
            if not node.nullable:
                self._note_problem(node.path, f"is {'missing' if source is None else source} and may not be null")
            return _null_type(node)
        if _spark_kind(source) != _arrow_kind(node):
            return self._refuse(node, source)
        if node.extension == BLOB:
            return (
                TargetType(node.type, lambda array: to_blobs(array, node.type))
                if source == "binary"
                else self._refuse(node, source)
            )
        if node.extension == BFLOAT16:
            return TargetType(node.type, to_bfloat16) if source in ("float", "double") else self._refuse(node, source)
        return None

    def leaf(self, node: Node) -> TargetType:
        source = self._types[node.path]
        try:
            convert = _leaf_to_lance(from_spark_name(str(source), node.path), node.type)
        except TableSchemaValidationError:
            convert = None
        return self._refuse(node, source) if convert is None else TargetType(node.type, convert)

    def dictionary(self, node: Node, values: TargetType) -> TargetType:
        return TargetType(node.type, _dictionary_conversion(node.type, values.convert))

    def list(self, node: Node, element: FoldedField[TargetType]) -> TargetType:
        dtype: Any = node.type
        part = _field_converter(element, dtype.value_field)
        if isinstance(dtype, pa.FixedSizeListType):
            return TargetType(dtype, _vector_to_lance(node, part))
        return TargetType(dtype, lambda array: convert_list(array, dtype, part.convert_array))

    def map(self, node: Node, key: FoldedField[TargetType], value: FoldedField[TargetType]) -> TargetType:
        dtype: Any = node.type
        keys, values = _field_converter(key, dtype.key_field), _field_converter(value, dtype.item_field)
        return TargetType(dtype, lambda array: convert_map(array, dtype, keys.convert_array, values.convert_array))

    def struct(self, node: Node, fields: Sequence[FoldedField[TargetType]]) -> TargetType:
        dtype: Any = node.type
        source: Any = self._types[node.path]
        self.match_fields(node.path, source["fields"], dtype)
        parts = [_field_converter(folded, field) for folded, field in zip(fields, dtype, strict=True)]

        def convert(array: Any) -> Any:
            columns = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
            absent = pa.nulls(len(array))
            children = [part.convert_array(columns.get(part.field.name, absent), array.null_count) for part in parts]
            return build_struct(array, list(dtype), children)

        return TargetType(dtype, convert)

    def _refuse(self, node: Node, source: SparkType) -> TargetType:
        (spark_field,) = to_spark(pa.schema([pa.field(node.name, node.type, metadata={**node.metadata})]))["fields"]
        reason = f"cannot become {node.extension or node.type}: cast it to {to_ddl(spark_field['type'])}"
        self._note_problem(node.path, f"is {_format_type(source)} and {reason}")
        return _null_type(node)

    def _note_problem(self, path: Path, problem: str) -> None:
        self.problems.append(f"column {'.'.join(path)} {problem}")


def _null_type(node: Node) -> TargetType:
    dtype: Any = node.type
    return TargetType(dtype, lambda array: pa.nulls(len(array), dtype))


def _spark_kind(spark: SparkType) -> str:
    return "leaf" if isinstance(spark, str) else str(spark["type"])


def _arrow_kind(node: Node) -> str:
    match node.type:
        case pa.StructType() if node.extension != BLOB:
            return "struct"
        case pa.MapType():
            return "map"
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return "array"
    return "leaf"


def _format_type(spark: SparkType) -> str:
    return to_ddl(spark) if _spark_kind(spark) in ("leaf", "struct", "map", "array") else _spark_kind(spark)


def _leaf_to_lance(source: Any, to: Any) -> Convert | None:
    """Return the conversion from a Spark type to another type; None where the user has to cast explicitly."""
    kinds = pa.types
    match source, to:
        case _ if source == to:
            # Cast even so: depending on its settings, a session passes strings and binaries in large types.
            return cast_to(to)
        case pa.TimestampType(), pa.TimestampType():
            return _unit_conversion(source.unit, to) if (source.tz is None) == (to.tz is None) else None
        case (pa.DurationType(), pa.DurationType()) | (pa.Time64Type(), pa.Time32Type() | pa.Time64Type()):
            return _unit_conversion(source.unit, to)
        case _, pa.Time32Type() | pa.Time64Type() if source == pa.int64():
            return _time_conversion(to)
        case pa.Decimal128Type(), _ if kinds.is_decimal(to) or kinds.is_integer(to):
            return cast_to(to)
        case _, pa.Decimal128Type() | pa.Decimal256Type() if source == pa.string() and narrow_decimal(to) is None:
            return cast_to(to)
        case _, pa.Decimal128Type() | pa.Decimal256Type() if kinds.is_integer(source):
            return lambda array: array.cast(pa.decimal128(19, 0)).cast(to)
    if kinds.is_integer(source) and (kinds.is_integer(to) or to in (pa.float32(), pa.float64())):
        return cast_to(to)
    if kinds.is_floating(source) and kinds.is_floating(to):
        return cast_to(to) if to.bit_width > source.bit_width else narrow_floats(to)
    if (source, to) in _CASTS or (source == pa.binary() and kinds.is_fixed_size_binary(to)):
        return cast_to(to)
    return None


_CASTS = {
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.date32(), pa.date64()),
}


def _unit_conversion(unit: str, to: Any) -> Convert:
    by = _PER_SECOND[unit] // _PER_SECOND[to.unit]
    return floor_to(by, to) if by > 1 else cast_to(to)


def _time_conversion(to: Any) -> Convert:
    """Return a conversion of integers, in the unit of the column, to times of day."""
    end = _DAY_SECONDS * _PER_SECOND[to.unit]

    def convert(array: Any) -> Any:
        for number in pc.min_max(array).values():
            if number.is_valid and not 0 <= number.as_py() < end:
                raise pa.ArrowInvalid(f"{number} is not in a day")
        return array.cast(pa.int32() if to.bit_width == 32 else pa.int64()).view(to)

    return convert


def _dictionary_conversion(dtype: Any, convert: Convert) -> Convert:
    def encode(array: Any) -> Any:
        encoded = convert(array).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(dtype.index_type), encoded.dictionary)

    return encode


def _vector_to_lance(node: Node, element: _FieldConverter) -> Convert:
    dtype: Any = node.type
    size = dtype.list_size

    def convert(array: Any) -> Any:
        for length in pc.min_max(pc.list_value_length(array)).values():
            if length.is_valid and length.as_py() != size:
                raise InvalidInputError(
                    f"column {'.'.join(node.path)}: a vector of {length} values, where the table has {size}"
                )
        values = element.convert_array(array.flatten())
        if array.null_count:
            values = _spread_vectors(values, ~numpy_null_mask(array), size)
        return pa.FixedSizeListArray.from_arrays(values, type=dtype, mask=arrow_null_mask(array))

    return convert


def _spread_vectors(values: Any, valid: Any, size: int) -> Any:
    """Return the values of vectors with filler in place of null vectors, as fixed-size lists need values there too."""
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
