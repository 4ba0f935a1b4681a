"""Console API for lineage: what a table is made of, what is made of it, and where both lie in a picture.

A table names the source of its view, and its functions, in its schema. Whoever writes it can write anything there:
nothing is imported, chains and circles end, and only tables that the caller may read are named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from lancehouse.catalog import listing
from lancehouse.catalog.callers import Role
from lancehouse.identifiers import format_levels, quote_name
from lancehouse.server.console.backend_tables import BackendTable
from lancehouse.server.console.tables import LONGEST_TEXT, MAX_INPUTS, computed_json
from lancehouse.server.http import responses

if TYPE_CHECKING:
    from lancehouse.gateway.backends import Backend
    from lancehouse.lake.column_states import ComputedColumn
    from lancehouse.schema.definitions import ViewDefinition
    from lancehouse.server.console.routes import ConsoleRequest
    from lancehouse.server.http.responses import Response

MAX_TABLES = 40
"""Most tables that are opened for one picture."""
MAX_COLUMNS = 8
"""Most computed columns that the box of a table shows."""
LINEAGE_S = 10.0
"""Time after which no further table is opened."""
WIDTH, GAP_X, GAP_Y, MARGIN = 230, 70, 22, 8
"""Size of the boxes and the space between them, in pixels."""
HEAD, LINE = 50, 20
"""Height of a box without computed columns, and of each of those."""

TablePlace = tuple[str, tuple[str, ...]]
"""Backend and levels of a table."""
_NOT_READABLE = (TableNotFoundError, NamespaceNotFoundError, PermissionDeniedError, InvalidInputError)
"""Errors of a source that is gone, or that the caller may not read. The response does not say which, nor its name."""


@dataclass(frozen=True, slots=True)
class LineageTable:
    """A table of the picture."""

    place: TablePlace
    depth: int
    """0 for the table that was asked for; less for what it is made of, more for what is made of it."""
    view: ViewDefinition | None
    computed: Sequence[ComputedColumn]

    @property
    def height(self) -> int:
        """Height of its box."""
        line_count = min(len(self.computed), MAX_COLUMNS) + (len(self.computed) > MAX_COLUMNS)
        return HEAD + LINE * (line_count + (self.view is not None))


@dataclass(slots=True)
class LineageWalk:
    """Opens a table, what it is made of, and what is made of it, in the name of the caller."""

    request: ConsoleRequest
    tables: dict[TablePlace, LineageTable] = field(default_factory=dict)
    edges: list[tuple[TablePlace, TablePlace]] = field(default_factory=list)
    """Source and view."""
    hidden: int = 0
    """Sources that are gone, or that the caller may not read."""
    is_whole: bool = True
    deadline: float = field(default_factory=lambda: monotonic() + LINEAGE_S)

    def run(self) -> None:
        """Collect all tables, until there are too many or it takes too long."""
        backend, levels = self.request.backend, self.request.table_levels()
        view, computed = self.request.table.lineage()
        start = self._add(backend, levels, 0, view, computed)
        self._add_sources(start)
        self._add_views(start)

    def _add(
        self,
        backend: Backend,
        levels: tuple[str, ...],
        depth: int,
        view: ViewDefinition | None,
        computed: Sequence[ComputedColumn],
    ) -> LineageTable:
        table = LineageTable((backend.name, levels), depth, view, computed)
        self.tables[table.place] = table
        return table

    def _is_exhausted(self) -> bool:
        if len(self.tables) < MAX_TABLES and monotonic() < self.deadline:
            return False
        self.is_whole = False
        return True

    def _add_sources(self, table: LineageTable) -> None:
        """Follow the sources of views upwards; each has one."""
        while table.view is not None:
            candidates = list(self._candidates(table))
            places = [(backend.name, levels) for backend, levels in candidates]
            known_place = next((place for place in places if place in self.tables), None)
            if known_place is not None:  # a circle
                self.edges.append((known_place, table.place))
                return
            if self._is_exhausted():
                return
            sources = (self._open(backend, levels, table.depth - 1) for backend, levels in candidates)
            source = next(filter(None, sources), None)
            if source is None:
                self.hidden += 1
                return
            self.edges.append((source.place, table.place))
            table = source

    def _candidates(self, table: LineageTable) -> Iterator[tuple[Backend, tuple[str, ...]]]:
        """Yield what the source of a view may be called here.

        Clients of Iceberg REST begin an id with the warehouse, those of the gateway are connected to one.
        """
        assert table.view is not None
        source, backends = table.view.source, self.request.backends
        home = backends[table.place[0]]
        first = backends.get(source[0]) if source else None
        if first is not None and first.is_warehouse and len(source) > 1:
            yield first, source[1:]
        if source:
            yield home, source

    def _open(self, backend: Backend, levels: tuple[str, ...], depth: int) -> LineageTable | None:
        """Open a table that another one names; None if it is gone, or if the caller may not read it."""
        identity = self.request.call.caller.identity
        if not identity.has_role(Role.READER, backend.name, levels[:-1], levels[-1]):
            return None
        reads_all = identity.has_role(Role.READER, backend.name)
        try:
            backend.check_ids([levels])
            table = BackendTable.from_backend(backend, levels, self.request.token, reads_all=reads_all)
            view, computed = table.lineage()
        except _NOT_READABLE:
            return None
        except LanceNamespaceError:
            self.is_whole = False  # its store does not answer, or it is broken
            return None
        return self._add(backend, levels, depth, view, computed)

    def _add_views(self, start: LineageTable) -> None:
        """Follow the views of a table downwards, as far as catalogs of this server know them."""
        queue = deque([start])
        while queue:
            source = queue.popleft()
            for backend, levels in self._list_views(source):
                if (backend.name, levels) in self.tables:
                    continue
                if self._is_exhausted():
                    return
                view = self._open(backend, levels, source.depth + 1)
                if view is None:
                    continue
                if view.view is None or all(
                    (candidate.name, id_) != source.place for candidate, id_ in self._candidates(view)
                ):
                    del self.tables[view.place]  # it was made anew, of something else
                    continue
                self.edges.append((source.place, view.place))
                queue.append(view)

    def _list_views(self, source: LineageTable) -> Iterator[tuple[Backend, tuple[str, ...]]]:
        call = self.request.call
        home, levels = source.place
        if not self.request.backends[home].is_warehouse:
            return
        for warehouse in call.catalog.warehouses.values():
            name = warehouse.name
            if name not in self.request.backends or not call.caller.identity.can_see(name):
                continue
            for source_id in ((home, *levels), *([levels] if name == home else ())):
                views = listing.list_views_of(
                    call.catalog.database, call.caller, warehouse, format_levels(source_id), MAX_TABLES
                )
                yield from ((self.request.backends[name], (*namespace, view)) for namespace, view in views)


def lineage(request: ConsoleRequest) -> Response:
    """Return what a table is made of and what is made of it, with the places of all in a picture."""
    walk = LineageWalk(request)
    walk.run()
    boxes = place_boxes(list(walk.tables.values()))
    numbers = {place: number for number, place in enumerate(walk.tables)}
    return responses.json(
        {
            "tables": [_table_json(table, boxes[number]) for number, table in enumerate(walk.tables.values())],
            "edges": [_edge_json(numbers[source], numbers[view], boxes) for source, view in walk.edges],
            "width": max(x + WIDTH for x, _, _ in boxes) + MARGIN,
            "height": max(y + height for _, y, height in boxes) + MARGIN,
            "box": WIDTH,
            "hidden": walk.hidden,
            "whole": walk.is_whole,
            "views_known": request.backend.is_warehouse,
        }
    )


def place_boxes(tables: Sequence[LineageTable]) -> list[tuple[int, int, int]]:
    """Return x, y and height of the box of each table: sources to the left, views to the right, columns centred."""
    first = min(table.depth for table in tables)
    columns: dict[int, list[LineageTable]] = {}
    for table in tables:
        columns.setdefault(table.depth, []).append(table)
    heights = {depth: sum(each.height + GAP_Y for each in column) - GAP_Y for depth, column in columns.items()}
    tallest = max(heights.values())
    boxes: dict[TablePlace, tuple[int, int, int]] = {}
    for depth, column in columns.items():
        y = MARGIN + (tallest - heights[depth]) // 2
        for table in column:
            boxes[table.place] = (MARGIN + (depth - first) * (WIDTH + GAP_X), y, table.height)
            y += table.height + GAP_Y
    return [boxes[table.place] for table in tables]


def _edge_json(source: int, view: int, boxes: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Return an edge with the path of its curve, from the right side of the source to the left one of the view."""
    (x1, y1, height1), (x2, y2, height2) = boxes[source], boxes[view]
    start, end = (x1 + WIDTH, y1 + height1 // 2), (x2, y2 + height2 // 2)
    bend = GAP_X // 2 if x2 > x1 else GAP_X
    path = f"M{start[0]} {start[1]}C{start[0] + bend} {start[1]} {end[0] - bend} {end[1]} {end[0]} {end[1]}"
    return {"from": source, "to": view, "path": path}


def _format_columns(view: ViewDefinition) -> Iterator[str]:
    """Yield the columns that a view takes from its source."""
    yield from (name if sql in (name, quote_name(name)) else f"{name} = {sql}" for name, sql in view.columns.items())


def _table_json(table: LineageTable, box: tuple[int, int, int]) -> dict[str, Any]:
    backend, levels = table.place
    view = table.view
    view_json = None
    if view is not None:
        view_json = {
            "title": view.title[:LONGEST_TEXT],
            "inputs": [name[:LONGEST_TEXT] for name in view.inputs[:MAX_INPUTS]],
            "columns": [text[:LONGEST_TEXT] for text in islice(_format_columns(view), MAX_INPUTS)],
            "where": None if view.where is None else view.where[:LONGEST_TEXT],
        }
    return {
        "in": backend,
        "levels": levels,
        "depth": table.depth,
        "x": box[0],
        "y": box[1],
        "height": box[2],
        "view": view_json,
        "computed": [computed_json(column) for column in table.computed[:MAX_COLUMNS]],
        "more": max(0, len(table.computed) - MAX_COLUMNS),
    }
