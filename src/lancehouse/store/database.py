"""The `Database` of a catalog, SQLite in a file or Postgres: read and write transactions."""

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

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one consistent snapshot and return its result. A nested read of the thread shares the snapshot.

        Raises:
            ServiceUnavailableError: the database cannot be reached.
        """
        return self.engine().read(work)

    def read_one(self, work: Callable[[Tx], T], key: Hashable = None) -> T:
        """Run `work`, which executes a single statement: this needs no transaction, so it is cheaper than `read`.

        With a `key`, which identifies what `work` reads, this thread's last result is returned if no process has
        written anything since. None is not cached.
        """
        return self.engine().read_one(work, key)

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one transaction, which is durable when this returns.

        An error that `work` raises rolls back its changes and is raised here. `work` may run in another thread, more
        than once, and while others wait for it: it must do nothing but use its transaction.

        Raises:
            ServiceUnavailableError: the database cannot be reached; nothing was changed.
            CommitStateUnknownError: it is not known whether the change was made.
        """
        return self.engine().write(work)

    def close(self) -> None:
        """Finish waiting writes and close the connections; later calls are refused."""
        self.engine().close()

    def engine(self) -> Sqlite | Postgres:
        """Return the connections of this process.

        Those inherited through a fork are left alone: closing them here would disturb the parent process.
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
    """Return a URL of Postgres without its secrets, which may also be in its options."""
    if find_spec("psycopg") is None:
        raise InvalidInputError("Postgres needs its driver: pip install 'lancehouse[postgres]'")
    from lancehouse.store.postgres import check_url

    check_url(url)
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
