"""Console API for the data of a Lance table, or the part of it that a caller sees: rows, values, vectors, indices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lance_namespace import CountTableRowsRequest, QueryTableRequest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancehouse.gateway.restricted import describe_sql
from lancehouse.schema.display import HEAD, field_to_json, format_cells, image_type, value_kind
from lancehouse.server.console.backend_tables import rewrite_filter
from lancehouse.server.console.row_pages import MAX_DEFAULT_COLUMNS
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Header, Response

if TYPE_CHECKING:
    from lancehouse.lake.restricted_rows import RestrictedRows
    from lancehouse.server.console.backend_tables import IndexRecord, RowPage
    from lancehouse.server.console.routes import ConsoleRequest

LONGEST = 400
UNKNOWN = "The filter cannot be used"
"""Start of a sentence that repeats Lance's own message."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"^filter: it cannot be read as SQL: (?P<why>.+?) \(see “", "The filter is no condition in SQL: {why}."),
        (r"^filter: the function (?P<name>\S+) is not allowed", "The filter cannot use the function {name}."),
        (r"^filter: (?P<why>.+?) \(see “", UNKNOWN + ": {why}."),
        (r"sql parser error: (?P<why>.+?)\)?\s*$", "The filter is no condition in SQL: {why}."),
        (
            r"No field named (?P<name>.+?)\. Did you mean '?(?P<near>[^'?]+)'?\?",
            "There is no column {name}; did you mean {near}?",
        ),
        (
            r"No field named (?P<name>.+?)\. Valid fields are (?P<known>.+?)\.?\s*$",
            "There is no column {name}; the table has {known}.",
        ),
        (r"No field named (?P<name>[^.]+)", "There is no column {name}."),
        (
            r"Received literal \w+\((?P<value>.*?)\) and could not convert to literal of type '(?P<type>[^']+)': "
            r"write (?P<way>.+?)\s*$",
            "The value {value} does not fit a column of type {type}: write {way}.",
        ),
        (
            r"Received literal \w+\((?P<value>.*?)\) and could not convert to literal of type '(?P<type>[^']+)'",
            "The value {value} does not fit a column of type {type}.",
        ),
        (r"Invalid function '(?P<name>[^']+)'", "There is no function {name}."),
        (
            r"The filter (?P<filter>.+) does not return a boolean",
            "The filter {filter} is no condition: it has to be true or false for each row.",
        ),
    )
)
"""Messages of the gateway's parser, then those of Lance, and their replacements; the first match counts."""

_HIDDEN = re.compile(r"(, )?\b_\w+")
"""Columns that Lance adds to the ones that it lists."""
_NOISE = re.compile(r"^(table [^:]+|backend [^:]+): |Invalid user input: |Error [a-z ]+:? (?=[A-Z])")


@contextmanager
def explain_filter_errors(filter: str | None) -> Iterator[None]:
    """Reword errors about a filter that are raised inside the context.

    Raises:
        InvalidInputError: the filter is wrong; the message is one sentence.
    """
    try:
        yield
    except (InvalidInputError, TableColumnNotFoundError) as error:
        if not filter:
            raise
        raise InvalidInputError(format_filter_error(str(error))) from None


def format_filter_error(message: str) -> str:
    """Reword an error message about a filter to one sentence."""
    for pattern, words in _PATTERNS:
        if match := pattern.search(message):
            parts = {name: _HIDDEN.sub("", value).strip() for name, value in match.groupdict().items()}
            return " ".join(words.format(**parts).split())[:LONGEST]
    first = _NOISE.sub("", message).splitlines()[0].rstrip(". ")
    return f"{UNKNOWN}: {first[:LONGEST]}."


ROWS = 50
MOST_ROWS = 200
MOST_COLUMNS = 200
NEAREST = 10
MOST_NEAREST = 50
LARGEST_IMAGE = 16 << 20

IMAGE_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Keep a browser from running or reinterpreting bytes of a table, which any writer may have put there."""


def rows(request: ConsoleRequest) -> Response:
    """Return a page of rows."""
    offset, limit = request.get_number("offset", 0, 2**62, 0), request.get_number("limit", ROWS, MOST_ROWS)
    condition = request.find_filter()
    with explain_filter_errors(condition):
        page = request.table.page(requested_columns(request), condition, offset, limit)
    return responses.json({**_page_json(page), "offset": offset, "more": page.has_more})


def count(request: ConsoleRequest) -> Response:
    """Return how many rows match a filter."""
    condition = request.find_filter()
    with explain_filter_errors(condition):
        return responses.json({"count": request.table.count(condition)})


def value(request: ConsoleRequest) -> Response:
    """Return one value, uncut."""
    return responses.json({"value": request.table.value(request.get_parameter("column"), _get_row_id(request))})


def image(request: ConsoleRequest) -> Response:
    """Return the bytes of a value that is an image; its type is recognized by its first bytes.

    Raises:
        InvalidInputError: it is not an image, or too large.
    """
    content = request.table.content(request.get_parameter("column"), _get_row_id(request), LARGEST_IMAGE)
    kind = image_type(content[:HEAD]) if content else None
    if content is None or kind is None:
        raise InvalidInputError("the value is no image: PNG, JPEG, GIF and WebP are shown")
    return Response(200, content, list(IMAGE_HEADERS), kind.encode())


def vector_projection(request: ConsoleRequest) -> Response:
    """Return a sample of a column's vectors, projected to two dimensions."""
    label = request.find_parameter("label")
    projection = request.table.project_vectors(request.get_parameter("column"), label)
    return responses.json(
        {
            "version": str(projection.version),
            "rows": projection.rows,
            "ids": [str(row_id) for row_id in projection.ids],
            "points": projection.points,
            "spread": projection.spread,
            "labels": projection.labels if label else None,
        }
    )


def neighbours(request: ConsoleRequest) -> Response:
    """Return the rows nearest to a row by the vectors of a column."""
    k = request.get_number("k", NEAREST, MOST_NEAREST)
    result = request.table.neighbours(
        request.get_parameter("column"), _get_row_id(request), k, requested_columns(request)
    )
    return responses.json(
        {
            **_page_json(result.page),
            "distances": result.distances,
            "searched": result.searched,
            "own": result.own,
            "point": result.point,
            "points": result.points,
        }
    )


def fragments(request: ConsoleRequest) -> Response:
    """Return the fragments and files of a table."""
    layout = request.table.layout()
    return responses.json({**asdict(layout), "version": str(layout.version)})


def indices(request: ConsoleRequest) -> Response:
    """Return the indices of a table, with how much of the table each covers, and how well it finds rows."""
    return responses.json({"indices": [_index_json(index) for index in request.table.indices()]})


def states(request: ConsoleRequest) -> Response:
    """Return how many rows of a computed column are filled, missing and failed."""
    return responses.json(asdict(request.table.count_states(request.get_parameter("column"))))


def failures(request: ConsoleRequest) -> Response:
    """Return a page of the rows for which a computed column, or without one the view, failed, with the exceptions."""
    offset, limit = request.get_number("offset", 0, 2**62, 0), request.get_number("limit", ROWS, MOST_ROWS)
    rows_of_errors = request.table.failed_rows(request.find_parameter("column"), offset, limit + 1)
    failed_rows = [
        {"row": str(row["_rowid"]), **{name: row[name] for name in ("state", "version", "exception")}}
        for row in rows_of_errors
    ]
    return responses.json({"rows": failed_rows[:limit], "offset": offset, "more": len(failed_rows) > limit})


def _index_json(index: IndexRecord) -> dict[str, Any]:
    note = index.recall
    recall = note and {
        **note.model_dump(exclude={"index"}),
        "version": str(note.version),
        "index_has_changed": index.has_changed,
    }
    return {**index.content.to_dict(), "recall": recall}


def _page_json(page: RowPage) -> dict[str, Any]:
    return {
        "version": str(page.version),
        "columns": page.columns,
        "ids": [str(row_id) for row_id in page.ids],
        "rows": page.rows,
    }


def requested_columns(request: ConsoleRequest) -> list[str]:
    """Return the columns that a page is to show; none for those that are shown by default.

    Raises:
        InvalidInputError: they are too many.
    """
    columns = list(request.query.get("column_shown", ()))
    if len(columns) > MOST_COLUMNS:
        raise InvalidInputError(f"at most {MOST_COLUMNS} columns are shown at once")
    return columns


def _get_row_id(request: ConsoleRequest) -> int:
    row = request.find_number("row")
    if row is None:
        raise InvalidInputError("row is missing in the query: the id of a row")
    return row


# For callers who see only a part of a table: its columns, the rows that they may see, masked, and their count


def describe_visible_part(request: ConsoleRequest) -> Response:
    """Describe the columns; nothing else of the table is shown."""
    opened = _open_visible_part(request)
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


def visible_rows(request: ConsoleRequest) -> Response:
    """Return a page of visible rows; in place of row ids, which tell of hidden rows, they are counted."""
    offset = request.get_number("offset", 0, 2**62, 0)
    limit = request.get_number("limit", ROWS, MOST_ROWS)
    condition = request.find_filter()
    with explain_filter_errors(condition):
        opened = _open_visible_part(request)
        names = requested_columns(request) or opened.schema.names[:MAX_DEFAULT_COLUMNS]
        query = QueryTableRequest(
            vector=QueryTableRequestVector(),
            k=limit + 1,
            offset=offset,
            filter=rewrite_filter(condition),
            columns=QueryTableRequestColumns(column_names=opened.require_columns(names)),
        )
        schema, batches = opened.read_query(query, describe_sql(query.filter, {}))
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


def count_visible_rows(request: ConsoleRequest) -> Response:
    """Return how many visible rows match a filter."""
    condition = request.find_filter()
    with explain_filter_errors(condition):
        predicate = rewrite_filter(condition)
        row_count = _open_visible_part(request).count(
            CountTableRowsRequest(predicate=predicate), describe_sql(predicate, {})
        )
    return responses.json({"count": row_count})


def _open_visible_part(request: ConsoleRequest) -> RestrictedRows:
    warehouse = request.warehouse
    assert warehouse is not None  # grants on other backends have no row filters
    *levels, name = request.table_levels()
    tables = request.call.catalog.restricted_tables
    return tables.open(request.call.caller, warehouse, tuple(levels), name, request.find_number("version"))
