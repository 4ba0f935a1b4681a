"""Workers in processes of their own, and the server's routes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TableNotFoundError

from lancehouse.catalog import maintenance as catalog_maintenance
from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.maintenance import process
from lancehouse.store import maintenance as rows
from tests.maintenance.places import QUICK, Place, open_place
from tests.servers.lancehouse import PROGRAM, start_lancehouse
from tests.waiting import wait_until

PATIENCE_S = 120


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "server.yaml"
    policy = {key.removeprefix("maintenance."): value for key, value in QUICK.items()} | {"cleanup.older-than": "1h"}
    file.write_text(json.dumps({"warehouses": {"main": {"location": str(tmp_path / "main"), "maintenance": policy}}}))
    return file


def start_worker(tmp_path: Path, config: Path, **env: str) -> subprocess.Popen[bytes]:
    command = [str(PROGRAM), "maintenance", "worker", "--config", str(config)]
    db = f"sqlite:///{tmp_path / 'catalog.db'}"
    with (tmp_path / "worker.log").open("ab") as log:
        return subprocess.Popen([*command, "--db", db], stderr=log, env={**os.environ, **env})


@pytest.mark.engines
def test_a_worker_that_is_killed(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ends, and another goes on; nothing is lost or done twice."""
    with open_place(tmp_path) as place:
        place.create("docs", commits=5)
        # A file that cannot be read holds the worker up in the middle of its compaction.
        data = sorted((tmp_path / "main").rglob("data/*.lance"))
        content = data[0].read_bytes()
        data[0].unlink()
        os.mkfifo(data[0])
        worker = start_worker(tmp_path, config)
        try:
            wait_until(lambda: place.maintenance.status().counts["running"] == 1)
            time.sleep(0.5)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        data[0].unlink()
        data[0].write_bytes(content)
        assert place.table("docs").worker
        assert place.maintenance.claim("two", 1, 9) == []  # the lease of the dead one still holds
        with monkeypatch.context() as patch:
            patch.setattr(rows, "read_clock", lambda tx: place_clock(tx) + 2 * catalog_maintenance.LEASE_MS)
            place.work()
        assert place.runs()[:2] == [("docs", "lease", "lost"), ("docs", "compact", "done")]
        assert [run for run in place.runs() if run[1] == "compact"] == [("docs", "compact", "done")]
        assert sorted(place.open("docs").to_table()["id"].to_pylist()) == list(range(50))


place_clock = rows.read_clock


class Process:
    """A child process that ends when it is asked to, or at once."""

    def __init__(self, *, ends: bool) -> None:
        self.ended = threading.Event()
        if ends:
            self.ended.set()

    def wait(self, timeout: float | None = None) -> int:
        self.ended.wait(timeout)
        return 0

    def poll(self) -> int | None:
        return 0 if self.ended.is_set() else None

    terminate = kill = lambda self: self.ended.set()


def test_no_child_is_left_that_starts_while_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RESTART_S", 0.0)
    second, is_starting, may_start = Process(ends=False), threading.Event(), threading.Event()
    processes: Iterator[Process | OSError] = iter([Process(ends=True), OSError("no memory"), second])

    def spawn(_: object) -> Process:
        child = next(processes)
        if isinstance(child, OSError):
            raise child
        if child is second:
            is_starting.set()
            may_start.wait(PATIENCE_S)
        return child

    monkeypatch.setattr(process._Child, "_spawn", spawn)
    children = process._Child(b"")
    assert is_starting.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(children.stop, PATIENCE_S)
        time.sleep(0.2)
        may_start.set()
        stopping.result(PATIENCE_S)
    assert second.ended.is_set()


@pytest.mark.engines
def test_a_server_with_threads_for_maintenance(tmp_path: Path, config: Path) -> None:
    with open_place(tmp_path) as place:
        place.create("docs", commits=5)
        options = ("--config", str(config), "--maintenance-threads", "1")
        with start_lancehouse(tmp_path, warehouses={"main": tmp_path / "main"}, options=options) as served:
            wait_until(lambda: ("docs", "compact", "done") in place.runs())
            status = send(served.uri, "GET", "/maintenance/v1/status")
            assert [run["operation"] for run in status["runs"]] == ["compact"]
            assert status["runs"][0]["levels"] == ["db", "docs"]
            assert status["counts"]["failing"] == 0
            assert send(served.uri, "GET", "/console/v1/maintenance")["runs"] == status["runs"]
            shown = send(served.uri, "GET", "/maintenance/v1/policy?in=main&level=db&level=docs")["properties"]
            assert shown[0]["source"] == "warehouse main"
            path = "/maintenance/v1/run?in=main&level=db&level=docs&operation=orphans"
            assert send(served.uri, "POST", path, 202)["operations"] == ["orphans"]
            assert "no such operation" in send(served.uri, "POST", path + "x", 400)["error"]["message"]
            assert send(served.uri, "POST", path.replace("docs", "none"), 404)
            assert send(served.uri, "POST", path.replace("main", "none"), 404)
            metrics = send(served.uri, "GET", "/metrics", raw=True)
            assert b'lancehouse_maintenance_runs_total{operation="compact",outcome="done"} 1.0' in metrics
            assert b'lancehouse_maintenance_tables{state="failing"} 0.0' in metrics
            child = child_of(served.pid)
            os.kill(child, signal.SIGKILL)
            wait_until(lambda: child_of(served.pid) not in (0, child))
            last = child_of(served.pid)
        wait_until(lambda: not Path(f"/proc/{last}").exists())


def child_of(pid: int) -> int:
    """The process of maintenance that a server has started, or 0."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            command = Path(f"/proc/{child}/cmdline")
            if command.exists() and b"lancehouse.maintenance.process" in command.read_bytes():
                return int(child)
    return 0


def send(uri: str, method: str, path: str, status: int = 200, *, raw: bool = False) -> Any:
    connection = HTTPConnection(urlsplit(uri).netloc, timeout=60)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    assert reply.status == status, body
    return body if raw else json.loads(body)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with open_place(tmp_path) as place:
        yield place


def test_writers_may_ask(place: Place) -> None:
    place.create("docs")

    def caller(role: Role, *levels: str) -> Caller:
        return Caller(Identity("me", (Grant(role, "main", levels),)))

    assert place.maintenance.request(caller(Role.WRITER, "db"), "main", ("db", "docs"), ["cleanup", "compact"]) == [
        "compact",
        "cleanup",
    ]
    assert place.table("docs").requested_by == "me"
    for identity in (caller(Role.READER), caller(Role.WRITER, "other")):
        with pytest.raises(PermissionDeniedError):
            place.maintenance.request(identity, "main", ("db", "docs"), [])
    with pytest.raises(TableNotFoundError):
        place.maintenance.request(caller(Role.WRITER), "main", ("db", "none"), [])
    with pytest.raises(InvalidInputError, match="no such operation: 'fly'"):
        place.maintenance.request(caller(Role.WRITER), "main", ("db", "docs"), ["fly"])
