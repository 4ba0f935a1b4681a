"""Add a warehouse's id prefix to requests and remove it from responses; check names in ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    DeregisterTableResponse,
    DescribeTableResponse,
    DropTableResponse,
    ExplainTableQueryPlanRequest,
    ListNamespacesResponse,
    ListTablesResponse,
    RenameTableRequest,
)
from lance_namespace.errors import InvalidInputError

_OF_PATHS = re.compile(r"[/\\\x00-\x1f\x7f]")


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
        if name in ("", ".", "..") or _OF_PATHS.search(name):
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
            changes["entries"] = [entry.model_copy(update={"id": below(entry.id)}) for entry in request.entries]
            return request.model_copy(update=changes)
        case BatchCommitTablesRequest():
            changes["operations"] = [
                operation.model_copy(
                    update={
                        name: part.model_copy(update={"id": below(part.id)})
                        for name, part in _present_fields(operation).items()
                    }
                )
                for operation in request.operations
            ]
            return request.model_copy(update=changes)
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
    named = ((name, getattr(operation, name)) for name in type(operation).model_fields)
    return {name: part for name, part in named if part is not None}


def _strip_prefix(names: Sequence[str], levels: Sequence[str], delimiter: str) -> list[str]:
    prefix = "".join(f"{level}{delimiter}" for level in levels)
    return [name.removeprefix(prefix) for name in names]
