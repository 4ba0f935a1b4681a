"""Two servers side by side, `lancehouse serve` and Iceberg's reference server, both on SQLite, with the same tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import lance
import pyarrow as pa

from bench.load import Measured, Order
from tests.live.committers import SCHEMA, CommitClient
from tests.servers.lancehouse import start_lancehouse
from tests.servers.reference import start_reference

BENCH, MANY = "bench", "many"
FEW, LOTS = 1, 300
"""Versions of the two Lance tables that are loaded."""
LANCE = {"table_type": "lance"}
MANAGED = {"table_type": "lance", "managed_by": "impl"}


@dataclass
class MeasuredServer:
    """One of the two."""

    name: str
    tables: str
    """What the addresses of its tables begin with."""
    pids: Sequence[int]
    load: subprocess.Popen[str]

    def run(self, kind: str, targets: Sequence[str], connections: int, **more: Any) -> Measured:
        """Have requests sent to it.

        Raises:
            RuntimeError: one of them failed.
        """
        address = urlsplit(self.tables)
        paths = [address.path + target for target in targets]
        order = Order(str(address.hostname), address.port or 80, kind, paths, connections, self.pids, **more)
        assert self.load.stdin
        assert self.load.stdout
        self.load.stdin.write(json.dumps(asdict(order)) + "\n")
        self.load.stdin.flush()
        answer = json.loads(self.load.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"{self.name}, {kind} {targets[0]}: {answer['error']}")
        return Measured(**answer)

    def new_tables(self, number: int, properties: Mapping[str, str]) -> list[str]:
        """Tables that nobody has touched yet; their paths."""
        names = [f"fresh_{uuid4().hex[:12]}" for _ in range(number)]
        for name in names:
            self.create(name, properties)
        return [table(name) for name in names]

    def create(self, name: str, properties: Mapping[str, str], **more: object) -> None:
        """One table."""
        body = {"name": name, "schema": SCHEMA, "properties": dict(properties), **more}
        self.post(f"/namespaces/{BENCH}/tables", body)

    def post(self, path: str, body: object) -> None:
        """One request, which must be a success."""
        client = CommitClient(self.tables, "bench")
        try:
            client.expect("POST", path, body)
        finally:
            client.close()

    def memory_mb(self) -> float:
        """Of its largest process, resident."""
        return max(_resident_kb(pid) for pid in self.pids) / 1024


def table(name: str) -> str:
    """Its path below `Server.tables`."""
    return f"/namespaces/{BENCH}/tables/{name}"


@contextmanager
def start(folder: Path, many: int) -> Iterator[tuple[MeasuredServer, MeasuredServer]]:
    """Ours and theirs, filled, until the block ends."""
    with ExitStack() as stack:
        load = stack.enter_context(_load())
        ours = stack.enter_context(start_lancehouse(folder / "ours", options=["--log-level", "warning"]))
        theirs = stack.enter_context(start_reference(folder / "theirs", java=()))
        ends = {"ours": (ours.tables, ours.pid), "theirs": (f"{theirs.uri}/v1", theirs.pid)}
        pair = [MeasuredServer(name, uri, family(pid), load) for name, (uri, pid) in ends.items()]
        for server in pair:
            _fill(server, many)
        _fill_ours(pair[0], folder / "ours" / "warehouse")
        _fill_theirs(pair[1])
        yield pair[0], pair[1]


def _fill(server: MeasuredServer, many: int) -> None:
    for namespace in (BENCH, MANY):
        server.post("/namespaces", {"namespace": [namespace]})
    server.create("iceberg", {})
    body = {"schema": SCHEMA, "properties": {}}
    connections = min(16, many)
    tables = f"/namespaces/{MANY}/tables"
    server.run("creates", [tables], connections, requests=many // connections, body=body)


def _fill_ours(server: MeasuredServer, warehouse: Path) -> None:
    for versions in (FEW, LOTS):
        location = str(warehouse / BENCH / f"lance_{versions}")
        for _ in range(versions):
            lance.write_dataset(pa.table({"id": [1, 2, 3]}), location, mode="append")
        server.create(f"lance_{versions}", LANCE, location=location)


def _fill_theirs(server: MeasuredServer) -> None:
    for versions in (FEW, LOTS):
        server.create(f"lance_{versions}", LANCE)
        server.run("swaps", [table(f"lance_{versions}")], 1, requests=versions)


@contextmanager
def _load() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate()


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(member for file in children for child in file.read_text().split() for member in family(int(child)))]


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
