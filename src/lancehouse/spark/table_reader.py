"""Read Lance tables as DataFrames: the driver pins a version and splits its fragments, tasks read them.

A DataFrame or view that follows a table has no version of its own: each query reads the version that was the latest
when the query began. Spark plans a temporary view once for all its queries, so only its tasks can choose the version.
They agree on it without communication: Spark gives each run of a query an id that contains its start time, and all its
tasks know that id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from lancehouse.jobs.address import MAX_OPENED, PinnedVersion, TableAddress, share_answer
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.lake.dataset import TableRef, VersionSelector, to_millis
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.scans import FragmentRange, Scan, TooManyBytesError, estimate_bytes, limit_bytes, split_fragments
from lancehouse.locations import local_folder
from lancehouse.schema.array_conversion import ArrayTooLargeError, to_small_offsets
from lancehouse.schema.blob_references import is_reference
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark.engine import Batches, collect_results, parallelism, run_in_tasks
from lancehouse.spark.session import to_struct

MOST_ROWS = (1 << 31) - 1
"""The largest limit that Spark supports."""
SMALL_ROWS = 50_000
"""Number of rows that are read in the driver at most to be joined."""
QUERY = "spark.sql.execution.query.id"
"""Local property of tasks with the id of a query's run: a version 7 UUID, which begins with the time."""
VISIBLE_MS, VISIBLE_FAR_MS = 200, 1000
"""How long after its timestamp a commit may become visible, in milliseconds, on a local disk and elsewhere."""
ROW_ID = "_rowid"
VERSION = "_version"
"""Column of a stream with the version that added a row."""


def resolve_at_query_start(pinned: PinnedVersion) -> PinnedVersion:
    """Return the version that was the latest when the query of this task began, and never an older one than `pinned`.

    A task outside of a query, such as one of an RDD, gets `pinned`.

    Raises:
        ConcurrentModificationError: the table was dropped and created again.
    """
    began_ms = query_start_ms()
    return pinned if began_ms is None else _resolve_at(pinned, began_ms)


def query_start_ms() -> int | None:
    """Return when the query of this task began, in ms since 1970 by the driver's clock; None outside of a query."""
    task = TaskContext.get()
    try:
        query = UUID((task and task.getLocalProperty(QUERY)) or "")
    except ValueError:
        return None
    return query.int >> 80 if query.version == 7 else None


@lru_cache(MAX_OPENED)
def _resolve_at(pinned: PinnedVersion, began_ms: int) -> PinnedVersion:
    # A query is a job of its own: what a worker was told of the table for an earlier one may be out of date.
    job = f"{pinned.job} {began_ms}"
    key = (*pinned.address.identity, "latest", pinned.branch)
    return replace(pinned, job=job, **share_answer(key, job, lambda: _find_latest(replace(pinned, job=job), began_ms)))


def _find_latest(pinned: PinnedVersion, began_ms: int) -> dict[str, Any]:
    """Return number and transaction of the version that was the latest at a time; it is cached as opened."""
    table = pinned.address.to_ref(pinned.job, branch=pinned.branch)
    for dataset in _versions_newest_first(table, began_ms):
        version: dict[str, Any] = {"version": int(dataset.version), "transaction_uuid": read_transaction_uuid(dataset)}
        # The pinned version was there before the query, whatever the clock of its writer says.
        is_pinned = replace(pinned, **version) == pinned
        if is_pinned or to_millis(dataset.get_version()["timestamp"]) <= began_ms:
            replace(pinned, **version).keep_open(replace(table, version=dataset.version), dataset)
            return version
    raise ConcurrentModificationError(f"{table} was dropped and made anew meanwhile; run the query again")


def _versions_newest_first(table: TableRef, began_ms: int) -> Iterator[Any]:
    """Yield the versions of a table from the latest back, once all commits from before the query are visible.

    A commit carries the time at which its manifest was written, shortly before others can see it. A task that looked
    immediately might miss a version that the next task finds.
    """
    dataset = table.open()
    lands_ms = VISIBLE_MS if local_folder(dataset.uri) is not None else VISIBLE_FAR_MS
    wait_ms = min(began_ms + lands_ms - time.time() * 1000, lands_ms)  # capped, as the machines' clocks may differ
    if wait_ms > 0:
        time.sleep(wait_ms / 1000)
        dataset = table.open()
    yield dataset
    with table.dataset():
        older = sorted((version["version"] for version in dataset.version_refs()), reverse=True)
        for version in older:
            if version < dataset.version:
                yield dataset.checkout_version(version)


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The share of one of several tasks in a version that is chosen only when the task runs."""

    number: int
    count: int

    def parts(self, dataset: Any, *, split: bool) -> list[FragmentRange]:
        """Return the fragment ranges of a version that this task reads."""
        all_parts = split_fragments(dataset, self.count, split=split)
        return all_parts[self.number] if self.number < len(all_parts) else []


def to_shares(groups: Sequence[Any]) -> list[TaskShare]:
    """Return as many shares as there are groups now, at least one: a table that is empty now may get rows."""
    count = max(len(groups), 1)
    return [TaskShare(number, count) for number in range(count)]


@dataclass(frozen=True, slots=True)
class ReaderName:
    """Names a reader of several versions that has the columns of one, for messages."""

    name: str
    advice: str
    """What the user can do when the columns do not fit any more."""


STREAM = ReaderName("the stream", "start the query again, or at a version that has the column")
VIEW = ReaderName("the view or DataFrame", "make that anew")


def read_fitting_batches(
    scan: Scan, schema: pa.Schema, table: TableRef, dataset: Any, parts: Sequence[FragmentRange], reader: ReaderName
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a version in the columns that a reader began with, which may differ from the version's.

    Args:
        scan: what to read.
        schema: columns of the reader. A column that the version lacks is null.
        table: the table.
        dataset: the version.
        parts: the fragment ranges to read.
        reader: the reader, for messages.

    Raises:
        TableSchemaValidationError: a column has another type, or is gone and not nullable.
    """
    columns = scan.columns or tuple(name for name in schema.names if name != ROW_ID)
    existing = {*dataset.schema.names, ROW_ID}
    scan = replace(scan, columns=tuple(name for name in columns if name.partition(".")[0] in existing))
    scanned = scan.schema(table, dataset)
    for batch in scan.batches(table, dataset, parts):
        yield batch if scanned == schema else _fit_columns(table, batch, scanned, schema, reader)


def _fit_columns(
    table: TableRef, batch: pa.RecordBatch, scanned: pa.Schema, schema: pa.Schema, reader: ReaderName
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name not in scanned.names and field.nullable:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        elif field.name in scanned.names and scanned.field(field.name).type == field.type:
            arrays.append(batch.column(field.name))
        else:
            raise TableSchemaValidationError(
                f"{table}: the column {field.name} is not as {reader.name} has it ({field.type}); {reader.advice}"
            )
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def read_table(
    spark: SparkSession, address: TableAddress, scan: Scan, selector: VersionSelector, *, follows: bool = False
) -> DataFrame:
    """Return the rows of a table that a scan selects.

    Args:
        spark: the session.
        address: address of the table.
        scan: columns, filter and limit.
        selector: the version to read, which also gives the columns of the DataFrame.
        follows: each query of the DataFrame reads the version that is the latest then.

    Raises:
        LanceNamespaceError: there is no such table, version or column, or the filter is invalid.
    """
    if (scan.limit or 0) > MOST_ROWS:
        raise InvalidInputError(f"limit is {scan.limit:,}, and Spark counts to {MOST_ROWS:,}: read without it")
    return read_version(spark, PinnedVersion.resolve(address, selector), scan, follows=follows)


def read_version(spark: SparkSession, pinned: PinnedVersion, scan: Scan, *, follows: bool = False) -> DataFrame:
    """Return the rows of a version that a scan selects. See `read_table`."""
    table, dataset = pinned.open()
    schema, split = scan.schema(table, dataset), scan.filter is None
    rows = to_spark_rows(schema)
    parts = split_fragments(dataset, parallelism(spark), split=split)
    size = estimate_bytes(dataset, schema.names)

    def work(parts: list[FragmentRange]) -> Batches:
        table, dataset = pinned.open()
        return (converted for batch in scan.batches(table, dataset, parts) for converted in rows.convert_batches(batch))

    def follow(share: TaskShare) -> Batches:
        batches = read_following_batches(pinned, share, scan, schema)
        return (converted for batch in batches for converted in rows.convert_batches(batch))

    if follows:
        frame = run_in_tasks(spark, to_shares(parts), follow, to_struct(rows.struct), size=size)
    else:
        frame = run_in_tasks(spark, parts, work, to_struct(rows.struct), size=size)
    return frame if scan.limit is None else frame.limit(scan.limit)


def read_small_version(pinned: PinnedVersion, scan: Scan, most_bytes: int) -> pa.Table | None:
    """Return the rows of a version, read in this process; None if it reads more bytes than given, or finds many rows.

    Spark sends rows of the driver to tasks one by one: of many rows, tasks read them faster.
    """
    table, dataset = pinned.open()
    schema = scan.schema(table, dataset)
    is_large = scan.filter is None and dataset.count_rows() > SMALL_ROWS
    if is_large or estimate_bytes(dataset, schema.names, scan.filter) > most_bytes:
        return None
    parts = [FragmentRange(fragment.fragment_id) for fragment in dataset.get_fragments()]
    try:
        batches = list(limit_bytes(scan.batches(table, dataset, parts), most_bytes))
    except TooManyBytesError:  # the files are smaller than their rows
        return None
    rows = pa.Table.from_batches(batches, schema)
    return rows if rows.num_rows <= SMALL_ROWS else None


def read_following_batches(
    pinned: PinnedVersion, share: TaskShare, scan: Scan, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a task's share of the version that was the latest when its query began, in the columns of `schema`."""
    table, dataset = resolve_at_query_start(pinned).open()
    parts = share.parts(dataset, split=scan.filter is None)
    return read_fitting_batches(scan, schema, table, dataset, parts, VIEW)


def read_blobs(frame: DataFrame, columns: Sequence[str], blobs: ReferencedBlobs) -> DataFrame:
    """Replace references to blobs by the blobs, in the tasks of a DataFrame.

    Raises:
        TableColumnNotFoundError: the DataFrame has no such column, or two of them.
        InvalidInputError: the column has no references.
    """
    struct = StructType.fromJson(frame.schema.jsonValue())
    places = []
    for name in columns:
        if struct.names.count(name) != 1:
            is_absent = name not in struct.names
            raise TableColumnNotFoundError(
                f"the DataFrame has {'no column' if is_absent else 'more than one column'} {name}; it has "
                f"{', '.join(struct.names)}"
            )
        place = struct.names.index(name)
        if not is_reference(struct[place].dataType.jsonValue()):
            raise InvalidInputError(
                f"column {name} is {struct[place].dataType.simpleString()}, and has no references to blobs: those are "
                "read with blobs='reference'"
            )
        struct.fields[place] = StructField(name, BinaryType())
        places.append(place)
    names = struct.names

    def work(batches: Batches) -> Batches:
        for batch in blobs.fill(batches, [(place,) for place in places]):
            arrays = [_to_binary(array) if place in places else array for place, array in enumerate(batch.columns)]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    plain = frame.toDF(*(f"c{number}" for number in range(len(names))))  # mapInArrow does not quote names
    return plain.mapInArrow(work, struct)


def _to_binary(array: Any) -> Any:
    try:
        return to_small_offsets(pa.binary())(array)
    except ArrayTooLargeError as error:
        raise InvalidInputError(
            f"{error}: Spark holds no such value. Open the blob in a function of your own, see blob_reader"
        ) from error


def count_rows(
    spark: SparkSession, address: TableAddress, filter: str | None, selector: VersionSelector, driver_bytes: int = 0
) -> int:
    """Return the number of rows of a table, or of those that match a filter.

    They are counted in tasks, or in this process if it reads no more than `driver_bytes` for it.
    """
    scan = Scan(columns=(), filter=filter, with_row_id=True)
    pinned = PinnedVersion.resolve(address, selector)
    table, dataset = pinned.open()
    if filter is None:
        return int(dataset.count_rows())  # the manifest has it
    scan.schema(table, dataset)

    def work(parts: list[FragmentRange]) -> list[str]:
        return [str(scan.count(*pinned.open(), parts))]

    if estimate_bytes(dataset, (), filter) <= driver_bytes:
        return scan.count(table, dataset, [FragmentRange(fragment.fragment_id) for fragment in dataset.get_fragments()])
    parts = split_fragments(dataset, parallelism(spark), split=False)
    return sum(map(int, collect_results(spark, parts, work)))
