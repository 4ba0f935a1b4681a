"""HTTP responses: status, header fields and body, entity tags, and gzip compression."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from lancehouse.caches import BoundedCache

Header = tuple[bytes, bytes]

GZIP_LEAST = 32 * 1024
"""Smallest body to compress: below it compressing costs more than sending.

3 KB are a packet or two, and take 60 µs to compress.
"""
GZIP_KEPT = 32 * 1024 * 1024
"""Bytes of compressed table responses that are cached."""


@dataclass(slots=True)
class Response:
    """A response; its length and the request's id are added when it is sent."""

    status: int
    body: bytes = b""
    headers: list[Header] = field(default_factory=list)
    content_type: bytes = b"application/json"
    variant: bytes | None = None
    """Identifies the body, so that its compressed form can be cached; None: it is not cached."""
    why: tuple[str, str] | None = None
    """Type and message of the error, for the log."""
    parts: Iterator[bytes] | None = None
    """The body, where it is produced while it is sent; each part is made in a thread."""


NO_CONTENT = 204


def json(value: Any, status: int = 200) -> Response:
    """Build a JSON response."""
    return Response(status, orjson.dumps(value))


def no_content() -> Response:
    """Build an empty response of status 204."""
    return Response(NO_CONTENT)


def is_not_modified(tags: str | None, tag: bytes) -> bool:
    """Return whether an If-None-Match header contains this entity tag."""
    if not tags:
        return False
    if tags.strip() == "*":
        return True
    return tag.decode() in (candidate.strip().removeprefix("W/") for candidate in tags.split(","))


class GzipCache:
    """Compresses large responses and caches those of tables, so that each version is compressed once. Thread-safe."""

    def __init__(self, cache_bytes: int = GZIP_KEPT) -> None:
        self._limit = cache_bytes
        self._cache: BoundedCache[bytes, bytes] = BoundedCache(cache_bytes, len)

    def apply(self, response: Response, accepted: str | None) -> None:
        """Compress the body in place if the client accepts gzip."""
        if not accepted or not accepts_gzip(accepted):
            return
        key = response.variant
        packed = self._cache.get(key) if key else None
        if packed is None:
            packed = gzip_compress(response.body)
            if key is not None and len(packed) <= self._limit // 8:
                self._cache.put(key, packed)
        response.body = packed
        response.headers += ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


def gzip_compress(body: bytes) -> bytes:
    """Compress with gzip, at the fastest level."""
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(body) + packer.flush()


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header accepts gzip; `gzip;q=0` does not."""
    for part in accepted.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
