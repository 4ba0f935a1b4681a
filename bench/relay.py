"""A relay that makes the network slower: bytes that come back from the server wait before they go on.

It costs little and costs everyone the same: all that it knows of HTTP is how a request's first line ends, to count
them, whatever library sends them. Run as `python -m bench.relay HOST PORT MS`: it prints its port, then the number of
requests so far for each line of its standard input, and ends with it.
"""

from __future__ import annotations

import asyncio
import sys

FIRST_LINE_ENDS = b" HTTP/1.1\r\n"


class _Count:
    """The requests of all connections."""

    total = 0


class _Upstream(asyncio.Protocol):
    """The side of the server: what it says waits."""

    def __init__(self, client: asyncio.Transport, delay_s: float) -> None:
        self._client = client
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, in order, when their time has come."""
        self._loop.call_later(self._delay_s, self._client.write, data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Close the client's side after the last bytes."""
        self._loop.call_later(self._delay_s, self._client.close)


class _Client(asyncio.Protocol):
    """The side of the client: what it says goes on at once."""

    def __init__(self, host: str, port: int, delay_s: float, count: _Count) -> None:
        self._address = (host, port)
        self._delay_s = delay_s
        self._count = count
        self._early: list[bytes] = []
        self._server: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server."""
        assert isinstance(transport, asyncio.Transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(transport))

    async def _connect(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        server, _ = await loop.create_connection(lambda: _Upstream(client, self._delay_s), *self._address)
        for data in self._early:
            server.write(data)
        self._server = server
        if client.is_closing():
            server.close()

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on."""
        self._count.total += data.count(FIRST_LINE_ENDS)
        if self._server is None:
            self._early.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Close the server's side too."""
        if self._server is not None:
            self._server.close()


async def _serve(host: str, port: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    count = _Count()
    server = await loop.create_server(lambda: _Client(host, port, delay_s, count), "127.0.0.1", 0, backlog=128)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(count.total, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1000))
