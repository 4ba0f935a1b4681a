"""Who calls, and what they may do.

A grant gives a role on every warehouse, on one, or on a namespace and all that lies in it, however deep.

| to do this | it takes | where |
|---|---|---|
| config; see a namespace in a list, load it | any grant | there, above or below: `sees` |
| list, load, plan, test tables and views; credentials to read; report metrics | reader | their namespace |
| create, register, commit, drop, purge tables and views; credentials to write | writer | their namespace |
| rename a table or view | writer | the namespace it leaves and the one it enters |
| commit several tables at once | writer | the namespace of each |
| create, drop a namespace, change its properties | writer | the namespace that holds it: `require_over` |
| the same | admin | the namespace itself: `require_over` |

So a writer on `a` makes and drops tables in `a` and namespaces such as `a.b`, and leaves `a` itself as it is; who may
make namespaces in a warehouse is a writer on the warehouse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lance_namespace.errors import PermissionDeniedError


class Role(IntEnum):
    """What a grant allows; each role may do all that the one before it may."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on every warehouse (None), on one, or on a namespace of it and all below."""

    role: Role
    warehouse: str | None = None
    levels: tuple[str, ...] = ()

    def covers(self, warehouse: str, levels: tuple[str, ...]) -> bool:
        """Whether it holds for this namespace."""
        return self.warehouse is None or (self.warehouse == warehouse and levels[: len(self.levels)] == self.levels)

    def __str__(self) -> str:
        return f"{self.role.name.lower()} of {format_scope(self.warehouse, self.levels)}"


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated principal, or anybody where the server asks for no authentication."""

    name: str
    grants: tuple[Grant, ...]

    def has_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Whether a grant allows it."""
        return any(grant.role >= role and grant.covers(warehouse, levels) for grant in self.grants)

    def can_see(self, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Whether this namespace, or anything below it, may be read: it is then shown on the way there."""
        return self.has_role(Role.READER, warehouse, levels) or any(
            grant.warehouse == warehouse and grant.levels[: len(levels)] == levels for grant in self.grants
        )

    @property
    def is_admin_everywhere(self) -> bool:
        """Whether this is an admin of every warehouse, as anybody is where nobody is asked who they are."""
        return any(grant.role >= Role.ADMIN and grant.warehouse is None for grant in self.grants)

    def readable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """The namespaces of a warehouse that this caller may read, apart from those below them; `()` is all of it."""
        return [grant.levels for grant in self.grants if grant.warehouse in (None, warehouse)]

    def writable_namespaces(self, warehouse: str) -> list[tuple[str, ...]]:
        """The namespaces of a warehouse that this caller may write to, apart from those below them."""
        return [grant.levels for grant in self.grants if grant.role >= Role.WRITER and grant.warehouse == warehouse]

    def require_role(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> None:
        """Refuse what no grant allows.

        Raises:
            PermissionDeniedError: it says which role is missing where.
        """
        if not self.has_role(role, warehouse, levels):
            raise PermissionDeniedError(f"{self.name} is no {role.name.lower()} of {format_scope(warehouse, levels)}")

    def require_alter_namespace(self, warehouse: str, levels: tuple[str, ...]) -> None:
        """Refuse to make, drop or change a namespace unless as an admin of it, or a writer of the one that holds it.

        Raises:
            PermissionDeniedError: neither.
        """
        if not (self.has_role(Role.ADMIN, warehouse, levels) or self.has_role(Role.WRITER, warehouse, levels[:-1])):
            here, holder = format_scope(warehouse, levels), format_scope(warehouse, levels[:-1])
            raise PermissionDeniedError(f"{self.name} is neither admin of {here} nor writer of {holder}")


def format_scope(warehouse: str | None, levels: tuple[str, ...] = ()) -> str:
    """Where a grant holds, in words."""
    if warehouse is None:
        return "every warehouse"
    return f"namespace {'.'.join(levels)} of warehouse {warehouse}" if levels else f"warehouse {warehouse}"


ANYBODY = Identity("anonymous", (Grant(Role.ADMIN),))
"""The caller of a server without authentication."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a client sends again with the same request."""

    key: str
    digest: str
    """Of who asked and of the whole request: the same key with another request is a mistake."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's who, with what, and which."""

    identity: Identity
    client: str = ""
    request_id: str = ""
    key: IdempotencyKey | None = None
    delegation: bool = False
    """Whether credentials for the storage are asked for."""
