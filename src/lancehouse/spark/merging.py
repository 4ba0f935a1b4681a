"""DataFrames merged into Lance tables by key: tasks write all rows and match the keys, the driver makes one commit."""

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

from lancehouse.lake import commits
from lancehouse.lake.changes import (
    ROW,
    Change,
    ColumnsChangedError,
    by_fragment,
    commit_rewritten,
    delete_rows,
    in_attempts,
    together,
)
from lancehouse.lake.commits import OvertakenError
from lancehouse.lake.fragments import Layout, Piece, place, write
from lancehouse.lake.merging import (
    MANY,
    SOURCE,
    TARGET,
    Choice,
    Chosen,
    Matched,
    Rules,
    Source,
    check_keys,
    match_schema,
    merge_few,
)
from lancehouse.lake.scans import Moment, Part, groups
from lancehouse.spark.address import Address
from lancehouse.spark.changes import Changed
from lancehouse.spark.errors import translated
from lancehouse.spark.jobs import Job, write_frame
from lancehouse.spark.matching import Keys, joined, refuse_duplicates
from lancehouse.spark.reading import VERSION, Pinned
from lancehouse.spark.session import parallelism
from lancehouse.spark.tasks import RESULT_STRUCT, Batches, collect, results, texts
from lancehouse.spark.writing import Write, made_before, schema_for

FRAGMENT, PIECE = "fragment", "piece"
RANK = "_lancehouse_rank"
UNORDERED = ("map", "variant", "interval")


def merge(
    frame: DataFrame,
    address: Address,
    on: str | Sequence[str],
    rules: Rules,
    how: Write,
    *,
    latest_by: Sequence[str] = (),
) -> Changed:
    """Merge rows into a table by their keys. The frame is evaluated once.

    Args:
        frame: the rows, with all columns of the table if rows are updated; only the keys if rows are only deleted.
        address: of the table.
        on: the columns that are the key. One that is null matches nothing.
        rules: what to do.
        how: how rows are written.
        latest_by: columns of the frame by which, of rows with the same key, the last one is known.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: the table or the frame has no such key.
        InvalidInputError: values of the key are not compared, or two rows of the frame have the same and nothing tells
            which is the last.
        TableSchemaValidationError: the columns do not fit those of the table.
        ConcurrentModificationError: somebody changes the same rows again and again, or the columns.
    """
    table, keys = address.ref(), (on,) if isinstance(on, str) else tuple(on)
    if (done := made_before(table, how)) is not None:
        return Changed(done)
    if not table.exists():
        place(table)  # raises unless it is at least declared
        return _first(_last_rows(frame, keys, latest_by, None), address, keys, rules, how, latest_by)
    pinned = Pinned.at(address, Moment())
    _, dataset = pinned.open()
    check_keys(address, dataset.schema, keys)
    frame = _last_rows(frame, keys, latest_by, dataset.schema)
    rows, schema = _needed(frame, dataset.schema, keys, rules)
    job, used = Job(address), list[Piece]()
    with job.cleaned(used):
        if rules.writes:
            source = Source(tuple(write_frame(rows, job, schema, "append", how.layout)), keys)
        else:
            source = Source(tuple(write_frame(rows, job, schema, "overwrite", how.layout)), keys, schema)
        refuse_duplicates(frame.sparkSession, Keys(job, source, pinned), latest_by)
        merging = _Merging(frame.sparkSession, address, source, rules, how, str(dataset.lance_schema))
        return in_attempts(address, lambda: merging.attempt(used))


def _last_rows(frame: DataFrame, on: Sequence[str], latest_by: Sequence[str], schema: pa.Schema | None) -> DataFrame:
    """Of the rows with the same key, the last one; all of those that nothing tells apart, which are refused later.

    Rows whose key is null are no rows of the same key. Columns that only tell which row is the last are left out.
    """
    _has(frame, on)
    if not latest_by:
        return frame
    _check_order(frame, on, latest_by)
    keys = [functions.col(_quoted(name)) for name in on]
    order = [functions.col(_quoted(name)).desc_nulls_last() for name in latest_by]
    has_key = reduce(and_, (key.isNotNull() for key in keys))
    rank = functions.rank().over(Window.partitionBy(*keys).orderBy(*order))
    names = {VERSION} if schema is None else {name for name in latest_by if name not in schema.names}
    kept = [_quoted(name) for name in frame.columns if name not in names.intersection(latest_by)]
    return frame.withColumn(RANK, rank).where((functions.col(RANK) == 1) | ~has_key).select(*kept)


def _check_order(frame: DataFrame, on: Sequence[str], latest_by: Sequence[str]) -> None:
    if missing := [name for name in latest_by if name not in frame.columns]:
        raise TableColumnNotFoundError(
            f"the DataFrame has no column {', '.join(missing)} for latest_by; it has {', '.join(frame.columns)}"
        )
    if both := [name for name in latest_by if name in on]:
        raise InvalidInputError(f"latest_by names {both[0]}, which is in the key: it is the same in all rows of a key")
    for name in latest_by:
        if (kind := frame.schema[name].dataType.typeName()) in UNORDERED:
            raise InvalidInputError(f"latest_by names {name}, and values of type {kind} have no order")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _needed(frame: DataFrame, schema: pa.Schema, on: Sequence[str], rules: Rules) -> tuple[DataFrame, pa.Schema]:
    """What of the frame is written, and as what."""
    if not rules.writes:
        frame = frame.select(*map(_quoted, on))
        schema = pa.schema([schema.field(name) for name in on])
    elif rules.updates and (missing := [name for name in schema.names if name not in frame.columns]):
        raise TableSchemaValidationError(
            f"the DataFrame has no column {', '.join(missing)}, and a row that matches is replaced as a whole"
        )
    return frame, schema


def _has(frame: DataFrame, on: Sequence[str]) -> None:
    if missing := [name for name in on if name not in frame.columns]:
        raise TableColumnNotFoundError(
            f"the DataFrame has no column {', '.join(missing)} to match by; it has {', '.join(frame.columns)}"
        )


def _first(
    frame: DataFrame, address: Address, on: tuple[str, ...], rules: Rules, how: Write, latest_by: Sequence[str]
) -> Changed:
    """Make the first version of a table that is only declared: no row can match."""
    table = address.ref()
    if not rules.inserts:
        table.open()  # raises that there is nothing yet
    schema = schema_for(frame.schema.jsonValue(), how)
    check_keys(address, schema, on)
    job, used = Job(address), list[Piece]()
    try:
        with job.cleaned(used):
            source = Source(tuple(write_frame(frame, job, schema, "overwrite", how.layout)), on, schema)
            refuse_duplicates(frame.sparkSession, Keys(job, source, None), latest_by)
            used += source.pieces
            version = commits.create(table, place(table), schema, source.pieces, how.properties)
    except OvertakenError as error:
        raise ConcurrentModificationError(f"{address}: another writer created it just now; run it again") from error
    return Changed(version, inserted=sum(source.rows))


@dataclass(frozen=True, slots=True)
class _Merging:
    """Merges rows that are written already, into the version of a table that is the latest."""

    spark: SparkSession
    address: Address
    source: Source
    rules: Rules
    how: Write
    columns: str
    """Those of the table that the rows were written for."""

    def attempt(self, used: list[Piece]) -> Changed:
        """Try it, once; `used` becomes the pieces of the source that go into the table as they are."""
        used.clear()
        pinned = Pinned.at(self.address, Moment())
        table, dataset = pinned.open()
        if str(dataset.lance_schema) != self.columns:
            raise ColumnsChangedError(f"{self.address}: its columns have changed meanwhile; run it again")
        job, written = Job(self.address), list[Piece]()
        work = _Work(Keys(job, self.source, pinned), self.rules, self.how.layout)
        with job.cleaned(written), translated():
            deleted, chosen = self._at_once(work) or self._by_join(work)
            used[:] = [self.source.pieces[each.number] for each in chosen if each.kept is not None]
            written += [*deleted.files, *(piece for each in chosen for piece in each.new)]
            new = tuple(piece for each in chosen for piece in (each.kept, *each.new) if piece is not None)
            version = commit_rewritten(
                table,
                place(table),
                dataset,
                replace(deleted, new=new),
                dataset.schema.names,
                self.how.properties,
                is_merge=True,
            )
        updated = sum(each.updated for each in chosen)
        return Changed(version, sum(each.inserted for each in chosen), updated, deleted.rows - updated)

    def _at_once(self, work: _Work) -> tuple[Change, list[Chosen]] | None:
        """Match the keys and delete rows in the same tasks; None if that is too much to hold."""
        if work.keys.few() is None:
            return None
        dataset = work.keys.open().dataset
        done = results(self.spark, groups(dataset, parallelism(self.spark), split=False), work.merged)
        parts = list(map(Matched.from_json, done))
        tables = [each.matches for each in parts if each.matches is not None]
        if len(tables) < len(parts) or sum(map(len, tables)) > MANY:
            return None
        matches = pa.concat_tables([match_schema().empty_table(), *tables])
        deleted = together(each.change for each in parts)
        is_plain = self.rules.updates and self.rules.inserts and not dataset.has_stable_row_ids
        if is_plain and len(matches.column(SOURCE).unique()) == len(matches):
            return deleted, [*self._kept(matches.column(SOURCE).to_numpy())]
        return deleted, self._chosen(self.spark.createDataFrame(matches), work)

    def _kept(self, matches: Any) -> Iterator[Chosen]:
        """All rows of the source as they are, of which some match one row of the table."""
        updated = np.bincount(matches >> 32, minlength=len(self.source.pieces))
        for number, (piece, rows) in enumerate(zip(self.source.pieces, self.source.rows, strict=True)):
            yield Chosen(number, piece, (), rows - int(updated[number]), int(updated[number]))

    def _by_join(self, work: _Work) -> tuple[Change, list[Chosen]]:
        """Match the keys first, and then delete rows of the table and choose those of the source."""
        matches = joined(self.spark, work.keys, every=self.rules.delete_by_source).persist()
        try:
            return self._deleted(matches, work), self._chosen(matches.where(f"{SOURCE} is not null"), work)
        finally:
            matches.unpersist()

    def _deleted(self, matches: DataFrame, work: _Work) -> Change:
        """Delete the rows of the table that go."""
        if not self.rules.deletes:
            return Change()
        gone = matches if self.rules.when_matched != "ignore" else matches.where(f"{SOURCE} is null")
        fragment = functions.shiftright(functions.col(TARGET), 32).alias(FRAGMENT)
        rows = self._sorted(gone.select(fragment, TARGET), FRAGMENT)
        return together(map(Change.from_json, collect(rows.mapInArrow(work.deleted, RESULT_STRUCT))))

    def _chosen(self, matches: DataFrame, work: _Work) -> list[Chosen]:
        """Choose the rows of the source that go into the table."""
        if not self.rules.writes:
            return []
        piece = functions.shiftright(functions.col(SOURCE), 32).alias(PIECE)
        rows = self._sorted(matches.select(piece, SOURCE, ROW), PIECE)
        found = list(map(Chosen.from_json, collect(rows.mapInArrow(work.chosen, RESULT_STRUCT))))
        if not self.rules.inserts:
            return found
        known = {each.number for each in found}
        return [*found, *(each for each in self._kept(np.array([], np.int64)) if each.number not in known)]

    def _sorted(self, rows: DataFrame, column: str) -> DataFrame:
        """Rows with the same number together, in one task."""
        return rows.repartition(parallelism(self.spark), column).sortWithinPartitions(column)


@dataclass(frozen=True, slots=True)
class _Work:
    """What tasks do; it goes to executors."""

    keys: Keys
    rules: Rules
    layout: Layout

    def merged(self, parts: list[Part]) -> list[str]:
        """Match fragments with few rows, and delete those that go."""
        opened, few = self.keys.open(), self.keys.few()
        assert few is not None
        found = merge_few(opened.table, opened.dataset, parts, few, self.keys.source.on, self.rules)
        if found.change:
            self.keys.job.note(found.change.files)
        return [found.to_json()]

    def deleted(self, batches: Batches) -> Batches:
        """Delete rows of the table, fragment by fragment."""
        opened, changes = self.keys.open(), list[Change]()
        try:
            for _, rows in _runs(batches):
                changes.append(delete_rows(opened.table, opened.dataset, by_fragment(rows.column(TARGET).chunks)))
        finally:
            if changes:
                self.keys.job.note(together(changes).files)
        yield from texts(each.to_json() for each in changes)

    def chosen(self, batches: Batches) -> Batches:
        """Choose rows of the source, piece by piece."""
        opened, noted, found = self.keys.open(), list[Piece](), list[Chosen]()

        def written(rows: pa.RecordBatchReader) -> list[Piece]:
            made = write(opened.table, self.keys.job.place(), rows, mode="append", layout=self.layout)
            self.keys.job.note([*noted, *made])
            return made

        choice = Choice(opened.table, opened.dataset, self.keys.source, opened.rows, self.rules, written)
        for number, rows in _runs(batches):
            found.append(choice.of(number, rows.column(SOURCE).to_numpy(), rows.column(ROW).to_numpy()))
            if found[-1].new:
                noted += found[-1].new
                self.keys.job.note(noted)
        yield from texts(each.to_json() for each in found)


def _runs(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """Rows that follow each other and have the same number in the first column."""

    def cut() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in filter(len, batches):
            numbers = batch.column(0).to_numpy()
            ends = np.flatnonzero(np.diff(numbers, append=-1))
            for first, last in zip((0, *(ends[:-1] + 1)), ends, strict=True):
                yield int(numbers[first]), batch.slice(first, last - first + 1)

    for number, parts in groupby(cut(), key=itemgetter(0)):
        yield number, pa.Table.from_batches([part for _, part in parts])
