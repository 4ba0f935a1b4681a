"""Namespaces of others, such as Lance's `dir`: their tables, read and written by our own code."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
)
from pydantic import BaseModel

from lancehouse.lake.operations import TableOperations

M = TypeVar("M", bound=BaseModel)

OF_TABLES = frozenset(
    {"create_table_version"}
    | {name for part in TableOperations.__bases__ for name in vars(part) if not name.startswith("_")}
)
"""What can be done with a table that is described."""


class Rows(TableOperations):
    """The tables of a namespace of others.

    Its own code takes and gives rows as one piece of memory, and raises what has no code.
    """

    def __init__(self, namespace: LanceNamespace) -> None:
        self._others = namespace

    def namespace_id(self) -> str:
        """As the namespace has it."""
        return str(self._others.namespace_id())

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """As the namespace has it, like all that follow."""
        return self._others.describe_table(request)

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        """Pass it on."""
        return self._others.declare_table(request)

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        """Pass it on."""
        return self._others.deregister_table(request)

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """Pass it on."""
        return self._pass_on("list_table_versions", request, ListTableVersionsResponse)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Pass it on."""
        return self._pass_on("describe_table_version", request, DescribeTableVersionResponse)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Pass it on."""
        return self._pass_on("create_table_version", request, CreateTableVersionResponse)

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Pass it on if the namespace keeps the versions; if storage does, delete them there."""
        entry = self.describe_table(DescribeTableRequest(id=request.id))
        if entry.managed_versioning is not True:
            return super().batch_delete_table_versions(request)
        return self._pass_on("batch_delete_table_versions", request, BatchDeleteTableVersionsResponse)

    def _pass_on(self, call: str, request: BaseModel, response: type[M]) -> M:
        """Pylance's own namespaces take and give dicts where it is about versions."""
        method = getattr(self._others, call)
        answer: Any = method(_plain(request) if _takes_dict(method) else request)
        return response.model_validate(answer) if isinstance(answer, dict) else answer


def _takes_dict(method: Any) -> bool:
    taken = list(inspect.signature(method).parameters.values())
    return bool(taken) and taken[0].annotation in (dict, "dict")


def _plain(request: BaseModel) -> dict[str, Any]:
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)
