"""The fault proxy does what it says, seen from a plain client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, IncompleteRead

import pytest

from tests.servers.faults import (
    FaultProxy,
    answer_always,
    html,
    lost_answer,
    passes,
    reset,
    slow,
    throttle,
    truncate_answer,
)
from tests.servers.unity import Unity
from tests.wire.facts import Talk

CATALOGS = "/api/2.1/unity-catalog/catalogs"
SCHEMAS = "/api/2.1/unity-catalog/schemas"
NEW_SCHEMA = {"name": "s", "catalog_name": "lance_test"}


@pytest.fixture
def proxy(unity: Unity, faults: Callable[[str], FaultProxy]) -> FaultProxy:
    return faults(unity.uri)


@pytest.fixture
def talk(proxy: FaultProxy) -> Iterator[Talk]:
    talk = Talk(proxy.uri)
    yield talk
    talk.close()


def test_passes(proxy: FaultProxy, talk: Talk, unity: Unity) -> None:
    assert talk.send("GET", f"{CATALOGS}?max_results=1")[0] == 200
    assert talk.send("POST", SCHEMAS, NEW_SCHEMA)[0] == 200
    assert talk.send("DELETE", f"{SCHEMAS}/lance_test.s") == (200, "200 OK")
    assert talk.send("HEAD", CATALOGS) == (405, "")
    assert proxy.requests == proxy.forwarded == unity.requests
    assert len(unity.requests) == 4


def test_refused_then_back_on_the_same_port(proxy: FaultProxy, talk: Talk) -> None:
    address = proxy.uri
    with proxy.refusing(), pytest.raises(ConnectionRefusedError):
        Talk(address).send("GET", CATALOGS)
    talk.close()
    assert proxy.uri == address
    assert talk.send("GET", CATALOGS)[0] == 200


def test_reset(proxy: FaultProxy, talk: Talk, unity: Unity) -> None:
    proxy.add(reset)
    with pytest.raises(ConnectionResetError) as caught:
        talk.send("POST", SCHEMAS, NEW_SCHEMA)
    assert type(caught.value) is ConnectionResetError, "closed, not reset"
    assert unity.requests == []


def test_lost_answer(proxy: FaultProxy, talk: Talk, unity: Unity) -> None:
    proxy.add(lost_answer)
    with pytest.raises(ConnectionResetError):
        talk.send("POST", SCHEMAS, NEW_SCHEMA)
    talk.close()
    assert unity.requests == [("POST", SCHEMAS)]
    assert talk.send("GET", f"{SCHEMAS}/lance_test.s")[0] == 200


def test_slow(proxy: FaultProxy, talk: Talk) -> None:
    proxy.add(slow(0.2))
    start = time.monotonic()
    assert talk.send("GET", CATALOGS)[0] == 200
    assert time.monotonic() - start >= 0.2


def test_drip(proxy: FaultProxy, talk: Talk) -> None:
    proxy.add(slow(drip_s=0.001))
    start = time.monotonic()
    _, text = talk.send("GET", CATALOGS)
    assert json.loads(text)["catalogs"]
    assert time.monotonic() - start >= 0.001 * len(text)


def test_a_slow_answer_does_not_hold_up_the_end(proxy: FaultProxy) -> None:
    proxy.add(slow(60))
    connection = HTTPConnection(proxy.uri.removeprefix("http://"), timeout=0.2)
    with pytest.raises(TimeoutError):
        connection.request("GET", CATALOGS)
        connection.getresponse()
    connection.close()
    start = time.monotonic()
    proxy.close()
    assert time.monotonic() - start < 30


def test_truncated(proxy: FaultProxy, talk: Talk) -> None:
    proxy.add(truncate_answer(5))
    with pytest.raises(IncompleteRead) as caught:
        talk.send("GET", CATALOGS)
    assert caught.value.expected == 5


def test_html(proxy: FaultProxy, talk: Talk) -> None:
    proxy.add(html)
    status, text = talk.send("GET", CATALOGS)
    assert status == 200
    assert text.startswith("<html>")


@pytest.mark.parametrize("status", [401, 419, 500, 502, 503, 504])
def test_canned(proxy: FaultProxy, talk: Talk, unity: Unity, status: int) -> None:
    proxy.add(answer_always(status, '{"a":1}'), times=2)
    answers = [talk.send("GET", CATALOGS) for _ in range(3)]
    assert answers[:2] == [(status, '{"a":1}')] * 2
    assert answers[2][0] == 200
    assert len(unity.requests) == 1


def test_throttled(proxy: FaultProxy) -> None:
    proxy.add(throttle("7"))
    connection = HTTPConnection(proxy.uri.removeprefix("http://"))
    connection.request("GET", CATALOGS)
    response = connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "7")
    connection.close()


def test_rules_choose_by_method_and_path_and_in_order(proxy: FaultProxy, talk: Talk) -> None:
    proxy.add(answer_always(500), method="POST", path=r"/schemas$")
    proxy.add(passes, path="catalogs")
    proxy.add(answer_always(503), path="catalogs")
    statuses = [talk.send("GET", CATALOGS)[0], talk.send("GET", CATALOGS)[0], talk.send("POST", SCHEMAS, NEW_SCHEMA)[0]]
    assert statuses == [200, 503, 500]
    assert (proxy.count(), proxy.count("GET"), proxy.count(path="schemas")) == (3, 2, 1)
    proxy.clear()
    assert proxy.count() == 0


def test_latency_is_not_a_queue(proxy: FaultProxy) -> None:
    proxy.latency_ms = 1000

    def once(_: int) -> int:
        talk = Talk(proxy.uri)
        status = talk.send("GET", CATALOGS)[0]
        talk.close()
        return status

    start = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(once, range(16))) == {200}
    assert 1 <= time.monotonic() - start < 12  # one after the other it would be 16 seconds


def test_no_server_behind(faults: Callable[[str], FaultProxy]) -> None:
    gone = Unity()
    gone.close()
    talk = Talk(faults(gone.uri).uri)
    assert talk.send("GET", CATALOGS)[0] == 502
    talk.close()
