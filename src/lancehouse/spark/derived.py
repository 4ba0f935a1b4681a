"""New columns, computed in tasks and committed once; after a failure it goes on where it was."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from lance_namespace.errors import ConcurrentModificationError
from pyspark.sql import SparkSession

from lancehouse.lake.derived import Added, Derivation, Function, execute, finish, missing
from lancehouse.lake.fingerprints import Fingerprint
from lancehouse.lake.fragments import lost, place
from lancehouse.lake.progress import Progress
from lancehouse.lake.scans import Moment
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import results

logger = logging.getLogger(__name__)

CODE = "code"
"""The record that says what the values depend on."""

ATTEMPTS = 10
"""How often what was added meanwhile is caught up with."""

TASKS_EACH = 4
"""Tasks for each that runs at once: some fragments take longer than others."""


def add_columns(
    spark: SparkSession, address: Address, columns: Mapping[str, str | Function], reads: Sequence[str] | None
) -> int:
    """Add columns that are computed from others; the version that this made.

    What a task has computed is noted in the table's own storage. After a failure the same call computes only the rest,
    if the code is the same, with all modules of the user's own that it imports; else it starts over.

    Raises:
        InvalidInputError: a column that is there already, or no such SQL.
        ConcurrentModificationError: others change the table faster than it can be caught up with.
    """
    table = address.ref()
    derivation = Derivation.of(table, table.open(), columns, reads)
    at = place(table)
    family, code = f"add-columns-{derivation.key}-", derivation.fingerprint()
    progress = Progress(at.location, at.storage_options, f"{family}{code.digest}")
    values = progress.done()
    if not values:
        _explain_start(address, progress.others(family), code)
    values.pop(CODE, None)
    progress.put(CODE, code.record)
    recorded = [Added.from_json(value) for value in values.values()]
    gone = lost([each.piece for each in recorded], at)
    done = [each for each in recorded if each.piece not in gone]
    for attempt in range(ATTEMPTS):
        pinned = Pinned.at(address, Moment())
        _, dataset = pinned.open()
        done += _computed(spark, pinned, derivation, progress.job, missing(dataset, done))
        try:
            version = finish(table, place(table), dataset, derivation, done)
        except ConcurrentModificationError:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        for job in (progress, *progress.others(family)):  # the columns are there now: nobody goes on with them
            job.clear()
        return version
    raise AssertionError("each attempt ends above")


def _explain_start(address: Address, others: Sequence[Progress], code: Fingerprint) -> None:
    """Say why work on the same columns, which was interrupted, is not taken over."""
    if others:
        before: dict[str, str] = next((found for job in others if (found := job.done().get(CODE))), {})
        logger.warning(
            "%s: add_columns starts over, and takes over nothing of an earlier run that did not finish: %s",
            address,
            code.explain_difference(before),
        )


def _computed(
    spark: SparkSession, pinned: Pinned, derivation: Derivation, job: str, fragments: Sequence[int]
) -> list[Added]:
    def work(fragments: Sequence[int]) -> list[str]:
        table, dataset = pinned.open()
        at = pinned.address.place(pinned.job)
        progress = Progress(at.location, at.storage_options, job)
        found = []
        for fragment in fragments:
            added = execute(table, dataset, fragment, derivation)
            progress.put(str(fragment), added.to_json(keep=True))
            found.append(added.to_json())
        return found

    tasks = min(len(fragments), parallelism(spark) * TASKS_EACH)
    with translated():
        return [
            Added.from_json(text) for text in results(spark, [fragments[each::tasks] for each in range(tasks)], work)
        ]
