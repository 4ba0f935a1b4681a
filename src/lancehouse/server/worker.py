"""Main program of a worker process, which gets its settings through stdin.

Stdin stays open for as long as the parent lives. Each further line has settings that are to change.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from lancehouse.server import process_memory
from lancehouse.server.run import Changes, die_with, run
from lancehouse.server.settings import ServerSettings, warehouse_from_json


def _report_ready() -> None:
    os.write(1, b"ready\n")


def _send_heartbeat() -> None:
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody reads: the parent is suspended or gone
        os.write(1, b".")


def _read_messages() -> Iterator[dict[str, Any]]:
    """Yield what the parent sends, until it ends."""
    rest = b""
    # Not through `sys.stdin`, whose lock would still be held when the interpreter exits.
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def main() -> None:
    """Serve on the socket that the parent has bound. The parent has blocked SIGINT: it alone decides when to stop."""
    process_memory.share_heaps()
    messages = _read_messages()
    message = next(messages)
    listener = socket.socket(fileno=message["socket"])
    warehouses = [warehouse_from_json(warehouse) for warehouse in message["warehouses"]]
    changes: Changes = SimpleQueue()

    def follow_parent() -> None:
        for each in messages:
            settings = ServerSettings.from_json(each["settings"])
            changes.put(lambda settings=settings: settings)  # type: ignore[misc]

    die_with(follow_parent)
    # A heartbeat must not block the event loop when the parent does not read its pipe.
    os.set_blocking(1, False)
    settings = ServerSettings.from_json(message["settings"])
    run(settings, listener, warehouses, _report_ready, _send_heartbeat, changes=changes)


if __name__ == "__main__":
    main()
