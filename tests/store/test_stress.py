"""Compare-and-swap from many threads of several processes, some of which are killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.store.rows import insert
from tests.store.stress import NAMESPACE, TABLES

MANY = 1_000_000
PATIENCE_S = 120


def prepare(tx: Tx) -> int:
    warehouse = repository.insert_warehouse(tx, "main", "/data")
    assert warehouse is not None
    namespace = repository.insert_namespace(tx, warehouse.id, NAMESPACE, {})
    assert namespace is not None
    for number in range(TABLES):
        insert(tx, namespace.id, f"t{number}")
    return warehouse.id


def start(url: str, threads: int, changes: int, notes: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.stress", url, str(threads), str(changes), str(notes)],
        cwd=Path(__file__).parent.parent.parent,
    )


def read_notes(files: list[Path]) -> list[tuple[str, int, str]]:
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    return [(table, int(revision), author) for table, revision, author in lines]


def wait_for_notes(file: Path, count: int) -> None:
    deadline = monotonic() + PATIENCE_S
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert monotonic() < deadline, f"{file.name} has no {count} notes"
        sleep(0.01)


def test_every_revision_once_whoever_is_killed(database: Database, tmp_path: Path, soak: bool) -> None:
    """What was acknowledged is there, by who was told so; each revision was made once, and none is left out."""
    url = database.url or f"sqlite:///{database.file}"
    warehouse = database.write(prepare)
    rounds, threads, changes = (20, 8, 250) if soak else (1, 4, 50)
    notes = [tmp_path / f"notes {number}" for number in range(rounds * 2)]
    for number in range(rounds):
        survivor, victim = (
            start(url, threads, changes, notes[2 * number]),
            start(url, threads, MANY, notes[2 * number + 1]),
        )
        try:
            wait_for_notes(notes[2 * number + 1], changes)
            victim.kill()
            assert survivor.wait(PATIENCE_S) == 0
        finally:
            for process in (survivor, victim):
                process.kill()
                process.wait()
    acknowledged = read_notes(notes)
    assert len(acknowledged) >= rounds * (threads * changes + changes)
    for table in sorted({table for table, _, _ in acknowledged}):
        row = database.read(lambda tx, name=table: repository.find_entry(tx, warehouse, NAMESPACE, name))  # type: ignore[misc]
        assert row is not None
        commits = database.read(lambda tx, row=row: repository.list_commits(tx, row.id))  # type: ignore[misc]
        assert [commit.revision for commit in commits] == list(range(row.revision, 1, -1))
        authors = {commit.revision: commit.principal for commit in commits}
        told = {revision: author for name, revision, author in acknowledged if name == table}
        assert told.items() <= authors.items()
        assert len(told) == sum(name == table for name, _, _ in acknowledged)
        assert row.version == row.revision
