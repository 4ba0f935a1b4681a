from __future__ import annotations

import orjson
import pytest
from lance_namespace import errors as lance

from lancehouse import errors as ours
from lancehouse.catalog import errors as catalog
from lancehouse.server.http.errors import (
    ChangeDeadlineError,
    CommitDeadlineError,
    DeadlineError,
    MethodError,
    NoRouteError,
    PayloadTooLargeError,
    TooSlowError,
    error_envelope,
    error_response,
    failure_response,
    to_wire,
)


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (lance.NamespaceNotFoundError("x"), 404, "NoSuchNamespaceException"),
        (lance.NamespaceAlreadyExistsError("x"), 409, "AlreadyExistsException"),
        (lance.NamespaceNotEmptyError("x"), 409, "NamespaceNotEmptyException"),
        (lance.TableNotFoundError("x"), 404, "NoSuchTableException"),
        (lance.TableAlreadyExistsError("x"), 409, "AlreadyExistsException"),
        (lance.InvalidInputError("x"), 400, "BadRequestException"),
        (lance.UnsupportedOperationError("x"), 400, "UnsupportedOperationException"),
        (lance.ConcurrentModificationError("x"), 409, "CommitFailedException"),
        (lance.PermissionDeniedError("x"), 403, "ForbiddenException"),
        (lance.UnauthenticatedError("x"), 401, "NotAuthorizedException"),
        (lance.ThrottlingError("x"), 429, "TooManyRequestsException"),
        (lance.ServiceUnavailableError("x"), 503, "ServiceUnavailableException"),
        (lance.TableVersionNotFoundError("x"), 400, "BadRequestException"),
        (lance.TableColumnNotFoundError("x"), 400, "BadRequestException"),
        (lance.InternalError("x"), 500, "InternalServerError"),
        (lance.InvalidTableStateError("x"), 500, "InternalServerError"),
        (ours.CommitStateUnknownError("x"), 500, "CommitStateUnknownException"),
        (catalog.WarehouseNotFoundError("x"), 404, "NoSuchWarehouseException"),
        (catalog.ViewNotFoundError("x"), 404, "NoSuchViewException"),
        (catalog.ViewAlreadyExistsError("x"), 409, "AlreadyExistsException"),
        (catalog.MetadataNotFoundError("x"), 404, "NotFoundException"),
        (catalog.PlanNotFoundError("x"), 404, "NoSuchPlanIdException"),
        (catalog.PlanTaskNotFoundError("x"), 404, "NoSuchPlanTaskException"),
        (catalog.IllegalArgumentError("x"), 400, "IllegalArgumentException"),
        (catalog.ValidationError("x"), 400, "ValidationException"),
        (catalog.UnprocessableError("x"), 422, "UnprocessableEntityException"),
        (NoRouteError("x"), 404, "NotFoundException"),
        (MethodError("PUT", "GET"), 405, "MethodNotAllowedException"),
        (PayloadTooLargeError("x"), 413, "PayloadTooLargeException"),
        (TooSlowError("x"), 408, "RequestTimeoutException"),
        (DeadlineError("x"), 503, "ServiceUnavailableException"),
        (ChangeDeadlineError("x"), 504, "GatewayTimeoutException"),
        (CommitDeadlineError("x"), 504, "CommitStateUnknownException"),
        (RecursionError("maximum"), 400, "BadRequestException"),
        (KeyError("x"), 500, "InternalServerError"),
    ],
)
def test_errors_on_the_wire(error: BaseException, status: int, type_: str) -> None:
    assert to_wire(error) == (status, type_)


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (lance.UnauthenticatedError("x"), (b"www-authenticate", b'Bearer realm="lancehouse"')),
        (lance.ServiceUnavailableError("x"), (b"retry-after", b"1")),
        (lance.ThrottlingError("x"), (b"retry-after", b"1")),
        (MethodError("PUT", "GET, HEAD"), (b"allow", b"GET, HEAD")),
        (PayloadTooLargeError("x"), (b"connection", b"close")),
    ],
)
def test_headers_that_go_with_an_error(error: lance.LanceNamespaceError, header: tuple[bytes, bytes]) -> None:
    assert error_response(error).headers == [header]


def test_a_message_that_is_no_text_is_sent_all_the_same() -> None:
    assert orjson.loads(error_envelope(400, "T", "a\ud800b")) == {
        "error": {"message": "a\\ud800b", "type": "T", "code": 400}
    }


@pytest.mark.parametrize(("commits", "type_"), [(False, "InternalServerError"), (True, "CommitStateUnknownException")])
def test_a_failure_names_the_request_only(commits: bool, type_: str) -> None:
    error = orjson.loads(failure_response("r-1", commits=commits).body)["error"]
    assert error["type"] == type_
    assert "r-1" in error["message"]
