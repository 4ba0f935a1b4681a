"""How far Spark is with its tasks, for people who wait for it."""

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
"""How often a session of this process is asked."""

FINISHED = ("SUCCEEDED", "FAILED")


@dataclass(frozen=True, slots=True)
class Done:
    """Tasks of all jobs so far; there may be more of them than are known yet."""

    done: int
    total: int


Said = Callable[[Done], None]


@contextmanager
def watch(spark: SparkSession, said: Said | None) -> Iterator[None]:
    """Tell of the tasks of all jobs that this thread starts inside; of none, where a session does not let itself watch.

    Args:
        spark: the session.
        said: called with every change, possibly in another thread; it must not raise. None: nobody watches.
    """
    if said is None:
        yield
        return
    heard = _Heard(said)
    if not _register(spark, heard):
        with _polled(spark, heard):
            yield
        return
    try:
        yield
    finally:
        spark.removeProgressHandler(heard)


class _Heard:
    """The tasks of each job or operation, and what was said of them; as a progress handler, that of Spark Connect."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._tasks: dict[object, Done] = {}
        self._last = Done(0, 0)
        self._thread = threading.get_ident()

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002 - the names are Spark's
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Take note of an operation. Spark says its last word of one that ends, in the thread that waits for it."""
        if threading.get_ident() != self._thread:
            return
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        finished, total = sum(each for each, _ in counts), sum(each for _, each in counts)
        self.note({operation_id: Done(total if done else finished, total)})

    def note(self, tasks: dict[object, Done]) -> None:
        """Take note of some jobs, and say what is new."""
        self._tasks.update(tasks)
        known = self._tasks.values()
        now = Done(sum(each.done for each in known), sum(each.total for each in known))
        if now != self._last:
            self._last = now
            self._said(now)

    def finish(self) -> None:
        """All jobs that are known have ended well, though the last news of them may be on its way."""
        self.note({job: Done(each.total, each.total) for job, each in self._tasks.items()})


def _register(spark: SparkSession, heard: _Heard) -> bool:
    """Have Spark Connect tell; False if it is another session."""
    try:
        spark.registerProgressHandler(heard)
    except (PySparkException, AttributeError):
        return False
    return True


@contextmanager
def _polled(spark: SparkSession, heard: _Heard) -> Iterator[None]:
    """Ask a session of this process, in a thread, for the jobs that carry a tag."""
    tag = f"lancehouse-{uuid4().hex}"
    try:
        context = spark.sparkContext
        jobs = _Jobs(context, tag)
        context.addJobTag(tag)
    except (PySparkException, Py4JError, AttributeError):
        yield
        return
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(INTERVAL_S) and jobs.tell(heard):
            pass

    thread = threading.Thread(target=poll, name=tag, daemon=True)
    thread.start()
    try:
        yield
        ended.set()
        thread.join()
        if jobs.tell(heard):
            heard.finish()
    finally:
        ended.set()
        thread.join()
        _forget(context, tag)


class _Jobs:
    """The jobs with a tag. Those that have ended are not asked for again: Spark forgets them in time."""

    def __init__(self, context: Any, tag: str) -> None:
        self._tag = tag
        self._tagged = context._jsc.sc().statusTracker()  # Python's own does not know tags
        self._tracker = context.statusTracker()
        self._ended: set[int] = set()

    def tell(self, heard: _Heard) -> bool:
        """Say how far they are; False if there is nobody to ask any more."""
        try:
            found = {job: self._tasks(job) for job in self._tagged.getJobIdsForTag(self._tag) if job not in self._ended}
        except (Py4JError, OSError):
            return False
        heard.note({job: tasks for job, tasks in found.items() if tasks is not None})
        return True

    def _tasks(self, job: int) -> Done | None:
        info = self._tracker.getJobInfo(job)
        if info is None:
            return None
        stages = [stage for each in info.stageIds if (stage := self._tracker.getStageInfo(each)) is not None]
        done = sum(stage.numCompletedTasks for stage in stages)
        if info.status in FINISHED:
            self._ended.add(job)
            return Done(done, done)  # stages that were skipped have tasks that never run
        return Done(done, sum(stage.numTasks for stage in stages))


def _forget(context: Any, tag: str) -> None:
    try:
        context.removeJobTag(tag)
    except (PySparkException, Py4JError, AttributeError, OSError):
        return  # the session was stopped inside
