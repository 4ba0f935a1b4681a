"""Thread-safe caches: a mapping of bounded size, and a way to share one call among concurrent threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Thread-safe mapping that drops the entries written longest ago when it is full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: dict[K, V] = {}
        self._lock = Lock()

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._items.get(key)

    def put(self, key: K, value: V) -> V:
        """Set the value of a key, and return it."""
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = value
            while len(self._items) > self._limit:
                del self._items[next(iter(self._items))]
        return value

    def forget(self, key: K) -> None:
        """Remove a key; do nothing if it is not there."""
        with self._lock:
            self._items.pop(key, None)


class SingleFlight(Generic[V]):
    """Let concurrent callers share one call per key, and its error if it raises.

    Results are not cached: a call that starts after the previous one has ended runs again. No lock is held during a
    call.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._in_progress: dict[Hashable, Future[V]] = {}

    def run(self, key: Hashable, call: Callable[[], V]) -> V:
        """Return the result of the call in progress for `key`; if there is none, run `call`."""
        with self._lock:
            future = self._in_progress.get(key)
            first = future is None
            if future is None:
                future = self._in_progress[key] = Future()
        if not first:
            return future.result()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._in_progress[key]
        return future.result()
