"""Add computed columns in Spark tasks with one commit; an interrupted call can be resumed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from lance_namespace.errors import ConcurrentModificationError
from pyspark.sql import SparkSession

from lancehouse.jobs.computed_columns import (
    ComputedColumns,
    ComputedFragment,
    Function,
    commit_columns,
    compute_fragment,
    missing_fragments,
)
from lancehouse.jobs.fingerprints import Fingerprint
from lancehouse.jobs.job_progress import JobProgress
from lancehouse.lake.fragments import find_lost_pieces, locate_table
from lancehouse.lake.scans import VersionSelector
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.session import parallelism
from lancehouse.spark.table_reader import PinnedVersion
from lancehouse.spark.tasks import collect_results

logger = logging.getLogger(__name__)

CODE = "code"
"""Key of a job's record with the fingerprint of the code."""

ATTEMPTS = 10
"""How often the commit is tried; before each, columns of fragments that were added meanwhile are computed."""

TASKS_EACH = 4
"""Number of tasks for each that runs at once: some fragments take longer than others."""


def add_columns(
    spark: SparkSession,
    address: TableAddress,
    columns: Mapping[str, str | Function],
    read_columns: Sequence[str] | None,
) -> int:
    """Add columns that are computed from others; return the version that this made.

    What a task has computed is recorded below the table's location. After a failure the same call computes only the
    rest, if the code is the same, including all modules of the user's own that it imports; otherwise it starts over.

    Raises:
        InvalidInputError: a column exists already, or an expression is invalid.
        ConcurrentModificationError: others kept changing the table, so that all attempts failed.
    """
    table = address.to_ref()
    derivation = ComputedColumns.for_table(table, table.open(), columns, read_columns)
    at = locate_table(table)
    family, code = f"add-columns-{derivation.key}-", derivation.fingerprint()
    progress = JobProgress(at.location, at.storage_options, f"{family}{code.digest}")
    values = progress.read_records()
    if not values:
        _warn_restart(address, progress.list_other_jobs(family), code)
    values.pop(CODE, None)
    progress.record(CODE, code.record)
    recorded = [ComputedFragment.from_json(value) for value in values.values()]
    lost_pieces = find_lost_pieces([each.piece for each in recorded], at)
    done = [each for each in recorded if each.piece not in lost_pieces]
    for attempt in range(ATTEMPTS):
        pinned = PinnedVersion.resolve(address, VersionSelector())
        _, dataset = pinned.open()
        done += _compute_fragments(spark, pinned, derivation, progress.job, missing_fragments(dataset, done))
        try:
            version = commit_columns(table, locate_table(table), dataset, derivation, done)
        except ConcurrentModificationError:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        for job in (progress, *progress.list_other_jobs(family)):  # the columns exist now: nobody can resume them
            job.clear()
        return version
    raise AssertionError("each attempt ends above")


def _warn_restart(address: TableAddress, others: Sequence[JobProgress], code: Fingerprint) -> None:
    """Log why an interrupted job on the same columns is not resumed."""
    if others:
        before: dict[str, str] = next((found for job in others if (found := job.read_records().get(CODE))), {})
        logger.warning(
            "%s: add_columns starts over, and takes over nothing of an earlier run that did not finish: %s",
            address,
            code.explain_difference(before),
        )


def _compute_fragments(
    spark: SparkSession, pinned: PinnedVersion, derivation: ComputedColumns, job: str, fragments: Sequence[int]
) -> list[ComputedFragment]:
    def work(fragments: Sequence[int]) -> list[str]:
        table, dataset = pinned.open()
        at = pinned.address.write_location(pinned.job)
        progress = JobProgress(at.location, at.storage_options, job)
        found = []
        for fragment in fragments:
            added = compute_fragment(table, dataset, fragment, derivation)
            progress.record(str(fragment), added.to_json(keep=True))
            found.append(added.to_json())
        return found

    tasks = min(len(fragments), parallelism(spark) * TASKS_EACH)
    with translate_task_errors():
        return [
            ComputedFragment.from_json(text)
            for text in collect_results(spark, [fragments[each::tasks] for each in range(tasks)], work)
        ]
