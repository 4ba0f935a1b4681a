"""The interface of a file format, and the choice of a format by name or file extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.text_options import TextOptions

COMPRESSIONS = ("", ".gz", ".bz2", ".zst", ".lz4")
"""Extensions of compressed text files that pyarrow reads as a stream."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The smallest part of a file that can be read by itself, such as a row group of Parquet."""

    bytes: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """What is known of a file before its rows are read."""

    schema: pa.Schema
    pieces: tuple[FilePiece, ...]
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, each with the error message; `schema` has a type for them nevertheless."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, or some pieces of it."""

    file: SourceFile
    bytes: int
    rows: int | None = None
    pieces: range | None = None
    """None for the whole file."""

    @property
    def key(self) -> str:
        """The same as long as the file is unchanged."""
        return self.file.key if self.pieces is None else f"{self.file.key} {self.pieces.start}-{self.pieces.stop}"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The columns to read from a file, and how."""

    schema: pa.Schema
    source_columns: frozenset[str] | None
    """All columns of the source; None where the user chose some of them, so that others do not matter."""
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
    """How files of one format are surveyed and read."""

    @property
    def is_text(self) -> bool:
        """Whether types are inferred from text; a column that has no value in any file becomes a string then."""

    @property
    def options(self) -> TextOptions:
        """The options with which files are read."""

    def with_options(self, options: Mapping[str, Any]) -> Format:
        """Return a copy of this format with options.

        Raises:
            InvalidInputError: the format has no such option.
        """

    @property
    def extensions(self) -> tuple[str, ...]:
        """File extensions, in lower case."""

    def survey(self, file: SourceFile) -> FileSurvey:
        """Find out the schema and the pieces of a file without reading all of it."""

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the requested schema."""


def choose_format(
    files: Sequence[SourceFile], requested: str | None, formats_by_name: Mapping[str, Format]
) -> tuple[str, list[SourceFile]]:
    """Return the name of the format of files, and the files that have it.

    With a requested format, files that the user named are read whatever their extension is.

    Raises:
        InvalidInputError: an extension is unknown, there are several formats, or no file has the requested one.
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
