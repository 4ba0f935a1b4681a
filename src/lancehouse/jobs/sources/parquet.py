"""Read Parquet files, split by row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.formats import FilePart, FilePiece, FileSurvey, ReadRequest
from lancehouse.jobs.sources.tabular import Tabular
from lancehouse.jobs.sources.units import split_into_runs

BATCH_BYTES = 8 << 20
BATCH_ROWS = 32 << 10
WINDOW_BYTES = 32 << 20
"""Total size of the row groups that are fetched at once."""


class Parquet(Tabular):
    """Parquet. The footer tells the schema, the number of rows and where a file can be split."""

    name = "parquet"
    extensions = (".parquet", ".pq")

    def survey(self, file: SourceFile) -> FileSurvey:
        """Read the footer."""
        with file.store.file_system().open_input_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
            total = sum(group.total_byte_size for group in groups) or 1
            pieces = [FilePiece(file.size * group.total_byte_size // total, group.num_rows) for group in groups]
            return FileSurvey(parquet.schema_arrow, tuple(pieces))

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, in batches of a few megabytes."""
        with part.file.store.file_system().open_input_file(part.file.path) as opened:
            parquet = pq.ParquetFile(opened, pre_buffer=True)
            names = parquet.schema_arrow.names
            wanted.require_known(names, part.file)
            columns = [name for name in names if name in wanted.schema.names]
            groups = range(parquet.num_row_groups) if part.pieces is None else part.pieces
            sizes = [parquet.metadata.row_group(number).total_byte_size for number in groups]
            for window in split_into_runs(sizes, WINDOW_BYTES):
                numbers = [groups[place] for place in window]
                yield from parquet.iter_batches(
                    batch_size=_batch_rows(parquet.metadata, numbers),
                    row_groups=numbers,
                    columns=columns,
                    use_threads=wanted.use_threads,
                )


def _batch_rows(metadata: Any, groups: list[int]) -> int:
    described = [metadata.row_group(number) for number in groups]
    rows = sum(group.num_rows for group in described)
    row_bytes = sum(group.total_byte_size for group in described) / max(rows, 1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))
