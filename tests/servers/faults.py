"""A loopback proxy in front of any server, which does to a request what networks and servers do on a bad day.

A fault is a function of the request and of the way to forward it. `proxy.add(reset)` spoils the next request, and
`proxy.add(canned(503), method="GET", path="/namespaces", times=3)` the next three that match; the others pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from queue import Empty, LifoQueue
from threading import Lock
from time import monotonic
from urllib.parse import urlsplit

import pytest

from tests.servers.loopback import Answer, Loopback, Request

Forward = Callable[[Request], Answer]
Fault = Callable[[Request, Forward], Answer]

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer"}
ALWAYS = 1_000_000_000
IDLE_S = 10
PAGE = "<html><head><title>Sign in</title></head><body>Please sign in.</body></html>"


def passes(request: Request, forward: Forward) -> Answer:
    """Do no harm; of use before another fault in the queue."""
    return forward(request)


def reset(request: Request, forward: Forward) -> Answer:
    """Reset the connection; the server never sees the request."""
    return Answer(reset=True)


def lost_answer(request: Request, forward: Forward) -> Answer:
    """Let the server do it, then reset the connection instead of answering."""
    forward(request)
    return Answer(reset=True)


def answer_after(status: int, body: str = "") -> Fault:
    """The request is handled; the client is answered this."""

    def answer(request: Request, forward: Forward) -> Answer:
        forward(request)
        return Answer(status, body.encode())

    return answer


def html(request: Request, forward: Forward) -> Answer:
    """Answer 200 with a page for people, as captive portals and misrouted proxies do."""
    return Answer.text(PAGE, content_type="text/html")


def slow(delay_s: float = 0, *, drip_s: float = 0) -> Fault:
    """Forward, then hold the answer back, or send its body byte by byte."""

    def slow(request: Request, forward: Forward) -> Answer:
        return replace(forward(request), delay_s=delay_s, drip_s=drip_s)

    return slow


def read_timeout(request: pytest.FixtureRequest) -> str:
    """Milliseconds for which a test's client waits for an answer.

    Long, because a busy machine must fail no test; short only in tests of servers that do not answer.
    """
    return "1000" if re.search("slow|drip|time-out", request.node.name) else "20000"


def truncate_answer(missing: int = 1) -> Fault:
    """Forward, then close the connection before the last bytes of the body."""
    return lambda request, forward: replace(forward(request), missing=missing)


def garble_answer(request: Request, forward: Forward) -> Answer:
    """Forward, then answer what is not encoded as it says."""
    answer = forward(request)
    return replace(answer, body=answer.body or b"{}", headers={"Content-Encoding": "gzip"})


def answer_always(status: int, body: str = "", headers: Mapping[str, str] | None = None) -> Fault:
    """Answer this, whatever was asked; the server never sees the request."""
    answer = Answer(status, body.encode(), {"Content-Type": "application/json", **(headers or {})})
    return lambda request, forward: answer


def throttle(retry_after: str = "1") -> Fault:
    """429, and when to come back."""
    return answer_always(429, headers={"Retry-After": retry_after})


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str | None
    path: str
    times: int

    def matches(self, request: Request) -> bool:
        return self.times > 0 and self.method in (None, request.method) and bool(re.search(self.path, request.target))


class FaultProxy(Loopback):
    """The proxy. `requests` holds what clients sent, `forwarded` what reached the server."""

    def __init__(self, upstream: str, *, latency_ms: float = 0) -> None:
        """`upstream` is the server's address; `latency_ms` is added to every answer."""
        self.latency_ms = latency_ms
        self.forwarded: list[tuple[str, str]] = []
        self._upstream = urlsplit(upstream)
        self._idle: LifoQueue[tuple[float, HTTPConnection]] = LifoQueue()
        self._rules: list[_Rule] = []
        self._lock = Lock()
        super().__init__()

    @property
    def uri(self) -> str:
        """The proxy's address with the path of the server's, if it has one."""
        return super().uri + self._upstream.path.rstrip("/")

    def add(self, fault: Fault, *, method: str | None = None, path: str = "", times: int = 1) -> None:
        """Spoil the next `times` requests whose method is `method` and whose raw target matches the expression `path`.

        Rules apply in the order they were added, one to a request.
        """
        with self._lock:
            self._rules.append(_Rule(fault, method, path, times))

    def clear(self) -> None:
        """Forget every rule and both logs."""
        with self._lock:
            self._rules.clear()
        self.requests.clear()
        self.forwarded.clear()

    def count(self, method: str | None = None, path: str = "") -> int:
        """How many requests came in with this method and a target that matches this expression."""
        return sum(method in (None, verb) and bool(re.search(path, target)) for verb, target in self.requests)

    def refuse(self) -> None:
        """Close the port: connections are refused until `listen`."""
        super().close()
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()

    def listen(self) -> None:
        """Open the same port again."""
        self._listen()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections while the block runs."""
        self.refuse()
        try:
            yield
        finally:
            self.listen()

    def close(self) -> None:
        """Stop for good; harmless after `refuse`."""
        if not self.closing.is_set():
            self.refuse()

    def answer(self, request: Request) -> Answer:
        """The answer of the first rule that matches, else of the server."""
        answer = self._fault(request)(request, self._forward)
        return replace(answer, delay_s=answer.delay_s + self.latency_ms / 1000)

    def _fault(self, request: Request) -> Fault:
        with self._lock:
            for rule in self._rules:
                if rule.matches(request):
                    rule.times -= 1
                    return rule.fault
        return passes

    def _forward(self, request: Request) -> Answer:
        self.forwarded.append((request.method, request.target))
        connection = self._connection()
        try:
            body = iter([request.body]) if "Transfer-Encoding" in request.headers else request.body or None
            connection.request(request.method, request.target, body, dict(request.headers), encode_chunked=True)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            return Answer.text(f"no answer from the server behind: {error!r}", status=502)
        if response.will_close:
            connection.close()
        else:
            self._idle.put((monotonic(), connection))
        dropped = HOP_BY_HOP - {"content-length"} if request.method == "HEAD" else HOP_BY_HOP
        kept = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
        return Answer(response.status, answer, kept)

    def _connection(self) -> HTTPConnection:
        """An idle connection that the server cannot have closed yet, else a new one: nothing is ever sent twice."""
        while not self._idle.empty():
            with suppress(Empty):
                since, connection = self._idle.get_nowait()
                if monotonic() - since < IDLE_S:
                    return connection
                connection.close()
        return HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=120)
