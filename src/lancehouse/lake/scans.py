"""Scan one version of a table, in parts that can be read by different processes."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
)

from lancehouse.lake.blobs import BlobReferrer
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.dataset import TableRef, enclose_sql
from lancehouse.lake.errors import translate_errors
from lancehouse.schema.definitions import shown_columns
from lancehouse.schema.walk import no_column_error

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

UNKNOWN_BYTES = (1 << 63) - 1
"""Stands for a size that is not known: larger than any limit."""
ROW_COLUMNS = ("_rowid", "_rowaddr")
"""Columns that Lance has of each row besides those of the table."""
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
    is_checked: bool = False
    """Whether the filter is known to be valid."""

    def schema(self, table: TableRef, dataset: lance.LanceDataset) -> pa.Schema:
        """Return the schema of the batches, and validate the scan before anything is read.

        Raises:
            TableColumnNotFoundError: the table has no such column.
            InvalidInputError: the filter cannot be parsed, or a column is named twice.
        """
        if self.limit is not None and self.limit < 0:
            raise InvalidInputError(f"limit {self.limit} is less than none")
        if missing := [name for name in self.columns or () if not _has_column(dataset.schema, name)]:
            raise no_column_error(table, missing, dataset.schema.names)
        with translate_errors(table, table.storage_options):
            if self.filter is not None and not self.is_checked:
                self._scanner(dataset, []).explain_plan()
            projected: pa.Schema = replace(self, filter=None)._scanner(dataset, []).projected_schema
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
                filter=enclose_sql(self.filter),
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
            filter=enclose_sql(self.filter),
            limit=self.limit,
            offset=offset or None,
            with_row_id=self.with_row_id,
            with_row_address=self.with_row_address or refers,
            # None means all: without fragments, only the schema or the plan is asked for.
            fragments=[dataset.get_fragment(number) for number in fragments] or None,
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
        columns: the columns, or fields of structs; `_rowid` and `_rowaddr` count too.
        filter: condition on the rows, whose columns are read too.
    """
    totals = dataset.get_version()["metadata"]
    if "total_files_size" not in totals:  # an old manifest
        return UNKNOWN_BYTES
    size, rows = int(totals["total_files_size"]), int(totals.get("total_rows", UNKNOWN_BYTES))
    wanted = {name.partition(".")[0] for name in columns}
    fields = [
        field
        for field in dataset.schema
        if field.name in wanted or (filter is not None and field.name.lower() in filter.lower())
    ]
    if any(map(has_blobs, fields)):
        return UNKNOWN_BYTES
    if not all(_is_fixed_size(field.type) for field in fields):
        return size
    numbers = len(wanted.intersection(ROW_COLUMNS))
    return min(size, rows * sum(_value_bytes(field.type) for field in fields)) + rows * 8 * numbers


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


def _has_column(schema: pa.Schema, name: str) -> bool:
    return name in schema.names or name.partition(".")[0] in schema.names or name in ROW_COLUMNS


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
    fragments = [fragment for fragment in dataset.get_fragments() if only is None or fragment.fragment_id in only]
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
