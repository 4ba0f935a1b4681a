"""Bodies that are not held in memory: uploads that a thread reads as a file, and responses made while they are sent."""

from __future__ import annotations

import asyncio
import io
import logging
import mmap
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from threading import Condition
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from lancehouse.server.http.bodies import (
    RATIO,
    ClientDisconnectedError,
    Reservation,
    compression_ratio_error,
    is_gzipped,
)
from lancehouse.server.http.errors import FORESEEN, TooSlowError
from lancehouse.server.http.pools import PoolKey, Pools
from lancehouse.server.setting_table import ServerLimits

if TYPE_CHECKING:
    from lancehouse.server.http.bodies import Receive, Send

BUFFER = 256 * 1024
FIRST = 64 * 1024
"""Bytes that must have arrived before a thread is used, so that slow clients do not occupy threads."""
MOST = 512 * 1024
"""Bytes that may wait for the thread; beyond it, no more is received."""
AHEAD = 4 * 1024 * 1024
"""Bytes that may wait in addition while half of the memory is free: rows arrive while those before are written."""
SPOOLED = 16 * 1024 * 1024
"""Bytes of one read beyond which they are written to disk."""


class Upload(io.RawIOBase):
    """A body that is being received. Created on the event loop, which receives it; read by a thread."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], timeout_s: float, memory: Reservation) -> None:
        """Start to receive; what is held in memory is reserved in `memory`.

        Raises:
            InvalidInputError: the compression is not supported.
            ServiceUnavailableError: other requests hold the memory that it needs.
        """
        self._decompressor = _create_decompressor() if is_gzipped(headers) else None
        self._received_bytes = self._decompressed_bytes = 0
        """Bytes of gzip, and what they became."""
        memory.grow(MOST + BUFFER)
        self._most = MOST + AHEAD if memory.try_grow(AHEAD) else MOST
        self._memory = memory
        self._receive = receive
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._changed = Condition()
        self._parts: deque[bytes] = deque()
        self._buffered_bytes = 0
        # Without either of the two header fields a request has no body.
        self._is_complete = headers.get("content-length") is None and "transfer-encoding" not in headers
        self._error: LanceNamespaceError | None = None
        self._is_disconnected = False
        self._rest = memoryview(b"")
        self._has_started, self._has_room = asyncio.Event(), asyncio.Event()
        self._receive_task = self._loop.create_task(self._receive_parts())

    def open_reader(self) -> UploadReader:
        """Return the file that a thread reads."""
        return UploadReader(self, self._memory)

    async def wait_for_start(self) -> None:
        """Wait until the first `FIRST` bytes, or the whole body, have arrived.

        Raises:
            TooSlowError: that took too long.
            ClientDisconnectedError: the client closed the connection.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._has_started.wait()
        except TimeoutError:
            raise TooSlowError(f"the body did not begin to come within {self._timeout_s:g} s") from None
        if self._is_disconnected:
            raise ClientDisconnectedError
        if self._error is not None:
            raise self._error

    def stop(self, error: LanceNamespaceError | None = None) -> None:
        """Receive no more; a thread that still reads gets the error. To be called on the event loop."""
        self._receive_task.cancel()
        if error is not None:
            self._fail(error)

    async def _receive_parts(self) -> None:
        try:
            while not self._is_complete:
                async with asyncio.timeout(self._timeout_s):
                    message = await self._receive()
                if message["type"] != "http.request":
                    self._is_disconnected = True
                    self._fail(InvalidInputError("the client hung up before its request was whole"))
                    return
                self._add_part(message.get("body", b""), is_last=not message.get("more_body"))
                # No timeout here: it is the thread that is slow, not the client. A wake-up cannot get lost between
                # `clear` and `wait`, because `set` runs on the event loop.
                while self._buffered_bytes > self._most and not self._is_complete:
                    self._has_room.clear()
                    await self._has_room.wait()
        except TimeoutError:
            self._fail(TooSlowError(f"nothing more of the body came within {self._timeout_s:g} s"))
        except asyncio.CancelledError:
            self._fail(ServiceUnavailableError("the request was given up before its body was whole"))
            raise
        finally:
            self._has_started.set()

    def _add_part(self, part: bytes, *, is_last: bool) -> None:
        with self._changed:
            self._parts.append(part)
            self._buffered_bytes += len(part)
            self._is_complete = is_last
            self._changed.notify()
        if self._buffered_bytes >= FIRST:
            self._has_started.set()

    def _fail(self, error: LanceNamespaceError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify()

    # Methods below are called by the reading thread.

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what has arrived, waiting for at least one byte; return the number of bytes, 0 at the end.

        Raises:
            TooSlowError: nothing arrived in time.
            InvalidInputError: the client closed the connection, or the body is not compressed as announced.
        """
        while not self._rest:
            part = self._next_part()
            if part is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _next_part(self) -> bytes | None:
        """Return the next part, decompressed; None at the end."""
        if self._decompressor is None:
            return self._take_part()
        if self._decompressor.unconsumed_tail:
            return self._decompress(self._decompressor.unconsumed_tail)
        part = self._decompressor.unused_data or self._take_part()
        if part is None and not self._decompressor.eof:
            raise InvalidInputError("the body is gzip that ends too early")
        if part and self._decompressor.eof:
            self._decompressor = _create_decompressor()  # a gzip body may consist of several members
        return self._decompress(part) if part else part

    def _take_part(self) -> bytes | None:
        with self._changed:
            while not self._parts and not self._is_complete and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            if not self._parts:
                return None
            part = self._parts.popleft()
            self._received_bytes += len(part)
            before = self._buffered_bytes
            after = self._buffered_bytes = before - len(part)
        # An asyncio.Event may be set on the event loop's thread only. It goes on when half is taken, not for each part:
        # otherwise the two threads would take turns.
        if after <= self._most // 2 < before:
            self._loop.call_soon_threadsafe(self._has_room.set)
        return part

    def _decompress(self, part: bytes) -> bytes:
        """Decompress at most a buffer at a time: a little gzip can become very large."""
        assert self._decompressor is not None
        try:
            decompressed = self._decompressor.decompress(part, BUFFER)
        except zlib.error:
            raise InvalidInputError("the body is not gzip, as Content-Encoding says") from None
        self._decompressed_bytes += len(decompressed)
        if self._decompressed_bytes > max(SPOOLED, RATIO * self._received_bytes):
            raise compression_ratio_error()
        return decompressed


def _create_decompressor() -> zlib._Decompress:
    return zlib.decompressobj(wbits=31)


class UploadReader(io.BufferedReader):
    """A body as a file. A large piece that is read at once, such as a batch of all rows, is put on disk and mapped."""

    def __init__(self, raw: io.RawIOBase, memory: Reservation) -> None:
        super().__init__(raw, BUFFER)
        self._memory = memory
        self._piece_bytes = self._reserved = 0
        """Bytes that are reserved for the last piece, and for what was made of pieces."""
        self._maps: WeakSet[mmap.mmap] = WeakSet()

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes; memory that was reserved for the piece before is released."""
        if size is None or size <= min(BUFFER, SPOOLED):
            return super().read(size)
        self._memory.shrink(self._piece_bytes)
        self._piece_bytes = size if size <= SPOOLED and self._memory.try_grow(size) else 0
        if self._piece_bytes:
            return super().read(size)
        return cast("bytes", self._spool(size))  # anything that has a buffer will do

    def hold(self, size: int) -> None:
        """Reserve memory for data made from the body, in place of what was reserved by the call before.

        Raises:
            PayloadTooLargeError: the request alone would need more than the whole budget.
            ServiceUnavailableError: other requests hold too much at the moment.
        """
        self._memory.shrink(self._reserved)
        self._reserved = 0
        self._memory.grow(size)
        self._reserved = size

    def let_go(self) -> None:
        """Drop the pages of mapped pieces from memory; they are read from disk again if they are still needed."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _spool(self, size: int) -> memoryview:
        try:
            with TemporaryFile(prefix="lancehouse-") as file:
                remaining = size
                while remaining and (part := super().read(min(remaining, MOST))):
                    file.write(part)
                    remaining -= len(part)
                file.flush()
                if remaining == size:
                    return memoryview(b"")
                mapped = mmap.mmap(file.fileno(), size - remaining, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ServiceUnavailableError(
                f"the server has no room for {size} bytes of rows ({error.strerror}); send them in smaller batches"
            ) from error
        # The file has no name any more: its space is freed with the last reference to the mapping.
        self._maps.add(mapped)
        return memoryview(mapped)


logger = logging.getLogger(__name__)

PIECE = 256 * 1024
"""Bytes passed to the connection at once; they stay in memory while a client reads slowly."""


class ResponseStreamer:
    """Sends bodies in parts, each of which a thread produces."""

    def __init__(self, pools: Pools, limits: ServerLimits) -> None:
        """Limit how many responses stream at once, and how long a client may stall."""
        self._pools = pools
        self._write_s = limits.write_s
        self._max_streams = limits.streams
        self._active = 0

    @property
    def count(self) -> int:
        """Number of responses that are being sent."""
        return self._active

    @property
    def is_full(self) -> bool:
        """Whether no further response may stream: each holds a few megabytes for as long as its client reads."""
        return self._active >= self._max_streams

    def busy_error(self) -> ServiceUnavailableError:
        """Build the error for a client that must wait because too many responses are streaming."""
        return ServiceUnavailableError(f"the server sends {self._max_streams} answers of many rows already; try again")

    async def discard(self, parts: Iterator[bytes], pool_key: PoolKey) -> None:
        """Close a body that is not sent, or not sent further."""
        await asyncio.wrap_future(self._pools.submit(pool_key, _close_parts, parts))

    async def send(
        self, parts: Iterator[bytes], pool_key: PoolKey, receive: Receive, send: Send, request_id: str
    ) -> tuple[str, str] | None:
        """Send all parts but not the end of the response.

        If it is incomplete, return type and text of the reason, else None.

        Args:
            parts: of the body; they are closed at the end.
            pool_key: the thread pool that produces them.
            receive: ASGI's, which reports that the client closed the connection.
            send: ASGI's.
            request_id: the request's id, for the log.
        """
        disconnected = asyncio.get_running_loop().create_task(_wait_for_disconnect(receive))
        self._active += 1
        try:
            while not disconnected.done():
                part = await asyncio.wrap_future(self._pools.submit(pool_key, next, parts, None))
                if part is None:
                    return None
                await self._send_part(part, send)
        except TimeoutError:
            return "ClientTooSlow", f"the client took nothing for {self._write_s:g} s"
        except FORESEEN as error:
            logger.error("request %s: the response was cut short: %s", request_id, error)
            return type(error).__name__, str(error)
        finally:
            self._active -= 1
            disconnected.cancel()
            await self.discard(parts, pool_key)
        return "ClientClosedRequest", "the client hung up"

    async def _send_part(self, part: bytes, send: Send) -> None:
        for start in range(0, len(part), PIECE):
            async with asyncio.timeout(self._write_s):
                await send({"type": "http.response.body", "body": part[start : start + PIECE], "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _close_parts(parts: Iterator[bytes]) -> None:
    """Close the iterator of a body, whether all of it was sent or not."""
    close = getattr(parts, "close", None)
    if close is not None:
        close()
