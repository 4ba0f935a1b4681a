"""What the formats of rows and columns share: parts are read one after the other."""

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
"""What is read of text at once; the first block of a file tells its types."""


@dataclass(frozen=True)
class Tabular(ABC):
    """A format whose files hold rows and columns."""

    options: TextOptions = field(default_factory=TextOptions)

    is_text: ClassVar[bool] = False
    name: ClassVar[str]
    known: ClassVar[tuple[str, ...]] = ()
    """The names of its options."""

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with options."""
        return replace(self, options=TextOptions.parse(self.name, options, self.known))

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """The rows, in the schema that is wanted."""
        for part in parts:
            file = part.file
            with translate_read_errors(file.name, file.store.options):
                for batch in self.raw(part, wanted):
                    if batch.num_rows:
                        yield conform(batch, wanted.schema, file.partition, file.name)

    @abstractmethod
    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """The rows as the file has them, with the columns that are wanted and perhaps others."""


_DIGITS = 100
_NOT_TEXT = "invalid UTF8"
"""What pyarrow says of bytes that are no text."""


@contextmanager
def explain_type_errors(file: SourceFile, options: TextOptions) -> Iterator[None]:
    """Say of text that does not fit its types where they come from.

    Raises:
        InvalidInputError: it is not in the encoding that is named.
        TableSchemaValidationError: a value is of another type.
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
    """An integer from its digits, cut where they are many more than 64 bits hold: Python does not parse thousands."""
    return int(digits.strip()[:_DIGITS])


def is_large(number: float) -> bool:
    """Whether a number is beyond integers of 64 bits."""
    return not -(2**63) <= number < 2**63


def too_large_message(column: str, value: str) -> str:
    """What is said of integers that no type of 64 bits holds, and a double would round."""
    return (
        f"column {column} has integers of more than 64 bits, such as {value}: give its type, such as "
        f"options={{'types': {{'{column}': 'decimal(38,0)'}}}}"
    )
