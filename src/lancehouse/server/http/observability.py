"""Request log (one line of JSON per request) and Prometheus metrics of the server."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
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
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lancehouse.log_lines import LEVELS, NAMES, record_fields
from lancehouse.measures import STORAGE_ERRORS, Event

logger = logging.getLogger(__name__)
printed = logging.getLogger("stderr")

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
FLUSH_S = 0.05
LONGEST_PRINTED = 10_000
MOST_WAITING = 100_000
"""Lines that may wait for a slow reader of the log; beyond it, lines are dropped and counted."""

_UNSAFE = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
"""In UTF-8: delete, the control characters from 0x80 to 0x9f, and Unicode's two line breaks."""
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Log:
    """Writes lines of JSON to stderr in a thread of its own, so that a slow reader of the log delays no request."""

    def __init__(self, level: str = "info", descriptor: int = 2) -> None:
        self.level = LEVELS[level]
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._waiting = 0
        self._dropped = self._dropped_before = 0
        self._cached_second = (0, "")
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def write_line(self, level: int, fields: Mapping[str, Any]) -> None:
        """Queue one line, which is written within moments; from any thread."""
        if level < self.level:
            return
        record = {"time": self._timestamp(), "level": NAMES.get(level, "info"), **fields}
        self._lines.append(_encode_line(record))
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
            self._dropped_before += len(lines)
            return
        if self._dropped:
            lines.append(orjson.dumps({"level": "warning", "dropped_lines": self._dropped}) + b"\n")
            self._dropped = 0
        self._waiting += len(lines)
        self._queue.put(lines)

    @property
    def waiting(self) -> int:
        """Lines that wait to be written."""
        return self._waiting

    def take_dropped(self) -> int:
        """Return how many lines were dropped since the last call."""
        dropped, self._dropped_before = self._dropped_before, 0
        return dropped

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


def _encode_line(record: Mapping[str, Any]) -> bytes:
    try:
        return _escape_line(orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE))
    except TypeError:  # half of a surrogate pair, which is no UTF-8
        return json.dumps(record, default=str).encode() + b"\n"


def _escape_line(line: bytes) -> bytes:
    """Escape what JSON allows in a string and some readers take for the end of a line, or terminals for a command."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _UNSAFE.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), line)


class JsonLogHandler(logging.Handler):
    """Writes the records of Python's `logging` to the same log, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log.write_line(record.levelno, record_fields(record))


def install_logging(log: Log) -> None:
    """Send everything that is logged in this process through `log`."""
    root = logging.getLogger()
    root.handlers = [JsonLogHandler(log)]
    root.setLevel(log.level)
    logging.captureWarnings(True)
    # Uncaught errors would otherwise be printed as text of many lines.
    sys.excepthook = lambda _, error, __: logger.critical("the process ends", exc_info=error)
    sys.unraisablehook = lambda hook: logger.error("an error that nobody can catch", exc_info=hook.exc_value)
    threading.excepthook = lambda hook: logger.error("a thread ended", exc_info=hook.exc_value)
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


@contextlib.contextmanager
def capture_stderr() -> Iterator[int]:
    """Log in the block what libraries print to stderr, such as a panic in Rust; yield the real stderr, for the log.

    What is printed in the moment in which the process dies may be lost, but not Python's own report of a crash.
    """
    real = os.dup(2)
    faulthandler.enable(real)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def log_lines() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if text := line.decode("utf-8", "replace").rstrip():
                    printed.warning("%s", text[:LONGEST_PRINTED])

    thread = threading.Thread(target=log_lines, name="stderr", daemon=True)
    thread.start()
    try:
        yield real
    finally:
        os.dup2(real, 2)  # which closes the pipe, unless a child process has it


disable_created_metrics()  # type: ignore[no-untyped-call]


RESTARTS = ("crashed", "hung", "memory")
"""Reasons for which a worker is replaced."""
RESTARTS_FILE = "restarts.json"
Source = Callable[[], Iterable[Metric]]
"""Returns metrics that are computed for each request to /metrics."""


class Metrics:
    """What the server counts. With several workers, each can report the sum over all of them."""

    def __init__(self) -> None:
        self.is_shared = MULTIPROCESS in os.environ
        own = self._own = CollectorRegistry()
        self._requests = Counter(
            "lancehouse_requests", "Requests answered.", ("route", "method", "status"), registry=own
        )
        self._seconds = Histogram(
            "lancehouse_request_seconds", "Time to answer.", ("route",), buckets=BUCKETS_S, registry=own
        )
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._events: dict[Event, Counter] = {
            "commits": Counter(
                "lancehouse_commits", "Commits, and repetitions, by outcome.", ("outcome",), registry=own
            ),
            "storage_errors": Counter("lancehouse_storage_errors", "Errors of stores.", ("kind",), registry=own),
            "scan_cache": Counter("lancehouse_scan_cache", "Copies that scans needed.", ("outcome",), registry=own),
            "scan_cache_bytes": Counter(
                "lancehouse_scan_cache_changed_bytes", "Bytes of copies made and removed.", ("change",), registry=own
            ),
            "backend_calls": Counter(
                "lancehouse_backend_calls", "Calls of catalogs by the gateway.", ("backend", "outcome"), registry=own
            ),
        }
        self._backend_seconds = Histogram(
            "lancehouse_backend_seconds", "Time of these calls.", ("backend",), buckets=BUCKETS_S, registry=own
        )
        self._event_children: dict[tuple[Event, tuple[str, ...]], Callable[[float], None]] = {}
        for event, labels in KNOWN_LABELS.items():  # a rate needs a zero to begin with
            for label in labels:
                self._events[event].labels(label)
        self._gauges = {
            name: Gauge(f"lancehouse_{name}", text, labels, registry=own, multiprocess_mode="livesum")
            for name, (text, labels) in GAUGES.items()
        }
        self._log_lines = Counter("lancehouse_log_lines_dropped", "Lines that nobody read in time.", registry=own)
        self._sources: list[Source] = []

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a response and the time that it took."""
        key = (route, method, status)
        children = self._children.get(key)
        if children is None:
            children = self._requests.labels(route, method, str(status)), self._seconds.labels(route)
            self._children[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def receive(self, event: Event, labels: tuple[str, ...], amount: float) -> None:
        """Count what another layer reports; see `lancehouse.measures`."""
        key = (event, labels)
        add = self._event_children.get(key)
        if add is None:
            is_time = event == "backend_seconds"
            add = self._backend_seconds.labels(*labels).observe if is_time else self._events[event].labels(*labels).inc
            self._event_children[key] = add
        add(amount)

    def set_gauge(self, name: str, value: float, *labels: str) -> None:
        """Set one of `GAUGES`; called at intervals, as it costs more than counting."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def count_dropped_lines(self, lines: int) -> None:
        """Count lines of the log that were dropped."""
        self._log_lines.inc(lines)

    def add_source(self, source: Source) -> None:
        """Add metrics that are computed for each request to /metrics, and are the same in all workers."""
        self._sources.append(source)

    def to_prometheus(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its content type."""
        pids = [os.getpid()]
        counters = self._own
        if self.is_shared:
            folder = Path(os.environ[MULTIPROCESS])
            counters = CollectorRegistry()
            counters.register(_WorkerMetrics(folder))
            pids = [int(file.stem.rpartition("_")[2]) for file in folder.glob("gauge_livesum_*.db")]
        on_demand = CollectorRegistry()
        on_demand.register(_ProcessMetrics(pids))
        on_demand.register(_SourceMetrics([_restart_metrics, *self._sources]))
        return generate_latest(counters) + generate_latest(on_demand), CONTENT_TYPE_LATEST


KNOWN_LABELS: Mapping[Event, tuple[str, ...]] = {
    "commits": ("committed", "conflict", "repeated", "refused", "failed"),
    "storage_errors": tuple(label for _, label in STORAGE_ERRORS),
    "scan_cache": ("hit", "miss"),
    "scan_cache_bytes": ("written", "removed"),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests_in_flight": ("Requests being answered.", ()),
    "streams": ("Responses with many rows being sent.", ()),
    "body_bytes": ("Memory held for bodies of requests.", ()),
    "log_lines_waiting": ("Lines of the log that wait to be written.", ()),
    "pool_size": ("Threads, or connections to the database.", ("pool", "backend")),
    "pool_in_use": ("Those of them that work.", ("pool", "backend")),
    "pool_waiting": ("Calls that wait for one of them.", ("pool", "backend")),
}


def _restart_metrics() -> Iterator[Metric]:
    """Yield the restarts of workers, which their parent counts."""
    metric = CounterMetricFamily("lancehouse_worker_restarts", "Workers that were replaced.", labels=("reason",))
    counts = read_restarts(os.environ.get(MULTIPROCESS))
    for reason in RESTARTS:
        metric.add_metric((reason,), counts.get(reason, 0))
    yield metric


def read_restarts(folder: str | None) -> dict[str, int]:
    """Return how many workers the parent has replaced, by reason."""
    try:
        counts: dict[str, int] = orjson.loads(Path(folder or "/nowhere", RESTARTS_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    return counts


def record_restart(folder: str, reason: str) -> None:
    """Count a worker that is replaced. To be called by the parent only."""
    counts = read_restarts(folder)
    new = Path(folder, f"{RESTARTS_FILE}.new")
    new.write_bytes(orjson.dumps({**counts, reason: counts.get(reason, 0) + 1}))
    new.rename(Path(folder, RESTARTS_FILE))


class _WorkerMetrics(Collector):
    """Sums over all workers, from the files in which each of them counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        # A worker that is killed when it begins a file leaves an empty one, which prometheus_client cannot read.
        files = [str(file) for file in self._folder.glob("*.db") if _has_bytes(file)]
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def _has_bytes(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:  # of a worker that has just ended
        return False


class _SourceMetrics(Collector):
    """Reports what some functions return."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield their metrics."""
        for source in self._sources:
            yield from source()


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
