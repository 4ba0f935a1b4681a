"""The Lance protocol at `/lance`: what speaks it, unmodified, on tables that live in our catalog and in others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
    connect,
)
from lance_namespace.errors import TableNotFoundError

from lancehouse.conformance.results import Outcome
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import Target
from tests.servers.lancehouse import PROGRAM, Served, start_lancehouse
from tests.servers.moto import SECRET_KEY, Bucket
from tests.servers.polaris import Polaris
from tests.servers.reference import Reference
from tests.servers.unity import Unity

OF_THE_CLIENT = {"versions.describe", "versions.describe_missing", "versions.delete"}
"""Pylance's own client of the protocol takes no models for these: a TypeError, before it asks anybody."""
NOT_IN_THE_CLIENT = {"connection.pickle", "columns.field_metadata"}
RENAMES = {"entries.rename", "entries.rename_across", "entries.rename_missing", "entries.rename_to_existing"}

ROWS = 400_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[Served]:
    """A server in front of its own warehouse, of Iceberg's server, Polaris, Unity Catalog and a folder."""
    folder = tmp_path_factory.mktemp("gateway")
    with Polaris("test_catalog") as polaris, Unity("lance_test") as unity:
        backends = {
            "reference": ("iceberg", {"endpoint": reference_server.uri, "root": str(folder / "reference")}),
            "polaris": (
                "polaris",
                {"endpoint": polaris.uri, "credential": polaris.credential, "root": str(folder / "polaris")},
            ),
            "unity": ("unity", {"endpoint": unity.uri, "catalog": "lance_test", "root": str(folder / "unity")}),
            "folder": ("dir", {"root": str(folder / "folder")}),
        }
        described = {name: {"impl": impl, "properties": properties} for name, (impl, properties) in backends.items()}
        config = folder / "server.yaml"
        config.write_text(json.dumps({"backends": described}))
        with start_lancehouse(folder, options=["--config", str(config)]) as server:
            yield server


def client(server: Served, backend: str = "main", **properties: str) -> LanceNamespace:
    return connect("rest", {"uri": f"{server.uri}/lance/{backend}", **properties})


@pytest.fixture
def db(gateway: Served) -> str:
    """An empty namespace of the server's own warehouse."""
    name = f"db_{uuid4().hex[:8]}"
    client(gateway).create_namespace(CreateNamespaceRequest(id=[name]))
    return name


def send(
    server: Served, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def stream(rows: pa.Table, batch: int = 50_000) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("backend", "parent", "unsupported"),
    [
        ("main", (), set()),
        pytest.param("reference", ("wh",), set(), marks=pytest.mark.soak),
        pytest.param("polaris", ("test_catalog",), RENAMES, marks=pytest.mark.soak),
        pytest.param("unity", ("lance_test",), RENAMES, marks=pytest.mark.soak),
    ],
)
def test_the_suite_holds_through_the_gateway(
    gateway: Served, tmp_path: Path, backend: str, parent: tuple[str, ...], unsupported: set[str]
) -> None:
    root = gateway.location / "tables" if backend == "main" else tmp_path
    report = run(Target("rest", {"uri": f"{gateway.uri}/lance/{backend}"}, parent, root=str(root), entries=12))
    assert {result.check for result in report.of(Outcome.FAILS)} == OF_THE_CLIENT
    assert {result.check for result in report.of(Outcome.UNSUPPORTED)} == NOT_IN_THE_CLIENT | unsupported
    assert report.trouble == []


@pytest.mark.parametrize("backend", ["main", "reference", "folder"])
def test_lance_reads_and_writes_by_name(gateway: Served, backend: str) -> None:
    namespace = client(gateway, backend)
    home = {"main": [], "reference": ["wh"], "folder": []}[backend] + [f"db_{uuid4().hex[:8]}"]
    namespace.create_namespace(CreateNamespaceRequest(id=home))
    table = [*home, "t"]
    lance.write_dataset(pa.table({"id": range(3)}), namespace_client=namespace, table_id=table, mode="create")
    lance.write_dataset(pa.table({"id": range(3, 5)}), namespace_client=namespace, table_id=table, mode="append")
    dataset = lance.dataset(namespace_client=namespace, table_id=table)
    assert (dataset.version, dataset.count_rows()) == (2, 5)
    assert namespace.list_tables(ListTablesRequest(id=home)).tables == ["t"]
    listed = namespace.list_namespaces(ListNamespacesRequest(id=home[:-1])).namespaces
    assert home[-1] in listed  # relative to its parent
    with pytest.raises(TableNotFoundError):
        namespace.describe_table(DescribeTableRequest(id=[*home, "missing"]))


def test_writers_of_a_table_that_the_catalog_manages_commit_through_it(gateway: Served, db: str) -> None:
    namespace = client(gateway)
    declared = namespace.declare_table(DeclareTableRequest(id=[db, "t"], properties={"managed_by": "impl"}))
    assert declared.managed_versioning is True
    assert send(gateway, "POST", f"/lance/main/v1/table/{db}$t/insert", stream(pa.table({"id": [0]})))[0] == 200

    def add(number: int) -> None:
        rows = pa.table({"id": [number]})
        lance.write_dataset(rows, namespace_client=client(gateway), table_id=[db, "t"], mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 9)))
    dataset = lance.dataset(namespace_client=namespace, table_id=[db, "t"])
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(9))
    status, loaded = send(gateway, "GET", f"/iceberg/v1/main/namespaces/{db}/tables/t")
    assert (status, loaded["metadata"]["current-snapshot-id"]) == (200, dataset.version)
    plain = lance.dataset(declared.location)
    assert (plain.version, plain.count_rows()) == (dataset.version, 9)


def test_lancedb_works_through_it(gateway: Served, db: str) -> None:
    there = lancedb.connect_namespace("rest", {"uri": f"{gateway.uri}/lance/main"})
    rows = [{"id": number, "vector": [float(number), 0.0]} for number in range(20)]
    table = there.create_table("v", rows, namespace_path=[db])
    assert table.count_rows() == 20
    assert [row["id"] for row in table.search([7.0, 0.0]).limit(1).to_list()] == [7]
    table.add([{"id": 99, "vector": [99.0, 0.0]}])
    assert there.open_table("v", namespace_path=[db]).count_rows() == 21
    there.drop_table("v", namespace_path=[db])
    assert there.list_tables(namespace_path=[db]).tables == []


def test_rows_are_streamed_both_ways(gateway: Served, db: str) -> None:
    numbers = np.arange(ROWS * 128, dtype=np.float32)
    rows = pa.table({"id": np.arange(ROWS), "vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 128)})
    path = f"/lance/main/v1/table/{db}$big"
    assert send(gateway, "POST", f"{path}/create", stream(rows.slice(0, 10)))[0] == 200

    def there_and_back(sent: pa.Table) -> tuple[pa.Table, int]:
        body = stream(sent)
        status, made = send(gateway, "POST", f"{path}/insert?mode=overwrite", body)
        assert (status, made["num_inserted_rows"]) == (200, sent.num_rows)
        connection = HTTPConnection(urlsplit(gateway.uri).netloc, timeout=60)
        connection.request("POST", f"{path}/query", json.dumps({"k": 0, "vector": {}}))
        answer = connection.getresponse()
        assert answer.getheader("content-type") == "application/vnd.apache.arrow.file"
        assert answer.getheader("content-length") is None
        found = pa.ipc.open_file(answer.read()).read_all()
        connection.close()
        return found, len(body)

    there_and_back(rows.slice(0, ROWS // 4))  # what Lance buffers is there now
    before = peak_mb(gateway)
    found, size = there_and_back(rows)
    assert found.equals(rows)
    assert peak_mb(gateway) - before < size / 2**20 / 2


def peak_mb(server: Served) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_an_upload_that_breaks_off_changes_nothing(gateway: Served, db: str) -> None:
    path = f"/lance/main/v1/table/{db}$t"
    rows = pa.table({"id": range(100_000)})
    assert send(gateway, "POST", f"{path}/create", stream(rows.slice(0, 5)))[0] == 200
    files = sorted(gateway.location.rglob(f"{db}/t/**/*.lance"))
    body = stream(rows)
    connection = HTTPConnection(urlsplit(gateway.uri).netloc, timeout=60)
    connection.putrequest("POST", f"{path}/insert")
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[: len(body) // 2])
    connection.close()
    status, error = send(gateway, "POST", f"{path}/insert", body[: len(body) // 2])
    assert (status, error["code"]) == (400, 13)
    assert "no Arrow IPC stream" in error["error"]
    assert send(gateway, "POST", f"{path}/count_rows", b"{}") == (200, 5)
    assert sorted(gateway.location.rglob(f"{db}/t/**/*.lance")) == files


def test_a_reader_that_goes_away_costs_nothing_more(gateway: Served, db: str) -> None:
    path = f"/lance/main/v1/table/{db}$t"
    rows = pa.table({"id": range(200_000), "text": ["x" * 100] * 200_000})
    assert send(gateway, "POST", f"{path}/create", stream(rows))[0] == 200
    for _ in range(20):  # more than there are threads for rows
        connection = HTTPConnection(urlsplit(gateway.uri).netloc, timeout=60)
        connection.request("POST", f"{path}/query", json.dumps({"k": 0, "vector": {}}))
        connection.getresponse().read(1000)
        connection.close()
    assert send(gateway, "POST", f"{path}/count_rows", b"{}") == (200, 200_000)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "words"),
    [
        ("POST", "nowhere/v1/namespace/db/describe", b"{}", 404, 1, "no backend 'nowhere'"),
        ("POST", "main/v1/namespace/db/frobnicate", b"{}", 404, 0, "No route"),
        ("GET", "main/v1/namespace/db/describe", None, 406, 0, "GET is not offered here; POST is"),
        ("POST", "main/v1/namespace/db/describe", b"{", 400, 13, "not JSON"),
        ("POST", "main/v1/namespace/nix/describe", b"{}", 404, 1, "nix"),
        ("POST", "main/v1/table/db$t/describe", b'{"id": ["other"]}', 400, 13, "the path says"),
        ("POST", "main/v1/table/db$$t/describe", b"{}", 400, 13, "empty"),
        ("POST", "main/v1/table/nix$t/describe", b"{}", 404, 4, "nix"),
        ("POST", "main/v1/table/nix$t/insert", b"no arrow", 400, 13, "no Arrow IPC stream"),
        ("POST", "main/v1/table/nix$t/insert", b"", 400, 13, "Arrow IPC stream"),
        ("GET", "main/v1/namespace/$/list?limit=x", None, 400, 13, "limit must be a whole number"),
        ("POST", "main/v1/materialized_view/db$v/refresh", b"{}", 406, 0, "Not supported"),
    ],
)
def test_errors_have_the_form_of_the_protocol(
    gateway: Served, method: str, path: str, body: bytes | None, status: int, code: int, words: str
) -> None:
    seen, error = send(gateway, method, f"/lance/{path}", body)
    assert (seen, error["code"]) == (status, code)
    assert words in error["error"]
    assert error["instance"]


def test_who_may_do_what(tmp_path: Path) -> None:
    with start_lancehouse(tmp_path) as server:
        admin = client(server)
        for name in ("a", "b"):
            admin.create_namespace(CreateNamespaceRequest(id=[name]))
            rows = pa.table({"id": [1]})
            lance.write_dataset(rows, namespace_client=admin, table_id=[name, "t"], mode="create")
        url = f"sqlite:///{tmp_path / 'catalog.db'}"

        def token(name: str, *grants: str) -> str:
            command = [str(PROGRAM), "--output", "json", "principal"]
            subprocess.run([*command, "create", "--db", url, name, *grants], check=True, capture_output=True)
            made = subprocess.run(
                [*command, "token", "create", "--db", url, "--label", "test", name],
                check=True,
                capture_output=True,
                text=True,
            )
            return str(json.loads(made.stdout)["token"])

        reader = {"x-api-key": token("ada", "--role", "reader", "--warehouse", "main", "--namespace", "a")}
        writer = {
            "authorization": f"Bearer {token('bob', '--role', 'writer', '--warehouse', 'main', '--namespace', 'a')}"
        }
        body = stream(pa.table({"id": [2]}))

        def tried(path: str, headers: dict[str, str], data: bytes = b"{}") -> tuple[int, int | None]:
            status, answer = send(server, "POST", f"/lance/main/v1/{path}", data, headers)
            return status, answer["code"] if isinstance(answer, dict) and "code" in answer else None

        assert tried("table/a$t/describe", {})[0] in (200, 401)  # anybody, until the first principal is noticed
        for _ in range(50):
            if tried("table/a$t/describe", {}) == (401, 16):
                break
        assert tried("table/a$t/describe", reader) == (200, None)
        assert tried("table/a$t/count_rows", reader) == (200, None)
        assert tried("table/a$t/insert", reader, body) == (403, 15)
        assert tried("table/a$t/create", reader, body) == (403, 15)
        assert tried("table/b$t/count_rows", reader) == (403, 15)
        assert tried("namespace/c/create", reader) == (403, 15)
        assert tried("table/a$t/insert", writer, body) == (200, None)
        assert tried("table/b$t/insert", writer, body) == (403, 15)
        assert tried("table/b$t/query", writer, b'{"k": 1, "vector": {}}') == (403, 15)
        assert tried("table/a$t/count_rows", {"x-api-key": "wrong"}) == (401, 16)


def test_credentials_of_the_storage_stay_in_the_gateway(s3: Bucket, tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(json.dumps({"warehouses": {"lake": {"storage": dict(s3.options), "vend": "none"}}}))
    places = {"lake": f"{s3.uri}/lake"}
    with start_lancehouse(tmp_path, warehouses=places, options=["--config", str(config)]) as server:
        assert send(server, "POST", "/lance/lake/v1/namespace/db/create", b"{}")[0] == 200
        table = "/lance/lake/v1/table/db$t"
        made = send(server, "POST", f"{table}/create", stream(pa.table({"id": [1, 2]})))
        described = send(server, "POST", f"{table}/describe?load_detailed_metadata=true", b'{"vend_credentials": true}')
        declared = send(server, "POST", "/lance/lake/v1/table/db$u/declare", b'{"vend_credentials": true}')
        assert {made[0], declared[0]} == {200}
        assert SECRET_KEY not in json.dumps([made, described, declared])
        assert send(server, "POST", f"{table}/count_rows", b"{}") == (200, 2)
        assert SECRET_KEY not in server.log.read_text()
