"""Requests over some connections, each as fast as the last one is answered, in a process of its own.

`python -m bench.load` reads an order as JSON, one a line, and answers each with a line. It costs little, so that on two
cores it is the server that is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any, cast
from uuid import uuid4

import httptools
import uvloop

from tests.live.committers import commit

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Order:
    """What to send; every connection has a target of its own, or shares the only one."""

    host: str
    port: int
    kind: str
    """One of `KINDS`."""
    targets: Sequence[str]
    connections: int
    pids: Sequence[int]
    """The server's processes, whose CPU time is taken."""
    seconds: float | None = None
    requests: int | None = None
    """For each connection; with it the time is open."""
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of it."""

    requests: int
    wall_s: float
    server_cpu_s: float
    own_cpu_s: float
    median_ms: float
    bytes: int


def gets(order: Order, target: str) -> Iterator[bytes]:
    """The same question again and again."""
    return repeat(_request(order, "GET", target))


def swaps(order: Order, target: str) -> Iterator[bytes]:
    """Commits of one version after the other."""
    return (_request(order, "POST", target, commit(old or None, old + 1, "bench")) for old in count())


def properties(order: Order, target: str) -> Iterator[bytes]:
    """Commits that set a property."""
    for value in count():
        update = {"action": "set-properties", "updates": {"number": str(value)}}
        yield _request(order, "POST", target, {"requirements": [], "updates": [update]})


def creates(order: Order, target: str) -> Iterator[bytes]:
    """New tables, all in one namespace."""
    prefix = uuid4().hex[:12]
    return (_request(order, "POST", target, {"name": f"t{prefix}_{number}", **order.body}) for number in count())


KINDS: Mapping[str, Callable[[Order, str], Iterator[bytes]]] = {
    "gets": gets,
    "swaps": swaps,
    "properties": properties,
    "creates": creates,
}


def _request(order: Order, method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {order.host}:{order.port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode() + content


class _Connection(asyncio.Protocol):
    """Sends the next request as soon as an answer is whole."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.bytes = 0
        self.deadline = 0.0
        self._requests = requests
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._wrong = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for `begin`."""
        self._transport = cast(asyncio.Transport, transport)

    def begin(self, deadline: float) -> None:
        """Start sending, until then or until the requests end."""
        self.deadline = deadline
        self._next()

    def data_received(self, data: bytes) -> None:
        """Of an answer."""
        self.bytes += len(data)
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Kept only of an answer that is no success."""
        if self._parser.get_status_code() >= 300:
            self._wrong += body

    def on_message_complete(self) -> None:
        """Take the time, and go on."""
        now = time.perf_counter()
        self.latencies.append(now - self._sent)
        self.statuses[self._parser.get_status_code()] += 1
        if self._wrong:
            self._finish(RuntimeError(f"HTTP {self._parser.get_status_code()}: {self._wrong[:500].decode()}"))
        elif now < self.deadline:
            self._next()
        else:
            self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Too early, unless we are done."""
        self._finish(error or RuntimeError("the server closed the connection"))

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._finish(None)
        else:
            self._sent = time.perf_counter()
            self._transport.write(request)

    def _finish(self, error: Exception | None) -> None:
        if not self._done.done():
            if error:
                self._done.set_exception(error)
            else:
                self._done.set_result(None)
            self._transport.close()


async def run(order: Order) -> Measured:
    """Do it, and measure.

    Raises:
        RuntimeError: an answer was no success.
    """
    loop = asyncio.get_running_loop()
    connections = []
    ends = []
    for number in range(order.connections):
        target = order.targets[number % len(order.targets)]
        requests = islice(KINDS[order.kind](order, target), order.requests)
        ends.append(loop.create_future())
        _, made = await loop.create_connection(
            lambda requests=requests, done=ends[-1]: _Connection(requests, done),  # type: ignore[misc]
            order.host,
            order.port,
        )
        connections.append(made)
    before, own, started = cpu_s(order.pids), time.process_time(), time.perf_counter()
    for connection in connections:
        connection.begin(started + (order.seconds if order.seconds is not None else 3600.0))
    await asyncio.gather(*ends)
    wall = time.perf_counter() - started
    latencies = [latency for connection in connections for latency in connection.latencies]
    return Measured(
        requests=len(latencies),
        wall_s=wall,
        server_cpu_s=cpu_s(order.pids) - before,
        own_cpu_s=time.process_time() - own,
        median_ms=median(latencies) * 1000,
        bytes=sum(connection.bytes for connection in connections),
    )


def cpu_s(pids: Sequence[int]) -> float:
    """The CPU time of processes so far, all their threads included."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def main() -> None:
    """Until the input ends."""
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = asdict(uvloop.run(run(Order(**json.loads(line)))))
        except (RuntimeError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
