"""A server with principals, and what its users and its attackers do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from lance.blob import blob_array, blob_field
from lance_namespace import LanceNamespace, RegisterTableRequest, connect
from pyiceberg.catalog import Catalog, load_catalog

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant
from lancehouse.catalog.principals import Principals
from tests.live.gateways import ask
from tests.servers.lancehouse import Served

SECRET = b"the signing key of the server"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class ServerWithPrincipals:
    """A server with principals: an admin, a writer of each of two namespaces, and folders beside its warehouse."""

    served: Served
    folder: Path
    tokens: dict[str, str] = field(repr=False)

    @property
    def secret(self) -> Path:
        """A file of the server's own."""
        return self.folder / "secret.png"

    def client(self, who: str) -> LanceNamespace:
        """The `iceberg` client."""
        return connect("iceberg", {"endpoint": self.served.iceberg, "auth_token": self.tokens[who]})

    def pyiceberg(self, who: str) -> Catalog:
        """Iceberg's own client."""
        return load_catalog("c", type="rest", uri=self.served.iceberg, token=self.tokens[who], warehouse="main")

    def place(self, *names: str) -> str:
        """A place in the warehouse."""
        return str(self.served.location.joinpath(*names))

    def register(self, who: str, namespace: str, name: str) -> None:
        """Make a table of the dataset that lies at its default place."""
        place = self.place(namespace, name)
        self.client(who).register_table(RegisterTableRequest(id=["main", namespace, name], location=place))

    def send(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        headers = {"authorization": f"Bearer {self.tokens[who]}", "content-type": "application/json"}
        heard = ask(self.served, method, path, None if body is None else json.dumps(body).encode(), headers)
        return heard.status, heard.body

    def query(self, who: str, table: str, backend: str = "main") -> tuple[int, bytes]:
        """All rows, through the gateway."""
        return self.send(who, "POST", f"/lance/{backend}/v1/table/{table}/query", {"k": 100, "vector": {}})

    def plan(self, who: str, namespace: str, table: str) -> tuple[int, bytes]:
        """A scan, planned by the server; instead of the answer, the bytes of all files that it names."""
        status, body = self.send(who, "POST", f"/iceberg/v1/main/namespaces/{namespace}/tables/{table}/plan", {})
        if status != 200:
            return status, body
        files = [task["data-file"]["file-path"] for task in json.loads(body)["file-scan-tasks"]]
        return status, str([pq.read_table(file).to_pylist() for file in files]).encode()

    def console(self, who: str, what: str, table: str, **more: Any) -> tuple[int, bytes]:
        """A question of the console about a table of namespace a."""
        query = "&".join(f"{key}={quote(str(value))}" for key, value in more.items())
        return self.send(who, "GET", f"/console/v1/{what}?in=main&level=a&level={table}&{query}")


def principals(db: str, **grants: Grant) -> dict[str, str]:
    """Make principals; the token of each."""
    database = open_database(db)
    try:
        known = Principals(database, ["rooted"])
        for name, grant in grants.items():
            known.create(name, [grant])
        return {name: known.create_token(name, "test") for name in grants}
    finally:
        database.close()


def with_blob(house: ServerWithPrincipals, name: str, *values: str | bytes | None, **more: Any) -> None:
    """A table of Alice's with blobs in a column, and in a struct, as a hostile writer makes it."""
    blobs = blob_array(list(values))
    inside = pa.StructArray.from_arrays([blobs], fields=[blob_field("inner")])
    columns = pa.schema([pa.field("id", pa.int64()), blob_field("b"), pa.field("s", inside.type)])
    rows = pa.table([pa.array(range(len(values)), pa.int64()), blobs, inside], schema=columns)
    options = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True, **more}
    lance.write_dataset(rows, house.place("a", name), **options)
    house.register("alice", "a", name)


def every_way(house: ServerWithPrincipals, who: str, table: str) -> dict[str, tuple[int, bytes]]:
    """A table of namespace a, read in each way that the server offers."""
    operations = {
        "count_rows": {},
        "stats": {},
        "index/list": {},
        "explain_plan": {"query": {"k": 1, "vector": {}}},
        "analyze_plan": {"k": 1, "vector": {}},
        "delete": {"predicate": "false"},
        "update": {"predicate": "false", "updates": [["id", "1"]]},
    }
    return {
        "query": house.query(who, f"a${table}"),
        "plan": house.plan(who, "a", table),
        **{name: house.console(who, name, table) for name in ("rows", "count", "fragments", "indices")},
        **{
            name: house.send(who, "POST", f"/lance/main/v1/table/a${table}/{name}", body)
            for name, body in operations.items()
        },
    }


def stream(rows: pa.Table) -> bytes:
    """Rows as the body of a request."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()
