from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancehouse.jobs.engine import TaskProgress
from lancehouse.spark.engine import watch_tasks

WAIT_S = 60


@pytest.fixture
def heard(tmp_path: Path) -> ProgressListener:
    return ProgressListener(tmp_path / "heard")


class ProgressListener:
    """Keeps what is said, and lets tasks wait for it."""

    def __init__(self, file: Path) -> None:
        self.news: list[TaskProgress] = []
        self._file = file

    def __call__(self, now: TaskProgress) -> None:
        self.news.append(now)
        self._file.touch()

    def waiting(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Work that does not end before something was said."""
        file = str(self._file)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            deadline = time.monotonic() + WAIT_S
            while not Path(file).exists():
                assert time.monotonic() < deadline, "nothing was said"
                time.sleep(0.02)
            yield from batches

        return work


def tasks(spark: Any, count: int, work: Any) -> list[Any]:
    found: list[Any] = spark.range(0, count, 1, count).mapInArrow(work, "id long").collect()
    return found


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lancehouse-")]


def test_the_tasks_of_all_jobs_are_told(spark: Any, heard: ProgressListener) -> None:
    with watch_tasks(spark, heard):
        assert len(watchers()) == 1
        assert len(tasks(spark, 5, heard.waiting())) == 5
        heard._file.unlink()
        tasks(spark, 3, heard.waiting())
    assert heard.news[0].total == 5
    assert heard.news[-1] == TaskProgress(8, 8)
    assert all(now.done <= now.total for now in heard.news)
    assert [now for now in heard.news if heard.news.count(now) > 1] == []
    assert watchers() == []
    assert set(spark.sparkContext.getJobTags()) == set()


def test_stages_that_are_skipped_do_not_count_in_the_end(spark: Any, heard: ProgressListener) -> None:
    with watch_tasks(spark, heard):
        rows = spark.range(0, 4, 1, 4).mapInArrow(heard.waiting(), "id long")
        assert rows.groupBy((rows.id % 2).alias("odd")).count().orderBy("odd").count() == 2
    assert heard.news[-1].done == heard.news[-1].total


def test_jobs_of_another_thread_are_not_told(spark: Any, heard: ProgressListener) -> None:
    def elsewhere() -> None:
        tasks(spark, 7, lambda batches: batches)

    thread = threading.Thread(target=elsewhere)
    with watch_tasks(spark, heard):
        thread.start()
        thread.join()
        tasks(spark, 2, heard.waiting())
    assert heard.news[-1] == TaskProgress(2, 2)


def test_watches_may_be_inside_each_other(spark: Any, heard: ProgressListener) -> None:
    outer: list[TaskProgress] = []
    with watch_tasks(spark, outer.append):
        with watch_tasks(spark, heard):
            tasks(spark, 2, heard.waiting())
        heard._file.unlink()
        with watch_tasks(spark, heard):
            tasks(spark, 3, heard.waiting())
    assert heard.news[-1] == TaskProgress(3, 3)
    assert outer[-1] == TaskProgress(5, 5)


def test_an_error_passes_and_nothing_stays(spark: Any, heard: ProgressListener) -> None:
    with pytest.raises(ZeroDivisionError), watch_tasks(spark, heard):
        tasks(spark, 2, heard.waiting())
        raise ZeroDivisionError
    assert watchers() == []
    assert set(spark.sparkContext.getJobTags()) == set()


@pytest.mark.parametrize("session", [object(), None], ids=["neither kind", "none"])
def test_a_session_that_cannot_be_watched(session: Any, heard: ProgressListener) -> None:
    with watch_tasks(session, heard):
        assert watchers() == []
    assert heard.news == []


def test_nobody_watches(spark: Any) -> None:
    with watch_tasks(spark, None):
        assert watchers() == []
        assert set(spark.sparkContext.getJobTags()) == set()
