from __future__ import annotations

import asyncio
import gzip
import io
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from lancehouse.lake.row_streams import RowStream, read_stream
from lancehouse.server.http import streaming
from lancehouse.server.http.bodies import ClientDisconnectedError, MemoryBudget, Reservation
from lancehouse.server.http.errors import PayloadTooLargeError, TooSlowError
from lancehouse.server.http.streaming import Upload, UploadReader

T = TypeVar("T")
GONE = {"type": "http.disconnect"}
LENGTH = {"content-length": "1"}


def memory(total: int = 2**30) -> Reservation:
    return Reservation(MemoryBudget(total))


def parts(*data: bytes) -> list[dict[str, Any]]:
    return [
        {"type": "http.request", "body": each, "more_body": number < len(data) - 1} for number, each in enumerate(data)
    ]


def take_upload(
    messages: Sequence[dict[str, Any]],
    work: Callable[[Upload], Awaitable[T]],
    headers: dict[str, str] | None = None,
    timeout_s: float = 5,
) -> T:
    """What comes of a body that arrives so; after the last message nothing more does."""

    async def run() -> T:
        left = list(messages)

        async def receive() -> dict[str, Any]:
            if not left:
                await asyncio.Event().wait()
            return left.pop(0)

        upload = Upload(receive, headers or LENGTH, timeout_s, memory())
        try:
            return await work(upload)
        finally:
            upload.stop()

    return asyncio.run(run())


async def read(upload: Upload) -> bytes:
    await upload.wait_for_start()
    return await asyncio.to_thread(upload.open_reader().read)


@pytest.mark.parametrize(
    "data", [[b""], [b"abc"], [b"a", b"", b"bc"], [b"x" * 100_000] * 30], ids=["empty", "one", "some", "many"]
)
def test_a_body_is_what_was_sent(data: list[bytes]) -> None:
    assert take_upload(parts(*data), read) == b"".join(data)
    packed = gzip.compress(b"".join(data))
    cut = [packed[start : start + 1000] for start in range(0, len(packed), 1000)]
    assert take_upload(parts(*cut), read, {**LENGTH, "content-encoding": "gzip"}) == b"".join(data)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_gzip_of_several_files_is_all_of_them(size: int) -> None:
    packed = gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"x" * 600_000)
    cut = [packed[start : start + size] for start in range(0, len(packed), size)]
    sent = take_upload(parts(*cut, b""), read, {**LENGTH, "content-encoding": "gzip"})
    assert sent == b"abc" + b"x" * 600_000


def test_who_drips_takes_no_place_for_long() -> None:
    """A little now and then is not enough: there is one limit for all that a thread begins with."""

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"x", "more_body": True}

        upload = Upload(receive, LENGTH, 0.2, memory())
        with pytest.raises(TooSlowError, match=r"did not begin to come within 0\.2 s"):
            await asyncio.wait_for(upload.wait_for_start(), 10)
        upload.stop()

    asyncio.run(run())


def test_no_body() -> None:
    assert take_upload([], read, {"accept": "*/*"}) == b""


def test_little_gzip_that_is_a_lot_is_unpacked_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"\0" * 15_000_000)
    largest = 0
    unpacked = Upload._decompress

    def note_size(self: Upload, part: bytes) -> bytes:
        nonlocal largest
        made = unpacked(self, part)
        largest = max(largest, len(made))
        return made

    monkeypatch.setattr(Upload, "_decompress", note_size)
    assert len(take_upload(parts(packed), read, {**LENGTH, "content-encoding": "gzip"})) == 15_000_000
    assert largest <= streaming.BUFFER


def test_little_gzip_that_is_far_too_much_is_refused() -> None:
    packed = gzip.compress(b"\0" * 50_000_000)
    with pytest.raises(PayloadTooLargeError, match="100 times"):
        take_upload(parts(packed), read, {**LENGTH, "content-encoding": "gzip"})


def test_what_a_body_holds_is_reserved_and_given_back() -> None:
    budget = MemoryBudget(64 * 2**20)
    data = b"x" * (3 * 2**20)
    reservation = Reservation(budget)
    body = UploadReader(io.BytesIO(data), reservation)  # type: ignore[arg-type]
    body.read(2**20)
    assert budget.used == 2**20
    body.hold(5 * 2**20)
    assert budget.used == 6 * 2**20
    body.read(2**20)
    body.hold(2**20)
    assert budget.used == 2 * 2**20
    with pytest.raises(PayloadTooLargeError):
        body.hold(64 * 2**20)
    other = Reservation(budget)
    other.grow(60 * 2**20)
    with pytest.raises(ServiceUnavailableError):
        body.hold(20 * 2**20)
    assert isinstance(body.read(2**20), memoryview)  # there is no memory for it, but a disk
    reservation.release()
    other.release()
    assert budget.used == 0


@pytest.mark.parametrize(
    ("total", "most"), [(2**30, streaming.MOST + streaming.AHEAD), (2 * streaming.AHEAD, streaming.MOST)]
)
def test_no_more_is_held_than_is_allowed(total: int, most: int) -> None:
    """More of it while half of the memory is free; it goes on when half of that is taken."""
    sent = 0

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            nonlocal sent
            sent += 100_000
            return {"type": "http.request", "body": b"x" * 100_000, "more_body": True}

        upload = Upload(receive, LENGTH, 5, memory(total))
        await upload.wait_for_start()
        for _ in range(100):
            await asyncio.sleep(0)
        held = sent
        assert most <= held <= most + 200_000
        await asyncio.to_thread(upload.open_reader().read, held // 2 + 200_000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sent > held
        upload.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("messages", "headers", "error", "words"),
    [
        ([*parts(b"a", b"")[:1]], {}, TooSlowError, "of the body came within 0.05 s|did not begin to come within 0.05"),
        ([*parts(b"x" * 70_000, b"")[:1]], {}, TooSlowError, "nothing more of the body came within 0.05 s"),
        (parts(b"no gzip"), {"content-encoding": "gzip"}, InvalidInputError, "not gzip"),
        (parts(gzip.compress(b"abc")[:-9]), {"content-encoding": "gzip"}, InvalidInputError, "ends too early"),
        (parts(gzip.compress(b"abc") + b"junk"), {"content-encoding": "gzip"}, InvalidInputError, "not gzip"),
        (parts(gzip.compress(b"abc"), b"junk"), {"content-encoding": "gzip"}, InvalidInputError, "not gzip"),
        (parts(b"abc"), {"content-encoding": "br"}, InvalidInputError, "'br' is not known here"),
    ],
)
def test_what_is_wrong_is_said(
    messages: list[dict[str, Any]], headers: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        take_upload(messages, read, {**LENGTH, **headers}, timeout_s=0.05)


def test_who_hangs_up_early_takes_no_thread() -> None:
    with pytest.raises(ClientDisconnectedError):
        take_upload([*parts(b"a", b"")[:1], GONE], Upload.wait_for_start)


def test_who_hangs_up_later_is_noticed_by_the_thread() -> None:
    with pytest.raises(InvalidInputError, match="hung up"):
        take_upload([*parts(b"x" * 70_000, b"")[:1], GONE], lambda upload: asyncio.to_thread(upload.open_reader().read))


def test_a_reader_hears_why_nobody_takes_it_in_any_more() -> None:
    async def given_up(upload: Upload) -> bytes:
        await upload.wait_for_start()
        reading = asyncio.create_task(asyncio.to_thread(upload.open_reader().read))
        await asyncio.sleep(0.01)
        upload.stop(ServiceUnavailableError("it took too long"))
        return await reading

    with pytest.raises(ServiceUnavailableError, match="it took too long"):
        take_upload(parts(b"x" * 70_000, b"")[:1], given_up)


# Large pieces


def test_a_large_piece_is_put_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SPOOLED", 1000)
    data = bytes(range(256)) * 100
    body = UploadReader(io.BytesIO(data), memory())  # type: ignore[arg-type]
    assert body.read(500) == data[:500]
    large = body.read(20_000)
    assert isinstance(large, memoryview)
    assert large == data[500:20_500]
    body.let_go()
    assert large == data[500:20_500]
    assert body.read(20_000) == data[20_500:]  # as much as there is
    assert body.read(20_000) == b""
    assert body.read() == b""


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(20_000), pa.int64()),
        pa.array([f"text {number}" for number in range(20_000)]),
        pa.array([[float(number)] * 4 for number in range(20_000)], pa.list_(pa.float32(), 4)),
        pa.array([[str(number)] for number in range(20_000)]),
        pa.array([{"a": number} for number in range(20_000)]),
        pa.array(["a", "b"] * 10_000).dictionary_encode(),
    ],
    ids=["numbers", "texts", "vectors", "lists", "structs", "dictionary"],
)
def test_one_batch_of_all_rows_is_read_in_parts(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SPOOLED", 1000)
    monkeypatch.setattr("lancehouse.lake.row_streams.BATCH_BYTES", 10_000)
    rows = pa.table({"value": values})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    stream = read_stream(UploadReader(io.BytesIO(sink.getvalue().to_pybytes()), memory()), ["t"])  # type: ignore[arg-type]
    assert isinstance(stream, RowStream)
    batches = list(stream.to_reader())
    assert len(batches) > 1
    assert pa.Table.from_batches(batches).equals(rows)
    assert stream.num_rows == 20_000


def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(streaming, "TemporaryFile", lambda **_: Full())
    monkeypatch.setattr(streaming, "SPOOLED", 1000)
    with pytest.raises(ServiceUnavailableError, match=r"no room for 2000 bytes of rows \(No space left on device\)"):
        UploadReader(io.BytesIO(b"x" * 2000), memory()).read(2000)  # type: ignore[arg-type]
    assert tempfile.gettempdir()
