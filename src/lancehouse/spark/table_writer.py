"""Write DataFrames, and the rows of data sources, to Lance tables: tasks write files, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)
from pyspark.sql import DataFrame

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.jobs.engine import LocalEngine
from lancehouse.jobs.job import (
    Job,
    WriteOptions,
    declare_table,
    find_version_of_same_run,
    retry_changed_columns,
    undo_declaration,
)
from lancehouse.jobs.merge import StagedRows, merge
from lancehouse.jobs.merge_keys import MergeRules, check_keys
from lancehouse.jobs.table_changes import evolve_columns
from lancehouse.lake import commits
from lancehouse.lake.commits import FileLayout, NewFragment, locate_table
from lancehouse.lake.dataset import TableRef, empty_dataset
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.schema.blob_references import with_blobs
from lancehouse.schema.spark import table_schema
from lancehouse.schema.spark_rows import SparkToLance, from_spark_rows
from lancehouse.schema.walk import check_types, relax_nullability
from lancehouse.spark.engine import RESULT_STRUCT, Batches, collect_texts, to_result_batches, translate_task_errors
from lancehouse.spark.table_reader import VERSION

QUERY = "lancehouse.query"
BATCH = "lancehouse.batch"
"""Keys of a transaction's properties: the streaming query, and the batch of it that made a version."""
_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double"})


def create(frame: DataFrame, address: TableAddress, how: WriteOptions, columns: pa.Schema | None = None) -> int:
    """Create a table from a DataFrame; return the version. See `overwrite`.

    Raises:
        TableAlreadyExistsError: the table exists.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return existing_version
    if table.exists():
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    return _create_first_version(frame, address, how, columns=columns)


def append(frame: DataFrame, address: TableAddress, how: WriteOptions) -> int:
    """Append the rows of a DataFrame; return the version that this made.

    Raises:
        TableNotFoundError: there is no such table.
        TableSchemaValidationError: the columns do not fit those of the table.
    """
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return existing_version
    return retry_changed_columns(how, lambda: _append(frame, address, how))


def _append(frame: DataFrame, address: TableAddress, how: WriteOptions) -> int:
    table = address.to_ref()
    if (dataset := table.find()) is None:
        locate_table(table)  # raises unless it is at least declared
        try:
            return _create_first_version(frame, address, how, commits.create_or_append)
        except commits.RunAlreadyCommittedError as error:
            return error.version
    if evolve_for_rows(address, frame.schema.jsonValue(), how):
        dataset = table.open()
    base, schema, base_uuid = dataset.version, dataset.schema, read_transaction_uuid(dataset)
    job, used = Job(address), list[NewFragment]()
    try:
        with job.clean_up_after(used):
            used += write_frame(frame, job, schema, "append", how.layout)
            # While the tasks wrote, the table may have been dropped and created again under its name.
            commits.require_same_table(table, base, base_uuid)
            return commits.append(table, locate_table(table), used, base, how.properties)
    except commits.RunAlreadyCommittedError as error:
        return error.version


def overwrite(frame: DataFrame, address: TableAddress, how: WriteOptions, columns: pa.Schema | None = None) -> int:
    """Replace all rows by those of a DataFrame; return the version that this made. A missing table is created.

    Args:
        frame: the rows.
        address: address of the table.
        how: how rows are written.
        columns: the columns that the table gets; by default those of the frame.

    Raises:
        ConcurrentModificationError: another writer changed the table meanwhile.
    """
    table = address.to_ref()
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return existing_version
    if (dataset := table.find()) is None:
        try:
            return _create_first_version(frame, address, how, columns=columns)
        except commits.CreateConflictError as error:
            raise create_conflict(table) from error
    # Lance itself lets an overwrite pass over an append that came meanwhile, whose rows are then gone: the commit below
    # requires that the table is still at this version.
    base, base_uuid = dataset.version, read_transaction_uuid(dataset)
    schema = columns or new_table_schema(frame.schema.jsonValue(), how, dataset.schema)
    job, used = Job(address), list[NewFragment]()
    with job.clean_up_after(used):
        used += write_frame(frame, job, schema, "overwrite", how.layout)
        commits.require_same_table(table, base, base_uuid)
        return commits.overwrite(table, locate_table(table), schema, used, base, how.properties)


def write_frame(frame: DataFrame, job: Job, target: pa.Schema, mode: str, layout: FileLayout) -> list[NewFragment]:
    """Write the rows of a DataFrame in its own tasks, without a commit.

    Args:
        frame: the rows.
        job: the job that they belong to.
        target: the columns of the table.
        mode: mode of `lake.commits.write_uncommitted`.
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


def write_rows(job: Job, batches: Batches, incoming: SparkToLance, mode: str, layout: FileLayout) -> list[NewFragment]:
    """Convert and write rows as Spark passes them to a task; nothing is written if there are none."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return []
    rows: Batches = chain([first], filled)
    if incoming.references:
        rows = ReferencedBlobs(job.address.connection, job=job.id).fill(rows, incoming.references)
    converted = map(incoming.convert_batch, rows)
    return job.write(pa.RecordBatchReader.from_batches(incoming.schema, converted), mode, layout)


def create_conflict(table: TableRef) -> ConcurrentModificationError:
    """Return the error of an overwrite when another writer created the table meanwhile."""
    return ConcurrentModificationError(f"{table}: another writer created it just now; run it again")


def _create_first_version(
    frame: DataFrame,
    address: TableAddress,
    how: WriteOptions,
    commit: Callable[..., int] = commits.create,
    columns: pa.Schema | None = None,
) -> int:
    """Write the first version of a table. If it fails, the catalog entry that this declared is removed."""
    table, schema = address.to_ref(), columns or new_table_schema(frame.schema.jsonValue(), how)
    empty_dataset(schema, how.layout.data_storage_version)
    declared = declare_table(table)
    job, used = Job(address), list[NewFragment]()
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
            except LanceNamespaceError as undo_error:
                error.add_note(f"and the entry that this had made could not be taken back: {undo_error}")
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
    schema = incoming_schema(struct, how, before)
    check_types(schema)
    return relax_nullability(schema) if how.nullable else schema


def incoming_schema(struct: Mapping[str, Any], how: WriteOptions, before: pa.Schema | None) -> pa.Schema:
    """Return the columns of rows of Spark; arrays that are vectors in a table are vectors, references are blobs."""
    vector_sizes = {} if before is None else dict(_previous_vectors(struct, before))
    return with_blobs(table_schema(struct, {**vector_sizes, **how.vector_columns}), before)


def evolve_for_rows(address: TableAddress, struct: Mapping[str, Any], how: WriteOptions) -> bool:
    """Change the columns of a table so that rows of Spark fit, if that is wanted; return whether they changed.

    Raises:
        TableSchemaValidationError: the rows do not fit; nothing was changed.
    """
    return how.evolves and evolve_columns(
        address, lambda before: incoming_schema(struct, how, before), lambda target: from_spark_rows(struct, target)
    )


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


ATTEMPTED = "commit"
"""Key of a job's record: it has begun its commit."""


@dataclass(frozen=True, slots=True)
class Sink:
    """One job that writes rows of Spark to a table; can be sent to other processes."""

    job: Job
    struct: Mapping[str, Any]
    """The JSON of the rows' StructType."""
    schema: pa.Schema
    """Schema of the table that the rows are written in: the existing one for an append, the new one otherwise."""
    base: int
    """The version that was the latest when the job began; 0 if there was none."""
    base_uuid: str
    """Uuid of the commit that made it."""
    replaces: bool
    """Whether the rows replace all others."""
    declared: bool
    """Whether this job declared the table in the catalog."""
    how: WriteOptions

    @classmethod
    def begin(cls, address: TableAddress, struct: Mapping[str, Any], how: WriteOptions, *, replaces: bool) -> Self:
        """Check that the rows fit the table. A missing table is declared.

        Raises:
            TableSchemaValidationError: the rows do not fit.
        """
        table = address.to_ref()
        try:
            dataset = table.open()
        except TableNotFoundError:
            schema = new_table_schema(struct, how)
            return cls(Job(address, is_watched=False), struct, schema, 0, "", replaces, declare_table(table), how)
        if not replaces and evolve_for_rows(address, struct, how):
            dataset = table.open()
        schema = new_table_schema(struct, how, dataset.schema) if replaces else dataset.schema
        from_spark_rows(struct, schema)
        job, base = Job(address, is_watched=False), dataset.version
        return cls(job, struct, schema, base, read_transaction_uuid(dataset), replaces, False, how)

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[NewFragment]:
        """Write the rows of a task, without a commit."""
        mode = "append" if self.base and not self.replaces else "overwrite"
        return write_rows(self.job, batches, from_spark_rows(self.struct, self.schema), mode, self.how.layout)

    def commit(self, pieces: Iterable[NewFragment], properties: Mapping[str, str]) -> int:
        """Commit what the tasks wrote as one version; return the version.

        Raises:
            ConcurrentModificationError: another writer changed or created the table, and its rows would be lost.
        """
        table, used = self.job.address.to_ref(), list(pieces)
        at = locate_table(table)
        # Spark also calls `abort` after a commit that failed. From here on a failure may mean that the version was
        # made, so `abort` must not delete its files.
        self.job.progress().record(ATTEMPTED, [])
        try:
            with self.job.clean_up_after(used):
                if not self.base:
                    create = commits.create if self.replaces else commits.create_or_append
                    return create(table, at, self.schema, used, properties)
                commits.require_same_table(table, self.base, self.base_uuid)
                if self.replaces:
                    return commits.overwrite(table, at, self.schema, used, self.base, properties)
                return commits.append(table, at, used, self.base, properties)
        except commits.RunAlreadyCommittedError as error:
            return error.version
        except commits.CreateConflictError as error:
            raise create_conflict(table) from error

    def abort(self) -> None:
        """Remove what the tasks wrote. Spark also calls this after a commit that failed.

        If it is not known whether that commit was made, the files stay.
        """
        notes = self.job.progress()
        if ATTEMPTED in notes.read_records():
            notes.clear()
            return
        self.discard()
        if self.declared:
            undo_declaration(self.job.address.to_ref())

    def discard(self) -> None:
        """Remove all that the tasks wrote."""
        with self.job.clean_up_after([]):
            pass


@dataclass(frozen=True, slots=True)
class MergeSink(Sink):
    """One job that merges rows of Spark into a table by key; can be sent to other processes.

    Tasks write the rows beside the table, with the columns that they have; the process that commits merges them in
    threads of its own, as no Spark session is at hand there.
    """

    on: tuple[str, ...] = ()
    rules: MergeRules = field(default_factory=MergeRules)
    latest_by: tuple[str, ...] = ()

    @classmethod
    def begin_merge(
        cls,
        address: TableAddress,
        struct: Mapping[str, Any],
        how: WriteOptions,
        on: tuple[str, ...],
        rules: MergeRules,
        latest_by: tuple[str, ...],
    ) -> Self:
        """Check that the rows fit the table, and have the columns of the key. A missing table is declared.

        Raises:
            TableSchemaValidationError: the rows do not fit.
            TableColumnNotFoundError: a column of the key is missing.
        """
        table = address.to_ref()
        schema, dataset = new_table_schema(struct, how), table.find()
        if dataset is not None:
            order_only = [name for name in latest_by if name not in dataset.schema.names]
            merged = {"fields": [column for column in struct["fields"] if column["name"] not in order_only]}
            if evolve_for_rows(address, merged, how):
                dataset = table.open()
            # In the types of the table; a column that it lacks may tell which row is the latest.
            fields = {column.name: column for column in dataset.schema}
            if unknown := [name for name in schema.names if name not in fields and name not in latest_by]:
                raise TableSchemaValidationError(
                    f"{table} has no column {', '.join(unknown)}; it has {', '.join(dataset.schema.names)}"
                )
            schema = pa.schema([fields.get(field.name, field) for field in schema])
        check_keys(address, schema, on)
        from_spark_rows(struct, schema)
        declared = dataset is None and declare_table(table)
        base, uuid = (0, "") if dataset is None else (dataset.version, read_transaction_uuid(dataset))
        job = Job(address, is_watched=False)
        return cls(job, struct, schema, base, uuid, False, declared, how, on, rules, latest_by)

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[NewFragment]:
        """Write the rows of a task beside the table."""
        return write_rows(self.job, batches, from_spark_rows(self.struct, self.schema), "overwrite", self.how.layout)

    def commit(self, pieces: Iterable[NewFragment], properties: Mapping[str, str]) -> int:
        """Merge what the tasks wrote, as one version; return the version."""
        table = self.job.address.to_ref()
        if self.base:
            commits.require_same_table(table, self.base, self.base_uuid)
        rows = StagedRows(
            self.job, tuple(pieces), self.schema, self.schema.names, self.latest_by, transient=frozenset({VERSION})
        )
        how = replace(self.how, run=f"{properties[QUERY]} {properties[BATCH]}", notes=properties)
        result = merge(LocalEngine(), self.job.address, rows, self.on, self.rules, how)
        self.discard()
        return result.version

    def abort(self) -> None:
        """Remove what the tasks wrote, which no version needs."""
        self.discard()
        if self.declared:
            undo_declaration(self.job.address.to_ref())
