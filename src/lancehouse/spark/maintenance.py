"""Maintain tables with Spark (compaction, indices, cleanup, orphans): planned on the driver, run in tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from lance_namespace.errors import LanceNamespaceError
from pyspark.sql import SparkSession

from lancehouse.connection import Connection
from lancehouse.identifiers import format_levels
from lancehouse.jobs import compaction, index_building, orphans
from lancehouse.jobs.compaction import CompactionResult
from lancehouse.jobs.index_building import BuiltIndex
from lancehouse.jobs.orphans import CleanupResult, Orphans
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.listing import list_tables
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import collect_results

T = TypeVar("T")

CHUNKS_AT_ONCE = 256
"""How many tasks are held on the driver, where their number is not known in advance."""


def run_on_tables(
    connection: Connection, namespace: Sequence[str], work: Callable[[TableAddress], T]
) -> dict[str, T | LanceNamespaceError]:
    """Call `work` for all tables in a namespace and below it; the failure of one table does not stop the others.

    Returns:
        The result for each table, or the error, by the table's id.
    """
    outcomes: dict[str, T | LanceNamespaceError] = {}
    for address in list_tables(connection, namespace):
        try:
            outcomes[format_levels(address.id)] = work(address)
        except LanceNamespaceError as error:
            outcomes[format_levels(address.id)] = error
    return outcomes


def compact(spark: SparkSession, address: TableAddress, options: dict[str, Any]) -> CompactionResult:
    """Rewrite small fragments into larger ones, without deleted rows."""
    table = address.to_ref()
    plan = compaction.plan(table, **options)
    with translate_task_errors():
        done = collect_results(spark, plan.tasks, lambda task: [compaction.execute(address.to_ref(), task)])
    return compaction.commit(table, done)


def create_index(
    spark: SparkSession,
    address: TableAddress,
    column: str,
    kind: str,
    name: str | None,
    replace: bool,
    params: dict[str, Any],
) -> BuiltIndex:
    """Build an index. The model that its parts share is trained first, by one task."""
    table = address.to_ref()
    plan = index_building.plan(table, column, kind, name, replace=replace, tasks=parallelism(spark), **params)
    training = [] if plan.training is None else [plan.training]
    with translate_task_errors():
        model = next(
            iter(collect_results(spark, training, lambda each: [index_building.train(address.to_ref(), each)])), None
        )
    try:
        with translate_task_errors():
            done = collect_results(
                spark, plan.tasks, lambda task: [index_building.execute(address.to_ref(), task, model)]
            )
    except BaseException:
        index_building.discard(table, [], model)
        raise
    return index_building.commit(table, done)


def optimize_indices(spark: SparkSession, address: TableAddress, names: Sequence[str] | None, retrain: bool) -> int:
    """Add new rows to indices; pylance does that in one step, which is one task here. Return the new version."""
    with translate_task_errors():
        [version] = collect_results(
            spark, [0], lambda _: [str(index_building.optimize(address.to_ref(), names, retrain=retrain))]
        )
    return int(version)


def cleanup(spark: SparkSession, address: TableAddress, older_than: timedelta, dry_run: bool) -> CleanupResult:
    """Remove old versions, in one task."""
    orphans.require_age(older_than)
    with translate_task_errors():
        [done] = collect_results(
            spark, [0], lambda _: [json.dumps(asdict(orphans.cleanup(address.to_ref(), older_than, dry_run=dry_run)))]
        )
    removed = json.loads(done)
    return CleanupResult(**{**removed, "tagged": tuple(removed["tagged"])})


def remove_orphans(
    spark: SparkSession, address: TableAddress, older_than: timedelta | None, dry_run: bool, no_writers: bool
) -> Orphans:
    """Remove the files that no version references; they are listed on the driver and removed in tasks."""
    chunks = orphans.plan(address.to_ref(), older_than, no_writers=no_writers)
    removed = Orphans()
    while some := list(islice(chunks, CHUNKS_AT_ONCE)):
        if dry_run:
            removed = sum(map(orphans.parse_orphans, some), removed)
            continue
        with translate_task_errors():
            done = collect_results(
                spark, some, lambda chunk: [json.dumps(asdict(orphans.execute(address.to_ref(), chunk)))]
            )
        for text in done:
            chunk_result = json.loads(text)
            removed += Orphans(chunk_result["files"], chunk_result["bytes"], tuple(chunk_result["names"]))
    return removed
