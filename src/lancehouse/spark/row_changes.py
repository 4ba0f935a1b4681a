"""Delete and update rows of Lance tables: tasks scan fragments, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError
from pyspark.sql import SparkSession

from lancehouse.lake.fragments import Piece, locate_table
from lancehouse.lake.row_changes import (
    ColumnUpdate,
    RowChange,
    commit_deletion,
    commit_rewrite,
    delete_where,
    merge_changes,
    retry_conflicts,
)
from lancehouse.lake.scans import FragmentRange, Scan, VersionSelector, split_fragments
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.jobs import Job
from lancehouse.spark.session import parallelism
from lancehouse.spark.table_reader import PinnedVersion
from lancehouse.spark.table_writer import WriteOptions, find_version_of_same_run
from lancehouse.spark.tasks import collect_results


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Version and numbers of rows of a change."""

    version: int
    """The version that the change made, or the latest one if there was nothing to do."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def delete(spark: SparkSession, address: TableAddress, where: str, how: WriteOptions) -> ChangeResult:
    """Delete the rows that match a condition.

    Raises:
        TableNotFoundError: there is no such table.
        InvalidInputError: the condition is missing or invalid.
        ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
    """
    if not where.strip():
        raise InvalidInputError("delete needs a condition; `true` deletes all rows")
    if (done := find_version_of_same_run(address.to_ref(), how)) is not None:
        return ChangeResult(done)

    def attempt() -> ChangeResult:
        pinned = PinnedVersion.resolve(address, VersionSelector())
        table, dataset = pinned.open()
        Scan(columns=(), filter=where, with_row_address=True).schema(table, dataset)
        job, used = Job(address), list[Piece]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = delete_where(table, dataset, [part.fragment for part in parts], where)
            if change:
                job.record_pieces(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(spark, pinned, work)
            used += change.files
            version = commit_deletion(table, locate_table(table), dataset, change, where, how.properties)
        return ChangeResult(version, deleted=change.rows)

    return retry_conflicts(address, attempt)


def update(
    spark: SparkSession, address: TableAddress, set: Mapping[str, str], where: str | None, how: WriteOptions
) -> ChangeResult:
    """Set columns to SQL expressions, in the rows that match or in all.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: there is no such column.
        TableSchemaValidationError: the type of an expression does not fit its column.
        InvalidInputError: an expression or the condition is invalid, or a value does not fit its column.
        ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
    """
    if (done := find_version_of_same_run(address.to_ref(), how)) is not None:
        return ChangeResult(done)
    setting = ColumnUpdate(dict(set), where)

    def attempt() -> ChangeResult:
        pinned = PinnedVersion.resolve(address, VersionSelector())
        table, dataset = pinned.open()
        setting.check(table, dataset)
        job, used = Job(address), list[Piece]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = setting.update(
                table, dataset, [part.fragment for part in parts], lambda rows: job.write(rows, "append", how.layout)
            )
            if change:
                job.record_pieces(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(spark, pinned, work)
            used += change.files
            version = commit_rewrite(table, locate_table(table), dataset, change, setting.expressions, how.properties)
        return ChangeResult(version, updated=change.rows)

    return retry_conflicts(address, attempt)


def _run_change(
    spark: SparkSession, pinned: PinnedVersion, work: Callable[[list[FragmentRange]], list[str]]
) -> RowChange:
    """Run the work on all fragments of a version in tasks, and merge the changes that they report."""
    _, dataset = pinned.open()
    with translate_task_errors():
        return merge_changes(
            map(
                RowChange.from_json,
                collect_results(spark, split_fragments(dataset, parallelism(spark), split=False), work),
            )
        )
