"""A plan carried out: each step is done once, whichever run of the same id does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from lance_namespace import CreateTableTagRequest, UpdateTableTagRequest
from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError
from pyspark.sql import SparkSession

from lancehouse.identifiers import write_levels
from lancehouse.lake import commits, indexing
from lancehouse.lake.changes import in_attempts
from lancehouse.lake.fragments import place
from lancehouse.lake.versions import tags
from lancehouse.spark import ingesting, maintenance, merging, writing
from lancehouse.spark.pipelines import expectations
from lancehouse.spark.pipelines.blobs import Opening
from lancehouse.spark.pipelines.lines import ARROW, DRIVER, SPARK
from lancehouse.spark.pipelines.planning import Plan
from lancehouse.spark.pipelines.reports import BEFORE, DONE, FAILED, IDLE, SKIPPED, UNFINISHED, Report, Step
from lancehouse.spark.pipelines.shape import IndexPart
from lancehouse.spark.session import parallelism
from lancehouse.spark.watching import Done, watch

Listener = Callable[[str, Done | None], None]
"""Told of each step when it begins, and of its tasks."""


def run(plan: Plan, spark: SparkSession, said: Listener | None, report: Report) -> None:
    """Carry out a plan; the report tells of it, also if this raises.

    Raises:
        LanceNamespaceError: a step failed. What came before it is done, and stays so.
    """
    _Running(plan, spark, said, report).run()


class _Running:
    def __init__(self, plan: Plan, spark: SparkSession, said: Listener | None, report: Report) -> None:
        self.plan, self.spark, self.said, self.report = plan, spark, said, report
        self.address, self.table = plan.address, plan.address.ref()
        self.version = 0
        """Of the table, with all that was done so far."""
        self.is_ours = True
        """Whether rows of this run are in it: a merge that changes nothing makes no version."""

    def run(self) -> None:
        begun, report = monotonic(), self.report
        try:
            made = self._write()
            if self._is_published(made):
                self._skip()
            else:
                for index in self.plan.shape.indices:
                    self._index(index)
                self._compact()
                if self._expect(made):
                    self._publish()
            report.rows = int(self.plan.address.ref(version=self.version).open().count_rows())
            if report.state == UNFINISHED:
                report.state = DONE if report.has_changed else BEFORE
        except BaseException as error:
            report.fail(error)
            raise
        finally:
            report.seconds = round(monotonic() - begun, 3)
            report.version_after = self.version or None

    @contextmanager
    def _step(self, name: str, where: str) -> Iterator[Step]:
        begun, step = monotonic(), Step(name, where)
        if self.said is not None:
            self.said(name, None)
        self.report.steps.append(step)
        said = self.said
        try:
            with watch(self.spark, None if said is None else lambda done: said(name, done)):
                yield step
        except BaseException as error:
            step.state, step.says = FAILED, str(error)
            raise
        finally:
            step.seconds = round(monotonic() - begun, 3)
            step.version = self.version or None

    # Rows

    def _write(self) -> int:
        """Have the rows in the table; the version that the run made of them."""
        plan, report, mode = self.plan, self.report, self.plan.shape.sink.mode
        with self._step("write", ARROW if plan.frame is None else SPARK) as step:
            known = plan.state.made
            made = self._written() if known is None else known
            if known is not None:
                step.state, step.says = BEFORE, f"this run made version {made}"
            self.version = made if known is None else int(self.table.open().version)
            self.is_ours = mode != "merge" or commits.run_of(self.table, made) == plan.state.attempt
            report.rows_out = step.rows = commits.rows_added(self.table, made) if self.is_ours else 0
        return made

    def _written(self) -> int:
        plan = self.plan
        mode = plan.shape.sink.mode
        if plan.frame is None:
            found = plan.origin.open(parallelism(self.spark))
            done = ingesting.bring(
                self.spark,
                self.address,
                found,
                plan.origin.name,
                mode,
                plan.how,
                Opening(plan.transform, found.schema),
                plan.target,
            )
            self.report.rows_in = done.rows
            return done.version
        try:
            if mode == "merge":
                return self._merged()
            write = {"create": writing.create, "append": writing.append, "overwrite": writing.overwrite}[mode]
            if mode == "append" and not self.table.exists():
                write = writing.create
            return write(plan.frame, self.address, plan.how)
        finally:
            with suppress(LanceNamespaceError):  # the table may be gone again
                self.report.rows_in = plan.count.take()

    def _merged(self) -> int:
        """Merge, into a table that is made for it if there is none."""
        plan = self.plan
        declared = writing.declare(self.table)
        try:
            sink = plan.shape.sink
            done = merging.merge(plan.frame, self.address, sink.on, plan.rules, plan.how, latest_by=sink.latest_by)
            return done.version
        except BaseException as error:
            if declared and (not isinstance(error, LanceNamespaceError) or commits.is_refusal(error)):
                writing.take_back(self.table)
            raise

    # Upkeep

    def _index(self, index: IndexPart) -> None:
        with self._step(f"index {index.called}", ARROW) as step:
            known = indexing.known(self.table, index.called)
            if known is not None and not known.unindexed:
                step.state, step.says = BEFORE, "it is there"
                return
            if known is not None:
                self.version = in_attempts(
                    self.address,
                    lambda: maintenance.optimize_indices(self.spark, self.address, [index.called], False),
                )
                step.rows, step.says = known.unindexed, "new rows were taken in"
                return
            made = in_attempts(
                self.address,
                lambda: maintenance.create_index(
                    self.spark, self.address, index.column, index.kind, index.called, False, index.params
                ),
            )
            self.version = made.version

    def _compact(self) -> None:
        options = self.plan.shape.compact
        if options is None:
            return
        with self._step("compact", ARROW) as step:
            done = in_attempts(self.address, lambda: maintenance.compact(self.spark, self.address, dict(options)))
            if not done.fragments_removed:
                step.state = IDLE
                return
            self.version = done.version
            step.says = f"{done.fragments_removed} fragments became {done.fragments_added}"

    # What readers may see

    def _expect(self, made: int) -> bool:
        """Whether all that is expected holds."""
        expect = self.plan.shape.expect
        if expect == type(expect)(on_failure=expect.on_failure):
            return True
        with self._step("expect", ARROW) as step:
            failures = expectations.failures(self.spark, self.address, self.version, expect)
            if not failures:
                step.says = f"all holds in version {self.version}"
                return True
            step.state, step.says = FAILED, "; ".join(failures)
            self.report.state, self.report.failures = FAILED, failures
        if expect.on_failure == "restore":
            self._restore(made)
        return False

    def _restore(self, made: int) -> None:
        """Put the version from before the run back, unless others have changed the table since."""
        with self._step("restore", DRIVER) as step:
            before, latest = made - 1, commits.only_upkeep_since(self.table, made)
            if not self.is_ours:
                step.state, step.says = SKIPPED, "this run has changed nothing"
            elif before < 1:
                step.state, step.says = SKIPPED, "this run made the table: there is no version before it"
            elif latest is None:
                step.state, step.says = SKIPPED, "others have changed the table since: their changes would be lost"
            else:
                try:
                    self.version = commits.restore(self.table, place(self.table), before, latest)
                    step.says = f"version {before} is back"
                except ConcurrentModificationError:
                    step.state, step.says = SKIPPED, "others have just changed the table: their changes would be lost"

    def _is_published(self, made: int) -> bool:
        """Whether the run is done and others have gone on from there: then nothing is left to do."""
        publish, [write] = self.plan.shape.publish, self.report.steps
        return publish is not None and write.state == BEFORE and self._tagged(publish.tag) >= made

    def _tagged(self, tag: str) -> int:
        branch, version = tags(self.table).get(tag, (None, 0))
        return version if branch in (None, "main") else 0

    def _skip(self) -> None:
        shape = self.plan.shape
        assert shape.publish is not None
        self.version = self._tagged(shape.publish.tag)
        self.report.tag = shape.publish.tag
        names = [
            *(f"index {each.called}" for each in shape.indices),
            *(["compact"] if shape.compact is not None else []),
        ]
        for name in (*names, "expect", "publish"):
            self.report.steps.append(Step(name, DRIVER, BEFORE, self.version))

    def _publish(self) -> None:
        """Let the tag name the version that was checked; it never goes back to an older one."""
        publish = self.plan.shape.publish
        if publish is None:
            return
        with self._step("publish", DRIVER) as step:
            assert self.table.namespace is not None
            known, table = self._tagged(publish.tag), list(self.address.id)
            if known >= self.version:
                step.state = BEFORE
                step.says = f"{publish.tag} names version {known}"
            elif known or publish.tag in tags(self.table):
                self.table.namespace.update_table_tag(
                    UpdateTableTagRequest(id=table, tag=publish.tag, version=self.version)
                )
            else:
                self.table.namespace.create_table_tag(
                    CreateTableTagRequest(id=table, tag=publish.tag, version=self.version)
                )
            step.says = step.says or f"{publish.tag} names version {self.version}"
            self.report.tag = publish.tag


def begun(plan: Plan) -> Report:
    """The report of a run that has not done anything yet."""
    return Report(plan.shape.name, plan.run, write_levels(plan.address.id), version_before=plan.state.version)
