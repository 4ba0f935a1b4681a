"""Merge rows into a table by key: write them, match keys and delete rows in pieces, and make one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import ChangeResult, Job, WriteOptions, find_version_of_same_run, retry_changed_columns
from lancehouse.jobs.merge_keys import (
    MAX_SENT_MATCHES,
    PIECE,
    SOURCE,
    TARGET,
    Batches,
    MatchResult,
    MergeRules,
    MergeSource,
    RowSelector,
    SelectedRows,
    check_keys,
    find_duplicate,
    find_latest,
    format_key,
    group_runs,
    key_schema,
    match_schema,
    merge_small_source,
    read_keys,
)
from lancehouse.jobs.sources.schemas import conform
from lancehouse.jobs.table_changes import evolve_columns
from lancehouse.lake import commits
from lancehouse.lake.commits import (
    ColumnsChangedError,
    FileLayout,
    NewFragment,
    find_version_of_run,
    locate_table,
)
from lancehouse.lake.dataset import OFFSET_BITS, TableRef
from lancehouse.lake.row_changes import (
    ADDRESS,
    ROW,
    RowChange,
    commit_rewrite,
    delete_rows,
    merge_changes,
    offsets_by_fragment,
    retry_conflicts,
)
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.schema.definitions import definitions
from lancehouse.schema.walk import check_types, relax_nullability

FEW_ROWS = 1 << 20
FEW_BYTES = 64 << 20
"""Limits of the keys that each of several processes may hold in memory; more are matched by a shuffle."""


class RowsToMerge(Protocol):
    """The rows to merge, wherever they are."""

    @property
    def label(self) -> str:
        """How error messages call them."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def prepare(self, on: Sequence[str], schema: pa.Schema | None) -> Self:
        """Check that the rows have the key's columns, and return those that are merged.

        Args:
            on: the columns that are the key.
            schema: of the table; None if it has no version yet.
        """

    def select(self, columns: Sequence[str]) -> Self:
        """Return the rows with some of their columns."""

    def new_table_schema(self, how: WriteOptions) -> pa.Schema:
        """Return the schema of a new table for the rows."""

    def incoming_schema(self, how: WriteOptions, before: pa.Schema) -> pa.Schema:
        """Return the columns of the rows, by which those of a table may evolve."""

    def require_fit(self, target: pa.Schema) -> None:
        """Check that the rows fit the columns of a table.

        Raises:
            TableSchemaValidationError: they do not.
        """

    def write(self, job: Job, schema: pa.Schema, mode: str, layout: FileLayout) -> list[NewFragment]:
        """Write the rows in a schema, without a commit.

        Raises:
            TableSchemaValidationError: the columns do not fit; nothing is written.
        """

    def explain_duplicate(self, key: str) -> str:
        """Return the error message about two rows with the same key."""


class KeyShuffle(Protocol):
    """Brings keys together that are too many for the memory of one process."""

    def find_duplicate(self, keys: MergeKeys) -> int | None:
        """Return the address of a row to merge whose key another one has too, or None."""

    def merge(self, work: MergeTasks) -> tuple[RowChange, list[SelectedRows]]:
        """Match the keys, delete rows of the table, and choose those to write."""

    def select(self, matches: pa.Table, work: MergeTasks) -> list[SelectedRows]:
        """Choose the rows to write by matches."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows to merge that are in memory."""

    rows: pa.Table
    label: str = "the source"

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        return self.rows.column_names

    def prepare(self, on: Sequence[str], schema: pa.Schema | None) -> Self:  # noqa: ARG002 - the rows are what they are
        """Check that the rows have the key's columns."""
        require_key_columns(self, on)
        return self

    def select(self, columns: Sequence[str]) -> Self:
        """Return the rows with some of their columns."""
        return replace(self, rows=self.rows.select(list(columns)))

    def new_table_schema(self, how: WriteOptions) -> pa.Schema:
        """Return the schema of a new table for the rows."""
        check_types(self.rows.schema)
        return relax_nullability(self.rows.schema) if how.nullable else self.rows.schema

    def incoming_schema(self, how: WriteOptions, before: pa.Schema) -> pa.Schema:  # noqa: ARG002 - they have types
        """Return the columns of the rows."""
        return self.rows.schema

    def require_fit(self, target: pa.Schema) -> None:
        """Check that the types of the rows can be cast to those of a table."""
        conform(pa.RecordBatch.from_pylist([], self.rows.schema), target, (), "the rows")

    def write(self, job: Job, schema: pa.Schema, mode: str, layout: FileLayout) -> list[NewFragment]:
        """Write the rows in a schema, without a commit."""
        if unknown := [name for name in self.columns if name not in schema.names]:
            raise TableSchemaValidationError(f"{job.address} has no column {', '.join(unknown)}")
        batches = (conform(batch, schema, (), "the rows") for batch in self.rows.to_batches())
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return job.write(reader, mode, layout) if len(self.rows) else []

    def explain_duplicate(self, key: str) -> str:
        """Return the error message about two rows with the same key."""
        return f"two rows of {self.label} have the same key, {key}; drop one of them"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows to merge that tasks have written to files which no version references, with the columns that they have."""

    job: Job
    """The job that has written them, and removes them."""
    pieces: tuple[NewFragment, ...]
    schema: pa.Schema
    """Columns of the files."""
    columns: Sequence[str]
    """Columns that are merged."""
    latest_by: tuple[str, ...] = ()
    transient: frozenset[str] = frozenset()
    """Columns of `latest_by` that a new table does not get."""
    chosen: Any = None
    """Addresses of the rows that are merged, sorted; None for all."""
    label: str = "the batch"

    def prepare(self, on: Sequence[str], schema: pa.Schema | None) -> Self:
        """Check that the rows have the key's columns; of rows with the same key, keep the latest."""
        require_key_columns(self, on)
        if not self.latest_by:
            return self
        if missing := [name for name in self.latest_by if name not in self.columns]:
            raise TableColumnNotFoundError(
                f"{self.label} has no column {', '.join(missing)} for latest_by; it has {', '.join(self.columns)}"
            )
        if overlap := [name for name in self.latest_by if name in on]:
            raise InvalidInputError(
                f"latest_by names {overlap[0]}, which is in the key: it is the same for all its rows"
            )
        target_names = set(self.columns) - self.transient if schema is None else schema.names
        helping = [name for name in self.latest_by if name not in target_names]
        table, rows = self.job.to_ref(), self._open()
        keys = pa.Table.from_batches(read_keys(table, rows, self._parts(), on), key_schema(rows.schema, on))
        scan = Scan(self.latest_by, with_row_address=True)
        order = pa.Table.from_batches(scan.batches(table, rows, self._parts()), scan.schema(table, rows))
        columns = [name for name in self.columns if name not in helping]
        return replace(self, columns=columns, chosen=find_latest(keys, order.select(list(self.latest_by))))

    def select(self, columns: Sequence[str]) -> Self:
        """Return the rows with some of their columns."""
        return replace(self, columns=list(columns))

    def new_table_schema(self, how: WriteOptions) -> pa.Schema:
        """Return the schema of a new table for the rows."""
        schema = pa.schema([self.schema.field(name) for name in self.columns])
        return relax_nullability(schema) if how.nullable else schema

    def incoming_schema(self, how: WriteOptions, before: pa.Schema) -> pa.Schema:  # noqa: ARG002 - they have types
        """Return the columns of the rows that are merged."""
        return pa.schema([self.schema.field(name) for name in self.columns])

    def require_fit(self, target: pa.Schema) -> None:
        """Check that the types of the rows can be cast to those of a table."""
        conform(pa.RecordBatch.from_pylist([], self.schema), target, (), self.label)

    def write(self, job: Job, schema: pa.Schema, mode: str, layout: FileLayout) -> list[NewFragment]:
        """Write the rows that are merged in a schema, without a commit."""
        table, rows = self.job.to_ref(), self._open()
        scan = Scan(tuple(self.columns), with_row_address=True)

        def batches() -> Batches:
            for batch in scan.batches(table, rows, self._parts()):
                address, batch = batch.column(ADDRESS), batch.select(list(self.columns))
                if self.chosen is not None:
                    batch = batch.filter(pa.array(np.isin(address.to_numpy(), self.chosen)))
                if batch.num_rows:
                    yield conform(batch, schema, (), self.label)

        if not self.pieces or (self.chosen is not None and not len(self.chosen)):
            return []
        return job.write(pa.RecordBatchReader.from_batches(schema, batches()), mode, layout)

    def explain_duplicate(self, key: str) -> str:
        """Return the error message about two rows with the same key."""
        if self.latest_by:
            return (
                f"two rows of {self.label} have the same key, {key}, and both are the last by "
                f"{', '.join(self.latest_by)}: name a further column in latest_by that tells them apart"
            )
        return f"two rows of {self.label} have the same key, {key}; name in latest_by the column that tells the last"

    def _open(self) -> Any:
        source = MergeSource(self.pieces, (), self.schema)
        return source.open(self.job.to_ref(), self.job.write_location(), None)

    def _parts(self) -> list[FragmentRange]:
        return [FragmentRange(number) for number in range(len(self.pieces))]


def require_key_columns(rows: RowsToMerge, on: Sequence[str]) -> None:
    """Check that the rows to merge have the columns of the key.

    Raises:
        TableColumnNotFoundError: they lack one.
    """
    if missing := [name for name in on if name not in rows.columns]:
        raise TableColumnNotFoundError(
            f"{rows.label} has no column {', '.join(missing)} to match by; it has {', '.join(rows.columns)}"
        )


def merge(
    engine: Engine,
    address: TableAddress,
    rows: RowsToMerge,
    on: Sequence[str],
    rules: MergeRules,
    how: WriteOptions,
    shuffle: KeyShuffle | None = None,
) -> ChangeResult:
    """Merge rows into a table by key. The rows are evaluated once, unless columns change meanwhile and may evolve.

    Args:
        engine: runs the pieces.
        address: address of the table.
        rows: the rows, with all columns of the table if rows are updated; only the keys if rows are only deleted.
        on: the columns that are the key. A key that is null matches nothing.
        rules: what to do with matched and unmatched rows.
        how: how rows are written.
        shuffle: matches keys that do not fit into memory; not needed if pieces share the memory of this process.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: the table or the source has no such key column.
        InvalidInputError: values of the key cannot be compared, or two rows to merge have the same key.
        TableSchemaValidationError: the columns do not fit those of the table.
        ConcurrentModificationError: other writers kept changing the same rows, or changed the columns.
    """
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return ChangeResult(existing_version)
    return retry_changed_columns(how, lambda: _merge(engine, address, rows, tuple(on), rules, how, shuffle))


def _merge(
    engine: Engine,
    address: TableAddress,
    rows: RowsToMerge,
    keys: tuple[str, ...],
    rules: MergeRules,
    how: WriteOptions,
    shuffle: KeyShuffle | None,
) -> ChangeResult:
    table = address.to_ref()
    try:
        pinned = PinnedVersion.resolve(address)
    except TableNotFoundError:
        locate_table(table)  # raises unless it is at least declared
        return _create_first_version(address, rows.prepare(keys, None), keys, rules, how, shuffle)
    _, dataset = pinned.open()
    check_keys(address, dataset.schema, keys)
    rows = rows.prepare(keys, dataset.schema)
    schema: pa.Schema = dataset.schema
    # Computed columns of rows that are written become null, by which `backfill` finds them.
    derived = [name for column, definition in definitions(schema).items() for name in (column, definition.companion)]
    if not rules.writes:
        rows, schema = rows.select(keys), pa.schema([schema.field(name) for name in keys])
    elif rules.updates and (missing := [name for name in schema.names if name not in {*rows.columns, *derived}]):
        raise TableSchemaValidationError(
            f"{rows.label} has no column {', '.join(missing)}, and a row that matches is replaced as a whole"
        )
    if how.evolves and rules.writes:
        evolving = rows
        if evolve_columns(address, lambda before: evolving.incoming_schema(how, before), evolving.require_fit):
            pinned = PinnedVersion.resolve(address)
            _, dataset = pinned.open()
            schema = dataset.schema
    # This job owns the files of the rows to merge, which all attempts share; each attempt has another for its own.
    job, used = Job(address), list[NewFragment]()
    with job.clean_up_after(used):
        # Keys alone are no rows of the table: they are written as if they were a table of their own.
        mode = "append" if rules.writes else "overwrite"
        pieces = tuple(rows.write(job, schema, mode, how.layout))
        source = MergeSource(pieces, keys, None if rules.writes else schema)
        require_distinct_keys(rows, MergeKeys(job, source, pinned), shuffle)
        merging = _MergeRun(engine, address, source, rules, how, str(dataset.lance_schema), pinned.version, shuffle)
        return retry_conflicts(address, lambda: merging.attempt(used))


def _create_first_version(
    address: TableAddress,
    rows: RowsToMerge,
    on: tuple[str, ...],
    rules: MergeRules,
    how: WriteOptions,
    shuffle: KeyShuffle | None,
) -> ChangeResult:
    """Create the first version of a table that is only declared: no row can match."""
    table = address.to_ref()
    if not rules.inserts:
        table.open()  # raises, because there is no version yet
    schema = rows.new_table_schema(how)
    check_keys(address, schema, on)
    job, used = Job(address), list[NewFragment]()
    try:
        with job.clean_up_after(used):
            source = MergeSource(tuple(rows.write(job, schema, "overwrite", how.layout)), on, schema)
            require_distinct_keys(rows, MergeKeys(job, source, None), shuffle)
            used += source.pieces
            version = commits.create(table, locate_table(table), schema, source.pieces, how.properties)
    except commits.CreateConflictError as error:
        raise ConcurrentModificationError(f"{address}: another writer created it just now; run it again") from error
    return ChangeResult(version, inserted=sum(source.rows))


def require_distinct_keys(rows: RowsToMerge, keys: MergeKeys, shuffle: KeyShuffle | None) -> None:
    """Check that no two rows to merge have the same key.

    Raises:
        InvalidInputError: two rows have the same key; the message shows it.
    """
    small = keys.read_all() if shuffle is None else keys.read_if_few()
    if small is not None:
        address = find_duplicate(small)
    else:
        assert shuffle is not None
        address = shuffle.find_duplicate(keys)
    if address is not None:
        opened = keys.open()
        raise InvalidInputError(rows.explain_duplicate(format_key(opened.table, opened.rows, keys.source.on, address)))


@dataclass(frozen=True, slots=True)
class _MergeRun:
    """Merges rows that are written already into the latest version of a table."""

    engine: Engine
    address: TableAddress
    source: MergeSource
    rules: MergeRules
    how: WriteOptions
    columns: str
    """The table's schema for which the rows were written, as text."""
    base: int
    """The version that was the latest when the merge began."""
    shuffle: KeyShuffle | None

    def attempt(self, used: list[NewFragment]) -> ChangeResult:
        """Try to merge once; set `used` to the pieces of the source that go into the table unchanged."""
        used.clear()
        pinned = PinnedVersion.resolve(self.address)
        table, dataset = pinned.open()
        if (
            self.how.run is not None
            and (earlier_version := find_version_of_run(table, self.how.run, after=self.base)) is not None
        ):
            return ChangeResult(earlier_version)  # the same run, which somebody else has repeated meanwhile
        if str(dataset.lance_schema) != self.columns:
            raise ColumnsChangedError(f"{self.address}: its columns have changed meanwhile; run it again")
        job, written = Job(self.address), list[NewFragment]()
        work = MergeTasks(MergeKeys(job, self.source, pinned), self.rules, self.how.layout)
        with job.clean_up_after(written):
            deleted, selections = self._match_in_memory(work) or self._match_by_shuffle(work)
            used[:] = [self.source.pieces[selection.number] for selection in selections if selection.reused is not None]
            written += [*deleted.files, *(piece for selection in selections for piece in selection.new)]
            new = tuple(
                piece for selection in selections for piece in (selection.reused, *selection.new) if piece is not None
            )
            version = commit_rewrite(
                table,
                locate_table(table),
                dataset,
                replace(deleted, new=new),
                dataset.schema.names,
                self.how.properties,
                is_merge=True,
            )
        updated = sum(selection.updated for selection in selections)
        return ChangeResult(
            version, sum(selection.inserted for selection in selections), updated, deleted.rows - updated
        )

    def _match_by_shuffle(self, work: MergeTasks) -> tuple[RowChange, list[SelectedRows]]:
        assert self.shuffle is not None
        return self.shuffle.merge(work)

    def _match_in_memory(self, work: MergeTasks) -> tuple[RowChange, list[SelectedRows]] | None:
        """Match keys and delete rows in the same pieces; return None if there are too many keys or matches for that."""
        is_bounded = self.shuffle is not None
        keys = work.keys.read_if_few() if is_bounded else work.keys.read_all()
        if keys is None:
            return None
        dataset = work.keys.open().dataset
        # Pieces in other processes read the keys themselves, which costs less than to send them to each.
        shared = keys if self.engine.shares_memory else None
        parts = split_fragments(dataset, self.engine.parallelism, split=False)
        texts = self.engine.run(parts, lambda part: work.match_fragments(part, shared, is_bounded=is_bounded))
        results = list(map(MatchResult.from_json, texts))
        tables = [result.matches for result in results if result.matches is not None]
        if len(tables) < len(results) or (is_bounded and sum(map(len, tables)) > MAX_SENT_MATCHES):
            return None
        matches = pa.concat_tables([match_schema().empty_table(), *tables])
        deleted = merge_changes(result.change for result in results)
        # Every row of the source goes into the table, and if it matches at most one row also exactly once: then its
        # files are used unchanged.
        is_plain = self.rules.updates and self.rules.inserts and not dataset.has_stable_row_ids
        if is_plain and len(matches.column(SOURCE).unique()) == len(matches):
            return deleted, list(self.source.select_all(matches.column(SOURCE).to_numpy()))
        return deleted, self._select_rows(matches, work)

    def _select_rows(self, matches: pa.Table, work: MergeTasks) -> list[SelectedRows]:
        """Choose the rows of the source that go into the table."""
        if not self.rules.writes:
            return []
        if self.shuffle is not None:
            return self.shuffle.select(matches, work)
        pieces = pc.shift_right(matches.column(SOURCE), pa.scalar(OFFSET_BITS, pa.int64()))
        by_piece = matches.select([SOURCE, ROW]).add_column(0, PIECE, pieces).sort_by(PIECE)
        groups = [by_piece.filter(pc.field(PIECE) == number) for number in pc.unique(pieces).to_pylist()]
        texts = self.engine.run(groups, lambda group: work.select_rows(iter(group.to_batches())))
        return self.source.add_unmatched(map(SelectedRows.from_json, texts), self.rules)


@dataclass(frozen=True, slots=True)
class MergeTasks:
    """The work of the pieces of a merge; sent to other processes."""

    keys: MergeKeys
    rules: MergeRules
    layout: FileLayout

    def match_fragments(
        self, parts: Sequence[FragmentRange], keys: pa.Table | None, *, is_bounded: bool = True
    ) -> list[str]:
        """Match fragments with keys that fit into memory, and delete the rows that are replaced or removed.

        Args:
            parts: the fragments.
            keys: keys of the rows to merge; None to read them.
            is_bounded: whether too many matches are left out of the result.
        """
        opened, few = self.keys.open(), self.keys.read_if_few() if keys is None else keys
        assert few is not None
        result = merge_small_source(
            opened.table, opened.dataset, parts, few, self.keys.source.on, self.rules, is_bounded=is_bounded
        )
        if result.change:
            self.keys.job.record_written(result.change.files)
        return [result.to_json()]

    def delete_matched(self, batches: Batches) -> list[str]:
        """Delete rows of the table, fragment by fragment. Batches have the fragment and the address of each row."""
        opened, changes = self.keys.open(), list[RowChange]()
        try:
            for _, rows in group_runs(batches):
                changes.append(
                    delete_rows(opened.table, opened.dataset, offsets_by_fragment(rows.column(TARGET).chunks))
                )
        finally:
            if changes:
                self.keys.job.record_written(merge_changes(changes).files)
        return [change.to_json() for change in changes]

    def select_rows(self, batches: Batches) -> list[str]:
        """Choose rows of the source, piece by piece. Batches have the piece, and the addresses and ids of matches."""
        opened = self.keys.open()
        choice = RowSelector(
            opened.table,
            opened.dataset,
            self.keys.source,
            opened.rows,
            self.rules,
            lambda rows: self.keys.job.write(rows, "append", self.layout),
        )
        return [
            choice.select(number, rows.column(SOURCE).to_numpy(), rows.column(ROW).to_numpy()).to_json()
            for number, rows in group_runs(batches)
        ]


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """The table and the rows to merge, opened in one process."""

    table: TableRef
    dataset: Any
    rows: Any


@dataclass(frozen=True, slots=True)
class MergeKeys:
    """The keys of a version of a table, and of the rows to merge; sent to other processes."""

    job: Job
    source: MergeSource
    pinned: PinnedVersion | None
    """None if the table has no version yet."""

    def open(self) -> MergeInputs:
        """Open the table and the rows to merge in this process."""
        table, dataset = (self.job.to_ref(), None) if self.pinned is None else self.pinned.open()
        return MergeInputs(table, dataset, self.source.open(table, self.job.write_location(), dataset))

    def read_table_keys(self, parts: Sequence[FragmentRange]) -> Batches:
        """Yield the keys of some fragments of the table."""
        opened = self.open()
        return read_keys(opened.table, opened.dataset, parts, self.source.on)

    def read_source_keys(self, parts: Sequence[FragmentRange]) -> Batches:
        """Yield the keys of some pieces of the rows to merge."""
        opened = self.open()
        return read_keys(opened.table, opened.rows, parts, self.source.on)

    def read_all(self) -> pa.Table:
        """Return all keys of the rows to merge."""
        parts = [FragmentRange(number) for number in range(len(self.source.pieces))]
        return pa.Table.from_batches(list(self.read_source_keys(parts)), self.schema())

    def read_if_few(self) -> pa.Table | None:
        """Return all keys of the rows to merge; None if they are too many to hold in memory."""
        if sum(self.source.rows) > FEW_ROWS:
            return None
        batches, size = list[pa.RecordBatch](), 0
        for batch in self.read_source_keys([FragmentRange(number) for number in range(len(self.source.pieces))]):
            batches.append(batch)
            size += batch.nbytes
            if size > FEW_BYTES:
                return None
        return pa.Table.from_batches(batches, self.schema())

    def schema(self) -> pa.Schema:
        """Return the schema of the keys."""
        return key_schema(self.open().rows.schema, self.source.on)
