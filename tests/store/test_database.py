from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import sleep

import psycopg
import pytest
from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, ServiceUnavailableError

from lancehouse.errors import CommitStateUnknownError
from lancehouse.store import migrate, repository
from lancehouse.store import postgres as postgres_store
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.servers.postgres import new_database
from tests.store.rows import StoredNamespace, insert
from tests.waiting import PATIENCE_S

SECRET = "geheim"


class StrayError(Exception):
    """What a work raises."""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "no such kind"),
        ("catalog.db", "sqlite:///FILE"),
        ("mysql://u:geheim@h/d", "no such kind"),
        ("sqlite://", "must be a file"),
        ("sqlite:///", "must be a file"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory", "must be a file"),
        ("sqlite://catalog.db", "must be a file"),
        ("sqlite:///catalog.db?timeout=3", "no options"),
        ("postgresql://u:geheim@h:port/d", "looks like"),
        ("postgresql://u:geheim@h/d?nonsense=1", "looks like"),
        ("postgres:geheim", "looks like"),
        ("postgresql://u:geheim@[::1/d", "looks like"),
    ],
)
def test_urls_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        Database(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown", "local"),
    [
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db", True),
        ("sqlite:///x.db", "sqlite:///x.db", True),
        ("postgres://u:geheim@h:1/d", "postgresql://h:1/d", False),
        ("postgresql+psycopg://u:geheim@h/d?password=geheim", "postgresql://h/d", False),
        ("postgresql:///d?host=/run", "postgresql:///d", False),
    ],
)
def test_urls(url: str, shown: str, local: bool) -> None:
    database = Database(url)
    assert repr(database) == f"Database({shown!r})"
    assert database.is_local is local


def test_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "catalog.db"
    database = Database(f"sqlite:///{file}")
    assert not file.parent.exists(), "opening does nothing yet"
    migrate.create_if_empty(database)
    database.write(lambda tx: repository.insert_warehouse(tx, "w", "/w"))
    files = sorted(file.parent.iterdir())
    assert [path.name for path in files] == ["catalog.db", "catalog.db-shm", "catalog.db-wal"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    database.close()
    assert [path.name for path in file.parent.iterdir()] == ["catalog.db"]


def test_writes_are_durable(place: StoredNamespace, kind: str) -> None:
    settings = ("PRAGMA synchronous", "PRAGMA journal_mode", "PRAGMA foreign_keys")
    if kind == "sqlite":
        with closing(place.database.engine().connect()) as connection:
            assert [connection.execute(each).fetchone() for each in settings] == [(2,), ("wal",), (1,)]
    else:
        with psycopg.connect(place.database.url, autocommit=True) as connection:
            name = place.database.url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
        with closing(place.database.engine().connect()) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_an_error_undoes_its_own_work_only(place: StoredNamespace) -> None:
    """Works that wait together share a transaction; each stands for itself."""

    def work(number: int) -> None:
        def step(tx: Tx) -> None:
            assert insert(tx, place.namespace_id, f"t{number}") is not None
            if number % 3 == 0:
                raise StrayError(str(number))

        place.database.write(step)

    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(work, number) for number in range(60)]
    for number, future in enumerate(futures):
        error = future.exception()
        assert (str(error), type(error)) == ((str(number), StrayError) if number % 3 == 0 else ("None", type(None)))
    names = place.database.read(lambda tx: repository.list_entries(tx, place.namespace_id, ["lance"]))
    assert sorted(names) == sorted(f"t{number}" for number in range(60) if number % 3)


def test_waiting_works_share_a_transaction(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    migrate.create_if_empty(database)
    changes = []
    entered, go = threading.Event(), threading.Event()

    def first(_tx: Tx) -> None:
        entered.set()
        go.wait()

    def work(number: int) -> None:
        database.write(lambda tx: repository.insert_warehouse(tx, f"w{number}", "/"))
        with closing(sqlite3.connect(tmp_path / "c.db")) as connection:
            changes.append(connection.execute("SELECT count(*) FROM warehouses").fetchone())

    with ThreadPoolExecutor(9) as pool:
        blocker = pool.submit(database.write, first)
        entered.wait()
        others = [pool.submit(work, number) for number in range(8)]
        while len(database.engine()._writer._queue) < 8:  # type: ignore[union-attr]
            sleep(0.001)
        go.set()
        for future in (blocker, *others):
            future.result()
    assert changes == [(8,)] * 8, "when one is acknowledged, all are there"
    database.close()


@pytest.mark.parametrize("error", [StrayError, KeyboardInterrupt, SystemExit])
def test_any_error_reaches_its_caller(place: StoredNamespace, error: type[BaseException]) -> None:
    def work(tx: Tx) -> None:
        insert(tx, place.namespace_id, "t")
        raise error

    with pytest.raises(error):
        place.database.write(work)
    assert place.find("t") is None
    assert place.insert("t") is not None


def test_write_within_a_write_is_refused(place: StoredNamespace) -> None:
    with pytest.raises(InternalError, match="pass the transaction on"):
        place.database.write(lambda _: place.insert("t"))
    assert place.insert("t") is not None


def test_read_within_a_write_sees_what_is_committed(place: StoredNamespace) -> None:
    def work(tx: Tx) -> object:
        insert(tx, place.namespace_id, "t")
        return place.find("t")

    assert place.database.write(work) is None
    assert place.find("t") is not None


def test_a_read_is_one_snapshot(place: StoredNamespace) -> None:
    def count(tx: Tx) -> int:
        return len(repository.list_entries(tx, place.namespace_id, ["lance"]))

    def work(tx: Tx) -> list[int]:
        first = count(tx)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(place.create, "meanwhile").result()
        return [first, count(tx), place.database.read(count), place.database.read_one(count)]

    assert place.database.read(work) == [0, 0, 0, 0]
    assert place.database.read(count) == 1
    assert place.database.read_one(count) == 1


def test_reads_cannot_write(place: StoredNamespace) -> None:
    with pytest.raises(ServiceUnavailableError):
        place.database.read(lambda tx: insert(tx, place.namespace_id, "t"))
    assert place.find("t") is None


def test_close_finishes_what_waits(place: StoredNamespace) -> None:
    started = threading.Event()

    def slow(tx: Tx) -> object:
        started.set()
        sleep(0.2)
        return insert(tx, place.namespace_id, "slow")

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(place.database.write, slow)
        started.wait()
        place.database.close()
        assert waiting.done()
        assert waiting.result() is not None
    for refused in (place.find, place.insert):
        with pytest.raises(ServiceUnavailableError, match="closed"):
            refused("t")
    place.database.close()


def test_close_does_not_wait_for_ever(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that outlasts the patience of `close` still ends well, and leaves no connection behind."""
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.1)
    database = Database(new_database(postgres))
    migrate.create_if_empty(database)
    started, end = threading.Event(), threading.Event()

    def wait(tx: Tx) -> object:
        started.set()
        end.wait(30)
        return repository.insert_warehouse(tx, "main", "/data")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(database.write, wait)
        started.wait()
        database.close()
        end.set()
        assert writing.result() is not None
    engine = database.engine()
    assert isinstance(engine, postgres_store.Postgres)
    assert not engine._idle


def test_close_while_all_connections_are_in_use(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once for all of them, not once for each, and ends well."""
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.1)
    monkeypatch.setattr(postgres_store, "CONNECTIONS", 3)
    database = Database(new_database(postgres))
    engine = database.engine()
    assert isinstance(engine, postgres_store.Postgres)
    begun, end, waits = threading.Barrier(4), threading.Event(), []

    def wait(_: Tx) -> bool:
        begun.wait(30)
        return end.wait(30)

    def count_acquire(timeout: float) -> bool:
        waits.append(timeout)
        return acquire(timeout=timeout)

    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(database.read, wait) for _ in range(3)]
        begun.wait(30)
        acquire = engine._capacity.acquire
        monkeypatch.setattr(engine._capacity, "acquire", count_acquire)
        database.close()
        end.set()
        assert all(read.result() for read in reads)
    assert len(waits) == 1
    assert not engine._idle
    with pytest.raises(ServiceUnavailableError, match="closed"):
        database.read(wait)


def test_without_schema(url: str) -> None:
    database = Database(url)
    for work in (database.read, database.write):
        with pytest.raises(InvalidTableStateError, match="lancehouse db upgrade"):
            work(repository.list_warehouses)
    database.close()


@pytest.mark.parametrize("content", [None, b"this is no database at all, and it is long enough to be read as one" * 99])
def test_sqlite_out_of_reach(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "catalog.db"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    database = Database(f"sqlite:///{file}")
    for work in (database.read, database.write):
        with pytest.raises(ServiceUnavailableError, match="catalog"):
            work(repository.list_warehouses)
    database.close()


def test_postgres_out_of_reach() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        database = Database(f"postgresql://u:{SECRET}@127.0.0.1:{closed.getsockname()[1]}/d")
        for work in (database.read, database.read_one, database.write):
            with pytest.raises(ServiceUnavailableError, match="out of reach") as caught:
                work(repository.list_warehouses)
            assert SECRET not in str(caught.value)
    database.close()


@pytest.mark.parametrize("kind", ["postgres"])
def test_a_broken_connection_is_replaced(place: StoredNamespace, postgres: str) -> None:
    """After a restart of Postgres all connections that wait in the pool are broken."""
    place.create("t")

    def break_all() -> None:
        with psycopg.connect(postgres, autocommit=True) as connection:
            name = place.database.url.rpartition("/")[2]
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: place.find("t"), range(16)))
    break_all()
    assert place.find("t") is not None
    break_all()
    assert place.database.read_one(lambda tx: repository.find_entry(tx, place.warehouse_id, ("a",), "t")) is not None
    break_all()
    assert place.insert("u") is not None


@pytest.mark.parametrize("kind", ["postgres"])
def test_commit_without_an_answer(place: StoredNamespace, postgres: str) -> None:
    """The connection is lost while COMMIT is under way: nobody may call that a failure."""

    def work(tx: Tx) -> None:
        insert(tx, place.namespace_id, "t")
        with psycopg.connect(postgres, autocommit=True) as other:
            name = place.database.url.rpartition("/")[2]
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    with pytest.raises(CommitStateUnknownError):
        place.database.write(work)
    assert place.insert("u") is not None


def test_deadlocks_are_tried_again(place: StoredNamespace) -> None:
    """Two transactions take two rows in opposite order."""
    for name in ("first", "second"):
        place.create(name)
    meet = threading.Barrier(2)
    tries = []

    def advance(tx: Tx, name: str) -> None:
        """Who is tried again may have looked before the other one was done, and looks again."""
        for _ in range(2):
            row = repository.find_entry(tx, place.warehouse_id, ("a",), name)
            assert row
            if repository.advance_entry(tx, row.id, row.revision, now_ms=1):
                return
        raise AssertionError(f"somebody else changes {name}")

    def work(order: list[str]) -> None:
        def step(tx: Tx) -> None:
            tries.append(order)
            for name in order:
                advance(tx, name)
                if not place.database.is_local and len(tries) <= 2 and name == order[0]:
                    meet.wait(PATIENCE_S)

        place.database.write(step)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, order) for order in (["first", "second"], ["second", "first"])]:
            future.result()
    assert [row and row.revision for row in map(place.find, ("first", "second"))] == [3, 3]
    assert len(tries) == 2 if place.database.is_local else len(tries) > 2


FULL_DISK = """
import resource, signal, sys
from lance_namespace.errors import LanceNamespaceError
from lancehouse.store import migrate, repository
from lancehouse.store.database import Database

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = Database(sys.argv[1])
migrate.create_if_empty(database)
database.write(lambda tx: repository.insert_warehouse(tx, "before", "/"))
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, most))
for number in range(20):
    try:
        database.write(lambda tx: repository.insert_warehouse(tx, f"w{number}", "/" + "x" * 100_000))
    except LanceNamespaceError as error:
        print(type(error).__name__, number)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
database.write(lambda tx: repository.insert_warehouse(tx, "after", "/"))
print(*[row.name for row in database.read(repository.list_warehouses)])
database.close()
"""


def test_full_disk(tmp_path: Path) -> None:
    """A file that cannot grow: the commit fails, what was acknowledged stays, and it works again with more room."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, f"sqlite:///{tmp_path / 'c.db'}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    outcome, names = done.stdout.splitlines()
    error, _, number = outcome.partition(" ")
    assert error in ("ServiceUnavailableError", "CommitStateUnknownError")
    assert names.split() == ["before", *(f"w{each}" for each in range(int(number))), "after"]


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # the child does nothing with it
def test_fork(place: StoredNamespace) -> None:
    """A forked process works with connections of its own, and leaves its parent's alone."""
    place.create("parent")
    place.find("parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if place.insert("child") is not None and place.find("parent") is not None else 1
            place.database.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert place.find("child") is not None
    assert place.insert("again") is not None


def test_threads_come_and_go(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    migrate.create_if_empty(database)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        thread = threading.Thread(target=database.read, args=(repository.list_warehouses,))
        thread.start()
        thread.join()
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
    assert len(database.engine()._readers) <= 2  # type: ignore[union-attr]
    database.close()


def test_what_is_recalled_holds_until_anybody_writes(place: StoredNamespace) -> None:
    url = f"sqlite:///{place.database.file}" if place.database.is_local else place.database.url
    other = Database(url)
    asked = []

    def find(tx: Tx) -> object:
        asked.append(tx)
        return repository.find_entry(tx, place.warehouse_id, ("a",), "t")

    def recall() -> object:
        return place.database.read_one(find, "t")

    assert recall() is None
    made = other.write(lambda tx: insert(tx, place.namespace_id, "t"))
    assert recall() == made
    before = len(asked)
    assert recall() == made
    assert len(asked) == before + (not place.database.is_local)
    assert made is not None
    for number, database in enumerate((other, place.database), start=made.revision):
        assert database.write(lambda tx: repository.advance_entry(tx, made.id, number, now_ms=1))  # noqa: B023
        assert recall() == place.find("t") != made
    other.write(lambda tx: repository.delete_entry(tx, made))
    assert recall() is None
    other.close()


def test_a_sign_of_life_is_one_row_that_changes(database: Database) -> None:
    for now in (1000, 2000):
        database.write(lambda tx, now=now: repository.put_sign_of_life(tx, now))  # type: ignore[misc]
    assert database.write(lambda tx: repository.delete_keys_before(tx, 2000)) == 0
    assert database.write(lambda tx: repository.delete_keys_before(tx, 2001)) == 1


def test_pools_tell_who_works_and_who_waits(database: Database) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def work(_: Tx) -> None:
        inside.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(database.write, work)
        assert inside.wait(30)
        during = database.pool_state
        go_on.set()
        busy.result(30)
    assert (during.in_use, during.waiting) == (1, 0)
    assert during.size >= 1
    assert database.pool_state.in_use == 0
