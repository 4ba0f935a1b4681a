"""What the gateway stands in front of: any namespace under a name, and each warehouse of the server under its own.

The ids of a warehouse do not repeat its name: `["db", "t"]` at `main` is `["main", "db", "t"]` for its client.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
    CreateTableResponse,
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
    ExplainTableQueryPlanRequest,
    LanceNamespace,
    ListNamespacesResponse,
    ListTablesResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    RenameTableRequest,
    connect,
)
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

import lancehouse  # noqa: F401 - registers our aliases with `connect`
from lancehouse.gateway.operations import Answer, Body, Operation
from lancehouse.lake.errors import translated
from lancehouse.lake.operations import TableOperations

CLIENTS = 256
"""Of one warehouse, that are kept: one for each token that is in use."""
STORAGE = "storage."
"""What the properties begin with that a client needs to reach the data, and that it tells nobody."""

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Backend:
    """A namespace that the gateway offers."""

    name: str
    impl: str
    properties: Properties = field(default_factory=dict, repr=False)
    above: tuple[str, ...] = ()
    """The levels that its ids have and those of its callers have not."""

    def connect(self, token: str | None = None) -> Pair:
        """Its clients; for a warehouse, in the name of whom a token belongs to."""
        return _connected(self.impl, tuple(sorted(self.properties.items())), token if self.above else None)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two clients of one catalog."""

    outer: LanceNamespace
    """Tells callers what it knows: it knows no secret of the storage."""
    inner: LanceNamespace
    """Reads and writes the data here."""


@lru_cache(CLIENTS)
def _connected(impl: str, properties: tuple[tuple[str, str], ...], token: str | None) -> Pair:
    known = dict(properties)
    if token is not None:
        known["auth_token"] = token
    told = {key: value for key, value in known.items() if not key.startswith(STORAGE)}
    outer = _connect(impl, told)
    return Pair(outer, outer if told == known else _connect(impl, known))


def _connect(impl: str, properties: Properties) -> LanceNamespace:
    try:
        return connect(impl, dict(properties))
    except ValueError as error:  # `connect` makes one of whatever a constructor raises
        raise InvalidInputError(f"cannot connect to {impl!r}: {error}") from error


class Rows(TableOperations):
    """The tables of a namespace of others, read and written by our own code.

    Its own takes and gives rows as one piece of memory, and raises what has no code.
    """

    def __init__(self, namespace: LanceNamespace) -> None:
        self._others = namespace

    def namespace_id(self) -> str:
        """As the namespace has it."""
        return str(self._others.namespace_id())

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """As the namespace has it, like all that follow."""
        return self._others.describe_table(request)

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        """Pass it on."""
        return self._others.declare_table(request)

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        """Pass it on."""
        return self._others.deregister_table(request)

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """Pass it on."""
        return self._others.list_table_versions(request)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Pass it on."""
        return self._others.describe_table_version(request)

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Pass it on."""
        return self._others.create_table_version(request)


OF_TABLES = frozenset(name for part in TableOperations.__bases__ for name in vars(part) if not name.startswith("_"))
"""What can be done with a table that is described."""
DESCRIBING = frozenset({"describe_table", "declare_table", "register_table", "batch_commit_tables"})
"""What tells storage options."""


def ask(backend: Backend, operation: Operation, request: Any, token: str | None, data: io.IOBase | None) -> Any:
    """Have a backend carry out an operation; its response, or the parts of an Arrow file.

    Raises:
        LanceNamespaceError: as the backend has it.
        UnsupportedOperationError: it has no such operation.
    """
    pair = backend.connect(token)
    asked = placed(request, backend.above)
    namespace = _able(pair.outer if operation.call in DESCRIBING else pair.inner, operation.call)
    with translated(f"backend {backend.name}", backend.properties), _offered(backend, operation):
        if operation.answer is Answer.ARROW:
            return _parts(namespace.query_parts(asked))  # type: ignore[attr-defined]
        call = getattr(namespace, operation.call)
        if operation.body is not Body.ARROW:
            return told(call(asked), namespace, backend.above, request)
        made = call(asked, data)
    return made.model_copy(update={"storage_options": None}) if isinstance(made, CreateTableResponse) else made


@contextmanager
def _offered(backend: Backend, operation: Operation) -> Iterator[None]:
    try:
        yield
    except NotImplementedError:
        raise UnsupportedOperationError(f"{operation.name}: backend {backend.name} has no such operation") from None


def _able(namespace: LanceNamespace, call: str) -> LanceNamespace:
    """Who carries out an operation: a namespace itself, or our own code on the tables that it describes."""
    is_ours = isinstance(namespace, TableOperations)
    return Rows(namespace) if call in OF_TABLES and not is_ours else namespace


def ids_of(request: Any) -> list[list[str]]:
    """The tables or the namespace that a request is about."""
    match request:
        case BatchCreateTableVersionsRequest():
            return [entry.id for entry in request.entries]
        case BatchCommitTablesRequest():
            parts = [getattr(each, name) for each in request.operations for name in type(each).model_fields]
            return [part.id or [] for part in parts if part is not None]
        case RenameTableRequest() if request.new_namespace_id is not None:
            return [request.id or [], [*request.new_namespace_id, request.new_table_name]]
    return [request.id or []]


def _parts(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same, but begun: a wrong query is an error, and not the middle of an answer."""
    first = next(parts)

    def whole() -> Iterator[bytes]:
        yield first
        yield from parts

    return whole()


def placed(request: Any, above: Sequence[str]) -> Any:
    """A request with the ids that the backend's client knows."""
    if not above:
        return request

    def below(levels: Sequence[str] | None) -> list[str]:
        return [*above, *(levels or ())]

    changes: dict[str, Any] = {}
    match request:
        case BatchCreateTableVersionsRequest():
            changes["entries"] = [entry.model_copy(update={"id": below(entry.id)}) for entry in request.entries]
            return request.model_copy(update=changes)
        case BatchCommitTablesRequest():
            changes["operations"] = [
                each.model_copy(
                    update={
                        name: part.model_copy(update={"id": below(part.id)})
                        for name in type(each).model_fields
                        if (part := getattr(each, name)) is not None
                    }
                )
                for each in request.operations
            ]
            return request.model_copy(update=changes)
        case RenameTableRequest() if request.new_namespace_id is not None:
            changes["new_namespace_id"] = below(request.new_namespace_id)
        case ExplainTableQueryPlanRequest() if request.query.id:
            changes["query"] = request.query.model_copy(update={"id": below(request.query.id)})
    return request.model_copy(update={**changes, "id": below(request.id)})


def told(response: Any, namespace: LanceNamespace, above: Sequence[str], request: Any) -> Any:
    """A response as the gateway's callers know its names: relative to what they asked for."""
    if isinstance(response, DescribeTableResponse) and response.namespace:
        return response.model_copy(update={"namespace": response.namespace[len(above) :]})
    if not getattr(namespace, "lists_whole_ids", False):
        return response
    if isinstance(response, ListNamespacesResponse):
        names = _without(response.namespaces, [*above, *(request.id or ())], ".")
        return response.model_copy(update={"namespaces": names})
    if isinstance(response, ListTablesResponse) and (delimiter := (request.context or {}).get("delimiter")):
        return response.model_copy(update={"tables": _without(response.tables, above, delimiter)})
    return response


def _without(names: Sequence[str], levels: Sequence[str], delimiter: str) -> list[str]:
    before = "".join(f"{level}{delimiter}" for level in levels)
    return [name.removeprefix(before) for name in names]
