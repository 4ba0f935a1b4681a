"""Reading a request's body: no larger, and no slower, than is allowed."""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from lancehouse.server.errors import TooLargeError, TooSlowError

if TYPE_CHECKING:
    from starlette.types import Receive


UPLOAD_BUFFER = 256 * 1024


class GoneError(Exception):
    """The client hung up before its request was whole."""


async def read(receive: Receive, headers: Mapping[str, str], limit: int, timeout_s: float) -> bytes:
    """The whole body, unpacked.

    Raises:
        TooLargeError, TooSlowError: it is not taken.
        InvalidInputError: it is packed in a way that is unknown or broken.
        GoneError: the client hung up.
    """
    announced = headers.get("content-length")
    if announced is None and "transfer-encoding" not in headers:
        return b""
    if announced is not None and announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout_s):
            raw = await _received(receive, limit)
    except TimeoutError:
        raise TooSlowError(f"the body did not come within {timeout_s:g} s") from None
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return raw
    if coding not in ("gzip", "x-gzip"):
        raise InvalidInputError(f"Content-Encoding {coding[:40]!r} is not known here; gzip is")
    return unpacked(raw, limit)


async def _received(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        return body
    parts, size = [], 0
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise GoneError


def unpacked(raw: bytes, limit: int) -> bytes:
    """A gzip body; no more of it than is allowed is ever held.

    Raises:
        TooLargeError: it would be larger.
        InvalidInputError: it is no gzip, or not whole.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(raw, limit + 1)
    except zlib.error:
        raise InvalidInputError("the body is not gzip, as Content-Encoding says") from None
    if len(body) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidInputError("the body is gzip that ends too early, or goes on after its end")
    return body


def upload(receive: Receive, headers: Mapping[str, str], timeout_s: float) -> io.BufferedReader:
    """A body as a file, for a thread that reads it while it comes in; no more of it is held than a part or two.

    Called on the event loop.

    Raises:
        InvalidInputError: it is packed in a way that is not known here.
    """
    return io.BufferedReader(_Upload(receive, headers, timeout_s), UPLOAD_BUFFER)


class _Upload(io.RawIOBase):
    def __init__(self, receive: Receive, headers: Mapping[str, str], timeout_s: float) -> None:
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", "", "gzip", "x-gzip"):
            raise InvalidInputError(f"Content-Encoding {coding[:40]!r} is not known here; gzip is")
        self._unpack = zlib.decompressobj(wbits=31) if "gzip" in coding else None
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._rest = memoryview(b"")
        self._is_whole = headers.get("content-length") is None and "transfer-encoding" not in headers

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something.

        Raises:
            TooSlowError: nothing came in time.
            InvalidInputError: the client hung up, or the body is not packed as it says.
        """
        while not self._rest and not self._is_whole:
            self._rest = memoryview(self._unpacked(self._next()))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _next(self) -> bytes:
        coming = asyncio.run_coroutine_threadsafe(_message(self._receive), self._loop)
        try:
            message = coming.result(self._timeout_s)
        except TimeoutError:
            coming.cancel()
            raise TooSlowError(f"nothing more of the body came within {self._timeout_s:g} s") from None
        if message["type"] != "http.request":
            raise InvalidInputError("the client hung up before its request was whole")
        self._is_whole = not message.get("more_body")
        part: bytes = message.get("body", b"")
        return part

    def _unpacked(self, part: bytes) -> bytes:
        if self._unpack is None:
            return part
        try:
            unpacked = self._unpack.decompress(part)
        except zlib.error:
            raise InvalidInputError("the body is not gzip, as Content-Encoding says") from None
        if self._is_whole and not self._unpack.eof:
            raise InvalidInputError("the body is gzip that ends too early")
        return unpacked


async def _message(receive: Receive) -> Any:
    return await receive()


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body is larger than {limit} bytes, which is the most that this server takes")
