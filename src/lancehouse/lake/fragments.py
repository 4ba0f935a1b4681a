"""Write data files that are not committed yet, from any number of processes, and delete them again."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
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

from lancehouse.lake.dataset import StorageOptions, TableRef, delete_file, local_folder
from lancehouse.lake.errors import translate_errors

Piece = str
"""A fragment that is written but not committed: its metadata as JSON."""


ALIGNMENT = 16
"""Alignment in bytes that Rust requires for values longer than eight bytes."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location and storage options of a table's files."""

    location: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False, hash=False)
    is_managed: bool = False
    """Whether the table's namespace manages its versions."""


def locate_table(table: TableRef) -> TableLocation:
    """Return the location of a table, from its address or from its namespace.

    Raises:
        TableNotFoundError: the namespace has no such table.
    """
    if table.location is not None or table.namespace is None:
        return TableLocation(table.location or "", table.storage_options)
    entry = table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))
    if not entry.location:
        raise InternalError(f"{table}: the catalog did not say where the table is")
    return TableLocation(entry.location, entry.storage_options or {}, entry.managed_versioning is True)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Options for writing files; None for Lance's default."""

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
        """Return the options as arguments of pylance."""
        chosen = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in chosen.items() if value is not None}


@cache
def require_storage_version(version: str) -> None:
    """Check that Lance can write files of a storage version.

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
    """Write rows as fragments that are not committed. If that fails, their files are deleted.

    Args:
        table: address by name, so that credentials are renewed.
        at: its location.
        rows: in the table's own types.
        mode: `append` if the table has versions and keeps its columns, else `overwrite`.
        layout: options for the files.
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
        _delete_files(dict.fromkeys(file for each in progress.fragments for file in _fragment_files(each)), at)
        if source.error is not None:
            raise source.error from error
        raise
    return [json.dumps(fragment.to_json()) for fragment in fragments]


class _RowSource:
    """Passes rows to Lance and keeps the exception that they raise, which Lance would reduce to text."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.error: BaseException | None = None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows, with decimals aligned in memory as Rust requires.

        Arrow data from another process may lie at any address.
        """
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
    """Records every fragment that was begun, whether finished or not, so that its files can be deleted."""

    def __init__(self) -> None:
        self.fragments: list[FragmentMetadata] = []

    def begin(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)

    def complete(self, fragment: FragmentMetadata, **_: Any) -> None:
        self.fragments.append(fragment)


def parse_pieces(pieces: Iterable[Piece]) -> list[FragmentMetadata]:
    """Parse pieces to pylance's fragment metadata."""
    return [FragmentMetadata.from_json(piece) for piece in pieces]


def find_lost_pieces(pieces: Collection[Piece], at: TableLocation) -> set[Piece]:
    """Return the pieces with a missing file: clean-up may have deleted those that were kept for long."""
    if not pieces:
        return set()
    with translate_errors(at.location, at.storage_options):
        session = LanceFileSession(at.location, storage_options=dict(at.storage_options) or None)
        existing = set(session.list("data"))

    def is_whole(piece: Piece) -> bool:
        return all(f"data/{file.path}" in existing for each in parse_pieces([piece]) for file in each.files)

    return {piece for piece in pieces if not is_whole(piece)}


def discard_pieces(pieces: Iterable[Piece], at: TableLocation, *, keep: Collection[str] = ()) -> None:
    """Delete the files of pieces that are not committed.

    Args:
        pieces: the pieces; instead of one, the path of a file or folder below the table's location may be given.
        at: location of the table.
        keep: files that stay, as `list_piece_files` returns them.
    """
    _delete_files([file for file in list_piece_files(pieces) if file not in keep], at)


def list_piece_files(pieces: Iterable[Piece]) -> list[str]:
    """Return the data and deletion files of pieces, relative to the table's location, each once."""
    files: dict[str, None] = {}
    for piece in pieces:
        is_fragment = piece.startswith("{")
        files |= dict.fromkeys(_fragment_files(FragmentMetadata.from_json(piece)) if is_fragment else [piece])
    return list(files)


def _fragment_files(fragment: FragmentMetadata) -> Iterator[str]:
    yield from (f"data/{file.path}" for file in fragment.files)
    if fragment.deletion_file is not None:
        yield fragment.deletion_file.path(fragment.id)


def _delete_files(files: Iterable[str], at: TableLocation) -> None:
    """Delete files, data files with their blobs, and folders with all that is in them."""
    options, root = dict(at.storage_options), local_folder(at.location)
    with translate_errors(at.location, options):
        session = LanceFileSession(at.location, storage_options=options or None)
        for file in files:
            below = [] if file.startswith("_deletions/") else session.list(file.removesuffix(".lance"))
            for path in (*below, *([file] if PurePosixPath(file).suffix else [])):
                delete_file(at.location, options, path)
            if root and below:
                with suppress(OSError):  # it is not there, or not empty
                    (root / file.removesuffix(".lance")).rmdir()
