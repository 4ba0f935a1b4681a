"""Iceberg snapshots encoded as JSON, stored so that new ones are appended without encoding the old ones again."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from lancehouse.lake.history import Version

DIGEST = 16
"""Bytes of a digest."""


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A Lance version as an Iceberg snapshot, encoded as JSON."""

    id: int
    sequence: int
    timestamp_ms: int
    on_main: bool
    """Whether it is on the main branch, so that the snapshot log has it."""
    manifest: str
    """Location of the version's manifest."""
    json: bytes
    version: Version | None = None
    """The version as storage has it; None if that is not known."""


class ListPosition(NamedTuple):
    """Running totals of a list up to and including one of its snapshots."""

    id: int
    """Id of that snapshot."""
    end: int
    """Offset where its JSON ends."""
    log_end: int
    """Offset where its entry in the snapshot log ends."""
    sequence: int
    """Highest sequence number so far."""
    timestamp_ms: int
    """Latest timestamp so far."""


START = ListPosition(0, 0, 0, 0, 0)
WIDTH = len(START)
"""Numbers in a position."""


@dataclass(frozen=True, slots=True)
class SnapshotList:
    """A sequence of encoded snapshots, with what is needed to continue it after any of them. Immutable.

    The JSON is not stored twice: once the table's metadata are built, `share_buffer` replaces it by views into them.
    """

    json: tuple[bytes | memoryview, ...] = ()
    """Parts of the comma-separated JSON of all snapshots."""
    log: tuple[bytes | memoryview, ...] = ()
    """Parts of the snapshot log: when each version of the main branch became current."""
    positions: array[int] = field(default_factory=lambda: array("q"))
    """All `ListPosition` values in one flat array: as objects they would take more memory than the JSON."""
    chain: bytes = b""
    """For each snapshot, a digest of it and all before it."""
    versions: tuple[Version | None, ...] = ()
    """For each snapshot, the version as storage has it, or None."""

    def __len__(self) -> int:
        """Return the number of snapshots."""
        return len(self.versions)

    def position_after(self, count: int) -> ListPosition:
        """Return the position after the first `count` snapshots."""
        return ListPosition(*self.positions[(count - 1) * WIDTH : count * WIDTH]) if count else START

    @property
    def end(self) -> ListPosition:
        """Position after the last snapshot."""
        return self.position_after(len(self))

    @property
    def digest(self) -> bytes:
        """Digest of all snapshots; zeros if there are none."""
        return self.chain[-DIGEST:].ljust(DIGEST, b"\0")

    @property
    def size_bytes(self) -> int:
        """Approximate memory in bytes, without the JSON."""
        return len(self) * (WIDTH * self.positions.itemsize + DIGEST + 8)

    @property
    def ids(self) -> array[int]:
        """Ids of all snapshots."""
        return self.positions[::WIDTH]

    def find_index(self, id: int) -> int | None:
        """Return the index of a snapshot, or None. The list must be ordered by id."""
        index = self.count_before(id)
        return index if index < len(self) and self.positions[index * WIDTH] == id else None

    def count_before(self, id: int) -> int:
        """Return how many snapshots have a lower id. The list must be ordered by id."""
        return bisect_left(range(len(self)), id, key=lambda index: self.positions[index * WIDTH])

    def json_slice(self, index: int, start: int) -> slice:
        """Return where one snapshot's JSON is in a buffer in which the list's JSON begins at `start`."""
        previous_end = self.position_after(index).end
        return slice(start + previous_end + (index > 0), start + self.position_after(index + 1).end)

    def log_slice(self, index: int, start: int) -> slice:
        """Return where one snapshot's log entry is in a buffer in which the list's log begins at `start`."""
        previous_end = self.position_after(index).log_end
        return slice(start + previous_end + (previous_end > 0), start + self.position_after(index + 1).log_end)

    def replace_tail(self, keep: int, more: Sequence[EncodedSnapshot]) -> SnapshotList:
        """Return a list of the first `keep` snapshots, followed by `more`."""
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
                # Iceberg's readers refuse a snapshot log that goes back in time, and clocks of writers differ.
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
        """Return the same list with its JSON and log as views into a table's encoded metadata."""
        end = self.end
        return replace(
            self, json=(buffer[start : start + end.end],), log=(buffer[log_start : log_start + end.log_end],)
        )


def _join_json(existing: Sequence[bytes | memoryview], pieces: Sequence[bytes]) -> tuple[bytes | memoryview, ...]:
    if not pieces:
        return tuple(existing)
    return (*existing, *([b","] if any(existing) else []), b",".join(pieces))
