"""Watch how far a fill or a refresh is, by the records that its pieces leave in storage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import LanceNamespaceError

from lancehouse.jobs.job import JobProgress

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""How often the records are looked at, in seconds; fast functions leave one each second."""


@dataclass(frozen=True, slots=True)
class FillProgress:
    """How far a fill is; its text is for people."""

    name: str
    """The column, or the view."""
    rows: int
    """Rows that are done since the call began; what an earlier call has computed counts when it is taken over."""
    total: int
    errors: int
    """Rows for which the function has failed, so far."""
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """About how long the rest takes; None as long as nothing is done."""
        return (self.total - self.rows) / self.rows_per_s if self.rows else None

    def __str__(self) -> str:
        failed = f", {self.errors:,} failed" if self.errors else ""
        left = (
            "" if self.seconds_left is None else f", {self.rows_per_s:,.0f} a second, {self.seconds_left:,.0f} s left"
        )
        return f"{self.name}: {self.rows:,} of {self.total:,} rows{failed}{left}"


ReportFill = Callable[[FillProgress], None]
"""Is told of progress, in another thread; it must not raise."""


@contextmanager
def watch_fill(
    report: ReportFill | None,
    name: str,
    records: JobProgress,
    known: Collection[str],
    count_all: Callable[[], int],
    count_done: Callable[[Mapping[str, Any]], tuple[int, int]],
) -> Iterator[None]:
    """Report progress when the block begins, while it runs, and when it has ended well.

    Args:
        report: is called with every change; None: do not watch.
        name: of the column or view.
        records: the records of the job.
        known: keys of records that an earlier call has left.
        count_all: returns how many rows there are to do.
        count_done: returns how many rows the records of this call have done, and how many of them failed.
    """
    if report is None:
        yield
        return
    total, begun, ended = count_all(), time.monotonic(), threading.Event()
    found: dict[str, Any] = {}
    last = FillProgress(name, 0, total, 0, 0.0)
    report(last)

    def look() -> None:
        nonlocal last
        found.update(records.read_records({*known, *found}))
        done, errors = count_done(found)
        now = FillProgress(name, min(done, total), total, errors, time.monotonic() - begun)
        if (now.rows, now.errors) != (last.rows, last.errors):
            last = now
            report(now)

    def watch() -> None:
        try:
            while not ended.wait(INTERVAL_S):
                look()
        except LanceNamespaceError as error:
            logger.info("%s: progress cannot be told: %s", name, error)

    thread = threading.Thread(target=watch, name="lancehouse-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report(FillProgress(name, total, total, last.errors, time.monotonic() - begun))
