"""Read an Iceberg table's manifests: only from the table's own folders, and within limits.

Clients write metadata and manifests, so neither may make the server open other files, take all of its memory, or tell
what its memory holds.

pyiceberg's decoder of Avro is not used for them: it reads on past the end of its data, and whoever writes a file also
writes the schema by which it is decoded, so that a few bytes could become any number of values.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
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
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from lancehouse.catalog.errors import IllegalArgumentError, MetadataNotFoundError
from lancehouse.locations import key as location_key

MAX_BLOCK_BYTES = 16 << 20
"""Largest block of a file after decompression."""
MAX_HEADER_BYTES = 8 << 20
MAX_SCHEMA_BYTES = 1 << 20
MAX_TYPES = 5_000
"""Most types in the schema of a file, those inside others included."""
MAX_DECIMAL_BYTES = 16

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BYTES_PER_VALUE = 16
"""Bytes of a text or binary value that count as one value of a budget."""

INVALID = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError),
    *(RecursionError, MemoryError, struct.error, zlib.error),
)
"""Errors that decoding an invalid file may raise."""


class AvroLimitError(Exception):
    """A file is larger, or becomes larger, than allowed."""


@dataclass(slots=True)
class Budget:
    """How many values, or bytes, may still be decoded; of values, long texts and binary ones count for several."""

    limit: int
    unit: str = "values"
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Allow as many values as at first."""
        self.left = self.limit

    def spend(self, count: int) -> None:
        """Take some of what is left.

        Raises:
            AvroLimitError: less is left.
        """
        self.left -= count
        if self.left < 0:
            raise AvroLimitError(f"more than {self.limit:,} {self.unit}")


@dataclass(frozen=True)
class RecordShape:
    """What a caller wants of the records of a file."""

    schema: Schema
    """Fields by id; others in the file are skipped. A struct without fields is read whole."""
    types: Mapping[int, Callable[..., Record]]
    """Classes of structs by the id of their field; -1 is the record itself."""
    enums: Mapping[int, Callable[[Any], Enum]]
    """Classes of values by the id of their field."""
    nullable: Collection[int] = ()
    """Ids of required fields that may be null all the same."""
    skipped: Collection[int] = ()
    """Ids of optional fields that are left out: they are None."""


def read_records(
    data: bytes, shape: RecordShape, values: Budget, block_bytes: Budget, *, renew: bool = False
) -> Iterator[Any]:
    """Yield the records of a file.

    Args:
        data: the file.
        shape: which fields are decoded, and to what.
        values: how many values may be decoded.
        block_bytes: how many bytes all blocks may have after decompression.
        renew: whether `values` is meant for each record, because the caller keeps none of them.

    Raises:
        AvroLimitError: the file exceeds a limit.
        Exception: one of `INVALID`: the file is not valid, or has not the shape.
    """
    header = Decoder(data[:MAX_HEADER_BYTES], Budget(MAX_HEADER_BYTES // _BYTES_PER_VALUE))
    if header.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    meta = _read_meta(header)
    sync = header.read(_SYNC_BYTES)
    if len(meta["avro.schema"]) > MAX_SCHEMA_BYTES:
        raise AvroLimitError(f"a schema of more than {MAX_SCHEMA_BYTES:,} bytes")
    record = _Compiler(shape).compile(json.loads(meta["avro.schema"]), shape.schema.as_struct(), -1)
    if not record.takes_bytes:
        raise ValueError("its records take no bytes")
    decompress = _DECOMPRESS[meta.get("avro.codec", b"null").decode()]
    blocks = Decoder(data, values, header.position)
    while blocks.remaining:
        count = blocks.read_int()
        block = decompress(blocks.read_bytes(charge=False))
        if blocks.read(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end with the sync marker")
        block_bytes.spend(len(block))
        decoder = Decoder(block, values)
        decoder.check_count(count)
        for _ in range(count):
            if renew:
                values.renew()
            yield record.read(decoder)


def _read_meta(decoder: Decoder) -> dict[str, bytes]:
    meta: dict[str, bytes] = {}
    for count in _read_counts(decoder):
        for _ in range(count):
            key = decoder.read_bytes().decode()
            value = decoder.read_bytes()
            if key in ("avro.schema", "avro.codec"):
                meta[key] = value
    return meta


class Decoder:
    """Decodes Avro's primitive values, and raises at the end of the data."""

    __slots__ = ("budget", "data", "position")

    def __init__(self, data: bytes, budget: Budget, position: int = 0) -> None:
        self.data = data
        self.budget = budget
        self.position = position

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return len(self.data) - self.position

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        begin = self.position
        end = begin + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"{size} bytes at offset {begin} of {len(self.data)}")
        self.position = end
        return self.data[begin:end]

    def skip(self, size: int) -> None:
        """Pass over the next bytes."""
        if not 0 <= size <= self.remaining:
            raise ValueError(f"{size} bytes at offset {self.position} of {len(self.data)}")
        self.position += size

    def read_int(self) -> int:
        """Return an integer: of at most 64 bits, zigzag, seven bits a byte."""
        # Most values of a manifest are integers, so this is written for speed.
        data, position = self.data, self.position
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
        self.position = position + 1
        return (number >> 1) ^ -(number & 1)

    def skip_ints(self, count: int) -> None:
        """Pass over integers."""
        data, position = self.data, self.position
        for _ in range(count):
            while data[position] & 0x80:
                position += 1
            position += 1
        self.position = position

    def read_bytes(self, *, charge: bool = True) -> bytes:
        """Return bytes that are stored with their length."""
        size = self.read_int()
        if charge and size >= _BYTES_PER_VALUE:
            self.budget.spend(size // _BYTES_PER_VALUE)
        return self.read(size)

    def read_string(self) -> str:
        """Return a text."""
        return self.read_bytes().decode()

    def check_count(self, count: int) -> None:
        """Check that so many values, of at least a byte each, can follow.

        Raises:
            ValueError: fewer bytes are left.
        """
        if not 0 <= count <= self.remaining:
            raise ValueError(f"{count} values in {self.remaining} bytes")


def _read_counts(decoder: Decoder) -> Iterator[int]:
    """Yield the number of values in each block of an array or a map."""
    while count := decoder.read_int():
        if count < 0:  # then the size of the block follows, for those who skip it
            count = -count
            decoder.read_int()
        decoder.check_count(count)
        decoder.budget.spend(count)
        yield count


def _skip_blocks(skip_values: Callable[[Decoder, int], None], decoder: Decoder) -> None:
    """Pass over an array or a map."""
    while count := decoder.read_int():
        if count < 0:
            decoder.skip(decoder.read_int())
        else:
            decoder.check_count(count)
            skip_values(decoder, count)


@dataclass(frozen=True, slots=True)
class _Type:
    """How values of a type are decoded."""

    kind: str
    read: Callable[[Decoder], Any]
    skip: Callable[[Decoder], object]
    takes_bytes: bool = True
    is_nullable: bool = False


def _read_float(layout: struct.Struct, decoder: Decoder) -> float:
    value: float = layout.unpack(decoder.read(layout.size))[0]
    return value


def _fixed_type(kind: str, size: int, convert: Callable[[bytes], Any]) -> _Type:
    if not isinstance(size, int) or not 0 <= size <= MAX_BLOCK_BYTES:
        raise ValueError(f"a fixed type of {size} bytes")
    return _Type(kind, lambda decoder: convert(decoder.read(size)), lambda decoder: decoder.skip(size), size > 0)


def _to_decimal(scale: int, data: bytes) -> Decimal:
    if len(data) > MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(data)} bytes")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale)


_PRIMITIVES: Mapping[str, _Type] = {
    "null": _Type("null", lambda _: None, lambda _: None, takes_bytes=False, is_nullable=True),
    "boolean": _Type("boolean", lambda decoder: decoder.read(1) == b"\x01", lambda decoder: decoder.skip(1)),
    "int": _Type("int", Decoder.read_int, Decoder.read_int),
    "long": _Type("int", Decoder.read_int, Decoder.read_int),
    "float": _Type("float", partial(_read_float, struct.Struct("<f")), lambda decoder: decoder.skip(4)),
    "double": _Type("float", partial(_read_float, struct.Struct("<d")), lambda decoder: decoder.skip(8)),
    "bytes": _Type("bytes", Decoder.read_bytes, lambda decoder: decoder.skip(decoder.read_int())),
    "string": _Type("string", Decoder.read_string, lambda decoder: decoder.skip(decoder.read_int())),
}
_KINDS: Mapping[type[IcebergType], str] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "int",
    StringType: "string",
    BinaryType: "bytes",
    ListType: "list",
    MapType: "map",
    StructType: "struct",
}
"""Kinds of the types that a shape may ask for."""


class _Compiler:
    """Turns the schema of a file into functions that decode it."""

    def __init__(self, shape: RecordShape) -> None:
        self._shape = shape
        self._count = 0
        self._schema_by_name: dict[str, Any] = {}

    def compile(self, schema: Any, expected: IcebergType | None, id: int | None) -> _Type:
        """Return how values of a type are decoded.

        Args:
            schema: the type in Avro's words.
            expected: the type that the shape asks for; None for any.
            id: id of the field.
        """
        self._count += 1
        if self._count > MAX_TYPES:
            raise AvroLimitError(f"more than {MAX_TYPES:,} types")
        compiled = self._compile(schema, expected, id)
        if expected is not None and compiled.kind != _KINDS[type(expected)]:
            raise ValueError(f"field {id} is of type {compiled.kind}, not {expected}")
        return compiled

    def _compile(self, schema: Any, expected: IcebergType | None, id: int | None) -> _Type:
        match schema:
            case str() if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            case str():
                return self.compile(self._schema_by_name[schema], expected, id)
            case ["null", other]:
                return self._optional(other, expected, id, 1)
            case [other, "null"]:
                return self._optional(other, expected, id, 0)
            case {"type": "record", "fields": [*fields]}:
                self._remember(schema)
                return self._record(fields, expected, id)
            case {"type": "array", "items": items, "logicalType": "map"}:
                return self._map_of_pairs(items, expected)
            case {"type": "array", "items": items}:
                element = expected.element_type if isinstance(expected, ListType) else None
                return self._array(self.compile(items, element, schema.get("element-id")))
            case {"type": "map", "values": values}:
                return self._map(_PRIMITIVES["string"], self.compile(values, None, None))
            case {"type": "fixed", "size": size}:
                self._remember(schema)
                return self._compile_fixed(schema, size)
            case {"type": "bytes", "logicalType": "decimal"}:
                convert = partial(_to_decimal, _scale(schema))
                skip = _PRIMITIVES["bytes"].skip
                return _Type("decimal", lambda decoder: convert(decoder.read_bytes()), skip)
            case {"type": inner}:
                return self.compile(inner, expected, id)
        raise ValueError(f"unknown type {str(schema)[:80]}")

    def _remember(self, schema: dict[str, Any]) -> None:
        if isinstance(schema.get("name"), str):
            self._schema_by_name[schema["name"]] = schema

    def _optional(self, schema: Any, expected: IcebergType | None, id: int | None, index: int) -> _Type:
        inner = self.compile(schema, expected, id)

        def use(action: Callable[[Decoder], Any], decoder: Decoder) -> Any:
            branch = decoder.read_int()
            if branch not in (0, 1):
                raise ValueError(f"{branch} is no type of a union")
            return action(decoder) if branch == index else None

        return _Type(inner.kind, partial(use, inner.read), partial(use, inner.skip), is_nullable=True)

    def _compile_fixed(self, schema: dict[str, Any], size: int) -> _Type:
        match schema.get("logicalType"):
            case "decimal":
                return _fixed_type("decimal", size, partial(_to_decimal, _scale(schema)))
            case "uuid":
                return _fixed_type("uuid", size, lambda data: UUID(bytes=data))
        return _fixed_type("bytes", size, bytes)

    def _array(self, item: _Type) -> _Type:
        if not item.takes_bytes:
            raise ValueError("elements of a list take no bytes")

        def read(decoder: Decoder) -> list[Any]:
            return [item.read(decoder) for count in _read_counts(decoder) for _ in range(count)]

        def skip(decoder: Decoder, count: int) -> None:
            for _ in range(count):
                item.skip(decoder)

        return _Type("list", read, partial(_skip_blocks, skip))

    def _map_of_pairs(self, items: Any, expected: IcebergType | None) -> _Type:
        [key, value] = items["fields"]
        types = (expected.key_type, expected.value_type) if isinstance(expected, MapType) else (None, None)
        return self._map(self.compile(key["type"], types[0], None), self.compile(value["type"], types[1], None))

    def _map(self, key: _Type, value: _Type) -> _Type:
        if not key.takes_bytes:
            raise ValueError("the keys of a map take no bytes")

        def read(decoder: Decoder) -> dict[Any, Any]:
            return {key.read(decoder): value.read(decoder) for count in _read_counts(decoder) for _ in range(count)}

        def skip(decoder: Decoder, count: int) -> None:
            if value.skip is Decoder.read_int is key.skip:
                decoder.skip_ints(2 * count)
                return
            for _ in range(count):
                key.skip(decoder)
                value.skip(decoder)

        return _Type("map", read, partial(_skip_blocks, skip))

    def _record(self, fields: list[Any], expected: IcebergType | None, id: int | None) -> _Type:
        expected_fields = expected.fields if isinstance(expected, StructType) else ()
        position_by_id = {field.field_id: position for position, field in enumerate(expected_fields)}
        types: list[_Type] = []
        steps: list[tuple[int, Callable[[Decoder], Any]]] = []
        """For each field of the file: its position in the result, or -1 to skip it, and how it is decoded."""
        for index, file_field in enumerate(fields):
            field_id = file_field.get("field-id")
            position = position_by_id.get(field_id, -1) if expected_fields else index
            target = expected_fields[position] if expected_fields and position >= 0 else None
            field_type = self.compile(file_field["type"], None if target is None else target.field_type, field_id)
            types.append(field_type)
            is_skipped = position < 0 or (target is not None and field_id in self._shape.skipped)
            steps.append((-1, field_type.skip) if is_skipped else (position, self._read_field(field_type, target)))
        missing = position_by_id.keys() - {file_field.get("field-id") for file_field in fields}
        defaults = [field.initial_default for field in expected_fields] if expected_fields else [None] * len(fields)
        for field_id in missing:
            if (field := expected_fields[position_by_id[field_id]]).required and field.initial_default is None:
                raise ValueError(f"field {field_id}, {field.name}, is missing")
        make = self._shape.types.get(-1 if id is None else id, Record)
        cost = 1 + len(defaults)

        def read(decoder: Decoder) -> Record:
            decoder.budget.spend(cost)
            values = defaults.copy()
            for position, step in steps:
                if position < 0:
                    step(decoder)
                else:
                    values[position] = step(decoder)
            return make(*values)

        def skip(decoder: Decoder) -> None:
            for field_type in types:
                field_type.skip(decoder)

        return _Type("struct", read, skip, any(field_type.takes_bytes for field_type in types))

    def _read_field(self, field_type: _Type, target: NestedField | None) -> Callable[[Decoder], Any]:
        if target is None:
            return field_type.read
        read, convert = field_type.read, self._shape.enums.get(target.field_id)
        if target.required and field_type.is_nullable and target.field_id not in self._shape.nullable:

            def read_required(decoder: Decoder) -> Any:
                if (value := field_type.read(decoder)) is None:
                    raise ValueError(f"field {target.field_id}, {target.name}, is null")
                return value

            read = read_required
        return read if convert is None else lambda decoder: convert(read(decoder))


def _scale(schema: dict[str, Any]) -> int:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= 38:
        raise ValueError(f"a decimal of scale {str(scale)[:20]}")
    return scale


def _check_size(data: bytes) -> bytes:
    if len(data) > MAX_BLOCK_BYTES:
        raise AvroLimitError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
    return data


def _decompress_deflate(data: bytes) -> bytes:
    return _check_size(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, MAX_BLOCK_BYTES + 1))


def _decompress_stream(codec: Literal["bz2", "zstd"], data: bytes) -> bytes:
    return _check_size(pa.CompressedInputStream(pa.BufferReader(data), codec).read(MAX_BLOCK_BYTES + 1))


def _decompress_snappy(data: bytes) -> bytes:
    # The block starts with its size as a varint, and ends with a checksum of four bytes.
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise AvroLimitError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
    block: bytes = pa.Codec("snappy").decompress(data[:-4], decompressed_size=size, asbytes=True)
    if zlib.crc32(block).to_bytes(4, "big") != data[-4:]:
        raise ValueError("the checksum of a block is wrong")
    return block


_DECOMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": _check_size,
    "deflate": _decompress_deflate,
    "bzip2": partial(_decompress_stream, "bz2"),
    "zstandard": partial(_decompress_stream, "zstd"),
    "snappy": _decompress_snappy,
}


logger = logging.getLogger(__name__)

METADATA_PATH = "write.metadata.path"
"""Property with the folder of a table's metadata files, if it is not below the table's location."""

ReadFile = Callable[[str], bytes]
"""Returns the content of a file, as `WarehouseFiles.read` does."""

MAX_BYTES = 256 << 20
"""Most bytes of manifests that one reader decodes, after decompression."""
MAX_VALUES = 6_000_000
"""Most values that one reader decodes of what its caller keeps; they take up to 60 bytes each."""
MAX_ENTRY_VALUES = 1_000_000
"""Most values of one entry."""

STATISTICS = frozenset({108, 109, 110, 137, 125, 128})
"""Field ids of an entry's statistics: sizes, counts of values, nulls and NaN, lower and upper bounds."""
BOUNDS = frozenset({125, 128})

_VERSION = 3
"""Format version whose schema is used to read manifests of all versions."""
_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[_VERSION],
    {-1: ManifestFile, 508: PartitionFieldSummary},
    {517: ManifestContent},
    nullable=(504, 505, 506, 512, 513, 514),  # counts, which are optional in version 1
)
_ENTRIES = RecordShape(
    MANIFEST_ENTRY_SCHEMAS[_VERSION],
    {-1: ManifestEntry, 2: DataFile},
    {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
)


class ManifestReader:
    """Reads manifest lists and manifests, within limits on what they become in memory."""

    def __init__(self, read_file: ReadFile) -> None:
        self._read_file = read_file
        self._kept_values = Budget(MAX_VALUES)
        self._block_bytes = Budget(MAX_BYTES, "bytes")

    def read_list(self, path: str) -> Iterator[ManifestFile]:
        """Yield the manifests that a manifest list names.

        Raises:
            MetadataNotFoundError: the file is missing or broken.
            InvalidInputError: it exceeds a limit, or its name is not valid.
            ServiceUnavailableError: the storage cannot be read now.
        """
        return self._read(path, _LIST, self._kept_values, renew=False)

    def read_entries(
        self, manifest: ManifestFile, *, skip: frozenset[int] = frozenset(), keep: bool = False
    ) -> Iterator[ManifestEntry]:
        """Yield the entries of a manifest, also those of deleted files.

        Args:
            manifest: the manifest.
            skip: ids of optional fields that the caller does not need.
            keep: whether the caller keeps the entries: then all that this reader decodes count together.

        Raises:
            LanceNamespaceError: as `read_list`.
        """
        values = self._kept_values if keep else Budget(MAX_ENTRY_VALUES)
        for entry in self._read(manifest.manifest_path, replace(_ENTRIES, skipped=skip), values, renew=not keep):
            yield _inherit_from_manifest(entry, manifest)

    def read_paths(self, path: str) -> Iterator[str]:
        """Yield the paths of the files in a manifest, except deleted ones.

        Raises:
            LanceNamespaceError: as `read_list`.
        """
        for entry in self._read(path, replace(_ENTRIES, skipped=STATISTICS), Budget(MAX_ENTRY_VALUES), renew=True):
            if entry.status != ManifestEntryStatus.DELETED:
                yield entry.data_file.file_path

    def _read(self, path: str, shape: RecordShape, values: Budget, *, renew: bool) -> Iterator[Any]:
        data = self._read_file(path)
        try:
            yield from read_records(data, shape, values, self._block_bytes, renew=renew)
        except AvroLimitError as error:
            raise IllegalArgumentError(f"{path} is larger than this server reads: {error}") from error
        except INVALID as error:
            logger.warning("manifest %s cannot be read: %s", path, error)
            raise MetadataNotFoundError(f"Failed to open input stream for file: {path}") from error


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
