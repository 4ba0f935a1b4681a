"""Plan the maintenance of tables from their commits, lease it to workers, and report what is due and what was done.

A commit writes nothing for maintenance: planning reads the record of the commit and the totals of its snapshot, which
are stored anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import Caller, Role
from lancehouse.catalog.errors import Levels, table_not_found
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.maintenance_policy import (
    FUNCTIONS,
    OPERATIONS,
    Level,
    MaintenancePolicy,
    PolicyValue,
    explain_policy,
    policy_properties,
    resolve_policy,
)
from lancehouse.properties import TOTAL_FILES, TOTAL_ROWS
from lancehouse.store import maintenance as rows
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import ChangedTable, MaintainedTable, MaintenanceRun
from lancehouse.store.statements import Tx

LEASE_MS = 60_000
"""How long a worker has a table unless it renews its lease, which it does every quarter of this time."""
SETTLED_MS = 60_000
"""Age from which no older commit can become visible any more, in milliseconds."""
PAGE = 1000
"""Tables that one transaction plans."""
KEPT_RUNS_MS = 30 * 86_400_000
"""How long records of runs are kept, in milliseconds."""
MOST_LISTED = 1000
KNOWN_S = 60.0
"""How old the number of all tables under maintenance may be, in seconds: many take long to count."""
_TOTAL = re.compile(r"[0-9]{1,19}")
REQUESTED, SWEEPING = 0, 1
"""What the mark `SWEPT` has in place of a time: a sweep is requested, or has begun because of that."""
COMMITS, SWEPT, SCHEDULER = "commits", "swept", "scheduler"
"""Names of marks: the last commit that was planned, the time of the last sweep, and the worker that plans."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found when a table was last examined. If it is lost, examining the table again finds the same."""

    version: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    fragments: int = 0
    indices: int = 0
    computed: int = 0
    """Number of computed columns."""
    is_view: bool = False
    versions: int = 0
    """Number of versions in storage after the last clean-up."""
    cleaned_at: int = 0
    """Version at the last clean-up."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Maintenance properties that are stored with the data."""
    done_ms: Mapping[str, int] = field(default_factory=dict)
    """When each operation was last done, or found to be needless."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Seen:
        """Restore what `to_json` returned; fields of other releases are ignored."""
        names = {attribute.name for attribute in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in names})

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def count_versions(self, version: int) -> int:
        """Return about how many versions storage has when the latest one is `version`."""
        return self.versions + version - self.cleaned_at


def find_reason(policy: MaintenancePolicy, seen: Seen, version: int, summary: Mapping[str, str]) -> str | None:
    """Return why a table that has got new versions needs a look, or None; from what commits have recorded.

    Args:
        policy: of the table.
        seen: what the last look has found.
        version: the current version.
        summary: of the current version's snapshot.
    """
    since = version - seen.version
    row_count, files = _number(summary, TOTAL_ROWS), _number(summary, TOTAL_FILES)
    new_rows = 0 if row_count is None else row_count - seen.rows
    new_files = 0 if files is None else files - seen.files
    if policy.compact and max(since, new_files) >= policy.compact_min_fragments:
        return f"{since} commits and {max(new_files, 0)} more files since the last look"
    if policy.compact and -new_rows * 100 >= seen.rows * policy.compact_deleted_percent > 0:
        return f"{-new_rows} fewer rows than at the last look"
    if policy.index and seen.indices and new_rows >= policy.index_unindexed_rows:
        return f"{new_rows} rows since the last look, and indices"
    if row_count is None and since > 0 and (seen.indices or summary.get("operation", "append") != "append"):
        # On a local disk clients record no totals, and a look is cheap.
        return f"{since} commits since the last look, and indices or deleted rows"
    if policy.fill and seen.computed and since > 0:
        return "new versions, and computed columns"
    most = policy.cleanup_max_versions
    if policy.cleanup and most and seen.count_versions(version) > most:
        return f"more than {most} versions"
    return None


def next_time(policy: MaintenancePolicy, seen: Seen, version: int) -> tuple[int, str] | None:
    """Return when a table needs a look because time passes, and why; None if it never does."""
    times = []
    if policy.cleanup and seen.count_versions(version) > policy.cleanup_keep_versions:
        times.append((_after(seen, "cleanup", policy.cleanup_every), "versions may be old enough"))
    if policy.orphans:
        times.append((_after(seen, "orphans", policy.orphans_every), "time to look for orphans"))
    if policy.refresh and seen.is_view:
        times.append((_after(seen, "refresh", policy.refresh_every), "time to look at the view's source"))
    return min(times, default=None)


def _after(seen: Seen, operation: str, every: timedelta) -> int:
    return seen.done_ms.get(operation, 0) + int(every.total_seconds() * 1000)


def _number(summary: Mapping[str, str], key: str) -> int | None:
    # Clients write summaries. Python refuses to parse thousands of digits, and planning would fail for all tables.
    text = summary.get(key, "")
    return int(text) if _TOTAL.fullmatch(text) else None


def open_window(policy: MaintenancePolicy, at_ms: int) -> int:
    """Return the first time from `at_ms` on at which the policy lets work begin."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    opens = policy.window.next_open(at)
    return at_ms if opens == at else int(opens.timestamp() * 1000)


@dataclass(slots=True)
class Plans:
    """Tables that are due, and those for which nothing is planned any more."""

    due: list[tuple[str, int | tuple[str, ...], int | None, str]] = field(default_factory=list)
    disabled: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return not self.due and not self.disabled

    def store(self, tx: Tx) -> None:
        """Store them."""
        rows.plan_tables(tx, self.due)
        rows.cancel_plans(tx, self.disabled)


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """Counts of tables by state, what is due or running, and what was done last."""

    counts: Mapping[str, int]
    tables: Sequence[MaintainedTable]
    runs: Sequence[tuple[str, tuple[str, ...], MaintenanceRun]]
    now_ms: int


class Maintenance:
    """Planning, leases and status of maintenance, on one database that any number of servers and workers share.

    Args:
        database: of the catalog.
        warehouses: of the server, with their policies.
        backends: policies of the gateway's other backends, by name.
    """

    def __init__(
        self,
        database: Database,
        warehouses: Iterable[Warehouse],
        backends: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._database = database
        self._warehouses = {warehouse.id: warehouse for warehouse in warehouses}
        self.backends = dict(backends or {})
        self._table_count, self._table_count_until = 0, 0.0

    # Planning

    def become_scheduler(self, worker: str, seconds: float) -> bool:
        """Become or remain the worker that plans, for some seconds; return False if another worker is."""

        def work(tx: Tx) -> bool:
            now = rows.read_clock(tx)
            return rows.take_mark(tx, SCHEDULER, worker, now + int(seconds * 1000), now)

        return self._database.write(work)

    def plan_commits(self) -> int:
        """Plan a look at the tables that need one by what was committed since the last call; return their number."""

        def read(tx: Tx) -> tuple[Plans, int | None, int]:
            after = rows.find_mark(tx, COMMITS)
            if after is None:
                # The first call. Commits of before it are not planned: `sweep` finds their tables.
                return Plans(), None, rows.find_last_commit(tx)
            if rows.find_last_commit(tx) == after:
                return Plans(), after, after
            now = rows.read_clock(tx)
            plans = self._find_plans(tx, rows.list_changed_tables(tx, after), now)
            # The mark stays behind the newest commits, so these are planned again by the next calls. That does no harm,
            # whereas a commit that becomes visible behind the mark would never be planned.
            return plans, after, rows.find_settled_commit(tx, after, now - SETTLED_MS)

        def write(tx: Tx) -> None:
            plans.store(tx)
            if settled != after:
                rows.put_mark(tx, COMMITS, settled)

        # Writers of the database wait for neither the search nor the decisions.
        plans, after, settled = self._database.read(read)
        if not plans.is_empty or settled != after:
            self._database.write(write)
        return len(plans.due)

    def sweep(self, every_s: float) -> int | None:
        """Plan over all tables of this catalog, if the last sweep is that long ago, or a policy has changed since.

        This finds tables whose policy was switched on, and those whose versions storage manages, whose commits the
        catalog does not see.

        Returns:
            How many tables were planned; None if it is not time yet.
        """
        started = self._database.read(rows.read_clock)
        last_sweep = self._database.read(lambda tx: rows.find_mark(tx, SWEPT))
        if last_sweep is not None and started - last_sweep < every_s * 1000:
            return None
        if last_sweep == REQUESTED:  # else `_finish_sweep` could not tell a further request from this one
            last_sweep = SWEEPING
            self._database.write(lambda tx: rows.put_mark(tx, SWEPT, SWEEPING))
        planned_count, after = 0, 0
        while True:

            def read(tx: Tx, after: int = after) -> tuple[Plans, int]:
                page = rows.sweep_tables(tx, after, PAGE)
                polled_before = started - int(every_s * 1000 / 2)
                return self._find_plans(tx, page, started, polled_before), page[-1].entry_id if len(page) == PAGE else 0

            plans, after = self._database.read(read)
            if not plans.is_empty:
                self._database.write(plans.store)
            planned_count += len(plans.due)
            if not after:
                break
        self._database.write(lambda tx: self._finish_sweep(tx, last_sweep, started))
        return planned_count

    def _finish_sweep(self, tx: Tx, before: int | None, started: int) -> None:
        # A policy that changed meanwhile has reset the mark (`request_sweep`): then the next call sweeps again.
        if rows.find_mark(tx, SWEPT) == before:
            rows.put_mark(tx, SWEPT, started)
        rows.delete_runs_before(tx, started - KEPT_RUNS_MS)

    def _find_plans(self, tx: Tx, tables: Sequence[ChangedTable], now: int, polled_before: int | None = None) -> Plans:
        namespaces = rows.list_namespace_policies(tx) if tables else {}
        plans = Plans()
        for table in tables:
            warehouse = self._warehouses.get(table.warehouse_id)
            if warehouse is None:
                continue
            seen = Seen.from_json(table.seen)
            above = [
                namespaces.get((warehouse.id, table.levels[:depth]), {}) for depth in range(1, len(table.levels) + 1)
            ]
            policy = resolve_policy([warehouse.maintenance, *above, seen.config, table.properties])
            if not policy.enabled:
                plans.disabled += [table.entry_id] if table.due_ms is not None else []
                continue
            if (due := _find_due(policy, seen, table, now, polled_before)) is not None:
                at, why = due
                # Not before the table has been left alone for a while: more commits may follow.
                at = max(at, now, table.changed_ms + int(policy.settle.total_seconds() * 1000))
                at = open_window(policy, at)
                if table.due_ms is None or at < table.due_ms:
                    plans.due.append((warehouse.name, table.entry_id, at, why))
        return plans

    def plan_backend(self, backend: str, tables: Sequence[tuple[str, ...]]) -> None:
        """Plan a look at tables of another catalog, whose commits are not seen here."""
        for start in range(0, len(tables), PAGE):
            self._database.write(partial(_plan_others, backend=backend, tables=tables[start : start + PAGE]))

    def is_time(self, mark: str, every_s: float) -> bool:
        """Return whether a mark is older than `every_s`, and set it to now if so: only one worker gets True."""

        def work(tx: Tx) -> bool:
            now = rows.read_clock(tx)
            last = rows.find_mark(tx, mark)
            if last is not None and now - last < every_s * 1000:
                return False
            rows.put_mark(tx, mark, now)
            return True

        return self._database.write(work)

    # Leases

    def claim(self, worker: str, count: int, most: int) -> list[MaintainedTable]:
        """Lease tables that are due to a worker; see `rows.claim_tables`. A lease that ran out is recorded."""

        def work(tx: Tx) -> list[MaintainedTable]:
            tables, abandoned = rows.claim_tables(tx, worker, count, most, LEASE_MS)
            now = rows.read_clock(tx)
            for table in abandoned:
                message = f"{table.worker} did not renew its lease; {worker} goes on"
                run = MaintenanceRun(
                    table.started_ms or now, now, table.worker, "lease", "lost", table.why, message=message
                )
                rows.insert_runs(tx, table.id, [run])
            return tables

        if not self._database.read(rows.has_due_tables):
            return []
        return self._database.write(work)

    def renew(self, tables: Sequence[MaintainedTable], worker: str) -> list[MaintainedTable]:
        """Prolong leases; return the tables that another worker has by now, or that take no changes any more."""
        return self._database.write(
            lambda tx: [table for table in tables if not rows.renew_lease(tx, table, worker, LEASE_MS)]
        )

    def finish(
        self,
        table: MaintainedTable,
        worker: str,
        seen: Seen,
        runs: Sequence[MaintenanceRun],
        *,
        next_ms: int | None,
        why: str = "",
        failures: int = 0,
        error: str = "",
        is_done: bool = True,
    ) -> bool:
        """End a lease and record what was done; see `rows.finish_lease`.

        If it is done, commits that came meanwhile are planned at once.
        """

        def work(tx: Tx) -> bool:
            is_mine = rows.finish_lease(
                tx,
                table,
                worker,
                next_ms=next_ms,
                why=why,
                failures=failures,
                error=error,
                is_done=is_done,
                seen=seen.to_json(),
                runs=runs,
            )
            if is_mine and is_done and table.entry_id is not None:
                self._find_plans(tx, rows.sweep_tables(tx, table.entry_id - 1, 1), rows.read_clock(tx)).store(tx)
            return is_mine

        return self._database.write(work)

    def forget(self, table: MaintainedTable) -> None:
        """Forget a table of another catalog that is gone."""
        if table.entry_id is None:
            self._database.write(lambda tx: rows.forget_table(tx, table.backend, table.levels))

    def policy(
        self, table: MaintainedTable, own: Mapping[str, str], above: Sequence[Mapping[str, str]] = ()
    ) -> MaintenancePolicy:
        """Return the policy of a table as it is now.

        Args:
            table: the table.
            own: its properties that are not in this catalog: those that its data have, or its entry in another one.
            above: the properties of namespaces of another catalog.
        """
        if table.entry_id is None:
            return resolve_policy([self.backends.get(table.backend, {}), *above, own])
        levels = self._levels(table.backend, table.levels, own, is_table=True)
        return resolve_policy(properties for _, properties in levels)

    def read_clock(self) -> int:
        """Return the database's time in milliseconds."""
        return self._database.read(rows.read_clock)

    # For users

    def explain(self, caller: Caller, warehouse: Warehouse, levels: Levels) -> list[PolicyValue]:
        """Return the properties that count for a table or namespace, and where each comes from.

        Of both with one name it is the table, if the caller may read that.

        Raises:
            PermissionDeniedError: the caller may not read there.
        """
        parent, name = levels[:-1], levels[-1]
        is_table = (
            caller.identity.has_role(Role.READER, warehouse.name, parent, name)
            and self._database.read(lambda tx: repository.find_entry(tx, warehouse.id, parent, name)) is not None
        )
        if not is_table:
            caller.identity.require_role(Role.READER, warehouse.name, levels)
        return explain_policy(self._levels(warehouse.name, levels, None, is_table=is_table))

    def _levels(self, backend: str, levels: Levels, stored: Mapping[str, str] | None, *, is_table: bool) -> list[Level]:
        warehouse = next(candidate for candidate in self._warehouses.values() if candidate.name == backend)

        def work(tx: Tx) -> list[Level]:
            policies: list[Level] = [(f"warehouse {warehouse.name}", warehouse.maintenance)]
            # A namespace may have the name of a table, but is not above it.
            for depth in range(1, len(levels) + (not is_table)):
                row = repository.find_namespace(tx, warehouse.id, levels[:depth])
                policies += (
                    [(f"namespace {'.'.join(levels[:depth])}", policy_properties(row.properties))] if row else []
                )
            entry = repository.find_entry(tx, warehouse.id, levels[:-1], levels[-1]) if is_table else None
            if entry is None or entry.kind != "lance":
                return policies
            config = stored
            if config is None:
                maintained = rows.find_maintained_table(tx, warehouse.name, entry.id)
                config = Seen.from_json(maintained.seen).config if maintained else {}
            own = {**config, **policy_properties(entry.properties)}
            return [*policies, (f"table {'.'.join(levels)}", own)]

        return self._database.read(work)

    def request(
        self, caller: Caller, backend: str, levels: tuple[str, ...], operations: Sequence[str]
    ) -> Sequence[str]:
        """Ask for operations on a table now, whatever its policy says; all by default but those that run functions.

        Returns:
            The operations.

        Raises:
            PermissionDeniedError: the caller is no writer there.
            TableNotFoundError: there is no such Lance table.
            InvalidInputError: there is no such operation.
        """
        for operation in operations:
            if operation not in OPERATIONS:
                raise InvalidInputError(f"no such operation: {operation[:40]!r}; there are {', '.join(OPERATIONS)}")
        caller.identity.require_role(Role.WRITER, backend, levels[:-1], levels[-1])
        chosen = [operation for operation in OPERATIONS if operation in operations or not operations]
        if not operations:
            chosen = [operation for operation in chosen if operation not in FUNCTIONS]
        name = caller.identity.name

        def work(tx: Tx) -> None:
            warehouse = next((candidate for candidate in self._warehouses.values() if candidate.name == backend), None)
            table_key: int | tuple[str, ...] = levels
            if warehouse is not None:
                entry = repository.find_entry(tx, warehouse.id, levels[:-1], levels[-1])
                if entry is None or entry.kind != "lance":
                    raise table_not_found(levels[:-1], levels[-1])
                table_key = entry.id
            maintained = rows.find_maintained_table(tx, backend, table_key)
            # An earlier request that no worker has begun stays.
            requested = (
                maintained.requested.split(",") if maintained is not None and maintained.lease_until_ms is None else ()
            )
            all_operations = [operation for operation in OPERATIONS if operation in requested or operation in chosen]
            rows.request_maintenance(tx, backend, table_key, f"{name} asked for it", all_operations, name)

        self._database.write(work)
        return chosen

    def status(self, limit: int = 100, caller: Caller | None = None) -> MaintenanceStatus:
        """Return what is due within an hour, running and failing, and what was done last.

        Args:
            limit: most tables, and most runs.
            caller: of tables that they may read in full; None for all tables.
        """

        def can_read(backend: str, levels: tuple[str, ...]) -> bool:
            return caller is None or caller.identity.has_role(Role.READER, backend, levels[:-1], levels[-1])

        def work(tx: Tx) -> MaintenanceStatus:
            now, most = rows.read_clock(tx), min(limit, MOST_LISTED)
            upto = now + 3_600_000
            tables, runs = rows.list_maintained_tables(tx, upto, most), rows.list_recent_runs(tx, most)
            # Usually the caller may read everything on the first page. If not, filter before the page is cut: filtering
            # the page could leave nothing of it, though there are readable tables further on.
            if not all(can_read(table.backend, table.levels) for table in tables) or not all(
                can_read(backend, levels) for backend, levels, _ in runs
            ):
                all_tables = rows.list_known_tables(tx)
                readable_ids = {table for table, backend, levels in all_tables if can_read(backend, levels)}
                tables = rows.list_maintained_tables(tx, upto, most, readable_ids)
                runs = rows.list_recent_runs(tx, most, readable_ids)
            return MaintenanceStatus(self._count_tables(tx), tables, runs, now)

        return self._database.read(work)

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of tables by state, and counters of what was done, for metrics."""
        return self._database.read(
            lambda tx: (self._count_tables(tx), {**rows.list_marks(tx, "runs."), **rows.list_marks(tx, "bytes.")})
        )

    def _count_tables(self, tx: Tx) -> dict[str, int]:
        if monotonic() > self._table_count_until:
            self._table_count, self._table_count_until = rows.count_known_tables(tx), monotonic() + KNOWN_S
        return {"known": self._table_count, **rows.count_tables(tx)}


def _plan_others(tx: Tx, backend: str, tables: Sequence[tuple[str, ...]]) -> None:
    now = rows.read_clock(tx)
    rows.plan_tables(tx, ((backend, levels, now, "time to look at it") for levels in tables))


def _find_due(
    policy: MaintenancePolicy, seen: Seen, table: ChangedTable, now: int, polled_before: int | None
) -> tuple[int, str] | None:
    if table.looked_ms is None:
        return now, "never looked at"
    if table.version is None:
        # Storage decides its versions, so that only a look can tell.
        is_old = polled_before is not None and table.looked_ms < polled_before
        return (now, "commits of storage are not seen: time to look at it") if is_old else None
    if (why := find_reason(policy, seen, table.version, table.summary)) is not None:
        return now, why
    return next_time(policy, seen, table.version)


def request_sweep(tx: Tx) -> None:
    """Have the next `sweep` plan over all tables, because a policy has changed."""
    rows.put_mark(tx, SWEPT, REQUESTED)
