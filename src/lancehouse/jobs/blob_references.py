"""Read blobs by references, through a catalog and with the rights of its caller, a few megabytes at a time.

References come as data, and whoever wrote the data chose what they name. So nothing in them is taken for a location:
the table is looked up by name in the reader's own catalog, its version has to be the one that the reference was made
of, and the column has to be one of blobs. What a reference says of the size decides how many bytes are read and held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import lance
import pyarrow as pa
from lance_namespace import LanceNamespace
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TableVersionNotFoundError,
)

from lancehouse.connection import Connection
from lancehouse.identifiers import format_levels, parse_levels
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.schema.array_conversion import build_struct
from lancehouse.schema.blob_references import REFERENCE, Place, is_blob

Batches = Iterator[pa.RecordBatch]

WINDOW_BYTES = 16 << 20
"""Bytes of blobs that are read together; a larger blob is read alone."""
WINDOW_ROWS = 4096
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Reference:
    """A reference whose values have the right types, and nothing else is known of them."""

    table: str
    branch: str | None
    version: int
    commit: str
    column: str
    row: int
    size: int | None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Parse a reference as a row of Spark, a mapping, or a scalar of Arrow has it.

        Raises:
            InvalidInputError: it is none.
        """
        fields = value.as_py() if isinstance(value, pa.Scalar) else value
        fields = fields.asDict() if hasattr(fields, "asDict") else fields
        if not isinstance(fields, Mapping) or fields.keys() != {field.name for field in REFERENCE}:
            raise InvalidInputError(
                "this is no reference to a blob: a value of a column that was read with blobs='reference' is one"
            )
        for field in REFERENCE:
            is_right = isinstance(fields[field.name], str if field.type == pa.string() else int)
            if not is_right and (fields[field.name] is not None or field.name not in ("branch", "size")):
                raise InvalidInputError(f"a reference to a blob has {field.name} {fields[field.name]!r}")
        reference = cls(**{field.name: fields[field.name] for field in REFERENCE})
        for name in ("version", "row", "size"):
            if not 0 <= (getattr(reference, name) or 0) <= _LARGEST:
                raise InvalidInputError(f"a reference to a blob has {name} {getattr(reference, name)}")
        return reference

    @property
    def source(self) -> tuple[str, str | None, int, str]:
        """What names the version."""
        return self.table, self.branch, self.version, self.commit


@dataclass(frozen=True, slots=True)
class ReferencedBlobs:
    """Reads blobs by references, through one catalog; can be sent to tasks, with the properties of the connection.

    Args:
        connection: the catalog in which tables are looked up.
        tables: ids of the tables whose blobs may be read; None for all that the catalog lets its caller read.
    """

    connection: Connection | LanceNamespace | None = dataclasses.field(repr=False)
    tables: frozenset[tuple[str, ...]] | None = None
    job: str = dataclasses.field(default_factory=lambda: uuid4().hex, repr=False)

    def open(self, reference: Any) -> lance.BlobFile | None:
        """Open a blob as a file: `read`, `seek` and `read_range` fetch what they are asked for, not the whole.

        Args:
            reference: a value of a column of references: a row of Spark, a dict, or a scalar of Arrow.

        Returns:
            The file; None if the reference, or the blob, is null.

        Raises:
            InvalidInputError: it is no reference, or names no blob.
            TableNotFoundError, PermissionDeniedError: this catalog has no such table, or does not let its caller read
                it.
            TableVersionNotFoundError: the version of the reference was cleaned up.
            ConcurrentModificationError: the version is not the one that the reference was made of.
        """
        if reference is None or (isinstance(reference, pa.Scalar) and not reference.is_valid):
            return None
        wanted = _Reference.parse(reference)
        return self._call(wanted, lambda dataset: dataset.take_blobs(wanted.column, addresses=[wanted.row])[0])

    def read(self, references: Any) -> pa.Array[Any]:
        """Return the bytes of an array of references, all at once; null for null.

        Args:
            references: an array of Arrow, or a sequence of what `open` takes.

        Raises:
            LanceNamespaceError: see `open`.
        """
        return self._read(self._measure(references))

    def fill(self, batches: Batches, places: Sequence[Place]) -> Batches:
        """Replace references by bytes in batches, which are split so that few megabytes are held at once.

        Args:
            batches: rows.
            places: where the references are.

        Raises:
            LanceNamespaceError: see `open`.
        """
        for batch in batches:
            parsed = {place: self._measure(_pick(batch.columns, place)) for place in places}
            sizes = [
                sum(reference.size or 0 for reference in row if reference) for row in zip(*parsed.values(), strict=True)
            ]
            for part in _split_by_size(sizes):
                wanted = {place: references[part] for place, references in parsed.items()}
                arrays = [self._fill_array(array[part], (at,), wanted) for at, array in enumerate(batch.columns)]
                yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _fill_array(self, array: Any, at: Place, wanted: Mapping[Place, Sequence[_Reference | None]]) -> Any:
        if at in wanted:
            return self._read(wanted[at])
        if not any(place[: len(at)] == at for place in wanted):
            return array
        children = [self._fill_array(child, (*at, number), wanted) for number, child in enumerate(array.flatten())]
        fields = [pa.field(old.name, new.type) for old, new in zip(array.type, children, strict=True)]
        return build_struct(array, fields, children)

    def _measure(self, references: Any) -> list[_Reference | None]:
        """Parse references; the sizes of blobs whose references tell none are asked for."""
        values = references.to_pylist() if isinstance(references, pa.Array | pa.ChunkedArray) else references
        parsed = [None if value is None else _Reference.parse(value) for value in values]
        for place, reference in enumerate(parsed):
            if reference is not None and reference.size is None:
                opened = self.open(values[place])
                size = 0 if opened is None else opened.size()
                parsed[place] = _Reference(*reference.source, reference.column, reference.row, size)
        return parsed

    def _read(self, references: Sequence[_Reference | None]) -> pa.Array[Any]:
        groups: dict[tuple[object, ...], dict[_Reference, None]] = {}
        for reference in references:
            if reference is not None:
                groups.setdefault((reference.source, reference.column), {})[reference] = None
        blobs: dict[_Reference, bytes | None] = {}
        for group in groups.values():
            blobs.update(self._read_group(sorted(group, key=lambda reference: reference.row)))
        return pa.array(
            [None if reference is None else blobs[reference] for reference in references], pa.large_binary()
        )

    def _read_group(self, references: Sequence[_Reference]) -> Iterator[tuple[_Reference, bytes | None]]:
        """Read blobs of one column of a version; neighbours in a file are read with one request."""
        first = references[0]
        ranges = [(reference.row, 0, reference.size or 0) for reference in references]
        blobs = self._call(
            first,
            lambda dataset: dataset.read_blob_ranges(first.column, ranges, selector="addresses", preserve_order=True),
        )
        return zip(references, (data for _, _, data in blobs), strict=True)

    def _call(self, reference: _Reference, call: Callable[[lance.LanceDataset], Any]) -> Any:
        """Call a function with the version of a reference, after checking that it has such a column of blobs."""
        table, dataset = self._open_version(reference)
        if not _has_blobs_at(dataset.schema, reference.column.split(".")):
            raise InvalidInputError(
                f"{table} has no column of blobs called {reference.column!r}, which a reference to a blob names"
            )
        try:
            with translate_errors(table, table.storage_options):
                return call(dataset)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{table} has no blob in column {reference.column} as a reference names it: {error}"
            ) from error

    def _open_version(self, reference: _Reference) -> tuple[TableRef, lance.LanceDataset]:
        if not (levels := parse_levels(reference.table)):
            raise InvalidInputError("a reference to a blob has no table")
        if self.connection is None:
            raise InvalidInputError(
                f"a reference to a blob names table {reference.table} of a catalog, and is read through one: write to "
                "a table of a catalog, or read the blobs first, with read_blobs"
            )
        if self.tables is not None and levels not in self.tables:
            allowed = ", ".join(sorted(map(format_levels, self.tables)))
            raise PermissionDeniedError(
                f"a reference to a blob names table {reference.table}, and only those of {allowed} may be read"
            )
        pinned = PinnedVersion(
            TableAddress(self.connection, levels), reference.version, reference.branch, self.job, reference.commit
        )
        try:
            return pinned.open()
        except TableVersionNotFoundError as error:
            raise TableVersionNotFoundError(
                f"table {reference.table} has no version {reference.version} any more, which a reference to a blob "
                "names: it was cleaned up. Read the table again; a tag keeps a version as long as references to it are "
                "needed"
            ) from error
        except ConcurrentModificationError as error:
            raise ConcurrentModificationError(
                f"version {reference.version} of table {reference.table} is not the one that a reference to a blob was "
                "made of: the table was dropped and made anew, or the reference is of another catalog"
            ) from error


def _pick(arrays: Sequence[Any], place: Place) -> Any:
    """Return the array at a place; a field is null where its struct is."""
    first, *rest = place
    return _pick(arrays[first].flatten(), tuple(rest)) if rest else arrays[first]


def _has_blobs_at(fields: Any, steps: Sequence[str]) -> bool:
    """Return whether there is a column of blobs at a path through structs."""
    column = next((field for field in fields if field.name == steps[0]), None)
    if column is None or len(steps) == 1:
        return column is not None and is_blob(column)
    return isinstance(column.type, pa.StructType) and _has_blobs_at(column.type, steps[1:])


def _split_by_size(sizes: Sequence[int]) -> Iterator[slice]:
    """Split rows into windows whose blobs are read together."""
    first = held = 0
    for place, size in enumerate(sizes):
        if place > first and (held + size > WINDOW_BYTES or place - first == WINDOW_ROWS):
            yield slice(first, place)
            first, held = place, 0
        held += size
    if first < len(sizes):
        yield slice(first, len(sizes))
