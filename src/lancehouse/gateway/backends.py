"""What the gateway stands in front of: any namespace under a name, and each warehouse of the server under its own.

The ids of a warehouse do not repeat its name: `["db", "t"]` at `main` is `["main", "db", "t"]` for its client.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, TypeVar

from lance_namespace import (
    BatchCommitTablesResponse,
    CreateTableResponse,
    DeclareTableResponse,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    LanceNamespace,
    ListNamespacesRequest,
    NamespaceExistsResponse,
    connect,
)
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.commit_table_result import CommitTableResult

import lancehouse  # noqa: F401 - registers our aliases with `connect`
from lancehouse.credentials import TUNING, harmless_options
from lancehouse.gateway.foreign_tables import TABLE_OPERATIONS, BackendConfinement
from lancehouse.gateway.foreign_tables import ForeignTables as ForeignTables
from lancehouse.gateway.id_prefixes import add_prefix, check_no_path, remove_prefix
from lancehouse.gateway.operations import Operation, RequestEncoding, ResponseEncoding
from lancehouse.gateway.redaction import Secrets
from lancehouse.gateway.request_sql import rewrite_sql
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.errors import find_error_class, translate_errors
from lancehouse.lake.object_stores import with_storage_options
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.row_operations import explain_existing
from lancehouse.locations import child_location, is_inside, shorten
from lancehouse.settings import HARMLESS

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLIENTS = 256
"""Of one warehouse, that are kept: one for each token that is in use."""
STORAGE = "storage."
"""What the properties begin with that a client needs to reach the data, and that it tells nobody."""
VENDING = "header.x-iceberg-access-delegation"
"""The property by which a client asks for credentials each time: callers of the gateway ask for themselves."""
TABLE_STORAGE = "table_storage"
"""The property that says which storage options of tables count. A table's writer is not the gateway's operator."""
ROOT_RESPONSES: Mapping[str, Any] = {
    "namespace_exists": NamespaceExistsResponse(),
    "describe_namespace": DescribeNamespaceResponse(properties={}),
}
"""What is said of a warehouse itself, which its client does not take for a namespace."""
TELLING = frozenset({"describe_table", "declare_table"})
"""What tells storage options."""

Properties = Mapping[str, str]


@dataclass(frozen=True)
class Backend:
    """A namespace that the gateway offers."""

    name: str
    impl: str
    properties: Properties = field(default_factory=dict, repr=False)
    roots: tuple[str, ...] = ()
    """Where its tables may lie; nothing else is opened."""
    id_prefix: tuple[str, ...] = ()
    """The levels that its ids have and those of its callers have not."""
    confine: Callable[[str | None], Confinement] | None = field(default=None, repr=False)
    """Of a warehouse: what may be opened in the name of whom a token belongs to."""

    @property
    def is_warehouse(self) -> bool:
        """Whether it is in this process, and decides itself who may do what."""
        return bool(self.id_prefix)

    @cached_property
    def secrets(self) -> Secrets:
        """What nobody may hear."""
        return Secrets(self.properties)

    def connect(self, token: str | None = None, *, reads_all: bool = False) -> BackendClients:
        """Its clients; for a warehouse, in the name of whom a token belongs to.

        Args:
            token: of the caller.
            reads_all: whether the caller may read everything of a backend that is no warehouse.
        """
        own = token if self.is_warehouse else None
        confinement = self.confine(own) if self.confine else BackendConfinement(self.name, self.roots, reads_all)
        return _connect_clients(self.impl, tuple(sorted(self.properties.items())), own, confinement)

    def check_ids(self, ids: Iterable[Sequence[str]]) -> None:
        """Refuse names that are paths to some: `dir` and its like make folders of them.

        A warehouse is not asked: its catalog takes any name, and encodes it.

        Raises:
            InvalidInputError: there is such a name.
        """
        if not self.is_warehouse:
            for level in chain.from_iterable(ids):
                check_no_path(level)

    def check_location(self, location: str, namespace: Sequence[str], *, writes_all: bool) -> None:
        """Refuse a location that a caller chose, where it is not theirs to choose.

        Args:
            location: of a table that is to be made.
            namespace: of the table.
            writes_all: whether the caller may write to the whole backend: others choose below the namespace's folder.

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
        """Turn what it raises into errors of the protocol, without its secrets."""
        about = f"backend {self.name}"
        with self.secrets.redact_errors(about), translate_errors(about, self.properties):
            try:
                yield
            except NotImplementedError:
                raise UnsupportedOperationError(f"{operation.name}: {about} has no such operation") from None


@dataclass(frozen=True, slots=True)
class BackendClients:
    """Two clients of one catalog, or twice the same one."""

    outer: LanceNamespace
    """Tells callers what it knows: it knows no secret of the storage."""
    inner: LanceNamespace
    """Reads and writes the data here."""
    confinement: Confinement
    """What of the tables may be opened."""

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our own clients."""
        return isinstance(self.inner, TableOperations)

    @property
    def tables(self) -> TableOperations:
        """What reads and writes: the client itself, or our own code on the tables that it describes."""
        return self.inner if isinstance(self.inner, TableOperations) else ForeignTables(self.inner, self.confinement)


@lru_cache(CLIENTS)
def _connect_clients(
    impl: str, properties: tuple[tuple[str, str], ...], token: str | None, confinement: Confinement
) -> BackendClients:
    full_properties = dict(properties)
    if token is not None:
        full_properties["auth_token"] = token
    client = _connect(impl, full_properties)
    if not isinstance(client, TableOperations):
        return BackendClients(
            client, with_storage_options(client, full_properties), confinement
        )  # others may need their storage to tell anything
    public_properties = {
        key: value for key, value in full_properties.items() if not key.startswith(STORAGE) and key.lower() != VENDING
    }
    if not any(key.rpartition(".")[2] == TABLE_STORAGE for key in full_properties):
        full_properties[TABLE_STORAGE] = HARMLESS
    outer, inner = _connect(impl, public_properties), _connect(impl, full_properties)
    for own_client in (outer, inner):
        assert isinstance(own_client, TableOperations)
        own_client.confinement = confinement
    return BackendClients(outer, inner, confinement)


def _connect(impl: str, properties: Properties) -> LanceNamespace:
    try:
        return connect(impl, dict(properties))
    except ValueError as error:  # `connect` makes one of whatever a constructor raises
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
    """Have a backend carry out an operation; its response, or the parts of an Arrow file.

    Args:
        backend: which one.
        operation: what to do.
        request: with what.
        token: of the caller.
        data: rows, where the operation takes some.
        reads_all: whether the caller may read everything of a backend that is no warehouse.

    Raises:
        LanceNamespaceError: as the backend has it.
        UnsupportedOperationError: it has no such operation.
    """
    with backend.translate_errors(operation):
        _check_storage_options(getattr(request, "storage_options", None) or {})
        clients = backend.connect(token, reads_all=reads_all)
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
            )  # whether the caller may see it
            return ROOT_RESPONSES[operation.method_name]
        response = _retry_after_first_version(
            clients, backend_request, lambda: _dispatch(clients, operation.method_name, backend_request)
        )
        whole_ids = bool(getattr(clients.inner, "lists_whole_ids", False))
        return _remove_secrets(
            backend, clients, remove_prefix(response, request, backend.id_prefix, whole_ids=whole_ids)
        )


def _check_storage_options(options: Mapping[str, str]) -> None:
    """Refuse storage options of a caller that would lead the gateway's credentials elsewhere."""
    if refused := sorted(options.keys() - harmless_options(options).keys()):
        raise InvalidInputError(
            f"storage_options: {', '.join(refused)}: the gateway reaches storage by its own options; it takes"
            f" a region, {', '.join(sorted(TUNING))}"
        )


def _retry_after_first_version(clients: BackendClients, request: Any, attempt: Callable[[], T]) -> T:
    """An answer; where the first version of a table is missing to it, once that is accepted."""
    try:
        return attempt()
    except (InvalidTableStateError, TableVersionNotFoundError):
        if not _accept_first_version(clients.inner, getattr(request, "id", None)):
            raise
        return attempt()


def _accept_first_version(namespace: LanceNamespace, id: Sequence[str] | None) -> bool:
    """Whether a table has a first version that only has to be accepted, and now is; a caller may not be allowed to."""
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
    return getattr(clients.outer if call in TELLING else clients.inner, call)(request)


def _describe_table(clients: BackendClients, request: DescribeTableRequest) -> DescribeTableResponse:
    """A look at the data needs credentials; what is told of them is what is told without a look."""
    bare = request.model_copy(update={"load_detailed_metadata": None, "check_declared": None})
    if not clients.is_ours:
        clients.tables.describe_table(bare)  # refuses a table that is not to be opened, before it is looked at
        return clients.outer.describe_table(request)
    options = clients.outer.describe_table(bare).storage_options
    return clients.inner.describe_table(request).model_copy(update={"storage_options": options})


def _remove_secrets(backend: Backend, clients: BackendClients, response: Any) -> Any:
    """An answer without storage options that are the gateway's own, and without context that repeats a secret."""
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
    """The same, but begun: a wrong query is an error, and not the middle of an answer."""
    first = next(parts)

    def stream() -> Iterator[bytes]:
        with backend.translate_errors(operation):
            yield first
            yield from parts

    return stream()
