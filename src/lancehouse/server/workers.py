"""Supervision of worker processes that share one socket: start, heartbeats, replacement after crashes, shutdown."""

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
from contextlib import contextmanager, suppress
from dataclasses import asdict
from queue import SimpleQueue
from types import FrameType
from typing import Any

from lance_namespace.errors import ServiceUnavailableError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.log_lines import LEVELS
from lancehouse.server import process_memory
from lancehouse.server.http.observability import MULTIPROCESS, Log, install_logging, record_restart
from lancehouse.server.run import Changes, ReadSettings, die_with, find_changes, run
from lancehouse.server.settings import ServerSettings, from_json

logger = logging.getLogger(__name__)

TICK_S = 0.1
MOST_CRASHES = 5
WITHIN_S = 60.0
GRACE_S = 5.0
"""Seconds that workers get to end, in addition to the time that requests get to finish."""
SILENT_S = 20.0
"""Seconds without a heartbeat after which a worker is considered hung.

Heartbeats come every second from its event loop, which runs however busy its threads are.
"""
LONGEST_TICK_S = 1.0
"""Most seconds of silence that one round of the parent counts.

If the parent or the whole machine was suspended, its workers were not silent for that long; and where the machine is
so busy that a round takes longer, workers get more time.
"""
READY = b"\n"
"""Ends a worker's first line, which says that it is ready; heartbeats contain none."""


class SilenceTracker:
    """Tracks how long each worker has sent no heartbeat, in rounds of the parent."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def record_round(self, pids: Iterable[int], heard_pids: Collection[int], elapsed_s: float) -> list[int]:
        """Record one round, and return the process ids of workers that hang."""
        counted_s = min(elapsed_s, LONGEST_TICK_S)
        self._seconds = {pid: 0.0 if pid in heard_pids else self._seconds.get(pid, 0.0) + counted_s for pid in pids}
        return [pid for pid, silent_s in self._seconds.items() if silent_s > SILENT_S]


class WorkerSupervisor:
    """The parent process: starts and watches the workers."""

    def __init__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        warehouses: list[Warehouse],
        read_again: ReadSettings | None = None,
    ) -> None:
        """Create the parent of workers; `read_again` reads the settings once more when SIGHUP comes."""
        self._settings = settings
        self._read_again = read_again
        self._is_change_due = False
        self._listener = listener
        message = {
            "socket": listener.fileno(),
            "settings": asdict(settings),
            "warehouses": [asdict(warehouse) for warehouse in warehouses],
        }
        self._message = message
        self._metrics = tempfile.mkdtemp(prefix="lancehouse-metrics-")
        self._running: list[subprocess.Popen[bytes]] = []
        self._starting: set[int] = set()
        self._killed: dict[int, str] = {}
        """Why workers were killed, by process id."""
        self._crashes: deque[float] = deque()
        self._is_stopping = False

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal comes.

        Raises:
            ServiceUnavailableError: workers end before they are ready, too often in a short time.
        """
        log = self._log = Log(self._settings.log_level)
        install_logging(log)
        with _handle_signals(self._stop, self._request_change):
            try:
                for _ in range(self._settings.workers):
                    self._start()
                self._watch(on_ready)
            finally:
                self._shut_down()
                shutil.rmtree(self._metrics, ignore_errors=True)
                log.close()

    def _start(self) -> None:
        with _block_interrupts():
            worker = subprocess.Popen(
                [sys.executable, "-m", "lancehouse.server.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listener.fileno()],
                env={**os.environ, MULTIPROCESS: self._metrics},
            )
        assert worker.stdin is not None
        # Through a pipe, because the settings hold secrets, which other users could read from a command line.
        self._send_settings(worker)
        self._running.append(worker)
        logger.info("worker %d starts", worker.pid)
        self._starting.add(worker.pid)

    def _watch(self, on_ready: Callable[[], None]) -> None:
        is_announced, silence, before = False, SilenceTracker(), time.monotonic()
        while not self._is_stopping:
            heard_pids = self._read_heartbeats()
            before, elapsed_s = time.monotonic(), time.monotonic() - before
            serving_pids = [process.pid for process in self._running if process.pid not in self._starting]
            self._kill_hanging(silence.record_round(serving_pids, heard_pids, elapsed_s))
            self._end_large()
            self._change_settings()
            for worker in [process for process in self._running if process.poll() is not None]:
                self._replace(worker, is_announced)
            if not is_announced and not self._starting:
                is_announced = True
                on_ready()

    def _send_settings(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and is replaced
            worker.stdin.write(json.dumps(self._message).encode() + b"\n")
            worker.stdin.flush()

    def _request_change(self) -> None:
        self._is_change_due = self._read_again is not None

    def _change_settings(self) -> None:
        """Read the settings again if a signal asked for it, and pass on to all workers what can be changed."""
        if not self._is_change_due or self._read_again is None:
            return
        self._is_change_due = False
        if (changes := find_changes(self._settings, self._read_again)) is None:
            return
        self._settings = changes[0].settings
        self._message["settings"] = asdict(self._settings)
        self._log.level = LEVELS[self._settings.log_level]
        install_logging(self._log)
        logger.warning("%s", changes[0])
        for worker in self._running:
            self._send_settings(worker)

    def _read_heartbeats(self) -> set[int]:
        """Wait up to `TICK_S` for messages of workers; return the process ids of those that sent one."""
        pipes = {process.stdout.fileno(): process for process in self._running if process.stdout}
        readable_pipes, _, _ = select.select(list(pipes), [], [], TICK_S)
        heard_pids = set()
        for pipe in readable_pipes:
            if data := os.read(pipe, 4096):  # empty: the worker has ended
                heard_pids.add(pipes[pipe].pid)
                if READY in data:
                    self._starting.discard(pipes[pipe].pid)
        # The pipe of a worker that has ended is always readable: without a pause this would be a busy loop.
        if readable_pipes and not heard_pids:
            time.sleep(TICK_S)
        return heard_pids

    def _kill_hanging(self, pids: Collection[int]) -> None:
        for worker in self._running:
            if worker.pid in pids:
                self._kill(worker, "hung", f"did not respond for {SILENT_S:g} s")

    def _end_large(self) -> None:
        most = self._settings.max_memory
        for worker in self._running if most else ():
            if most and process_memory.resident_bytes(worker.pid) > most:
                self._kill(worker, "memory", f"holds more than --max-memory, {most} bytes")

    def _kill(self, worker: subprocess.Popen[bytes], why: str, reason: str) -> None:
        # A large process takes a while to end: it is still there in the next rounds.
        if worker.pid not in self._killed and worker.poll() is None:
            logger.error("worker %d %s: it is killed and replaced", worker.pid, reason)
            self._killed[worker.pid] = why
            worker.kill()  # a suspended process reacts to no other signal

    def _replace(self, worker: subprocess.Popen[bytes], is_announced: bool) -> None:
        self._remove(worker)
        if not is_announced and worker.pid in self._starting:
            raise ServiceUnavailableError(f"a worker ended with code {worker.returncode} before it was ready")
        if self._is_stopping:
            return
        if worker.pid in self._starting:
            # Only crashes before readiness count: a worker that had served may have met a request that kills it, which
            # is no reason to stop serving all others.
            self._count_crash()
        logger.warning("worker %d ended with code %d and is replaced", worker.pid, worker.returncode)
        self._starting.discard(worker.pid)
        record_restart(self._metrics, self._killed.pop(worker.pid, "crashed"))
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
        """Ask the workers to finish their requests and end; on a second call, kill them."""
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
    """Block SIGINT and SIGHUP in processes started inside: they get them too, but only the parent handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _handle_signals(stop: Callable[[], None], hang_up: Callable[[], None]) -> Iterator[None]:
    calls = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hang_up}

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        calls[signal.Signals(number)]()

    before = {number: signal.signal(number, on_signal) for number in calls}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report_ready() -> None:
    os.write(1, b"ready\n")


def _send_heartbeat() -> None:
    with suppress(BlockingIOError, BrokenPipeError):  # nobody reads: the parent is suspended or gone
        os.write(1, b".")


def _read_messages() -> Iterator[dict[str, Any]]:
    """Yield what the parent sends, until it ends."""
    rest = b""
    # Not through `sys.stdin`, whose lock would still be held when the interpreter exits.
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def main() -> None:
    """Run a worker, which gets its settings through stdin, and in each further line those that are to change.

    It serves on the socket that the parent has bound. The parent has blocked SIGINT: it alone decides when to stop,
    and while it lives, stdin stays open.
    """
    process_memory.share_heaps()
    messages = _read_messages()
    message = next(messages)
    listener = socket.socket(fileno=message["socket"])
    warehouses = from_json(list[Warehouse], message["warehouses"])
    changes: Changes = SimpleQueue()

    def follow_parent() -> None:
        for request in messages:
            settings = from_json(ServerSettings, request["settings"])
            changes.put(lambda settings=settings: settings)  # type: ignore[misc]

    die_with(follow_parent)
    # A heartbeat must not block the event loop when the parent does not read its pipe.
    os.set_blocking(1, False)
    settings = from_json(ServerSettings, message["settings"])
    run(settings, listener, warehouses, _report_ready, _send_heartbeat, changes=changes)


if __name__ == "__main__":
    main()
