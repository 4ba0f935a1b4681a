"""Tables of third-party namespaces, such as Lance's `dir`, read and written by our own code."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

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
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.create_table_version_entry import CreateTableVersionEntry
from pydantic import BaseModel

from lancehouse.lake.confinement import Confinement, outside_error, require_no_links
from lancehouse.lake.manifests import parse_staged_path
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.versions import root_path
from lancehouse.locations import find_link, is_inside, local_folder

M = TypeVar("M", bound=BaseModel)
D = TypeVar("D", DescribeTableResponse, DeclareTableResponse)

TABLE_OPERATIONS = frozenset(
    {"create_table_version", "batch_create_table_versions", "batch_commit_tables"}
    | {name for part in TableOperations.__bases__ for name in vars(part) if not name.startswith("_")}
)
"""Operations that `ForeignTables` carries out on a table, once the namespace has described it."""


@dataclass(frozen=True, slots=True)
class BackendConfinement:
    """Restricts what is opened of a backend's tables to its roots. Implements `Confinement`.

    Files that a table takes from outside its own location may belong to a namespace that the caller may not read, and
    their location does not show which. So only callers who may read the whole backend get them.
    """

    reads_rows: ClassVar = True
    backend: str
    roots: tuple[str, ...]
    reads_all: bool
    opens: bool = True
    """Whether tables are opened, not only described."""

    def for_descriptions(self) -> Self:
        """Return one for tables that are described and not opened."""
        return replace(self, opens=False)

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a table outside of the roots, unless the catalog announces its location and it is not on this machine.

        Raises:
            OutsideError: it lies elsewhere, or behind a symlink.
        """
        remote = [place for place in announced if local_folder(place) is None]
        if not is_inside(location, (*self.roots, *remote)):
            raise outside_error("the table lies at", location, self._remedy)
        if not self.opens:
            return
        if link := find_link(location, self.roots):
            raise outside_error("the table lies behind a symbolic link,", link, "put the folder itself in its place")
        require_no_links(location)

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse the same locations as `require_table`."""
        self.require_table(location, announced)

    def require_base(self, base: str) -> None:
        """Refuse a base path that the caller may not read.

        Raises:
            OutsideError: the caller may not read it.
        """
        self._require("the table takes files from", base)

    def require_blob(self, uri: str) -> None:
        """Refuse an external blob that the caller may not read.

        Raises:
            OutsideError: the caller may not read it.
        """
        self._require("the table has an external blob,", uri)

    def _require(self, what: str, location: str) -> None:
        if not is_inside(location, self.roots):
            raise outside_error(what, location, self._remedy)
        if not self.reads_all:
            raise outside_error(what, location, f"that takes a grant on all of {self.backend}")

    @property
    def _remedy(self) -> str:
        return f"an operator may name the place in roots of backend {self.backend}"


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
