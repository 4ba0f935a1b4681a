"""The formats of files, by name and by extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.text_options import TextOptions

COMPRESSIONS = ("", ".gz", ".bz2", ".zst", ".lz4")
"""Endings of compressed text that pyarrow reads as a stream."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The least of a file that can be read by itself."""

    bytes: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """What is known of a file before its rows are read."""

    schema: pa.Schema
    pieces: tuple[FilePiece, ...]
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, and why; `schema` has one for them all the same."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, or some pieces of it."""

    file: SourceFile
    bytes: int
    rows: int | None = None
    pieces: range | None = None
    """None for all of the file."""

    @property
    def key(self) -> str:
        """The same as long as the file is."""
        return self.file.key if self.pieces is None else f"{self.file.key} {self.pieces.start}-{self.pieces.stop}"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What is asked of a file."""

    schema: pa.Schema
    source_columns: frozenset[str] | None
    """All columns of the source; None where some of them were chosen, and others do not matter."""
    use_threads: bool

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


class Format(Protocol):
    """How files of one format are read."""

    @property
    def is_text(self) -> bool:
        """Whether types are what the values look like: a column without a value in any file is text then."""

    @property
    def options(self) -> TextOptions:
        """How its files are read."""

    def with_options(self, options: Mapping[str, Any]) -> Format:
        """The same with options.

        Raises:
            InvalidInputError: it has no such option.
        """

    @property
    def extensions(self) -> tuple[str, ...]:
        """The endings of names, in lower case."""

    def survey(self, file: SourceFile) -> FileSurvey:
        """Look at a file without reading all of it."""

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """The rows, in the schema that is wanted."""


def choose_format(
    files: Sequence[SourceFile], requested: str | None, formats_by_name: Mapping[str, Format]
) -> tuple[str, list[SourceFile]]:
    """The format of files, and those that have it. Files whose names were given are read as they are told to be.

    Raises:
        InvalidInputError: an extension that is not known, several formats, or no file of the format asked for.
    """
    if requested is not None:
        chosen = [
            file for file in files if file.is_named or file.path.lower().endswith(formats_by_name[requested].extensions)
        ]
        if not chosen:
            endings = ", ".join(formats_by_name[requested].extensions)
            raise InvalidInputError(
                f"there is no file of format {requested} ({endings}) beside {files[0].name}: "
                "to read files whatever they "
                "are called, name them by a glob"
            )
        return requested, chosen
    formats: dict[str, SourceFile] = {}
    for file in files:
        formats.setdefault(_format_by_extension(file, formats_by_name), file)
    if len(formats) > 1:
        (one, first), (other, second) = [*formats.items()][:2]
        raise InvalidInputError(f"{first.name} is {one} but {second.name} is {other}: say with format= which to read")
    return next(iter(formats)), list(files)


def _format_by_extension(file: SourceFile, formats_by_name: Mapping[str, Format]) -> str:
    for name, each in formats_by_name.items():
        if file.path.lower().endswith(each.extensions):
            return name
    raise InvalidInputError(
        f"the format of {file.name} cannot be told from its extension: say it with format=, one of "
        f"{', '.join(formats_by_name)}"
    )
