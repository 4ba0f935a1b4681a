"""Prometheus on 127.0.0.1, and its promtool, from Debian's package, which is unpacked and not installed.

`python -m tests.servers.prometheus` brings it, where there is apt-get.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from lancehouse.spark.java import cache_folder
from tests.servers.jars import once
from tests.servers.programs import ProgramError, find_free_port, run_program

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    endpoint: str

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        with urlopen(f"{self.endpoint}/api/v1/{path}?{urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]


def find_program(name: str = "prometheus") -> Path | None:
    """A program of the package, unpacked or installed; None if there is none."""
    unpacked = cache_folder() / "prometheus" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    return Path(found) if found else None


def bring() -> None:
    """Download and unpack the package, unless that was done or it is installed.

    Raises:
        ProgramError: there is no apt-get, or it failed.
    """
    if find_program() is None:
        once(cache_folder() / "prometheus", _unpack)


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ProgramError("Prometheus comes from Debian's packages, and there is no apt-get")
    with TemporaryDirectory() as temporary:
        try:
            for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg-deb -x prometheus_*.deb ."]):
                subprocess.run(command, cwd=temporary, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ProgramError(f"apt-get brought no Prometheus: {error}") from error
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("prometheus", "promtool"):
            shutil.copy(Path(temporary, "usr", "bin", name), folder / name)


@contextmanager
def start_prometheus(folder: Path, config: Path) -> Iterator[Prometheus]:
    """Run the server until the block ends.

    Raises:
        ProgramError: there is none, or it did not come up.
    """
    program = find_program()
    if program is None:
        raise ProgramError("there is no Prometheus: `python -m tests.servers.prometheus` brings it")
    port = find_free_port()
    command: list[str | Path] = [
        *(program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    os.environ.setdefault("no_proxy", "127.0.0.1")
    with run_program(command, port, folder / "prometheus.log"):
        yield Prometheus(f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    try:
        bring()
    except ProgramError as error:
        print(f"{error}\nThe tests of the dashboard and the alerts say that they are skipped.")
