"""Write DataFrames to Lance tables (create, append, overwrite): tasks write files, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError, TableAlreadyExistsError
from pyspark.sql import DataFrame

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import Job, WriteOptions, declare_table, find_version_of_same_run, undo_declaration
from lancehouse.lake import commits
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import FileLayout, Piece, locate_table
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.lake.scans import empty_dataset
from lancehouse.schema.spark import table_schema
from lancehouse.schema.spark_to_lance import SparkToLance, from_spark_rows
from lancehouse.schema.walk import check_types, relax_nullability
from lancehouse.spark.engine import RESULT_STRUCT, Batches, collect_texts, to_result_batches, translate_task_errors

_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double"})


def create(frame: DataFrame, address: TableAddress, how: WriteOptions) -> int:
    """Create a table from a DataFrame; return the version.

    Raises:
        TableAlreadyExistsError: the table exists.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return existing_version
    if table.exists():
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    return _create_first_version(frame, address, how)


def append(frame: DataFrame, address: TableAddress, how: WriteOptions) -> int:
    """Append the rows of a DataFrame; return the version that this made.

    Raises:
        TableNotFoundError: there is no such table.
        TableSchemaValidationError: the columns do not fit those of the table.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return existing_version
    if not table.exists():
        locate_table(table)  # raises unless it is at least declared
        try:
            return _create_first_version(frame, address, how, commits.create_or_append)
        except commits.RunAlreadyCommittedError as error:
            return error.version
    dataset = table.open()
    base, schema, base_uuid = dataset.version, dataset.schema, read_transaction_uuid(dataset)
    job, used = Job(address), list[Piece]()
    try:
        with job.clean_up_after(used):
            used += write_frame(frame, job, schema, "append", how.layout)
            # While the tasks wrote, the table may have been dropped and created again under its name.
            commits.require_same_table(table, base, base_uuid)
            return commits.append(table, locate_table(table), used, base, how.properties)
    except commits.RunAlreadyCommittedError as error:
        return error.version


def overwrite(frame: DataFrame, address: TableAddress, how: WriteOptions) -> int:
    """Replace all rows by those of a DataFrame; return the version that this made. A missing table is created.

    Raises:
        ConcurrentModificationError: another writer changed the table meanwhile.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return existing_version
    if not table.exists():
        try:
            return _create_first_version(frame, address, how)
        except commits.CreateConflictError as error:
            raise create_conflict(table) from error
    dataset = table.open()
    base, base_uuid = dataset.version, read_transaction_uuid(dataset)
    schema = new_table_schema(frame.schema.jsonValue(), how, dataset.schema)
    job, used = Job(address), list[Piece]()
    with job.clean_up_after(used):
        used += write_frame(frame, job, schema, "overwrite", how.layout)
        commits.require_same_table(table, base, base_uuid)
        return commits.overwrite(table, locate_table(table), schema, used, base, how.properties)


def write_frame(frame: DataFrame, job: Job, target: pa.Schema, mode: str, layout: FileLayout) -> list[Piece]:
    """Write the rows of a DataFrame in its own tasks, without a commit.

    Args:
        frame: the rows.
        job: the job that they belong to.
        target: the columns of the table.
        mode: mode of `lake.fragments.write_pieces`.
        layout: sizes and format of files.

    Raises:
        TableSchemaValidationError: the columns do not fit; nothing is written.
    """
    incoming = from_spark_rows(frame.schema.jsonValue(), target)
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))  # mapInArrow does not quote names
    with translate_task_errors():
        return collect_texts(
            plain.mapInArrow(
                lambda batches: to_result_batches(write_rows(job, batches, incoming, mode, layout)), RESULT_STRUCT
            )
        )


def write_rows(job: Job, batches: Batches, incoming: SparkToLance, mode: str, layout: FileLayout) -> list[Piece]:
    """Convert and write rows as Spark passes them to a task; nothing is written if there are none."""
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return []
    converted = map(incoming.convert_batch, chain([first], rows))
    return job.write(pa.RecordBatchReader.from_batches(incoming.schema, converted), mode, layout)


def create_conflict(table: TableRef) -> ConcurrentModificationError:
    """Return the error of an overwrite when another writer created the table meanwhile."""
    return ConcurrentModificationError(f"{table}: another writer created it just now; run it again")


def _create_first_version(
    frame: DataFrame, address: TableAddress, how: WriteOptions, commit: Callable[..., int] = commits.create
) -> int:
    """Write the first version of a table. If it fails, the catalog entry that this declared is removed."""
    table, schema = address.to_ref(), new_table_schema(frame.schema.jsonValue(), how)
    empty_dataset(schema, how.layout.data_storage_version)
    declared = declare_table(table)
    job, used = Job(address), list[Piece]()
    try:
        with job.clean_up_after(used):
            used += write_frame(frame, job, schema, "overwrite", how.layout)
            return commit(table, locate_table(table), schema, used, how.properties)
    except BaseException as error:
        # `used` is filled just before the commit. After that, only an explicit refusal shows that the version was not
        # made; in any other case the entry must stay.
        if declared and (not used or (isinstance(error, LanceNamespaceError) and commits.is_refusal(error))):
            try:
                undo_declaration(table)
            except LanceNamespaceError as left:
                error.add_note(f"and the entry that this had made could not be taken back: {left}")
        raise


def new_table_schema(struct: Mapping[str, Any], how: WriteOptions, before: pa.Schema | None = None) -> pa.Schema:
    """Return the columns of a new table, or of one that is overwritten: columns that were vectors stay vectors.

    As with Parquet, Delta and Iceberg, they are nullable whatever Spark's schema says: that holds for these rows only,
    not for rows that come later.

    Args:
        struct: the JSON of the rows' StructType.
        how: gives the vectors, and whether to keep the nullability of the rows.
        before: columns of the table that is overwritten.

    Raises:
        TableSchemaValidationError: a column has no type, or one that Lance does not store.
    """
    vector_sizes = {} if before is None else dict(_previous_vectors(struct, before))
    schema = table_schema(struct, {**vector_sizes, **how.vector_columns})
    check_types(schema)
    return relax_nullability(schema) if how.nullable else schema


def _previous_vectors(
    struct: Mapping[str, Any], before: Iterable[pa.Field[Any]], above: str = ""
) -> Iterator[tuple[str, int]]:
    """Yield the columns that were vectors and still can be, with their dimensions."""
    types = {column["name"]: column["type"] for column in struct["fields"]}
    for column in before:
        dtype = column.type
        match types.get(column.name), dtype:
            case {"type": "array", "elementType": str(element)}, pa.FixedSizeListType() if element in _NUMBERS:
                yield f"{above}{column.name}", dtype.list_size
            case {"type": "struct", "fields": inner}, pa.StructType():
                yield from _previous_vectors({"fields": inner}, dtype, f"{above}{column.name}.")
