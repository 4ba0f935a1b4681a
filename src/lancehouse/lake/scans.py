"""Rows of one version of a table, read in pieces that may go to different processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from itertools import groupby
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
)

from lancehouse.lake.chunked_fragment import has_blobs
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.versions import to_millis

BATCH_ROWS = 1 << 15
BATCH_BYTES = 4 << 20
"""Of rows that are long because of vectors: what the processor's cache still holds, and workers have room for."""
BLOB_ROWS = 64
"""Rows in a batch where one may hold many megabytes."""

LAST_VERSION = (1 << 63) - 1
MIN_TASK_ROWS = 1 << 16
"""Rows that are not worth a second task."""


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """Some rows of a fragment, counted without those that are deleted."""

    fragment: int
    first: int = 0
    rows: int | None = None
    """None: all that follow."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the fragment."""
        return self.first == 0 and self.rows is None


@dataclass(frozen=True, slots=True)
class Scan:
    """What is read of each row, and of which rows."""

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    limit: int | None = None
    with_row_id: bool = False
    with_row_address: bool = False

    def schema(self, table: TableRef, dataset: lance.LanceDataset) -> pa.Schema:
        """What the batches have. Finds all that is wrong before anything is read.

        Raises:
            TableColumnNotFoundError: the table has no such column.
            InvalidInputError: the filter cannot be understood, or a column is named twice.
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
        return projected

    def batches(
        self, table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some parts, in their order; of each part, or fragments in a row, at most as many as `limit`."""
        with translate_errors(table, table.storage_options):
            for is_whole, run in groupby(parts, lambda part: part.is_whole):
                if is_whole:
                    yield from self._scanner(dataset, [part.fragment for part in run]).to_batches()
                    continue
                for part in run:
                    limits = [limit for limit in (part.rows, self.limit) if limit is not None]
                    one = replace(self, limit=min(limits, default=None))
                    yield from one._scanner(dataset, [part.fragment], part.first).to_batches()

    def count(self, table: TableRef, dataset: lance.LanceDataset, parts: Sequence[FragmentRange]) -> int:
        """How many rows of some parts match."""
        with translate_errors(table, table.storage_options):
            scanner = dataset.scanner(
                columns=[],
                with_row_id=True,
                filter=self.filter,
                fragments=[dataset.get_fragment(part.fragment) for part in parts],
            )
            return int(scanner.count_rows())

    def _scanner(self, dataset: lance.LanceDataset, fragments: Sequence[int], offset: int = 0) -> lance.LanceScanner:
        columns = dataset.schema.names if self.columns is None else list(self.columns)
        above = [name.partition(".")[0] for name in columns]
        fields = [dataset.schema.field(name) for name in above if name in dataset.schema.names]
        return dataset.scanner(
            columns=columns,
            filter=self.filter,
            limit=self.limit,
            offset=offset or None,
            with_row_id=self.with_row_id,
            with_row_address=self.with_row_address,
            fragments=[dataset.get_fragment(each) for each in fragments] or None,
            batch_size=_batch_rows(fields),
            blob_handling="all_binary",
            scan_in_order=True,
        )


def _batch_rows(fields: Sequence[pa.Field[Any]]) -> int:
    if any(map(has_blobs, fields)):
        return BLOB_ROWS
    return max(BLOB_ROWS, min(BATCH_ROWS, BATCH_BYTES // max(sum(_value_bytes(field.type) for field in fields), 1)))


def _value_bytes(dtype: pa.DataType) -> int:
    """How long a value is, if all are as long; else a word."""
    match dtype:
        case pa.FixedSizeListType():
            return int(dtype.list_size) * _value_bytes(dtype.value_type)
        case pa.StructType():
            return sum(_value_bytes(field.type) for field in dtype)
        case pa.BaseExtensionType():
            return _value_bytes(dtype.storage_type)
    return dtype.bit_width // 8 if pa.types.is_primitive(dtype) else 8


@dataclass(frozen=True, slots=True)
class VersionSelector:
    """Which version of a table is meant: at most one of these, else the latest."""

    version: int | None = None
    tag: str | None = None
    as_of: datetime | date | str | None = None
    """A time, or text that is one by ISO 8601, in milliseconds: a version counts from the one in which it was made. One
    without a zone is of this machine."""

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
        """That version, and its address.

        Raises:
            TableVersionNotFoundError, TableTagNotFoundError: there is none.
        """
        if self.tag is not None:
            with replace(table, tag=self.tag).dataset() as dataset:
                tagged = dataset.tags.list()[self.tag]
                return replace(table, version=tagged["version"], branch=tagged.get("branch")), dataset
        if self.as_of is None:
            dataset = replace(table, version=self.version).open()
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
    """The time that somebody means.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        match value:
            case str():
                return datetime.fromisoformat(value.strip()).astimezone()
            case datetime():
                return value.astimezone()
            case date():
                return datetime.combine(value, time()).astimezone()
    except (ValueError, OverflowError):  # at either end of the calendar, a time has no equal in another zone
        pass
    raise InvalidInputError(
        f"as_of must be a time, as a datetime or as text such as '2026-01-31T12:00:00+00:00', not {value!r}"
    )


def _has_column(schema: pa.Schema, name: str) -> bool:
    return name in schema.names or name.partition(".")[0] in schema.names or name in ("_rowid", "_rowaddr")


def empty_dataset(schema: pa.Schema, data_storage_version: str | None = None) -> lance.LanceDataset:
    """A table without rows that has these columns, in memory: to see what can be asked of such a one.

    Raises:
        LanceNamespaceError: Lance does not keep such columns.
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


def split_fragments(dataset: lance.LanceDataset, tasks: int, *, split: bool) -> list[list[FragmentRange]]:
    """The fragments of a version in groups of about as many rows, in their order.

    Args:
        dataset: the version.
        tasks: how many groups are wanted; small tables make fewer.
        split: whether rows of one fragment may go to several groups. A filter has to see the whole.
    """
    rows = {fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()}
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
