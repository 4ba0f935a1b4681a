"""Metadata files of Iceberg tables and views. A file never changes once it is written, so each is read once."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from threading import Lock

from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog.files import Files
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.tables import TableMetadata
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError

LIMIT_BYTES = 32 * 2**20
"""Of files held in memory."""

PARSED_BYTES = 2**19
"""Of those that are held parsed too."""

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Document:
    """A metadata file: where it is, and what it holds."""

    location: str
    all: bytes

    @classmethod
    def of(cls, location: str, table: TableMetadata) -> Document:
        """The file that a table's metadata make."""
        document = cls(location, _compact(iceberg_tables.dump(table)))
        vars(document)["table"] = table
        _PARSED.add(document)
        return document

    @cached_property
    def refs(self) -> bytes:
        """The same with only those snapshots that a branch or a tag names."""
        return _compact(iceberg_tables.refs_only(self.all))

    @cached_property
    def table(self) -> TableMetadata:
        """The same, parsed. It is kept for a while only."""
        _PARSED.add(self)
        return iceberg_tables.parse(self.all)

    @cached_property
    def etag(self) -> str:
        """Of this state of the table."""
        return sha256(self.location.encode()).hexdigest()[:32]


class _Parsed:
    """The documents that were parsed last: that takes ten times the room, so the others forget it."""

    def __init__(self, limit_bytes: int = PARSED_BYTES) -> None:
        self._limit = limit_bytes
        self._documents: deque[Document] = deque()
        self._bytes = 0
        self._lock = Lock()

    def add(self, document: Document) -> None:
        with self._lock:
            self._documents.append(document)
            self._bytes += len(document.all)
            while self._bytes > self._limit and len(self._documents) > 1:
                old = self._documents.popleft()
                self._bytes -= len(old.all)
                vars(old).pop("table", None)


_PARSED = _Parsed()


class Documents:
    """Files by their location, the least recently used of which are forgotten first."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[str, Document] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def cached(self, warehouse: Warehouse, location: str) -> Document | None:
        """A file that is held and, where that is cheap to tell, still there."""
        document = self._held.get(location)
        if document is None or not Files(warehouse).is_known(location):
            return None
        return document

    def load(self, warehouse: Warehouse, location: str) -> Document:
        """A file, from memory or from storage.

        Raises:
            MetadataNotFoundError: it is gone.
        """
        return self.cached(warehouse, location) or self.hold(_read(warehouse, location))

    def hold(self, document: Document) -> Document:
        """Keep a file that was just read or written."""
        with self._lock:
            if (before := self._held.pop(document.location, None)) is not None:
                self._bytes -= len(before.all)
            self._held[document.location] = document
            self._bytes += len(document.all)
            while self._bytes > self._limit and len(self._held) > 1:
                self._bytes -= len(self._held.popitem(last=False)[1].all)
        return document


def _compact(json: bytes) -> bytes:
    """A copy: what orjson returns takes 8 KB, however short it is."""
    return bytes(memoryview(json))


def _read(warehouse: Warehouse, location: str) -> Document:
    raw = Files(warehouse).read(location)
    return Document.of(location, iceberg_tables.parse(raw)) if raw.startswith(GZIP) else Document(location, raw)


@contextmanager
def provisional(warehouse: Warehouse, files: Collection[str]) -> Iterator[None]:
    """A block for which files were written: if it fails they go again, unless nobody knows whether it did."""
    try:
        yield
    except CommitStateUnknownError:
        raise
    except BaseException:
        discard(warehouse, files)
        raise


def discard(warehouse: Warehouse, files: Iterable[str]) -> None:
    """Delete files that nothing refers to; one that cannot be deleted does no harm."""
    for file in files:
        with suppress(LanceNamespaceError, OSError):
            Files(warehouse).delete(file)
