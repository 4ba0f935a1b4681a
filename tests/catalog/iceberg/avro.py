"""Take Avro files apart and put them together again, also wrongly."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader


def encode(*values: int | bytes) -> bytes:
    """Encode integers, and bytes with their length."""
    stream: Any = io.BytesIO()
    encoder = BinaryEncoder(stream)
    for value in values:
        encoder.write_int(value) if isinstance(value, int) else encoder.write_bytes(value)
    encoded: bytes = stream.getvalue()
    return encoded


@dataclass(frozen=True)
class AvroParts:
    """The parts of an Avro file; each block is its number of records and its bytes."""

    meta: Mapping[str, str]
    sync: bytes
    blocks: Sequence[tuple[int, bytes]]

    def join(self, blocks: Sequence[tuple[int, bytes]], codec: str = "null") -> bytes:
        """Build a file of other blocks."""
        meta = {**self.meta, "avro.codec": codec}
        pairs = b"".join(encode(key.encode(), value.encode()) for key, value in meta.items())
        header = MAGIC + encode(len(meta)) + pairs + encode(0) + self.sync
        return header + b"".join(encode(count, block) + self.sync for count, block in blocks)


def split_avro(data: bytes) -> AvroParts:
    """Take apart a file that is not compressed."""
    decoder = StreamingBinaryDecoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    blocks = []
    while decoder.tell() < len(data):
        blocks.append((decoder.read_int(), decoder.read_bytes()))
        assert decoder.read(SYNC_SIZE) == header.sync
    return AvroParts(header.meta, header.sync, blocks)
