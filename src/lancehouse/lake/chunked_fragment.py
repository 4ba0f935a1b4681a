"""Read rows of one fragment in windows of a few megabytes, to bound memory; measure blobs before reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from lancehouse.lake.blobs import BlobReader, is_blob

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
    return sum(_described_sizes(column.combine_chunks()) for column in described.columns)


def _described_sizes(array: Any) -> Any:
    """Return the sizes in blob descriptions, which take the place of the blobs; blobs can be nested in structs only."""
    if not isinstance(array.type, pa.StructType):
        return np.zeros(len(array), np.int64)
    if {"position", "size"} <= {field.name for field in array.type}:
        return array.field("size").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sum(
        (_described_sizes(array.field(place)) for place in range(array.type.num_fields)), np.zeros(len(array), np.int64)
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
