from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnauthenticatedError,
)

from lancehouse.server.http.auth import ALGORITHMS, Issuer, IssuerSettings
from tests.server.issuer import AUDIENCE, OpenId, new_key, public, unsigned_token
from tests.servers.loopback import Answer


@pytest.fixture
def openid() -> Iterator[OpenId]:
    with OpenId() as server:
        server.add("one")
        yield server


def signed_with_public_key(openid: OpenId) -> str:
    """HS256 with the issuer's public key as the secret, made by hand since PyJWT refuses to."""
    key = openid.private["one"][1].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": openid.uri, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600}
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "kid": "one"}, claims)]
    text = b".".join(map(jwt.utils.base64url_encode, parts))
    signature = hmac.new(key, text, hashlib.sha256).digest()
    return (text + b"." + jwt.utils.base64url_encode(signature)).decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("discovered", [True, False])
def test_a_token_names_its_principal(openid: OpenId, algorithm: str, discovered: bool) -> None:
    openid.add("two", algorithm)
    issuer = Issuer(openid.settings(jwks_uri=None if discovered else f"{openid.uri}/keys"))
    name, ends_at, _ = issuer.verify(openid.token("two"))
    assert name == "ada"
    assert ends_at == pytest.approx(time.time() + 660, abs=5)
    assert issuer.verify(openid.token("one"))[0] == "ada"
    assert openid.count_fetches() == 1


@pytest.mark.parametrize(
    ("settings", "claims", "name"),
    [
        ({"name_claim": "email"}, lambda now: {"email": "ada@example.org"}, "ada@example.org"),
        ({"name_claim": "email"}, lambda now: {"email": "ada@x.org", "email_verified": True}, "ada@x.org"),
        ({"name_claim": "email"}, lambda now: {"email": "ada@x.org", "email_verified": "true"}, "ada@x.org"),
        ({}, lambda now: {"email": "ada@x.org", "email_verified": False}, "ada"),
        ({"name_claim": "email"}, lambda now: {"email": "ada@x.org", "phone_number_verified": False}, "ada@x.org"),
        ({"name_prefix": "google:"}, lambda now: {}, "google:ada"),
        ({}, lambda now: {"aud": ["other", AUDIENCE]}, "ada"),
        ({}, lambda now: {"exp": now - 30}, "ada"),
        ({}, lambda now: {"nbf": now + 50, "iat": now + 50}, "ada"),
        ({}, lambda now: {"iat": None}, "ada"),
    ],
)
def test_what_a_token_may_look_like(
    openid: OpenId, settings: dict[str, str], claims: Callable[[float], dict[str, Any]], name: str
) -> None:
    assert Issuer(openid.settings(**settings)).verify(openid.token("one", claims(time.time())))[0] == name


Bad = Callable[[OpenId], str]
BAD: dict[str, tuple[Bad, str]] = {
    "expired": (lambda openid: openid.token("one", {"exp": time.time() - 61}), "expired"),
    "not yet": (lambda openid: openid.token("one", {"nbf": time.time() + 120}), "not valid yet"),
    "from the future": (lambda openid: openid.token("one", {"iat": time.time() + 120}), "not valid yet"),
    "no exp": (lambda openid: openid.token("one", {"exp": None}), "no claim 'exp'"),
    "no aud": (lambda openid: openid.token("one", {"aud": None}), "no claim 'aud'"),
    "no iss": (lambda openid: openid.token("one", {"iss": None}), "no claim 'iss'"),
    "other aud": (lambda openid: openid.token("one", {"aud": "other"}), "not for 'lakehouse'"),
    "other iss": (lambda openid: openid.token("one", {"iss": "https://example.org"}), "malformed"),
    "no name": (lambda openid: openid.token("one", {"sub": None}), "no text in its claim 'sub'"),
    "empty name": (lambda openid: openid.token("one", {"sub": ""}), "no text in its claim 'sub'"),
    "endless": (lambda openid: openid.token("one", {"exp": float("inf")}), "malformed"),
    "exp is a list": (lambda openid: openid.token("one", {"exp": [1]}), "malformed"),
    "exp is words": (lambda openid: openid.token("one", {"exp": "tomorrow"}), "malformed"),
    "unsigned": (
        lambda openid: unsigned_token({"iss": openid.uri, "aud": AUDIENCE, "sub": "ada"}),
        "must be signed with",
    ),
    "public key as secret": (signed_with_public_key, "must be signed with"),
    "other signature": (lambda openid: openid.token("one")[:-8] + "AAAAAAAA", "signature is wrong"),
    "no signature": (lambda openid: openid.token("one").rpartition(".")[0] + ".", "signature is wrong"),
    "other key's id": (lambda openid: openid.token("one", kid="rsa"), "another way"),
    "unknown key": (lambda openid: openid.token("one", kid="nobody"), "does not publish"),
    "two parts": (lambda openid: openid.token("one").rpartition(".")[0], "malformed"),
    "no token": (lambda openid: "x", "malformed"),
    "must-understand header": (lambda openid: openid.token("one", crit=["exp"], exp=1), "malformed"),
    "deep header": (lambda openid: jwt.utils.base64url_encode(b"[" * 9000).decode() + ".e30.AA", "malformed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_token_is_refused_without_repeating_it(openid: OpenId, case: str) -> None:
    openid.add("rsa", "RS256")
    make, words = BAD[case]
    token = make(openid)
    with pytest.raises(UnauthenticatedError, match=words) as caught:
        Issuer(openid.settings()).verify(token)
    assert len(token) < 2 or token not in str(caught.value)


@pytest.mark.parametrize(
    ("name_claim", "claims"),
    [
        ("email", {"email": "ada@x.org", "email_verified": False}),
        ("email", {"email": "ada@x.org", "email_verified": "false"}),
        ("email", {"email": "ada@x.org", "email_verified": "no"}),
        ("email", {"email": "ada@x.org", "email_verified": 0}),
        ("email", {"email": "ada@x.org", "email_verified": []}),
        # The address under another name is no better.
        ("preferred_username", {"preferred_username": "Ada@x.org", "email": "ada@x.org", "email_verified": False}),
        ("sub", {"sub": "ada@x.org", "email": "ada@x.org", "email_verified": "false"}),
        ("phone_number", {"phone_number": "+15550100", "phone_number_verified": False}),
    ],
)
def test_a_name_that_the_issuer_has_not_verified_is_refused(
    openid: OpenId, name_claim: str, claims: dict[str, Any]
) -> None:
    with pytest.raises(UnauthenticatedError, match="_verified"):
        Issuer(openid.settings(name_claim=name_claim)).verify(openid.token("one", claims))


def test_a_token_without_key_id_needs_an_issuer_with_one_key(openid: OpenId) -> None:
    algorithm, key = openid.private["one"]
    claims = jwt.decode(openid.token("one"), options={"verify_signature": False})
    token = jwt.encode(claims, key, algorithm)
    assert Issuer(openid.settings()).verify(token)[0] == "ada"
    openid.add("two")
    with pytest.raises(UnauthenticatedError, match="does not publish"):
        Issuer(openid.settings()).verify(token)


def test_keys_that_may_not_sign_are_not_used(openid: OpenId) -> None:
    short, other = new_key("RS256", 1024), new_key("ES384")
    openid.keys += [
        public("RS256", short, "short"),
        public("ES384", other, "other"),
        {"kty": "oct", "kid": "secret", "k": "AAAA", "alg": "HS256"},
        public("ES256", openid.private["one"][1], "encrypts", use="enc"),
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kid": "nothing"},
    ]
    issuer = Issuer(openid.settings())
    for kid in ("short", "other", "secret", "encrypts", "broken", "nothing"):
        with pytest.raises(UnauthenticatedError, match="does not publish"):
            issuer.verify(openid.token("one", kid=kid))
    assert issuer.verify(openid.token("one"))[0] == "ada"


def test_a_new_key_is_fetched_but_not_for_every_token_that_names_one(openid: OpenId) -> None:
    issuer = Issuer(openid.settings(), pause_s=60)
    issuer.verify(openid.token("one"))
    for number in range(20):
        with pytest.raises(UnauthenticatedError, match="does not publish"):
            issuer.verify(openid.token("one", kid=f"made up {number}"))
    assert openid.count_fetches() == 1
    openid.add("two")
    issuer._last_fetch_at -= 60
    assert issuer.verify(openid.token("two"))[0] == "ada"
    assert openid.count_fetches() == 2


def test_a_key_that_was_withdrawn_is_forgotten(openid: OpenId) -> None:
    issuer = Issuer(openid.settings(), fresh_s=0.1, pause_s=0)
    token = openid.token("one")
    issuer.verify(token)
    openid.keys.clear()
    openid.add("two")
    time.sleep(0.1)
    with pytest.raises(UnauthenticatedError, match="does not publish"):
        issuer.verify(token)


@pytest.mark.parametrize(
    ("path", "says", "words"),
    [
        ("/keys", Answer.json({}, 500), "HTTP 500"),
        ("/keys", Answer.json({}, 302, {"Location": "/elsewhere"}), "HTTP 302"),
        ("/keys", Answer(reset=True), "no answer"),
        ("/keys", Answer.text("hello"), "no JSON"),
        ("/keys", Answer.json([]), "no JSON object"),
        ("/keys", Answer.json({"keys": 1}), "no keys"),
        ("/keys", Answer.json({"keys": []}), "no key for"),
        ("/keys", Answer(body=b" " * (2**20 + 1)), "too long"),
        ("/.well-known/openid-configuration", Answer.json({}, 404), "HTTP 404"),
        ("/.well-known/openid-configuration", Answer.json({"issuer": "https://x"}), "another issuer"),
    ],
)
def test_an_issuer_that_cannot_be_asked_is_no_fault_of_the_caller(
    openid: OpenId, path: str, says: Answer, words: str
) -> None:
    openid.says[path] = says
    issuer = Issuer(openid.settings())
    for _ in range(3):
        with pytest.raises(ServiceUnavailableError, match=words):
            issuer.verify(openid.token("one"))
    assert len(openid.requests) <= 2


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "ftp://example.org/keys", ""])
def test_only_addresses_of_http_are_fetched(openid: OpenId, uri: str) -> None:
    openid.says["/.well-known/openid-configuration"] = Answer.json({"issuer": openid.uri, "jwks_uri": uri})
    with pytest.raises(ServiceUnavailableError, match="no jwks_uri"):
        Issuer(openid.settings()).verify(openid.token("one"))


def test_known_keys_last_while_the_issuer_is_away(openid: OpenId) -> None:
    issuer = Issuer(openid.settings(), fresh_s=0, pause_s=0)
    token = openid.token("one")
    issuer.verify(token)
    openid.says["/keys"] = Answer.json({}, 503)
    assert issuer.verify(token)[0] == "ada"
    openid.add("two")
    with pytest.raises(ServiceUnavailableError, match="HTTP 503"):
        issuer.verify(openid.token("two"))


def test_many_callers_ask_the_issuer_once(openid: OpenId) -> None:
    openid.says["/keys"] = Answer.json({"keys": openid.keys})
    issuer = Issuer(openid.settings())
    token = openid.token("one")
    found: list[object] = []

    def call() -> None:
        try:
            found.append(issuer.verify(token)[0])
        except LanceNamespaceError as error:
            found.append(error)

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["ada"] * 16
    assert openid.count_fetches() == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"issuer": ""}, "'issuer'"),
        ({"audience": " "}, "'audience'"),
        ({"name_claim": ""}, "'name_claim'"),
        ({"issuer": "accounts.example.org"}, "'issuer' must be a URL.*jwks_uri"),
        ({"jwks_uri": "file:///keys"}, "'jwks_uri' must be a URL"),
        ({"jwks_uri": "https://a b"}, "'jwks_uri' must be a URL"),
        ({"jwks_uri": "https://[::1"}, "'jwks_uri' must be a URL"),
        ({"jwks_uri": "https://example.org:x"}, "'jwks_uri' must be a URL"),
        ({"issuer": "urn:lancehouse", "jwks_uri": "https://example.org"}, "this server itself"),
    ],
)
def test_settings_are_checked(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        IssuerSettings(**{"issuer": "https://example.org", "audience": AUDIENCE, **settings})
