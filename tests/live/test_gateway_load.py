"""The gateway under load: clients, many, slow and broken; nothing is lost, and nothing is left."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.live.gateways import (
    ALL,
    Conversation,
    Footprint,
    ask,
    at_once,
    ids,
    insert,
    nothing_held,
    numbers,
    post,
    start_gateway,
    stream,
    until,
    wide,
)
from tests.servers.lancehouse import Served

CLIENTS = 64
PATIENCE_S = 3
"""How long the server of these tests waits for slow clients."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that is not patient."""
    patience = [f"--read-timeout={PATIENCE_S}", f"--write-timeout={PATIENCE_S}", "--log-level=warning"]
    with start_gateway(tmp_path_factory.mktemp("load"), {}, patience) as running:
        yield running


@pytest.fixture
def db(server: Served) -> str:
    """A new namespace of the warehouse."""
    name = f"load_{uuid4().hex[:8]}"
    assert post(server, f"namespace/{name}/create")[0] == 200
    return name


def upload(server: Served, table: str, size: int) -> Conversation:
    return Conversation(server, f"/lance/main/v1/table/{table}/insert", {"content-length": str(size)})


def query(server: Served, table: str) -> Conversation:
    reading = Conversation(server, f"/lance/main/v1/table/{table}/query", {"content-length": str(len(ALL))})
    reading.say(ALL)
    return reading


def data_files(server: Served, table: str) -> set[str]:
    folder = server.location.joinpath(*table.split("$"))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.timeout(1800)
def test_many_clients_at_once(server: Served, db: str, soak: bool) -> None:
    rounds = 20 if soak else 1
    shared = f"{db}$shared"
    assert insert(server, shared, numbers(0, 1), verb="create")[0] == 200

    def client(number: int, turn: int) -> Callable[[], list[int]]:
        def work() -> list[int]:
            mine, first = f"{db}$t{turn}_{number}", 1000 * (number + 1)
            statuses = [
                insert(server, mine, numbers(first, 10), verb="create")[0],
                insert(server, mine, numbers(first + 10, 10))[0],
                insert(server, shared, numbers(100_000 * (turn + 1) + number, 1))[0],
                post(server, f"table/{mine}/describe?load_detailed_metadata=true")[0],
            ]
            assert ids(server, mine) == list(range(first, first + 20))
            return [*statuses, post(server, f"table/{mine}/drop")[0]]

        return work

    def all_of_them(turn: int) -> None:
        seen = at_once([client(number, turn) for number in range(CLIENTS)])
        assert {status for statuses in seen for status in statuses} == {200}

    all_of_them(0)  # all threads are there now, each with what it needs
    sizes = []
    for turn in range(1, rounds + 1):
        with nothing_held(server):
            all_of_them(turn)
        sizes.append(Footprint.of(server).resident_mb)
    expected = [0, *(100_000 * (turn + 1) + number for turn in range(rounds + 1) for number in range(CLIENTS))]
    assert ids(server, shared) == expected
    assert post(server, f"namespace/{db}/describe")[0] == 200
    if soak:
        assert sizes[-1] - sizes[rounds // 2] < 40, sizes


@pytest.mark.timeout(600)
def test_slow_readers_stop_nobody_and_get_it_all(tmp_path: Path, soak: bool) -> None:
    with start_gateway(tmp_path, {}, ["--log-level=warning"]) as server:
        assert post(server, "namespace/db/create")[0] == 200
        read_slowly(server, wide(200_000 if soak else 10_000))


def read_slowly(server: Served, rows: pa.Table) -> None:
    table = "db$t"
    assert insert(server, table, stream(rows, 8192), verb="create")[0] == 200
    assert len(ids(server, table)) == rows.num_rows
    before = Footprint.of(server)
    with nothing_held(server):
        slow_ones = [query(server, table) for _ in range(CLIENTS)]
        answers = [each.answer() for each in slow_ones]
        begun = [answer.read(1000) for answer in answers]
        assert insert(server, "db$other", numbers(0, 5), verb="create")[0] == 200
        assert ids(server, "db$other") == [0, 1, 2, 3, 4]
        assert Footprint.of(server).resident_mb - before.resident_mb < CLIENTS * 8
        # Some go on, one byte more at a time, then all of it.
        for answer, first in zip(answers[:8], begun[:8], strict=True):
            found = pa.ipc.open_file(first + answer.read(1) + answer.read()).read_all()
            assert found.num_rows == rows.num_rows
        for each in slow_ones:
            each.leave()


def test_no_more_readers_than_are_allowed(tmp_path: Path) -> None:
    with start_gateway(tmp_path, {}, ["--max-streams=3", "--log-level=warning"]) as server:
        assert post(server, "namespace/db/create")[0] == 200
        assert insert(server, "db$t", stream(wide(40_000), 8192), verb="create")[0] == 200
        slow_ones = [query(server, "db$t") for _ in range(3)]
        assert [each.answer().read(100) != b"" for each in slow_ones] == [True] * 3
        heard = ask(server, "POST", "/lance/main/v1/table/db$t/query", ALL)
        assert heard.refused == (503, 17)
        assert heard.headers["retry-after"] == "1"
        assert post(server, "table/db$t/count_rows") == (200, 40_000)
        slow_ones.pop().leave()
        until(lambda: ask(server, "POST", "/lance/main/v1/table/db$t/query", ALL).status == 200, "no place is free")
        for each in slow_ones:
            each.leave()


def test_a_reader_that_takes_nothing_is_left_in_the_end(server: Served, db: str) -> None:
    rows = wide(60_000)  # more than sockets hold
    table = f"{db}$t"
    assert insert(server, table, stream(rows, 8192), verb="create")[0] == 200
    reading = query(server, table)
    answer = reading.answer()
    assert len(answer.read(1000)) == 1000
    assert reading.is_open
    until(lambda: not reading.is_open, "the connection stays open")
    with pytest.raises((HTTPException, OSError)):
        answer.read()
    reading.leave()
    assert post(server, f"table/{table}/count_rows") == (200, rows.num_rows)


def test_readers_that_go_away(server: Served, db: str) -> None:
    table = f"{db}$t"
    assert insert(server, table, stream(wide(20_000), 4096), verb="create")[0] == 200

    def come_and_go(number: int) -> Callable[[], None]:
        def work() -> None:
            reading = query(server, table)
            if number % 4:
                reading.answer().read(1000)
            (reading.slam if number % 2 else reading.leave)()

        return work

    at_once([come_and_go(number) for number in range(CLIENTS)])  # now all threads are there
    with nothing_held(server):
        at_once([come_and_go(number) for number in range(CLIENTS)])
        assert post(server, f"table/{table}/count_rows") == (200, 20_000)


def test_slow_uploads_stop_nobody(server: Served, db: str) -> None:
    table, body = f"{db}$t", numbers(100, 20_000)  # more than a thread is taken for
    assert insert(server, table, numbers(0, 5), verb="create")[0] == 200
    files = data_files(server, table)
    with nothing_held(server):
        small = [upload(server, table, len(body)) for _ in range(CLIENTS)]
        large = [upload(server, table, len(body)) for _ in range(CLIENTS // 2)]
        for each in small:
            each.say(body[:100])
        for each in large:
            each.say(body[:100_000])
        assert post(server, f"table/{table}/count_rows") == (200, 5)  # all of them hang, and this does not
        assert insert(server, f"{db}$other", numbers(0, 5), verb="create")[0] == 200
        for each in (small[0], large[0]):
            each.say(body[100 if each is small[0] else 100_000 :])
            assert each.hear()[0] == 200
            each.leave()
        for each in (*small[1:], *large[1:]):
            status, error = each.hear()
            assert (status, error["code"]) == (400, 13)
            words = "the body did not begin to come" if each in small else "nothing more of the body came"
            assert f"{words} within {PATIENCE_S} s" in error["error"]
            each.leave()
    assert len(ids(server, table)) == 5 + 2 * 20_000
    assert versions(server, table) == [1, 2, 3]
    until(
        lambda: [file for file in data_files(server, table) - files if file.startswith("data/")][2:] == [],
        "files are left",
    )


def versions(server: Served, table: str) -> list[int]:
    return [each["version"] for each in post(server, f"table/{table}/version/list")[1]["versions"]]


def broken_uploads(body: bytes) -> dict[str, tuple[bytes, dict[str, str]]]:
    """What is sent, and what is said of it."""
    half = len(body) // 2
    garbage = body[:half] + b"\xff" * 1000 + body[half + 1000 :]
    return {
        "nothing": (b"", {"content-length": str(len(body))}),
        "a little": (body[:50], {"content-length": str(len(body))}),
        "half": (body[:half], {"content-length": str(len(body))}),
        "half a chunk": (b"%x\r\n" % len(body) + body[:half], {"transfer-encoding": "chunked"}),
        "no last chunk": (b"%x\r\n%b\r\n" % (half, body[:half]), {"transfer-encoding": "chunked"}),
        "garbage": (garbage, {"content-length": str(len(garbage))}),
        "half a message": (body[:-11], {"content-length": str(len(body) - 11)}),
        "half of gzip": (
            (packed := gzip.compress(body))[: len(packed) // 2],
            {"content-length": str(len(packed) // 2), "content-encoding": "gzip"},
        ),
        "no gzip": (body, {"content-length": str(len(body)), "content-encoding": "gzip"}),
    }


@pytest.mark.parametrize("verb", ["insert", "insert?mode=overwrite", "merge_insert?on=id", "create?mode=overwrite"])
def test_broken_uploads_leave_nothing(server: Served, db: str, verb: str, soak: bool) -> None:
    table = f"{db}$t"
    assert insert(server, table, numbers(0, 5), verb="create")[0] == 200
    files = data_files(server, table)
    cases = list(broken_uploads(stream(wide(2000), 100)).values()) * (CLIENTS // 8 if soak else 2)
    if verb.startswith("merge_insert"):
        verb += "&when_matched_update_all=true&when_not_matched_insert_all=true"

    def send(number: int, data: bytes, headers: dict[str, str]) -> Callable[[], None]:
        def work() -> None:
            sending = Conversation(server, f"/lance/main/v1/table/{table}/{verb}", headers)
            sending.say(data)
            whole = headers.get("content-length") == str(len(data))
            if whole:
                status, error = sending.hear()
                assert (status, error["code"]) in ((400, 13), (400, 20)), error
            (sending.slam if number % 2 else sending.leave)()

        return work

    with nothing_held(server):
        at_once([send(number, *case) for number, case in enumerate(cases)])
        until(lambda: data_files(server, table) == files, "files are left")
    assert ids(server, table) == [0, 1, 2, 3, 4]
    assert versions(server, table) == [1]
    assert insert(server, table, numbers(5, 1))[0] == 200


def test_broken_uploads_of_new_tables_make_none(server: Served, db: str) -> None:
    for number, (data, headers) in enumerate(broken_uploads(stream(wide(2000), 100)).values()):
        sending = Conversation(server, f"/lance/main/v1/table/{db}$t{number}/create", headers)
        sending.say(data)
        if headers.get("content-length") == str(len(data)):
            assert sending.hear()[0] == 400
        sending.leave()

    def list_tables() -> list[str]:
        found: list[str] = ask(server, "GET", f"/lance/main/v1/namespace/{db}/table/list").json["tables"]
        return found

    until(lambda: list_tables() == [], f"there are {list_tables()}")
    until(lambda: not [path for path in (server.location / db).rglob("*") if path.is_file()], "files are left")


def test_in_the_end_there_are_no_more_threads_than_the_pools_have(server: Served) -> None:
    assert Footprint.of(server).threads <= 32 + 16 + 64 + 16
