"""Snapshots one after the other as JSON, to which more can be added without making the others again."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from lancehouse.lake.history import Version

DIGEST = 16


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A version as Iceberg's snapshot, in JSON."""

    id: int
    sequence: int
    timestamp_ms: int
    on_main: bool
    manifest: str
    json: bytes
    version: Version | None = None
    """What storage says of it."""


class ListPosition(NamedTuple):
    """How far a line is with one of its snapshots."""

    id: int
    end: int
    """Of the JSON."""
    log_end: int
    sequence: int
    """The highest up to here."""
    timestamp_ms: int
    """The latest up to here."""


START = ListPosition(0, 0, 0, 0, 0)
WIDTH = len(START)


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """Snapshots one after the other, and all that it takes to go on after any of them.

    The JSON is not kept a second time: once the table's is put together, these are places in it.
    """

    json: tuple[bytes | memoryview, ...] = ()
    log: tuple[bytes | memoryview, ...] = ()
    """When each version of the main branch became the current one."""
    positions: array[int] = field(default_factory=lambda: array("q"))
    """One after the other: as objects, they would take more room than the JSON."""
    chain: bytes = b""
    """A digest for each snapshot, of itself and all before it."""
    versions: tuple[Version | None, ...] = ()
    """What storage says of each."""

    def __len__(self) -> int:
        """How many snapshots there are."""
        return len(self.versions)

    def position_after(self, count: int) -> ListPosition:
        """How far the first so many go."""
        return ListPosition(*self.positions[(count - 1) * WIDTH : count * WIDTH]) if count else START

    @property
    def end(self) -> ListPosition:
        """How far all go."""
        return self.position_after(len(self))

    @property
    def digest(self) -> bytes:
        """Of all."""
        return self.chain[-DIGEST:].ljust(DIGEST, b"\0")

    @property
    def size_bytes(self) -> int:
        """About what it takes besides the JSON."""
        return len(self) * (WIDTH * self.positions.itemsize + DIGEST + 8)

    @property
    def ids(self) -> array[int]:
        """Of all."""
        return self.positions[::WIDTH]

    def find_index(self, id: int) -> int | None:
        """Where a snapshot is, in a line that is ordered by ids."""
        index = self.count_before(id)
        return index if index < len(self) and self.positions[index * WIDTH] == id else None

    def count_before(self, id: int) -> int:
        """How many have a lower id, in such a line."""
        return bisect_left(range(len(self)), id, key=lambda index: self.positions[index * WIDTH])

    def json_slice(self, index: int, start: int) -> slice:
        """Where the JSON of one is, if that of the line is at `start`."""
        previous_end = self.position_after(index).end
        return slice(start + previous_end + (index > 0), start + self.position_after(index + 1).end)

    def log_slice(self, index: int, start: int) -> slice:
        """Where the log of one is, if that of the line is at `start`."""
        previous_end = self.position_after(index).log_end
        return slice(start + previous_end + (previous_end > 0), start + self.position_after(index + 1).log_end)

    def replace_tail(self, keep: int, more: Sequence[EncodedSnapshot]) -> SnapshotList:
        """The first ones of a line that is placed, and then others."""
        position = self.position_after(keep)
        json, log = [part[: position.end] for part in self.json], [part[: position.log_end] for part in self.log]
        marks, chain = self.positions[: keep * WIDTH], [self.chain[: keep * DIGEST]]
        digest = chain[0][-DIGEST:]
        new_json: list[bytes] = []
        new_log: list[bytes] = []
        for snapshot in more:
            end, log_end, timestamp_ms = (
                position.end + (position.end > 0) + len(snapshot.json),
                position.log_end,
                max(position.timestamp_ms, snapshot.timestamp_ms),
            )
            if snapshot.on_main:
                # Iceberg's readers refuse a log that goes back in time.
                new_log.append(b'{"snapshot-id":%d,"timestamp-ms":%d}' % (snapshot.id, timestamp_ms))
                log_end += (log_end > 0) + len(new_log[-1])
            position = ListPosition(snapshot.id, end, log_end, max(position.sequence, snapshot.sequence), timestamp_ms)
            marks.extend(position)
            new_json.append(snapshot.json)
            digest = blake2b(digest + snapshot.json, digest_size=DIGEST).digest()
            chain.append(digest)
        versions = (*self.versions[:keep], *(snapshot.version for snapshot in more))
        return SnapshotList(_join_json(json, new_json), _join_json(log, new_log), marks, b"".join(chain), versions)

    def share_buffer(self, buffer: memoryview, start: int, log_start: int) -> SnapshotList:
        """The same, with its JSON where the table has it."""
        end = self.end
        return replace(
            self, json=(buffer[start : start + end.end],), log=(buffer[log_start : log_start + end.log_end],)
        )


def _join_json(existing: Sequence[bytes | memoryview], pieces: Sequence[bytes]) -> tuple[bytes | memoryview, ...]:
    if not pieces:
        return tuple(existing)
    return (*existing, *([b","] if any(existing) else []), b",".join(pieces))
