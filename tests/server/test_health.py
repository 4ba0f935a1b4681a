from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Identity, Role
from lancehouse.catalog.principals import Principals
from lancehouse.server.http import health
from lancehouse.server.http.health import Check, Health, HealthReport, Kind, PartState, State
from lancehouse.store.database import Database
from tests.server.serving import ServerClient, serving
from tests.waiting import wait_until

REFUSE = "CREATE TRIGGER full BEFORE INSERT ON idempotency_keys BEGIN SELECT RAISE(FAIL, 'full'); END"


def read_sign_of_life(database: Database) -> int:
    assert database.file is not None
    with sqlite3.connect(database.file) as connection:
        (found,) = connection.execute("SELECT created_ms FROM idempotency_keys").fetchone()
    return int(found)


def test_one_look_at_a_time_however_many_ask() -> None:
    looks, go_on = [], threading.Event()

    def look() -> None:
        looks.append(1)
        assert go_on.wait(30)

    check = Check("backend", "slow", look, every_s=0.0)
    all_checks = Health([check])
    askers = [threading.Thread(target=all_checks.report, args=(0.01,)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert looks == [1]
    assert check.part_state().state == "unknown"
    go_on.set()
    wait_until(lambda: check.part_state().state == "ok")


def test_a_recent_look_is_enough() -> None:
    looks: list[int] = []
    checks = Health([Check("database", "x", lambda: looks.append(1), every_s=60)])
    first, second = checks.report().parts[0], checks.report().parts[0]
    assert looks == [1]
    assert first.age_s is not None
    assert second.age_s is not None
    assert second.age_s > first.age_s


def test_what_hangs_has_failed_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "HANGS_S", 0.0)
    go_on = threading.Event()
    hangs_check = Check("backend", "hangs", lambda: [go_on.wait(60)].clear(), 0)
    checks = Health([hangs_check, Check("database", "x", [].clear, 0)])
    started = time.monotonic()
    hangs, database = checks.report(0.05).parts
    assert time.monotonic() - started < 20
    assert (hangs.state, hangs.reason.startswith("no answer for")) == ("failed", True)
    assert database.state == "ok"
    go_on.set()


@pytest.mark.parametrize(
    ("states", "is_ready"),
    [
        ([("database", "ok")], True),
        ([("database", "failed")], False),
        ([("database", "unknown")], False),
        ([("database", "ok"), ("warehouse", "failed"), ("backend", "ok")], True),
        ([("database", "ok"), ("warehouse", "failed"), ("backend", "unknown")], True),
        ([("database", "ok"), ("warehouse", "failed"), ("backend", "failed")], False),
        ([("database", "failed"), ("warehouse", "ok")], False),
    ],
)
def test_when_a_server_is_ready(states: list[tuple[Kind, State]], is_ready: bool) -> None:
    report = HealthReport(tuple(PartState(kind, "x", state, 1.0, 1.0) for kind, state in states))
    assert report.is_ready is is_ready


def test_who_sees_what() -> None:
    parts: list[tuple[Kind, str]] = [("database", "sqlite"), ("warehouse", "a"), ("backend", "b")]
    report = HealthReport(tuple(PartState(kind, name, "ok", 1.0, 1.0) for kind, name in parts))

    def names(*grants: Grant) -> list[str]:
        return [each["name"] for each in report.to_json(Identity("x", grants)).get("checks", ())]

    assert report.to_json(Identity("scraper", ())) == {"status": "ready"}
    assert names(Grant(Role.READER, "a")) == ["sqlite", "a"]
    assert names(Grant(Role.READER)) == ["sqlite", "a", "b"]


def ready(client: ServerClient, **headers: str) -> tuple[int, dict[str, tuple[str, str]]]:
    answer = client.send("GET", "/health/ready", headers=headers)
    return answer.status, {each["name"]: (each["state"], each.get("reason", "")) for each in answer.json["checks"]}


def test_a_server_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warehouse that is gone does not stop it; all of them do, and a database that takes no writes does."""
    monkeypatch.setattr(health, "OTHERS_S", 0.0)
    monkeypatch.setattr(health, "DATABASE_S", 0.0)

    def refuse() -> None:
        raise ServiceUnavailableError("nobody home")

    with serving(tmp_path, checks=[Check("backend", "polaris", refuse, 0.0)]) as client:
        status, found = ready(client)
        assert status == 200
        assert found == {
            "sqlite": ("ok", ""),
            "main": ("ok", ""),
            "other": ("ok", ""),
            "polaris": ("failed", "nobody home"),
        }
        first = read_sign_of_life(Database(f"sqlite:///{tmp_path / 'catalog.db'}"))
        folders = tmp_path / "warehouses"
        (folders / "main").rmdir()
        status, found = ready(client)
        assert (status, found["main"][0], found["other"][0]) == (200, "failed", "ok")
        page = client.send("GET", "/metrics").body.decode()
        assert 'lancehouse_up{kind="warehouse",name="main"} 0.0' in page
        assert 'lancehouse_up{kind="warehouse",name="other"} 1.0' in page
        (folders / "other").rmdir()
        assert ready(client)[0] == 503
        (folders / "main").mkdir()
        assert ready(client)[0] == 200
        assert read_sign_of_life(Database(f"sqlite:///{tmp_path / 'catalog.db'}")) > first
        with sqlite3.connect(tmp_path / "catalog.db") as connection:
            connection.execute(REFUSE)
        status, found = ready(client)
        assert (status, found["sqlite"][0]) == (503, "failed")
        with sqlite3.connect(tmp_path / "catalog.db") as connection:
            connection.execute("DROP TRIGGER full")
        assert ready(client)[0] == 200


def test_callers_who_are_not_known_see_the_state_only(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    principals = Principals(database)
    principals.create("ada", [Grant(Role.READER)])
    token = principals.create_token("ada", "test")
    database.close()
    with serving(tmp_path, auth=True) as client:
        assert client.send("GET", "/health/ready").json == {"status": "ready"}
        assert client.send("GET", "/health/ready", headers={"authorization": "Bearer nonsense"}).json == {
            "status": "ready"
        }
        assert ready(client, authorization=f"Bearer {token}")[1].keys() == {"sqlite", "main", "other"}


def test_pages_under_another_name_see_the_state_only(client: ServerClient) -> None:
    assert client.send("GET", "/health/ready", headers={"host": "evil.example.com"}).json == {"status": "ready"}
