"""Many small reads at once: one thread, a few connections, and a parser in C.

A list asks for every table on its own. The ordinary way costs several times the processor time of this one, which is
what a list waits for when the server is near. Only whole answers count here: whatever else happens is for the ordinary
way to find out, to repeat and to tell.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from lancehouse.clients.messages import PORTS, Answer, BrokenError, Incoming, host_of, request


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how many at once."""

    connect_s: float
    read_s: float
    connections: int


def fetch(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: Limits
) -> list[Answer | None]:
    """GET many targets of one server, each with its headers; None for whatever did not arrive whole and in time."""
    # A thread of its own: the caller may be inside an event loop, or have one that must stay as it is.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _fetch(origin, requests, tls, limits)).result()


async def _fetch(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: Limits
) -> list[Answer | None]:
    parts, host = urlsplit(origin), host_of(origin)
    secure = parts.scheme == "https"
    answers: list[Answer | None] = [None] * len(requests)
    waiting = iter([(number, request("GET", host, *each)) for number, each in enumerate(requests)])
    loop = asyncio.get_running_loop()

    async def work() -> None:
        connection = loop.create_connection(
            lambda: _Connection(waiting, answers, limits.read_s),
            parts.hostname or "",
            parts.port or PORTS[parts.scheme],
            ssl=tls if secure else None,
        )
        try:
            _, protocol = await asyncio.wait_for(connection, limits.connect_s)
        except (OSError, TimeoutError):
            return
        await protocol.closed

    await asyncio.gather(*(work() for _ in range(min(limits.connections, len(requests)))))
    return answers


class _Connection(asyncio.Protocol):
    """Sends one request after the other as long as there are any and answers come."""

    def __init__(self, waiting: Iterator[tuple[int, bytes]], answers: list[Answer | None], read_s: float) -> None:
        self._waiting = waiting
        self._answers = answers
        self._read_s = read_s
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        self._number, data = next(self._waiting, (-1, b""))
        if not data:
            self._transport.close()
            return
        self._incoming = Incoming()
        self._late = self._loop.call_later(self._read_s, self._transport.abort)
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            self._incoming.feed(data)
        except BrokenError:
            self._transport.abort()
            return
        if (answer := self._incoming.answer) is None:
            return
        self._late.cancel()
        if "content-encoding" not in answer[1]:
            self._answers[self._number] = answer
        if self._incoming.is_last:
            self._transport.close()
        else:
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._number >= 0:
            self._late.cancel()
        self.closed.set_result(None)
