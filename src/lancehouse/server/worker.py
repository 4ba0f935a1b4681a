"""Main program of a worker process, which gets its settings through stdin.

Stdin stays open for as long as the parent lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

from lancehouse.server import process_memory
from lancehouse.server.run import die_with, run
from lancehouse.server.settings import ServerSettings, warehouse_from_json


def _report_ready() -> None:
    os.write(1, b"ready\n")


def _send_heartbeat() -> None:
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody reads: the parent is suspended or gone
        os.write(1, b".")


def _wait_for_parent_end() -> None:
    os.read(0, 1)  # not through `sys.stdin`, whose lock would still be held when the interpreter exits


def main() -> None:
    """Serve on the socket that the parent has bound. The parent has blocked SIGINT: it alone decides when to stop."""
    process_memory.share_heaps()
    message = json.loads(sys.stdin.buffer.readline())
    listener = socket.socket(fileno=message["socket"])
    warehouses = [warehouse_from_json(warehouse) for warehouse in message["warehouses"]]
    die_with(_wait_for_parent_end)
    # A heartbeat must not block the event loop when the parent does not read its pipe.
    os.set_blocking(1, False)
    run(ServerSettings.from_json(message["settings"]), listener, warehouses, _report_ready, _send_heartbeat)


if __name__ == "__main__":
    main()
