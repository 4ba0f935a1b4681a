"""The source of an ingest: open files or an Iceberg table, find their common schema, and make units of similar size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from math import ceil
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.jobs.sources.file_listing import (
    SourceFile,
    SourcePath,
    check_columns,
    list_files,
    translate_read_errors,
)
from lancehouse.jobs.sources.formats import (
    FilePart,
    FileSurvey,
    Format,
    Images,
    Ipc,
    Parquet,
    ReadRequest,
    is_storage_option,
    split_into_runs,
)
from lancehouse.jobs.sources.schemas import partition_fields, replace_null_types, unify_schemas
from lancehouse.jobs.sources.text import Delimited, JsonLines
from lancehouse.schema.walk import relax_nullability

T = TypeVar("T")

TARGET_BYTES = 96 << 20
"""Size of the files of a unit, where there is enough to read."""
LEAST_BYTES = 1 << 20
"""Least size of the files of a unit, when units are made small so that every core has one."""
OPENING_BYTES = 64 << 10
"""Cost of opening a file, as the number of bytes that could be read meanwhile."""


class Unit(ABC):
    """Rows that one task reads; can be sent to other processes."""

    __slots__ = ()

    key: str
    """The same when the same source is opened again, unless what this unit reads has changed. It does not depend on the
    columns and types that are requested."""
    bytes: int
    """Estimated number of bytes that are read."""

    @abstractmethod
    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema, which is the source's or the table's; only a few batches are in memory at a time.

        Columns that the schema has and the unit lacks are null. Text is parsed as the schema's types.

        Raises:
            InvalidInputError: a file cannot be read; the message names it.
            TableSchemaValidationError: a column does not fit the schema; the message names the file.
        """


@dataclass(frozen=True, slots=True)
class IngestSource:
    """A source that was opened: its schema and its units."""

    schema: pa.Schema
    units: list[Unit]
    key: str = ""
    """Identifies the options of reading: other options make other rows of the same files. Empty for the defaults."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, each with the error message."""

    is_explicit: bool = False
    """Whether the user gave a schema with all columns, so that their nullability counts."""

    def table_schema(self, schema: pa.Schema, nullable: bool) -> pa.Schema:
        """Return the schema of a new table for rows of this schema; columns are nullable unless the user gave a
        schema.
        """
        return relax_nullability(schema) if nullable and not self.is_explicit else schema

    def require_types(self) -> None:
        """Check that the types of all columns are known; for cases where only the source can tell them.

        Raises:
            InvalidInputError: a type could not be inferred; the message says how to give it.
        """
        for reason in self.doubts.values():
            raise InvalidInputError(reason)

    @property
    def bytes(self) -> int:
        """Estimated number of bytes that are read."""
        return sum(unit.bytes for unit in self.units)


def target_bytes(sizes: Sequence[int], parallelism: int) -> int:
    """Return the size of units for files of these sizes: smaller where there is little, so that every core has one."""
    share = ceil((sum(sizes) + len(sizes) * OPENING_BYTES) / max(parallelism, 1))
    return min(TARGET_BYTES, max(share, LEAST_BYTES))


def group_by_size(things: Sequence[T], size: Callable[[T], int], target: int) -> list[list[T]]:
    """Group neighbours up to a total size of `target`.

    An item that is more than half as large stays alone, so that a change before it does not change the groups after it.
    """
    groups: list[list[T]] = []
    room = 0
    for thing in things:
        cost = size(thing) + OPENING_BYTES
        if cost > room or cost > target // 2:
            groups.append([])
            room = target if cost <= target // 2 else 0
        groups[-1].append(thing)
        room -= cost
    return groups


def joint_key(keys: Sequence[str], about: str = "") -> str:
    """Return one key for several parts; it changes when any of them does."""
    if len(keys) == 1 and not about:
        return keys[0]
    digest = blake2b("\n".join([*keys, about]).encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{keys[0]} and {len(keys) - 1} more {digest}"


ICEBERG = "iceberg"


def open_source(
    source: Any,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    parallelism: int = 1,
) -> IngestSource:
    """Open a source and infer its schema, without reading all rows.

    Files of several schemas become one: numbers are widened, and what a file lacks is null. Folders that are called
    `name=value` become columns, if they lie below the given folder or below the first level of a glob that is a
    pattern; names that start with `.` or `_` are left out there. The types of CSV and JSON are inferred from the first
    block of each file.

    Args:
        source: a path, folder, glob or a list of those, on this machine or under `file://`, `s3://`, `gs://` or
            `az://`; for Iceberg a table or a scan of pyiceberg, or `catalog.namespace.table`.
        format: parquet, csv, json, arrow, images or iceberg; by default inferred from the extensions. In folders, only
            files with its extensions are read; files that are named are read whatever they are called.
        columns: columns to read, in that order; all by default.
        options: options of the format, and storage options under Lance's names; for Iceberg the properties of the
            catalog. CSV has delimiter, quote, escape, header, skip_rows, null_values, encoding, types and schema; JSON
            has encoding, types and schema. Storage options that are missing come from the environment.
        parallelism: number of units to make at least, if there is enough to read.

    Raises:
        InvalidInputError: there is nothing to read, the format is not clear, an option is unknown, or a file cannot be
            read.
        TableColumnNotFoundError: a column does not exist; the message lists those that do.
        TableSchemaValidationError: the schemas of files cannot be unified.
    """
    is_iceberg = type(source).__module__.partition(".")[0] == "pyiceberg"
    if format != ICEBERG and not (format is None and is_iceberg):
        return _open_files(source, format, columns, options, parallelism)
    if find_spec("pyiceberg") is None:
        raise UnsupportedOperationError("reading Iceberg tables needs pyiceberg: pip install 'pyiceberg[pyarrow]'")
    from lancehouse.jobs.sources.iceberg import open_iceberg

    return open_iceberg(source, columns, options, parallelism)


# Files

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
    source_columns: frozenset[str] | None = field(repr=False)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema."""
        return self.format.read(self.parts, ReadRequest(schema, self.source_columns))


def _open_files(
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
    chosen, files = _choose_format(list_files(source, storage), format)
    reader = chosen.with_options(format_options)
    for file in files:
        if not file.size:
            raise InvalidInputError(f"{file.name} is empty: remove it, or name the files to read")
    about = files[0].name if len(files) == 1 else f"the source at {files[0].name}"
    surveys = _survey_files(reader, files)
    schema = unify_schemas((file.name, survey.schema) for file, survey in surveys.items())
    if reader.is_text:
        schema = pa.schema([field.with_type(replace_null_types(field.type)) for field in schema])
    schema = reader.options.apply_schema(schema, about)
    partition_columns = partition_fields((file.partition for file in files), schema)
    everything = list(reader.options.apply_types(pa.schema([*schema, *partition_columns]), about))
    names = [column.name for column in everything]
    if not names:
        raise InvalidInputError(f"{files[0].name} has no columns")
    if columns is not None:
        check_columns(list(columns), names, about)
        everything = [everything[names.index(name)] for name in columns]
    source_columns = None if columns is not None else frozenset(names)
    target = target_bytes([file.size for file in files], parallelism)
    file_parts = [part for file in files for part in _split_file(file, surveys.get(file), target)]
    groups = group_by_size(file_parts, lambda part: part.bytes, target)
    read = pa.schema(everything)
    doubts = {name: why for survey in surveys.values() for name, why in survey.doubts.items() if name in read.names}
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


def _split_file(file: SourceFile, survey: FileSurvey | None, target: int) -> Iterator[FilePart]:
    pieces = (file.size,) if survey is None else survey.pieces
    cuts = split_into_runs(pieces, target)
    for cut in cuts:
        yield FilePart(file, sum(pieces[place] for place in cut), cut if len(cuts) > 1 else None)


def _to_unit(format: Format, parts: Sequence[FilePart], source_columns: frozenset[str] | None) -> FileUnit:
    return FileUnit(
        format=format,
        parts=tuple(parts),
        key=joint_key([part.key for part in parts]),
        bytes=sum(part.bytes for part in parts),
        source_columns=source_columns,
    )


def _choose_format(files: Sequence[SourceFile], requested: str | None) -> tuple[Format, list[SourceFile]]:
    """Return the format of files, and the files that have it.

    With a requested format, files that the user named are read whatever their extension is.

    Raises:
        InvalidInputError: an extension is unknown, there are several formats, or no file has the requested one.
    """
    if requested is not None:
        file_format = FORMATS[requested]
        chosen = [file for file in files if file.is_named or file.path.lower().endswith(file_format.extensions)]
        if not chosen:
            raise InvalidInputError(
                f"there is no file of format {requested} ({', '.join(file_format.extensions)}) beside {files[0].name}: "
                "to read files whatever they are called, name them by a glob"
            )
        return file_format, chosen
    formats: dict[str, SourceFile] = {}
    for file in files:
        formats.setdefault(_format_by_extension(file), file)
    if len(formats) > 1:
        (one, first), (other, second) = [*formats.items()][:2]
        raise InvalidInputError(f"{first.name} is {one} but {second.name} is {other}: say with format= which to read")
    return FORMATS[next(iter(formats))], list(files)


def _format_by_extension(file: SourceFile) -> str:
    for name, file_format in FORMATS.items():
        if file.path.lower().endswith(file_format.extensions):
            return name
    raise InvalidInputError(
        f"the format of {file.name} cannot be told from its extension: say it with format=, one of {', '.join(FORMATS)}"
    )
