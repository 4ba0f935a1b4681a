"""Whether the server can work: a write to its database, a look at each warehouse and each backend of the gateway.

A request for a report starts the checks whose last result is some seconds old, each in a thread of its own and never
twice at the same time. It waits for them for a while; of a check that takes longer, the last result is reported, with
its age.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from time import monotonic
from typing import Any, Literal

from lance_namespace.errors import LanceNamespaceError
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from lancehouse.catalog import bootstrap
from lancehouse.catalog.callers import Identity
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouse_files import WarehouseFiles

logger = logging.getLogger(__name__)

Kind = Literal["database", "warehouse", "backend"]
State = Literal["ok", "failed", "unknown", "fenced"]
"""Of a part; a warehouse that is fenced can be read, and takes no changes."""

DATABASE_S = 3.0
"""Age in seconds from which a write to the database is proved again."""
OTHERS_S = 15.0
"""Age in seconds from which a warehouse or a backend is checked again."""
WAIT_S = 2.0
"""Seconds for which one report waits for looks that are being taken."""
HANGS_S = 10.0
"""Seconds after which a look that has not ended counts as failed."""
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class PartState:
    """What is known of one part of the server."""

    kind: Kind
    name: str
    state: State
    age_s: float | None
    """Seconds since the last look ended; None before the first one."""
    ms: float
    """Milliseconds that the last look took."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as the report shows it."""
        fields: dict[str, Any] = {"kind": self.kind, "name": self.name, "state": self.state}
        if self.age_s is not None:
            fields |= {"age_s": round(self.age_s, 1), "ms": round(self.ms, 1)}
        return fields | ({"reason": self.reason} if self.reason else {})


class Check:
    """Looks at one part of the server. Thread-safe."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        look: Callable[[], None],
        every_s: float,
        find_refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Store `look`, which raises if the part cannot be used; it may hang.

        `find_refusal` returns why a part takes no changes, from memory.
        """
        self.kind: Kind = kind
        self.name = name
        self._look = look
        self._every_s = every_s
        self._find_refusal = find_refusal
        self._lock = threading.Lock()
        self._last = PartState(kind, name, "unknown", None, 0.0)
        self._ended_at: float | None = None
        self._began_at: float | None = None
        self._look_ended = threading.Event()

    def start_if_due(self) -> None:
        """Start a look, unless one is being taken or the last one is recent."""
        with self._lock:
            if self._began_at is not None or (self._ended_at and monotonic() - self._ended_at < self._every_s):
                return
            self._began_at = monotonic()
            self._look_ended.clear()
        # A daemon: one that hangs must not keep the process from ending.
        threading.Thread(target=self._run, args=(self._began_at,), name=f"health {self.kind}", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait for the look that is being taken."""
        if self._began_at is not None:
            self._look_ended.wait(max(seconds, 0.0))

    def part_state(self) -> PartState:
        """Return what is known by now."""
        with self._lock:
            last, ended_at, began_at, now = self._last, self._ended_at, self._began_at, monotonic()
        if ended_at is not None:
            last = replace(last, age_s=now - ended_at)
        if began_at is not None and now - began_at > HANGS_S:
            return replace(last, state="failed", reason=f"no answer for {now - began_at:.0f} s")
        if last.state == "ok" and (refusal := self._find_refusal()) is not None:
            return replace(last, state="fenced", reason=refusal[:LONGEST_REASON])
        return last

    def _run(self, began_at: float) -> None:
        reason = ""
        try:
            self._look()
        except LanceNamespaceError as error:
            reason = str(error)[:LONGEST_REASON] or type(error).__name__
        except Exception as error:  # noqa: BLE001 - a third party's catalog may raise anything
            reason = type(error).__name__
        now = monotonic()
        new = PartState(self.kind, self.name, "failed" if reason else "ok", 0.0, (now - began_at) * 1000, reason)
        with self._lock:
            before, self._last, self._ended_at, self._began_at = self._last, new, now, None
        self._look_ended.set()
        if (before.state == "failed") != bool(reason):
            level = logging.ERROR if reason else logging.WARNING
            logger.log(level, "%s %s: %s", self.kind, self.name, reason or "works again")


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What is known of all parts of the server."""

    parts: tuple[PartState, ...]

    @property
    def is_ready(self) -> bool:
        """Whether the database can be written, and not all of the warehouses and backends fail."""
        database = [part for part in self.parts if part.kind == "database"]
        others = [part for part in self.parts if part.kind != "database"]
        is_useless = bool(others) and all(part.state == "failed" for part in others)
        return all(part.state == "ok" for part in database) and not is_useless

    def to_json(self, identity: Identity) -> dict[str, Any]:
        """Return what a caller may see: the state of the whole, and of those parts that they may read.

        What is wrong with the database is for those who may read something at all: it names files or hosts.
        """
        status = {"status": "ready" if self.is_ready else "not ready"}
        if not identity.grants:
            return status
        visible_parts = [part for part in self.parts if part.kind == "database" or identity.can_see(part.name)]
        return {**status, "checks": [part.to_json() for part in visible_parts]}


class Health:
    """All checks of a server."""

    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = tuple(checks)

    def report(self, wait_s: float = WAIT_S) -> HealthReport:
        """Take the looks that are due, wait for them up to `wait_s` seconds in all, and report."""
        for check in self._checks:
            check.start_if_due()
        until = monotonic() + wait_s
        for check in self._checks:
            check.wait(until - monotonic())
        return HealthReport(tuple(check.part_state() for check in self._checks))


def catalog_checks(catalog: Catalog) -> list[Check]:
    """Return the checks of a catalog: of its database, and of its warehouses."""

    def check_database() -> None:
        bootstrap.check_database(catalog.database)
        bootstrap.prove_write(catalog.database)

    scheme = "sqlite" if catalog.database.file is not None else "postgres"
    return [
        Check("database", scheme, check_database, DATABASE_S),
        *(
            Check(
                "warehouse",
                warehouse.name,
                WarehouseFiles(warehouse).require_reachable,
                OTHERS_S,
                partial(catalog.fence.refusal, warehouse),
            )
            for warehouse in catalog.warehouses.values()
        ),
    ]


UP = {"ok": 1.0, "fenced": 1.0, "failed": 0.0}


def health_metrics(catalog: Catalog, health: Health) -> Iterator[Metric]:
    """Yield the state of the server's parts, and the size of its scan caches."""
    labels = ("kind", "name")
    up = GaugeMetricFamily("lancehouse_up", "Whether the last look at a part of the server was good.", labels=labels)
    age = GaugeMetricFamily("lancehouse_look_age_seconds", "Time since that look.", labels=labels)
    duration = GaugeMetricFamily("lancehouse_look_seconds", "Time that it took.", labels=labels)
    for part in health.report().parts:
        if part.age_s is not None or part.state == "failed":
            up.add_metric((part.kind, part.name), UP.get(part.state, 0.0))
            age.add_metric((part.kind, part.name), part.age_s or 0.0)
            duration.add_metric((part.kind, part.name), part.ms / 1000)
    fenced = GaugeMetricFamily(
        "lancehouse_warehouse_fenced",
        "Whether a warehouse takes no changes, because a server works on another copy of the database.",
        labels=("warehouse",),
    )
    for warehouse in catalog.warehouses.values():
        fenced.add_metric((warehouse.name,), float(catalog.fence.refusal(warehouse) is not None))
    size = GaugeMetricFamily("lancehouse_scan_cache_bytes", "Size of the copies for scans.", labels=("warehouse",))
    with suppress(LanceNamespaceError):  # the database is out of reach, which `up` tells
        for warehouse in catalog.warehouses.values():
            size.add_metric((warehouse.name,), catalog.scans.exports.count_bytes(warehouse))
    build = GaugeMetricFamily("lancehouse_build_info", "The version that runs.", labels=("version",))
    build.add_metric((version("lancehouse"),), 1.0)
    yield from (up, age, duration, fenced, size, build)
