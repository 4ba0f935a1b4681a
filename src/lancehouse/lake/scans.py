"""Scan one version of a table in parts that can be read by different processes; select a version by tag or time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from itertools import groupby
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.lake.blobs import BlobReferrer
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import find_recorded_transaction, to_millis
from lancehouse.schema.definitions import COMPANION as COMPANION
from lancehouse.schema.definitions import COMPUTED as COMPUTED
from lancehouse.schema.definitions import shown_columns

BATCH_ROWS = 1 << 15
"""Largest number of rows in a batch."""
BATCH_BYTES = 4 << 20
"""Size in bytes of a batch whose rows are long because of vectors: it fits a processor's cache and workers' memory."""
BLOB_ROWS = 64
"""Rows in a batch if one row may have many megabytes."""

REFERENCE_ROWS = 1 << 13
"""Rows in a batch with references to blobs, which have about 100 bytes each."""
BLOB_FORMS = ("bytes", "reference")
"""How a scan returns blobs: as they are, or as references by which they can be read later."""

LAST_VERSION = (1 << 63) - 1
MIN_TASK_ROWS = 1 << 16
"""Smallest number of rows that is worth a task of its own."""


_INDEX = re.compile(r"\]@(.+?)\((\w+)\)")
"""Name and kind of an index in a plan of Lance."""


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """A range of rows of a fragment, counted without deleted ones."""

    fragment: int
    first: int = 0
    rows: int | None = None
    """None for all rows from `first` on."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole fragment."""
        return self.first == 0 and self.rows is None


@dataclass(frozen=True, slots=True)
class Scan:
    """Columns, filter and limit of a scan."""

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    limit: int | None = None
    with_row_id: bool = False
    with_row_address: bool = False
    blobs: str = "bytes"
    """One of `BLOB_FORMS`."""

    def schema(self, table: TableRef, dataset: lance.LanceDataset) -> pa.Schema:
        """Return the schema of the batches, and validate the scan before anything is read.

        Raises:
            TableColumnNotFoundError: the table has no such column.
            InvalidInputError: the filter cannot be parsed, or a column is named twice.
        """
        if self.limit is not None and self.limit < 0:
            raise InvalidInputError(f"limit {self.limit} is less than none")
        if missing := [name for name in self.columns or () if not _has_column(dataset.schema, name)]:
            raise TableColumnNotFoundError(
                f"{table} has no column {', '.join(missing)}; it has {', '.join(dataset.schema.names)}"
            )
        with translate_errors(table, table.storage_options):
            scanner = self._scanner(dataset, [])
            scanner.explain_plan()
            projected: pa.Schema = scanner.projected_schema
        if not self._refers(projected):
            return projected
        return BlobReferrer(table, dataset, projected).schema(with_row_address=self.with_row_address)

    def batches(
        self, table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts, in order.

        `limit` applies to each partial range, and to each run of consecutive whole fragments.
        """
        with translate_errors(table, table.storage_options):
            for scanner in self._scanners(dataset, parts):
                if not self._refers(scanner.projected_schema):
                    yield from scanner.to_batches()
                    continue
                referrer = BlobReferrer(table, dataset, scanner.projected_schema)
                for batch in scanner.to_batches():
                    yield referrer.refer(batch, with_row_address=self.with_row_address)

    def _scanners(self, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]) -> Iterator[lance.LanceScanner]:
        for is_whole, run in groupby(parts, lambda part: part.is_whole):
            if is_whole:
                yield self._scanner(dataset, [part.fragment for part in run])
                continue
            for part in run:
                limits = [limit for limit in (part.rows, self.limit) if limit is not None]
                one = replace(self, limit=min(limits, default=None))
                yield one._scanner(dataset, [part.fragment], part.first)

    def _refers(self, projected: pa.Schema) -> bool:
        return self.blobs == "reference" and any(map(has_blobs, projected))

    def count(self, table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]) -> int:
        """Count the rows of some parts that match."""
        with translate_errors(table, table.storage_options):
            scanner = dataset.scanner(
                columns=[],
                with_row_id=True,
                filter=self.filter,
                fragments=[dataset.get_fragment(part.fragment) for part in parts],
            )
            return int(scanner.count_rows())

    def indices(self, table: TableRef, dataset: lance.LanceDataset) -> list[str]:
        """Return the indices that the filter uses, with their kinds, such as `id_idx (BTree)`."""
        with translate_errors(table, table.storage_options):
            plan = self._scanner(dataset, []).explain_plan()
        queries = "".join(line for line in plan.splitlines() if "ScalarIndexQuery:" in line)
        return list(dict.fromkeys(f"{name} ({kind})" for name, kind in _INDEX.findall(queries)))

    def _scanner(self, dataset: lance.LanceDataset, fragments: Sequence[int], offset: int = 0) -> lance.LanceScanner:
        columns = shown_columns(dataset.schema) if self.columns is None else list(self.columns)
        above = [name.partition(".")[0] for name in columns]
        fields = [dataset.schema.field(name) for name in above if name in dataset.schema.names]
        refers = self.blobs == "reference" and any(map(has_blobs, fields))
        return dataset.scanner(
            columns=columns,
            filter=self.filter,
            limit=self.limit,
            offset=offset or None,
            with_row_id=self.with_row_id,
            with_row_address=self.with_row_address or refers,
            fragments=[dataset.get_fragment(each) for each in fragments] or None,
            batch_size=REFERENCE_ROWS if refers else batch_rows(fields),
            blob_handling="blobs_descriptions" if refers else "all_binary",
            scan_in_order=True,
        )


def batch_rows(fields: Sequence[pa.Field[Any]]) -> int:
    """Return how many rows of these columns a batch has, so that it is not too large."""
    if any(map(has_blobs, fields)):
        return BLOB_ROWS
    return max(BLOB_ROWS, min(BATCH_ROWS, BATCH_BYTES // max(sum(_value_bytes(field.type) for field in fields), 1)))


def _value_bytes(dtype: pa.DataType) -> int:
    """Return the size of a value in bytes if its type has a fixed size, else 8."""
    match dtype:
        case pa.FixedSizeListType():
            return int(dtype.list_size) * _value_bytes(dtype.value_type)
        case pa.StructType():
            return sum(_value_bytes(field.type) for field in dtype)
        case pa.BaseExtensionType():
            return _value_bytes(dtype.storage_type)
    return dtype.bit_width // 8 if pa.types.is_primitive(dtype) else 8


def estimate_bytes(dataset: lance.LanceDataset, columns: Sequence[str], filter: str | None = None) -> int:
    """Return about how many bytes a scan of some columns reads, from the manifest alone; rather too many than too few.

    Args:
        dataset: the version.
        columns: the columns, or fields of structs.
        filter: condition on the rows, whose columns are read too.
    """
    totals = dataset.get_version()["metadata"]
    if "total_files_size" not in totals:  # an old manifest
        return LAST_VERSION
    size, rows = int(totals["total_files_size"]), int(totals.get("total_rows", LAST_VERSION))
    wanted = {name.partition(".")[0] for name in columns}
    fields = [
        field
        for field in dataset.schema
        if field.name in wanted or (filter is not None and field.name.lower() in filter.lower())
    ]
    if any(map(has_blobs, fields)):
        return LAST_VERSION
    if not all(_is_fixed_size(field.type) for field in fields):
        return size
    return min(size, rows * sum(_value_bytes(field.type) for field in fields))


class TooManyBytesError(Exception):
    """More would be read in this process than it may."""


def limit_bytes(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield batches unchanged.

    Raises:
        TooManyBytesError: they are larger than `most` by now.
    """
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > most:
            raise TooManyBytesError
        yield batch


def _is_fixed_size(dtype: Any) -> bool:
    match dtype:
        case pa.FixedSizeListType():
            return _is_fixed_size(dtype.value_type)
        case pa.StructType():
            return all(_is_fixed_size(field.type) for field in dtype)
    return bool(pa.types.is_primitive(dtype))


@dataclass(frozen=True, slots=True)
class VersionSelector:
    """Selects a version of a table: by number, by tag or by time; the latest if none is given."""

    version: int | None = None
    tag: str | None = None
    as_of: datetime | date | str | None = None
    """A time, or ISO 8601 text; compared in milliseconds. Without a zone, it is in the local one.

    A version counts from the very millisecond in which it was committed.
    """

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.version, self.tag, self.as_of)) > 1:
            raise InvalidInputError("a table is read at a version, at a tag or as of a time: give one of them")
        if self.version is not None and (not isinstance(self.version, int) or not 0 <= self.version <= LAST_VERSION):
            raise InvalidInputError(f"a version is a number, not {self.version!r}")
        if self.tag is not None and not isinstance(self.tag, str):
            raise InvalidInputError(f"tag must be the name of a tag, not {self.tag!r}")
        if self.as_of is not None:
            _parse_time(self.as_of)

    def open(self, table: TableRef) -> tuple[TableRef, lance.LanceDataset]:
        """Open the selected version; return its address and the dataset.

        Raises:
            TableVersionNotFoundError, TableTagNotFoundError: there is no such version or tag.
        """
        if self.tag is not None:
            with replace(table, tag=self.tag).dataset() as dataset:
                tagged = dataset.tags.list()[self.tag]
                return replace(table, version=tagged["version"], branch=tagged.get("branch")), dataset
        if self.as_of is None:
            try:
                dataset = replace(table, version=self.version).open()
            except TableVersionNotFoundError:
                latest = table.open().version
                gone = "; older ones were cleaned up" if 0 < (self.version or 0) < latest else ""
                raise TableVersionNotFoundError(
                    f"{table} has no version {self.version}; the latest is {latest}{gone}"
                ) from None
            return replace(table, version=dataset.version), dataset
        as_of = _parse_time(self.as_of)
        with table.dataset() as dataset:
            before = [
                each["version"] for each in dataset.versions() if to_millis(each["timestamp"]) <= to_millis(as_of)
            ]
        if not before:
            raise TableVersionNotFoundError(f"{table} had no version yet at {as_of.isoformat()}")
        ref = replace(table, version=max(before))
        return ref, ref.open()


def _parse_time(value: Any) -> datetime:
    """Parse a time.

    Raises:
        InvalidInputError: it is not a time.
    """
    try:
        match value:
            case str():
                return datetime.fromisoformat(value.strip()).astimezone()
            case datetime():
                return value.astimezone()
            case date():
                return datetime.combine(value, time()).astimezone()
    except (ValueError, OverflowError):  # a time at either end of the calendar cannot be converted to another zone
        pass
    raise InvalidInputError(
        f"as_of must be a time, as a datetime or as text such as '2026-01-31T12:00:00+00:00', not {value!r}"
    )


def _has_column(schema: pa.Schema, name: str) -> bool:
    return name in schema.names or name.partition(".")[0] in schema.names or name in ("_rowid", "_rowaddr")


def empty_dataset(schema: pa.Schema, data_storage_version: str | None = None) -> lance.LanceDataset:
    """Create a dataset in memory with these columns and no rows, to find out what Lance makes of them.

    Raises:
        LanceNamespaceError: Lance cannot store such columns.
    """
    if "" in schema.names:
        raise TableSchemaValidationError(
            f"column {schema.names.index('') + 1} has no name (as pandas writes its index, unless told not to)"
        )
    if odd := [name for name in schema.names if "." in name or "`" in name]:
        raise TableSchemaValidationError(
            f"Lance takes no column with a dot or a backquote in its name, such as {odd[0]}"
        )
    with translate_errors("a table"):
        return lance.write_dataset(schema.empty_table(), "memory://", data_storage_version=data_storage_version)


def split_fragments(
    dataset: lance.LanceDataset, tasks: int, *, split: bool, only: Container[int] | None = None
) -> list[list[FragmentRange]]:
    """Split the fragments of a version into groups with about the same number of rows, in order.

    Args:
        dataset: the version.
        tasks: number of groups wanted; small tables get fewer.
        split: whether the rows of one fragment may go to several groups. A scan with a filter needs whole fragments.
        only: ids of the fragments that are wanted, all by default.
    """
    fragments = [each for each in dataset.get_fragments() if only is None or each.fragment_id in only]
    rows = {fragment.fragment_id: fragment.count_rows() for fragment in fragments}
    total = sum(rows.values())
    share = max(-(-total // max(tasks, 1)), MIN_TASK_ROWS)
    ranges: list[list[FragmentRange]] = []
    room = 0
    for fragment, count in rows.items():
        first = 0
        while first < count:
            if room <= 0:
                ranges.append([])
                room = share
            row_count = min(count - first, room) if split else count - first
            is_whole = row_count == count
            ranges[-1].append(FragmentRange(fragment) if is_whole else FragmentRange(fragment, first, row_count))
            first += row_count
            room -= row_count
    return ranges


_Done = lance.LanceOperation


@dataclass(frozen=True, slots=True)
class AddedFragment:
    """A fragment that a version added, or in which it changed rows."""

    id: int
    rows: int
    change: str | None = None
    """What happened to the rows, see `lake.changes`; None if all rows of the fragment are new."""


@dataclass(frozen=True, slots=True)
class Increment:
    """The rows that a version added, as they were then: rows that were deleted later are included."""

    version: int
    fragments: tuple[AddedFragment, ...] = ()


def latest_version(table: TableRef) -> int:
    """Return the latest version."""
    return int(table.open().version)


def oldest_version(table: TableRef) -> int:
    """Return the oldest version that still exists."""
    with table.dataset() as dataset:
        return min(int(each["version"]) for each in dataset.version_refs())


def whole_version(table: TableRef, version: int) -> Increment:
    """Return all rows of a version as an increment.

    Raises:
        TableVersionNotFoundError: the version no longer exists.
    """
    with table.dataset() as dataset:
        return _to_increment(checkout(table, dataset, version))


def read_increments(table: TableRef, after: int, upto: int, *, lossless: bool = True) -> Iterator[Increment]:
    """Yield what each version added, oldest first; versions are read lazily.

    Appends, inserts and updates add the rows that they wrote, an overwrite all of its rows. Compaction, indices,
    deletions, new columns, values of computed columns and settings add none.

    Args:
        table: to read.
        after: the last version that is not wanted.
        upto: the last version that is wanted.
        lossless: whether to fail at a version whose rows cannot be told; else it is skipped.

    Raises:
        TableVersionNotFoundError: a version was cleaned up.
        UnsupportedOperationError: a version changed rows without recording which.
        InvalidTableStateError: the table was created anew, and has no version `upto` yet.
    """
    return read_each_version(table, after, upto, lambda *at: read_increment(*at)[1], lossless=lossless)


def read_each_version(
    table: TableRef,
    after: int,
    upto: int,
    read: Callable[[TableRef, lance.LanceDataset], Increment],
    *,
    lossless: bool = True,
) -> Iterator[Increment]:
    """Yield what is read of each version, oldest first. See `read_increments`."""
    if after >= upto:
        return
    with table.dataset() as dataset:
        if dataset.version < upto:
            raise InvalidTableStateError(f"{table} was at version {upto} and is at {dataset.version}: it was made anew")
        for version in range(after + 1, upto + 1):
            try:
                added = read(table, checkout(table, dataset, version))
            except (TableVersionNotFoundError, UnsupportedOperationError):
                if lossless:
                    raise
            else:
                yield added


def checkout(table: TableRef, dataset: lance.LanceDataset, version: int) -> lance.LanceDataset:
    """Open another version.

    Raises:
        TableVersionNotFoundError: it was cleaned up.
    """
    try:
        with translate_errors(table, table.storage_options):
            return dataset.checkout_version(version)
    except TableVersionNotFoundError as error:
        raise TableVersionNotFoundError(f"version {version} of {table} was cleaned up") from error


def read_increment(
    table: TableRef, dataset: lance.LanceDataset, *, is_change: bool = False
) -> tuple[lance.LanceOperation.BaseOperation | None, Increment]:
    """Return the operation that created a version, and the rows that it added.

    Args:
        table: the table.
        dataset: the version.
        is_change: whether the caller finds by itself what an operation did that rewrote rows.
    """
    operation = _find_operation(dataset)
    match operation:
        case _Done.Append(fragments=new) | _Done.Update(new_fragments=new, fields_modified=[]):
            return operation, _to_increment(dataset, new)
        case _Done.Overwrite() | _Done.Clone():
            return operation, _to_increment(dataset)
        case _Done.Update(new_fragments=[], fields_modified=fields) if _computed_fields(dataset).issuperset(fields):
            # Computed columns were filled: the rows are the same.
            return None, Increment(dataset.version)
        case _Done.Update() | _Done.DataOverlay() if is_change:
            return operation, Increment(dataset.version)
        case _Done.Update() | _Done.DataOverlay():
            does = "changed values in place, and does not tell in which rows"
        case _Done.Restore():
            does = "restored an older one"
        case None:
            does = "does not tell how it was made"
        case _:
            return operation, Increment(dataset.version)
    raise UnsupportedOperationError(f"version {dataset.version} of {table} {does}")


def _computed_fields(dataset: lance.LanceDataset) -> set[int]:
    """Return the field ids of computed columns and their companions."""
    fields = dataset.schema
    return field_ids(
        dataset, {each.name for each in fields if COMPUTED in (each.metadata or {}) or each.name.startswith(COMPANION)}
    )


def field_ids(dataset: lance.LanceDataset, columns: Collection[str]) -> set[int]:
    """Return the field ids of columns, and of what is in them."""
    fields = [each for each in dataset.lance_schema.fields() if each.name() in columns]
    numbers = set[int]()
    while fields:
        field = fields.pop()
        numbers.add(field.id())
        fields += field.children()
    return numbers


def _find_operation(dataset: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
    """Return the operation that created a version; None if Lance has no record of it any more."""
    transaction = find_recorded_transaction(dataset)
    return None if transaction is None else transaction.operation


def _to_increment(dataset: lance.LanceDataset, new: Iterable[FragmentMetadata] | None = None) -> Increment:
    """Return the fragments of a version: all, or those in `new`.

    A transaction knows its fragments by their files; ids are assigned when it is committed.
    """
    files = None if new is None else {file.path for fragment in new for file in fragment.files}
    return Increment(
        dataset.version,
        tuple(
            AddedFragment(fragment.fragment_id, fragment.count_rows())
            for fragment in dataset.get_fragments()
            if files is None or any(file.path in files for file in fragment.data_files())
        ),
    )
