"""Base class of file formats with rows and columns, and error messages that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.jobs.sources.conform import conform
from lancehouse.jobs.sources.errors import translate_read_errors, wrong_encoding_message
from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.formats import FilePart, ReadRequest
from lancehouse.jobs.sources.text_options import TextOptions

BLOCK_BYTES = 4 << 20
"""Size of the blocks in which text is read; types are inferred from the first block of a file."""


@dataclass(frozen=True)
class Tabular(ABC):
    """A format whose files hold rows and columns."""

    options: TextOptions = field(default_factory=TextOptions)

    is_text: ClassVar[bool] = False
    name: ClassVar[str]
    known: ClassVar[tuple[str, ...]] = ()
    """Names of the options that the format has."""

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy of this format with options."""
        return replace(self, options=TextOptions.parse(self.name, options, self.known))

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


_DIGITS = 100
_NOT_TEXT = "invalid UTF8"
"""Part of pyarrow's message for bytes that are not valid text."""


@contextmanager
def explain_type_errors(file: SourceFile, options: TextOptions) -> Iterator[None]:
    """Replace pyarrow's error for text that does not fit its type by one that says where the types come from.

    Raises:
        InvalidInputError: the file is not in the given encoding.
        TableSchemaValidationError: a value has another type.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        if _NOT_TEXT in str(error):
            raise InvalidInputError(wrong_encoding_message(file.name, options.encoding)) from error
        raise TableSchemaValidationError(
            f"{file.name} does not fit the types of its first {BLOCK_BYTES >> 20} MB, or of the table: {error}; give a "
            "type that fits, such as options={'types': {'column': 'string'}}, or create the table with such types and "
            "append to it"
        ) from error


def parse_integer(digits: str) -> int:
    """Parse an integer, truncated to 100 digits.

    That is enough to see that it exceeds 64 bits; Python refuses to parse integers of thousands of digits.
    """
    return int(digits.strip()[:_DIGITS])


def is_large(number: float) -> bool:
    """Return whether a number is out of the range of 64-bit integers."""
    return not -(2**63) <= number < 2**63


def too_large_message(column: str, value: str) -> str:
    """Return the error message for integers that exceed 64 bits, and that a double would round."""
    return (
        f"column {column} has integers of more than 64 bits, such as {value}: give its type, such as "
        f"options={{'types': {{'{column}': 'decimal(38,0)'}}}}"
    )
