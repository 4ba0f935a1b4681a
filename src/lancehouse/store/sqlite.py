"""SQLite in one file: reads by any number of threads and processes, one writer at a time.

Each thread reads with its own connection and never waits for writers (WAL). Writes of all threads go through one
connection: one thread at a time carries out all waiting writes in one transaction, so that they share one fsync (group
commit), each in its own savepoint.
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
"""Page cache of each thread: the next write empties it, and the system caches the file anyway."""
JOURNAL_LIMIT = 64 << 20
"""Size in bytes to which the write-ahead log is truncated."""
MOST_RECALLED = 2000
"""Most results that a thread caches."""


class Sqlite:
    """The connections of one process to one file. Safe to use from several threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._guard = threading.Lock()
        self._readers: list[_Reader] = []
        self._writer: Writer | None = None
        self._ready = False
        self._closed = False

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a snapshot; within a read of the same thread, in the same one."""
        return self._reader().read(work)

    def read_one(self, work: Callable[[Tx], T], key: Hashable = None) -> T:
        """Run `work`, which executes one statement, unless this thread's last result by `key` is still valid."""
        return self._reader().read_one(work, key)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction; it is durable on return."""
        writer = self._writer or self._new_writer()
        return writer.write(work)

    def close(self) -> None:
        """Finish waiting writes, then close all connections."""
        with self._guard:
            self._closed = True
            writer, readers = self._writer, self._readers
            self._readers = []
        if writer is not None:
            writer.close()
        for reader in readers:
            reader.close()

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with durable commits and foreign keys; the caller must close it."""
        self._prepare()
        try:
            connection = sqlite3.connect(
                self._file, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            # NORMAL would be many times faster, but can lose acknowledged commits when the power fails. `fullfsync`
            # matters on macOS, where a plain fsync does not reach the disk.
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
            # Readers of threads that have ended are dropped here, so that their connections are closed.
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
        """Create the file, readable by its owner only, because it holds hashes and a signing key; and turn on WAL."""
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

    def read_one(self, work: Callable[[Tx], T], key: Hashable = None) -> T:
        if self._busy:
            return work(self._tx)
        with self._lock:
            if self.closed:
                raise database_errors.closed_error()
            self._busy = True
            try:
                return work(self._tx) if key is None else self._read_cached(work, key)
            finally:
                self._busy = False

    def _read_cached(self, work: Callable[[Tx], T], key: Hashable) -> T:
        """Return a cached result if no other connection has written since, else run `work`.

        `PRAGMA data_version` tells that to each connection, and this one never writes. If something is written between
        the pragma and `work`, the result is newer than its version says, which does no harm.
        """
        try:
            version = self._execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise to_lance_error(error) from error
        if version != self._data_version or len(self._answers) >= MOST_RECALLED:
            self._answers.clear()
            self._data_version = version
        result: T | None = self._answers.get(key)
        if result is None and (result := work(self._tx)) is not None:
            self._answers[key] = result
        return result  # type: ignore[return-value]  # None, where that is what `work` returns

    def close(self) -> None:
        """Wait for a read in progress, then close."""
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
