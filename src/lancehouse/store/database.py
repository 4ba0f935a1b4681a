"""The `Database` of a catalog: transactions on SQLite in a file, or on Postgres.

On SQLite, each thread reads with its own connection and never waits for writers (WAL). Writes of all threads go through
one connection: one thread at a time carries out all waiting writes in one transaction, so that they share one fsync
(group commit), each in its own savepoint.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError

from lancehouse import tracing
from lancehouse.errors import CommitStateUnknownError
from lancehouse.measures import PoolState
from lancehouse.store import statements
from lancehouse.store.statements import Row, Statement, Tx, Values

if TYPE_CHECKING:
    from lancehouse.store.postgres import Postgres

T = TypeVar("T")

SCHEMES = {"postgres", "postgresql", "postgresql+psycopg"}
EXPECTED = "expected sqlite:///FILE or postgresql://USER@HOST/DATABASE"


class Database:
    """Transactions on one database, for all threads of a process; each process opens its own connections."""

    def __init__(self, url: str) -> None:
        """Check `url`; nothing is opened yet.

        Raises:
            InvalidInputError: the kind of database is unknown, or the URL cannot be parsed.
        """
        self.file: Path | None = None
        """SQLite's file, or None."""
        self.url = ""
        """Postgres' URL, including its password."""
        self.name: str
        """The URL without secrets."""
        scheme, _, rest = url.partition(":")
        if scheme == "sqlite":
            self.file = _parse_sqlite_path(rest)
            self.name = f"sqlite:///{self.file}"
        elif scheme in SCHEMES:
            self.url = f"postgresql:{rest}"
            self.name = _redact_url(self.url)
        else:
            raise InvalidInputError(f"no such kind of database: {EXPECTED}")
        self.is_local = self.file is not None
        """Whether reads are so fast that an event loop can do them itself."""
        self._engines: dict[int, Sqlite | Postgres] = {}
        self._attributes = {"db.system.name": "sqlite" if self.is_local else "postgresql"}

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one consistent snapshot and return its result. A nested read of the thread shares the snapshot.

        Raises:
            ServiceUnavailableError: the database cannot be reached.
        """
        if not tracing.is_exporting:  # a span that does nothing would cost as much as a cached read
            return self.engine().read(work)
        with tracing.span("database read", self._attributes):
            return self.engine().read(work)

    def read_one(self, work: Callable[[Tx], T], key: Hashable = None) -> T:
        """Run `work`, which executes a single statement: this needs no transaction, so it is cheaper than `read`.

        With a `key`, which identifies what `work` reads, this thread's last result is returned if no process has
        written anything since. None is not cached.
        """
        if not tracing.is_exporting:
            return self.engine().read_one(work, key)
        with tracing.span("database read", self._attributes):
            return self.engine().read_one(work, key)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one transaction, which is durable when this returns.

        An error that `work` raises rolls back its changes and is raised here. `work` may run in another thread, more
        than once, and while others wait for it: it must do nothing but use its transaction.

        Raises:
            ServiceUnavailableError: the database cannot be reached; nothing was changed.
            CommitStateUnknownError: it is not known whether the change was made.
        """
        if not tracing.is_exporting:
            return self.engine().write(work)
        with tracing.span("database write", self._attributes):
            return self.engine().write(work)

    @property
    def pool_state(self) -> PoolState:
        """The connections to Postgres; of SQLite the one that writes."""
        return self.engine().pool_state

    def close(self) -> None:
        """Finish waiting writes and close the connections; later calls are refused."""
        self.engine().close()

    def engine(self) -> Sqlite | Postgres:
        """Return the connections of this process.

        Those inherited through a fork are left alone: closing them here would disturb the parent process.
        """
        pid = os.getpid()
        # Two threads may both open one here, of which one is dropped: it has no connections before its first use.
        return self._engines.get(pid) or self._engines.setdefault(pid, self._open())

    def _open(self) -> Sqlite | Postgres:
        if self.file is not None:
            return Sqlite(self.file)
        from lancehouse.store.postgres import Postgres

        return Postgres(self.url)


def _parse_sqlite_path(rest: str) -> Path:
    if not rest.startswith("///") or rest in ("///", "///:memory:") or rest.startswith("///file:"):
        raise InvalidInputError(
            "the database must be a file: sqlite:///FILE (relative) or sqlite:////FOLDER/FILE; one in memory would "
            "forget what it acknowledged"
        )
    if "?" in rest:
        raise InvalidInputError("a URL of SQLite has no options: sqlite:///FILE")
    return Path(rest.removeprefix("///"))


def _redact_url(url: str) -> str:
    """Return a URL of Postgres without its secrets, which may also be in its options."""
    if find_spec("psycopg") is None:
        raise InvalidInputError("Postgres needs its driver: pip install 'lancehouse[postgres]'")
    from lancehouse.store.postgres import check_url

    check_url(url)
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


READ_CACHE_KIB = 256
"""Page cache of each thread: the next write empties it, and the system caches the file anyway."""
JOURNAL_LIMIT = 64 << 20
"""Size in bytes to which the write-ahead log is truncated."""
MOST_FOREIGN_READERS = 64
"""Most connections of threads that Python did not start; the system uses ids of threads that have ended again."""
MOST_RECALLED = 2000
"""Most results that a thread caches."""


class Sqlite:
    """The connections of one process to one file. Safe to use from several threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._guard = threading.Lock()
        self._readers: list[_Reader] = []
        self._foreign_readers: dict[int, _Reader] = {}
        """Readers of threads that Python did not start, by the thread's id."""
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

    @property
    def pool_state(self) -> PoolState:
        """The connection that writes, and the writes that wait for it."""
        return PoolState(1, 0, 0) if self._writer is None else self._writer.pool_state

    def close(self) -> None:
        """Finish waiting writes, then close all connections."""
        with self._guard:
            self._closed = True
            writer, readers = self._writer, [*self._readers, *self._foreign_readers.values()]
            self._readers = []
            self._foreign_readers = {}
        if writer is not None:
            writer.close()
        for reader in readers:
            reader.close()

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with durable commits and foreign keys; the caller must close it."""
        self._prepare()
        try:
            # Not only the thread that opens a connection uses it: writes are carried out by whichever thread leads, and
            # readers are closed by others. Locks of ours keep them apart. Transactions are begun by us, too.
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
            reader = self._local.reader = self._find_foreign_reader() or self._new_reader()
        return reader

    def _find_foreign_reader(self) -> _Reader | None:
        """Return the reader of a thread that Python did not start, if it has one.

        Lance calls its namespace from such threads. To Python each call is a new thread, which has no values of its own
        yet, and whose end nobody sees: without this, each call would leave an open connection.
        """
        reader = self._foreign_readers.get(threading.get_ident())
        return None if reader is None or reader.closed else reader

    def _new_reader(self) -> _Reader:
        connection = self.connect()
        connection.execute("PRAGMA query_only=ON")
        connection.execute(f"PRAGMA cache_size=-{READ_CACHE_KIB}")
        reader, oldest = _Reader(connection), None
        with self._guard:
            if self._closed:
                reader.close()
                raise statements.closed_error()
            if isinstance(reader.owner, threading._DummyThread):
                self._foreign_readers[threading.get_ident()] = reader
                if len(self._foreign_readers) > MOST_FOREIGN_READERS:
                    oldest = self._foreign_readers.pop(next(iter(self._foreign_readers)))
            else:
                # Readers of threads that have ended are dropped here, so that their connections are closed.
                self._readers = [other for other in self._readers if other.owner.is_alive()] + [reader]
        if oldest is not None:
            oldest.close()
        return reader

    def _new_writer(self) -> Writer:
        with self._guard:
            if self._closed:
                raise statements.closed_error()
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
            raise statements.unreachable_error(f"{self._file}: {error}") from error
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
        """Held during a read, for `close`, which another thread may call."""
        self._busy = False
        """Whether the thread is within a read, so that a nested one shares its snapshot."""
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
                raise statements.closed_error()
            self._busy = True
            try:
                return work(self._tx) if key is None else self._read_cached(work, key)
            finally:
                self._busy = False

    def _read_cached(self, work: Callable[[Tx], T], key: Hashable) -> T:
        """Return a cached result if no other connection has written since, else run `work`.

        `PRAGMA data_version` changes with each such write, and this connection never writes. If something is written
        between the pragma and `work`, the result is newer than its version says, which does no harm.
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
            raise statements.closed_error()
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


BAD_VALUES = (OverflowError, UnicodeEncodeError)
"""Errors that the driver raises for values before the database sees them."""


def to_lance_error(error: sqlite3.Error | OverflowError | UnicodeEncodeError) -> LanceNamespaceError:
    """Return our error for an error of the driver."""
    if isinstance(error, BAD_VALUES):
        return statements.unstorable_error(error)
    if isinstance(error, sqlite3.IntegrityError):
        is_unique = error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return (
            statements.UniqueViolationError(str(error))
            if is_unique
            else statements.ForeignKeyViolationError(str(error))
        )
    if isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such "):
        return statements.schema_missing_error()
    if isinstance(error, sqlite3.DataError):
        return statements.unstorable_error(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return InternalError(f"the catalog's database refused a statement: {statements.first_line(error)}")
    return statements.unreachable_error(error)


class SqliteTx(Tx):
    """A transaction on SQLite.

    A failed statement undoes only itself, and there is one writer at a time, so neither savepoints nor locks are
    needed.
    """

    __slots__ = ("_execute", "_execute_many")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute: Callable[[str, Any], sqlite3.Cursor] = connection.execute
        self._execute_many: Callable[[str, Any], sqlite3.Cursor] = connection.executemany

    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        try:
            return self._execute(statement.sqlite, values).fetchall()
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def run(self, statement: Statement, values: Values) -> int:
        try:
            return self._execute(statement.sqlite, values).rowcount
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        try:
            self._execute_many(statement.sqlite, values)
        except (sqlite3.Error, *BAD_VALUES) as error:
            raise to_lance_error(error) from error

    def savepoint(self) -> AbstractContextManager[object]:
        return nullcontext()

    def lock(self, own: int, shared: Iterable[int]) -> None:
        pass


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
                raise statements.closed_error()
            pending, is_first = self._enqueue(work)
        self._complete(pending, is_first)
        if pending.error is not None:
            raise pending.error
        result: T = pending.result
        return result

    @property
    def pool_state(self) -> PoolState:
        """Whether it writes, and how many writes wait."""
        return PoolState(1, int(self._busy), len(self._queue))

    def close(self) -> None:
        """Finish waiting writes; later ones are refused."""
        with self._guard:
            self._closing = True
            # A write of nothing, behind all others: when it is done, they are.
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
            # The next leader first: it writes while the threads of this batch go on with their results.
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
        for pending in batch:
            with pending:
                connection.execute("SAVEPOINT work")
                pending.result = pending.work(tx)
            try:
                if pending.error is not None:
                    connection.execute("ROLLBACK TO work")
                connection.execute("RELEASE work")
            except sqlite3.Error as error:  # a full or broken disk rolls back the whole transaction
                self._close_connection()
                reason = statements.first_line(error)
                return lambda: statements.unreachable_error(reason)
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
            reason = statements.first_line(error)
            if error.sqlite_errorcode & 0xFF in NOT_MADE:
                return lambda: statements.unreachable_error(reason)
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


def retry_while_busy(step: Callable[[], object]) -> None:
    """Repeat a step while another process holds the lock.

    SQLite's own busy handler sleeps for up to 100 ms at a time, during which others get ahead.
    """
    deadline = monotonic() + PATIENCE_S
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
    for pending in batch:
        if make_error is not None and pending.error is None:
            pending.error = make_error()
        pending.is_done = True
        pending.wake()
