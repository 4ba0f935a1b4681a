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


class _Reaching:
    """A namespace that tells of its tables what reaches them; what it tells of itself stands."""

    def __init__(self, namespace: LanceNamespace, options: Mapping[str, str]) -> None:
        self.bare = namespace
        self._options = options

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        return self._reached(self.bare.describe_table(request))

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        return self._reached(self.bare.declare_table(request))

    def _reached(self, told: T) -> T:
        return told.model_copy(update={"storage_options": {**self._options, **(told.storage_options or {})}})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)


def reaching(namespace: LanceNamespace, properties: Mapping[str, str]) -> LanceNamespace:
    """A namespace whose tables can be opened with what it tells of them: `storage.*` of its properties, if need be.

    Our own clients tell these themselves.
    """
    options = storage_options(properties)
    if not options or isinstance(namespace, TableOperations):
        return namespace
    return cast("LanceNamespace", _Reaching(namespace, options))


def bare(namespace: LanceNamespace) -> LanceNamespace:
    """The namespace itself."""
    return namespace.bare if isinstance(namespace, _Reaching) else namespace
