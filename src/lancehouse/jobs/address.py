"""Addresses of tables and of their versions in plain text, so that an engine can send them to other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self
from uuid import uuid4

from lance_namespace import LanceNamespace, connect
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

import lancehouse  # noqa: F401 - registers our aliases with `connect`, in executors too
from lancehouse.caches import BoundedCache
from lancehouse.catalog_walk import walk_tables
from lancehouse.connection import Connection
from lancehouse.credentials import expires_soon
from lancehouse.identifiers import format_levels, parse_levels
from lancehouse.jobs.executor_cache import share_descriptions
from lancehouse.lake.commits import TableLocation, locate_table
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.foreign_tables import ClientCalls, with_storage_options
from lancehouse.lake.manifests import read_transaction_uuid

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
            InvalidInputError: the id has no level, or is none; or there is no such implementation, or it does not take
                these properties.
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
        """What tells the table, and who asks for it, from others; it may hold secrets."""
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
            return self.keep_open(*opened)
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
