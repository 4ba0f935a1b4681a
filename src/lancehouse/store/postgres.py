"""Postgres: a pool of connections, and transactions that are tried again when they clash."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import sleep
from typing import Any, TypeVar, cast

import psycopg
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from lancehouse.errors import CommitStateUnknownError
from lancehouse.store import database_errors
from lancehouse.store.statements import Row, Statement, Tx, Values

T = TypeVar("T")
Connection = psycopg.Connection[Row]

CONNECTIONS = 24
"""At most, in one process."""
PATIENCE_S = 30.0
"""How long a thread waits for a connection."""
CONNECT_TIMEOUT_S = 5
ATTEMPTS = 8
SECRETS = frozenset({"sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
FIRST_NAP_S = 0.005

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)
SETTINGS = ("SET standard_conforming_strings = on", "SET lock_timeout = '30s'", DURABLE)

MEANINGS: tuple[tuple[tuple[type[psycopg.Error], ...], Callable[[psycopg.Error], LanceNamespaceError]], ...] = (
    (
        (errors.SerializationFailure, errors.DeadlockDetected),
        lambda e: database_errors.SerializationFailureError(database_errors.first_line(e)),
    ),
    ((errors.UniqueViolation,), lambda e: database_errors.UniqueViolationError(database_errors.first_line(e))),
    ((errors.IntegrityError,), lambda e: database_errors.ForeignKeyViolationError(database_errors.first_line(e))),
    ((errors.UndefinedTable, errors.UndefinedColumn), lambda _: database_errors.schema_missing_error()),
    ((errors.ProgramLimitExceeded, errors.DataError), database_errors.unstorable_error),
    ((errors.OperationalError, errors.InterfaceError), database_errors.unreachable_error),
    ((errors.ReadOnlySqlTransaction, errors.InternalError), database_errors.unreachable_error),
)
"""What the driver's errors mean; the first that fits."""


def check_url(url: str) -> None:
    """Refuse what the driver cannot read, without repeating it.

    Raises:
        InvalidInputError: why.
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
    """A block whose driver errors become ours."""
    try:
        yield
    except psycopg.Error as error:
        raise to_lance_error(error) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise database_errors.unstorable_error(error) from error


def to_lance_error(error: psycopg.Error) -> LanceNamespaceError:
    """What the driver's error means."""
    for kinds, build in MEANINGS:
        if isinstance(error, kinds):
            return build(error)
    return InternalError(f"the catalog's database refused a statement: {database_errors.first_line(error)}")


class PostgresTx(Tx):
    """Here a statement that fails spoils its transaction, but for those that are attempted."""

    __slots__ = ("_connection", "_readonly")

    def __init__(self, connection: Connection, *, readonly: bool) -> None:
        self._connection = connection
        self._readonly = readonly

    def fetch_all(self, statement: Statement, values: Values) -> list[Row]:
        return self._execute(statement.postgres, values).fetchall()

    def run(self, statement: Statement, values: Values) -> int:
        return self._execute(statement.postgres, values).rowcount

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        with translate_errors():
            self._connection.cursor().executemany(cast("Any", statement.postgres), values)

    def savepoint(self) -> AbstractContextManager[object]:
        return self._connection.transaction()

    def lock(self, own: int, shared: Iterable[int]) -> None:
        """Advisory locks. Who only reads claims nothing."""
        if not self._readonly:
            keys = {"shared": sorted(shared), "own": own}
            self._execute("SELECT pg_advisory_xact_lock_shared(key) FROM unnest(%(shared)s::bigint[]) AS key", keys)
            self._execute("SELECT pg_advisory_xact_lock(%(own)s)", keys)

    def _execute(self, sql: str, values: Values) -> psycopg.Cursor[Row]:
        with translate_errors():
            return self._connection.execute(cast("Any", sql), values)


class Postgres:
    """Connections of one process to one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parameters = conninfo_to_dict(url)
        self._idle: deque[Connection] = deque()
        self._capacity = threading.BoundedSemaphore(CONNECTIONS)
        self._local = threading.local()
        self._closed = False

    def read(self, work: Callable[[Tx], T]) -> T:
        """Give a snapshot to `work`. A connection that broke since it was last used is replaced, once."""
        tx: Tx | None = getattr(self._local, "reading", None)
        if tx is not None:
            return work(tx)
        try:
            return self._read(work)
        except database_errors.ConnectionLostError:
            return self._read(work)

    def read_one(self, work: Callable[[Tx], T]) -> T:
        """Let `work` make one statement, which is a transaction by itself."""
        tx: Tx | None = getattr(self._local, "reading", None)
        if tx is not None:
            return work(tx)
        try:
            return self._read(work, begin=False)
        except database_errors.ConnectionLostError:
            return self._read(work, begin=False)

    def read_cached(self, key: Hashable, work: Callable[[Tx], T | None]) -> T | None:  # noqa: ARG002
        """Let `work` ask: to find out whether anything was written would cost as much."""
        return self.read_one(work)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Carry out `work`; again if it clashed with another, or if its connection was lost before COMMIT was sent."""
        if getattr(self._local, "writing", False):
            raise InternalError("a write within a write: pass the transaction on instead")
        for attempt in range(ATTEMPTS - 1):
            try:
                return self._write(work)
            except database_errors.SerializationFailureError:
                sleep(FIRST_NAP_S * 2**attempt * random.random())  # noqa: S311
            except database_errors.ConnectionLostError:
                if attempt:
                    raise
        return self._write(work)

    def close(self) -> None:
        """Wait for the transactions under way, and go."""
        self._closed = True
        for _ in range(CONNECTIONS):
            self._capacity.acquire(timeout=PATIENCE_S)
        self._drop_idle()
        for _ in range(CONNECTIONS):
            self._capacity.release()

    def connect(self) -> Connection:
        """A connection that is durable; it is the caller's to close."""
        with translate_errors():
            options: dict[str, Any] = (
                {} if "connect_timeout" in self._parameters else {"connect_timeout": CONNECT_TIMEOUT_S}
            )
            connection: Connection = psycopg.connect(self._url, autocommit=True, **options)
            for setting in SETTINGS:
                connection.execute(cast("Any", setting))
        return connection

    def _read(self, work: Callable[[Tx], T], *, begin: bool = True) -> T:
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
        """Make it so. An answer of the server is final; with none, nobody knows."""
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
                raise CommitStateUnknownError(
                    f"the change may or may not have been made: {database_errors.first_line(error)}"
                ) from error
            raise to_lance_error(error) from error
        if status != "COMMIT":
            raise InternalError("a statement had failed, so the database undid the change")

    @contextmanager
    def _pooled_connection(self) -> Iterator[Connection]:
        """A connection of the pool; one that broke in the block is not put back, and then the error says so."""
        if not self._capacity.acquire(timeout=PATIENCE_S):
            raise database_errors.unreachable_error("all connections are in use")
        try:
            connection = self._acquire()
            try:
                yield connection
            except ServiceUnavailableError as error:
                if connection.broken:
                    self._drop_idle()
                    raise database_errors.ConnectionLostError(str(error)) from error
                raise
            finally:
                self._release(connection)
        finally:
            self._capacity.release()

    def _acquire(self) -> Connection:
        if self._closed:
            raise database_errors.closed_error()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def _drop_idle(self) -> None:
        """Close what nobody uses; if one connection broke, the others did too."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _release(self, connection: Connection) -> None:
        """Undo what is left open; keep what is sound."""
        try:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        if connection.closed:
            return
        if connection.info.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.close()


def split_secrets(url: str) -> tuple[str, dict[str, str]]:
    """A URL for a command line, which others can see, and the variables that hold what is left out.

    Raises:
        InvalidInputError: there is a secret that Postgres' programs take in no other way.
    """
    parameters: dict[str, Any] = conninfo_to_dict(url)
    password = parameters.pop("password", None)
    if secrets := sorted(parameters.keys() & SECRETS):
        raise InvalidInputError(f"{secrets[0]} cannot be passed to Postgres' programs unseen: use pg_dump itself")
    return make_conninfo(**parameters), {} if password is None else {"PGPASSWORD": str(password)}
