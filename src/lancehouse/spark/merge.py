"""Merge DataFrames into Lance tables by key: tasks write the rows and match keys, the driver makes one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import and_, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
)
from pyspark.sql import DataFrame, SparkSession, Window, functions

from lancehouse.jobs.merge import (
    MAX_SENT_MATCHES,
    SOURCE,
    TARGET,
    MatchResult,
    MergeRules,
    MergeSource,
    RowSelector,
    SelectedRows,
    check_keys,
    match_schema,
    merge_small_source,
)
from lancehouse.lake import commits
from lancehouse.lake.commits import CreateConflictError
from lancehouse.lake.fragments import FileLayout, Piece, locate_table, write_pieces
from lancehouse.lake.row_changes import (
    ROW,
    ColumnsChangedError,
    RowChange,
    commit_rewrite,
    delete_rows,
    merge_changes,
    offsets_by_fragment,
    retry_conflicts,
)
from lancehouse.lake.scans import FragmentRange, VersionSelector, split_fragments
from lancehouse.spark.address import TableAddress
from lancehouse.spark.errors import translate_task_errors
from lancehouse.spark.jobs import Job, write_frame
from lancehouse.spark.merge_keys import MergeKeys, join_keys, require_distinct_keys
from lancehouse.spark.row_changes import ChangeResult
from lancehouse.spark.session import parallelism
from lancehouse.spark.table_reader import VERSION, PinnedVersion
from lancehouse.spark.table_writer import WriteOptions, find_version_of_same_run, new_table_schema
from lancehouse.spark.tasks import RESULT_STRUCT, Batches, collect_results, collect_texts, to_result_batches

FRAGMENT, PIECE = "fragment", "piece"
RANK = "_lancehouse_rank"
UNORDERED = ("map", "variant", "interval")


def merge(
    frame: DataFrame,
    address: TableAddress,
    on: str | Sequence[str],
    rules: MergeRules,
    how: WriteOptions,
    *,
    latest_by: Sequence[str] = (),
) -> ChangeResult:
    """Merge rows into a table by key. The frame is evaluated once.

    Args:
        frame: the rows, with all columns of the table if rows are updated; only the keys if rows are only deleted.
        address: address of the table.
        on: the columns that are the key. A key that is null matches nothing.
        rules: what to do with matched and unmatched rows.
        how: how rows are written.
        latest_by: columns of the frame that decide which of several rows with the same key is the latest.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: the table or the frame has no such key column.
        InvalidInputError: values of the key cannot be compared, or two rows of the frame have the same key and it is
            not clear which one is the latest.
        TableSchemaValidationError: the columns do not fit those of the table.
        ConcurrentModificationError: other writers kept changing the same rows, or changed the columns.
    """
    table, keys = address.to_ref(), (on,) if isinstance(on, str) else tuple(on)
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return ChangeResult(existing_version)
    if not table.exists():
        locate_table(table)  # raises unless it is at least declared
        return _create_first_version(
            _keep_latest_rows(frame, keys, latest_by, None), address, keys, rules, how, latest_by
        )
    pinned = PinnedVersion.resolve(address, VersionSelector())
    _, dataset = pinned.open()
    check_keys(address, dataset.schema, keys)
    frame = _keep_latest_rows(frame, keys, latest_by, dataset.schema)
    rows, schema = _select_needed(frame, dataset.schema, keys, rules)
    job, used = Job(address), list[Piece]()
    with job.clean_up_after(used):
        if rules.writes:
            source = MergeSource(tuple(write_frame(rows, job, schema, "append", how.layout)), keys)
        else:
            source = MergeSource(tuple(write_frame(rows, job, schema, "overwrite", how.layout)), keys, schema)
        require_distinct_keys(frame.sparkSession, MergeKeys(job, source, pinned), latest_by)
        merging = _MergeRun(frame.sparkSession, address, source, rules, how, str(dataset.lance_schema))
        return retry_conflicts(address, lambda: merging.attempt(used))


def _keep_latest_rows(
    frame: DataFrame, on: Sequence[str], latest_by: Sequence[str], schema: pa.Schema | None
) -> DataFrame:
    """Keep, of the rows with the same key, the latest one. Ties are all kept, and refused later.

    Rows whose key is null are all kept. Columns that only serve to find the latest row are dropped.
    """
    _require_key_columns(frame, on)
    if not latest_by:
        return frame
    _require_order(frame, on, latest_by)
    keys = [functions.col(_quote(name)) for name in on]
    order = [functions.col(_quote(name)).desc_nulls_last() for name in latest_by]
    has_key = reduce(and_, (key.isNotNull() for key in keys))
    rank = functions.rank().over(Window.partitionBy(*keys).orderBy(*order))
    names = {VERSION} if schema is None else {name for name in latest_by if name not in schema.names}
    columns = [_quote(name) for name in frame.columns if name not in names.intersection(latest_by)]
    return frame.withColumn(RANK, rank).where((functions.col(RANK) == 1) | ~has_key).select(*columns)


def _require_order(frame: DataFrame, on: Sequence[str], latest_by: Sequence[str]) -> None:
    if missing := [name for name in latest_by if name not in frame.columns]:
        raise TableColumnNotFoundError(
            f"the DataFrame has no column {', '.join(missing)} for latest_by; it has {', '.join(frame.columns)}"
        )
    if both := [name for name in latest_by if name in on]:
        raise InvalidInputError(f"latest_by names {both[0]}, which is in the key: it is the same in all rows of a key")
    for name in latest_by:
        if (kind := frame.schema[name].dataType.typeName()) in UNORDERED:
            raise InvalidInputError(f"latest_by names {name}, and values of type {kind} have no order")


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _select_needed(
    frame: DataFrame, schema: pa.Schema, on: Sequence[str], rules: MergeRules
) -> tuple[DataFrame, pa.Schema]:
    """Return the columns of the frame that are written, and the schema to write them in."""
    if not rules.writes:
        frame = frame.select(*map(_quote, on))
        schema = pa.schema([schema.field(name) for name in on])
    elif rules.updates and (missing := [name for name in schema.names if name not in frame.columns]):
        raise TableSchemaValidationError(
            f"the DataFrame has no column {', '.join(missing)}, and a row that matches is replaced as a whole"
        )
    return frame, schema


def _require_key_columns(frame: DataFrame, on: Sequence[str]) -> None:
    if missing := [name for name in on if name not in frame.columns]:
        raise TableColumnNotFoundError(
            f"the DataFrame has no column {', '.join(missing)} to match by; it has {', '.join(frame.columns)}"
        )


def _create_first_version(
    frame: DataFrame,
    address: TableAddress,
    on: tuple[str, ...],
    rules: MergeRules,
    how: WriteOptions,
    latest_by: Sequence[str],
) -> ChangeResult:
    """Create the first version of a table that is only declared: no row can match."""
    table = address.to_ref()
    if not rules.inserts:
        table.open()  # raises, because there is no version yet
    schema = new_table_schema(frame.schema.jsonValue(), how)
    check_keys(address, schema, on)
    job, used = Job(address), list[Piece]()
    try:
        with job.clean_up_after(used):
            source = MergeSource(tuple(write_frame(frame, job, schema, "overwrite", how.layout)), on, schema)
            require_distinct_keys(frame.sparkSession, MergeKeys(job, source, None), latest_by)
            used += source.pieces
            version = commits.create(table, locate_table(table), schema, source.pieces, how.properties)
    except CreateConflictError as error:
        raise ConcurrentModificationError(f"{address}: another writer created it just now; run it again") from error
    return ChangeResult(version, inserted=sum(source.rows))


@dataclass(frozen=True, slots=True)
class _MergeRun:
    """Merges rows that are written already into the latest version of a table."""

    spark: SparkSession
    address: TableAddress
    source: MergeSource
    rules: MergeRules
    how: WriteOptions
    columns: str
    """The table's schema for which the rows were written, as text."""

    def attempt(self, used: list[Piece]) -> ChangeResult:
        """Try to merge once; set `used` to the pieces of the source that go into the table unchanged."""
        used.clear()
        pinned = PinnedVersion.resolve(self.address, VersionSelector())
        table, dataset = pinned.open()
        if str(dataset.lance_schema) != self.columns:
            raise ColumnsChangedError(f"{self.address}: its columns have changed meanwhile; run it again")
        job, written = Job(self.address), list[Piece]()
        work = _MergeTasks(MergeKeys(job, self.source, pinned), self.rules, self.how.layout)
        with job.clean_up_after(written), translate_task_errors():
            deleted, selections = self._merge_in_tasks(work) or self._merge_by_join(work)
            used[:] = [self.source.pieces[each.number] for each in selections if each.reused is not None]
            written += [*deleted.files, *(piece for each in selections for piece in each.new)]
            new = tuple(piece for each in selections for piece in (each.reused, *each.new) if piece is not None)
            version = commit_rewrite(
                table,
                locate_table(table),
                dataset,
                replace(deleted, new=new),
                dataset.schema.names,
                self.how.properties,
                is_merge=True,
            )
        updated = sum(each.updated for each in selections)
        return ChangeResult(version, sum(each.inserted for each in selections), updated, deleted.rows - updated)

    def _merge_in_tasks(self, work: _MergeTasks) -> tuple[RowChange, list[SelectedRows]] | None:
        """Match keys and delete rows in the same tasks; return None if there are too many keys or matches for that."""
        if work.keys.read_if_few() is None:
            return None
        dataset = work.keys.open().dataset
        result_texts = collect_results(
            self.spark, split_fragments(dataset, parallelism(self.spark), split=False), work.match_fragments
        )
        parts = list(map(MatchResult.from_json, result_texts))
        tables = [each.matches for each in parts if each.matches is not None]
        if len(tables) < len(parts) or sum(map(len, tables)) > MAX_SENT_MATCHES:
            return None
        matches = pa.concat_tables([match_schema().empty_table(), *tables])
        deleted = merge_changes(each.change for each in parts)
        # Every row of the source goes into the table, and if it matches at most one row also exactly once: then its
        # files are used unchanged.
        is_plain = self.rules.updates and self.rules.inserts and not dataset.has_stable_row_ids
        if is_plain and len(matches.column(SOURCE).unique()) == len(matches):
            return deleted, [*self._select_all(matches.column(SOURCE).to_numpy())]
        return deleted, self._select_rows(self.spark.createDataFrame(matches), work)

    def _select_all(self, matches: Any) -> Iterator[SelectedRows]:
        """Yield all pieces of the source unchanged; each match counts as one updated row."""
        updated = np.bincount(matches >> 32, minlength=len(self.source.pieces))
        for number, (piece, rows) in enumerate(zip(self.source.pieces, self.source.rows, strict=True)):
            yield SelectedRows(number, piece, (), rows - int(updated[number]), int(updated[number]))

    def _merge_by_join(self, work: _MergeTasks) -> tuple[RowChange, list[SelectedRows]]:
        """Match keys with a join of Spark, then delete rows of the table and choose those of the source."""
        matches = join_keys(self.spark, work.keys, every=self.rules.delete_by_source).persist()
        try:
            return self._delete_matched(matches, work), self._select_rows(matches.where(f"{SOURCE} is not null"), work)
        finally:
            matches.unpersist()

    def _delete_matched(self, matches: DataFrame, work: _MergeTasks) -> RowChange:
        """Delete the rows of the table that are replaced or removed."""
        if not self.rules.deletes:
            return RowChange()
        doomed = matches if self.rules.when_matched != "ignore" else matches.where(f"{SOURCE} is null")
        fragment = functions.shiftright(functions.col(TARGET), 32).alias(FRAGMENT)
        rows = self._sort_by(doomed.select(fragment, TARGET), FRAGMENT)
        return merge_changes(
            map(RowChange.from_json, collect_texts(rows.mapInArrow(work.delete_matched, RESULT_STRUCT)))
        )

    def _select_rows(self, matches: DataFrame, work: _MergeTasks) -> list[SelectedRows]:
        """Choose the rows of the source that go into the table."""
        if not self.rules.writes:
            return []
        piece = functions.shiftright(functions.col(SOURCE), 32).alias(PIECE)
        rows = self._sort_by(matches.select(piece, SOURCE, ROW), PIECE)
        selections = list(map(SelectedRows.from_json, collect_texts(rows.mapInArrow(work.select_rows, RESULT_STRUCT))))
        if not self.rules.inserts:
            return selections
        selected = {each.number for each in selections}
        return [
            *selections,
            *(each for each in self._select_all(np.array([], np.int64)) if each.number not in selected),
        ]

    def _sort_by(self, rows: DataFrame, column: str) -> DataFrame:
        """Bring rows with the same number together, in one task."""
        return rows.repartition(parallelism(self.spark), column).sortWithinPartitions(column)


@dataclass(frozen=True, slots=True)
class _MergeTasks:
    """The work that runs in tasks; sent to executors."""

    keys: MergeKeys
    rules: MergeRules
    layout: FileLayout

    def match_fragments(self, parts: list[FragmentRange]) -> list[str]:
        """Match fragments with a small source, and delete the rows that are replaced or removed."""
        opened, few = self.keys.open(), self.keys.read_if_few()
        assert few is not None
        result = merge_small_source(opened.table, opened.dataset, parts, few, self.keys.source.on, self.rules)
        if result.change:
            self.keys.job.record_pieces(result.change.files)
        return [result.to_json()]

    def delete_matched(self, batches: Batches) -> Batches:
        """Delete rows of the table, fragment by fragment."""
        opened, changes = self.keys.open(), list[RowChange]()
        try:
            for _, rows in _group_runs(batches):
                changes.append(
                    delete_rows(opened.table, opened.dataset, offsets_by_fragment(rows.column(TARGET).chunks))
                )
        finally:
            if changes:
                self.keys.job.record_pieces(merge_changes(changes).files)
        yield from to_result_batches(each.to_json() for each in changes)

    def select_rows(self, batches: Batches) -> Batches:
        """Choose rows of the source, piece by piece."""
        opened, noted, selections = self.keys.open(), list[Piece](), list[SelectedRows]()

        def write_and_record(rows: pa.RecordBatchReader) -> list[Piece]:
            made = write_pieces(opened.table, self.keys.job.write_location(), rows, mode="append", layout=self.layout)
            # A record of the same task replaces the one before, so each names all pieces so far.
            self.keys.job.record_pieces([*noted, *made])
            return made

        choice = RowSelector(opened.table, opened.dataset, self.keys.source, opened.rows, self.rules, write_and_record)
        for number, rows in _group_runs(batches):
            selections.append(choice.select(number, rows.column(SOURCE).to_numpy(), rows.column(ROW).to_numpy()))
            if selections[-1].new:
                noted += selections[-1].new
                self.keys.job.record_pieces(noted)
        yield from to_result_batches(each.to_json() for each in selections)


def _group_runs(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """Yield runs of consecutive rows that have the same number in the first column."""

    def split() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in filter(len, batches):
            numbers = batch.column(0).to_numpy()
            ends = np.flatnonzero(np.diff(numbers, append=-1))
            for first, last in zip((0, *(ends[:-1] + 1)), ends, strict=True):
                yield int(numbers[first]), batch.slice(first, last - first + 1)

    for number, parts in groupby(split(), key=itemgetter(0)):
        yield number, pa.Table.from_batches([part for _, part in parts])
