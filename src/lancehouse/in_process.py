"""Registry of servers in this process, which clients in the same process call without a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SCHEME = "inside"
"""URL scheme of the endpoint of such a server."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, header fields with names in lower case, and body of a response."""

Send = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
"""Function that takes method, path with query, header fields and body, and returns the response."""

_servers: dict[str, InProcessServer] = {}


class InProcessServer:
    """A server in this process, and the function that sends requests to it."""

    def __init__(self, send: Send) -> None:
        self.send = send


def register_server(name: str, send: Send) -> str:
    """Register a server, and return the endpoint to give to clients; a server of the same name is replaced."""
    _servers[name] = InProcessServer(send)
    return f"{SCHEME}://{name}"


def find_server(name: str) -> InProcessServer | None:
    """Return the server registered under a name, or None."""
    return _servers.get(name)
