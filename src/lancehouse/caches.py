"""Caches for threads: one that is bounded, and one call for all who need its result at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A mapping for all threads that forgets the oldest when it is full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: dict[K, V] = {}
        self._lock = Lock()

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """What is known, if anything."""
        return self._items.get(key)

    def put(self, key: K, value: V) -> V:
        """Learn something."""
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = value
            while len(self._items) > self._limit:
                del self._items[next(iter(self._items))]
        return value

    def forget(self, key: K) -> None:
        """Forget something, known or not."""
        with self._lock:
            self._items.pop(key, None)


class SingleFlight(Generic[V]):
    """Calls under way, by key. No lock is held during one: whoever comes later waits for it, and shares its error."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._in_progress: dict[Hashable, Future[V]] = {}

    def run(self, key: Hashable, call: Callable[[], V]) -> V:
        """The result of the call that is under way for `key`, else of this one."""
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
