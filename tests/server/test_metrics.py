from __future__ import annotations

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
)
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from lancehouse import measures
from lancehouse.lake.errors import translate_errors
from lancehouse.measures import CountedPool
from lancehouse.server.http.observability import MULTIPROCESS, Metrics, read_restarts, record_restart
from tests.server.serving import ServerClient, serving
from tests.waiting import wait_until

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
SECRET_NAME = "tablewithaname"


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(measures, "_receiver", lambda event, labels, amount: found.append((event, *labels)))
    return found


def value(page: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    assert found, sample
    return float(found[1])


def commit(client: ServerClient, requirements: list[dict[str, Any]], updates: list[dict[str, Any]]) -> int:
    body = {"requirements": requirements, "updates": updates}
    return client.iceberg("POST", f"main/namespaces/n/tables/{SECRET_NAME}", body).status


def test_what_a_server_counts(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        client.iceberg("POST", "main/namespaces", {"namespace": ["n"]})
        client.iceberg("POST", "main/namespaces/n/tables", {"name": SECRET_NAME, "schema": SCHEMA})
        assert commit(client, [], [{"action": "set-properties", "updates": {"a": "1"}}]) == 200
        assert commit(client, [{"type": "assert-table-uuid", "uuid": "0"}], []) == 409
        assert commit(client, [], [{"action": "nonsense"}]) == 400
        wait_until(lambda: b"lancehouse_pool_size{" in client.send("GET", "/metrics").body)  # measured every second
        page = client.send("GET", "/metrics").body.decode()
    assert value(page, 'lancehouse_commits_total{outcome="committed"}') == 1
    assert value(page, 'lancehouse_commits_total{outcome="conflict"}') == 1
    assert value(page, 'lancehouse_commits_total{outcome="refused"}') == 1
    assert value(page, 'lancehouse_pool_size{backend="",pool="requests"}') == 32
    assert value(page, 'lancehouse_pool_in_use{backend="",pool="scans"}') == 0
    assert value(page, 'lancehouse_pool_waiting{backend="",pool="database"}') == 0
    assert value(page, 'lancehouse_scan_cache_bytes{warehouse="main"}') == 0
    assert value(page, 'lancehouse_scan_cache_total{outcome="hit"}') == 0
    assert value(page, 'lancehouse_storage_errors_total{kind="throttled"}') == 0
    assert value(page, 'lancehouse_up{kind="database",name="sqlite"}') == 1
    assert value(page, 'lancehouse_worker_restarts_total{reason="hung"}') == 0
    assert SECRET_NAME not in page


def test_names_of_metrics_do_not_come_from_callers(client: ServerClient) -> None:
    client.send("GET", "/lance/no-such-backend/v1/namespace/x/list")
    client.iceberg("GET", "no-such-warehouse/namespaces")
    assert b"no-such" not in client.send("GET", "/metrics").body


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (InvalidInputError("x"), "refused"),
        (PermissionDeniedError("x"), "refused"),
        (ServiceUnavailableError("x"), "failed"),
        (ThrottlingError("x"), "failed"),
        (RuntimeError("x"), "failed"),
    ],
)
def test_how_calls_of_backends_end(reports: list[Any], error: Exception | None, outcome: str) -> None:
    with suppress(LanceNamespaceError, RuntimeError), measures.report_backend_call("polaris"):
        if error is not None:
            raise error
    assert reports == [("backend_calls", "polaris", outcome), ("backend_seconds", "polaris")]


def test_a_conflict_is_told_from_a_refusal(reports: list[Any]) -> None:
    for error in (ConcurrentModificationError("x"), InvalidInputError("x"), ServiceUnavailableError("x")):
        with pytest.raises(LanceNamespaceError), measures.report_commit():
            raise error
    assert reports == [("commits", "conflict"), ("commits", "refused"), ("commits", "failed")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("status code: 403 Forbidden", "forbidden"),
        ("SlowDown: reduce your rate", "throttled"),
        ("status code: 503", "unavailable"),
        ("ExpiredToken", "unauthenticated"),
        ("Dataset at path x was not found", None),
        ("LanceError(IO): Namespace error: Permission denied: not yours", None),
    ],
)
def test_errors_of_stores(reports: list[Any], text: str, kind: str | None) -> None:
    with pytest.raises(LanceNamespaceError), translate_errors("t"):
        raise OSError(text)
    assert reports == ([("storage_errors", kind)] if kind else [])


def test_a_pool_counts_what_works_and_what_waits() -> None:
    go_on, inside = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        inside.release()
        assert go_on.wait(30)

    with CountedPool(2, "test") as pool:
        calls = [pool.submit(work) for _ in range(5)]
        for _ in range(2):
            assert inside.acquire(timeout=30)
        assert (pool.state.size, pool.state.in_use, pool.state.waiting) == (2, 2, 3)
        go_on.set()
        for call in calls:
            call.result(30)
        with pytest.raises(ValueError, match="invalid literal"):
            pool.submit(int, "x").result(30)
        assert pool.state.waiting == 0
    assert pool.state.in_use == 0


def test_a_worker_that_is_killed_when_it_begins_to_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is still empty; what the others counted is told."""
    monkeypatch.setenv(MULTIPROCESS, str(tmp_path))
    counted = MmapedDict(str(tmp_path / "counter_1.db"))  # type: ignore[no-untyped-call]
    counted.write_value(mmap_key("lancehouse_x", "lancehouse_x_total", [], [], "X."), 3.0, 0.0)  # type: ignore[no-untyped-call]
    counted.close()  # type: ignore[no-untyped-call]
    (tmp_path / "histogram_2.db").touch()
    page, _ = Metrics().to_prometheus()
    assert value(page.decode(), "lancehouse_x_total") == 3


def test_restarts_add_up(tmp_path: Path) -> None:
    for reason in ("crashed", "hung", "crashed"):
        record_restart(str(tmp_path), reason)
    assert read_restarts(str(tmp_path)) == {"crashed": 2, "hung": 1}
    assert read_restarts(None) == {}
