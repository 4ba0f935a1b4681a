from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog import bootstrap
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.server.http import responses
from lancehouse.server.http.application import App
from lancehouse.server.http.auth import Authenticator
from lancehouse.server.http.observability import Log
from lancehouse.server.http.protocol import StartupApp
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Call, Route
from lancehouse.server.setting_table import ServerLimits
from lancehouse.store import repository
from tests.live.gateways import until
from tests.server.serving import ServerClient, serving
from tests.waiting import PATIENCE_S

HELD = threading.Event()


def hold(call: Call) -> Response:
    HELD.wait(20)
    return responses.json({})


def fail(call: Call) -> Response:
    raise KeyError("a secret of the house")


def refuse(call: Call) -> Response:
    raise ConcurrentModificationError("somebody was faster")


def echo(call: Call) -> Response:
    return responses.json(
        {"body": len(call.body), "principal": call.caller.identity.name, "client": call.caller.client}
    )


ROUTES = [
    Route("hold", "GET", "/hold", hold),
    Route("holdChange", "POST", "/hold", hold, replay=hold),
    Route("holdCommit", "POST", "/hold/commit", hold, replay=hold, commits=True),
    Route("fail", "GET", "/fail", fail),
    Route("failAtOnce", "GET", "/fail/fast", fail, inline=True),
    Route("failCommit", "POST", "/fail", fail, commits=True),
    Route("refuse", "HEAD", "/refuse", refuse),
    Route("refuse", "GET", "/refuse", refuse),
    Route("echo", "POST", "/echo", echo),
]


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerClient]:
    limits = ServerLimits(body=1000, read_s=1.5, head_s=1.5, handle_s=1.5, requests=8, threads=4)
    with serving(tmp_path_factory.mktemp("awkward"), limits=limits, more=ROUTES) as client:
        yield client
        HELD.set()


@pytest.fixture
def holding() -> Iterator[None]:
    HELD.clear()
    yield
    HELD.set()
    time.sleep(0.05)


def raw(port: int, data: bytes, wait_s: float = 10) -> bytes:
    """What a server answers to bytes, until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nonsense", (404, "NotFoundException")),
        ("GET", "/v1/config", (404, "NotFoundException")),
        ("PUT", "/iceberg/v1/main/namespaces", (405, "MethodNotAllowedException")),
        ("OPTIONS", "/iceberg/v1/config", (405, "MethodNotAllowedException")),
        ("GET", "/iceberg/v1/main/namespaces/%ff", (400, "BadRequestException")),
        ("GET", "/iceberg/v1/main/namespaces?parent=%zz", (400, "BadRequestException")),
        ("GET", "/iceberg/v1/nowhere/namespaces", (404, "NoSuchWarehouseException")),
        ("GET", "/iceberg/v1/main/namespaces//tables", (400, "BadRequestException")),
        ("GET", "/fail", (500, "InternalServerError")),
        ("GET", "/fail/fast", (500, "InternalServerError")),
        ("POST", "/fail", (500, "CommitStateUnknownException")),
        ("GET", "/refuse", (409, "CommitFailedException")),
    ],
)
def test_every_error_has_the_envelope(awkward: ServerClient, method: str, path: str, expected: tuple[int, str]) -> None:
    answer = awkward.send(method, path)
    assert answer.error == expected
    assert "secret" not in answer.message
    assert answer.headers["content-type"] == "application/json"


def test_405_says_what_is_allowed(awkward: ServerClient) -> None:
    assert awkward.send("PUT", "/iceberg/v1/main/namespaces").headers["allow"] == "GET, POST"


@pytest.mark.parametrize(("path", "status"), [("/refuse", 409), ("/nonsense", 404), ("/health/live", 200)])
def test_head_has_no_body(awkward: ServerClient, path: str, status: int) -> None:
    answer = awkward.send("HEAD", path)
    assert (answer.status, answer.body) == (status, b"")


def test_a_failure_is_in_the_log_under_its_id(awkward: ServerClient) -> None:
    answer = awkward.send("GET", "/fail", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert "mine-1" in answer.message


@pytest.mark.parametrize("given", ["a b", "ü", "x" * 200, ""])
def test_an_odd_request_id_is_replaced(awkward: ServerClient, given: str) -> None:
    answer = awkward.send("GET", "/health/live", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] not in ("", given)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/hold", (503, "ServiceUnavailableException")),
        ("POST", "/hold", (504, "GatewayTimeoutException")),
        ("POST", "/hold/commit", (504, "CommitStateUnknownException")),
    ],
)
@pytest.mark.usefixtures("holding")
def test_what_takes_too_long(awkward: ServerClient, method: str, path: str, expected: tuple[int, str]) -> None:
    started = time.monotonic()
    assert awkward.send(method, path).error == expected
    assert time.monotonic() - started < 30


@pytest.mark.usefixtures("holding")
def test_too_many_requests_at_once(awkward: ServerClient) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(awkward.send("GET", "/hold").status)) for _ in range(8)]
    for thread in threads:
        thread.start()
    while (answer := awkward.send("GET", "/iceberg/v1/config")).status == 200 and not found:
        time.sleep(0.01)  # until all have come
    assert answer.error == (503, "ServiceUnavailableException")
    assert answer.headers["retry-after"] == "1"
    assert awkward.send("GET", "/health/live").status == 200  # it is busy, and lives
    for thread in threads:
        thread.join()
    assert found == [503] * 8  # those that waited for a thread, too
    HELD.set()
    assert awkward.send("GET", "/iceberg/v1/config?warehouse=main").status == 200


POST = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (POST + b"content-length: 1001\r\n\r\n", 413),  # known before a byte of it came
        (CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\ny\r\n0\r\n\r\n", 413),
        (POST + b"content-length: 10\r\n\r\nabc", 408),
        (CHUNKED + b"5\r\nab", 408),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\n", 408),  # a head that does not end
        (b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 70_000, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /iceberg/v1/\xc3\xbc HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (POST + b"content-length: -1\r\n\r\n", 400),
    ],
)
def test_requests_that_are_not_taken(awkward: ServerClient, request_: bytes, status: int) -> None:
    started = time.monotonic()
    head, _, body = raw(awkward.port, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == status
    assert time.monotonic() - started < 30


def test_who_says_nothing_is_hung_up_on(awkward: ServerClient) -> None:
    started = time.monotonic()
    assert raw(awkward.port, b"") == b""
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("data", "coding", "expected"),
    [
        (b"x" * 1000, None, 1000),
        (gzip.compress(b"x" * 1000, mtime=0), "gzip", 1000),
        (gzip.compress(b"x" * 1001, mtime=0), "gzip", 413),
        (gzip.compress(b"\0" * 500_000, 9, mtime=0), "gzip", 413),
        (gzip.compress(b"\0" * 10**8, 9, mtime=0)[:900], "gzip", 400),
        (gzip.compress(b"abc", mtime=0)[:-4], "gzip", 400),
        (gzip.compress(b"abc", mtime=0) + b"more", "gzip", 400),
        (b"abc", "gzip", 400),
        (b"abc", "br", 400),
        (b"abc", "identity", 3),
    ],
)
def test_bodies(awkward: ServerClient, data: bytes, coding: str | None, expected: int) -> None:
    answer = awkward.send("POST", "/echo", raw=data, headers={"Content-Encoding": coding} if coding else {})
    assert (answer.json["body"] if answer.status == 200 else answer.error[0]) == expected


@pytest.mark.parametrize("pause", [False, True])
def test_a_body_in_many_parts(awkward: ServerClient, pause: bool) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", awkward.port), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (head, b"3\r\nabc\r\n", b"1\r\nx\r\n" * 900 + b"2\r\nxy\r\n", b"0\r\n\r\n"):
            connection.sendall(part)
            time.sleep(0.02 * pause)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == 905


def test_the_token_endpoint_refuses_in_the_form_of_oauth(awkward: ServerClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "Content-Encoding": "br"}
    answer = awkward.send("POST", "/iceberg/v1/oauth/tokens", raw=b"abc", headers=form)
    assert (answer.status, answer.json["error"]) == (400, "invalid_request")
    assert "Content-Encoding 'br' is not known here" in answer.json["error_description"]


def test_a_connection_lives_on_after_an_error(awkward: ServerClient) -> None:
    request = b"GET /nonsense HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = raw(awkward.port, request + request + last)
    assert [said.count(status) for status in (b"HTTP/1.1 404", b"HTTP/1.1 200")] == [2, 1]


def test_an_error_of_a_late_call_is_not_hidden() -> None:
    startup_app = StartupApp(lambda: cast(App, None), lambda: None)
    startup_app._app = cast(App, object())
    with pytest.raises(IndexError):
        startup_app.call_when_loaded(lambda _: [][0])


def test_connections_are_limited(tmp_path: Path) -> None:
    with serving(tmp_path, limits=ServerLimits(connections=2)) as client:
        with socket.create_connection(("127.0.0.1", client.port)), socket.create_connection(("127.0.0.1", client.port)):
            until(lambda: raw(client.port, b"").startswith(b"HTTP/1.1 503 "), "both are there")
            assert b"retry-after: 1" in raw(client.port, b"")
        until(lambda: client.send("GET", "/health/live").status == 200, "both are gone")


def test_a_running_request_is_finished_before_the_server_stops(tmp_path: Path) -> None:
    found: list[int] = []
    began = threading.Event()

    def slowly(call: Call) -> Response:
        began.set()
        time.sleep(0.5)
        return responses.json({})

    with serving(tmp_path, more=[Route("slowly", "GET", "/slowly", slowly)]) as client:
        thread = threading.Thread(target=lambda: found.append(client.send("GET", "/slowly").status))
        thread.start()
        assert began.wait(PATIENCE_S)
    thread.join()
    assert found == [200]


def test_a_copy_that_is_being_made_is_recorded_before_the_server_stops(tmp_path: Path) -> None:
    database = bootstrap.open_database(f"sqlite:///{tmp_path / 'c.db'}")
    catalog = Catalog(database, [Warehouse(0, "main", str(tmp_path))])
    log = Log("error")
    app = App(catalog, Authenticator(Principals(database), required=False), log=log)

    began = threading.Event()

    def slowly() -> object:
        began.set()
        time.sleep(0.3)
        return database.write(lambda tx: repository.insert_warehouse(tx, "main", str(tmp_path)))

    making = catalog.scans.exports._pool.submit(slowly)
    assert began.wait(PATIENCE_S)
    app.close()
    log.close()
    assert making.result(0) is not None


def test_places(awkward: ServerClient) -> None:
    assert awkward.send("GET", "/").json["iceberg"] == "/iceberg"
    assert awkward.send("GET", "/health/ready").json["status"] == "ready"


@pytest.mark.parametrize("level", ["info", "error"])
def test_one_line_a_request(tmp_path: Path, level: str) -> None:
    headers = {"Authorization": "Bearer s3cr3t", "User-Agent": "tester/1", "X-Request-Id": "r1"}
    with serving(tmp_path, more=ROUTES, level=level) as client:
        client.send("GET", "/iceberg/v1/main/namespaces/nope%2Fx?token=s3cr3t", headers=headers)
        client.send("POST", "/fail", {"password": "s3cr3t"})
        time.sleep(0.2)
    lines = client.lines()
    assert "s3cr3t" not in (tmp_path / "log").read_text()
    assert [line["status"] for line in lines] == ([404, 500] if level == "info" else [500])
    if level == "info":
        line = lines[0]
        assert line.pop("ms") > 0
        assert line.pop("time").endswith("Z")
        assert line == {
            "level": "info",
            "request": "r1",
            "method": "GET",
            "path": "/iceberg/v1/main/namespaces/nope%2Fx",
            "route": "loadNamespaceMetadata",
            "status": 404,
            "bytes": line["bytes"],
            "principal": "anonymous",
            "client": "tester/1",
            "warehouse": "main",
            "error": "NoSuchNamespaceException",
            "message": "Namespace does not exist: nope/x",
        }


def test_the_log_has_the_reason_of_a_refusal(tmp_path: Path) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    secret = b"grant_type=client_credentials&client_id=me&client_secret=s3cr3t"
    with serving(tmp_path, more=ROUTES) as client:
        long = client.iceberg("GET", f"main/namespaces/{'n' * 400}").message
        client.send("HEAD", "/refuse")
        client.send("GET", "/fail", headers={"X-Request-Id": "r2"})
        client.send("POST", "/iceberg/v1/oauth/tokens", raw=secret, headers=form)
        client.send("GET", "/iceberg/v1/config")
        time.sleep(0.2)
    assert "s3cr3t" not in (tmp_path / "log").read_text()
    assert [(line["status"], line.get("error"), line.get("message")) for line in client.lines()] == [
        (404, "NoSuchNamespaceException", long[:300]),
        (409, "CommitFailedException", "somebody was faster"),
        (500, "InternalServerError", "the server failed; its log has the reason under the request id r2"),
        (401, "invalid_client", "the client id or the client secret is wrong"),
        (200, None, None),
    ]


@pytest.mark.parametrize("level", ["debug", "info"])
def test_what_machines_ask_for_is_logged_at_debug_level(tmp_path: Path, level: str) -> None:
    paths = ["/health/live", "/health/ready", "/metrics"]
    with serving(tmp_path, level=level) as client:
        for path in [*paths, "/"]:
            assert client.send("GET", path).status == 200
        time.sleep(0.2)
    quiet = [(path, "debug") for path in paths] if level == "debug" else []
    assert [(line["path"], line["level"]) for line in client.lines()] == [*quiet, ("/", "info")]


def test_metrics(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        for _ in range(3):
            client.send("GET", "/iceberg/v1/config")
        client.send("GET", "/nowhere/1")
        client.send("GET", "/nowhere/2")
        page = client.send("GET", "/metrics").body.decode()
    assert 'lancehouse_requests_total{method="GET",route="getConfig",status="200"} 3.0' in page
    assert 'lancehouse_requests_total{method="GET",route="none",status="404"} 2.0' in page
    assert 'lancehouse_request_seconds_count{route="getConfig"} 3.0' in page
    assert "lancehouse_requests_in_flight 0.0" in page
    assert "process_resident_memory_bytes{" in page


def test_authentication(tmp_path: Path) -> None:
    with serving(tmp_path, auth=True, more=ROUTES) as client:
        for path in ("/iceberg/v1/config", "/iceberg/v1/main/namespaces", "/iceberg/v1/main/namespaces/a/tables/t"):
            answer = client.send("GET", path)
            assert answer.error == (401, "NotAuthorizedException")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for path in ("/health/live", "/health/ready", "/"):
            assert client.send("GET", path).status == 200
        form = {"content-type": "application/x-www-form-urlencoded"}
        token = client.send("POST", "/iceberg/v1/oauth/tokens", raw=b"grant_type=client_credentials", headers=form)
        assert (token.status, token.json["error"]) == (401, "invalid_client")
        assert token.headers["cache-control"] == "no-store"


def test_a_broken_query_is_not_repeated(client: ServerClient) -> None:
    for query in ("token=s3cr3t%zz", "token=s3cr3t%ff", "token=s3cr3t%00"):
        answer = client.iceberg("GET", f"main/namespaces?{query}")
        assert answer.error == (400, "BadRequestException")
        assert "'token' in the query" in answer.message
        assert "s3cr3t" not in answer.message


def test_requests_on_one_connection_are_answered_in_turn(awkward: ServerClient) -> None:
    """Some on the connection itself, some by a thread; and none after the one that is to be the last."""
    asked = ["/health/live", "/health/ready", "/health/live", "/refuse", "/", "/nonsense"]
    head = "GET {} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: id{}\r\n{}\r\n"
    last = len(asked) - 1
    sent = [head.format(path, at, "Connection: close\r\n" * (at == last)) for at, path in enumerate([*asked, "/"])]
    answers = raw(awkward.port, "".join(sent).encode()).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [200, 200, 200, 409, 200, 404]
    assert [b"x-request-id: id%d\r\n" % at in answer for at, answer in enumerate(answers)] == [True] * len(asked)
    assert [b"connection: close" in answer for answer in answers] == [False] * last + [True]


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /health/live HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health/live HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /health/live HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", b"200"),
        (b"GET /health/\xc3\xa9 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", b"400"),
    ],
)
def test_a_connection_ends_where_it_should(awkward: ServerClient, request_head: bytes, status: bytes) -> None:
    answer = raw(awkward.port, request_head)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close\r\n" in answer
