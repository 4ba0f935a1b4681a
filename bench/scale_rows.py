"""A catalog of any number of tables on Postgres: a few that were really created, and copies of their rows.

A copy of a row differs in what belongs to a table alone: its name, uuid, location, and when it is due. What reads the
copies cannot tell them from tables that were created one by one; `check` shows that for LoadTable.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import lance
import psycopg
import pyarrow as pa
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, connect

from tests.live.committers import SCHEMA, commit
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import Bucket

WAREHOUSE = "main"
REAL, LARGE, FIRST = "real", "large", "ns000"
"""Namespaces: of the tables that were created, of ten thousand tables, and one of a thousand."""
VERSIONS = 3
PRINCIPALS_EACH, GRANTS, MEMBERS_EACH, GROUPS = 100, 25, 50, 2
"""For each namespace of tables: principals; grants on tables of a principal or group; principals for each group; and
groups that a principal is in."""
MAINTENANCE = {"maintenance.enabled": "true", "maintenance.settle": "0s"}
HOUR_MS = 3_600_000
IDLE_S = 20.0
"""Seconds after which a connection is opened anew: the server closes those that are idle."""

NAMESPACES = """
INSERT INTO namespaces (warehouse_id, parent_id, name, path, path_key, properties)
SELECT warehouse_id, NULL, made, made, made, properties
FROM namespaces, (SELECT 'ns' || lpad(i::text, 3, '0') AS made FROM generate_series(0, %(namespaces)s - 1) AS i
                  UNION ALL SELECT 'large') AS names
WHERE namespaces.name = 'real'
"""
ENTRIES = """
INSERT INTO entries (namespace_id, name, kind, uuid, location, location_key, properties, revision, created_ms,
                     updated_ms, schema, version, metadata_location, published)
SELECT n.id, 'table_' || lpad(i::text, 5, '0'), t.kind, gen_random_uuid()::text,
       replace(t.location, 'real/orders_0', n.name || '/table_' || lpad(i::text, 5, '0')),
       replace(t.location_key, 'real/orders_0', n.name || '/table_' || lpad(i::text, 5, '0')),
       t.properties, t.revision, t.created_ms, t.updated_ms, t.schema, t.version, t.metadata_location, t.published
FROM entries AS t, namespaces AS n, generate_series(0, %(tables)s - 1) AS i
WHERE t.id = %(template)s AND n.name = %(namespace)s
"""
SNAPSHOTS = """
INSERT INTO snapshots
SELECT e.id, s.snapshot_id, s.parent_id, s.sequence, s.timestamp_ms,
       replace(s.manifest_list, 'real/orders_0', n.name || '/' || e.name), s.summary
FROM entries AS e JOIN namespaces AS n ON n.id = e.namespace_id, snapshots AS s
WHERE s.entry_id = %(template)s AND e.id > %(last)s
"""
COMMITS = """
INSERT INTO commits (entry_id, at_ms, principal, client, request_id, revision, snapshot_id, operation)
SELECT e.id, c.at_ms, c.principal, c.client, c.request_id, c.revision, c.snapshot_id, c.operation
FROM entries AS e, commits AS c WHERE c.entry_id = %(template)s AND e.id > %(last)s ORDER BY c.id, e.id
"""
AUDIT = """
INSERT INTO audit (at_ms, principal, peer, client, request_id, action, warehouse, path, name, before, after, position)
SELECT a.at_ms, a.principal, a.peer, a.client, a.request_id, a.action, a.warehouse, n.path, e.name, a.before, a.after,
       (SELECT max(position) FROM audit) + row_number() OVER (ORDER BY a.id, e.id)
FROM entries AS e JOIN namespaces AS n ON n.id = e.namespace_id, audit AS a
WHERE a.path = 'real' AND a.name = 'orders_0' AND e.id > %(last)s
"""
MAINTAINED = """
INSERT INTO maintained_tables (entry_id, backend, path, path_key, due_ms, why, requested, requested_by, lease, worker,
                               looked_ms, failures, error, seen)
SELECT e.id, m.backend, m.path, E'\\x1f' || e.id, m.looked_ms + %(hour)s + (e.id * 7919) %% (24 * %(hour)s), m.why,
       m.requested, m.requested_by, m.lease, m.worker, m.looked_ms, m.failures, m.error, m.seen
FROM entries AS e, maintained_tables AS m WHERE m.entry_id = %(template)s AND e.id > %(last)s
"""
RUNS = """
INSERT INTO maintenance_runs (table_id, started_ms, ended_ms, worker, operation, outcome, why, version_before,
                              version_after, bytes_before, bytes_after, bytes_removed, message)
SELECT m.id, r.started_ms, r.ended_ms, r.worker, r.operation, r.outcome, r.why, r.version_before, r.version_after,
       r.bytes_before, r.bytes_after, r.bytes_removed, r.message
FROM maintained_tables AS m, maintenance_runs AS r JOIN maintained_tables AS t ON t.id = r.table_id
WHERE t.entry_id = %(template)s AND m.entry_id > %(last)s
"""
PRINCIPALS = """
INSERT INTO principals (name, created_ms, kind)
SELECT 'p' || lpad(i::text, 5, '0'), 0, 'principal' FROM generate_series(0, %(principals)s - 1) AS i
UNION ALL SELECT 'g' || lpad(i::text, 5, '0'), 0, 'group' FROM generate_series(0, %(groups)s - 1) AS i
"""
MEMBERS = """
INSERT INTO members (principal_id, group_id)
SELECT p.id, g.id FROM principals AS p, principals AS g, generate_series(0, %(each)s - 1) AS i
WHERE p.name ~ '^p[0-9]+$' AND g.name = 'g' || lpad(((substr(p.name, 2)::int + i) %% %(groups)s)::text, 5, '0')
"""
TOKENS = """
INSERT INTO tokens (principal_id, label, token_hash, created_ms)
SELECT id, 'bench', encode(sha256(('lh_' || name)::bytea), 'hex'), 0 FROM principals WHERE name ~ '^p[0-9]+$'
"""
TABLE_GRANTS = """
INSERT INTO grants (principal_id, role, warehouse, path_key, path, table_name)
SELECT id, 'reader', 'main', place || repeat(E'\\x1f', 3) || name, place, name
FROM (SELECT id, 'ns' || lpad((number %% %(filled)s)::text, 3, '0') AS place,
             'table_' || lpad(((number / %(filled)s * %(grants)s + i) %% %(per_namespace)s)::text, 5, '0') AS name
      FROM (SELECT id, substr(name, 2)::int AS number FROM principals WHERE name ~ '^[pg][0-9]+$') AS holders,
           generate_series(0, %(grants)s - 1) AS i) AS made
"""
ALL_TABLES = (
    "entries",
    "snapshots",
    "commits",
    "audit",
    "maintained_tables",
    "maintenance_runs",
    "namespaces",
    "grants",
)


@dataclass(frozen=True, slots=True)
class CatalogSize:
    """How many tables a catalog has, and principals."""

    tables: int
    per_namespace: int
    large: int
    """Tables in the namespace `large`."""
    namespaces: int
    """The same at every size, so that lists of namespaces are: some are empty."""

    @property
    def filled(self) -> int:
        """Namespaces of `per_namespace` tables."""
        return (self.tables - self.large) // self.per_namespace

    @property
    def principals(self) -> int:
        """How many have grants on tables."""
        return self.filled * PRINCIPALS_EACH


@dataclass(slots=True)
class ScaleCatalog:
    """Two servers on one database, and one connection to each."""

    size: CatalogSize
    url: str
    folder: Path
    bucket: Bucket
    stack: ExitStack
    servers: list[Served] = field(default_factory=list)
    token: str = ""
    """Of an admin."""
    others_s: float = 0.0
    """Processor time of servers that were started besides, and have ended."""
    _connections: list[HTTPConnection] = field(default_factory=list)
    _turn: int = 0
    _sent: float = 0.0
    _commits: dict[tuple[str, str], Any] = field(default_factory=dict)
    """The last snapshots of tables that were committed to."""

    def create(self) -> None:
        """Create the schema, and a few tables by a client; let them be maintained once."""
        with self.start("--maintenance-threads", "1") as server:
            self._create_tables(server)
            self._wait_for_maintenance()

    def fill(self) -> None:
        """Copy the rows of the few tables, to make as many as the size says."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            self._copy_rows(connection)

    def _create_tables(self, server: Served) -> None:
        properties = {
            "endpoint": server.iceberg,
            **{f"storage.{key}": each for key, each in self.bucket.options.items()},
        }
        client = connect("lancehouse.IcebergNamespace", properties)
        client.create_namespace(CreateNamespaceRequest(id=[WAREHOUSE, REAL]))
        for number in range(VERSIONS):
            table = [WAREHOUSE, REAL, f"orders_{number}"]
            client.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
            for _ in range(VERSIONS):
                rows = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})
                lance.write_dataset(rows, mode="append", namespace_client=client, table_id=table)
        # Numbers the changes, as who follows them would have done.
        self._get_json(server, f"/iceberg/v1/{WAREHOUSE}/lancehouse/events?after=now")

    def _get_json(self, server: Served, path: str) -> Any:
        connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=60)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _wait_for_maintenance(self) -> None:
        deadline = time.monotonic() + 120
        with psycopg.connect(self.url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                row = connection.execute("SELECT count(*) FROM maintained_tables WHERE looked_ms > 0").fetchone()
                if row is not None and row[0] == VERSIONS:
                    return
                time.sleep(0.2)
        raise RuntimeError("the tables that were created were not maintained")

    def _copy_rows(self, connection: psycopg.Connection[Any]) -> None:
        size = self.size
        (template,) = connection.execute("SELECT id FROM entries WHERE name = 'orders_0'").fetchone() or (0,)
        (last,) = connection.execute("SELECT max(id) FROM entries").fetchone() or (0,)
        values: dict[str, Any] = {"template": template, "last": last, "hour": HOUR_MS, "namespaces": size.namespaces}
        values |= {"principals": size.principals, "groups": size.principals // MEMBERS_EACH, "each": GROUPS}
        values |= {"filled": size.filled, "per_namespace": size.per_namespace, "grants": GRANTS}
        connection.execute(NAMESPACES, values)
        parts = [(f"ns{number:03}", size.per_namespace) for number in range(size.filled)]
        for namespace, tables in [*parts, *([(LARGE, size.large)] if size.large else [])]:
            connection.execute(ENTRIES, {**values, "namespace": namespace, "tables": tables})
        for statement in (SNAPSHOTS, COMMITS, AUDIT, MAINTAINED, RUNS, PRINCIPALS, MEMBERS, TOKENS, TABLE_GRANTS):
            connection.execute(statement, values)
        token = "lh_" + hashlib.sha256(self.url.encode()).hexdigest()
        (admin,) = connection.execute(
            "INSERT INTO principals (name, created_ms, kind) VALUES ('admin', 0, 'principal') RETURNING id"
        ).fetchone() or (0,)
        connection.execute("INSERT INTO grants VALUES (%s, 'admin', '', '', '', NULL)", (admin,))
        token_hash = hashlib.sha256(token.encode()).hexdigest()
        connection.execute("INSERT INTO tokens VALUES (%s, 'bench', %s, 0, NULL)", (admin, token_hash))
        self.token = token
        connection.execute("VACUUM ANALYZE")

    def start(self, *options: str, name: str = "server") -> Any:
        """A server on the database, until its block ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.yaml"
        storage = {"storage": dict(self.bucket.options), "maintenance": MAINTENANCE}
        config.write_text(json.dumps({"warehouses": {WAREHOUSE: storage}}))
        return start_lancehouse(
            self.folder / name,
            db=self.url,
            warehouses={WAREHOUSE: f"{self.bucket.uri}/main"},
            retention="7d",
            options=["--config", str(config), "--log-level", "warning", *options],
        )

    def serve(self) -> None:
        """Start both servers, for as long as the stack is open."""
        for number in range(2):
            server = self.stack.enter_context(self.start(name=f"server{number}"))
            self.servers.append(server)
            connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=120)
            self.stack.callback(connection.close)
            self._connections.append(connection)

    def send(self, method: str, path: str, body: object = None, token: str = "") -> bytes:
        """Send a request to one of the servers, in turns; it must be a success."""
        self._turn += 1
        connection = self._connections[self._turn % len(self._connections)]
        if time.monotonic() - self._sent > IDLE_S:
            for each in self._connections:
                each.close()  # it is opened again by itself
        self._sent = time.monotonic()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.token}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: HTTP {answer.status}: {said[:500].decode(errors='replace')}")
        return said

    def send_json(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and parse the response."""
        return json.loads(self.send(method, path, body))

    def connect(self, number: int) -> ScaleCatalog:
        """The same catalog by a connection of its own to one of the servers."""
        connection = HTTPConnection(urlsplit(self.servers[number % len(self.servers)].uri).netloc, timeout=120)
        self.stack.callback(connection.close)
        return replace(self, _connections=[connection], _commits={})

    def pages(self, path: str, size: int) -> Iterator[None]:
        """Walk through the pages of a list for ever; each step is one request."""
        token: str | None = ""
        while True:
            token = self.send_json("GET", f"{path}?pageSize={size}&pageToken={quote(token or '')}").get(
                "next-page-token"
            )
            yield

    def create_table(self, namespace: str) -> str:
        """Create a Lance table; return its path."""
        name = f"new_{uuid4().hex[:12]}"
        body = {"name": name, "schema": SCHEMA, "properties": {"table_type": "lance", "managed_by": "impl"}}
        self.send("POST", f"/iceberg/v1/{WAREHOUSE}/namespaces/{namespace}/tables", body)
        return table_path(namespace, name)

    def commit(self, namespace: str, name: str) -> None:
        """Commit the next version of a table."""
        self.send("POST", table_path(namespace, name), self.next_commit(namespace, name))

    def next_commit(self, namespace: str, name: str) -> dict[str, Any]:
        """The next commit to a table, as a client sends it: the last snapshot again, with the next version."""
        place = namespace, name
        if place not in self._commits:
            metadata = self.send_json("GET", f"{table_path(*place)}?snapshots=refs")["metadata"]
            self._commits[place] = metadata["snapshots"][-1]
        last = self._commits[place]
        version = last["snapshot-id"] + 1
        body = commit(last["snapshot-id"], version, "bench")
        snapshot = body["updates"][0]["snapshot"]
        snapshot["summary"] = last["summary"]
        self._commits[place] = {**snapshot, "snapshot-id": version}
        return body

    def holders(self) -> Iterator[tuple[str, str]]:
        """Principals with a grant on a table of the first namespace, and the name of that table, for ever."""
        for number in cycle(range(PRINCIPALS_EACH)):
            row = number * GRANTS % self.size.per_namespace
            yield f"p{number * self.size.filled:05}", table_name(row)

    def tables(self) -> Iterator[str]:
        """Paths of all tables that were copied, in an order in which neighbours are far from each other."""
        for number in range(self.size.per_namespace):
            shuffled = number * 617 % self.size.per_namespace
            for namespace in range(self.size.filled):
                yield table_path(f"ns{namespace:03}", table_name(shuffled))

    def check(self) -> None:
        """Compare LoadTable of a copied table with that of a table that was created."""
        real, copied = (
            json.loads(self.send("GET", f"{table_path(*place)}?snapshots=refs"))["metadata"]
            for place in ((REAL, "orders_0"), (FIRST, "table_00001"))
        )
        for metadata, place in ((real, f"{REAL}/orders_0"), (copied, f"{FIRST}/table_00001")):
            del metadata["table-uuid"]
            text = json.dumps(metadata)
            assert place in text, f"no location in {text}"
            metadata["text"] = text.replace(place, "")
        assert real["text"] == copied["text"], f"a copied table is loaded as\n{copied}\nand not as\n{real}"

    def bytes(self) -> dict[str, int]:
        """Size of the database and of its tables with their indices."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            query = "SELECT pg_database_size(current_database())"
            (whole,) = connection.execute(query).fetchone() or (0,)
            found = {"": int(whole)}
            for name in ALL_TABLES:
                (size,) = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (name,)).fetchone() or (0,)
                found[name] = int(size)
        return found


def table_path(namespace: str, name: str) -> str:
    """The path of a table in Iceberg's API."""
    return f"/iceberg/v1/{WAREHOUSE}/namespaces/{namespace}/tables/{name}"


def table_name(number: int) -> str:
    """The name of a table that was copied."""
    return f"table_{number:05}"


def cpu_s(pids: Sequence[int]) -> float:
    """Processor time of processes so far, all their threads included, by their clocks: ticks are too coarse here."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
