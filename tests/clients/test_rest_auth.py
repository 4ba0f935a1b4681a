from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from lance_namespace import CreateNamespaceRequest, DescribeNamespaceRequest, ListNamespacesRequest
from lance_namespace import errors as lance

import lancehouse
from lancehouse.clients import rest
from lancehouse.settings import ClientSettings
from lancehouse.wire.iceberg import CommitTable, Token
from tests.servers.faults import FaultProxy, answer_always
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

TOKENS = "/oauth/tokens"
SECRET = "s3cr3t"


@pytest.fixture
def proxy(polaris: Polaris) -> Iterator[FaultProxy]:
    with FaultProxy(polaris.uri) as proxy:
        yield proxy


def connect(proxy: FaultProxy, **properties: str) -> lancehouse.PolarisNamespace:
    given = {"endpoint": proxy.uri, "credential": "root:s3cr3t", "max_retries": "1", **properties}
    return lancehouse.PolarisNamespace(**given)


def ask(namespace: lancehouse.PolarisNamespace) -> list[str]:
    return namespace.list_namespaces(ListNamespacesRequest(id=["test_catalog"])).namespaces


def test_one_token_for_all_threads(proxy: FaultProxy) -> None:
    namespace = connect(proxy)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: ask(namespace), range(64)))
    assert proxy.count("POST", TOKENS) == 1


def test_one_new_token_for_all_threads_after_a_401(proxy: FaultProxy, polaris: Polaris) -> None:
    namespace = connect(proxy)
    ask(namespace)
    polaris.expire_tokens()
    barrier = threading.Barrier(8)

    def at_once(_: int) -> None:
        barrier.wait()
        ask(namespace)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(at_once, range(8)))
    assert proxy.count("POST", TOKENS) == 2


def test_a_new_token_after_a_419(proxy: FaultProxy) -> None:
    namespace = connect(proxy)
    proxy.add(
        answer_always(419, '{"error": {"message": "expired", "type": "AuthenticationTimeout", "code": 419}}'),
        path="/v1/test",
    )
    assert ask(namespace) == []
    assert proxy.count("POST", TOKENS) == 2


def test_a_create_after_a_401_is_made_once(proxy: FaultProxy, polaris: Polaris) -> None:
    namespace = connect(proxy)
    ask(namespace)
    polaris.expire_tokens()
    namespace.create_namespace(CreateNamespaceRequest(id=["test_catalog", "db"]))
    assert ask(namespace) == ["test_catalog.db"]


@pytest.mark.parametrize(
    ("life_s", "passed_s", "tokens"),
    [(3600, 3500, 1), (3600, 3545, 2), (30, 20, 1), (30, 28, 2), (None, 10**9, 1)],
)
def test_a_token_is_renewed_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, life_s: float | None, passed_s: float, tokens: int
) -> None:
    asked: list[str] = []
    settings = lancehouse.IcebergNamespace(endpoint="http://h", credential="a:b")._settings

    def fetch(uri: str, form: Any) -> Token:
        asked.append(uri)
        return Token.model_validate({"access_token": "x", "expires_in": life_s})

    credentials = rest.ClientCredentials(settings, "http://h/token", fetch)
    credentials.sign("GET", "http://h", None)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + passed_s)
    credentials.sign("GET", "http://h", None)
    assert len(asked) == tokens


def test_a_wrong_secret(proxy: FaultProxy) -> None:
    namespace = connect(proxy, credential="root:wrong-s3cr3t")
    with pytest.raises(lance.UnauthenticatedError) as error:
        ask(namespace)
    assert "invalid_client" in str(error.value)
    assert "wrong-s3cr3t" not in str(error.value)


def test_a_token_endpoint_that_is_down_for_a_moment(proxy: FaultProxy) -> None:
    proxy.add(answer_always(503), path=TOKENS)
    assert ask(connect(proxy)) == []


class LosesCommits(Loopback):
    """Resets the connection of each commit, and answers requests for tokens in turn; the last answer stays."""

    def __init__(self, *tokens: Answer) -> None:
        self._tokens = list(tokens)
        super().__init__()

    def answer(self, request: Request) -> Answer:
        if request.path != TOKENS:
            return Answer(reset=True)
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]

    def commit(self, is_committed: Callable[[], bool | None]) -> None:
        properties = {"endpoint": self.uri, "credential": "me:word", "max_retries": "1"}
        settings = ClientSettings.parse("iceberg", properties)
        client = rest.Rest(settings, base=self.uri, token_uri=self.uri + TOKENS)
        client.commit("/tables/t", CommitTable(requirements=[], updates=[]), about="t", is_committed=is_committed)


NO_TOKENS = {
    "refused": Answer.json({"error": "invalid_client"}, 401),
    "unavailable": Answer(503),
    "lost": Answer(reset=True),
    "unreadable": Answer.json({"access_token": ""}),
}


@pytest.mark.parametrize("answer", NO_TOKENS.values(), ids=NO_TOKENS)
def test_a_commit_in_doubt_stays_in_doubt_without_a_new_token(answer: Answer) -> None:
    """An error of the token endpoint would pass for a refusal, after which what was staged is deleted."""
    over_at_once = Answer.json({"access_token": "x", "expires_in": 0})
    with LosesCommits(over_at_once, answer) as server, pytest.raises(lancehouse.CommitStateUnknownError):
        server.commit(is_committed=lambda: None)
    assert server.requests.count(("POST", "/tables/t")) == 1


@pytest.mark.parametrize("answer", NO_TOKENS.values(), ids=NO_TOKENS)
def test_a_commit_without_a_token_is_not_in_doubt(answer: Answer) -> None:
    """It was never sent: nobody has to be asked what became of it."""
    with LosesCommits(answer) as server, pytest.raises(lance.LanceNamespaceError) as error:
        server.commit(is_committed=lambda: pytest.fail("asked"))
    assert not isinstance(error.value, lancehouse.CommitStateUnknownError)
    assert {target for _, target in server.requests} == {TOKENS}


def test_a_token_answer_that_cannot_be_read(proxy: FaultProxy) -> None:
    proxy.add(answer_always(200, '{"access_token": "fresh-s3cr3t", "expires_in": "soon"}'), path=TOKENS)
    with pytest.raises(lance.InternalError, match="expires_in") as error:
        ask(connect(proxy))
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "expected", "said"),
    [
        ('{"error": "invalid_scope", "error_description": "no such role"}', lance.UnauthenticatedError, "no such role"),
        ('{"access_token": ""}', lance.InternalError, "access_token"),
        ('{"access_token": "two\\nlines"}', lance.InternalError, "access_token"),
    ],
)
def test_token_answers_that_are_none(proxy: FaultProxy, answer: str, expected: type[Exception], said: str) -> None:
    proxy.add(answer_always(200, answer), path=TOKENS)
    with pytest.raises(expected, match=said):
        ask(connect(proxy))


@pytest.mark.parametrize("path", [TOKENS, "/v1/test"])
def test_a_server_that_repeats_what_it_was_sent(proxy: FaultProxy, path: str) -> None:
    def echo(request: Request, forward: Any) -> Answer:
        said = f"{request.headers['Authorization']} {request.headers['X-Key']} {request.body.decode()}"
        return Answer.json({"error": {"message": f"no: {said}", "type": "Bad", "code": 400}}, 400)

    proxy.add(echo, path=path)
    with pytest.raises(lance.LanceNamespaceError, match=r"no: .*\*\*\*") as error:
        ask(connect(proxy, **{"header.X-Key": "k3y-s3cr3t"}))
    assert SECRET not in str(error.value)
    assert "Bearer ***" in str(error.value) or path == TOKENS


def test_a_token_that_was_given_and_is_refused(proxy: FaultProxy) -> None:
    namespace = lancehouse.PolarisNamespace(endpoint=proxy.uri, auth_token="no-such-s3cr3t")
    with pytest.raises(lance.UnauthenticatedError) as error:
        ask(namespace)
    assert SECRET not in str(error.value)
    assert len(proxy.requests) == 1


def test_a_token_that_was_given(proxy: FaultProxy, polaris: Polaris) -> None:
    assert ask(lancehouse.PolarisNamespace(endpoint=proxy.uri, auth_token=polaris.token())) == []


def test_a_given_token_is_used_until_it_is_refused(proxy: FaultProxy, polaris: Polaris) -> None:
    namespace = connect(proxy, auth_token=polaris.token())
    ask(namespace)
    assert proxy.count("POST", TOKENS) == 0
    polaris.expire_tokens()
    ask(namespace)
    assert proxy.count("POST", TOKENS) == 1


def test_a_token_server_of_its_own(unity: Unity) -> None:
    forms: list[dict[str, str]] = []

    class FakeIssuer(Loopback):
        def answer(self, request: Request) -> Answer:
            forms.append(request.form)
            unity.accept_token("fresh")
            return Answer.json({"access_token": "fresh", "token_type": "bearer", "expires_in": 3600})

    unity.accept_token("another")
    with FakeIssuer() as issuer:
        namespace = lancehouse.UnityNamespace(
            endpoint=unity.uri,
            catalog="lance_test",
            credential="me:word",
            oauth2_server_uri=f"{issuer.uri}/oidc/token",
            scope="mine",
        )
        assert namespace.list_namespaces(ListNamespacesRequest(id=["lance_test"])).namespaces == []
    assert forms == [{"grant_type": "client_credentials", "client_id": "me", "client_secret": "word", "scope": "mine"}]


def test_no_secret_in_the_log(proxy: FaultProxy, polaris: Polaris, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    namespace = connect(proxy, **{"header.X-Key": "k3y-s3cr3t"})
    ask(namespace)
    polaris.expire_tokens()
    ask(namespace)
    with pytest.raises(lance.NamespaceNotFoundError):
        namespace.describe_namespace(DescribeNamespaceRequest(id=["test_catalog", "db"]))
    assert "GET" in caplog.text
    assert SECRET not in caplog.text
    assert "Bearer" not in caplog.text
    assert polaris.token() not in caplog.text


class Signed(Loopback):
    """Takes only requests whose signature it can make itself."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        super().__init__()

    def answer(self, request: Request) -> Answer:
        signed = request.headers["Authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        again = AWSRequest(
            method=request.method,
            url=self.uri + request.target,
            headers={name: request.headers[name] for name in signed if name != "host"},
            data=request.body or None,
        )
        again.context["timestamp"] = request.headers["X-Amz-Date"]
        signer = SigV4Auth(self.credentials, "glue", "eu-west-1")
        canonical = signer.canonical_request(again)
        signature = signer.signature(signer.string_to_sign(again, canonical), again)
        if not request.headers["Authorization"].endswith(f"Signature={signature}"):
            return Answer.json({"error": {"message": "wrong signature", "type": "Forbidden", "code": 403}}, 403)
        if request.path == "/v1/config":
            return Answer.json({"defaults": {"prefix": "catalogs/1"}, "overrides": {}})
        return Answer.json({"namespace": ["a b"], "properties": {"ok": "yes"}})


def test_requests_are_signed_for_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    properties = {"sigv4.region": "eu-west-1", "sigv4.service": "glue"}
    with Signed(Credentials("AKID", "SECRET")) as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **properties)
        described = namespace.describe_namespace(DescribeNamespaceRequest(id=["1", "a b"]))
        made = namespace.create_namespace(CreateNamespaceRequest(id=["1", "new"], properties={"ok": "yes"}))
    assert described.properties == made.properties == {"ok": "yes"}
    with Signed(Credentials("AKID", "ANOTHER")) as server:
        namespace = lancehouse.IcebergNamespace(endpoint=server.uri, **properties)
        with pytest.raises(lance.PermissionDeniedError, match="wrong signature"):
            namespace.describe_namespace(DescribeNamespaceRequest(id=["1", "a b"]))


def test_no_credentials_for_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    namespace = lancehouse.IcebergNamespace(
        endpoint="http://127.0.0.1:1", **{"sigv4.region": "eu-west-1", "sigv4.service": "glue"}
    )
    with pytest.raises(lance.UnauthenticatedError, match="no AWS credentials"):
        namespace.describe_namespace(DescribeNamespaceRequest(id=["1", "db"]))
