"""Scan a table in chunks of a few megabytes, to bound the memory that a query takes.

One scan of a large fragment holds most of it in memory at once, however slowly its rows are consumed. Without a filter,
a chunk is a range of rows, which Lance can seek to. With a filter it is a range of row addresses or, if an index finds
the rows, some of the rows found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import serialize_row_addrs

from lancehouse.lake.blobs import BlobReader
from lancehouse.lake.dataset import OFFSET_BITS, enclose_sql
from lancehouse.schema.blob_references import is_blob

T = TypeVar("T")

WINDOW_BYTES = 4 << 20
BATCH_BYTES = 1 << 20
"""Estimated size in bytes of rows decoded together: if some rows are far larger, only a few are decoded with them."""

WINDOW_ROWS = 1 << 20
BATCH_ROWS = 1 << 15
BLOB_ROWS = 1024
"""Number of rows whose blobs are measured at once."""


def read_fragment(
    fragment: lance.LanceFragment,
    columns: Sequence[pa.Field[Any]],
    rows: range,
    row_bytes: float,
    reader: BlobReader | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of some columns, with blobs as binary values.

    Args:
        fragment: to read from.
        columns: to read.
        rows: range of rows, counted without deleted ones.
        row_bytes: estimated size of a row without blobs; the estimate grows with the rows that are read.
        reader: reads the blobs of a confined table; None lets Lance read them wherever they are.
    """
    names = [column.name for column in columns]
    blobs = [column.name for column in columns if has_blobs(column)]
    # Files before version 2.0 cannot be read from an offset: Lance would read and skip, for every window anew.
    is_old = any(file.file_major_version < 2 for file in fragment.data_files())
    estimated_bytes = row_bytes
    while rows:
        count = (
            len(rows)
            if is_old
            else min(_rows_that_fit(WINDOW_BYTES, estimated_bytes), BLOB_ROWS if blobs else WINDOW_ROWS)
        )
        window, rows = rows[:count], rows[count:]
        for part in _split_by_size(window, _blob_bytes(fragment, blobs, window, reader)) if blobs else [window]:
            size = 0
            for batch in scan_rows(
                fragment,
                names,
                part,
                min(_rows_that_fit(BATCH_BYTES, estimated_bytes), BATCH_ROWS),
                reader if blobs else None,
            ):
                size += batch.nbytes
                yield batch
            if not blobs:
                estimated_bytes = max(row_bytes, size / len(part))


def scan_rows(
    fragment: lance.LanceFragment, names: list[str], rows: range, batch_rows: int, reader: BlobReader | None = None
) -> Iterator[pa.RecordBatch]:
    """Scan a range of rows, reading ahead as little as possible."""
    scanner = fragment.scanner(
        columns=names,
        offset=rows.start,
        limit=len(rows),
        batch_size=batch_rows,
        batch_readahead=1,
        io_buffer_size=WINDOW_BYTES,
        blob_handling="all_binary" if reader is None else "blobs_descriptions",
        with_row_address=reader is not None,
    )
    for batch in scanner.to_batches():
        yield batch if reader is None else reader.fill_blobs(batch)


def has_blobs(column: pa.Field[Any]) -> bool:
    """Return whether a column, or a field nested in it, is stored as blobs."""
    dtype = column.type
    if isinstance(dtype, pa.BaseExtensionType) or is_blob(column):
        return is_blob(column)
    return any(has_blobs(dtype.field(position)) for position in range(dtype.num_fields))


def _rows_that_fit(size: int, row_bytes: float) -> int:
    return max(1, int(size / max(row_bytes, 1)))


def _blob_bytes(fragment: lance.LanceFragment, blobs: list[str], rows: range, reader: BlobReader | None) -> Any:
    """Return the total size in bytes of each row's blobs."""
    scanner = fragment.scanner(
        columns=blobs,
        offset=rows.start,
        limit=len(rows),
        batch_readahead=1,
        blob_handling="blobs_descriptions",
        with_row_address=reader is not None,
    )
    if reader is not None:
        return np.concatenate([reader.blob_sizes(batch) for batch in scanner.to_batches()])
    described = scanner.to_table()
    return sum(_measure_descriptions(column.combine_chunks()) for column in described.columns)


def _measure_descriptions(array: Any) -> Any:
    """Return the sizes in blob descriptions, which take the place of the blobs; blobs can be nested in structs only."""
    if not isinstance(array.type, pa.StructType):
        return np.zeros(len(array), np.int64)
    if {"position", "size"} <= {field.name for field in array.type}:
        return array.field("size").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sum(
        (_measure_descriptions(array.field(place)) for place in range(array.type.num_fields)),
        np.zeros(len(array), np.int64),
    )


def _split_by_size(rows: range, sizes: Any) -> Iterator[range]:
    """Split rows into ranges whose blobs fit into a window; a row with larger blobs is a range of its own."""
    first, held = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if place > first and held + size > WINDOW_BYTES:
            yield rows[first:place]
            first, held = place, 0
        held += size
    yield rows[first:]


PIECE_BYTES = 4 << 20
"""Size in bytes of the rows of a chunk."""
STORED_BYTES = 32 << 20
"""Bytes of files that a chunk may have to read, even if it returns few rows or columns."""
BATCHES = 8
"""Batches per chunk; freed memory is reused the sooner the smaller they are."""
MOST_BATCH_ROWS = 1 << 16
BATCH_STORED_BYTES = 128 << 10
"""Bytes of files that are decoded together: a filter decodes all rows, though it may return none of them."""
LEAST_BATCH_ROWS, USUAL_BATCH_ROWS = 8, 8192
"""Fewest rows decoded together, below which a narrow scan is slow; and Lance's default, whatever the size of rows."""
LARGE_ROW_BYTES = 8 << 10
"""Size of a row in bytes above which Lance's default number of rows per batch takes too much memory."""
READ_AHEAD = 8 << 20
"""Bytes that a scan reads ahead; Lance's own default is 2 GiB."""
FIRST_ROWS = 1024
"""Rows of the first chunk, and of small fragments that are read together."""
MOST_ROWS = 1 << 20
GROWTH = 4
"""Largest factor by which the number of rows grows from one chunk to the next."""
INDEXED = "ScalarIndexQuery"
"""Word in the plan of a scan that uses a scalar index."""
ROW_ID = "_rowid"

Arguments = Mapping[str, Any]
"""Arguments of `LanceDataset.scanner`."""


@dataclass(frozen=True, slots=True)
class PlainScan:
    """A scan that is not a vector or full-text search."""

    filter: str | None = None
    limit: int | None = None
    offset: int = 0


class _ChunkSize:
    """Adapts the number of rows per chunk to file sizes and to the chunks read so far."""

    def __init__(self, fragments: Sequence[lance.LanceFragment]) -> None:
        row_bytes = max(map(_row_bytes, fragments), default=1.0)
        self._most = max(1, min(MOST_ROWS, int(STORED_BYTES / row_bytes)))
        self._most_batch = max(LEAST_BATCH_ROWS, min(MOST_BATCH_ROWS, int(BATCH_STORED_BYTES / row_bytes)))
        self.rows = max(1, min(FIRST_ROWS, int(PIECE_BYTES / row_bytes)))

    def learn(self, rows: int, size: int) -> None:
        """Adapt to a chunk for which `rows` rows were read and `size` bytes returned."""
        fitting = int(PIECE_BYTES / max(size / max(rows, 1), 1))
        self.rows = max(1, min(fitting, self.rows * GROWTH, self._most))

    @property
    def batch(self) -> int:
        """Rows decoded together."""
        return max(1, min(self.rows // BATCHES, self._most_batch))

    @property
    def whole_batch(self) -> int:
        """Rows decoded together by a scan that is not read in chunks."""
        return min(self._most_batch, USUAL_BATCH_ROWS)


def _row_bytes(fragment: lance.LanceFragment) -> float:
    """Return the average size of a row in files, in bytes and at least 1."""
    stored: int = sum(file.file_size_bytes or 0 for file in fragment.data_files())
    rows: int = fragment.physical_rows
    return max(stored / max(rows, 1), 1.0)


def count_rows(dataset: lance.LanceDataset, filter: str) -> int:
    """Count the rows that match a filter."""
    return int(
        dataset.scanner(
            columns=[], with_row_id=True, filter=enclose_sql(filter), **_batch_arguments(dataset)
        ).count_rows()
    )


def _batch_arguments(dataset: lance.LanceDataset) -> dict[str, int]:
    """Return arguments that bound the memory of a scan that is not read in chunks."""
    return {"io_buffer_size": READ_AHEAD, "batch_readahead": 1, "batch_size": batch_rows(dataset)}


def batch_rows(dataset: lance.LanceDataset) -> int:
    """Return how many rows a scan that is not read in chunks should decode together."""
    return _ChunkSize(dataset.get_fragments()).whole_batch


def has_large_rows(dataset: lance.LanceDataset) -> bool:
    """Return whether Lance's default number of rows per batch would take too much memory."""
    return any(_row_bytes(fragment) > LARGE_ROW_BYTES for fragment in dataset.get_fragments())


def read_batches(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan in order, holding no more than a chunk.

    Args:
        dataset: at one version.
        scan: filter, limit and offset.
        arguments: other arguments of the scanner, such as columns.
    """
    if any(file.file_major_version < 2 for fragment in dataset.get_fragments() for file in fragment.data_files()):
        # Files before version 2.0 cannot be read from an offset: Lance would read and skip, for every chunk anew.
        limits = {"limit": scan.limit, "offset": scan.offset or None}
        yield from dataset.scanner(filter=scan.filter, **limits, **arguments).to_batches()
        return
    if scan.filter is None:
        yield from _scan_unfiltered(dataset, scan, arguments)
        return
    # With stable row ids, `row_addr_allowlist` takes these in place of addresses, and so no range of positions.
    if dataset.has_stable_row_ids or INDEXED in dataset.scanner(filter=scan.filter, **arguments).explain_plan():
        yield from _scan_by_row_id(dataset, scan, arguments)
        return
    yield from slice_batches(_scan_filtered(dataset, scan.filter, arguments), scan.offset, scan.limit)


def _scan_unfiltered(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    fragments = dataset.get_fragments()
    size = _ChunkSize(fragments)
    skip, remaining = scan.offset, scan.limit
    for run in group_up_to(fragments, lambda fragment: fragment.physical_rows, FIRST_ROWS):
        count = sum(fragment.count_rows() for fragment in run)
        first, skip = min(skip, count), max(0, skip - count)
        while first < count and remaining != 0:
            rows = min(size.rows, count - first, count if remaining is None else remaining)
            more = {**arguments, "batch_size": size.batch}
            yield from _read_measured(dataset.scanner(fragments=run, offset=first, limit=rows, **more), rows, size)
            first += rows
            remaining = None if remaining is None else remaining - rows


def _scan_filtered(dataset: lance.LanceDataset, filter: str, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    fragments = dataset.get_fragments()
    size = _ChunkSize(fragments)
    for run in group_up_to(fragments, lambda fragment: fragment.physical_rows, FIRST_ROWS):
        count = sum(fragment.physical_rows for fragment in run)
        if len(run) > 1 or count <= size.rows:
            more = {**arguments, "batch_size": size.batch}
            yield from _read_measured(dataset.scanner(fragments=run, filter=filter, **more), count, size)
            continue
        above, first = run[0].fragment_id << OFFSET_BITS, 0
        while first < count:
            rows = range(above + first, above + min(first + size.rows, count))
            more = {**arguments, "batch_size": size.batch, "row_addr_allowlist": serialize_row_addrs(rows)}
            scanner = dataset.scanner(fragments=run, filter=filter, **more)
            yield from _read_measured(scanner, len(rows), size)
            first += len(rows)


def _scan_by_row_id(dataset: lance.LanceDataset, scan: PlainScan, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Find the ids of all matching rows first, then read those rows in chunks.

    Without stable row ids, the id of a row is its address.
    """
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


def group_up_to(items: Iterable[T], size: Callable[[T], int], total: int, most: int | None = None) -> Iterator[list[T]]:
    """Group neighbours up to a total size, and up to `most` items; an item that is larger is alone."""
    group: list[T] = []
    room = total
    for item in items:
        cost = size(item)
        if group and (cost > room or len(group) == most):
            yield group
            group, room = [], total
        group.append(item)
        room -= cost
    if group:
        yield group


def slice_batches(batches_in: Iterator[pa.RecordBatch], offset: int, limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches after `offset`, at most `limit`."""
    remaining = limit
    for batch in batches_in:
        if remaining == 0:
            return
        skipped, offset = min(offset, batch.num_rows), max(0, offset - batch.num_rows)
        part = batch.slice(skipped, remaining)
        remaining = None if remaining is None else remaining - part.num_rows
        if part.num_rows:
            yield part
