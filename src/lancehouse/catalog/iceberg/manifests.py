"""Read an Iceberg table's manifests: only from the table's own folders, and within limits.

Clients write metadata and manifests, so neither may make the server open other files, take all of its memory, or tell
what its memory holds.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.exceptions import ResolveError
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import FixedType, IcebergType, ListType, MapType, StructType

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.locations import key as location_key

METADATA_PATH = "write.metadata.path"
"""Property with the folder of a table's metadata files, if it is not below the table's location."""

UNREADABLE = (
    *(OSError, ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError),
    *(
        NotImplementedError,
        RecursionError,
        MemoryError,
        ImportError,
        SystemError,
        ResolveError,
        struct.error,
        zlib.error,
    ),
)
"""Errors that decoding a broken manifest may raise."""


ReadFile = Callable[[str], bytes]
"""Returns the content of a file, as `WarehouseFiles.read` does."""

MAX_BYTES = 16 << 20
"""Largest block of a manifest or manifest list after decompression."""

_MAX_SCHEMA_BYTES = 1 << 20
_VERSION = 3
"""Format version whose schema is used to read manifests of all versions."""


class ManifestReader:
    """Reads manifest lists and manifests, at most so many bytes of them after decompression."""

    def __init__(self, read_file: ReadFile, max_bytes: int = 16 * MAX_BYTES) -> None:
        self._read_file = read_file
        self._max_bytes = max_bytes
        self._bytes_left = max_bytes

    def read_list(self, path: str) -> Iterator[ManifestFile]:
        """Yield the manifests that a manifest list names.

        Raises:
            LanceNamespaceError: the file cannot be read.
            Exception: one of `UNREADABLE`: it is broken or too large.
        """
        return self._read_avro(
            path,
            MANIFEST_LIST_FILE_SCHEMAS[_VERSION],
            {-1: ManifestFile, 508: PartitionFieldSummary},
            {517: ManifestContent},
        )

    def read_entries(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """Yield the entries of a manifest, also those of deleted files.

        Raises:
            LanceNamespaceError: the file cannot be read.
            Exception: one of `UNREADABLE`: it is broken or too large.
        """
        entries = self._read_avro(
            manifest.manifest_path,
            MANIFEST_ENTRY_SCHEMAS[_VERSION],
            {-1: ManifestEntry, 2: DataFile},
            {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        )
        for entry in entries:
            yield _inherit_from_manifest(entry, manifest)

    def _read_avro(self, path: str, schema: Schema, types: dict[int, Any], enums: dict[int, Any]) -> Iterator[Any]:
        decoder = _Decoder(self._read_file(path))
        header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
        reader = resolve_reader(_parse_schema(header), schema, types, enums)
        decompress = _DECOMPRESS[header.meta.get(AVRO_CODEC_KEY, "null")]
        while not decoder.is_at_end:
            count = decoder.read_int()
            block = decompress(decoder.read_bytes())
            if decoder.read(SYNC_SIZE) != header.sync:
                raise ValueError("a block does not end with the sync marker")
            self._bytes_left -= len(block)
            if self._bytes_left < 0:
                raise ValueError(f"the manifests hold more than {self._max_bytes} bytes")
            # Each entry takes at least one byte, for its status or its path.
            if not 0 <= count <= len(block):
                raise ValueError(f"a block of {len(block)} bytes cannot hold {count} entries")
            entries = _Decoder(block)
            for _ in range(count):
                yield reader.read(entries)


class _Decoder(BinaryDecoder):
    """Decodes Avro values and raises at the end of the data; pyiceberg's compiled decoder reads on past it."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def tell(self) -> int:
        return self._position

    def read(self, n: int) -> bytes:
        begin = self._position
        end = begin + n
        if n < 0 or end > len(self._data):
            raise ValueError(f"{n} bytes at offset {begin} of {len(self._data)}")
        self._position = end
        return self._data[begin:end]

    def skip(self, n: int) -> None:
        self.read(n)

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def read_int(self) -> int:
        # Most values of a manifest are integers, so this is written for speed.
        data, position = self._data, self._position
        byte = data[position]
        number = byte & 0x7F
        shift = 7
        while byte & 0x80:
            if shift > 63:
                raise ValueError("an integer of more than 64 bits")
            position += 1
            byte = data[position]
            number |= (byte & 0x7F) << shift
            shift += 7
        self._position = position + 1
        return (number >> 1) ^ -(number & 1)

    def skip_int(self) -> None:
        self.read_int()


def _parse_schema(header: AvroFileHeader) -> Schema:
    if header.magic != MAGIC:
        raise ValueError("not an Avro file")
    if len(header.meta["avro.schema"]) > _MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema is larger than {_MAX_SCHEMA_BYTES} bytes")
    schema = header.get_schema()
    # A list of values that take no bytes could have any length: to skip it would take for ever.
    for field in index_by_id(schema).values():
        match field.field_type:
            case ListType(element_type=element) if _takes_no_bytes(element):
                raise ValueError(f"the elements of {field.name} take no bytes")
            case MapType(key_type=key, value_type=value) if _takes_no_bytes(key) and _takes_no_bytes(value):
                raise ValueError(f"the entries of {field.name} take no bytes")
    return schema


def _takes_no_bytes(dtype: IcebergType) -> bool:
    match dtype:
        case StructType(fields=fields):
            return all(field.required and _takes_no_bytes(field.field_type) for field in fields)
        case FixedType():
            return len(dtype) == 0
    return False


def _check_size(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise ValueError(f"a block is larger than {MAX_BYTES} bytes")
    return data


def _decompress_snappy(data: bytes) -> bytes:
    # The block starts with its size as a varint, and ends with a checksum of four bytes.
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > MAX_BYTES:
        raise ValueError(f"a block is larger than {MAX_BYTES} bytes")
    block = bytes(pa.Codec("snappy").decompress(data[:-4], decompressed_size=size, asbytes=True))
    if zlib.crc32(block).to_bytes(4, "big") != data[-4:]:
        raise ValueError("the checksum of a block is wrong")
    return block


def _decompress_stream(codec: Literal["bz2", "zstd"], data: bytes) -> bytes:
    return _check_size(pa.CompressedInputStream(pa.BufferReader(data), codec).read(MAX_BYTES + 1))


_DECOMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: _check_size(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, MAX_BYTES + 1)),
    "bzip2": partial(_decompress_stream, "bz2"),
    "zstandard": partial(_decompress_stream, "zstd"),
    "snappy": _decompress_snappy,
}


def manifest_roots(location: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of the folders in which a table's manifests may lie."""
    return tuple(key for place in (location, properties.get(METADATA_PATH)) if place and (key := _location_key(place)))


def is_below(roots: Sequence[str], file: str) -> bool:
    """Return whether a file lies below one of these keys, however its location is written."""
    key = _location_key(file)
    return key is not None and any(key.startswith(root) and key != root for root in roots)


def outside_error(snapshot_id: int | None, what: str) -> IllegalArgumentError:
    """Build the error about a manifest or manifest list that lies elsewhere."""
    return IllegalArgumentError(
        f"snapshot {snapshot_id}: its {what} lies neither below the table's location nor below its {METADATA_PATH}, "
        "and this server takes manifests from nowhere else"
    )


def _location_key(place: str) -> str | None:
    try:
        return location_key(place, "iceberg")
    except (InvalidInputError, ValueError, OSError):
        return None
