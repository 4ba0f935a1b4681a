"""The checker of histories: it accepts what a table may do, and finds each way to do wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.histories import (
    ACKNOWLEDGED,
    APPEND,
    COMPACT,
    CREATE,
    DELETE,
    HARMLESS,
    MERGE,
    PLAIN,
    READ,
    REFUSED,
    UNKNOWN,
    UPDATE,
    Made,
    Notes,
    RecordedOperation,
    Row,
    TableHistory,
    read_faults,
    read_notes,
    torn,
    violations,
)


def commit_of(name: str, kind: str, start: int, end: int, version: int, **arguments: Any) -> RecordedOperation:
    """A commit that was acknowledged; its transaction has its name."""
    offered = frozenset({name})
    return RecordedOperation(name, kind, arguments, start, end, ACKNOWLEDGED, version, offered=offered)


def read_of(name: str, start: int, end: int, version: int, *rows: Row, kind: str = READ) -> RecordedOperation:
    return RecordedOperation(name, kind, {}, start, end, ACKNOWLEDGED, version, rows)


def history_of(*operations: RecordedOperation, rows: tuple[Row, ...], **versions: str) -> TableHistory:
    """`v1="a"`: transaction a made version 1."""
    made = {int(version[1:]): Made(name, "Any") for version, name in versions.items()}
    return TableHistory(operations, made, rows)


A, B, C, A5, A7, A12 = (1, 0, 0), (2, 0, 0), (3, 1, 0), (1, 1, 5), (1, 2, 7), (1, 2, 12)

CREATED = commit_of("create", CREATE, 0, 10, 1, rows=[A, B])
FIVE = commit_of("five", UPDATE, 20, 40, 2, key=1, amount=5, writer=1)
SEVEN = commit_of("seven", UPDATE, 30, 60, 3, key=1, amount=7, writer=2)
"""At the same time as the one before."""
GONE = commit_of("gone", DELETE, 70, 80, 4, key=2)
GOOD = history_of(
    CREATED,
    read_of("first", 11, 15, 1, A, B),
    FIVE,
    read_of("early", 35, 50, 2, A5, B),
    SEVEN,
    read_of("between", 45, 55, 2, A5, B),
    read_of("past", 61, 65, 3, A12, B, kind=PLAIN),
    GONE,
    read_of("last", 90, 95, 4, A12),
    rows=(A12,),
    v1="create",
    v2="five",
    v3="seven",
    v4="gone",
)


def change_history(
    history: TableHistory, *operations: RecordedOperation, without: str = "", **more: Any
) -> TableHistory:
    """A history with other operations in the place of those of the same names, and new ones."""
    others = {each.id: each for each in operations}
    kept = [others.pop(each.id, each) for each in history.operations if each.id != without]
    return replace(history, operations=[*kept, *others.values()], **more)


def rename_versions(history: TableHistory, **versions: str) -> dict[int, Made]:
    """Versions of which some were made by others, or ("") not at all; one with a prime only prepares another one."""
    made = dict(history.versions)
    for version, name in versions.items():
        made[int(version[1:])] = Made(name, HARMLESS if name.endswith("'") else "Any")
    return {version: each for version, each in sorted(made.items()) if each.transaction}


REFUSAL = RecordedOperation(
    "refusal", APPEND, {"rows": [C]}, 41, 45, REFUSED, offered=frozenset({"refusal"}), error="no"
)
DEATH = RecordedOperation("death", APPEND, {"rows": [C]}, 81, offered=frozenset({"death", "again"}))
DOUBT = replace(DEATH, end=85, error="the commit may or may not have been applied")
COMPACTION = replace(commit_of("pack", COMPACT, 81, 89, 6), offered=frozenset({"pack'", "pack"}))
LANDED = change_history(
    GOOD,
    DEATH,
    read_of("after", 96, 99, 5, A12, C),
    versions=rename_versions(GOOD, v5="death"),
    rows=tuple(sorted([A12, C])),
)
PACKED = change_history(
    GOOD,
    COMPACTION,
    read_of("last", 90, 95, 6, A12),
    versions=rename_versions(GOOD, v5="pack'", v6="pack"),
)

RIGHT = {
    "all kinds of overlaps": GOOD,
    "nothing at all": history_of(rows=()),
    "a refusal": change_history(GOOD, REFUSAL),
    "a death without a trace": change_history(GOOD, DEATH),
    "a death that left a version": LANDED,
    "a doubt that came true after it was told": change_history(LANDED, DOUBT, read_of("last", 90, 95, 4, A12)),
    "a read that did not end": change_history(GOOD, RecordedOperation("read", READ, start=50)),
    "a compaction": PACKED,
    "a compaction that was overtaken": change_history(
        GOOD,
        replace(COMPACTION, outcome=REFUSED, version=None),
        read_of("last", 90, 95, 5, A12),
        versions=rename_versions(GOOD, v5="pack'"),
    ),
    "a compaction with nothing to do": change_history(GOOD, replace(COMPACTION, offered=frozenset(), version=4)),
    "a merge": change_history(
        GOOD,
        commit_of("merge", MERGE, 100, 110, 5, rows=[(1, 9, 9), C]),
        versions=rename_versions(GOOD, v5="merge"),
        rows=((1, 9, 9), C),
    ),
    "an update of what is gone": change_history(
        GOOD,
        commit_of("none", UPDATE, 100, 110, 5, key=2, amount=1, writer=1),
        versions=rename_versions(GOOD, v5="none"),
    ),
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=list(RIGHT))
def test_right(history: TableHistory) -> None:
    assert violations(history) == []


WRONG = {
    "a lost update": (
        change_history(GOOD, read_of("past", 61, 65, 3, A7, B), read_of("last", 90, 95, 4, A7), rows=(A7,)),
        "past (read) saw other rows at version 3: without [(1, 2, 12)], but with [(1, 2, 7)]",
    ),
    "a lost commit": (
        change_history(GOOD, versions=rename_versions(GOOD, v4=""), rows=(A12, B)),
        "gone (delete) was told that it made version 4, and made none",
    ),
    "a commit that was lost to another": (
        change_history(GOOD, REFUSAL, DEATH, versions=rename_versions(GOOD, v4="death")),
        "gone (delete) was told that it made version 4, and made none",
    ),
    "a commit at another version than was told": (
        change_history(GOOD, replace(GONE, version=3)),
        "gone (delete) was told that it made version 3, and made [4]",
    ),
    "a commit that was made twice": (
        change_history(GOOD, versions=rename_versions(GOOD, v5="gone")),
        "transaction gone made 2 versions",
    ),
    "a commit that was made again by another transaction": (
        change_history(LANDED, versions=rename_versions(LANDED, v6="again")),
        "death was done 2 times",
    ),
    "a row twice": (
        change_history(GOOD, read_of("past", 61, 65, 3, A12, B, B)),
        "past (read) saw other rows at version 3: without [], but with [(2, 0, 0)]",
    ),
    "a row twice at the end": (
        change_history(GOOD, rows=(A12, A12)),
        "at the end there are other rows: without [], but with [(1, 2, 12)]",
    ),
    "a row that is missing at the end": (
        change_history(GOOD, rows=()),
        "at the end there are other rows: without [(1, 2, 12)], but with []",
    ),
    "a row of a commit that was refused": (
        change_history(GOOD, REFUSAL, read_of("last", 90, 95, 4, A12, C)),
        "last (read) saw other rows at version 4: without [], but with [(3, 1, 0)]",
    ),
    "a refusal that was made": (
        change_history(GOOD, REFUSAL, versions=rename_versions(GOOD, v5="refusal"), rows=(A12, C)),
        "refusal (append) was refused and made version 5: no",
    ),
    "a compaction that was refused and made": (
        change_history(PACKED, replace(COMPACTION, outcome=REFUSED, error="no")),
        "pack (compact) was refused and made version 6: no",
    ),
    "a compaction that lost a row": (
        change_history(PACKED, read_of("last", 90, 95, 6)),
        "last (read) saw other rows at version 6: without [(1, 2, 12)], but with []",
    ),
    "a gap": (
        change_history(GOOD, without="seven", versions=rename_versions(GOOD, v3="")),
        "there is no version 3",
    ),
    "no first version": (
        change_history(GOOD, without="create", versions=rename_versions(GOOD, v1="")),
        "there is no version 1",
    ),
    "a version that nobody made": (
        change_history(GOOD, versions=rename_versions(GOOD, v5="stranger")),
        "nobody made version 5",
    ),
    "a read of a version that was not accepted": (
        change_history(GOOD, read_of("last", 90, 95, 5, A12)),
        "last read version 5, which was never accepted",
    ),
    "a stale read": (
        change_history(GOOD, read_of("past", 61, 65, 2, A5, B)),
        "past (read) saw version 2 after seven (update) had ended at version 3",
    ),
    "a stale plain read": (
        change_history(GOOD, read_of("past", 61, 65, 2, A5, B, kind=PLAIN)),
        "past (plain) saw version 2 after seven (update) had ended at version 3",
    ),
    "a read behind another one": (
        change_history(GOOD, read_of("early", 21, 24, 2, A5, B), read_of("between", 25, 29, 1, A, B)),
        "between (read) saw version 1 after early (read) had ended at version 2",
    ),
    "a read from the future": (
        change_history(GOOD, read_of("past", 61, 65, 4, A12)),
        "gone (delete) made version 4 after past (read) had ended at version 4",
    ),
    "a commit before one that had ended": (
        change_history(GOOD, replace(FIVE, start=61, end=65), without="between"),
        "five (update) made version 2 after seven (update) had ended at version 3",
    ),
    "a death that left a version from before it began": (
        change_history(LANDED, replace(DEATH, start=100)),
        "death (append) made version 5 after after (read) had ended at version 5",
    ),
    "a compaction behind its time": (
        change_history(GOOD, replace(COMPACTION, offered=frozenset(), version=3)),
        "pack (compact) saw version 3 after gone (delete) had ended at version 4",
    ),
}


@pytest.mark.parametrize(("history", "violation"), WRONG.values(), ids=list(WRONG))
def test_wrong(history: TableHistory, violation: str) -> None:
    assert violation in violations(history)


# Several tables


def bump(name: str, start: int, end: int, version: int) -> RecordedOperation:
    """A transaction in both tables."""
    arguments = {"rows": [(version, 0, 0)]}
    offered = frozenset({f"{name} of a", f"{name} of b"})
    return RecordedOperation(name, APPEND, arguments, start, end, ACKNOWLEDGED, version, offered=offered)


def look(name: str, table: str, start: int, version: int) -> RecordedOperation:
    rows = tuple((each, 0, 0) for each in range(1, version + 1))
    return RecordedOperation(name, READ, {}, start, start + 1, ACKNOWLEDGED, version, rows, table=table)


def pair(*operations: RecordedOperation, a: str = "xy", b: str = "xy") -> dict[str, TableHistory]:
    """Two tables in which these transactions, by their first letters, made the versions after the first."""
    found = {}
    for number, (table, makers) in enumerate((("a", a), ("b", b))):
        created = commit_of(f"create {table}", CREATE, number, number + 1, 1, rows=[(1, 0, 0)])
        made = {1: created.id} | {version: f"{name} of {table}" for version, name in enumerate(makers, 2)}
        mine = [created, *(each for each in operations if each.table in ("", table))]
        rows = tuple((version, 0, 0) for version in made)
        found[table] = TableHistory(mine, {version: Made(name, "Any") for version, name in made.items()}, rows)
    return found


X, Y = bump("x", 10, 30, 2), bump("y", 32, 50, 3)
ROUND = [look("r1", "a", 12, 1), look("r2", "b", 14, 1), look("r3", "a", 16, 2), look("r4", "b", 18, 2)]


@pytest.mark.parametrize(
    "tables",
    [
        pair(X, Y, *ROUND),
        pair(X, Y, look("r1", "a", 12, 1), look("r2", "b", 14, 2), look("r3", "a", 16, 2)),
        pair(X, Y, look("r1", "b", 12, 1), look("r2", "a", 12, 2)),
        pair(X, Y, look("r1", "a", 52, 3), look("r2", "b", 54, 3)),
        pair(X, a="x", b="x"),
    ],
    ids=["a round", "done between two looks", "done while both looked", "all done", "no reads"],
)
def test_whole(tables: Mapping[str, TableHistory]) -> None:
    assert torn(tables) == []
    assert [violations(history) for history in tables.values()] == [[], []]


TORN = {
    "seen in a, then not in b": (
        pair(X, Y, look("r1", "a", 12, 2), look("r2", "b", 14, 1)),
        "r2 (read of b) saw version 1 after r1 (read of a) had ended at version 2",
    ),
    "seen in b, then not in a": (
        pair(X, Y, look("r1", "b", 12, 2), look("r2", "a", 14, 1)),
        "r2 (read of a) saw version 1 after r1 (read of b) had ended at version 2",
    ),
    "not seen in b after it had ended": (
        pair(X, Y, look("r1", "b", 31, 1)),
        "r1 (read of b) saw version 1 after x (append) had ended at version 2",
    ),
    "only in a": (pair(X, Y, b="x"), "version 3 was made by y in a, by nobody in b"),
    "in another order": (pair(X, Y, b="yx"), "version 2 was made by x in a, by y in b"),
}


@pytest.mark.parametrize(("tables", "violation"), TORN.values(), ids=list(TORN))
def test_torn(tables: Mapping[str, TableHistory], violation: str) -> None:
    assert violation in torn(tables)


# Notes


def test_notes(tmp_path: Path) -> None:
    first, second = Notes(tmp_path / "1.jsonl"), Notes(tmp_path / "2.jsonl")
    read = first.begin(READ, table="a")
    first.end(read, ACKNOWLEDGED, version=3, rows=[(1, 2, 3)])
    killed = second.begin(APPEND, {"rows": [(4, 5, 6)]})
    second.offer(killed, "transaction", "file")
    second.offer(killed, "transaction", "another file")
    second.fault(killed, "point")
    refused = first.begin(DELETE, {"key": 1})
    first.end(refused, REFUSED, error="because")

    ended, never, other = sorted(read_notes(tmp_path), key=lambda each: each.start)
    assert (ended.kind, ended.table, ended.version, ended.rows) == (READ, "a", 3, ((1, 2, 3),))
    assert ended.end is not None
    assert ended.start < ended.end < never.start < other.start
    assert (never.kind, never.outcome, never.end) == (APPEND, UNKNOWN, None)
    assert never.offered == {"transaction"}
    assert never.staged == {"file", "another file"}
    assert (other.outcome, other.error, other.arguments) == (REFUSED, "because", {"key": 1})
    assert read_faults(tmp_path) == {killed: "point"}
