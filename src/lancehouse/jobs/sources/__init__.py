"""Sources of an ingest (data files, images, Iceberg tables), read with Arrow in units; nothing here needs Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from math import ceil
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.schema.walk import relax_nullability

T = TypeVar("T")

TARGET_BYTES = 96 << 20
"""Size of the files of a unit, where there is enough to read."""
LEAST_BYTES = 1 << 20
"""Least size of the files of a unit, when units are made small so that every core has one."""
OPENING_BYTES = 64 << 10
"""Cost of opening a file, as the number of bytes that could be read meanwhile."""


class Unit(ABC):
    """Rows that one task reads; can be sent to other processes."""

    __slots__ = ()

    key: str
    """The same when the same source is opened again, unless what this unit reads has changed. It does not depend on the
    columns and types that are requested."""
    bytes: int
    """Estimated number of bytes that are read."""
    rows: int | None
    """Estimated number of rows; None if it is not known."""

    @abstractmethod
    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a schema, which is the source's or the table's; only a few batches are in memory at a time.

        Columns that the schema has and the unit lacks are null. Text is parsed as the schema's types.

        Raises:
            InvalidInputError: a file cannot be read; the message names it.
            TableSchemaValidationError: a column does not fit the schema; the message names the file.
        """


@dataclass(frozen=True, slots=True)
class IngestSource:
    """A source that was opened: its schema and its units."""

    schema: pa.Schema
    units: list[Unit]
    key: str = ""
    """Identifies the options of reading: other options make other rows of the same files. Empty for the defaults."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, each with the error message."""

    is_explicit: bool = False
    """Whether the user gave a schema with all columns, so that their nullability counts."""

    def table_schema(self, schema: pa.Schema, nullable: bool) -> pa.Schema:
        """Return the schema of a new table for rows of this schema; columns are nullable unless the user gave a
        schema.
        """
        return relax_nullability(schema) if nullable and not self.is_explicit else schema

    def require_types(self) -> None:
        """Check that the types of all columns are known; for cases where only the source can tell them.

        Raises:
            InvalidInputError: a type could not be inferred; the message says how to give it.
        """
        for reason in self.doubts.values():
            raise InvalidInputError(reason)

    @property
    def bytes(self) -> int:
        """Estimated number of bytes that are read."""
        return sum(unit.bytes for unit in self.units)

    @property
    def rows(self) -> int | None:
        """Estimated number of rows; None if it is not known."""
        rows = [unit.rows for unit in self.units]
        return None if None in rows else sum(count for count in rows if count is not None)


def target_bytes(sizes: Sequence[int], parallelism: int) -> int:
    """Return the size of units for files of these sizes: smaller where there is little, so that every core has one."""
    share = ceil((sum(sizes) + len(sizes) * OPENING_BYTES) / max(parallelism, 1))
    return min(TARGET_BYTES, max(share, LEAST_BYTES))


def split_into_runs(sizes: Sequence[int], target: int) -> list[range]:
    """Cut a sequence into runs of about the same total size, none much larger than `target`."""
    total = sum(sizes)
    count = ceil(total / target)
    ranges: list[range] = []
    start = total_before = 0
    for place, size in enumerate(sizes):
        # End the run before this item or after it, whichever is nearer to the ideal end.
        if place > start and (total_before + size / 2) * count > total * (len(ranges) + 1):
            ranges.append(range(start, place))
            start = place
        total_before += size
    return [*ranges, range(start, len(sizes))]


def group_by_size(things: Sequence[T], size: Callable[[T], int], target: int) -> list[list[T]]:
    """Group neighbours up to a total size of `target`.

    An item that is more than half as large stays alone, so that a change before it does not change the groups after it.
    """
    groups: list[list[T]] = []
    room = 0
    for thing in things:
        cost = size(thing) + OPENING_BYTES
        if cost > room or cost > target // 2:
            groups.append([])
            room = target if cost <= target // 2 else 0
        groups[-1].append(thing)
        room -= cost
    return groups


def joint_key(keys: Sequence[str], about: str = "") -> str:
    """Return one key for several parts; it changes when any of them does."""
    if len(keys) == 1 and not about:
        return keys[0]
    digest = blake2b("\n".join([*keys, about]).encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{keys[0]} and {len(keys) - 1} more {digest}"


ICEBERG = "iceberg"


def open_source(
    source: Any,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    parallelism: int = 1,
) -> IngestSource:
    """Open a source and infer its schema, without reading all rows.

    Files of several schemas become one: numbers are widened, and what a file lacks is null. Folders that are called
    `name=value` become columns, if they lie below the given folder or below the first level of a glob that is a
    pattern; names that start with `.` or `_` are left out there. The types of CSV and JSON are inferred from the first
    block of each file.

    Args:
        source: a path, folder, glob or a list of those, on this machine or under `file://`, `s3://`, `gs://` or
            `az://`; for Iceberg a table or a scan of pyiceberg, or `catalog.namespace.table`.
        format: parquet, csv, json, arrow, images or iceberg; by default inferred from the extensions. In folders, only
            files with its extensions are read; files that are named are read whatever they are called.
        columns: columns to read, in that order; all by default.
        options: options of the format, and storage options under Lance's names; for Iceberg the properties of the
            catalog. CSV has delimiter, quote, escape, header, skip_rows, null_values, encoding, types and schema; JSON
            has encoding, types and schema. Storage options that are missing come from the environment.
        parallelism: number of units to make at least, if there is enough to read.

    Raises:
        InvalidInputError: there is nothing to read, the format is not clear, an option is unknown, or a file cannot be
            read.
        TableColumnNotFoundError: a column does not exist; the message lists those that do.
        TableSchemaValidationError: the schemas of files cannot be unified.
    """
    is_iceberg = type(source).__module__.partition(".")[0] == "pyiceberg"
    if format != ICEBERG and not (format is None and is_iceberg):
        from lancehouse.jobs.sources.files import open_files

        return open_files(source, format, columns, options, parallelism)
    if find_spec("pyiceberg") is None:
        raise UnsupportedOperationError("reading Iceberg tables needs pyiceberg: pip install 'pyiceberg[pyarrow]'")
    from lancehouse.jobs.sources.iceberg import open_iceberg

    return open_iceberg(source, columns, options, parallelism)
