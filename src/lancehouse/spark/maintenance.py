"""Upkeep of tables: planned on the driver, done in tasks, one commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from lance_namespace.errors import LanceNamespaceError
from pyspark.sql import SparkSession

from lancehouse.identifiers import write_levels
from lancehouse.lake import compaction, indexing, orphans
from lancehouse.lake.compaction import Compacted
from lancehouse.lake.indexing import Indexed
from lancehouse.lake.orphans import Cleaned, Orphans
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.errors import translated
from lancehouse.spark.listing import tables
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import results

T = TypeVar("T")

CHUNKS_AT_ONCE = 256
"""Pieces of work that are held on the driver, where their number is not known before."""


def each(
    catalog: Catalog, namespace: Sequence[str], work: Callable[[Address], T]
) -> dict[str, T | LanceNamespaceError]:
    """Do something to all tables in a namespace and below it; what went wrong with one does not stop the others.

    Returns:
        What came of each, or the error, by the table's id.
    """
    found: dict[str, T | LanceNamespaceError] = {}
    for address in tables(catalog, namespace):
        try:
            found[write_levels(address.id)] = work(address)
        except LanceNamespaceError as error:
            found[write_levels(address.id)] = error
    return found


def compact(spark: SparkSession, address: Address, options: dict[str, Any]) -> Compacted:
    """Make fewer, larger fragments, without the rows that were deleted."""
    table = address.ref()
    plan = compaction.plan(table, **options)
    with translated():
        done = results(spark, plan.tasks, lambda task: [compaction.execute(address.ref(), task)])
    return compaction.commit(table, done)


def create_index(
    spark: SparkSession,
    address: Address,
    column: str,
    kind: str,
    name: str | None,
    replace: bool,
    params: dict[str, Any],
) -> Indexed:
    """Build an index; what its pieces have in common is found out first, by one task."""
    table = address.ref()
    plan = indexing.plan(table, column, kind, name, replace=replace, tasks=parallelism(spark), **params)
    training = [] if plan.training is None else [plan.training]
    with translated():
        model = next(iter(results(spark, training, lambda each: [indexing.train(address.ref(), each)])), None)
    try:
        with translated():
            done = results(spark, plan.tasks, lambda task: [indexing.execute(address.ref(), task, model)])
    except BaseException:
        indexing.discard(table, [], model)
        raise
    return indexing.commit(table, done)


def optimize_indices(spark: SparkSession, address: Address, names: Sequence[str] | None, retrain: bool) -> int:
    """Take rows into indices that came after them; pylance does that in one piece, which is one task here."""
    with translated():
        [version] = results(spark, [0], lambda _: [str(indexing.optimize(address.ref(), names, retrain=retrain))])
    return int(version)


def cleanup(spark: SparkSession, address: Address, older_than: timedelta, dry_run: bool) -> Cleaned:
    """Remove old versions; one task, next to the storage."""
    orphans.require_age(older_than)
    with translated():
        [done] = results(
            spark, [0], lambda _: [json.dumps(asdict(orphans.cleanup(address.ref(), older_than, dry_run=dry_run)))]
        )
    found = json.loads(done)
    return Cleaned(**{**found, "tagged": tuple(found["tagged"])})


def remove_orphans(
    spark: SparkSession, address: Address, older_than: timedelta | None, dry_run: bool, no_writers: bool
) -> Orphans:
    """Remove the files that no version names; they are listed on the driver and removed in tasks."""
    chunks = orphans.plan(address.ref(), older_than, no_writers=no_writers)
    found = Orphans()
    while some := list(islice(chunks, CHUNKS_AT_ONCE)):
        if dry_run:
            found = sum(map(orphans.of, some), found)
            continue
        with translated():
            done = results(spark, some, lambda chunk: [json.dumps(asdict(orphans.execute(address.ref(), chunk)))])
        for text in done:
            gone = json.loads(text)
            found += Orphans(gone["files"], gone["bytes"], tuple(gone["names"]))
    return found
