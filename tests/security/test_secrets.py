"""Who has no token learns nothing; who guesses one gets nowhere, and keeps nobody else out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.opening import open_database
from lancehouse.catalog.principals import Credential, Principals
from tests.live.gateways import Heard, ask
from tests.servers.lancehouse import Served, start_lancehouse

FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class World:
    """A server that asks who calls, with the principals `ada`, an admin, and `scraper`, who was granted nothing."""

    server: Served
    ada: Credential
    token: str
    scraper: str

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Heard:
        return ask(self.server, method, path, body, headers)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("secrets")
    database = open_database(f"sqlite:///{folder / 'catalog.db'}")
    principals = Principals(database)
    ada = principals.create("ada", [Grant(Role.ADMIN)])
    assert ada
    principals.create("scraper")
    tokens = [principals.create_token(name, "test") for name in ("ada", "scraper")]
    database.close()
    with start_lancehouse(folder) as server:
        yield World(server, ada, *tokens)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_metrics_ask_who_calls(world: World, method: str) -> None:
    nobody = world.send(method, "/metrics")
    assert nobody.status == 401
    assert b"lancehouse_requests" not in nobody.body
    assert world.send(method, "/metrics", authorization="Bearer lh_" + "0" * 64).status == 401
    scraped = world.send(method, "/metrics", authorization=f"Bearer {world.scraper}")
    assert scraped.status == 200
    assert (b"lancehouse_requests" in scraped.body) is (method == "GET")


def test_health_asks_nobody(world: World) -> None:
    for path in ("/health/live", "/health/ready"):
        assert world.send("GET", path).status == 200
