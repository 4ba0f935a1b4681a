"""Attacks by manifests of Iceberg tables: whoever may write a table writes these files, and the server reads them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.catalog.iceberg.avro import AvroParts, encode, split_avro
from tests.security.house import ServerWithPrincipals
from tests.security.watch import attack_server

MIB = 1 << 20


def _deflate(block: bytes, times: int) -> bytes:
    """A block many times over, compressed without ever holding it whole."""
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    some = block * 1000
    return b"".join(compress.compress(some) for _ in range(times // 1000)) + compress.flush()


def _unpack_to_much(parts: AvroParts, entry: bytes) -> bytes:
    times = 400 * MIB // len(entry) // 1000 * 1000
    return parts.join([(times, _deflate(entry, times))], codec="deflate")


def _name_many_files(parts: AvroParts, entry: bytes) -> bytes:
    times = 15 * MIB // len(entry) // 1000 * 1000
    return parts.join([(times, _deflate(entry, times))] * 2, codec="deflate")


def _say_that_a_path_is_long(parts: AvroParts, entry: bytes) -> bytes:
    start = entry.index(b"file:") if b"file:" in entry else entry.index(b"/")
    return parts.join([(1, entry[: start - 2] + encode(1 << 16) + entry[start:])])


def _list_nothing_for_ever(parts: AvroParts, entry: bytes) -> bytes:
    schema = json.loads(parts.meta["avro.schema"])
    element = {"type": "record", "name": "nothing", "fields": []}
    schema["fields"].append(
        {"name": "more", "field-id": 901, "type": {"type": "array", "items": element, "element-id": 902}}
    )
    endless = AvroParts({**parts.meta, "avro.schema": json.dumps(schema)}, parts.sync, [])
    return endless.join([(1, entry + encode(1 << 62, 0))])


@pytest.mark.parametrize("which", ["list", "manifest"])
@pytest.mark.parametrize(
    "attack", [_unpack_to_much, _name_many_files, _say_that_a_path_is_long, _list_nothing_for_ever]
)
def test_a_hostile_manifest_is_refused(
    house: ServerWithPrincipals, attack: Callable[[AvroParts, bytes], bytes], which: str, soak: bool
) -> None:
    name = f"{attack.__name__.strip('_')}_{which}"
    table = house.pyiceberg("root").create_table(
        f"a.{name}",
        Schema(NestedField(1, "id", LongType(), required=False)),
        properties={"write.avro.compression-codec": "null"},
    )
    file = Path(house.place("a", name, "data", "x.parquet"))
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), file)
    table.add_files([str(file)])
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert house.plan("alice", "a", name)[0] == 200
    path = snapshot.manifest_list if which == "list" else snapshot.manifests(PyArrowFileIO())[0].manifest_path
    local = Path(path.removeprefix("file://"))
    parts = split_avro(local.read_bytes())
    local.write_bytes(attack(parts, parts.blocks[0][1]))
    with attack_server(house.served, soak=soak):
        status, body = house.plan("alice", "a", name)
        dropped, _ = house.send("alice", "DELETE", f"/iceberg/v1/main/namespaces/a/tables/{name}?purgeRequested=true")
    assert status in (400, 404), body
    assert dropped == 204
