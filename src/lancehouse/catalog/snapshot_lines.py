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
class Snapshot:
    """A version as Iceberg's snapshot, in JSON."""

    id: int
    sequence: int
    timestamp_ms: int
    on_main: bool
    manifest: str
    json: bytes
    version: Version | None = None
    """What storage says of it."""


class Mark(NamedTuple):
    """How far a line is with one of its snapshots."""

    id: int
    end: int
    """Of the JSON."""
    log_end: int
    sequence: int
    """The highest up to here."""
    timestamp_ms: int
    """The latest up to here."""


START = Mark(0, 0, 0, 0, 0)
WIDTH = len(START)


@dataclass(frozen=True, slots=True)
class Line:
    """Snapshots one after the other, and all that it takes to go on after any of them.

    The JSON is not kept a second time: once the table's is put together, these are places in it.
    """

    json: tuple[bytes | memoryview, ...] = ()
    log: tuple[bytes | memoryview, ...] = ()
    """When each version of the main branch became the current one."""
    marks: array[int] = field(default_factory=lambda: array("q"))
    """One after the other: as objects, they would take more room than the JSON."""
    chain: bytes = b""
    """A digest for each snapshot, of itself and all before it."""
    versions: tuple[Version | None, ...] = ()
    """What storage says of each."""

    def __len__(self) -> int:
        """How many snapshots there are."""
        return len(self.versions)

    def mark(self, count: int) -> Mark:
        """How far the first so many go."""
        return Mark(*self.marks[(count - 1) * WIDTH : count * WIDTH]) if count else START

    @property
    def end(self) -> Mark:
        """How far all go."""
        return self.mark(len(self))

    @property
    def digest(self) -> bytes:
        """Of all."""
        return self.chain[-DIGEST:].ljust(DIGEST, b"\0")

    @property
    def bytes(self) -> int:
        """About what it takes besides the JSON."""
        return len(self) * (WIDTH * self.marks.itemsize + DIGEST + 8)

    @property
    def ids(self) -> array[int]:
        """Of all."""
        return self.marks[::WIDTH]

    def find(self, id: int) -> int | None:
        """Where a snapshot is, in a line that is ordered by ids."""
        index = self.before(id)
        return index if index < len(self) and self.marks[index * WIDTH] == id else None

    def before(self, id: int) -> int:
        """How many have a lower id, in such a line."""
        return bisect_left(range(len(self)), id, key=lambda index: self.marks[index * WIDTH])

    def place(self, index: int, start: int) -> slice:
        """Where the JSON of one is, if that of the line is at `start`."""
        before = self.mark(index).end
        return slice(start + before + (index > 0), start + self.mark(index + 1).end)

    def log_place(self, index: int, start: int) -> slice:
        """Where the log of one is, if that of the line is at `start`."""
        before = self.mark(index).log_end
        return slice(start + before + (before > 0), start + self.mark(index + 1).log_end)

    def extended(self, keep: int, more: Sequence[Snapshot]) -> Line:
        """The first ones of a line that is placed, and then others."""
        at = self.mark(keep)
        json, log = [part[: at.end] for part in self.json], [part[: at.log_end] for part in self.log]
        marks, chain = self.marks[: keep * WIDTH], [self.chain[: keep * DIGEST]]
        digest = chain[0][-DIGEST:]
        pieces: list[bytes] = []
        logged: list[bytes] = []
        for each in more:
            end, log_end, now = (
                at.end + (at.end > 0) + len(each.json),
                at.log_end,
                max(at.timestamp_ms, each.timestamp_ms),
            )
            if each.on_main:
                # Iceberg's readers refuse a log that goes back in time.
                logged.append(b'{"snapshot-id":%d,"timestamp-ms":%d}' % (each.id, now))
                log_end += (log_end > 0) + len(logged[-1])
            at = Mark(each.id, end, log_end, max(at.sequence, each.sequence), now)
            marks.extend(at)
            pieces.append(each.json)
            digest = blake2b(digest + each.json, digest_size=DIGEST).digest()
            chain.append(digest)
        versions = (*self.versions[:keep], *(each.version for each in more))
        return Line(_joined(json, pieces), _joined(log, logged), marks, b"".join(chain), versions)

    def placed(self, whole: memoryview, start: int, log_start: int) -> Line:
        """The same, with its JSON where the table has it."""
        end = self.end
        return replace(self, json=(whole[start : start + end.end],), log=(whole[log_start : log_start + end.log_end],))


def _joined(kept: Sequence[bytes | memoryview], pieces: Sequence[bytes]) -> tuple[bytes | memoryview, ...]:
    if not pieces:
        return tuple(kept)
    return (*kept, *([b","] if any(kept) else []), b",".join(pieces))
