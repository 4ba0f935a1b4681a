"""One call for all threads that need its result at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """Calls under way, by key. No lock is held during one: whoever comes later waits for it, and shares its error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
