"""Several worker processes on one socket: started together, replaced when they crash, ended together."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

from lance_namespace.errors import ServiceUnavailableError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.server import process_memory
from lancehouse.server.http.observability import MULTIPROCESS
from lancehouse.server.settings import ServerSettings

logger = logging.getLogger(__name__)

TICK_S = 0.1
MOST_CRASHES = 5
WITHIN_S = 60.0
GRACE_S = 5.0
"""Beyond what requests are given to finish."""
SILENT_S = 20.0
"""After which a worker without a sign of life is taken to hang. Signs come every second from its event loop, which
turns however busy its threads are."""
LONGEST_TICK_S = 1.0
"""What one round of the parent counts at most: if it was itself stopped, or the machine was, its workers were not
silent for that long; and where the machine is so busy that a round takes longer, they are given more time."""
READY = b"\n"
"""What a worker's first line ends with; signs of life have none."""


class SilenceTracker:
    """How long each worker has been silent, in rounds of the parent."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def record_round(self, pids: Iterable[int], heard: Collection[int], elapsed_s: float) -> list[int]:
        """Take note of one round; those of the workers that hang."""
        counted = min(elapsed_s, LONGEST_TICK_S)
        self._seconds = {pid: 0.0 if pid in heard else self._seconds.get(pid, 0.0) + counted for pid in pids}
        return [pid for pid, silent_s in self._seconds.items() if silent_s > SILENT_S]


class WorkerSupervisor:
    """The parent's side."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, warehouses: list[Warehouse]) -> None:
        self._settings = settings
        self._listener = listener
        message = {
            "socket": listener.fileno(),
            "settings": settings.to_json(),
            "warehouses": [asdict(warehouse) for warehouse in warehouses],
        }
        self._startup_message = json.dumps(message).encode() + b"\n"
        self._metrics = tempfile.mkdtemp(prefix="lancehouse-metrics-")
        self._running: list[subprocess.Popen[bytes]] = []
        self._starting: set[int] = set()
        self._crashes: deque[float] = deque()
        self._is_stopping = False

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal comes.

        Raises:
            ServiceUnavailableError: workers die as fast as they are started.
        """
        with _handle_signals(self._stop):
            try:
                for _ in range(self._settings.workers):
                    self._start()
                self._watch(on_ready)
            finally:
                self._shut_down()
                shutil.rmtree(self._metrics, ignore_errors=True)

    def _start(self) -> None:
        with _block_interrupts():
            worker = subprocess.Popen(
                [sys.executable, "-m", "lancehouse.server.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listener.fileno()],
                env={**os.environ, MULTIPROCESS: self._metrics},
            )
        assert worker.stdin is not None
        worker.stdin.write(self._startup_message)
        worker.stdin.flush()
        self._running.append(worker)
        self._starting.add(worker.pid)

    def _watch(self, on_ready: Callable[[], None]) -> None:
        announced, silence, before = False, SilenceTracker(), time.monotonic()
        while not self._is_stopping:
            heard = self._read_heartbeats()
            before, elapsed_s = time.monotonic(), time.monotonic() - before
            serving = [each.pid for each in self._running if each.pid not in self._starting]
            self._kill_hanging(silence.record_round(serving, heard, elapsed_s))
            self._end_large()
            for worker in [each for each in self._running if each.poll() is not None]:
                self._replace(worker, announced)
            if not announced and not self._starting:
                announced = True
                on_ready()

    def _read_heartbeats(self) -> set[int]:
        """Wait a moment for workers that say they are ready, or alive; which did."""
        pipes = {each.stdout.fileno(): each for each in self._running if each.stdout}
        readable, _, _ = select.select(list(pipes), [], [], TICK_S)
        heard = set()
        for pipe in readable:
            if data := os.read(pipe, 4096):  # nothing: it has ended
                heard.add(pipes[pipe].pid)
                if READY in data:
                    self._starting.discard(pipes[pipe].pid)
        if readable and not heard:
            time.sleep(TICK_S)
        return heard

    def _kill_hanging(self, pids: Collection[int]) -> None:
        for worker in self._running:
            if worker.pid in pids and worker.poll() is None:
                logger.error("worker %d gave no sign of life for %g s and is killed", worker.pid, SILENT_S)
                worker.kill()  # a process that is stopped takes no other signal

    def _end_large(self) -> None:
        most = self._settings.max_memory
        for worker in self._running if most else ():
            if most and process_memory.resident_bytes(worker.pid) > most and worker.poll() is None:
                logger.error("worker %d held more than --max-memory, %d bytes, and is killed", worker.pid, most)
                worker.kill()

    def _replace(self, worker: subprocess.Popen[bytes], announced: bool) -> None:
        self._remove(worker)
        if not announced and worker.pid in self._starting:
            raise ServiceUnavailableError(f"a worker ended with code {worker.returncode} before it was ready")
        if self._is_stopping:
            return
        if worker.pid in self._starting:
            # One that had answered may have met a request that ends it. That is no reason to leave all others alone.
            self._count_crash()
        logger.warning("worker %d ended with code %d and is replaced", worker.pid, worker.returncode)
        self._starting.discard(worker.pid)
        self._start()

    def _count_crash(self) -> None:
        now = time.monotonic()
        self._crashes.append(now)
        while now - self._crashes[0] > WITHIN_S:
            self._crashes.popleft()
        if len(self._crashes) > MOST_CRASHES:
            raise ServiceUnavailableError(
                f"workers ended {len(self._crashes)} times within {WITHIN_S:g} s before they were ready; giving up"
            )

    def _remove(self, worker: subprocess.Popen[bytes]) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        self._running.remove(worker)
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                pipe.close()
        mark_process_dead(worker.pid, self._metrics)  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        """Let the workers finish what was begun; asked for again, end them."""
        end = subprocess.Popen.kill if self._is_stopping else subprocess.Popen.terminate
        self._is_stopping = True
        for worker in self._running:
            if worker.poll() is None:
                end(worker)

    def _shut_down(self) -> None:
        self._listener.close()
        if not self._is_stopping:
            self._stop()
        deadline = time.monotonic() + self._settings.limits.stop_s + GRACE_S
        for worker in list(self._running):
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            self._remove(worker)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """A process that is started here never gets the Ctrl-C that its parent gets too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _handle_signals(stop: Callable[[], None]) -> Iterator[None]:
    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
