"""Read the rows of a request from an Arrow IPC stream, at once or batch by batch in bounded memory."""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

LARGEST_METADATA = 8 * 2**20
"""Largest metadata of a message, in bytes."""
MOST_FIELDS = 10_000
"""Largest number of columns, nested ones included. Lance writes this many in seconds, ten times as many in minutes."""
DEEPEST = 64
"""Largest depth of nested columns."""
MOST_FREE_VALUES = 2**24
"""Largest number of values in a batch that take no bytes, such as nulls, in addition to eight per byte."""

CONTINUATION = b"\xff\xff\xff\xff"
PREFIX = 8
"""Size of the uncompressed length at the start of a compressed buffer, in bytes."""
SCHEMA, DICTIONARY, RECORDS = 1, 2, 3
"""Types of messages, as numbered in Arrow's Message.fbs."""


class IncomingBody(Protocol):
    """A request body that arrives from the network."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, in memory or mapped from disk."""

    def hold(self, size: int) -> None:
        """Reserve memory for what is decoded, in place of the previous reservation; raise if there is not enough."""


@dataclass(frozen=True, slots=True)
class FlatbufferTable:
    """A table in a flatbuffer, with fields by number. Offsets that lead out of the buffer raise `struct.error`."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> FlatbufferTable:
        """Return the root table of a flatbuffer."""
        return cls(data, _read_number(data, "<I", 0))

    def number(self, field: int, kind: str) -> int:
        """Return a number; 0 if the field is absent."""
        at = self._find_field(field)
        return _read_number(self.data, kind, at) if at else 0

    def table(self, field: int) -> FlatbufferTable | None:
        """Return a nested table; None if the field is absent."""
        at = self._find_field(field)
        return FlatbufferTable(self.data, at + _read_number(self.data, "<I", at)) if at else None

    def tables(self, field: int) -> Iterator[FlatbufferTable]:
        """Yield the tables of a vector."""
        first, count = self._find_list(field)
        for at in range(first, first + 4 * count, 4):
            yield FlatbufferTable(self.data, at + _read_number(self.data, "<I", at))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Yield the structs of a vector, each of two 64-bit integers."""
        first, count = self._find_list(field)
        if first + 16 * count > len(self.data):
            raise struct.error("a list goes on after the end")
        return struct.iter_unpack("<qq", self.data[first : first + 16 * count])

    def text(self, field: int) -> str:
        """Return a string; empty if the field is absent."""
        first, size = self._find_list(field)
        return bytes(self.data[first : first + size]).decode()

    def _find_list(self, field: int) -> tuple[int, int]:
        at = self._find_field(field)
        if not at:
            return 0, 0
        at += _read_number(self.data, "<I", at)
        return at + 4, _read_number(self.data, "<I", at)

    def _find_field(self, field: int) -> int:
        """Return the offset of a field; 0 if it is absent."""
        offsets = self.at - _read_number(self.data, "<i", self.at)
        slot = 4 + 2 * field
        if slot + 2 > _read_number(self.data, "<H", offsets):
            return 0
        offset = _read_number(self.data, "<H", offsets + slot)
        return self.at + offset if offset else 0


def _read_number(data: memoryview, kind: str, at: int) -> int:
    if at < 0:  # Python would count from the end of the buffer
        raise struct.error("an offset leads before the beginning")
    number: int = struct.unpack_from(kind, data, at)[0]
    return number


class CheckedStream(io.IOBase):
    """A file for Arrow to read a stream from, which returns each message only after it was checked.

    Reading raises `InvalidInputError` if a message is too large or malformed, and whatever the source raises if there
    is no memory for its decoded form.
    """

    def __init__(self, source: IncomingBody, about: str) -> None:
        """Read from `source`; `about` names the table in errors."""
        self._source = source
        self._about = about
        self._pieces: deque[memoryview] = deque()
        """Checked parts of a message that Arrow has not read yet."""
        self._dictionaries: dict[int, int] = {}
        """Size in bytes of each dictionary by id; they stay in memory for all following batches."""
        self._unpacked = 0
        """Size in bytes of the last batch after decompression; 0 if it was not compressed."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int, /) -> memoryview:
        """Return the next bytes, at most `size`: all that Arrow asks for, since it reads a message part by part."""
        if not self._pieces:
            self._pieces.extend(memoryview(piece) for piece in self._read_message() if len(piece))
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces.popleft()
        if size < len(piece):
            self._pieces.appendleft(piece[size:])
        return piece[:size]

    def hold(self, size: int) -> None:
        """Reserve memory for what is made of the last batch, in addition to the batch itself."""
        self._source.hold(sum(self._dictionaries.values()) + self._unpacked + size)

    def _read_message(self) -> list[bytes]:
        """Return the parts of a message; an incomplete one at the end of a stream is left for Arrow to report."""
        marks = [self._source.read(4)]
        if marks[0] == CONTINUATION:
            marks.append(self._source.read(4))
        size = int.from_bytes(marks[-1], "little", signed=True)
        if len(marks[-1]) < 4 or size <= 0:
            return marks
        if size > LARGEST_METADATA:
            raise self._refusal(
                f"the request's data is no Arrow IPC stream, or one that is not taken: a message has {size} bytes of "
                f"metadata, and {LARGEST_METADATA} are the most"
            )
        metadata = self._source.read(size)
        if len(metadata) < size:
            return [*marks, metadata]
        try:
            body = self._check_message(FlatbufferTable.root(memoryview(metadata)))
        except (struct.error, OverflowError, UnicodeDecodeError):
            raise self._refusal("the request's data is no Arrow IPC stream: a message cannot be understood") from None
        return [*marks, metadata, body]

    def _check_message(self, message: FlatbufferTable) -> bytes:
        """Refuse a message that is too large; return its body."""
        kind, header, length = message.number(1, "<B"), message.table(2), message.number(3, "<q")
        if header is None or length < 0:
            raise struct.error("a message without a header")
        if kind == SCHEMA:
            self._check_schema(header)
        body = self._source.read(length) if length else b""
        if len(body) < length:
            return body
        if kind == RECORDS:
            size = self._check_records(header, memoryview(body))
            self._unpacked = size if header.table(3) is not None else 0
            self.hold(0)
        elif kind == DICTIONARY:
            self._add_dictionary(header, memoryview(body))
        return body

    def _check_schema(self, schema: FlatbufferTable) -> None:
        count, levels = 0, [schema.tables(1)]
        while levels:
            column = next(levels[-1], None)
            if column is None:
                levels.pop()
                continue
            column.text(0)  # raises if the name is not valid UTF-8
            count += 1
            if count > MOST_FIELDS:
                raise self._refusal(f"the rows have more than {MOST_FIELDS} columns, with those inside others")
            levels.append(column.tables(5))
            if len(levels) > DEEPEST:
                raise self._refusal(f"the columns are nested in each other more than {DEEPEST} deep")

    def _add_dictionary(self, header: FlatbufferTable, body: memoryview) -> None:
        key, records, is_delta = header.number(0, "<q"), header.table(1), header.number(2, "<B")
        if records is None:
            raise struct.error("a dictionary without values")
        before = self._dictionaries.get(key, 0) if is_delta else 0
        self._dictionaries[key] = before + self._check_records(records, body)
        self._unpacked = 0
        self.hold(0)

    def _check_records(self, records: FlatbufferTable, body: memoryview) -> int:
        """Return the size in bytes of a batch after decompression."""
        buffers = list(records.pairs(2))
        if any(offset < 0 or size < 0 for offset, size in buffers):
            raise struct.error("a buffer of less than nothing")
        if sum(size for _, size in buffers) > len(body):
            raise self._refusal("a batch uses the same bytes for several buffers")
        is_compressed = records.table(3) is not None
        size = sum(_unpacked_size(body, *buffer) if is_compressed else buffer[1] for buffer in buffers)
        values = records.number(0, "<q") + sum(count for count, _ in records.pairs(1))
        if values > MOST_FREE_VALUES + 8 * size:
            raise self._refusal(f"a batch says that it has {values} values, in {size} bytes")
        return size

    def _refusal(self, why: str) -> InvalidInputError:
        return InvalidInputError(f"{self._about}: {why}")


def _unpacked_size(body: memoryview, offset: int, size: int) -> int:
    """Return the uncompressed size of a buffer in bytes; a declared -1 means that it is stored uncompressed."""
    if size == 0:
        return 0
    declared = _read_number(body, "<q", offset)
    if declared < -1 or size < PREFIX:
        raise struct.error("a buffer without its length")
    return declared if declared >= 0 else size - PREFIX


def viewed_size(array: pa.Array[Any]) -> int:
    """Return the total length of all strings that an array of views points to.

    Many views may point to the same bytes, and Lance copies each.
    """
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        views = array.buffers()[1]
        lengths = np.frombuffer(memoryview(views or b""), "<i4")[::4][array.offset : array.offset + len(array)]
        return int(lengths[array.is_valid().to_numpy(zero_copy_only=False)].clip(0).sum(dtype=np.int64))
    if isinstance(array, pa.StructArray):
        return sum(viewed_size(array.field(index)) for index in range(array.type.num_fields))
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return viewed_size(array.values)
    return 0


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
        return pa.RecordBatchReader.from_batches(self.schema, self._count_batches(reader))

    def _count_batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
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
            self.error = _stream_error(self._about, error)
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
        raise _stream_error(about, error) from error


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


def _stream_error(about: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{about}: the request's data is no Arrow IPC stream: {error}")
