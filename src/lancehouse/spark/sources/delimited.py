"""CSV, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import csv

from lancehouse.spark.sources.conforming import storage
from lancehouse.spark.sources.formats import COMPRESSIONS, Part, Piece, Survey, Wanted
from lancehouse.spark.sources.listing import File
from lancehouse.spark.sources.tabular import BLOCK_BYTES, Tabular, inferred


class Delimited(Tabular):
    """CSV with a header; `.tsv` has tabs. A field with nothing in it is null, one with empty quotes is empty text."""

    is_text = True
    extensions = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in COMPRESSIONS)

    def survey(self, file: File) -> Survey:
        """Infer the types from the first block."""
        with file.store.system().open_input_stream(file.path) as stream, _reader(file, stream) as reader:
            fields = [field.with_type(_lasting(field.type)) for field in reader.schema]
        return Survey(pa.schema(fields), (Piece(file.size),))

    def raw(self, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The columns that are wanted, parsed as the types that are wanted."""
        file = part.file
        names = self.survey(file).schema.names
        wanted.require_known(names, file)
        types = {field.name: storage(field.type) for field in wanted.schema if field.name in names}
        chosen = types or {names[0]: pa.string()}  # some column must be read to count rows
        with (
            inferred(file),
            file.store.system().open_input_stream(file.path) as stream,
            _reader(file, stream, chosen, use_threads=wanted.use_threads) as reader,
        ):
            yield from reader


def _reader(file: File, stream: Any, types: Mapping[str, Any] | None = None, *, use_threads: bool = False) -> Any:
    tabs = any(file.path.lower().endswith(f".tsv{packed}") for packed in COMPRESSIONS)
    return csv.open_csv(
        stream,
        read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=use_threads),
        parse_options=csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=None if types is None else dict(types),
            include_columns=None if types is None else list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _lasting(dtype: Any) -> Any:
    """The type that a block tells, made to hold what later blocks may bring."""
    return pa.timestamp("us", dtype.tz) if isinstance(dtype, pa.TimestampType) and dtype.unit == "s" else dtype
