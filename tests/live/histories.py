"""What writers and readers of a table did and saw, and whether a table could have done that to them.

Each process notes its operations in a file of its own, line by line: when it began one, which transactions it offered
to the catalog for it, when it ended and how. A line that is written outlives the process. `time.monotonic_ns` is one
clock for all processes of a machine.

**Why this is enough.** A history is linearizable if its operations can be put in one order in which each does what it
would do alone, and in which whatever ended before something else began comes first. To find such an order is hard in
general. Here the table itself claims one: each commit made a version, each read names the version that it saw, and a
version is made by one transaction, whose id says by which operation. So there is nothing to search, only a claim to
verify, and `violations` verifies all of it:

- The claimed order is one: versions are 1, 2, … without a gap; each was made by an operation that somebody began; no
  operation made two. (Compaction makes several, none of which changes a row.)
- Nobody was deceived: who was told «version n» made version n, and who was refused made none. Who was told nothing,
  because its process died or an answer was lost, made one or none; if it made one, it takes part like all others.
- Each operation does what it would do alone: all operations, replayed in the order of their versions, from nothing,
  give exactly the rows of each read at its version, and the rows at the end. Updates add to what they find, so that
  one that was computed from an older version than the one before it shows.
- The order agrees with the clock: of two operations of which one ended before the other began, the first does not have
  the higher version; and the same one only if the second is a read. An operation that was told nothing never ended.

Put each read behind the commit of its version, and reads of one version in the order in which they began: this is an
order as it was asked for.
"""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Row = tuple[int, int, int]
"""Its id, who wrote it last, and a value."""
Arguments = Mapping[str, Any]

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"
CREATE, APPEND, UPDATE, DELETE, MERGE, COMPACT = "create", "append", "update", "delete", "merge", "compact"
READ, PLAIN = "read", "plain"
"""Reads through the catalog, and past it."""

READS = frozenset({READ, PLAIN})
HARMLESS = "ReserveFragments"
"""What a compaction does first, in a version of its own."""


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """What somebody did to a table, and what came of it. As long as nothing is known, that is unknown."""

    id: str
    kind: str
    arguments: Arguments = field(default_factory=dict)
    start: int = 0
    end: int | None = None
    """None if it never ended."""
    outcome: str = UNKNOWN
    version: int | None = None
    """What it was told that it made, or saw."""
    rows: tuple[Row, ...] | None = None
    """What it saw, in order."""
    error: str = ""
    offered: frozenset[str] = frozenset()
    """The transactions that were offered to the catalog for it."""
    staged: frozenset[str] = frozenset()
    """The files that were staged for it."""
    table: str = ""
    """Where there is more than one."""

    @property
    def is_read(self) -> bool:
        return self.kind in READS


@dataclass(frozen=True, slots=True)
class Made:
    """How a version came to be, as the table tells it."""

    transaction: str
    operation: str


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What was done to a table, and the table after it."""

    operations: Sequence[RecordedOperation]
    versions: Mapping[int, Made]
    rows: tuple[Row, ...]


class Notes:
    """The file in which a process notes what it does."""

    def __init__(self, file: Path) -> None:
        self._name = file.stem
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._count = 0

    def begin(self, kind: str, arguments: Arguments | None = None, table: str = "") -> str:
        """An operation begins; its id."""
        self._count += 1
        operation = f"{self._name}-{self._count}"
        self._write(operation, kind=kind, arguments=dict(arguments or {}), table=table, start=time.monotonic_ns())
        return operation

    def offer(self, operation: str, transaction: str, staged: str) -> None:
        """A transaction is offered to the catalog; its manifest is in this file below the table's location."""
        self._write(operation, offered=transaction, staged=staged)

    def fault(self, operation: str, point: str) -> None:
        """This process dies now."""
        self._write(operation, fault=point)

    def end(self, operation: str, outcome: str, **seen: Any) -> None:
        """An operation ended."""
        self._write(operation, end=time.monotonic_ns(), outcome=outcome, **seen)

    def _write(self, operation: str, **note: Any) -> None:
        os.write(self._file, f"{json.dumps({'id': operation, **note})}\n".encode())


def read_notes(folder: Path) -> list[RecordedOperation]:
    """All operations that processes noted in a folder."""
    found: dict[str, RecordedOperation] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for note in _lines(file):
            was = found.get(note["id"])
            if was is None:
                found[note["id"]] = RecordedOperation(**note)
            elif "offered" in note:
                offered, staged = was.offered | {note["offered"]}, was.staged | {note["staged"]}
                found[was.id] = replace(was, offered=offered, staged=staged)
            elif "outcome" in note:
                rows = note.pop("rows", None)
                found[was.id] = replace(was, **note, rows=None if rows is None else tuple(map(tuple, rows)))
    return list(found.values())


def read_faults(folder: Path) -> dict[str, str]:
    """Which operations were interrupted by a death on purpose, and at which point."""
    notes = (note for file in sorted(folder.glob("*.jsonl")) for note in _lines(file))
    return {note["id"]: note["fault"] for note in notes if "fault" in note}


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        yield json.loads(line)


def violations(history: TableHistory) -> list[str]:
    """Everything about a history that no correct table does; nothing for a linearizable one."""
    makers = _makers(history)
    return [
        *_order(history, makers),
        *_promises(history, makers),
        *_states(history, makers),
        *against_the_clock(_moments(history, makers)),
    ]


def _makers(history: TableHistory) -> dict[int, RecordedOperation]:
    """Who made each version, as far as somebody did."""
    by_transaction = {transaction: each for each in history.operations for transaction in each.offered}
    return {
        version: by_transaction[made.transaction]
        for version, made in sorted(history.versions.items())
        if made.transaction in by_transaction
    }


def _order(history: TableHistory, makers: Mapping[int, RecordedOperation]) -> Iterator[str]:
    """Versions without a gap, each made by one operation."""
    if missing := set(range(1, max(history.versions, default=0) + 1)) - set(history.versions):
        yield f"there is no version {', '.join(map(str, sorted(missing)))}"
    for version in sorted(set(history.versions) - set(makers)):
        yield f"nobody made version {version}"
    for transaction, count in Counter(made.transaction for made in history.versions.values()).items():
        if count > 1:
            yield f"transaction {transaction} made {count} versions"
    for maker, count in Counter(each.id for each in makers.values() if each.kind != COMPACT).items():
        if count > 1:
            yield f"{maker} was done {count} times"


def _promises(history: TableHistory, makers: Mapping[int, RecordedOperation]) -> Iterator[str]:
    """Who was told that it made a version did, and who was refused did not."""
    made: dict[str, list[int]] = {}
    for version, maker in makers.items():
        if history.versions[version].operation != HARMLESS:
            made.setdefault(maker.id, []).append(version)
    for each in history.operations:
        versions = made.get(each.id, [])
        if each.is_read:
            if each.outcome == ACKNOWLEDGED and each.version not in history.versions:
                yield f"{each.id} read version {each.version}, which was never accepted"
        elif each.outcome == REFUSED and versions:
            yield f"{each.id} ({each.kind}) was refused and made version {versions[0]}: {each.error}"
        elif each.outcome == ACKNOWLEDGED and each.version not in versions and not _was_idle(each, versions):
            yield f"{each.id} ({each.kind}) was told that it made version {each.version}, and made {versions or 'none'}"


def _was_idle(operation: RecordedOperation, made: Sequence[int]) -> bool:
    """A compaction that found nothing to do."""
    return operation.kind == COMPACT and not made


def _states(history: TableHistory, makers: Mapping[int, RecordedOperation]) -> Iterator[str]:
    """Reads see what a replay of all operations gives."""
    reads: dict[int, list[RecordedOperation]] = {}
    for each in history.operations:
        if each.is_read and each.outcome == ACKNOWLEDGED and each.version is not None:
            reads.setdefault(each.version, []).append(each)
    state: dict[int, Row] = {}
    for version in sorted(history.versions):
        if version in makers:
            EFFECTS[makers[version].kind](state, makers[version].arguments)
        expected = tuple(sorted(state.values())) if version in reads else ()
        for read in reads.get(version, ()):
            if read.rows is not None and read.rows != expected:
                yield f"{read.id} ({read.kind}) saw other rows at version {version}: {difference(expected, read.rows)}"
    if history.rows != (expected := tuple(sorted(state.values()))):
        yield f"at the end there are other rows: {difference(expected, history.rows)}"


def difference(expected: Iterable[Row], seen: Iterable[Row]) -> str:
    """What is missing and what should not be there."""
    wanted, found = Counter(expected), Counter(seen)
    return f"without {sorted((wanted - found).elements())}, but with {sorted((found - wanted).elements())}"


def _put(state: dict[int, Row], arguments: Arguments) -> None:
    for key, writer, value in arguments["rows"]:
        state[key] = (key, writer, value)


def _add(state: dict[int, Row], arguments: Arguments) -> None:
    if (was := state.get(arguments["key"])) is not None:
        state[was[0]] = (was[0], arguments["writer"], was[2] + arguments["amount"])


def _remove(state: dict[int, Row], arguments: Arguments) -> None:
    state.pop(arguments["key"], None)


def _leave(state: dict[int, Row], arguments: Arguments) -> None:
    """Compaction moves rows only."""


EFFECTS: Mapping[str, Callable[[dict[int, Row], Arguments], None]] = {
    CREATE: _put,
    APPEND: _put,
    MERGE: _put,
    UPDATE: _add,
    DELETE: _remove,
    COMPACT: _leave,
}
"""What each operation does to a table that nobody else touches."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened, at the earliest and at the latest, and which version it made or saw."""

    name: str
    start: int
    end: int | None
    version: int
    made: bool


def _moments(history: TableHistory, makers: Mapping[int, RecordedOperation]) -> Iterator[Moment]:
    for version, maker in makers.items():
        end = maker.end if maker.outcome == ACKNOWLEDGED else None
        yield Moment(f"{maker.id} ({maker.kind})", maker.start, end, version, made=True)
    made = {each.id for each in makers.values()}
    for each in history.operations:
        is_idle = each.kind == COMPACT and each.id not in made
        if each.outcome == ACKNOWLEDGED and each.version is not None and (each.is_read or is_idle):
            name = f"{each.id} ({each.kind}{f' of {each.table}' if each.table else ''})"
            yield Moment(name, each.start, each.end, each.version, made=False)


def against_the_clock(moments: Iterable[Moment]) -> Iterator[str]:
    """Where something has a lower version than what had ended before it began, or makes the same one again."""
    waiting: list[tuple[int, int, str]] = []
    highest, by = 0, ""
    for each in sorted(moments, key=lambda moment: moment.start):
        while waiting and waiting[0][0] < each.start:
            _, version, name = heapq.heappop(waiting)
            if version > highest:
                highest, by = version, name
        if each.version < highest or (each.made and each.version == highest):
            verb = "made" if each.made else "saw"
            yield f"{each.name} {verb} version {each.version} after {by} had ended at version {highest}"
        if each.end is not None:
            heapq.heappush(waiting, (each.end, each.version, each.name))


def torn(tables: Mapping[str, TableHistory]) -> list[str]:
    """Everything that shows a transaction over several tables half done, where nothing else writes to them.

    Each transaction makes one version of each table, so that their versions count the same thing: how many
    transactions were done. Version n of each table must come from the same transaction. And all reads, of whichever
    table, are reads of this one counter: if one sees n in table A, then whatever begins after it has ended sees n or
    more, in B and C too. A reader that goes on from table to table looks at each two of them in both orders, so that a
    transaction that is done in one of them and not yet in the other shows as a step back, whichever came first.
    The tables were created one by one, before.
    """
    makers = {
        name: {version: maker for version, maker in _makers(history).items() if maker.kind != CREATE}
        for name, history in tables.items()
    }
    found = []
    for version in sorted({version for each in makers.values() for version in each}):
        by = {name: each[version].id if version in each else "nobody" for name, each in makers.items()}
        if len(set(by.values())) > 1:
            words = ", ".join(f"by {maker} in {name}" for name, maker in by.items())
            found.append(f"version {version} was made {words}")
    moments = {
        (moment.name, moment.version): moment
        for name, history in tables.items()
        for moment in _moments(history, makers[name])
    }
    return [*found, *against_the_clock(moments.values())]
