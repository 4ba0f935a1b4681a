"""Engines, which run the pieces of a job: the interface, and the one that runs them in threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from threading import Event
from typing import Protocol, TypeVar

from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError

from lancehouse import tracing

T = TypeVar("T")

is_repeated: ContextVar[bool] = ContextVar("is_repeated", default=False)
"""Whether an earlier attempt at the piece that is at work has failed; engines that repeat pieces set it."""

PIECES_EACH = 4
"""Number of pieces for each that runs at once, where some take longer than others."""

LOCAL_BYTES = 10 << 30
"""Up to this size of the data, commands use a `LocalEngine` unless the user chooses; above it, Spark if installed."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Number of pieces that are done, and of those known so far; more may become known later."""

    done: int
    total: int


ProgressCallback = Callable[[TaskProgress], None]


class JobCancelledError(InternalError):
    """The caller cancelled the job; what it had written is removed, or kept for the same call to go on from."""

    def __init__(self, message: str = "the job was cancelled") -> None:
        super().__init__(message)


class Engine(Protocol):
    """Runs the pieces of jobs. A job plans before and commits afterwards; it does not know who runs its pieces."""

    @property
    def parallelism(self) -> int:
        """Number of pieces that run at once."""

    @property
    def shares_memory(self) -> bool:
        """Whether one process runs all pieces, so that they can share what it holds in memory."""

    def run(
        self, pieces: Sequence[T], work: Callable[[T], Iterable[str]], resources: Mapping[str, float] | None = None
    ) -> list[str]:
        """Return the texts that `work` makes of all pieces, in their order.

        Args:
            pieces: the pieces. They and `work` may be sent to other processes, so they must not hold an open table.
            work: called once for each piece, or again if an attempt fails.
            resources: what a piece needs besides a processor, such as `{"gpu": 1}`, where the engine can assign it.

        Raises:
            LanceNamespaceError: what `work` raised. No piece is at work any more, unless its process was lost.
        """


def spread(items: Sequence[T], groups: int) -> list[Sequence[T]]:
    """Deal items out to at most so many groups, each of them a piece; neighbours, often alike, go to several."""
    return [items[first::groups] for first in range(min(groups, len(items)))]


class LocalEngine:
    """Runs pieces in threads of this process. Lance and Arrow do most of their work without Python's lock.

    Args:
        threads: number of pieces that run at once; by default the number of processors.
        report_progress: called with every piece that is done, in the thread that runs the job; it must not raise.
        cancelled: when this event is set, no further piece begins, and the job raises a `JobCancelledError` as soon as
            those that are at work have ended.
    """

    shares_memory = True

    def __init__(
        self,
        threads: int | None = None,
        report_progress: ProgressCallback | None = None,
        cancelled: Event | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise InvalidInputError(f"threads must be 1 or more, not {threads!r}")
        self._threads = threads or os.cpu_count() or 1
        self._report_progress = report_progress
        self._cancelled = cancelled or Event()
        self._done = self._total = 0

    @property
    def parallelism(self) -> int:
        """Number of pieces that run at once."""
        return self._threads

    def run(
        self,
        pieces: Sequence[T],
        work: Callable[[T], Iterable[str]],
        resources: Mapping[str, float] | None = None,  # noqa: ARG002 - this process has what it has
    ) -> list[str]:
        """Return the texts that `work` makes of all pieces, in their order. See `Engine.run`.

        The first piece that fails ends the run: no other begins, and those at work are waited for, so that nothing is
        written any more when the job removes what is left.
        """
        with tracing.span(f"job {tracing.name_work(work)}", {"lancehouse.pieces": len(pieces)}):
            return self._run(pieces, work)

    def _run(self, pieces: Sequence[T], work: Callable[[T], Iterable[str]]) -> list[str]:
        self._total += len(pieces)
        stopped = Event()

        def run_piece(piece: T) -> list[str]:
            if stopped.is_set() or self._cancelled.is_set():
                raise JobCancelledError
            with tracing.span("piece"):
                return list(work(piece))

        with ThreadPoolExecutor(self._threads, thread_name_prefix="lancehouse-job") as pool:
            # Each piece logs and traces as part of the job.
            futures = [pool.submit(copy_context().run, run_piece, piece) for piece in pieces]
            try:
                self._wait_for_all(futures)
            except BaseException:
                stopped.set()
                raise
        return [text for future in futures for text in future.result()]

    def _wait_for_all(self, futures: Sequence[Future[list[str]]]) -> None:
        pending = set(futures)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                _raise_error(future)
            self._done += len(done)
            if self._report_progress is not None:
                self._report_progress(TaskProgress(self._done, self._total))
        if self._cancelled.is_set():
            raise JobCancelledError


def _raise_error(future: Future[list[str]]) -> None:
    """Raise the error of a piece, as a Lance error."""
    error = future.exception()
    if isinstance(error, Exception) and not isinstance(error, LanceNamespaceError):
        raise InternalError(f"a piece of the job failed: {type(error).__name__}: {error}") from error
    if error is not None:
        raise error
