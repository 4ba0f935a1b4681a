"""Arrow IPC streams of strangers: what each message says that it will become is checked before Arrow makes it so.

Arrow trusts what it reads. A few bytes of compressed zeros become gigabytes, a column of nulls has as many rows as it
says it has, and a schema may have any number of columns. A message consists of metadata, which are a flatbuffer, and a
body; the metadata name all lengths, and a compressed buffer begins with the length that it will have.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

LARGEST_METADATA = 8 * 2**20
MOST_FIELDS = 10_000
"""Columns of a table, with those inside others. Lance writes this many in seconds, ten times as many in minutes."""
DEEPEST = 64
MOST_FREE_VALUES = 2**24
"""Values of a batch that take no bytes, such as nulls; besides, each byte can be eight of them."""

CONTINUATION = b"\xff\xff\xff\xff"
PREFIX = 8
"""Bytes of a compressed buffer that say its length."""
SCHEMA, DICTIONARY, RECORDS = 1, 2, 3
"""Headers of messages, as Arrow's Message.fbs numbers them."""


class IncomingBody(Protocol):
    """A body from the network."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, in memory or mapped from disk."""

    def hold(self, size: int) -> None:
        """Reserve memory for what is made of it, in place of what was reserved before; raise if there is none."""


@dataclass(frozen=True, slots=True)
class FlatbufferTable:
    """A table of a flatbuffer: fields by their numbers. What leads out of the buffer raises `struct.error`."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> FlatbufferTable:
        """The one that all others hang on."""
        return cls(data, _read_number(data, "<I", 0))

    def number(self, field: int, kind: str) -> int:
        """A number; 0 where it is left out."""
        at = self._find_field(field)
        return _read_number(self.data, kind, at) if at else 0

    def table(self, field: int) -> FlatbufferTable | None:
        """A table, if it is there."""
        at = self._find_field(field)
        return FlatbufferTable(self.data, at + _read_number(self.data, "<I", at)) if at else None

    def tables(self, field: int) -> Iterator[FlatbufferTable]:
        """The tables of a list."""
        first, count = self._find_list(field)
        for at in range(first, first + 4 * count, 4):
            yield FlatbufferTable(self.data, at + _read_number(self.data, "<I", at))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A list of structs, each of two long numbers."""
        first, count = self._find_list(field)
        if first + 16 * count > len(self.data):
            raise struct.error("a list goes on after the end")
        return struct.iter_unpack("<qq", self.data[first : first + 16 * count])

    def text(self, field: int) -> str:
        """A text; empty where it is left out."""
        first, size = self._find_list(field)
        return bytes(self.data[first : first + size]).decode()

    def _find_list(self, field: int) -> tuple[int, int]:
        at = self._find_field(field)
        if not at:
            return 0, 0
        at += _read_number(self.data, "<I", at)
        return at + 4, _read_number(self.data, "<I", at)

    def _find_field(self, field: int) -> int:
        """Where a field is; 0 for one that is left out."""
        offsets = self.at - _read_number(self.data, "<i", self.at)
        slot = 4 + 2 * field
        if slot + 2 > _read_number(self.data, "<H", offsets):
            return 0
        offset = _read_number(self.data, "<H", offsets + slot)
        return self.at + offset if offset else 0


def _read_number(data: memoryview, kind: str, at: int) -> int:
    if at < 0:  # Python would count from the end
        raise struct.error("an offset leads before the beginning")
    number: int = struct.unpack_from(kind, data, at)[0]
    return number


class CheckedStream(io.IOBase):
    """A stream as a file for Arrow, which gets each message once it is checked.

    Reading raises `InvalidInputError` if a message says that it is too much, or cannot be understood, and whatever the
    source raises if it has no memory for what a message becomes.
    """

    def __init__(self, source: IncomingBody, about: str) -> None:
        """Read from `source`, which errors say is `about` a table."""
        self._source = source
        self._about = about
        self._pieces: deque[memoryview] = deque()
        """What is checked and not read yet."""
        self._dictionaries: dict[int, int] = {}
        """Bytes of the dictionaries, by their ids: they stay for all batches that follow."""
        self._unpacked = 0
        """Bytes that the last batch has when it is decompressed."""

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int, /) -> memoryview:
        """The next bytes: all that are wanted, for Arrow wants a message piece by piece."""
        if not self._pieces:
            self._pieces.extend(memoryview(piece) for piece in self._read_message() if len(piece))
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces.popleft()
        if size < len(piece):
            self._pieces.appendleft(piece[size:])
        return piece[:size]

    def hold(self, size: int) -> None:
        """Reserve memory for what is made of the last batch besides itself."""
        self._source.hold(sum(self._dictionaries.values()) + self._unpacked + size)

    def _read_message(self) -> list[bytes]:
        """The pieces of a message; those of a stream that ends are left for Arrow to complain about."""
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
        """Refuse a message that would be too much; its body."""
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
            column.text(0)  # raises for what is no text
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
        """The bytes that a batch has once it is decompressed."""
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
    """What a compressed buffer will have; one that is not worth compressing says -1."""
    if size == 0:
        return 0
    declared = _read_number(body, "<q", offset)
    if declared < -1 or size < PREFIX:
        raise struct.error("a buffer without its length")
    return declared if declared >= 0 else size - PREFIX


def viewed_size(array: pa.Array[Any]) -> int:
    """The bytes of all texts that an array only points to: many may point to the same ones, and Lance copies each."""
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        views = array.buffers()[1]
        lengths = np.frombuffer(memoryview(views or b""), "<i4")[::4][array.offset : array.offset + len(array)]
        return int(lengths[array.is_valid().to_numpy(zero_copy_only=False)].clip(0).sum(dtype=np.int64))
    if isinstance(array, pa.StructArray):
        return sum(viewed_size(array.field(index)) for index in range(array.type.num_fields))
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return viewed_size(array.values)
    return 0
