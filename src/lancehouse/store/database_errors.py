"""Errors of the databases, translated: constraint violations, conflicts, lost connections."""

from __future__ import annotations

from lance_namespace.errors import InternalError, InvalidInputError, InvalidTableStateError, ServiceUnavailableError

UPGRADE = "run `lancehouse db upgrade`"


class UniqueViolationError(InternalError):
    """A value that must be unique exists already."""


class ForeignKeyViolationError(InternalError):
    """A row is still referred to, or would refer to one that does not exist."""


class SerializationFailureError(ServiceUnavailableError):
    """The transaction conflicted with another one and was rolled back; it can be retried."""


class ConnectionLostError(ServiceUnavailableError):
    """The connection broke before the transaction was committed."""


def unreachable_error(reason: object) -> ServiceUnavailableError:
    """Build the error for a database that cannot be reached: nothing was done, and the caller may retry."""
    return ServiceUnavailableError(f"the catalog's database is out of reach: {first_line(reason)}")


def closed_error() -> ServiceUnavailableError:
    """Build the error for a database that this process has closed."""
    return ServiceUnavailableError("the catalog's database is closed")


def unstorable_error(reason: object) -> InvalidInputError:
    """Build the error for a value that no database column can hold."""
    return InvalidInputError(f"the catalog's database cannot hold a value of this request: {first_line(reason)}")


def schema_missing_error() -> InvalidTableStateError:
    """Build the error for a database without our tables."""
    return InvalidTableStateError(f"the catalog's database has no schema, or an older one: {UPGRADE}")


def first_line(reason: object) -> str:
    """Return the first line of a message; drivers add hints and the statement on further lines."""
    return str(reason).strip().partition("\n")[0] or type(reason).__name__
