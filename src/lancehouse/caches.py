"""Thread-safe caches: a mapping of bounded size, and a way to share one call among concurrent threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """Thread-safe dict that drops the entries written longest ago when it is full; `put` and `forget` change it.

    Reads take no lock: a single lookup in a dict is atomic.

    Args:
        limit: how much it may hold; the newest entry stays even if it is larger.
        size: returns how much of the limit a value takes; by default each takes 1.
    """

    def __init__(self, limit: int, size: Callable[[V], int] = lambda _: 1) -> None:
        super().__init__()
        self._limit = limit
        self._size = size
        self._total = 0
        self._lock = Lock()

    def put(self, key: K, value: V) -> V:
        """Set the value of a key, and return it."""
        with self._lock:
            self._remove(key)
            self[key] = value
            self._total += self._size(value)
            while self._total > self._limit and len(self) > 1:
                self._remove(next(iter(self)))
        return value

    def forget(self, key: K) -> None:
        """Remove a key; do nothing if it is not there."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        if key in self:
            self._total -= self._size(self.pop(key))


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
            # Only after the result is set, so that whoever finds the future here gets a result.
            with self._lock:
                del self._in_progress[key]
        return future.result()
