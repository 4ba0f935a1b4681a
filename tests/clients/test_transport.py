from __future__ import annotations

import ssl
from collections.abc import Iterator
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


class Catalog(Loopback):
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
    with Catalog(tls) as server:
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
    with Catalog(tls) as server:
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
    with Catalog() as server, ForwardProxy() as proxy:
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
