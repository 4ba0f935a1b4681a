"""Requests of the console: backend, levels and parameters of the query, validated when they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.catalog.callers import Role
from lancehouse.gateway.backends import Backend
from lancehouse.gateway.messages import parse_query
from lancehouse.server.api.lance import bearer_token
from lancehouse.server.console.backend_tables import BackendTable

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
    """Whether the levels are those of a table, not of a namespace."""

    @classmethod
    def from_call(cls, call: Call, backends: Mapping[str, Backend], *, is_table: bool) -> ConsoleRequest:
        """Create a request from a call, by parsing its query."""
        return cls(call, parse_query(call.raw_query), backends, is_table)

    @property
    def backend(self) -> Backend:
        """The backend that the parameter `in` names, after checking that the caller may see it.

        Raises:
            NamespaceNotFoundError: there is no backend of that name.
            InvalidInputError: a level is not a valid name there.
            PermissionDeniedError: the caller has no grant on it. Reads inside a warehouse are checked by its catalog.
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
        """The warehouse of this server that the backend is; None for other backends."""
        backend = self.backend
        return self.call.catalog.warehouses[backend.name] if backend.is_warehouse else None

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the namespace or table, without the backend."""
        levels = tuple(self.query.get("level", ()))
        if "" in levels:
            raise InvalidInputError("no level of a name may be empty")
        return levels

    @property
    def token(self) -> str | None:
        """The caller's token, with which the catalog is called on their behalf."""
        return bearer_token(self.call.headers)

    @property
    def table(self) -> BackendTable:
        """The Lance table, at the requested version."""
        backend, version = self.backend, self.find_number("version")
        reads_all = self.call.caller.identity.has_role(Role.READER, backend.name)
        return BackendTable.from_backend(backend, self.table_levels(), self.token, version, reads_all=reads_all)

    def table_levels(self) -> tuple[str, ...]:
        """Return the levels of a table or view.

        Raises:
            InvalidInputError: the query names none.
        """
        if not self.levels:
            raise InvalidInputError("no table is named: give its levels, one by one, as level=…")
        return self.levels

    def find_parameter(self, name: str) -> str | None:
        """Return a parameter; None if it is missing or empty."""
        return next(iter(self.query.get(name, ())), None) or None

    def get_parameter(self, name: str) -> str:
        """Return a required parameter.

        Raises:
            InvalidInputError: it is missing.
        """
        value = self.find_parameter(name)
        if value is None:
            raise InvalidInputError(f"{name} is missing in the query")
        return value

    def find_filter(self) -> str | None:
        """Return the filter, a condition in Lance's SQL, or None.

        Raises:
            InvalidInputError: it is too long.
        """
        value = self.find_parameter("filter")
        if value is not None and len(value) > LONGEST_FILTER:
            raise InvalidInputError(f"the filter has more than {LONGEST_FILTER} characters")
        return value.strip() if value else None

    def find_number(self, name: str) -> int | None:
        """Return a number; None if it is missing.

        Raises:
            InvalidInputError: it is not a whole number from 0.
        """
        value = self.find_parameter(name)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) > LARGEST:
            raise InvalidInputError(f"{name} must be a whole number from 0, got {value[:40]!r}")
        return int(value)

    def get_number(self, name: str, default: int, maximum: int, minimum: int = 1) -> int:
        """Return a number, clamped between `minimum` and `maximum`; `default` if it is missing."""
        value = self.find_number(name)
        return default if value is None else max(minimum, min(value, maximum))
