"""HTTP responses: building table and list responses, entity tags, and gzip compression."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from threading import Lock
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from lancehouse.catalog.metadata_loader import LoadResult

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


def identifiers(levels: Sequence[str], names: Sequence[str], token: str | None) -> Response:
    """Build a ListTablesResponse; of ten thousand names, without an object for each."""
    namespace = orjson.dumps(levels).decode()
    listed = f'}},{{"namespace":{namespace},"name":'.join(map(encode_basestring, names))
    inside = f'{{"namespace":{namespace},"name":{listed}}}' if names else ""
    return Response(200, b'{"identifiers":[%b],"next-page-token":%b}' % (inside.encode(), orjson.dumps(token)))


def no_content() -> Response:
    """Build an empty response of status 204."""
    return Response(NO_CONTENT)


def etag(loaded: LoadResult, snapshots: str) -> bytes:
    """Return the entity tag; responses with other snapshots have another one."""
    return b'"%b"' % f"{loaded.etag}-{snapshots}".encode("ascii", "replace")


def table_response(loaded: LoadResult, snapshots: str = "all") -> Response:
    """Build a LoadTableResult from the metadata's bytes, without parsing them."""
    tag = etag(loaded, snapshots)
    parts = [b"{"]
    if loaded.metadata_location is not None:
        parts += (b'"metadata-location":', orjson.dumps(loaded.metadata_location), b",")
    parts += (b'"metadata":', loaded.metadata, b',"config":', orjson.dumps(loaded.config))
    if loaded.credentials:
        parts += (b',"storage-credentials":', orjson.dumps(loaded.credentials))
    parts.append(b"}")
    # Credentials differ by caller and expire, so a body that holds some must not be shared through the cache.
    variant = None if loaded.credentials else b"%b %d" % (tag, sum(map(len, parts)))
    return Response(200, b"".join(parts), [(b"etag", tag)], variant=variant)


def commit_response(loaded: LoadResult) -> Response:
    """Build a CommitTableResponse, which always has a metadata location."""
    body = b'{"metadata-location":%b,"metadata":%b}' % (orjson.dumps(loaded.metadata_location), loaded.metadata)
    return Response(200, body, [(b"etag", etag(loaded, "all" if loaded.has_all_snapshots else "refs"))])


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
        self._size = 0
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def apply(self, response: Response, accepted: str | None) -> None:
        """Compress the body in place if the client accepts gzip and the body is large enough."""
        if len(response.body) < GZIP_LEAST or not accepted or not accepts_gzip(accepted):
            return
        key = response.variant
        packed = self._cache.get(key) if key else None
        if packed is None:
            packed = gzip_compress(response.body)
            self._cache_compressed(key, packed)
        response.body = packed
        response.headers += ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))

    def _cache_compressed(self, key: bytes | None, packed: bytes) -> None:
        if key is None or len(packed) > self._limit // 8:
            return
        with self._lock:
            self._size += len(packed) - len(self._cache.pop(key, b""))
            self._cache[key] = packed
            while self._size > self._limit:
                self._size -= len(self._cache.popitem(last=False)[1])


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
