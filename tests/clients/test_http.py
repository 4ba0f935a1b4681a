from __future__ import annotations

import base64
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from lance_namespace import ListNamespacesRequest
from lance_namespace import errors as lance

import lancehouse
from tests.servers.loopback import Answer, Loopback, Request

WAREHOUSE = ListNamespacesRequest(id=["wh"])


class EmptyCatalog(Loopback):
    """An Iceberg server with no namespaces, over TLS if it is given a context."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        super().__init__()

    def _listen(self) -> None:
        super()._listen()
        if self._tls:
            self._listener.socket = self._tls.wrap_socket(self._listener.socket, server_side=True)

    def answer(self, request: Request) -> Answer:
        if request.path == "/v1/config":
            return Answer.json({"defaults": {}, "overrides": {"prefix": "p"}})
        return Answer.json({"namespaces": [["db"]]})


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def bundle(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def secure(tls: ssl.SSLContext) -> Iterator[str]:
    with EmptyCatalog(tls) as server:
        yield server.uri.replace("http:", "https:")


def test_a_bundle_of_its_own(secure: str, bundle: str) -> None:
    namespace = lancehouse.IcebergNamespace(endpoint=secure, ca_bundle=bundle)
    assert namespace.list_namespaces(WAREHOUSE).namespaces == ["wh.db"]


def test_an_unknown_authority(secure: str) -> None:
    namespace = lancehouse.IcebergNamespace(endpoint=secure, max_retries="0")
    with pytest.raises(lance.ServiceUnavailableError, match="ca_bundle"):
        namespace.list_namespaces(WAREHOUSE)


def test_a_client_certificate(authority: trustme.CA, tls: ssl.SSLContext, bundle: str, tmp_path: Path) -> None:
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    mine = authority.issue_cert("me@example.org")
    both, alone, key = (tmp_path / name for name in ("both.pem", "cert.pem", "key.pem"))
    mine.private_key_and_cert_chain_pem.write_to_path(str(both))
    mine.cert_chain_pems[0].write_to_path(str(alone))
    mine.private_key_pem.write_to_path(str(key))
    with EmptyCatalog(tls) as server:
        at = {"endpoint": server.uri.replace("http:", "https:"), "ca_bundle": bundle, "max_retries": "0"}
        for given in ({"client_cert": str(both)}, {"client_cert": str(alone), "client_key": str(key)}):
            assert lancehouse.IcebergNamespace(**at, **given).list_namespaces(WAREHOUSE).namespaces == ["wh.db"]
        with pytest.raises(lance.ServiceUnavailableError):
            lancehouse.IcebergNamespace(**at).list_namespaces(WAREHOUSE)


class ForwardProxy(Loopback):
    """What `http_proxy` points to: it gets whole URLs."""

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.target)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        try:
            connection.request(request.method, f"{parts.path}?{parts.query}")
            reply = connection.getresponse()
            return Answer(reply.status, reply.read(), {"Content-Type": "application/json"})
        finally:
            connection.close()


def test_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmptyCatalog() as server, ForwardProxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.uri)
        monkeypatch.setenv("no_proxy", "")
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        assert namespace.list_namespaces(WAREHOUSE).namespaces == ["wh.db"]
        assert proxy.requests[0][1].startswith(f"{server.uri}/v1/config")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        proxy.requests.clear()
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri)
        assert namespace.list_namespaces(WAREHOUSE).namespaces == ["wh.db"]
        assert proxy.requests == []


class Tunnel(socketserver.ThreadingTCPServer):
    """What `https_proxy` points to: it opens a tunnel, or refuses to."""

    daemon_threads = True

    def __init__(self, status: str = "200 OK") -> None:
        self.heads: list[str] = []
        self.status = status
        super().__init__(("127.0.0.1", 0), TunnelHandler)
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class TunnelHandler(socketserver.StreamRequestHandler):
    server: Tunnel

    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n")).decode()
        self.server.heads.append(head)
        self.wfile.write(f"HTTP/1.1 {self.server.status}\r\n\r\n".encode())
        if not self.server.status.startswith("200"):
            return
        host, port = head.split()[1].split(":")
        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=self.copy, args=(there, self.connection), daemon=True)
            back.start()
            self.copy(self.connection, there)
            back.join(10)

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_tls_goes_through_a_tunnel(secure: str, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel() as proxy:
        monkeypatch.setenv("https_proxy", proxy.uri.replace("http://", "http://me:pass%40word@"))
        monkeypatch.setenv("no_proxy", "")
        with lancehouse.IcebergNamespace(endpoint=secure, ca_bundle=bundle) as namespace:
            assert namespace.list_namespaces(WAREHOUSE).namespaces == ["wh.db"]
        with pytest.raises(lance.ServiceUnavailableError, match="ca_bundle"):
            lancehouse.IcebergNamespace(endpoint=secure, max_retries="0").list_namespaces(WAREHOUSE)
    assert proxy.heads[0].startswith(f"CONNECT {urlsplit(secure).netloc} ")
    assert base64.b64encode(b"me:pass@word").decode() in proxy.heads[0]


def test_a_proxy_that_opens_no_tunnel(secure: str, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel("403 Forbidden") as proxy:
        monkeypatch.setenv("https_proxy", proxy.uri)
        monkeypatch.setenv("no_proxy", "")
        namespace = lancehouse.IcebergNamespace(endpoint=secure, ca_bundle=bundle, max_retries="0")
        with pytest.raises(lance.ServiceUnavailableError, match="through the proxy: 403 Forbidden"):
            namespace.list_namespaces(WAREHOUSE)


def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    namespace = lancehouse.IcebergNamespace(endpoint="http://catalog.invalid", max_retries="0")
    with pytest.raises(lance.ServiceUnavailableError, match="proxy"):
        namespace.list_namespaces(WAREHOUSE)


def test_a_name_that_no_dns_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    namespace = lancehouse.IcebergNamespace(endpoint="http://catalog.invalid", max_retries="0")
    with pytest.raises(lance.ServiceUnavailableError, match=r"warehouse wh: no connection to catalog\.invalid"):
        namespace.list_namespaces(WAREHOUSE)


@pytest.mark.parametrize("name", ["ca_bundle", "client_cert"])
def test_a_file_that_is_no_pem(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    path.write_text("not a certificate")
    with pytest.raises(lance.InvalidInputError, match=f"'{name}' is no PEM file"):
        lancehouse.IcebergNamespace(endpoint="https://h", **{name: str(path)})


@pytest.mark.parametrize("form", ["http://{}", "{}", "http://me:pass%40word@{}"])
def test_forms_of_a_proxy(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    seen: list[str | None] = []

    class Asking(ForwardProxy):
        def answer(self, request: Request) -> Answer:
            seen.append(request.headers["Proxy-Authorization"])
            return super().answer(request)

    with EmptyCatalog() as server, Asking() as proxy:
        monkeypatch.setenv("http_proxy", form.format(proxy.uri.removeprefix("http://")))
        monkeypatch.setenv("no_proxy", "")
        assert lancehouse.IcebergNamespace(endpoint=server.uri).list_namespaces(WAREHOUSE).namespaces == ["wh.db"]
    expected = "Basic " + base64.b64encode(b"me:pass@word").decode() if "@" in form else None
    assert seen == [expected, expected]


def test_a_proxy_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:s3cr3t@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(lance.InvalidInputError, match="socks5") as error:
        lancehouse.IcebergNamespace(endpoint="http://catalog.invalid").list_namespaces(WAREHOUSE)
    assert "s3cr3t" not in str(error.value)


class Raw:
    """A server that sends what it is told, byte by byte if it must."""

    def __init__(self, *parts: bytes, pause_s: float = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._parts = parts
        self._pause_s = pause_s
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Raw:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    for part in self._parts:
                        connection.sendall(part)
                        time.sleep(self._pause_s)


DRIPS = {
    "headers": [b"HTTP/1.1 200 OK\r\n", *[b"X-A: b\r\n"] * 60],
    "chunk size": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"0"] * 60],
    "body": [b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n", *[b" "] * 60],
}


@pytest.mark.parametrize("what", DRIPS)
def test_no_server_holds_a_call_by_dripping(what: str) -> None:
    properties = {"connect_timeout": "300", "read_timeout": "300", "max_retries": "0"}
    with Raw(*DRIPS[what], pause_s=0.3) as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **properties)
        started = time.monotonic()
        with pytest.raises(lance.ServiceUnavailableError, match=r"did not respond completely within 0\.3 s"):
            namespace.list_namespaces(WAREHOUSE)
        assert time.monotonic() - started < 12  # the whole drip takes 18 seconds


def test_an_answer_that_is_not_encoded_as_it_says() -> None:
    with (
        Raw(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}") as server,
        pytest.raises(lance.InternalError, match="not encoded as it says"),
    ):
        lancehouse.IcebergNamespace(endpoint=server.uri).list_namespaces(WAREHOUSE)


def test_threads_do_not_queue_for_a_server_that_hangs() -> None:
    properties = {"connect_timeout": "1000", "read_timeout": "1000", "max_retries": "0"}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        namespace = lancehouse.IcebergNamespace(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", **properties)

        def ask(number: int) -> None:
            with pytest.raises(lance.ServiceUnavailableError):
                namespace.list_namespaces(ListNamespacesRequest(id=[f"wh{number % 4}"]))

        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(16)))
        assert time.monotonic() - started < 12  # one after the other it would be 16 seconds
