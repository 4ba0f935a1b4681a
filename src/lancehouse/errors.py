"""Wire errors become Lance errors here, chosen in tables.

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
"""What one call makes of a status (int) or of an error type (str)."""

NO_OVERRIDES: ErrorMap = MappingProxyType({})


class CommitStateUnknownError(InternalError):
    """The answer to a commit was lost, and the catalog could not be asked what became of it.

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
"""Names that mean the same wherever they appear. `AlreadyExistsException` is not here: of what, only the call knows."""

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
"""The type of an error that is a page for people: some proxy answered, or the endpoint leads elsewhere."""

NO_ROUTE = ("No route for request", "Unable to find matching target resource")
"""How the reference server and Polaris say that a path leads nowhere: the endpoint or a name is wrong."""


def from_wire(status: int, type_: str, message: str, *, about: str, on: ErrorMap = NO_OVERRIDES) -> LanceNamespaceError:
    """The Lance error for an answer of a server.

    What the server named wins, then what this call expects (`on`), then the status.

    Args:
        status: of the HTTP answer.
        type_: the server's name of the error; empty where a proxy answered.
        message: the server's own words.
        about: the object that the call was about, as its user knows it.
        on: what the call expects, by error type or by status.
    """
    is_page = type_ == FOREIGN_PAGE
    type_ = "" if is_page else type_
    kind = on.get(type_) or BY_TYPE.get(type_) or on.get(status) or BY_STATUS.get(status, InternalError)
    if any(words in message for words in NO_ROUTE):
        kind = InvalidInputError
    elif is_page and status == 404:
        kind, message = InternalError, f"{message}; this is no answer of a catalog: is `endpoint` right?"
    status_text = f"HTTP {status} {type_}".rstrip()
    error = kind(f"{about}: {message or 'the server gave no reason'} ({status_text})")
    vars(error).update(
        named=type_ in BY_TYPE,
        route_missing=status in (400, 404) and type_ not in BY_TYPE,
        no_route=status in (404, 405, 406, 501) or any(words in message for words in NO_ROUTE),
    )
    return error


def is_panic(error: BaseException) -> bool:
    """Whether Rust gave up in the middle of something: its exception is no `Exception`, and cannot be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def is_named(error: LanceNamespaceError) -> bool:
    """Whether the server itself named what is wrong: it knew what it was asked for."""
    return bool(vars(error).get("named"))


def is_route_missing(error: LanceNamespaceError) -> bool:
    """Whether the server may not know the path at all: it said 400 or 404, and named no missing namespace or table."""
    return bool(vars(error).get("route_missing"))


def is_no_route(error: LanceNamespaceError) -> bool:
    """Whether the server surely does not know a path that needs no name."""
    return bool(vars(error).get("no_route"))
