"""Convert blob columns for a pipeline: steps see binaries, and columns that stay unchanged become blobs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancehouse.jobs.sources.conform import blob_field
from lancehouse.pipelines.arrow_steps import ArrowTransform
from lancehouse.schema.walk import BLOB, EXTENSION

_MARK = b"lancehouse.blob"
"""Key of a field's metadata that marks a binary column which was a blob column."""


def to_binary_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as steps see them, with binaries in place of blobs."""
    return pa.schema([_to_binary_field(field) if is_blob(field) else field for field in schema])


def to_blob_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a table has them, with blobs in place of marked binaries."""
    return pa.schema([blob_field(field.name) if _is_marked(field) else field for field in schema])


def to_binary_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of a source as steps see them.

    Args:
        batches: batches of the source.
        schema: what `to_binary_schema` returns for its columns.
    """
    places = [place for place, field in enumerate(schema) if _is_marked(field)]
    for batch in batches:
        yield _to_binary_batch(batch, schema, places) if places else batch


def is_blob(field: pa.Field[Any]) -> bool:
    """Return whether a column holds blobs."""
    dtype: Any = field.type
    name = dtype.extension_name if isinstance(dtype, pa.BaseExtensionType) else None
    return BLOB in (name, (field.metadata or {}).get(EXTENSION.encode(), b"").decode())


def _to_binary_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, pa.large_binary(), field.nullable, {_MARK: b"true"})


def _is_marked(field: pa.Field[Any]) -> bool:
    return _MARK in (field.metadata or {}) and field.type in (pa.large_binary(), pa.binary())


def _to_binary_batch(batch: pa.RecordBatch, schema: pa.Schema, places: Iterable[int]) -> pa.RecordBatch:
    arrays: list[Any] = list(batch.columns)
    for place in places:
        array = arrays[place]
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if isinstance(array, pa.StructArray):
            array = array.field("data") if not array.null_count else array.flatten()[0]
        arrays[place] = array.cast(pa.large_binary())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class BlobTransform:
    """Steps over the rows of a source, whose blobs they see as binaries; sent to executors."""

    transform: ArrowTransform
    source: pa.Schema

    @property
    def key(self) -> str:
        """Text that is the same for the same steps."""
        return self.transform.key

    @property
    def schema(self) -> pa.Schema:
        """Schema of the transformed rows."""
        return self.transform.schema

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the transformed batches of the source."""
        return self.transform.batches(to_binary_batches(batches, to_binary_schema(self.source)))
