"""Pool of keep-alive HTTP/1.1 connections to one server.

urllib3 opens the connections, including TLS. Requests and responses are encoded and parsed here, which takes about a
third of the processor time that urllib3 takes for it.
"""

from __future__ import annotations

import ssl
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from urllib3.connection import HTTPConnection, HTTPSConnection

from lancehouse.clients.http1 import PORTS, Answer, ResponseParser, encode_request, host_header

MAX_IDLE = 64
"""Number of idle connections that are kept, enough for many threads that share a client."""

RECEIVE_BYTES = 65_536


class ConnectionPool:
    """Keep-alive connections to one server. Thread-safe."""

    def __init__(self, origin: str, tls: ssl.SSLContext | None, *, connect_s: float, read_s: float) -> None:
        parts = urlsplit(origin)
        self._host = host_header(origin)
        self._address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        self._is_secure = parts.scheme == "https"
        self._tls = tls
        self._connect_s = connect_s
        self._read_s = read_s
        self._idle: deque[HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request once and read the whole response.

        Raises:
            urllib3.exceptions.HTTPError: no connection could be opened.
            OSError: the connection broke, or the response did not arrive in time.
        """
        data = encode_request(method, self._host, target, headers, body)
        connection = self._acquire_connection()
        try:
            response = self._exchange(connection, data)
        except BaseException:
            connection.close()
            raise
        if response.is_last or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        assert response.answer is not None
        return response.answer

    def close(self) -> None:
        """Close the idle connections. A connection in use returns to the pool, which stays usable."""
        _close_all(self._idle)

    def _acquire_connection(self) -> HTTPConnection:
        """Return an idle connection that the server has not closed, else a new one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_connected:
                    return connection
                connection.close()
        host, port = self._address
        connection = (
            HTTPSConnection(host, port, timeout=self._connect_s, ssl_context=self._tls)
            if self._is_secure
            else HTTPConnection(host, port, timeout=self._connect_s)
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, connection: HTTPConnection, data: bytes) -> ResponseParser:
        """Send a request and read its response within `read_s` seconds in total, however slowly it arrives."""
        wire, response = connection.sock, ResponseParser()
        assert wire is not None
        wire.settimeout(self._connect_s)
        # A server may refuse a request before it has read all of it, and close: its response can still be received.
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.sendall(data)
        until, left_s = time.monotonic() + self._read_s, self._read_s
        while response.answer is None:
            if left_s <= 0:
                raise TimeoutError("the answer is not complete")
            wire.settimeout(left_s)
            response.feed(wire.recv(RECEIVE_BYTES))
            left_s = until - time.monotonic()
        return response


def _close_all(connections: deque[HTTPConnection]) -> None:
    with suppress(IndexError):  # other threads may take connections at the same time, so there is no safe count
        while True:
            connections.pop().close()
