"""SQLite: a file that any number of threads and processes read, and one at a time writes.

Reads take a connection of their thread and never wait. Writes of all threads go to one thread, which carries out all
that wait in one transaction: they share the wait for the disk (group commit), and each has a savepoint of its own.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, TypeVar

from lance_namespace.errors import InternalError, LanceNamespaceError, ServiceUnavailableError

from lancehouse.errors import CommitStateUnknownError
from lancehouse.store import failures
from lancehouse.store.statements import Row, Statement, Tx, Values

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a write waits for other processes."""
LONGEST_NAP_S = 0.003
BATCH = 128
"""Works in one transaction; more of them would let the first wait for long."""
READ_CACHE_KIB = 1000
JOURNAL_LIMIT = 64 << 20

BAD_VALUES = (OverflowError, UnicodeEncodeError)
"""What the driver raises of values before the database sees them."""
NOT_MADE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM})
"""Errors of COMMIT after which it is sure that nothing was written; of others it is not."""


def translated(error: sqlite3.Error | OverflowError | UnicodeEncodeError) -> LanceNamespaceError:
    """What the driver's error means."""
    if isinstance(error, BAD_VALUES):
        return failures.unstorable(error)
    if isinstance(error, sqlite3.IntegrityError):
        unique = error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return failures.TakenError(str(error)) if unique else failures.DanglingError(str(error))
    if isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such "):
        return failures.no_schema()
    if isinstance(error, sqlite3.DataError):
        return failures.unstorable(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return InternalError(f"the catalog's database refused a statement: {failures.first_line(error)}")
    return failures.unreachable(error)


class SqliteTx(Tx):
    """Here a statement that fails undoes itself, and who writes is alone."""

    __slots__ = ("_execute", "_execute_many")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute: Callable[[str, Any], sqlite3.Cursor] = connection.execute
        self._execute_many: Callable[[str, Any], sqlite3.Cursor] = connection.executemany

    def all(self, statement: Statement, values: Values) -> list[Row]:
        try:
            return self._execute(statement.sqlite, values).fetchall()
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise translated(error) from error

    def run(self, statement: Statement, values: Values) -> int:
        try:
            return self._execute(statement.sqlite, values).rowcount
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise translated(error) from error

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        try:
            self._execute_many(statement.sqlite, values)
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise translated(error) from error

    def attempt(self) -> AbstractContextManager[object]:
        return nullcontext()

    def lock(self, own: int, shared: Iterable[int]) -> None:
        pass


class Sqlite:
    """One file, in one process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._guard = threading.Lock()
        self._readers: list[_Reader] = []
        self._writer: _Writer | None = None
        self._ready = False
        self._closed = False

    def read(self, work: Callable[[Tx], T]) -> T:
        """Give a snapshot to `work`; within a read of the same thread, the same one."""
        return self._reader().read(work)

    def peek(self, work: Callable[[Tx], T]) -> T:
        """Let `work` make one statement."""
        return self._reader().peek(work)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Have `work` carried out by the writer."""
        writer = self._writer or self._new_writer()
        return writer.write(work)

    def close(self) -> None:
        """Finish the writes that wait, then leave the file."""
        with self._guard:
            self._closed = True
            writer, readers = self._writer, self._readers
            self._readers = []
        if writer is not None:
            writer.close()
        for reader in readers:
            reader.close()

    def connect(self, *, patience_s: float = PATIENCE_S) -> sqlite3.Connection:
        """A connection that is durable and keeps foreign keys; it is the caller's to close."""
        self._prepare()
        try:
            connection = sqlite3.connect(
                self._file, timeout=patience_s, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
            connection.execute("PRAGMA checkpoint_fullfsync=ON")
            connection.execute(f"PRAGMA journal_size_limit={JOURNAL_LIMIT}")
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error as error:
            raise translated(error) from error
        return connection

    def _reader(self) -> _Reader:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None or reader.closed:
            reader = self._local.reader = self._new_reader()
        return reader

    def _new_reader(self) -> _Reader:
        reader = _Reader(self.connect())
        with self._guard:
            if self._closed:
                reader.close()
                raise _closed()
            self._readers = [known for known in self._readers if known.owner.is_alive()] + [reader]
        return reader

    def _new_writer(self) -> _Writer:
        with self._guard:
            if self._closed:
                raise _closed()
            if self._writer is None:
                self._writer = _Writer(self.connect)
            return self._writer

    def _prepare(self) -> None:
        """Make the file, for its owner's eyes only: it holds hashes and a signing key."""
        if self._ready:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _create(self._file)
            with closing(sqlite3.connect(self._file, timeout=PATIENCE_S, isolation_level=None)) as connection:
                patiently(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        except (OSError, sqlite3.Error) as error:
            raise failures.unreachable(f"{self._file}: {error}") from error
        self._ready = True


class _Reader:
    """A thread's connection for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only=ON")
        connection.execute(f"PRAGMA cache_size=-{READ_CACHE_KIB}")
        self.owner = threading.current_thread()
        self.closed = False
        self._connection = connection
        self._execute = connection.execute
        self._tx = SqliteTx(connection)
        self._lock = threading.Lock()
        self._busy = False

    def __del__(self) -> None:
        self._connection.close()

    def read(self, work: Callable[[Tx], T]) -> T:
        if self._busy:
            return work(self._tx)
        with self._lock:
            self._begin()
            self._busy = True
            try:
                return work(self._tx)
            finally:
                self._busy = False
                self._execute("COMMIT")

    def peek(self, work: Callable[[Tx], T]) -> T:
        if self._busy:
            return work(self._tx)
        with self._lock:
            if self.closed:
                raise _closed()
            self._busy = True
            try:
                return work(self._tx)
            finally:
                self._busy = False

    def close(self) -> None:
        """Wait for a read that is under way, and go."""
        with self._lock:
            self.closed = True
            self._connection.close()

    def _begin(self) -> None:
        if self.closed:
            raise _closed()
        try:
            self._execute("BEGIN")
        except sqlite3.Error as error:
            raise translated(error) from error


class _Work:
    """A write that waits, and then what became of it. As a context it keeps the error of its block."""

    __slots__ = ("_done", "error", "result", "work")

    def __init__(self, work: Callable[[Tx], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return True

    def finish(self) -> None:
        self._done.release()

    def wait(self) -> Any:
        self._done.acquire()
        if self.error is not None:
            raise self.error
        return self.result


class _Writer:
    """The thread that writes."""

    def __init__(self, connect: Callable[..., sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[_Work] = deque()
        self._signal = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lancehouse-writer", daemon=True)
        self._thread.start()

    def write(self, work: Callable[[Tx], T]) -> T:
        if threading.current_thread() is self._thread:
            raise InternalError("a write within a write: pass the transaction on instead")
        waiting = _Work(work)
        with self._signal:
            if self._closing:
                raise _closed()
            self._waiting.append(waiting)
            self._signal.notify()
        result: T = waiting.wait()
        return result

    def close(self) -> None:
        with self._signal:
            self._closing = True
            self._signal.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            failed = self._carry_out(batch)
            for work in batch:
                if failed is not None and work.error is None:
                    work.error = failed()
                work.finish()
        if self._connection is not None:
            self._connection.close()

    def _next(self) -> list[_Work]:
        with self._signal:
            while not self._waiting and not self._closing:
                self._signal.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]

    def _carry_out(self, batch: Sequence[_Work]) -> Callable[[], LanceNamespaceError] | None:
        """Carry out all, each with its own result or error; what is returned is the error of those without one."""
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
            except sqlite3.Error as error:  # a full or broken disk undoes the whole transaction
                self._drop()
                reason = failures.first_line(error)
                return lambda: failures.unreachable(reason)
        return self._commit(connection)

    def _begin(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect(patience_s=0)
        connection = self._connection
        try:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error as error:
            self._drop()
            raise translated(error) from error
        return connection

    def _commit(self, connection: sqlite3.Connection) -> Callable[[], LanceNamespaceError] | None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._drop()
            reason = failures.first_line(error)
            if error.sqlite_errorcode & 0xFF in NOT_MADE:
                return lambda: failures.unreachable(reason)
            return lambda: CommitStateUnknownError(f"the change may or may not have been made: {reason}")
        return None

    def _drop(self) -> None:
        """Leave a connection that failed; what it had begun is undone."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def patiently(step: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Repeat a step for as long as another process is in its way.

    SQLite's own waiting sleeps for up to 100 ms at a time, in which others come first.
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


def _create(file: Path) -> None:
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _closed() -> ServiceUnavailableError:
    return ServiceUnavailableError("the catalog's database is closed")
