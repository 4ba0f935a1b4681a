"""Requests that are answered on the event loop's thread, beside the same requests answered in a thread."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DropTableRequest,
    RegisterTableRequest,
    RenameTableRequest,
)

from lancehouse import in_process
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.server import run
from lancehouse.server.http import responses
from lancehouse.server.http.application import App
from lancehouse.server.http.auth import Authenticator
from lancehouse.server.http.observability import Log
from lancehouse.server.http.protocol import LARGEST_INLINE
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Call, Route
from lancehouse.server.setting_table import ServerLimits
from lancehouse.server.settings import ServerSettings
from tests.live.gateways import until
from tests.server.serving import ServerClient, serving

HELD = threading.Event()
JSON = {"content-type": "application/json"}


def echo(call: Call) -> Response:
    return responses.json({"blocking": call.blocking, "body": call.body.decode()})


def echo_in_thread(call: Call) -> Response:
    if not call.blocking:
        raise WouldBlockError
    return echo(call)


def hold(call: Call) -> Response:
    HELD.wait(20)
    return echo(call)


ROUTES = [
    Route("echo", "POST", "/echo", echo, inline=True),
    Route("echoInThread", "POST", "/thread", echo_in_thread, inline=True),
    Route("echoElsewhere", "POST", "/elsewhere", echo, inline=True, group=lambda match, query: "another server"),
    Route("hold", "GET", "/hold", hold),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerClient]:
    with serving(tmp_path_factory.mktemp("inline"), more=ROUTES, limits=ServerLimits(body=100_000)) as client:
        assert client.iceberg("GET", "config?warehouse=main").status == 200  # nothing is inline before the first one
        yield client


def post(path: str, body: bytes, headers: str = "content-type: application/json\r\n") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def exchange(client: ServerClient, *parts: bytes, answers: int = 1) -> list[dict[str, Any]]:
    """The JSON of the answers to some bytes, each part of which arrives by itself."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            if part is not parts[-1]:
                # Its answer shows that the server has read what came before.
                assert client.send("POST", "/echo", {}).status == 200
        received = b""
        while received.count(b'"blocking"') < answers or not received.endswith(b'"}'):
            received += connection.recv(65536)
    return [json.loads(part[part.index(b"{") :]) for part in received.split(b"HTTP/1.1 ")[1:]]


def test_a_small_body_that_comes_with_its_head(client: ServerClient) -> None:
    assert exchange(client, post("/echo", b'{"a":1}')) == [{"blocking": False, "body": '{"a":1}'}]
    assert exchange(client, post("/echo", b"")) == [{"blocking": False, "body": ""}]


@pytest.mark.parametrize("cut", [-1, -5, -12])
def test_a_body_that_comes_later(client: ServerClient, cut: int) -> None:
    data = post("/echo", b'{"key":1234}')
    assert exchange(client, data[:cut], data[cut:]) == [{"blocking": True, "body": '{"key":1234}'}]


def test_what_waits_for_another_server_is_left_to_a_thread(client: ServerClient) -> None:
    assert exchange(client, post("/elsewhere", b"{}")) == [{"blocking": True, "body": "{}"}]


def test_what_would_block_is_left_to_a_thread(client: ServerClient) -> None:
    assert exchange(client, post("/thread", b'{"a":1}')) == [{"blocking": True, "body": '{"a":1}'}]


@pytest.mark.parametrize("size", [LARGEST_INLINE, LARGEST_INLINE + 1])
def test_only_small_bodies_are_answered_inline(client: ServerClient, size: int) -> None:
    body = b"[" + b" " * (size - 2) + b"]"
    expected = {"blocking": size > LARGEST_INLINE, "body": body.decode()}
    assert exchange(client, post("/echo", body)) == [expected]


def test_unusual_bodies_are_left_to_a_thread(client: ServerClient) -> None:
    packed = post("/echo", gzip.compress(b"[1]"), "content-type: application/json\r\ncontent-encoding: gzip\r\n")
    assert exchange(client, packed) == [{"blocking": True, "body": "[1]"}]
    chunked = post("/echo", b"", "transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"")
    assert exchange(client, chunked + b"3\r\n[1]\r\n0\r\n\r\n") == [{"blocking": True, "body": "[1]"}]


def test_answers_come_in_the_order_of_the_requests(client: ServerClient) -> None:
    HELD.clear()
    threading.Timer(0.2, HELD.set).start()
    held = b"GET /hold HTTP/1.1\r\nhost: localhost\r\n\r\n"
    bodies = [f'{{"n":{number}}}'.encode() for number in range(3)]
    echoes = [post("/echo", body) for body in bodies]
    answers = exchange(client, b"".join([*echoes[:2], held, echoes[2], echoes[0]]), answers=5)
    assert [answer["body"].encode() for answer in answers] == [*bodies[:2], b"", bodies[2], bodies[0]]
    assert [answer["blocking"] for answer in answers] == [False, False, True, True, True]


def test_checks_before_the_body_hold_inline(client: ServerClient) -> None:
    assert client.send("POST", "/echo", raw=b"{}", headers={"content-type": "text/plain"}).status == 415
    assert client.send("POST", "/echo", raw=b"{}", headers={"origin": "https://elsewhere.example"}).status == 403
    assert client.send("PUT", "/echo", raw=b"{}").status == 405
    assert client.send("POST", "/nowhere", raw=b"{}").status == 404


def test_the_limit_of_bodies_holds_inline(tmp_path: Path) -> None:
    with serving(tmp_path, more=ROUTES, limits=ServerLimits(body=1000)) as client:
        assert client.send("POST", "/echo", raw=b" " * 1001).status == 413
        assert client.send("POST", "/echo", raw=b" " * 1000).status == 200


def test_an_unknown_caller_is_refused_inline(tmp_path: Path) -> None:
    with serving(tmp_path, more=ROUTES, auth=True) as client:
        assert client.send("POST", "/echo", raw=b"{}").status == 401


# DescribeTable of a warehouse


@dataclass(frozen=True)
class Gateway:
    """An application, and another one on the same database, as of another process."""

    app: App
    other: IcebergNamespace

    def describe(
        self, *levels: str, headers: dict[str, str] | None = None, query: str = "", **fields: Any
    ) -> tuple[Any, int, Any]:
        """The answer on the event loop's thread, None if it would block, then status and answer of a thread."""
        path, body = f"/lance/main/v1/table/{'$'.join(levels)}/describe", json.dumps(fields).encode()
        sent = {**JSON, **(headers or {})}
        status, _, answer = self.app.answer_in_process("POST", f"{path}?{query}", sent, body)
        length = {"content-length": str(len(body))}
        response = self.app.answer_inline("POST", path.encode(), query.encode(), {**sent, **length}, body)
        return response and json.loads(response.body), status, json.loads(answer)

    def settle(self, *levels: str) -> dict[str, Any]:
        """The answer of both, as soon as the folders of the table are old enough to tell."""
        for _ in range(100):
            inline, status, answer = self.describe(*levels)
            assert status == 200
            if inline is not None:
                assert inline == answer
                return dict(answer)
            threading.Event().wait(0.02)
        raise AssertionError("memory never had it")


@contextmanager
def start_gateway(folder: Path, **settings: Any) -> Iterator[Gateway]:
    """Two applications on the same database, in this process."""
    warehouse = Warehouse(0, "main", str(folder / "warehouse"))
    server = ServerSettings(db=f"sqlite:///{folder / 'catalog.db'}", warehouses=(warehouse,), **settings)
    log = Log("warning")
    warehouses = run.prepare(server, lambda _: None)
    apps = [run.create_app(server, warehouses, log) for _ in range(2)]
    endpoint = in_process.register_server("other", apps[1].answer_in_process)
    yield Gateway(apps[0], IcebergNamespace(endpoint=f"{endpoint}/iceberg"))
    for app in apps:
        app.catalog.database.close()
    log.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with start_gateway(tmp_path) as gateway:
        yield gateway


def create(gateway: Gateway, name: str, **properties: str) -> str:
    """The location of a new table with a row, in the namespace `db`."""
    gateway.other.create_namespace(CreateNamespaceRequest(id=["main", "db"], mode="ExistOk"))
    declared = gateway.other.declare_table(DeclareTableRequest(id=["main", "db", name], properties=properties))
    assert declared.location
    lance.write_dataset(pa.table({"id": [1]}), declared.location)
    return declared.location


def test_a_table_is_described_as_by_the_client(gateway: Gateway) -> None:
    location = create(gateway, "t", owner="ä")
    answer = gateway.settle("db", "t")
    assert (answer["location"], answer["properties"]["owner"]) == (location, "ä")
    for fields in ({}, {"id": ["db", "t"]}, {"check_declared": False, "load_detailed_metadata": None}):
        inline, status, answer = gateway.describe("db", "t", **fields)
        assert (inline, status) == (answer, 200)
    inline, status, answer = gateway.describe(
        "db", "t", query="delimiter=%24&with_table_uri=false&check_declared=false"
    )
    assert (inline, status) == (answer, 200)
    assert gateway.describe("db", "t", version=1)[:2] == (None, 200)
    assert gateway.describe("db", "t", query="version=1")[:2] == (None, 200)
    create(gateway, "managed", managed_by="impl")
    assert gateway.settle("db", "managed")["managed_versioning"] is True


@pytest.mark.parametrize("fields", [{"load_detailed_metadata": True}, {"check_declared": True}])
def test_details_are_left_to_the_client(gateway: Gateway, fields: dict[str, Any]) -> None:
    create(gateway, "t")
    gateway.settle("db", "t")
    inline, status, _ = gateway.describe("db", "t", **fields)
    assert (inline, status) == (None, 200)
    assert gateway.describe("db", "t", query=f"{next(iter(fields))}=true")[:2] == (None, 200)
    assert gateway.describe("db", "t", vend_credentials=True, **fields)[:2] == (None, 200)


def test_storage_options_of_a_table_are_left_to_the_client(gateway: Gateway) -> None:
    create(gateway, "t", **{"storage.region": "eu"})
    for _ in range(3):
        inline, status, answer = gateway.describe("db", "t")
        assert (inline, status, answer["storage_options"]) == (None, 200, {"region": "eu"})
        threading.Event().wait(0.06)


@pytest.mark.parametrize(
    ("levels", "status"), [(("db", "none"), 404), (("none", "t"), 404), (("t",), 400), (("", ""), 400)]
)
def test_errors_are_left_to_the_client(gateway: Gateway, levels: tuple[str, ...], status: int) -> None:
    create(gateway, "t")
    inline, found, _ = gateway.describe(*levels)
    assert (inline, found) == (None, status)


@pytest.mark.parametrize("fields", [{"id": ["db", "other"]}, {"check_declared": 0}, {"version": -1}, {"id": "t"}])
def test_a_request_that_is_none_is_left_to_the_client(gateway: Gateway, fields: dict[str, Any]) -> None:
    create(gateway, "t")
    gateway.settle("db", "t")
    assert gateway.describe("db", "t", **fields)[:2] == (None, 400)


def test_changes_by_another_process_show_at_once(gateway: Gateway, tmp_path: Path) -> None:
    first = create(gateway, "t")
    assert gateway.settle("db", "t")["location"] == first
    name = ["main", "db", "t"]
    gateway.other.deregister_table(DeregisterTableRequest(id=name))
    inline, status, _ = gateway.describe("db", "t")
    assert (inline, status) == (None, 404)

    second = str(tmp_path / "warehouse" / "second")
    lance.write_dataset(pa.table({"id": [2]}), second)
    gateway.other.register_table(RegisterTableRequest(id=name, location=second, properties={"round": "2"}))
    answer = gateway.settle("db", "t")
    assert (answer["location"], answer["properties"]["round"]) == (second, "2")

    gateway.other.rename_table(RenameTableRequest(id=name, new_table_name="u"))
    assert gateway.describe("db", "t")[:2] == (None, 404)
    assert gateway.settle("db", "u")["location"] == second
    gateway.other.drop_table(DropTableRequest(id=["main", "db", "u"]))
    assert gateway.describe("db", "u")[:2] == (None, 404)


def test_a_commit_by_another_process_is_looked_at(gateway: Gateway) -> None:
    location = create(gateway, "t")
    gateway.settle("db", "t")
    lance.write_dataset(pa.table({"id": [2]}), location, mode="append")
    inline = gateway.app.answer_inline("POST", b"/lance/main/v1/table/db$t/describe", b"", dict(JSON), b"")
    assert inline is None
    assert gateway.settle("db", "t")["location"] == location


def test_a_table_with_a_link_is_described_and_not_opened(gateway: Gateway, tmp_path: Path) -> None:
    """Inline or in a thread; whoever opens it does so with rights of their own."""
    location = Path(create(gateway, "t"))
    (location / "data" / "link").symlink_to(tmp_path)
    assert gateway.settle("db", "t")["location"] == str(location)
    assert gateway.describe("db", "t", load_detailed_metadata=True)[:2] == (None, 403)


def test_grants_and_tokens_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Authenticator.__init__.__kwdefaults__, "fresh_s", 0.3)  # type: ignore[arg-type]
    with start_gateway(tmp_path) as gateway:
        create(gateway, "t")
    with start_gateway(tmp_path, auth=True) as gateway:
        principals = Principals(gateway.app.catalog.database)
        tokens = {}
        for name, grants in {"ada": [Grant(Role.READER, "main", ("db",))], "eve": []}.items():
            principals.create(name, grants)
            tokens[name] = {"authorization": f"Bearer {principals.create_token(name, 'test')}"}
        until(lambda: gateway.describe("db", "t", headers=tokens["ada"])[0] is not None, "inline")
        assert gateway.describe("db", "t", headers=tokens["eve"])[:2] == (None, 403)
        assert gateway.describe("db", "t")[:2] == (None, 401)
        assert gateway.describe("db", "t", headers={"authorization": "Bearer none"})[:2] == (None, 401)
        principals.revoke("ada", "main", ("db",))
        until(lambda: gateway.describe("db", "t", headers=tokens["ada"])[:2] == (None, 403), "inline")
        principals.grant("ada", Grant(Role.READER, "main", ("db",)))
        until(lambda: gateway.describe("db", "t", headers=tokens["ada"])[0] is not None, "inline")
        principals.delete("ada")
        until(lambda: gateway.describe("db", "t", headers=tokens["ada"])[:2] == (None, 401), "inline")
