"""Reading of request bodies: content type, gzip, limits on size and time, and one memory budget for all of a worker."""

from __future__ import annotations

import asyncio
import threading
import weakref
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.parsing import count_json, parse_alone
from lancehouse.server.http.errors import ContentTypeError, PayloadTooLargeError, TooSlowError
from lancehouse.server.http.responses import Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class MemoryBudget:
    """Counts the bytes reserved for request bodies. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._lock = threading.Lock()

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Open an empty reservation; it is released when the context ends, or later if `release_after` was called."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            if not reservation.is_handed_over:
                reservation.release()

    def try_adjust(self, size: int, limit: int) -> bool:
        """Reserve `size` bytes and return True, unless more than `limit` would be in use; a negative size releases."""
        with self._lock:
            if size > 0 and self.used + size > limit:
                return False
            self.used += size
            return True


class Reservation:
    """The bytes that one request has reserved."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.size = 0
        self.is_handed_over = self._is_over = False
        self._budget = budget

    def grow(self, size: int) -> None:
        """Reserve `size` more bytes.

        Raises:
            PayloadTooLargeError: the request alone would need more than the whole budget.
            ServiceUnavailableError: other requests hold too much at the moment.
        """
        total = self._budget.total
        if self.size + size > total:
            raise PayloadTooLargeError(
                f"the request takes more than {total} bytes of memory, which is all that the server has for requests; "
                "send it in parts"
            )
        if self._is_over or not self._budget.try_adjust(size, total):
            raise ServiceUnavailableError("the server holds as many requests as its memory allows; try again")
        self.size += size

    def try_grow(self, size: int) -> bool:
        """Reserve `size` more bytes if half of the budget stays free; return whether it did."""
        if self._is_over or not self._budget.try_adjust(size, self._budget.total // 2):
            return False
        self.size += size
        return True

    def shrink(self, size: int) -> None:
        """Release some bytes."""
        size = min(size, self.size)
        self._budget.try_adjust(-size, 0)
        self.size -= size

    def release(self) -> None:
        """Release all bytes; the reservation cannot grow again."""
        self._is_over = True
        self.shrink(self.size)

    def release_after(self, work: Future[Response]) -> None:
        """Release all bytes once `work` is done and its response is sent, even if the request has timed out before.

        Rows of a response are produced while they are sent, and the iterator that produces them holds on to the
        request.
        """
        self.is_handed_over = True
        work.add_done_callback(self._release_when_sent)

    def _release_when_sent(self, work: Future[Response]) -> None:
        if work.cancelled() or work.exception() is not None or work.result().parts is None:
            self.release()
        else:
            weakref.finalize(work.result().parts, self.release)


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
ROWS = "application/vnd.apache.arrow.stream"
OF_BROWSERS = frozenset({"origin", "sec-fetch-site", "sec-fetch-mode", "referer"})
"""Header fields by which a browser says where a request comes from; a page cannot suppress all of them."""
PLAIN = ("identity", "")
PACKED = ("gzip", "x-gzip")
RATIO = 100
"""How many times larger a body may become when it is decompressed, beyond `FREE` bytes."""
FREE = 2**20
LARGE = 2**20
"""Bytes beyond which bodies are counted and joined one at a time."""
PER_OBJECT = 64
PER_ITEM = 48
"""Bytes that an object or list (`PER_OBJECT`), and an item of one, take in memory once they are parsed, on average."""
MAX_ITEM_BYTES = 64 * 2**20
"""Most bytes of objects, lists and items in one JSON body: a table of 100,000 columns has as many."""


class ClientDisconnectedError(Exception):
    """The client closed the connection before its request was complete."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body as it was received, and the memory that is reserved for it."""

    parts: list[bytes]
    is_gzipped: bool
    limit: int
    memory: Reservation

    def decompress(self) -> bytes:
        """Return the decompressed body, and reserve memory for it and for its parsed JSON. It may take a while.

        Raises:
            PayloadTooLargeError: it would be larger than allowed.
            InvalidInputError: it is not gzip, or incomplete.
            ServiceUnavailableError: other requests hold the memory that it needs.
        """
        if self.is_gzipped:
            self.parts[:] = [_decompress(b"".join(self.parts), self.limit, self.memory)]
        # To count and join 16 MB holds up other threads for some milliseconds: only one body at a time does.
        with parse_alone() if sum(map(len, self.parts)) > LARGE else nullcontext():
            self.memory.grow(_estimate_parsed_size(self.parts))
            self.parts[:] = [b"".join(self.parts)]
        return self.parts[0]


def check_content_type(headers: Mapping[str, str], expected: str) -> None:
    """Refuse a body of another content type.

    A page of another site can make a browser send a body without a type, as a form or as text, but none of the types
    that changes have here: for those, the browser asks the server's permission first. Programs may omit the type.

    Raises:
        ContentTypeError: the body is of another type, or a browser sends it without one.
    """
    name = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name and not headers.keys() & OF_BROWSERS:
        return
    if name != expected:
        sent = f"is {name[:80]!r}" if name else "is missing"
        raise ContentTypeError(f"the Content-Type of the body {sent}; it must be {expected}")


def is_gzipped(headers: Mapping[str, str]) -> bool:
    """Return whether the body is compressed with gzip.

    Raises:
        InvalidInputError: it is compressed in another way.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in PLAIN + PACKED:
        raise InvalidInputError(f"Content-Encoding {coding[:40]!r} is not known here; gzip is")
    return coding in PACKED


async def read(
    receive: Receive, headers: Mapping[str, str], limit: int, timeout_s: float, memory: Reservation
) -> RequestBody:
    """Receive the whole body, still compressed; its size is reserved in `memory`.

    Raises:
        PayloadTooLargeError: it is larger than `limit`.
        TooSlowError: it did not arrive within `timeout_s`.
        InvalidInputError: its compression is not supported.
        ServiceUnavailableError: other requests hold the memory that it needs.
        ClientDisconnectedError: the client closed the connection.
    """
    is_packed = is_gzipped(headers)
    content_length = headers.get("content-length")
    if content_length is not None and content_length.isdecimal() and int(content_length) > limit:
        raise _too_large_error(limit)
    try:
        async with asyncio.timeout(timeout_s):
            return RequestBody(await _receive_all(receive, limit, memory), is_packed, limit, memory)
    except TimeoutError:
        raise TooSlowError(f"the body did not come within {timeout_s:g} s") from None


def take(body: bytes, limit: int, memory: Reservation) -> RequestBody:
    """Return a body that was received whole and is not compressed, as `read` does.

    Raises:
        PayloadTooLargeError: it is larger than `limit`.
        ServiceUnavailableError: other requests hold the memory that it needs.
    """
    if len(body) > limit:
        raise _too_large_error(limit)
    memory.grow(len(body))
    return RequestBody([body], False, limit, memory)


async def _receive_all(receive: Receive, limit: int, memory: Reservation) -> list[bytes]:
    parts, size = [], 0
    while (message := await receive())["type"] == "http.request":
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large_error(limit)
        memory.grow(len(part))
        parts.append(part)
        if not message.get("more_body"):
            return parts
    raise ClientDisconnectedError


def _decompress(raw: bytes, limit: int, memory: Reservation) -> bytes:
    """Decompress a gzip body. Its last four bytes give its size: no more is reserved and decompressed."""
    max_size = min(limit, max(FREE, RATIO * len(raw)))
    declared = int.from_bytes(raw[-4:], "little")
    size = min(declared, max_size)
    memory.grow(size)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # One byte more than declared is enough to notice a body that is larger than its trailer says.
        body = unpacker.decompress(raw, size + 1)
    except zlib.error:
        raise InvalidInputError("the body is not gzip, as Content-Encoding says") from None
    if len(body) > max_size:
        raise _too_large_error(limit) if max_size == limit else compression_ratio_error()
    if len(body) != declared or not unpacker.eof or unpacker.unused_data:
        raise InvalidInputError("the body is gzip that ends too early, or goes on after its end")
    return body


def _estimate_parsed_size(parts: list[bytes]) -> int:
    """Estimate the bytes that a JSON body takes once it is parsed: `[]` has two on the wire and takes 72 in memory.

    Raises:
        PayloadTooLargeError: it has more objects, lists and items than allowed.
    """
    item_bytes, widest = 0, 1
    for part in parts:
        containers, items = count_json(part)
        item_bytes += containers * PER_OBJECT + items * PER_ITEM
        if item_bytes > MAX_ITEM_BYTES:
            raise PayloadTooLargeError("the JSON has too many values; send fewer at a time")
        # A str with one character beyond ASCII may take four bytes for each of its characters. The escape of one may
        # be divided between two parts.
        if not part.isascii() or b"\\u" in part or part.endswith(b"\\"):
            widest = 4
    return item_bytes + sum(map(len, parts)) * widest


def compression_ratio_error() -> PayloadTooLargeError:
    """Build the error for a body that decompresses to suspiciously many bytes."""
    return PayloadTooLargeError(
        f"the body becomes more than {RATIO} times larger when it is unpacked; send it unpacked"
    )


def _too_large_error(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body is larger than {limit} bytes, which is the most that this server takes")
