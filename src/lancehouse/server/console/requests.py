"""What the console asks for: which backend, what of it, and how much; each checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.catalog.callers import Role
from lancehouse.gateway.backend_tables import BackendTable
from lancehouse.gateway.backends import Backend
from lancehouse.gateway.requests import parse_query
from lancehouse.server.api.lance import bearer_token

if TYPE_CHECKING:
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.server.http.calls import Call

LONGEST_FILTER = 10_000
LARGEST = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One request of the console."""

    call: Call
    query: Mapping[str, Sequence[str]]
    backends: Mapping[str, Backend]
    is_table: bool
    """Whether the levels are those of a table, and not of a namespace."""

    @classmethod
    def from_call(cls, call: Call, backends: Mapping[str, Backend], *, is_table: bool) -> ConsoleRequest:
        """Read the query."""
        return cls(call, parse_query(call.raw_query), backends, is_table)

    @property
    def backend(self) -> Backend:
        """The one that `in` names, if the caller may see it.

        Raises:
            NamespaceNotFoundError: there is none of that name.
            InvalidInputError: a level is no name there.
            PermissionDeniedError: no grant is on it. Who may read what of a warehouse, its catalog decides.
        """
        name, identity = self.find_parameter("in") or "", self.call.caller.identity
        backend = self.backends.get(name)
        if backend is None:
            raise NamespaceNotFoundError(f"there is no backend {name!r} here")
        backend.check_ids([self.levels])
        if not backend.is_warehouse:
            identity.require_role(Role.READER, name, self.levels[:-1] if self.is_table else self.levels)
        elif not identity.can_see(name):
            identity.require_role(Role.READER, name)
        return backend

    @property
    def warehouse(self) -> Warehouse | None:
        """The warehouse of this server that the backend is, if it is one."""
        backend = self.backend
        return self.call.catalog.get_warehouse(backend.name) if backend.is_warehouse else None

    @property
    def levels(self) -> tuple[str, ...]:
        """Of the namespace or table, without the backend."""
        levels = tuple(self.query.get("level", ()))
        if "" in levels:
            raise InvalidInputError("no level of a name may be empty")
        return levels

    @property
    def token(self) -> str | None:
        """What says who calls: the catalog is asked in their name."""
        return bearer_token(self.call.headers)

    @property
    def table(self) -> BackendTable:
        """The Lance table, at the version that is asked for."""
        backend, version = self.backend, self.find_number("version")
        reads_all = self.call.caller.identity.has_role(Role.READER, backend.name)
        return BackendTable.from_backend(backend, self.table_levels(), self.token, version, reads_all=reads_all)

    def table_levels(self) -> tuple[str, ...]:
        """The levels of a table or view.

        Raises:
            InvalidInputError: none is named.
        """
        if not self.levels:
            raise InvalidInputError("no table is named: give its levels, one by one, as level=…")
        return self.levels

    def find_parameter(self, name: str) -> str | None:
        """A parameter; None if it is not there, or empty."""
        return next(iter(self.query.get(name, ())), None) or None

    def get_parameter(self, name: str) -> str:
        """A parameter that must be there.

        Raises:
            InvalidInputError: it is not.
        """
        value = self.find_parameter(name)
        if value is None:
            raise InvalidInputError(f"{name} is missing in the query")
        return value

    def find_filter(self) -> str | None:
        """A condition in Lance's SQL.

        Raises:
            InvalidInputError: it is longer than anybody writes.
        """
        value = self.find_parameter("filter")
        if value is not None and len(value) > LONGEST_FILTER:
            raise InvalidInputError(f"the filter has more than {LONGEST_FILTER} characters")
        return value.strip() if value else None

    def find_number(self, name: str) -> int | None:
        """A number; None if it is not there.

        Raises:
            InvalidInputError: it is no whole number from 0.
        """
        value = self.find_parameter(name)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) > LARGEST:
            raise InvalidInputError(f"{name} must be a whole number from 0, got {value[:40]!r}")
        return int(value)

    def get_number(self, name: str, default: int, maximum: int, minimum: int = 1) -> int:
        """A number that is no more than so much, and no less."""
        value = self.find_number(name)
        return default if value is None else max(minimum, min(value, maximum))
