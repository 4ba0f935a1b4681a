"""File formats: their base class, the options of text formats, and the formats that are no text."""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from math import ceil
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.credentials import EXPIRES, REGIONS, SECRETS, SPELLINGS, TUNING
from lancehouse.jobs.sources.file_listing import SourceFile, translate_read_errors
from lancehouse.jobs.sources.schemas import conform
from lancehouse.lake.chunked_scan import group_up_to
from lancehouse.schema.blob_references import blob_field, to_blobs
from lancehouse.schema.spark import parse_field, parse_schema
from lancehouse.suggestions import suggest

UTF8 = "utf-8"
_STORES = ("aws_", "azure_", "google_", "s3_", "gcs_", "adls_", "object_store_")
_OF_STORES = frozenset(
    {name for names in SPELLINGS for name in names}
    | {*SECRETS, *TUNING, *REGIONS, EXPIRES}
    | {"allow_http", "allow_invalid_certificates", "skip_signature", "unsigned_payload", "proxy_url", "user_agent"}
)
_NO_TYPES = pa.schema([])


def is_storage_option(name: str) -> bool:
    """Return whether an option is a storage option, not one of the file format."""
    return name.lower() in _OF_STORES or name.lower().startswith(_STORES)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for reading text files."""

    delimiter: str | None = None
    """Delimiter of fields; by default a comma, in `.tsv` a tab."""
    quote: str | None = '"'
    """Quote character around fields that hold a delimiter or a newline; None if there is none."""
    escape: str | None = None
    """Escape character; None if there is none."""
    header: bool = True
    """Whether the first line has the names of the columns."""
    skip_rows: int = 0
    """Number of lines to skip before the header."""
    null_values: tuple[str, ...] = ("",)
    encoding: str = UTF8
    types: pa.Schema = field(default=_NO_TYPES)
    """Types of columns for which they are not to be inferred."""
    schema: pa.Schema | None = None
    """All columns of the files, in this order; None to infer them."""

    @classmethod
    def parse(cls, format: str, options: Mapping[str, Any], option_names: Sequence[str]) -> Self:
        """Parse the options that a user gave.

        Args:
            format: name of the format, for errors.
            options: the options, as text or as Python values.
            option_names: names of the options that the format has.

        Raises:
            InvalidInputError: an option is unknown, or its value is invalid.
        """
        for name in options:
            if name not in option_names:
                others = f"expected one of {', '.join(option_names)}" if option_names else "the format has no options"
                hint = suggest(name, [*option_names, *sorted(_OF_STORES)], others)
                raise InvalidInputError(f"{format} has no option {name!r}; {hint}")
        values = {name: _parse_option(name, value) for name, value in options.items()}
        if {"types", "schema"} <= values.keys():
            raise InvalidInputError("the options types and schema are not given together: schema has all types")
        if values.get("header") is False and values.get("schema") is None:
            raise InvalidInputError(
                "files without a header need the option schema, with the name and type of each column, such as "
                "'id bigint, name string'"
            )
        return cls(**values)

    @property
    def key(self) -> str:
        """Text that is equal for equal options; empty for the defaults."""
        if self == type(self)():
            return ""
        return " ".join(f"{option.name}={getattr(self, option.name)!s}" for option in fields(self))

    @property
    def known_types(self) -> dict[str, Any]:
        """Types that are not to be inferred, by column."""
        return {column.name: column.type for column in self.schema or self.types}

    def apply_schema(self, schema: pa.Schema, about: str) -> pa.Schema:
        """Return the schema of files: the one that was given, or the one that was inferred.

        Args:
            schema: the schema that was inferred.
            about: names the files, for errors.

        Raises:
            InvalidInputError: the files have a column that the given schema lacks.
        """
        if self.schema is None:
            return schema
        if unknown := [name for name in schema.names if name not in self.schema.names]:
            raise InvalidInputError(f"{about} has a column {', '.join(unknown)} that the option schema has not")
        return self.schema

    def apply_types(self, schema: pa.Schema, about: str) -> pa.Schema:
        """Return the schema of files and of their partition folders, with the types that were given.

        Args:
            schema: the schema that was inferred.
            about: names the files, for errors.

        Raises:
            TableColumnNotFoundError: a type was given for a column that does not exist.
        """
        for name in self.types.names:
            if name not in schema.names:
                raise TableColumnNotFoundError(
                    f"the option types has a column {name!r}, and {about} has not; {suggest(name, schema.names)}"
                )
        return pa.schema(
            [self.types.field(column.name) if column.name in self.types.names else column for column in schema]
        )


def _parse_option(name: str, value: Any) -> Any:
    try:
        return _PARSERS[name](value)
    except LanceNamespaceError as error:
        raise InvalidInputError(f"the option {name}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidInputError(f"the option {name} must be {_EXPECTED[name]}, not {value!r}") from error


def _parse_character(value: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(value, value)
    if len(text.encode()) != 1 or text in "\r\n":
        raise ValueError
    return text


def _parse_optional_character(value: str | None) -> str | None:
    return None if value in (None, "", "none") else _parse_character(str(value))


def _parse_flag(value: bool | str) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]


def _parse_count(value: int | str) -> int:
    if isinstance(value, bool | float) or (number := int(value)) < 0:
        raise ValueError
    return number


def _parse_null_values(value: str | Sequence[str]) -> tuple[str, ...]:
    parsed = json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    texts = [parsed] if isinstance(parsed, str) else list(parsed)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    return tuple(dict.fromkeys(["", *texts]))


def _parse_encoding(value: str) -> str:
    " ".encode(value)  # raises for codecs of Python that are no encodings of text, such as base64
    return codecs.lookup(value).name


def _parse_types(value: Any) -> pa.Schema:
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return pa.schema([parse_field(name, dtype) for name, dtype in value.items()])
    return parse_schema(value)


_PARSERS: Mapping[str, Any] = {
    "delimiter": _parse_character,
    "quote": _parse_optional_character,
    "escape": _parse_optional_character,
    "header": _parse_flag,
    "skip_rows": _parse_count,
    "null_values": _parse_null_values,
    "encoding": _parse_encoding,
    "types": _parse_types,
    "schema": parse_schema,
}
_EXPECTED: Mapping[str, str] = {
    "delimiter": "one character, or 'tab'",
    "quote": "one character, or 'none'",
    "escape": "one character, or 'none'",
    "header": "true or false",
    "skip_rows": "a number of lines",
    "null_values": "a text, or a list of texts",
    "encoding": "the name of an encoding, such as latin-1",
    "types": "names and types of columns, such as {'zip': 'string'}",
    "schema": "the names and types of all columns, such as 'id bigint, name string'",
}
ALL_OPTIONS = tuple(_PARSERS)


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """What is known of a file before its rows are read."""

    schema: pa.Schema
    pieces: tuple[int, ...]
    """Sizes in bytes of the smallest parts that can be read by themselves, such as row groups of Parquet."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, each with the error message; `schema` has a type for them nevertheless."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, or some pieces of it."""

    file: SourceFile
    bytes: int
    pieces: range | None = None
    """None for the whole file."""

    @property
    def key(self) -> str:
        """The same as long as the file is unchanged."""
        return self.file.key if self.pieces is None else f"{self.file.key} {self.pieces.start}-{self.pieces.stop}"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The columns to read from a file."""

    schema: pa.Schema
    source_columns: frozenset[str] | None
    """All columns of the source; None where the user chose some of them, so that others do not matter."""

    def require_known(self, names: Iterable[str], file: SourceFile) -> None:
        """Check that a file has no column that would be lost because it was not seen when the source was opened.

        Raises:
            TableSchemaValidationError: it has one.
        """
        if self.source_columns is None:
            return
        new = [name for name in names if name not in self.source_columns and name not in self.schema.names]
        if new:
            raise TableSchemaValidationError(
                f"{file.name} has a column {', '.join(new)} that was not seen when the source was opened, as it is not "
                "at the beginning: name the columns that are wanted"
            )


@dataclass(frozen=True)
class Format(ABC):
    """How files of one format are surveyed and read; can be sent to other processes."""

    options: TextOptions = field(default_factory=TextOptions)
    """The options with which files are read."""

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]]
    """File extensions, in lower case."""
    option_names: ClassVar[tuple[str, ...]] = ()
    """Names of the options that the format has."""
    is_text: ClassVar[bool] = False
    """Whether types are inferred from text; a column that has no value in any file becomes a string then."""

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy of this format with options.

        Raises:
            InvalidInputError: the format has no such option.
        """
        return replace(self, options=TextOptions.parse(self.name, options, self.option_names))

    @abstractmethod
    def survey(self, file: SourceFile) -> FileSurvey:
        """Find out the schema and the pieces of a file without reading all of it."""

    @abstractmethod
    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the requested schema."""


class Tabular(Format):
    """A format whose files hold rows and columns."""

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts, one part after the other, in the requested schema."""
        for part in parts:
            file = part.file
            with translate_read_errors(file.name, file.store.options):
                for batch in self.raw(part, wanted):
                    if batch.num_rows:
                        yield conform(batch, wanted.schema, file.partition, file.name)

    @abstractmethod
    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the file's own types, with the requested columns and perhaps others."""


# Parquet, Arrow and images


def split_into_runs(sizes: Sequence[int], target: int) -> list[range]:
    """Cut a sequence into runs of about the same total size, none much larger than `target`."""
    total = sum(sizes)
    count = ceil(total / target)
    ranges: list[range] = []
    start = total_before = 0
    for place, size in enumerate(sizes):
        # End the run before this item or after it, whichever is nearer to the ideal end.
        if place > start and (total_before + size / 2) * count > total * (len(ranges) + 1):
            ranges.append(range(start, place))
            start = place
        total_before += size
    return [*ranges, range(start, len(sizes))]


BATCH_BYTES = 8 << 20
BATCH_ROWS = 32 << 10
WINDOW_BYTES = 32 << 20
"""Total size of the row groups, or of the images, that are read at once; a larger image is read alone."""


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
            pieces = tuple(file.size * group.total_byte_size // total for group in groups)
            return FileSurvey(parquet.schema_arrow, pieces)

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
                rows = _batch_rows(parquet.metadata, numbers)
                yield from parquet.iter_batches(rows, row_groups=numbers, columns=columns)


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
            return FileSurvey(reader.schema, (file.size // max(count, 1),) * count)

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, in the batches of the file."""
        # Arrow takes columns by their positions, when a file is opened: it is opened first to learn them.
        with _open_reader(part.file) as (reader, _):
            names = reader.schema.names
            wanted.require_known(names, part.file)
        columns = [place for place, name in enumerate(names) if name in wanted.schema.names]
        options = pa.ipc.IpcReadOptions(included_fields=columns)
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


WINDOW_FILES = 1024
"""Largest number of images that are read at once."""
READERS = 8
"""Number of threads that read images."""

MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".png": "image/png",
        ".webp": "image/webp",
        ".gif": "image/gif",
        ".bmp": "image/bmp",
        ".tif": "image/tiff",
        ".tiff": "image/tiff",
    }
)

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("path", pa.string()),
    pa.field("folder", pa.string()),
    pa.field("media_type", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("modified", pa.timestamp("us", "UTC")),
    blob_field("image"),
]
IMAGES = pa.schema(_COLUMNS)
"""Schema of images; `folder` is the name of the folder that contains the image, which is its label in many data sets.
"""


class Images(Format):
    """Images. Nothing is decoded: the bytes of a file are a blob, its media type comes from the extension."""

    name = "images"
    extensions = tuple(MEDIA_TYPES)

    def survey(self, file: SourceFile) -> FileSurvey:
        """Return the schema, which is the same for all images; the file is not opened."""
        return FileSurvey(IMAGES, (file.size,))

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows; several files are read at once."""
        needs_bytes = "image" in wanted.schema.names
        with ThreadPoolExecutor(READERS) as readers:
            for window in _group_files([part.file for part in parts]):
                contents = list(readers.map(_read_file, window)) if needs_bytes else [None] * len(window)
                yield conform(_to_batch(window, contents), wanted.schema, window[0].partition, window[0].name)


def _group_files(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield groups of files to read at once, each with the same partition values."""
    for _, together in groupby(files, lambda file: file.partition):
        yield from group_up_to(together, lambda file: file.size, WINDOW_BYTES, WINDOW_FILES)


def _read_file(file: SourceFile) -> bytes:
    with (
        translate_read_errors(file.name, file.store.options),
        file.store.file_system().open_input_file(file.path) as opened,
    ):
        return opened.readall()


def _to_batch(files: Sequence[SourceFile], contents: Sequence[bytes | None]) -> pa.RecordBatch:
    paths = [PurePosixPath(file.path) for file in files]
    columns: list[Any] = [
        pa.array([file.name for file in files]),
        pa.array([path.parent.name for path in paths]),
        pa.array([MEDIA_TYPES.get(path.suffix.lower()) for path in paths], pa.string()),
        pa.array([file.size for file in files], pa.int64()),
        pa.array([file.modified_ns // 1000 for file in files], pa.timestamp("us", "UTC")),
        to_blobs(pa.array(contents, pa.large_binary())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=IMAGES)
