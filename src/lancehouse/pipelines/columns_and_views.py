"""Computed columns and materialized views of a pipeline: check them before the run, and say what will be filled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.connection import Connection
from lancehouse.documents import Loc, Problems
from lancehouse.identifiers import format_levels
from lancehouse.jobs import views
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_filling import FillOptions, count_rows_to_fill
from lancehouse.jobs.column_functions import ColumnFunction
from lancehouse.jobs.columns import column_type, plan_definition, with_inputs
from lancehouse.jobs.table_jobs import parse_fill_options
from lancehouse.lake.changes import require_stable_row_ids
from lancehouse.lake.commits import creates_stable_row_ids
from lancehouse.lake.dataset import empty_dataset
from lancehouse.lake.scans import Scan
from lancehouse.pipelines.named_functions import get_function
from lancehouse.pipelines.spec import CallsPart, ColumnPart, PipelineSpec, ViewPart
from lancehouse.pipelines.target_table import ADDING, TargetState, check_indices, find_table, require_namespace
from lancehouse.schema.definitions import COMPANION_TYPE, COMPUTED, definitions

_TEXT = re.compile(r"'(?:[^']|'')*'")
_WORD = re.compile(r"`[^`]+`|\"[^\"]+\"|\b\w+\b(?!\s*\()")


def find_words(sql: str) -> set[str]:
    """Return the words of SQL that may name columns."""
    return {word.strip('`"') for word in _WORD.findall(_TEXT.sub("", sql))}


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A computed column that was checked and can be filled."""

    name: str
    function: ColumnFunction
    options: FillOptions
    allow_changed: bool
    rows: int | None
    """Number of rows that lack a value now; None if all will be new."""

    def describe(self) -> str:
        """Describe what is done, for a plan."""
        function = self.function
        made_by = function.sql or f"{function.name}({', '.join(function.inputs)}) of version {function.version}"
        rows = "all rows" if self.rows is None else f"{self.rows} rows, and those that are new"
        return f"{self.name} = {made_by}: {rows}"


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view that was checked and can be refreshed, with its columns."""

    address: TableAddress
    source: TableAddress
    part: ViewPart
    function: ColumnFunction | None
    options: FillOptions
    columns: tuple[PlannedColumn, ...]
    exists: bool

    @property
    def name(self) -> str:
        """Name of the view."""
        return format_levels(self.address.id)

    def describe(self) -> str:
        """Describe what is done, for a plan."""
        function = f" by {self.function.name} of version {self.function.version}" if self.function else ""
        rows = "rows of what is new, changed or deleted" if self.exists else "create it"
        return f"{self.name} from {format_levels(self.source.id)}{function}: {rows}"


@dataclass(slots=True)
class DerivationPlanner:
    """Checks the columns and views of a pipeline. What is wrong is added to `problems`."""

    shape: PipelineSpec
    problems: Problems
    folder: Path
    functions: dict[Loc, ColumnFunction | None] = field(default_factory=dict)

    def resolve_functions(self) -> None:
        """Find all functions, which needs nothing but the folder."""
        self._resolve_columns(("columns",), self.shape.columns)
        for place, view in enumerate(self.shape.views):
            if view.function is not None:
                loc = ("views", place, "function")
                self.functions[loc] = self._resolve(loc, view.function)
            self._resolve_columns(("views", place, "computed"), view.computed)

    def _resolve_columns(self, loc: Loc, parts: Mapping[str, ColumnPart]) -> None:
        for name, part in parts.items():
            where = (*loc, name)
            if part.sql is not None:
                self.functions[where] = ColumnFunction.of(str(part.sql))
            elif part.function is not None:
                self.functions[where] = self._resolve(where, part.function)

    def _resolve(self, loc: Loc, name: str) -> ColumnFunction | None:
        with self.problems.collect(*loc):
            reference = get_function(name, self.folder)
            function = ColumnFunction.of(reference.load())
            if function.name != name:
                raise InvalidInputError(f"{name} is {function.name} under another name: give that one")
            if function.returns is None:
                raise InvalidInputError(f"{name} does not say the type of what it computes: @column(…, returns=…)")
            return replace(function, target=reference)
        return None

    def plan_columns(
        self, address: TableAddress, state: TargetState, target: pa.Schema, given: Sequence[str]
    ) -> tuple[tuple[PlannedColumn, ...], pa.Schema]:
        """Return the columns of the table in the order in which they are filled, and the table's schema with them.

        Args:
            address: the table.
            state: the table before the run.
            target: its columns after the write.
            given: columns that the rows have.
        """
        for name in self.shape.columns:
            if name in given:
                self.problems.add(f"the rows have a column {name}, which is computed: leave it out", "columns", name)
        keeps_rows = state.run_version is not None or self.shape.sink.mode in ADDING
        dataset = state.dataset if keeps_rows else None
        return self._plan_columns(("columns",), address, self.shape.columns, target, dataset)

    def _plan_columns(
        self, loc: Loc, address: TableAddress, parts: Mapping[str, ColumnPart], schema: pa.Schema, dataset: Any
    ) -> tuple[tuple[PlannedColumn, ...], pa.Schema]:
        """Plan columns over those of a schema; `dataset` has the rows that are there before, or is None."""
        planned: list[PlannedColumn] = []
        table = address.to_ref()
        for name in self._sort(loc, parts):
            part, function = parts[name], self.functions.get((*loc, name))
            if function is None:
                continue
            with self.problems.collect(*loc, name):
                empty, existing = empty_dataset(schema), definitions(schema).get(name)
                whole = with_inputs(table, empty, function)
                definition = plan_definition(table, empty, name, whole, existing, allow_changed=part.allow_changed)
                if existing is None:
                    dtype, metadata = column_type(table, empty, function), {COMPUTED: definition.to_metadata()}
                    schema = schema.append(pa.field(name, dtype, metadata=metadata))
                    schema = schema.append(pa.field(definition.companion, COMPANION_TYPE))
                options = _to_options(part, part.where)
                Scan((), options.where, with_row_id=True).schema(table, empty)
                rows = None if dataset is None else count_rows_to_fill(table, dataset, name, function, options)
                planned.append(PlannedColumn(name, function, options, part.allow_changed, rows))
        return tuple(planned), schema

    def _sort(self, loc: Loc, parts: Mapping[str, ColumnPart]) -> Sequence[str]:
        """Return columns so that each comes after those that it is computed from."""
        reads: dict[str, list[str]] = {}
        for name in parts:
            function = self.functions.get((*loc, name))
            sql = None if function is None else function.sql
            read = find_words(sql) if sql is not None else set[str]() if function is None else {*function.inputs}
            reads[name] = [other for other in parts if other in read and other != name]
        try:
            return tuple(TopologicalSorter(reads).static_order())
        except CycleError as error:
            cycle = error.args[1]
            self.problems.add(f"{' and '.join(sorted(set(cycle)))} are computed from each other", *loc, cycle[0])
            return ()

    def plan_views(self, sink: TableAddress, state: TargetState, target: pa.Schema) -> tuple[PlannedView, ...]:
        """Return the views in the order in which they are refreshed: each after the one that it is made of.

        Args:
            sink: the table of the pipeline.
            state: the table before the run.
            target: its columns after the run.
        """
        places = {self._address(sink, view.name).id: place for place, view in enumerate(self.shape.views)}
        if len(places) < len(self.shape.views) or sink.id in places:
            self.problems.add("each view, and the table of the sink, needs a name of its own", "views")
            return ()
        sources = {place: self._find_source(sink, view).id for place, view in enumerate(self.shape.views)}
        try:
            order = TopologicalSorter(
                {place: [places[source]] if source in places else [] for place, source in sources.items()}
            ).static_order()
            schemas: dict[tuple[str, ...], pa.Schema] = {sink.id: target}
            views_in_order = [self._plan_view(place, sink, state, schemas) for place in order]
        except CycleError as error:
            self.problems.add(
                "a view cannot be made of itself, nor of one that is made of it", "views", error.args[1][0]
            )
            return ()
        return tuple(view for view in views_in_order if view is not None)

    def _address(self, sink: TableAddress, name: str) -> TableAddress:
        assert isinstance(sink.connection, Connection)
        return find_table(sink.connection, name)

    def _find_source(self, sink: TableAddress, view: ViewPart) -> TableAddress:
        return sink if view.source is None else self._address(sink, view.source)

    def _plan_view(
        self, place: int, sink: TableAddress, state: TargetState, schemas: dict[tuple[str, ...], pa.Schema]
    ) -> PlannedView | None:
        part = self.shape.views[place]
        address, source = self._address(sink, part.name), self._find_source(sink, part)
        function = self.functions.get(("views", place, "function"))
        if part.function is not None and function is None:
            return None
        count = len(self.problems.problems)
        with self.problems.collect("views", place, *(["source"] if part.source else [])):
            columns = schemas[source.id] if source.id in schemas else self._open_source(source, schemas)
            if source == sink:
                has_them = creates_stable_row_ids() if state.dataset is None else state.dataset.has_stable_row_ids
                require_stable_row_ids(sink.to_ref(), has_them=has_them)
        if len(self.problems.problems) > count:
            return None
        with self.problems.collect("views", place):
            columns_of_view, schema = views.plan_view(
                source.to_ref(), empty_dataset(columns), source.id, part.columns, function, part.where
            )
            existing = address.to_ref().find()
            if existing is None:
                require_namespace(address)
            else:
                views.require_same_columns(address.to_ref(), existing, columns_of_view, schema)
            own = schema if existing is None else existing.schema
            computed, schemas[address.id] = self._plan_columns(
                ("views", place, "computed"), address, part.computed, own, existing
            )
            check_indices(
                self.problems,
                ("views", place, "indices"),
                address,
                part.indices,
                schemas[address.id],
                existing is not None,
            )
            options = _to_options(part, None)
            return PlannedView(address, source, part, function, options, computed, existing is not None)
        return None

    def _open_source(self, source: TableAddress, schemas: dict[tuple[str, ...], pa.Schema]) -> pa.Schema:
        table = source.to_ref()
        dataset = table.open()
        require_stable_row_ids(table, has_them=dataset.has_stable_row_ids)
        schema: pa.Schema = dataset.schema
        schemas[source.id] = schema
        return schema


def _to_options(part: CallsPart, where: str | None) -> FillOptions:
    return parse_fill_options(part.fill_arguments, where, False)
