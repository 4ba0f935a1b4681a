"""Backends that fail, and a gateway that dies: nothing is lost, and everybody hears what is the matter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import lance
import pytest

from tests.clients.managed import NO
from tests.live.gateways import (
    ALL,
    ask,
    at_once,
    ids,
    insert,
    nothing_held,
    numbers,
    post,
    send,
    start_gateway,
    until,
)
from tests.servers.faults import ALWAYS, FaultProxy, answer_always, lost_answer, slow, throttle
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.reference import Reference

CLIENTS = 64
BACKEND = {"max_retries": "1", "read_timeout": "4000", "connect_timeout": "2000"}

Bad = tuple[Served, FaultProxy]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[Bad]:
    """A gateway, and a proxy in front of its backend `far`."""
    folder = tmp_path_factory.mktemp("outages")
    with FaultProxy(reference_server.uri) as proxy:
        far = {"endpoint": proxy.uri, "root": str(folder / "far"), **BACKEND}
        with start_gateway(folder, {"far": ("iceberg", far)}, ["--log-level=warning"]) as server:
            yield server, proxy


@pytest.fixture
def server(bad: Bad) -> Served:
    return bad[0]


@pytest.fixture
def proxy(bad: Bad) -> Iterator[FaultProxy]:
    yield bad[1]
    bad[1].clear()


@pytest.fixture
def far(server: Served, proxy: FaultProxy) -> str:
    """A new namespace behind the proxy, as the path of a table begins with it."""
    name = f"wh$far_{uuid4().hex[:8]}"
    assert post(server, f"namespace/{name}/create", backend="far")[0] == 200
    return name


READS = [
    ("namespace/{ns}/describe", b"{}"),
    ("table/{ns}$t/describe", b"{}"),
    ("table/{ns}$t/count_rows", b"{}"),
    ("table/{ns}$t/query", ALL),
    ("table/{ns}$t/version/list", b""),
]
CHANGES = [
    ("namespace/{ns}x/create", b"{}"),
    ("table/{ns}$new/declare", b"{}"),
    ("table/{ns}$new/create", numbers(0, 5)),
    ("table/{ns}$t/insert", numbers(0, 5)),
    ("table/{ns}$t/delete", b'{"predicate": "id = 1"}'),
]


@pytest.fixture
def managed_table(server: Served, far: str) -> str:
    """A table behind the proxy, whose commits go through it."""
    body = {"properties": {"managed_by": "impl"}}
    assert post(server, f"table/{far}$t/declare", body, "far")[0] == 200
    assert insert(server, f"{far}$t", numbers(0, 5), "far")[0] == 200
    return f"{far}$t"


@pytest.mark.parametrize(("path", "body"), [*READS, *CHANGES], ids=lambda each: each if isinstance(each, str) else "")
def test_a_backend_that_is_gone_is_unavailable_and_comes_back(
    server: Served, proxy: FaultProxy, far: str, managed_table: str, path: str, body: bytes
) -> None:
    target = f"/lance/far/v1/{path.format(ns=far)}"
    folder = Path(str(post(server, f"table/{managed_table}/describe", {}, "far")[1]["location"]))
    files = set(folder.rglob("*"))
    with proxy.refusing():
        heard = ask(server, "POST", target, body)
        assert heard.refused == (503, 17), heard.body
        assert heard.headers["retry-after"] == "1"
        assert post(server, "namespace/$/exists")[0] in (200, 400)  # of the warehouse: it is not asked
    assert set(folder.rglob("*")) == files
    assert ask(server, "POST", target, body).status == 200


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (answer_always(500, '{"error": {"message": "no", "type": "X", "code": 500}}'), 500, 18),
        (answer_always(503), 503, 17),
        (throttle("0"), 429, 21),
        (answer_always(401), 401, 16),
        (answer_always(403), 403, 15),
        (answer_always(200, "<html>"), 500, 18),
        (slow(30), 503, 17),
    ],
    ids=["failed", "unavailable", "throttled", "unauthenticated", "forbidden", "no catalog", "silent"],
)
def test_what_a_backend_answers_is_passed_on(
    server: Served, proxy: FaultProxy, managed_table: str, fault: Any, status: int, code: int
) -> None:
    proxy.add(fault, path="/tables/t", times=ALWAYS)
    heard = ask(server, "POST", f"/lance/far/v1/table/{managed_table}/describe", b"{}")
    assert heard.refused == (status, code), heard.body
    assert ("retry-after" in heard.headers) is (status in (429, 503))
    proxy.clear()
    assert post(server, f"table/{managed_table}/describe", {}, "far")[0] == 200


def test_a_backend_that_hangs_stops_nobody_else(server: Served, proxy: FaultProxy, managed_table: str) -> None:
    db = f"db_{uuid4().hex[:8]}"
    assert post(server, f"namespace/{db}/create")[0] == 200
    proxy.add(slow(30), path="/tables/t", times=ALWAYS)
    before = len(proxy.requests)
    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        hanging = [pool.submit(post, server, f"table/{managed_table}/describe", {}, "far") for _ in range(CLIENTS)]
        hanging += [pool.submit(insert, server, managed_table, numbers(0, 1), "far") for _ in range(CLIENTS // 4)]
        until(lambda: len(proxy.requests) > before + CLIENTS // 4, "nobody asks")
        assert post(server, f"namespace/{db}/describe")[0] == 200
        assert not any(each.done() for each in hanging)
        assert insert(server, f"{db}$t", numbers(0, 5), verb="create")[0] == 200
        assert ids(server, f"{db}$t") == [0, 1, 2, 3, 4]
        proxy.clear()
        # Of all that insert at once, some may be told that others were first.
        assert {each.result()[0] for each in hanging} <= {200, 409, 503}


def test_a_backend_that_hangs_does_not_stop_the_console(server: Served, proxy: FaultProxy, managed_table: str) -> None:
    db = f"db_{uuid4().hex[:8]}"
    assert post(server, f"namespace/{db}/create")[0] == 200
    assert insert(server, f"{db}$t", numbers(0, 5), verb="create")[0] == 200
    proxy.add(slow(30), path="/tables/t", times=ALWAYS)
    before = len(proxy.requests)
    with ThreadPoolExecutor(CLIENTS) as pool:
        far = f"/console/v1/rows?in=far&{_levels(managed_table)}"
        hanging = [pool.submit(send, server, "GET", far) for _ in range(CLIENTS)]
        until(lambda: len(proxy.requests) > before + CLIENTS // 8, "nobody asks")
        assert ask(server, "GET", f"/console/v1/rows?in=main&{_levels(f'{db}$t')}").status == 200
        assert not any(each.done() for each in hanging)
        proxy.clear()
        assert {each.result()[0] for each in hanging} <= {200, 503}


def _levels(table: str) -> str:
    return "&".join(f"level={level}" for level in table.split("$"))


def test_an_answer_of_the_backend_that_is_lost_is_looked_up(
    server: Served, proxy: FaultProxy, managed_table: str
) -> None:
    for method, path in (("POST", r"/namespaces$"), ("POST", r"/tables$"), ("POST", "/tables/t$")):
        proxy.add(lost_answer, method=method, path=path)
    name = f"wh$far_{uuid4().hex[:8]}"
    assert post(server, f"namespace/{name}/create", {}, "far")[0] == 200
    assert post(server, f"table/{name}$t/declare", {"properties": {"managed_by": "impl"}}, "far")[0] == 200
    assert insert(server, managed_table, numbers(5, 5), "far")[0] == 200
    assert ids(server, managed_table, "far") == list(range(10))


def test_nothing_is_lost_while_a_backend_comes_and_goes(
    server: Served, proxy: FaultProxy, managed_table: str, soak: bool
) -> None:
    """What was acknowledged is there, once; what was refused is not; of the rest nobody knows."""
    writers, steps = (16, 40) if soak else (8, 6)
    done: dict[int, int] = {}

    def write(number: int) -> Callable[[], None]:
        def work() -> None:
            for step in range(steps):
                key = 1000 * (number + 1) + step
                status, answer = insert(server, managed_table, numbers(key, 1), "far")
                assert status in (200, 409, 500, 503), answer
                assert status != 500 or answer["code"] == 18
                done[key] = status
                sleep(0.02)

        return work

    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.wait(0.3):
            with proxy.refusing():
                stop.wait(0.2)

    trouble = threading.Thread(target=come_and_go)
    trouble.start()
    try:
        with nothing_held(server):
            at_once([write(number) for number in range(writers)])
    finally:
        stop.set()
        trouble.join()
    found = ids(server, managed_table, "far")
    assert len(found) == len(set(found))
    acknowledged = {key for key, status in done.items() if status == 200}
    refused = {key for key, status in done.items() if status == 409}
    assert acknowledged, done
    assert set(range(5)) | acknowledged <= set(found)
    assert not refused & set(found)
    location = str(post(server, f"table/{managed_table}/describe", {}, "far")[1]["location"])
    assert sorted(lance.dataset(location).to_table()["id"].to_pylist()) == found


def test_what_was_acknowledged_survives_a_kill_of_the_gateway(tmp_path: Path, soak: bool) -> None:
    acknowledged: set[int] = set()
    tried: set[int] = set()
    for turn in range(10 if soak else 1):
        with start_lancehouse(tmp_path) as server:
            if not turn:
                assert post(server, "namespace/db/create")[0] == 200
                for name in ("plain", "managed"):
                    properties = {"managed_by": "impl"} if name == "managed" else {}
                    assert (
                        post(server, f"table/db$${name}/declare".replace("$$", "$"), {"properties": properties})[0]
                        == 200
                    )
                    assert insert(server, f"db${name}", numbers(0, 1))[0] == 200
            stop = threading.Event()

            def write(number: int, turn: int = turn, server: Served = server, stop: threading.Event = stop) -> None:
                for step in range(1000):
                    key = 1_000_000 * (turn + 1) + 10_000 * number + step
                    for table in ("db$plain", "db$managed"):
                        tried.add(key)
                        try:
                            status, answer = insert(server, table, numbers(key, 1))
                        except (HTTPException, OSError):
                            return
                        assert status == 200, answer
                        acknowledged.add(key if table == "db$plain" else -key)
                    if stop.is_set():
                        return

            writing = [threading.Thread(target=write, args=(number,)) for number in range(8)]
            for each in writing:
                each.start()
            before = len(acknowledged)
            until(lambda before=before: len(acknowledged) > before + 20, "no progress")  # type: ignore[misc]
            server.kill()
            stop.set()
            for each in writing:
                each.join()
    with start_lancehouse(tmp_path) as server:
        for table, sign in (("db$plain", 1), ("db$managed", -1)):
            found = ids(server, table)
            assert len(found) == len(set(found))
            assert {key for key in (sign * key for key in acknowledged) if key > 0} <= set(found)
            assert set(found) <= tried | {0}
            assert insert(server, table, numbers(1, 1))[0] == 200


def test_a_commit_that_the_catalog_refuses(server: Served, proxy: FaultProxy, managed_table: str) -> None:
    """The caller hears the catalog's reason, not that the result of the commit is unknown."""
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    status, said = insert(server, managed_table, numbers(5, 5), backend="far")
    assert (status, said["code"]) == (403, 15)
    assert "not you" in said["error"]
    assert "unknown" not in said["error"]
    proxy.clear()
    assert ids(server, managed_table, "far") == [0, 1, 2, 3, 4]
