from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.lake.row_streams import CheckedStream, RowStream, read_stream, viewed_size

COUNT = 100
COLUMNS: dict[str, pa.Array[Any]] = {
    "number": pa.array(range(COUNT), pa.int64()),
    "text": pa.array([f"text {number}" for number in range(COUNT)]),
    "view": pa.array([f"a text that is longer {number}" for number in range(COUNT)], pa.string_view()),
    "kind": pa.array(["a", "b"] * (COUNT // 2)).dictionary_encode(),
    "vector": pa.array([[float(number)] * 4 for number in range(COUNT)], pa.list_(pa.float32(), 4)),
    "flag": pa.array([True, None] * (COUNT // 2)),
    "nothing": pa.nulls(COUNT),
    "inner": pa.array([{"a": [1, 2]}, None] * (COUNT // 2)),
    "pairs": pa.array([[("k", 1)]] * COUNT, pa.map_(pa.string(), pa.int8())),
}
ROWS = pa.table(COLUMNS)


class Received(io.BytesIO):
    """A body; it notes what is held."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.held: list[int] = []

    def hold(self, size: int) -> None:
        self.held.append(size)


def stream(rows: pa.Table, compression: Any = None, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression, **options)
    ) as writer:
        writer.write_table(rows, COUNT // 2)
    return sink.getvalue().to_pybytes()


def read(data: bytes) -> pa.Table:
    rows = read_stream(Received(data), ["t"])
    assert isinstance(rows, RowStream)
    return rows.to_reader().read_all()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("legacy", [False, True])
def test_rows_come_through_as_they_were_sent(compression: str | None, legacy: bool) -> None:
    assert read(stream(ROWS, compression, use_legacy_format=legacy)).equals(ROWS)


def test_a_stream_may_be_read_in_any_pieces() -> None:
    data = stream(ROWS, "zstd")
    checked = CheckedStream(Received(data), "table t")
    parts = []
    while part := checked.read(7):
        parts.append(bytes(part))
    assert b"".join(parts) == data


def test_what_is_held_is_what_batches_become_with_their_dictionaries() -> None:
    texts = [f"kind {number}" for number in range(1000)]
    rows = pa.table({"a": pa.array(texts * 10).dictionary_encode(), "b": pa.array([7] * 10_000, pa.int64())})
    sizes = {}
    for compression in (None, "zstd"):
        received = Received(stream(rows, compression))
        list(pa.ipc.open_stream(CheckedStream(received, "table t")))
        dictionary, *batches = received.held
        assert len(batches) == 200
        sizes[compression] = dictionary, max(batches)
    values = pa.array(texts).nbytes
    assert values <= sizes["zstd"][0] <= values + 64
    assert sizes[None] == (sizes[None][0], sizes[None][0])  # batches are there already
    assert 50 * 12 <= sizes["zstd"][1] - sizes["zstd"][0] <= 50 * 12 + 64


def test_a_dictionary_that_replaces_another_takes_its_place() -> None:
    schema = pa.schema({"a": pa.dictionary(pa.int32(), pa.string())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for number in range(20):
            texts = pa.array([f"{number} {index}" for index in range(100)])
            writer.write_batch(pa.record_batch([texts.dictionary_encode()], schema=schema))
    received = Received(sink.getvalue().to_pybytes())
    list(pa.ipc.open_stream(CheckedStream(received, "table t")))
    assert max(received.held) < 2 * min(received.held)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_broken_streams_are_refused_and_nothing_worse(compression: str | None) -> None:
    data = stream(ROWS, compression)
    chance = random.Random(7)
    refused = 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(chance.choice([1, 1, 3, 20])):
            broken[chance.randrange(len(broken))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        try:
            read(bytes(broken))
        except InvalidInputError as error:
            assert "table t: " in str(error)  # noqa: PT017
            refused += 1
    assert refused > 50


def test_how_much_views_point_to() -> None:
    texts = pa.array(["x" * 20, None, "yz"], pa.string_view())
    assert viewed_size(texts) == 22
    assert viewed_size(texts.slice(1)) == 2
    assert viewed_size(pa.array([{"a": "x" * 30}], pa.struct([("a", pa.binary_view())]))) == 30
    assert viewed_size(pa.array([["x" * 30], ["y"]], pa.list_(pa.string_view()))) == 31
    assert viewed_size(pa.array([["x" * 30]], pa.list_(pa.string_view(), 1))) == 30
    assert viewed_size(pa.array([], pa.string_view())) == 0
    assert viewed_size(pa.array(["x" * 30])) == 0
