"""Memory for what callers send: one budget for all bodies that are held at once."""

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
    """How much of the memory for bodies is in use. Threads and the event loop share it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._lock = threading.Lock()

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """A reservation of nothing yet, which grows with its request; released at the end, or by `release_after`."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            if not reservation.is_handed_over:
                reservation.release()

    def try_adjust(self, size: int, limit: int) -> bool:
        """Take some, unless more than `limit` would be in use then; a negative size gives it back."""
        with self._lock:
            if size > 0 and self.used + size > limit:
                return False
            self.used += size
            return True


class Reservation:
    """What one request holds of the budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.size = 0
        self.is_handed_over = self._is_over = False
        self._budget = budget

    def grow(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            PayloadTooLargeError: the request alone would need more than there is.
            ServiceUnavailableError: others hold too much at the moment.
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
        """Hold so many bytes more if that leaves half of all memory to others; for those who can do without."""
        if self._is_over or not self._budget.try_adjust(size, self._budget.total // 2):
            return False
        self.size += size
        return True

    def shrink(self, size: int) -> None:
        """Give some back."""
        size = min(size, self.size)
        self._budget.try_adjust(-size, 0)
        self.size -= size

    def release(self) -> None:
        """Give all back, and hold nothing more."""
        self._is_over = True
        self.shrink(self.size)

    def release_after(self, work: Future[Response]) -> None:
        """Give all back when `work` is done, however long others wait for it, and its answer is sent.

        The rows of an answer are made while they are sent, and what makes them keeps the request.
        """
        self.is_handed_over = True
        work.add_done_callback(self._release_when_sent)

    def _release_when_sent(self, work: Future[Response]) -> None:
        if work.cancelled() or work.exception() is not None or work.result().parts is None:
            self.release()
        else:
            weakref.finalize(work.result().parts, self.release)
