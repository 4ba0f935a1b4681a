"""Plan a pipeline: open its source, check steps, table, indices and expectations, and say what will be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.documents import Problems, to_plain
from lancehouse.identifiers import parse_levels
from lancehouse.jobs import compaction
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.job import WriteOptions
from lancehouse.jobs.lineage_events import Inputs
from lancehouse.jobs.merge_keys import MergeRules
from lancehouse.jobs.sources.ingest_source import ICEBERG, IngestSource, Unit, open_source
from lancehouse.jobs.sources.schemas import conform
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import FileLayout
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.pipelines import target_table
from lancehouse.pipelines.columns_and_views import DerivationPlanner, PlannedColumn, PlannedView
from lancehouse.pipelines.named_functions import NamedFunction, get_function, pickle_by_value
from lancehouse.pipelines.spec import PipelineSpec, SinkPart, SourcePart, StepPart
from lancehouse.pipelines.steps import (
    ArrowStep,
    ArrowTransform,
    EmbedStep,
    FilterStep,
    FunctionStep,
    RowCount,
    SelectStep,
    apply_steps,
    from_source,
    output_schema,
    run_python,
    run_sql,
    step_schema,
    to_binary_schema,
)
from lancehouse.pipelines.target_table import TargetState, find_table
from lancehouse.spark.catalog import LanceCatalog
from lancehouse.spark.engine import parallelism

ARROW, SPARK, DRIVER = "Arrow", "Spark", "driver"
"""Where a step runs."""


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One step of a plan."""

    step: str
    where: str
    does: str
    columns: str = ""
    """The columns after the step."""


def describe_step(part: StepPart, where: str, schema: pa.Schema) -> PlanLine:
    """Describe a step that transforms rows."""
    return PlanLine(part.kind, where, _format_step(part), format_columns(schema))


def describe_end(
    shape: PipelineSpec,
    state: TargetState,
    where: str,
    columns: Sequence[PlannedColumn],
    views: Sequence[PlannedView],
) -> Iterator[PlanLine]:
    """Describe what is done with the rows: sink, columns, indices, compaction, expectations, views, publishing."""
    yield PlanLine("sink", where, _format_sink(shape.sink, state))
    for column in columns:
        yield PlanLine("column", ARROW, column.describe())
    for index in shape.indices:
        yield PlanLine("index", ARROW, f"{index.kind.upper()} of {index.column}, called {index.index_name}")
    if shape.compact is not None:
        yield PlanLine("compact", ARROW, "make fewer, larger fragments")
    if expectations := [name for name in ("rows", "not_null", "unique", "where") if getattr(shape.expect, name)]:
        yield PlanLine("expect", ARROW, f"{', '.join(expectations)}; else {shape.expect.on_failure}")
    for view in views:
        yield PlanLine("view", ARROW, view.describe())
        for column in view.columns:
            yield PlanLine("column", ARROW, f"{view.name}.{column.describe()}")
        for index in view.part.indices:
            yield PlanLine(
                "index", ARROW, f"{index.kind.upper()} of {view.name}.{index.column}, called {index.index_name}"
            )
    if shape.publish is not None:
        yield PlanLine("publish", DRIVER, f"tag {shape.publish.tag}")


def format_columns(schema: pa.Schema) -> str:
    """Return columns with their types as text."""
    return ", ".join(f"{field.name} {_format_type(field.type)}" for field in schema)


def _format_type(dtype: Any) -> str:
    return f"{dtype.value_type}[{dtype.list_size}]" if isinstance(dtype, pa.FixedSizeListType) else str(dtype)


def _format_step(part: StepPart) -> str:
    if part.embed is not None:
        return f"{part.embed.into} = {part.embed.function}({', '.join(part.embed.from_)})"
    if part.select is None:
        return " ".join(str(getattr(part, part.kind)).split())
    selected = (name if expression == name else f"{expression} AS {name}" for name, expression in part.select.items())
    return ", ".join(selected) + (f" WHERE {part.where}" if part.where else "")


def _format_sink(sink: SinkPart, state: TargetState) -> str:
    if state.run_version is not None:
        return f"nothing: this run has made version {state.run_version} of {sink.table}"
    if state.dataset is None:
        return f"create {sink.table}"
    by = f" by {', '.join(sink.on)}" if sink.on else ""
    return f"{sink.mode} {sink.table}{by}, at version {state.version}"


Start = Callable[[], SparkSession]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline that was checked and can run."""

    shape: PipelineSpec
    run: str
    """Id of the run."""
    is_new: bool
    """Whether the id was generated, so that no version can be of this run."""
    address: TableAddress
    state: TargetState = field(repr=False)
    """The table before the run."""
    origin: Origin
    target: pa.Schema = field(repr=False)
    """Columns of the table afterwards."""
    transform: ArrowTransform = field(repr=False)
    """The steps of a pipeline that runs in Arrow only."""
    frame: DataFrame | None = field(repr=False)
    """The rows of a pipeline that needs Spark; None if it runs in Arrow only."""
    count: RowCount = field(repr=False)
    """Counts the rows that were read for `frame`."""
    lines: tuple[PlanLine, ...]
    columns: tuple[PlannedColumn, ...] = ()
    """Computed columns of the table, in the order in which they are filled."""
    views: tuple[PlannedView, ...] = ()
    """Views, in the order in which they are refreshed."""

    @property
    def merge_rules(self) -> MergeRules:
        """Rules of a merge."""
        sink = self.shape.sink
        return MergeRules(sink.when_matched, sink.when_not_matched, sink.delete_by_source)

    @property
    def write_options(self) -> WriteOptions:
        """How rows are written."""
        sink = self.shape.sink
        layout = FileLayout(sink.max_rows_per_file, sink.max_bytes_per_file, sink.data_storage_version)
        evolves = sink.schema_mode == "evolve"
        run = self.state.attempt, self.is_new
        return WriteOptions(sink.vector_columns, layout, *run, nullable=sink.nullable, evolves=evolves)


@dataclass(slots=True)
class _PlannedRows:
    """The rows after the steps that are planned so far."""

    schema: pa.Schema
    steps: list[ArrowStep] = field(default_factory=list)
    """Arrow steps since the source or the last Spark step."""
    frame: DataFrame | None = None
    """The rows before these steps; None if they come from the source."""

    @property
    def transform(self) -> ArrowTransform:
        """The Arrow steps as one transformation."""
        return ArrowTransform(tuple(self.steps), self.schema)


def plan_pipeline(shape: PipelineSpec, problems: Problems, folder: Path, run: str | None, start: Start) -> PipelinePlan:
    """Check all of a pipeline. Spark is started last, and only if a step needs it.

    Raises:
        PipelineError: the pipeline cannot run; the error lists all problems that were found.
    """
    return _Planner(shape, problems, folder, run or shape.run, start).plan()


class _Planner:
    def __init__(self, shape: PipelineSpec, problems: Problems, folder: Path, run: str | None, start: Start) -> None:
        self.shape, self.problems, self.folder, self.start = shape, problems, folder, start
        self.run, self.is_new = run or uuid4().hex, run is None
        self.lines: list[PlanLine] = []
        self.functions: list[NamedFunction | None] = []
        self.derivations = DerivationPlanner(shape, problems, folder)

    def plan(self) -> PipelinePlan:
        shape, problems = self.shape, self.problems
        self.functions = [self._resolve_function(place, step) for place, step in enumerate(shape.steps)]
        self.derivations.resolve_functions()
        address, origin = self._resolve_address(), self._resolve_origin()
        state = None if address is None else self._read_state(address)
        rows = None if origin is None else self._open_source(origin)
        planned_steps = None if rows is None else self._plan_steps(rows, 0, None)
        with problems.collect("compact"):
            compaction.check_options(shape.compact or {})
        problems.raise_if_any()
        assert address is not None
        assert origin is not None
        assert state is not None
        assert rows is not None
        assert planned_steps is not None
        count = RowCount(address)
        if planned_steps < len(shape.steps) or shape.sink.mode == "merge":
            self._plan_with_spark(origin, rows, planned_steps, count)
        struct = None if rows.frame is None else rows.frame.schema.jsonValue()
        target = target_table.plan_target_schema(problems, address, shape.sink, state, rows.schema, struct)
        columns: tuple[PlannedColumn, ...] = ()
        views: tuple[PlannedView, ...] = ()
        if target is not None:
            columns, filled_schema = self.derivations.plan_columns(address, state, target, rows.schema.names)
            target_table.check_maintenance(problems, address, shape, state, filled_schema)
            views = self.derivations.plan_views(address, state, filled_schema)
        problems.raise_if_any()
        assert target is not None
        self.lines += describe_end(shape, state, ARROW if rows.frame is None else SPARK, columns, views)
        return PipelinePlan(
            shape,
            self.run,
            self.is_new,
            address,
            state,
            origin,
            target,
            rows.transform,
            rows.frame,
            count,
            tuple(self.lines),
            columns,
            views,
        )

    # Checks that need no Spark; each returns None if it found a problem

    def _resolve_function(self, place: int, step: StepPart) -> NamedFunction | None:
        name = step.arrow or step.python or (step.embed.function if step.embed else None)
        if name is None:
            return None
        with self.problems.collect("steps", place, step.kind, *(["function"] if step.embed else [])):
            return get_function(name, self.folder)
        return None

    def _resolve_address(self) -> TableAddress | None:
        with self.problems.collect("catalog"):
            return find_table(self.shape.catalog.connection(), self.shape.sink.table)
        return None

    def _resolve_origin(self) -> Origin | None:
        with self.problems.collect("source", "catalog"):
            return Origin.from_spec(self.shape, self.folder)
        return None

    def _read_state(self, address: TableAddress) -> TargetState | None:
        with self.problems.collect("sink", "table"):
            return target_table.read_target_state(address, self.shape.sink.mode, self.run, is_new=self.is_new)
        return None

    def _open_source(self, origin: Origin) -> _PlannedRows | None:
        with self.problems.collect("source", self.shape.source.kind):
            source: IngestSource = origin.open()
            source.require_types()
            schema = to_binary_schema(source.schema)
            self.lines.append(PlanLine("source", ARROW, f"read {origin.description}", format_columns(schema)))
            return _PlannedRows(schema)
        return None

    # Steps

    def _plan_steps(self, rows: _PlannedRows, first: int, catalog: LanceCatalog | None) -> int | None:
        """Plan steps from `first` on; return how many steps are planned, or None if one is wrong.

        Planning stops at a step that needs Spark, if `catalog` is None.
        """
        for place in range(first, len(self.shape.steps)):
            part, function = self.shape.steps[place], self.functions[place]
            if part.kind in ("sql", "python"):
                if catalog is None:
                    return place
                is_right = self._plan_spark_step(catalog, place, part, function, rows)
            else:
                is_right = self._plan_arrow_step(place, part, function, rows)
            if not is_right:
                return None
        return len(self.shape.steps)

    def _plan_arrow_step(self, place: int, part: StepPart, function: NamedFunction | None, rows: _PlannedRows) -> bool:
        for key, step in _to_arrow_steps(part, function):
            before = rows.schema
            with self.problems.collect("steps", place, key):
                rows.schema = output_schema(step, before)
                rows.steps.append(step)
                continue
            return False
        if part.kind in ("arrow", "embed") and function is None:
            return False
        self.lines.append(describe_step(part, ARROW, rows.schema))
        return True

    def _plan_with_spark(self, origin: Origin, rows: _PlannedRows, done: int, count: RowCount) -> None:
        """Plan the steps that need Spark, and those after them. In SQL, shorter names are of the sink's namespace."""
        spark = self.start()
        catalog = LanceCatalog._from_connection(spark, self.shape.catalog.connection())
        catalog.use(parse_levels(self.shape.sink.table)[:-1])
        pickle_by_value([function for function in self.functions if function is not None])
        with self.problems.collect("source", self.shape.source.kind):
            rows.frame = from_source(spark, origin.open(parallelism(spark)), rows.transform, count)
            rows.steps = []
            self._plan_steps(rows, done, catalog)
            assert rows.frame is not None
            rows.frame, rows.steps = apply_steps(rows.frame, rows.transform), []
        self.problems.raise_if_any()

    def _plan_spark_step(
        self, catalog: LanceCatalog, place: int, part: StepPart, function: NamedFunction | None, rows: _PlannedRows
    ) -> bool:
        assert rows.frame is not None
        frame = apply_steps(rows.frame, rows.transform)
        with self.problems.collect("steps", place, part.kind):
            if part.sql is not None:
                rows.frame = run_sql(catalog, part.sql, frame)
            elif function is not None:
                rows.frame = run_python(function, frame)
            rows.steps, rows.schema = [], step_schema(rows.frame)
            self.lines.append(describe_step(part, SPARK, rows.schema))
            return True
        return False


def _to_arrow_steps(part: StepPart, function: NamedFunction | None) -> Sequence[tuple[str, ArrowStep]]:
    """Return the Arrow steps of a part, with their keys: `where` is applied before `select`."""
    steps: list[tuple[str, ArrowStep]] = []
    if part.where is not None:
        steps.append(("where", FilterStep(part.where)))
    if part.select is not None:
        steps.append(("select", SelectStep(part.select)))
    if part.embed is not None and function is not None:
        steps.append(("embed", EmbedStep(function, part.embed.from_, part.embed.into)))
    if part.arrow is not None and function is not None:
        steps.append(("arrow", FunctionStep(function)))
    return steps


@dataclass(frozen=True, slots=True)
class Origin:
    """A source that can be opened."""

    part: SourcePart
    folder: Path
    """Folder that relative paths of files are relative to."""
    address: TableAddress | None
    """Address of a Lance table; None for other sources."""

    @classmethod
    def from_spec(cls, shape: PipelineSpec, folder: Path) -> Origin:
        """Return the source of a pipeline.

        Raises:
            InvalidInputError: there is no such catalog.
        """
        part = shape.source
        if part.table is None:
            return cls(part, folder, None)
        catalog = part.catalog or shape.catalog
        return cls(part, folder, find_table(catalog.connection(), part.table))

    @property
    def name(self) -> list[str]:
        """Identifies the source when a run is repeated; which rows are read is left to the keys of its units."""
        if self.address is not None:
            return [f"{self.address.connection} {self.address}", str(self.part.filter), str(self.part.columns)]
        return [*self._paths(), str(self.part.columns)]

    @property
    def inputs(self) -> Inputs:
        """The source, as events of lineage name it."""
        if self.address is not None:
            return [self.address]
        return [(ICEBERG, path) for path in self._paths()] if self.part.iceberg else self._paths()

    @property
    def description(self) -> str:
        """Description for messages and plans."""
        part = self.part
        if self.address is not None:
            words = [("version", part.version), ("tag", part.tag), ("where", part.filter)]
            return " ".join([str(self.address), *(f"{word} {value}" for word, value in words if value)])
        return f"Iceberg table {part.iceberg}" if part.iceberg else f"files {', '.join(part.files or ())}"

    def open(self, parallelism: int = 1) -> IngestSource:
        """Open the source, without reading all rows.

        Raises:
            LanceNamespaceError: the source does not exist, cannot be read or lacks a column, or the filter is invalid.
        """
        if self.address is not None:
            return _open_table(self.address, self.part, parallelism)
        if self.part.iceberg is not None:
            return open_source(
                self.part.iceberg, ICEBERG, self.part.columns, self.part.properties, parallelism=parallelism
            )
        return open_source(
            self._paths(), self.part.format, self.part.columns, to_plain(self.part.options), parallelism=parallelism
        )

    def _paths(self) -> list[str]:
        if self.part.iceberg is not None:
            return [self.part.iceberg]
        return [path if "://" in path else str(self.folder / path) for path in self.part.files or ()]


@dataclass(frozen=True, slots=True)
class TableUnit(Unit):
    """Some rows of a version of a Lance table."""

    pinned: PinnedVersion
    scan: Scan
    parts: tuple[FragmentRange, ...]
    key: str
    bytes: int = 0

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema."""
        table, dataset = self.pinned.open()
        for batch in self.scan.batches(table, dataset, self.parts):
            yield conform(batch, schema, (), str(table))


def _open_table(address: TableAddress, part: SourcePart, parallelism: int) -> IngestSource:
    pinned = PinnedVersion.resolve(address, VersionSelector(part.version, part.tag))
    table, dataset = pinned.open()
    scan = Scan(part.columns, part.filter, blobs=part.blobs or "bytes")
    if any("." in name for name in part.columns or ()):
        raise TableSchemaValidationError(f"{table}: columns are whole ones here; take a field in a step select")
    full_schema = dataset.schema
    schema = scan.schema(table, dataset)
    if scan.blobs == "bytes":  # a scan has binaries for them, and the table that is written gets blobs again
        schema = pa.schema(
            [full_schema.field(field.name) if has_blobs(full_schema.field(field.name)) else field for field in schema]
        )
    where = f"{address} {pinned.branch or ''} version {pinned.version} {part.filter} {part.columns}"
    units: list[Unit] = [
        TableUnit(pinned, scan, tuple(parts), f"{where} {parts}")
        for parts in split_fragments(dataset, parallelism, split=part.filter is None)
    ]
    return IngestSource(schema, units)
