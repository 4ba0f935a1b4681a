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

import httptools

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers with their names in lower case, body."""


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
    parts = urlsplit(origin)
    secure = parts.scheme == "https"
    answers: list[Answer | None] = [None] * len(requests)
    waiting = iter([(number, _encoded(parts.netloc, *request)) for number, request in enumerate(requests)])
    loop = asyncio.get_running_loop()

    async def work() -> None:
        connection = loop.create_connection(
            lambda: _Connection(waiting, answers, limits.read_s),
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            ssl=tls if secure else None,
        )
        try:
            _, protocol = await asyncio.wait_for(connection, limits.connect_s)
        except (OSError, TimeoutError):
            return
        await protocol.closed

    await asyncio.gather(*(work() for _ in range(min(limits.connections, len(requests)))))
    return answers


def _encoded(host: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


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
        self._number, request = next(self._waiting, (-1, b""))
        if not request:
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._late = self._loop.call_later(self._read_s, self._transport.abort)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._late.cancel()
        if "content-encoding" not in self._headers:
            self._answers[self._number] = (self._parser.get_status_code(), self._headers, b"".join(self._body))
        if self._parser.should_keep_alive():
            self._next()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._number >= 0:
            self._late.cancel()
        self.closed.set_result(None)
