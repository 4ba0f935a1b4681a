"""Backends that are asked in the name of the caller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from lance_namespace import ListNamespacesRequest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError

from lancehouse.gateway.backends import Backend, run_operation
from lancehouse.gateway.operations import BY_METHOD
from lancehouse.server.api import lance
from lancehouse.server.http.oauth import ISSUER
from lancehouse.server.run import create_backend
from lancehouse.server.settings import BackendSettings, ServerSettings
from tests.server.serving import serving
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

OURS = jwt.encode({"iss": ISSUER, "sub": "ada"}, b"k" * 32, "HS256")


class TokenServer(Loopback):
    """Exchanges `token of NAME` for `exchanged-NAME`."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.basics: list[str] = []
        self.status = 200
        self.lifetime = 3600
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.forms.append(request.form)
        self.basics.append(request.headers.get("Authorization", ""))
        name = request.form["subject_token"].rpartition("-")[2]
        body = {"access_token": f"exchanged-{name}", "token_type": "bearer", "expires_in": self.lifetime}
        return Answer.json(body if self.status == 200 else {"error": "invalid_grant"}, self.status)


@pytest.fixture
def unity() -> Iterator[Unity]:
    with Unity("cat") as server:
        server.seed_schema("cat", "open")
        for token in ("token-ada", "exchanged-ada"):
            server.accept_token(token)
        yield server


@pytest.fixture
def token_server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


def ask(backend: Backend, token: str | None) -> list[str]:
    request = ListNamespacesRequest(id=["cat"])
    names: list[str] = run_operation(backend, BY_METHOD["list_namespaces"], request, token, None).namespaces
    return names


def test_a_token_is_passed_on(unity: Unity) -> None:
    backend = create_backend(
        BackendSettings("u", "unity", {"endpoint": unity.uri, "catalog": "cat"}, identity="forward")
    )
    assert ask(backend, "token-ada") == ["open"]
    # Who may see it is decided for each caller, whatever another one was shown.
    with pytest.raises(UnauthenticatedError):
        ask(backend, "token-bob")
    assert ask(backend, "token-ada") == ["open"]
    unity.expire_tokens()
    with pytest.raises(UnauthenticatedError):
        ask(backend, "token-ada")


@pytest.mark.parametrize("identity", ["forward", "exchange"])
@pytest.mark.parametrize("token", [None, "", "lh_" + "0" * 64, OURS])
def test_tokens_of_this_server_are_not_passed_on(
    unity: Unity, token_server: TokenServer, identity: str, token: str | None
) -> None:
    properties = {"endpoint": unity.uri, "catalog": "cat", "oauth2_server_uri": token_server.uri}
    properties = properties if identity == "exchange" else {"endpoint": unity.uri, "catalog": "cat"}
    backend = create_backend(BackendSettings("u", "unity", properties, identity=identity))
    before = len(unity.requests)
    with pytest.raises(UnauthenticatedError, match=r"backend u .*your identity provider"):
        ask(backend, token)
    assert (len(unity.requests), token_server.forms) == (before, [])


def test_a_token_is_exchanged_once_for_each_caller(unity: Unity, token_server: TokenServer) -> None:
    settings = {
        "endpoint": unity.uri,
        "catalog": "cat",
        "unity.oauth2_server_uri": f"{token_server.uri}/tokens",
        "credential": "gate:way",
        "scope": "all",
    }
    backend = create_backend(BackendSettings("u", "unity", settings, identity="exchange"))
    assert "way" not in repr(backend)
    assert [ask(backend, "token-ada") for _ in range(2)] == [["open"], ["open"]]
    (form,) = token_server.forms
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert (form["subject_token"], form["scope"]) == ("token-ada", "all")
    assert token_server.basics == ["Basic Z2F0ZTp3YXk="]
    with pytest.raises(UnauthenticatedError):
        ask(backend, "token-bob")  # the catalog does not know whom it was exchanged for
    assert len(token_server.forms) == 2
    token_server.status = 400
    with pytest.raises(UnauthenticatedError, match="does not take your token"):
        ask(backend, "token-eve")
    token_server.status = 503
    with pytest.raises(ServiceUnavailableError, match="HTTP 503"):
        ask(backend, "token-eve")
    token_server.close()
    with pytest.raises(ServiceUnavailableError, match="does not answer"):
        ask(backend, "token-eve")


@pytest.mark.parametrize("impl", ["polaris", "iceberg"])
def test_polaris_is_asked_in_the_name_of_the_caller(impl: str) -> None:
    with Polaris() as polaris:
        polaris.seed_catalog("cat")
        polaris.seed_namespace("cat", "open")
        endpoint = polaris.uri if impl == "polaris" else polaris.iceberg_uri
        backend = create_backend(BackendSettings("p", impl, {"endpoint": endpoint}, identity="forward"))
        ada = polaris.token()
        assert ask(backend, ada) == ["open"]
        with pytest.raises(UnauthenticatedError):
            ask(backend, "token-bob")
        assert ask(backend, ada) == ["open"]
        polaris.expire_tokens()
        with pytest.raises(UnauthenticatedError):
            ask(backend, ada)


def test_an_exchanged_token_is_not_used_beyond_its_end(unity: Unity, token_server: TokenServer) -> None:
    token_server.lifetime = 1
    properties = {"endpoint": unity.uri, "catalog": "cat", "oauth2_server_uri": token_server.uri}
    backend = create_backend(BackendSettings("u", "unity", properties, identity="exchange"))
    assert [ask(backend, "token-ada") for _ in range(2)] == [["open"], ["open"]]
    assert len(token_server.forms) == 2


def test_a_catalog_that_asks_who_calls_is_alive(unity: Unity) -> None:
    properties = {"endpoint": unity.uri, "catalog": "cat"}
    backend = create_backend(BackendSettings("u", "unity", properties, identity="forward"))
    backend.ping()
    unity.close()
    dead = create_backend(BackendSettings("u", "unity", {**properties, "max_retries": "0"}, identity="forward"))
    with pytest.raises(ServiceUnavailableError):
        dead.ping()


def test_over_http(unity: Unity, tmp_path: Path) -> None:
    backend = create_backend(
        BackendSettings("u", "unity", {"endpoint": unity.uri, "catalog": "cat"}, identity="forward")
    )
    with serving(tmp_path, more=lance.routes({"u": backend})) as client:
        path = "/lance/u/v1/namespace/cat/list"
        statuses = [
            client.send("GET", path, headers={"authorization": f"Bearer {token}"} if token else {}).status
            for token in ("token-ada", "token-bob", OURS, "")
        ]
        assert statuses == [200, 401, 401, 401]
        assert "token-ada" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"identity": "caller"}, "must be own, forward or exchange"),
        ({"identity": "forward", "impl": "dir"}, "takes one of the clients"),
        ({"identity": "forward", "properties": {"polaris.credential": "a:b"}}, "credential must not be given"),
        ({"identity": "exchange", "properties": {"auth_token": "x"}}, "auth_token must not be given"),
        ({"identity": "exchange", "properties": {"credential": "a:b"}}, "oauth2_server_uri"),
        (
            {"identity": "forward", "properties": {"storage.aws_secret_access_key": "x"}},
            "storage.aws_secret_access_key must not be given",
        ),
    ],
)
def test_settings(tmp_path: Path, backend: dict[str, Any], words: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(json.dumps({"backends": {"p": {"impl": "polaris", **backend}}}))
    with pytest.raises(InvalidInputError, match=words):
        ServerSettings.parse({}, file=str(file))
    right = {"impl": "polaris", "identity": "forward", "properties": {"endpoint": "http://x", "storage.region": "r"}}
    file.write_text(json.dumps({"backends": {"p": right}}))
    assert ServerSettings.parse({}, file=str(file)).backends[0].identity == "forward"
