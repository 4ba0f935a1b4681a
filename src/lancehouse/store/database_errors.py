"""What the databases' own errors mean."""

from __future__ import annotations

from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, ServiceUnavailableError

UPGRADE = "run `lancehouse db upgrade`"


class UniqueViolationError(InternalError):
    """A value that is there once only is there already."""


class ForeignKeyViolationError(InternalError):
    """A row that another refers to would go, or one would refer to a row that is not there."""


class SerializationFailureError(ServiceUnavailableError):
    """Two transactions stood in each other's way, and the database gave this one up: nothing was done."""


class ConnectionLostError(ServiceUnavailableError):
    """The connection broke."""


def unreachable_error(reason: object) -> ServiceUnavailableError:
    """Nothing was done; it may be tried again."""
    return ServiceUnavailableError(f"the catalog's database is out of reach: {first_line(reason)}")


def closed_error() -> ServiceUnavailableError:
    """The database was closed, here."""
    return ServiceUnavailableError("the catalog's database is closed")


def unstorable_error(reason: object) -> InvalidInputError:
    """A value that no database column can hold."""
    return InvalidInputError(f"the catalog's database cannot hold a value of this request: {first_line(reason)}")


def schema_missing_error() -> InvalidTableStateError:
    """The tables are not there."""
    return InvalidTableStateError(f"the catalog's database has no schema, or an older one: {UPGRADE}")


def first_line(reason: object) -> str:
    """Drivers add hints and the statement on further lines."""
    return str(reason).strip().partition("\n")[0] or type(reason).__name__
