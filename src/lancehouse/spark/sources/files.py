"""Files as a source: looked at once, cut into units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.spark.sources.delimited import Delimited
from lancehouse.spark.sources.errors import reading, require_columns
from lancehouse.spark.sources.formats import Format, Part, Piece, Survey, Wanted, format_of
from lancehouse.spark.sources.images import Images
from lancehouse.spark.sources.ipc import Ipc
from lancehouse.spark.sources.jsonlines import JsonLines
from lancehouse.spark.sources.listing import File, Path, find
from lancehouse.spark.sources.options import is_storage_option
from lancehouse.spark.sources.parquet import Parquet
from lancehouse.spark.sources.schemas import partition_fields, unified, without_nulls
from lancehouse.spark.sources.units import Source, Unit, gathered, joint_key, runs, target_bytes

FORMATS: Mapping[str, Format] = MappingProxyType(
    {"parquet": Parquet(), "csv": Delimited(), "json": JsonLines(), "arrow": Ipc(), "images": Images()}
)

SURVEYED = 10_000
"""How many files are looked at before any is read: all, or so many in equal distances. What a file that was not looked
at has besides is found, and refused, when it is read."""
SURVEYORS = 16


@dataclass(frozen=True, slots=True)
class FileUnit(Unit):
    """A part of a file, or several small files."""

    format: Format
    parts: tuple[Part, ...]
    key: str
    bytes: int
    rows: int | None
    known: frozenset[str] | None = field(repr=False)

    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows in a schema."""
        return self.format.read(self.parts, Wanted(schema, self.known, use_threads))


def open_files(
    source: Path | Sequence[Path],
    format: str | None,
    columns: Sequence[str] | None,
    options: Mapping[str, Any],
    parallelism: int,
) -> Source:
    """Files as a source; see `open_source`."""
    if format is not None and format not in FORMATS:
        raise InvalidInputError(f"there is no format {format!r}: formats are {', '.join([*FORMATS, 'iceberg'])}")
    storage = {name: str(value) for name, value in options.items() if is_storage_option(name)}
    own = {name: value for name, value in options.items() if name not in storage}
    chosen, files = format_of(find(source, storage), format, FORMATS)
    reader = FORMATS[chosen].configured(own)
    for file in files:
        if not file.size:
            raise InvalidInputError(f"{file.name} is empty: remove it, or name the files to read")
    about = files[0].name if len(files) == 1 else f"the source at {files[0].name}"
    surveys = _surveys(reader, files)
    schema = unified((file.name, survey.schema) for file, survey in surveys.items())
    if reader.is_text:
        schema = pa.schema([field.with_type(without_nulls(field.type)) for field in schema])
    schema = reader.options.apply_schema(schema, about)
    told = partition_fields((file.partition for file in files), schema)
    everything = list(reader.options.apply_types(pa.schema([*schema, *told]), about))
    names = [column.name for column in everything]
    if not names:
        raise InvalidInputError(f"{files[0].name} has no columns")
    if columns is not None:
        require_columns(list(columns), names, about)
        everything = [everything[names.index(name)] for name in columns]
    known = None if columns is not None else frozenset(names)
    target = target_bytes([file.size for file in files], parallelism)
    groups = gathered(_parts(files, surveys, target), lambda part: part.bytes, target)
    read = pa.schema(everything)
    doubts = {name: why for each in surveys.values() for name, why in each.doubts.items() if name in read.names}
    is_explicit = reader.options.schema is not None
    return Source(read, [_unit(reader, parts, known) for parts in groups], reader.options.key, doubts, is_explicit)


def _surveys(format: Format, files: Sequence[File]) -> dict[File, Survey]:
    def survey(file: File) -> Survey:
        with reading(file.name, file.store.options):
            return format.survey(file)

    step = max(1, -(-len(files) // SURVEYED))
    chosen = list(files[::step])
    if len(chosen) == 1:
        return {chosen[0]: survey(chosen[0])}
    with ThreadPoolExecutor(SURVEYORS) as surveyors:
        return dict(zip(chosen, surveyors.map(survey, chosen), strict=True))


def _parts(files: Sequence[File], surveys: Mapping[File, Survey], target: int) -> list[Part]:
    return [part for file in files for part in _cut(file, surveys.get(file), target)]


def _cut(file: File, survey: Survey | None, target: int) -> Iterator[Part]:
    pieces = (Piece(file.size),) if survey is None else survey.pieces
    cuts = runs([piece.bytes for piece in pieces], target)
    for cut in cuts:
        counts = [pieces[place].rows for place in cut]
        rows = None if None in counts else sum(count for count in counts if count is not None)
        size = sum(pieces[place].bytes for place in cut)
        yield Part(file, size, rows, cut if len(cuts) > 1 else None)


def _unit(format: Format, parts: Sequence[Part], known: frozenset[str] | None) -> FileUnit:
    counts = [part.rows for part in parts]
    return FileUnit(
        format=format,
        parts=tuple(parts),
        key=joint_key([part.key for part in parts]),
        bytes=sum(part.bytes for part in parts),
        rows=None if None in counts else sum(count for count in counts if count is not None),
        known=known,
    )
