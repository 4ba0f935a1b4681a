"""A process that changes a few tables by compare-and-swap, and notes down each change that was acknowledged.

python -m tests.store.stress URL THREADS CHANGES NOTES
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import CommitRow
from lancehouse.store.statements import Tx

TABLES = 4
NAMESPACE = ("stress",)


def change(database: Database, table: str, author: str) -> int:
    """Move a table on by one revision, and say to which; again and again until it is won."""
    warehouse = database.read(repository.list_warehouses)[0]
    while True:
        row = database.read(lambda tx: repository.find_entry(tx, warehouse.id, NAMESPACE, table))
        assert row is not None
        revision = row.revision + 1

        def work(tx: Tx, id: int = row.id, before: int = row.revision, revision: int = revision) -> bool:
            if not repository.advance_entry(tx, id, before, now_ms=0, version=revision):
                return False
            repository.insert_commit(tx, id, CommitRow(0, author, "stress", "", revision, revision, "append"))
            return True

        if database.write(work):
            return revision


def run(database: Database, number: int, changes: int, notes: int) -> None:
    """One thread's share. A note is one write, so that it is whole or not there."""
    author = f"{os.getpid()}-{number}"
    for step in range(changes):
        table = f"t{(number + step) % TABLES}"
        os.write(notes, f"{table} {change(database, table, author)} {author}\n".encode())


def main(url: str, threads: str, changes: str, file: str) -> None:
    """Start all threads, and say so on standard output."""
    database = Database(url)
    notes = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started = [
        Thread(target=run, args=(database, number, int(changes), notes), daemon=True) for number in range(int(threads))
    ]
    for thread in started:
        thread.start()
    Path(file + ".started").touch()
    for thread in started:
        thread.join()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
