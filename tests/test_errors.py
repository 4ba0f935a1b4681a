from __future__ import annotations

import pytest
from lance_namespace import errors as lance
from lance_namespace.errors import ErrorCode, LanceNamespaceError

from lancehouse.errors import FOREIGN_PAGE, CommitStateUnknownError, ErrorMap, from_wire, is_route_missing

TABLE: ErrorMap = {404: lance.TableNotFoundError, 409: lance.TableAlreadyExistsError}


@pytest.mark.parametrize(
    ("status", "type_", "on", "expected"),
    [
        (404, "NoSuchTableException", {}, lance.TableNotFoundError),
        (404, "NoSuchNamespaceException", TABLE, lance.NamespaceNotFoundError),  # the server knows better than the call
        (404, "", TABLE, lance.TableNotFoundError),  # a proxy's 404 has no type
        (404, "", {}, lance.InvalidInputError),
        (404, FOREIGN_PAGE, TABLE, lance.InternalError),  # nor does a page for people say that a table is missing
        (403, FOREIGN_PAGE, TABLE, lance.PermissionDeniedError),
        (409, "AlreadyExistsException", TABLE, lance.TableAlreadyExistsError),
        (409, "CommitFailedException", TABLE, lance.ConcurrentModificationError),
        (409, "CommitConflictException", TABLE, lance.ConcurrentModificationError),
        (409, "", {}, lance.ConcurrentModificationError),
        (409, "NamespaceNotEmptyException", {}, lance.NamespaceNotEmptyError),
        (400, "BadRequestException", TABLE, lance.InvalidInputError),
        (400, "SCHEMA_ALREADY_EXISTS", {}, lance.NamespaceAlreadyExistsError),
        (400, "TABLE_ALREADY_EXISTS", {}, lance.TableAlreadyExistsError),
        (404, "SCHEMA_NOT_FOUND", TABLE, lance.NamespaceNotFoundError),
        (404, "CATALOG_NOT_FOUND", TABLE, lance.NamespaceNotFoundError),
        (401, "NotAuthorizedException", TABLE, lance.UnauthenticatedError),
        (419, "", TABLE, lance.UnauthenticatedError),
        (403, "ForbiddenException", TABLE, lance.PermissionDeniedError),
        (405, "", TABLE, lance.UnsupportedOperationError),
        (406, "UnsupportedOperationException", TABLE, lance.UnsupportedOperationError),
        (429, "", TABLE, lance.ThrottlingError),
        (503, "", TABLE, lance.ServiceUnavailableError),
        (500, "RuntimeIOException", TABLE, lance.InternalError),
        (501, "", TABLE, lance.InternalError),
        (502, "", TABLE, lance.InternalError),
        (504, "", TABLE, lance.InternalError),
        (500, "CommitStateUnknownException", TABLE, CommitStateUnknownError),
        (418, "", TABLE, lance.InternalError),
    ],
)
def test_wire_errors(status: int, type_: str, on: ErrorMap, expected: type[LanceNamespaceError]) -> None:
    error = from_wire(status, type_, "the server's words", about="table wh.db.t", on=on)
    assert type(error) is expected
    assert "table wh.db.t" in str(error)
    assert "the server's words" in str(error)
    assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize(
    ("status", "type_", "message", "missing"),
    [
        (400, "BadRequestException", "No route for request: GET v1/wh/namespaces", True),
        (404, "NotFoundException", "Unable to find matching target resource method", True),
        (404, "", "", True),
        (400, "", "Ambiguous URI path separator", True),
        (404, "NoSuchNamespaceException", "Namespace does not exist: db", False),
        (404, "NoSuchTableException", "Table does not exist: db.t", False),
        (403, "", "", False),
        (500, "", "", False),
    ],
)
def test_a_missing_route_is_no_missing_table(status: int, type_: str, message: str, missing: bool) -> None:
    assert is_route_missing(from_wire(status, type_, message, about="x", on=TABLE)) is missing


def test_no_route_is_a_wrong_name_or_endpoint() -> None:
    error = from_wire(404, "NotFoundException", "Unable to find matching target resource method", about="x", on=TABLE)
    assert error.code == ErrorCode.INVALID_INPUT


def test_an_unknown_commit_is_internal() -> None:
    assert CommitStateUnknownError("?").code == ErrorCode.INTERNAL
    assert int(ErrorCode.INTERNAL) == 18
