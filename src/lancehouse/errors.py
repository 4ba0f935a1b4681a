"""Translation of catalog servers' HTTP errors to `lance_namespace` errors, by tables.

Every error that leaves lancehouse is a `lance_namespace.errors.LanceNamespaceError`, so that
`except TableNotFoundError` and `error.code` mean the same on every catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

ErrorMap = Mapping[int | str, type[LanceNamespaceError]]
"""Error class for an HTTP status (int) or for a server's error type (str)."""

NO_OVERRIDES: ErrorMap = MappingProxyType({})


class CommitStateUnknownError(InternalError):
    """The response to a commit was lost, and the catalog could not be asked whether the commit was made.

    The commit may or may not have been made: read the table again before repeating it.
    """


BY_TYPE: ErrorMap = MappingProxyType(
    {
        # Iceberg REST and Polaris
        "NoSuchNamespaceException": NamespaceNotFoundError,
        "NoSuchWarehouseException": NamespaceNotFoundError,
        "NamespaceNotEmptyException": NamespaceNotEmptyError,
        "NoSuchTableException": TableNotFoundError,
        "CommitFailedException": ConcurrentModificationError,
        "CommitConflictException": ConcurrentModificationError,
        "CommitStateUnknownException": CommitStateUnknownError,
        "UnsupportedOperationException": UnsupportedOperationError,
        # Lakekeeper
        "NoSuchGenericTableException": TableNotFoundError,
        "LocationAlreadyTaken": InvalidInputError,
        "NamespaceProtected": PermissionDeniedError,
        "ChildNamespaceProtected": PermissionDeniedError,
        "ChildTabularProtected": PermissionDeniedError,
        "ProtectedTabularDeletionWithoutForce": PermissionDeniedError,
        # our own server
        "WarehouseFencedException": InvalidTableStateError,
        # Unity Catalog
        "CATALOG_NOT_FOUND": NamespaceNotFoundError,
        "SCHEMA_NOT_FOUND": NamespaceNotFoundError,
        "SCHEMA_ALREADY_EXISTS": NamespaceAlreadyExistsError,
        "TABLE_NOT_FOUND": TableNotFoundError,
        "TABLE_ALREADY_EXISTS": TableAlreadyExistsError,
        "PERMISSION_DENIED": PermissionDeniedError,
        "UNAUTHENTICATED": UnauthenticatedError,
        "RESOURCE_EXHAUSTED": ThrottlingError,
        "UNIMPLEMENTED": UnsupportedOperationError,
    }
)
"""Error types with one meaning on every server. `AlreadyExistsException` is absent: only the call knows what exists."""

BY_STATUS: ErrorMap = MappingProxyType(
    {
        400: InvalidInputError,
        401: UnauthenticatedError,
        403: PermissionDeniedError,
        404: InvalidInputError,
        405: UnsupportedOperationError,
        406: UnsupportedOperationError,
        409: ConcurrentModificationError,
        414: InvalidInputError,
        419: UnauthenticatedError,
        422: InvalidInputError,
        429: ThrottlingError,
        503: ServiceUnavailableError,
    }
)

FOREIGN_PAGE = "a page"
"""Error type of a response that is an HTML page: a proxy answered, or `endpoint` is not a catalog."""

NO_ROUTE = ("No route for request", "Unable to find matching target resource")
"""Messages of the reference server and of Polaris for an unknown path: the endpoint or a name is wrong."""


def from_wire(status: int, type_: str, message: str, *, about: str, on: ErrorMap = NO_OVERRIDES) -> LanceNamespaceError:
    """Build the Lance error for an error response of a server.

    The server's error type decides first, then what this call expects (`on`), then the status.

    Args:
        status: of the HTTP response.
        type_: the server's name of the error; empty where a proxy answered.
        message: the server's own message.
        about: the object that the call was about, as the user names it.
        on: what the call expects, by error type or by status; an error type in it overrides `BY_TYPE`.
    """
    is_page = type_ == FOREIGN_PAGE
    type_ = "" if is_page else type_
    kind = on.get(type_) or BY_TYPE.get(type_) or on.get(status) or BY_STATUS.get(status, InternalError)
    if any(words in message for words in NO_ROUTE):
        kind = InvalidInputError
    elif is_page and status == 404:
        kind, message = InternalError, f"{message}; this is not the response of a catalog: is `endpoint` right?"
    status_text = f"HTTP {status} {type_}".rstrip()
    error = kind(f"{about}: {message or 'the server gave no reason'} ({status_text})")
    vars(error).update(
        route_missing=status in (400, 404) and type_ not in BY_TYPE,
        no_route=status in (404, 405, 406, 501) or any(words in message for words in NO_ROUTE),
    )
    return error


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a Rust panic, which is not an `Exception` and whose class cannot be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def is_route_missing(error: LanceNamespaceError) -> bool:
    """Return whether the server may not know the path at all: 400 or 404 without an error type that `BY_TYPE` knows.

    Iceberg's reference server answers 400 to an unknown path, Polaris 404.
    """
    return bool(vars(error).get("route_missing"))


def is_no_route(error: LanceNamespaceError) -> bool:
    """Return whether the server does not serve this path; meaningful only for paths that contain no name."""
    return bool(vars(error).get("no_route"))
