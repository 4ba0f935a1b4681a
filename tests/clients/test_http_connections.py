"""Connections that are kept, and those that are not."""

from __future__ import annotations

import gc
import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from lance_namespace import ListNamespacesRequest

import lancehouse
from lancehouse.clients.catalog_namespace import CatalogNamespace
from lancehouse.clients.http import ConnectionPool, Transport
from lancehouse.settings import ClientSettings
from tests.waiting import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class CountingServer:
    """Gives the same answer to each request, and counts its connections."""

    def __init__(self) -> None:
        self.answer = OK
        self.hangs_up = False
        self.opened = 0
        self.closed = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.opened += 1
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(65536):
                connection.sendall(self.answer)
                if self.hangs_up:
                    break
        self.closed.release()


@pytest.fixture
def server() -> Iterator[CountingServer]:
    made = CountingServer()
    yield made
    made.close()


@pytest.fixture
def connections(server: CountingServer) -> ConnectionPool:
    return ConnectionPool(server.uri, None, connect_s=5, read_s=5)


def test_one_connection_for_all_requests_of_a_thread(server: CountingServer, connections: ConnectionPool) -> None:
    for _ in range(5):
        assert connections.send("GET", "/", {}, None) == (200, {"content-length": "2"}, b"{}")
        assert connections.send("POST", "/", {}, b"{}")[0] == 200
    assert server.opened == 1


def test_threads_have_their_own(server: CountingServer, connections: ConnectionPool) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: connections.send("GET", "/", {}, None)[0], range(80)))
    assert answers == [200] * 80
    assert server.opened <= 8


def test_one_that_the_server_has_closed_is_not_used_again(server: CountingServer, connections: ConnectionPool) -> None:
    server.hangs_up = True
    for _ in range(3):
        assert connections.send("POST", "/", {}, b"{}")[0] == 200
        assert server.closed.acquire(timeout=PATIENCE_S)
    assert server.opened == 3


@pytest.mark.parametrize("answer", [OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), OK + OK], ids=["last", "two"])
def test_one_that_is_of_no_more_use(server: CountingServer, connections: ConnectionPool, answer: bytes) -> None:
    server.answer = answer
    for _ in range(2):
        assert connections.send("GET", "/", {}, None)[2] == b"{}"
    assert server.opened == 2


def test_they_are_closed_when_nobody_needs_them(server: CountingServer) -> None:
    connections = ConnectionPool(server.uri, None, connect_s=5, read_s=5)
    connections.send("GET", "/", {}, None)
    del connections
    gc.collect()
    assert server.closed.acquire(timeout=PATIENCE_S)


def test_what_is_compressed_though_nobody_asked(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    body = gzip.compress(b"{}")
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    transport = Transport(ClientSettings.parse("iceberg", {"endpoint": server.uri}))
    assert transport.send("GET", f"{server.uri}/a", {}, None).body == b"{}"


CLIENTS: list[tuple[type[CatalogNamespace], dict[str, str], bytes]] = [
    (lancehouse.IcebergNamespace, {}, b'{"defaults": {}, "overrides": {}, "namespaces": []}'),
    (lancehouse.PolarisNamespace, {"auth_token": "t"}, b'{"namespaces": []}'),
    (lancehouse.UnityNamespace, {"catalog": "wh"}, b'{"schemas": []}'),
]


@pytest.mark.parametrize(("kind", "properties", "body"), CLIENTS)
def test_a_client_is_closed(
    server: CountingServer, kind: type[CatalogNamespace], properties: dict[str, str], body: bytes
) -> None:
    """Its connections go. What still holds it, such as a dataset whose credentials it renews, can go on using it."""
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with kind(endpoint=server.uri, **properties) as namespace:
        assert isinstance(namespace, kind)
        namespace.list_namespaces(ListNamespacesRequest(id=["wh"]))
        assert server.opened == 1
        assert not server.closed.acquire(timeout=0)
    assert server.closed.acquire(timeout=PATIENCE_S)
    namespace.list_namespaces(ListNamespacesRequest(id=["wh"]))
    assert server.opened == 2
    namespace.close()
    namespace.close()
    assert server.closed.acquire(timeout=PATIENCE_S)


def test_a_client_that_never_connected_is_closed() -> None:
    with pytest.raises(KeyError, match="mine"), lancehouse.IcebergNamespace(endpoint="http://127.0.0.1:1"):
        raise KeyError("mine")


def test_a_client_behind_a_proxy_is_closed(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.uri)
    monkeypatch.setenv("no_proxy", "")
    transport = Transport(ClientSettings.parse("iceberg", {"endpoint": "http://catalog.test"}))
    transport.send("GET", "http://catalog.test/v1/config", {}, None)
    transport.close()
    assert server.closed.acquire(timeout=PATIENCE_S)
