"""Report the progress of Spark tasks to a callback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

INTERVAL_S = 0.2
"""How often a classic session is polled, in seconds."""

FINISHED = ("SUCCEEDED", "FAILED")


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Number of tasks of all jobs so far; more may become known later."""

    done: int
    total: int


ProgressCallback = Callable[[TaskProgress], None]


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
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        finished, total = sum(each for each, _ in counts), sum(each for _, each in counts)
        self.update({operation_id: TaskProgress(total if done else finished, total)})

    def update(self, tasks: dict[object, TaskProgress]) -> None:
        """Update the counts of some jobs, and report the total if it has changed."""
        self._tasks.update(tasks)
        counts = self._tasks.values()
        now = TaskProgress(sum(each.done for each in counts), sum(each.total for each in counts))
        if now != self._last:
            self._last = now
            self._report_progress(now)

    def finish_all(self) -> None:
        """Report all known jobs as done: they have succeeded, though the last counts may not have arrived."""
        self.update({job: TaskProgress(each.total, each.total) for job, each in self._tasks.items()})


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
        stages = [stage for each in info.stageIds if (stage := self._tracker.getStageInfo(each)) is not None]
        done = sum(stage.numCompletedTasks for stage in stages)
        if info.status in FINISHED:
            self._ended.add(job)
            return TaskProgress(done, done)  # stages that were skipped have tasks that never run
        return TaskProgress(done, sum(stage.numTasks for stage in stages))


def _remove_tag(context: Any, tag: str) -> None:
    try:
        context.removeJobTag(tag)
    except (PySparkException, Py4JError, AttributeError, OSError):
        return  # the session was stopped inside
