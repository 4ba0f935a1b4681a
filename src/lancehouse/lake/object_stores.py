"""Add storage options to the responses of other namespaces, such as Lance's `dir` on an object store."""

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
    """Wraps a namespace and adds storage options to its responses; options that it returns itself take precedence."""

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
    """Wrap a namespace so that it returns the `storage.*` options of its properties with each table, if it has any.

    Our own clients return them anyway and are not wrapped.
    """
    options = storage_options(properties)
    if not options or isinstance(namespace, TableOperations):
        return namespace
    return cast("LanceNamespace", _StorageOptionsNamespace(namespace, options))


def unwrap_namespace(namespace: LanceNamespace) -> LanceNamespace:
    """Return the namespace that `with_storage_options` wrapped, or the namespace itself."""
    return namespace.wrapped if isinstance(namespace, _StorageOptionsNamespace) else namespace
