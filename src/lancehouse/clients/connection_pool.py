"""Connections to one server that are kept from one request to the next.

urllib3 makes them, with TLS and all. What goes over them is written and read here, which takes about a third of the
processor time of its own way.
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
"""How many idle connections are kept, so that many threads can share a client."""

RECEIVE_BYTES = 65_536


class ConnectionPool:
    """The connections to one server, for all threads."""

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
        """Send once and read the whole answer.

        Raises:
            urllib3.exceptions.HTTPError: there is no connection.
            OSError: it broke, or the time was over.
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
        """Close the idle connections; those in use are kept when they are done, for whoever still sends."""
        _close_all(self._idle)

    def _acquire_connection(self) -> HTTPConnection:
        """An idle connection that the server has not closed, else a new one."""
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
        """There and back. However slowly an answer drips, it has the time of one."""
        wire, response = connection.sock, ResponseParser()
        assert wire is not None
        wire.settimeout(self._connect_s)
        with suppress(BrokenPipeError, ConnectionResetError):  # the answer to half a request may be there
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
    with suppress(IndexError):  # other threads may take some meanwhile
        while True:
            connections.pop().close()
