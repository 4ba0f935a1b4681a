from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Credential, Principals
from lancehouse.server.http.oauth import ACCESS_TOKEN, TOKEN_EXCHANGE, TokenEndpoint, Tokens
from lancehouse.store import migrate
from lancehouse.store.database import Database
from tests.server.issuer import pieces

Form = dict[str, str]


class OAuthSetup:
    """A database with `ada` and `bob`, and the endpoint."""

    def __init__(self, file: Path) -> None:
        self.database = Database(f"sqlite:///{file}")
        migrate.create_if_empty(self.database)
        self.principals = Principals(self.database)
        self.ada = self.create("ada")
        self.bob = self.create("bob")
        self.static = self.principals.create_token("ada", "ci")
        self.tokens = Tokens(self.principals)
        self.endpoint = TokenEndpoint(self.principals, self.tokens)

    def create(self, name: str) -> Credential:
        credential = self.principals.create(name, [Grant(Role.READER)])
        assert credential
        return credential

    def ask(self, form: Form, authorization: str = "") -> tuple[int, dict[str, Any]]:
        return self.endpoint.answer(form, {"authorization": authorization} if authorization else {})

    def issue_token(self, name: str, *, life_s: int = 3600) -> str:
        principal = self.principals.find(name)
        assert principal
        return Tokens(self.principals, life_s).issue(principal)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OAuthSetup]:
    made = OAuthSetup(tmp_path / "catalog.db")
    yield made
    made.database.close()


def basic(client_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode()


def credentials(credential: Credential, **more: str) -> Form:
    return {
        "grant_type": "client_credentials",
        "client_id": credential.client_id,
        "client_secret": credential.client_secret,
        **more,
    }


def exchange(subject: str, **more: str) -> Form:
    return {"grant_type": TOKEN_EXCHANGE, "subject_token": subject, "subject_token_type": ACCESS_TOKEN, **more}


@pytest.mark.parametrize("scope", ["", "catalog", "PRINCIPAL_ROLE:ALL", "sign"])
@pytest.mark.parametrize("how", ["form", "basic", "both", "beside an old token"])
def test_client_credentials(world: OAuthSetup, how: str, scope: str) -> None:
    ada = world.ada
    form = {"grant_type": "client_credentials"} if how == "basic" else credentials(ada)
    header = {
        "basic": basic(ada.client_id, ada.client_secret),
        "both": basic(ada.client_id, ada.client_secret),
        "beside an old token": f"Bearer {world.issue_token('ada', life_s=-5)}",
    }.get(how, "")
    status, answer = world.ask({**form, "scope": scope}, header)
    assert status == 200
    token = answer.pop("access_token")
    assert answer == {"token_type": "bearer", "issued_token_type": ACCESS_TOKEN, "expires_in": 3600}
    assert world.tokens.verify(token).name == "ada"


def test_what_a_token_says(world: OAuthSetup) -> None:
    header, claims = pieces(world.issue_token("ada"))
    again = pieces(world.issue_token("ada"))[1]
    assert header["alg"] == "HS256"
    assert claims["sub"] == "ada"
    assert claims["iss"] == claims["aud"] == "urn:lancehouse"
    assert claims["exp"] == claims["iat"] + 3600
    assert claims["iat"] == pytest.approx(time.time(), abs=5)
    assert claims["jti"] != again["jti"]


@pytest.mark.parametrize(
    ("form", "header", "status", "error", "words"),
    [
        ({}, "", 400, "invalid_request", "grant_type is missing"),
        ({"grant_type": "password"}, "", 400, "unsupported_grant_type", "must be one of"),
        ({"grant_type": "client_credentials"}, "", 401, "invalid_client", "are missing"),
        ({"grant_type": "client_credentials", "client_secret": "x"}, "", 401, "invalid_client", "client_id is missing"),
        ({"grant_type": "client_credentials", "client_id": "x"}, "", 401, "invalid_client", "are missing"),
        ({"client_secret": "wrong"}, "", 401, "invalid_client", "is wrong"),
        ({"client_id": "wrong"}, "", 401, "invalid_client", "is wrong"),
        ({"client_id": "\x00"}, "", 401, "invalid_client", "is wrong"),
        ({}, "Basic x", 401, "invalid_client", "no HTTP Basic"),
        ({}, "Basic", 401, "invalid_client", "no HTTP Basic"),
        ({}, "Basic bm9jb2xvbg==", 401, "invalid_client", "no HTTP Basic"),
        ({}, "Basic /w==", 401, "invalid_client", "no HTTP Basic"),
        ({"client_id": "", "client_secret": ""}, basic("x", "y"), 401, "invalid_client", "is wrong"),
        ({"grant_type": "client_credentials"}, "Bearer x", 401, "invalid_client", "are missing"),
        ({}, basic("x", "y"), 400, "invalid_request", "different clients"),
    ],
)
def test_what_is_refused(world: OAuthSetup, form: Form, header: str, status: int, error: str, words: str) -> None:
    whole = credentials(world.ada, **form) if "grant_type" not in form and (form or header) else form
    seen, answer = world.ask(whole, header)
    assert (seen, answer["error"]) == (status, error)
    assert words in answer["error_description"]
    assert set(answer) == {"error", "error_description"}
    assert world.ada.client_secret not in answer["error_description"]


def test_a_good_token_is_exchanged_for_a_new_one(world: OAuthSetup) -> None:
    old = world.issue_token("ada")
    status, answer = world.ask(exchange(old, scope="catalog"), f"Bearer {old}")
    assert status == 200
    assert answer["expires_in"] == 3600
    assert answer["access_token"] != old
    assert world.tokens.verify(answer["access_token"]).name == "ada"


def test_an_expired_token_is_exchanged_with_the_credential(world: OAuthSetup) -> None:
    old = world.issue_token("ada", life_s=-5)
    assert world.ask(exchange(old))[0] == 400
    status, answer = world.ask(exchange(old), basic(world.ada.client_id, world.ada.client_secret))
    assert status == 200
    assert world.tokens.verify(answer["access_token"]).name == "ada"


def test_a_static_token_is_its_own_replacement(world: OAuthSetup) -> None:
    status, answer = world.ask(exchange(world.static))
    assert status == 200
    assert answer == {"access_token": world.static, "token_type": "bearer", "issued_token_type": ACCESS_TOKEN}
    world.principals.delete_token("ada", "ci")
    assert world.ask(exchange(world.static))[0] == 400


@pytest.mark.parametrize("change", ["rotate_secret", "delete"])
def test_a_token_of_an_older_secret_is_not_exchanged(world: OAuthSetup, change: str) -> None:
    old = world.issue_token("ada")
    getattr(world.principals, change)("ada")
    status, answer = world.ask(exchange(old))
    assert (status, answer["error"]) == (400, "invalid_request")
    assert "deleted or has a new secret" in answer["error_description"]


def test_nobody_exchanges_what_is_not_theirs(world: OAuthSetup) -> None:
    header = basic(world.bob.client_id, world.bob.client_secret)
    for life_s in (3600, -5):
        status, answer = world.ask(exchange(world.issue_token("ada", life_s=life_s)), header)
        assert (status, answer["error"]) == (400, "invalid_request")
        assert "another client" in answer["error_description"]
    status, answer = world.ask(exchange(world.issue_token("ada")), basic(world.bob.client_id, "wrong"))
    assert (status, answer["error"]) == (401, "invalid_client")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"subject_token": ""}, "subject_token is missing"),
        ({"subject_token": "x"}, "malformed"),
        ({"subject_token": "lh_x"}, "not known"),
        ({"subject_token": jwt.encode({"sub": "ada"}, b"k" * 32, "HS256")}, "signature is wrong"),
        ({"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"}, "subject_token_type must be"),
        ({"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}, "requested_token_type must be"),
        ({"actor_token": "x"}, "actor_token is not supported"),
    ],
)
def test_what_is_not_exchanged(world: OAuthSetup, form: Form, words: str) -> None:
    status, answer = world.ask(exchange(world.issue_token("ada")) | form)
    assert (status, answer["error"]) == (400, "invalid_request")
    assert words in answer["error_description"]
