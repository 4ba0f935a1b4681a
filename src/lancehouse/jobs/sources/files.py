"""Sources of data files: their formats (Parquet and Arrow here), their common schema, and units of similar size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.sources import IngestSource, Unit, group_by_size, joint_key, split_into_runs, target_bytes
from lancehouse.jobs.sources.file_listing import (
    SourceFile,
    SourcePath,
    check_columns,
    list_files,
    translate_read_errors,
)
from lancehouse.jobs.sources.formats import (
    FilePart,
    FilePiece,
    FileSurvey,
    Format,
    ReadRequest,
    Tabular,
    choose_format,
    is_storage_option,
)
from lancehouse.jobs.sources.images import Images
from lancehouse.jobs.sources.schemas import partition_fields, replace_null_types, unify_schemas
from lancehouse.jobs.sources.text import Delimited, JsonLines

BATCH_BYTES = 8 << 20
BATCH_ROWS = 32 << 10
WINDOW_BYTES = 32 << 20
"""Total size of the row groups that are fetched at once."""


class Parquet(Tabular):
    """Parquet. The footer tells the schema, the number of rows and where a file can be split."""

    name = "parquet"
    extensions = (".parquet", ".pq")

    def survey(self, file: SourceFile) -> FileSurvey:
        """Read the footer."""
        with file.store.file_system().open_input_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
            total = sum(group.total_byte_size for group in groups) or 1
            pieces = [FilePiece(file.size * group.total_byte_size // total, group.num_rows) for group in groups]
            return FileSurvey(parquet.schema_arrow, tuple(pieces))

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, in batches of a few megabytes."""
        with part.file.store.file_system().open_input_file(part.file.path) as opened:
            parquet = pq.ParquetFile(opened, pre_buffer=True)
            names = parquet.schema_arrow.names
            wanted.require_known(names, part.file)
            columns = [name for name in names if name in wanted.schema.names]
            groups = range(parquet.num_row_groups) if part.pieces is None else part.pieces
            sizes = [parquet.metadata.row_group(number).total_byte_size for number in groups]
            for window in split_into_runs(sizes, WINDOW_BYTES):
                numbers = [groups[place] for place in window]
                yield from parquet.iter_batches(
                    batch_size=_batch_rows(parquet.metadata, numbers),
                    row_groups=numbers,
                    columns=columns,
                    use_threads=wanted.use_threads,
                )


def _batch_rows(metadata: Any, groups: list[int]) -> int:
    described = [metadata.row_group(number) for number in groups]
    rows = sum(group.num_rows for group in described)
    row_bytes = sum(group.total_byte_size for group in described) / max(rows, 1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))


_FILE = b"ARROW1"


class Ipc(Tabular):
    """Arrow IPC. A file can be split between its batches, a stream cannot; both are read batch by batch."""

    name = "arrow"
    extensions = (".arrow", ".feather", ".ipc")

    def survey(self, file: SourceFile) -> FileSurvey:
        """Read the schema and the number of batches."""
        with _open_reader(file) as (reader, is_file):
            count = reader.num_record_batches if is_file else 1
            return FileSurvey(reader.schema, (FilePiece(file.size // max(count, 1)),) * count)

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, in the batches of the file."""
        with _open_reader(part.file) as (reader, _):
            names = reader.schema.names
            wanted.require_known(names, part.file)
        columns = [place for place, name in enumerate(names) if name in wanted.schema.names]
        options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=wanted.use_threads)
        with _open_reader(part.file, options if columns else None) as (reader, is_file):
            if not is_file:
                yield from reader
                return
            for number in range(reader.num_record_batches) if part.pieces is None else part.pieces:
                yield reader.get_batch(number)


@contextmanager
def _open_reader(file: SourceFile, options: pa.ipc.IpcReadOptions | None = None) -> Iterator[tuple[Any, bool]]:
    with file.store.file_system().open_input_file(file.path) as opened:
        is_file = opened.read(len(_FILE)) == _FILE
        opened.seek(0)
        opener: Any = pa.ipc.open_file if is_file else pa.ipc.open_stream
        with opener(opened, options=options) as reader:
            yield reader, is_file


FORMATS: Mapping[str, Format] = MappingProxyType(
    {"parquet": Parquet(), "csv": Delimited(), "json": JsonLines(), "arrow": Ipc(), "images": Images()}
)

MAX_SURVEYED = 10_000
"""How many files are surveyed before any is read; if there are more, evenly spaced ones are chosen. A column that only
files outside the sample have is found, and refused, when they are read."""
SURVEYORS = 16
"""Number of threads that survey files."""


@dataclass(frozen=True, slots=True)
class FileUnit(Unit):
    """A part of a file, or several small files."""

    format: Format
    parts: tuple[FilePart, ...]
    key: str
    bytes: int
    rows: int | None
    source_columns: frozenset[str] | None = field(repr=False)

    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema."""
        return self.format.read(self.parts, ReadRequest(schema, self.source_columns, use_threads))


def open_files(
    source: SourcePath | Sequence[SourcePath],
    format: str | None,
    columns: Sequence[str] | None,
    options: Mapping[str, Any],
    parallelism: int,
) -> IngestSource:
    """Open files as a source; see `open_source`."""
    if format is not None and format not in FORMATS:
        raise InvalidInputError(f"there is no format {format!r}: formats are {', '.join([*FORMATS, 'iceberg'])}")
    storage = {name: str(value) for name, value in options.items() if is_storage_option(name)}
    format_options = {name: value for name, value in options.items() if name not in storage}
    chosen, files = choose_format(list_files(source, storage), format, FORMATS)
    reader = FORMATS[chosen].with_options(format_options)
    for file in files:
        if not file.size:
            raise InvalidInputError(f"{file.name} is empty: remove it, or name the files to read")
    about = files[0].name if len(files) == 1 else f"the source at {files[0].name}"
    surveys = _survey_files(reader, files)
    schema = unify_schemas((file.name, survey.schema) for file, survey in surveys.items())
    if reader.is_text:
        schema = pa.schema([field.with_type(replace_null_types(field.type)) for field in schema])
    schema = reader.options.apply_schema(schema, about)
    told = partition_fields((file.partition for file in files), schema)
    everything = list(reader.options.apply_types(pa.schema([*schema, *told]), about))
    names = [column.name for column in everything]
    if not names:
        raise InvalidInputError(f"{files[0].name} has no columns")
    if columns is not None:
        check_columns(list(columns), names, about)
        everything = [everything[names.index(name)] for name in columns]
    source_columns = None if columns is not None else frozenset(names)
    target = target_bytes([file.size for file in files], parallelism)
    groups = group_by_size(_split_files(files, surveys, target), lambda part: part.bytes, target)
    read = pa.schema(everything)
    doubts = {name: why for each in surveys.values() for name, why in each.doubts.items() if name in read.names}
    is_explicit = reader.options.schema is not None
    return IngestSource(
        read, [_to_unit(reader, parts, source_columns) for parts in groups], reader.options.key, doubts, is_explicit
    )


def _survey_files(format: Format, files: Sequence[SourceFile]) -> dict[SourceFile, FileSurvey]:
    def survey(file: SourceFile) -> FileSurvey:
        with translate_read_errors(file.name, file.store.options):
            return format.survey(file)

    step = max(1, -(-len(files) // MAX_SURVEYED))
    sampled = list(files[::step])
    if len(sampled) == 1:
        return {sampled[0]: survey(sampled[0])}
    with ThreadPoolExecutor(SURVEYORS) as surveyors:
        return dict(zip(sampled, surveyors.map(survey, sampled), strict=True))


def _split_files(files: Sequence[SourceFile], surveys: Mapping[SourceFile, FileSurvey], target: int) -> list[FilePart]:
    return [part for file in files for part in _split_file(file, surveys.get(file), target)]


def _split_file(file: SourceFile, survey: FileSurvey | None, target: int) -> Iterator[FilePart]:
    pieces = (FilePiece(file.size),) if survey is None else survey.pieces
    cuts = split_into_runs([piece.bytes for piece in pieces], target)
    for cut in cuts:
        counts = [pieces[place].rows for place in cut]
        rows = None if None in counts else sum(count for count in counts if count is not None)
        size = sum(pieces[place].bytes for place in cut)
        yield FilePart(file, size, rows, cut if len(cuts) > 1 else None)


def _to_unit(format: Format, parts: Sequence[FilePart], source_columns: frozenset[str] | None) -> FileUnit:
    counts = [part.rows for part in parts]
    return FileUnit(
        format=format,
        parts=tuple(parts),
        key=joint_key([part.key for part in parts]),
        bytes=sum(part.bytes for part in parts),
        rows=None if None in counts else sum(count for count in counts if count is not None),
        source_columns=source_columns,
    )
