"""Error responses of Iceberg REST: the table of status and type for each exception class."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import orjson
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
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from lancehouse.catalog.errors import (
    IllegalArgumentError,
    MetadataNotFoundError,
    PlanNotFoundError,
    PlanTaskNotFoundError,
    PrincipalExistsError,
    PrincipalNotFoundError,
    UnprocessableError,
    ValidationError,
    ViewNotFoundError,
    WarehouseFencedError,
    WarehouseNotFoundError,
)
from lancehouse.errors import CommitStateUnknownError
from lancehouse.server.http.responses import Header, Response

BAD_REQUEST = (400, "BadRequestException")
EXISTS = (409, "AlreadyExistsException")
INTERNAL = (500, "InternalServerError")
STATE_UNKNOWN = (500, "CommitStateUnknownException")


class NoRouteError(InvalidInputError):
    """No route has this path."""


class MethodError(UnsupportedOperationError):
    """The path exists, but not with this method."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not offered here; {allowed} is" if allowed else f"{method} is not offered here")
        self.allowed = allowed


class PayloadTooLargeError(InvalidInputError):
    """The request has more bytes than the server accepts."""


class ContentTypeError(InvalidInputError):
    """The body has a content type that the route does not accept."""


class TooSlowError(InvalidInputError):
    """The request did not arrive in time."""


class DeadlineError(ServiceUnavailableError):
    """A read exceeded its time limit; it may be repeated."""


class ChangeDeadlineError(InternalError):
    """A change exceeded its time limit; it is not known whether it was made."""


class CommitDeadlineError(CommitStateUnknownError):
    """A commit exceeded its time limit; it is not known whether it was made."""


TO_WIRE: Mapping[type[BaseException], tuple[int, str]] = MappingProxyType(
    {
        WarehouseNotFoundError: (404, "NoSuchWarehouseException"),
        NamespaceNotFoundError: (404, "NoSuchNamespaceException"),
        NamespaceAlreadyExistsError: EXISTS,
        NamespaceNotEmptyError: (409, "NamespaceNotEmptyException"),
        TableNotFoundError: (404, "NoSuchTableException"),
        TableAlreadyExistsError: EXISTS,
        ViewNotFoundError: (404, "NoSuchViewException"),
        MetadataNotFoundError: (404, "NotFoundException"),
        PlanNotFoundError: (404, "NoSuchPlanIdException"),
        PlanTaskNotFoundError: (404, "NoSuchPlanTaskException"),
        TableVersionNotFoundError: BAD_REQUEST,
        TableColumnNotFoundError: BAD_REQUEST,
        TableTagNotFoundError: BAD_REQUEST,
        TableBranchNotFoundError: BAD_REQUEST,
        TableTagAlreadyExistsError: EXISTS,
        TableBranchAlreadyExistsError: EXISTS,
        TableSchemaValidationError: BAD_REQUEST,
        PrincipalNotFoundError: (404, "NotFoundException"),
        PrincipalExistsError: EXISTS,
        InvalidInputError: BAD_REQUEST,
        IllegalArgumentError: (400, "IllegalArgumentException"),
        ValidationError: (400, "ValidationException"),
        UnprocessableError: (422, "UnprocessableEntityException"),
        # 400 and not 406: most routes of the specification have no 406, and pyiceberg knows none
        UnsupportedOperationError: (400, "UnsupportedOperationException"),
        ConcurrentModificationError: (409, "CommitFailedException"),
        PermissionDeniedError: (403, "ForbiddenException"),
        WarehouseFencedError: (403, "WarehouseFencedException"),
        UnauthenticatedError: (401, "NotAuthorizedException"),
        ThrottlingError: (429, "TooManyRequestsException"),
        ServiceUnavailableError: (503, "ServiceUnavailableException"),
        CommitStateUnknownError: STATE_UNKNOWN,
        LanceNamespaceError: INTERNAL,
        NoRouteError: (404, "NotFoundException"),
        MethodError: (405, "MethodNotAllowedException"),
        PayloadTooLargeError: (413, "PayloadTooLargeException"),
        ContentTypeError: (415, "UnsupportedMediaTypeException"),
        TooSlowError: (408, "RequestTimeoutException"),
        DeadlineError: (503, "ServiceUnavailableException"),
        ChangeDeadlineError: (504, "GatewayTimeoutException"),
        CommitDeadlineError: (504, "CommitStateUnknownException"),
        RecursionError: BAD_REQUEST,
    }
)

FORESEEN = (LanceNamespaceError, RecursionError)
"""Expected errors, whose messages are meant for clients."""
RETRY_AFTER_S = 1
WORDS: Mapping[type[BaseException], str] = MappingProxyType({RecursionError: "the request is nested too deeply"})


def to_wire(error: BaseException) -> tuple[int, str]:
    """Return status and type of an error, by the first class of its MRO in `TO_WIRE`; 500 for an unexpected one."""
    return next((TO_WIRE[kind] for kind in type(error).__mro__ if kind in TO_WIRE), INTERNAL)


def error_envelope(status: int, type_: str, message: str) -> bytes:
    """Return the JSON body of an error, in Iceberg's format."""
    return orjson.dumps({"error": {"message": _escape_surrogates(message), "type": type_, "code": status}})


def _escape_surrogates(message: str) -> str:
    """Escape lone surrogates, which a message may quote from a name and which cannot be encoded as UTF-8."""
    return message.encode("utf-8", "backslashreplace").decode()


def _build_error(status: int, type_: str, message: str, headers: list[Header] | None = None) -> Response:
    return Response(
        status, error_envelope(status, type_, message), headers or [], why=(type_, _escape_surrogates(message))
    )


def error_response(error: BaseException) -> Response:
    """Build the response for an error."""
    status, type_ = to_wire(error)
    headers: list[Header] = []
    if isinstance(error, MethodError) and error.allowed:
        headers.append((b"allow", error.allowed.encode()))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b'Bearer realm="lancehouse"'))
    if isinstance(error, (ServiceUnavailableError, ThrottlingError)):
        headers.append((b"retry-after", b"%d" % getattr(error, "retry_after_s", RETRY_AFTER_S)))
    # The rest of the body is not read, so no further request can follow on this connection.
    if isinstance(error, (PayloadTooLargeError, TooSlowError)):
        headers.append((b"connection", b"close"))
    return _build_error(status, type_, WORDS.get(type(error)) or str(error), headers)


def failure_response(request_id: str, *, commits: bool) -> Response:
    """Build the response for an unexpected error; the log has its details under the request's id."""
    status, type_ = STATE_UNKNOWN if commits else INTERNAL
    unknown = "; whether the commit was made is not known" if commits else ""
    message = f"the server failed{unknown}; its log has the reason under the request id {request_id}"
    return _build_error(status, type_, message)
