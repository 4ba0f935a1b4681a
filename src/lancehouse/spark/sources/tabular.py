"""What the formats of rows and columns share: parts are read one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.spark.sources.conforming import conformed
from lancehouse.spark.sources.errors import reading
from lancehouse.spark.sources.formats import Part, Wanted
from lancehouse.spark.sources.listing import File

BLOCK_BYTES = 4 << 20
"""What is read of text at once; the first block of a file tells its types."""


class Tabular(ABC):
    """A format whose files hold rows and columns."""

    is_text = False

    def read(self, parts: Sequence[Part], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows, in the schema that is wanted."""
        for part in parts:
            file = part.file
            with reading(file.name, file.store.options):
                for batch in self.raw(part, wanted):
                    if batch.num_rows:
                        yield conformed(batch, wanted.schema, file.partition, file.name)

    @abstractmethod
    def raw(self, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows as the file has them, with the columns that are wanted and perhaps others."""


@contextmanager
def inferred(file: File) -> Iterator[None]:
    """Say of text that does not fit its types where they come from.

    Raises:
        TableSchemaValidationError: a value is of another type.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise TableSchemaValidationError(
            f"{file.name} does not fit the types of its first {BLOCK_BYTES >> 20} MB, or of the table: {error}; create "
            "the table with types that fit, then append to it"
        ) from error
