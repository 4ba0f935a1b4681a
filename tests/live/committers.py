"""Clients that move impl-managed Lance tables from version to version over plain HTTP, and keep account of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
LAST_VERSION = (1 << 64) - 1
"""Lance names the manifest of version n after how far it is from this one."""
NONE_YET = -1
"""What Iceberg's own server says of a table without snapshots."""

Gone = (HTTPException, OSError)
"""What a client sees of a server that was killed."""


class CommitClient:
    """One connection to a server and what was learnt over it; not for several threads."""

    def __init__(self, tables: str, name: str) -> None:
        address = urlsplit(tables)
        self.name = name
        self.acknowledged: list[tuple[str, int]] = []
        self.unanswered: list[tuple[str, int]] = []
        self.conflicts = 0
        self._path = address.path
        self._connection = HTTPConnection(address.netloc, timeout=60)
        self._known: dict[str, int | None] = {}

    def create(self, namespace: str, name: str) -> str:
        """A table whose versions the catalog arbitrates; its path."""
        properties = {"table_type": "lance", "managed_by": "impl"}
        self.expect(
            "POST", f"/namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA, "properties": properties}
        )
        return f"/namespaces/{namespace}/tables/{name}"

    def load(self, table: str, *, snapshots: str = "all") -> dict[str, Any]:
        """A table's metadata."""
        metadata: dict[str, Any] = self.expect("GET", f"{table}?snapshots={snapshots}")["metadata"]
        return metadata

    def current(self, table: str) -> int | None:
        """A table's version; None before the first."""
        version = self.load(table, snapshots="refs").get("current-snapshot-id")
        return None if version == NONE_YET else version

    def swap(self, table: str, expected: int | None) -> bool:
        """Try to move a table one version on; False when somebody was faster."""
        new = (expected or 0) + 1
        try:
            status, said = self.send("POST", table, commit(expected, new, self.name))
        except Gone:
            self.unanswered.append((table, new))
            raise
        if status == 200:
            self.acknowledged.append((table, new))
            return True
        assert status == 409, (status, said)
        assert json.loads(said)["error"]["type"] == "CommitFailedException", said
        self.conflicts += 1
        return False

    def advance(self, table: str) -> None:
        """Move a table one version on, however often somebody is faster."""
        while not self.swap(table, expected := self._expected_version(table)):
            del self._known[table]
        self._known[table] = (expected or 0) + 1

    def expect(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON of an answer that must be a success."""
        status, said = self.send(method, path, body)
        assert status in (200, 204), (status, said)
        return json.loads(said) if said else {}

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of any answer."""
        response = self._send(method, path, body, headers)
        return response.status, response.read()

    def headers(self, method: str, path: str) -> dict[str, str]:
        """The headers of an answer that must be a success, by names in lower case."""
        response = self._send(method, path, None, {})
        said = response.read()
        assert response.status == 200, said
        return {name.lower(): value for name, value in response.getheaders()}

    def close(self) -> None:
        """Of the connection; the account stays."""
        self._connection.close()

    def _send(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> HTTPResponse:
        content = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **headers}
        self._connection.request(method, self._path + path, content, sent)
        return self._connection.getresponse()

    def _expected_version(self, table: str) -> int | None:
        if table not in self._known:
            self._known[table] = self.current(table)
        return self._known[table]


def commit(expected: int | None, new: int, client: str) -> dict[str, Any]:
    """What moves a table from one version to another, or leaves it alone if it is not at `expected`."""
    snapshot = {
        "snapshot-id": new,
        "sequence-number": new,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"_versions/{LAST_VERSION - new}.manifest",
        "summary": {"operation": "append", "client": client},
        **({} if expected is None else {"parent-snapshot-id": expected}),
    }
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": expected}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": new},
        ],
    }


@dataclass
class Account:
    """What all clients together know of all tables."""

    acknowledged: dict[tuple[str, int], str] = field(default_factory=dict)
    """Who was told that it made a version."""
    unanswered: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Who tried to make a version and was told nothing."""
    conflicts: int = 0

    def add(self, clients: Iterable[CommitClient]) -> None:
        """Take over their accounts; no version may be acknowledged twice."""
        for client in clients:
            for made in client.acknowledged:
                assert made not in self.acknowledged, f"{made} was given to {self.acknowledged[made]} and {client.name}"
                self.acknowledged[made] = client.name
            for tried in client.unanswered:
                self.unanswered.setdefault(tried, set()).add(client.name)
            self.conflicts += client.conflicts

    def check(self, table: str, metadata: dict[str, Any]) -> int:
        """The table is what its clients were told: no gap, nothing lost, nothing that nobody made; its version."""
        snapshots = metadata.get("snapshots", [])
        versions = [snapshot["snapshot-id"] for snapshot in snapshots]
        assert versions == list(range(1, len(versions) + 1))
        assert metadata.get("current-snapshot-id") == (versions[-1] if versions else None)
        told = {version for name, version in self.acknowledged if name == table}
        assert told <= set(versions), f"lost: {sorted(told - set(versions))}"
        for snapshot in snapshots:
            made = (table, snapshot["snapshot-id"])
            makers = {self.acknowledged[made]} if made in self.acknowledged else self.unanswered.get(made, set())
            assert snapshot["summary"]["client"] in makers, made
        return len(versions)


def race(tables: Sequence[str], clients: Sequence[CommitClient], commits: int) -> None:
    """All clients at once, each on one of the tables, until each has made that many versions or the server is gone."""

    def work(number: int) -> None:
        client, table = clients[number], tables[number % len(tables)]
        with suppress(*Gone):
            for _ in range(commits):
                client.advance(table)
        client.close()

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(work, range(len(clients))))
