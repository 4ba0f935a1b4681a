"""In-memory cache of the metadata files of Iceberg tables and views; such a file never changes once written."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from threading import Lock

from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.tables import IcebergTableMetadata
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError

LIMIT_BYTES = 32 * 2**20
"""Most bytes of files held in memory."""

PARSED_BYTES = 2**19
"""Most bytes of files that are also held parsed."""

GZIP = b"\x1f\x8b"
"""First bytes of a gzip file."""


@dataclass(frozen=True)
class MetadataDocument:
    """A metadata file: its location and its content."""

    location: str
    full_json: bytes

    @classmethod
    def from_table(cls, location: str, table: IcebergTableMetadata) -> MetadataDocument:
        """Return the metadata file for a table's metadata."""
        document = cls(location, _copy_compact(iceberg_tables.dump(table)))
        vars(document)["table"] = table
        _PARSED.add(document)
        return document

    @cached_property
    def refs_json(self) -> bytes:
        """The content with only those snapshots that a branch or a tag points to."""
        return _copy_compact(iceberg_tables.keep_ref_snapshots(self.full_json))

    @cached_property
    def table(self) -> IcebergTableMetadata:
        """The parsed content. It is dropped from memory after a while, and then parsed again."""
        _PARSED.add(self)
        return iceberg_tables.parse(self.full_json)

    @cached_property
    def etag(self) -> str:
        """ETag of this state of the table. A metadata file never changes, so its location identifies it."""
        return sha256(self.location.encode()).hexdigest()[:32]


class _ParsedDocuments:
    """The documents that were parsed last.

    Parsed metadata take about ten times the memory of the file, so older documents drop theirs.
    """

    def __init__(self, limit_bytes: int = PARSED_BYTES) -> None:
        self._limit = limit_bytes
        self._documents: deque[MetadataDocument] = deque()
        self._bytes = 0
        self._lock = Lock()

    def add(self, document: MetadataDocument) -> None:
        with self._lock:
            self._documents.append(document)
            self._bytes += len(document.full_json)
            while self._bytes > self._limit and len(self._documents) > 1:
                old = self._documents.popleft()
                self._bytes -= len(old.full_json)
                vars(old).pop("table", None)


_PARSED = _ParsedDocuments()


class DocumentCache:
    """Metadata files by location; the least recently added are evicted first. Safe to use from several threads."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._documents: OrderedDict[str, MetadataDocument] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def load(self, warehouse: Warehouse, location: str, *, blocking: bool = True) -> MetadataDocument:
        """Return a file, from memory or from storage; on a local disk from memory only if it still exists there.

        Raises:
            MetadataNotFoundError: the file does not exist.
            WouldBlockError: it may not block, and memory does not have the file.
        """
        document = self._documents.get(location)
        if document is not None and WarehouseFiles(warehouse).may_exist(location):
            return document
        if not blocking:
            raise WouldBlockError
        return self.add(_read_document(warehouse, location))

    def add(self, document: MetadataDocument) -> MetadataDocument:
        """Add a file that was just read or written, and return it."""
        with self._lock:
            if (previous := self._documents.pop(document.location, None)) is not None:
                self._bytes -= len(previous.full_json)
            self._documents[document.location] = document
            self._bytes += len(document.full_json)
            while self._bytes > self._limit and len(self._documents) > 1:
                self._bytes -= len(self._documents.popitem(last=False)[1].full_json)
        return document


def _copy_compact(json: bytes) -> bytes:
    """Return a copy of minimal size: the buffer of orjson's result takes 8 KB, however short it is."""
    return bytes(memoryview(json))


def _read_document(warehouse: Warehouse, location: str) -> MetadataDocument:
    raw = WarehouseFiles(warehouse).read(location)
    return (
        MetadataDocument.from_table(location, iceberg_tables.parse(raw))
        if raw.startswith(GZIP)
        else MetadataDocument(location, raw)
    )


@contextmanager
def discard_on_failure(warehouse: Warehouse, files: Collection[str]) -> Iterator[None]:
    """Delete files again if the block fails for which they were written, unless its outcome is unknown.

    After `CommitStateUnknownError` the database may already point to them.
    """
    try:
        yield
    except CommitStateUnknownError:
        raise
    except BaseException:
        discard_files(warehouse, files)
        raise


def discard_files(warehouse: Warehouse, files: Iterable[str]) -> None:
    """Delete files that nothing refers to; failures are ignored, because such a file does no harm."""
    for file in files:
        with suppress(LanceNamespaceError, OSError):
            WarehouseFiles(warehouse).delete(file)
