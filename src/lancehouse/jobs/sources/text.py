"""Text formats: CSV and JSON Lines, with types that are inferred or given."""

from __future__ import annotations

import json as python_json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError
from pyarrow import csv, json

from lancehouse.jobs.sources.file_listing import SourceFile, wrong_encoding_message
from lancehouse.jobs.sources.formats import (
    ALL_OPTIONS,
    UTF8,
    FilePart,
    FileSurvey,
    ReadRequest,
    Tabular,
    TextOptions,
)
from lancehouse.jobs.sources.schemas import replace_null_types
from lancehouse.schema.walk import map_children, storage_type

COMPRESSIONS = ("", ".gz", ".bz2", ".zst", ".lz4")
"""Extensions of compressed text files that pyarrow reads as a stream."""
BLOCK_BYTES = 4 << 20
"""Size of the blocks in which text is read; types are inferred from the first block of a file."""
_DIGITS = 100
_NOT_TEXT = "invalid UTF8"
"""Part of pyarrow's message for bytes that are not valid text."""


@contextmanager
def _explain_type_errors(file: SourceFile, options: TextOptions) -> Iterator[None]:
    """Replace pyarrow's error for text that does not fit its type by one that says where the types come from.

    Raises:
        InvalidInputError: the file is not in the given encoding.
        TableSchemaValidationError: a value has another type.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        if _NOT_TEXT in str(error):
            raise InvalidInputError(wrong_encoding_message(file.name, options.encoding)) from error
        raise TableSchemaValidationError(
            f"{file.name} does not fit the types of its first {BLOCK_BYTES >> 20} MB, or of the table: {error}; give a "
            "type that fits, such as options={'types': {'column': 'string'}}, or create the table with such types and "
            "append to it"
        ) from error


def _parse_integer(digits: str) -> int:
    """Parse an integer, truncated to 100 digits.

    That is enough to see that it exceeds 64 bits; Python refuses to parse integers of thousands of digits.
    """
    return int(digits.strip()[:_DIGITS])


def _is_large(number: float) -> bool:
    """Return whether a number is out of the range of 64-bit integers."""
    return not -(2**63) <= number < 2**63


def _too_large_message(column: str, value: str) -> str:
    """Return the error message for integers that exceed 64 bits, and that a double would round."""
    return (
        f"column {column} has integers of more than 64 bits, such as {value}: give its type, such as "
        f"options={{'types': {{'{column}': 'decimal(38,0)'}}}}"
    )


class Delimited(Tabular):
    """CSV; `.tsv` has tabs. An empty field is null, a pair of quotes is an empty string."""

    is_text = True
    name = "csv"
    option_names = ALL_OPTIONS
    extensions = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in COMPRESSIONS)

    def survey(self, file: SourceFile) -> FileSurvey:
        """Infer the types from the first block, except for columns whose type is given."""
        types = self.options.known_types
        with self._open_reader(file, _storage_types(types), None) as reader:
            schema = reader.schema
            fields = [column.with_type(types.get(column.name, _widen_timestamp(column.type))) for column in schema]
        inferred = {column.name: column.type for column in schema if column.name not in types}
        return FileSurvey(pa.schema(fields), (file.size,), dict(self._find_doubts(file, inferred)))

    def _find_doubts(self, file: SourceFile, inferred: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name, dtype in inferred.items():
            if pa.types.is_binary(dtype):  # pyarrow infers this for text that is not in the encoding
                yield name, wrong_encoding_message(file.name, self.options.encoding)
        # pyarrow infers double for integers that exceed 64 bits, which would round them silently. Such columns are read
        # once more as text to find out whether all their values are whole numbers.
        numbers = [name for name, dtype in inferred.items() if pa.types.is_float64(dtype)]
        if not numbers:
            return
        with self._open_reader(file, dict.fromkeys(numbers, pa.string()), numbers) as reader:
            batch: Any = next(iter(reader), None)
        for name in numbers if batch is not None else ():
            texts = batch.column(name).drop_null()
            if pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
                large = [number for number in map(_parse_integer, texts.to_pylist()) if _is_large(number)]
                yield from [(name, f"{file.name}: {_too_large_message(name, str(large[0]))}")] if large else []

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, parsed as the requested types."""
        file = part.file
        # pyarrow takes types and columns when a file is opened, and refuses columns that it lacks: it is opened first
        # to learn which it has.
        with self._open_reader(file, {}, None) as reader:
            names = reader.schema.names
        wanted.require_known(names, file)
        types = {field.name: storage_type(field.type) for field in wanted.schema if field.name in names}
        column_types = types or {names[0]: pa.string()}  # some column must be read to count rows
        with (
            _explain_type_errors(file, self.options),
            self._open_reader(file, column_types, list(column_types), use_threads=True) as reader,
        ):
            yield from reader

    @contextmanager
    def _open_reader(
        self, file: SourceFile, types: Mapping[str, Any], columns: list[str] | None, *, use_threads: bool = False
    ) -> Iterator[Any]:
        options = self.options
        tabs = any(file.path.lower().endswith(f".tsv{packed}") for packed in COMPRESSIONS)
        names = None if options.header or options.schema is None else options.schema.names
        raw_stream: Any = file.store.file_system().open_input_stream(
            file.path
        )  # the stubs of open_csv know other files only
        with (
            raw_stream as stream,
            csv.open_csv(
                stream,
                read_options=csv.ReadOptions(
                    block_size=BLOCK_BYTES,
                    use_threads=use_threads,
                    encoding=options.encoding,
                    skip_rows=options.skip_rows,
                    column_names=names,
                ),
                parse_options=csv.ParseOptions(
                    delimiter=options.delimiter or ("\t" if tabs else ","),
                    quote_char=options.quote or False,
                    double_quote=options.quote is not None,
                    escape_char=options.escape or False,
                    newlines_in_values=True,
                ),
                convert_options=csv.ConvertOptions(
                    column_types=dict(types),
                    include_columns=columns,
                    null_values=list(options.null_values),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            ) as reader,
        ):
            yield reader


_WHOLE = r"^\s*[+-]?[0-9]+\s*$"


def _storage_types(types: Mapping[str, Any]) -> dict[str, Any]:
    return {name: storage_type(dtype) for name, dtype in types.items()}


def _widen_timestamp(dtype: Any) -> Any:
    """Return an inferred type, widened from seconds to microseconds: later blocks may have fractions."""
    return pa.timestamp("us", dtype.tz) if isinstance(dtype, pa.TimestampType) and dtype.unit == "s" else dtype


LONGEST_LINE = 1 << 30
"""Largest length of a line, in bytes."""

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_untyped: Any = pa
"""pyarrow, for functions that its type stubs lack."""


class JsonLines(Tabular):
    """JSON lines. Text stays text, even where it looks like a timestamp, unless another type is requested."""

    is_text = True
    name = "json"
    option_names = ("encoding", "types", "schema")
    extensions = tuple(f"{kind}{packed}" for kind in (".json", ".jsonl", ".ndjson") for packed in COMPRESSIONS)

    def survey(self, file: SourceFile) -> FileSurvey:
        """Infer the types from the first block, except for columns whose type is given."""
        first = next(_read_blocks(file, self.options.encoding), b"")
        types, inferred_schema = self.options.known_types, _infer_schema(file, first)
        fields = [column.with_type(types.get(column.name, column.type)) for column in inferred_schema]
        doubts = {
            name: f"{file.name}: {_too_large_message(name, value)}"
            for name, value in _large_integers(first).items()
            if name not in types or not _is_number(types[name])
        }
        return FileSurvey(pa.schema(fields), (file.size,), doubts)

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows, parsed as the requested types where JSON has such values."""
        schema: pa.Schema | None = None
        for block in _read_blocks(part.file, self.options.encoding):
            schema = schema or _explicit_schema(
                _infer_schema(part.file, block), _columns_in_file(part.file, wanted.schema)
            )
            with _explain_type_errors(part.file, self.options):
                rows = _parse_block(part.file, block, schema)
            wanted.require_known(rows.schema.names, part.file)
            yield from rows.to_batches()


def _read_blocks(file: SourceFile, encoding: str) -> Iterator[bytes]:
    """Yield the text as UTF-8 in blocks that end with a line."""
    rest = b""
    with file.store.file_system().open_input_stream(file.path) as opened:
        stream: Any = opened if encoding == UTF8 else _untyped.transcoding_input_stream(opened, encoding, UTF8)
        chunk = stream.read(BLOCK_BYTES)
        while chunk:
            following = stream.read(BLOCK_BYTES)
            # The last line need not end with a newline.
            whole, newline, after = chunk.rpartition(b"\n") if following else (chunk, b"\n", b"")
            if newline and (rest + whole).strip():
                yield _require_utf8(rest + whole)
            rest = after if newline else rest + chunk
            if len(rest) > LONGEST_LINE:
                raise InvalidInputError(f"{file.name} has a line of more than {LONGEST_LINE >> 20} MB")
            chunk = following


def _require_utf8(block: bytes) -> bytes:
    """Return the block if it is valid UTF-8; pyarrow would accept other bytes as text."""
    block.decode()
    return block


def _large_integers(block: bytes) -> dict[str, str]:
    """Return an example of an integer beyond 64 bits for each column that has some and otherwise only integers."""
    if not _LONG_NUMBER.search(block):
        return {}
    numbers: dict[str, list[int | float]] = {}
    for line in block.splitlines():
        with suppress(ValueError):  # lines that only pyarrow can parse are skipped
            row = python_json.loads(line, parse_int=_parse_integer)
            for name, value in row.items() if row is not None else ():  # for pyarrow, `null` is a row of nulls
                numbers.setdefault(name, []).extend(_walk_numbers(value))
    large = {name: next(filter(_is_large, values), None) for name, values in numbers.items()}
    return {
        name: str(value)
        for name, value in large.items()
        if value is not None and all(isinstance(number, int) for number in numbers[name])
    }


def _walk_numbers(value: Any) -> Iterator[int | float]:
    match value:
        case bool():
            return
        case int() | float():
            yield value
        case list() | dict():
            for inner in value.values() if isinstance(value, dict) else value:
                yield from _walk_numbers(inner)


def _infer_schema(file: SourceFile, block: bytes) -> pa.Schema:
    if not block:
        return pa.schema([])
    return pa.schema([field.with_type(_times_to_text(field.type)) for field in _parse_block(file, block, None).schema])


def _parse_block(file: SourceFile, block: bytes, schema: pa.Schema | None) -> pa.Table:
    text = block.lstrip()
    if text.startswith(b"["):
        raise InvalidInputError(f"{file.name} is an array of JSON: write one object on each line instead")
    if text.startswith(b"null"):
        # A line with null is a row of nulls. At the beginning of a block, pyarrow 26 would end the process.
        block = b"{}" + text.removeprefix(b"null")
    source: Any = pa.BufferReader(block)  # the stubs of read_json know files only
    return json.read_json(
        source,
        json.ReadOptions(block_size=max(len(block), BLOCK_BYTES)),  # no line is cut
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
    )


def _times_to_text(dtype: Any) -> Any:
    """Return an inferred type with strings where pyarrow inferred timestamps."""
    if isinstance(dtype, pa.TimestampType):
        return pa.string()
    return map_children(dtype, lambda child: child.with_type(_times_to_text(child.type)))


def _columns_in_file(file: SourceFile, wanted: pa.Schema) -> pa.Schema:
    """Return the requested columns that a file may hold: all but those that its partition folders give."""
    partition_values = dict(file.partition)
    return pa.schema([field for field in wanted if field.name not in partition_values])


def _explicit_schema(inferred_schema: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Return the types to parse as: the requested type where pyarrow can parse it, else the inferred one, cast
    later.
    """
    have = {field.name: field.type for field in inferred_schema}
    want = {field.name: storage_type(field.type) for field in wanted}
    return pa.schema([(name, _parsable_type(have.get(name), want.get(name))) for name in {**have, **want}])


def _parsable_type(inferred: Any, wanted: Any) -> Any:
    if wanted is None:
        return replace_null_types(inferred)
    if inferred is None or inferred == pa.null():
        return _json_type(wanted)
    match inferred, wanted:
        case pa.StructType(), pa.StructType():
            have, want = ({child.name: child.type for child in dtype} for dtype in (inferred, wanted))
            return pa.struct([(name, _parsable_type(have.get(name), want.get(name))) for name in {**have, **want}])
        case pa.ListType(), (pa.ListType() | pa.LargeListType() | pa.FixedSizeListType()):
            return pa.list_(_parsable_type(inferred.value_type, wanted.value_type))
    is_number = pa.types.is_integer(inferred) or pa.types.is_floating(inferred)
    return (
        wanted
        if (is_number and _is_number(wanted)) or (pa.types.is_string(inferred) and _is_text(wanted))
        else inferred
    )


def _json_type(wanted: Any) -> Any:
    """Return the type in which JSON represents values of a type, where the file does not show it."""
    match wanted:
        case pa.StructType():
            return pa.struct([(child.name, _json_type(child.type)) for child in wanted])
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return pa.list_(_json_type(wanted.value_type))
    is_itself = _is_number(wanted) or _is_text(wanted) or pa.types.is_boolean(wanted)
    return wanted if is_itself else pa.string()


def _is_number(dtype: Any) -> bool:
    is_float = pa.types.is_float32(dtype) or pa.types.is_float64(dtype)
    return is_float or pa.types.is_integer(dtype) or pa.types.is_decimal128(dtype)


def _is_text(dtype: Any) -> bool:
    """Return whether pyarrow parses values of a type from JSON strings."""
    is_plain = dtype in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return is_plain or pa.types.is_timestamp(dtype) or pa.types.is_decimal128(dtype)
