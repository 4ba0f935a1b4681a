"""A threaded HTTP/1.1 server on 127.0.0.1 that the emulators and the fault proxy are made of."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: closing such a socket sends RST."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. `target` is raw: a name may hold an encoded slash."""

    method: str
    target: str
    headers: Message
    body: bytes

    @property
    def path(self) -> str:
        """The raw path without its query."""
        return self.target.partition("?")[0]

    @property
    def segments(self) -> list[str]:
        """The parts of the path: split first, decoded after, each once."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters, decoded once."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form in the body."""
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back, and how badly."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0
    """Time that passes before anything is sent."""
    drip_s: float = 0
    """Time that passes after each byte of the body."""
    missing: int = 0
    """How many bytes of the body are promised but never sent."""
    reset: bool = False
    """Send nothing, reset the connection."""

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Self:
        """An answer that is a JSON document."""
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        return cls(status, body, {"Content-Type": "application/json", **(headers or {})})

    @classmethod
    def text(cls, value: str, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> Self:
        """An answer that is not JSON."""
        return cls(status, value.encode(), {"Content-Type": content_type})


class RefusedError(Exception):
    """An error that goes back to the client, in Iceberg's form."""

    def __init__(self, status: int, type_: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer.json({"error": {"message": message, "type": type_, "code": status}}, status)


class Loopback:
    """A server that calls `answer` for each request, in a thread for each connection, until it is closed."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        """Method and raw target of every request, in order of arrival."""
        self.closing = Event()
        self._port = 0
        self._listen()

    @property
    def uri(self) -> str:
        """The server's address, without a slash at its end."""
        return f"http://127.0.0.1:{self._port}"

    def answer(self, request: Request) -> Answer:
        """What this server says to a request; called from many threads at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening, end every connection and wait for their threads."""
        self.closing.set()
        self._listener.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        self.closing.clear()
        self._listener = _Listener(self, self._port)
        self._port = self._listener.server_port
        self._thread = Thread(target=self._listener.serve_forever, args=(0.02,), name=type(self).__name__)
        self._thread.start()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, owner: Loopback, port: int) -> None:
        self.owner = owner
        self.resets: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        super().__init__(("127.0.0.1", port), _Connection)

    def close(self) -> None:
        self.shutdown()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client closed it first
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        if request in self.resets:  # a farewell would come before the reset
            self.resets.discard(request)
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().close_request(request)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the client went away, as clients with a time-out do
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except ConnectionError:
            self.rfile.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: tests read `requests`."""

    def _serve(self) -> None:
        is_chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        body = self._read_chunks() if is_chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        owner = self.server.owner
        owner.requests.append((self.command, self.path))
        self._send(owner.answer(Request(self.command, self.path, self.headers, body)))

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := int((self.rfile.readline() or b"0").partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _send(self, answer: Answer) -> None:
        closing = self.server.owner.closing
        closing.wait(answer.delay_s)
        if answer.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.server.resets.add(self.connection)
            self.close_connection = True
            return
        body = b"" if self.command == "HEAD" else answer.body
        head = [f"HTTP/1.1 {answer.status} {_reason(answer.status)}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.status not in (204, 304) and "content-length" not in {name.lower() for name in answer.headers}:
            head.append(f"Content-Length: {len(body)}")
        start = "\r\n".join([*head, "\r\n"]).encode("latin-1")
        sent = body[: len(body) - answer.missing]
        if answer.drip_s:
            self.wfile.write(start)
            for byte in sent:
                self.wfile.write(bytes([byte]))
                if closing.wait(answer.drip_s):
                    break
        else:
            self.wfile.write(start + sent)
        self.close_connection = self.close_connection or answer.missing > 0


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
