"""Programs that are not Python, as the stores of tests: built once with Go, run on a free port until a block ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

START_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 900


class ProgramError(RuntimeError):
    """It could not be built, or did not come up; the message ends with what it said."""


def install_go(module: str, folder: Path) -> None:
    """Build a program with Go from the module registry, into a folder.

    Raises:
        ProgramError: there is no Go, or it failed.
    """
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        raise ProgramError(f"{module} is built with Go, and there is none")
    try:
        done = subprocess.run(
            [go, "install", module],
            env={**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{module} was not built in {BUILD_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise ProgramError(f"{module} could not be built:\n{done.stdout[-4000:]}")


def find_free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def run_program(command: Sequence[str | Path], port: int, log: Path) -> Iterator[int]:
    """Run a program that listens on a port until the block ends; its process id.

    Raises:
        ProgramError: it did not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(process, port, log)
        yield process.pid
    finally:
        process.kill()  # it may be stopped
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    while process.poll() is None and monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            sleep(0.05)
        else:
            return
    raise ProgramError(f"it did not come up:\n{log.read_text()[-4000:]}")
