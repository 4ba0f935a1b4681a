"""How many of our files a call passes: whoever reads it from its beginning to its end opens each of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DescribeTableRequest

import lancehouse
from lancehouse import IcebergNamespace
from lancehouse.clients.managed_versions import ManagedVersions
from lancehouse.connection import Connection
from lancehouse.gateway.backends import Backend
from lancehouse.jobs import TableJobs
from lancehouse.server.api import lance as lance_api
from tests.server.serving import serving
from tests.servers.lancehouse import Served
from tests.waiting import wait_until

HOME = f"{Path(lancehouse.__file__).parent}/"


class Journey:
    """The files whose functions are called while it is recorded, by any thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._is_recorded = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self._is_recorded and event == "call" and code.co_name != "<module>" and code.co_filename.startswith(HOME):
            self.files.add(code.co_filename.removeprefix(HOME))

    def record(self, call: Callable[[], Any]) -> Any:
        """Make a call, which was made before: what is imported and connected once is not part of the way."""
        self._is_recorded = True
        sys.setprofile(self.note)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self._is_recorded = False


@pytest.fixture
def journey() -> Iterator[Journey]:
    with recorded_threads() as found:
        yield found


@contextmanager
def recorded_threads() -> Iterator[Journey]:
    """Threads that are started in the block are recorded too."""
    found = Journey()
    threading.setprofile(found.note)
    try:
        yield found
    finally:
        threading.setprofile(None)


@pytest.mark.parametrize(("managed_by", "most"), [("storage", 8), ("impl", 9)])
def test_a_client_describes_a_table(lancehouse_server: Served, journey: Journey, managed_by: str, most: int) -> None:
    client = IcebergNamespace(endpoint=lancehouse_server.iceberg, managed_by=managed_by)
    table = [lancehouse_server.warehouse, f"journey_{managed_by}", "described"]
    client.create_namespace(CreateNamespaceRequest(id=table[:2]))
    client.declare_table(DeclareTableRequest(id=table))
    request = DescribeTableRequest(id=table)
    client.describe_table(request)
    assert journey.record(lambda: client.describe_table(request)).location
    assert 1 < len(journey.files) <= most, sorted(journey.files)


def test_a_client_commits(lancehouse_server: Served, journey: Journey, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call by pylance to the published manifest."""
    client = IcebergNamespace(endpoint=lancehouse_server.iceberg, managed_by="impl")
    table = [lancehouse_server.warehouse, "commits", "journey"]
    client.create_namespace(CreateNamespaceRequest(id=table[:2]))

    def write(mode: str) -> Any:
        return lance.write_dataset(pa.table({"id": [1]}), namespace_client=client, table_id=table, mode=mode)

    write("create")
    write("append")
    create = ManagedVersions.create
    monkeypatch.setattr(ManagedVersions, "create", lambda self, changes: journey.record(lambda: create(self, changes)))
    assert write("append").version == 3
    assert 1 < len(journey.files) <= 10, sorted(journey.files)


def test_a_commit_reaches_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's half and the server's, in one process."""
    with recorded_threads() as journey, serving(tmp_path) as server:
        client = IcebergNamespace(endpoint=f"http://127.0.0.1:{server.port}/iceberg", managed_by="impl")
        client.create_namespace(CreateNamespaceRequest(id=["main", "db"]))

        def write(mode: str) -> list[str]:
            journey.files.clear()
            lance.write_dataset(pa.table({"id": [1]}), namespace_client=client, table_id=["main", "db", "t"], mode=mode)
            return sorted(journey.files)

        write("create")
        write("append")
        create = ManagedVersions.create
        monkeypatch.setattr(
            ManagedVersions, "create", lambda self, changes: journey.record(lambda: create(self, changes))
        )
        # The server measures its load now and then.
        wait_until(lambda: 1 < len(write("append")) <= 37)


def test_the_server_loads_a_table(tmp_path: Path) -> None:
    """From the bytes of the request to the line in the log."""
    with recorded_threads() as journey, serving(tmp_path) as server:
        client = IcebergNamespace(endpoint=f"http://127.0.0.1:{server.port}/iceberg", managed_by="impl")
        client.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
        lance.write_dataset(pa.table({"id": [1]}), namespace_client=client, table_id=["main", "db", "t"], mode="create")

        def load() -> list[str]:
            journey.files.clear()
            assert journey.record(lambda: server.iceberg("GET", "main/namespaces/db/tables/t")).status == 200
            return sorted(journey.files)

        # Folders that changed just now are looked at again, and the server measures its load now and then.
        wait_until(lambda: 1 < len(load()) <= 12)


def test_a_query_through_the_gateway(tmp_path: Path) -> None:
    root = tmp_path / "root"
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), str(root / "t.lance"))
    backend = Backend("files", "dir", {"root": str(root)}, (str(root),))
    with recorded_threads() as journey, serving(tmp_path, more=lance_api.routes({"files": backend})) as server:

        def query() -> list[str]:
            journey.files.clear()
            answer = journey.record(
                lambda: server.send("POST", "/lance/files/v1/table/t/query", {"k": 3, "vector": {}})
            )
            assert answer.status == 200
            return sorted(journey.files)

        query()
        wait_until(lambda: 1 < len(query()) <= 30)


@lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
def double(ids: Any) -> Any:
    return pc.multiply(ids, 2)


def test_jobs(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{name}.parquet") for name in ("first", "second")]
    for file in files:
        pq.write_table(pa.table({"id": range(10)}), file)
    with recorded_threads() as journey:
        jobs = TableJobs(Connection("dir", {"root": str(tmp_path / "root")}))
        jobs.ingest(files[0], "t")
        jobs.add_columns("t", {"double": double})
        journey.record(lambda: jobs.ingest(files[1], "t", columns=["id"]))
        ingest = sorted(journey.files)
        journey.files.clear()
        journey.record(lambda: jobs.backfill("t"))
    assert lance.dataset(str(tmp_path / "root" / "t.lance")).count_rows("double = 2 * id") == 20
    assert 1 < len(ingest) <= 22, ingest
    assert 1 < len(journey.files) <= 19, sorted(journey.files)
