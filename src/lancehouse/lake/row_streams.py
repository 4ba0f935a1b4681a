"""Read the rows of a request from an Arrow IPC stream, at once or batch by batch in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from lancehouse.lake.checked_ipc import CheckedStream, IncomingBody, viewed_size

Data = bytes | io.IOBase
"""An Arrow IPC stream, as bytes or as a file that can be read once and is not held in memory."""


WRONG_EXTENSION = (TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""Exceptions of Python extension types whose storage type is wrong, such as `lance.blob.v2` of integers.

pyarrow passes them on, and each extension type checks, or fails to, in its own way.
"""
BATCH_BYTES = 1 << 20
"""Size in bytes of the parts into which a batch is split."""
PARTS_BEFORE_RELEASE = 16
"""Number of parts of a large batch after which memory is released."""


class RowStream:
    """Rows that arrive while they are written. Like a `pa.Table` that can be read once."""

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        about: str,
        let_go: Callable[[], None] | None = None,
        hold: Callable[[int], None] | None = None,
    ) -> None:
        """Read batch by batch.

        Args:
            reader: source of the batches.
            about: the table, for error messages.
            let_go: frees memory of what can be read again, called while a large batch is read.
            hold: reserves memory for what Lance copies of a batch; raises if there is not enough.
        """
        self.schema = reader.schema
        self.num_rows = 0
        """Number of rows read so far."""
        self.error: LanceNamespaceError | None = None
        """Why the stream broke off; the Rust code that reads it learns only that it did."""
        self._reader: pa.RecordBatchReader | None = reader
        self._about = about
        self._let_go = let_go
        self._hold = hold
        self._is_flat = all(_is_flat(field.type) for field in self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows.

        Raises:
            ConcurrentModificationError: the rows were used up by an earlier attempt.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            raise ConcurrentModificationError(f"{self._about}: it was changed meanwhile; send the rows again")
        return pa.RecordBatchReader.from_batches(self.schema, self._read_counted(reader))

    def _read_counted(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := _read_next(reader)) is not None:
                batch.validate(full=not self._is_flat)
                viewed = sum(map(viewed_size, batch.columns))
                if viewed and self._hold is not None:
                    self._hold(viewed)
                self.num_rows += batch.num_rows
                parts = self._split_batch(batch, max(batch.nbytes, viewed, 1))
                del batch  # frees it before the next one is read
                yield from parts
        except LanceNamespaceError as error:
            self.error = error
            raise
        except (pa.ArrowException, OSError) as error:
            self.error = _not_a_stream(self._about, error)
            raise self.error from error

    def _split_batch(self, batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
        """Split a batch of `size` bytes into parts: Lance reads several ahead, and senders may use huge batches."""
        rows = max(1, batch.num_rows * BATCH_BYTES // size)
        for number, first in enumerate(range(0, batch.num_rows, rows), 1):
            part = batch.slice(first, rows)
            if self._is_flat:
                part.validate(full=True)
            yield part
            if self._let_go is not None and number % PARTS_BEFORE_RELEASE == 0:
                self._let_go()


def _read_next(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


def _is_flat(dtype: pa.DataType) -> bool:
    """Return whether a slice of an array can be validated without reading the whole array."""
    if isinstance(dtype, pa.FixedSizeListType):
        return dtype.value_type.num_fields == 0 and pa.types.is_primitive(dtype.value_type)
    return dtype.num_fields == 0 and not isinstance(dtype, pa.BaseExtensionType | pa.DictionaryType)


RowSource = pa.Table | RowStream


def read_stream(data: Data, id: Sequence[str] | None) -> RowSource:
    """Open the Arrow IPC stream of a request for a table.

    Bytes are parsed completely, so that errors in them are found before anything is written.

    Raises:
        InvalidInputError: it is not an Arrow IPC stream.
    """
    about = f"table {'.'.join(id or ())}"
    if not data:
        raise InvalidInputError(f"{about}: the request has no data: an Arrow IPC stream is needed")
    try:
        if not isinstance(data, bytes):
            return _open_checked(data, about)
        with _open_reader(data, about) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise _not_a_stream(about, error) from error


def _open_checked(data: io.IOBase, about: str) -> RowStream:
    if not hasattr(data, "hold"):  # from this process, so it is trusted
        return RowStream(_open_reader(data, about), about)
    checked_stream = CheckedStream(cast("IncomingBody", data), about)
    return RowStream(_open_reader(checked_stream, about), about, getattr(data, "let_go", None), checked_stream.hold)


def _open_reader(data: Data, about: str) -> pa.RecordBatchReader:
    try:
        return pa.ipc.open_stream(data)
    except WRONG_EXTENSION as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise InvalidInputError(
            f"{about}: a column has another type than its Arrow extension stores: {error}"
        ) from error


@contextmanager
def raise_stream_error(rows: RowSource) -> Iterator[None]:
    """Raise the error that ended a stream of rows, in place of the one that it caused elsewhere."""
    try:
        yield
    except LanceNamespaceError as error:
        if isinstance(rows, RowStream) and rows.error is not None and rows.error is not error:
            raise rows.error from error
        raise


def _not_a_stream(about: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{about}: the request's data is no Arrow IPC stream: {error}")
