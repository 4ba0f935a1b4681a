"""Dropped tables, the audit and events, through the server's own doors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    RegisterTableRequest,
)
from lance_namespace.errors import TableAlreadyExistsError, TableNotFoundError, UnsupportedOperationError

from lancehouse.clients.iceberg import IcebergNamespace
from tests.servers.lancehouse import Served, start_lancehouse

ROWS = pa.table({"a": [1, 2]})
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def lancehouse_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that keeps dropped tables, as it does by default."""
    with start_lancehouse(tmp_path_factory.mktemp("keeping"), retention="7d") as server:
        yield server


@pytest.fixture(params=["storage", "impl"])
def client(request: pytest.FixtureRequest, lancehouse_server: Served) -> IcebergNamespace:
    return IcebergNamespace(endpoint=lancehouse_server.iceberg, managed_by=request.param)


@pytest.fixture
def table(client: IcebergNamespace) -> list[str]:
    namespace = ["main", f"n{uuid4().hex[:8]}"]
    client.create_namespace(CreateNamespaceRequest(id=namespace))
    lance.write_dataset(ROWS, namespace_client=client, table_id=[*namespace, "docs"], mode="create")
    return [*namespace, "docs"]


def location(client: IcebergNamespace, id: list[str]) -> str:
    return str(client.describe_table(DescribeTableRequest(id=id)).location)


def ask(server: Served, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(server.uri + path, data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


def test_a_table_comes_back_with_its_rows_and_versions(client: IcebergNamespace, table: list[str]) -> None:
    lance.write_dataset(ROWS, namespace_client=client, table_id=table, mode="append")
    client.drop_table(DropTableRequest(id=table))
    with pytest.raises(TableNotFoundError):
        location(client, table)
    [dropped] = client.list_dropped(table[:-1])
    assert (dropped.namespace, dropped.name, dropped.purge) == (table[1:-1], "docs", True)
    assert client.undrop_table(table) == table
    found = lance.dataset(namespace_client=client, table_id=table)
    assert (found.count_rows(), found.version) == (4, 2)
    lance.write_dataset(ROWS, namespace_client=client, table_id=table, mode="append")
    assert lance.dataset(namespace_client=client, table_id=table).count_rows() == 6


def test_a_new_table_of_that_name_lies_elsewhere(client: IcebergNamespace, table: list[str]) -> None:
    first = location(client, table)
    client.drop_table(DropTableRequest(id=table))
    lance.write_dataset(ROWS, namespace_client=client, table_id=table, mode="create")
    assert location(client, table) != first
    with pytest.raises(TableAlreadyExistsError):
        client.undrop_table(table)
    old = [*table[:-1], "old"]
    assert client.undrop_table(table, old) == old
    assert location(client, old) == first
    assert lance.dataset(namespace_client=client, table_id=old).count_rows() == 2


def test_purge(client: IcebergNamespace, table: list[str]) -> None:
    place = location(client, table)
    client.drop_table(DropTableRequest(id=table))
    assert Path(place, "_versions").exists()
    client.purge_table(table)
    assert not Path(place, "_versions").exists()
    for call in (client.purge_table, client.undrop_table):
        with pytest.raises(TableNotFoundError):
            call(table)


def test_what_is_deregistered_may_be_registered_again(client: IcebergNamespace, table: list[str]) -> None:
    place = location(client, table)
    client.deregister_table(DeregisterTableRequest(id=table))
    assert [each.purge for each in client.list_dropped(table[:-1])] == [False]
    client.register_table(RegisterTableRequest(id=table, location=place))
    assert lance.dataset(namespace_client=client, table_id=table).count_rows() == 2
    assert client.list_dropped(table[:-1]) == []


def test_other_servers_keep_nothing(reference: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="keeps no dropped tables"):
        IcebergNamespace(endpoint=reference).list_dropped(["any"])


@pytest.mark.parametrize(
    ("word", "body", "status"),
    [
        ("undrop", {}, 400),
        ("undrop", {"namespace": "n", "name": "t"}, 400),
        ("undrop", {"namespace": ["n"], "name": "nothing"}, 404),
        ("undrop", {"namespace": ["n"], "name": "t", "new-name": ""}, 404),
        ("purge", {"namespace": [""], "name": ""}, 404),
    ],
)
def test_wrong_requests(lancehouse_server: Served, word: str, body: dict[str, Any], status: int) -> None:
    with pytest.raises(HTTPError) as raised:
        ask(lancehouse_server, f"/iceberg/v1/main/lancehouse/{word}", body)
    raised.value.close()
    assert raised.value.code == status


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=1e3", "wait=forever", "after=99999999999999999999"])
def test_wrong_questions(lancehouse_server: Served, query: str) -> None:
    with pytest.raises(HTTPError) as raised:
        ask(lancehouse_server, f"/iceberg/v1/main/lancehouse/events?{query}")
    raised.value.close()
    assert raised.value.code == 400


def test_audit_and_events(lancehouse_server: Served, client: IcebergNamespace, table: list[str]) -> None:
    begin = ask(lancehouse_server, "/iceberg/v1/main/lancehouse/events?after=now")["next"]
    client.drop_table(DropTableRequest(id=table))
    events = ask(lancehouse_server, f"/iceberg/v1/main/lancehouse/events?after={begin}&wait=10")["events"]
    assert [event["type"] for event in events if event["data"]["namespace"] == table[1:-1]] == [
        "io.lancehouse.table.drop"
    ]
    changes = ask(lancehouse_server, f"/lancehouse/v1/audit?warehouse=main&namespace={table[1]}")["changes"]
    assert changes[0]["action"] == "table.drop"
    assert changes[0]["peer"] == "127.0.0.1"
    assert changes[0]["client"].startswith("lancehouse")
    assert changes[-1]["action"] == "namespace.create"


def test_the_example_runs_a_command_for_each_change(
    lancehouse_server: Served, client: IcebergNamespace, table: list[str], tmp_path: Path
) -> None:
    done, position = tmp_path / "done", tmp_path / "position"
    position.write_text(str(ask(lancehouse_server, "/iceberg/v1/main/lancehouse/events?after=now")["next"]))
    command = [sys.executable, "-c", f"open({str(done)!r}, 'a').write('x')"]
    words = [".".join(table), "--server", lancehouse_server.uri, "--position", str(position), "--times", "1"]
    example = subprocess.Popen(
        [sys.executable, "-m", "examples.follow_events", *words, "--", *command],
        cwd=ROOT,
        env={**os.environ, "LANCEHOUSE_TOKEN": ""},
        stdout=subprocess.PIPE,
        text=True,
    )
    watch = threading.Timer(120, example.kill)
    watch.start()
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}
    ask(lancehouse_server, f"/iceberg/v1/main/namespaces/{table[1]}/tables/{table[2]}", update)
    said, _ = example.communicate()
    watch.cancel()
    assert example.returncode == 0
    assert said == f"1 changes of {'.'.join(table)}, the last by anonymous\n"
    assert done.read_text() == "x"


def test_declared_tables_are_found_a_place_too(client: IcebergNamespace, table: list[str]) -> None:
    client.drop_table(DropTableRequest(id=table))
    declared = client.declare_table(DeclareTableRequest(id=table))
    assert declared.location != location(client, client.undrop_table(table, [*table[:-1], "old"]))
