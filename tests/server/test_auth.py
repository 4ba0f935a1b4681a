from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from lance_namespace import CreateNamespaceRequest, ListNamespacesRequest, connect
from lance_namespace.errors import (
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, UnauthorizedError

from lancehouse.catalog.callers import ANYBODY, Grant, Identity, Role
from lancehouse.catalog.errors import WouldBlockError
from lancehouse.catalog.principals import Credential, Principals
from lancehouse.server.http.auth import Authenticator
from lancehouse.server.http.oauth import Tokens
from lancehouse.store import migrate
from lancehouse.store.database import Database
from tests.from_memory import from_memory
from tests.server.issuer import OpenId, pieces, unsigned_token
from tests.servers.loopback import Answer, Loopback, Request
from tests.waiting import wait_until

READ = Grant(Role.READER, "w")
SOON_S = 0.2
"""How long the authenticators of these tests believe what they found out."""


class AuthSetup:
    """A database with `ada`, who may read, and an authenticator that requires it."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self.database = Database(self.url)
        migrate.create_if_empty(self.database)
        self.principals = Principals(self.database, ["w"])
        credential = self.principals.create("ada", [READ])
        assert credential
        self.ada: Credential = credential
        self.static = self.principals.create_token("ada", "ci")
        self.auth = Authenticator(self.principals, required=True, fresh_s=SOON_S)

    def issue_token(self, *, life_s: int = 3600) -> str:
        principal = self.principals.find("ada")
        assert principal
        return Tokens(self.principals, life_s).issue(principal)

    def sign_token(self, changes: dict[str, Any], key: bytes | None = None, algorithm: str = "HS256") -> str:
        """A token of ours with other claims; None takes one away."""
        claims = {**pieces(self.issue_token())[1], **changes}
        present = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(present, key or bytes.fromhex(self.principals.get_signing_key()), algorithm)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AuthSetup]:
    made = AuthSetup(tmp_path / "catalog.db")
    yield made
    made.database.close()


@pytest.fixture
def openid() -> Iterator[OpenId]:
    with OpenId() as server:
        server.add("one")
        yield server


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


Headers = Callable[[AuthSetup], dict[str, str]]


@pytest.mark.parametrize(
    "headers",
    [
        lambda world: bearer(world.issue_token()),
        lambda world: bearer(world.static),
        lambda world: {"authorization": f"bearer   {world.static} "},
        lambda world: {"x-api-key": world.static},
        lambda world: {"x-api-key": "nonsense", **bearer(world.issue_token())},
    ],
    ids=["issued", "static", "case and spaces", "api key", "both"],
)
def test_a_good_token_tells_who_sends_it(world: AuthSetup, headers: Headers) -> None:
    sent = headers(world)
    assert from_memory(world.auth.identify, sent) is None
    assert world.auth.identify(sent) == Identity("ada", (READ,))
    assert from_memory(world.auth.identify, sent) == Identity("ada", (READ,))


def test_what_is_remembered_is_what_was_looked_at(world: AuthSetup) -> None:
    """Spaces that only Python strips, beside a key."""
    odd = {"authorization": "\xa0"}
    assert world.auth.identify({**odd, "x-api-key": world.static}) == Identity("ada", (READ,))
    assert from_memory(world.auth.identify, odd) is None
    with pytest.raises(UnauthenticatedError):
        world.auth.identify(odd)


BAD: dict[str, tuple[Headers, str]] = {
    "nothing": (lambda world: {}, "asks who you are"),
    "empty": (lambda world: {"authorization": "", "x-api-key": " "}, "asks who you are"),
    "None": (lambda world: bearer("None"), "set a token or a credential"),
    "scheme only": (lambda world: {"authorization": "Bearer"}, "form: Bearer TOKEN"),
    "no scheme": (lambda world: {"authorization": world.static}, "form: Bearer TOKEN"),
    "basic": (lambda world: {"authorization": f"Basic {world.static}"}, "form: Bearer TOKEN"),
    "api key of another kind": (lambda world: {"x-api-key": world.issue_token()}, "must be a static token"),
    "words": (lambda world: bearer("a b"), "nor of an issuer"),
    "latin": (lambda world: bearer("ä" * 20), "malformed"),
    "control": (lambda world: bearer("a\x00b"), "malformed"),
    "long": (lambda world: bearer("x" * 20_000), "malformed"),
    "unknown static": (lambda world: bearer(world.static + "0"), "not known"),
    "static in upper case": (lambda world: bearer("LH_" + world.static[3:]), "nor of an issuer"),
    "dots": (lambda world: bearer("..."), "nor of an issuer"),
    "no JSON": (lambda world: bearer("e30.e30.e30"), "nor of an issuer"),
    "a list": (lambda world: bearer("e30.W10.AA"), "nor of an issuer"),
    "deep": (lambda world: bearer("e30." + jwt.utils.base64url_encode(b"[" * 9000).decode() + ".AA"), "nor of an"),
    "expired": (lambda world: bearer(world.issue_token(life_s=-1)), "expired"),
    "other signature": (lambda world: bearer(world.issue_token()[:-6] + "AAAAAA"), "signature is wrong"),
    "no signature": (lambda world: bearer(world.issue_token().rpartition(".")[0] + "."), "signature is wrong"),
    "unsigned": (lambda world: bearer(unsigned_token(pieces(world.issue_token())[1])), "malformed"),
    "other key": (lambda world: bearer(world.sign_token({}, b"k" * 32)), "signature is wrong"),
    "other algorithm": (lambda world: bearer(world.sign_token({}, b"k" * 64, "HS512")), "malformed"),
    "other issuer": (lambda world: bearer(world.sign_token({"iss": "https://example.org"})), "nor of an issuer"),
    "issuer is a list": (lambda world: bearer(jwt.encode({"a": 1}, b"k" * 32)), "nor of an issuer"),
    "other audience": (lambda world: bearer(world.sign_token({"aud": "x"})), "malformed"),
    "no expiry": (lambda world: bearer(world.sign_token({"exp": None})), "malformed"),
    "no generation": (lambda world: bearer(world.sign_token({"gen": None})), "malformed"),
    "other generation": (lambda world: bearer(world.sign_token({"gen": "0"})), "deleted or has a new secret"),
    "nobody": (lambda world: bearer(world.sign_token({"sub": "bob"})), "deleted or has a new secret"),
    "strange name": (lambda world: bearer(world.sign_token({"sub": "\ud800\x00"})), "deleted or has a new secret"),
    "endless": (lambda world: bearer(world.sign_token({"exp": float("inf")})), "malformed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_token_is_refused_without_repeating_it(world: AuthSetup, case: str) -> None:
    make, words = BAD[case]
    headers = make(world)
    for _ in range(2):
        with pytest.raises(UnauthenticatedError, match=words) as caught:
            world.auth.identify(headers)
        assert not any(
            len(part) > 10 and part in str(caught.value) for value in headers.values() for part in value.split()
        )
        assert caught.value.__cause__ is None
        assert from_memory(world.auth.identify, headers) is None


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda principals: principals.delete("ada"), {"issued", "static"}),
        (lambda principals: principals.rotate_secret("ada"), {"issued", "static"}),
        (lambda principals: principals.delete_token("ada", "ci"), {"static"}),
    ],
    ids=["delete", "rotate", "delete the token"],
)
def test_what_was_taken_away_is_gone_soon(
    world: AuthSetup, change: Callable[[Principals], object], kinds: set[str]
) -> None:
    sent = {"issued": bearer(world.issue_token()), "static": bearer(world.static)}
    for headers in sent.values():
        world.auth.identify(headers)
    other = Database(world.url)
    change(Principals(other))
    other.close()
    time.sleep(SOON_S)
    for kind, headers in sent.items():
        assert from_memory(world.auth.identify, headers) is None
        if kind in kinds:
            with pytest.raises(UnauthenticatedError):
                world.auth.identify(headers)
        else:
            assert world.auth.identify(headers).name == "ada"


def test_grants_follow_soon(world: AuthSetup) -> None:
    headers = bearer(world.issue_token())
    world.principals.revoke("ada", "w")
    assert world.auth.identify(headers).grants == ()
    world.principals.grant("ada", Grant(Role.ADMIN))
    time.sleep(SOON_S)
    assert world.auth.identify(headers).grants == (Grant(Role.ADMIN),)


def test_a_token_is_not_remembered_beyond_its_end(world: AuthSetup) -> None:
    auth = Authenticator(world.principals, required=True, fresh_s=60)
    end = int(time.time()) + 10  # long enough for a busy machine to identify it before
    headers = bearer(world.sign_token({"exp": end}))
    assert auth.identify(headers).name == "ada"
    wait_until(lambda: time.time() > end + 0.1)
    assert from_memory(auth.identify, headers) is None
    with pytest.raises(UnauthenticatedError, match="expired"):
        auth.identify(headers)


def test_all_servers_on_a_database_take_each_others_tokens(world: AuthSetup) -> None:
    database = Database(world.url)
    other = Authenticator(Principals(database), required=True)
    form = {
        "grant_type": "client_credentials",
        "client_id": world.ada.client_id,
        "client_secret": world.ada.client_secret,
    }
    for here, there in ((world.auth, other), (other, world.auth)):
        assert there.identify(bearer(here.answer_token_request(form, {})[1]["access_token"])).name == "ada"
    database.close()


def test_what_is_remembered_is_bounded(world: AuthSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancehouse.server.http.auth.REMEMBERED", 3)
    auth = Authenticator(world.principals, required=True, fresh_s=60)
    sent = [bearer(world.issue_token()) for _ in range(5)]
    for headers in sent:
        auth.identify(headers)
    assert [from_memory(auth.identify, headers) is not None for headers in sent] == [False, False, True, True, True]


def test_anybody_may_call_until_there_is_a_principal(world: AuthSetup) -> None:
    world.principals.delete("ada")
    auth = Authenticator(world.principals, required=False, fresh_s=SOON_S)
    for headers in ({}, bearer("None"), bearer("nonsense")):
        assert auth.identify(headers) == ANYBODY
        assert from_memory(auth.identify, headers) == ANYBODY
    world.principals.create("bob")
    time.sleep(SOON_S)
    with pytest.raises(UnauthenticatedError):
        auth.identify({})
    world.principals.delete("bob")
    time.sleep(SOON_S)
    with pytest.raises(UnauthenticatedError):
        auth.identify({})


def test_an_outside_issuer_or_the_word_alone_closes_the_server(world: AuthSetup, openid: OpenId) -> None:
    world.principals.delete("ada")
    for auth in (
        Authenticator(world.principals, required=True),
        Authenticator(world.principals, [openid.settings()], required=False),
    ):
        with pytest.raises(UnauthenticatedError, match="asks who you are"):
            auth.identify({})


def test_an_outside_issuer_vouches_for_principals_of_its_own(world: AuthSetup, openid: OpenId) -> None:
    world.principals.create("eve", [READ], external=True)
    auth = Authenticator(world.principals, [openid.settings()], required=True)
    eve = bearer(openid.token("one", {"sub": "eve"}))
    assert auth.identify(eve) == from_memory(auth.identify, eve) == Identity("eve", (READ,))
    assert auth.identify(bearer(world.issue_token())).name == "ada"


def test_an_outside_issuer_says_who_is_in_groups(world: AuthSetup, openid: OpenId) -> None:
    world.principals.create_group("acme:team", [READ])
    world.principals.create_group("team", [Grant(Role.ADMIN)])
    settings = openid.settings(groups_claim="groups", name_prefix="acme:")
    auth = Authenticator(world.principals, [settings], required=True)
    # Of ada there is a principal with a secret, and the prefix tells this one from her.
    claims: dict[str, Any] = {"sub": "ada", "groups": ["team", 7, None, "unknown", ""]}
    assert auth.identify(bearer(openid.token("one", claims))) == Identity("acme:ada", (READ,))
    assert auth.identify(bearer(openid.token("one", {"groups": "team"}))) == Identity("acme:ada", (READ,))
    deaf = Authenticator(world.principals, [openid.settings()], required=True)
    for refusing, groups in ((auth, ["unknown"]), (auth, {"team": 1}), (auth, None), (deaf, ["team", "acme:team"])):
        with pytest.raises(PermissionDeniedError, match=r"nor in a group that is known|secret of its own"):
            refusing.identify(bearer(openid.token("one", {"sub": "ada", "groups": groups})))


def test_a_static_token_is_not_remembered_beyond_its_end(world: AuthSetup) -> None:
    end = time.time() + 10  # long enough for a busy machine to identify it before
    token = world.principals.create_token("ada", "short", int(end * 1000))
    auth = Authenticator(world.principals, required=True, fresh_s=3600)
    assert auth.identify(bearer(token)).name == "ada"
    wait_until(lambda: time.time() > end + 0.1)
    with pytest.raises(UnauthenticatedError, match="the bearer token has expired at"):
        auth.identify(bearer(token))


def test_a_revocation_works_within_two_seconds_on_every_server(world: AuthSetup) -> None:
    """Two servers with the settings that `lancehouse serve` has, each on a connection of its own."""
    world.principals.create_group("team", [READ])
    world.principals.create("bob")
    world.principals.change_members("team", add=["bob"])
    token = bearer(world.principals.create_token("bob", "ci"))
    databases = [Database(world.url) for _ in range(2)]
    servers = [Authenticator(Principals(database), required=True) for database in databases]
    assert [server.identify(token).grants for server in servers] == [(READ,), (READ,)]
    world.principals.change_members("team", remove=["bob"])
    time.sleep(2)
    assert [from_memory_or_database(server, token).grants for server in servers] == [(), ()]
    world.principals.delete("bob")
    time.sleep(2)
    for server, database in zip(servers, databases, strict=True):
        with pytest.raises(UnauthenticatedError, match="not known"):
            from_memory_or_database(server, token)
        database.close()


def from_memory_or_database(auth: Authenticator, headers: dict[str, str]) -> Identity:
    """The identity as a request gets it: first without blocking."""
    try:
        return auth.identify(headers, blocking=False)
    except WouldBlockError:
        return auth.identify(headers)


@pytest.mark.parametrize(
    ("claims", "error", "words"),
    [
        ({"sub": "bob"}, PermissionDeniedError, "lancehouse principal create 'bob' --external"),
        ({"sub": "ada"}, PermissionDeniedError, "has a secret of its own"),
        ({"sub": "\ud800\x00"}, PermissionDeniedError, "is no principal here"),
        ({"sub": "x" * 300}, PermissionDeniedError, "is no principal here"),
        ({"exp": time.time() - 100}, UnauthenticatedError, "expired"),
        ({"iss": "https://example.org"}, UnauthenticatedError, "nor of an issuer that it trusts"),
        ({"iss": "urn:lancehouse"}, UnauthenticatedError, "malformed"),
    ],
)
def test_whom_an_outside_issuer_cannot_vouch_for(
    world: AuthSetup, openid: OpenId, claims: dict[str, Any], error: type[LanceNamespaceError], words: str
) -> None:
    auth = Authenticator(world.principals, [openid.settings()], required=True)
    with pytest.raises(error, match=words):
        auth.identify(bearer(openid.token("one", claims)))


def test_an_issuer_out_of_reach_is_503(world: AuthSetup) -> None:
    with OpenId() as openid:
        openid.add("one")
        settings, token = openid.settings(), openid.token("one")
    with pytest.raises(ServiceUnavailableError, match="cannot be had"):
        Authenticator(world.principals, [settings], required=True).identify(bearer(token))


class Guarded(Loopback):
    """As much of an Iceberg REST server as clients need to list and make namespaces, behind an authenticator."""

    def __init__(self, auth: Authenticator) -> None:
        self.auth = auth
        super().__init__()

    def answer(self, request: Request) -> Answer:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.path == "/v1/oauth/tokens":
            status, document = self.auth.answer_token_request(request.form, headers)
            return Answer.json(document, status)
        try:
            identity = self.auth.identify(headers)
            if request.method == "POST":
                identity.require_role(Role.WRITER, "w")
        except UnauthenticatedError as error:
            return failure(401, "NotAuthorizedException", error)
        except PermissionDeniedError as error:
            return failure(403, "ForbiddenException", error)
        if request.path == "/v1/config":
            return Answer.json({"defaults": {}, "overrides": {}})
        return Answer.json({"namespaces": [["a"]]} if request.method == "GET" else {"namespace": ["b"]})


def failure(status: int, kind: str, error: Exception) -> Answer:
    return Answer.json({"error": {"code": status, "type": kind, "message": str(error)}}, status)


@pytest.fixture
def guarded_server(world: AuthSetup) -> Iterator[Guarded]:
    with Guarded(world.auth) as server:
        yield server


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg")
class TestPyiceberg:
    def test_a_credential(self, world: AuthSetup, guarded_server: Guarded) -> None:
        credential = f"{world.ada.client_id}:{world.ada.client_secret}"
        catalog = load_catalog("c", type="rest", uri=guarded_server.uri, credential=credential)
        assert catalog.list_namespaces() == [("a",)]
        with pytest.raises(ForbiddenError, match="ada is no writer of warehouse w"):
            catalog.create_namespace("b")
        world.principals.grant("ada", Grant(Role.WRITER))
        time.sleep(SOON_S)
        catalog.create_namespace("b")

    def test_it_renews_a_token_that_ended(self, world: AuthSetup) -> None:
        auth = Authenticator(world.principals, required=True, lifetime_s=2)
        with Guarded(auth) as guarded:
            credential = f"{world.ada.client_id}:{world.ada.client_secret}"
            catalog = load_catalog("c", type="rest", uri=guarded.uri, credential=credential)
            before = guarded.requests.count(("POST", "/v1/oauth/tokens"))
            time.sleep(2.1)
            assert catalog.list_namespaces() == [("a",)]
            assert guarded.requests.count(("POST", "/v1/oauth/tokens")) == before + 1

    def test_oauth2_with_http_basic(self, world: AuthSetup, guarded_server: Guarded) -> None:
        oauth2 = {
            "client_id": world.ada.client_id,
            "client_secret": world.ada.client_secret,
            "token_url": f"{guarded_server.uri}/v1/oauth/tokens",
            "scope": "catalog",
        }
        auth: Any = {"type": "oauth2", "oauth2": oauth2}
        catalog = load_catalog("c", type="rest", uri=guarded_server.uri, auth=auth)
        assert catalog.list_namespaces() == [("a",)]

    def test_a_static_token(self, world: AuthSetup, guarded_server: Guarded) -> None:
        catalog = load_catalog("c", type="rest", uri=guarded_server.uri, token=world.static)
        assert catalog.list_namespaces() == [("a",)]

    @pytest.mark.parametrize(
        ("properties", "error", "words"),
        [
            (
                {"credential": "nobody:nothing"},
                OAuthError,
                "invalid_client: the client id or the client secret is wrong",
            ),
            ({"credential": "nothing"}, OAuthError, "invalid_client: client_id is missing"),
            ({"token": "lh_nonsense"}, UnauthorizedError, "not known"),
            ({}, UnauthorizedError, "set a token or a credential"),
        ],
    )
    def test_what_is_refused(
        self, guarded_server: Guarded, properties: dict[str, str], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            load_catalog("c", **{"type": "rest", "uri": guarded_server.uri, **properties})


class TestOurClient:
    @pytest.mark.parametrize("scope", [{}, {"scope": "PRINCIPAL_ROLE:ALL"}])
    def test_a_credential(self, world: AuthSetup, guarded_server: Guarded, scope: dict[str, str]) -> None:
        credential = f"{world.ada.client_id}:{world.ada.client_secret}"
        client = connect("iceberg", {"endpoint": guarded_server.uri, "credential": credential, **scope})
        assert client.list_namespaces(ListNamespacesRequest(id=["w"])).namespaces == ["w.a"]
        with pytest.raises(PermissionDeniedError, match="ada is no writer of warehouse w"):
            client.create_namespace(CreateNamespaceRequest(id=["w", "b"]))

    @pytest.mark.parametrize("token", ["static", "issued"])
    def test_a_token(self, world: AuthSetup, guarded_server: Guarded, token: str) -> None:
        value = world.static if token == "static" else world.issue_token()
        client = connect("iceberg", {"endpoint": guarded_server.uri, "auth_token": value})
        assert client.list_namespaces(ListNamespacesRequest(id=["w"])).namespaces == ["w.a"]

    @pytest.mark.parametrize("properties", [{"credential": "x:y"}, {"auth_token": "lh_nonsense"}, {}])
    def test_what_is_refused(self, guarded_server: Guarded, properties: dict[str, str]) -> None:
        client = connect("iceberg", {"endpoint": guarded_server.uri, **properties})
        with pytest.raises(UnauthenticatedError):
            client.list_namespaces(ListNamespacesRequest(id=["w"]))
