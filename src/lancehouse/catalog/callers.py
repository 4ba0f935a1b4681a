"""Who calls, and what they may do."""

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


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated principal, or anybody where the server asks for no authentication."""

    name: str
    grants: tuple[Grant, ...]

    def may(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Whether a grant allows it."""
        return any(grant.role >= role and grant.covers(warehouse, levels) for grant in self.grants)

    def sees(self, warehouse: str, levels: tuple[str, ...] = ()) -> bool:
        """Whether this namespace, or anything below it, may be read: it is then shown on the way there."""
        return self.may(Role.READER, warehouse, levels) or any(
            grant.warehouse == warehouse and grant.levels[: len(levels)] == levels for grant in self.grants
        )

    def require(self, role: Role, warehouse: str, levels: tuple[str, ...] = ()) -> None:
        """Refuse what no grant allows.

        Raises:
            PermissionDeniedError: it says which role is missing where.
        """
        if not self.may(role, warehouse, levels):
            place = f"namespace {'.'.join(levels)} of warehouse {warehouse}" if levels else f"warehouse {warehouse}"
            raise PermissionDeniedError(f"{self.name} is no {role.name.lower()} of {place}")


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
