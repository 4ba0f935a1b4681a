"""Request log (one line of JSON per request) and Prometheus metrics of the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from time import gmtime, strftime, time
from typing import Any

import orjson
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
FLUSH_S = 0.05
MOST_WAITING = 100_000
"""Lines that may wait for a slow reader of the log; beyond it, lines are dropped and counted."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
NAMES = {number: name for name, number in LEVELS.items()} | {logging.CRITICAL: "error"}
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Log:
    """Writes lines of JSON to stderr in a thread of its own, so that a slow reader of the log delays no request."""

    def __init__(self, level: str = "info", descriptor: int = 2) -> None:
        self.level = LEVELS[level]
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._waiting = 0
        self._dropped = 0
        self._cached_second = (0, "")
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def write_line(self, level: int, fields: Mapping[str, Any]) -> None:
        """Queue one line, which is written within moments; from any thread."""
        if level < self.level:
            return
        record = {"time": self._timestamp(), "level": NAMES.get(level, "info"), **fields}
        self._lines.append(orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE))
        if len(self._lines) == 1:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        try:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        """Pass the queued lines to the writing thread."""
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        if self._waiting > MOST_WAITING:
            self._dropped += len(lines)
            return
        if self._dropped:
            lines.append(orjson.dumps({"level": "warning", "dropped_lines": self._dropped}) + b"\n")
            self._dropped = 0
        self._waiting += len(lines)
        self._queue.put(lines)

    def close(self) -> None:
        """Write the remaining lines, and stop the thread."""
        self.flush()
        self._queue.put(None)
        self._thread.join(2)

    def _write_lines(self) -> None:
        while (lines := self._queue.get()) is not None:
            data = memoryview(b"".join(lines))
            with contextlib.suppress(OSError):  # stderr is closed, and there is nowhere else to report it
                while data:
                    data = data[os.write(self._descriptor, data) :]
            self._waiting -= len(lines)

    def _timestamp(self) -> str:
        now = time()
        second = int(now)
        if self._cached_second[0] != second:
            self._cached_second = (second, strftime("%Y-%m-%dT%H:%M:%S", gmtime(second)))
        return f"{self._cached_second[1]}.{int((now - second) * 1000):03d}Z"


class JsonLogHandler(logging.Handler):
    """Writes the records of Python's `logging` to the same log, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.level)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            fields["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._log.write_line(record.levelno, fields)


def install_logging(log: Log) -> None:
    """Send everything that is logged in this process through `log`."""
    root = logging.getLogger()
    root.handlers = [JsonLogHandler(log)]
    root.setLevel(log.level)
    for name in (
        "uvicorn",
        "uvicorn.error",
        "uvicorn.access",
        "alembic",
        "pyiceberg",
        "botocore",
        "urllib3",
        "azure",
        "google",
        "msal",
    ):
        logging.getLogger(name).setLevel(max(log.level, logging.WARNING))


class RequestIds:
    """Generates request ids: a random prefix for the process, and a counter."""

    def __init__(self) -> None:
        self._prefix = token_hex(6)
        self._numbers = count(1)

    def next(self) -> str:
        """Return a new id."""
        return f"{self._prefix}-{next(self._numbers):x}"


disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counts requests by route, method and status. With several workers, each can report the sum over all of them."""

    def __init__(self) -> None:
        self.is_shared = MULTIPROCESS in os.environ
        own = CollectorRegistry()
        labels = ("route", "method", "status")
        self._requests = Counter("lancehouse_requests", "Requests answered.", labels, registry=own)
        self._seconds = Histogram(
            "lancehouse_request_seconds", "Time to answer.", ("route",), buckets=BUCKETS_S, registry=own
        )
        self._in_flight = Gauge(
            "lancehouse_requests_in_flight", "Requests being answered.", registry=own, multiprocess_mode="livesum"
        )
        self._own = own
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a response and the time that it took."""
        key = (route, method, status)
        children = self._children.get(key)
        if children is None:
            children = self._requests.labels(route, method, str(status)), self._seconds.labels(route)
            self._children[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def set_in_flight(self, requests: int) -> None:
        """Set the number of requests in progress; called at intervals, as it costs more than counting them."""
        self._in_flight.set(requests)

    def to_prometheus(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its content type."""
        if not self.is_shared:
            return generate_latest(self._own) + generate_latest(_process_registry([os.getpid()])), CONTENT_TYPE_LATEST
        folder = Path(os.environ[MULTIPROCESS])
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
        pids = [int(file.stem.rpartition("_")[2]) for file in folder.glob("gauge_livesum_*.db")]
        return generate_latest(registry) + generate_latest(_process_registry(pids)), CONTENT_TYPE_LATEST


def _process_registry(pids: list[int]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_ProcessMetrics(pids))
    return registry


class _ProcessMetrics(Collector):
    """Reports memory, CPU time and open files of each worker."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        """Yield one metric of each kind, labelled by process."""
        metrics: dict[str, Metric] = {}
        for pid in self._pids:
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                combined = metrics.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    combined.add_sample(sample.name, {**sample.labels, "pid": str(pid)}, sample.value)
        yield from metrics.values()
