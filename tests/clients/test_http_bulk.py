"""Lists in bulk: as fast as they are, they miss nothing and hide nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from lance_namespace import ListTablesRequest
from lance_namespace import errors as lance

import lancehouse
from lancehouse.clients.http import ConnectionPool, Reply, _BulkConnection
from tests.servers.faults import (
    ALWAYS,
    Fault,
    FaultProxy,
    answer_always,
    html,
    lost_answer,
    read_timeout,
    reset,
    slow,
    throttle,
    truncate_answer,
)
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.polaris import Polaris

NAMES = [f"t{number:02}" for number in range(40)]
DB = ["test_catalog", "db"]


@pytest.fixture(params=["iceberg", "polaris"])
def listing(request: pytest.FixtureRequest, polaris: Polaris) -> Iterator[tuple[FaultProxy, Any]]:
    """A namespace with 40 Lance tables and one of another kind, behind a proxy."""
    polaris.seed_namespace("test_catalog", "db")
    for name in NAMES:
        if request.param == "iceberg":
            polaris.seed_iceberg("test_catalog", "db", name, properties={"table_type": "lance"})
        else:
            polaris.seed_generic("test_catalog", "db", name, format="lance", location=f"s3://b/{name}")
    polaris.seed_iceberg("test_catalog", "db", "plain")
    polaris.seed_generic("test_catalog", "db", "delta", format="delta")
    kind = lancehouse.IcebergNamespace if request.param == "iceberg" else lancehouse.PolarisNamespace
    with FaultProxy(polaris.uri) as proxy:
        namespace = kind(
            endpoint=proxy.uri + ("/api/catalog" if request.param == "iceberg" else ""),
            credential=polaris.credential,
            scope="PRINCIPAL_ROLE:ALL",
            connect_timeout="1000",
            read_timeout=read_timeout(request),
            max_retries="2",
        )
        yield proxy, namespace


@pytest.mark.parametrize(
    "fault",
    [
        reset,
        lost_answer,
        truncate_answer(5),
        slow(5),
        slow(drip_s=0.2),
        throttle("0"),
        answer_always(503),
        answer_always(502),
        answer_always(401),
    ],
    ids=["reset", "lost", "truncated", "slow", "drip", "429", "503", "502", "401"],
)
def test_a_list_survives_passing_faults(listing: tuple[FaultProxy, Any], fault: Fault) -> None:
    proxy, namespace = listing
    for name in NAMES[3:30:9]:
        proxy.add(fault, method="GET", path=f"/{name}")
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == NAMES
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == NAMES


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answer_always(503), lance.ServiceUnavailableError),
        (answer_always(403), lance.PermissionDeniedError),
        (answer_always(401), lance.UnauthenticatedError),
        (answer_always(500), lance.InternalError),
        (answer_always(404), lance.InternalError),
        (html, lance.InternalError),
        (reset, lance.ServiceUnavailableError),
    ],
)
def test_a_table_that_cannot_be_read_is_told(
    listing: tuple[FaultProxy, Any], fault: Fault, expected: type[Exception]
) -> None:
    proxy, namespace = listing
    proxy.add(fault, method="GET", path="/t17", times=ALWAYS)
    with pytest.raises(expected, match=r"table test_catalog\.db\.t17"):
        namespace.list_tables(ListTablesRequest(id=DB))


def test_a_table_that_was_dropped_meanwhile_is_not_listed(listing: tuple[FaultProxy, Any]) -> None:
    proxy, namespace = listing
    gone = answer_always(404, '{"error": {"message": "gone", "type": "NoSuchTableException", "code": 404}}')
    proxy.add(gone, method="GET", path="/t17", times=ALWAYS)
    assert namespace.list_tables(ListTablesRequest(id=DB)).tables == [name for name in NAMES if name != "t17"]


def test_each_table_is_asked_for_once(listing: tuple[FaultProxy, Any]) -> None:
    proxy, namespace = listing
    namespace.list_tables(ListTablesRequest(id=DB))
    assert proxy.count("GET", "tables/") == len(NAMES) + 1


def test_inside_an_event_loop(listing: tuple[FaultProxy, Any]) -> None:
    async def inside() -> list[str]:
        tables: list[str] = listing[1].list_tables(ListTablesRequest(id=DB)).tables
        return tables

    assert asyncio.run(inside()) == NAMES


class Odd(Loopback):
    """Answers each target in another way that HTTP allows."""

    def answer(self, request: Request) -> Answer:
        body = json.dumps({"target": request.target}).encode()
        match request.target:
            case "/gzip":
                return Answer(200, gzip.compress(body), {"Content-Encoding": "gzip"})
            case "/close":
                return Answer(200, body, {"Connection": "close", "ETag": '"x"'})
            case "/204":
                return Answer(204)
            case "/broken":
                return Answer(200, body, missing=3)
        return Answer(200, body, {"X-Seen": request.headers["X-Mine"]})


def fetch_many(
    origin: str, requests: list[tuple[str, dict[str, str]]], tls: ssl.SSLContext | None = None
) -> list[Reply | None]:
    return ConnectionPool(origin, tls, connect_s=1, read_s=1).fetch_many(requests)


def test_answers_of_all_kinds() -> None:
    targets = ["/a", "/gzip", "/close", "/204", "/broken", "/b", "/c"]
    with Odd() as server:
        answers = fetch_many(server.uri, [(target, {"X-Mine": target}) for target in targets])
    seen = dict(zip(targets, answers, strict=True))
    assert seen["/gzip"] is None  # for the ordinary way
    assert seen["/broken"] is None
    for target in ("/a", "/b", "/c"):
        answer = seen[target]
        assert answer is not None
        status, headers, body = answer
        assert (status, headers["x-seen"], json.loads(body)) == (200, target, {"target": target})
    assert seen["/close"] is not None
    assert seen["/close"][1]["etag"] == '"x"'
    assert seen["/204"] is not None
    assert seen["/204"][0] == 204


def test_nobody_there() -> None:
    assert fetch_many("http://127.0.0.1:1", [("/a", {}), ("/b", {})]) == [None, None]


class FakeTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        """Send nothing."""

    def close(self) -> None:
        """Deliver more, as TLS does."""


def test_an_answer_after_the_last_one_is_no_request_s() -> None:
    surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"

    async def receive() -> list[Reply | None]:
        replies: list[Reply | None] = [None, None]
        connection = _BulkConnection(iter([(0, b"GET")]), replies, 1.0)
        connection.connection_made(FakeTransport())
        connection.data_received(surplus.replace(b"no", b"ok"))
        connection.data_received(surplus)
        return replies

    first, second = asyncio.run(receive())
    assert first is not None
    assert first.body == b"ok"
    assert second is None


def test_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    class Secure(Odd):
        def _listen(self) -> None:
            super()._listen()
            self._listener.socket = context.wrap_socket(self._listener.socket, server_side=True)

    requests = [(f"/{number}", {"X-Mine": "x"}) for number in range(9)]
    with Secure() as server:
        answers = fetch_many(server.uri.replace("http:", "https:"), requests, trusting)
        assert [answer and answer[0] for answer in answers] == [200] * 9
        strangers = fetch_many(server.uri.replace("http:", "https:"), requests, ssl.create_default_context())
        assert strangers == [None] * 9
