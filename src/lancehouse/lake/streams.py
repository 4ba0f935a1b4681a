"""The rows of a request: all at hand, or a stream of which no more is held than what is just being written."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

Data = bytes | io.IOBase
"""An Arrow IPC stream. What can be read but once is not held in memory."""


class Stream:
    """Rows that come while they are written. Like a `pa.Table` that can be read but once."""

    def __init__(self, reader: pa.RecordBatchReader, about: str) -> None:
        self.schema = reader.schema
        self.num_rows = 0
        """So far."""
        self.error: LanceNamespaceError | None = None
        """Why it ended too early: who reads it in Rust only hears that it did."""
        self._reader: pa.RecordBatchReader | None = reader
        self._about = about

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows.

        Raises:
            ConcurrentModificationError: they are gone: a first try has used them up.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            raise ConcurrentModificationError(f"{self._about}: it was changed meanwhile; send the rows again")
        return pa.RecordBatchReader.from_batches(self.schema, self._counted(reader))

    def _counted(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                batch.validate(full=True)
                self.num_rows += batch.num_rows
                yield batch
        except LanceNamespaceError as error:
            self.error = error
            raise
        except (pa.ArrowException, OSError) as error:
            self.error = _no_stream(self._about, error)
            raise self.error from error


Given = pa.Table | Stream


def read_stream(data: Data, id: Sequence[str] | None) -> Given:
    """The rows of an Arrow IPC stream for a table. Of bytes, what is broken is found before anything is written.

    Raises:
        InvalidInputError: it is none.
    """
    about = f"table {'.'.join(id or ())}"
    if not data:
        raise InvalidInputError(f"{about}: the request has no data: an Arrow IPC stream is needed")
    try:
        if not isinstance(data, bytes):
            return Stream(pa.ipc.open_stream(data), about)
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise _no_stream(about, error) from error


@contextmanager
def reading(rows: Given) -> Iterator[None]:
    """Say of rows that broke off why they did, whoever found it out."""
    try:
        yield
    except LanceNamespaceError as error:
        if isinstance(rows, Stream) and rows.error is not None and rows.error is not error:
            raise rows.error from error
        raise


def _no_stream(about: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{about}: the request's data is no Arrow IPC stream: {error}")
