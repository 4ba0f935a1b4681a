"""Addresses of tables and catalogs in plain text, so that Spark can send them to executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

from lance_namespace import LanceNamespace, connect
from lance_namespace.errors import InvalidInputError

import lancehouse  # noqa: F401 - registers our aliases with `connect`, in executors too
from lancehouse.connection import Connection
from lancehouse.credentials import expires_soon
from lancehouse.identifiers import format_levels, parse_levels
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import TableLocation, locate_table
from lancehouse.lake.object_stores import with_storage_options

TableName = str | Sequence[str]
"""Id of a table: its levels, or text joined by dots in which a level that contains a dot is quoted with backquotes."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table by its name in a catalog, or by its path."""

    connection: Connection | None = None
    id: tuple[str, ...] = ()
    path: str | None = None
    storage_options: Pairs = field(default=(), repr=False)

    @classmethod
    def parse(cls, connection: Connection, table: TableName) -> Self:
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

    def to_ref(self, **at: Any) -> TableRef:
        """Return a reference to the table for code in this process; `at` gives its version, branch or tag."""
        if self.connection is None:
            return TableRef(self.path, dict(self.storage_options), **at)
        return TableRef(namespace=get_client(self.connection), id=self.id, **at)

    def write_location(self, job: str) -> TableLocation:
        """Return the location that a job writes to.

        Each process asks the catalog once, and again before credentials expire.

        Args:
            job: id of the job, part of the cache key: a table may be dropped and created again, elsewhere, under the
                same name.
        """
        cached = _cached_location(self, job)
        if not cached or expires_soon(cached[0].storage_options):
            cached[:] = [locate_table(self.to_ref())]
        return cached[0]

    def __str__(self) -> str:
        return self.path if self.path is not None else f"table {format_levels(self.id)}"


# The list is a slot for one location, which can be replaced before its credentials expire.
@lru_cache(64)
def _cached_location(address: TableAddress, job: str) -> list[TableLocation]:  # noqa: ARG001 - they are the key of the cache
    return []


@lru_cache(64)
def get_client(connection: Connection) -> LanceNamespace:
    """Return the client of a connection: one for each process, so that its caches and credentials serve all tasks.

    Raises:
        InvalidInputError: there is no such implementation, or it does not take these properties.
    """
    properties = dict(connection.properties)
    try:
        return with_storage_options(connect(connection.impl, properties), properties)
    except ValueError as error:  # `connect` makes one of whatever a constructor raises
        raise InvalidInputError(f"cannot connect to {connection.impl!r}: {error}") from error
