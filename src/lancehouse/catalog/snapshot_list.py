"""Iceberg snapshots encoded as JSON, each once, in lists that new ones are appended to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from lancehouse.lake.history import Version

DIGEST = 16
"""Bytes of a digest."""
ITEM_BYTES = 400
"""Approximate memory in bytes of a listed snapshot, besides its JSON."""


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


class ListedSnapshot(NamedTuple):
    """A snapshot in a list, and running totals of the list up to and including it."""

    id: int
    json: bytes
    log: bytes
    """Entry in the snapshot log: when it became current; empty outside the main branch."""
    version: Version | None
    size: int
    """Bytes of the JSON and the log so far, with commas."""
    sequence: int
    """Highest sequence number so far."""
    timestamp_ms: int
    """Latest timestamp so far."""
    digest: bytes
    """Digest of all snapshots so far."""


START = ListedSnapshot(0, b"", b"", None, 0, 0, 0, bytes(DIGEST))


class SnapshotList(tuple[ListedSnapshot, ...]):
    """Encoded snapshots, with what is needed to continue after any of them."""

    __slots__ = ()

    def after(self, count: int) -> ListedSnapshot:
        """Return the totals after the first `count` snapshots."""
        return self[count - 1] if count else START

    @property
    def end(self) -> ListedSnapshot:
        """Totals after the last snapshot."""
        return self.after(len(self))

    @property
    def versions(self) -> list[Version | None]:
        """For each snapshot, the version as storage has it, or None."""
        return [snapshot.version for snapshot in self]

    def find(self, id: int) -> ListedSnapshot | None:
        """Return a snapshot, or None. The list must be ordered by id."""
        index = self.count_before(id)
        return self[index] if index < len(self) and self[index].id == id else None

    def count_before(self, id: int) -> int:
        """Return how many snapshots have a lower id. The list must be ordered by id."""
        return bisect_left(self, id, key=lambda snapshot: snapshot.id)

    def replace_tail(self, keep: int, more: Sequence[EncodedSnapshot]) -> SnapshotList:
        """Return a list of the first `keep` snapshots, followed by `more`."""
        last, added = self.after(keep), list[ListedSnapshot]()
        for snapshot in more:
            # Iceberg's readers refuse a snapshot log that goes back in time, and clocks of writers differ.
            timestamp_ms = max(last.timestamp_ms, snapshot.timestamp_ms)
            log = b'{"snapshot-id":%d,"timestamp-ms":%d}' % (snapshot.id, timestamp_ms) if snapshot.on_main else b""
            last = ListedSnapshot(
                snapshot.id,
                snapshot.json,
                log,
                snapshot.version,
                last.size + len(snapshot.json) + len(log) + 2,
                max(last.sequence, snapshot.sequence),
                timestamp_ms,
                blake2b(last.digest + snapshot.json, digest_size=DIGEST).digest(),
            )
            added.append(last)
        return SnapshotList((*self[:keep], *added))
