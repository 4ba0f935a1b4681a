"""Rows merged into a table by their keys: keys are compared in Arrow, and rows chosen that are not committed yet."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError
from pyarrow import acero

from lancehouse.lake.chunked_fragment import has_blobs
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.fragments import Piece, TableLocation, parse_pieces
from lancehouse.lake.row_changes import (
    ADDRESS,
    ROW,
    PieceWriter,
    RowChange,
    assign_row_ids,
    cast_to_table,
    delete_rows,
    offsets_by_fragment,
)
from lancehouse.lake.scans import FragmentRange, Scan

Batches = Iterator[pa.RecordBatch]

TARGET, SOURCE = "target", "source"
"""Addresses: of a row of the table, and of the row that is merged into it."""

MAX_SENT_MATCHES = 1 << 20
"""Matches that a task does not send any more."""

WHEN_MATCHED = ("update", "ignore", "delete")
WHEN_NOT_MATCHED = ("insert", "ignore")

EXTERNAL_BASE_ID = 1
"""The number of the place of files that belong to a table, for one that only reads them."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What becomes of rows that have the key of another, and of those that have not."""

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
        """Whether rows of the source take the place of others."""
        return self.when_matched == "update"

    @property
    def inserts(self) -> bool:
        """Whether rows of the source are added."""
        return self.when_not_matched == "insert"

    @property
    def writes(self) -> bool:
        """Whether rows of the source go into the table at all, and not only their keys are needed."""
        return self.updates or self.inserts

    @property
    def deletes(self) -> bool:
        """Whether rows of the table go."""
        return self.when_matched != "ignore" or self.delete_by_source


# Keys


def check_keys(table: object, schema: pa.Schema, on: Sequence[str]) -> None:
    """See that rows can be matched by these columns of a table.

    Raises:
        TableColumnNotFoundError: it has none of that name.
        InvalidInputError: none or one twice, or its values cannot be compared.
    """
    if not on or len(set(on)) < len(on):
        raise InvalidInputError("merge needs `on`: the columns that are the key, each once")
    for name in on:
        if name not in schema.names:
            raise TableColumnNotFoundError(f"{table} has no column {name}; it has {', '.join(schema.names)}")
        if has_blobs(schema.field(name)) or _find_comparison(schema.field(name).type) is None:
            raise InvalidInputError(
                f"column {name} cannot be a key: values of type {schema.field(name).type} are not compared"
            )


def key_schema(schema: pa.Schema, on: Sequence[str]) -> pa.Schema:
    """What `read_keys` gives: numbers or bytes that are equal where the keys are."""
    keys = [(f"k{place}", _find_comparison(schema.field(name).type)) for place, name in enumerate(on)]
    columns = [(name, found[0]) for name, found in keys if found is not None]
    return pa.schema([*columns, (ADDRESS, pa.int64()), (ROW, pa.int64())])


def read_keys(
    table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange], on: Sequence[str]
) -> Batches:
    """The keys of some rows and their addresses; no other column is read."""
    schema = key_schema(dataset.schema, on)
    scan = Scan(tuple(on), with_row_id=True, with_row_address=True)
    for batch in scan.batches(table, dataset, parts):
        keys = [_to_comparable(batch.column(name)) for name in on]
        places = [batch.column(name).view(pa.int64()) for name in (ADDRESS, ROW)]
        yield pa.RecordBatch.from_arrays([*keys, *places], schema=schema)


Comparison = tuple[pa.DataType, Callable[[Any], Any]]


def _find_comparison(dtype: Any) -> Comparison | None:
    """What values are compared as, and how they become that; None if they are not compared."""
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
    """The bits of a float; zero has one sign, and what is no number is equal to itself, as in Spark."""
    numbers = array.cast(pa.float64())
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
    """Rows to merge, in files that no version names; it can be sent to other processes."""

    pieces: tuple[Piece, ...]
    on: tuple[str, ...]
    schema: pa.Schema | None = None
    """Of what was written, if that is not all columns of the table."""

    @property
    def rows(self) -> list[int]:
        """How many each piece has."""
        return [int(json.loads(piece)["physical_rows"]) for piece in self.pieces]

    def open(self, table: TableRef, at: TableLocation, dataset: lance.LanceDataset | None) -> lance.LanceDataset:
        """A table of these rows that exists in memory only, over the files where they are; a piece is a fragment."""
        schema = self.schema if dataset is None or self.schema is not None else dataset.lance_schema
        base = lance.DatasetBasePath(at.location, is_dataset_root=True, id=EXTERNAL_BASE_ID)
        operation = lance.LanceOperation.Overwrite(schema, parse_pieces(self._external_pieces()), initial_bases=[base])
        with translate_errors(table, at.storage_options):
            return lance.LanceDataset.commit("memory://", operation, storage_options=dict(at.storage_options) or None)

    def _external_pieces(self) -> Iterator[Piece]:
        for piece in self.pieces:
            fragment = json.loads(piece)
            files = [{**file, "base_id": EXTERNAL_BASE_ID} for file in fragment["files"]]
            yield json.dumps({**fragment, "files": files})


def find_duplicate(keys: pa.Table) -> int | None:
    """The address of a row whose key another one has too."""
    names = keys.schema.names[: keys.num_columns - 2]
    groups = keys.drop_null().group_by(names).aggregate([(ADDRESS, "count"), (ADDRESS, "min")])
    twice = groups.filter(pc.field(f"{ADDRESS}_count") > 1)
    return twice.column(f"{ADDRESS}_min")[0].as_py() if twice.num_rows else None


def format_key(table: TableRef, rows: lance.LanceDataset, on: Sequence[str], address: int) -> str:
    """The key of a row, for people."""
    part = FragmentRange(address >> 32, address & 0xFFFFFFFF, 1)
    [row] = pa.Table.from_batches(Scan(tuple(on)).batches(table, rows, [part])).to_pylist()
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


# Matching


def match_schema() -> pa.Schema:
    """Of matches: the address of a row of the table, that of the row to merge, if any, and the former's row id."""
    return pa.schema([(TARGET, pa.int64()), (SOURCE, pa.int64()), (ROW, pa.int64())])


def match_keys(target: pa.RecordBatchReader, source: pa.Table, *, every: bool) -> pa.Table:
    """The rows of a table whose key is in the source, where the source is small.

    Args:
        target: keys of the table, as `read_keys` gives them.
        source: those of the source; none is there twice.
        every: whether to give the other rows of the table too, without a source.
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
    """What a task has deleted, and which rows match; it goes through JSON."""

    change: RowChange
    matches: pa.Table | None
    """None: there are too many to send."""

    def to_json(self) -> str:
        """As text."""
        if self.matches is None:
            return json.dumps([self.change.to_json(), None])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, match_schema()) as stream:
            stream.write_table(self.matches)
        return json.dumps([self.change.to_json(), base64.b64encode(sink.getvalue()).decode()])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From text."""
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
) -> MatchResult:
    """Match whole fragments with a source that is small, and delete the rows that go.

    Args:
        table: what to change.
        dataset: its version.
        parts: which fragments.
        source: keys of the rows to merge.
        on: the columns that are the key.
        rules: what goes.
    """
    target = pa.RecordBatchReader.from_batches(source.schema, read_keys(table, dataset, parts, on))
    matches = match_keys(target, source, every=rules.delete_by_source)
    has_source = pc.is_valid(matches.column(SOURCE))
    doomed = matches if rules.when_matched != "ignore" else matches.filter(pc.invert(has_source))
    change = (
        delete_rows(table, dataset, offsets_by_fragment(doomed.column(TARGET).chunks)) if rules.deletes else RowChange()
    )
    pairs = matches.filter(has_source) if rules.writes else matches.slice(0, 0)
    return MatchResult(change, pairs if len(pairs) <= MAX_SENT_MATCHES else None)


# Choosing


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """What of a piece goes into the table; it goes through JSON."""

    number: int
    reused: Piece | None = None
    """The piece as it goes into the table, if all of it does."""
    new: tuple[Piece, ...] = ()
    """Rows of it, written again."""
    inserted: int = 0
    updated: int = 0

    def to_json(self) -> str:
        """As text."""
        return json.dumps([self.number, self.reused, self.new, self.inserted, self.updated])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From text."""
        number, kept, new, inserted, updated = json.loads(text)
        return cls(number, kept, tuple(new), inserted, updated)


@dataclass(frozen=True, slots=True)
class RowSelector:
    """Chooses of each piece of a source the rows that go into a table."""

    table: TableRef
    dataset: lance.LanceDataset
    source: MergeSource
    rows: lance.LanceDataset
    """The source, opened."""
    rules: MergeRules
    write: PieceWriter

    def select(self, number: int, addresses: Any, row_ids: Any) -> SelectedRows:
        """Choose rows of a piece.

        A row that has the key of several rows of the table takes the place of each.

        Args:
            number: of the piece.
            addresses: the rows of it that match a row of the table, each as often as it does.
            row_ids: of those rows of the table.
        """
        piece, size = self.source.pieces[number], self.source.rows[number]
        offsets = addresses & 0xFFFFFFFF
        matches = np.bincount(offsets, minlength=size)
        updated = matches if self.rules.updates else np.zeros_like(matches)
        inserted = (matches == 0).astype(np.int64) if self.rules.inserts else np.zeros_like(matches)
        ids = row_ids[np.argsort(offsets, kind="stable")]
        if self.dataset.has_stable_row_ids and updated.any():
            reused, new = self._select_with_ids(piece, number, updated, inserted, ids)
        else:
            reused, new = self._select_without_ids(piece, number, updated + inserted)
        return SelectedRows(number, reused, tuple(new), int(inserted.sum()), int(updated.sum()))

    def _select_without_ids(self, piece: Piece, number: int, wanted: Any) -> tuple[Piece | None, list[Piece]]:
        if wanted.all():
            return piece, self._rewrite(number, wanted - 1)
        return None, self._rewrite(number, wanted)

    def _select_with_ids(
        self, piece: Piece, number: int, moved: Any, inserted: Any, ids: Any
    ) -> tuple[Piece | None, list[Piece]]:
        """The rows that have an id already come first: Lance takes it so."""
        row_ids = pa.array(ids, pa.uint64())
        first = moved[: len(ids)]
        if (first == 1).all() and (moved + inserted == 1).all():
            [kept] = assign_row_ids([piece], row_ids)
            return kept, []
        return None, assign_row_ids(self._rewrite(number, moved, inserted), row_ids)

    def _rewrite(self, number: int, *counts: Any) -> list[Piece]:
        """Write rows of a piece again, each as often as is wanted."""
        if not any(each.any() for each in counts):
            return []
        batches = chain.from_iterable(self._take_rows(number, each) for each in counts if each.any())
        return self.write(pa.RecordBatchReader.from_batches(self.dataset.schema, batches))

    def _take_rows(self, number: int, counts: Any) -> Batches:
        first = 0
        for batch in Scan().batches(self.table, self.rows, [FragmentRange(number)]):
            rows = np.repeat(np.arange(batch.num_rows), counts[first : first + batch.num_rows])
            first += batch.num_rows
            if len(rows):
                yield cast_to_table(batch.take(rows), self.dataset.schema)
