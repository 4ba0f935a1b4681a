"""All operations of the Lance interface on one table, implemented once for every catalog."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, get_type_hints

from lance_namespace import CountTableRowsResponse, LanceNamespace, QueryTableResponse
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotEmptyError,
    TableNotFoundError,
)
from pydantic import BaseModel, ValidationError

from lancehouse.lake.column_operations import ColumnOperations
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.index_operations import IndexOperations
from lancehouse.lake.query_operations import QueryOperations
from lancehouse.lake.reference_operations import ReferenceOperations
from lancehouse.lake.row_operations import RowOperations
from lancehouse.lake.versions import VersionOperations

Operation = Callable[..., Any]

LANCEDB_ERROR_PREFIXES: Mapping[type[LanceNamespaceError], str] = MappingProxyType(
    {TableNotFoundError: "Table not found", NamespaceNotEmptyError: "Namespace not empty"}
)
"""Words by which lancedb recognizes an error, which reaches it as text."""


class TableOperations(
    RowOperations, QueryOperations, ColumnOperations, IndexOperations, ReferenceOperations, VersionOperations
):
    """A namespace whose tables can be read, written and altered.

    A catalog adds `describe_table`, `declare_table`, `deregister_table` and `drop_table`. Each operation opens the
    table by name, through the catalog: credentials are renewed, and commits go through the catalog if it manages
    versions. No state is kept between calls.

    The behaviour is that of Lance's own directory namespace. What that one ignores in a request is honoured here: the
    branch of every operation, options of indices, pages of tags and branches, several query vectors. In addition,
    `batch_delete_table_versions` never deletes the current version or tagged ones, and statistics do not count deleted
    rows.
    """

    confinement: Confinement | None = None
    """What may be opened for its tables; None means whatever they refer to. A server sets it, for tables of others."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let every operation be called from Rust too, as lancedb and pylance do: with a dict as its request."""
        super().__init_subclass__(**kwargs)
        _accept_dicts(cls)


def _accept_dicts(namespace: type[LanceNamespace]) -> None:
    """Let each operation of a class accept a dict as its request; then its response is plain data too."""
    for name, model in _request_models().items():
        operation = getattr(namespace, name)
        if not hasattr(operation, "__wrapped__"):
            setattr(namespace, name, _wrap_operation(operation, model))


def _request_models() -> dict[str, type[BaseModel]]:
    operations = inspect.getmembers(LanceNamespace, inspect.isfunction)
    hints = {name: get_type_hints(operation) for name, operation in operations if not name.startswith("_")}
    return {name: types["request"] for name, types in hints.items() if "request" in types}


def _wrap_operation(operation: Operation, model: type[BaseModel]) -> Operation:
    @wraps(operation)
    def call(self: LanceNamespace, request: Any, *data: bytes, **named: Any) -> Any:
        if not isinstance(request, dict):
            return operation(self, request, *data, **named)
        asked = _parse_request(model, request)
        try:
            return _to_plain(operation(self, asked, *data, **named))
        except (TableNotFoundError, NamespaceNotEmptyError) as error:
            raise type(error)(f"{LANCEDB_ERROR_PREFIXES[type(error)]}: {error}") from error

    return call


def _parse_request(model: type[BaseModel], request: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(request)
    except ValidationError as error:
        raise InvalidInputError(f"this is no {model.__name__}: {error}") from error


def _to_plain(answer: Any) -> Any:
    match answer:
        case QueryTableResponse():
            return answer.data
        case CountTableRowsResponse():
            return answer.count
        case BaseModel():
            return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return answer
