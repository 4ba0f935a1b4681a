"""Maintain one table: look at it, decide what its policy asks for, and do that with the jobs that users start too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError, TableNotFoundError

from lancehouse import maintenance_policy
from lancehouse.catalog.maintenance import Seen, next_time, open_window
from lancehouse.jobs import columns as columns_jobs
from lancehouse.jobs import compaction, index_building, orphans, views
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_filling import FillOptions
from lancehouse.jobs.engine import Engine, JobCancelledError
from lancehouse.lake.column_states import count_states
from lancehouse.lake.dataset import TableRef
from lancehouse.maintenance_policy import FUNCTIONS, OPERATIONS, MaintenancePolicy, policy_properties
from lancehouse.schema.definitions import ViewDefinition, definitions
from lancehouse.store.model import MaintenanceRun

logger = logging.getLogger(__name__)

TIERS = (4096, 256, 16, 1)
"""Divisors of the target size: small fragments are merged to a 4096th of it, these to a 256th, and so on. So a row is
rewritten only a few times, however many small commits a table gets."""
LONGEST_WAIT = 60
"""How many times `settle` a compaction waits for a table that is never left alone."""
LONGEST_MESSAGE = 500
DONE, OVERTAKEN, FAILED = "done", "overtaken", "failed"
REMOVALS = ("cleanup", "orphans")
"""Operations that leave the latest version as it is."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a look at a table has found."""

    version: int
    committed_ms: int
    operation: str
    """The last one, as Lance calls it."""
    rows: int
    bytes: int
    files: int
    fragments: Sequence[tuple[int, int]]
    """Rows that each fragment was written with, and how many of them are deleted."""
    unindexed: Mapping[str, int]
    """Rows that each index lacks."""
    computed: tuple[str, ...]
    is_view: bool
    config: Mapping[str, str]


def read_facts(table: TableRef) -> TableFacts:
    """Look at the latest version of a table: its manifest and its indices' are read, no data."""
    with table.dataset() as dataset:
        version = dataset.get_version()
        totals = version["metadata"]
        rows = int(totals["total_rows"])
        fragments = [
            (int(fragment.metadata.physical_rows), int(fragment.metadata.num_deletions or 0))
            for fragment in dataset.get_fragments()
        ]
        return TableFacts(
            version=int(dataset.version),
            committed_ms=int(version["timestamp"].timestamp() * 1000),
            operation=_last_operation(dataset),
            rows=rows,
            bytes=int(totals["total_files_size"]),
            files=int(totals["total_data_files"]),
            fragments=fragments,
            unindexed={
                index.name: max(0, rows - index.num_rows_indexed)
                for index in dataset.describe_indices()
                if not index.name.startswith("__")  # Lance's own, such as that of rows which a compaction has moved
            },
            computed=tuple(definitions(dataset.schema)),
            is_view=ViewDefinition.from_schema(dataset.schema) is not None,
            config=policy_properties(dataset.config()),
        )


def _last_operation(dataset: Any) -> str:
    try:
        transaction = dataset.read_transaction(dataset.version)
    except (OSError, ValueError, RuntimeError, TypeError):  # none, or one that pylance cannot show
        return ""
    return type(transaction.operation).__name__ if transaction is not None else ""


def choose_compaction(fragments: Sequence[tuple[int, int]], policy: MaintenancePolicy) -> dict[str, Any] | None:
    """Return the options of the compaction that fragments need; None if none is worthwhile."""
    if any(deleted * 100 > rows * policy.compact_deleted_percent for rows, deleted in fragments):
        # To the full size: a large fragment without its deleted rows must not be split.
        threshold = policy.compact_deleted_percent / 100
        return {
            "target_rows_per_fragment": policy.compact_target_rows,
            "materialize_deletions_threshold": threshold,
        }
    for divisor in TIERS:
        target = policy.compact_target_rows // divisor
        if sum(rows < target for rows, _ in fragments) >= policy.compact_min_fragments:
            return {"target_rows_per_fragment": target, "materialize_deletions": False}
    return None


@dataclass(frozen=True, slots=True)
class _Effect:
    """What an operation has done."""

    message: str = ""
    """Empty: there was nothing to do."""
    removed: int = 0
    """Bytes."""
    versions: int | None = None
    """Number of versions that storage has now, if that was found."""


@dataclass(slots=True)
class TableResult:
    """What was done to a table, and when it needs another look."""

    seen: Seen
    runs: list[MaintenanceRun] = field(default_factory=list)
    next_ms: int | None = None
    why: str = ""
    error: str = ""
    is_overtaken: bool = False


@dataclass(frozen=True, slots=True)
class TableWork:
    """The work on one table.

    Args:
        address: the table.
        engine: runs the pieces of its jobs.
        policy: of the table.
        seen: what the last look has found.
        requested: operations that somebody asked for; they are done whatever the policy says.
        due_ms: since when the table is due.
        now: returns the time in milliseconds.
        worker: who works.
        functions: what may be imported by the names that tables have.
        sources: tables whose rows views may show.
        redact: removes secrets from a message.
    """

    address: TableAddress
    engine: Engine
    policy: MaintenancePolicy
    seen: Seen
    requested: Sequence[str]
    due_ms: int
    now: Callable[[], int]
    worker: str
    functions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    redact: Callable[[str], str] = str

    def run(self, facts: TableFacts | None = None) -> TableResult:
        """Look at the table, do what is needed, and return what was done.

        Errors of the catalog, of storage and of functions are part of the result.

        Raises:
            JobCancelledError: the worker stops, or another has the table.
            TableNotFoundError: it is gone, or has no data.
        """
        facts = facts or read_facts(self.address.to_ref())
        result, failures = TableResult(self._see(facts, self.seen)), 0
        for operation in OPERATIONS:
            why = self._find_reason(operation, facts, result.seen)
            if why is None:
                continue
            if operation == "compact" and (until := self._wait_until(facts)) is not None:
                result.next_ms, result.why = until, f"{why}; waits until rows are left alone"
                continue
            run, effect, facts = self._run_operation(operation, why, facts)
            result.runs += [run] if run is not None else []
            if run is not None and run.outcome == FAILED:
                result.error = f"{operation}: {run.message}"
                # A second failure that is not of a user's function means that the storage or the catalog is away.
                failures += operation not in FUNCTIONS
                if failures > 1:
                    break
                continue
            if run is not None and run.outcome == OVERTAKEN:
                # Old versions of a table whose rows are changed faster than it is compacted must go all the same.
                result.is_overtaken = True
                continue
            result.seen = self._note(operation, effect, self._see(facts, result.seen))
        if "cleanup" not in result.seen.done_ms:
            # Nothing was old at the first look, nor will be for a while: the time to the next clean-up begins now.
            result.seen = replace(result.seen, done_ms={**result.seen.done_ms, "cleanup": self.now()})
        if result.next_ms is None and (after := next_time(self.policy, result.seen, facts.version)) is not None:
            at, result.why = after
            result.next_ms = open_window(self.policy, max(at, self.now()))
        if not self.policy.enabled:
            result.next_ms = None
        return result

    def _see(self, facts: TableFacts, before: Seen) -> Seen:
        return replace(
            before,
            version=facts.version,
            rows=facts.rows,
            bytes=facts.bytes,
            files=facts.files,
            fragments=len(facts.fragments),
            indices=len(facts.unindexed),
            computed=len(facts.computed),
            is_view=facts.is_view,
            config=facts.config,
        )

    def _note(self, operation: str, effect: _Effect, seen: Seen) -> Seen:
        """Note that an operation is done, and how many versions are left after a clean-up."""
        seen = replace(seen, done_ms={**seen.done_ms, operation: self.now()})
        return seen if effect.versions is None else replace(seen, versions=effect.versions, cleaned_at=seen.version)

    def _find_reason(self, operation: str, facts: TableFacts, seen: Seen) -> str | None:
        """Return why an operation is needed now, or None."""
        policy = self.policy
        if operation in self.requested:
            return "asked for"
        if not policy.enabled or not getattr(policy, operation) or open_window(policy, self.now()) > self.now():
            return None
        match operation:
            case "fill":
                return self._find_fill_reason(facts, seen)
            case "refresh" if facts.is_view and self._is_time("refresh", policy.refresh_every):
                return "its source may have changed"
            case "compact" if (options := choose_compaction(facts.fragments, policy)) is not None:
                small = sum(rows < options["target_rows_per_fragment"] for rows, _ in facts.fragments)
                deleted = sum(deleted for _, deleted in facts.fragments)
                return f"{small} small of {len(facts.fragments)} fragments, {deleted} deleted rows"
            case "index" if most := max(facts.unindexed.values(), default=0):
                return f"{most} rows outside of an index" if most >= policy.index_unindexed_rows else None
            case "cleanup":
                return self._find_cleanup_reason(facts)
            case "orphans" if self._is_time("orphans", policy.orphans_every):
                return f"not looked for since {policy.orphans_every}"
        return None

    def _find_fill_reason(self, facts: TableFacts, seen: Seen) -> str | None:
        if not facts.computed or (seen.done_ms.get("fill") and facts.version == self.seen.version):
            return None
        with self.address.to_ref().dataset() as dataset:
            missing = sum(count_states(dataset, name).missing for name in facts.computed)
        return f"{missing} values to fill" if missing else None

    def _find_cleanup_reason(self, facts: TableFacts) -> str | None:
        policy = self.policy
        versions = self.seen.count_versions(facts.version)
        if policy.cleanup_max_versions and versions > policy.cleanup_max_versions:
            return f"about {versions} versions"
        if versions > policy.cleanup_keep_versions and self._is_time("cleanup", policy.cleanup_every):
            return f"about {versions} versions, not cleaned up since {policy.cleanup_every}"
        return None

    def _is_time(self, operation: str, every: timedelta) -> bool:
        return self.now() - self.seen.done_ms.get(operation, 0) >= every.total_seconds() * 1000

    def _wait_until(self, facts: TableFacts) -> int | None:
        """Return when to try again, if somebody is changing rows; None to go on.

        An append and a compaction do not disturb each other. Who updates or deletes rows would have to do it again if
        fragments were rewritten meanwhile; so the compaction waits, but not for ever.
        """
        settle = int(self.policy.settle.total_seconds() * 1000)
        quiet_at = facts.committed_ms + settle
        is_harmless = facts.operation in ("Append", "Rewrite", "CreateIndex", "Overwrite")
        if is_harmless or "compact" in self.requested or self.now() >= quiet_at:
            return None
        return quiet_at if self.now() - self.due_ms < LONGEST_WAIT * settle else None

    def _run_operation(
        self, operation: str, why: str, facts: TableFacts
    ) -> tuple[MaintenanceRun | None, _Effect, TableFacts]:
        """Do one thing; return the record of it, or None if there was nothing to do, and how the table is then."""
        started = self.now()
        outcome, effect, after = DONE, _Effect(), facts
        try:
            effect = getattr(self, f"_{operation}")(facts)
            if not effect.message:
                return None, effect, facts
            after = facts if operation in REMOVALS else read_facts(self.address.to_ref())
        except (JobCancelledError, TableNotFoundError):
            raise
        except ConcurrentModificationError as error:
            outcome, effect = OVERTAKEN, _Effect(self._shorten(error))
        except LanceNamespaceError as error:
            outcome, effect = FAILED, _Effect(self._shorten(error))
        run = MaintenanceRun(
            started,
            self.now(),
            self.worker,
            operation,
            outcome,
            why,
            facts.version,
            after.version,
            facts.bytes,
            after.bytes,
            effect.removed,
            effect.message,
        )
        return run, effect, after

    def _shorten(self, error: LanceNamespaceError) -> str:
        return self.redact(str(error))[:LONGEST_MESSAGE]

    def _compact(self, facts: TableFacts) -> _Effect:
        whole = {"target_rows_per_fragment": self.policy.compact_target_rows}
        options = choose_compaction(facts.fragments, self.policy) or whole
        result = compaction.compact(self.engine, self.address, options)
        if not result.fragments_removed:
            return _Effect()
        return _Effect(f"{result.fragments_removed} fragments became {result.fragments_added}")

    def _index(self, facts: TableFacts) -> _Effect:
        stale = [name for name, rows in facts.unindexed.items() if rows]
        if not stale:
            return _Effect()
        index_building.optimize_indices(self.engine, self.address, stale)
        return _Effect(f"{sum(facts.unindexed.values())} rows added to {', '.join(stale)}")

    def _cleanup(self, facts: TableFacts) -> _Effect:
        policy, most = self.policy, self.policy.cleanup_max_versions
        rules = [(policy.cleanup_older_than, policy.cleanup_keep_versions)]
        if most and self.seen.count_versions(facts.version) > most:
            rules.insert(0, (maintenance_policy.LEAST_VERSION_AGE, max(most, policy.cleanup_keep_versions)))
        results = [orphans.run_cleanup(self.engine, self.address, age, dry_run=False, keep=keep) for age, keep in rules]
        versions, removed = sum(result.versions for result in results), sum(result.bytes for result in results)
        left = results[-1].left
        if not versions:
            return _Effect(versions=left)
        tags = f"; tags keep {', '.join(results[-1].tagged)}"[:200] if results[-1].tagged else ""
        return _Effect(f"{versions} versions removed{tags}", removed, left)

    def _orphans(self, _: TableFacts) -> _Effect:
        age = self.policy.orphans_older_than
        removed = orphans.run_removal(self.engine, self.address, age, dry_run=False, no_writers=False)
        return _Effect(f"{removed.files} files removed", removed.bytes) if removed.files else _Effect()

    def _fill(self, facts: TableFacts) -> _Effect:
        if not facts.computed:
            return _Effect()
        result = columns_jobs.backfill(self.engine, self.address, None, FillOptions(allowed=self.functions))
        return _Effect(f"{result.filled} values filled") if result.version != facts.version else _Effect()

    def _refresh(self, facts: TableFacts) -> _Effect:
        if not facts.is_view:
            return _Effect()
        options = FillOptions(allowed=self.functions, sources=self.sources)
        result = views.refresh_view(self.engine, self.address, None, options)
        return _Effect(f"version {result.version} shows its source") if result.version != facts.version else _Effect()
