"""Memory budget for request bodies: one limit for all bodies that a worker holds at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from lance_namespace.errors import ServiceUnavailableError

from lancehouse.server.http.errors import PayloadTooLargeError
from lancehouse.server.http.responses import Response


class MemoryBudget:
    """Counts the bytes reserved for request bodies. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._lock = threading.Lock()

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Open an empty reservation; it is released when the context ends, or later if `release_after` was called."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            if not reservation.is_handed_over:
                reservation.release()

    def try_adjust(self, size: int, limit: int) -> bool:
        """Reserve `size` bytes and return True, unless more than `limit` would be in use; a negative size releases."""
        with self._lock:
            if size > 0 and self.used + size > limit:
                return False
            self.used += size
            return True


class Reservation:
    """The bytes that one request has reserved."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.size = 0
        self.is_handed_over = self._is_over = False
        self._budget = budget

    def grow(self, size: int) -> None:
        """Reserve `size` more bytes.

        Raises:
            PayloadTooLargeError: the request alone would need more than the whole budget.
            ServiceUnavailableError: other requests hold too much at the moment.
        """
        total = self._budget.total
        if self.size + size > total:
            raise PayloadTooLargeError(
                f"the request takes more than {total} bytes of memory, which is all that the server has for requests; "
                "send it in parts"
            )
        if self._is_over or not self._budget.try_adjust(size, total):
            raise ServiceUnavailableError("the server holds as many requests as its memory allows; try again")
        self.size += size

    def try_grow(self, size: int) -> bool:
        """Reserve `size` more bytes if half of the budget stays free; return whether it did."""
        if self._is_over or not self._budget.try_adjust(size, self._budget.total // 2):
            return False
        self.size += size
        return True

    def shrink(self, size: int) -> None:
        """Release some bytes."""
        size = min(size, self.size)
        self._budget.try_adjust(-size, 0)
        self.size -= size

    def release(self) -> None:
        """Release all bytes; the reservation cannot grow again."""
        self._is_over = True
        self.shrink(self.size)

    def release_after(self, work: Future[Response]) -> None:
        """Release all bytes once `work` is done and its response is sent, even if the request has timed out before.

        Rows of a response are produced while they are sent, and the iterator that produces them holds on to the
        request.
        """
        self.is_handed_over = True
        work.add_done_callback(self._release_when_sent)

    def _release_when_sent(self, work: Future[Response]) -> None:
        if work.cancelled() or work.exception() is not None or work.result().parts is None:
            self.release()
        else:
            weakref.finalize(work.result().parts, self.release)
