"""A namespace that repeats all that it was told: in what it describes, in header fields, and in errors of all kinds."""

from __future__ import annotations

from typing import Any

from lance_namespace import (
    DeclareTableRequest,
    DeclareTableResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
)
from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError, TableNotFoundError

ERRORS = (
    PermissionDeniedError,
    TableNotFoundError,
    ValueError,
    RuntimeError,
    OSError,
    KeyError,
    TypeError,
    ZeroDivisionError,
)


class Talkative(LanceNamespace):
    """It knows the table `t`; every other id makes an error, whose kind its last level names by number."""

    def __init__(self, **properties: str) -> None:
        if properties.get("start") == "never":
            raise ValueError(f"not with {properties}")
        self._known = properties
        self._location = properties.get("location", "")

    def namespace_id(self) -> str:
        return f"Talkative {self._known}"

    def _tell(self) -> dict[str, Any]:
        options = {key.removeprefix("storage."): value for key, value in self._known.items()}
        context = {f"header.x-{number}": value for number, value in enumerate(self._known.values())}
        return {
            "storage_options": {**options, "aws_region": "vended"},
            "context": {**context, "known": str(self._known)},
        }

    def _fail(self, id: list[str] | None) -> None:
        last = (id or ["0"])[-1]
        kind = ERRORS[int(last)] if last.isdecimal() else TableNotFoundError
        if issubclass(kind, LanceNamespaceError):
            raise kind(f"no {last}: {self._known}")
        try:
            raise PermissionDeniedError(f"the store says {self._known}")
        except PermissionDeniedError as cause:
            raise kind(f"no {last}: {self._known}") from cause

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        if request.id != ["t"]:
            self._fail(request.id)
        return DescribeTableResponse(location=self._location, **self._tell())

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        if request.id != ["t"]:
            self._fail(request.id)
        return DeclareTableResponse(location=self._location, **self._tell())

    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        self._fail(request.id)
        raise AssertionError

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        return ListNamespacesResponse(namespaces=["a"], context=self._tell()["context"])
