"""Keys of a merge: read and compare them in Arrow, delete the rows that match, choose those to write."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import (
    InvalidInputError,
)
from pyarrow import acero

from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.commits import NewFragment, TableLocation, parse_new_fragments
from lancehouse.lake.dataset import OFFSET, OFFSET_BITS, TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.row_changes import (
    ADDRESS,
    ROW,
    FragmentWriter,
    RowChange,
    assign_row_ids,
    cast_to_table,
    delete_rows,
    offsets_by_fragment,
)
from lancehouse.lake.scans import FragmentRange, Scan
from lancehouse.schema.walk import require_columns

Batches = Iterator[pa.RecordBatch]

TARGET, SOURCE = "target", "source"
"""Names of the columns with the address of a row of the table, and of the row that is merged into it."""

PIECE = "piece"
"""Name of the column with the number of a piece of the source."""

MAX_SENT_MATCHES = 1 << 20
"""A task that finds more matches than this does not send them to the driver."""

WHEN_MATCHED = ("update", "ignore", "delete")
WHEN_NOT_MATCHED = ("insert", "ignore")

EXTERNAL_BASE_ID = 1
"""Id of the base path that stands for the table's location in a dataset that only reads files from there."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What to do with rows whose key is in both the table and the source, and with those whose key is in only one."""

    when_matched: str = "update"
    when_not_matched: str = "insert"
    delete_by_source: bool = False

    def __post_init__(self) -> None:
        for what, allowed in (("when_matched", WHEN_MATCHED), ("when_not_matched", WHEN_NOT_MATCHED)):
            if (value := getattr(self, what)) not in allowed:
                raise InvalidInputError(f"{what} {value!r} is not known; it is one of {', '.join(allowed)}")
        if not (self.writes or self.deletes):
            raise InvalidInputError("this merge does nothing: it ignores what matches and what does not")

    @property
    def updates(self) -> bool:
        """Whether rows of the source replace rows of the table that have the same key."""
        return self.when_matched == "update"

    @property
    def inserts(self) -> bool:
        """Whether rows of the source whose key is new are added."""
        return self.when_not_matched == "insert"

    @property
    def writes(self) -> bool:
        """Whether rows of the source are written to the table; if not, only their keys are needed."""
        return self.updates or self.inserts

    @property
    def deletes(self) -> bool:
        """Whether rows of the table are deleted; an update deletes the old row."""
        return self.when_matched != "ignore" or self.delete_by_source


# Keys


def check_keys(table: object, schema: pa.Schema, on: Sequence[str]) -> None:
    """Check that rows can be matched by these columns of a table.

    Raises:
        TableColumnNotFoundError: the table has no column of that name.
        InvalidInputError: no column is given, one is given twice, or its values cannot be compared.
    """
    if not on or len(set(on)) < len(on):
        raise InvalidInputError("on: name the columns that are the key, each once")
    require_columns(table, on, schema.names)
    for name in on:
        if has_blobs(schema.field(name)) or _find_comparison(schema.field(name).type) is None:
            raise InvalidInputError(
                f"column {name} cannot be a key: values of type {schema.field(name).type} are not compared"
            )


def key_schema(schema: pa.Schema, on: Sequence[str]) -> pa.Schema:
    """Return the schema of what `read_keys` yields: integers or bytes that are equal exactly where the keys are."""
    keys = [(f"k{place}", _find_comparison(schema.field(name).type)) for place, name in enumerate(on)]
    columns = [(name, comparison[0]) for name, comparison in keys if comparison is not None]
    return pa.schema([*columns, (ADDRESS, pa.int64()), (ROW, pa.int64())])


def read_keys(
    table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange], on: Sequence[str]
) -> Batches:
    """Yield the keys of some rows, with their addresses and row ids; no other column is read."""
    schema = key_schema(dataset.schema, on)
    scan = Scan(tuple(on), with_row_id=True, with_row_address=True)
    for batch in scan.batches(table, dataset, parts):
        keys = [_to_comparable(batch.column(name)) for name in on]
        places = [batch.column(name).view(pa.int64()) for name in (ADDRESS, ROW)]
        yield pa.RecordBatch.from_arrays([*keys, *places], schema=schema)


Comparison = tuple[pa.DataType, Callable[[Any], Any]]


def _find_comparison(dtype: Any) -> Comparison | None:
    """Return the type in which values are compared and the function that converts them, or None if they cannot be."""
    if isinstance(dtype, pa.BaseExtensionType):
        is_uuid = isinstance(dtype, pa.UuidType)
        return (pa.binary(), lambda array: array.storage.cast(pa.binary())) if is_uuid else None
    if dtype in _NUMBERS:
        return pa.int64(), _NUMBERS[dtype]
    match dtype:
        case pa.DictionaryType():
            comparison = _find_comparison(dtype.value_type)
            return (
                None if comparison is None else (comparison[0], lambda array: comparison[1](array.dictionary_decode()))
            )
        case pa.TimestampType() | pa.DurationType() | pa.Time64Type():
            return pa.int64(), lambda array: array.view(pa.int64())
        case pa.Time32Type():
            return pa.int64(), _NUMBERS[pa.date32()]
        case pa.Decimal128Type() | pa.Decimal256Type():
            return pa.binary(), lambda array: array.view(pa.binary(dtype.byte_width)).cast(pa.binary())
        case pa.FixedSizeBinaryType():
            return pa.binary(), lambda array: array.cast(pa.binary())
    return (pa.binary(), lambda array: array.cast(pa.binary())) if dtype in _TEXTS else None


def _to_comparable(array: Any) -> Any:
    comparison = _find_comparison(array.type)
    assert comparison is not None
    return comparison[1](array)


def _float_bits(array: Any) -> Any:
    """Return the bits of floats as integers. As in Spark, -0.0 equals 0.0, and NaN equals NaN."""
    numbers = array.cast(pa.float64())
    # Adding 0.0 turns -0.0 into 0.0; `np.where` gives every NaN the same bits.
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return pa.array(bits, mask=numbers.is_null().to_numpy(zero_copy_only=False))


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.bool_())
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_NUMBERS: MappingProxyType[Any, Callable[[Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(_INTEGERS, lambda array: array.cast(pa.int64())),
        **dict.fromkeys((pa.uint64(), pa.date64()), lambda array: array.view(pa.int64())),
        **dict.fromkeys((pa.float16(), pa.float32(), pa.float64()), _float_bits),
        pa.date32(): lambda array: array.view(pa.int32()).cast(pa.int64()),
    }
)


# The source: rows that are written but not committed


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Rows to merge, in files that no version references; can be sent to other processes."""

    pieces: tuple[NewFragment, ...]
    on: tuple[str, ...]
    schema: pa.Schema | None = None
    """Schema of the rows as written, if they do not have all columns of the table."""

    @property
    def rows(self) -> list[int]:
        """Number of rows of each piece."""
        return [int(json.loads(piece)["physical_rows"]) for piece in self.pieces]

    def select_all(self, matches: Any) -> Iterator[SelectedRows]:
        """Yield all pieces unchanged; each match, given by the address of its row, counts as one updated row."""
        updated = np.bincount(matches >> OFFSET_BITS, minlength=len(self.pieces))
        for number, (piece, rows) in enumerate(zip(self.pieces, self.rows, strict=True)):
            yield SelectedRows(number, piece, (), rows - int(updated[number]), int(updated[number]))

    def add_unmatched(self, selections: Iterable[SelectedRows], rules: MergeRules) -> list[SelectedRows]:
        """Add the pieces none of whose rows matches, which are inserted as a whole."""
        matched = list(selections)
        numbers = {selection.number for selection in matched}
        unmatched = self.select_all(np.array([], np.int64)) if rules.inserts else ()
        return [*matched, *(selection for selection in unmatched if selection.number not in numbers)]

    def open(self, table: TableRef, at: TableLocation, dataset: lance.LanceDataset | None) -> lance.LanceDataset:
        """Open the rows as a dataset in memory, on top of the files that hold them; each piece is a fragment."""
        schema = self.schema if dataset is None or self.schema is not None else dataset.lance_schema
        base = lance.DatasetBasePath(at.location, is_dataset_root=True, id=EXTERNAL_BASE_ID)
        operation = lance.LanceOperation.Overwrite(
            schema, parse_new_fragments(self._external_pieces()), initial_bases=[base]
        )
        with translate_errors(table, at.storage_options):
            return lance.LanceDataset.commit("memory://", operation, storage_options=dict(at.storage_options) or None)

    def _external_pieces(self) -> Iterator[NewFragment]:
        for piece in self.pieces:
            fragment = json.loads(piece)
            files = [{**file, "base_id": EXTERNAL_BASE_ID} for file in fragment["files"]]
            yield json.dumps({**fragment, "files": files})


def find_duplicate(keys: pa.Table) -> int | None:
    """Return the address of a row whose key another row has too, or None."""
    names = keys.schema.names[: keys.num_columns - 2]
    groups = keys.drop_null().group_by(names).aggregate([(ADDRESS, "count"), (ADDRESS, "min")])
    twice = groups.filter(pc.field(f"{ADDRESS}_count") > 1)
    return twice.column(f"{ADDRESS}_min")[0].as_py() if twice.num_rows else None


def find_latest(keys: pa.Table, order: pa.Table) -> Any:
    """Return the addresses, sorted, of the rows that are the latest of their key; of ties, all. A null key is no key.

    Args:
        keys: keys of the rows, with their addresses, as `read_keys` yields them.
        order: the columns that decide, for the same rows: the first that differs, null being the least.
    """
    names = keys.schema.names[: keys.num_columns - 2]
    columns: dict[str, Any] = {f"key {number}": keys.column(name) for number, name in enumerate(names)}
    is_key = set(columns)
    for number, column in enumerate(order.columns):
        if pa.types.is_floating(column.type):  # NaN is the greatest, as it is to Spark
            columns[f"nan {number}"] = pc.is_nan(column)
            column = pc.if_else(columns[f"nan {number}"], pa.scalar(None, column.type), column)
        columns[f"order {number}"] = column
    has_key = reduce(pc.and_, (pc.is_valid(column) for name, column in columns.items() if name in is_key))
    rows = pa.table({**columns, ADDRESS: keys.column(ADDRESS)})
    alone, rows = rows.filter(pc.invert(has_key)), rows.filter(has_key)
    sort_keys: Any = [(name, "ascending" if name in is_key else "descending") for name in columns]
    rows = rows.take(pc.sort_indices(rows, sort_keys=sort_keys))  # null at the end
    is_first = _differs_from_previous(rows, list(is_key))
    is_other = _differs_from_previous(rows, [name for name in columns if name not in is_key])
    steps = np.cumsum(is_other & ~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(steps)), 0)) if len(steps) else steps
    latest = rows.column(ADDRESS).to_numpy()[steps == steps[firsts]] if len(steps) else steps
    return np.sort(np.concatenate([alone.column(ADDRESS).to_numpy(), latest]))


def _differs_from_previous(rows: pa.Table, names: Sequence[str]) -> Any:
    """Return for each row whether one of the columns has another value than in the row before; true for the first."""
    differs = np.ones(len(rows), bool)
    differs[1:] = False
    for name in names:
        before, after = rows.column(name).slice(0, max(len(rows) - 1, 0)), rows.column(name).slice(1)
        is_other: Any = pc.coalesce(pc.not_equal(before, after), pa.scalar(False))
        is_null = pc.xor(pc.is_null(before), pc.is_null(after))
        differs[1:] |= is_other.to_numpy() | is_null.to_numpy()
    return differs


def format_key(table: TableRef, rows: lance.LanceDataset, on: Sequence[str], address: int) -> str:
    """Return the key of a row as text for an error message."""
    part = FragmentRange(address >> OFFSET_BITS, address & OFFSET, 1)
    [row] = pa.Table.from_batches(Scan(tuple(on)).batches(table, rows, [part])).to_pylist()
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


# Matching


def match_schema() -> pa.Schema:
    """Return the schema of matches.

    Its columns are the address of a row of the table, the address of the row to merge or null, and the id of the
    former.
    """
    return pa.schema([(TARGET, pa.int64()), (SOURCE, pa.int64()), (ROW, pa.int64())])


def match_keys(target: pa.RecordBatchReader, source: pa.Table, *, every: bool) -> pa.Table:
    """Join the keys of a table with those of a source that fits into memory.

    Args:
        target: keys of the table, as `read_keys` yields them.
        source: keys of the source, without duplicates.
        every: also return the rows of the table that match nothing, with null as their source.
    """
    names: list[Any] = source.schema.names[: source.num_columns - 2]
    nodes: Any = acero
    join = acero.HashJoinNodeOptions(
        "left outer" if every else "inner",
        left_keys=names,
        right_keys=names,
        left_output=[ADDRESS, ROW],
        right_output=[ADDRESS],
        output_suffix_for_left=TARGET,
        output_suffix_for_right=SOURCE,
    )
    inputs = [
        acero.Declaration("record_batch_reader_source", nodes.RecordBatchReaderSourceNodeOptions(target)),
        acero.Declaration("table_source", acero.TableSourceNodeOptions(source)),
    ]
    joined = acero.Declaration("hashjoin", join, inputs=inputs).to_table(use_threads=False)
    return pa.Table.from_arrays([joined.column(place) for place in (0, 2, 1)], schema=match_schema())


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The rows that a task has deleted, and the matches that it has found; can be converted to JSON."""

    change: RowChange
    matches: pa.Table | None
    """None: there are too many to send."""

    def to_json(self) -> str:
        """Return the result as JSON text."""
        if self.matches is None:
            return json.dumps([self.change.to_json(), None])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, match_schema()) as stream:
            stream.write_table(self.matches)
        return json.dumps([self.change.to_json(), base64.b64encode(sink.getvalue()).decode()])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        change, stream = json.loads(text)
        if stream is None:
            return cls(RowChange.from_json(change), None)
        with pa.ipc.open_stream(base64.b64decode(stream)) as reader:
            return cls(RowChange.from_json(change), reader.read_all())


def merge_small_source(
    table: TableRef,
    dataset: lance.LanceDataset,
    parts: Sequence[FragmentRange],
    source: pa.Table,
    on: Sequence[str],
    rules: MergeRules,
    *,
    is_bounded: bool = True,
) -> MatchResult:
    """Match whole fragments with a source that fits into memory, and delete the rows that are to go.

    Args:
        table: the table to change.
        dataset: the version of it that is read.
        parts: the fragments to match.
        source: keys of the rows to merge.
        on: the columns that are the key.
        rules: what to do with matched and unmatched rows.
        is_bounded: whether matches are left out of the result if they are too many to send.
    """
    target = pa.RecordBatchReader.from_batches(source.schema, read_keys(table, dataset, parts, on))
    matches = match_keys(target, source, every=rules.delete_by_source)
    has_source = pc.is_valid(matches.column(SOURCE))
    deletions = matches if rules.when_matched != "ignore" else matches.filter(pc.invert(has_source))
    change = (
        delete_rows(table, dataset, offsets_by_fragment(deletions.column(TARGET).chunks))
        if rules.deletes
        else RowChange()
    )
    pairs = matches.filter(has_source) if rules.writes else matches.slice(0, 0)
    return MatchResult(change, pairs if len(pairs) <= MAX_SENT_MATCHES or not is_bounded else None)


def group_runs(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """Yield runs of consecutive rows that have the same number in the first column."""

    def split() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in filter(len, batches):
            numbers = batch.column(0).to_numpy()
            ends = np.flatnonzero(np.diff(numbers, append=-1))
            for first, last in zip((0, *(ends[:-1] + 1)), ends, strict=True):
                yield int(numbers[first]), batch.slice(first, last - first + 1)

    for number, parts in groupby(split(), key=itemgetter(0)):
        yield number, pa.Table.from_batches([part for _, part in parts])


# Choosing the rows to write


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """What of a piece of the source goes into the table; can be converted to JSON."""

    number: int
    reused: NewFragment | None = None
    """The piece as it goes into the table, if all of its rows do; None otherwise."""
    new: tuple[NewFragment, ...] = ()
    """Pieces with rows of it that were written again."""
    inserted: int = 0
    updated: int = 0

    def to_json(self) -> str:
        """Return the selection as JSON text."""
        return json.dumps([self.number, self.reused, self.new, self.inserted, self.updated])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        number, reused, new, inserted, updated = json.loads(text)
        return cls(number, reused, tuple(new), inserted, updated)


@dataclass(frozen=True, slots=True)
class RowSelector:
    """Chooses from each piece of a source the rows that go into a table."""

    table: TableRef
    dataset: lance.LanceDataset
    source: MergeSource
    rows: lance.LanceDataset
    """The source, opened as a dataset."""
    rules: MergeRules
    write: FragmentWriter

    def select(self, number: int, addresses: Any, row_ids: Any) -> SelectedRows:
        """Choose the rows of a piece that are inserted or replace others.

        A row that has the key of several rows of the table replaces each of them.

        Args:
            number: index of the piece in the source.
            addresses: addresses of its rows that match a row of the table, one for each match.
            row_ids: ids of the matched rows of the table, in the same order.
        """
        piece, size = self.source.pieces[number], self.source.rows[number]
        offsets = addresses & OFFSET
        matches = np.bincount(offsets, minlength=size)
        updated = matches if self.rules.updates else np.zeros_like(matches)
        inserted = (matches == 0).astype(np.int64) if self.rules.inserts else np.zeros_like(matches)
        ids = row_ids[np.argsort(offsets, kind="stable")]
        if self.dataset.has_stable_row_ids and updated.any():
            reused, new = self._select_with_ids(piece, number, updated, inserted, ids)
        else:
            reused, new = self._select_without_ids(piece, number, updated + inserted)
        return SelectedRows(number, reused, tuple(new), int(inserted.sum()), int(updated.sum()))

    def _select_without_ids(
        self, piece: NewFragment, number: int, wanted: Any
    ) -> tuple[NewFragment | None, list[NewFragment]]:
        if wanted.all():
            return piece, self._rewrite(number, wanted - 1)
        return None, self._rewrite(number, wanted)

    def _select_with_ids(
        self, piece: NewFragment, number: int, moved: Any, inserted: Any, ids: Any
    ) -> tuple[NewFragment | None, list[NewFragment]]:
        """Choose rows of a table with stable row ids; updated rows keep the id of the row that they replace.

        Rows that have an id already come first in a new piece, as Lance expects.
        """
        row_ids = pa.array(ids, pa.uint64())
        first = moved[: len(ids)]
        if (first == 1).all() and (moved + inserted == 1).all():
            [reused] = assign_row_ids([piece], row_ids)
            return reused, []
        return None, assign_row_ids(self._rewrite(number, moved, inserted), row_ids)

    def _rewrite(self, number: int, *counts: Any) -> list[NewFragment]:
        """Write rows of a piece again, each as often as its count says."""
        if not any(count.any() for count in counts):
            return []
        batches = chain.from_iterable(self._take_rows(number, count) for count in counts if count.any())
        return self.write(pa.RecordBatchReader.from_batches(self.dataset.schema, batches))

    def _take_rows(self, number: int, counts: Any) -> Batches:
        first = 0
        everything = Scan(tuple(self.rows.schema.names))
        for batch in everything.batches(self.table, self.rows, [FragmentRange(number)]):
            rows = np.repeat(np.arange(batch.num_rows), counts[first : first + batch.num_rows])
            first += batch.num_rows
            if len(rows):
                yield cast_to_table(batch.take(rows), self.dataset.schema)
