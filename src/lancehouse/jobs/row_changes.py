"""Delete and update rows of a table: pieces scan its fragments, and all changes are one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import ChangeResult, Job, WriteOptions, find_version_of_same_run
from lancehouse.lake.commits import NewFragment, locate_table
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


def delete(engine: Engine, address: TableAddress, where: str, how: WriteOptions) -> ChangeResult:
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
        job, used = Job(address), list[NewFragment]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = delete_where(table, dataset, [part.fragment for part in parts], where)
            if change:
                job.record_written(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(engine, pinned, work)
            used += change.files
            version = commit_deletion(table, locate_table(table), dataset, change, where, how.properties)
        return ChangeResult(version, deleted=change.rows)

    return retry_conflicts(address, attempt)


def update(
    engine: Engine, address: TableAddress, set: Mapping[str, str], where: str | None, how: WriteOptions
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
        job, used = Job(address), list[NewFragment]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = setting.update(
                table, dataset, [part.fragment for part in parts], lambda rows: job.write(rows, "append", how.layout)
            )
            if change:
                job.record_written(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(engine, pinned, work)
            used += change.files
            version = commit_rewrite(table, locate_table(table), dataset, change, setting.expressions, how.properties)
        return ChangeResult(version, updated=change.rows)

    return retry_conflicts(address, attempt)


def _run_change(engine: Engine, pinned: PinnedVersion, work: Callable[[list[FragmentRange]], list[str]]) -> RowChange:
    """Run the work on all fragments of a version, and merge the changes that the pieces report."""
    _, dataset = pinned.open()
    parts = split_fragments(dataset, engine.parallelism, split=False)
    return merge_changes(map(RowChange.from_json, engine.run(parts, work)))
