"""Postgres: a connection pool, transactions with retries, and the meaning of the driver's errors."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import psycopg
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from lancehouse import secrets
from lancehouse.errors import CommitStateUnknownError
from lancehouse.measures import PoolState
from lancehouse.store import statements
from lancehouse.store.statements import Row, Statement, Tx, Values

T = TypeVar("T")
Connection = psycopg.Connection[Row]

CONNECTIONS = 24
"""Most connections of one process."""
PATIENCE_S = 30.0
"""How long a thread waits for a connection, in seconds."""
CONNECT_TIMEOUT_S = 5
ATTEMPTS = 8
"""Most attempts at a write that conflicts with others."""
FIRST_NAP_S = 0.005
"""Longest pause before the first retry, in seconds; doubled for each one after."""

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""All statements of a read see one snapshot."""
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""A statement sees what others have committed by then. So a compare-and-swap that waited for another transaction looks
at the row as that has left it, and changes nothing; at a stricter level it would fail, and all be repeated."""
DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)
"""Turns `synchronous_commit` on where the server has it off: an acknowledged commit must survive a crash."""
SETTINGS = ("SET standard_conforming_strings = on", "SET lock_timeout = '30s'", DURABLE)
"""Statements that are run on every new connection."""

MEANINGS: tuple[tuple[tuple[type[psycopg.Error], ...], Callable[[psycopg.Error], LanceNamespaceError]], ...] = (
    (
        (errors.SerializationFailure, errors.DeadlockDetected),
        lambda e: statements.SerializationFailureError(statements.first_line(e)),
    ),
    ((errors.UniqueViolation,), lambda e: statements.UniqueViolationError(statements.first_line(e))),
    ((errors.IntegrityError,), lambda e: statements.ForeignKeyViolationError(statements.first_line(e))),
    ((errors.UndefinedTable, errors.UndefinedColumn), lambda _: statements.schema_missing_error()),
    ((errors.ProgramLimitExceeded, errors.DataError), statements.unstorable_error),
    ((errors.OperationalError, errors.InterfaceError), statements.unreachable_error),
    ((errors.ReadOnlySqlTransaction, errors.InternalError), statements.unreachable_error),
)
"""Maps the driver's errors to ours; the first entry that matches is used."""


def check_url(url: str) -> None:
    """Refuse a URL that the driver cannot parse; the message does not repeat it, as it may hold a password.

    Raises:
        InvalidInputError: it cannot be parsed.
    """
    try:
        parameters = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        parameters = {}
    if not parameters or not all(port.isdecimal() for port in str(parameters.get("port", 1)).split(",") if port):
        raise InvalidInputError(
            "a URL of Postgres looks like postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE"
        )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Run a block in which errors of the driver are replaced by ours."""
    try:
        yield
    except psycopg.Error as error:
        raise to_lance_error(error) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise statements.unstorable_error(error) from error


def to_lance_error(error: psycopg.Error) -> LanceNamespaceError:
    """Return our error for an error of the driver."""
    for kinds, build in MEANINGS:
        if isinstance(error, kinds):
            return build(error)
    return InternalError(f"the catalog's database refused a statement: {statements.first_line(error)}")


class PostgresTx(Tx):
    """A transaction on Postgres. A failed statement aborts it, except within `savepoint`."""

    __slots__ = ("_connection", "_readonly")

    def __init__(self, connection: Connection, *, readonly: bool) -> None:
        self._connection = connection
        self._readonly = readonly

    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        # The driver prepares statements that are run often. Postgres may then plan them once, for unknown values.
        prepare = False if statement.is_planned_anew else None
        return self._execute(statement.postgres, values, prepare).fetchall()

    def run(self, statement: Statement, values: Values) -> int:
        return self._execute(statement.postgres, values).rowcount

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        with translate_errors():
            self._connection.cursor().executemany(cast("Any", statement.postgres), values)

    def savepoint(self) -> AbstractContextManager[object]:
        return self._connection.transaction()

    def lock(self, own: int, shared: Iterable[int]) -> None:
        """Take advisory locks until the transaction ends; a read-only transaction takes none."""
        # Sorted: two transactions ask for common locks in one order, so that neither waits for a lock of the other.
        if not self._readonly:
            keys = {"shared": sorted(shared), "own": own}
            self._execute("SELECT pg_advisory_xact_lock_shared(key) FROM unnest(%(shared)s::bigint[]) AS key", keys)
            self._execute("SELECT pg_advisory_xact_lock(%(own)s)", keys)

    def _execute(self, sql: str, values: Values, prepare: bool | None = None) -> psycopg.Cursor[Row]:
        with translate_errors():
            return self._connection.execute(cast("Any", sql), values, prepare=prepare)


class Postgres:
    """The connections of one process to one database. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parameters = conninfo_to_dict(url)
        self._idle: deque[Connection] = deque()
        self._capacity = threading.BoundedSemaphore(CONNECTIONS)
        self._local = threading.local()
        self._closed = False
        self._counting = threading.Lock()
        self._in_use = self._asking = 0

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a read-only snapshot; if the pooled connection was broken, once again with a new one."""
        return self._read_or_repeat(work, begin=True)

    def read_one(self, work: Callable[[Tx], T], key: Hashable = None) -> T:  # noqa: ARG002
        """Run `work`, which executes one statement; that is a transaction by itself.

        Nothing is cached by `key`: finding out whether anything was written would cost as much.
        """
        return self._read_or_repeat(work, begin=False)

    def _read_or_repeat(self, work: Callable[[Tx], T], *, begin: bool) -> T:
        tx: Tx | None = getattr(self._local, "reading", None)
        if tx is not None:
            return work(tx)
        try:
            return self._read(work, begin=begin)
        except statements.ConnectionLostError:
            return self._read(work, begin=begin)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a transaction and commit it.

        It is run again if it conflicted with another transaction, or if the connection broke before COMMIT was sent.
        """
        if getattr(self._local, "writing", False):
            raise InternalError("a write within a write: pass the transaction on instead")
        for attempt in range(ATTEMPTS - 1):
            try:
                return self._write(work)
            except statements.SerializationFailureError:
                sleep(FIRST_NAP_S * 2**attempt * random.random())  # noqa: S311
            except statements.ConnectionLostError:
                if attempt:
                    raise
        return self._write(work)

    def close(self) -> None:
        """Wait for transactions in progress, then close all connections.

        Those that take longer than `PATIENCE_S` are not waited for; their connections are closed when they end.
        """
        self._closed = True
        acquired, until = 0, monotonic() + PATIENCE_S
        while acquired < CONNECTIONS and self._capacity.acquire(timeout=max(0.0, until - monotonic())):
            acquired += 1
        self._drop_idle()
        if acquired:  # a semaphore refuses to be released 0 times
            self._capacity.release(acquired)

    def connect(self) -> Connection:
        """Return a new connection with durable commits; the caller must close it."""
        with translate_errors():
            options: dict[str, Any] = (
                {} if "connect_timeout" in self._parameters else {"connect_timeout": CONNECT_TIMEOUT_S}
            )
            connection: Connection = psycopg.connect(self._url, autocommit=True, **options)
            for setting in SETTINGS:
                connection.execute(cast("Any", setting))
        return connection

    def _read(self, work: Callable[[Tx], T], *, begin: bool) -> T:
        with self._pooled_connection() as connection:
            if begin:
                self._begin(connection, READ)
            self._local.reading = PostgresTx(connection, readonly=True)
            try:
                return work(self._local.reading)
            finally:
                self._local.reading = None

    def _write(self, work: Callable[[Tx], T]) -> T:
        with self._pooled_connection() as connection:
            self._begin(connection, WRITE)
            self._local.writing = True
            try:
                result = work(PostgresTx(connection, readonly=False))
            finally:
                self._local.writing = False
            self._commit(connection)
            return result

    def _begin(self, connection: Connection, statement: str) -> None:
        with translate_errors():
            connection.execute(cast("Any", statement))

    def _commit(self, connection: Connection) -> None:
        """Commit the transaction.

        Raises:
            CommitStateUnknownError: the connection broke, so that it is not known whether the commit was made.
            LanceNamespaceError: the server refused; nothing was changed.
        """
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            # No SQLSTATE, class 08 (connection exception) and 57P (operator intervention) all mean that the reply was
            # lost: COMMIT may have taken effect. Any other reply of the server is final.
            if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
                raise CommitStateUnknownError(
                    f"the change may or may not have been made: {statements.first_line(error)}"
                ) from error
            raise to_lance_error(error) from error
        # COMMIT of an aborted transaction is answered with ROLLBACK, and is not an error for the driver.
        if status != "COMMIT":
            raise InternalError("a statement had failed, so the database undid the change")

    @contextmanager
    def _pooled_connection(self) -> Iterator[Connection]:
        """Provide a connection from the pool.

        One that broke in the block is not returned to the pool, and the error becomes `ConnectionLostError`.
        """
        self._count(asking=1)
        has_capacity = self._capacity.acquire(timeout=PATIENCE_S)
        self._count(asking=-1, in_use=int(has_capacity))
        if not has_capacity:
            raise statements.unreachable_error("all connections are in use")
        try:
            connection = self._acquire()
            try:
                yield connection
            except ServiceUnavailableError as error:
                if connection.broken:
                    self._drop_idle()
                    raise statements.ConnectionLostError(str(error)) from error
                raise
            finally:
                self._release(connection)
        finally:
            self._count(in_use=-1)
            self._capacity.release()

    def _count(self, *, asking: int = 0, in_use: int = 0) -> None:
        with self._counting:
            self._asking += asking
            self._in_use += in_use

    @property
    def pool_state(self) -> PoolState:
        """The connections in use, and the threads that wait for one."""
        return PoolState(CONNECTIONS, self._in_use, self._asking)

    def _acquire(self) -> Connection:
        if self._closed:
            raise statements.closed_error()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def _drop_idle(self) -> None:
        """Close all idle connections; if one broke, the others probably did too."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _release(self, connection: Connection) -> None:
        """Roll back what is still open, and return the connection to the pool if it is usable."""
        with suppress(psycopg.Error):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        # The status of a connection that is broken or closed is not IDLE, but UNKNOWN.
        if connection.info.transaction_status == TransactionStatus.IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()


def split_secrets(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL that can be shown on a command line, and environment variables with the secrets left out.

    Raises:
        InvalidInputError: it has a secret that Postgres' programs accept in no other way.
    """
    parameters: dict[str, Any] = conninfo_to_dict(url)
    password = parameters.pop("password", None)
    if unsafe := sorted(parameters.keys() & secrets.POSTGRES):
        raise InvalidInputError(f"{unsafe[0]} cannot be passed to Postgres' programs unseen: use pg_dump itself")
    return make_conninfo(**parameters), {} if password is None else {"PGPASSWORD": str(password)}
