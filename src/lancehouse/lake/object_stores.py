"""Namespaces of others that keep to themselves how to reach their data, as Lance's `dir` does on an object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from lance_namespace import (
    DeclareTableRequest,
    DeclareTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    LanceNamespace,
)

from lancehouse.lake.operations import TableOperations
from lancehouse.properties import storage_options

T = TypeVar("T", DescribeTableResponse, DeclareTableResponse)


class _StorageOptionsNamespace:
    """A namespace that tells of its tables what reaches them; what it tells of itself stands."""

    def __init__(self, namespace: LanceNamespace, options: Mapping[str, str]) -> None:
        self.wrapped = namespace
        self._options = options

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        return self._add_storage_options(self.wrapped.describe_table(request))

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        return self._add_storage_options(self.wrapped.declare_table(request))

    def _add_storage_options(self, response: T) -> T:
        return response.model_copy(update={"storage_options": {**self._options, **(response.storage_options or {})}})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def with_storage_options(namespace: LanceNamespace, properties: Mapping[str, str]) -> LanceNamespace:
    """A namespace whose tables can be opened with what it tells of them: `storage.*` of its properties, if need be.

    Our own clients tell these themselves.
    """
    options = storage_options(properties)
    if not options or isinstance(namespace, TableOperations):
        return namespace
    return cast("LanceNamespace", _StorageOptionsNamespace(namespace, options))


def unwrap_namespace(namespace: LanceNamespace) -> LanceNamespace:
    """The namespace itself."""
    return namespace.wrapped if isinstance(namespace, _StorageOptionsNamespace) else namespace
