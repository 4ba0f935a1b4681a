"""Base class of the clients: the operations of the Lance interface, over a few calls that each catalog supplies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Protocol, Self, TypeVar

from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    DropTableRequest,
    DropTableResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    NamespaceExistsRequest,
    NamespaceExistsResponse,
    RegisterTableRequest,
    RegisterTableResponse,
    RenameTableRequest,
    RenameTableResponse,
    TableExistsRequest,
    TableExistsResponse,
)
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse import locations
from lancehouse.clients.http import CONNECTIONS
from lancehouse.clients.rest import Rest
from lancehouse.credentials import harmless_options, merge_options
from lancehouse.errors import is_route_missing
from lancehouse.identifiers import NamespaceId, TableId, is_plain
from lancehouse.lake import dataset
from lancehouse.lake.confinement import Confinement, OutsideConfinementError
from lancehouse.lake.dataset_files import remove_dataset, split_location
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.row_operations import explain_existing
from lancehouse.modes import parse_choice
from lancehouse.paging import decode_token, encode_token, paginate, remaining_keys
from lancehouse.properties import (
    FEW_METADATA_FILES,
    IMPL,
    LANCE,
    MANAGED_BY,
    TABLE_TYPE,
    managed_by,
    storage_options,
)
from lancehouse.settings import ALL, ClientSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Entry:
    """Catalog entry of a Lance table."""

    location: str
    """Location of the dataset; empty if the catalog has none."""
    properties: Mapping[str, str]
    vended: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options that the catalog vended for this table."""
    columns: Sequence[Mapping[str, Any]] = ()
    """Columns in the catalog's own format; empty if the catalog does not return any."""
    is_restricted: bool = False
    """Whether the caller sees only a part of it, which the server reads; its location holds no dataset."""


Candidate = tuple[TableId, Entry | None]
"""A table that may be a Lance table, with its entry if that is known already, else None."""

Position = tuple[list[str], str]
"""Sort key of a table in a list of all tables: the parts of its namespace, then its name."""
LOOKAHEAD = 8
"""Number of namespaces whose tables are requested at once for one page of a list of all tables."""


class CatalogNamespaces(Protocol):
    """Namespaces of a catalog. Names that are missing or exist already raise the interface's errors."""

    def list_children(self, parent: NamespaceId) -> list[NamespaceId]:
        """List the namespaces directly below `parent`."""

    def create(self, namespace: NamespaceId, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Create a namespace and return its properties."""

    def load(self, namespace: NamespaceId) -> Mapping[str, str]:
        """Load the properties of a namespace."""

    def delete(self, namespace: NamespaceId, *, cascade: bool) -> None:
        """Drop a namespace."""


class CatalogTables(Protocol):
    """Entries of tables in a catalog. Names that are missing or exist already raise the interface's errors."""

    def list_candidates(self, namespace: NamespaceId) -> Mapping[str, Entry | None]:
        """List the tables that may be Lance tables by name, each with its entry if the list contains it, else None."""

    def find_entries(self, tables: Sequence[TableId], *, vend: bool) -> list[Entry | None]:
        """Load the entries of listed tables in order; None for what is not a Lance table, or was dropped since."""

    def load(self, table: TableId, *, vend: bool) -> Entry:
        """Load the entry of a table; raise InvalidInputError if it is not a Lance table."""

    def create(self, table: TableId, location: str, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table and return it as the server stored it."""

    def delete(self, table: TableId) -> None:
        """Delete the entry of a table; its data stays."""

    def default_location(self, table: TableId) -> str:
        """Return the location of a table that is declared without one."""


class StorageAccess:
    """Which locations a client may open, and with which storage options."""

    def __init__(self, settings: ClientSettings, announced: Callable[[], Sequence[str]] = tuple) -> None:
        self._settings = settings
        self.announced = announced
        """Returns the locations that the catalog announces for its tables, as far as it was asked."""
        self.confinement: Confinement | None = None

    @property
    def vends(self) -> bool:
        """Whether the catalog is asked for credentials where no request says so."""
        return self._settings.vend_credentials != "false"

    def require(self, entry: Entry) -> None:
        """Refuse a table at a location where tables must not be."""
        if self.confinement is not None and entry.location:
            self.confinement.require_table(entry.location, self.announced())

    def options(self, entry: Entry) -> dict[str, str]:
        """Merge the options to access a table's storage: its own, overridden by the client's, then by vended ones.

        Every operation that opens a table calls this first, so this is where a table outside the allowed locations is
        refused.
        """
        self.require(entry)
        return self.merge(entry.properties, entry.vended)

    def merge(self, properties: Mapping[str, str] | None, vended: Mapping[str, str] | None = None) -> dict[str, str]:
        """Merge storage options as `options` does, without the check of the location."""
        own = storage_options(properties)
        if not own and not vended:
            return dict(self._settings.storage)
        # A table's properties come from whoever may write the entry. Options such as an endpoint could send this
        # client's credentials to a host of their choice, so only harmless ones count unless the user trusts them all.
        trusted = own if self._settings.table_storage == ALL else harmless_options(own)
        return merge_options(trusted, self._settings.storage, vended or {})


class CatalogNamespace(TableOperations):
    """A Lance namespace backed by a catalog server. Thread-safe and picklable; the constructor opens no connection.

    A catalog is a subclass whose constructor makes the parts: its HTTP calls, its namespaces and its tables.
    """

    client: ClassVar[str]
    """Name of the client, as `connect` knows it."""
    delimiter: ClassVar[str] = "."
    """Joins the levels of an id in the responses of lists."""
    cascades: ClassVar[bool] = False
    """Whether a namespace can be dropped together with its tables."""
    lists_whole_ids: ClassVar[bool] = True
    """Whether ListNamespaces returns all levels of a namespace, not just the last one."""
    lists_catalogs: ClassVar[bool] = False
    """Whether the first levels of ids can be listed; Iceberg REST has no call for it."""
    vends_freely: ClassVar[bool] = True
    """Whether credentials come with the entry, without another request; then operations that read data ask for them."""
    managed_versions_hint: ClassVar[str] = "use an Iceberg table of an Iceberg REST server, with the `iceberg` client"
    """What an error advises if the catalog should manage versions and cannot."""
    ping_path: ClassVar[str] = "/v1/config"
    """A path that every server of this kind answers."""
    drops_missing: ClassVar[bool] = False
    """Whether dropping a namespace that does not exist succeeds when the request gives no `mode`."""

    _rest: Rest
    _namespaces: CatalogNamespaces
    _tables: CatalogTables
    _access: StorageAccess

    def __init__(self, **properties: str) -> None:
        self._properties = dict(properties)
        self._settings = ClientSettings.parse(self.client, properties)

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect, (type(self), self._properties)

    def __repr__(self) -> str:
        catalog = f", catalog={self._settings.catalog!r}" if self._settings.catalog else ""
        return f"{type(self).__name__}(endpoint={self._settings.endpoint!r}{catalog})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ping(self) -> None:
        """Check with one request, without retries, that the server responds and accepts the credentials.

        Raises:
            LanceNamespaceError: it does not.
        """
        self._rest.ping(self.ping_path)

    def close(self) -> None:
        """Close the connections to the server.

        A call after that opens new ones: datasets that were opened by name keep the client, to renew credentials.
        """
        self._rest.close()

    def namespace_id(self) -> str:
        """Return a name for this connection: the same for the same properties, and without their secrets."""
        return f"{type(self).__name__} {{ endpoint: '{self._settings.endpoint}', settings: {self._settings.digest} }}"

    @property
    def confinement(self) -> Confinement | None:
        """Which locations may be opened for tables; None allows all. A server sets it, for tables of others."""
        return self._access.confinement

    @confinement.setter
    def confinement(self, confinement: Confinement | None) -> None:
        self._access.confinement = confinement

    # Identifiers; a catalog with a fixed number of levels narrows them.

    def _parse_namespace_id(self, parts: Sequence[str] | None, *, least: int = 2) -> NamespaceId:
        return NamespaceId.parse(parts, least=least)

    def _parse_table_id(self, parts: Sequence[str] | None) -> TableId:
        return TableId.parse(parts)

    def _format_namespace(self, namespace: NamespaceId) -> str:
        """Return a namespace as ListNamespaces shows it."""
        return self.delimiter.join(namespace.parts)

    # Namespaces

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        """List the namespaces directly below one."""
        children = self._namespaces.list_children(self._parse_namespace_id(request.id, least=1))
        listing = paginate(dict.fromkeys(map(self._format_namespace, children)), request.limit, request.page_token)
        return ListNamespacesResponse(namespaces=list(listing.items), page_token=listing.token)

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        """Create a namespace; `mode` decides what happens if it exists already."""
        namespace = self._parse_namespace_id(request.id)
        mode = parse_choice("mode", request.mode, "Create", "ExistOk", "Overwrite")
        properties = request.properties or {}
        if not all(is_plain(level) for level in namespace.levels):
            # Iceberg's reference server creates names with `/` or `%`, but cannot load them afterwards. Loading such a
            # name first raises its error before anything is created.
            none_if_missing(lambda: self._namespaces.load(namespace))
        try:
            created_properties = self._namespaces.create(namespace, properties)
        except NamespaceAlreadyExistsError:
            if mode == "Create":
                raise
            if mode == "Overwrite":
                none_if_missing(lambda: self._namespaces.delete(namespace, cascade=False))
                created_properties = self._namespaces.create(namespace, properties)
            else:
                created_properties = self._namespaces.load(namespace)
        return CreateNamespaceResponse(properties=dict(created_properties))

    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        """Return the properties of a namespace."""
        return DescribeNamespaceResponse(properties=dict(self._namespaces.load(self._parse_namespace_id(request.id))))

    def namespace_exists(self, request: NamespaceExistsRequest) -> NamespaceExistsResponse:
        """Return if the namespace exists, else raise NamespaceNotFoundError."""
        self._namespaces.load(self._parse_namespace_id(request.id))
        return NamespaceExistsResponse()

    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        """Drop a namespace; `mode` decides what happens if it does not exist, `behavior` if it is not empty."""
        cascade = parse_choice("behavior", request.behavior, "Restrict", "Cascade") == "Cascade"
        default = "Skip" if self.drops_missing else "Fail"
        mode = parse_choice("mode", default if request.mode is None else request.mode, "Fail", "Skip")
        namespace = self._parse_namespace_id(request.id)
        if cascade and not self.cascades:
            raise UnsupportedOperationError(f"{namespace}: {self.client} drops empty namespaces only, not Cascade")
        try:
            self._namespaces.delete(namespace, cascade=cascade)
        except NamespaceNotFoundError:
            if mode == "Fail":
                raise
        return DropNamespaceResponse()

    # Tables

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        """List the Lance tables of a namespace by name, sorted; raise if one of them cannot be loaded."""
        namespace = self._parse_namespace_id(request.id)
        candidates = self._tables.list_candidates(namespace)
        return self._list_page({name: (TableId(namespace, name), entry) for name, entry in candidates.items()}, request)

    def list_all_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        """List the Lance tables of a namespace and of all namespaces below it, by full ids.

        The levels of an id are joined by the catalog's delimiter, or by the `delimiter` in the request's context.
        Tables are ordered by namespace, then by name. With a limit, only the namespaces that the page needs are
        requested.
        """
        limit, start = request.limit, _parse_position(request.page_token)
        if limit is not None and limit < 0:
            raise InvalidInputError(f"limit {limit} is negative")
        rest: list[tuple[Position, Candidate]] = []
        positions: list[Position] = []
        for namespaces in self._namespace_batches(request.id, start[0], limit):
            rest += [
                ((namespace.parts, name), (TableId(namespace, name), entry))
                for namespace, entries in zip(
                    namespaces, map_concurrently(self._tables.list_candidates, namespaces), strict=True
                )
                for name, entry in sorted(entries.items(), key=lambda item: item[0])
                if (namespace.parts, name) > start
            ]
            rest = self._fill_page(positions, rest, request)
            # A page that is full to the last candidate goes on to the next batch, because only a candidate that is left
            # over proves that there is another page.
            if rest:
                break
        delimiter = (request.context or {}).get("delimiter", self.delimiter)
        return ListTablesResponse(
            tables=[delimiter.join([*parts, name]) for parts, name in positions],
            page_token=encode_token(json.dumps(positions[-1])) if rest and positions else None,
        )

    def _namespace_batches(
        self, parts: Sequence[str] | None, start: list[str], limit: int | None
    ) -> Iterator[Sequence[NamespaceId]]:
        """Yield the namespaces that may hold tables, at an id and below it, sorted and from `start` on, in batches.

        A whole list is one batch, which is requested level by level; a page requests `LOOKAHEAD` namespaces at a time.
        """
        if limit is None:
            yield [
                namespace
                for namespace in sorted(self._list_subtree(parts), key=_namespace_parts)
                if namespace.parts >= start
            ]
            return
        walk = self._walk_namespaces(parts, start)
        while batch := list(islice(walk, LOOKAHEAD)):
            yield batch

    def _walk_namespaces(self, parts: Sequence[str] | None, start: list[str]) -> Iterator[NamespaceId]:
        """Yield what `_list_subtree` returns, in order and lazily; subtrees before `start` are not requested."""

        def walk(namespace: NamespaceId) -> Iterator[NamespaceId]:
            if namespace.levels and namespace.parts >= start:
                yield namespace
            for child in sorted(self._namespaces.list_children(namespace), key=_namespace_parts):
                if child.parts >= start[: len(child.parts)]:
                    yield from walk(child)

        return walk(self._parse_namespace_id(parts, least=1))

    def _list_subtree(self, parts: Sequence[str] | None) -> list[NamespaceId]:
        """List every namespace that may hold tables, at an id and below it."""
        level = [self._parse_namespace_id(parts, least=1)]
        namespaces: list[NamespaceId] = []
        while level:
            namespaces += [namespace for namespace in level if namespace.levels]
            children = map_concurrently(self._namespaces.list_children, level)
            level = [child for siblings in children for child in siblings]
        return namespaces

    def _list_page(self, candidates: Mapping[str, Candidate], request: ListTablesRequest) -> ListTablesResponse:
        """Return the page of a list that a request asks for, loading no more tables than it needs."""
        keys = remaining_keys(candidates, request.limit, request.page_token)
        names: list[str] = []
        rest = self._fill_page(names, [(name, candidates[name]) for name in keys], request)
        return ListTablesResponse(tables=names, page_token=encode_token(names[-1]) if rest and names else None)

    def _fill_page(
        self, page: list[T], candidates: list[tuple[T, Candidate]], request: ListTablesRequest
    ) -> list[tuple[T, Candidate]]:
        """Add the keys of Lance tables to a page, up to the limit of the request; return the candidates left over."""
        while candidates and (request.limit is None or len(page) < request.limit):
            count = len(candidates) if request.limit is None else request.limit - len(page)
            batch, candidates = candidates[:count], candidates[count:]
            mask = self._lance_table_mask(
                [candidate for _, candidate in batch], declared=request.include_declared is not False
            )
            page += [key for (key, _), keep in zip(batch, mask, strict=True) if keep]
        return candidates

    def _lance_table_mask(self, candidates: Sequence[Candidate], *, declared: bool) -> list[bool]:
        """Return for each candidate whether it is a Lance table, and unless `declared`, whether it has data."""
        if declared and all(entry is not None for _, entry in candidates):
            return [True] * len(candidates)
        tables = [table for table, _ in candidates]
        entries = self._tables.find_entries(tables, vend=self.vends_freely and self._access.vends and not declared)
        if declared:
            return [entry is not None for entry in entries]
        pairs = list(zip(tables, entries, strict=True))
        return map_concurrently(lambda pair: pair[1] is not None and self._may_have_data(pair[0], pair[1]), pairs)

    def _may_have_data(self, table: TableId, entry: Entry) -> bool:
        """Return whether a table has data, or lies at a location that this client must not open."""
        try:
            return self._has_data(table, entry)
        except OutsideConfinementError:
            return True

    def _has_data(self, table: TableId, entry: Entry) -> bool:
        return entry.is_restricted or self._table_ref(table, entry).exists()

    def _table_ref(self, table: TableId, entry: Entry, **at: Any) -> dataset.TableRef:
        """Return a reference to the table's dataset, at a version, branch or tag."""
        return dataset.TableRef(
            get_location(table, entry), self._access.options(entry), confinement=self.confinement, **at
        )

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        """Create the entry of a table that has no data yet."""
        table = self._parse_table_id(request.id)
        with explain_existing(self, table.parts):
            entry = self._declare(
                table, request.location, request.properties, vend=self._vends(request.vend_credentials)
            )
        try:
            self._require_vended(table, entry, request.vend_credentials)
            options = self._access.options(entry)  # the server may have chosen a location that must not be opened
        except (InvalidInputError, OutsideConfinementError):
            self._tables.delete(table)  # it was created just now, and nothing is in it
            raise
        return DeclareTableResponse(
            location=entry.location,
            storage_options=options,
            properties=dict(entry.properties),
            managed_versioning=self._is_managed(table, entry.properties) or None,
        )

    def _declare(
        self, table: TableId, location: str | None, properties: Mapping[str, str] | None, *, vend: bool
    ) -> Entry:
        table_properties = dict(properties or {})
        if (kind := table_properties.setdefault(TABLE_TYPE, LANCE)).lower() != LANCE:
            raise InvalidInputError(f"{table}: property {TABLE_TYPE} must be {LANCE!r}, got {kind!r}")
        if self._settings.managed_by == IMPL:
            table_properties.setdefault(MANAGED_BY, IMPL)
        if self._is_managed(table, table_properties):
            table_properties = {**FEW_METADATA_FILES, **table_properties}
        self._check_name(table)
        entry = self._create_at(table, location, table_properties, vend=vend)
        self._check_findable(table, entry)
        return entry

    def _create_at(self, table: TableId, location: str | None, properties: Mapping[str, str], *, vend: bool) -> Entry:
        """Create the entry of a table, at its default location if none is given.

        If the server refuses that one, and nobody has set a root, the table goes below the location of its namespace.
        """
        if location:
            return self._tables.create(table, location, properties, vend=vend)
        default = self._tables.default_location(table)
        try:
            return self._tables.create(table, default, properties, vend=vend)
        except (InvalidInputError, PermissionDeniedError, InternalError) as error:
            if not isinstance(error, InternalError) and not self._settings.root:
                base = self._namespaces.load(table.namespace).get("location")
                below = locations.child_location(base, [table.name]) if base else default
                if not locations.is_same(below, default):
                    return self._tables.create(table, below, properties, vend=vend)
            raise type(error)(
                f"{error}; the location was the default one, {default}: if the server does not allow it, "
                "set the property `root` or give a location"
            ) from error

    def _is_managed(self, table: TableId, properties: Mapping[str, str]) -> bool:
        """Return whether the catalog, not storage, decides which version of a table is the current one.

        Raises:
            UnsupportedOperationError: the properties ask for it, but this catalog cannot.
        """
        if managed_by(properties) == IMPL:
            raise UnsupportedOperationError(
                f"{table}: {MANAGED_BY}={IMPL} is not possible with {self.client}, whose tables have no ref that a "
                f"commit could move; {self.managed_versions_hint}"
            )
        return False

    def _check_name(self, table: TableId) -> None:
        """Load a table before it gets its name, because some servers accept names that they cannot find again.

        Raises:
            InvalidInputError: the server refuses the name.
        """
        if is_plain(table.name):
            return
        try:
            none_if_missing(lambda: self._tables.load(table, vend=False))
        except InvalidInputError as error:
            if is_route_missing(error):
                raise
        except InternalError as error:
            # Polaris resolves `..` in the path and responds 200 with the namespace, which cannot be parsed as a table.
            if table.name not in (".", ".."):
                raise
            raise InvalidInputError(f"{table}: the server takes the name for a step in the path: {error}") from error

    def _check_findable(self, table: TableId, entry: Entry) -> None:
        """Delete a table again that the server has created but cannot find by its name. Does nothing by default.

        Raises:
            InvalidInputError: the table cannot be found.
        """

    def register_table(self, request: RegisterTableRequest) -> RegisterTableResponse:
        """Create the entry of a table whose data exists already."""
        table = self._parse_table_id(request.id)
        mode = parse_choice("mode", request.mode, "Create", "Overwrite")
        if not request.location:
            raise InvalidInputError(f"{table}: register_table needs the location of a Lance dataset")
        properties = request.properties
        if self.confinement is not None:
            self.confinement.require_choice(request.location, self._access.announced())
        if self._is_empty(request.location, properties):
            raise InvalidInputError(
                f"{table}: there is no Lance dataset at {request.location}; declare_table makes an entry without data"
            )
        try:
            entry = self._register(table, request.location, properties)
        except TableAlreadyExistsError:
            if mode == "Create":
                raise
            entry = self._replace_entry(table, request.location, properties)
        return RegisterTableResponse(location=entry.location, properties=dict(entry.properties))

    def _is_empty(self, location: str, properties: Mapping[str, str] | None) -> bool:
        """Return whether there is certainly no dataset at a location; False if this client cannot read it."""
        try:
            return not dataset.exists(location, self._access.merge(properties))
        except LanceNamespaceError as error:
            logger.debug("cannot read %s: %s", location, error)
            return False

    def _replace_entry(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Point an entry to another location; if that fails, restore the old entry."""
        old = self._tables.load(table, vend=False)
        self._tables.delete(table)
        try:
            return self._register(table, location, properties)
        except LanceNamespaceError:
            self._register(table, old.location, old.properties)
            raise

    def _register(self, table: TableId, location: str, properties: Mapping[str, str] | None) -> Entry:
        """Create an entry for data that exists already; delete it again if the server puts it elsewhere."""
        entry = self._declare(table, location, properties, vend=False)
        if split_location(entry.location) != split_location(location):
            self._tables.delete(table)
            raise own_location_error(table, location, entry.location)
        return entry

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """Return where a table lies; with `load_detailed_metadata`, also its version, schema and statistics."""
        table = self._parse_table_id(request.id)
        needs_data = bool(request.check_declared or request.load_detailed_metadata)
        entry = self._load_with_credentials(table, request.vend_credentials)
        location, options = get_location(table, entry), self._access.options(entry)
        response = DescribeTableResponse(location=location, storage_options=options, properties=dict(entry.properties))
        response.managed_versioning = self._is_managed(table, entry.properties) or None
        if needs_data:
            response.is_only_declared = not self._has_data(table, entry)
        if request.load_detailed_metadata:
            response.table, response.namespace = table.name, table.namespace.parts
            response.table_uri = locations.to_uri(location) if request.with_table_uri else None
        if request.load_detailed_metadata and not response.is_only_declared and not entry.is_restricted:
            at = {"version": request.version, "tag": request.tag, "branch": request.branch}
            _add_details(response, self._table_ref(table, entry, **at))
        else:
            self._add_schema(response, entry)
        return response

    def _load_with_credentials(self, table: TableId, requested: bool | None) -> Entry:
        """Load an entry with the credentials that a request, or else the client's property, asks for."""
        entry = self._tables.load(table, vend=self._vends(requested))
        self._require_vended(table, entry, requested)
        return entry

    def _vends(self, requested: bool | None) -> bool:
        """Return whether to ask for credentials, for a request that asks for them, declines them, or does neither."""
        return self._access.vends if requested is None else requested

    def _require_vended(self, table: TableId, entry: Entry, requested: bool | None) -> None:
        """Raise if credentials are required and the catalog vends none; it vends none for local paths."""
        is_required = requested is None and self._settings.vend_credentials == "true"
        if is_required and not entry.vended and locations.local_folder(entry.location) is None:
            raise InvalidInputError(
                f"{table}: the catalog vends no credentials for it, and vend_credentials is true; set it to auto and "
                "give your own as storage.* properties, or let the catalog vend"
            )

    def _add_schema(self, response: DescribeTableResponse, entry: Entry) -> None:
        """Set the response's schema if the catalog has it, without opening the table. Does nothing by default."""

    def table_exists(self, request: TableExistsRequest) -> TableExistsResponse:
        """Return if the table, or the given version of it, exists, else raise."""
        table = self._parse_table_id(request.id)
        entry = self._tables.load(table, vend=self._access.vends and request.version is not None)
        if request.version is not None:
            self._table_ref(table, entry, version=request.version).open()
        return TableExistsResponse()

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        """Delete the entry of a table; its data stays."""
        table = self._parse_table_id(request.id)
        entry = self._tables.load(table, vend=False)
        self._tables.delete(table)
        return DeregisterTableResponse(id=table.parts, location=entry.location, properties=dict(entry.properties))

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        """Delete the entry of a table, then its data; if the catalog refuses, both stay."""
        table = self._parse_table_id(request.id)
        entry = self._tables.load(table, vend=self._access.vends)
        options = self._access.options(entry)
        self._drop_data(table, entry, options)
        return DropTableResponse(id=table.parts, location=entry.location, properties=dict(entry.properties))

    def _drop_data(self, table: TableId, entry: Entry, options: Mapping[str, str]) -> None:
        """Delete the entry of a table, then its data."""
        self._tables.delete(table)
        try:
            if entry.location:
                remove_dataset(entry.location, options, metadata=self.writes_metadata)
        except LanceNamespaceError as error:
            raise InternalError(
                f"{table} is no longer in the catalog, but its data at {entry.location} could not be removed: {error}"
            ) from error

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Raise UnsupportedOperationError; catalogs that can rename tables override this."""
        raise UnsupportedOperationError(
            f"{self._parse_table_id(request.id)}: {self.client} has no call that renames such a table"
        )

    def _rename(
        self, request: RenameTableRequest, rename: Callable[[TableId, TableId, Entry], None]
    ) -> RenameTableResponse:
        """Rename a table, within its namespace or into another one of its warehouse; its data stays where it is."""
        source = self._parse_table_id(request.id)
        namespace = self._parse_namespace_id(request.new_namespace_id) if request.new_namespace_id else source.namespace
        target = self._parse_table_id([*namespace.parts, request.new_table_name])
        if namespace.catalog != source.namespace.catalog:
            raise InvalidInputError(f"{source} cannot be renamed to {target}: it would change its warehouse")
        entry = self._tables.load(source, vend=False)
        self._check_name(target)
        rename(source, target, entry)
        return RenameTableResponse()


_namespace_parts = attrgetter("parts")


def _parse_position(page_token: str | None) -> Position:
    """Return the position after which the page of a token begins; for the first page, one before all tables."""
    text = decode_token(page_token)
    if text is None:
        return [], ""
    try:
        parts, name = json.loads(text)
        if isinstance(name, str) and isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            return parts, name
    except (ValueError, TypeError):
        pass
    raise InvalidInputError(f"page_token {page_token!r} was not given out by this list; start without one")


def get_location(table: TableId, entry: Entry) -> str:
    """Return the location of a table.

    Raises:
        InternalError: the catalog has none.
    """
    if not entry.location:
        raise InternalError(f"{table}: the catalog has no location for it")
    return entry.location


def own_location_error(table: TableId, location: str, actual_location: str) -> UnsupportedOperationError:
    """Return the error for an entry of existing data on a server that chooses the locations of tables itself."""
    return UnsupportedOperationError(
        f"{table}: the server chooses where tables lie, and chose {actual_location} instead of {location}, where the "
        "data is: write the rows to a new table, or copy the data with `lancehouse copy --data`"
    )


def _add_details(response: DescribeTableResponse, table: dataset.TableRef) -> None:
    details = dataset.read_details(table)
    response.version, response.var_schema = details.version, details.schema
    response.stats, response.metadata = details.stats, details.metadata


def map_concurrently(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for every item, up to `CONNECTIONS` at a time, and return the results in order.

    The first error is raised; calls that have not started by then are cancelled. Each call runs in a copy of the
    caller's context, so that its requests belong to the caller's trace.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(len(items), CONNECTIONS)) as pool:
        futures = [pool.submit(copy_context().run, call, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)


def none_if_missing(lookup: Callable[[], T]) -> T | None:
    """Return the result of a lookup; None if it raises that there is no such table or namespace."""
    try:
        return lookup()
    except (TableNotFoundError, NamespaceNotFoundError):
        return None


def is_renamed(tables: CatalogTables, source: TableId, target: TableId) -> bool:
    """Return whether a rename whose response was lost was made."""
    target_entry = none_if_missing(lambda: tables.load(target, vend=False))
    return target_entry is not None and none_if_missing(lambda: tables.load(source, vend=False)) is None


def _connect(kind: type[CatalogNamespace], properties: Mapping[str, str]) -> CatalogNamespace:
    return kind(**properties)
