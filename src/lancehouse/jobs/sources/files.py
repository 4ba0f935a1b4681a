"""Open data files as the source of an ingest: survey their schemas, unify them, split the files into units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.sources.delimited import Delimited
from lancehouse.jobs.sources.errors import require_columns, translate_read_errors
from lancehouse.jobs.sources.file_listing import Path, SourceFile, list_files
from lancehouse.jobs.sources.formats import FilePart, FilePiece, FileSurvey, Format, ReadRequest, choose_format
from lancehouse.jobs.sources.images import Images
from lancehouse.jobs.sources.ipc import Ipc
from lancehouse.jobs.sources.jsonlines import JsonLines
from lancehouse.jobs.sources.parquet import Parquet
from lancehouse.jobs.sources.schema_unification import partition_fields, replace_null_types, unify_schemas
from lancehouse.jobs.sources.text_options import is_storage_option
from lancehouse.jobs.sources.units import IngestSource, Unit, group_by_size, joint_key, split_into_runs, target_bytes

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
    source: Path | Sequence[Path],
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
        require_columns(list(columns), names, about)
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
