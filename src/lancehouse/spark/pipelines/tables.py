"""The table that a pipeline writes to: how it is before, and whether what comes fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace import DescribeNamespaceRequest, DescribeTableRequest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)

from lancehouse.identifiers import write_levels
from lancehouse.lake import indexing
from lancehouse.lake.builds import check_possible
from lancehouse.lake.commits import is_undone, version_of_run
from lancehouse.lake.fragments import require_storage_version
from lancehouse.lake.merging import check_keys
from lancehouse.lake.scans import like
from lancehouse.schema.incoming import from_rows
from lancehouse.schema.spark import with_vectors
from lancehouse.schema.walk import relaxed, require_types
from lancehouse.spark.address import Address
from lancehouse.spark.pipelines import expectations
from lancehouse.spark.pipelines.blobs import stored
from lancehouse.spark.pipelines.problems import Problems
from lancehouse.spark.pipelines.shape import IndexPart, Shape, SinkPart
from lancehouse.spark.sources.conforming import conformed

ADDING = ("append", "merge")
"""Modes that leave the columns of a table as they are."""


@dataclass(frozen=True, slots=True)
class State:
    """The table before a run."""

    dataset: Any
    """Its latest version; None if it has none."""
    attempt: str
    """What the run is called in the version that it makes: by another name, if one that it made was put back."""
    made: int | None
    """The version that the run has made already."""

    @property
    def version(self) -> int | None:
        """Its latest version."""
        return None if self.dataset is None else int(self.dataset.version)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns that it has."""
        return None if self.dataset is None else self.dataset.schema


def look(address: Address, mode: str, run: str, *, is_new: bool) -> State:
    """See how a table is.

    Args:
        address: of the table.
        mode: how it is written to.
        run: the id of the run.
        is_new: whether no version can be of this run.

    Raises:
        TableAlreadyExistsError: it is to be created, and somebody else did.
        NamespaceNotFoundError: there is no place for it.
    """
    table = address.ref()
    dataset = table.open() if table.exists() else None
    if dataset is None:
        _require_namespace(address)
        return State(None, run, None)
    attempt, number = run, 1
    made = None if is_new else version_of_run(table, attempt)
    while made is not None and is_undone(table, made):
        number += 1
        attempt = f"{run}#{number}"
        made = version_of_run(table, attempt)
    if made is None and mode == "create":
        raise TableAlreadyExistsError(
            f"{address} exists, and mode create is for one that does not; choose another mode, or drop it first"
        )
    return State(dataset, attempt, made)


def _require_namespace(address: Address) -> None:
    """See that a table can be made.

    Raises:
        NamespaceNotFoundError: there is no place for it.
    """
    assert address.catalog is not None
    client, levels = address.catalog.namespace(), list(address.id)
    try:
        client.describe_table(DescribeTableRequest(id=levels))
    except TableNotFoundError:
        if len(levels) < 2:
            return
        try:
            client.describe_namespace(DescribeNamespaceRequest(id=levels[:-1]))
        except UnsupportedOperationError:
            return
        except NamespaceNotFoundError as error:
            above = write_levels(levels[:-1])
            raise NamespaceNotFoundError(f"there is no namespace {above}: create it first") from error


def fitted(
    problems: Problems,
    address: Address,
    sink: SinkPart,
    state: State,
    schema: pa.Schema,
    struct: Mapping[str, Any] | None,
) -> pa.Schema | None:
    """The columns that the table has afterwards; None if the rows do not fit, which is noted.

    Args:
        problems: where to note it.
        address: of the table.
        sink: how rows are written.
        state: the table before.
        schema: of the rows.
        struct: the same, if they are a DataFrame's, as JSON.
    """
    made: pa.Schema | None = None
    is_known = sink.data_storage_version is None
    with problems.of("sink", "data_storage_version"):
        if sink.data_storage_version is not None:
            require_storage_version(sink.data_storage_version)
            is_known = True
    with problems.of("sink", "vector_columns"):
        made = _new(schema, sink, state.schema)
    if made is None or not is_known:
        return None
    target = made if state.schema is None or sink.mode not in ADDING else state.schema
    if sink.mode == "merge":
        with problems.of("sink", "on"):
            _check_keys(address, sink, schema, target)
    with problems.of("sink"):
        if target is made:
            require_types(target)
            like(target, sink.data_storage_version)
        else:
            _require_fit(address, schema, target, struct)
            if sink.mode == "merge" and sink.when_matched == "update":
                _require_whole(address, schema, target)
        return target
    return None


def _check_keys(address: Address, sink: SinkPart, schema: pa.Schema, target: pa.Schema) -> None:
    check_keys(address, target, sink.on)
    if missing := [name for name in (*sink.on, *sink.latest_by) if name not in schema.names]:
        raise TableColumnNotFoundError(
            f"the rows have no column {', '.join(missing)}; they have {', '.join(schema.names)}"
        )


def _new(schema: pa.Schema, sink: SinkPart, before: pa.Schema | None) -> pa.Schema:
    """The columns of a new table, or of one that is written over: what was a vector stays one."""
    known = {
        field.name: field.type.list_size
        for field in before or ()
        if isinstance(field.type, pa.FixedSizeListType) and _is_list(schema, field.name)
    }
    made = with_vectors(stored(schema), {**known, **sink.vector_columns})
    return relaxed(made) if sink.nullable else made


def _is_list(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and isinstance(schema.field(name).type, pa.ListType | pa.LargeListType)


def _require_fit(address: Address, schema: pa.Schema, target: pa.Schema, struct: Mapping[str, Any] | None) -> None:
    if unknown := [name for name in schema.names if name not in target.names]:
        raise TableSchemaValidationError(
            f"{address} has no column {', '.join(unknown)}; it has {', '.join(target.names)}: leave it out in a step"
        )
    if struct is not None:
        from_rows(struct, target)
    else:
        conformed(pa.RecordBatch.from_pylist([], schema), target, (), "the rows after the steps")


def _require_whole(address: Address, schema: pa.Schema, target: pa.Schema) -> None:
    if missing := [name for name in target.names if name not in schema.names]:
        raise TableSchemaValidationError(
            f"the rows have no column {', '.join(missing)}, which {address} has: rows are replaced as a whole"
        )


def check_upkeep(problems: Problems, address: Address, shape: Shape, state: State, target: pa.Schema) -> None:
    """See that indices can be built of a table with these columns, and that expectations can be asked of it."""
    names = set[str]()
    for place, index in enumerate(shape.indices):
        with problems.of("indices", place):
            if index.called in names:
                raise InvalidInputError(f"two indices are called {index.called}; give one another name")
            names.add(index.called)
            check_possible(address.ref(), target, index.column, index.kind, index.called, index.params)
            if state.dataset is not None and shape.sink.mode in ADDING:
                _require_same(address, index)
    expectations.check(problems, address, target, shape.expect)


def _require_same(address: Address, index: IndexPart) -> None:
    known = indexing.known(address.ref(), index.called)
    if known is not None and not known.is_like(index.column, index.kind):
        there = f"{known.kind} of {', '.join(known.columns)}"
        raise InvalidInputError(f"{address} has an index {index.called}, {there}; give this one another name")
