"""Rows that are few on the wire and many in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from tests.live.gateways import Heard, ask, at_once, ids, numbers
from tests.security.watch import attack_server
from tests.servers.lancehouse import Served, start_lancehouse

MIB = 2**20
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start_lancehouse(tmp_path_factory.mktemp("rows"), options=["--log-level", "warning"]) as running:
        assert ask(running, "POST", "/lance/main/v1/namespace/db/create", b"{}").status == 200
        assert create(running, "t", numbers(0, 3)).status == 200
        yield running


def create(server: Served, name: str, body: bytes) -> Heard:
    return ask(server, "POST", f"/lance/main/v1/table/db${name}/create", body, timeout_s=300)


@contextmanager
def drop_after(server: Served, *names: str) -> Iterator[None]:
    """Drop tables at the end, whatever happened: a test may be run again."""
    try:
        yield
    finally:
        for name in names:
            ask(server, "POST", f"/lance/main/v1/table/db${name}/drop", b"{}")


def stream(*batches: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def batch(**columns: pa.Array[Any]) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def zeros() -> bytes:
    """800 MB in 80 kB."""
    column = pa.array(np.zeros(10_000_000, "i8"))
    return stream(batch(**{f"c{number}": column for number in range(10)}), options=ZSTD)


def many_columns() -> bytes:
    """They took 80 s."""
    return stream(batch(**{f"c{number}": pa.array([1]) for number in range(100_000)}))


def deep_columns() -> bytes:
    kind: pa.DataType = pa.int64()
    for _ in range(100):
        kind = pa.struct([pa.field("a", kind)])
    return pa.schema([pa.field("a", kind)]).serialize().to_pybytes()


def wide_within() -> bytes:
    kind = pa.struct([pa.field(f"a{number}", pa.int8()) for number in range(10_000)])
    return pa.schema([pa.field("a", kind)]).serialize().to_pybytes()


def no_bytes(count: int) -> pa.Array[Any]:
    return pa.Array.from_buffers(pa.null(), count, [None])


def nulls() -> bytes:
    whole = stream(batch(a=no_bytes(2**31 - 1)))
    return whole.replace(struct.pack("<q", 2**31 - 1), struct.pack("<q", 10**12))


def nulls_in_a_list() -> bytes:
    offsets = pa.array([0, 2**31 - 1], pa.int32())
    return stream(batch(a=pa.ListArray.from_arrays(offsets, no_bytes(2**31 - 1))))


def one_text_many_times() -> bytes:
    """2 GB in 2 MB: each row points to the same text."""
    count, text = 2000, pa.py_buffer(b"x" * MIB)
    views = np.zeros((count, 4), "<i4")
    views[:, 0], views[:, 1] = MIB, int.from_bytes(b"xxxx", "little")
    array = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(views.tobytes()), text])
    array.validate(full=True)
    return stream(batch(a=array), batch(a=array))


def one_text_in_lists() -> bytes:
    inner = pa.ipc.open_stream(one_text_many_times()).read_next_batch().column(0)
    offsets = pa.array([0, len(inner)], pa.int32())
    return stream(batch(a=pa.ListArray.from_arrays(offsets, inner)))


def large_dictionary() -> bytes:
    """800 MB as the values of a dictionary."""
    values = pa.array(np.zeros(100_000_000, "i8"))
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)
    return stream(batch(a=column), options=ZSTD)


def large_metadata() -> bytes:
    return b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + b"\0" * 1000


def shared_buffers() -> bytes:
    """Eight columns, whose buffers are all said to be the first one's bytes."""
    column = pa.array(np.arange(1000, dtype="i8"))
    whole = stream(batch(**{f"c{number}": column for number in range(8)}))
    body = 8 * 8000
    at = whole.index(struct.pack("<qqqq", 0, 0, 0, 8000))
    patched = bytearray(whole)
    for number in range(16):
        struct.pack_into("<qq", patched, at + 16 * number, 0, 8000 * (number % 2))
    length = patched.index(struct.pack("<q", body))
    struct.pack_into("<q", patched, length, 8000)
    start = len(patched) - 8 - body
    return bytes(patched[: start + 8000] + patched[-8:])


ATTACKS: list[tuple[Callable[[], bytes], str]] = [
    (zeros, "memory"),
    (many_columns, "more than 10000 columns"),
    (wide_within, "more than 10000 columns"),
    (deep_columns, "nested in each other more than 64 deep"),
    (nulls, "2000000000000 values, in 0 bytes"),
    (nulls_in_a_list, "values, in"),
    (one_text_many_times, "memory"),
    (one_text_in_lists, "memory"),
    (large_dictionary, "memory"),
    (large_metadata, "2147483647 bytes of metadata"),
    (shared_buffers, "the same bytes for several buffers"),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("attack", "words"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
def test_rows_that_become_too_much_are_refused(
    server: Served, attack: Callable[[], bytes], words: str, soak: bool
) -> None:
    body = attack()
    with attack_server(server, soak=soak):
        heard = create(server, attack.__name__, body)
    assert heard.refused == (400, 13), heard.body[:500]
    assert words in heard.json["error"]
    listed = ask(server, "GET", "/lance/main/v1/namespace/db/table/list")
    assert listed.json["tables"] == ["t"]


def test_rows_that_are_unpacked_share_the_memory_for_bodies(server: Served, soak: bool) -> None:
    """Each alone is taken; together they are more than there is: some come back later."""
    column = pa.array(np.zeros(10_000_000, "i8"))
    body = stream(batch(a=column), options=ZSTD)
    names = [f"shared{number}" for number in range(20 if soak else 8)]
    with drop_after(server, *names), attack_server(server, soak=soak):
        heard = at_once([lambda name=name: create(server, name, body) for name in names])  # type: ignore[misc]
    assert {each.status for each in heard} <= {200, 503}
    assert 200 in {each.status for each in heard}


@pytest.mark.parametrize("options", [None, ZSTD, LZ4], ids=["plain", "zstd", "lz4"])
def test_honest_rows_are_taken(server: Served, options: pa.ipc.IpcWriteOptions | None) -> None:
    count = 20_000
    rows = batch(
        id=pa.array(range(count), pa.int64()),
        text=pa.array([f"text {number}" for number in range(count)]),
        kind=pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
        vector=pa.array([[float(number)] * 4 for number in range(count)], pa.list_(pa.float32(), 4)),
        flags=pa.array([True, None] * (count // 2)),
        nothing=pa.nulls(count, pa.int64()),
        inner=pa.array([{"a": [1, 2]}, None] * (count // 2)),
    )
    assert create(server, "honest", stream(*[rows] * 3, options=options)).status == 200
    try:
        assert ids(server, "db$honest") == sorted([*range(count)] * 3)
    finally:
        ask(server, "POST", "/lance/main/v1/table/db$honest/drop", b"{}")


def test_honest_views_are_taken(server: Served) -> None:
    texts = pa.array([f"a text that is longer {number}" for number in range(20_000)], pa.string_view())
    assert create(server, "views", stream(batch(text=texts), batch(text=texts), options=ZSTD)).status == 200
    assert ask(server, "POST", "/lance/main/v1/table/db$views/count_rows", b"{}").json == 40_000
    ask(server, "POST", "/lance/main/v1/table/db$views/drop", b"{}")


def test_a_large_batch_takes_little_memory(server: Served, soak: bool) -> None:
    """It lies on disk while it is written."""
    rows = batch(a=pa.array(np.arange((800 if soak else 400) * MIB // 8, dtype="i8")))
    body = stream(rows)
    with drop_after(server, "large"), attack_server(server, soak=soak):
        assert create(server, "large", body).status == 200


def test_a_long_value_of_many_rows_is_sent_in_parts(server: Served, soak: bool) -> None:
    """A dictionary has it once; an answer has it in each row."""
    count, size = 10_000, 100_000
    kind = pa.DictionaryArray.from_arrays(np.zeros(count, "i1"), pa.array(["x" * size]))
    assert (
        create(server, "long", stream(batch(kind=kind, within=pa.StructArray.from_arrays([kind], ["a"])))).status == 200
    )
    connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=250)
    asked = json.dumps({"k": 0, "vector": {}}).encode()
    read = 0
    with drop_after(server, "long"), closing(connection), attack_server(server, soak=soak):
        connection.request("POST", "/lance/main/v1/table/db$long/query", asked, {"content-type": "application/json"})
        answer = connection.getresponse()
        while part := answer.read(MIB):
            read += len(part)
    assert read > 2 * count * size
