"""Rows of Lance tables deleted and updated: tasks look through fragments, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError
from pyspark.sql import SparkSession

from lancehouse.lake.changes import (
    Change,
    Setting,
    commit_deleted,
    commit_rewritten,
    delete_where,
    in_attempts,
    together,
)
from lancehouse.lake.fragments import Piece, place
from lancehouse.lake.scans import Moment, Part, Scan, groups
from lancehouse.spark.address import Address
from lancehouse.spark.errors import translated
from lancehouse.spark.jobs import Job
from lancehouse.spark.reading import Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import results
from lancehouse.spark.writing import Write, made_before


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did."""

    version: int
    """The version that it made, or the latest if it found nothing to do."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def delete(spark: SparkSession, address: Address, where: str, how: Write) -> Changed:
    """Delete the rows that match.

    Raises:
        TableNotFoundError: there is no such table.
        InvalidInputError: the condition is missing or cannot be understood.
        ConcurrentModificationError: somebody changes the same rows again and again.
    """
    if not where.strip():
        raise InvalidInputError("delete needs a condition; `true` deletes all rows")
    if (done := made_before(address.ref(), how)) is not None:
        return Changed(done)

    def attempt() -> Changed:
        pinned = Pinned.at(address, Moment())
        table, dataset = pinned.open()
        Scan(columns=(), filter=where, with_row_address=True).schema(table, dataset)
        job, used = Job(address), list[Piece]()

        def work(parts: list[Part]) -> list[str]:
            table, dataset = pinned.open()
            change = delete_where(table, dataset, [part.fragment for part in parts], where)
            if change:
                job.note(change.files)
            return [change.to_json()]

        with job.cleaned(used):
            change = _done(spark, pinned, work)
            used += change.files
            version = commit_deleted(table, place(table), dataset, change, where, how.properties)
        return Changed(version, deleted=change.rows)

    return in_attempts(address, attempt)


def update(spark: SparkSession, address: Address, set: Mapping[str, str], where: str | None, how: Write) -> Changed:
    """Set columns to SQL expressions, in the rows that match or in all.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: it has no such column.
        TableSchemaValidationError: an expression has a type that the column cannot have.
        InvalidInputError: an expression or the condition cannot be understood, or a value does not fit its column.
        ConcurrentModificationError: somebody changes the same rows again and again.
    """
    if (done := made_before(address.ref(), how)) is not None:
        return Changed(done)
    setting = Setting(dict(set), where)

    def attempt() -> Changed:
        pinned = Pinned.at(address, Moment())
        table, dataset = pinned.open()
        setting.check(table, dataset)
        job, used = Job(address), list[Piece]()

        def work(parts: list[Part]) -> list[str]:
            table, dataset = pinned.open()
            change = setting.update(
                table, dataset, [part.fragment for part in parts], lambda rows: job.write(rows, "append", how.layout)
            )
            if change:
                job.note(change.files)
            return [change.to_json()]

        with job.cleaned(used):
            change = _done(spark, pinned, work)
            used += change.files
            version = commit_rewritten(table, place(table), dataset, change, setting.expressions, how.properties)
        return Changed(version, updated=change.rows)

    return in_attempts(address, attempt)


def _done(spark: SparkSession, pinned: Pinned, work: Callable[[list[Part]], list[str]]) -> Change:
    """What tasks have changed of a version; each of them looks through some fragments."""
    _, dataset = pinned.open()
    with translated():
        return together(map(Change.from_json, results(spark, groups(dataset, parallelism(spark), split=False), work)))
