"""A database that was restored from a backup, or copied, with real servers on real files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DropTableRequest, InsertIntoTableRequest, RenameTableRequest
from lance_namespace.errors import InvalidTableStateError

from lancehouse.clients.iceberg import IcebergNamespace
from tests.cli.commands import run
from tests.servers.lancehouse import Served, start_lancehouse

ROWS = pa.table({"a": [1, 2]})
ID = ["main", "db", "docs"]
QUICK = ("--fence-interval", "0.2")
PATIENCE_S = 60


def db_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'catalog.db'}"


def client_of(server: Served) -> IcebergNamespace:
    return IcebergNamespace(endpoint=server.iceberg, managed_by="impl")


def append(client: IcebergNamespace, times: int = 1, id: list[str] = ID) -> None:
    for _ in range(times):
        lance.write_dataset(ROWS, namespace_client=client, table_id=id, mode="append")


def insert(client: IcebergNamespace) -> None:
    """What pylance raises has words of its own, so the client writes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    client.insert_into_table(InsertIntoTableRequest(id=ID, mode="append"), sink.getvalue().to_pybytes())


def count(client: IcebergNamespace, id: list[str] = ID) -> int:
    return int(lance.dataset(namespace_client=client, table_id=id).count_rows())


def get(server: Served, path: str) -> Any:
    with urlopen(server.uri + path, timeout=60) as response:
        return json.loads(response.read())


def post(server: Served, path: str, body: object) -> tuple[int, Any]:
    request = Request(server.uri + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or b"null")
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def wait(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.05)


def warehouse_state(server: Served) -> str:
    checks = get(server, "/health/ready")["checks"]
    return str(next(check["state"] for check in checks if check["kind"] == "warehouse"))


def is_fenced(server: Served) -> bool:
    return warehouse_state(server) == "fenced"


SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
ICEBERG = "/iceberg/v1/main/namespaces/db/tables"


def set_property(server: Served, value: str) -> tuple[int, Any]:
    updates = [{"action": "set-properties", "updates": {"p": value}}]
    return post(server, f"{ICEBERG}/ice", {"requirements": [], "updates": updates})


def test_a_restored_database(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with start_lancehouse(tmp_path) as server:
        client = client_of(server)
        client.create_namespace(CreateNamespaceRequest(id=ID[:2]))
        lance.write_dataset(ROWS, namespace_client=client, table_id=ID, mode="create")
        assert post(server, ICEBERG, {"name": "ice", "schema": SCHEMA})[0] == 200
        assert run("db", "backup", "--db", db_of(tmp_path), str(backup)).exit_code == 0
        append(client, 2)
        assert set_property(server, "after the backup")[0] == 200
        assert warehouse_state(server) == "ok"
    shutil.copy(backup, tmp_path / "catalog.db")
    options = ("--maintenance-threads", "1", *QUICK)
    with start_lancehouse(tmp_path, options=options) as server:
        client = client_of(server)
        assert count(client) == 2  # as the backup has it
        with pytest.raises(InvalidTableStateError, match="the database is older than the warehouse"):
            insert(client)
        status, body = set_property(server, "refused")
        assert (status, body["error"]["type"]) == (403, "WarehouseFencedException")
        assert "the database is older than the warehouse" in body["error"]["message"]
        assert "lancehouse db adopt" in body["error"]["message"]
        for change in (
            lambda: client.drop_table(DropTableRequest(id=ID)),
            lambda: client.rename_table(RenameTableRequest(id=ID, new_table_name="other")),
            lambda: client.create_namespace(CreateNamespaceRequest(id=["main", "new"])),
        ):
            with pytest.raises(InvalidTableStateError, match="takes no changes"):
                change()
        assert is_fenced(server)
        with urlopen(server.uri + "/metrics", timeout=60) as response:
            assert 'lancehouse_warehouse_fenced{warehouse="main"} 1.0' in response.read().decode()
        examined = run("--output", "json", "doctor", "--namespace", "main", "--property", f"endpoint={server.iceberg}")
        findings = {finding["kind"]: finding for finding in json.loads(examined.stdout)["findings"]}
        assert "refuses all changes to main: the database is older" in findings["fenced"]["what"]
        assert "storage has version 3: the catalog's database is older" in findings["versions"]["what"]
        assert {findings[kind]["command"] for kind in ("fenced", "versions")} == {"lancehouse db adopt"}
        asked = run("maintenance", "run", ".".join(ID), "cleanup", "--db", db_of(tmp_path))
        assert asked.exit_code == 0, asked.stderr
        seen = run("--output", "json", "db", "adopt", "--db", db_of(tmp_path), "--dry-run")
        tables = {table["table"]: table for table in json.loads(seen.stdout)["tables"]}
        assert (tables["main.db.docs"]["database"], tables["main.db.docs"]["storage"]) == ("version 1", "version 3")
        assert "register the table with" in tables["main.db.ice"]["next"]
        assert "add --yes" in run("db", "adopt", "--db", db_of(tmp_path)).stderr
        assert is_fenced(server)
        assert (
            json.loads(run("--output", "json", "maintenance", "status", "--db", db_of(tmp_path)).stdout)["runs"] == []
        )

        adopted = run("--output", "json", "db", "adopt", "--db", db_of(tmp_path), "--yes")
        told = json.loads(adopted.stdout)
        assert (adopted.exit_code, told["adopted"], told["tables"]) == (1, ["main"], 1), adopted.stderr
        assert [table["table"] for table in told["undecided"]] == ["main.db.ice"]
        client = client_of(server)
        assert count(client) == 6  # nothing is lost
        file = tables["main.db.ice"]["next"].rpartition(" ")[2]
        body = {"name": "ice", "metadata-location": file, "overwrite": True}
        wait(lambda: post(server, "/iceberg/v1/main/namespaces/db/register", body)[0] == 200)
        assert get(server, f"{ICEBERG}/ice")["metadata"]["properties"]["p"] == "after the backup"
        append(client)
        assert count(client) == 8
    stored = lance.dataset(str(server.location / "main" / "db" / "docs"))
    assert [version["version"] for version in stored.versions()] == [1, 2, 3, 4]
    assert "Nothing to adopt" in run("db", "adopt", "--db", db_of(tmp_path), "--yes").stdout


def test_two_servers_on_copies_of_one_database(tmp_path: Path) -> None:
    """A clone of the machine: both servers run, and the one that renews second is fenced; adoption turns it round."""
    warehouse = {"main": tmp_path / "warehouse"}
    first, second = tmp_path / "first", tmp_path / "second"
    with start_lancehouse(first, warehouses=warehouse, options=QUICK) as original:
        client = client_of(original)
        client.create_namespace(CreateNamespaceRequest(id=ID[:2]))
        lance.write_dataset(ROWS, namespace_client=client, table_id=ID, mode="create")
        second.mkdir()
        assert run("db", "backup", "--db", db_of(first), str(second / "catalog.db")).exit_code == 0
        append(client)  # the renewals since then are unknown to the clone, or this is
        copied = json.loads((tmp_path / "warehouse" / ".lancehouse" / "epoch.json").read_text())
        wait(
            lambda: (
                json.loads((tmp_path / "warehouse" / ".lancehouse" / "epoch.json").read_text())["token"]
                != copied["token"]
            )
        )
        with start_lancehouse(second, warehouses=warehouse, options=QUICK) as clone:
            assert is_fenced(clone)
            assert count(client_of(clone)) == 2
            append(client)
            assert not is_fenced(original)
            adopted = run("db", "adopt", "--db", db_of(second), "--yes")
            assert adopted.exit_code == 0, adopted.stderr
            wait(lambda: is_fenced(original))
            wait(lambda: not is_fenced(clone))
            assert count(client_of(clone)) == 6
            append(client_of(clone))
            with pytest.raises(InvalidTableStateError, match="another copy of this database adopted it"):
                insert(client)
            assert not is_fenced(clone)
