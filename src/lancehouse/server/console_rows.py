"""What is in a Lance table, for the console: rows, single values, images, vectors, fragments and indices."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from lancehouse.schema.shown import HEAD, image_type
from lancehouse.server import responses
from lancehouse.server.console_filters import explained
from lancehouse.server.responses import Header, Response

if TYPE_CHECKING:
    from lancehouse.gateway.tables import Page
    from lancehouse.server.console_asked import Asked

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
"""Whoever put bytes into a table does not get to say what a browser makes of them."""


def rows(asked: Asked) -> Response:
    """A page of rows."""
    offset, limit = asked.number("offset", 0, 2**62, 0), asked.number("limit", ROWS, MOST_ROWS)
    condition = asked.filter()
    with explained(condition):
        page = asked.table.page(_columns(asked), condition, offset, limit)
    return responses.json({**_page(page), "offset": offset, "more": page.has_more})


def count(asked: Asked) -> Response:
    """How many rows match."""
    condition = asked.filter()
    with explained(condition):
        return responses.json({"count": asked.table.count(condition)})


def value(asked: Asked) -> Response:
    """One value, whole."""
    return responses.json({"value": asked.table.value(asked.needed("column"), _row(asked))})


def image(asked: Asked) -> Response:
    """The bytes of a value that is an image, by its own first bytes.

    Raises:
        InvalidInputError: it is none, or a very large one.
    """
    found = asked.table.content(asked.needed("column"), _row(asked), LARGEST_IMAGE)
    kind = image_type(found[:HEAD]) if found else None
    if found is None or kind is None:
        raise InvalidInputError("the value is no image: PNG, JPEG, GIF and WebP are shown")
    return Response(200, found, list(IMAGE_HEADERS), kind.encode())


def drawn(asked: Asked) -> Response:
    """A sample of the vectors of a column, drawn in a plane."""
    label = asked.text("label")
    plane = asked.table.plane(asked.needed("column"), label)
    return responses.json(
        {
            "version": str(plane.version),
            "rows": plane.rows,
            "ids": [str(each) for each in plane.ids],
            "points": plane.points,
            "spread": plane.spread,
            "labels": plane.labels if label else None,
        }
    )


def neighbours(asked: Asked) -> Response:
    """The rows nearest to one by the vectors of a column."""
    k = asked.number("k", NEAREST, MOST_NEAREST)
    found = asked.table.neighbours(asked.needed("column"), _row(asked), k, _columns(asked))
    return responses.json(
        {
            **_page(found.page),
            "distances": found.distances,
            "searched": found.searched,
            "own": found.own,
            "point": found.point,
            "points": found.points,
        }
    )


def fragments(asked: Asked) -> Response:
    """How it lies in storage."""
    found = asked.table.layout()
    return responses.json({**asdict(found), "version": str(found.version)})


def indices(asked: Asked) -> Response:
    """Its indices, with how much of the table each covers."""
    return responses.json({"indices": [index.to_dict() for index in asked.table.indices()]})


def _page(page: Page) -> dict[str, Any]:
    return {
        "version": str(page.version),
        "columns": page.columns,
        "ids": [str(each) for each in page.ids],
        "rows": page.rows,
    }


def _columns(asked: Asked) -> list[str]:
    chosen = list(asked.query.get("column_shown", ()))
    if len(chosen) > MOST_COLUMNS:
        raise InvalidInputError(f"at most {MOST_COLUMNS} columns are shown at once")
    return chosen


def _row(asked: Asked) -> int:
    row = asked.optional("row")
    if row is None:
        raise InvalidInputError("row is missing in the query: the id of a row")
    return row
