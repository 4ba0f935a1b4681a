"""The caller of a request: identity, grants, and the checks of what they may do.

A grant gives a role on every warehouse, on one, on a namespace and all below it, or on one table or view. It is by
name: who may read `a.t` may read whatever is called so, after a rename or a drop too.

| operation | role | on |
|---|---|---|
| config; list and load a namespace | any grant | the namespace, or above or below it: `can_see` |
| list tables and views | reader | their namespace, or else each of them: others are left out |
| load, scan, check tables and views; credentials to read; report metrics | reader | the table |
| commit to tables and views; credentials to write | writer | the table |
| create, register tables and views | writer | their namespace |
| drop, purge tables and views | writer of their namespace, or admin | the table: `require_drop` |
| rename a table or view | as to drop it, and writer | the namespace of the new name |
| commit several tables at once | writer | each of them |
| create, drop a namespace, change its properties | writer | its parent: `require_alter_namespace` |
| the same | admin | the namespace itself: `require_alter_namespace` |

A reader's grant on a table may have a row filter and column masks: it is restricted. It gives no role, so that whatever
asks for one is refused: its holder sees the table in lists, and reads it only where the code asks for `find_row_policy`
and applies that.

So a writer on `a` creates and drops tables in `a` and namespaces such as `a.b`, but cannot change `a` itself; to create
top-level namespaces takes a writer on the warehouse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from lance_namespace.errors import PermissionDeniedError

from lancehouse.row_policy import Restriction, RowPolicy

Scope = tuple[str | None, tuple[str, ...], str | None]
"""Warehouse, levels of a namespace, and name of a table; None and () stand for all."""
EVERYWHERE: Scope = (None, (), None)


class Role(IntEnum):
    """What a grant allows; each role includes the ones before it."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on every warehouse (None), on one, on one of its namespaces and all below, or on one table or view."""

    role: Role
    warehouse: str | None = None
    levels: tuple[str, ...] = ()
    table: str | None = None
    """Name of a table or view in that namespace; None: the grant is on the namespace or warehouse."""
    restriction: Restriction | None = None
    """Row filter and column masks of a reader of one table."""

    @property
    def scope(self) -> Scope:
        """What the grant is on."""
        return self.warehouse, self.levels, self.table

    def __str__(self) -> str:
        text = f"{self.role.name.lower()} of {format_scope(*self.scope)}"
        # Not the filter itself: messages with other grants of a principal reach admins of one of them.
        return text if self.restriction is None else f"{text} with a row filter or masks"


@dataclass(frozen=True)
class Identity:
    """An authenticated principal, or the anonymous one of a server without authentication."""

    name: str
    grants: tuple[Grant, ...]

    @cached_property
    def _roles(self) -> Mapping[Scope, Role]:
        """The highest role on each scope: somebody may have grants on thousands of tables.

        Restricted grants give none.
        """
        roles: dict[Scope, Role] = {}
        for grant in self.grants:
            if grant.restriction is None:
                roles[grant.scope] = max(grant.role, roles.get(grant.scope, grant.role))
        return roles

    @cached_property
    def _restrictions(self) -> Mapping[Scope, list[Restriction]]:
        """The restrictions of restricted grants by table."""
        restrictions: dict[Scope, list[Restriction]] = {}
        for grant in self.grants:
            if grant.restriction is not None:
                restrictions.setdefault(grant.scope, []).append(grant.restriction)
        return restrictions

    @cached_property
    def _seen(self) -> frozenset[tuple[str | None, tuple[str, ...]]]:
        """All namespaces that have a grant, and those above them."""
        scopes = {(grant.warehouse, grant.levels) for grant in self.grants}
        return frozenset(
            (warehouse, levels[:depth]) for warehouse, levels in scopes for depth in range(len(levels) + 1)
        )

    def has_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = (), table: str | None = None) -> bool:
        """Return whether a grant gives at least this role on a table, a namespace, or, without levels, a warehouse."""
        # Every request asks this: a loop costs half of what `any` over `enclosing_scopes` does.
        roles = self._roles
        if roles.get(EVERYWHERE, 0) >= role or (table is not None and roles.get((warehouse, levels, table), 0) >= role):
            return True
        for depth in range(len(levels), -1, -1):  # noqa: SIM110
            if roles.get((warehouse, levels[:depth], None), 0) >= role:
                return True
        return False

    def find_row_policy(self, warehouse: str, levels: tuple[str, ...], table: str) -> RowPolicy | None:
        """Return what the identity sees of a table on which it has only restricted grants.

        None: it may read all of it, or nothing; `has_role` tells which.
        """
        restrictions = self._restrictions.get((warehouse, levels, table)) if self._restrictions else None
        if restrictions is None or self.has_role(Role.READER, warehouse, levels, table):
            return None
        return RowPolicy.combine(restrictions)

    def can_list(self, warehouse: str, levels: tuple[str, ...], table: str) -> bool:
        """Return whether the identity may know of a table: it may read it, all of it or as far as grants allow."""
        return (warehouse, levels, table) in self._restrictions or self.has_role(Role.READER, warehouse, levels, table)

    def can_see(self, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Return whether the identity may read this namespace or anything below it.

        Namespaces above a granted one are visible, so that clients can navigate to it.
        """
        return (warehouse, levels) in self._seen or self.has_role(Role.READER, warehouse, levels)

    def readable_tables(self, warehouse: str, levels: tuple[str, ...]) -> list[str] | None:
        """Return the names of those tables and views in a namespace on which there is a grant, sorted; None: all.

        Raises:
            PermissionDeniedError: there is no grant on any, nor on the namespace.
        """
        if self.has_role(Role.READER, warehouse, levels):
            return None
        place = warehouse, levels
        names = {grant.table for grant in self.grants if (grant.warehouse, grant.levels) == place and grant.table}
        if not names:
            self.require_role(Role.READER, warehouse, levels)
        return sorted(names)

    @property
    def is_admin_everywhere(self) -> bool:
        """Whether this is an admin of every warehouse, as everybody is on a server without authentication."""
        return any(grant.role >= Role.ADMIN and grant.warehouse is None for grant in self.grants)

    def readable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """Return the namespaces of a warehouse on which, or on tables of which, there is a grant.

        `()` stands for the whole warehouse.
        """
        return list(dict.fromkeys(grant.levels for grant in self.grants if grant.warehouse in (None, warehouse)))

    def writable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """Return the namespaces of a warehouse on which there is a grant of that warehouse to write."""
        return [
            grant.levels
            for grant in self.grants
            if grant.role >= Role.WRITER and grant.warehouse == warehouse and grant.table is None
        ]

    def require_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = (), table: str | None = None) -> None:
        """Raise unless a grant gives this role.

        Raises:
            PermissionDeniedError: the message says which role is missing where.
        """
        if not self.has_role(role, warehouse, levels, table):
            where = format_scope(warehouse, levels, table)
            if table is not None and self.find_row_policy(warehouse, levels, table) is not None:
                raise restricted_error(self.name, where)
            raise PermissionDeniedError(f"{self.name} is no {role.name.lower()} of {where}")

    def require_sight(self, warehouse: str, levels: tuple[str, ...] = ()) -> None:
        """Raise unless the identity may see a namespace, or without levels a warehouse.

        Raises:
            PermissionDeniedError: it may read nothing there or below.
        """
        if not self.can_see(warehouse, levels):
            self.require_role(Role.READER, warehouse, levels)

    def require_drop(self, warehouse: str, levels: tuple[str, ...], table: str) -> None:
        """Raise unless the identity is a writer of the namespace of a table or view, or an admin of the table itself.

        Raises:
            PermissionDeniedError: it is neither.
        """
        if not (self.has_role(Role.WRITER, warehouse, levels) or self.has_role(Role.ADMIN, warehouse, levels, table)):
            here, holder = format_scope(warehouse, levels, table), format_scope(warehouse, levels)
            raise PermissionDeniedError(f"{self.name} is neither admin of {here} nor writer of {holder}")

    def require_alter_namespace(self, warehouse: str, levels: tuple[str, ...]) -> None:
        """Raise unless the identity is an admin of the namespace, or a writer of its parent.

        Raises:
            PermissionDeniedError: it is neither.
        """
        if not (self.has_role(Role.ADMIN, warehouse, levels) or self.has_role(Role.WRITER, warehouse, levels[:-1])):
            here, holder = format_scope(warehouse, levels), format_scope(warehouse, levels[:-1])
            raise PermissionDeniedError(f"{self.name} is neither admin of {here} nor writer of {holder}")


def enclosing_scopes(warehouse: str, levels: tuple[str, ...], table: str | None = None) -> Iterator[Scope]:
    """Yield the scopes whose grants count for a table, or without one for a namespace: its own and all around it."""
    for depth in range(len(levels) + 1):
        yield warehouse, levels[:depth], None
    if table is not None:
        yield warehouse, levels, table
    yield EVERYWHERE


def format_scope(warehouse: str | None, levels: tuple[str, ...] = (), table: str | None = None) -> str:
    """Return the scope of a grant in words, for messages."""
    if warehouse is None:
        return "every warehouse"
    if table is not None:
        return f"table {'.'.join((*levels, table))} of warehouse {warehouse}"
    return f"namespace {'.'.join(levels)} of warehouse {warehouse}" if levels else f"warehouse {warehouse}"


def restricted_error(name: str, where: str, what: str = "this") -> PermissionDeniedError:
    """Return the error for what a restricted grant does not give."""
    return PermissionDeniedError(
        f"{name} may read {where} with a row filter or column masks only, and {what} is not part of that: query or"
        " count its rows through the gateway at /lance/"
    )


ANYBODY = Identity("anonymous", (Grant(Role.ADMIN),))
"""The identity of every caller on a server without authentication."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The idempotency key of a request, which a client sends again when it repeats the request."""

    key: str
    digest: str
    """Digest of the caller and the whole request, which detects a key that is reused for a different request."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, with which client, and the request's headers that matter to the catalog."""

    identity: Identity
    client: str = ""
    """The client program, as it names itself."""
    request_id: str = ""
    key: IdempotencyKey | None = None
    delegation: bool = False
    """Whether the client asks for storage credentials."""
    peer: str = ""
    """The address from which the request came; empty within the process."""


SERVER = Caller(Identity("server", ()))
"""The server itself, which makes changes that no request asks for, such as deleting expired tables."""
