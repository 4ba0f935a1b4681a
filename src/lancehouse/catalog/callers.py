"""The caller of a request: identity, grants, and the checks of what they may do.

A grant gives a role on every warehouse, on one, or on a namespace and all below it.

| operation | role | on |
|---|---|---|
| config; list and load a namespace | any grant | the namespace, or above or below it: `can_see` |
| list, load, scan, check tables and views; credentials to read; report metrics | reader | their namespace |
| create, register, commit, drop, purge tables and views; credentials to write | writer | their namespace |
| rename a table or view | writer | the namespaces of the old and the new name |
| commit several tables at once | writer | the namespace of each |
| create, drop a namespace, change its properties | writer | its parent: `require_alter_namespace` |
| the same | admin | the namespace itself: `require_alter_namespace` |

So a writer on `a` creates and drops tables in `a` and namespaces such as `a.b`, but cannot change `a` itself; to create
top-level namespaces takes a writer on the warehouse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lance_namespace.errors import PermissionDeniedError


class Role(IntEnum):
    """What a grant allows; each role includes the ones before it."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on every warehouse (None), on one, or on one of its namespaces and all below."""

    role: Role
    warehouse: str | None = None
    levels: tuple[str, ...] = ()

    def covers(self, warehouse: str, levels: tuple[str, ...]) -> bool:
        """Return whether the grant applies to this namespace."""
        return self.warehouse is None or (self.warehouse == warehouse and levels[: len(self.levels)] == self.levels)

    def __str__(self) -> str:
        return f"{self.role.name.lower()} of {format_scope(self.warehouse, self.levels)}"


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated principal, or the anonymous one of a server without authentication."""

    name: str
    grants: tuple[Grant, ...]

    def has_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Return whether a grant gives at least this role on a namespace, or, without levels, on a whole warehouse."""
        return any(grant.role >= role and grant.covers(warehouse, levels) for grant in self.grants)

    def can_see(self, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Return whether the identity may read this namespace or anything below it.

        Namespaces above a granted one are visible, so that clients can navigate to it.
        """
        return self.has_role(Role.READER, warehouse, levels) or any(
            grant.warehouse == warehouse and grant.levels[: len(levels)] == levels for grant in self.grants
        )

    @property
    def is_admin_everywhere(self) -> bool:
        """Whether this is an admin of every warehouse, as everybody is on a server without authentication."""
        return any(grant.role >= Role.ADMIN and grant.warehouse is None for grant in self.grants)

    def readable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """Return the namespaces of a warehouse on which there is a grant; `()` stands for the whole warehouse."""
        return [grant.levels for grant in self.grants if grant.warehouse in (None, warehouse)]

    def writable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """Return the namespaces of a warehouse on which there is a grant of that warehouse to write."""
        return [grant.levels for grant in self.grants if grant.role >= Role.WRITER and grant.warehouse == warehouse]

    def require_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> None:
        """Raise unless a grant gives this role.

        Raises:
            PermissionDeniedError: the message says which role is missing where.
        """
        if not self.has_role(role, warehouse, levels):
            raise PermissionDeniedError(f"{self.name} is no {role.name.lower()} of {format_scope(warehouse, levels)}")

    def require_alter_namespace(self, warehouse: str, levels: tuple[str, ...]) -> None:
        """Raise unless the identity is an admin of the namespace, or a writer of its parent.

        Raises:
            PermissionDeniedError: it is neither.
        """
        if not (self.has_role(Role.ADMIN, warehouse, levels) or self.has_role(Role.WRITER, warehouse, levels[:-1])):
            here, holder = format_scope(warehouse, levels), format_scope(warehouse, levels[:-1])
            raise PermissionDeniedError(f"{self.name} is neither admin of {here} nor writer of {holder}")


def format_scope(warehouse: str | None, levels: tuple[str, ...] = ()) -> str:
    """Return the scope of a grant in words, for messages."""
    if warehouse is None:
        return "every warehouse"
    return f"namespace {'.'.join(levels)} of warehouse {warehouse}" if levels else f"warehouse {warehouse}"


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
"""The server itself, as the one who makes a change that nobody asked for just now."""
