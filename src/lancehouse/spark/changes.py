"""Read the changes of a table's rows, version by version: inserted, updated and deleted rows, in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.jobs.address import MAX_OPENED, PinnedVersion, TableAddress
from lancehouse.lake.changes import DELETE, INSERT, AddedFragment, change_condition, find_deleted_rows, read_changes
from lancehouse.lake.dataset import TableRef, VersionSelector, enclose_sql, to_millis
from lancehouse.lake.scans import MIN_TASK_ROWS, FragmentRange, Scan
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark.engine import Batches, parallelism, run_in_tasks
from lancehouse.spark.session import to_struct
from lancehouse.spark.table_reader import STREAM, read_fitting_batches

COLUMNS: tuple[pa.Field[Any], ...] = (
    pa.field("_change_type", pa.string(), nullable=False),
    pa.field("_commit_version", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
)
"""Columns of each change, called as Delta calls them."""

RowsOfVersion = tuple[int, int, str | None]
"""A version, a fragment of it, and what the version did to rows there; None if it added all of them."""


def add_change_columns(table: object, schema: pa.Schema) -> pa.Schema:
    """Return the schema of changes.

    Raises:
        InvalidInputError: the table has a column of that name.
    """
    if names := [field.name for field in COLUMNS if field.name in schema.names]:
        raise InvalidInputError(f"{table} has a column {names[0]}, as changes have: choose other columns")
    return pa.schema([*schema, *COLUMNS])


def split_for_tasks(fragments: Sequence[tuple[int, AddedFragment]], tasks: int) -> Iterator[list[RowsOfVersion]]:
    """Split fragments, each with its version, into groups of about the same number of rows."""
    share = max(-(-sum(fragment.rows for _, fragment in fragments) // tasks), MIN_TASK_ROWS)
    task_fragments: list[RowsOfVersion] = []
    rows = 0
    for version, fragment in fragments:
        task_fragments.append((version, fragment.id, fragment.change))
        rows += fragment.rows
        if rows >= share:
            yield task_fragments
            task_fragments, rows = [], 0
    if task_fragments:
        yield task_fragments


@lru_cache(MAX_OPENED)
def open_version(at: PinnedVersion) -> tuple[TableRef, Any]:
    """Open a version other than the pinned one, once for all tasks of a query in this process."""
    table = at.address.to_ref(at.job, version=at.version, branch=at.branch)
    return table, table.open()


def read_versions(
    pinned: PinnedVersion, scan: Scan, columns: pa.Schema, rows: Iterable[RowsOfVersion], *, with_changes: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows of versions in the columns that a reader began with, each batch with the version.

    Args:
        pinned: the table.
        scan: what to read.
        columns: columns of the rows.
        rows: which rows.
        with_changes: add the columns that tell the change.
    """
    for (version, change), group in groupby(rows, key=itemgetter(0, 2)):
        parts = [FragmentRange(fragment) for _, fragment, _ in group]
        table, dataset = open_version(replace(pinned, version=version))
        if change == DELETE:
            batches = _read_deleted(pinned, scan, columns, dataset, parts)
        else:
            rows_of_change = scan if change is None else _add_condition(scan, change_condition(version, change))
            batches = read_fitting_batches(rows_of_change, columns, table, dataset, parts, STREAM)
        for batch in batches:
            yield version, _add_columns(batch, dataset, change or INSERT) if with_changes else batch


def _add_condition(scan: Scan, condition: str) -> Scan:
    return replace(scan, filter=condition if scan.filter is None else f"{enclose_sql(scan.filter)} AND {condition}")


def _read_deleted(
    pinned: PinnedVersion, scan: Scan, columns: pa.Schema, dataset: Any, parts: Sequence[FragmentRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a version deleted, as they were in the one before."""
    table, before = open_version(replace(pinned, version=dataset.version - 1))
    deleted_ids = find_deleted_rows(before, dataset, [part.fragment for part in parts])
    fields = columns if scan.with_row_id else columns.append(pa.field("_rowid", pa.uint64()))
    for batch in read_fitting_batches(replace(scan, with_row_id=True), fields, table, before, parts, STREAM):
        deleted = batch.filter(pa.array(np.isin(batch.column("_rowid").to_numpy(), deleted_ids)))
        if deleted.num_rows:
            yield deleted.select(columns.names)


def _add_columns(batch: pa.RecordBatch, dataset: Any, change: str) -> pa.RecordBatch:
    time_us = to_millis(dataset.get_version()["timestamp"]) * 1000
    values = (change, int(dataset.version), time_us)
    columns = [
        pa.repeat(pa.scalar(value, field.type), len(batch)) for value, field in zip(values, COLUMNS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *columns], names=[*batch.schema.names, *(f.name for f in COLUMNS)]
    )


def read_table_changes(
    spark: SparkSession, address: TableAddress, scan: Scan, start: VersionSelector, end: VersionSelector
) -> DataFrame:
    """Return the changes of the versions after one, up to another. See `LanceCatalog.read_changes`."""
    pinned = PinnedVersion.resolve(address, end)
    table, dataset = pinned.open()
    after = 0 if start.version == 0 else int(start.open(address.to_ref())[1].version)
    if after > pinned.version:
        raise InvalidInputError(f"the changes of {table} from version {after} to {pinned.version} are none: swap them")
    columns = scan.schema(table, dataset)
    schema = add_change_columns(table, columns)
    rows = to_spark_rows(schema)
    increments = read_changes(address.to_ref(), after, pinned.version)
    fragments = [(increment.version, fragment) for increment in increments for fragment in increment.fragments]

    def work(part: list[RowsOfVersion]) -> Batches:
        for _, batch in read_versions(pinned, scan, columns, part, with_changes=True):
            yield from rows.convert_batches(batch)

    return run_in_tasks(spark, list(split_for_tasks(fragments, parallelism(spark))), work, to_struct(rows.struct))
