"""Read CSV and TSV files, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lancehouse.jobs.sources.conform import storage_type
from lancehouse.jobs.sources.errors import wrong_encoding_message
from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.formats import COMPRESSIONS, FilePart, FilePiece, FileSurvey, ReadRequest
from lancehouse.jobs.sources.tabular import (
    BLOCK_BYTES,
    Tabular,
    explain_type_errors,
    is_large,
    parse_integer,
    too_large_message,
)
from lancehouse.jobs.sources.text_options import ALL_OPTIONS


class Delimited(Tabular):
    """CSV; `.tsv` has tabs. An empty field is null, a pair of quotes is an empty string."""

    is_text = True
    name = "csv"
    known = ALL_OPTIONS
    extensions = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in COMPRESSIONS)

    def survey(self, file: SourceFile) -> FileSurvey:
        """Infer the types from the first block, except for columns whose type is given."""
        types = self.options.known_types
        with self._open_reader(file, _storage_types(types), None) as reader:
            schema = reader.schema
            fields = [column.with_type(types.get(column.name, _widen_timestamp(column.type))) for column in schema]
        inferred = {column.name: column.type for column in schema if column.name not in types}
        return FileSurvey(pa.schema(fields), (FilePiece(file.size),), dict(self._find_doubts(file, inferred)))

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
                large = [number for number in map(parse_integer, texts.to_pylist()) if is_large(number)]
                yield from [(name, f"{file.name}: {too_large_message(name, str(large[0]))}")] if large else []

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, parsed as the requested types."""
        file = part.file
        with self._open_reader(file, {}, None) as reader:
            names = reader.schema.names
        wanted.require_known(names, file)
        types = {field.name: storage_type(field.type) for field in wanted.schema if field.name in names}
        column_types = types or {names[0]: pa.string()}  # some column must be read to count rows
        with (
            explain_type_errors(file, self.options),
            self._open_reader(file, column_types, list(column_types), use_threads=wanted.use_threads) as reader,
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
