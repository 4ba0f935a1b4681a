"""Console API for a table of which the caller sees only a part: its columns, visible rows, masked, and their count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace import CountTableRowsRequest, QueryTableRequest
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancehouse.gateway.restricted import describe_sql
from lancehouse.lake.restricted_rows import RestrictedRows
from lancehouse.schema.display import field_to_json, format_cells, value_kind
from lancehouse.server.console import rows as row_routes
from lancehouse.server.console.backend_tables import rewrite_filter
from lancehouse.server.console.row_pages import MAX_DEFAULT_COLUMNS
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Response

if TYPE_CHECKING:
    from lancehouse.server.console.routes import ConsoleRequest


def table(request: ConsoleRequest) -> Response:
    """Describe the columns; nothing else of the table is shown."""
    opened = _open(request)
    described: dict[str, Any] = {
        "in": request.backend.name,
        "levels": request.table_levels(),
        "kind": "lance",
        "restricted": True,
        "state": "ready",
        "problem": None,
        "location": None,
        "properties": {},
        "summary": None,
        "columns": [field_to_json(field) for field in opened.schema],
        "kept_columns": [],
        "tags": {},
        "branches": {},
    }
    return responses.json(described)


def rows(request: ConsoleRequest) -> Response:
    """Return a page of visible rows; in place of row ids, which tell of hidden rows, they are counted."""
    offset = request.get_number("offset", 0, 2**62, 0)
    limit = request.get_number("limit", row_routes.ROWS, row_routes.MOST_ROWS)
    condition = request.find_filter()
    with row_routes.explain_filter_errors(condition):
        opened = _open(request)
        names = row_routes.requested_columns(request) or opened.schema.names[:MAX_DEFAULT_COLUMNS]
        asked = QueryTableRequest(
            vector=QueryTableRequestVector(),
            k=limit + 1,
            offset=offset,
            filter=rewrite_filter(condition),
            columns=QueryTableRequestColumns(column_names=opened.require_columns(names)),
        )
        schema, batches = opened.read_query(asked, describe_sql(asked.filter, {}))
        kinds = [value_kind(field) for field in schema]
        cells: list[Any] = []
        for batch in batches:
            columns = [format_cells(batch.column(name), kind) for name, kind in zip(schema.names, kinds, strict=True)]
            cells += map(list, zip(*columns, strict=True))
    return responses.json(
        {
            "version": str(opened.dataset.version),
            "columns": schema.names,
            "ids": [str(offset + place) for place in range(len(cells[:limit]))],
            "rows": cells[:limit],
            "offset": offset,
            "more": len(cells) > limit,
        }
    )


def count(request: ConsoleRequest) -> Response:
    """Return how many visible rows match a filter."""
    condition = request.find_filter()
    with row_routes.explain_filter_errors(condition):
        predicate = rewrite_filter(condition)
        counted = _open(request).count(CountTableRowsRequest(predicate=predicate), describe_sql(predicate, {}))
    return responses.json({"count": counted})


def _open(request: ConsoleRequest) -> RestrictedRows:
    warehouse = request.warehouse
    assert warehouse is not None  # grants on other backends have no row filters
    *levels, name = request.table_levels()
    tables = request.call.catalog.restricted_tables
    return tables.open(request.call.caller, warehouse, tuple(levels), name, request.find_number("version"))
