"""New columns, computed in tasks and committed once; after a failure it goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lance_namespace.errors import ConcurrentModificationError
from pyspark.sql import SparkSession

from lancehouse.lake.derived import Added, Derivation, Function, execute, finish, missing
from lancehouse.lake.fragments import lost, place
from lancehouse.lake.progress import Progress
from lancehouse.lake.scans import Moment
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import results

ATTEMPTS = 10
"""How often what was added meanwhile is caught up with."""

TASKS_EACH = 4
"""Tasks for each that runs at once: some fragments take longer than others."""


def add_columns(
    spark: SparkSession, address: Address, columns: Mapping[str, str | Function], reads: Sequence[str] | None
) -> int:
    """Add columns that are computed from others; the version that this made.

    What a task has computed is noted in the table's own storage: the same call after a failure computes only the rest.

    Raises:
        InvalidInputError: a column that is there already, or no such SQL.
        ConcurrentModificationError: others change the table faster than it can be caught up with.
    """
    table = address.ref()
    derivation = Derivation.of(table, table.open(), columns, reads)
    at = place(table)
    progress = Progress(at.location, at.storage_options, f"add-columns-{derivation.digest}")
    recorded = [Added.from_json(value) for value in progress.done().values()]
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
        progress.clear()
        return version
    raise AssertionError("each attempt ends above")


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
