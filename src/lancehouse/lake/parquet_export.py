"""Export fragments of a Lance table as Parquet files for Iceberg readers."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import IO, Any, Self

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.lake import chunked_scan
from lancehouse.lake.blobs import BlobReader
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.restricted_rows import RestrictedRows, VisiblePart
from lancehouse.schema.iceberg import iceberg_converter, to_iceberg
from lancehouse.schema.walk import field_ids

Json = dict[str, Any]

SCHEMA_ID = 1
"""Id of the only schema that Iceberg's clients see of a Lance table."""

ROW_GROUP_BYTES = 8 << 20
FILE_BYTES = 128 << 20
"""Bytes of Arrow data in one file; a file that would get more ends early."""

ID_SHIFT = 1_000_000_000
"""Added to the field ids of columns that the table no longer has and whose ids would be taken for others."""

_IDS = frozenset({"id", "element-id", "key-id", "value-id"})
_GUESSED_ROW_BYTES = 64
MEASURED_ROWS = 256
"""Visible rows of a fragment that are read to estimate its size."""


@dataclass(frozen=True, slots=True)
class ExportFragment:
    """A fragment of a version."""

    id: int
    bytes: int
    """Size of its data files, without blobs in other files; 0 of a part of a table."""
    rows: int
    """Number of rows that are not deleted."""
    digest: str
    """Digest of its metadata (data and deletion files), which is the same as long as its rows are."""


@dataclass(frozen=True)
class VersionExporter:
    """Exports one immutable version of a table."""

    table: TableRef
    _dataset: lance.LanceDataset = field(repr=False)
    _like: Json | None = field(default=None, repr=False)
    _restricted: RestrictedRows | None = field(default=None, repr=False)

    @classmethod
    def open(cls, table: TableRef, *, like: Json | None = None, part: VisiblePart | None = None) -> Self:
        """Open the version that an address names.

        Args:
            table: the address.
            like: the table's current schema, if the table was overwritten since this version. Lance then numbers
                columns from 0 again, so a column that is not the same in both gets an id of its own.
            part: what is exported of the table; None for all of it.

        Raises:
            TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError: there is no such table, version or
                branch.
            PermissionDeniedError: the row filter or masks do not fit this version.
        """
        if part is None:
            return cls(table, table.open(), like)
        restricted = part.open(table)
        return cls(table, restricted.dataset, like, restricted)

    @cached_property
    def schema(self) -> Json:
        """Iceberg schema of this version; field ids are the same in all versions."""
        with translate_errors(self.table, self.table.storage_options):
            ids = field_ids(self._dataset.lance_schema.fields())
            schema = to_iceberg(self._dataset.schema, ids, schema_id=SCHEMA_ID)
        if self._like is None:
            return schema
        same = [_column_identity(column) for column in self._like["fields"]]
        columns = [column if _column_identity(column) in same else _shift_ids(column) for column in schema["fields"]]
        return {**schema, "fields": columns}

    @cached_property
    def columns(self) -> Mapping[int, pa.Field[Any]]:
        """Columns of the dataset by Iceberg field id."""
        ids = [column["id"] for column in self.schema["fields"]]
        columns = dict(zip(ids, self._dataset.schema, strict=True))
        if self._restricted is None:
            return columns
        shown = self._restricted.schema
        return {key: shown.field(column.name) for key, column in columns.items() if column.name in shown.names}

    @cached_property
    def fragments(self) -> list[ExportFragment]:
        """All fragments, in order; of a part of a table, those with visible rows, numbered from 0."""
        if self._restricted is not None:
            policy = self._restricted.part.policy
            policy_columns = policy.filter_columns | policy.masks.keys()
            # A filter and masks are by name: another column of that name makes other copies of the same files.
            columns = sorted(
                (column["name"], column["id"]) for column in self.schema["fields"] if column["name"] in policy_columns
            )
            return [
                _number_fragment(fragment, place, rows, columns) for place, (fragment, rows) in enumerate(self._visible)
            ]
        with translate_errors(self.table, self.table.storage_options):
            return [_to_fragment(fragment) for fragment in self._dataset.get_fragments()]

    @cached_property
    def _visible(self) -> list[tuple[ExportFragment, int]]:
        """The fragments with visible rows, and the number of these."""
        assert self._restricted is not None
        counts = [(fragment, self._restricted.count_in(fragment)) for fragment in self._dataset.get_fragments()]
        return [(_to_fragment(fragment), rows) for fragment, rows in counts if rows]

    def has_matching_row(self, fragment: int, condition: str) -> bool:
        """Return whether any row of a fragment matches a condition in Lance's SQL."""
        with translate_errors(self.table, self.table.storage_options):
            scanner = self._get_fragment(fragment).scanner(columns=[], filter=condition, with_row_id=True, limit=1)
            return any(batch.num_rows for batch in scanner.to_batches())

    def row_bytes(self, fragment: ExportFragment, ids: Collection[int]) -> float:
        """Estimate the size of some columns of a row in bytes, without blobs in other files.

        For a part of a table it is estimated from its first rows: the size of files depends on hidden rows and masked
        values, of which the caller must learn nothing.
        """
        widths = [_bit_width(self.columns[key].type) for key in ids]
        fixed_bytes = sum(width or 0 for width in widths) / 8
        if all(widths):
            return fixed_bytes
        size = fragment.bytes if self._restricted is None else self._measure(fragment, frozenset(ids))
        return max(fixed_bytes, size / max(fragment.rows, 1))

    def _measure(self, fragment: ExportFragment, ids: frozenset[int]) -> float:
        """Estimate the size of the visible part of a fragment from its first rows, as they are copied."""
        if (key := (fragment.id, ids)) not in self._measured:
            columns = [column for number, column in self.columns.items() if number in ids]
            rows = range(min(fragment.rows, MEASURED_ROWS))
            size = sum(batch.nbytes for batch in self._batches(fragment, columns, rows, 1.0))
            self._measured[key] = size / max(len(rows), 1) * fragment.rows
        return self._measured[key]

    @cached_property
    def _measured(self) -> dict[tuple[int, frozenset[int]], float]:
        """Sizes of visible parts that were estimated before."""
        return {}

    def write(self, fragment: ExportFragment, ids: Collection[int], rows: range, sink: IO[bytes]) -> int:
        """Write rows of a fragment, counted without deleted ones; columns are given by Iceberg field id.

        Memory is bounded by a few megabytes, or by the largest row.

        Returns:
            How many of the rows, from the first on, were written: fewer than asked for if they are large.

        Raises:
            InvalidInputError: a value does not fit its Iceberg type.
            TableSchemaValidationError: Parquet cannot represent a type.
            OSError: from `sink`.
        """
        try:
            return self._write(fragment, ids, rows, sink)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            # Extension types on a wrong storage type: Lance stores them, but Parquet cannot represent them.
            reason = str(error).partition("\n")[0]
            raise TableSchemaValidationError(f"{self.table}: it cannot be written as Parquet: {reason}") from error

    def _write(self, fragment: ExportFragment, ids: Collection[int], rows: range, sink: IO[bytes]) -> int:
        columns = [column for key, column in self.columns.items() if key in ids]
        convert = iceberg_converter(columns, self.schema)
        repeated = [column.name for column in columns if _is_repetitive(column.type)]
        written = size = 0
        batches = self._batches(fragment, columns, rows, self.row_bytes(fragment, ids))
        with pq.ParquetWriter(
            sink,
            convert.schema,
            compression="zstd",
            compression_level=1,
            store_schema=False,
            use_dictionary=repeated,  # type: ignore[arg-type]
        ) as writer:
            for group in _row_groups(convert.convert_batch(batch) for batch in batches):
                writer.write_table(group, row_group_size=max(group.num_rows, 1))
                written += group.num_rows
                size += group.nbytes
                if size >= FILE_BYTES:
                    break
        batches.close()  # they may go on after the last row group of the file
        _release_memory()
        return written

    def _batches(
        self, fragment: ExportFragment, columns: list[pa.Field[Any]], rows: range, row_bytes: float
    ) -> Generator[pa.RecordBatch]:
        if self._restricted is not None:
            hidden = self._get_fragment(self._visible[fragment.id][0].id)
            yield from self._restricted.read_fragment(hidden, [column.name for column in columns], rows)
            return
        with translate_errors(self.table, self.table.storage_options):
            reader = BlobReader(self.table, self._dataset) if self.table.confinement else None
            yield from chunked_scan.read_fragment(self._get_fragment(fragment.id), columns, rows, row_bytes, reader)

    def _get_fragment(self, fragment: int) -> lance.LanceFragment:
        lance_fragment = self._dataset.get_fragment(fragment)
        if lance_fragment is None:
            raise ValueError(f"there is no fragment {fragment}")
        return lance_fragment


def _column_identity(column: Json) -> tuple[Any, ...]:
    return column["id"], column["name"], column["type"]


def _shift_ids(json: Any) -> Any:
    """Return a field or type with ids that no other column has."""
    if isinstance(json, list):
        return [_shift_ids(item) for item in json]
    if not isinstance(json, dict):
        return json
    return {key: value + ID_SHIFT if key in _IDS else _shift_ids(value) for key, value in json.items()}


def _to_fragment(fragment: lance.LanceFragment) -> ExportFragment:
    metadata = fragment.metadata
    described = json.dumps(metadata.to_json(), sort_keys=True, default=str)
    sizes = [file.file_size_bytes or 0 for file in metadata.files]
    size = sum(sizes) if all(sizes) else metadata.physical_rows * _GUESSED_ROW_BYTES
    return ExportFragment(
        fragment.fragment_id, size, fragment.count_rows(), sha256(described.encode()).hexdigest()[:32]
    )


def _number_fragment(
    fragment: ExportFragment, place: int, rows: int, columns: Sequence[tuple[str, int]]
) -> ExportFragment:
    """Return a fragment as the part of it that is visible, without its id and size, which depend on hidden rows."""
    digest = sha256(json.dumps([fragment.digest, columns]).encode()).hexdigest()[:32]
    return replace(fragment, id=place, bytes=0, rows=rows, digest=digest)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches to row groups."""
    batch_group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        batch_group.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(batch_group)
            batch_group, size = [], 0
    if batch_group:
        yield pa.Table.from_batches(batch_group)


def _is_repetitive(dtype: pa.DataType) -> bool:
    """Return whether dictionary encoding pays off: for vectors, blobs and numbers it rarely does."""
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_dictionary(dtype)


def _bit_width(dtype: pa.DataType) -> int | None:
    """Return the size of a value in bits; None if values differ in size."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _bit_width(dtype.storage_type)
    if isinstance(dtype, pa.FixedSizeListType):
        element = _bit_width(dtype.value_type)
        return element and element * dtype.list_size
    try:
        return None if isinstance(dtype, pa.DictionaryType) else dtype.bit_width
    except ValueError:
        return None


def _release_memory() -> None:
    """Make the allocators of Arrow and of Lance (the system's) return unused memory."""
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()
