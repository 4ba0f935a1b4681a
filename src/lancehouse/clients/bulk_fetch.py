"""GET many small objects concurrently, over a few connections in one thread with an event loop.

A list of tables loads every table separately. Sending those requests one by one, each in a worker thread, takes several
times the processor time, which is what a list waits for if the server is near. Only complete responses count here;
anything else is left to the caller, who sends that request again with retries and error messages.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from lancehouse.clients.http1 import PORTS, Answer, BrokenResponseError, ResponseParser, encode_request, host_header


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Timeouts in seconds, and the number of connections."""

    connect_s: float
    read_s: float
    connections: int


def fetch_many(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: FetchLimits
) -> list[Answer | None]:
    """GET many targets of one server, each with its headers; None for each response that did not arrive completely."""
    # A thread of its own: the caller may run inside an event loop, where `asyncio.run` is not allowed.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _fetch_many(origin, requests, tls, limits)).result()


async def _fetch_many(
    origin: str, requests: Sequence[tuple[str, Mapping[str, str]]], tls: ssl.SSLContext | None, limits: FetchLimits
) -> list[Answer | None]:
    parts, host = urlsplit(origin), host_header(origin)
    secure = parts.scheme == "https"
    answers: list[Answer | None] = [None] * len(requests)
    pending = iter([(number, encode_request("GET", host, *each)) for number, each in enumerate(requests)])
    loop = asyncio.get_running_loop()

    async def fetch_pending() -> None:
        connecting = loop.create_connection(
            lambda: _Connection(pending, answers, limits.read_s),
            parts.hostname or "",
            parts.port or PORTS[parts.scheme],
            ssl=tls if secure else None,
        )
        try:
            _, protocol = await asyncio.wait_for(connecting, limits.connect_s)
        except (OSError, TimeoutError):
            return
        await protocol.closed

    await asyncio.gather(*(fetch_pending() for _ in range(min(limits.connections, len(requests)))))
    return answers


class _Connection(asyncio.Protocol):
    """Sends one request after the other over a connection, as long as requests are pending and responses arrive.

    All connections take their requests from the same iterator, so that a slow one delays nobody.
    """

    def __init__(self, pending: Iterator[tuple[int, bytes]], answers: list[Answer | None], read_s: float) -> None:
        self._pending = pending
        self._answers = answers
        self._read_s = read_s
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_next()

    def _send_next(self) -> None:
        self._number, data = next(self._pending, (-1, b""))
        if not data:
            self._transport.close()
            return
        self._parser = ResponseParser()
        self._timeout = self._loop.call_later(self._read_s, self._transport.abort)
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except BrokenResponseError:
            self._transport.abort()
            return
        if (answer := self._parser.answer) is None:
            return
        self._timeout.cancel()
        # Compressed bodies are left to the caller's ordinary path, which decodes them.
        if "content-encoding" not in answer[1]:
            self._answers[self._number] = answer
        if self._parser.is_last:
            self._transport.close()
        else:
            self._send_next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._number >= 0:
            self._timeout.cancel()
        self.closed.set_result(None)
