"""Read image files: one row for each file, with the bytes as a blob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from lancehouse.jobs.sources.file_listing import SourceFile, translate_read_errors
from lancehouse.jobs.sources.formats import FilePart, FilePiece, FileSurvey, ReadRequest, TextOptions
from lancehouse.jobs.sources.schemas import blob_field, conform, to_blobs
from lancehouse.lake.chunked_scan import group_up_to

WINDOW_BYTES = 32 << 20
"""Total size of the images that are read at once; a larger image is read alone."""
WINDOW_FILES = 1024
"""Largest number of images that are read at once."""
READERS = 8
"""Number of threads that read images."""

MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".png": "image/png",
        ".webp": "image/webp",
        ".gif": "image/gif",
        ".bmp": "image/bmp",
        ".tif": "image/tiff",
        ".tiff": "image/tiff",
    }
)

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("path", pa.string()),
    pa.field("folder", pa.string()),
    pa.field("media_type", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("modified", pa.timestamp("us", "UTC")),
    blob_field("image"),
]
SCHEMA = pa.schema(_COLUMNS)
"""Schema of images; `folder` is the name of the folder that contains the image, which is its label in many data sets.
"""


class Images:
    """Images. Nothing is decoded: the bytes of a file are a blob, its media type comes from the extension."""

    is_text = False
    extensions = tuple(MEDIA_TYPES)
    options = TextOptions()

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return this format: images have no options."""
        TextOptions.parse("images", options, ())
        return self

    def survey(self, file: SourceFile) -> FileSurvey:
        """Return the schema, which is the same for all images; the file is not opened."""
        return FileSurvey(SCHEMA, (FilePiece(file.size, 1),))

    def read(self, parts: Sequence[FilePart], wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows; several files are read at once."""
        needs_bytes = "image" in wanted.schema.names
        with ThreadPoolExecutor(READERS) as readers:
            for window in _group_files([part.file for part in parts]):
                contents = list(readers.map(_read_file, window)) if needs_bytes else [None] * len(window)
                yield conform(_to_batch(window, contents), wanted.schema, window[0].partition, window[0].name)


def _group_files(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield groups of files to read at once, each with the same partition values."""
    for _, together in groupby(files, lambda file: file.partition):
        yield from group_up_to(together, lambda file: file.size, WINDOW_BYTES, WINDOW_FILES)


def _read_file(file: SourceFile) -> bytes:
    with (
        translate_read_errors(file.name, file.store.options),
        file.store.file_system().open_input_file(file.path) as opened,
    ):
        return opened.readall()


def _to_batch(files: Sequence[SourceFile], contents: Sequence[bytes | None]) -> pa.RecordBatch:
    paths = [PurePosixPath(file.path) for file in files]
    columns: list[Any] = [
        pa.array([file.name for file in files]),
        pa.array([path.parent.name for path in paths]),
        pa.array([MEDIA_TYPES.get(path.suffix.lower()) for path in paths], pa.string()),
        pa.array([file.size for file in files], pa.int64()),
        pa.array([file.modified_ns // 1000 for file in files], pa.timestamp("us", "UTC")),
        to_blobs(pa.array(contents, pa.large_binary())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
