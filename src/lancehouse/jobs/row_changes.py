"""Delete and update rows of a table: pieces change whole fragments, and all changes are one commit.

`delete` and `update` find rows by a condition. `update_columns` finds them by key, sets columns to values that others
bring, and writes only the files of these columns. The rows count as changed, so that what is computed from them is
filled again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol, Self

import lance
import numpy as np
import pyarrow as pa
from lance_namespace.errors import InternalError, InvalidInputError

from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.column_filling import attach_file, find_own_ids, make_empty_companions
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import ChangeResult, Job, WriteOptions, find_version_of_same_run
from lancehouse.jobs.merge import KeyShuffle, MergeInputs, MergeKeys, RowsToMerge, require_distinct_keys
from lancehouse.jobs.merge_keys import (
    SOURCE,
    TARGET,
    Batches,
    MergeSource,
    check_keys,
    group_runs,
    match_keys,
    read_keys,
)
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import (
    ColumnsChangedError,
    FileLayout,
    NewFragment,
    commit,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import OFFSET, OFFSET_BITS
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.row_changes import (
    ColumnUpdate,
    RowChange,
    commit_deletion,
    commit_rewrite,
    delete_where,
    merge_changes,
    retry_conflicts,
)
from lancehouse.lake.scans import FragmentRange, Scan, split_fragments
from lancehouse.schema.definitions import COMPANION, definitions
from lancehouse.schema.walk import require_columns


def delete(engine: Engine, address: TableAddress, where: str, how: WriteOptions) -> ChangeResult:
    """Delete the rows that match a condition.

    Raises:
        TableNotFoundError: there is no such table.
        InvalidInputError: the condition is missing or invalid.
        ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
    """
    if not where.strip():
        raise InvalidInputError("delete needs a condition; `true` deletes all rows")
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return ChangeResult(existing_version)

    def attempt() -> ChangeResult:
        pinned = PinnedVersion.resolve(address)
        table, dataset = pinned.open()
        Scan(columns=(), filter=where, with_row_address=True).schema(table, dataset)
        job, used = Job(address), list[NewFragment]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = delete_where(table, dataset, [part.fragment for part in parts], where)
            if change:
                job.record_written(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(engine, pinned, work)
            used += change.files
            version = commit_deletion(table, locate_table(table), dataset, change, where, how.properties)
        return ChangeResult(version, deleted=change.rows)

    return retry_conflicts(address, attempt)


def update(
    engine: Engine, address: TableAddress, set: Mapping[str, str], where: str | None, how: WriteOptions
) -> ChangeResult:
    """Set columns to SQL expressions, in the rows that match or in all.

    Raises:
        TableNotFoundError: there is no such table.
        TableColumnNotFoundError: there is no such column.
        TableSchemaValidationError: the type of an expression does not fit its column.
        InvalidInputError: an expression or the condition is invalid, or a value does not fit its column.
        ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
    """
    if (existing_version := find_version_of_same_run(address.to_ref(), how)) is not None:
        return ChangeResult(existing_version)
    setting = ColumnUpdate(dict(set), where)

    def attempt() -> ChangeResult:
        pinned = PinnedVersion.resolve(address)
        table, dataset = pinned.open()
        setting.check(table, dataset)
        job, used = Job(address), list[NewFragment]()

        def work(parts: list[FragmentRange]) -> list[str]:
            table, dataset = pinned.open()
            change = setting.update(
                table, dataset, [part.fragment for part in parts], lambda rows: job.write(rows, "append", how.layout)
            )
            if change:
                job.record_written(change.files)
            return [change.to_json()]

        with job.clean_up_after(used):
            change = _run_change(engine, pinned, work)
            used += change.files
            version = commit_rewrite(table, locate_table(table), dataset, change, setting.expressions, how.properties)
        return ChangeResult(version, updated=change.rows)

    return retry_conflicts(address, attempt)


def _run_change(engine: Engine, pinned: PinnedVersion, work: Callable[[list[FragmentRange]], list[str]]) -> RowChange:
    """Run the work on all fragments of a version, and merge the changes that the pieces report."""
    _, dataset = pinned.open()
    parts = split_fragments(dataset, engine.parallelism, split=False)
    return merge_changes(map(RowChange.from_json, engine.run(parts, work)))


# Columns by key: pieces match the keys of whole fragments, and write a new file for each in which a row matches

BATCH_ROWS = 8192
"""Rows of a fragment that are held in memory at once, with their new values."""
SMALL_CONTAINER = 4096
"""Most values that a Roaring bitmap lists one by one, of each 65,536."""


@dataclass(frozen=True, slots=True)
class ColumnUpdateResult:
    """What was updated."""

    version: int
    """The version that this made, or the latest one if no key was found."""
    updated: int = 0
    """Rows of the table that have new values."""
    unmatched: int = 0
    """Rows that were brought, and whose key is null or not in the table."""


class MatchShuffle(KeyShuffle, Protocol):
    """Brings keys together that are too many for the memory of one process."""

    def run_on_matches(self, keys: MergeKeys, work: Callable[[Batches], list[str]]) -> tuple[list[str], int]:
        """Call `work` with the matches of whole fragments: number of the fragment, addresses of both rows.

        Returns:
            The texts that it made, and how many rows of the source match.
        """


def update_columns(
    engine: Engine,
    address: TableAddress,
    rows: RowsToMerge,
    on: Sequence[str],
    how: WriteOptions,
    shuffle: MatchShuffle | None = None,
) -> ColumnUpdateResult:
    """Set the columns that `rows` has in the rows of the table with the same key.

    Args:
        engine: runs the pieces.
        address: address of the table.
        rows: the values, each key once.
        on: the columns that are the key. A key that is null matches nothing.
        how: `run` names the run.
        shuffle: matches keys that do not fit into memory; not needed if pieces share the memory of this process.

    Raises:
        TableColumnNotFoundError: the table or the source has no such column.
        InvalidInputError: a column is computed or has blobs, keys cannot be compared, or two rows have the same key.
        TableSchemaValidationError: values do not fit their column.
        ConcurrentModificationError: other writers kept changing the same rows, or changed the columns.
    """
    table, keys = address.to_ref(), tuple(on)
    if (existing_version := find_version_of_same_run(table, how)) is not None:
        return ColumnUpdateResult(existing_version)
    pinned = PinnedVersion.resolve(address)
    _, dataset = pinned.open()
    check_keys(address, dataset.schema, keys)
    rows = rows.prepare(keys, dataset.schema)
    names = tuple(name for name in rows.columns if name not in keys)
    _check_columns(address, dataset.schema, rows.label, names)
    schema = pa.schema([dataset.schema.field(name) for name in (*keys, *names)])
    job = Job(address)
    with job.clean_up_after([]):  # nothing of what is brought goes into the table as it is
        source = MergeSource(tuple(rows.write(job, schema, "overwrite", how.layout)), keys, schema)
        require_distinct_keys(rows, MergeKeys(job, source, pinned), shuffle)
        update = _ColumnUpdate(engine, address, source, names, how, shuffle)
        return retry_conflicts(address, update.attempt)


def _check_columns(address: TableAddress, schema: pa.Schema, label: str, names: Sequence[str]) -> None:
    if not names:
        raise InvalidInputError(f"{label} has no column besides the key: there is nothing to update")
    require_columns(address, names, schema.names)
    for name in names:
        if name in definitions(schema) or name.startswith(COMPANION):
            raise InvalidInputError(f"column {name} is computed: its values come from its function; leave it out")
        if has_blobs(schema.field(name)):
            raise InvalidInputError(f"column {name} has blobs, which are not updated in place; merge whole rows")


@dataclass(frozen=True, slots=True)
class _ColumnUpdate:
    """Updates columns by values that are written already, in the latest version of a table."""

    engine: Engine
    address: TableAddress
    source: MergeSource
    names: tuple[str, ...]
    how: WriteOptions
    shuffle: MatchShuffle | None

    def attempt(self) -> ColumnUpdateResult:
        """Try to update once."""
        pinned = PinnedVersion.resolve(self.address)
        table, dataset = pinned.open()
        assert self.source.schema is not None
        if any(field not in list(dataset.schema) for field in self.source.schema):
            raise ColumnsChangedError(f"{self.address}: its columns have changed meanwhile; run it again")
        # A job of this attempt alone: its files are useless to the next one, and go with it.
        job, written = Job(self.address), list[NewFragment]()
        tasks = ColumnUpdateTasks(
            MergeKeys(job, self.source, pinned), self.names, _find_stale_companions(dataset, self.names)
        )
        with job.clean_up_after(written):
            updated, matched = self._match_in_memory(tasks) or self._match_by_shuffle(tasks)
            written += [update.piece for update in updated]
            unmatched = sum(self.source.rows) - matched
            if not updated:
                return ColumnUpdateResult(pinned.version, 0, unmatched)
            version = commit(
                table, locate_table(table), tasks.to_operation(dataset, updated), pinned.version, self.how.properties
            )
        return ColumnUpdateResult(version, sum(update.rows for update in updated), unmatched)

    def _match_in_memory(self, tasks: ColumnUpdateTasks) -> tuple[list[UpdatedFragment], int] | None:
        """Match keys and write files in the same pieces; return None if there are too many keys for that."""
        keys = tasks.keys.read_if_few() if self.shuffle is not None else tasks.keys.read_all()
        if keys is None:
            return None
        # Pieces in other processes read the keys themselves, which costs less than to send them to each.
        shared = keys if self.engine.shares_memory else None
        parts = split_fragments(tasks.keys.open().dataset, self.engine.parallelism, split=False)
        texts = self.engine.run(parts, lambda part: tasks.update_fragments(part, shared))
        is_matched = np.zeros(sum(self.source.rows), bool)
        updated = []
        for text in texts:
            match json.loads(text):
                case str(packed):
                    is_matched |= _unpack_bits(packed, len(is_matched))
                case fields:
                    updated.append(UpdatedFragment(*fields))
        return updated, int(is_matched.sum())

    def _match_by_shuffle(self, tasks: ColumnUpdateTasks) -> tuple[list[UpdatedFragment], int]:
        assert self.shuffle is not None
        texts, matched = self.shuffle.run_on_matches(tasks.keys, tasks.update_matched)
        return list(map(UpdatedFragment.from_json, texts)), matched


def _find_stale_companions(dataset: lance.LanceDataset, names: Sequence[str]) -> tuple[str, ...]:
    """Return the companions that must say of changed rows that nobody has filled them.

    With stable row ids, Lance keeps by which version a row was changed, and fills see that.
    """
    if dataset.has_stable_row_ids:
        return ()
    changed = {field.id() for field in dataset.lance_schema.fields() if field.name() in names}
    return tuple(
        definition.companion
        for definition in definitions(dataset.schema).values()
        if not changed.isdisjoint(number for number, _ in definition.inputs)
        if definition.companion in dataset.schema.names
    )


@dataclass(frozen=True, slots=True)
class UpdatedFragment:
    """A file with all values of some columns of a fragment, which no version references yet."""

    fragment: int
    piece: NewFragment
    rows: int
    offsets: str
    """Positions of the rows that have new values, as a Roaring bitmap."""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(astuple(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        return cls(*json.loads(text))


@dataclass(frozen=True, slots=True)
class ColumnUpdateTasks:
    """The work of the pieces of an update; sent to other processes."""

    keys: MergeKeys
    names: tuple[str, ...]
    companions: tuple[str, ...]
    """Companions of computed columns that become those of rows which nobody has filled."""

    def update_fragments(self, parts: Sequence[FragmentRange], keys: pa.Table | None) -> Iterator[str]:
        """Match fragments with keys that fit into memory, and write a file for each in which a row matches.

        Yields:
            Each file, and at last, as bits, which rows of the source match.
        """
        opened, few = self.keys.open(), self.keys.read_if_few() if keys is None else keys
        assert few is not None
        batches = read_keys(opened.table, opened.dataset, parts, self.keys.source.on)
        matches = match_keys(pa.RecordBatchReader.from_batches(few.schema, batches), few, every=False)
        targets, sources = (matches.column(name).to_numpy() for name in (TARGET, SOURCE))
        for fragment in np.unique(targets >> OFFSET_BITS):
            chosen = targets >> OFFSET_BITS == fragment
            yield self._update(opened, int(fragment), targets[chosen], sources[chosen]).to_json()
        # As bits over all rows of the source, one piece after the other: several fragments may match the same row.
        counts = self.keys.source.rows
        is_matched = np.zeros(sum(counts), bool)
        firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        is_matched[firsts[sources >> OFFSET_BITS] + (sources & OFFSET)] = True
        yield json.dumps(_pack_bits(is_matched))

    def update_matched(self, batches: Batches) -> list[str]:
        """Write files by matches, fragment by fragment. Batches have the fragment and the addresses of both rows."""
        opened = self.keys.open()
        return [
            self._update(opened, fragment, *(rows.column(name).to_numpy() for name in (TARGET, SOURCE))).to_json()
            for fragment, rows in group_runs(batches)
        ]

    def to_operation(self, dataset: lance.LanceDataset, updated: Sequence[UpdatedFragment]) -> Any:
        """Return the change of a version that gives fragments their new files."""
        ids = find_own_ids(dataset, self._columns)
        offsets = {update.fragment: base64.b64decode(update.offsets) for update in updated}
        return lance.LanceOperation.Update(
            removed_fragment_ids=[],
            updated_fragments=[
                attach_file(dataset.get_fragment(update.fragment).metadata, ids, update.piece) for update in updated
            ],
            new_fragments=[],
            fields_modified=sorted(ids.values()),
            # Without an update of rows, which Lance knows by stable ids alone, offsets are refused.
            update_mode="rewrite_columns" if dataset.has_stable_row_ids else "",
            updated_fragment_offsets=offsets if dataset.has_stable_row_ids else None,
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*self.names, *self.companions)

    def _update(self, opened: MergeInputs, fragment: int, targets: Any, sources: Any) -> UpdatedFragment:
        """Write the columns of a fragment, with new values where its rows match."""
        order = np.argsort(targets)
        offsets, sources = targets[order] & OFFSET, sources[order]
        schema = pa.schema([opened.dataset.schema.field(name) for name in self._columns])
        rows = opened.dataset.get_fragment(fragment).physical_rows
        with translate_errors(opened.table, opened.table.storage_options):
            batches = self._overlay(opened, fragment, schema, offsets, sources)
            # As if it were a table of its own: appending these columns alone is refused where others are not nullable.
            layout = FileLayout(max_rows_per_file=rows, data_storage_version=opened.dataset.data_storage_version)
            reader = pa.RecordBatchReader.from_batches(schema, batches)
            at = self.keys.job.write_location()
            [piece] = write_uncommitted(opened.table, at, reader, mode="overwrite", layout=layout)
        self.keys.job.record_written([piece])
        if (written := parse_new_fragments([piece])[0].physical_rows) != rows:
            raise InternalError(f"{opened.table}: of {rows} values {written} were written")
        return UpdatedFragment(fragment, piece, len(offsets), base64.b64encode(to_roaring_bitmap(offsets)).decode())

    def _overlay(
        self, opened: MergeInputs, fragment: int, schema: pa.Schema, offsets: Any, sources: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of all rows of a fragment, deleted ones included, with new values in their places."""
        scanner = opened.dataset.get_fragment(fragment).scanner(
            columns=list(schema.names),
            batch_size=BATCH_ROWS,
            with_row_id=True,  # Lance includes deleted rows only with their ids, which are null
            include_deleted_rows=True,
        )
        position = 0
        for batch in scanner.to_batches():
            old = pa.Table.from_batches([batch.select(schema.names)]).cast(schema)
            first, last = np.searchsorted(offsets, [position, position + len(old)])
            new = self._take(opened.rows, sources[first:last], schema)
            places = np.arange(len(old))
            places[offsets[first:last] - position] = np.arange(len(old), len(old) + last - first)
            yield from pa.concat_tables([old, new]).combine_chunks().take(places).combine_chunks().to_batches()
            position += len(old)

    def _take(self, rows: lance.LanceDataset, addresses: Any, schema: pa.Schema) -> pa.Table:
        """Return the values that rows of the source bring, in the order of their addresses."""
        wanted, places = np.unique(addresses, return_inverse=True)
        names = list(self.names)
        parts = [
            rows.get_fragment(int(piece)).take(
                (wanted[wanted >> OFFSET_BITS == piece] & OFFSET).tolist(), columns=names
            )
            for piece in np.unique(wanted >> OFFSET_BITS)
        ]
        own = pa.schema([schema.field(name) for name in names])
        values = pa.concat_tables([own.empty_table(), *(part.select(names).cast(own) for part in parts)]).take(places)
        for name in self.companions:
            values = values.append_column(schema.field(name), make_empty_companions(len(addresses)))
        return values


def _pack_bits(bits: Any) -> str:
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes())).decode()


def _unpack_bits(text: str, count: int) -> Any:
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(packed, count=count).astype(bool)


def to_roaring_bitmap(numbers: Any) -> bytes:
    """Return sorted numbers below 2**32 in the portable format of Roaring bitmaps, without runs."""
    uppers, starts = np.unique(numbers >> 16, return_index=True)
    parts = np.split((numbers & 0xFFFF).astype("<u2"), starts[1:])
    head = np.array([[upper, len(part) - 1] for upper, part in zip(uppers, parts, strict=True)], "<u2")
    bodies = [part.tobytes() if len(part) <= SMALL_CONTAINER else _to_bits(part) for part in parts]
    # The number is the format's cookie for bitmaps without runs. Keys, offsets and containers follow.
    begin = np.array([12346, len(parts)], "<u4").tobytes() + head.tobytes()
    places = len(begin) + 4 * len(parts) + np.cumsum([0, *map(len, bodies[:-1])])
    return begin + places.astype("<u4").tobytes() + b"".join(bodies)


def _to_bits(part: Any) -> bytes:
    bits = np.zeros(1 << 16, np.uint8)
    bits[part] = 1
    return np.packbits(bits, bitorder="little").tobytes()
