"""Bytes of requests and answers."""

from __future__ import annotations

import pytest

from lancehouse.clients.http import BrokenResponseError, ResponseParser, encode_request, host_header

WHOLE = b"HTTP/1.1 200 OK\r\nETag: a\r\nContent-Length: 2\r\n\r\n{}"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
AT_THE_END = b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n{}"
UNCHANGED = b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n'


@pytest.mark.parametrize(
    ("data", "status", "body", "is_last"),
    [
        (WHOLE, 200, b"{}", False),
        (CHUNKS, 200, b"{}", False),
        (AT_THE_END, 200, b"{}", True),
        (UNCHANGED, 304, b"", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", False),
        (b"HTTP/1.1 503 x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 503, b"", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, 200, b"{}", False),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + WHOLE, 200, b"{}", False),
    ],
    ids=["length", "chunks", "at the end", "304", "204", "close", "1.0", "100", "103"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_answers(data: bytes, status: int, body: bytes, is_last: bool, at_once: bool) -> None:
    incoming = ResponseParser()
    for piece in [data] if at_once else [data[at : at + 1] for at in range(len(data))]:
        assert incoming.answer is None
        incoming.feed(piece)
    if data == AT_THE_END:
        assert incoming.answer is None
        incoming.feed(b"")
    assert incoming.answer is not None
    assert (incoming.answer[0], incoming.answer[2], incoming.is_last) == (status, body, is_last)
    assert "link" not in incoming.answer[1]


@pytest.mark.parametrize("surplus", [WHOLE, b"garbage", b"HTTP/1.1 "], ids=["answer", "garbage", "half"])
def test_more_than_was_asked_for(surplus: bytes) -> None:
    incoming = ResponseParser()
    incoming.feed(WHOLE + surplus)
    assert incoming.answer == (200, {"etag": "a", "content-length": "2"}, b"{}")
    assert incoming.is_last


@pytest.mark.parametrize("data", [WHOLE[:-1], CHUNKS[:-1], CHUNKS[:-8], UNCHANGED[:-2], WHOLE[:9], b""])
def test_an_end_too_soon(data: bytes) -> None:
    incoming = ResponseParser()
    if data:
        incoming.feed(data)
    with pytest.raises(BrokenResponseError, match="closed before the end"):
        incoming.feed(b"")


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.6\r\n", WHOLE.replace(b"2\r\n", b"x\r\n")])
def test_no_http(data: bytes) -> None:
    with pytest.raises(BrokenResponseError, match="is not HTTP"):
        ResponseParser().feed(data)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://h", "h"),
        ("http://h:80", "h"),
        ("https://H:443", "h"),
        ("https://h:80", "h:80"),
        ("http://me:secret@h:8181", "h:8181"),
        ("http://[::1]:8181", "[::1]:8181"),
        ("http://bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_the_name_of_a_server(origin: str, host: str) -> None:
    assert host_header(origin) == host


def test_a_request() -> None:
    assert encode_request("GET", "h", "/a b?c=%20", {"X-A": "b"}) == (
        b"GET /a%20b?c=%20 HTTP/1.1\r\nHost: h\r\nAccept-Encoding: identity\r\nX-A: b\r\n\r\n"
    )
    assert encode_request("POST", "h", "/", {"Host": "other"}, b"{}") == (
        b"POST / HTTP/1.1\r\nHost: other\r\nAccept-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Content-Length: 0\r\n" in encode_request("POST", "h", "/", {})


@pytest.mark.parametrize("value", ["a\r\nX-B: c", "a\nb", "Ω"])
def test_what_no_header_can_hold(value: str) -> None:
    with pytest.raises(ValueError):
        encode_request("GET", "h", "/", {"X-A": value})
