"""The catalog's database: SQLite in a file, or Postgres."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError

from lancehouse.store.sqlite import Sqlite
from lancehouse.store.statements import Tx

if TYPE_CHECKING:
    from lancehouse.store.postgres import Postgres

__all__ = ["Database", "Tx"]

T = TypeVar("T")

SCHEMES = {"postgres", "postgresql", "postgresql+psycopg"}
EXPECTED = "expected sqlite:///FILE or postgresql://USER@HOST/DATABASE"


class Database:
    """Transactions on one database, for all threads of a process; each process opens its own connections."""

    def __init__(self, url: str) -> None:
        """Check `url`; nothing is opened yet.

        Raises:
            InvalidInputError: no such kind of database, or a URL that cannot be read.
        """
        self.file: Path | None = None
        """SQLite's file."""
        self.url = ""
        """Postgres' URL, password and all."""
        self.name: str
        """The URL without its secrets."""
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
        """Whether reads are so cheap that an event loop can make them itself."""
        self._engines: dict[int, Sqlite | Postgres] = {}

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def read(self, work: Callable[[Tx], T]) -> T:
        """What `work` finds in one consistent snapshot. Within another read of the thread it is the same one.

        Raises:
            ServiceUnavailableError: the database is out of reach.
        """
        return self.engine().read(work)

    def read_one(self, work: Callable[[Tx], T]) -> T:
        """As `read`, for a `work` of one statement: that is a snapshot by itself, and costs no transaction."""
        return self.engine().read_one(work)

    def read_cached(self, key: Hashable, work: Callable[[Tx], T | None]) -> T | None:
        """As `read_one`, from memory for as long as nobody, of any process, has written anything since.

        It is for a thread that asks for the same again and again; `key` says what `work` asks for.
        """
        return self.engine().read_cached(key, work)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Carry out `work` as one transaction, which is durable when this returns.

        An error that `work` raises undoes what it did, and is raised here. `work` may run in another thread, more than
        once, and while others wait for it: it must do nothing but work with its transaction.

        Raises:
            ServiceUnavailableError: the database is out of reach; nothing was done.
            CommitStateUnknownError: it may or may not have been done.
        """
        return self.engine().write(work)

    def close(self) -> None:
        """Finish the writes that wait and close the connections; what comes later is refused."""
        self.engine().close()

    def engine(self) -> Sqlite | Postgres:
        """The connections of this process. Those of a process that it was forked from stay as they are: to close them
        here would disturb it.
        """
        pid = os.getpid()
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
    """A URL of Postgres without its secrets, which may be in its options too."""
    if find_spec("psycopg") is None:
        raise InvalidInputError("Postgres needs its driver: pip install 'lancehouse[postgres]'")
    from lancehouse.store.postgres import check_url

    check_url(url)
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
