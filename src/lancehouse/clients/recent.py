"""What was learnt lately, up to a number of things."""

from __future__ import annotations

from collections.abc import Hashable
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
