from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import connect
from lance_namespace.errors import LanceNamespaceError
from pyarrow import parquet

from lancehouse.jobs import TableJobs, lineage_events
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.lineage_events import name_dataset, name_table, observe_run

Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """OpenLineage's client writes its settings to the environment, under other names."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture
def jobs(tmp_path: Path) -> TableJobs:
    parquet.write_table(pa.table({"id": [1, 2], "title": ["a", "s3cr3t"]}), tmp_path / "rows.parquet")
    return TableJobs(connect("dir", {"root": str(tmp_path / "tables")}))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    received: Events = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_address[1]}")
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_ingest_tells_what_it_reads_and_writes(
    jobs: TableJobs, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "airflow/dag.task/0192d0f2-6ed8-7000-8000-000000000001")
    jobs.ingest(str(tmp_path / "rows.parquet"), "docs")
    started, ended = events
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"]
    assert started["run"]["runId"] == ended["run"]["runId"]
    assert started["job"]["name"] == ended["job"]["name"] == "ingest docs"
    assert started["run"]["facets"]["parent"]["job"]["name"] == "dag.task"
    assert [(each["namespace"], each["name"]) for each in ended["inputs"]] == [("file", f"{tmp_path}/rows.parquet")]
    (output,) = ended["outputs"]
    assert output["name"] == "docs"
    assert [(each["name"], each["type"]) for each in output["facets"]["schema"]["fields"]] == [
        ("id", "int64"),
        ("title", "string"),
    ]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    (link,) = output["facets"]["symlinks"]["identifiers"]
    assert lance.dataset(link["name"]).count_rows() == 2
    assert "s3cr3t" not in json.dumps(events)


def test_paths_that_come_one_by_one_are_named(jobs: TableJobs, events: Events, tmp_path: Path) -> None:
    jobs.ingest(iter([str(tmp_path / "rows.parquet")]), "docs")
    assert [source["name"] for source in events[-1]["inputs"]] == [f"{tmp_path}/rows.parquet"]


def test_a_failure_is_told_without_its_words(jobs: TableJobs, events: Events, tmp_path: Path) -> None:
    jobs.ingest(str(tmp_path / "rows.parquet"), "docs")
    with pytest.raises(LanceNamespaceError):
        jobs.ingest(str(tmp_path / "rows.parquet"), "docs", mode="create")
    assert events[-1]["eventType"] == "FAIL"
    assert events[-1]["run"]["facets"]["errorMessage"]["message"] == "TableAlreadyExistsError"


def test_a_run_inside_of_another_is_its_child(events: Events) -> None:
    table = TableAddress(path="/t")
    with observe_run("pipeline", "p", [], table) as outer, observe_run("ingest", "i", [], table) as inner:
        outer.failure = inner.failure = "x"
    outer_start = next(event for event in events if event["job"]["name"] == "p")
    inner_start = next(event for event in events if event["job"]["name"] == "i")
    assert inner_start["run"]["facets"]["parent"]["run"]["runId"] == outer_start["run"]["runId"]
    assert [event["eventType"] for event in events if event["job"]["name"] == "p"] == ["START", "FAIL"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_receiver_that_fails_harms_nobody(
    jobs: TableJobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answers: bool,
) -> None:
    """One that accepts connections and never answers, and one that is not there."""
    monkeypatch.setattr(lineage_events, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        port = silent.getsockname()[1] if answers else 1
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{port}")
        started = time.monotonic()
        assert jobs.ingest(str(tmp_path / "rows.parquet"), "docs") == 1
    assert time.monotonic() - started < 60
    assert "OpenLineage" in caplog.text


def test_events_go_to_a_file(jobs: TableJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "events"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    jobs.ingest(str(tmp_path / "rows.parquet"), "docs")
    found = [json.loads(line)["eventType"] for line in (tmp_path / "events").read_text().splitlines()]
    assert found == ["START", "COMPLETE"]


def test_nothing_is_sent_unless_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lineage_events.is_configured()
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    assert lineage_events.is_configured()
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert not lineage_events.is_configured()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/a/b.parquet", ("s3://bucket", "a/b.parquet")),
        ("/data/x", ("file", "/data/x")),
        ("/data/part-?.csv", ("file", "/data/part-?.csv")),
        ("/data/sheet #1.csv", ("file", "/data/sheet #1.csv")),
        ("file:///data/x", ("file", "/data/x")),
        ("https://user:geheim@host/x.csv?sig=geheim", ("https://host", "x.csv")),
    ],
)
def test_names_of_files_have_no_secrets(location: str, expected: tuple[str, str]) -> None:
    assert name_dataset(location) == expected


def test_names_of_tables() -> None:
    client = connect("iceberg", {"endpoint": "http://lake:8181/iceberg"})
    assert name_table(TableAddress(client, ("main", "db", "docs"))) == ("http://lake:8181", "main.db.docs")
    assert name_table(TableAddress(path="/t")) == ("file", "/t")
