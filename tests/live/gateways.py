"""A server as a gateway, in front of its own warehouse and of all kinds of other catalogs, and what talks to it."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from lance_namespace import LanceNamespace, connect

from tests.servers.lancehouse import Served, start_lancehouse

Backends = Mapping[str, tuple[str, Mapping[str, str]]]
"""Implementation and properties by name."""
DEADLINE_S = 60
SOME = 4
"""Files more than before, for work that goes on beside."""
ALL = json.dumps({"k": 0, "vector": {}}).encode()
"""A query for all rows."""


@contextmanager
def start_gateway(folder: Path, backends: Backends, options: Sequence[str] = ()) -> Iterator[Served]:
    """The server with these backends, besides its warehouse `main`, until the block ends."""
    described = {name: {"impl": impl, "properties": dict(given)} for name, (impl, given) in backends.items()}
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "server.yaml"
    config.write_text(json.dumps({"backends": described}))
    with start_lancehouse(folder, options=["--config", str(config), *options]) as server:
        yield server


def client(server: Served, backend: str = "main", **properties: str) -> LanceNamespace:
    """Pylance's own, which is Rust inside."""
    return connect("rest", {"uri": f"{server.uri}/lance/{backend}", **properties})


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What it says."""
        return json.loads(self.body or b"null")

    @property
    def refused(self) -> tuple[int, int]:
        """Status and code of an error."""
        return self.status, self.json["code"]


def content_type(path: str) -> dict[str, str]:
    """The header field for the body of an operation."""
    takes_rows = re.search(r"/table/[^/]+/(create|insert|merge_insert)(\?|$)", path)
    return {"content-type": f"application/{'vnd.apache.arrow.stream' if takes_rows else 'json'}"}


def ask(
    server: Served,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> Heard:
    """One request over a connection of its own; its body is JSON or rows, unless the headers say otherwise."""
    connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=timeout_s)
    try:
        connection.request(method, path, body, {**content_type(path), **(headers or {})})
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Heard(answer.status, named, answer.read())
    finally:
        connection.close()


def send(
    server: Served, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    heard = ask(server, method, path, body, headers)
    return heard.status, heard.json


def post(server: Served, path: str, body: Any = None, backend: str = "main") -> tuple[int, Any]:
    """The same of an operation, whose body is JSON."""
    return send(server, "POST", f"/lance/{backend}/v1/{path}", json.dumps(body or {}).encode())


def stream(rows: pa.Table, batch: int = 50_000) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, batch)
    return sink.getvalue().to_pybytes()


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds."""

    threads: int
    """Of Python; Lance has others, which come and go."""
    files: int
    """Open ones, and connections; each thread has the database open, which is not counted."""
    resident_mb: float
    peak_mb: float

    @classmethod
    def of(cls, server: Served) -> Footprint:
        """As the system has it now."""
        status = Path(f"/proc/{server.pid}/status").read_text()

        def number(name: str) -> int:
            return int(status.partition(f"{name}:")[2].split()[0])

        files = sum("catalog.db" not in _target(file) for file in Path(f"/proc/{server.pid}/fd").iterdir())
        threads = [_name(task) for task in Path(f"/proc/{server.pid}/task").iterdir()]
        return cls(
            threads.count(_name(Path(f"/proc/{server.pid}"))), files, number("VmRSS") / 1024, number("VmHWM") / 1024
        )


def _target(file: Path) -> str:
    with suppress(OSError):  # it was just closed
        return str(file.readlink())
    return "catalog.db"


def _name(task: Path) -> str:
    with suppress(OSError):  # it has just ended
        return (task / "comm").read_text()
    return ""


def forget_peak(server: Served) -> None:
    """Let the peak of memory begin anew."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")


def numbers(first: int, count: int) -> bytes:
    """Rows with these numbers, as a stream."""
    return stream(pa.table({"id": pa.array(range(first, first + count), pa.int64())}))


def wide(count: int) -> pa.Table:
    """Rows of a kilobyte."""
    return pa.table({"id": pa.array(range(count), pa.int64()), "text": pa.array(["x" * 1016] * count)})


def insert(server: Served, table: str, body: bytes, backend: str = "main", verb: str = "insert") -> tuple[int, Any]:
    """Status and answer of sending rows to a table."""
    heard = ask(server, "POST", f"/lance/{backend}/v1/table/{table}/{verb}", body)
    return heard.status, heard.json


def ids(server: Served, table: str, backend: str = "main") -> list[int]:
    """All numbers in a table."""
    heard = ask(server, "POST", f"/lance/{backend}/v1/table/{table}/query", ALL)
    assert heard.status == 200, heard.body
    return sorted(number for number in pa.ipc.open_file(heard.body).read_all()["id"].to_pylist() if number is not None)


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """All begin together; what each returns."""
    ready = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        ready.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that the server does by itself."""
    deadline = monotonic() + DEADLINE_S
    while not is_so():
        assert monotonic() < deadline, what
        sleep(0.05)


@contextmanager
def nothing_held(server: Served) -> Iterator[None]:
    """What the block does leaves no connection and no file open."""
    before = Footprint.of(server)
    yield
    until(lambda: Footprint.of(server).files <= before.files + SOME, f"files stay open: {before}")


ESTABLISHED = "01"
"""State of an open connection in /proc/net/tcp."""


class Conversation:
    """A request that its sender takes his time with."""

    def __init__(self, server: Served, path: str, headers: dict[str, str]) -> None:
        self._connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=DEADLINE_S)
        self._connection.putrequest("POST", path)
        for name, value in {**content_type(path), **headers}.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        self._answer: HTTPResponse | None = None
        self._ends = (urlsplit(server.uri).port or 0, self._connection.sock.getsockname()[1])

    @property
    def is_open(self) -> bool:
        """Whether the server keeps the connection open, as the system has it."""
        server_end, client_end = (f":{port:04X}" for port in self._ends)
        sockets = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return any(
            local.endswith(server_end) and remote.endswith(client_end) and state == ESTABLISHED
            for _, local, remote, state, *_ in sockets
        )

    def say(self, data: bytes) -> None:
        """Send some of the body."""
        self._connection.send(data)

    def answer(self) -> HTTPResponse:
        """Its head; the body is there to be read."""
        self._answer = self._connection.getresponse()
        return self._answer

    def hear(self) -> tuple[int, Any]:
        """Status and JSON."""
        answer = self.answer()
        return answer.status, json.loads(answer.read())

    def leave(self) -> None:
        """Close the connection."""
        self._connection.close()
        if self._answer is not None:
            self._answer.close()

    def slam(self) -> None:
        """Leave with a reset."""
        assert self._connection.sock
        self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.leave()
