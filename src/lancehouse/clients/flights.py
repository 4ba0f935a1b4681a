"""One call for all threads that need its result at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

V = TypeVar("V")


class Flights(Generic[V]):
    """Calls under way, by key. No lock is held during one: whoever comes later waits for it, and shares its error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[V]] = {}

    def join(self, key: Hashable, call: Callable[[], V]) -> V:
        """The result of the call that is under way for `key`, else of this one."""
        with self._lock:
            flight = self._under_way.get(key)
            first = flight is None
            if flight is None:
                flight = self._under_way[key] = Future()
        if not first:
            return flight.result()
        try:
            flight.set_result(call())
        except BaseException as error:
            flight.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]
        return flight.result()
