"""Servers in this process, for clients in this process: the same requests and answers, with no socket between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SCHEME = "inside"
"""Of the endpoint of such a server."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, header fields with their names in lower case, body."""

Send = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
"""Method, path with query, header fields and body to an answer."""

_servers: dict[str, InProcessServer] = {}


class InProcessServer:
    """The way to a server in this process."""

    def __init__(self, send: Send) -> None:
        self.send = send


def register_server(name: str, send: Send) -> str:
    """Let clients in this process talk to a server; the endpoint to give them. One name has one server, the last."""
    _servers[name] = InProcessServer(send)
    return f"{SCHEME}://{name}"


def find_server(name: str) -> InProcessServer | None:
    """The server that is offered under a name."""
    return _servers.get(name)


def unregister_server(name: str) -> None:
    """End an offer."""
    _servers.pop(name, None)
