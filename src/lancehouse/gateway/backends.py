"""`Backend`: a namespace that the gateway offers; ids with its prefix, operations, errors without its secrets.

The ids of a warehouse do not repeat its name: `["db", "t"]` at `main` is `["main", "db", "t"]` for its client.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Protocol, Self, TypeVar
from urllib.parse import unquote

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    CreateTableResponse,
    DeclareTableResponse,
    DeregisterTableResponse,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableResponse,
    ExplainTableQueryPlanRequest,
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesResponse,
    NamespaceExistsResponse,
    RenameTableRequest,
    connect,
)
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableVersionNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.commit_table_result import CommitTableResult

from lancehouse import measures
from lancehouse.credentials import TUNING, harmless_options
from lancehouse.gateway.operations import BY_METHOD, Operation, RequestEncoding, ResponseEncoding
from lancehouse.gateway.request_sql import rewrite_sql
from lancehouse.lake.confinement import Confinement, outside_error, require_no_links
from lancehouse.lake.errors import find_error_class, translate_errors
from lancehouse.lake.foreign_tables import TABLE_OPERATIONS, ForeignTables, with_storage_options
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.row_operations import explain_existing
from lancehouse.locations import child_location, find_link, is_inside, local_folder, shorten
from lancehouse.secrets import Secrets
from lancehouse.settings import HARMLESS

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLIENTS = 256
"""Most clients that are cached: one for each backend and token in use."""
STORAGE = "storage."
"""Prefix of properties that a client needs to reach the data, and must not reveal."""
VENDING = "header.x-iceberg-access-delegation"
"""Property by which a client always requests credentials; the gateway's callers request their own."""
TABLE_STORAGE = "table_storage"
"""Property that decides which storage options of a table are used.

Whoever writes a table is not the gateway's operator, so by default only harmless ones are.
"""
ROOT_RESPONSES: Mapping[str, Any] = {
    "namespace_exists": NamespaceExistsResponse(),
    "describe_namespace": DescribeNamespaceResponse(properties={}),
}
"""Responses about a warehouse itself, which its client does not treat as a namespace."""
WITH_STORAGE_OPTIONS = frozenset({"describe_table", "declare_table"})
"""Operations whose responses contain storage options."""

BATCHED = {"delete_table_versions": "batch_delete_table_versions"}
"""Names of operations in a batch, where they differ from those of their methods."""

Properties = Mapping[str, str]

_PATH_CHARACTERS = re.compile(r"[/\\\x00-\x1f\x7f]")


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
            OutsideConfinementError: it lies elsewhere, or behind a symlink.
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
            OutsideConfinementError: the caller may not read it.
        """
        self._require("the table takes files from", base)

    def require_blob(self, uri: str) -> None:
        """Refuse an external blob that the caller may not read.

        Raises:
            OutsideConfinementError: the caller may not read it.
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


def request_ids(request: Any) -> list[list[str]]:
    """Return the ids of all tables, or of the namespace, that a request concerns."""
    match request:
        case BatchCreateTableVersionsRequest():
            return [entry.id for entry in request.entries]
        case BatchCommitTablesRequest():
            parts = [part for operation in request.operations for part in _present_fields(operation).values()]
            return [part.id or [] for part in parts]
        case RenameTableRequest():
            namespace = (request.id or [])[:-1] if request.new_namespace_id is None else request.new_namespace_id
            return [request.id or [], [*namespace, request.new_table_name]]
        case ExplainTableQueryPlanRequest() if request.query.id:
            return [request.id or [], request.query.id]
    return [request.id or []]


def request_parts(operation: Operation, request: Any) -> list[tuple[Operation, list[str]]]:
    """Return what a request does to which table or namespace: a batch does several things, a rename two."""
    match request:
        case BatchCommitTablesRequest():
            parts = [part for commit in request.operations for part in _present_fields(commit).items()]
            return [(BY_METHOD[BATCHED.get(name, name)], part.id or []) for name, part in parts]
        case RenameTableRequest():
            source, destination = request_ids(request)
            return [(operation, source), (BY_METHOD["declare_table"], destination)]
    return [(operation, table_id) for table_id in request_ids(request)]


def request_locations(request: Any) -> list[tuple[list[str], str]]:
    """Return the locations that a request chooses, each with the id of its table."""
    parts = [request]
    if isinstance(request, BatchCommitTablesRequest):
        parts = [part for operation in request.operations for part in _present_fields(operation).values()]
    return [(part.id or [], part.location) for part in parts if getattr(part, "location", None)]


def check_no_path(level: str) -> None:
    """Refuse a name that, used as a path, would lead out of its folder.

    Raises:
        InvalidInputError: the name is empty, `.` or `..`, or has a slash, a backslash or a control character.
    """
    for name in (level, unquote(level)):  # Lance percent-decodes a file URI once
        if name in ("", ".", "..") or _PATH_CHARACTERS.search(name):
            raise InvalidInputError(
                f"{level[:80]!r} cannot be a name here: it is empty, . or .., or has a slash, a backslash or a control"
                " character"
            )


def add_prefix(request: Any, prefix: Sequence[str]) -> Any:
    """Return a request with the ids that the backend's client expects."""
    if not prefix:
        return request

    def below(levels: Sequence[str] | None) -> list[str]:
        return [*prefix, *(levels or ())]

    changes: dict[str, Any] = {}
    match request:
        case BatchCreateTableVersionsRequest():
            entries = [entry.model_copy(update={"id": below(entry.id)}) for entry in request.entries]
            return request.model_copy(update={"entries": entries})
        case BatchCommitTablesRequest():
            operations = [
                operation.model_copy(
                    update={
                        name: part.model_copy(update={"id": below(part.id)})
                        for name, part in _present_fields(operation).items()
                    }
                )
                for operation in request.operations
            ]
            return request.model_copy(update={"operations": operations})
        case RenameTableRequest() if request.new_namespace_id is not None:
            changes["new_namespace_id"] = below(request.new_namespace_id)
        case ExplainTableQueryPlanRequest() if request.query.id:
            changes["query"] = request.query.model_copy(update={"id": below(request.query.id)})
    return request.model_copy(update={**changes, "id": below(request.id)})


def remove_prefix(response: Any, request: Any, prefix: Sequence[str], *, whole_ids: bool) -> Any:
    """Return a response with the names that the gateway's callers use.

    Args:
        response: the response of the backend's client.
        request: the request as the caller sent it.
        prefix: the levels that callers leave out.
        whole_ids: whether the backend lists namespaces with all their levels, joined by a dot.
    """
    match response:
        case DescribeTableResponse() if response.namespace:
            return response.model_copy(update={"namespace": response.namespace[len(prefix) :]})
        case DropTableResponse() | DeregisterTableResponse() if response.id:
            return response.model_copy(update={"id": response.id[len(prefix) :]})
        case BatchCommitTablesResponse():
            results = [
                result.model_copy(
                    update={
                        name: remove_prefix(part, None, prefix, whole_ids=False)
                        for name, part in _present_fields(result).items()
                    }
                )
                for result in response.results
            ]
            return response.model_copy(update={"results": results})
        case ListNamespacesResponse() if whole_ids:
            names = _strip_prefix(response.namespaces, [*prefix, *(request.id or ())], ".")
            return response.model_copy(update={"namespaces": names})
        case ListTablesResponse() if whole_ids and (delimiter := (request.context or {}).get("delimiter")):
            return response.model_copy(update={"tables": _strip_prefix(response.tables, prefix, delimiter)})
    return response


def _present_fields(operation: Any) -> dict[str, Any]:
    """Return the fields that are set in an operation of a batch or in its result; a valid one has exactly one."""
    fields = ((name, getattr(operation, name)) for name in type(operation).model_fields)
    return {name: part for name, part in fields if part is not None}


def _strip_prefix(names: Sequence[str], levels: Sequence[str], delimiter: str) -> list[str]:
    prefix = "".join(f"{level}{delimiter}" for level in levels)
    return [name.removeprefix(prefix) for name in names]


class GatewayConfinement(Confinement, Protocol):
    """What may be opened on behalf of a caller of the gateway."""

    def for_descriptions(self) -> Confinement:
        """Return one for tables that are described and not opened: their folders are not searched for links."""


@dataclass(frozen=True)
class Backend:
    """A Lance namespace that the gateway serves under a name."""

    name: str
    impl: str
    properties: Properties = field(default_factory=dict, repr=False)
    roots: tuple[str, ...] = ()
    """Locations below which its tables may lie; nothing else is opened."""
    id_prefix: tuple[str, ...] = ()
    """Leading levels of its ids that callers leave out."""
    confine: Callable[[str | None], GatewayConfinement] | None = field(default=None, repr=False)
    """For a warehouse: returns what may be opened on behalf of the owner of a token."""
    caller_token: Callable[[str | None], str] | None = field(default=None, repr=False)
    """For a catalog that is asked in the name of the caller: returns the token for it, from the caller's."""

    @property
    def is_warehouse(self) -> bool:
        """Whether it is a warehouse of this server, which checks permissions itself."""
        return bool(self.id_prefix)

    @cached_property
    def secrets(self) -> Secrets:
        """The secrets among its properties."""
        return Secrets(self.properties)

    def connect(self, token: str | None = None, *, reads_all: bool = False) -> BackendClients:
        """Return its clients; for a warehouse, and where the caller's identity is passed on, with the caller's token.

        Args:
            token: the caller's token.
            reads_all: whether the caller may read everything in a backend that is not a warehouse.
        """
        own = token if self.is_warehouse else None
        if self.caller_token is not None:
            own = self.caller_token(token)
        confinement = self.confine(own) if self.confine else BackendConfinement(self.name, self.roots, reads_all)
        return _connect_clients(self.impl, tuple(sorted(self.properties.items())), own, confinement)

    def ping(self) -> None:
        """See whether its catalog answers, by one request; a refusal of the request is an answer too.

        Raises:
            LanceNamespaceError: it does not, or does not know the gateway; without the backend's secrets.
        """
        about = f"backend {self.name}"
        if self.caller_token is not None:
            # Nobody asks just now: that the catalog wants to know who does is an answer.
            with suppress(UnauthenticatedError, PermissionDeniedError):
                replace(self, caller_token=None).ping()
            return
        with self.secrets.redact_errors(about), translate_errors(about, self.properties):
            client = self.connect().inner
            ping = getattr(client, "ping", None)
            if ping is not None:
                ping()
                return
            with suppress(InvalidInputError, UnsupportedOperationError, NotImplementedError):
                client.list_namespaces(ListNamespacesRequest(id=[], limit=1))

    def check_ids(self, ids: Iterable[Sequence[str]]) -> None:
        """Refuse names that a backend such as `dir` would use as paths.

        Names in a warehouse are not checked: its catalog accepts any name, and encodes it.

        Raises:
            InvalidInputError: there is such a name.
        """
        if not self.is_warehouse:
            for level in chain.from_iterable(ids):
                check_no_path(level)

    def check_location(self, location: str, namespace: Sequence[str], *, writes_all: bool) -> None:
        """Refuse a location that the caller may not choose.

        Args:
            location: the location of a new table.
            namespace: the namespace of the table.
            writes_all: whether the caller may write to the whole backend; others must choose below the namespace's
                folder.

        Raises:
            PermissionDeniedError: it is not below the roots, or not below the folder of the namespace.
        """
        if self.is_warehouse:
            return  # its catalog decides
        BackendConfinement(self.name, self.roots, reads_all=True).require_table(location)
        if not writes_all and not is_inside(location, [child_location(root, namespace) for root in self.roots]):
            raise PermissionDeniedError(
                f"{shorten(location)} is not below the folder of namespace {'.'.join(namespace)}: who may not write to"
                f" all of {self.name} leaves the location out, or chooses one there"
            )

    @contextmanager
    def translate_errors(self, operation: Operation) -> Iterator[None]:
        """Run a block whose errors become errors of the protocol, without the backend's secrets."""
        about = f"backend {self.name}"
        with self.secrets.redact_errors(about), translate_errors(about, self.properties):
            try:
                yield
            except (NotImplementedError, UnsupportedOperationError) as error:
                if operation.instead:
                    text = f"{operation.name}: a server runs no jobs; use {operation.instead}"
                    raise UnsupportedOperationError(text) from None
                if isinstance(error, UnsupportedOperationError):
                    raise
                raise UnsupportedOperationError(f"{operation.name}: {about} has no such operation") from None


@dataclass(frozen=True, slots=True)
class BackendClients:
    """Two clients of one catalog; for third-party namespaces possibly the same."""

    outer: LanceNamespace
    """Responds to callers, and has no credentials of the storage that it could reveal."""
    inner: LanceNamespace
    """Reads and writes the data here, with the storage's credentials."""
    confinement: Confinement
    """What may be opened of the tables."""

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our own clients."""
        return isinstance(self.inner, TableOperations)

    @property
    def tables(self) -> TableOperations:
        """Operations on tables: the client itself, or our own code for the tables of a third-party client."""
        return self.inner if isinstance(self.inner, TableOperations) else ForeignTables(self.inner, self.confinement)


@lru_cache(CLIENTS)
def _connect_clients(
    impl: str, properties: tuple[tuple[str, str], ...], token: str | None, confinement: GatewayConfinement
) -> BackendClients:
    full_properties = dict(properties)
    if token is not None:
        full_properties["auth_token"] = token
    client = _connect(impl, full_properties)
    if not isinstance(client, TableOperations):
        return BackendClients(
            client, with_storage_options(client, full_properties), confinement
        )  # third-party namespaces may need their storage even to list tables
    public_properties = {
        key: value for key, value in full_properties.items() if not key.startswith(STORAGE) and key.lower() != VENDING
    } | {"vend_credentials": "false"}
    if not any(key.rpartition(".")[2] == TABLE_STORAGE for key in full_properties):
        full_properties[TABLE_STORAGE] = HARMLESS
    outer, inner = _connect(impl, public_properties), _connect(impl, full_properties)
    assert isinstance(outer, TableOperations)
    assert isinstance(inner, TableOperations)
    outer.confinement, inner.confinement = confinement.for_descriptions(), confinement
    return BackendClients(outer, inner, confinement)


def _connect(impl: str, properties: Properties) -> LanceNamespace:
    try:
        return connect(impl, dict(properties))
    except ValueError as error:  # `connect` turns any error of a constructor into a ValueError
        kind = find_error_class(str(error)) or InvalidInputError
        raise kind(f"cannot connect to {impl!r}: {error}") from error


def run_operation(
    backend: Backend,
    operation: Operation,
    request: Any,
    token: str | None,
    data: io.IOBase | None,
    *,
    reads_all: bool = False,
) -> Any:
    """Run an operation on a backend; return its response, or the parts of an Arrow file.

    Args:
        backend: the backend.
        operation: the operation.
        request: its request.
        token: the caller's token.
        data: rows, if the operation takes any.
        reads_all: whether the caller may read everything in a backend that is not a warehouse.

    Raises:
        LanceNamespaceError: the error of the backend.
        UnsupportedOperationError: the backend has no such operation.
    """
    with measures.report_backend_call(backend.name), backend.translate_errors(operation):
        _check_storage_options(getattr(request, "storage_options", None) or {})
        clients = backend.connect(token, reads_all=reads_all)
        # The prefix comes first: counting the rows that get a long literal uses the backend's ids.
        backend_request = rewrite_sql(add_prefix(request, backend.id_prefix), clients.tables.count_table_rows)
        if operation.response is ResponseEncoding.ARROW:
            return _retry_after_first_version(
                clients,
                backend_request,
                lambda: _start_stream(clients.tables.query_parts(backend_request), backend, operation),
            )
        if operation.body is RequestEncoding.ARROW:
            result = getattr(clients.tables, operation.method_name)(backend_request, data)
            return (
                result.model_copy(update={"storage_options": None})
                if isinstance(result, CreateTableResponse)
                else result
            )
        if operation.method_name in ROOT_RESPONSES and backend.is_warehouse and not request.id:
            clients.inner.list_namespaces(
                ListNamespacesRequest(id=backend_request.id, limit=1)
            )  # raises if the caller may not see the warehouse
            return ROOT_RESPONSES[operation.method_name]
        response = _retry_after_first_version(
            clients, backend_request, lambda: _dispatch(clients, operation.method_name, backend_request)
        )
        whole_ids = bool(getattr(clients.inner, "lists_whole_ids", False))
        return _remove_secrets(
            backend, clients, remove_prefix(response, request, backend.id_prefix, whole_ids=whole_ids)
        )


def _check_storage_options(options: Mapping[str, str]) -> None:
    """Refuse a caller's storage options that would send the gateway's credentials elsewhere."""
    if refused_options := sorted(options.keys() - harmless_options(options).keys()):
        raise InvalidInputError(
            f"storage_options: {', '.join(refused_options)}: the gateway reaches storage by its own options; it takes"
            f" a region, {', '.join(sorted(TUNING))}"
        )


def _retry_after_first_version(clients: BackendClients, request: Any, attempt: Callable[[], T]) -> T:
    """Run `attempt`; if it fails for lack of a first version, accept that version and run it again."""
    try:
        return attempt()
    except (InvalidTableStateError, TableVersionNotFoundError):
        if not _accept_first_version(clients.inner, getattr(request, "id", None)):
            raise
        return attempt()


def _accept_first_version(namespace: LanceNamespace, id: Sequence[str] | None) -> bool:
    """Accept the first version of a table if storage has one that the catalog does not know yet; return whether it did.

    The caller may lack the permission to write, which is not an error here.
    """
    accept = getattr(namespace, "accept_first", None)
    if accept is None or not id:
        return False
    try:
        return bool(accept(id))
    except LanceNamespaceError as error:
        logger.info("the first version of a table is not accepted: %s", type(error).__name__)
        return False


def _dispatch(clients: BackendClients, call: str, request: Any) -> Any:
    if call == "list_all_tables" and not request.id and not getattr(clients.inner, "lists_catalogs", True):
        raise UnsupportedOperationError("this catalog does not tell its warehouses: list the tables of a namespace")
    if call == "describe_table" and (request.load_detailed_metadata or request.check_declared):
        return _describe_table(clients, request)
    if call in TABLE_OPERATIONS:
        return getattr(clients.tables, call)(request)
    if call == "declare_table" and not clients.is_ours:
        with explain_existing(clients.inner, request.id):
            return clients.outer.declare_table(request)
    return getattr(clients.outer if call in WITH_STORAGE_OPTIONS else clients.inner, call)(request)


def _describe_table(clients: BackendClients, request: DescribeTableRequest) -> DescribeTableResponse:
    """Describe a table with details from its data.

    Reading the data needs credentials, but the storage options in the response are those that callers get without
    details.
    """
    bare = request.model_copy(update={"load_detailed_metadata": None, "check_declared": None})
    if not clients.is_ours:
        clients.tables.describe_table(bare)  # refuses a table that must not be opened, before its data are read
        return clients.outer.describe_table(request)
    options = clients.outer.describe_table(bare).storage_options
    return clients.inner.describe_table(request).model_copy(update={"storage_options": options})


def _remove_secrets(backend: Backend, clients: BackendClients, response: Any) -> Any:
    """Return a response without the gateway's own storage options, and without context that contains a secret."""
    if context := getattr(response, "context", None):
        safe_context = {key: value for key, value in context.items() if not backend.secrets.are_in(value)}
        response = response.model_copy(update={"context": safe_context})
    match response:
        case BatchCommitTablesResponse():
            results = [_remove_storage_options(result) for result in response.results]
            return response.model_copy(update={"results": results})
        case DescribeTableResponse() | DeclareTableResponse() if response.storage_options and not clients.is_ours:
            own = {key.removeprefix(STORAGE).lower() for key in backend.properties if key.startswith(STORAGE)}
            options = {
                key: value
                for key, value in response.storage_options.items()
                if key.lower() not in own and not backend.secrets.are_in(value)
            }
            return response.model_copy(update={"storage_options": options or None})
    return response


def _remove_storage_options(result: CommitTableResult) -> CommitTableResult:
    if result.declare_table is None:
        return result
    declared = result.declare_table.model_copy(update={"storage_options": None})
    return result.model_copy(update={"declare_table": declared})


def _start_stream(parts: Iterator[bytes], backend: Backend, operation: Operation) -> Iterator[bytes]:
    """Return the stream with its first part already read, so that a wrong query fails before the response starts."""
    first = next(parts)

    def stream() -> Iterator[bytes]:
        with backend.translate_errors(operation):
            yield first
            yield from parts

    return stream()
