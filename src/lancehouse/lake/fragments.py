"""Data files that no version of a table names yet, written by as many processes as there are."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, FragmentWriteProgress, write_fragments
from lance_namespace import DescribeTableRequest
from lance_namespace.errors import InternalError, InvalidInputError

from lancehouse.lake.dataset import StorageOptions, TableRef, delete_file
from lancehouse.lake.errors import translate_errors

Piece = str
"""A fragment that is written but not committed, as JSON."""


ALIGNMENT = 16
"""Of values of more than eight bytes."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Where the files of a table go."""

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False, hash=False)
    is_managed: bool = False
    """Whether the table's namespace manages its versions."""


def locate_table(table: TableRef) -> TableLocation:
    """Ask the namespace, if there is one.

    Raises:
        TableNotFoundError: it has no such table.
    """
    if table.location is not None or table.namespace is None:
        return TableLocation(table.location or "", table.storage_options)
    entry = table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    if not entry.location:
        raise InternalError(f"{table}: the catalog did not say where the table is")
    return TableLocation(entry.location, entry.storage_options or {}, entry.managed_versioning is True)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How files are written; None is Lance's own default."""

    max_rows_per_file: int | None = None
    max_bytes_per_file: int | None = None
    data_storage_version: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_rows_per_file", "max_bytes_per_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{name} must be 1 or more, not {value!r}")
        if self.data_storage_version is not None:
            require_storage_version(self.data_storage_version)

    def to_arguments(self) -> dict[str, Any]:
        """As pylance takes them."""
        chosen = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in chosen.items() if value is not None}


@cache
def require_storage_version(version: str) -> None:
    """See that Lance can write files of a version.

    Raises:
        InvalidInputError: it cannot.
    """
    try:
        lance.write_dataset(pa.table({"id": [0]}), "memory://", data_storage_version=version)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"data_storage_version {version!r} is none that Lance can write") from error


def write_pieces(
    table: TableRef, at: TableLocation, rows: pa.RecordBatchReader, *, mode: str, layout: FileLayout | None = None
) -> list[Piece]:
    """Write rows that no version names yet. If that fails, nothing is left of them.

    Args:
        table: by its name, so that credentials are renewed.
        at: where it is.
        rows: in the table's own types.
        mode: `append` if the table has versions and keeps its columns, else `overwrite`.
        layout: how.
    """
    progress, source = _WriteProgress(), _RowSource(rows)
    try:
        with translate_errors(table, at.storage_options):
            fragments = write_fragments(
                source.to_reader(),
                at.location,
                schema=rows.schema,
                mode=mode,
                progress=progress,
                storage_options=dict(at.storage_options) or None,
                namespace_client=table.namespace,
                table_id=list(table.id) or None,
                **(layout or FileLayout()).to_arguments(),
            )
    except BaseException as error:
        _delete_files(progress.fragments, at)
        if source.error is not None:
            raise source.error from error
        raise
    return [json.dumps(fragment.to_json()) for fragment in fragments]


class _RowSource:
    """Rows on their way to Lance, which would make a mere text of what they raise."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.error: BaseException | None = None

    def to_reader(self) -> pa.RecordBatchReader:
        """The same rows, with decimals where Rust can take them: those of another process may lie between its marks."""
        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        wide = [position for position, field in enumerate(self._rows.schema) if _has_decimals(field.type)]
        try:
            for batch in self._rows:
                columns = [_align(each) if place in wide else each for place, each in enumerate(batch.columns)]
                yield pa.RecordBatch.from_arrays(columns, schema=batch.schema) if wide else batch
        except Exception as error:
            self.error = error
            raise


def _has_decimals(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return _has_decimals(dtype.storage_type)
    children = (dtype.field(position).type for position in range(dtype.num_fields))
    return pa.types.is_decimal(dtype) or any(map(_has_decimals, children))


def _align(array: pa.Array[Any]) -> pa.Array[Any]:
    if all(buffer is None or buffer.address % ALIGNMENT == 0 for buffer in array.buffers()):
        return array
    return pa.concat_arrays([array])


class _WriteProgress(FragmentWriteProgress):  # type: ignore[misc]
    """Remembers what was begun, finished or not."""

    def __init__(self) -> None:
        self.fragments: list[FragmentMetadata] = []

    def begin(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)

    def complete(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)


def parse_pieces(pieces: Iterable[Piece]) -> list[FragmentMetadata]:
    """Pieces as pylance has them."""
    return [FragmentMetadata.from_json(piece) for piece in pieces]


def find_lost_pieces(pieces: Collection[Piece], at: TableLocation) -> set[Piece]:
    """The pieces of which a file is gone: one that was kept for long may have been cleaned away."""
    if not pieces:
        return set()
    with translate_errors(at.location, at.storage_options):
        session = LanceFileSession(at.location, storage_options=dict(at.storage_options) or None)
        existing = set(session.list("data"))

    def is_whole(piece: Piece) -> bool:
        return all(f"data/{file.path}" in existing for each in parse_pieces([piece]) for file in each.files)

    return {piece for piece in pieces if not is_whole(piece)}


def discard_pieces(pieces: Iterable[Piece], at: TableLocation) -> None:
    """Delete the files of pieces that are not committed."""
    _delete_files(parse_pieces(pieces), at)


def _delete_files(fragments: Sequence[FragmentMetadata], at: TableLocation) -> None:
    options = dict(at.storage_options)
    with translate_errors(at.location, options):
        session = LanceFileSession(at.location, storage_options=options or None)
        for file in dict.fromkeys(file.path for fragment in fragments for file in fragment.files):
            blobs = session.list(f"data/{PurePosixPath(file).stem}")
            for path in (f"data/{file}", *blobs):
                delete_file(at.location, options, path)
        for fragment in fragments:
            if fragment.deletion_file is not None:
                delete_file(at.location, options, fragment.deletion_file.path(fragment.id))
