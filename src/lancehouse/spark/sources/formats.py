"""The formats of files, by name and by extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.spark.sources.listing import File
from lancehouse.spark.sources.options import TextOptions

COMPRESSIONS = ("", ".gz", ".bz2", ".zst", ".lz4")
"""Endings of compressed text that pyarrow reads as a stream."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The least of a file that can be read by itself."""

    bytes: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a file before its rows are read."""

    schema: pa.Schema
    pieces: tuple[Piece, ...]
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, and why; `schema` has one for them all the same."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or some pieces of it."""

    file: File
    bytes: int
    rows: int | None = None
    pieces: range | None = None
    """None for all of the file."""

    @property
    def key(self) -> str:
        """The same as long as the file is."""
        return self.file.key if self.pieces is None else f"{self.file.key} {self.pieces.start}-{self.pieces.stop}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a file."""

    schema: pa.Schema
    known: frozenset[str] | None
    """All columns of the source; None where some of them were chosen, and others do not matter."""
    use_threads: bool

    def require_known(self, names: Iterable[str], file: File) -> None:
        """Check that a file has no column that would be lost because it was not seen when the source was opened.

        Raises:
            TableSchemaValidationError: it has one.
        """
        if self.known is None:
            return
        new = [name for name in names if name not in self.known and name not in self.schema.names]
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

    def configured(self, options: Mapping[str, Any]) -> Format:
        """The same with options.

        Raises:
            InvalidInputError: it has no such option.
        """

    @property
    def extensions(self) -> tuple[str, ...]:
        """The endings of names, in lower case."""

    def survey(self, file: File) -> Survey:
        """Look at a file without reading all of it."""

    def read(self, parts: Sequence[Part], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows, in the schema that is wanted."""


def format_of(files: Sequence[File], asked: str | None, known: Mapping[str, Format]) -> tuple[str, list[File]]:
    """The format of files, and those that have it. Files whose names were given are read as they are told to be.

    Raises:
        InvalidInputError: an extension that is not known, several formats, or no file of the format asked for.
    """
    if asked is not None:
        chosen = [file for file in files if file.named or file.path.lower().endswith(known[asked].extensions)]
        if not chosen:
            endings = ", ".join(known[asked].extensions)
            raise InvalidInputError(
                f"there is no file of format {asked} ({endings}) beside {files[0].name}: to read files whatever they "
                "are called, name them by a glob"
            )
        return asked, chosen
    formats: dict[str, File] = {}
    for file in files:
        formats.setdefault(_by_extension(file, known), file)
    if len(formats) > 1:
        (one, first), (other, second) = [*formats.items()][:2]
        raise InvalidInputError(f"{first.name} is {one} but {second.name} is {other}: say with format= which to read")
    return next(iter(formats)), list(files)


def _by_extension(file: File, known: Mapping[str, Format]) -> str:
    for name, each in known.items():
        if file.path.lower().endswith(each.extensions):
            return name
    raise InvalidInputError(
        f"the format of {file.name} cannot be told from its extension: say it with format=, one of {', '.join(known)}"
    )
