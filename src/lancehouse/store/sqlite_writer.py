"""The writer of a SQLite file: waiting writes share one transaction, and so one fsync (group commit)."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Any, TypeVar

from lance_namespace.errors import InternalError, LanceNamespaceError

from lancehouse.errors import CommitStateUnknownError
from lancehouse.store import database_errors
from lancehouse.store.sqlite_tx import SqliteTx, to_lance_error
from lancehouse.store.statements import Tx

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a write waits for other processes, in seconds."""
LONGEST_NAP_S = 0.003
"""Longest pause between two attempts, in seconds."""
BATCH = 128
"""Most writes in one transaction; with more, the first would wait too long."""
NOT_MADE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM})
"""Errors of COMMIT after which it is certain that nothing was written; after others it is not."""


class Writer:
    """The connection that writes, shared by all threads of a process.

    A thread that finds nobody writing becomes the leader: it carries out all waiting writes in one transaction, then
    wakes the first of those that came meanwhile to lead next. There is no writer thread: waking it, and being woken by
    it, would take longer than the write.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._guard = threading.Lock()
        self._queue: deque[_PendingWrite] = deque()
        self._busy = False
        self._closing = False
        self._leader = 0
        """Id of the thread that is writing, or 0."""

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction, in this thread or in another; it is durable on return."""
        # The leader would wait for itself.
        if threading.get_ident() == self._leader:
            raise InternalError("a write within a write: pass the transaction on instead")
        with self._guard:
            if self._closing:
                raise database_errors.closed_error()
            pending, is_first = self._enqueue(work)
        self._complete(pending, is_first)
        if pending.error is not None:
            raise pending.error
        result: T = pending.result
        return result

    def close(self) -> None:
        """Finish waiting writes; later ones are refused."""
        with self._guard:
            self._closing = True
            last, is_first = self._enqueue(lambda _: None)
        self._complete(last, is_first)
        self._close_connection()

    def _enqueue(self, work: Callable[[Tx], Any]) -> tuple[_PendingWrite, bool]:
        pending = _PendingWrite(work)
        self._queue.append(pending)
        is_first, self._busy = not self._busy, True
        return pending, is_first

    def _complete(self, pending: _PendingWrite, is_first: bool) -> None:
        if not is_first:
            pending.wait()
        # A waiting thread is woken either because its write is done, or because it is now the leader.
        if not pending.is_done:
            self._write_batch()

    def _write_batch(self) -> None:
        with self._guard:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
        make_error: Callable[[], LanceNamespaceError] | None = lambda: InternalError("the thread that writes has died")  # noqa: E731
        self._leader = threading.get_ident()
        try:
            make_error = self._run_batch(batch)
        finally:  # whatever happens, the next leader is woken and no thread waits for ever
            self._leader = 0
            with self._guard:
                self._busy = bool(self._queue)
                if self._busy:
                    self._queue[0].wake()
            _finish_batch(batch, make_error)

    def _run_batch(self, batch: Sequence[_PendingWrite]) -> Callable[[], LanceNamespaceError] | None:
        """Run all writes of a batch, each in its own savepoint, and commit.

        Each write keeps its own result or error. Returns a factory for the error of all writes that have none yet, or
        None if the commit succeeded. It is a factory because each waiting thread must raise an exception object of its
        own.
        """
        try:
            connection = self._begin()
        except LanceNamespaceError as error:
            reason, kind = str(error), type(error)
            return lambda: kind(reason)
        tx = SqliteTx(connection)
        for work in batch:
            with work:
                connection.execute("SAVEPOINT work")
                work.result = work.work(tx)
            try:
                if work.error is not None:
                    connection.execute("ROLLBACK TO work")
                connection.execute("RELEASE work")
            except sqlite3.Error as error:  # a full or broken disk rolls back the whole transaction
                self._close_connection()
                reason = database_errors.first_line(error)
                return lambda: database_errors.unreachable_error(reason)
        return self._commit(connection)

    def _begin(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
            # `retry_while_busy` does the waiting, with shorter pauses than SQLite's own.
            self._connection.execute("PRAGMA busy_timeout=0")
        connection = self._connection
        try:
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error as error:
            self._close_connection()
            raise to_lance_error(error) from error
        return connection

    def _commit(self, connection: sqlite3.Connection) -> Callable[[], LanceNamespaceError] | None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._close_connection()
            reason = database_errors.first_line(error)
            if error.sqlite_errorcode & 0xFF in NOT_MADE:
                return lambda: database_errors.unreachable_error(reason)
            return lambda: CommitStateUnknownError(f"the change may or may not have been made: {reason}")
        return None

    def _close_connection(self) -> None:
        """Close a connection that failed, which rolls back what it had begun."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _PendingWrite:
    """A write in the queue, later with its result or error. As a context manager it captures the error of its block."""

    __slots__ = ("_woken", "error", "is_done", "result", "work")

    def __init__(self, work: Callable[[Tx], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self._woken = threading.Lock()
        self._woken.acquire()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return True

    def wake(self) -> None:
        """Wake the waiting thread: its write is done, or it is its turn to lead."""
        self._woken.release()

    def wait(self) -> None:
        self._woken.acquire()


def retry_while_busy(step: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Repeat a step while another process holds the lock.

    SQLite's own busy handler sleeps for up to 100 ms at a time, during which others get ahead.
    """
    deadline = monotonic() + patience_s
    while True:
        try:
            step()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(random.uniform(0, LONGEST_NAP_S))  # noqa: S311
        else:
            return


def _finish_batch(batch: Sequence[_PendingWrite], make_error: Callable[[], LanceNamespaceError] | None) -> None:
    for work in batch:
        if make_error is not None and work.error is None:
            work.error = make_error()
        work.is_done = True
        work.wake()
