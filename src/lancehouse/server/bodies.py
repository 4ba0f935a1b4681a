"""Reading a request's body: no larger, and no slower, than is allowed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from lancehouse.server.errors import TooLargeError, TooSlowError

if TYPE_CHECKING:
    from starlette.types import Receive


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


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body is larger than {limit} bytes, which is the most that this server takes")
