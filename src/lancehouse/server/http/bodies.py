"""Reading a request's body: of a kind that is taken, no larger, and no slower, than is allowed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from lancehouse.server.http.errors import ContentTypeError, PayloadTooLargeError, TooSlowError
from lancehouse.server.http.memory_budget import Reservation

if TYPE_CHECKING:
    from starlette.types import Receive

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
ROWS = "application/vnd.apache.arrow.stream"
OF_BROWSERS = frozenset({"origin", "sec-fetch-site", "sec-fetch-mode", "referer"})
"""Header fields by which a browser says where a request comes from; a page cannot leave out all of them."""
PLAIN = ("identity", "")
PACKED = ("gzip", "x-gzip")
RATIO = 100
"""How many times larger a body may become when it is unpacked, where it becomes larger than what is `FREE`."""
FREE = 2**20
PER_OBJECT = 64
PER_ITEM = 48
"""Bytes that an object or list, and an item of one, take in memory once they are parsed, on average."""


class ClientDisconnectedError(Exception):
    """The client hung up before its request was whole."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body as it came, and the memory that is reserved for it."""

    raw: bytes
    is_gzipped: bool
    limit: int
    memory: Reservation

    def decompress(self) -> bytes:
        """The body itself. It takes a while, and reserves what the body takes and what its JSON will take.

        Raises:
            PayloadTooLargeError: it would be larger than is allowed.
            InvalidInputError: it is no gzip, or not whole.
            ServiceUnavailableError: there is no memory for it now.
        """
        body = _decompress(self.raw, self.limit, self.memory) if self.is_gzipped else self.raw
        self.memory.grow(_estimate_parsed_size(body))
        return body


def has_body(headers: Mapping[str, str]) -> bool:
    """Whether a request says that it has a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def check_content_type(headers: Mapping[str, str], expected: str) -> None:
    """Refuse a body of another type.

    A page of another site can make a browser send a body without a type, as a form or as text, but none of the types
    that are taken for changes here: for those, the browser asks the server first. Programs may leave the type out.

    Raises:
        ContentTypeError: it is of another type, or a browser sends it and does not say of which.
    """
    name = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name and not headers.keys() & OF_BROWSERS:
        return
    if name != expected:
        sent = f"is {name[:80]!r}" if name else "is missing"
        raise ContentTypeError(f"the Content-Type of the body {sent}; it must be {expected}")


def is_gzipped(headers: Mapping[str, str]) -> bool:
    """Whether the body is gzip.

    Raises:
        InvalidInputError: it is packed in another way.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in PLAIN + PACKED:
        raise InvalidInputError(f"Content-Encoding {coding[:40]!r} is not known here; gzip is")
    return coding in PACKED


async def read(
    receive: Receive, headers: Mapping[str, str], limit: int, timeout_s: float, memory: Reservation
) -> RequestBody:
    """The whole body, as it came; what is held of it is reserved in `memory`.

    Raises:
        PayloadTooLargeError, TooSlowError: it is not taken.
        InvalidInputError: it is packed in a way that is unknown.
        ServiceUnavailableError: there is no memory for it now.
        ClientDisconnectedError: the client hung up.
    """
    gzipped = is_gzipped(headers)
    announced = headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced) > limit:
        raise _too_large_error(limit)
    try:
        async with asyncio.timeout(timeout_s):
            return RequestBody(await _receive_all(receive, limit, memory), gzipped, limit, memory)
    except TimeoutError:
        raise TooSlowError(f"the body did not come within {timeout_s:g} s") from None


async def _receive_all(receive: Receive, limit: int, memory: Reservation) -> bytes:
    parts, size = [], 0
    while (message := await receive())["type"] == "http.request":
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large_error(limit)
        memory.grow(len(part))
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts) if len(parts) > 1 else part
    raise ClientDisconnectedError


def _decompress(raw: bytes, limit: int, memory: Reservation) -> bytes:
    """A gzip body. How large it will be stands at its end: no more is reserved and unpacked."""
    max_size = min(limit, max(FREE, RATIO * len(raw)))
    declared = int.from_bytes(raw[-4:], "little")
    size = min(declared, max_size)
    memory.grow(size)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(raw, size + 1)
    except zlib.error:
        raise InvalidInputError("the body is not gzip, as Content-Encoding says") from None
    if len(body) > max_size:
        raise _too_large_error(limit) if max_size == limit else compression_ratio_error()
    if len(body) != declared or not unpacker.eof or unpacker.unused_data:
        raise InvalidInputError("the body is gzip that ends too early, or goes on after its end")
    return body


def _estimate_parsed_size(body: bytes) -> int:
    """About how many bytes a body of JSON takes once it is parsed: `[]` takes two on the wire and 72 in memory."""
    objects = sum(map(body.count, (b"[", b"{", b":")))
    items = body.count(b",")
    # a text with one character beyond ASCII may take four bytes for each of its characters
    widest = 1 if body.isascii() and b"\\u" not in body else 4
    return objects * PER_OBJECT + items * PER_ITEM + len(body) * widest


def compression_ratio_error() -> PayloadTooLargeError:
    """The error of a body that unpacks to far more than any honest one."""
    return PayloadTooLargeError(
        f"the body becomes more than {RATIO} times larger when it is unpacked; send it unpacked"
    )


def _too_large_error(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body is larger than {limit} bytes, which is the most that this server takes")
