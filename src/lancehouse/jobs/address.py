"""Addresses of tables and of their versions in plain text, so that an engine can send them to other processes.

The Python workers of a Spark executor share the catalog's descriptions of a table, so that it is asked for credentials
once.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

from lance_namespace import (
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
    connect,
)
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError
from pydantic import BaseModel

import lancehouse  # noqa: F401 - registers our aliases with `connect`, in executors too
from lancehouse.caches import BoundedCache
from lancehouse.catalog_walk import walk_tables
from lancehouse.connection import Connection
from lancehouse.credentials import EXPIRES, expires_soon
from lancehouse.identifiers import format_levels, parse_levels
from lancehouse.lake.commits import TableLocation, locate_table
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.foreign_tables import ClientCalls, with_storage_options
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.operations import TableOperations

try:
    import fcntl
except ImportError:  # Windows, where every worker asks for itself
    fcntl = None  # type: ignore[assignment]

TableName = str | Sequence[str]
"""Id of a table: its levels, or text joined by dots in which a level that contains a dot is quoted with backquotes."""

Pairs = tuple[tuple[str, str], ...]

LATEST = VersionSelector()
MAX_OPENED = 8
"""Number of versions that a process keeps open for later pieces."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table by its name in a catalog, or by its path."""

    connection: Connection | LanceNamespace | None = None
    """A client instead of a connection serves this process only: it cannot be sent to others."""
    id: tuple[str, ...] = ()
    path: str | None = None
    storage_options: Pairs = field(default=(), repr=False)
    confinement: Confinement | None = None
    """What the table may refer to; None for anything that its reader may read."""

    @classmethod
    def parse(cls, connection: Connection | LanceNamespace, table: TableName) -> Self:
        """Return the address of a table in a catalog.

        Raises:
            InvalidInputError: the id is not valid or has no level; or there is no such implementation, or it does not
                accept these properties.
        """
        if not isinstance(table, str | Sequence) or not all(isinstance(level, str) for level in table):
            raise InvalidInputError(f"a table is named by text such as 'wh.db.docs', or by a list, not {table!r}")
        levels = parse_levels(table) if isinstance(table, str) else tuple(table)
        if not levels:
            raise InvalidInputError("a table id has at least one level")
        get_client(connection)
        return cls(connection, levels)

    def to_ref(self, job: str | None = None, **at: Any) -> TableRef:
        """Return a reference to the table for code in this process.

        Args:
            job: id of the job that a task works for: its tasks in one Spark executor ask the catalog once for all.
            at: version, branch or tag.
        """
        if self.connection is None:
            return TableRef(self.path, dict(self.storage_options), confinement=self.confinement, **at)
        client = get_client(self.connection)
        if job is not None and isinstance(self.connection, Connection):
            client = share_descriptions(client, self.identity, job)
        return TableRef(namespace=client, id=self.id, confinement=self.confinement, **at)

    @property
    def identity(self) -> tuple[object, ...]:
        """What distinguishes the table, and who asks for it, from others; it may hold secrets."""
        if not isinstance(self.connection, Connection):
            return (self.path, self.id)
        return (self.connection.impl, sorted(self.connection.properties.items()), self.id)

    def write_location(self, job: str) -> TableLocation:
        """Return the location that a job writes to.

        Each process, or executor of Spark, asks the catalog once, and again before credentials expire.

        Args:
            job: id of the job, part of the cache key: a table may be dropped and created again, elsewhere, under the
                same name.
        """
        cached = _cached_location(self, job)
        if not cached or expires_soon(cached[0].storage_options):
            cached[:] = [locate_table(self.to_ref(job))]
        return cached[0]

    def __str__(self) -> str:
        return self.path if self.path is not None else f"table {format_levels(self.id)}"


# The list is a slot for one location, which can be replaced before its credentials expire.
@lru_cache(64)
def _cached_location(address: TableAddress, job: str) -> list[TableLocation]:  # noqa: ARG001 - they are the key of the cache
    return []


def get_client(connection: Connection | LanceNamespace) -> LanceNamespace:
    """Return the client of a connection: one for each process, so that its caches and credentials serve all pieces.

    Raises:
        InvalidInputError: there is no such implementation, or it does not take these properties.
    """
    return connection if isinstance(connection, LanceNamespace) else _connect(connection)


@lru_cache(64)
def _connect(connection: Connection) -> LanceNamespace:
    properties = dict(connection.properties)
    try:
        return with_storage_options(connect(connection.impl, properties), properties)
    except ValueError as error:  # `connect` makes one of whatever a constructor raises
        raise InvalidInputError(f"cannot connect to {connection.impl!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """One version of a table, for all pieces of a job."""

    address: TableAddress
    version: int
    branch: str | None
    job: str
    """Distinguishes jobs: a table may have been dropped and created again under the same name."""
    transaction_uuid: str
    """Distinguishes versions of such tables that have the same number."""

    @classmethod
    def resolve(cls, address: TableAddress, selector: VersionSelector = LATEST) -> Self:
        """Pin the version that a selector means now, the latest by default.

        Raises:
            TableNotFoundError, TableVersionNotFoundError, TableTagNotFoundError: there is none.
        """
        table, dataset = selector.open(address.to_ref())
        assert table.version is not None
        pinned = cls(address, table.version, table.branch, uuid4().hex, read_transaction_uuid(dataset))
        pinned.keep_open(table, dataset)
        return pinned

    def open(self) -> tuple[TableRef, Any]:
        """Open the version in this process; it is cached for all pieces of the job here.

        Raises:
            ConcurrentModificationError: the table was dropped and created again.
        """
        if (opened := _opened.get(self)) is not None:
            return self.keep_open(*opened)  # again, as the cache drops what was put there longest ago
        table = self.address.to_ref(self.job, version=self.version, branch=self.branch)
        dataset = table.open()
        # The number alone does not tell: a table of the same name that was created since has such a version, too.
        if read_transaction_uuid(dataset) != self.transaction_uuid:
            raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; read it again")
        return self.keep_open(table, dataset)

    def keep_open(self, table: TableRef, dataset: Any) -> tuple[TableRef, Any]:
        """Cache the version as opened; the one that was not used for longest is closed."""
        return _opened.put(self, (table, dataset))


_opened: BoundedCache[PinnedVersion, tuple[TableRef, Any]] = BoundedCache(MAX_OPENED)


def list_tables(connection: Connection | LanceNamespace, namespace: Sequence[str]) -> Iterator[TableAddress]:
    """Yield the tables in a namespace and below it."""
    for table in walk_tables(ClientCalls(get_client(connection)), tuple(namespace)):
        yield TableAddress.parse(connection, table)


# What the Python workers of one Spark executor share. Spark starts a process for each task that runs at once, and new
# ones whenever it likes; each of them would describe its tables again, and renew their credentials for itself. The
# answers of the catalog are files in the folder of the executor's block manager, which Spark makes for one executor and
# removes with it. They hold credentials: nobody but the user of the executor can read them.

Json = dict[str, Any]
T = TypeVar("T", bound=BaseModel)

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Variable in which Spark tells its Python workers the folders of the executor's block manager."""
_BLOCK_MANAGER = re.compile(r"blockmgr-[0-9a-f-]{36}")
SHARED_FOLDER = "lancehouse"
LONGEST_S = 900
"""Seconds for which an answer without an expiry is shared: its keys may be replaced."""


def find_shared_folder() -> Path | None:
    """Return the folder that this process shares with the other workers of its executor; None if it is no worker."""
    first = os.environ.get(LOCAL_DIRS, "").partition(",")[0]
    # A cluster's administrator may set the same variable to a folder that all applications share.
    return _make_folder(Path(first)) if fcntl is not None and _BLOCK_MANAGER.fullmatch(Path(first).name) else None


@lru_cache(4)
def _make_folder(parent: Path) -> Path | None:
    folder = parent / SHARED_FOLDER
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        state = folder.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o077 and state.st_uid == os.getuid()
    return folder if is_private else None


def share_answer(key: Sequence[object], job: str, ask: Callable[[], Json]) -> Json:
    """Return the answer of `ask`, which one worker of an executor asks for all others; each for itself elsewhere.

    Args:
        key: what is asked, and of whom; it may hold secrets.
        job: an answer for another job is not used: a table may have been dropped and created again since.
        ask: returns the answer as JSON. If that has `storage_options`, it is used until they expire.
    """
    folder = find_shared_folder()
    if folder is None:
        return ask()
    file = folder / blake2b(json.dumps(key, default=str).encode(), digest_size=16).hexdigest()
    if (answer := _read_answer(file, job)) is not None:
        return answer
    # Who waited for the lock finds the answer of the worker that had it.
    with _lock(file.with_suffix(".lock")):
        if (answer := _read_answer(file, job)) is None:
            answer = ask()
            _write_answer(file, {"job": job, "at": time.time(), "answer": answer})
    return answer


def _read_answer(file: Path, job: str) -> Json | None:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    answer: Json = content["answer"]
    options: Mapping[str, str] = answer.get("storage_options") or {}
    is_fresh = not expires_soon(options) if EXPIRES in options else time.time() < content["at"] + LONGEST_S
    return answer if content["job"] == job and is_fresh else None


def _write_answer(file: Path, content: Json) -> None:
    """Write a file for this user alone, in one step. A full disk is no error: the next worker asks for itself."""
    part = file.with_suffix(f".{uuid4().hex}")
    with suppress(OSError):
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                json.dump(content, opened)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Wait for the other workers; the system ends the lock of one that is killed."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class SharedNamespace:
    """A client whose descriptions of tables, and of their numbered versions, the workers of an executor share.

    Args:
        namespace: the client.
        identity: distinguishes clients of other catalogs or principals.
        job: the job that the descriptions are for.
    """

    def __init__(self, namespace: LanceNamespace, identity: Sequence[object], job: str) -> None:
        self.wrapped = namespace
        self._identity = identity
        self._job = job

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """Describe a table, with credentials that are good for a while; Lance calls this to renew them."""
        return self._share(request, self.wrapped.describe_table, DescribeTableResponse)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Describe a version; only a numbered one stays what it is."""
        if _request_fields(request).get("version") is None:
            return self.wrapped.describe_table_version(request)
        return self._share(request, self.wrapped.describe_table_version, DescribeTableVersionResponse)

    def _share(self, request: Any, ask: Callable[[Any], T], model: type[T]) -> T:
        answer = share_answer(
            [*self._identity, model.__name__, sorted(_request_fields(request).items())],
            self._job,
            lambda: _to_json(ask(request)),
        )
        # Lance, which sends a dictionary, expects one.
        return cast("T", answer) if isinstance(request, Mapping) else model.model_validate(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def _request_fields(request: Any) -> Json:
    """Return the fields of a request: a model, or a dictionary, as Lance sends those for versions."""
    return dict(request) if isinstance(request, Mapping) else request.model_dump(exclude_none=True)


def _to_json(answer: BaseModel | Json) -> Json:
    return answer if isinstance(answer, dict) else answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def share_descriptions(namespace: LanceNamespace, identity: Sequence[object], job: str) -> LanceNamespace:
    """Wrap one of our clients so that the workers of an executor share its descriptions of tables.

    Outside of an executor, return it as it is.
    """
    if find_shared_folder() is None or not isinstance(namespace, TableOperations):
        return namespace
    return cast("LanceNamespace", SharedNamespace(namespace, identity, job))
