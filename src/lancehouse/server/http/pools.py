"""Threads, in groups: who waits in one keeps nobody waiting in another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar

from lancehouse.server.http.limits import ServerLimits

P = ParamSpec("P")
R = TypeVar("R")

PoolKind = Literal["requests", "scans", "rows", "uploads", "secrets"]
"""Of work: short; plans of scans; rows that are read or changed; rows that come in, at the pace of who sends them;
secrets that are checked, each of which keeps a core busy for a while."""
SECRET_THREADS = 2
"""Few: whoever sends wrong secrets, without any authentication, gets no more of the machine."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Where work is done."""

    kind: PoolKind
    group: str = ""
    """Whom it waits for, if that is another server: each has threads of its own. Empty for this one."""


class Pools:
    """The threads of a worker; those of a place are there once something is done in it."""

    def __init__(self, limits: ServerLimits) -> None:
        self._threads: dict[PoolKind, int] = {
            "requests": limits.threads,
            "scans": limits.scan_threads,
            "rows": limits.row_threads,
            "uploads": limits.upload_threads,
            "secrets": SECRET_THREADS,
        }
        self._seconds: dict[PoolKind, float] = {"scans": limits.plan_s, "rows": limits.rows_s, "uploads": limits.rows_s}
        self._default_s = limits.handle_s
        self._pools: dict[PoolKey, ThreadPoolExecutor] = {}

    def submit(self, key: PoolKey, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have something done, as soon as a thread is free. From the event loop's thread alone."""
        pool = self._pools.get(key)
        if pool is None:
            name = f"{key.kind} {key.group}".strip()
            pool = self._pools[key] = ThreadPoolExecutor(self._threads[key.kind], name)
        return pool.submit(call, *args, **kwargs)

    def limit_s(self, key: PoolKey) -> float:
        """How long a request may wait and take."""
        return self._seconds.get(key.kind, self._default_s)

    def close(self) -> None:
        """Let no more work in."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
