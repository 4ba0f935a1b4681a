"""Read Arrow IPC files and streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lancehouse.jobs.sources.file_listing import SourceFile
from lancehouse.jobs.sources.formats import FilePart, FilePiece, FileSurvey, ReadRequest
from lancehouse.jobs.sources.tabular import Tabular

_FILE = b"ARROW1"


class Ipc(Tabular):
    """Arrow IPC. A file can be split between its batches, a stream cannot; both are read batch by batch."""

    name = "arrow"
    extensions = (".arrow", ".feather", ".ipc")

    def survey(self, file: SourceFile) -> FileSurvey:
        """Read the schema and the number of batches."""
        with _open_reader(file) as (reader, is_file):
            count = reader.num_record_batches if is_file else 1
            return FileSurvey(reader.schema, (FilePiece(file.size // max(count, 1)),) * count)

    def raw(self, part: FilePart, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns, in the batches of the file."""
        with _open_reader(part.file) as (reader, _):
            names = reader.schema.names
            wanted.require_known(names, part.file)
        columns = [place for place, name in enumerate(names) if name in wanted.schema.names]
        options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=wanted.use_threads)
        with _open_reader(part.file, options if columns else None) as (reader, is_file):
            if not is_file:
                yield from reader
                return
            for number in range(reader.num_record_batches) if part.pieces is None else part.pieces:
                yield reader.get_batch(number)


@contextmanager
def _open_reader(file: SourceFile, options: pa.ipc.IpcReadOptions | None = None) -> Iterator[tuple[Any, bool]]:
    with file.store.file_system().open_input_file(file.path) as opened:
        is_file = opened.read(len(_FILE)) == _FILE
        opened.seek(0)
        opener: Any = pa.ipc.open_file if is_file else pa.ipc.open_stream
        with opener(opened, options=options) as reader:
            yield reader, is_file
