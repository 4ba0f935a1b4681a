"""Run a plan of a pipeline: write, index, compact, check expectations, publish; finished steps are not repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from lance_namespace import CreateTableTagRequest, UpdateTableTagRequest
from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError
from pyspark.sql import SparkSession

from lancehouse import tracing
from lancehouse.identifiers import format_levels
from lancehouse.jobs import columns, compaction, index_building, ingest, views
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import Engine, LocalEngine, TaskProgress
from lancehouse.jobs.job import declare_table, undo_declaration
from lancehouse.jobs.lineage_events import observe_run
from lancehouse.lake import commits
from lancehouse.lake.commits import locate_table
from lancehouse.lake.row_changes import retry_conflicts
from lancehouse.lake.versions import list_tags
from lancehouse.pipelines import target_table
from lancehouse.pipelines.columns_and_views import PlannedColumn, PlannedView
from lancehouse.pipelines.planner import ARROW, DRIVER, SPARK, PipelinePlan
from lancehouse.pipelines.spec import IndexPart
from lancehouse.pipelines.steps import BlobTransform
from lancehouse.schema.definitions import definitions
from lancehouse.spark import merge, table_writer
from lancehouse.spark.engine import SparkEngine, watch_tasks

DONE, BEFORE, IDLE, FAILED, SKIPPED = "done", "done before", "nothing to do", "failed", "skipped"
UNFINISHED = "not finished"
"""States of a step or of a run."""


@dataclass(slots=True)
class RunStep:
    """One step of a run."""

    step: str
    where: str
    """Where it ran: Arrow, Spark, or the driver."""
    state: str = DONE
    version: int | None = None
    """Version of the table, or of the view, after the step."""
    rows: int | None = None
    """Number of rows written, filled or indexed."""
    failed: int | None = None
    """Number of rows for which the function of a column failed, and `on_error` let the run go on."""
    deleted: int | None = None
    """Number of rows of a view that were removed, because their source was changed or deleted."""
    seconds: float = 0.0
    says: str = ""


@dataclass(slots=True)
class RunReport:
    """What a run has done so far."""

    pipeline: str
    run: str
    table: str
    state: str = UNFINISHED
    rows_in: int | None = None
    """Number of rows read from the source; None if it is not known."""
    rows_out: int | None = None
    """Number of rows written to the table."""
    rows: int | None = None
    """Number of rows in the table after the run."""
    version_before: int | None = None
    version_after: int | None = None
    tag: str | None = None
    seconds: float = 0.0
    steps: list[RunStep] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Expectations that are not met, a sentence each."""
    error: str | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the run succeeded."""
        return self.state in (DONE, BEFORE)

    @property
    def has_changed(self) -> bool:
        """Whether the run did anything besides checks."""
        return any(step.state == DONE and step.step != "expect" for step in self.steps)

    def fail(self, error: BaseException) -> None:
        """Record the error that ended the run."""
        self.state = FAILED
        self.error = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return asdict(self)


Listener = Callable[[str, TaskProgress | None], None]
"""Called with the name of each step when it begins, and then with the progress of its tasks."""


def run_plan(plan: PipelinePlan, spark: SparkSession | None, listener: Listener | None, report: RunReport) -> None:
    """Run a plan, in threads of this process if there is no session; the report is filled in also if this raises.

    Raises:
        LanceNamespaceError: a step failed. The steps before it are done, and stay so.
    """
    with observe_run("pipeline", f"pipeline {report.pipeline}", plan.origin.inputs, plan.address) as summary:
        _PipelineRun(plan, spark, listener, report).run()
        summary.rows = report.rows_out
        summary.failure = None if report.has_passed else "ExpectationsNotMet"


class _PipelineRun:
    def __init__(
        self, plan: PipelinePlan, spark: SparkSession | None, listener: Listener | None, report: RunReport
    ) -> None:
        self.plan, self.spark, self.listener, self.report = plan, spark, listener, report
        self.engine: Engine = LocalEngine(report_progress=self._report_tasks) if spark is None else SparkEngine(spark)
        self.address, self.table = plan.address, plan.address.to_ref()
        self.version = 0
        """Version of the table after the last step that was done."""
        self.has_own_rows = True
        """Whether the run made a version of its rows: a merge that changes nothing makes none."""

    def run(self) -> None:
        started, report = monotonic(), self.report
        try:
            version = self._write_rows()
            if self._is_published(version):
                self._skip()
            else:
                for column in self.plan.columns:
                    self.version = self._fill_column(self.address, column, column.name)
                for index in self.plan.shape.indices:
                    self.version = self._build_index(self.address, index, index.index_name) or self.version
                self._compact()
                # Last of what changes the table, so that the tag names the very version that was checked; and before
                # the views, which rows that do not meet the expectations must not reach.
                if self._check_expectations(version):
                    for view in self.plan.views:
                        self._refresh_view(view)
                    self._publish()
            report.rows = int(self.plan.address.to_ref(version=self.version).open().count_rows())
            if report.state == UNFINISHED:
                report.state = DONE if report.has_changed else BEFORE
        except BaseException as error:
            report.fail(error)
            raise
        finally:
            report.seconds = round(monotonic() - started, 3)
            report.version_after = self.version or None

    @contextmanager
    def _record_step(self, name: str, where: str) -> Iterator[RunStep]:
        started, step = monotonic(), RunStep(name, where)
        if self.listener is not None:
            self.listener(name, None)
        self.report.steps.append(step)
        try:
            with tracing.span(f"step {name}"), self._watch_tasks():
                yield step
        except BaseException as error:
            step.state, step.says = FAILED, str(error)
            raise
        finally:
            step.seconds = round(monotonic() - started, 3)
            step.version = step.version or self.version or None

    def _watch_tasks(self) -> AbstractContextManager[None]:
        if self.spark is None:  # the engine reports them
            return nullcontext()
        return watch_tasks(self.spark, None if self.listener is None else self._report_tasks)

    def _report_tasks(self, tasks: TaskProgress) -> None:
        if self.listener is not None:
            self.listener(self.report.steps[-1].step, tasks)

    # Rows

    def _write_rows(self) -> int:
        """Write the rows, unless an earlier call of the run did; return the version that has them."""
        plan, report, mode = self.plan, self.report, self.plan.shape.sink.mode
        with self._record_step("write", ARROW if plan.frame is None else SPARK) as step:
            existing = plan.state.run_version
            version = self._run_write() if existing is None else existing
            if existing is not None:
                step.state, step.says = BEFORE, f"this run made version {version}"
            self.version = version if existing is None else int(self.table.open().version)
            self.has_own_rows = mode != "merge" or commits.find_run(self.table, version) == plan.state.attempt
            report.rows_out = step.rows = commits.count_rows_added(self.table, version) if self.has_own_rows else 0
        return version

    def _run_write(self) -> int:
        plan = self.plan
        mode = plan.shape.sink.mode
        if plan.frame is None:
            source = plan.origin.open(self.engine.parallelism)
            result = ingest.run_ingest(
                self.engine,
                self.address,
                source,
                plan.origin.name,
                mode,
                plan.write_options,
                BlobTransform(plan.transform, source.schema),
                plan.target,
                inputs=plan.origin.inputs,
            )
            self.report.rows_in = result.rows
            return result.version
        try:
            if mode == "merge":
                return self._merge()
            write = {"create": table_writer.create, "append": table_writer.append, "overwrite": table_writer.overwrite}[
                mode
            ]
            if mode == "append" and not self.table.exists():
                write = table_writer.create
            return write(plan.frame, self.address, plan.write_options)
        finally:
            with suppress(LanceNamespaceError):  # the table may be gone again
                self.report.rows_in = plan.count.take()

    def _merge(self) -> int:
        """Merge the rows; a missing table is declared first."""
        plan = self.plan
        declared = declare_table(self.table)
        try:
            sink = plan.shape.sink
            result = merge.merge(
                plan.frame, self.address, sink.on, plan.merge_rules, plan.write_options, latest_by=sink.latest_by
            )
            return result.version
        except BaseException as error:
            if declared and (not isinstance(error, LanceNamespaceError) or commits.is_refusal(error)):
                undo_declaration(self.table)
            raise

    # Computed columns and views

    def _fill_column(self, address: TableAddress, column: PlannedColumn, name: str) -> int:
        """Define a column if it is not, and fill the rows that lack it; return the version of its table."""
        with self._record_step(f"column {name}", ARROW) as step:
            functions = {column.name: column.function}
            columns.define_columns(self.engine, address, functions, allow_changed=column.allow_changed)
            result = columns.backfill(self.engine, address, functions, column.options)
            step.version, step.rows, step.failed = result.version, result.filled, result.failed + result.skipped
            if step.failed:
                step.says = f"failed for {step.failed} rows: lancehouse table errors tells them"
            elif not step.rows:
                step.state = IDLE
        return result.version

    def _refresh_view(self, view: PlannedView) -> None:
        """Create or refresh a view, then fill its columns and build its indices."""
        with self._record_step(f"view {view.name}", ARROW) as step:
            result = views.create_view(
                self.engine, view.address, view.source, view.part.columns, view.function, view.part.where, view.options
            )
            step.version, step.rows, step.deleted = result.version, result.inserted, result.deleted
            step.says = f"shows version {result.source_version} of {format_levels(view.source.id)}"
            if not result.inserted and not result.deleted:
                step.state = IDLE
        for column in view.columns:
            self._fill_column(view.address, column, f"{view.name}.{column.name}")
        for index in view.part.indices:
            self._build_index(view.address, index, f"{view.name}.{index.index_name}")

    # Maintenance

    def _build_index(self, address: TableAddress, index: IndexPart, name: str) -> int | None:
        """Build an index, or add new rows to it; return the version that this made, if it made one."""
        with self._record_step(f"index {name}", ARROW) as step:
            existing = index_building.find_index(address.to_ref(), index.index_name)
            if existing is not None and not existing.unindexed:
                step.state, step.says = BEFORE, "it is there"
            elif existing is not None:
                step.version = retry_conflicts(
                    address, lambda: index_building.optimize_indices(self.engine, address, [index.index_name])
                )
                step.rows, step.says = existing.unindexed, "new rows were taken in"
            else:
                result = retry_conflicts(
                    address,
                    lambda: index_building.create_index(
                        self.engine, address, index.column, index.kind, index.index_name, False, index.params
                    ),
                )
                step.version = result.version
        return step.version if step.state == DONE else None

    def _compact(self) -> None:
        options = self.plan.shape.compact
        if options is None:
            return
        with self._record_step("compact", ARROW) as step:
            result = retry_conflicts(self.address, lambda: compaction.compact(self.engine, self.address, dict(options)))
            if not result.fragments_removed:
                step.state = IDLE
                return
            self.version = result.version
            step.says = f"{result.fragments_removed} fragments became {result.fragments_added}"

    # Expectations and publishing

    def _check_expectations(self, version: int) -> bool:
        """Return whether all expectations are met; restore the version before the run if they are not and that is
        wanted.
        """
        expect = self.plan.shape.expect
        if expect == type(expect)(on_failure=expect.on_failure):
            return True
        with self._record_step("expect", ARROW) as step:
            failures = target_table.find_failures(self.engine, self.address, self.version, expect)
            if not failures:
                step.says = f"all holds in version {self.version}"
                return True
            step.state, step.says = FAILED, "; ".join(failures)
            self.report.state, self.report.failures = FAILED, failures
        if expect.on_failure == "restore":
            self._restore(version)
        return False

    def _restore(self, version: int) -> None:
        """Restore the version before the run, unless others have changed the table since."""
        with self._record_step("restore", DRIVER) as step:
            computed, names = definitions(self.table.open().schema), [column.name for column in self.plan.columns]
            own = [*names, *(computed[name].companion for name in names if name in computed)]
            before, latest = version - 1, commits.find_latest_if_only_maintenance(self.table, version, own)
            if not self.has_own_rows:
                step.state, step.says = SKIPPED, "this run has changed nothing"
            elif before < 1:
                step.state, step.says = SKIPPED, "this run made the table: there is no version before it"
            elif latest is None:
                step.state, step.says = SKIPPED, "others have changed the table since: their changes would be lost"
            else:
                try:
                    self.version = commits.restore(self.table, locate_table(self.table), before, latest)
                    step.says = f"version {before} is back"
                except ConcurrentModificationError:
                    step.state, step.says = SKIPPED, "others have just changed the table: their changes would be lost"

    def _is_published(self, version: int) -> bool:
        """Return whether an earlier call of the run has published its version, or a later one, so that nothing is
        left to do.
        """
        publish, [write] = self.plan.shape.publish, self.report.steps
        return publish is not None and write.state == BEFORE and self._tagged_version(publish.tag) >= version

    def _tagged_version(self, tag: str) -> int:
        branch, version = list_tags(self.table).get(tag, (None, 0))
        return version if branch in (None, "main") else 0

    def _skip(self) -> None:
        shape = self.plan.shape
        assert shape.publish is not None
        self.version = self._tagged_version(shape.publish.tag)
        self.report.tag = shape.publish.tag
        names = [
            *(f"column {column.name}" for column in self.plan.columns),
            *(f"index {index.index_name}" for index in shape.indices),
            *(["compact"] if shape.compact is not None else []),
            "expect",
            *(f"view {view.name}" for view in self.plan.views),
        ]
        for name in (*names, "publish"):
            self.report.steps.append(RunStep(name, DRIVER, BEFORE, self.version))

    def _publish(self) -> None:
        """Set the tag to the version that was checked; it never goes back to an older version."""
        publish = self.plan.shape.publish
        if publish is None:
            return
        with self._record_step("publish", DRIVER) as step:
            assert self.table.namespace is not None
            tagged, table = self._tagged_version(publish.tag), list(self.address.id)
            if tagged >= self.version:
                step.state = BEFORE
                step.says = f"{publish.tag} names version {tagged}"
            elif tagged or publish.tag in list_tags(self.table):
                self.table.namespace.update_table_tag(
                    UpdateTableTagRequest(id=table, tag=publish.tag, version=self.version)
                )
            else:
                self.table.namespace.create_table_tag(
                    CreateTableTagRequest(id=table, tag=publish.tag, version=self.version)
                )
            step.says = step.says or f"{publish.tag} names version {self.version}"
            self.report.tag = publish.tag


def create_report(plan: PipelinePlan) -> RunReport:
    """Return the report of a run that has done nothing yet."""
    return RunReport(plan.shape.name, plan.run, format_levels(plan.address.id), version_before=plan.state.version)
