"""Worker processes of maintenance: run one on a server's settings, or start and watch one as a child.

A worker has the catalog in its own process: its commits take the same way as those of clients, and are recorded under
the name `maintenance`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, UnauthenticatedError

from lancehouse import in_process
from lancehouse.catalog import bootstrap
from lancehouse.catalog.callers import Grant, Identity, Role
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.connection import Connection
from lancehouse.jobs.address import TableAddress
from lancehouse.maintenance.worker import LOCAL_BYTES, ChooseEngine, MaintenanceWorker, WorkerOptions
from lancehouse.server import process_memory
from lancehouse.server.http.observability import Log, install_logging
from lancehouse.server.run import create_backends, die_with, open_catalog
from lancehouse.server.settings import ServerSettings, from_json

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog
    from lancehouse.gateway.backends import Backend
    from lancehouse.jobs.engine import Engine
    from lancehouse.store.model import MaintainedTable

logger = logging.getLogger(__name__)

MAINTENANCE = Identity("maintenance", (Grant(Role.ADMIN),))
"""Who commits. Nobody can call a worker from outside: it does not listen."""
RESTART_S = 5.0
"""Pause before a child that has ended is started again."""


class MaintenanceIdentity:
    """Implements `RequestAuthenticator` for an application that only this process can call."""

    def __init__(self, identity: Identity = MAINTENANCE) -> None:
        self._identity = identity

    def identify(self, headers: Mapping[str, str], *, blocking: bool = True) -> Identity:  # noqa: ARG002
        """Return who commits."""
        return self._identity

    def answer_token_request(
        self,
        form: Mapping[str, str],  # noqa: ARG002
        headers: Mapping[str, str],  # noqa: ARG002
        peer: str,  # noqa: ARG002
    ) -> tuple[int, dict[str, Any]]:
        """Refuse: there are no tokens here."""
        raise UnauthenticatedError("a maintenance worker has no tokens")


def open_backends(
    settings: ServerSettings, warehouses: Sequence[Warehouse], log: Log, who: Identity = MAINTENANCE
) -> tuple[Catalog, dict[str, Backend]]:
    """Open the catalog in this process; return it, and its warehouses and other backends, which `who` calls."""
    from lancehouse.server.http.application import App

    catalog = open_catalog(settings, warehouses)
    identity = MaintenanceIdentity(who)
    app = App(catalog, identity, limits=settings.limits, log=log)
    name = uuid4().hex
    in_process.register_server(name, app.answer_in_process)
    return catalog, create_backends(settings, catalog, identity, f"{in_process.SCHEME}://{name}/iceberg")


def find_warehouses(settings: ServerSettings) -> list[Warehouse]:
    """Return the warehouses that a server with these settings serves, as the database knows them.

    Raises:
        InvalidInputError: there is none, or one is elsewhere.
    """
    database = bootstrap.open_database(settings.db)
    try:
        return bootstrap.record_warehouses(database, settings.warehouses, settings.default, settings.roots)
    finally:
        database.close()


def run_worker(
    settings: ServerSettings,
    warehouses: Sequence[Warehouse],
    threads: int,
    stop: Event,
    choose_engine: ChooseEngine | None = None,
) -> None:
    """Maintain tables in this process until `stop` is set."""
    log = Log(settings.log_level)
    install_logging(log)
    catalog, backends = open_backends(settings, warehouses, Log("warning"))
    options = WorkerOptions(
        name=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}",
        threads=threads,
        most_jobs=settings.maintenance_jobs,
        poll_s=settings.maintenance_poll,
        functions=settings.maintenance_functions,
        sources=settings.maintenance_sources,
        catalogs={backend.name: backend.catalogs for backend in settings.backends},
    )
    try:
        # Before anything else: with a database that was restored, clean-up would delete what is newer.
        catalog.fence.start()
        MaintenanceWorker(catalog.maintenance, backends, options, choose_engine).run(stop)
    finally:
        catalog.fence.close()
        catalog.database.close()
        log.close()


def spark_chooser(master: str, endpoint: str | None, token: str | None, settings: ServerSettings) -> ChooseEngine:
    """Return a function that chooses Spark for large tables; tasks call the catalog over HTTP, other backends directly.

    Spark is started when the first large table is due.

    Raises:
        InvalidInputError: there is no endpoint, which tasks on other machines need.
    """
    if endpoint is None:
        raise InvalidInputError("Spark's tasks call the server over HTTP: give --endpoint, such as https://…/iceberg")
    from lancehouse.spark.engine import SparkEngine
    from lancehouse.spark.session import start_session

    others = {backend.name: backend for backend in settings.backends}
    lock = threading.Lock()
    engines: list[SparkEngine] = []

    def choose(table: MaintainedTable, size: int, _: Event) -> tuple[Engine, TableAddress] | None:
        if size < LOCAL_BYTES:
            return None
        with lock:
            if not engines:
                engines.append(SparkEngine(start_session(master, "lancehouse maintenance")))
        other = others.get(table.backend)
        if other is not None:
            return engines[0], TableAddress.parse(Connection(other.impl, other.properties), table.levels)
        properties = {"endpoint": endpoint, **({"auth_token": token} if token else {})}
        connection = Connection("lancehouse.IcebergNamespace", properties)
        return engines[0], TableAddress.parse(connection, (table.backend, *table.levels))

    return choose


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Event]:
    """Provide an event that SIGINT and SIGTERM set."""
    stop = Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def maintenance_process(settings: ServerSettings, warehouses: Sequence[Warehouse]) -> Iterator[None]:
    """Run a worker as a child while the block runs; it is started again if it ends.

    In a process of its own, so that it takes neither time nor memory from those that answer requests.
    """
    message = {"settings": asdict(settings), "warehouses": [asdict(warehouse) for warehouse in warehouses]}
    child = _Child(json.dumps(message).encode() + b"\n")
    try:
        yield
    finally:
        child.stop(settings.limits.stop_s)


class _Child:
    """A worker process, and the thread that starts it again if it ends."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._stopping = Event()
        self._lock = threading.Lock()
        """Held while a process is started, so that `stop` never misses one."""
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._watch, name="maintenance-child", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        with self._lock:
            self._stopping.set()
            process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()  # its leases run out
        self._thread.join(patience_s)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # Settings go through a pipe, as they hold secrets. It stays open as long as this process lives, and the child
        # ends when it closes. In a session of its own, so that Ctrl-C reaches the server alone, which stops the child.
        process = subprocess.Popen(
            [sys.executable, "-m", "lancehouse.maintenance.process"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._message)
            process.stdin.flush()
        return process

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            if self._stopping.is_set():
                return
            logger.warning("the maintenance process ended with code %d and is started again", code)
            while not self._restart():
                pass

    def _restart(self) -> bool:
        """Start the process again after a pause, unless it is to stop; return False if it must be tried again."""
        if self._stopping.wait(RESTART_S):
            return True
        with self._lock:
            if self._stopping.is_set():
                return True
            try:
                self._process = self._spawn()
            except OSError as error:  # such as no memory for a process at this moment
                logger.warning("the maintenance process cannot be started, and is tried again: %s", error)
                return False
        return True


def _wait_for_parent_end() -> None:
    os.read(0, 1)


def main() -> None:
    """Work on the settings that the parent writes to stdin, until it ends or sends SIGTERM."""
    process_memory.share_heaps()
    message = json.loads(sys.stdin.buffer.readline())
    settings = from_json(ServerSettings, message["settings"])
    warehouses = from_json(list[Warehouse], message["warehouses"])
    die_with(_wait_for_parent_end)
    with stop_on_signal() as stop:
        run_worker(settings, warehouses, settings.maintenance_threads, stop)


if __name__ == "__main__":
    main()
