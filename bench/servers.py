"""The servers, each in a process of its own so that none of them shares an interpreter with the clients.

Run as `python -m bench.servers polaris|unity DATASET TABLES...`: an emulator with these namespaces. It prints its
address and a token, and ends when its standard input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from lancehouse.clients.iceberg import DUMMY_SCHEMA
from lancehouse.properties import LANCE, TABLE_TYPE
from tests.servers.polaris import Polaris
from tests.servers.reference import start_reference
from tests.servers.unity import Unity

CATALOG = "lake"
DECLARED = "declared"
"""The namespace that DeclareTable fills."""

LATENCY_MS = 5
TOKEN = "bench"
FILLERS = 8
OTHERS_EVERY = 20
"""Every so many tables, one is no Lance table."""

COLUMNS = [
    {
        "name": name,
        "type_text": text,
        "type_name": kind,
        "type_json": json.dumps({"name": name, "type": spark, "nullable": True, "metadata": {}}),
        "position": position,
        "nullable": True,
    }
    for position, (name, text, kind, spark) in enumerate(
        [
            ("id", "bigint", "LONG", "long"),
            (
                "vector",
                "array<float>",
                "ARRAY",
                {"type": "array", "elementType": "float", "containsNull": True},
            ),
        ]
    )
]


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay in front of a server; see `bench.relay`."""

    uri: str
    process: subprocess.Popen[str]

    def requests(self) -> int:
        """How many requests went through it so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, directly and behind relays, and what it wants to hear."""

    uri: str
    slow: Relay
    counting: Relay
    """It adds no latency: requests are counted here, in rounds that are not timed."""
    token: str
    root: str


def namespace_of(tables: int) -> str:
    """The namespace that holds so many tables."""
    return f"tables_{tables}"


def names_of(tables: int) -> list[str]:
    """The names of the tables, Lance's and others."""
    return [f"t{number:05}" for number in range(tables)]


def is_lance(name: str) -> bool:
    """Whether a table of ours is a Lance table."""
    return int(name[1:]) % OTHERS_EVERY != OTHERS_EVERY - 1


def lance_names(tables: int) -> list[str]:
    """The names that ListTables should give."""
    return [name for name in names_of(tables) if is_lance(name)]


@contextmanager
def start(client: str, sizes: Sequence[int], dataset: Path) -> Iterator[Address]:
    """The server for a client, with a namespace for each size, until the block ends.

    `dataset` is where the data of every table lies: one small dataset does for all.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        if client == "iceberg":
            uri, token = stack.enter_context(_reference(Path(folder), sizes)), ""
        else:
            emulator = ["bench.servers", client, str(dataset), *map(str, sizes)]
            uri, token = stack.enter_context(_process(emulator))[0].split()
        slow, counting = (stack.enter_context(start_relay(uri, latency_ms)) for latency_ms in (LATENCY_MS, 0))
        yield Address(uri, slow, counting, token, folder)


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a module; yields the first line that it prints, and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (line := process.stdout.readline()):
            raise RuntimeError(f"{arguments[0]} did not start; it ended with {process.wait()}")
        yield line.strip(), process
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@contextmanager
def start_relay(uri: str, latency_ms: int) -> Iterator[Relay]:
    """A relay in front of a server, until the block ends."""
    address = urlsplit(uri)
    with _process(["bench.relay", str(address.hostname), str(address.port), str(latency_ms)]) as (port, process):
        yield Relay(f"http://127.0.0.1:{port}", process)


@contextmanager
def _reference(folder: Path, sizes: Sequence[int]) -> Iterator[str]:
    """Iceberg's own server on SQLite, which never waits for the disk: the clients are measured."""
    quick = {
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}?synchronous=OFF&journal_mode=MEMORY",
        "io-impl": "org.apache.iceberg.inmemory.InMemoryFileIO",
    }
    with start_reference(folder, properties=quick, java=()) as server:
        http = urllib3.PoolManager(maxsize=FILLERS)

        def post(path: str, body: object) -> None:
            reply = http.request("POST", f"{server.uri}/v1/{path}", json=body)
            if reply.status != 200:
                raise RuntimeError(f"{path}: HTTP {reply.status} {reply.data.decode()}")

        def create(table: tuple[str, str]) -> None:
            namespace, name = table
            post(
                f"namespaces/{namespace}/tables",
                {
                    "name": name,
                    "location": str(folder / namespace / name),
                    "schema": dict(DUMMY_SCHEMA),
                    "properties": {TABLE_TYPE: LANCE if is_lance(name) else "iceberg"},
                },
            )

        for namespace in [DECLARED, *map(namespace_of, sizes)]:
            post("namespaces", {"namespace": [namespace]})
        with ThreadPoolExecutor(FILLERS) as pool:
            list(pool.map(create, [(namespace_of(size), name) for size in sizes for name in names_of(size)]))
        yield server.uri


def _polaris(dataset: str, sizes: Sequence[int]) -> None:
    with Polaris(CATALOG) as server:
        for namespace in [DECLARED, *map(namespace_of, sizes)]:
            server.seed_namespace(CATALOG, namespace, properties={"location": f"file:///warehouse/{namespace}"})
        for size in sizes:
            for name in names_of(size):
                kind = LANCE if is_lance(name) else "delta"
                server.seed_generic(CATALOG, namespace_of(size), name, format=kind, location=dataset)
        _until_done(f"{server.uri} {server.token()}")


def _unity(dataset: str, sizes: Sequence[int]) -> None:
    with Unity(CATALOG, token=TOKEN) as server:
        for namespace in [DECLARED, *map(namespace_of, sizes)]:
            server.seed_schema(CATALOG, namespace)
        for size in sizes:
            for name in names_of(size):
                lance = is_lance(name)
                server.seed_table(
                    CATALOG,
                    namespace_of(size),
                    name,
                    format="TEXT" if lance else "DELTA",
                    location=f"file://{dataset}",
                    properties={TABLE_TYPE: LANCE} if lance else {},
                    columns=COLUMNS,
                )
        _until_done(f"{server.uri} {TOKEN}")


def _until_done(line: str) -> None:
    print(line, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"polaris": _polaris, "unity": _unity}[sys.argv[1]](sys.argv[2], [int(size) for size in sys.argv[3:]])
