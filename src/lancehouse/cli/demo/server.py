"""The demo's server: `lancehouse serve` in a child process that never outlives the demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from lance_namespace.errors import InternalError

START_S, STOP_S = 60.0, 20.0
LOOK_S = 0.05
ERROR = "Error: "
OURS = "LANCEHOUSE_"
"""Prefix of environment variables for the user's own server, which the demo's server must not see."""

SERVE = """
import os
from lancehouse.server.run import die_with
die_with(lambda: os.read(0, 1))
from lancehouse.cli.main import main
main()
"""
"""Program of the child process; it ends when the other end of its standard input is closed."""


@contextmanager
def start_server(folder: Path) -> Iterator[Callable[[], str]]:
    """Start the server on a free local port, and stop it at the end of the context.

    The context yields a function that waits until the server is ready, and returns its address.

    Args:
        folder: for its database, warehouse and log.

    Raises:
        InternalError: it does not start; the message says why.
    """
    log = folder / "serve.log"
    database = f"sqlite:///{folder.absolute() / 'catalog.db'}"
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--log-level", "error", "--db", database]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C must reach only the demo, which then stops the server
        )
    try:
        yield lambda: _wait_for_address(process, log)
    finally:
        _stop(process)


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = monotonic() + START_S
    while process.poll() is None and monotonic() < deadline:
        if match := re.search(r"^ready .*?(https?://\S+)/iceberg", log.read_text(errors="replace"), re.MULTILINE):
            return match[1]
        sleep(LOOK_S)
    lines = log.read_text(errors="replace").strip().splitlines()
    why = next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "".join(lines[-1:]))
    raise InternalError(f"the catalog server did not start: {why or 'it says nothing'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
