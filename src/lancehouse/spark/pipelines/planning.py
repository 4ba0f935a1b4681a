"""A pipeline seen through to its end before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lancehouse.lake import compaction
from lancehouse.lake.fragments import Layout
from lancehouse.lake.merging import Rules
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.pipelines import frames, lines, tables
from lancehouse.spark.pipelines.blobs import seen
from lancehouse.spark.pipelines.counting import Count
from lancehouse.spark.pipelines.functions import Named, find, pickled_by_value
from lancehouse.spark.pipelines.lines import ARROW, SPARK, Line
from lancehouse.spark.pipelines.origins import Origin
from lancehouse.spark.pipelines.problems import Problems
from lancehouse.spark.pipelines.shape import Shape, StepPart
from lancehouse.spark.pipelines.tables import State
from lancehouse.spark.pipelines.transforms import Embedded, Mapped, Select, Step, Transform, Where, output
from lancehouse.spark.session import parallelism
from lancehouse.spark.sources import Source
from lancehouse.spark.writing import Write

Start = Callable[[], SparkSession]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that was checked, as it is about to run."""

    shape: Shape
    run: str
    """The run's id."""
    is_new: bool
    """Whether nobody gave it, so that no version can be of this run."""
    address: Address
    state: State = field(repr=False)
    """The table before."""
    origin: Origin
    target: pa.Schema = field(repr=False)
    """The columns of the table afterwards."""
    transform: Transform = field(repr=False)
    """The steps of a pipeline that stays in Arrow."""
    frame: DataFrame | None = field(repr=False)
    """The rows of one that does not."""
    count: Count = field(repr=False)
    """Of the rows that these are made of."""
    lines: tuple[Line, ...]

    @property
    def rules(self) -> Rules:
        """Of a merge."""
        sink = self.shape.sink
        return Rules(sink.when_matched, sink.when_not_matched, sink.delete_by_source)

    @property
    def how(self) -> Write:
        """How rows are written."""
        sink = self.shape.sink
        layout = Layout(sink.max_rows_per_file, sink.max_bytes_per_file, sink.data_storage_version)
        return Write(sink.vector_columns, layout, self.state.attempt, self.is_new, sink.nullable)


@dataclass(slots=True)
class _Rows:
    """The rows, as far as they are planned."""

    schema: pa.Schema
    steps: list[Step] = field(default_factory=list)
    """In Arrow, since the source or the last step of Spark."""
    frame: DataFrame | None = None
    """Before these steps; None: they come from the source."""

    @property
    def transform(self) -> Transform:
        """The steps in Arrow, as one."""
        return Transform(tuple(self.steps), self.schema)


def plan(shape: Shape, problems: Problems, folder: Path, run: str | None, start: Start) -> Plan:
    """Check all of a pipeline. Spark is started last, and only if a step needs it.

    Raises:
        PipelineError: it cannot run; says all that is wrong, as far as it can be seen.
    """
    return _Planning(shape, problems, folder, run or shape.run, start).plan()


class _Planning:
    def __init__(self, shape: Shape, problems: Problems, folder: Path, run: str | None, start: Start) -> None:
        self.shape, self.problems, self.folder, self.start = shape, problems, folder, start
        self.run, self.is_new = run or uuid4().hex, run is None
        self.lines: list[Line] = []
        self.functions: list[Named | None] = []

    def plan(self) -> Plan:
        shape, problems = self.shape, self.problems
        self.functions = [self._function(place, step) for place, step in enumerate(shape.steps)]
        address, origin = self._address(), self._origin()
        state = None if address is None else self._state(address)
        rows = None if origin is None else self._source(origin)
        done = None if rows is None else self._steps(rows, 0, None)
        with problems.of("compact"):
            compaction.check_options(shape.compact or {})
        problems.stop()
        assert address is not None
        assert origin is not None
        assert state is not None
        assert rows is not None
        assert done is not None
        count = Count(address)
        if done < len(shape.steps) or shape.sink.mode == "merge":
            self._with_spark(origin, rows, done, count)
        struct = None if rows.frame is None else rows.frame.schema.jsonValue()
        target = tables.fitted(problems, address, shape.sink, state, rows.schema, struct)
        if target is not None:
            tables.check_upkeep(problems, address, shape, state, target)
        problems.stop()
        assert target is not None
        self.lines += lines.of_end(shape, state, ARROW if rows.frame is None else SPARK)
        return Plan(
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
        )

    # What needs no Spark; each is None if something is wrong with it

    def _function(self, place: int, step: StepPart) -> Named | None:
        name = step.arrow or step.python or (step.embed.function if step.embed else None)
        if name is None:
            return None
        with self.problems.of("steps", place, step.kind, *(["function"] if step.embed else [])):
            return find(name, self.folder)
        return None

    def _address(self) -> Address | None:
        with self.problems.of("catalog"):
            return Catalog.of(self.shape.catalog.impl, self.shape.catalog.properties).table(self.shape.sink.table)
        return None

    def _origin(self) -> Origin | None:
        with self.problems.of("source", "catalog"):
            return Origin.of(self.shape, self.folder)
        return None

    def _state(self, address: Address) -> State | None:
        with self.problems.of("sink", "table"):
            return tables.look(address, self.shape.sink.mode, self.run, is_new=self.is_new)
        return None

    def _source(self, origin: Origin) -> _Rows | None:
        with self.problems.of("source", self.shape.source.kind):
            found: Source = origin.open()
            found.require_types()
            schema = seen(found.schema)
            self.lines.append(Line("source", ARROW, f"read {origin.words}", lines.columns(schema)))
            return _Rows(schema)
        return None

    # Steps

    def _steps(self, rows: _Rows, first: int, spark: SparkSession | None) -> int | None:
        """Plan steps, from the first on; how many are planned, which is not all where Spark is needed and not there."""
        for place in range(first, len(self.shape.steps)):
            part, function = self.shape.steps[place], self.functions[place]
            if part.kind in ("sql", "python"):
                if spark is None:
                    return place
                is_right = self._spark_step(spark, place, part, function, rows)
            else:
                is_right = self._arrow_step(place, part, function, rows)
            if not is_right:
                return None
        return len(self.shape.steps)

    def _arrow_step(self, place: int, part: StepPart, function: Named | None, rows: _Rows) -> bool:
        for key, step in _in_arrow(part, function):
            before = rows.schema
            with self.problems.of("steps", place, key):
                rows.schema = output(step, before)
                rows.steps.append(step)
                continue
            return False
        if part.kind in ("arrow", "embed") and function is None:
            return False
        self.lines.append(lines.of_step(part, ARROW, rows.schema))
        return True

    def _with_spark(self, origin: Origin, rows: _Rows, done: int, count: Count) -> None:
        """Plan the steps that need Spark, and those after them."""
        spark = self.start()
        pickled_by_value([each for each in self.functions if each is not None])
        with self.problems.of("source", self.shape.source.kind):
            rows.frame = frames.of_source(spark, origin.open(parallelism(spark)), rows.transform, count)
            rows.steps = []
            self._steps(rows, done, spark)
            assert rows.frame is not None
            rows.frame, rows.steps = frames.after(rows.frame, rows.transform), []
        self.problems.stop()

    def _spark_step(self, spark: SparkSession, place: int, part: StepPart, function: Named | None, rows: _Rows) -> bool:
        assert rows.frame is not None
        frame = frames.after(rows.frame, rows.transform)
        with self.problems.of("steps", place, part.kind):
            if part.sql is not None:
                rows.frame = frames.by_sql(spark, part.sql, frame)
            elif function is not None:
                rows.frame = frames.by_python(function, frame)
            rows.steps, rows.schema = [], frames.columns(rows.frame)
            self.lines.append(lines.of_step(part, SPARK, rows.schema))
            return True
        return False


def _in_arrow(part: StepPart, function: Named | None) -> Sequence[tuple[str, Step]]:
    """The steps that a part is, with their keys: rows are chosen first."""
    found: list[tuple[str, Step]] = []
    if part.where is not None:
        found.append(("where", Where(part.where)))
    if part.select is not None:
        found.append(("select", Select(part.select)))
    if part.embed is not None and function is not None:
        found.append(("embed", Embedded(function, part.embed.from_, part.embed.into)))
    if part.arrow is not None and function is not None:
        found.append(("arrow", Mapped(function)))
    return found
