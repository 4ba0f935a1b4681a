"""Servers in this process, for clients in this process: the same requests and answers, with no socket between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SCHEME = "inside"
"""Of the endpoint of such a server."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, header fields with their names in lower case, body."""

Send = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
"""Method, path with query, header fields and body to an answer."""

_offered: dict[str, Inside] = {}


class Inside:
    """The way to a server in this process."""

    def __init__(self, send: Send) -> None:
        self.send = send


def offer(name: str, send: Send) -> str:
    """Let clients in this process talk to a server; the endpoint to give them. One name has one server, the last."""
    _offered[name] = Inside(send)
    return f"{SCHEME}://{name}"


def find(name: str) -> Inside | None:
    """The server that is offered under a name."""
    return _offered.get(name)


def withdraw(name: str) -> None:
    """End an offer."""
    _offered.pop(name, None)
