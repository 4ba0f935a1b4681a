"""DataFrames as Lance tables: tasks write files, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance_namespace import DeclareTableRequest, DeregisterTableRequest, DescribeTableRequest
from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from pyspark.sql import DataFrame

from lancehouse.lake import commits
from lancehouse.lake.commits import RUN, version_of_run
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import Layout, Piece, place
from lancehouse.lake.manifests import made_by
from lancehouse.lake.removal import drop, is_bare
from lancehouse.lake.scans import like
from lancehouse.schema.spark import table_schema
from lancehouse.schema.walk import relaxed, require_types
from lancehouse.spark.address import Address
from lancehouse.spark.jobs import Job, write_frame

_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double"})


@dataclass(frozen=True, slots=True)
class Write:
    """How a DataFrame is written."""

    vector_columns: Mapping[str, int] = field(default_factory=dict)
    """Which arrays are vectors, and of how many numbers; what the table has already need not be told."""
    layout: Layout = field(default_factory=Layout)
    run: str | None = None
    """A run that has made its version already makes no other."""
    is_new: bool = False
    """Whether no version can be of that run, so that none is looked for."""
    nullable: bool = True
    """Whether all columns of a new table may be null; else those that may be in the rows."""

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
        try:
            return _first(frame, address, how, commits.create_or_append)
        except commits.RunMadeError as error:
            return error.version
    dataset = table.open()
    base, schema, known = dataset.version, dataset.schema, made_by(dataset)
    job, used = Job(address), list[Piece]()
    try:
        with job.cleaned(used):
            used += write_frame(frame, job, schema, "append", how.layout)
            commits.require_same(table, base, known)
            return commits.append(table, place(table), used, base, how.properties)
    except commits.RunMadeError as error:
        return error.version


def overwrite(frame: DataFrame, address: Address, how: Write) -> int:
    """Put the rows of a DataFrame in the place of all others; the version that this made. A missing table is created.

    Raises:
        ConcurrentModificationError: somebody changed the table meanwhile.
    """
    table = address.ref()
    if (done := made_before(table, how)) is not None:
        return done
    if not table.exists():
        try:
            return _first(frame, address, how)
        except commits.OvertakenError as error:
            raise overtaken(table) from error
    dataset = table.open()
    base, known = dataset.version, made_by(dataset)
    schema = schema_for(frame.schema.jsonValue(), how, dataset.schema)
    job, used = Job(address), list[Piece]()
    with job.cleaned(used):
        used += write_frame(frame, job, schema, "overwrite", how.layout)
        commits.require_same(table, base, known)
        return commits.overwrite(table, place(table), schema, used, base, how.properties)


def made_before(table: TableRef, how: Write) -> int | None:
    """The version that the same run has made already, if it has."""
    return None if how.run is None or how.is_new else version_of_run(table, how.run)


def overtaken(table: TableRef) -> ConcurrentModificationError:
    """What an overwrite says when another writer made the table just now."""
    return ConcurrentModificationError(f"{table}: another writer created it just now; run it again")


def _first(frame: DataFrame, address: Address, how: Write, commit: Callable[..., int] = commits.create) -> int:
    """Make the first version; the entry in the catalog that this made is taken back if it fails."""
    table, schema = address.ref(), schema_for(frame.schema.jsonValue(), how)
    like(schema, how.layout.data_storage_version)
    declared = declare(table)
    job, used = Job(address), list[Piece]()
    try:
        with job.cleaned(used):
            used += write_frame(frame, job, schema, "overwrite", how.layout)
            return commit(table, place(table), schema, used, how.properties)
    except BaseException as error:
        if declared and (not used or (isinstance(error, LanceNamespaceError) and commits.is_refusal(error))):
            try:
                take_back(table)
            except LanceNamespaceError as left:
                error.add_note(f"and the entry that this had made could not be taken back: {left}")
        raise


def declare(table: TableRef) -> bool:
    """Have the catalog know the table; whether it did not before."""
    if table.namespace is None:
        return False
    try:
        table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    except TableNotFoundError:
        with suppress(TableAlreadyExistsError):  # somebody was faster
            table.namespace.declare_table(DeclareTableRequest(id=list(table.id)))
            return True
    return False


def take_back(table: TableRef) -> None:
    """Have the catalog forget a table that was declared for a job that failed, and has removed its files.

    One that has a version by now stays, and so does one that somebody else is about to make a version of.
    """
    if table.namespace is not None and not table.exists():
        at = place(table)
        if is_bare(at.location, at.storage_options):
            table.namespace.deregister_table(DeregisterTableRequest(id=list(table.id)))
            drop(at.location, at.storage_options)


def schema_for(struct: Mapping[str, Any], how: Write, before: pa.Schema | None = None) -> pa.Schema:
    """The columns of a new table, or of one that is written over: what was a vector stays one.

    As Parquet, Delta and Iceberg have it, they may be null, whatever Spark knows of these rows: it is about these rows
    alone, and says nothing of those that come later.

    Args:
        struct: the JSON of the rows' StructType.
        how: says which arrays are vectors, and whether what cannot be null in the rows cannot be in the table.
        before: the columns of the table that is written over.

    Raises:
        TableSchemaValidationError: a column has no type, or one that Lance does not store.
    """
    known = {} if before is None else dict(_vectors(struct, before))
    schema = table_schema(struct, {**known, **how.vector_columns})
    require_types(schema)
    return relaxed(schema) if how.nullable else schema


def _vectors(struct: Mapping[str, Any], before: Iterable[pa.Field[Any]], above: str = "") -> Iterator[tuple[str, int]]:
    """The columns that were vectors and still can be, with their lengths."""
    given = {column["name"]: column["type"] for column in struct["fields"]}
    for column in before:
        dtype = column.type
        match given.get(column.name), dtype:
            case {"type": "array", "elementType": str(element)}, pa.FixedSizeListType() if element in _NUMBERS:
                yield f"{above}{column.name}", dtype.list_size
            case {"type": "struct", "fields": inner}, pa.StructType():
                yield from _vectors({"fields": inner}, dtype, f"{above}{column.name}.")
