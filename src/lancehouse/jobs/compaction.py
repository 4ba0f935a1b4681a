"""Compact one table: rewrite small fragments into larger ones, without deleted rows.

`compact` is the whole job: `plan` splits the work, `execute` does one task in any process, and `commit` makes one
version of all results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import lance
from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)
from pydantic import TypeAdapter, ValidationError

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import Job
from lancehouse.jobs.orphans import require_latest
from lancehouse.lake.commits import NewFragment
from lancehouse.lake.dataset import TableRef

ROWS_PER_FRAGMENT = 1024 * 1024

_DEFERRED = "defer_index_remap"
_IN_THE_WAY = re.compile(r"concurrent transaction (\w+) at version (\d+)")
"""How Lance's error message names the conflicting transaction and its version."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction has changed."""

    version: int
    """The table's version afterwards."""
    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0


def compact(engine: Engine, address: TableAddress, options: dict[str, Any]) -> CompactionResult:
    """Rewrite small fragments into larger ones, without deleted rows. If it fails, its files are removed.

    Raises:
        ConcurrentModificationError: others have changed what was compacted.
        InvalidInputError: an option is unknown, or its value is invalid.
    """
    table, job, used = address.to_ref(), Job(address), list[NewFragment]()
    tasks = plan(table, **options)

    def work(task: str) -> list[str]:
        result = execute(job.to_ref(), task)
        job.record_written(_pieces([result]))
        return [result]

    if not tasks:
        return CompactionResult(version=table.open().version)
    with job.clean_up_after(used):
        results = engine.run(tasks, work)
        used += _pieces(results)
        return commit(table, results, options)


def _pieces(results: Sequence[str]) -> list[NewFragment]:
    rewrites = map(RewriteResult.from_json, results)
    return [json.dumps(fragment.to_json()) for rewrite in rewrites for fragment in rewrite.new_fragments]


def plan(table: TableRef, target_rows_per_fragment: int = ROWS_PER_FRAGMENT, **options: Any) -> list[str]:
    """Find fragments that are too small, or have too many deleted rows; return tasks for `execute`, perhaps none.

    Args:
        table: the table, or a branch of it.
        target_rows_per_fragment: number of rows that a fragment should have afterwards.
        options: other options of `lance.optimize.CompactionOptions`.

    Raises:
        InvalidInputError: an option is unknown, or its value is invalid.
        UnsupportedOperationError: pylance would lose an index.
    """
    require_latest(table)
    all_options = {"target_rows_per_fragment": target_rows_per_fragment, **options}
    check_options(all_options)
    with table.dataset() as dataset:
        if table.branch is not None and not all_options.get(_DEFERRED):
            _require_own_indices(table, dataset)
        try:
            return [task.json() for task in Compaction.plan(dataset, all_options).tasks]
        except (TypeError, OverflowError) as error:
            raise InvalidInputError(f"{table}: a compaction cannot have the options {all_options}: {error}") from error


def execute(table: TableRef, task: str) -> str:
    """Write the fragments of a task; return a result for `commit`."""
    work = CompactionTask.from_json(task)
    with replace(table, version=work.read_version).dataset() as dataset:
        return str(work.execute(dataset).json())


def commit(table: TableRef, results: Sequence[str], options: dict[str, Any] | None = None) -> CompactionResult:
    """Commit the results of the tasks of a plan, with its options, as one version. Rows that others append stay.

    Raises:
        ConcurrentModificationError: others have changed what was compacted.
    """
    with explain_conflict(table, "the compaction"), table.dataset() as dataset:
        metrics = Compaction.commit(dataset, list(map(RewriteResult.from_json, results)), options or {})
    counts = ("fragments_removed", "fragments_added", "files_removed", "files_added")
    return CompactionResult(version=dataset.version, **{count: getattr(metrics, count) for count in counts})


@contextmanager
def explain_conflict(table: TableRef, work: str) -> Iterator[None]:
    """Replace Lance's error for a conflicting commit by one that names the version in conflict and what to do.

    Raises:
        ConcurrentModificationError: a concurrent commit was in conflict.
    """
    try:
        yield
    except LanceNamespaceError as error:
        conflict = _IN_THE_WAY.search(str(error))
        if conflict is None:
            raise
        raise ConcurrentModificationError(
            f"{table}: {work} cannot be committed, "
            f"because somebody has made version {conflict[2]} ({conflict[1]}) meanwhile, "
            "which changes what it was made of; plan it again"
        ) from error


def check_options(options: dict[str, Any]) -> None:
    """Check the names and the values of options of a compaction.

    Raises:
        InvalidInputError: an option is unknown, or its value is invalid.
    """
    allowed = CompactionOptions.__annotations__
    if unknown := sorted(options.keys() - allowed.keys()):
        raise InvalidInputError(f"compaction has no option {', '.join(unknown)}; it has {', '.join(allowed)}")
    kinds = get_type_hints(CompactionOptions)
    for name, value in options.items():
        try:
            TypeAdapter(kinds[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise InvalidInputError(f"{name} of a compaction, {value!r}: {error.errors()[0]['msg']}") from error
    if options.get("target_rows_per_fragment", 1) in (None, 0):
        raise InvalidInputError("target_rows_per_fragment must be 1 or more")


def _require_own_indices(table: TableRef, dataset: lance.LanceDataset) -> None:
    """Check that no index belongs to the branch that this one was made from.

    pylance 14 would write the compacted index to this branch, but look for it in the other.
    """
    for index in dataset.describe_indices():
        if any(segment.base_id is not None for segment in index.segments):
            raise UnsupportedOperationError(
                f"{table}: the index {index.name} is that of the branch this one came from, and pylance loses it in a "
                f"compaction; build it here first (replace=True), or compact with {_DEFERRED}=True"
            )
