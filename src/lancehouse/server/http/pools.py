"""Thread pools by kind of work, so that slow work of one kind does not block the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier
from typing import Any, Literal, ParamSpec, TypeVar

from lance_namespace.errors import ServiceUnavailableError

from lancehouse.measures import CountedPool, PoolState
from lancehouse.server.setting_table import ServerLimits

P = ParamSpec("P")
R = TypeVar("R")

PoolKind = Literal["requests", "scans", "rows", "uploads", "secrets", "events"]
"""Kinds of work.

Short requests; scan planning; reading and changing rows; receiving rows at the client's pace; checking secrets, each
of which keeps a core busy for a while; waiting for events.
"""
OWN_KINDS: tuple[PoolKind, ...] = ("requests", "scans", "rows", "uploads")
"""Kinds of work whose threads are started with the server."""
SECRET_THREADS = 2
"""Few: clients that send wrong secrets, before any authentication, must not take more of the machine."""

EVENT_THREADS = 16
"""Requests that wait for events at the same time; others wait for their turn."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Identifies a thread pool."""

    kind: PoolKind
    group: str = ""
    """The other server that the work waits for: each has a pool of its own. Empty for work of this server."""


class Pools:
    """The thread pools of a worker; those that `start` leaves out are created when they are first used."""

    def __init__(self, limits: ServerLimits) -> None:
        self._threads: dict[PoolKind, int] = {
            "requests": limits.threads,
            "scans": limits.scan_threads,
            "rows": limits.row_threads,
            "uploads": limits.upload_threads,
            "secrets": SECRET_THREADS,
            "events": EVENT_THREADS,
        }
        self._seconds: dict[PoolKind, float] = {"scans": limits.plan_s, "rows": limits.rows_s, "uploads": limits.rows_s}
        self._default_s = limits.handle_s
        self._pools: dict[PoolKey, CountedPool] = {}

    def start(self) -> None:
        """Start the threads for work of this server.

        Starting one blocks until it runs. While many others run, that takes some milliseconds, for which the event loop
        would wait.

        Raises:
            ServiceUnavailableError: this machine does not allow so many.
        """
        for kind in OWN_KINDS:
            # Each thread waits until all have been started: a pool gives the next call to a thread that is idle.
            barrier = Barrier(self._threads[kind] + 1)
            try:
                for _ in range(self._threads[kind]):
                    self.submit(PoolKey(kind), barrier.wait)
                barrier.wait()
            except RuntimeError as error:
                barrier.abort()  # lets those end that were started
                raise ServiceUnavailableError(
                    f"cannot start {self._threads[kind]} threads for {kind}: {error}; allow more processes (ulimit -u, "
                    "or the container's limit), or set fewer threads"
                ) from error

    def submit(self, key: PoolKey, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call in a pool as soon as a thread is free. To be called from the event loop's thread only."""
        pool = self._pools.get(key)
        if pool is None:
            name = f"{key.kind} {key.group}".strip()
            pool = self._pools[key] = CountedPool(self._threads[key.kind], name)
        return pool.submit(call, *args, **kwargs)

    def limit_s(self, key: PoolKey) -> float:
        """Return the time limit of a request in seconds, waiting for a thread included."""
        return self._seconds.get(key.kind, self._default_s)

    def states(self) -> dict[PoolKey, PoolState]:
        """Return how much of each pool is in use."""
        return {key: pool.state for key, pool in self._pools.items()}

    def close(self) -> None:
        """Accept no more work, and cancel what has not started."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


async def is_done_within(work: Future[Any], limit_s: float) -> bool:
    """Wait on the event loop for work of a thread; return whether it was done in time, whatever came of it.

    `asyncio.wait` on a wrapped future does the same, in two more turns of the event loop.
    """
    loop = asyncio.get_running_loop()
    end = loop.create_future()

    def wake_up() -> None:
        if not end.done():
            end.set_result(None)

    def report(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the server has stopped, and its event loop is closed
            loop.call_soon_threadsafe(wake_up)

    timer = loop.call_later(limit_s, wake_up)
    work.add_done_callback(report)
    try:
        await end
    finally:
        timer.cancel()
    return work.done()
