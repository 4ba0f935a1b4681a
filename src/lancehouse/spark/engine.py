"""`SparkEngine`: run the pieces of jobs in Spark tasks, restore the errors that these raise, watch their progress."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from lancehouse import tracing
from lancehouse.jobs.engine import ProgressCallback, TaskProgress, is_repeated

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

RESULT = pa.schema([("result", pa.string())])
"""Arrow schema of the texts that tasks return."""
RESULT_STRUCT = StructType().add("result", "string")
PROBE_ROWS = 1 << 16
"""Number of rows of the range that shows how many tasks a cluster runs at once."""
INTERVAL_S = 0.2
"""How often a classic session is polled, in seconds."""

_WIDTH = 8
"""Number of fields that make a row of pieces wide."""
_WIDE = f"STRUCT<{', '.join(f'f{number}: BINARY' for number in range(_WIDTH))}>"
_MOST_SIZE = 16 << 30
"""Size in bytes that no table has which Spark sends to all tasks."""

FINISHED = ("SUCCEEDED", "FAILED")

_OURS = re.compile(r"^((?:lance_namespace|lancehouse)\.[\w.]+)\.(\w+): ", re.MULTILINE)
_RAISED = re.compile(r"^(?:\S+\.)?(\w+Error): (.*)", re.MULTILINE | re.DOTALL)
_DATA = re.compile(r"SQLSTATE: 22\w{3}")
"""What SQL's standard calls a data exception: a value that cannot be cast, a division by zero."""
_ABSENT = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_END = re.compile(r"\n\s*(?:at \S+\(|Driver stacktrace|JVM stacktrace)", re.DOTALL)

_tasks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class SparkEngine:
    """Runs pieces in Spark tasks, each in one of its own; they are sent to executors."""

    shares_memory = False

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at once."""
        return parallelism(self.spark)

    def run(
        self, pieces: Sequence[T], work: Callable[[T], Iterable[str]], resources: Mapping[str, float] | None = None
    ) -> list[str]:
        """Return the texts that `work` makes of all pieces. See `lancehouse.jobs.engine.Engine`."""
        attributes = {"lancehouse.pieces": len(pieces)}
        with tracing.span(f"job {tracing.name_work(work)}", attributes), translate_task_errors():
            return collect_results(self.spark, pieces, work, resources)


# Tasks


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, measured by a small query, as Spark Connect offers no other way."""
    if spark not in _tasks:
        numbers = spark.range(PROBE_ROWS).select(functions.spark_partition_id().alias("number"))
        _tasks[spark] = numbers.agg(functions.max("number")).first()[0] + 1
    return _tasks[spark]


def run_in_tasks(
    spark: SparkSession,
    pieces: Sequence[T],
    work: Callable[[T], Batches],
    schema: StructType,
    resources: Mapping[str, float] | None = None,
    size: int = 0,
) -> DataFrame:
    """Return a DataFrame of the batches that `work` yields for all pieces, each in a task of its own.

    Args:
        spark: the session.
        pieces: the pieces of work. They and `work` are sent to executors, so they must not hold an open table.
        work: called in the task with its piece.
        schema: Spark schema of the batches.
        resources: what a task needs of its executor besides a core.
        size: about how many bytes the batches have, for joins: Spark sends what it takes to be small to all tasks.
    """
    carried = tracing.carry()

    def run(numbers: Batches) -> Batches:
        _note_attempt()
        for batch in numbers:
            for number in batch.column(0).to_numpy():
                with tracing.task_span(carried, "piece", {"lancehouse.piece": int(number)}):
                    yield from work(pieces[number])

    numbers = _number_pieces(spark, len(pieces), size)
    return numbers.mapInArrow(run, schema, profile=_resource_profile(resources) if resources else None)


def _number_pieces(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Return the numbers of pieces, each in a partition of its own, as a DataFrame that Spark takes to have a size.

    Spark believes that what tasks make in Python is as large as what they get, which is a few numbers: it would collect
    the largest table of a join in the driver to broadcast it. So the pieces are the rest of a long range of which a
    filter leaves one number in each partition, beside a wide column that is null. Spark knows the length of the range
    and the widths of types, and does not guess what a filter leaves.
    """
    width = 8 + 8 + _WIDTH * 100  # of a row, to Spark: itself, the number, and values of type binary
    rows_per_piece = min(size, _MOST_SIZE) // width // max(count, 1)
    bits = rows_per_piece.bit_length()
    if not bits:
        return spark.range(0, count, 1, max(count, 1))
    numbers = spark.range(0, count << bits, 1, count).where(f"(id & {(1 << bits) - 1}) = 0")
    # Texts: each expression of a classic session's Python API costs several calls of the JVM.
    return numbers.selectExpr(f"shiftright(id, {bits}) AS id", f"CAST(NULL AS {_WIDE}) AS wide")


def _note_attempt() -> None:
    """Tell the piece whether it is repeated. Not inside the function that is sent to tasks: a ContextVar cannot be."""
    context = TaskContext.get()
    is_repeated.set(context is not None and context.attemptNumber() > 0)


def _resource_profile(resources: Mapping[str, float]) -> ResourceProfile:
    requests = TaskResourceRequests().cpus(1)
    for name, amount in resources.items():
        requests = requests.resource(name, amount)
    return ResourceProfileBuilder().require(requests).build


def collect_results(
    spark: SparkSession,
    pieces: Sequence[T],
    work: Callable[[T], Iterable[str]],
    resources: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the texts that `work` makes of all pieces, each in a task of its own."""
    if not pieces:
        return []
    return collect_texts(
        run_in_tasks(spark, pieces, lambda piece: to_result_batches(work(piece)), RESULT_STRUCT, resources)
    )


def to_result_batches(values: Iterable[str]) -> Batches:
    """Yield texts as a record batch that a task returns to Spark."""
    yield pa.record_batch([pa.array(list(values), pa.string())], schema=RESULT)


def collect_texts(frame: DataFrame) -> list[str]:
    """Return the texts that tasks have made."""
    values: list[Any] = frame.toArrow().column(0).to_pylist()
    return values


# Errors


@contextmanager
def translate_task_errors() -> Iterator[None]:
    """Raise the Lance error that a task raised; for other errors, raise Spark's message without the stack traces.

    An interrupt stays one: PySpark cancels the job then, whose error comes while the interrupt is handled.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        if isinstance(error, Py4JJavaError):
            raise
        raise _to_lance_error(str(error)) from error


def _to_lance_error(text: str) -> LanceNamespaceError:
    if absent := _ABSENT.search(text):
        return InvalidInputError(
            f"the executors have no module {absent[1]}, which a function needs: send it to them before the call with "
            f"spark.addArtifacts('{absent[1].partition('.')[0]}.py', pyfile=True), or start Spark with --py-files; a "
            "package is sent as a .zip"
        )
    for match in reversed(list(_OURS.finditer(text))):
        kind = getattr(import_module(match[1]), match[2], None)
        if isinstance(kind, type) and issubclass(kind, LanceNamespaceError):
            return kind(_strip_traces(text[match.end() :]))
    if _DATA.search(text):
        return InvalidInputError(_strip_traces(text))
    raised = _RAISED.search(text)
    return InternalError(f"Spark could not do it: {_strip_traces(raised[0] if raised else text)}")


def _strip_traces(text: str) -> str:
    """Return a message up to where the stack traces begin."""
    return _END.split(text, maxsplit=1)[0].split("\n\n", 1)[0].strip()


# Progress


@contextmanager
def watch_tasks(spark: SparkSession, report_progress: ProgressCallback | None) -> Iterator[None]:
    """Report the tasks of all jobs that this thread starts inside the block.

    Nothing is reported if the session offers no way to watch it.

    Args:
        spark: the session.
        report_progress: called with every change, possibly in another thread; it must not raise. None: do not watch.
    """
    if report_progress is None:
        yield
        return
    listener = _ProgressListener(report_progress)
    if not _register_listener(spark, listener):
        with _poll_in_thread(spark, listener):
            yield
        return
    try:
        yield
    finally:
        spark.removeProgressHandler(listener)


class _ProgressListener:
    """Sums up the tasks of jobs or operations and reports changes; callable as a progress handler of Spark Connect."""

    def __init__(self, report_progress: ProgressCallback) -> None:
        self._report_progress = report_progress
        self._tasks: dict[object, TaskProgress] = {}
        self._last = TaskProgress(0, 0)
        self._thread = threading.get_ident()

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002 - the names are Spark's
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Update the counts of an operation, unless another thread started it.

        Spark calls this in the thread that waits for the operation, which tells the operations of this thread from
        others.
        """
        if threading.get_ident() != self._thread:
            return
        stages = list(stages or ())
        finished, total = sum(stage.num_completed_tasks for stage in stages), sum(stage.num_tasks for stage in stages)
        self.update({operation_id: TaskProgress(total if done else finished, total)})

    def update(self, tasks: dict[object, TaskProgress]) -> None:
        """Update the counts of some jobs, and report the total if it has changed."""
        self._tasks.update(tasks)
        jobs = self._tasks.values()
        progress = TaskProgress(sum(job.done for job in jobs), sum(job.total for job in jobs))
        if progress != self._last:
            self._last = progress
            self._report_progress(progress)

    def finish_all(self) -> None:
        """Report all known jobs as done: they have succeeded, though the last counts may not have arrived."""
        self.update({job: TaskProgress(tasks.total, tasks.total) for job, tasks in self._tasks.items()})


def _register_listener(spark: SparkSession, listener: _ProgressListener) -> bool:
    """Register the listener with Spark Connect; return False if the session is a classic one."""
    try:
        spark.registerProgressHandler(listener)
    except (PySparkException, AttributeError):
        return False
    return True


@contextmanager
def _poll_in_thread(spark: SparkSession, listener: _ProgressListener) -> Iterator[None]:
    """Poll a classic session, in a thread, for the jobs of this thread, which carry a tag."""
    tag = f"lancehouse-{uuid4().hex}"
    try:
        context = spark.sparkContext
        jobs = _TaggedJobs(context, tag)
        context.addJobTag(tag)
    except (PySparkException, Py4JError, AttributeError):
        yield
        return
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(INTERVAL_S) and jobs.report(listener):
            pass

    thread = threading.Thread(target=poll, name=tag, daemon=True)
    thread.start()
    try:
        yield
        ended.set()
        thread.join()
        if jobs.report(listener):
            listener.finish_all()
    finally:
        ended.set()
        thread.join()
        _remove_tag(context, tag)


class _TaggedJobs:
    """The jobs with a tag. Finished jobs are not polled again: Spark drops them after some time."""

    def __init__(self, context: Any, tag: str) -> None:
        self._tag = tag
        self._tag_tracker = context._jsc.sc().statusTracker()  # Python's own does not know tags
        self._tracker = context.statusTracker()
        self._ended: set[int] = set()

    def report(self, listener: _ProgressListener) -> bool:
        """Pass the counts of the jobs to the listener; return False if the session cannot be asked any more."""
        try:
            progress_by_job = {
                job: self._job_progress(job)
                for job in self._tag_tracker.getJobIdsForTag(self._tag)
                if job not in self._ended
            }
        except (Py4JError, OSError):
            return False
        listener.update({job: tasks for job, tasks in progress_by_job.items() if tasks is not None})
        return True

    def _job_progress(self, job: int) -> TaskProgress | None:
        info = self._tracker.getJobInfo(job)
        if info is None:
            return None
        stages = [stage for stage_id in info.stageIds if (stage := self._tracker.getStageInfo(stage_id)) is not None]
        finished = sum(stage.numCompletedTasks for stage in stages)
        if info.status in FINISHED:
            self._ended.add(job)
            return TaskProgress(finished, finished)  # stages that were skipped have tasks that never run
        return TaskProgress(finished, sum(stage.numTasks for stage in stages))


def _remove_tag(context: Any, tag: str) -> None:
    try:
        context.removeJobTag(tag)
    except (PySparkException, Py4JError, AttributeError, OSError):
        return  # the session was stopped inside
