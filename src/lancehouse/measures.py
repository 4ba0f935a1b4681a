"""Counts and times of what happens in this process: reported by any layer, received by the code that publishes them.

Without a receiver, as in clients and jobs, a report costs one comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, ParamSpec, TypeVar

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    ThrottlingError,
    UnauthenticatedError,
)

P = ParamSpec("P")
R = TypeVar("R")

Event = Literal["commits", "storage_errors", "scan_cache", "scan_cache_bytes", "backend_calls", "backend_seconds"]
"""What can be reported. The labels of each are few and known: names of tables or callers are never among them."""
Receiver = Callable[[Event, tuple[str, ...], float], None]
"""Takes an event, its labels, and an amount or a number of seconds."""

STORAGE_ERRORS: tuple[tuple[type[LanceNamespaceError], str], ...] = (
    (ThrottlingError, "throttled"),
    (ServiceUnavailableError, "unavailable"),
    (UnauthenticatedError, "unauthenticated"),
    (PermissionDeniedError, "forbidden"),
)
"""Errors of a store that are reported, and their labels; others are about what was asked for."""

_receiver: Receiver | None = None


def publish_to(receiver: Receiver | None) -> None:
    """Send all further reports of this process to one receiver, or to none."""
    global _receiver
    _receiver = receiver


def report(event: Event, *labels: str, amount: float = 1.0) -> None:
    """Report that something happened."""
    if _receiver is not None:
        _receiver(event, labels, amount)


def report_storage_error(kind: type[LanceNamespaceError] | None) -> None:
    """Report an error that a store caused, unless it is about what was asked for."""
    if _receiver is not None and kind is not None:
        for error_class, label in STORAGE_ERRORS:
            if issubclass(kind, error_class):
                report("storage_errors", label)
                return


@contextmanager
def report_commit() -> Iterator[None]:
    """Report how the commit in the block ends."""
    try:
        yield
    except ConcurrentModificationError:
        report("commits", "conflict")
        raise
    except (ServiceUnavailableError, InternalError):
        report("commits", "failed")
        raise
    except LanceNamespaceError:
        report("commits", "refused")
        raise
    report("commits", "committed")


@contextmanager
def report_backend_call(backend: str) -> Iterator[None]:
    """Report how the call of a catalog in the block ends, and how long it takes."""
    started, outcome = perf_counter(), "failed"
    try:
        yield
        outcome = "done"
    except (ServiceUnavailableError, InternalError, UnauthenticatedError, ThrottlingError):
        raise
    except LanceNamespaceError:
        outcome = "refused"
        raise
    finally:
        report("backend_calls", backend, outcome)
        report("backend_seconds", backend, amount=perf_counter() - started)


@dataclass(frozen=True, slots=True)
class PoolState:
    """How much of a pool of threads or connections is in use."""

    size: int
    in_use: int
    waiting: int
    """Calls that wait for a thread or a connection."""


class CountedPool(ThreadPoolExecutor):
    """A thread pool that knows how many of its threads work, and how many calls wait for one."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self._size = threads
        self._in_use = 0
        self._counting = threading.Lock()

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call as soon as a thread is free."""
        return super().submit(self._run_counted, call, args, kwargs)

    def _run_counted(self, call: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        with self._counting:
            self._in_use += 1
        try:
            return call(*args, **kwargs)
        finally:
            with self._counting:
                self._in_use -= 1

    @property
    def state(self) -> PoolState:
        """How much of it is in use now."""
        return PoolState(self._size, self._in_use, self._work_queue.qsize())
