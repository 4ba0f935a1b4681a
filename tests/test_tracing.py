"""Traces from clients through the server to the store; every program runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lancehouse import tracing
from lancehouse.clients.catalog_namespace import map_concurrently
from tests.servers.lancehouse import start_lancehouse

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_concurrent_calls_belong_to_the_trace_of_their_caller() -> None:
    with tracing.pass_on({"traceparent": PARENT}):
        assert map_concurrently(lambda _: tracing.add_headers({}), [1, 2]) == [{"traceparent": PARENT}] * 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (PARENT, TRACE),
        (PARENT.replace(TRACE, "0" * 32), None),
        (PARENT.upper(), None),
        (f"{PARENT}\r\nx: y", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_only_valid_headers_count(value: str, expected: str | None) -> None:
    assert tracing.find_trace_id({"traceparent": value}) == expected
    with tracing.pass_on({"traceparent": value, "tracestate": "a=1", "authorization": "s3cr3t"}):
        passed = dict(tracing.add_headers({"x": "1"}))
    assert passed == {"x": "1", **({"traceparent": value, "tracestate": "a=1"} if expected else {})}
    assert tracing.add_headers({"x": "1"}) == {"x": "1"}


def test_nobody_traces_unless_told_to() -> None:
    """Nothing of OpenTelemetry is imported then, though it is installed."""
    program = """
import os, sys
from lancehouse import tracing
assert not tracing.configure("x")
with tracing.span("a") as span:
    assert span is None
assert tracing.carry() is None
with tracing.task_span({"traceparent": PARENT}, "piece", {}):
    assert tracing.carry() == {"traceparent": PARENT}
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}
assert not tracing.configure("x")
"""
    run(program.replace("PARENT", repr(PARENT)), {})


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setattr(tracing, "_tracer", None)
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    assert not tracing.configure("x")
    assert "lancehouse[telemetry]" in caplog.text


def run(program: str, environment: dict[str, str]) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**kept, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def collector() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A receiver of spans on 127.0.0.1; its endpoint, and what it has received."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                data = gzip.decompress(data)
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    spans.extend(
                        {
                            "service": names["service.name"],
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "attributes": {each.key: str(each.value) for each in span.attributes},
                            "text": str(span),
                        }
                        for span in scope.spans
                    )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CLIENT = """
import pyarrow as pa, lancehouse
from pyarrow import parquet
from lance_namespace import CreateNamespaceRequest, DescribeTableRequest, connect
from lancehouse import tracing
from lancehouse.jobs import TableJobs

assert tracing.configure("my program")
uri, folder = URI, FOLDER
ns = connect("iceberg", {"endpoint": uri, "header.x-secret": "s3cr3t"})
with tracing.span("all of it"):
    ns.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
    jobs = TableJobs(ns)
    parquet.write_table(pa.table({"a": [4242424242]}), folder + "/rows.parquet")
    jobs.ingest(folder + "/rows.parquet", "main.db.docs")
    ns.describe_table(DescribeTableRequest(id=["main", "db", "docs"]))
"""


def test_one_trace_from_a_program_through_the_server_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (endpoint, spans):
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        for key, value in variables.items():
            monkeypatch.setenv(key, value)
        with start_lancehouse(tmp_path) as server:
            program = CLIENT.replace("URI", repr(server.iceberg)).replace("FOLDER", repr(str(tmp_path)))
            run(program, variables)
            query = f"{server.uri}/lance/main/v1/table/db$docs/describe?token=s3cr3t"
            describe = ["curl", "-s", "-X", "POST", "-d", "{}", "-H", "content-type: application/json"]
            subprocess.run(
                [*describe, "-H", f"traceparent: {PARENT}", query], check=True, capture_output=True, timeout=60
            )
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    (root,) = [span for span in spans if span["name"] == "all of it"]
    mine = [span for span in spans if span["trace"] == root["trace"]]
    by_id = {span["id"]: span for span in spans}
    assert {span["service"] for span in mine} == {"my program", "lancehouse"}

    def line_up(span: dict[str, Any]) -> list[str]:
        above = by_id.get(span["parent"])
        return [*(line_up(above) if above else []), span["name"]]

    paths = {" > ".join(line_up(span)) for span in mine}
    assert "all of it > GET > GET loadTable > catalog loadTable > database read" in paths
    assert any(path.startswith("all of it > ingest > job IngestTask > piece") for path in paths)
    assert any(path.endswith("catalog createTable > database write") for path in paths)
    assert any("store open" in path for path in paths)
    loads = [span for span in mine if span["name"] == "GET loadTable"]
    assert any("db.docs" in span["attributes"].get("lancehouse.table", "") for span in loads)
    passed = [span for span in spans if span["trace"] == TRACE]
    assert "POST DescribeTable" in {span["name"] for span in passed}
    assert any(line.get("trace_id") == TRACE and line["route"] == "DescribeTable" for line in lines)
    told = " ".join(span["text"] for span in spans)
    assert "s3cr3t" not in told
    assert "4242424242" not in told


SPARK = """
import pyarrow as pa
from lance_namespace import connect
from pyarrow import parquet
from pyspark.sql import SparkSession
from lancehouse import tracing
from lancehouse.spark import LanceCatalog

assert tracing.configure("my program")
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
folder = FOLDER
for number in range(2):
    parquet.write_table(pa.table({"a": [number]}), f"{folder}/{number}.parquet")
with tracing.span("all of it"):
    LanceCatalog(spark, "dir", {"root": folder + "/tables"}).ingest(f"{folder}/*.parquet", "docs")
spark.stop()
"""


@pytest.mark.engines
def test_tasks_of_spark_are_in_the_trace(tmp_path: Path) -> None:
    with collector() as (endpoint, spans):
        program = SPARK.replace("FOLDER", repr(str(tmp_path)))
        run(program, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PYSPARK_PYTHON": sys.executable})
    (root,) = [span for span in spans if span["name"] == "all of it"]
    (job,) = [span for span in spans if span["name"] == "job IngestTask"]
    pieces = [span for span in spans if span["name"] == "piece"]
    assert {span["trace"] for span in spans} == {root["trace"]}
    assert {span["parent"] for span in pieces} == {job["id"]}
    assert {span["service"] for span in pieces} == {"lancehouse-task"}
