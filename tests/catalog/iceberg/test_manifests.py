from __future__ import annotations

import bz2
import json
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from lancehouse.catalog.errors import IllegalArgumentError, MetadataNotFoundError
from lancehouse.catalog.iceberg import manifests
from lancehouse.catalog.iceberg.manifests import ManifestReader
from tests.catalog.iceberg.avro import AvroParts, encode, split_avro
from tests.catalog.scans.icebergs import IO

PATHS = [f"file:///data/{number}.parquet" for number in range(3)]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a manifest, not compressed, as pyiceberg writes it: a block for each entry."""
    path = tmp_path_factory.mktemp("manifest") / "m.avro"
    with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, Schema(), IO.new_output(str(path)), 1, "null") as writer:
        for file_path in PATHS:
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=file_path,
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=3,
                file_size_in_bytes=9,
                column_sizes={1: 9},
                lower_bounds={1: b"low"},
                split_offsets=[4],
            )
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=1,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
    return path.read_bytes()


def read(data: bytes, **options: Any) -> list[str]:
    """The paths of the files that a manifest of these bytes names; options are those of `read_entries`."""
    manifest = ManifestFile.from_args(
        manifest_path="m",
        manifest_length=len(data),
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
    )
    reader = ManifestReader(lambda _: data)
    return [entry.data_file.file_path for entry in reader.read_entries(manifest, **options)]


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda block: block,
    "deflate": lambda block: zlib.compress(block)[2:-4],
    "bzip2": bz2.compress,
    "zstandard": lambda block: pa.Codec("zstd").compress(block, asbytes=True),
    "snappy": lambda block: pa.Codec("snappy").compress(block, asbytes=True) + zlib.crc32(block).to_bytes(4, "big"),
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(manifest: bytes, codec: str) -> None:
    parts = split_avro(manifest)
    blocks = [(count, CODECS[codec](block)) for count, block in parts.blocks]
    assert read(parts.join(blocks, codec=codec)) == PATHS


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_unpacks_to_too_much(manifest: bytes, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = split_avro(manifest)
    entry = parts.blocks[0][1]
    file = parts.join([(10, CODECS[codec](entry * 10))], codec=codec)
    monkeypatch.setattr(manifests, "MAX_BLOCK_BYTES", len(entry) * 10)
    assert len(read(file)) == 10
    monkeypatch.setattr(manifests, "MAX_BLOCK_BYTES", len(entry) * 10 - 1)
    with pytest.raises(IllegalArgumentError, match="m is larger than this server reads: a block of more than"):
        read(file)


def test_blocks_that_together_are_too_much(manifest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = split_avro(manifest)
    entry = parts.blocks[0][1]
    monkeypatch.setattr(manifests, "MAX_BYTES", len(entry) * 9)
    assert len(read(parts.join([(1, entry)] * 9))) == 9
    with pytest.raises(IllegalArgumentError, match=f"more than {len(entry) * 9:,} bytes"):
        read(parts.join([(1, entry)] * 10))


def test_values_that_take_more_memory_than_bytes(manifest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of small values: of one entry, and of all entries that a caller keeps."""
    parts = split_avro(manifest)
    block = parts.blocks[0][1]
    sizes = encode(1, 1, 1, 9, 0)  # the optional map of sizes: one pair, then the end
    assert block.count(sizes) == 1
    for count, limit, options in ((1000, "MAX_ENTRY_VALUES", {}), (300, "MAX_VALUES", {"keep": True})):
        larger = block.replace(sizes, encode(1, count, *[1, 9] * count, 0))
        many = parts.join([(1, larger)] * 4)
        monkeypatch.setattr(manifests, limit, 1000)
        with pytest.raises(IllegalArgumentError, match="more than 1,000 values"):
            read(many, **options)
        assert len(read(many, skip=manifests.STATISTICS)) == 4
        monkeypatch.undo()
        assert len(read(many, **options)) == 4


def test_a_snappy_block_with_a_wrong_checksum(manifest: bytes) -> None:
    parts = split_avro(manifest)
    count, block = parts.blocks[0]
    with pytest.raises(MetadataNotFoundError):
        read(parts.join([(count, CODECS["snappy"](block)[:-1] + b"?")], codec="snappy"))


def test_a_file_that_is_cut_anywhere(manifest: bytes) -> None:
    ends = {len(manifest)}
    parts = split_avro(manifest)
    for count in range(len(parts.blocks)):
        ends.add(len(parts.join(parts.blocks[:count])))
    for size in range(len(manifest)):
        if size in ends:  # a whole number of blocks cannot be told from a shorter manifest
            assert read(manifest[:size]) == PATHS[: sorted(ends).index(size)]
        else:
            with pytest.raises(MetadataNotFoundError):
                read(manifest[:size])


def test_nothing_beyond_a_block_is_read(manifest: bytes) -> None:
    """A path whose length is larger than what is left would show memory of the server."""
    parts = split_avro(manifest)
    block = parts.blocks[0][1]
    start = block.index(PATHS[0].encode())
    assert block[start - 1] == 2 * len(PATHS[0])
    for length in (0x7E, 1 << 12, 1 << 20, 1 << 40, (1 << 63) - 1, -1, -(1 << 62)):
        longer = block[: start - 1] + encode(length) + block[start:]
        with pytest.raises((MetadataNotFoundError, IllegalArgumentError)):
            read(parts.join([(1, longer)]))


@pytest.mark.parametrize("count", [2, 1 << 20, 1 << 62, -1])
def test_a_block_of_fewer_entries_than_it_says(manifest: bytes, count: int) -> None:
    parts = split_avro(manifest)
    with pytest.raises(MetadataNotFoundError):
        read(parts.join([(count, parts.blocks[0][1])]))


def test_an_integer_without_an_end(manifest: bytes) -> None:
    with pytest.raises(MetadataNotFoundError):
        read(split_avro(manifest).join([]) + b"\xff" * 20)


EMPTY = {"type": "record", "name": "nothing", "fields": []}
NOTHING: list[Any] = [
    "null",
    EMPTY,
    {"type": "fixed", "name": "nothing", "size": 0},
    {"type": "record", "name": "outer", "fields": [{"name": "inner", "field-id": 903, "type": EMPTY}]},
]


def with_schema(parts: AvroParts, change: Callable[[dict[str, Any]], object]) -> AvroParts:
    """The same file with another schema."""
    schema = json.loads(parts.meta["avro.schema"])
    change(schema)
    return AvroParts({**parts.meta, "avro.schema": json.dumps(schema)}, parts.sync, parts.blocks)


@pytest.mark.parametrize("element", NOTHING)
def test_a_list_of_values_that_take_no_bytes(manifest: bytes, element: Any) -> None:
    """Any number of them fits into a block, and to read or skip them would take for ever."""
    parts = split_avro(manifest)
    many = {"name": "more", "field-id": 901, "type": {"type": "array", "items": element, "element-id": 902}}
    endless = with_schema(parts, lambda schema: schema["fields"].append(many))
    with pytest.raises(MetadataNotFoundError):
        read(endless.join([(1, parts.blocks[0][1] + encode(1 << 62, 0))]))
    twice = with_schema(parts, lambda schema: schema["fields"].extend([many, {**many, "type": "int"}]))
    with pytest.raises(MetadataNotFoundError):
        read(twice.join([(1, parts.blocks[0][1] + encode(1 << 62, 0, 1))]))


@pytest.mark.parametrize("items", ["null", "string", "boolean"])
def test_a_known_field_of_another_type(manifest: bytes, items: str) -> None:
    parts = split_avro(manifest)

    def change(schema: dict[str, Any]) -> None:
        fields = {each["name"]: each for each in schema["fields"]}["data_file"]["type"]["fields"]
        [offsets] = [each for each in fields if each["name"] == "split_offsets"]
        offsets["type"] = ["null", {"type": "array", "items": items, "element-id": 133}]

    with pytest.raises(MetadataNotFoundError):
        read(with_schema(parts, change).join(parts.blocks))


ODD: list[Any] = [
    {"type": "bytes", "logicalType": "decimal", "precision": 0, "scale": -1},
    {"type": "fixed", "name": "f", "size": -1},
    {"type": "fixed", "name": "f", "size": 1 << 60},
    ["null", "int", "long"],
    "unheard of",
    {"type": {"type": {"type": {}}}},
    7,
    {"type": "enum", "name": "e", "symbols": ["a"]},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_schema_that_is_no_schema(manifest: bytes, odd: Any) -> None:
    parts = split_avro(manifest)
    odd_parts = with_schema(parts, lambda schema: schema["fields"].append({"name": "odd", "field-id": 9, "type": odd}))
    with pytest.raises(MetadataNotFoundError):
        read(odd_parts.join([(1, parts.blocks[0][1] + b"\0" * 20)]))


def test_a_schema_that_contains_itself(manifest: bytes) -> None:
    parts = split_avro(manifest)
    inside = {"name": "odd", "field-id": 9, "type": "manifest_entry"}
    with pytest.raises((MetadataNotFoundError, IllegalArgumentError)):
        read(with_schema(parts, lambda schema: schema["fields"].append(inside)).join(parts.blocks))


def test_a_schema_of_too_many_types(manifest: bytes) -> None:
    parts = split_avro(manifest)
    more = [{"name": f"c{number}", "field-id": number, "type": "null"} for number in range(1000, 7000)]
    with pytest.raises(IllegalArgumentError, match="types"):
        read(with_schema(parts, lambda schema: schema["fields"].extend(more)).join(parts.blocks))


def test_a_header_of_many_keys(manifest: bytes) -> None:
    parts = split_avro(manifest)
    meta = {**parts.meta, **{f"{number}": "" for number in range(600_000)}}
    with pytest.raises(IllegalArgumentError, match="values"):
        read(AvroParts(meta, parts.sync, parts.blocks).join(parts.blocks))


def test_required_fields_are_there(manifest: bytes) -> None:
    parts = split_avro(manifest)
    with pytest.raises(MetadataNotFoundError):
        read(with_schema(parts, lambda schema: schema["fields"].pop()).join(parts.blocks))


def test_a_schema_that_is_too_large(manifest: bytes) -> None:
    parts = split_avro(manifest)
    schema = json.loads(parts.meta["avro.schema"]) | {"doc": "x" * (1 << 20)}
    with pytest.raises(IllegalArgumentError, match="a schema of more than"):
        read(AvroParts({**parts.meta, "avro.schema": json.dumps(schema)}, parts.sync, parts.blocks).join(parts.blocks))


def test_a_schema_that_is_too_deep(manifest: bytes) -> None:
    parts = split_avro(manifest)
    deep = "[" * 100_000
    with pytest.raises(MetadataNotFoundError):
        read(AvroParts({**parts.meta, "avro.schema": deep}, parts.sync, parts.blocks).join(parts.blocks))


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_bytes_that_were_changed_end_in_an_error_or_other_values(manifest: bytes, position: int) -> None:
    for value in (0x00, 0x7F, 0x80, 0xFF):
        changed = bytearray(manifest)
        changed[-position - 1] = value
        try:
            assert len(read(bytes(changed))) <= len(PATHS)
        except (MetadataNotFoundError, IllegalArgumentError):
            continue
