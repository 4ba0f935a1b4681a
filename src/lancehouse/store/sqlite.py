"""SQLite: a file that any number of threads and processes read, and one at a time writes.

Reads take a connection of their thread and never wait. Writes of all threads go through one connection: one thread at a
time carries out all that wait in one transaction, so that they share the wait for the disk (group commit), and each has
a savepoint of its own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Hashable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from lancehouse.store import database_errors
from lancehouse.store.sqlite_tx import SqliteTx, to_lance_error
from lancehouse.store.sqlite_writer import PATIENCE_S, Writer, retry_while_busy
from lancehouse.store.statements import Tx

T = TypeVar("T")

READ_CACHE_KIB = 256
"""Of each thread: the next write empties it, and the system has the file in memory anyway."""
JOURNAL_LIMIT = 64 << 20
MOST_RECALLED = 2000
"""Answers that a thread remembers."""


class Sqlite:
    """One file, in one process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._guard = threading.Lock()
        self._readers: list[_Reader] = []
        self._writer: Writer | None = None
        self._ready = False
        self._closed = False

    def read(self, work: Callable[[Tx], T]) -> T:
        """Give a snapshot to `work`; within a read of the same thread, the same one."""
        return self._reader().read(work)

    def read_one(self, work: Callable[[Tx], T]) -> T:
        """Let `work` make one statement."""
        return self._reader().read_one(work)

    def read_cached(self, key: Hashable, work: Callable[[Tx], T | None]) -> T | None:
        """As `read_one`, unless the answer of this thread's last time still holds."""
        return self._reader().read_cached(key, work)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Have `work` carried out."""
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

    def connect(self) -> sqlite3.Connection:
        """A connection that is durable and keeps foreign keys; it is the caller's to close."""
        self._prepare()
        try:
            connection = sqlite3.connect(
                self._file, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
            connection.execute("PRAGMA checkpoint_fullfsync=ON")
            connection.execute(f"PRAGMA journal_size_limit={JOURNAL_LIMIT}")
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error as error:
            raise to_lance_error(error) from error
        return connection

    def _reader(self) -> _Reader:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None or reader.closed:
            reader = self._local.reader = self._new_reader()
        return reader

    def _new_reader(self) -> _Reader:
        connection = self.connect()
        connection.execute("PRAGMA query_only=ON")
        connection.execute(f"PRAGMA cache_size=-{READ_CACHE_KIB}")
        reader = _Reader(connection)
        with self._guard:
            if self._closed:
                reader.close()
                raise database_errors.closed_error()
            self._readers = [other for other in self._readers if other.owner.is_alive()] + [reader]
        return reader

    def _new_writer(self) -> Writer:
        with self._guard:
            if self._closed:
                raise database_errors.closed_error()
            if self._writer is None:
                self._writer = Writer(self.connect)
            return self._writer

    def _prepare(self) -> None:
        """Make the file, for its owner's eyes only: it holds hashes and a signing key."""
        if self._ready:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _create_file(self._file)
            with closing(sqlite3.connect(self._file, timeout=PATIENCE_S, isolation_level=None)) as connection:
                retry_while_busy(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        except (OSError, sqlite3.Error) as error:
            raise database_errors.unreachable_error(f"{self._file}: {error}") from error
        self._ready = True


class _Reader:
    """A thread's connection for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.owner = threading.current_thread()
        self.closed = False
        self._connection = connection
        self._execute = connection.execute
        self._tx = SqliteTx(connection)
        self._lock = threading.Lock()
        self._busy = False
        self._answers: dict[Hashable, Any] = {}
        self._data_version = -1

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
                if self._connection.in_transaction:
                    self._execute("COMMIT")

    def read_one(self, work: Callable[[Tx], T]) -> T:
        if self._busy:
            return work(self._tx)
        with self._lock:
            if self.closed:
                raise database_errors.closed_error()
            self._busy = True
            try:
                return work(self._tx)
            finally:
                self._busy = False

    def read_cached(self, key: Hashable, work: Callable[[Tx], T | None]) -> T | None:
        """SQLite tells each connection whether another one has written; this one never does.

        What is written between that and `work` makes an answer newer than its version says, which does no harm.
        """
        if self._busy:
            return work(self._tx)
        version = self.read_one(self._read_data_version)
        if version != self._data_version or len(self._answers) >= MOST_RECALLED:
            self._answers.clear()
            self._data_version = version
        answer: T | None = self._answers.get(key)
        if answer is None and (answer := self.read_one(work)) is not None:
            self._answers[key] = answer
        return answer

    def _read_data_version(self, tx: Tx) -> int:  # noqa: ARG002
        try:
            return int(self._execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise to_lance_error(error) from error

    def close(self) -> None:
        """Wait for a read that is under way, and go."""
        with self._lock:
            self.closed = True
            self._connection.close()

    def _begin(self) -> None:
        if self.closed:
            raise database_errors.closed_error()
        try:
            self._execute("BEGIN")
        except sqlite3.Error as error:
            raise to_lance_error(error) from error


def _create_file(file: Path) -> None:
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
