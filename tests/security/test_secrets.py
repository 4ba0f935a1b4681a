"""Who has no token learns nothing; who guesses one gets nowhere, and keeps nobody else out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from lancehouse.catalog import principals
from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Credential, Principals
from lancehouse.server.http.oauth import FREE
from lancehouse.server.setting_table import ServerLimits
from tests.live.gateways import Heard, ask
from tests.security.watch import attack_server
from tests.server.serving import serving
from tests.servers.lancehouse import Served, start_lancehouse

FORM = {"content-type": "application/x-www-form-urlencoded"}
TOKENS = "/iceberg/v1/oauth/tokens"
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""Two peers: every address that begins with 127 is this machine's."""


@dataclass(frozen=True)
class SecretsSetup:
    """A server that asks who calls, with the principals `ada`, an admin, and `scraper`, who was granted nothing."""

    server: Served
    ada: Credential
    token: str
    scraper: str

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Heard:
        return ask(self.server, method, path, body, headers)

    def log_in(self, client_id: str, secret: str, peer: str = HERE, **headers: str) -> Heard:
        """Ask for a token, from an address."""
        connection = HTTPConnection(urlsplit(self.server.uri).netloc, timeout=60, source_address=(peer, 0))
        try:
            connection.request("POST", TOKENS, form(client_id, secret), {**FORM, **headers})
            answer = connection.getresponse()
            return Heard(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def form(client_id: str, secret: str) -> bytes:
    fields = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    return urlencode(fields).encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretsSetup]:
    folder = tmp_path_factory.mktemp("secrets")
    database = open_database(f"sqlite:///{folder / 'catalog.db'}")
    principals = Principals(database)
    ada = principals.create("ada", [Grant(Role.ADMIN)])
    assert ada
    principals.create("scraper")
    tokens = [principals.create_token(name, "test") for name in ("ada", "scraper")]
    database.close()
    with start_lancehouse(folder) as server:
        yield SecretsSetup(server, ada, *tokens)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_metrics_ask_who_calls(world: SecretsSetup, method: str) -> None:
    nobody = world.send(method, "/metrics")
    assert nobody.status == 401
    assert b"lancehouse_requests" not in nobody.body
    assert world.send(method, "/metrics", authorization="Bearer lh_" + "0" * 64).status == 401
    scraped = world.send(method, "/metrics", authorization=f"Bearer {world.scraper}")
    assert scraped.status == 200
    assert (b"lancehouse_requests" in scraped.body) is (method == "GET")


def test_health_asks_nobody(world: SecretsSetup) -> None:
    for path in ("/health/live", "/health/ready"):
        assert world.send("GET", path).status == 200


def test_wrong_secrets_are_slowed_down_and_nobody_else_is(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    principals = Principals(database)
    ada, bob = (principals.create(name, [Grant(Role.ADMIN)]) for name in ("ada", "bob"))
    assert ada
    assert bob
    database.close()
    with start_lancehouse(tmp_path) as server:
        world = SecretsSetup(server, ada, "", "")
        spoof = {"x-forwarded-for": "203.0.113.7", "forwarded": "for=203.0.113.7"}
        wrong = [world.log_in(ada.client_id, f"guess {number}", **spoof) for number in range(FREE)]
        assert [(each.status, each.json["error"]) for each in wrong] == [(401, "invalid_client")] * FREE
        # Whatever a header says about the address; and with the right secret too, or it would tell that it is right.
        for secret in ("one more", ada.client_secret):
            refused = world.log_in(ada.client_id, secret, **{"x-forwarded-for": "198.51.100.1"})
            assert (refused.status, refused.json["error"]) == (429, "invalid_client")
            assert set(refused.json) == {"error", "error_description"}
            assert "too many wrong secrets" in refused.json["error_description"]
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["content-type"] == "application/json"
        assert world.log_in(ada.client_id, ada.client_secret, ELSEWHERE).status == 200
        assert world.log_in(bob.client_id, bob.client_secret).status == 200
        # Who has proved the secret before is known: the attacker at the same address does not keep them out.
        assert world.log_in(ada.client_id, ada.client_secret).status == 200
        assert world.log_in(ada.client_id, "still wrong").status in (401, 429)
        assert world.log_in(ada.client_id, ada.client_secret).status == 200


def test_a_secret_that_was_rotated_is_not_recognized(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    principals = Principals(database)
    ada = principals.create("ada")
    assert ada
    principals.authenticate_secret(ada.client_id, ada.client_secret)
    assert principals.recognize_secret(ada.client_id, ada.client_secret)
    assert principals.recognize_secret(ada.client_id, "other") is None
    Principals(database).rotate_secret("ada")
    assert principals.recognize_secret(ada.client_id, ada.client_secret) is None
    Principals(database).delete("ada")
    assert principals.recognize_secret(ada.client_id, ada.client_secret) is None
    database.close()


def test_a_flood_of_wrong_secrets(world: SecretsSetup, soak: bool) -> None:
    """Invented clients, which are never slowed down one by one: the server goes on, and so do those it knows."""
    assert world.log_in(world.ada.client_id, world.ada.client_secret).status == 200
    count = 5000 if soak else 150
    with attack_server(world.server, soak=soak), ThreadPoolExecutor(32) as pool:
        flood = [pool.submit(world.log_in, f"client {number}", "x") for number in range(count)]
        others = [world.send("GET", "/iceberg/v1/config", authorization=f"Bearer {world.token}") for _ in range(10)]
        again = world.log_in(world.ada.client_id, world.ada.client_secret, ELSEWHERE)
        statuses = {each.result().status for each in flood}
    assert statuses <= {401, 429, 503}
    assert {each.status for each in others} == {200}
    assert again.status == 200


def test_secrets_that_are_checked_leave_threads_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(principals, "is_secret_valid", lambda *_: not release.wait(60))
    limits = ServerLimits(threads=4)
    with serving(tmp_path, limits=limits, auth=True) as client, ThreadPoolExecutor(12) as pool:
        checked = [pool.submit(client.send, "POST", TOKENS, None, FORM, form(f"c{n}", "x")) for n in range(12)]
        try:
            assert client.send("GET", "/health/ready").status == 200
            assert not any(each.done() for each in checked)
        finally:
            release.set()
        assert {each.result().status for each in checked} == {401}
