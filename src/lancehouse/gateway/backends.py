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
from lancehouse.credentials import TUNING, harmless
from lancehouse.gateway.foreign import OF_TABLES, BackendPlaces
from lancehouse.gateway.foreign import Rows as Rows
from lancehouse.gateway.ids import placed, relative, require_no_path
from lancehouse.gateway.operations import Answer, Body, Operation
from lancehouse.gateway.secrets import Secrets
from lancehouse.gateway.sql_requests import rewrite_sql
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.errors import kind_of, translated
from lancehouse.lake.operations import TableOperations
from lancehouse.lake.reaching import reaching
from lancehouse.lake.rows import explain_existing
from lancehouse.locations import below, is_inside, shorten
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
OF_ROOT: Mapping[str, Any] = {
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
    above: tuple[str, ...] = ()
    """The levels that its ids have and those of its callers have not."""
    confine: Callable[[str | None], Confinement] | None = field(default=None, repr=False)
    """Of a warehouse: what may be opened in the name of whom a token belongs to."""

    @property
    def is_warehouse(self) -> bool:
        """Whether it is in this process, and decides itself who may do what."""
        return bool(self.above)

    @cached_property
    def secrets(self) -> Secrets:
        """What nobody may hear."""
        return Secrets(self.properties)

    def connect(self, token: str | None = None, *, reads_all: bool = False) -> Pair:
        """Its clients; for a warehouse, in the name of whom a token belongs to.

        Args:
            token: of the caller.
            reads_all: whether the caller may read everything of a backend that is no warehouse.
        """
        own = token if self.is_warehouse else None
        confinement = self.confine(own) if self.confine else BackendPlaces(self.name, self.roots, reads_all)
        return _connected(self.impl, tuple(sorted(self.properties.items())), own, confinement)

    def check_ids(self, ids: Iterable[Sequence[str]]) -> None:
        """Refuse names that are paths to some: `dir` and its like make folders of them.

        A warehouse is not asked: its catalog takes any name, and encodes it.

        Raises:
            InvalidInputError: there is such a name.
        """
        if not self.is_warehouse:
            for level in chain.from_iterable(ids):
                require_no_path(level)

    def require_location(self, location: str, namespace: Sequence[str], *, writes_all: bool) -> None:
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
        BackendPlaces(self.name, self.roots, reads_all=True).require_table(location)
        if not writes_all and not is_inside(location, [below(root, namespace) for root in self.roots]):
            raise PermissionDeniedError(
                f"{shorten(location)} is not below the folder of namespace {'.'.join(namespace)}: who may not write to"
                f" all of {self.name} leaves the location out, or chooses one there"
            )

    @contextmanager
    def answering(self, operation: Operation) -> Iterator[None]:
        """Turn what it raises into errors of the protocol, without its secrets."""
        about = f"backend {self.name}"
        with self.secrets.kept(about), translated(about, self.properties):
            try:
                yield
            except NotImplementedError:
                raise UnsupportedOperationError(f"{operation.name}: {about} has no such operation") from None


@dataclass(frozen=True, slots=True)
class Pair:
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
        return self.inner if isinstance(self.inner, TableOperations) else Rows(self.inner, self.confinement)


@lru_cache(CLIENTS)
def _connected(impl: str, properties: tuple[tuple[str, str], ...], token: str | None, confinement: Confinement) -> Pair:
    known = dict(properties)
    if token is not None:
        known["auth_token"] = token
    client = _connect(impl, known)
    if not isinstance(client, TableOperations):
        return Pair(client, reaching(client, known), confinement)  # others may need their storage to tell anything
    told = {key: value for key, value in known.items() if not key.startswith(STORAGE) and key.lower() != VENDING}
    if not any(key.rpartition(".")[2] == TABLE_STORAGE for key in known):
        known[TABLE_STORAGE] = HARMLESS
    outer, inner = _connect(impl, told), _connect(impl, known)
    for ours in (outer, inner):
        assert isinstance(ours, TableOperations)
        ours.confinement = confinement
    return Pair(outer, inner, confinement)


def _connect(impl: str, properties: Properties) -> LanceNamespace:
    try:
        return connect(impl, dict(properties))
    except ValueError as error:  # `connect` makes one of whatever a constructor raises
        kind = kind_of(str(error)) or InvalidInputError
        raise kind(f"cannot connect to {impl!r}: {error}") from error


def ask(
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
    with backend.answering(operation):
        _require_harmless(getattr(request, "storage_options", None) or {})
        pair = backend.connect(token, reads_all=reads_all)
        asked = rewrite_sql(placed(request, backend.above), pair.tables.count_table_rows)
        if operation.answer is Answer.ARROW:
            return _with_first(pair, asked, lambda: _begun(pair.tables.query_parts(asked), backend, operation))
        if operation.body is Body.ARROW:
            made = getattr(pair.tables, operation.call)(asked, data)
            return made.model_copy(update={"storage_options": None}) if isinstance(made, CreateTableResponse) else made
        if operation.call in OF_ROOT and backend.is_warehouse and not request.id:
            pair.inner.list_namespaces(ListNamespacesRequest(id=asked.id, limit=1))  # whether the caller may see it
            return OF_ROOT[operation.call]
        told = _with_first(pair, asked, lambda: _carried_out(pair, operation.call, asked))
        whole_ids = bool(getattr(pair.inner, "lists_whole_ids", False))
        return _discreet(backend, pair, relative(told, request, backend.above, whole_ids=whole_ids))


def _require_harmless(options: Mapping[str, str]) -> None:
    """Refuse storage options of a caller that would lead the gateway's credentials elsewhere."""
    if refused := sorted(options.keys() - harmless(options).keys()):
        raise InvalidInputError(
            f"storage_options: {', '.join(refused)}: the gateway reaches storage by its own options; it takes"
            f" a region, {', '.join(sorted(TUNING))}"
        )


def _with_first(pair: Pair, asked: Any, answer: Callable[[], T]) -> T:
    """An answer; where the first version of a table is missing to it, once that is accepted."""
    try:
        return answer()
    except (InvalidTableStateError, TableVersionNotFoundError):
        if not _accepts_first(pair.inner, getattr(asked, "id", None)):
            raise
        return answer()


def _accepts_first(namespace: LanceNamespace, id: Sequence[str] | None) -> bool:
    """Whether a table has a first version that only has to be accepted, and now is; a caller may not be allowed to."""
    accept = getattr(namespace, "accept_first", None)
    if accept is None or not id:
        return False
    try:
        return bool(accept(id))
    except LanceNamespaceError as error:
        logger.info("the first version of a table is not accepted: %s", type(error).__name__)
        return False


def _carried_out(pair: Pair, call: str, asked: Any) -> Any:
    if call == "list_all_tables" and not asked.id and not getattr(pair.inner, "lists_catalogs", True):
        raise UnsupportedOperationError("this catalog does not tell its warehouses: list the tables of a namespace")
    if call == "describe_table" and (asked.load_detailed_metadata or asked.check_declared):
        return _described(pair, asked)
    if call in OF_TABLES:
        return getattr(pair.tables, call)(asked)
    if call == "declare_table" and not pair.is_ours:
        with explain_existing(pair.inner, asked.id):
            return pair.outer.declare_table(asked)
    return getattr(pair.outer if call in TELLING else pair.inner, call)(asked)


def _described(pair: Pair, asked: DescribeTableRequest) -> DescribeTableResponse:
    """A look at the data needs credentials; what is told of them is what is told without a look."""
    bare = asked.model_copy(update={"load_detailed_metadata": None, "check_declared": None})
    if not pair.is_ours:
        pair.tables.describe_table(bare)  # refuses a table that is not to be opened, before it is looked at
        return pair.outer.describe_table(asked)
    options = pair.outer.describe_table(bare).storage_options
    return pair.inner.describe_table(asked).model_copy(update={"storage_options": options})


def _discreet(backend: Backend, pair: Pair, told: Any) -> Any:
    """An answer without storage options that are the gateway's own, and without context that repeats a secret."""
    if context := getattr(told, "context", None):
        kept = {key: value for key, value in context.items() if not backend.secrets.are_in(value)}
        told = told.model_copy(update={"context": kept})
    match told:
        case BatchCommitTablesResponse():
            results = [_without_options(each) for each in told.results]
            return told.model_copy(update={"results": results})
        case DescribeTableResponse() | DeclareTableResponse() if told.storage_options and not pair.is_ours:
            own = {key.removeprefix(STORAGE).lower() for key in backend.properties if key.startswith(STORAGE)}
            options = {
                key: value
                for key, value in told.storage_options.items()
                if key.lower() not in own and not backend.secrets.are_in(value)
            }
            return told.model_copy(update={"storage_options": options or None})
    return told


def _without_options(result: CommitTableResult) -> CommitTableResult:
    if result.declare_table is None:
        return result
    declared = result.declare_table.model_copy(update={"storage_options": None})
    return result.model_copy(update={"declare_table": declared})


def _begun(parts: Iterator[bytes], backend: Backend, operation: Operation) -> Iterator[bytes]:
    """The same, but begun: a wrong query is an error, and not the middle of an answer."""
    first = next(parts)

    def whole() -> Iterator[bytes]:
        with backend.answering(operation):
            yield first
            yield from parts

    return whole()
