"""A source as an ingest sees it: a schema, and units of work that can be done anywhere, in any order, and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil
from typing import TypeVar

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from lancehouse.schema.walk import relax_nullability

T = TypeVar("T")

TARGET_BYTES = 96 << 20
"""Of files, in a unit, where there are enough of them."""
LEAST_BYTES = 1 << 20
"""Of files, in a unit that is made small so that every core has one."""
OPENING_BYTES = 64 << 10
"""What it costs to open a file, in bytes that could be read meanwhile."""


class Unit(ABC):
    """Rows that one task reads; it can be sent to other processes."""

    __slots__ = ()

    key: str
    """The same when the same source is opened again, unless what this unit reads has changed. It says nothing of
    the columns and types that are asked for."""
    bytes: int
    """What is read, by an estimate."""
    rows: int | None
    """How many there are, by an estimate; None if nothing tells."""

    @abstractmethod
    def batches(self, schema: pa.Schema, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows in a schema, which is the source's or the table's; never more than a few batches in memory.

        What the schema has and the unit lacks is null. Text is parsed as the schema's types say.

        Raises:
            InvalidInputError: a file cannot be read; names it.
            TableSchemaValidationError: a column does not fit the schema; names the file.
        """


@dataclass(frozen=True, slots=True)
class IngestSource:
    """What is read."""

    schema: pa.Schema
    units: list[Unit]
    key: str = ""
    """How it is read: of the same files, other options make other rows."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Columns whose type cannot be inferred, and why."""

    is_explicit: bool = False
    """Whether somebody gave all columns, and whether they may be null."""

    def table_schema(self, schema: pa.Schema, nullable: bool) -> pa.Schema:
        """The columns of a new table for rows that have these: unless somebody says otherwise, they may be null."""
        return relax_nullability(schema) if nullable and not self.is_explicit else schema

    def require_types(self) -> None:
        """Check that the types of all columns are known, where nothing but the source tells them.

        Raises:
            InvalidInputError: one could not be inferred; says how to give it.
        """
        for reason in self.doubts.values():
            raise InvalidInputError(reason)

    @property
    def bytes(self) -> int:
        """What is read, by an estimate."""
        return sum(unit.bytes for unit in self.units)

    @property
    def rows(self) -> int | None:
        """How many rows there are, by an estimate; None if nothing tells."""
        rows = [unit.rows for unit in self.units]
        return None if None in rows else sum(count for count in rows if count is not None)


def target_bytes(sizes: Sequence[int], parallelism: int) -> int:
    """How large units of files of these sizes are made: smaller where there is little, so that every core has one."""
    share = ceil((sum(sizes) + len(sizes) * OPENING_BYTES) / max(parallelism, 1))
    return min(TARGET_BYTES, max(share, LEAST_BYTES))


def split_into_runs(sizes: Sequence[int], target: int) -> list[range]:
    """Cut a row of things into runs of about the same size, none much larger than `target`."""
    total = sum(sizes)
    count = ceil(total / target)
    ranges: list[range] = []
    start = total_before = 0
    for place, size in enumerate(sizes):
        # Whichever is nearer to the ideal end of a run: before this one, or after it.
        if place > start and (total_before + size / 2) * count > total * (len(ranges) + 1):
            ranges.append(range(start, place))
            start = place
        total_before += size
    return [*ranges, range(start, len(sizes))]


def group_by_size(things: Sequence[T], size: Callable[[T], int], target: int) -> list[list[T]]:
    """Put neighbours together up to `target`. What is more than half as large stays alone, so that a change before it
    does not change the groups after it.
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
    """One key for several parts, which changes when any of them does."""
    if len(keys) == 1 and not about:
        return keys[0]
    digest = blake2b("\n".join([*keys, about]).encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{keys[0]} and {len(keys) - 1} more {digest}"
