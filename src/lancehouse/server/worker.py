"""One of several workers. Its settings come through stdin, which stays open for as long as the parent lives."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.server.run import die_with, run
from lancehouse.server.settings import ServerSettings


def _ready() -> None:
    os.write(1, b"ready\n")


def main() -> None:
    """Serve on the socket that the parent has bound."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the server runs, the parent decides
    told = json.loads(sys.stdin.buffer.readline())
    listener = socket.socket(fileno=told["socket"])
    warehouses = [Warehouse(**{**each, "roots": tuple(each["roots"])}) for each in told["warehouses"]]
    die_with(sys.stdin.buffer.read)
    run(ServerSettings.from_json(told["settings"]), listener, warehouses, _ready)


if __name__ == "__main__":
    main()
