"""A scan in pieces of a few megabytes: one scan of a large fragment holds most of it at once, however slow its reader.

Of a scan without a filter, a piece is a run of rows that Lance goes to directly. With a filter it is a run of row
addresses, or, where an index knows the rows, some of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import serialize_row_addrs

PIECE_BYTES = 4 << 20
STORED_BYTES = 32 << 20
"""Of files that a piece may have to read, though it gives few rows or few columns."""
BATCHES = 8
"""Of a piece: memory that was freed is used again the sooner the smaller they are."""
MOST_BATCH_ROWS = 1 << 16
BATCH_STORED_BYTES = 512 << 10
"""Of rows that are decoded together: a filter looks at all of them, though it gives none, and they may be packed."""
LEAST_BATCH_ROWS, USUAL_BATCH_ROWS = 8, 8192
"""Lance decodes the latter by default, however large rows are; with fewer than the former a narrow scan is slow."""
LARGE_ROW_BYTES = 8 << 10
READ_AHEAD = 8 << 20
"""Bytes that a scan reads before somebody takes them; Lance's own default is 2 GiB."""
FIRST_ROWS = 1024
MOST_ROWS = 1 << 20
GROWTH = 4
"""How many times as many rows the next piece may have."""
INDEXED = "ScalarIndexQuery"
"""What the plan of a scan says of an index."""
ROW_ID = "_rowid"

Arguments = Mapping[str, Any]
"""Of `LanceDataset.scanner`."""


@dataclass(frozen=True, slots=True)
class PlainScan:
    """A scan that searches nothing."""

    filter: str | None = None
    limit: int | None = None
    offset: int = 0


class _ChunkSize:
    """How many rows make a piece, by what was seen and what files say."""

    def __init__(self, fragments: Sequence[lance.LanceFragment]) -> None:
        row_bytes = max(map(_row_bytes, fragments), default=1.0)
        self._most = max(1, min(MOST_ROWS, int(STORED_BYTES / row_bytes)))
        self._most_batch = max(LEAST_BATCH_ROWS, min(MOST_BATCH_ROWS, int(BATCH_STORED_BYTES / row_bytes)))
        self.rows = max(1, min(FIRST_ROWS, int(PIECE_BYTES / row_bytes)))

    def learn(self, rows: int, size: int) -> None:
        """So many rows were looked at, and gave so many bytes."""
        fitting = int(PIECE_BYTES / max(size / max(rows, 1), 1))
        self.rows = max(1, min(fitting, self.rows * GROWTH, self._most))

    @property
    def batch(self) -> int:
        """Rows that are decoded together."""
        return max(1, min(self.rows // BATCHES, self._most_batch))

    @property
    def whole_batch(self) -> int:
        """The same for a scan that is not done in pieces."""
        return min(self._most_batch, USUAL_BATCH_ROWS)


def _row_bytes(fragment: lance.LanceFragment) -> float:
    """Bytes that a row takes in files, on average and at least one."""
    stored: int = sum(file.file_size_bytes or 0 for file in fragment.data_files())
    rows: int = fragment.physical_rows
    return max(stored / max(rows, 1), 1.0)


def count_rows(dataset: lance.LanceDataset, filter: str) -> int:
    """How many rows meet a filter."""
    return int(dataset.scanner(columns=[], with_row_id=True, filter=filter, **_batch_arguments(dataset)).count_rows())


def _batch_arguments(dataset: lance.LanceDataset) -> dict[str, int]:
    """Arguments of a scan that holds little, and is not done in pieces."""
    return {"io_buffer_size": READ_AHEAD, "batch_readahead": 1, "batch_size": batch_rows(dataset)}


def batch_rows(dataset: lance.LanceDataset) -> int:
    """How many rows are decoded together by a scan that is not done in pieces."""
    return _ChunkSize(dataset.get_fragments()).whole_batch


def has_large_rows(dataset: lance.LanceDataset) -> bool:
    """Whether as many rows as Lance decodes together by default would fill the memory."""
    return any(_row_bytes(each) > LARGE_ROW_BYTES for each in dataset.get_fragments())


def read_batches(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, in order, of which no more is held than a piece.

    Args:
        dataset: at one version.
        scan: which rows.
        arguments: which columns, and the like: what the scanner takes besides.
    """
    if any(file.file_major_version < 2 for each in dataset.get_fragments() for file in each.data_files()):
        # Before 2.0 Lance skips rows by reading them.
        limits = {"limit": scan.limit, "offset": scan.offset or None}
        yield from dataset.scanner(filter=scan.filter, **limits, **arguments).to_batches()
        return
    if scan.filter is None:
        yield from _scan_unfiltered(dataset, scan, arguments)
        return
    if dataset.has_stable_row_ids or INDEXED in dataset.scanner(filter=scan.filter, **arguments).explain_plan():
        yield from _scan_by_row_id(dataset, scan, arguments)
        return
    yield from _slice_batches(_scan_filtered(dataset, scan.filter, arguments), scan.offset, scan.limit)


def _scan_unfiltered(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    fragments = dataset.get_fragments()
    size = _ChunkSize(fragments)
    skip, left = scan.offset, scan.limit
    for run in _group_small_fragments(fragments):
        count = sum(each.count_rows() for each in run)
        first, skip = min(skip, count), max(0, skip - count)
        while first < count and left != 0:
            rows = min(size.rows, count - first, count if left is None else left)
            more = {**arguments, "batch_size": size.batch}
            yield from _read_measured(dataset.scanner(fragments=run, offset=first, limit=rows, **more), rows, size)
            first += rows
            left = None if left is None else left - rows


def _scan_filtered(dataset: lance.LanceDataset, filter: str, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    fragments = dataset.get_fragments()
    size = _ChunkSize(fragments)
    for run in _group_small_fragments(fragments):
        count = sum(each.physical_rows for each in run)
        if len(run) > 1 or count <= size.rows:
            more = {**arguments, "batch_size": size.batch}
            yield from _read_measured(dataset.scanner(fragments=run, filter=filter, **more), count, size)
            continue
        above, first = run[0].fragment_id << 32, 0
        while first < count:
            rows = range(above + first, above + min(first + size.rows, count))
            more = {**arguments, "batch_size": size.batch, "row_addr_allowlist": serialize_row_addrs(rows)}
            scanner = dataset.scanner(fragments=run, filter=filter, **more)
            yield from _read_measured(scanner, len(rows), size)
            first += len(rows)


def _scan_by_row_id(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Where the rows are is found out first."""
    matches = dataset.scanner(columns=[], with_row_id=True, filter=scan.filter, **_batch_arguments(dataset)).to_reader()
    parts = [np.asarray(batch.column(ROW_ID)) for batch in matches]
    ids = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    ids = ids[scan.offset :][: scan.limit]
    size = _ChunkSize(dataset.get_fragments())
    while len(ids):
        some, ids = ids[: size.rows], ids[size.rows :]
        more = {**arguments, "batch_size": size.batch, "row_addr_allowlist": serialize_row_addrs(some.tolist())}
        yield from _read_measured(dataset.scanner(**more), len(some), size)


def _read_measured(scanner: lance.LanceScanner, rows: int, size: _ChunkSize) -> Iterator[pa.RecordBatch]:
    read_bytes = 0
    for batch in scanner.to_batches():
        read_bytes += batch.nbytes
        if batch.num_rows:
            yield batch
    size.learn(rows, read_bytes)


def _group_small_fragments(fragments: Sequence[lance.LanceFragment]) -> Iterator[list[lance.LanceFragment]]:
    """Fragments that are read together, because they are small."""
    run: list[lance.LanceFragment] = []
    rows = 0
    for fragment in fragments:
        more = fragment.physical_rows
        if run and rows + more > FIRST_ROWS:
            yield run
            run, rows = [], 0
        run.append(fragment)
        rows += more
    if run:
        yield run


def _slice_batches(batches_in: Iterator[pa.RecordBatch], offset: int, limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches_in:
        if left == 0:
            return
        skipped, offset = min(offset, batch.num_rows), max(0, offset - batch.num_rows)
        part = batch.slice(skipped, left)
        left = None if left is None else left - part.num_rows
        if part.num_rows:
            yield part
