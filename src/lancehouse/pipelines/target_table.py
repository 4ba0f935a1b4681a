"""The table that a pipeline writes to: its state before the run, whether the rows fit, what is expected of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
from pyspark.sql import SparkSession, functions

from lancehouse.connection import Connection
from lancehouse.documents import Loc, Problems
from lancehouse.identifiers import format_levels, parse_levels, quote_name
from lancehouse.jobs import index_building
from lancehouse.jobs.address import PinnedVersion, TableAddress, get_client
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.index_building import check_buildable
from lancehouse.jobs.merge_keys import check_keys, key_schema, read_keys
from lancehouse.jobs.sources.schemas import conform
from lancehouse.jobs.table_changes import plan_columns
from lancehouse.lake.commits import find_version_of_run, is_reverted, require_storage_version
from lancehouse.lake.dataset import VersionSelector, empty_dataset, enclose_sql
from lancehouse.lake.row_changes import ADDRESS, ROW
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.pipelines.spec import ExpectPart, IndexPart, PipelineSpec, SinkPart
from lancehouse.pipelines.steps import to_blob_schema
from lancehouse.schema.blob_references import with_blobs, with_bytes
from lancehouse.schema.definitions import definitions
from lancehouse.schema.spark import with_vectors
from lancehouse.schema.spark_rows import from_spark_rows
from lancehouse.schema.walk import check_types, relax_nullability, require_columns
from lancehouse.spark.engine import Batches, SparkEngine, run_in_tasks, translate_task_errors
from lancehouse.spark.merge import key_struct

ADDING = ("append", "merge")
"""Modes that do not change the columns of a table."""


def find_table(connection: Connection, table: str) -> TableAddress:
    """Return the address of a table in the catalog of a pipeline, whose `parent` stands before every id."""
    return TableAddress.parse(connection, (*connection.parent, *parse_levels(table)))


@dataclass(frozen=True, slots=True)
class TargetState:
    """The table before a run."""

    dataset: Any
    """The latest version, opened; None if there is none."""
    attempt: str
    """Id of the run that is stored in the version; numbered, if an earlier version of the run was reverted."""
    run_version: int | None
    """The version that the run has made already; None if it has not."""

    @property
    def version(self) -> int | None:
        """Number of the latest version; None if there is none."""
        return None if self.dataset is None else int(self.dataset.version)

    @property
    def schema(self) -> pa.Schema | None:
        """Schema of the latest version; None if there is none."""
        return None if self.dataset is None else self.dataset.schema


def read_target_state(address: TableAddress, mode: str, run: str, *, is_new: bool) -> TargetState:
    """Read the state of the table before a run.

    Args:
        address: address of the table.
        mode: mode of the sink.
        run: id of the run.
        is_new: whether the id is new, so that no version can be of this run.

    Raises:
        TableAlreadyExistsError: the mode is `create`, and the table exists without a version of this run.
        NamespaceNotFoundError: the namespace of the table does not exist.
    """
    table = address.to_ref()
    dataset = table.find()
    if dataset is None:
        require_namespace(address)
        return TargetState(None, run, None)
    attempt, number = run, 1
    version = None if is_new else find_version_of_run(table, attempt)
    # A run whose expectations failed may have restored the version before it. To repeat it, it needs another id: under
    # the old one, its reverted version would count as done.
    while version is not None and is_reverted(table, version):
        number += 1
        attempt = f"{run}#{number}"
        version = find_version_of_run(table, attempt)
    if version is None and mode == "create":
        raise TableAlreadyExistsError(
            f"{address} exists, and mode create is for one that does not; choose another mode, or drop it first"
        )
    return TargetState(dataset, attempt, version)


def require_namespace(address: TableAddress) -> None:
    """Check that a table can be created.

    Raises:
        NamespaceNotFoundError: its namespace does not exist.
    """
    assert address.connection is not None
    client, levels = get_client(address.connection), list(address.id)
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
            above = format_levels(levels[:-1])
            raise NamespaceNotFoundError(f"there is no namespace {above}: create it first") from error


def plan_target_schema(
    problems: Problems,
    address: TableAddress,
    sink: SinkPart,
    state: TargetState,
    schema: pa.Schema,
    struct: Mapping[str, Any] | None,
) -> pa.Schema | None:
    """Return the columns that the table has afterwards; None if the rows do not fit, which is added to `problems`.

    Args:
        problems: collects what is wrong.
        address: address of the table.
        sink: how rows are written.
        state: the table before the run.
        schema: schema of the rows.
        struct: the JSON of their StructType, if they are a DataFrame.
    """
    new: pa.Schema | None = None
    is_known = sink.data_storage_version is None
    with problems.collect("sink", "data_storage_version"):
        if sink.data_storage_version is not None:
            require_storage_version(sink.data_storage_version)
            is_known = True
    with problems.collect("sink", "vector_columns"):
        new = _new_schema(schema, sink, state.schema)
    if new is None or not is_known:
        return None
    target = new if state.schema is None or sink.mode not in ADDING else state.schema
    if target is not new and sink.schema_mode == "evolve":
        evolved: pa.Schema | None = None
        with problems.collect("sink", "schema_mode"):
            orders = {name for name in sink.latest_by if name not in target.names}  # which a merge does not write
            evolved = plan_columns(target, pa.schema([field for field in new if field.name not in orders])).target
        if evolved is None:
            return None
        target = evolved
    if sink.mode == "merge":
        with problems.collect("sink", "on"):
            _check_keys(address, sink, schema, target)
    with problems.collect("sink"):
        if target is new:
            check_types(target)
            empty_dataset(target, sink.data_storage_version)
        else:
            _require_fit(address, schema, target, struct)
            if sink.mode == "merge" and sink.when_matched == "update":
                _require_all_columns(address, schema, state.schema or target)
        return target
    return None


def _check_keys(address: TableAddress, sink: SinkPart, schema: pa.Schema, target: pa.Schema) -> None:
    check_keys(address, target, sink.on)
    if missing := [name for name in (*sink.on, *sink.latest_by) if name not in schema.names]:
        raise TableColumnNotFoundError(
            f"the rows have no column {', '.join(missing)}; they have {', '.join(schema.names)}"
        )


def _new_schema(schema: pa.Schema, sink: SinkPart, before: pa.Schema | None) -> pa.Schema:
    """Return the columns of a new table, or of one that is overwritten: columns that were vectors stay vectors."""
    vector_sizes = {
        field.name: field.type.list_size
        for field in before or ()
        if isinstance(field.type, pa.FixedSizeListType) and _is_list(schema, field.name)
    }
    new = with_blobs(to_blob_schema(schema), before)
    schema_with_vectors = with_vectors(new, {**vector_sizes, **sink.vector_columns})
    return relax_nullability(schema_with_vectors) if sink.nullable else schema_with_vectors


def _is_list(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and isinstance(schema.field(name).type, pa.ListType | pa.LargeListType)


def _require_fit(address: TableAddress, schema: pa.Schema, target: pa.Schema, struct: Mapping[str, Any] | None) -> None:
    if unknown := [name for name in schema.names if name not in target.names]:
        raise TableSchemaValidationError(
            f"{address} has no column {', '.join(unknown)}; it has {', '.join(target.names)}: leave it out in a step"
        )
    if struct is not None:
        from_spark_rows(struct, target)
    else:
        rows = pa.RecordBatch.from_pylist([], with_bytes(schema, target))
        conform(rows, target, (), "the rows after the steps")


def _require_all_columns(address: TableAddress, schema: pa.Schema, target: pa.Schema) -> None:
    computed = definitions(target)
    derived = {*computed, *(definition.companion for definition in computed.values())}
    if missing := [name for name in target.names if name not in schema.names and name not in derived]:
        raise TableSchemaValidationError(
            f"the rows have no column {', '.join(missing)}, which {address} has: rows are replaced as a whole"
        )


def check_maintenance(
    problems: Problems, address: TableAddress, shape: PipelineSpec, state: TargetState, target: pa.Schema
) -> None:
    """Check that indices can be built on a table with these columns, and that expectations can be evaluated."""
    has_indices = state.dataset is not None and shape.sink.mode in ADDING
    check_indices(problems, ("indices",), address, shape.indices, target, has_indices)
    check_expectations(problems, address, target, shape.expect)


def check_indices(
    problems: Problems, loc: Loc, address: TableAddress, indices: Sequence[IndexPart], schema: pa.Schema, exists: bool
) -> None:
    """Check that indices can be built on a table with these columns; `exists`: it may have some of them."""
    names = set[str]()
    for place, index in enumerate(indices):
        with problems.collect(*loc, place):
            if index.index_name in names:
                raise InvalidInputError(f"two indices are called {index.index_name}; give one another name")
            names.add(index.index_name)
            check_buildable(address.to_ref(), schema, index.column, index.kind, index.index_name, index.params)
            if exists:
                _require_same_index(address, index)


def _require_same_index(address: TableAddress, index: IndexPart) -> None:
    existing = index_building.find_index(address.to_ref(), index.index_name)
    if existing is not None and not existing.is_same_kind(index.column, index.kind):
        described = f"{existing.kind} of {', '.join(existing.columns)}"
        raise InvalidInputError(f"{address} has an index {index.index_name}, {described}; give this one another name")


EXPECT = "expect"


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition that no row should meet, and how to describe rows that do."""

    filter: str
    words: str


def check_expectations(problems: Problems, address: TableAddress, schema: pa.Schema, expect: ExpectPart) -> None:
    """Check that all expectations can be evaluated on a table with these columns."""
    for place, name in enumerate(expect.not_null):
        with problems.collect(EXPECT, "not_null", place):
            require_columns(address, [name], schema.names)
    for place, key in enumerate(expect.unique):
        with problems.collect(EXPECT, "unique", place):
            check_keys(address, schema, key)
    empty = empty_dataset(schema)
    for place, condition in enumerate(expect.where):
        with problems.collect(EXPECT, "where", place):
            _to_scan(f"NOT {enclose_sql(condition)}").schema(address.to_ref(), empty)


def find_failures(engine: Engine, address: TableAddress, version: int, expect: ExpectPart) -> list[str]:
    """Return the expectations that a version does not meet, a sentence each."""
    pinned = PinnedVersion.resolve(address, VersionSelector(version))
    _, dataset = pinned.open()
    rows = int(dataset.count_rows())
    sentences = list(_size_failures(rows, expect))
    conditions = [_Condition(f"{quote_name(name)} IS NULL", f"null in {name}") for name in expect.not_null]
    conditions += [_Condition(f"NOT {enclose_sql(condition)}", f"against {condition!r}") for condition in expect.where]
    counts = _count_each(engine, pinned, conditions)
    sentences += [
        f"{_format_rows(count)} {condition.words}" for condition, count in zip(conditions, counts, strict=True) if count
    ]
    for key in expect.unique:
        if count := _count_shared(engine, pinned, key):
            sentences.append(f"{_format_rows(count)} not alone with their {', '.join(key)}, which should be unique")
    return sentences


def _size_failures(rows: int, expect: ExpectPart) -> Iterator[str]:
    if expect.rows is None:
        return
    if rows < expect.rows.min:
        yield f"there are {rows} rows, fewer than {expect.rows.min}"
    if expect.rows.max is not None and rows > expect.rows.max:
        yield f"there are {rows} rows, more than {expect.rows.max}"


def _format_rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


def _count_each(engine: Engine, pinned: PinnedVersion, conditions: Sequence[_Condition]) -> list[int]:
    """Return how many rows meet each condition; every task counts its own rows for all of them."""
    if not conditions:
        return []
    _, dataset = pinned.open()
    filters = [condition.filter for condition in conditions]

    def work(parts: list[FragmentRange]) -> list[str]:
        table, dataset = pinned.open()
        return [json.dumps([_to_scan(text).count(table, dataset, parts) for text in filters])]

    result_texts = engine.run(split_fragments(dataset, engine.parallelism, split=False), work)
    return [sum(counts) for counts in zip(*map(json.loads, result_texts), strict=True)] or [0] * len(conditions)


def _to_scan(filter: str) -> Scan:
    return Scan(columns=(), filter=filter, with_row_id=True)


def _count_shared(engine: Engine, pinned: PinnedVersion, key: Sequence[str]) -> int:
    """Return how many rows have a key that another row has too; null is no key."""
    _, dataset = pinned.open()
    columns = [field for field in key_schema(dataset.schema, key) if field.name not in (ADDRESS, ROW)]
    names = [field.name for field in columns]

    def work(parts: list[FragmentRange]) -> Batches:
        table, dataset = pinned.open()
        return (batch.select(names) for batch in read_keys(table, dataset, parts, key))

    parts = split_fragments(dataset, engine.parallelism, split=True)
    if isinstance(engine, SparkEngine):
        return _count_shared_by_shuffle(engine.spark, parts, work, columns)
    batches = [batch for part in parts for batch in work(part)]
    rows = pa.Table.from_batches(batches, pa.schema(columns)).drop_null()
    counts = rows.group_by(names).aggregate([([], "count_all")])["count_all"]
    return int(pc.sum(counts.filter(pc.greater(counts, pa.scalar(1)))).as_py() or 0)


def _count_shared_by_shuffle(
    spark: SparkSession,
    parts: Sequence[list[FragmentRange]],
    work: Callable[[list[FragmentRange]], Batches],
    columns: Sequence[pa.Field[Any]],
) -> int:
    frame = run_in_tasks(spark, parts, work, key_struct(columns)).dropna()
    number = functions.count(functions.lit(1)).alias("number")
    duplicates = frame.groupBy(*(field.name for field in columns)).agg(number).where("number > 1")
    with translate_task_errors():
        [row] = duplicates.agg(functions.sum("number")).collect()
    return int(row[0] or 0)
