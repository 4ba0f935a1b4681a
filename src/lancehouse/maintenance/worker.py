"""`MaintenanceWorker`: threads that lease tables which are due, maintain them, and plan what is due next.

Any number of workers share a database. One of them plans at a time; each renews the leases of its tables, and a worker
that dies loses them within a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event
from time import monotonic

from lance_namespace import DescribeTableRequest, LanceNamespace
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from lancehouse.catalog.maintenance import LEASE_MS, Maintenance, Seen
from lancehouse.catalog_walk import CatalogLister, walk_namespaces
from lancehouse.gateway.backends import Backend
from lancehouse.identifiers import format_levels
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import Engine, JobCancelledError, LocalEngine
from lancehouse.lake.confinement import OwnFilesAlone
from lancehouse.lake.foreign_tables import ClientCalls
from lancehouse.maintenance.policies import read_namespace_levels
from lancehouse.maintenance.table_work import FAILED, LONGEST_MESSAGE, TableFacts, TableResult, TableWork, read_facts
from lancehouse.maintenance_policy import MaintenancePolicy, policy_properties
from lancehouse.store.model import MaintainedTable

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""How often a worker that has nothing to do looks for work."""
PLAN_S = 2.0
"""How often commits are planned."""
RENEW_S = LEASE_MS / 1000 / 4
FIRST_RETRY_MS, LAST_RETRY_MS = 60_000, 86_400_000
"""Pause after a failure, which doubles with each further one, up to a day."""
NAMESPACES_S = 60.0
"""How long the policies of namespaces in other catalogs are cached."""
LOCAL_BYTES = 10 << 30
"""Size of a table's data from which Spark maintains it, if there is one."""

ChooseEngine = Callable[[MaintainedTable, int, Event], tuple[Engine, TableAddress] | None]
"""Returns the engine for a table of some bytes of data, and the address of the table there; None for threads."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works."""

    name: str
    threads: int = 1
    most_jobs: int = 8
    """How many tables are maintained at once, by all workers."""
    poll_s: float = 3600.0
    """How often tables are looked at whose commits are not seen, in seconds."""
    functions: tuple[str, ...] = ()
    """Functions and modules that may be imported to fill columns and refresh views."""
    sources: tuple[str, ...] = ()
    """Tables whose rows views may show, by name or pattern."""
    catalogs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """First levels whose tables are maintained, by backend; all that it lists by default."""


@dataclass(slots=True)
class _Job:
    table: MaintainedTable
    cancelled: Event = field(default_factory=Event)


class MaintenanceWorker:
    """A worker with some threads.

    Args:
        maintenance: of the catalog.
        backends: the warehouses and other backends, with clients that may open what the server may.
        options: how it works.
        choose_engine: chooses another engine than threads for a table, such as Spark for a large one.
    """

    def __init__(
        self,
        maintenance: Maintenance,
        backends: Mapping[str, Backend],
        options: WorkerOptions,
        choose_engine: ChooseEngine | None = None,
    ) -> None:
        self._maintenance = maintenance
        self._backends = backends
        self._options = options
        self._choose_engine = choose_engine
        self._jobs: dict[int, _Job] = {}
        self._lock = threading.Lock()
        self._wake = Event()
        self._schedules_until = 0.0
        self._polling: Future[None] | None = None
        self._namespaces: dict[tuple[str, ...], tuple[float, Sequence[Mapping[str, str]]]] = {}

    def run(self, stop: Event) -> None:
        """Work until `stop` is set; then tables that are being worked on are finished at the next piece."""
        planned = renewed = 0.0
        with (
            ThreadPoolExecutor(self._options.threads, "maintenance") as pool,
            ThreadPoolExecutor(1, "maintenance-poll") as poller,
        ):
            while not stop.is_set():
                with _log_errors("the catalog's database"):
                    if monotonic() - renewed > RENEW_S:
                        renewed = monotonic()
                        self._renew()
                    if monotonic() - planned > PLAN_S:
                        planned = monotonic()
                        self._plan(poller)
                    while self._claim(pool) and not stop.is_set():
                        pass
                self._wake.wait(TICK_S)
                self._wake.clear()
            for job in list(self._jobs.values()):
                job.cancelled.set()

    def run_until_idle(self, timeout_s: float = 600.0) -> None:
        """Plan once, and work until nothing is due any more; for tests and benchmarks."""
        deadline = monotonic() + timeout_s
        with (
            ThreadPoolExecutor(self._options.threads, "maintenance") as pool,
            ThreadPoolExecutor(1, "maintenance-poll") as poller,
        ):
            self._plan(poller)
            if self._polling is not None:
                self._polling.result()
            while (self._claim(pool) or self._jobs) and monotonic() < deadline:
                self._wake.wait(0.05)
                self._wake.clear()

    def _plan(self, poller: ThreadPoolExecutor) -> None:
        """Plan what is due, if this worker is the one that plans."""
        if monotonic() > self._schedules_until:
            if not self._maintenance.become_scheduler(self._options.name, LEASE_MS / 1000):
                return
            # For half of the lease nobody else can have become it, also by a clock that runs faster.
            self._schedules_until = monotonic() + LEASE_MS / 2000
        self._maintenance.plan_commits()
        self._maintenance.sweep(self._options.poll_s)
        if self._polling is None or self._polling.done():
            # In a thread of its own: another catalog may be slow, and leases must be renewed meanwhile.
            self._polling = poller.submit(self._poll_backends)

    def _poll_backends(self) -> None:
        for name, policy in self._maintenance.backends.items():
            backend = self._backends.get(name)
            # Without a word about maintenance in the server's file, another catalog is left alone.
            if backend is None or not policy or not self._maintenance.is_time(f"polled.{name}", self._options.poll_s):
                continue
            with _log_errors(f"backend {name}"):
                client = _client_of(backend)
                # Iceberg's and Polaris' catalogs do not tell their warehouses.
                roots: list[tuple[str, ...]] = [(catalog,) for catalog in self._options.catalogs.get(name, ())] or [()]
                for root in roots:
                    self._plan_tables(name, ClientCalls(client), root)

    def _plan_tables(self, backend: str, catalog: CatalogLister, root: tuple[str, ...]) -> None:
        """Plan a look at all tables below a level. A list fails with one table that cannot be loaded: others go on."""
        for namespace in walk_namespaces(catalog, root):
            with _log_errors(f"backend {backend}, namespace {format_levels(namespace)}"):
                try:
                    tables = catalog.tables(namespace)
                except InvalidInputError:  # this level holds namespaces only
                    continue
                self._maintenance.plan_backend(backend, tables)

    def _claim(self, pool: ThreadPoolExecutor) -> bool:
        """Begin to work on tables that are due, as many as there are threads for; return whether there were any."""
        with self._lock:
            free = self._options.threads - len(self._jobs)
        if free < 1:
            return False
        tables = self._maintenance.claim(self._options.name, free, self._options.most_jobs)
        for table in tables:
            job = _Job(table)
            with self._lock:
                self._jobs[table.id] = job
            pool.submit(self._work, job).add_done_callback(lambda future, job=job: self._end(job, future))  # type: ignore[misc]
        return bool(tables)

    def _renew(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        lost_ids = {table.id for table in self._maintenance.renew([job.table for job in jobs], self._options.name)}
        for job in jobs:
            # One that has just ended has no lease either.
            if job.table.id in lost_ids and self._jobs.get(job.table.id) is job:
                logger.warning("%s: another worker has the table, or it takes no changes", _format(job.table))
                job.cancelled.set()

    def _end(self, job: _Job, future: Future[None]) -> None:
        with self._lock:
            self._jobs.pop(job.table.id, None)
        self._wake.set()
        error = future.exception()
        if isinstance(error, JobCancelledError):
            # This worker stops: let another one have the table now. If one has it already, nothing changes.
            with _log_errors(_format(job.table)):
                self._release(job.table)
        elif error is not None:
            logger.error("%s: %s: %s", _format(job.table), type(error).__name__, error, exc_info=error)
            with _log_errors(_format(job.table)):
                self._fail(job.table, f"{type(error).__name__}: {error}")

    def _work(self, job: _Job) -> None:
        table, seen = job.table, Seen.from_json(job.table.seen)
        backend = self._backends.get(table.backend)
        if backend is None:
            # Served by another server with the same database, which has its own worker.
            later = self._after_failure(0)
            self._maintenance.finish(table, self._options.name, seen, [], next_ms=later, why=table.why, is_done=False)
            return
        try:
            result = self._maintain(job, backend, seen)
        except TableNotFoundError:
            self._maintenance.forget(table)
            self._maintenance.finish(table, self._options.name, seen, [], next_ms=None)
            return
        except JobCancelledError:
            raise
        except LanceNamespaceError as error:
            message = backend.secrets.redact(str(error))
            logger.warning("%s: %s", _format(table), message)
            self._fail(table, message)
            return
        self._finish(table, result)

    def _maintain(self, job: _Job, backend: Backend, seen: Seen) -> TableResult:
        table = job.table
        client = _client_of(backend)
        address = replace(TableAddress.parse(client, (*backend.id_prefix, *table.levels)), confinement=OwnFilesAlone())
        own: Mapping[str, str] = {}
        if table.entry_id is None:
            # This refuses what may not be opened, too.
            tables = backend.connect(None, reads_all=True).tables
            own = policy_properties(tables.describe_table(DescribeTableRequest(id=list(address.id))).properties)
        # First by what the table said at the last look: where maintenance is off, it need not be opened.
        policy = self._read_policy(table, client, {**seen.config, **own})
        requested = [operation for operation in table.requested.split(",") if operation]
        if not policy.enabled and not requested and table.entry_id is not None:
            return TableResult(seen)
        facts = read_facts(address.to_ref())
        policy = self._read_policy(table, client, {**facts.config, **own})
        engine, address = self._find_engine(job, address, facts)
        now = self._start_clock()
        work = TableWork(
            address,
            engine,
            policy,
            seen,
            requested,
            table.due_ms or now(),
            now,
            self._options.name,
            self._options.functions,
            self._options.sources,
            backend.secrets.redact,
        )
        return work.run(facts)

    def _start_clock(self) -> Callable[[], int]:
        """Return a clock that shows the database's time, and asks the database for it only once."""
        started_ms, started = self._maintenance.read_clock(), monotonic()
        return lambda: started_ms + int((monotonic() - started) * 1000)

    def _find_engine(self, job: _Job, address: TableAddress, facts: TableFacts) -> tuple[Engine, TableAddress]:
        choice = None
        if self._choose_engine is not None:
            choice = self._choose_engine(job.table, facts.bytes, job.cancelled)
        if choice is None:
            return LocalEngine(1, cancelled=job.cancelled), address
        engine, engine_address = choice
        return engine, replace(engine_address, confinement=address.confinement)

    def _read_policy(
        self, table: MaintainedTable, client: LanceNamespace, properties: Mapping[str, str]
    ) -> MaintenancePolicy:
        if table.entry_id is not None:
            return self._maintenance.policy(table, properties)
        namespace = (table.backend, *table.levels[:-1])
        read_at, above = self._namespaces.get(namespace, (0.0, ()))
        if not read_at or monotonic() - read_at > NAMESPACES_S:
            above = [properties for _, properties in read_namespace_levels(client, table.levels[:-1])]
            self._namespaces[namespace] = monotonic(), above
        return self._maintenance.policy(table, properties, above)

    def _finish(self, table: MaintainedTable, result: TableResult) -> None:
        next_ms: int | None
        if result.error:
            failures = table.failures + 1
            next_ms, why = self._after_failure(table.failures), _count_failures(failures)
        elif result.is_overtaken:
            # Somebody else was faster. What is left to do is planned anew, on what they made.
            failures, next_ms, why = 0, self._after_failure(0), "overtaken by a commit"
        else:
            failures, next_ms, why = 0, result.next_ms, result.why
        is_mine = self._maintenance.finish(
            table,
            self._options.name,
            result.seen,
            result.runs,
            next_ms=next_ms,
            why=why,
            failures=failures,
            error=result.error,
            is_done=not result.error and not result.is_overtaken,
        )
        if not is_mine:
            logger.warning("%s: another worker has the table; what was done here is not recorded", _format(table))
        for run in result.runs:
            level = logging.WARNING if run.outcome == FAILED else logging.INFO
            logger.log(level, "%s: %s %s: %s (%s)", _format(table), run.operation, run.outcome, run.message, run.why)

    def _fail(self, table: MaintainedTable, message: str) -> None:
        self._finish(table, TableResult(Seen.from_json(table.seen), error=message[:LONGEST_MESSAGE]))

    def _release(self, table: MaintainedTable) -> None:
        """Give a table back as it was claimed: it is due now, and keeps its failures."""
        self._maintenance.finish(
            table,
            self._options.name,
            Seen.from_json(table.seen),
            [],
            next_ms=self._maintenance.read_clock(),
            why=table.why,
            failures=table.failures,
            error=table.error,
            is_done=False,
        )

    def _after_failure(self, failures: int) -> int:
        """Return when to try again after some failures in a row, by the database's clock."""
        pause = min(FIRST_RETRY_MS << min(failures, 20), LAST_RETRY_MS)
        return self._maintenance.read_clock() + pause


class _log_errors(suppress):  # noqa: N801 - reads like `suppress`
    """Log errors of the catalog or of another one, so that the worker goes on and tries again."""

    def __init__(self, about: str) -> None:
        super().__init__(LanceNamespaceError)
        self._about = about

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, LanceNamespaceError):
            logger.warning("%s: %s", self._about, error)
            return True
        return False


def _client_of(backend: Backend) -> LanceNamespace:
    """Return the client that opens what the server itself may open."""
    return backend.connect(None, reads_all=True).inner


def _count_failures(failures: int) -> str:
    return f"failed {failures} times in a row" if failures > 1 else "failed before"


def _format(table: MaintainedTable) -> str:
    return ".".join((table.backend, *table.levels))
