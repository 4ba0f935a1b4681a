"""The real `lancehouse serve`, in a process of its own on 127.0.0.1."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

PROGRAM = Path(sys.executable).parent / "lancehouse"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20

UNTIL_INPUT_ENDS = '"$@" </dev/null & server=$!; echo "pid $server"; cat >/dev/null; kill -TERM $server; wait $server'
"""A command that runs as long as somebody holds its standard input: it never outlives the test that started it."""


class ServeError(RuntimeError):
    """The server did not come up; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running server; `warehouse` is the name of the first one and `location` its folder."""

    uri: str
    iceberg: str
    pid: int
    group: int
    """The process group of the server, its workers and the shell that holds them."""
    warehouse: str
    location: Path
    log: Path

    @property
    def tables(self) -> str:
        """Of Iceberg's API: what all paths of the first warehouse begin with, as `/v1/config` says it."""
        return f"{self.iceberg}/v1/{self.warehouse}"

    def kill(self) -> None:
        """As when the machine stops: no process of the server does anything from now on."""
        os.killpg(self.group, signal.SIGKILL)


@contextmanager
def start_lancehouse(
    folder: Path,
    *,
    db: str | None = None,
    warehouses: Mapping[str, str | Path] | None = None,
    roots: Sequence[str] = (),
    workers: int = 1,
    retention: str = "0",
    options: Sequence[str] = (),
) -> Iterator[Served]:
    """Run the server until the block ends; started again on the same folder it has the same tables.

    Args:
        folder: where its log goes and, unless said otherwise, its database and its warehouse.
        db: URL of the database; by default SQLite.
        warehouses: names and locations; by default `main`.
        roots: more places where tables of the first warehouse may lie.
        workers: processes.
        retention: how long dropped tables are kept; by default not at all, as other catalogs have it.
        options: more of the command line.

    Raises:
        ServeError: it did not come up.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: str(place) for name, place in (warehouses or {"main": folder / "warehouse"}).items()}
    first, location = next(iter(places.items()))
    command = [
        *(str(PROGRAM), "serve", "--port", "0", "--db", db or f"sqlite:///{folder / 'catalog.db'}"),
        *(word for name, place in places.items() for word in ("--warehouse", f"{name}={place}")),
        *(("--config", str(_config(folder, {first: {"roots": list(roots)}}))) if roots else ()),
        *(("--workers", str(workers)) if workers > 1 else ()),
        *("--retention", retention),
        *options,
    ]
    log = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", UNTIL_INPUT_ENDS, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        addresses, pid = _wait(process, log)
        iceberg = next(address for address in addresses if address.endswith("/iceberg"))
        uri = iceberg.removesuffix("/iceberg")
        yield Served(uri, iceberg, pid, process.pid, first, Path(location), log)
    finally:
        _stop(process)


def _config(folder: Path, warehouses: Mapping[str, object]) -> Path:
    """What no option says; YAML, of which JSON is a part."""
    file = folder / "lancehouse.yaml"
    file.write_text(json.dumps({"warehouses": warehouses}))
    return file


def _wait(process: subprocess.Popen[bytes], log: Path) -> tuple[list[str], int]:
    """The addresses and the process id, as soon as the server is ready."""
    deadline = monotonic() + START_TIMEOUT_S
    while monotonic() < deadline:
        said = log.read_text(errors="replace")
        pid = re.search(r"^pid (\d+)$", said, re.MULTILINE)
        if pid and (ready := re.search(r"^.*\bready\b.*$\n(?:^ .*$\n)*", said, re.MULTILINE)):
            return re.findall(r"https?://[^\s\"',]+", ready.group()), int(pid.group(1))
        if pid and not _runs(int(pid.group(1))):
            break
        sleep(0.02)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
    raise ServeError(f"lancehouse serve did not come up; its log ends:\n{tail}")


def _runs(pid: int) -> bool:
    """Is it there, and not merely waiting for someone to take note of its end?"""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
