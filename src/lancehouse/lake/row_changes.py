"""Delete, update and rewrite rows: many processes write fragments and deletion files, one commits the change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self, TypeVar

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, RowIdSequence
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableSchemaValidationError,
)

from lancehouse.identifiers import quote_name
from lancehouse.lake import commits
from lancehouse.lake.chunked_scan import READ_AHEAD, USUAL_BATCH_ROWS, batch_rows, has_blobs, has_large_rows
from lancehouse.lake.commits import (
    ColumnsChangedError,
    NewFragment,
    Properties,
    TableLocation,
    find_version,
    locate_table,
    parse_new_fragments,
    write_uncommitted,
)
from lancehouse.lake.dataset import OFFSET, OFFSET_BITS, TableRef, enclose_sql, find_field_ids
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.scans import BATCH_ROWS, BLOB_ROWS
from lancehouse.schema.array_conversion import build_struct, narrow_floats
from lancehouse.schema.blob_references import to_blobs
from lancehouse.schema.walk import nullable_hint, require_columns

T = TypeVar("T")

FragmentWriter = Callable[[pa.RecordBatchReader], list[NewFragment]]
"""Writes rows as fragments that are not committed yet."""

ATTEMPTS = 10
"""Number of attempts of an operation whose commit conflicts with others."""

ADDRESS, ROW = "_rowaddr", "_rowid"

MERGE_MARKER = 2**32 - 1
"""Id of a fragment that no table has; every merge claims to remove it, so that Lance refuses one of two merges.

Two merges might insert the same key, and without this they would share no fragment that makes Lance see the conflict.
"""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What one process has changed in a version; serializable as JSON."""

    updated: tuple[NewFragment, ...] = ()
    """Fragments that lose some rows: their metadata with the new deletion files, without data files."""
    removed: tuple[int, ...] = ()
    """Ids of fragments that lose all rows."""
    new: tuple[NewFragment, ...] = ()
    """Fragments with new rows."""
    rows: int = 0
    """Number of rows deleted or replaced."""

    def __bool__(self) -> bool:
        return bool(self.updated or self.removed or self.new)

    @property
    def files(self) -> tuple[NewFragment, ...]:
        """Written files, as `discard_fragments` takes them."""
        return (*self.new, *self.updated)

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps([self.updated, self.removed, self.new, self.rows])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse what `to_json` returned."""
        updated, removed, new, rows = json.loads(text)
        return cls(tuple(updated), tuple(removed), tuple(new), rows)


def merge_changes(changes: Iterable[RowChange]) -> RowChange:
    """Combine changes of different fragments of one version."""
    parts = list(changes)
    return RowChange(
        tuple(piece for part in parts for piece in part.updated),
        tuple(fragment for part in parts for fragment in part.removed),
        tuple(piece for part in parts for piece in part.new),
        sum(part.rows for part in parts),
    )


def delete_where(table: TableRef, dataset: lance.LanceDataset, fragments: Sequence[int], where: str) -> RowChange:
    """Delete the rows of some fragments that match a filter, using scalar indices."""
    with translate_errors(table, table.storage_options):
        scanner = dataset.scanner(
            columns=[],
            filter=enclose_sql(where),
            with_row_address=True,
            fragments=_get_fragments(dataset, fragments),
            **_batch_arguments(dataset),
        )
        addresses = [batch.column(ADDRESS) for batch in scanner.to_batches()]
    return delete_rows(table, dataset, offsets_by_fragment(addresses))


def delete_rows(table: TableRef, dataset: lance.LanceDataset, offsets: Mapping[int, Any]) -> RowChange:
    """Write deletion files for rows, given by their physical offsets in their fragments.

    Each row must exist and be given once.
    """
    updated, removed = list[NewFragment](), list[int]()
    with translate_errors(table, table.storage_options):
        for fragment, rows in offsets.items():
            metadata = dataset.get_fragment(fragment).delete_rows(rows)
            if metadata is None:
                removed.append(fragment)
            else:
                bare = FragmentMetadata(metadata.id, [], metadata.physical_rows, metadata.deletion_file)
                updated.append(json.dumps(bare.to_json()))
    return RowChange(tuple(updated), tuple(removed), rows=sum(map(len, offsets.values())))


def offsets_by_fragment(addresses: Sequence[Any]) -> dict[int, Any]:
    """Group row addresses, given as Arrow arrays, by fragment; return the sorted offsets within each."""
    if not addresses:
        return {}
    row_addresses = np.sort(
        np.concatenate([array.to_numpy(zero_copy_only=False) for array in addresses]).astype(np.uint64)
    )
    fragments, starts = np.unique(row_addresses >> np.uint64(OFFSET_BITS), return_index=True)
    parts = np.split((row_addresses & np.uint64(OFFSET)).astype(np.uint32), starts[1:])
    return {int(fragment): part for fragment, part in zip(fragments, parts, strict=True)}


@dataclass(frozen=True, slots=True)
class ColumnUpdate:
    """Columns to set to SQL expressions, in the rows that match `where` or in all."""

    expressions: Mapping[str, str]
    where: str | None = None

    def check(self, table: TableRef, dataset: lance.LanceDataset) -> None:
        """Validate the update before anything is read.

        Raises:
            InvalidInputError: nothing is set, or an expression or the condition cannot be parsed.
            TableColumnNotFoundError: the table has no such column.
            TableSchemaValidationError: the type of an expression cannot be cast to the column's.
        """
        if not self.expressions:
            raise InvalidInputError("update needs columns to set, each to an expression of SQL")
        require_columns(table, self.expressions, dataset.schema.names)
        with translate_errors(table, table.storage_options):
            scanner = self._scanner(dataset)
            scanner.explain_plan()
            projected: pa.Schema = scanner.projected_schema
        cast_to_table(pa.RecordBatch.from_pylist([], projected), dataset.schema)

    def update(
        self, table: TableRef, dataset: lance.LanceDataset, fragments: Sequence[int], write: FragmentWriter
    ) -> RowChange:
        """Write the matching rows of some fragments with new values, and delete the old ones, using scalar indices.

        Raises:
            InvalidInputError: a value does not fit its column.
        """
        rows = _RowRewriter(table, dataset, self._scanner(dataset, fragments))
        if not rows.has_rows():
            return RowChange()
        new = rows.write_all(write)
        if dataset.has_stable_row_ids:
            new = assign_row_ids(new, rows.original_values(ROW))
        return replace(
            delete_rows(table, dataset, offsets_by_fragment([rows.original_values(ADDRESS)])), new=tuple(new)
        )

    def _scanner(self, dataset: lance.LanceDataset, fragments: Sequence[int] | None = None) -> lance.LanceScanner:
        columns = {name: enclose_sql(self.expressions.get(name, quote_name(name))) for name in dataset.schema.names}
        usual = BLOB_ROWS if any(map(has_blobs, dataset.schema)) else BATCH_ROWS
        return dataset.scanner(
            columns=columns,
            filter=enclose_sql(self.where),
            with_row_address=True,
            with_row_id=True,
            fragments=None if fragments is None else _get_fragments(dataset, fragments),
            blob_handling="all_binary",
            **{"batch_size": usual, **_batch_arguments(dataset, usual)},
        )


class _RowRewriter:
    """Streams the rows of a scan into new files, and records their addresses and ids."""

    def __init__(self, table: TableRef, dataset: lance.LanceDataset, scanner: lance.LanceScanner) -> None:
        self._table, self._schema = table, dataset.schema
        self._batches: Iterator[pa.RecordBatch] = filter(len, scanner.to_batches())
        self._first: pa.RecordBatch | None = None
        self._originals: dict[str, list[Any]] = {ADDRESS: [], ROW: []}

    def has_rows(self) -> bool:
        """Read the first batch; return whether there is any row."""
        with translate_errors(self._table, self._table.storage_options):
            self._first = next(self._batches, None)
        return self._first is not None

    def write_all(self, write: FragmentWriter) -> list[NewFragment]:
        """Write all rows."""
        assert self._first is not None
        stream = map(self._record_and_cast, chain([self._first], self._batches))
        return write(pa.RecordBatchReader.from_batches(self._schema, stream))

    def original_values(self, column: str) -> Any:
        """Return the addresses or ids of the rows that were written."""
        return pa.chunked_array(self._originals[column], pa.uint64())

    def _record_and_cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, arrays in self._originals.items():
            # Copied, because a column from Lance keeps all other columns of its batch in memory.
            arrays.append(pa.array(np.array(batch.column(column))))
        return cast_to_table(batch, self._schema)


def cast_to_table(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast rows to a table's schema: its columns by name, in its types.

    Args:
        batch: rows of a scan, with blobs as binary values.
        schema: of the table.

    Raises:
        TableSchemaValidationError: a type cannot be cast to the column's.
        InvalidInputError: a value does not fit its column.
    """
    arrays = []
    for field in schema:
        array = batch.column(field.name)
        try:
            array = _cast_array(array, field)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {field.name}: a value does not fit {field.type} ({error})") from error
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise TableSchemaValidationError(
                f"column {field.name}: {array.type} does not become {field.type} ({error})"
            ) from error
        if array.null_count and not field.nullable:
            raise InvalidInputError(
                f"column {field.name}: a null, which the table does not allow there; {nullable_hint(field.name)}"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast_array(array: Any, field: Any) -> Any:
    dtype: Any = field.type
    if pa.types.is_floating(array.type) and pa.types.is_floating(dtype) and dtype.bit_width < array.type.bit_width:
        return narrow_floats(dtype)(array)
    if not has_blobs(field) or array.type == dtype:
        return array.cast(dtype)
    if isinstance(dtype, pa.StructType):
        fields = [dtype.field(place) for place in range(dtype.num_fields)]
        return build_struct(array, fields, [_cast_array(array.field(child.name), child) for child in fields])
    if not isinstance(dtype, pa.BaseExtensionType):
        return array.cast(dtype)
    return dtype.wrap_array(to_blobs(array, dtype.storage_type))


def assign_row_ids(new_fragments: Sequence[NewFragment], ids: Any) -> list[NewFragment]:
    """Set the row ids of fragments that hold moved rows, in order; needed for tables with stable row ids."""
    moved, first = list[NewFragment](), 0
    for fragment in parse_new_fragments(new_fragments):
        row_ids = ids.slice(first, fragment.physical_rows)
        meta = RowIdSequence(row_ids).to_inline_metadata() if len(row_ids) else None
        moved.append(json.dumps(replace(fragment, row_id_meta=meta).to_json()))
        first += fragment.physical_rows
    return moved


def commit_deletion(
    table: TableRef,
    at: TableLocation,
    dataset: lance.LanceDataset,
    change: RowChange,
    where: str,
    properties: Properties = None,
) -> int:
    """Commit a deletion and return the new version; the current version if no row was deleted.

    Raises:
        ConcurrentModificationError: another commit has changed one of the fragments.
    """
    if not change:
        return int(dataset.version)
    operation = lance.LanceOperation.Delete(_add_deletions(dataset, change), list(change.removed), where)
    return commits.commit(table, at, operation, dataset.version, properties)


def commit_rewrite(
    table: TableRef,
    at: TableLocation,
    dataset: lance.LanceDataset,
    change: RowChange,
    columns: Iterable[str],
    properties: Properties = None,
    *,
    is_merge: bool = False,
) -> int:
    """Commit rows that replace others and return the new version; the current version if nothing changed.

    Args:
        table: the table to change.
        at: its location.
        dataset: the version that was changed.
        change: the change.
        columns: names of the columns whose values may have changed.
        properties: to store with the transaction.
        is_merge: whether rows may have been inserted because their key did not exist.

    Raises:
        ConcurrentModificationError: another commit has changed one of the fragments, or merged rows.
    """
    if not change:
        return int(dataset.version)
    if is_merge:
        _refuse_concurrent_merge(table, dataset.version)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=[*change.removed, *([MERGE_MARKER] if is_merge else [])],
        updated_fragments=_add_deletions(dataset, change),
        new_fragments=parse_new_fragments(change.new),
        fields_for_preserving_frag_bitmap=sorted(find_field_ids(dataset, set(columns))),
        update_mode="rewrite_rows",
    )
    return commits.commit(table, at, operation, dataset.version, properties)


def _refuse_concurrent_merge(table: TableRef, base: int) -> None:
    """Raise if rows were written into new fragments since `base`: pylance's own merges do not set `MERGE_MARKER`."""
    if (version := find_version(replace(table, version=None), _is_rewrite, after=base)) is not None:
        raise ConcurrentModificationError(f"{table}: rows were updated or merged in version {version}")


def _is_rewrite(transaction: lance.Transaction) -> bool:
    return isinstance(transaction.operation, lance.LanceOperation.Update) and bool(transaction.operation.new_fragments)


def _add_deletions(dataset: lance.LanceDataset, change: RowChange) -> list[FragmentMetadata]:
    """Return the version's metadata of the changed fragments, with their new deletion files."""
    return [
        replace(dataset.get_fragment(fragment.id).metadata, deletion_file=fragment.deletion_file)
        for fragment in parse_new_fragments(change.updated)
    ]


def _get_fragments(dataset: lance.LanceDataset, fragments: Sequence[int]) -> list[lance.LanceFragment]:
    return [dataset.get_fragment(number) for number in fragments]


def _batch_arguments(dataset: lance.LanceDataset, usual: int = USUAL_BATCH_ROWS) -> dict[str, int]:
    """Return scanner arguments that bound the memory of a scan if rows are large."""
    if not has_large_rows(dataset):
        return {}
    return {"batch_size": min(batch_rows(dataset), usual), "batch_readahead": 1, "io_buffer_size": READ_AHEAD}


def delete_in_batches(table: TableRef, where: str) -> int:
    """Delete the rows that match, in this process and in bounded memory however large rows are; return the version."""

    def attempt() -> int:
        with table.dataset() as dataset:
            change, at = delete_where(table, dataset, _fragment_ids(dataset), where), locate_table(table)
            with commits.discard_if_refused(change.files, at):
                return commit_deletion(table, at, dataset, change, where)

    return retry_conflicts(table, attempt)


def update_in_batches(table: TableRef, setting: ColumnUpdate) -> tuple[int, int]:
    """Update the rows that match, in this process and in bounded memory; return their number and the version."""

    def attempt() -> tuple[int, int]:
        at = locate_table(table)
        with table.dataset() as dataset:
            setting.check(table, dataset)
            change = setting.update(
                table, dataset, _fragment_ids(dataset), lambda rows: write_uncommitted(table, at, rows, mode="append")
            )
            at = locate_table(table)  # with new credentials: the rows may have taken long
            with commits.discard_if_refused(change.files, at):
                return change.rows, commit_rewrite(table, at, dataset, change, setting.expressions)

    return retry_conflicts(table, attempt)


def _fragment_ids(dataset: lance.LanceDataset) -> list[int]:
    return [fragment.fragment_id for fragment in dataset.get_fragments()]


def retry_conflicts(about: object, attempt: Callable[[], T]) -> T:
    """Call `attempt` until its commit does not conflict with others, up to `ATTEMPTS` times.

    Raises:
        ConcurrentModificationError: every attempt conflicted.
    """
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except ColumnsChangedError:
            raise
        except ConcurrentModificationError as error:
            last = error
    raise ConcurrentModificationError(
        f"{about}: others have changed the same rows each of {ATTEMPTS} times that this was tried; run it again"
    ) from last
