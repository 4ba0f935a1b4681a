"""UPDATE, DELETE and MERGE INTO by expressions of Spark: it finds the rows and computes values, tasks write them.

A query of Spark gives for each change its kind, the address of the row, and the new values. Only those pass through
Spark: tasks read the other columns of a row from Lance and write the new row, the driver writes deletion files, and all
is one commit. The query is evaluated once, so that it may be random. What needs no query, `upserts` matches and this
process writes.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError, TableSchemaValidationError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import DataType, StructField, StructType

from lancehouse.identifiers import quote_name
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.jobs.engine import LocalEngine
from lancehouse.jobs.job import ChangeResult, Job, WriteOptions
from lancehouse.jobs.table_changes import evolve_columns
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import FileLayout, NewFragment, locate_table
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.row_changes import (
    ADDRESS,
    ROW,
    RowChange,
    assign_row_ids,
    cast_to_table,
    commit_deletion,
    commit_rewrite,
    delete_rows,
    merge_changes,
    offsets_by_fragment,
    retry_conflicts,
)
from lancehouse.lake.scans import BLOB_ROWS, FragmentRange, Scan, estimate_bytes, split_fragments
from lancehouse.schema.blob_references import is_reference, takes_references
from lancehouse.schema.definitions import definitions
from lancehouse.schema.spark import from_spark, to_ddl, to_spark
from lancehouse.schema.spark_rows import SparkToLance, from_spark_rows, to_spark_rows
from lancehouse.spark.conditions import is_one_of
from lancehouse.spark.engine import (
    RESULT_STRUCT,
    Batches,
    collect_texts,
    parallelism,
    run_in_tasks,
    to_result_batches,
    translate_task_errors,
)
from lancehouse.spark.queries import MOST_KEYS, SMALL_BYTES, read_settings
from lancehouse.spark.query_scans import Planner, find_tables, list_conjuncts
from lancehouse.spark.query_text import QueryText
from lancehouse.spark.session import is_set, name_normalizer, to_local_frame, to_struct
from lancehouse.spark.statement_parser import (
    BY_SOURCE,
    MATCHED,
    NOT_MATCHED,
    Assignments,
    Clause,
    MergeRows,
    Name,
    list_words,
)
from lancehouse.spark.table_writer import incoming_schema
from lancehouse.spark.upserts import is_upsert, match_upsert, to_table_columns

RunQuery = Callable[[str], DataFrame]
"""Runs a query with the parameters of the statement; it may name tables of catalogs, and temporary views."""

_CLAUSE, _ADDRESS, _ROW, _IN_SOURCE = "__lh_clause", "__lh_address", "__lh_row", "__lh_in_source"
_TABLE, _SOURCE = "__lh_table", "__lh_source"
_DELETION_THREADS = 16
_SIZE = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E\+\d+)?) (\w+)")
"""What Spark writes of the size of a query's result; the first is that of the whole query."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


# Changes


@dataclass(frozen=True, slots=True)
class RowAction:
    """What one kind of change does with its rows."""

    action: str
    """`update`, `delete` or `insert`."""
    columns: tuple[str, ...] = ()
    """Columns that get values of the query; an update keeps the others, and in an insert they are null."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes: the number of the action from 1, address and id of the row, and values."""

    rows: DataFrame | pa.Table
    """The query that yields them, or they themselves, in the order of the actions and in types of Spark."""
    actions: tuple[RowAction, ...]
    is_repeatable: bool = False
    """Whether a row may be found twice, because all that is done is to delete it."""

    @property
    def struct(self) -> Mapping[str, Any]:
        """The JSON of their StructType."""
        if isinstance(self.rows, pa.Table):
            return to_spark_rows(self.rows.schema).struct
        struct: Mapping[str, Any] = self.rows.schema.jsonValue()
        return struct


Plan = Callable[[ExitStack, PinnedVersion, pa.Schema], RowChanges]
"""Makes the query for a version of the table. Temporary views that it needs are dropped with the stack."""


def change_rows(address: TableAddress, plan: Plan, where: str = "") -> ChangeResult:
    """Change the rows of a table by a query of Spark, as one commit.

    Args:
        address: address of the table.
        plan: makes the query; called again if others have changed the same rows meanwhile.
        where: the condition of a deletion, to store with the transaction.

    Raises:
        TableNotFoundError: there is no such table.
        InvalidInputError: a row would be changed twice, or a value does not fit its column.
        ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
    """
    how = WriteOptions()

    def attempt() -> ChangeResult:
        pinned = PinnedVersion.resolve(address)
        table, dataset = pinned.open()
        job, used = Job(address), list[NewFragment]()
        with ExitStack() as stack:
            changes = plan(stack, pinned, dataset.schema)
            tasks = ChangeTasks(job, pinned, changes.actions, changes.struct, how.layout)
            tasks.check(dataset.schema)
            with job.clean_up_after(used):
                written = _write(changes.rows, tasks)
                change = replace(_delete(job, pinned, written, changes), new=written.new)
                used += change.files
                at = locate_table(table)
                kinds = {action.action for action in changes.actions}
                if kinds == {"delete"}:
                    version = commit_deletion(table, at, dataset, change, where, how.properties)
                else:
                    inserts = "insert" in kinds
                    names = dataset.schema.names
                    if not inserts:
                        names = {column for action in changes.actions for column in action.columns}
                    version = commit_rewrite(table, at, dataset, change, names, how.properties, is_merge=inserts)
        return ChangeResult(version, written.inserted, written.updated, change.rows - written.updated)

    return retry_conflicts(address, attempt)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What a task has written and which rows of the table are to go; can be converted to JSON."""

    new: tuple[NewFragment, ...] = ()
    gone: tuple[bytes, ...] = field(default=(), repr=False)
    """Addresses of rows that are replaced or deleted, packed."""
    inserted: int = 0
    updated: int = 0

    def to_json(self) -> str:
        """Return the result as JSON text."""
        gone = [base64.b64encode(part).decode() for part in self.gone]
        return json.dumps([self.new, gone, self.inserted, self.updated])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        new, gone, inserted, updated = json.loads(text)
        return cls(tuple(new), tuple(map(base64.b64decode, gone)), inserted, updated)

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(
            (*self.new, *other.new),
            (*self.gone, *other.gone),
            self.inserted + other.inserted,
            self.updated + other.updated,
        )


def _write(rows: DataFrame | pa.Table, tasks: ChangeTasks) -> WrittenRows:
    if isinstance(rows, pa.Table):
        return tasks.write(iter(rows.to_batches()))
    frame = rows
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))  # mapInArrow does not quote names
    ordered = plain.sortWithinPartitions("c0", "c1") if len(tasks.actions) > 1 else plain
    with translate_task_errors():
        texts = collect_texts(
            ordered.mapInArrow(lambda batches: to_result_batches([tasks.write(batches).to_json()]), RESULT_STRUCT)
        )
    return sum(map(WrittenRows.from_json, texts), WrittenRows())


def _delete(job: Job, pinned: PinnedVersion, written: WrittenRows, changes: RowChanges) -> RowChange:
    """Write the deletion files. They are small and many, so threads of the driver do it."""
    addresses = np.sort(np.concatenate([np.empty(0, np.int64), *map(_unpack, written.gone)]))
    distinct = np.unique(addresses)
    if not changes.is_repeatable:
        _require_distinct(distinct, addresses)
    offsets = list(offsets_by_fragment([pa.array(distinct)]).items()) if len(distinct) else []
    size = -(-len(offsets) // _DELETION_THREADS) or 1
    pieces = [dict(offsets[first : first + size]) for first in range(0, len(offsets), size)]

    def work(piece: Mapping[int, Any]) -> list[str]:
        table, dataset = pinned.open()
        change = delete_rows(table, dataset, piece)
        job.record_written(change.files)
        return [change.to_json()]

    return merge_changes(map(RowChange.from_json, LocalEngine(_DELETION_THREADS).run(pieces, work)))


def _require_distinct(distinct: Any, rows: Any) -> None:
    """Raise if a row is among those to change more than once."""
    if len(distinct) < len(rows):
        raise InvalidInputError(
            "a row of the table matches several rows of the source that would each change it: let the source have one "
            "row for each, or add a condition to WHEN MATCHED that is true of one of them"
        )


def _pack(addresses: Any) -> bytes:
    """Pack addresses into few bytes: rows that are near each other differ by little."""
    return zlib.compress(np.diff(np.sort(addresses), prepend=0).astype("<i8").tobytes(), 1)


def _unpack(packed: bytes) -> Any:
    return np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8"))


@dataclass(frozen=True, slots=True)
class ChangeTasks:
    """The work of the tasks of a change; sent to other processes."""

    job: Job
    pinned: PinnedVersion
    actions: tuple[RowAction, ...]
    struct: Mapping[str, Any]
    """The JSON of the query's StructType."""
    layout: FileLayout

    def check(self, schema: pa.Schema) -> None:
        """Check that the values fit the table, before anything is written.

        Raises:
            TableSchemaValidationError: they do not.
        """
        for action in self.actions:
            self._converter(action, schema)

    def write(self, batches: Batches) -> WrittenRows:
        """Write the new rows of a task. Batches are in the order of the actions."""
        results = WrittenRows()
        for number, runs in groupby(_split_runs(batches), key=itemgetter(0)):
            action, rows = self.actions[number - 1], (batch for _, batch in runs)
            if action.action == "delete":
                results += WrittenRows(gone=tuple(_pack(batch.column(1).to_numpy()) for batch in rows))
            elif action.action == "insert":
                results += self._insert(action, rows)
            else:
                results += self._update(action, rows)
        return results

    def _insert(self, action: RowAction, batches: Batches) -> WrittenRows:
        schema = self.pinned.open()[1].schema
        convert, count = self._converter(action, schema), 0

        def convert_batches() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in self._read_blobs(action, schema, batches):
                count += batch.num_rows
                yield convert(batch)

        new = self.job.write(pa.RecordBatchReader.from_batches(schema, convert_batches()), "append", self.layout)
        return WrittenRows(tuple(new), inserted=count)

    def _update(self, action: RowAction, batches: Batches) -> WrittenRows:
        table, dataset = self.pinned.open()
        convert, addresses, ids = self._converter(action, dataset.schema), list[Any](), list[Any]()
        unchanged = [name for name in dataset.schema.names if name not in action.columns]
        rows_at_once = BLOB_ROWS if any(has_blobs(dataset.schema.field(name)) for name in unchanged) else None

        def convert_batches() -> Iterator[pa.RecordBatch]:
            for batch in self._read_blobs(action, dataset.schema, batches):
                for first in range(0, batch.num_rows, rows_at_once or batch.num_rows):
                    part = batch.slice(first, rows_at_once or batch.num_rows)
                    row_ids = part.column(2).to_numpy()
                    addresses.append(np.array(part.column(1)))
                    ids.append(np.array(row_ids))
                    with translate_errors(table, table.storage_options):
                        others = _take(dataset, row_ids, unchanged)
                    new = convert(part)
                    arrays = [(new if name in action.columns else others).column(name) for name in dataset.schema.names]
                    yield pa.RecordBatch.from_arrays(arrays, schema=dataset.schema)

        new = self.job.write(
            pa.RecordBatchReader.from_batches(dataset.schema, convert_batches()), "append", self.layout
        )
        if dataset.has_stable_row_ids:
            row_ids = np.concatenate(ids).astype(np.uint64)
            _require_distinct(np.unique(row_ids), row_ids)  # else Lance refuses them, in words of its own
            new = assign_row_ids(new, pa.array(row_ids))
        return WrittenRows(tuple(new), tuple(map(_pack, addresses)), updated=sum(map(len, addresses)))

    def _converter(self, action: RowAction, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that makes the columns of an action, of an insert all columns, of a batch of Spark."""
        places, rows = self._incoming(action, schema)
        return lambda batch: rows.convert_batch(batch.select(places))

    def _read_blobs(self, action: RowAction, schema: pa.Schema, batches: Batches) -> Batches:
        """Replace references to blobs that go into the table by their bytes."""
        places, rows = self._incoming(action, schema)
        if not rows.references:
            return batches
        blobs = ReferencedBlobs(self.job.address.connection, job=self.job.id)
        return blobs.fill(batches, [(places[first], *inside) for first, *inside in rows.references])

    def _incoming(self, action: RowAction, schema: pa.Schema) -> tuple[list[int], SparkToLance]:
        """Return the positions of an action's columns in batches of Spark, and what converts them."""
        columns = [
            (place, column) for place, column in enumerate(self.struct["fields"]) if column["name"] in action.columns
        ]
        target = schema
        if action.action != "insert":
            target = pa.schema([schema.field(name) for name in schema.names if name in action.columns])
        rows = from_spark_rows({"type": "struct", "fields": [column for _, column in columns]}, target)
        return [place for place, _ in columns], rows


def _split_runs(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield parts of batches that have the same number in the first column."""
    for batch in filter(len, batches):
        numbers = batch.column(0).to_numpy()
        ends = np.flatnonzero(np.diff(numbers, append=-1))
        for first, last in zip((0, *(ends[:-1] + 1)), ends, strict=True):
            yield int(numbers[first]), batch.slice(first, last - first + 1)


def _take(dataset: Any, row_ids: Any, columns: Sequence[str]) -> pa.RecordBatch:
    """Read columns of some rows of a version, in their order."""
    schema = pa.schema([dataset.schema.field(name) for name in columns])
    if not columns:
        return pa.RecordBatch.from_pylist([], schema)
    if any(map(has_blobs, schema)):
        id_list = ", ".join(map(str, row_ids))
        rows = dataset.scanner(
            columns=list(columns), filter=f"{ROW} IN ({id_list})", with_row_id=True, blob_handling="all_binary"
        ).to_table()
        found_ids = rows.column(ROW).to_numpy()
        order = np.argsort(found_ids, kind="stable")
        rows = rows.take(order[np.searchsorted(found_ids, row_ids, sorter=order)])
    else:
        rows = dataset._take_rows(row_ids.tolist(), columns=list(columns))
    return cast_to_table(rows.combine_chunks().to_batches()[0], schema)


# Reading the table


def read_rows(
    spark: SparkSession, pinned: PinnedVersion, columns: Sequence[str], filter: str | None = None
) -> DataFrame:
    """Return columns of a version with the addresses and ids of the rows."""
    scan = Scan(tuple(columns), filter, with_row_id=True, with_row_address=True)
    table, dataset = pinned.open()
    fields = {ROW: pa.field(_ROW, pa.int64()), ADDRESS: pa.field(_ADDRESS, pa.int64())}
    schema = pa.schema([fields.get(field.name, field) for field in scan.schema(table, dataset)])
    rows = to_spark_rows(schema)

    def work(parts: list[FragmentRange]) -> Batches:
        table, dataset = pinned.open()
        for batch in scan.batches(table, dataset, parts):
            arrays = [
                array.view(pa.int64()) if name in fields else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield from rows.convert_batches(pa.RecordBatch.from_arrays(arrays, schema=schema))

    parts = split_fragments(dataset, parallelism(spark), split=filter is None)
    return run_in_tasks(
        spark, parts, work, to_struct(rows.struct), size=estimate_bytes(dataset, [*columns, ROW, ADDRESS])
    )


def create_view(stack: ExitStack, frame: DataFrame) -> str:
    """Create a temporary view of a frame, which is dropped with the stack; return its quoted name."""
    name = f"__lh_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    stack.callback(frame.sparkSession.catalog.dropTempView, name)
    return quote_name(name)


def needed_columns(schema: pa.Schema, expressions: Sequence[str | None]) -> list[str]:
    """Return the columns of a table that expressions may name: at least those that they do name."""
    words = [list_words(expression) for expression in expressions if expression is not None]
    if None in words:
        return list(schema.names)
    names = {word for some_words in words for word in some_words or ()}
    return [name for name in schema.names if name.lower() in names]


def read_needed(schema: pa.Schema, expressions: Sequence[str | None], read: Callable[[list[str]], Any]) -> Any:
    """Return what `read` makes of the columns that expressions name; if Spark refuses that, of all columns.

    Spark's message proposes the columns that it sees.
    """
    try:
        return read(needed_columns(schema, expressions))
    except (AnalysisException, InvalidInputError):
        return read(list(schema.names))


# Statements


def plan_delete(spark: SparkSession, run: RunQuery, alias: str, where: str, filter: str | None) -> Plan:
    """Return the plan of DELETE; `filter` in Lance's SQL is true of all rows that `where` is true of, or None."""

    def plan(stack: ExitStack, pinned: PinnedVersion, schema: pa.Schema) -> RowChanges:
        def select(read: list[str]) -> DataFrame:
            view = create_view(stack, read_rows(spark, pinned, read, filter))
            return run(
                f"SELECT 1 AS {_CLAUSE}, {_ADDRESS}, {_ROW} FROM {view} AS {quote_name(alias)} WHERE ({where})"  # noqa: S608
            )

        return RowChanges(read_needed(schema, [where], select), (RowAction("delete"),))

    return plan


def plan_update(
    spark: SparkSession, run: RunQuery, alias: str, table: Name, assignments: Assignments, where: str | None,
    filter: str | None,
) -> Plan:  # fmt: skip
    """Return the plan of UPDATE. See `plan_delete`."""

    def plan(stack: ExitStack, pinned: PinnedVersion, schema: pa.Schema) -> RowChanges:
        columns = resolve_assignments(spark, schema, assignments, (alias, table))
        values = "".join(f", ({value}) AS __lh_{number}" for number, value in enumerate(columns.values()))
        condition = "" if where is None else f" WHERE ({where})"

        def select(read: list[str]) -> DataFrame:
            view = create_view(stack, read_rows(spark, pinned, read, filter))
            return run(
                f"SELECT 1 AS {_CLAUSE}, {_ADDRESS}, {_ROW}{values} FROM {view} AS {quote_name(alias)}{condition}"  # noqa: S608
            )

        frame: DataFrame = read_needed(schema, [where, *columns.values()], select)
        assigned = [assign(frame, f"__lh_{number}", schema, name) for number, name in enumerate(columns)]
        return RowChanges(frame.select(_CLAUSE, _ADDRESS, _ROW, *assigned), (RowAction("update", tuple(columns)),))

    return plan


def plan_replace_where(
    spark: SparkSession,
    run: RunQuery,
    alias: str,
    where: str,
    filter: str | None,
    rows: Callable[[pa.Schema], DataFrame],
) -> Plan:
    """Return the plan of INSERT INTO … REPLACE WHERE: delete rows that match, and insert others.

    Args:
        spark: the session.
        run: runs queries.
        alias: name of the table in the condition.
        where: the condition, which new rows must fulfil too.
        filter: see `plan_delete`.
        rows: returns the new rows in the columns of the table.
    """
    delete = plan_delete(spark, run, alias, where, filter)

    def plan(stack: ExitStack, pinned: PinnedVersion, schema: pa.Schema) -> RowChanges:
        deletion, new = delete(stack, pinned, schema), rows(schema)
        view = create_view(stack, new)
        checked = run(
            f"SELECT 2 AS {_CLAUSE}, CAST(NULL AS BIGINT) AS {_ADDRESS}, CAST(NULL AS BIGINT) AS {_ROW}, *, "  # noqa: S608
            f"({where}) AS {_IN_SOURCE} FROM {view} AS {quote_name(alias)}"
        )
        message = functions.lit(f"a new row does not fulfil REPLACE WHERE {where}")
        refused = functions.raise_error(message).cast("int")
        clause = functions.when(functions.col(_IN_SOURCE), functions.lit(2)).otherwise(refused)
        names = [functions.col(quote_name(name)) for name in new.columns]
        checked = checked.select(clause.alias(_CLAUSE), _ADDRESS, _ROW, *names)
        frame = checked.unionByName(deletion.rows, allowMissingColumns=True)
        return RowChanges(frame, (*deletion.actions, RowAction("insert", tuple(new.columns))))

    return plan


def plan_merge(
    spark: SparkSession, run: RunQuery, read: RunQuery, statement: MergeRows, filter: str | None, driver_bytes: int
) -> Plan:
    """Return the plan of MERGE INTO.

    The table and the source are joined once. Each kind of clause sees the names that Spark lets it see: WHEN MATCHED
    those of both, WHEN NOT MATCHED those of the source, WHEN NOT MATCHED BY SOURCE those of the table.

    Args:
        spark: the session.
        run: runs queries.
        read: runs the query of the source.
        statement: the statement.
        filter: condition in Lance's SQL on rows of the table that may matter, None for all.
        driver_bytes: how much this process may read. A source that is smaller and small is read first, so that only
            rows of the table with its keys are joined.
    """

    def plan(stack: ExitStack, pinned: PinnedVersion, schema: pa.Schema) -> RowChanges:
        source, conditions = _read_source(read, statement), [filter]
        if not any(clause.rows == BY_SOURCE for clause in statement.clauses):
            keys = _find_keys(spark, statement, schema, source)
            rows = _read_if_small(stack, source, min(SMALL_BYTES, driver_bytes)) if keys.links else None
            if rows is not None and (wanted := _key_conditions(schema, rows, keys.links)):
                conditions += wanted
                changes = _match_upsert(spark, statement, pinned, rows, keys, wanted, driver_bytes)
                if changes is not None:
                    return changes
                source = to_local_frame(spark, rows)
        joined = " AND ".join(f"({condition})" for condition in conditions if condition is not None) or None
        return _MergePlan(spark, run, statement, stack, pinned, schema, source, joined).build()

    return plan


def _match_upsert(
    spark: SparkSession,
    statement: MergeRows,
    pinned: PinnedVersion,
    rows: pa.Table,
    keys: _MergeKeys,
    conditions: Sequence[str],
    driver_bytes: int,
) -> RowChanges | None:
    """Return the changes of a MERGE by equal keys that writes rows as they are; None if a query has to find them."""
    schema = pinned.open()[1].schema
    if not keys.is_all or not is_upsert(statement.clauses):
        return None
    values = to_table_columns(rows, schema, name_normalizer(spark))
    if values is None:
        return None
    joined = " AND ".join(conditions)
    matched = match_upsert(pinned, rows, values, keys.links, statement.clauses, joined, driver_bytes)
    if matched is None:
        return None
    actions = tuple(RowAction(clause.action, tuple(schema.names)) for clause in statement.clauses)
    return RowChanges(matched.rename_columns([_CLAUSE, _ADDRESS, _ROW, *schema.names]), actions)


def _read_if_small(stack: ExitStack, frame: DataFrame, most_bytes: int) -> pa.Table | None:
    """Return the rows of a frame if they are few, by what Spark says of its size and by their number; else None.

    A frame of these rows has the same types.
    """
    explained = frame.sparkSession.sql(f"EXPLAIN COST SELECT * FROM {create_view(stack, frame)}").first()[0]  # noqa: S608
    size = _SIZE.search(explained)
    if size is None or float(size[1]) * _UNITS.get(size[2], math.inf) > most_bytes:
        return None
    with translate_task_errors():
        rows = frame.limit(MOST_KEYS + 1).toArrow()
    zones = [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) and field.type.tz else field
        for field in rows.schema
    ]
    rows = rows.cast(pa.schema(zones))
    types = to_struct(to_spark_rows(rows.schema).struct)
    is_same = [field.dataType.jsonValue() for field in types] == [field.dataType.jsonValue() for field in frame.schema]
    return rows if rows.num_rows <= MOST_KEYS and is_same else None


@dataclass(frozen=True, slots=True)
class _MergeKeys:
    """Columns of the table that a MERGE joins by equal values, each with the column of the source."""

    links: Sequence[tuple[str, str]]
    is_all: bool = False
    """Whether rows match that have these equal, and no other condition counts."""


def _find_keys(spark: SparkSession, statement: MergeRows, schema: pa.Schema, frame: DataFrame) -> _MergeKeys:
    table, source = quote_name(statement.alias or statement.table[-1]), quote_name(statement.source_alias)
    try:
        query = QueryText(f"SELECT 1 FROM {_TABLE} AS {table} JOIN {_SOURCE} AS {source} ON ({statement.on})")  # noqa: S608
        schemas = {_TABLE: schema, _SOURCE: from_spark(frame.schema.jsonValue())}
    except (InvalidInputError, TableSchemaValidationError):  # of the source: a type that Arrow lacks
        return _MergeKeys(())
    uses = {use: schemas[use.parts[-1]] for use in find_tables(query) if use.parts[-1] in schemas}
    links = Planner(query, uses, settings=read_settings(spark)).links
    keys = [(link.column, link.other_column) for link in links if link.scan.use.parts == (_TABLE,)]
    joins = query.tree.args["joins"]
    return _MergeKeys(keys, len(keys) == len(list_conjuncts(joins[0].args["on"])))


def _key_conditions(schema: pa.Schema, rows: pa.Table, links: Sequence[tuple[str, str]]) -> list[str]:
    """Return conditions in Lance's SQL: rows of the table that match have keys of the source."""
    conditions = [
        is_one_of(schema.field(column), pc.unique(rows.column(other)).drop_null().to_pylist())
        for column, other in links
    ]
    return [condition.sql for condition in conditions if condition is not None]


def add_source_columns(address: TableAddress, read: RunQuery, statement: MergeRows) -> None:
    """Add the columns of a MERGE's source that the table lacks: all for `*`, else those that clauses set.

    Raises:
        TableSchemaValidationError: Lance has no such type; nothing was changed.
    """
    source = _read_source(read, statement)
    fold, clauses = name_normalizer(source.sparkSession), statement.clauses
    names = {fold(path[-1]) for clause in clauses for path, _ in clause.assignments or ()}
    if any(clause.assignments is None for clause in clauses):
        names |= set(map(fold, source.columns))

    def plan(schema: pa.Schema) -> pa.Schema:
        missing = names - set(map(fold, schema.names))
        new = [field for field in source.schema if fold(field.name) in missing]
        return incoming_schema(StructType(new).jsonValue(), WriteOptions(), schema)

    evolve_columns(address, plan)


def _read_source(read: RunQuery, statement: MergeRows) -> DataFrame:
    return read(f"SELECT * FROM {statement.source} AS {quote_name(statement.source_alias)}")  # noqa: S608


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """Builds the query of a MERGE for one version of the table."""

    spark: SparkSession
    run: RunQuery
    statement: MergeRows
    stack: ExitStack
    pinned: PinnedVersion
    schema: pa.Schema
    source: DataFrame
    filter: str | None

    def build(self) -> RowChanges:
        clauses = [
            (number, clause, self._assignments(clause)) for number, clause in enumerate(self.statement.clauses, 1)
        ]
        used = [self.statement.on, *(clause.condition for clause in self.statement.clauses)]
        used += [value for _, clause, values in clauses if clause.rows != NOT_MATCHED for value in values.values()]
        frame: DataFrame = read_needed(self.schema, used, partial(self._join, clauses))
        columns: dict[str, list[str]] = {}
        for number, _, assignments in clauses:
            for place, name in enumerate(assignments):
                columns.setdefault(name, []).append(_value(number, place))
        kinds = [_kind(rows) for rows in dict.fromkeys(clause.rows for clause in self.statement.clauses)]
        number = functions.coalesce(*map(functions.col, kinds))
        values = [
            functions.coalesce(*(assign(frame, value, self.schema, name) for value in names)).alias(name)
            for name, names in columns.items()
        ]
        changed = frame.select(number.alias(_CLAUSE), _ADDRESS, _ROW, *values).where(functions.col(_CLAUSE) > 0)
        actions = tuple(RowAction(clause.action, tuple(assignments)) for _, clause, assignments in clauses)
        matched = [clause for clause in self.statement.clauses if clause.rows == MATCHED]
        only_deletes = len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None
        return RowChanges(changed, actions, is_repeatable=only_deletes)

    def _assignments(self, clause: Clause) -> dict[str, str]:
        """Return the columns that a clause sets, and the expressions."""
        if clause.assignments is not None:
            return resolve_assignments(self.spark, self.schema, clause.assignments, self._table_names())
        fold, computed = name_normalizer(self.spark), definitions(self.schema)
        optional = {*computed, *(definition.companion for definition in computed.values())}
        names = {fold(name): name for name in self.source.columns}
        missing = [name for name in self.schema.names if fold(name) not in names and name not in optional]
        if missing and not self.statement.evolves:
            raise TableSchemaValidationError(
                f"MERGE: the source has no column {', '.join(missing)}, and * needs every column of the table: name "
                "the columns that are set"
            )
        alias = quote_name(self.statement.source_alias)
        return {name: f"{alias}.{quote_name(names[fold(name)])}" for name in self.schema.names if fold(name) in names}

    def _table_names(self) -> tuple[str, Name]:
        return self.statement.alias or self.statement.table[-1], self.statement.table

    def _join(self, clauses: Sequence[tuple[int, Clause, dict[str, str]]], columns: Sequence[str]) -> DataFrame:
        statement = self.statement
        table = create_view(self.stack, read_rows(self.spark, self.pinned, columns, self.filter))
        source = create_view(self.stack, self.source.withColumn(_IN_SOURCE, functions.lit(True)))
        kinds = {clause.rows for clause in statement.clauses}
        outer = (BY_SOURCE in kinds, NOT_MATCHED in kinds)
        join = {(True, True): "FULL OUTER", (True, False): "LEFT OUTER", (False, True): "RIGHT OUTER"}
        t, s = quote_name(self._table_names()[0]), quote_name(statement.source_alias)
        is_matched = f"{t}.{_ADDRESS} IS NOT NULL AND {s}.{_IN_SOURCE} IS NOT NULL"
        frame = self.run(
            f"SELECT {t}.{_ADDRESS} AS {_ADDRESS}, {t}.{_ROW} AS {_ROW}, {s}.{_IN_SOURCE} AS {_IN_SOURCE}, "  # noqa: S608
            f"struct({t}.*) AS {_TABLE}, struct({s}.*) AS {_SOURCE}{_select(clauses, MATCHED, is_matched)} "
            f"FROM {table} AS {t} {join.get(outer, 'INNER')} JOIN {source} AS {s} ON ({statement.on})"
        )
        frame = self._add(frame, clauses, NOT_MATCHED, f"{_ADDRESS} IS NULL", _SOURCE, s)
        return self._add(frame, clauses, BY_SOURCE, f"{_IN_SOURCE} IS NULL", _TABLE, t)

    def _add(self, frame: DataFrame, clauses: Any, rows: str, condition: str, struct: str, alias: str) -> DataFrame:
        """Add what the clauses of a kind yield, where only the columns of one side have names."""
        if not any(clause.rows == rows for _, clause, _ in clauses):
            return frame
        view, own = create_view(self.stack, frame), set(frame.columns)
        # The columns of this side come to the fore; those of the frame that have the same names go into a struct.
        fields = [name for name in frame.schema[struct].dataType.names if name not in own]
        fields_text = "".join(f", {struct}.{quote_name(name)}" for name in fields)
        inner = f"SELECT {', '.join(map(quote_name, frame.columns))}{fields_text} FROM {view}"  # noqa: S608
        added = self.run(f"SELECT *{_select(clauses, rows, condition)} FROM ({inner}) AS {alias}")  # noqa: S608
        return added.drop(*fields)


def _select(clauses: Sequence[tuple[int, Clause, dict[str, str]]], rows: str, condition: str) -> str:
    """Return the columns of a query for the clauses of a kind: the number of the first that applies, and its values.

    A value is computed only in rows to which its clause applies: it might fail in others.
    """
    of_kind = [(number, clause, values) for number, clause, values in clauses if clause.rows == rows]
    if not of_kind:
        return ""
    whens = " ".join(f"WHEN ({clause.condition or 'TRUE'}) THEN {number}" for number, clause, _ in of_kind)
    text = f", CASE WHEN {condition} THEN CASE {whens} ELSE 0 END END AS {_kind(rows)}"
    for number, _, values in of_kind:
        for place, value in enumerate(values.values()):
            text += f", CASE WHEN {_kind(rows)} = {number} THEN ({value}) END AS {_value(number, place)}"
    return text


def _kind(rows: str) -> str:
    return f"__lh_{rows.replace(' ', '_')}"


def _value(number: int, place: int) -> str:
    return f"__lh_{number}_{place}"


# Columns and types


def resolve_column(spark: SparkSession, schema: pa.Schema, name: str) -> str:
    """Return the column of a table that a name means.

    Raises:
        TableColumnNotFoundError: there is none.
    """
    fold = name_normalizer(spark)
    columns = {fold(column): column for column in schema.names}
    if (column := columns.get(fold(name))) is None:
        raise TableColumnNotFoundError(f"there is no column {name}; the table has {', '.join(schema.names)}")
    return column


def resolve_assignments(
    spark: SparkSession, schema: pa.Schema, assignments: Assignments, table: tuple[str, Name]
) -> dict[str, str]:
    """Return the columns of a table that are set, with the expressions.

    Args:
        spark: the session.
        schema: columns of the table.
        assignments: as they were parsed.
        table: alias and name of the table, with which the name of a column may begin.

    Raises:
        TableColumnNotFoundError: there is no such column.
        InvalidInputError: a field of a struct is set, or a column twice.
    """
    alias, name = table
    fold = name_normalizer(spark)
    prefixes = [(fold(alias),), *(tuple(map(fold, name[first:])) for first in range(len(name)))]
    resolved: dict[str, str] = {}
    for path, value in assignments:
        column = path
        if len(path) > 1 and tuple(map(fold, path[:-1])) in prefixes:
            column = path[-1:]
        if len(column) > 1:
            raise InvalidInputError(
                f"{'.'.join(path)}: a field of a struct cannot be set alone; set {column[0]} to a whole struct, "
                "such as with named_struct"
            )
        target = resolve_column(spark, schema, column[0])
        if target in resolved:
            raise InvalidInputError(f"{target} is set twice")
        resolved[target] = value
    return resolved


_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_CHECKED = frozenset({"byte", "short", "integer", "long"})
"""Types whose values are checked when they are written, so that they need no cast of Spark's."""


def assign(frame: DataFrame, column: str, schema: pa.Schema, name: str) -> Column:
    """Return a column of a frame in the type of a table's column, by the rules of Spark's ANSI store assignment.

    Raises:
        TableSchemaValidationError: values of its type cannot be stored there.
    """
    [target] = to_struct(to_spark(pa.schema([schema.field(name)]))).fields
    source = frame.schema[column].dataType
    value = functions.col(quote_name(column))
    if is_reference(source.jsonValue()) and takes_references(schema.field(name)):
        return value.alias(name)  # whoever writes it reads the blob
    if to_ddl(source.jsonValue()) != to_ddl(target.dataType.jsonValue()):
        if not can_assign(source, target.dataType):
            raise TableSchemaValidationError(
                f"column {name}: {source.simpleString()} is not stored as {target.dataType.simpleString()}; write a "
                "CAST if you want it"
            )
        value = _cast(frame.sparkSession, value, source, target)
    return value.alias(name)


def can_assign(source: DataType, target: DataType) -> bool:
    """Return whether Spark's ANSI store assignment stores values of a type in another."""
    one, other = source.typeName(), target.typeName()
    pair: Any = (source, target)
    match one, other:
        case "void", _:
            return True
        case "array", "array":
            return can_assign(pair[0].elementType, pair[1].elementType)
        case "map", "map":
            return can_assign(pair[0].keyType, pair[1].keyType) and can_assign(pair[0].valueType, pair[1].valueType)
        case "struct", "struct":
            fields = (pair[0].fields, pair[1].fields)
            return len(fields[0]) == len(fields[1]) and all(
                can_assign(a.dataType, b.dataType) for a, b in zip(*fields, strict=True)
            )
    if one in ("array", "map", "struct", "variant") or other in ("array", "map", "struct", "variant"):
        return False
    is_text = other in ("string", "varchar", "char")
    both = {one, other}
    return one == other or is_text or both <= _NUMBERS or both <= _TIMES or _are_intervals(one, other)


def _are_intervals(one: str, other: str) -> bool:
    return one.startswith("interval") and one == other


def _cast(spark: SparkSession, value: Column, source: DataType, target: StructField) -> Column:
    if not is_set(spark, "ansi.enabled"):
        # Without ANSI, Spark's cast wraps numbers that are too large. Those of whole numbers are checked by the writer.
        if {source.typeName(), target.dataType.typeName()} <= _CHECKED:
            return value
        if target.dataType.typeName() in _NUMBERS and source.typeName() not in (*_CHECKED, "void"):
            raise InvalidInputError(
                f"column {target.name}: {source.simpleString()} is stored as {target.dataType.simpleString()} only "
                "with spark.sql.ansi.enabled, since values that do not fit would be changed silently; write a CAST"
            )
    return value.cast(target.dataType)
