"""Read blobs by their descriptions, from locations that may be opened; make references of descriptions.

A scan that returns blobs as bytes has Lance follow whatever location the data names. So a scan of a confined table
returns descriptions, and the bytes are read here, by the very descriptions that were checked: changing a file between
check and read gains a writer nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from lancehouse import locations
from lancehouse.identifiers import format_levels
from lancehouse.lake.confinement import require_no_link
from lancehouse.lake.dataset import MAIN, OFFSET_BITS, TableRef, open_files, require_below
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.schema.array_conversion import build_struct
from lancehouse.schema.blob_references import REFERENCE, is_blob
from lancehouse.schema.walk import field_ids

ROW_ADDRESS = "_rowaddr"
INLINE, PACKED, DEDICATED, EXTERNAL = range(4)
"""Kind of storage of a blob: in the data file, in a file with others, in a file of its own, in an external file."""
GAP_BYTES = 64 << 10
"""Blobs of one file that are less than this many bytes apart are read with one request."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _BlobRange:
    """Byte range of one blob."""

    row: int
    base: str
    """A folder, or the file itself."""
    file: str
    """Path below the folder; empty if `base` is the file."""
    position: int
    size: int


class BlobReader:
    """Reads blobs of one version of a table, within its confinement if it has one."""

    def __init__(self, table: TableRef, dataset: lance.LanceDataset) -> None:
        self._confinement = table.confinement
        self._dataset = dataset
        self._fragment: tuple[int, Sequence[Any]] | None = None
        """Id and data files of the fragment that was read last."""
        self._location: str = dataset.uri
        self._folder = (
            self._location if table.branch in (None, MAIN) else f"{self._location.rstrip('/')}/tree/{table.branch}"
        )

    def fill_blobs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the blob descriptions in a batch by the blobs; the batch needs the column of row addresses.

        Raises:
            PermissionDeniedError: a blob is at a location that must not be opened; none of its column is read.
        """
        addresses: list[Any] = batch.column(ROW_ADDRESS).to_pylist()
        arrays, fields = [], []
        for name in batch.schema.names:
            if name != ROW_ADDRESS:
                column = self._dataset.schema.field(name)
                values = self._fill_column((name,), column, batch.column(name), addresses)
                arrays.append(values)
                fields.append(pa.field(name, values.type, column.nullable))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def blob_sizes(self, batch: pa.RecordBatch) -> list[int]:
        """Return the total size in bytes of each row's blobs, by their descriptions."""
        addresses: list[Any] = batch.column(ROW_ADDRESS).to_pylist()
        totals = [0] * batch.num_rows

        def add(path: Path, described: Any) -> Any:
            for blob in self._ranges(path, described, addresses):
                totals[blob.row] += blob.size
            return described

        for name in batch.schema.names:
            if name != ROW_ADDRESS:
                _map_blobs((name,), self._dataset.schema.field(name), batch.column(name), add)
        return totals

    def _fill_column(self, path: Path, column: pa.Field[Any], array: Any, addresses: list[int]) -> Any:
        def read(path: Path, described: Any) -> Any:
            values: list[bytes | None] = [None] * len(described)
            for blob, data in self._read_ranges(list(self._ranges(path, described, addresses))):
                values[blob.row] = data
            return pa.array(values, pa.large_binary())

        return _map_blobs(path, column, array, read)

    def _ranges(self, path: Path, described: Any, addresses: Sequence[int]) -> Iterator[_BlobRange]:
        """Yield the byte ranges of a column's blobs, after checking that each location may be opened."""
        for row, description in enumerate(described.to_pylist()):
            if description is None:
                continue
            kind, position, size = description.get("kind", INLINE), description["position"], description["size"]
            if kind == EXTERNAL:
                base, file = self._locate_external(description["blob_uri"], description["blob_id"])
                # The description of a blob that is a whole file has no size.
                size = size or self._dataset.take_blobs(".".join(path), addresses=[addresses[row]])[0].size()
            else:
                base, file = self._locate_own(addresses[row] >> OFFSET_BITS, path, kind, description.get("blob_id", 0))
            yield _BlobRange(row, base, file, position, size)

    def _locate_external(self, uri: str, base: int) -> tuple[str, str]:
        """Return the file of an external blob: its own URI, or a path below a base path, which was checked before."""
        if locations.is_uri(uri):
            if self._confinement is not None and not locations.is_inside(uri, [self._location]):
                self._confinement.require_blob(uri)
            return uri, ""
        if base not in self._bases:
            raise InvalidInputError(f"the table has an external blob, {uri!r}, below base path {base}, which it lacks")
        folder: str = self._bases[base].path
        require_below(folder, uri)
        if ":" in uri.partition("/")[0]:
            raise InvalidInputError(f"the table has an external blob, {uri!r}, which is neither a path nor an address")
        self._require_plain(folder, uri)
        return folder, uri

    def _locate_own(self, fragment: int, path: Path, kind: int, blob_id: int) -> tuple[str, str]:
        """Return the data file of a column in a fragment, or the file of blobs beside it."""
        field = self._field_ids[path]
        data = next((file for file in self._data_files(fragment) if field in file.fields), None)
        if data is None or kind not in (INLINE, PACKED, DEDICATED):
            raise InvalidInputError(f"column {'.'.join(path)} has a blob that cannot be found: kind {kind}")
        file = data.path
        if kind != INLINE:
            # Lance names these files by the bits of the blob's number, lowest first.
            file = f"{file.removesuffix('.lance')}/{f'{blob_id:032b}'[::-1]}.blob"
        if data.base_id is None:
            base, file = self._folder, f"data/{file}"
        else:
            base = self._bases[data.base_id].path
            file = f"data/{file}" if self._bases[data.base_id].is_dataset_root else file
        self._require_plain(base, file)
        return base, file

    def _require_plain(self, base: str, file: str) -> None:
        if self._confinement is not None and (folder := locations.local_folder(base)) is not None:
            require_no_link(folder, file)

    def _read_ranges(self, ranges: Sequence[_BlobRange]) -> Iterator[tuple[_BlobRange, bytes]]:
        for group in _group_ranges(ranges):
            session = open_files(group[0].base, self._storage_options)
            start = group[0].position
            end = max(blob.position + blob.size for blob in group)
            data = session.read_range(group[0].file, start, end - start) if end > start else b""
            for blob in group:
                yield blob, data[blob.position - start : blob.position - start + blob.size]

    def _data_files(self, fragment: int) -> Sequence[Any]:
        if self._fragment is None or self._fragment[0] != fragment:
            self._fragment = fragment, self._dataset.get_fragment(fragment).metadata.files
        return self._fragment[1]

    @cached_property
    def _field_ids(self) -> dict[Path, int]:
        return field_ids(self._dataset.lance_schema.fields())

    @cached_property
    def _bases(self) -> dict[int, Any]:
        return dict(self._dataset.base_paths())

    @cached_property
    def _storage_options(self) -> dict[str, str] | None:
        options: dict[str, str] | None = self._dataset.latest_storage_options()
        return options


class BlobReferrer:
    """Makes references to the blobs of one version of a table, in place of their descriptions.

    Args:
        table: the table, by its name in a catalog.
        dataset: the version.
        described: schema of the batches, as a scan returns it: with descriptions and row addresses.

    Raises:
        InvalidInputError: the table is named by its location, and references name tables of a catalog.
    """

    def __init__(self, table: TableRef, dataset: lance.LanceDataset, described: pa.Schema) -> None:
        if not table.id:
            raise InvalidInputError(
                f"{table} is named by its location, and references to blobs name tables of a catalog, through which "
                "they are read: name the table by its catalog, or read blobs as bytes"
            )
        self._described = described
        self._source: dict[str, str | int | None] = {
            "table": format_levels(table.id),
            "branch": None if table.branch == MAIN else table.branch,
            "version": dataset.version,
            "commit": read_transaction_uuid(dataset),
        }

    def schema(self, *, with_row_address: bool) -> pa.Schema:
        """Return the schema of batches with references."""
        return self.refer(pa.RecordBatch.from_pylist([], self._described), with_row_address=with_row_address).schema

    def refer(self, batch: pa.RecordBatch, *, with_row_address: bool) -> pa.RecordBatch:
        """Replace descriptions by references; row addresses are dropped unless they are wanted."""
        addresses = batch.column(ROW_ADDRESS)

        def change(path: Path, described: Any) -> Any:
            source = {**self._source, "column": ".".join(path)}
            return _to_references(source, addresses, described)

        arrays, fields = [], []
        for column, array in zip(self._described, batch.columns, strict=True):
            if column.name != ROW_ADDRESS or with_row_address:
                values = _map_blobs((column.name,), column, array, change)
                arrays.append(values)
                fields.append(column if values is array else pa.field(column.name, values.type, column.nullable))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _to_references(source: Mapping[str, str | int | None], addresses: Any, described: Any) -> Any:
    sizes = described.field("size").cast(pa.int64())
    if described.type.get_field_index("kind") >= 0:
        # The description of an external blob that is a whole file has no size.
        is_external = pc.equal(described.field("kind"), pa.scalar(EXTERNAL, pa.uint8()))
        is_unknown = pc.and_(is_external, pc.equal(sizes, pa.scalar(0, pa.int64())))
        sizes = pc.if_else(is_unknown, pa.scalar(None, pa.int64()), sizes)
    columns = {"row": addresses.cast(pa.int64()), "size": sizes}
    children = [
        columns[field.name]
        if field.name in columns
        else pa.repeat(pa.scalar(source[field.name], field.type), len(sizes))
        for field in REFERENCE
    ]
    return build_struct(described, list(REFERENCE), children)


def _map_blobs(path: Path, column: pa.Field[Any], array: Any, change: Callable[[Path, Any], Any]) -> Any:
    """Apply a function to the blob descriptions in an array; blobs can be nested in structs, but not in lists."""
    if is_blob(column):
        return change(path, array)
    if not isinstance(column.type, pa.StructType):
        return array
    parts, fields = [], []
    for part, described in zip(column.type, array.flatten(), strict=True):
        values = _map_blobs((*path, part.name), part, described, change)
        parts.append(values)
        fields.append(pa.field(part.name, values.type, part.nullable))
    return build_struct(array, fields, parts)


def _group_ranges(ranges: Iterable[_BlobRange]) -> Iterator[list[_BlobRange]]:
    """Group ranges of the same file that are close together, to be read with one request."""
    group: list[_BlobRange] = []
    end = 0
    for blob in sorted(ranges, key=lambda blob: (blob.base, blob.file, blob.position)):
        is_same_file = group and (group[0].base, group[0].file) == (blob.base, blob.file)
        if group and not (is_same_file and blob.position <= end + GAP_BYTES):
            yield group
            group, end = [], 0
        group.append(blob)
        end = max(end, blob.position + blob.size)
    if group:
        yield group
