"""The operations for callers whose grants have row filters and column masks: a list of those that are allowed.

Whatever is not in `ALLOWED` is refused, so that an operation that is added later is closed until somebody thinks of it.
`lancehouse.gateway.sql` is imported where there is SQL, as in `lancehouse.gateway.request_sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lance_namespace import (
    CountTableRowsRequest,
    CountTableRowsResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    QueryTableRequest,
    TableExistsRequest,
    TableExistsResponse,
)
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.gateway.request_sql import rewrite_sql
from lancehouse.lake.restricted_rows import CallerSql, RestrictedRows
from lancehouse.row_policy import Restriction
from lancehouse.schema.jsonarrow import to_jsonarrow


def parse_restriction(where: str | None, masks: Mapping[str, str] | None) -> Restriction | None:
    """Return the row filter and the masks of a grant; None if it has neither.

    Raises:
        InvalidInputError: the filter is no condition that the gateway takes, or a mask is none.
    """
    if where is None and not masks:
        return None
    from lancehouse.gateway.sql import parse_row_filter

    text, columns = (None, ()) if where is None else parse_row_filter(where)
    return Restriction(text, columns, tuple(sorted((masks or {}).items())))


Rows = Callable[[int | None, str | None], RestrictedRows]
"""Opens the table at a version and branch."""


def _describe_table(rows: Rows, request: DescribeTableRequest) -> DescribeTableResponse:
    """Return the columns that are shown, and the version; no location, no properties, no counts."""
    if request.tag is not None:
        raise PermissionDeniedError("a grant with a row filter or masks shows no tags: name a version")
    *namespace, name = request.id or [""]
    visible_rows = rows(request.version, request.branch)
    schema = to_jsonarrow(visible_rows.schema)
    return DescribeTableResponse(
        table=name,
        namespace=namespace,
        version=visible_rows.dataset.version,
        schema=schema,
        is_only_declared=False if request.check_declared else None,
    )


def _table_exists(rows: Rows, request: TableExistsRequest) -> TableExistsResponse:
    rows(request.version, None)
    return TableExistsResponse()


def _count_table_rows(rows: Rows, request: CountTableRowsRequest) -> CountTableRowsResponse:
    request = rewrite_sql(request, _count_nothing)
    sql = describe_sql(request.predicate, {})
    return CountTableRowsResponse(count=rows(request.version, request.branch).count(request, sql))


def _query_table(rows: Rows, request: QueryTableRequest) -> Any:
    request = rewrite_sql(request, _count_nothing)
    aliases = (request.columns and request.columns.column_aliases) or {}
    sql = describe_sql(request.filter, aliases)
    parts = rows(request.version, request.branch).query(request, sql)
    first = next(parts)  # a wrong query fails before the response starts

    def stream() -> Any:
        yield first
        yield from parts

    return stream()


ALLOWED: Mapping[str, Callable[[Rows, Any], Any]] = {
    "DescribeTable": _describe_table,
    "TableExists": _table_exists,
    "CountTableRows": _count_table_rows,
    "QueryTable": _query_table,
}
"""What a caller with a restricted grant may do with a table."""


def describe_sql(condition: str | None, values: Mapping[str, str]) -> CallerSql:
    """Return which columns a caller's SQL names, and whether its condition only compares them with literals."""
    if not (condition and condition.strip()) and not values:
        return CallerSql(comparisons=())
    from lancehouse.gateway.sql import Value, rewrite_value

    value = rewrite_value(condition, "filter") if condition and condition.strip() else Value("", comparisons=())
    column_sets = (rewrite_value(text, name[:80]).columns for name, text in values.items())
    return CallerSql(value.columns, value.comparisons, frozenset().union(*column_sets))


def _count_nothing(_: CountTableRowsRequest) -> Any:
    raise InvalidInputError("such a request writes nothing")
