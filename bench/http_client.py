"""Our HTTP/1.1 connections beside urllib3's, on a loopback server, in one run. `python -m bench.http_client --help`."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median

import urllib3

from lancehouse.clients.http import ConnectionPool

BODY = b'{"metadata":{"format-version":2,"properties":{"table_type":"lance"},"location":"s3://bucket/table"}}'.ljust(
    2000
)
"""About as long as the response to LoadTable."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
HEADERS = {"User-Agent": "lancehouse", "Accept": "application/json", "Authorization": "Bearer " + 200 * "t"}
PATH = "/v1/wh/namespaces/db/tables/t?snapshots=refs"
TIMEOUT = urllib3.Timeout(connect=10, read=60)
NO_RETRIES = urllib3.Retry(False, redirect=False)

Send = Callable[[], object]


class _Server(asyncio.Protocol):
    """Answers every request with the same bytes. No request has a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


def _serve(port: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def loopback_server() -> Iterator[str]:
    """Start the server in a process of its own; yield its address."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def _ours(origin: str) -> Send:
    pool = ConnectionPool(origin, None, connect_s=10, read_s=60)
    return lambda: pool.send("GET", PATH, HEADERS, None)


def _urllib3(origin: str) -> Send:
    pool = urllib3.PoolManager(maxsize=64)

    def send() -> object:
        answer = pool.urlopen(
            "GET", origin + PATH, headers=HEADERS, timeout=TIMEOUT, retries=NO_RETRIES, redirect=False
        )
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data

    return send


def _measure(send: Send, threads: int, requests: int) -> tuple[float, float]:
    """Return microseconds of this process' CPU time for one request, and requests per second."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: send(), range(threads * 4)))
        cpu, wall = time.process_time(), time.perf_counter()
        list(pool.map(lambda _: [send() for _ in range(requests // threads)], range(threads)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / requests * 1e6, requests / wall


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=4000, help="requests in one round (default: 4000)")
    options.add_argument("--rounds", type=int, default=7, help="rounds, of which the median counts (default: 7)")
    options.add_argument("--quick", action="store_true", help="one small round, to see whether it works")
    chosen = options.parse_args()
    requests, rounds = (320, 1) if chosen.quick else (chosen.requests, chosen.rounds)
    print("| threads | | ours | urllib3 | ratio |\n|---|---|---|---|---|")
    with loopback_server() as origin:
        sides = _ours(origin), _urllib3(origin)
        for threads in (1, 16):
            runs = [[_measure(side, threads, requests) for side in sides] for _ in range(rounds)]
            ours, theirs = ([median(run[side][figure] for run in runs) for figure in (0, 1)] for side in (0, 1))
            print(
                f"| {threads} | CPU for a request, µs | {ours[0]:.0f} | {theirs[0]:.0f} | {theirs[0] / ours[0]:.2f} |"
            )
            print(f"| {threads} | requests a second | {ours[1]:,.0f} | {theirs[1]:,.0f} | {ours[1] / theirs[1]:.2f} |")


if __name__ == "__main__":
    main()
