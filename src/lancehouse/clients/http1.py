"""Encode HTTP/1.1 requests and parse responses (with httptools, a parser in C), independent of any socket."""

from __future__ import annotations

from collections.abc import Mapping
from string import punctuation
from types import MappingProxyType
from urllib.parse import quote, urlsplit

import httptools

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers with names in lower case, body."""

LENGTH_HEADERS = {"content-length", "transfer-encoding"}
"""Headers that say where a response ends; a response with neither ends when the connection is closed."""


class BrokenResponseError(ConnectionError):
    """The received bytes are not HTTP, or ended too early."""


PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})


def host_header(origin: str) -> str:
    """Return the Host header of an origin; without the scheme's default port, as AWS signatures are computed."""
    parts = urlsplit(origin)
    name = (parts.hostname or "").encode("idna").decode()
    name = f"[{name}]" if ":" in name else name
    return name if parts.port in (None, PORTS[parts.scheme]) else f"{name}:{parts.port}"


def encode_request(method: str, host: str, target: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """Return the bytes of a whole request.

    Raises:
        ValueError: a header contains a line break.
    """
    fields = {"Host": host, "Accept-Encoding": "identity", **headers}
    if body is not None or method == "POST":
        fields["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {quote(target, safe=punctuation)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the request has more than one line")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ResponseParser:
    """Parses one response as its bytes arrive."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """The response, as soon as it is complete; None before."""
        self.is_last = False
        """Whether the connection cannot be reused after this response."""
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def feed(self, data: bytes) -> None:
        """Parse received bytes; empty bytes mean that the server has closed the connection.

        Raises:
            BrokenResponseError: the response can no longer become complete.
        """
        if not data:
            self._end_at_eof()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.answer is None:
                raise BrokenResponseError(f"the answer is no HTTP: {error}") from error
            self.is_last = True  # garbage after a complete response: the connection must not be reused

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._has_headers = False

    def _end_at_eof(self) -> None:
        if not self._has_headers or LENGTH_HEADERS & self._headers.keys():
            raise BrokenResponseError("the connection was closed before the end of the answer")
        self.is_last = True
        self.answer = (self._parser.get_status_code(), self._headers, b"".join(self._body))

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        if self.answer is not None:
            self.is_last = True  # a second response that no request asked for
        self._reset()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.answer is None and status >= 200:  # 1xx responses are interim: the final one follows
            self.answer = (status, self._headers, b"".join(self._body))
            self.is_last = not self._parser.should_keep_alive()
