"""Calls on any client: tables of third-party ones, such as Lance's `dir`, are read and written by our own code."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
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
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry
from pydantic import BaseModel

from lancehouse.catalog_walk import CatalogCalls
from lancehouse.identifiers import format_levels
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.manifests import parse_staged_path
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.versions import root_path
from lancehouse.properties import storage_options

M = TypeVar("M", bound=BaseModel)
D = TypeVar("D", DescribeTableResponse, DeclareTableResponse)

TABLE_OPERATIONS = frozenset(
    {"create_table_version", "batch_create_table_versions", "batch_commit_tables"}
    | {name for part in TableOperations.__bases__ for name in vars(part) if not name.startswith("_")}
)
"""Operations that `ForeignTables` carries out on a table, once the namespace has described it."""


class ForeignTables(TableOperations):
    """The tables of a third-party namespace.

    The namespace's own code would take and return rows in one piece of memory, and raise errors without codes.
    """

    def __init__(self, namespace: LanceNamespace, confinement: Confinement | None = None) -> None:
        self._namespace = namespace
        self.confinement = confinement

    def namespace_id(self) -> str:
        """Return the namespace's own id."""
        return str(self._namespace.namespace_id())

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """Describe a table, and refuse one whose location must not be opened."""
        return self._check_confinement(self._namespace.describe_table(request))

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        """Declare a table, and refuse a location that must not be opened."""
        return self._check_confinement(self._namespace.declare_table(request))

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        """Deregister a table."""
        return self._namespace.deregister_table(request)

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """List versions, after a check of the table's location."""
        self.describe_table(DescribeTableRequest(id=request.id))
        return self._pass_on("list_table_versions", request, ListTableVersionsResponse)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Describe a version, after a check of the table's location."""
        self.describe_table(DescribeTableRequest(id=request.id))
        return self._pass_on("describe_table_version", request, DescribeTableVersionResponse)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Create a version from a staged manifest.

        The manifest must lie in the table, because the namespace moves whatever file the request names.
        """
        self._require_own(request)
        return self._pass_on("create_table_version", request, CreateTableVersionResponse)

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Create versions of several tables from staged manifests, each of which must lie in its table."""
        for entry in request.entries:
            self._require_own(entry)
        return self._pass_on("batch_create_table_versions", request, BatchCreateTableVersionsResponse)

    def batch_commit_tables(self, request: BatchCommitTablesRequest) -> BatchCommitTablesResponse:
        """Commit several operations; staged manifests must lie in their tables."""
        for operation in request.operations:
            if operation.create_table_version is not None:
                self._require_own(operation.create_table_version)
        return self._pass_on("batch_commit_tables", request, BatchCommitTablesResponse)

    def _require_own(self, version: CreateTableVersionRequest | CreateTableVersionEntry) -> None:
        """Refuse a staged manifest that does not lie in the table.

        Raises:
            InvalidInputError: it does not.
        """
        location = self.describe_table(DescribeTableRequest(id=version.id)).location
        root, _, _ = parse_staged_path(version.manifest_path, version.branch, version.version)
        if location is None or root.strip("/") != root_path(location):
            raise InvalidInputError(f"{version.manifest_path!r} does not lie in the table")

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions, through the namespace if it manages them, else in storage."""
        entry = self.describe_table(DescribeTableRequest(id=request.id))
        if entry.managed_versioning is not True:
            return super().batch_delete_table_versions(request)
        return self._pass_on("batch_delete_table_versions", request, BatchDeleteTableVersionsResponse)

    def _check_confinement(self, response: D) -> D:
        if self.confinement is not None and response.location:
            self.confinement.require_table(response.location)
        return response

    def _pass_on(self, call: str, request: BaseModel, response: type[M]) -> M:
        """Call the namespace.

        pylance's own namespaces take and return dicts in operations on versions, and models in all others.
        """
        method = getattr(self._namespace, call)
        answer: Any = method(_to_dict(request) if _takes_dict(method) else request)
        return response.model_validate(answer) if isinstance(answer, dict) else answer


def _takes_dict(method: Any) -> bool:
    parameters = list(inspect.signature(method).parameters.values())
    return bool(parameters) and parameters[0].annotation in (dict, "dict")


def _to_dict(request: BaseModel) -> dict[str, Any]:
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)


def find_implementation(namespace: LanceNamespace, operation: str) -> LanceNamespace:
    """Return what carries out an operation: the client, or our own code on tables that it describes."""
    return table_operations(namespace) if operation in TABLE_OPERATIONS else namespace


def table_operations(namespace: LanceNamespace) -> TableOperations:
    """Return what reads and writes the tables of a client: the client itself if it is one of ours."""
    return namespace if isinstance(namespace, TableOperations) else ForeignTables(namespace)


class ClientCalls(CatalogCalls):
    """Calls on any client, whose errors are those of the interface."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self.namespace = namespace

    def ask(self, operation: str, request: Any) -> Any:
        """Call an operation, and return its response.

        Raises:
            UnsupportedOperationError: the catalog does not have it.
            LanceNamespaceError: as the implementation raises it; other exceptions are translated to one.
        """
        about = format_levels(request.id or ()) or "the catalog"
        with translate_errors(about):
            try:
                return getattr(find_implementation(self.namespace, operation), operation)(request)
            except NotImplementedError:
                raise no_operation_error(about, operation) from None


def no_operation_error(about: str, operation: str) -> UnsupportedOperationError:
    """Return the error for an operation that a catalog does not have."""
    return UnsupportedOperationError(f"{about}: this catalog has no {operation}")


class _StorageOptionsNamespace:
    """Wraps a namespace and adds storage options to its responses; options that it returns itself take precedence."""

    def __init__(self, namespace: LanceNamespace, options: Mapping[str, str]) -> None:
        self.wrapped = namespace
        self._options = options

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        return self._add_storage_options(self.wrapped.describe_table(request))

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        return self._add_storage_options(self.wrapped.declare_table(request))

    def _add_storage_options(self, response: D) -> D:
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


def is_directory(namespace: LanceNamespace | None) -> bool:
    """Return whether a client is Lance's `dir`, whose names are those of folders."""
    own = namespace.wrapped if isinstance(namespace, _StorageOptionsNamespace) else namespace
    return type(own).__name__ == "DirectoryNamespace"
