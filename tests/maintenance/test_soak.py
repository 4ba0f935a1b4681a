"""A week of random commits with maintenance at work: fragments, versions and orphans stay bounded, rows are right."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from time import monotonic

import lance
import pyarrow as pa
import pytest

from lancehouse.store import maintenance as rows
from tests.maintenance.places import QUICK, Place, open_place

TABLES = 3
HOUR_MS = 3_600_000
POLICY = {
    **QUICK,
    "maintenance.cleanup.older-than": "0s",
    "maintenance.cleanup.every": "1h",
    "maintenance.orphans.every": "1d",
    "maintenance.orphans.older-than": "1h",
    "maintenance.index.unindexed-rows": "50",
}


class Writer:
    """Commits as users do, and knows which rows a table must have."""

    def __init__(self, place: Place, name: str, seed: int) -> None:
        self.place, self.name, self.random = place, name, random.Random(seed)
        self.next, self.rows = 0, set[int]()
        self.longest_s = 0.0

    def commit(self) -> None:
        """Commit, and again if versions since the one that it began with were cleaned up: here they are old at once."""
        for _ in range(10):
            state = self.random.getstate()
            try:
                return self.attempt()
            except (OSError, ValueError) as error:  # pylance raises both
                # "Unknown" is how pylance reports the catalog's refusal of a change that comes too late.
                if not any(text in str(error).lower() for text in ("not found", "is unknown")):
                    raise
                self.random.setstate(state)
        raise AssertionError("a writer does not get through")

    def attempt(self) -> None:
        started = monotonic()
        kind = self.random.random()
        if kind < 0.75 or len(self.rows) < 10:
            new = range(self.next, self.next + self.random.randint(1, 10))
            self.place.write(self.name, rows=len(new), start=new.start)
            self.rows.update(new)
            self.next = new.stop
        elif kind < 0.9:
            gone = self.random.sample(sorted(self.rows), 3)
            self.place.open(self.name).delete(f"id IN ({', '.join(map(str, gone))})")
            self.rows.difference_update(gone)
        else:
            # A writer that dies before its commit leaves a file.
            folder = Path(self.place.open(self.name).uri)
            [left] = lance.fragment.write_fragments(pa.table({"id": pa.array([-1], pa.int64())}), str(folder))
            os.utime(folder / "data" / left.files[0].path, (10**9, 10**9))
        self.longest_s = max(self.longest_s, monotonic() - started)


def simulate(place: Place, hours: int, commits: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, ...]]:
    """Let hours pass with commits in each; return the most fragments, versions and data files that were seen."""
    clock, passed = rows.read_clock, [0]
    monkeypatch.setattr(rows, "read_clock", lambda tx: clock(tx) + passed[0])
    writers = [Writer(place, f"t{number}", number) for number in range(TABLES)]
    for writer in writers:
        place.create(writer.name, commits=0)
        writer.commit()
        place.open(writer.name).create_scalar_index("id", "BTREE")
    most: dict[str, tuple[int, ...]] = {}
    for _ in range(hours):
        threads = [threading.Thread(target=repeat, args=(writer, commits)) for writer in writers]
        workers = [threading.Thread(target=place.worker(name, threads=2).run_until_idle) for name in ("one", "two")]
        for thread in threads + workers:
            thread.start()
        for thread in threads + workers:
            thread.join()
        place.work(threads=2)
        passed[0] += HOUR_MS
        for writer in writers:
            dataset = place.open(writer.name)
            folder = Path(dataset.uri)
            seen = (
                len(dataset.get_fragments()),
                len(list((folder / "_versions").glob("*.manifest"))),
                len(list((folder / "data").glob("*.lance"))),
            )
            most[writer.name] = tuple(map(max, zip(seen, most.get(writer.name, seen), strict=True)))
            assert set(dataset.to_table()["id"].to_pylist()) == writer.rows
            assert dataset.count_rows() == len(writer.rows)
    return most


def repeat(writer: Writer, commits: int) -> None:
    for _ in range(commits):
        writer.commit()


def test_a_week(tmp_path: Path, soak: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hours, commits = (168, 6) if soak else (3, 8)
    with open_place(tmp_path, policy=POLICY) as place:
        most = simulate(place, hours, commits, monkeypatch)
        assert not [run for run in place.records() if run.outcome == "failed"]
        done = {run.operation for run in place.records() if run.outcome == "done"}
        assert {"compact", "cleanup"} <= done
        for fragments, versions, files in most.values():
            # Of what a few hours bring, never of what the week brought.
            assert fragments <= 5 * commits
            assert versions <= 12 * commits
            assert files <= 12 * commits
