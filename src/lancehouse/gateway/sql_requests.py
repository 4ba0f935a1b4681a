"""Where SQL stands in the requests of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableBackfillColumnsRequest,
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    DeleteFromTableRequest,
    ExplainTableQueryPlanRequest,
    MergeInsertIntoTableRequest,
    QueryTableRequest,
    UpdateTableRequest,
)
from lance_namespace.errors import InvalidInputError
from pydantic import BaseModel

from lancehouse.gateway.sql import MAX_CONSTANT, rewrite_condition, rewrite_value

MAX_WRITTEN = 64 << 20
"""Bytes that long literals of one update may become in all rows that it changes."""

M = TypeVar("M", bound=BaseModel)

_CONDITIONS: dict[type[BaseModel], tuple[str, ...]] = {
    AlterTableBackfillColumnsRequest: ("where",),
    AnalyzeTableQueryPlanRequest: ("filter",),
    CountTableRowsRequest: ("predicate",),
    DeleteFromTableRequest: ("predicate",),
    MergeInsertIntoTableRequest: ("when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"),
    QueryTableRequest: ("filter",),
    UpdateTableRequest: ("predicate",),
}


def rewrite_sql(request: M, count: Callable[[CountTableRowsRequest], Any]) -> M:
    """The request with all SQL in it parsed and written anew.

    Args:
        request: any request; those without SQL are returned as they are.
        count: counts rows of a table. It is asked only where an update sets a long literal.

    Raises:
        InvalidInputError: SQL that is not allowed, or exceeds a limit.
    """
    changes: dict[str, Any] = {
        field: rewrite_condition(text, field)
        for field in _CONDITIONS.get(type(request), ())
        if (text := getattr(request, field)) and text.strip()
    }
    match request:
        case ExplainTableQueryPlanRequest():
            changes["query"] = rewrite_sql(request.query, count)
        case QueryTableRequest() | AnalyzeTableQueryPlanRequest() if request.columns is not None:
            aliases = request.columns.column_aliases or {}
            values = {name: _rewrite_short(text, f"columns: {name}") for name, text in aliases.items()}
            changes["columns"] = request.columns.model_copy(update={"column_aliases": values or None})
        case AlterTableAddColumnsRequest():
            changes["new_columns"] = [
                entry
                if entry.expression is None
                else entry.model_copy(
                    update={"expression": _rewrite_short(entry.expression, f"new_columns: {entry.name}")}
                )
                for entry in request.new_columns
            ]
        case UpdateTableRequest():
            changes["updates"] = _rewrite_updates(request, changes.get("predicate"), count)
    return request.model_copy(update=changes) if changes else request


def _rewrite_short(text: str, field: str) -> str:
    """A value that all rows of a table may get."""
    rewritten, size = rewrite_value(text, field[:100])
    if size > MAX_CONSTANT:
        words = f"its literals have {size:,} bytes, and at most {MAX_CONSTANT:,} are allowed"
        raise InvalidInputError(f"{field[:100]}: {words}")
    return rewritten


def _rewrite_updates(
    request: UpdateTableRequest, predicate: str | None, count: Callable[[CountTableRowsRequest], Any]
) -> list[list[str]]:
    """The [column, expression] pairs. Long literals are allowed if few rows get them."""
    updates, total = [], 0
    for pair in request.updates:
        if len(pair) != 2:
            raise InvalidInputError("updates: each is a pair of a column and an expression")
        rewritten, size = rewrite_value(pair[1], f"updates: {pair[0][:80]}")
        updates.append([pair[0], rewritten])
        total += size
    if total > MAX_CONSTANT:
        asked = CountTableRowsRequest(id=request.id, branch=request.branch, predicate=predicate)
        rows = count(asked).count
        if rows * total > MAX_WRITTEN:
            raise InvalidInputError(
                f"updates: {rows:,} rows would get literals of {total:,} bytes each: update fewer rows at a time, "
                f"so that they get {MAX_WRITTEN >> 20} MB at most"
            )
    return updates
