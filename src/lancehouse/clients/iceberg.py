"""Client for Iceberg REST catalogs: Lance tables as Iceberg tables with `table_type=lance`.

`RestWarehouses`, the namespaces of Iceberg REST, is also a part of the clients for servers that have generic tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import quote, unquote_plus, urlencode
from uuid import uuid4

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeclareTableRequest,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    DeregisterTableRequest,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    RenameTableRequest,
    RenameTableResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.commit_table_operation import CommitTableOperation
from lance_namespace_urllib3_client.models.commit_table_result import CommitTableResult

from lancehouse import locations
from lancehouse.caches import BoundedCache, SingleFlight
from lancehouse.clients.catalog_namespace import (
    CatalogNamespace,
    Entry,
    StorageAccess,
    is_renamed,
    map_concurrently,
    none_if_missing,
    own_location_error,
)
from lancehouse.clients.http import Reply
from lancehouse.clients.managed_tables import ManagedTables
from lancehouse.clients.managed_versions import ManagedVersions
from lancehouse.clients.rest import Rest, parse_reply
from lancehouse.credentials import (
    AZURE_BLOB_AUTHORITY,
    AZURE_BLOB_SCHEME,
    ENDPOINTS,
    EXPIRES,
    LANCE_NAMES,
    SAS_EXPIRES,
    SAS_TOKEN,
    expires_soon,
)
from lancehouse.errors import ErrorMap, is_no_route, is_route_missing
from lancehouse.identifiers import UNIT_SEPARATOR, NamespaceId, TableId
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_files import split_location
from lancehouse.properties import GC_ENABLED, IMPL, PUBLISHED_HEADER, RESTRICTED, is_lance, managed_by, require_lance
from lancehouse.settings import ClientSettings
from lancehouse.wire.iceberg import (
    CatalogConfig,
    CommitTable,
    CommitTransaction,
    CreateTable,
    DroppedTable,
    DroppedTableList,
    LatestTable,
    LoadedTable,
    Namespace,
    NamespaceChange,
    NamespacePage,
    RenameTable,
    RestoreTable,
    StorageCredential,
    TableIdentifier,
    TablePage,
    VersionedTable,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

VEND_HEADERS: Mapping[str, str] = MappingProxyType({"X-Iceberg-Access-Delegation": "vended-credentials"})
"""Headers that ask a server for credentials to the table's storage."""

LOCATIONS = ("root", "default-base-location")
"""Keys in `/v1/config` for the location of a warehouse's tables: of `lancehouse serve`, and of Polaris."""

EXISTS_TTL_S = 60.0
"""Seconds for which a namespace that existed is assumed to exist still."""

REFS_ONLY = "snapshots=refs"
"""Query that asks a server to leave out the snapshots that no branch or tag refers to."""

DUMMY_SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}],
    }
)
"""Schema of an entry before its first version, because Iceberg requires one; Lance's schema is in the dataset."""

RENAME = "POST /v1/{prefix}/tables/rename"
TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"
UNDROP = "POST /v1/{prefix}/lancehouse/undrop"
"""Endpoints, as a server announces them: rename a table, commit to several tables at once, restore a dropped table."""
REMEMBERED_TABLES = 20_000
"""Number of tables whose entity tag and entry are cached for the next list."""

KEPT_BYTES = 16 * 2**20
"""Most bytes of responses that a client keeps: to ask whether their credentials are still the same, or to read the
latest version from them."""
KEPT_MS = 300_000
"""Milliseconds before their expiry from which credentials are asked for anew."""
DESCRIBED_S = 1.0
"""Seconds within which a description of a table serves the request for its latest version that follows."""
CachedEntry = tuple[str, Entry | None]
"""Entity tag of a table and the entry that it stands for; None in place of the entry if it is not a Lance table."""


class VendedReply(NamedTuple):
    """A response with credentials, and the entity tag that asks whether it is still the same."""

    tag: str
    options: Mapping[str, str]
    reply: Reply


class DescribedReply(NamedTuple):
    """The response from which a managed table was described, and the table's last change until then."""

    described_at: float
    last_change: int | None
    entry: Entry
    reply: Reply


class IcebergNamespace(CatalogNamespace):
    """The Lance namespace of an Iceberg REST server. The first level of an id is the warehouse."""

    client: ClassVar[str] = "iceberg"
    drops_missing: ClassVar[bool] = True
    writes_metadata: ClassVar[bool] = True

    _tables: IcebergTables

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base = self._settings.endpoint.removesuffix("/v1")
        self._rest = Rest(self._settings, base=base, token_uri=f"{base}/v1/oauth/tokens")
        self._namespaces = self._warehouses = RestWarehouses(self._rest, self._settings)
        self._access = StorageAccess(self._settings, self._warehouses.announced_locations)
        self._tables = IcebergTables(self._rest, self._warehouses, vends=self._access.vends)
        self._versions = ManagedVersions(self._tables, self._access)
        self._managed = ManagedTables(self._versions)

    # Tables

    def _create_at(self, table: TableId, location: str | None, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table, see `CatalogNamespace`."""
        try:
            return super()._create_at(table, location, properties, vend=vend)
        except InvalidInputError:
            if location or not self._tables.keeps_dropped(table):
                raise
            # A dropped table of this name still has the default location; without one, our server chooses another.
            return self._tables.create(table, None, properties, vend=vend)

    def _drop_data(self, table: TableId, entry: Entry, options: Mapping[str, str]) -> None:
        if self._tables.keeps_dropped(table):
            self._tables.delete(table, data=True)
        else:
            super()._drop_data(table, entry, options)

    def keeps_dropped(self, id: Sequence[str]) -> bool:
        """Return whether the server keeps a table for a while when it is dropped, so that it can be restored."""
        table = self._parse_table_id(id)
        self._warehouses.require(table.namespace)
        return self._tables.keeps_dropped(table)

    def list_dropped(self, namespace: Sequence[str]) -> list[DroppedTable]:
        """Return the dropped tables of a warehouse, or of a namespace in it and below, that can be restored.

        Raises:
            UnsupportedOperationError: the server keeps no dropped tables.
        """
        warehouse_or_namespace = self._parse_namespace_id(namespace, least=1)
        tables = self._tables.list_dropped(warehouse_or_namespace.catalog)
        levels = list(warehouse_or_namespace.levels)
        return [table for table in tables if table.namespace[: len(levels)] == levels]

    def undrop_table(self, id: Sequence[str], new_id: Sequence[str] | None = None) -> list[str]:
        """Restore the table of a name that was dropped last, under its name or another; return its id.

        Raises:
            TableNotFoundError: no dropped table was called so, or its time is over.
            TableAlreadyExistsError: the name is taken: give another.
            UnsupportedOperationError: the server keeps no dropped tables.
        """
        table = self._parse_table_id(id)
        target = table if new_id is None else self._parse_table_id(new_id)
        if target.namespace.catalog != table.namespace.catalog:
            raise InvalidInputError(f"{table} cannot be restored as {target}: it would change its warehouse")
        self._tables.change_dropped("undrop", table, target)
        return target.parts

    def purge_table(self, id: Sequence[str]) -> None:
        """Delete a dropped table and its data now, instead of when its time is over; an admin may.

        Raises:
            TableNotFoundError: no dropped table was called so.
            UnsupportedOperationError: the server keeps no dropped tables.
        """
        self._tables.change_dropped("purge", self._parse_table_id(id))

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Rename a table, within its namespace or into another one of its warehouse; its data stays where it is."""
        return self._rename(request, self._tables.rename)

    def _check_findable(self, table: TableId, entry: Entry) -> None:
        self._tables.check_findable(table, entry)

    def _is_managed(self, table: TableId, properties: Mapping[str, str]) -> bool:  # noqa: ARG002
        return managed_by(properties) == IMPL

    def _table_ref(self, table: TableId, entry: Entry, **at: Any) -> TableRef:
        """Refer to a managed table by its name, so that Lance asks the catalog for its versions."""
        if managed_by(entry.properties) == IMPL:
            return TableRef.in_namespace(self, table.parts, **at)
        return super()._table_ref(table, entry, **at)

    def _register(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Create an entry for existing data; if the catalog manages its versions, adopt the latest one."""
        entry = super()._register(table, location, properties)
        if managed_by(entry.properties) == IMPL:
            try:
                self._managed.manage(table, IMPL, adopt=True)
            except LanceNamespaceError:
                self._tables.delete(table)
                raise
        return entry

    def _replace_entry(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Point an entry to another location; refuse it first if the server would choose one itself.

        Without the old entry nobody would know where its data is: such a server cannot restore it.
        """
        actual_location = self._tables.find_staged_location(table, location)
        if actual_location is not None and split_location(actual_location) != split_location(location):
            raise own_location_error(table, location, actual_location)
        return super()._replace_entry(table, location, properties)

    # Commits

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Commit a manifest that Lance has staged as the next version. Sending the same request again is safe.

        Raises:
            ConcurrentModificationError: another version was accepted; the staged manifest was removed.
            CommitStateUnknownError: the catalog could not be asked what became of the commit; the staged manifest
                stays.
        """
        [version] = self._versions.create([request])
        return version.to_response()

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Commit staged versions of several tables, all or none."""
        versions = self._versions.create(request.entries)
        return BatchCreateTableVersionsResponse(versions=[version.to_table_version() for version in versions])

    def batch_commit_tables(self, request: BatchCommitTablesRequest) -> BatchCommitTablesResponse:
        """Execute a batch of operations, all or none.

        Iceberg can commit versions of several tables atomically, nothing else: an operation that declares or
        deregisters a table, or deletes versions, must be alone in its batch.
        """
        if any(sum(field is not None for _, field in operation) != 1 for operation in request.operations):
            raise InvalidInputError("each operation of a batch names one thing to do")
        match request.operations:
            case [CommitTableOperation(declare_table=DeclareTableRequest() as declare)]:
                result = CommitTableResult(declare_table=self.declare_table(declare))
            case [CommitTableOperation(deregister_table=DeregisterTableRequest() as deregister)]:
                result = CommitTableResult(deregister_table=self.deregister_table(deregister))
            case [CommitTableOperation(delete_table_versions=BatchDeleteTableVersionsRequest() as delete)]:
                result = CommitTableResult(delete_table_versions=self.batch_delete_table_versions(delete))
            case operations:
                return BatchCommitTablesResponse(results=self._commit_operations(operations))
        return BatchCommitTablesResponse(results=[result])

    def _commit_operations(self, operations: Sequence[CommitTableOperation]) -> list[CommitTableResult]:
        requests = [
            operation.create_table_version for operation in operations if operation.create_table_version is not None
        ]
        if len(requests) < len(operations):
            raise UnsupportedOperationError(
                "an Iceberg catalog makes versions of several tables at once, but declares tables, deregisters them "
                "and deletes versions one by one: send each of these on its own"
            )
        return [
            CommitTableResult(create_table_version=version.to_response()) for version in self._versions.create(requests)
        ]

    def commit_mark(self) -> int:
        """Return a new tick of this client's commits, for the argument `since` of `commit_refusal`."""
        return self._versions.commit_mark()

    def commit_refusal(self, id: Sequence[str], version: int, since: int = 0) -> LanceNamespaceError | None:
        """Return why a version was refused, for users of pylance, which reports every refusal as an unknown result.

        Args:
            id: of the table.
            version: the number in pylance's error message.
            since: what `commit_mark` returned before the write; earlier commits are ignored.

        Returns:
            The error; None if no commit of this version was refused, or if one is in doubt and may have been made.
        """
        return self._versions.commit_refusal(self._parse_table_id(id), version, since)

    # Versions, tags and branches: from the catalog where it manages them, else from storage

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """List the versions of a branch, oldest first unless `descending`."""
        response = self._managed.list_versions(self._parse_table_id(request.id), request)
        return super().list_table_versions(request) if response is None else response

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Return one version of a branch, by default the latest."""
        version = self._managed.find_version(self._parse_table_id(request.id), request.branch, request.version)
        if version is None:
            return super().describe_table_version(request)
        return DescribeTableVersionResponse(version=version)

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Delete versions and the data that no other version needs, then their snapshots in the catalog."""
        table = self._parse_table_id(request.id)
        is_managed = self._managed.prepare_deletion(table, request.branch)
        response = super().batch_delete_table_versions(request)
        if is_managed:
            self._managed.sync(table)
        return response

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        """Create a tag of a version, by default of the main branch, in storage and in the catalog."""
        response = super().create_table_tag(request)
        self._managed.sync(self._parse_table_id(request.id))
        return response

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        """Point a tag to another version, in storage and in the catalog."""
        response = super().update_table_tag(request)
        self._managed.sync(self._parse_table_id(request.id))
        return response

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        """Delete a tag in storage and in the catalog; its version stays."""
        response = super().delete_table_tag(request)
        self._managed.sync(self._parse_table_id(request.id), deleted_tag=request.tag)
        return response

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        """Create a branch from a version of another branch."""
        self._managed.prepare_branch(self._parse_table_id(request.id), request.name)
        return super().create_table_branch(request)

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        """Delete a branch in storage and in the catalog, unless another branch was created from it."""
        response = super().delete_table_branch(request)
        self._managed.sync(self._parse_table_id(request.id), deleted_branch=request.name)
        return response

    # Moving tables between catalog and storage

    def manage_table(self, id: Sequence[str], by: str, *, adopt: bool = False) -> int | None:
        """Let the catalog (`impl`) or storage (`storage`) decide which version of a table is the current one.

        Writers that have the table open keep committing the way they did when they opened it: stop them first.

        Args:
            id: of the table.
            by: `impl` or `storage`.
            adopt: whether the catalog accepts versions that writers put into storage past it.

        Returns:
            The current version of the main branch; None for a table without data.

        Raises:
            InvalidTableStateError: storage and catalog disagree on the versions; the message says how to repair it.
        """
        return self._managed.manage(self._parse_table_id(id), by, adopt=adopt)

    def accept_first(self, id: Sequence[str]) -> bool:
        """Accept the first version of a declared table whose creator wrote it to storage without the catalog.

        Lance 4 creates tables in this way, and commits through the catalog from then on. Only a table for which the
        catalog has no version yet is changed.

        Returns:
            Whether the table has a first version now; if not, nothing was changed.
        """
        return self._managed.accept_first(self._parse_table_id(id))


@dataclass(frozen=True, slots=True)
class WarehousePaths:
    """Path prefix, level separator and endpoints of one warehouse, from `/v1/config`."""

    base_path: str
    """`/v1`, with the warehouse's prefix if there is one."""
    separator: str
    """Joins the levels of a namespace in a path; percent-encoded."""
    root: str | None
    """Location below which tables are created by default; None if neither the user nor the server names one."""
    endpoints: frozenset[str] | None
    """Endpoints that the server announces; None if it announces none."""

    def namespace_path(self, namespace: NamespaceId) -> str:
        """Return the path of a namespace."""
        return f"{self.base_path}/namespaces/{namespace.to_path_segment(self.separator)}"

    def tables_path(self, namespace: NamespaceId) -> str:
        """Return the path of the Iceberg tables of a namespace."""
        return f"{self.namespace_path(namespace)}/tables"

    def table_path(self, table: TableId) -> str:
        """Return the path of an Iceberg table."""
        return f"{self.tables_path(table.namespace)}/{table.to_path_segment()}"


class RestWarehouses:
    """Namespaces of any depth in the warehouses of an Iceberg REST server; the first level of an id is a warehouse."""

    def __init__(
        self,
        rest: Rest,
        settings: ClientSettings,
        *,
        path: str = "/v1",
        asks_config: bool = True,
        checks_namespaces: bool = True,
    ) -> None:
        """Make the part of a client.

        Args:
            rest: the calls of the client.
            settings: of the client.
            path: of Iceberg's REST API below the base URL.
            asks_config: whether `/v1/config` tells the paths of a warehouse; else its name is its prefix.
            checks_namespaces: whether the client has to check that a namespace exists, because servers may not.
        """
        self._rest = rest
        self._settings = settings
        self._path = path
        self._asks_config = asks_config
        self._checks_namespaces = checks_namespaces
        self._announced_paths: dict[str, list[WarehousePaths]] = {}
        self._locations: dict[str, list[str]] = {}
        self._config_flight: SingleFlight[list[WarehousePaths]] = SingleFlight()
        self._resolved_paths: dict[str, WarehousePaths] = {}
        self._existing_namespaces = _ExistingNamespaces()

    def call(self, catalog: str, call: Callable[[WarehousePaths], T]) -> T:
        """Call a function with the paths of a warehouse, and return its result.

        If the server announces no prefix, the warehouse's name is tried as one; if it has no such route, the call is
        made again without a prefix. Paths are remembered only after a call with them has succeeded.
        """
        if (resolved := self._resolved_paths.get(catalog)) is not None:
            return call(resolved)
        first, *others = self._announced_paths.get(catalog) or self._config_flight.run(
            catalog, lambda: self._load_warehouse_paths(catalog)
        )
        try:
            return self._call_and_remember(catalog, first, call)
        except LanceNamespaceError as error:
            if not others or not is_route_missing(error):
                raise
            try:
                return self._call_and_remember(catalog, others[0], call)
            except LanceNamespaceError as second:
                # An error of a route that exists describes the problem; if neither route exists, report the first.
                raise (error if is_route_missing(second) else second) from None

    def _call_and_remember(self, catalog: str, paths: WarehousePaths, call: Callable[[WarehousePaths], T]) -> T:
        result = call(paths)
        # Only now: a failure, such as a 503, must not fix a guessed prefix for the life of the client.
        self._resolved_paths[catalog] = paths
        return result

    def _load_warehouse_paths(self, catalog: str) -> list[WarehousePaths]:
        # Another thread may have loaded the configuration between the caller's check and this call.
        return self._announced_paths.get(catalog) or self._announced_paths.setdefault(catalog, self.find_paths(catalog))

    def load_config(self, catalog: str) -> tuple[dict[str, str], CatalogConfig]:
        """Request `/v1/config`; return the server's defaults overridden by its overrides, and the whole response."""
        config = self._rest.get(
            f"{self._path}/config",
            CatalogConfig,
            query=urlencode({"warehouse": catalog}, quote_via=quote),
            about=f"warehouse {catalog}",
            # Polaris and Lakekeeper have this type for an unknown warehouse, but also for an unknown path.
            on={404: NamespaceNotFoundError, "NotFoundException": NamespaceNotFoundError},
        )
        # Lakekeeper sends the prefix among the defaults, Polaris among the overrides.
        merged = {**(config.defaults or {}), **(config.overrides or {})}
        return {key: value for key, value in merged.items() if isinstance(value, str)}, config

    def find_paths(self, catalog: str) -> list[WarehousePaths]:
        """Return the possible paths of a warehouse, the most likely first."""
        if not self._asks_config:
            base_path = f"{self._path}/{quote(catalog, safe='')}"
            return [WarehousePaths(base_path, UNIT_SEPARATOR, self._settings.root, None)]
        merged, config = self.load_config(catalog)
        self._locations[catalog] = [merged[key] for key in LOCATIONS if merged.get(key)]
        prefix = merged.get("prefix")
        # Some servers (Nessie) send a prefix that is percent-encoded already: `%` must not be encoded a second time.
        prefixes = [quote(prefix.strip("/"), safe="/%:@!$&'()*+,;=~")] if prefix else [quote(catalog, safe=""), ""]
        return [
            WarehousePaths(
                base_path="/".join(part for part in (self._path, way) if part),
                separator=merged.get("namespace-separator") or UNIT_SEPARATOR,
                root=self._settings.root or merged.get("root"),
                endpoints=frozenset(config.endpoints) if config.endpoints is not None else None,
            )
            for way in prefixes
        ]

    def announced_locations(self) -> list[str]:
        """Return the locations that the warehouses used so far announce for their tables."""
        return [location for locations in self._locations.values() for location in locations]

    # Namespaces

    def list_children(self, parent: NamespaceId) -> list[NamespaceId]:
        """List the namespaces directly below `parent`."""

        def list_levels(at: WarehousePaths) -> list[list[str]]:
            query = f"parent={parent.to_path_segment(at.separator)}" if parent.levels else ""
            pages = self._rest.list_pages(
                f"{at.base_path}/namespaces", NamespacePage, about=parent, query=query, on={404: NamespaceNotFoundError}
            )
            return [levels for page in pages for levels in page.namespaces or ()]

        # A server that ignores the parent lists the same namespaces below each one, without end. Other servers, such as
        # Lakekeeper, ignore the case of names.
        prefix = [level.casefold() for level in parent.levels]
        children = [
            NamespaceId(parent.catalog, tuple(levels))
            for levels in self.call(parent.catalog, list_levels)
            if levels and [level.casefold() for level in levels[:-1]] == prefix
        ]
        if not children and parent.levels:
            # Some servers list the children of a missing namespace as an empty list instead of 404.
            self.require(parent)
        return children

    def create(self, namespace: NamespaceId, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Create a namespace and return its properties."""
        if len(namespace.levels) > 1:
            self.require(namespace.parent)
        body = Namespace(namespace=list(namespace.levels), properties=dict(properties))

        def lookup() -> Namespace | None:
            existing = none_if_missing(lambda: self.load(namespace))
            is_ours = existing is not None and properties.items() <= existing.items()
            return Namespace(namespace=list(namespace.levels), properties=dict(existing or {})) if is_ours else None

        def create(at: WarehousePaths) -> Namespace:
            at.namespace_path(namespace)  # raises if no path could lead to it afterwards
            return self._rest.create(
                f"{at.base_path}/namespaces",
                body,
                Namespace,
                about=namespace,
                lookup=lookup,
                on={404: NamespaceNotFoundError, 409: NamespaceAlreadyExistsError},
            )

        response = self.call(namespace.catalog, create)
        self._existing_namespaces.add(namespace)
        return response.properties or {}

    def load(self, namespace: NamespaceId) -> Mapping[str, str]:
        """Load the properties of a namespace."""
        response = self.call(
            namespace.catalog,
            lambda at: self._rest.get(
                at.namespace_path(namespace), Namespace, about=namespace, on={404: NamespaceNotFoundError}
            ),
        )
        self._existing_namespaces.add(namespace)
        return response.properties or {}

    def update_properties(
        self, namespace: NamespaceId, updates: Mapping[str, str], removals: Sequence[str]
    ) -> Mapping[str, str]:
        """Set and remove properties of a namespace, and return all that it has then."""
        # One after the other: Polaris refuses both in one request.
        bodies = [NamespaceChange(updates=dict(updates))] if updates else []
        bodies += [NamespaceChange(removals=list(removals))] if removals else []
        for body in bodies:
            self.call(namespace.catalog, partial(self._send_change, namespace, body))
        return self.load(namespace)

    def _send_change(self, namespace: NamespaceId, body: NamespaceChange, at: WarehousePaths) -> None:
        def is_done() -> bool:
            now = self.load(namespace)
            return body.updates.items() <= now.items() and not set(body.removals) & now.keys()

        self._rest.post(
            f"{at.namespace_path(namespace)}/properties",
            body,
            about=namespace,
            is_done=is_done,
            on={404: NamespaceNotFoundError},
        )

    def delete(self, namespace: NamespaceId, *, cascade: bool) -> None:
        """Drop a namespace, which must be empty."""
        assert not cascade, "refused before"
        self._existing_namespaces.forget(namespace)
        self.call(
            namespace.catalog,
            lambda at: self._rest.delete(
                at.namespace_path(namespace),
                about=namespace,
                on={404: NamespaceNotFoundError, 409: NamespaceNotEmptyError},
            ),
        )

    def require(self, namespace: NamespaceId) -> None:
        """Check that a namespace exists.

        Iceberg's reference server with a JDBC catalog creates tables and namespaces below a missing one, and other
        servers list a missing one as empty.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        if self._checks_namespaces and namespace not in self._existing_namespaces:
            self.load(namespace)

    def announces(self, catalog: str, endpoint: str) -> bool:
        """Return whether the server announces an endpoint; False if no call to this warehouse has succeeded yet."""
        paths = self._resolved_paths.get(catalog)
        return paths is not None and endpoint in (paths.endpoints or ())

    def resolved_paths(self, catalog: str) -> WarehousePaths:
        """Return the paths of a warehouse that was called before."""
        return self._resolved_paths[catalog]


def _extension_path(at: WarehousePaths, word: str) -> str:
    """Return the path of a call that only our server has.

    Raises:
        UnsupportedOperationError: this server does not have it.
    """
    if UNDROP not in (at.endpoints or ()):
        raise UnsupportedOperationError("this server keeps no dropped tables: what is dropped is gone")
    return f"{at.base_path}/lancehouse/{word}"


class _ExistingNamespaces:
    """Namespaces that were found within the last `EXISTS_TTL_S` seconds. Thread-safe."""

    def __init__(self) -> None:
        self._expires_at: dict[NamespaceId, float] = {}
        self._lock = threading.Lock()

    def add(self, namespace: NamespaceId) -> None:
        with self._lock:
            self._expires_at[namespace] = time.monotonic() + EXISTS_TTL_S

    def forget(self, namespace: NamespaceId) -> None:
        """Forget a namespace and all namespaces below it."""
        with self._lock:
            self._expires_at = {
                existing: until for existing, until in self._expires_at.items() if not namespace.contains(existing)
            }

    def __contains__(self, namespace: NamespaceId) -> bool:
        return self._expires_at.get(namespace, 0.0) > time.monotonic()


class IcebergTables:
    """Iceberg tables as entries of Lance tables, and the commits to them."""

    def __init__(self, rest: Rest, warehouses: RestWarehouses, *, vends: bool) -> None:
        self._rest = rest
        self._warehouses = warehouses
        self._vends = vends
        self._entry_cache: BoundedCache[str, CachedEntry] = BoundedCache(REMEMBERED_TABLES)
        self._vended_replies: BoundedCache[TableId, VendedReply] = BoundedCache(
            KEPT_BYTES, lambda vended: len(vended.reply.body)
        )
        self._published: BoundedCache[TableId, str] = BoundedCache(REMEMBERED_TABLES)
        self._changes: BoundedCache[TableId, int] = BoundedCache(REMEMBERED_TABLES)
        self._ticks = count(1)
        self._described_replies: BoundedCache[TableId, DescribedReply] = BoundedCache(
            KEPT_BYTES, lambda described: len(described.reply.body)
        )
        self._transactional: set[str] = set()

    def list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        """List all tables: which of them are Lance tables shows only when one is loaded."""

        def list_names(at: WarehousePaths) -> list[str]:
            pages = self._rest.list_pages(
                at.tables_path(namespace), TablePage, about=namespace, on={404: NamespaceNotFoundError}
            )
            return [identifier.name for page in pages for identifier in page.identifiers or ()]

        names = self._warehouses.call(namespace.catalog, list_names)
        if not names:
            self._warehouses.require(namespace)
        return dict.fromkeys(names)

    def _find_lance_entry(self, table: TableId, *, vend: bool) -> Entry | None:
        def find(at: WarehousePaths) -> Entry | None:
            path = at.table_path(table)
            # Only a response that names a missing table or namespace means that the table was dropped since. Any other
            # 404, such as a proxy's, must not silently shorten the list.
            on: ErrorMap = {404: InternalError, "NotFoundException": InternalError}
            cached_entry = None if vend else self._entry_cache.get(path)
            headers = VEND_HEADERS if vend else _if_none_match(cached_entry)
            reply = self._rest.get_reply(path, query=REFS_ONLY, about=table, headers=headers, on=on)
            return self._parse_entry(table, path, reply, cached_entry)

        return none_if_missing(lambda: self._warehouses.call(table.namespace.catalog, find))

    def find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        """Load the entries of listed tables in order, see `CatalogTables`; many of them in bulk."""
        paths = [self._warehouses.resolved_paths(table.namespace.catalog).table_path(table) for table in tables]
        cached_entries = [None if vend else self._entry_cache.get(path) for path in paths]
        headers = [VEND_HEADERS if vend else _if_none_match(entry) for entry in cached_entries]
        replies = self._rest.get_replies(list(zip(paths, headers, strict=True)), query=REFS_ONLY)
        reads = list(zip(tables, paths, replies, cached_entries, strict=True))
        missing = [table for table, _, reply, _ in reads if reply is None]
        others = iter(map_concurrently(lambda table: self._find_lance_entry(table, vend=vend), missing))
        return [
            next(others) if reply is None else self._parse_entry(table, path, reply, previous)
            for table, path, reply, previous in reads
        ]

    def _parse_entry(self, table: TableId, path: str, reply: Reply, cached_entry: CachedEntry | None) -> Entry | None:
        if reply.status == 304 and cached_entry is not None:
            return cached_entry[1]
        response = parse_reply(reply, LoadedTable, table)
        entry = _to_entry(response) if is_lance(response.metadata.properties) else None
        # An entry with credentials is not cached: the entity tag says that the table is the same, while the credentials
        # expire.
        if (tag := reply.headers.get("etag", "")) and not (entry and entry.vended):
            self._entry_cache.put(path, (tag, entry))
        return entry

    def load(self, table: TableId, *, vend: bool) -> Entry:
        """Load the entry of a table; raise InvalidInputError if it is not a Lance table."""
        # Taken before the request: a change while the response is on its way makes it out of date.
        last_change = self._changes.get(table)
        reply = self._load(table, REFS_ONLY, vend=vend)
        response = parse_reply(reply, LoadedTable, table)
        require_lance(table, response.metadata.properties)
        entry = _to_entry(response)
        self._keep_vended(table, reply, response, entry)
        # Lance asks for the latest version of a managed table next, and the response has it. Without the credentials
        # that this client asks for elsewhere, it does not serve to open the table.
        if (vend or not self._vends) and managed_by(entry.properties) == IMPL:
            self._described_replies.put(table, DescribedReply(time.monotonic(), last_change, entry, reply))
        return entry

    def take_described(self, table: TableId) -> tuple[Entry, VersionedTable] | None:
        """Return a managed table as it was just described, once; None if that is a while ago, or if it has changed."""
        described = self._described_replies.get(table)
        if described is None:
            return None
        self._described_replies.forget(table)
        is_current = described.last_change == self._changes.get(table)
        if not is_current or time.monotonic() - described.described_at >= DESCRIBED_S:
            return None
        return described.entry, parse_reply(described.reply, LatestTable, table)

    def _load(self, table: TableId, query: str, *, vend: bool) -> Reply:
        """Load a table, and tell the server of a version of it that this client has published."""
        headers = dict(VEND_HEADERS) if vend else {}
        vended = self._vended_replies.get(table) if vend and query == REFS_ONLY else None
        if vended is not None and not expires_soon(vended.options, KEPT_MS):
            headers["If-None-Match"] = vended.tag
        if (published := self._published.get(table)) is not None:
            headers[PUBLISHED_HEADER] = published
            self._published.forget(table)
        reply = self._warehouses.call(
            table.namespace.catalog,
            lambda at: self._rest.get_reply(
                at.table_path(table), query=query, about=table, headers=headers, on={404: TableNotFoundError}
            ),
        )
        return vended.reply if vended is not None and reply.status == 304 else reply

    def _keep_vended(self, table: TableId, reply: Reply, response: LoadedTable, entry: Entry) -> None:
        """Keep a response with credentials of our own server, whose entity tags cover them.

        Those of another server may say only that the table is the same, while the caller's rights have changed.
        """
        tag, is_ours = reply.headers.get("etag", ""), response.metadata_location is None
        if tag and is_ours and entry.vended and not expires_soon(entry.vended, KEPT_MS):
            self._vended_replies.put(table, VendedReply(tag, entry.vended, reply))

    def note_change(self, table: TableId) -> None:
        """Discard what was loaded of a table so far, including responses that are still on their way."""
        self._changes.put(table, next(self._ticks))

    def note_published(self, table: TableId, state: str) -> None:
        """Tell the server with the next load of a table that a version's manifest is at its final path.

        Args:
            table: id of the table.
            state: the value of `PUBLISHED_HEADER`.
        """
        self._published.put(table, state)

    def keeps_dropped(self, table: TableId) -> bool:
        """Return whether the server keeps dropped tables for a while and deletes their data itself, as ours does."""
        return self._warehouses.announces(table.namespace.catalog, UNDROP)

    def create(self, table: TableId, location: str | None, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table and return it as the server stored it; without a location the server chooses."""
        self._warehouses.require(table.namespace)
        # Lance's files are unreferenced in Iceberg's eyes: orphan removal by Iceberg's maintenance would delete them.
        table_properties = {**properties, GC_ENABLED: "false"}
        body = CreateTable(name=table.name, location=location, schema=dict(DUMMY_SCHEMA), properties=table_properties)

        def create(at: WarehousePaths) -> LoadedTable:
            def lookup() -> LoadedTable | None:
                existing = self._find_table(at.table_path(table), table, vend=vend)
                if existing is None or not table_properties.items() <= (existing.metadata.properties or {}).items():
                    return None
                if location is None or _is_at(existing, location):
                    return existing
                actual_location = self.find_staged_location(table, location)
                # A server that chooses locations itself has put the table elsewhere: it is ours all the same.
                chooses = actual_location is not None and not locations.is_same(actual_location, location)
                return existing if chooses else None

            return self._rest.create(
                at.tables_path(table.namespace),
                body,
                LoadedTable,
                about=table,
                lookup=lookup,
                headers=VEND_HEADERS if vend else None,
                on={404: NamespaceNotFoundError, 409: TableAlreadyExistsError},
            )

        return _to_entry(self._warehouses.call(table.namespace.catalog, create))

    def _find_table(self, path: str, table: TableId, *, vend: bool = False) -> LoadedTable | None:
        """Load the table at a path; return None if there is none."""
        headers = VEND_HEADERS if vend else None
        on: ErrorMap = {404: TableNotFoundError}
        return none_if_missing(
            lambda: self._rest.get(path, LoadedTable, query=REFS_ONLY, about=table, headers=headers, on=on)
        )

    def _is_found_at(self, table: TableId, location: str) -> bool:
        """Return whether the server finds a table by its name, with this location."""
        path = self._warehouses.resolved_paths(table.namespace.catalog).table_path(table)
        response = self._find_table(path, table)
        return response is not None and _is_at(response, location)

    def find_staged_location(self, table: TableId, location: str) -> str | None:
        """Return the location that the server would choose for a new table if another is requested; None if unknown.

        For that, a table with another name is staged, which creates nothing.
        """
        request = CreateTable(
            name=f"{table.name}_{uuid4().hex}",
            location=location,
            schema=dict(DUMMY_SCHEMA),
            properties={},
            stage_create=True,
        )

        def stage(at: WarehousePaths) -> LoadedTable:
            path = at.tables_path(table.namespace)
            return self._rest.create(path, request, LoadedTable, about=table, lookup=lambda: None)

        try:
            return self._warehouses.call(table.namespace.catalog, stage).metadata.location
        except (InvalidInputError, InternalError, PermissionDeniedError, UnsupportedOperationError) as error:
            logger.debug("the server does not stage a table at %s: %s", location, error)
            return None

    def check_findable(self, table: TableId, entry: Entry) -> None:
        """Delete a table again that the server has created but cannot find by its name."""
        if self._is_lost(table, entry.location):
            # The server decodes names twice: encoded twice, the name leads to the table that was just created.
            encoded_twice = TableId(table.namespace, table.to_path_segment())
            if not self._is_found_at(encoded_twice, entry.location):
                raise _double_decoding_error(table, "the table that the server created could not be deleted again")
            self.delete(encoded_twice)
            raise _double_decoding_error(table, "it was deleted again")

    def _is_lost(self, table: TableId, location: str) -> bool:
        """Return whether the server cannot find a table by the name under which it was created.

        Polaris decodes the names of Iceberg tables twice, the second time as in a form (`+` is a space). Only names
        that such decoding changes cost a request.
        """
        return unquote_plus(table.name) != table.name and not self._is_found_at(table, location)

    def delete(self, table: TableId, *, data: bool = False) -> None:
        """Delete the entry of a table; its data stays, or is deleted by a server that keeps dropped tables."""
        self.note_change(table)
        # Never a purge: no metadata of Iceberg tells which files are the table's. Only our own server deletes data, by
        # a parameter that others do not have.
        query = "deleteData=true" if data else "purgeRequested=false"
        self._warehouses.call(
            table.namespace.catalog,
            lambda at: self._rest.delete(at.table_path(table), query=query, about=table, on={404: TableNotFoundError}),
        )

    def list_dropped(self, catalog: str) -> list[DroppedTable]:
        """Return the dropped tables of a warehouse, the one dropped last first."""

        def fetch(at: WarehousePaths) -> DroppedTableList:
            path = _extension_path(at, "dropped")
            return self._rest.get(
                path, DroppedTableList, about=f"warehouse {catalog}", on={404: NamespaceNotFoundError}
            )

        return self._warehouses.call(catalog, fetch).tables

    def change_dropped(self, word: str, table: TableId, target: TableId | None = None) -> None:
        """Restore a dropped table as another (`undrop`), or delete it and its data now (`purge`)."""
        if target is not None:
            self.note_change(target)
        body = RestoreTable(
            namespace=list(table.namespace.levels),
            name=table.name,
            new_namespace=None if target is None else list(target.namespace.levels),
            new_name=None if target is None else target.name,
        )

        def post(at: WarehousePaths) -> None:
            def is_done() -> bool:
                return target is not None and self._find_table(at.table_path(target), target) is not None

            on: ErrorMap = {404: TableNotFoundError, 409: TableAlreadyExistsError}
            self._rest.post(_extension_path(at, word), body, about=table, is_done=is_done, on=on)

        self._warehouses.call(table.namespace.catalog, post)

    def default_location(self, table: TableId) -> str:
        """Return a location below the root of the warehouse, or below the working directory."""
        self._warehouses.require(table.namespace)
        root = self._warehouses.resolved_paths(table.namespace.catalog).root
        return locations.child_location(root or str(Path.cwd()), table.parts)

    def rename(self, source: TableId, target: TableId, entry: Entry) -> None:
        """Rename a table with a given entry; undo it if the server cannot find the table by its new name."""
        self._warehouses.require(target.namespace)
        self.note_change(source)
        self.note_change(target)
        self._rename(source, target)
        if self._is_lost(target, entry.location):
            self._rename(target, source)
            raise _double_decoding_error(target, f"it is {source} again")

    def _rename(self, source: TableId, target: TableId) -> None:
        body = RenameTable(source=to_identifier(source), destination=to_identifier(target))

        def rename(at: WarehousePaths) -> None:
            if at.endpoints is not None and RENAME not in at.endpoints:
                raise UnsupportedOperationError(f"{source}: the server has no call that renames tables")
            self._rest.post(
                f"{at.base_path}/tables/rename",
                body,
                about=source,
                is_done=lambda: is_renamed(self, source, target),
                on={404: TableNotFoundError, 409: TableAlreadyExistsError},
            )

        try:
            self._warehouses.call(source.namespace.catalog, rename)
        except LanceNamespaceError as error:
            if is_route_missing(error) and not isinstance(error, InvalidInputError):
                raise UnsupportedOperationError(f"the server has no call that renames tables: {error}") from error
            raise

    # Versions

    def load_versions(self, table: TableId, *, all_snapshots: bool, vend: bool = True) -> tuple[Entry, VersionedTable]:
        """Load a Lance table with the snapshots that refs name, or with all, and with credentials if there are any."""
        reply = self._load(table, "" if all_snapshots else REFS_ONLY, vend=vend)
        response = parse_reply(reply, VersionedTable if all_snapshots else LatestTable, table)
        require_lance(table, response.metadata.properties)
        return _to_entry(response), response

    def commit(
        self, tables: Sequence[TableId], changes: Sequence[CommitTable], is_committed: Callable[[], bool | None]
    ) -> None:
        """Send changes to the server: UpdateTable for one table, CommitTransaction for several.

        If the response is lost, `is_committed` tells what became of them, see `Rest.commit`.
        """
        catalog = tables[0].namespace.catalog
        if len(changes) > 1:
            self.require_transactions(catalog)

        def commit(at: WarehousePaths) -> None:
            is_single = len(changes) == 1
            path = at.table_path(tables[0]) if is_single else f"{at.base_path}/transactions/commit"
            body = changes[0] if is_single else CommitTransaction(table_changes=list(changes))
            about = ", ".join(map(str, tables))
            self._rest.commit(path, body, about=about, is_committed=is_committed, on={404: TableNotFoundError})

        self._warehouses.call(catalog, commit)

    def require_transactions(self, catalog: str) -> None:
        """Check that the server of a warehouse that was called before can commit to several tables at once.

        Raises:
            UnsupportedOperationError: it cannot.
        """
        if catalog in self._transactional:
            return
        at = self._warehouses.resolved_paths(catalog)
        words = f"the server of warehouse {catalog} has no call that changes several tables at once"
        if at.endpoints is None:
            self._probe_transactions(at, catalog, words)
        elif TRANSACTIONS not in at.endpoints:
            raise UnsupportedOperationError(words)
        self._transactional.add(catalog)

    def _probe_transactions(self, at: WarehousePaths, catalog: str, words: str) -> None:
        """Send an empty transaction to a server that announces no endpoints, to see whether it has the route."""
        nothing = CommitTransaction(table_changes=[])
        try:
            self._rest.post(f"{at.base_path}/transactions/commit", nothing, about=catalog, is_done=lambda: True)
        except LanceNamespaceError as error:
            if is_no_route(error):
                raise UnsupportedOperationError(f"{words}: {error}") from error


def _if_none_match(cached_entry: CachedEntry | None) -> Mapping[str, str]:
    """Return the header that asks for a table only if it has changed since the last list."""
    return {} if cached_entry is None else {"If-None-Match": cached_entry[0]}


def _to_entry(response: LoadedTable) -> Entry:
    location = response.metadata.location or ""
    return Entry(
        location=location,
        properties=response.metadata.properties or {},
        vended=vended_options(location, response.config, response.storage_credentials),
        is_restricted=(response.config or {}).get(RESTRICTED) == "true",
    )


def _is_at(response: LoadedTable, location: str) -> bool:
    return locations.is_same(response.metadata.location or "", location)


def _double_decoding_error(table: TableId, outcome: str) -> InvalidInputError:
    return InvalidInputError(
        f"{table}: the server decodes names twice and takes {table.name!r} for {unquote_plus(table.name)!r}, so that "
        f"nobody could load such a table; {outcome}: use a name without + and %"
    )


def to_identifier(table: TableId) -> TableIdentifier:
    """Return the id of a table as Iceberg's requests have it."""
    return TableIdentifier(namespace=list(table.namespace.levels), name=table.name)


def vended_options(
    location: str, config: Mapping[str, str] | None, credentials: Sequence[StorageCredential] | None
) -> dict[str, str]:
    """Return a table's `config` as storage options, overridden by the credential with the longest matching prefix."""
    matching_credentials = [credential for credential in credentials or () if location.startswith(credential.prefix)]
    options = from_iceberg_config(config or {})
    if matching_credentials:
        options |= from_iceberg_config(max(matching_credentials, key=lambda credential: len(credential.prefix)).config)
    return options


def from_iceberg_config(config: Mapping[str, str]) -> dict[str, str]:
    """Convert Iceberg's storage properties to Lance's storage options, without those that have no counterpart."""
    options = {LANCE_NAMES[key]: value for key, value in config.items() if key in LANCE_NAMES}
    for key, value in config.items():
        if key.startswith(f"{SAS_TOKEN}."):
            options["azure_storage_account_name"] = key.removeprefix(f"{SAS_TOKEN}.").partition(".")[0]
            options["azure_storage_sas_token"] = value
        elif key.startswith(f"{SAS_EXPIRES}."):
            options[EXPIRES] = value
    if authority := config.get(AZURE_BLOB_AUTHORITY):
        account, scheme = options.get("azure_storage_account_name", ""), config.get(AZURE_BLOB_SCHEME, "https")
        host = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
        options["azure_storage_endpoint"] = f"{scheme}://{host}"
    if config.get("s3.path-style-access", "").lower() == "true":
        options["aws_virtual_hosted_style_request"] = "false"
    # Lance's object stores refuse plain HTTP unless it is allowed explicitly.
    if any(options.get(name, "").startswith("http://") for name in ENDPOINTS):
        options["allow_http"] = "true"
    return options
