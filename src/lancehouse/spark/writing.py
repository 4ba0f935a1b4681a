"""DataFrames as Lance tables: tasks write files, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from lance_namespace import DeclareTableRequest, DeregisterTableRequest, DescribeTableRequest
from lance_namespace.errors import LanceNamespaceError, TableAlreadyExistsError, TableNotFoundError
from pyspark.sql import DataFrame

from lancehouse.lake import commits
from lancehouse.lake.commits import RUN, version_of_run
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import Layout, Piece, place
from lancehouse.lake.removal import drop
from lancehouse.schema.incoming import from_rows
from lancehouse.schema.spark import table_schema
from lancehouse.spark.address import Address
from lancehouse.spark.jobs import Job, write_frame


@dataclass(frozen=True, slots=True)
class Write:
    """How a DataFrame is written."""

    vector_columns: Mapping[str, int] = field(default_factory=dict)
    """Which arrays are vectors, and of how many numbers; what the table has already need not be told."""
    layout: Layout = field(default_factory=Layout)
    run: str | None = None
    """A run that has made its version already makes no other."""

    @property
    def properties(self) -> dict[str, str]:
        """What the version keeps."""
        return {RUN: self.run} if self.run is not None else {}


def create(frame: DataFrame, address: Address, how: Write) -> int:
    """Make a table of a DataFrame; the version.

    Raises:
        TableAlreadyExistsError: there is one.
    """
    table = address.ref()
    if (done := made_before(table, how)) is not None:
        return done
    if table.exists():
        raise TableAlreadyExistsError(f"{address} exists; append to it, overwrite it, or drop it first")
    return _first(frame, address, how)


def append(frame: DataFrame, address: Address, how: Write) -> int:
    """Add the rows of a DataFrame; the version that this made.

    Raises:
        TableNotFoundError: there is no such table.
        TableSchemaValidationError: the columns do not fit those of the table.
    """
    table = address.ref()
    if (done := made_before(table, how)) is not None:
        return done
    if not table.exists():
        place(table)  # raises unless it is at least declared
        return _first(frame, address, how)
    dataset = table.open()
    base, schema = dataset.version, dataset.schema
    job, used = Job(address), list[Piece]()
    from_rows(frame.schema.jsonValue(), schema)
    with job.cleaned(used):
        used += _written(frame, job, schema, "append", how)
        return commits.append(table, place(table), used, base, how.properties)


def overwrite(frame: DataFrame, address: Address, how: Write) -> int:
    """Put the rows of a DataFrame in the place of all others; the version that this made. A missing table is created.

    Raises:
        ConcurrentModificationError: somebody changed the table meanwhile.
    """
    table = address.ref()
    if (done := made_before(table, how)) is not None:
        return done
    if not table.exists():
        return _first(frame, address, how)
    dataset = table.open()
    base, schema = dataset.version, _schema(frame, how, dataset.schema)
    job, used = Job(address), list[Piece]()
    with job.cleaned(used):
        used += _written(frame, job, schema, "overwrite", how)
        return commits.overwrite(table, place(table), schema, used, base, how.properties)


def made_before(table: TableRef, how: Write) -> int | None:
    return None if how.run is None else version_of_run(table, how.run)


def _first(frame: DataFrame, address: Address, how: Write) -> int:
    """Make the first version; the entry in the catalog that this made is taken back if it fails."""
    table, schema = address.ref(), _schema(frame, how)
    declared = declare(table)
    job, used = Job(address), list[Piece]()
    try:
        with job.cleaned(used):
            used += _written(frame, job, schema, "overwrite", how)
            return commits.create(table, place(table), schema, used, how.properties)
    except BaseException as error:
        if declared and (not used or (isinstance(error, LanceNamespaceError) and commits.is_refusal(error))):
            _take_back(table, error)
        raise


def declare(table: TableRef) -> bool:
    """Have the catalog know the table; whether it did not before."""
    if table.namespace is None:
        return False
    try:
        table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    except TableNotFoundError:
        table.namespace.declare_table(DeclareTableRequest(id=list(table.id)))
        return True
    return False


def _take_back(table: TableRef, error: BaseException) -> None:
    assert table.namespace is not None
    try:
        if not table.exists():
            at = place(table)
            table.namespace.deregister_table(DeregisterTableRequest(id=list(table.id)))
            drop(at.location, at.storage_options)
    except LanceNamespaceError as left:
        error.add_note(f"and the entry that this had made could not be taken back: {left}")


def _schema(frame: DataFrame, how: Write, before: pa.Schema | None = None) -> pa.Schema:
    """The columns of a new table, or of one that is written over: what was a vector stays one."""
    vectors = {
        field.name: field.type.list_size for field in before or () if isinstance(field.type, pa.FixedSizeListType)
    }
    known = {name: size for name, size in vectors.items() if name in frame.columns}
    return table_schema(frame.schema.jsonValue(), {**known, **how.vector_columns})


def _written(frame: DataFrame, job: Job, schema: pa.Schema, mode: str, how: Write) -> list[Piece]:
    return write_frame(frame, job, mode, how.layout, partial(_converter, frame.schema.jsonValue(), schema))


def _converter(
    struct: Mapping[str, object], schema: pa.Schema
) -> tuple[pa.Schema, Callable[[pa.RecordBatch], pa.RecordBatch]]:
    return schema, from_rows(struct, schema).batch
