"""Random histories of a table with computed columns, with kills at any step: each row ends with the right value.

None is lost, and none is computed twice beyond a checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InternalError

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, column_filling
from lancehouse.lake.job_records import JobProgress

THREADS = 2
OFTEN: dict[str, Any] = {"batch_rows": 2, "checkpoint_rows": 4}
AGAIN = THREADS * (OFTEN["batch_rows"] + OFTEN["checkpoint_rows"])
"""Most rows that a kill may cost: a checkpoint of each task, and the batch that makes it full."""


class KilledError(BaseException):
    """As if the process were killed: nobody who cleans up catches it, and Lance reduces it to text."""


class Fuse:
    """Kills at the n-th step of a fill: a call, a record or a commit, before or after it."""

    def __init__(self) -> None:
        self.steps: int | None = None
        self._lock = Lock()

    def burn(self) -> None:
        with self._lock:
            if self.steps is not None:
                self.steps -= 1
                if self.steps <= 0:
                    raise KilledError

    def around(self, function: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.burn()
            result = function(*arguments, **options)
            self.burn()
            return result

        return wrapped


class History:
    """A table, what its rows should be, and changes by chance."""

    def __init__(self, folder: Path, seed: int, fuse: Fuse, *, is_stable: bool) -> None:
        self.docs, self.chance = str(folder / "docs.lance"), random.Random(seed)
        self.fuse, self.is_stable = fuse, is_stable
        self.words = {n: f"w{n}" for n in range(30)}
        rows = pa.table({"id": list(self.words), "word": list(self.words.values())})
        lance.write_dataset(rows, self.docs, max_rows_per_file=12, enable_stable_row_ids=is_stable)
        self.jobs = TableJobs(Connection("dir", {"root": str(folder)}), LocalEngine(threads=THREADS))
        self.input, self.version, self.new, self.bad = "word", 1, 100, set[str]()
        self.computed: Counter[tuple[str, int]] = Counter()
        self.allowed = 0
        """How many rows may have been computed again."""
        self.is_pending = False
        """Whether a fill was killed, so that there is something to resume."""
        self.disturbance: Any = None
        self.define()

    def define(self) -> None:
        version, history = self.version, [self]  # a list: what is in it does not count as code

        @lancehouse.column(version=str(version), inputs=[self.input], returns=pa.string())
        def compute(given: Any) -> Any:
            history[0].fuse.burn()
            disturb, history[0].disturbance = history[0].disturbance, None
            if disturb is not None:
                disturb()
            texts = given.to_pylist()
            if found := history[0].bad.intersection(texts):
                raise ValueError(sorted(found)[0])
            history[0].computed.update((text, version) for text in texts)
            return [f"{text}/{version}" for text in texts]

        self.function = compute
        self.jobs.define_columns("docs", {"x": compute}, allow_changed=True)
        self.jobs.define_columns("docs", {"y": "x || '!'"})

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.docs)

    def choose(self) -> int:
        return self.chance.choice(list(self.words))

    def append(self) -> None:
        rows = {self.new + n: f"n{self.new + n}" for n in range(self.chance.randint(1, 8))}
        self.new += 10
        self.words |= rows
        lance.write_dataset(pa.table({"id": list(rows), self.input: list(rows.values())}), self.docs, mode="append")

    def update(self) -> None:
        """Without stable row ids nobody knows which rows changed, except by `update_columns`."""
        if self.is_stable:
            one = self.choose()
            self.words[one] += "!"
            self.dataset.update({self.input: f"'{self.words[one]}'"}, where=f"id = {one}")

    def update_columns(self) -> None:
        chosen = {self.choose() for _ in range(3)}
        self.words |= {one: f"{self.words[one]}?" for one in chosen}
        rows = {"id": list(chosen), self.input: [self.words[one] for one in chosen]}
        self.jobs.update_columns("docs", pa.table(rows), on="id")
        # A file of the inputs is new: what was computed of the other rows of the fragment is not used.
        self.allowed += len(self.words) if self.is_pending else 0

    def delete(self) -> None:
        one = self.choose()
        del self.words[one]
        self.dataset.delete(f"id = {one}")

    def compact(self) -> None:
        self.dataset.optimize.compact_files(target_rows_per_fragment=self.chance.choice([20, 1000]))
        self.allowed += 0 if self.is_stable else len(self.words)

    def rename(self) -> None:
        old, self.input = self.input, f"word{self.new}"
        self.new += 1
        self.dataset.alter_columns({"path": old, "name": self.input})

    def redefine(self) -> None:
        self.version += 1
        self.define()

    def spoil(self) -> None:
        self.bad = {self.words[self.choose()]}

    def fill(self) -> None:
        self._fill()

    def fill_beside_others(self) -> None:
        self.disturbance = self.chance.choice([self.append, self.delete, self.update, self.compact, self.rename])
        self._fill()
        self.disturbance = None

    def kill(self) -> None:
        self.fuse.steps = self.chance.randint(1, 30)
        self.allowed += AGAIN
        self.is_pending = True
        with suppress(KilledError, InternalError):
            self._fill()
        self.fuse.steps = None

    def _fill(self, **options: Any) -> None:
        how = {"on_error": self.chance.choice(["null", "skip"]), "commit_every": self.chance.choice([None, 1])}
        self.jobs.backfill("docs", {"x": self.function}, **{**how, **OFTEN, **options})
        self.jobs.backfill("docs", "y", **OFTEN)
        self.is_pending = False

    def check(self) -> None:
        self.bad = set()
        self._fill()
        self._fill(where_failed=True)
        rows = self.dataset.to_table(["id", self.input, "x", "y"]).to_pylist()
        expected = {
            one: (word, f"{word}/{self.version}", f"{word}/{self.version}!") for one, word in self.words.items()
        }
        assert {row["id"]: (row[self.input], row["x"], row["y"]) for row in rows} == expected
        assert len(rows) == len(self.words)
        again = sum(count - 1 for count in self.computed.values())
        assert again <= self.allowed, "computed twice beyond a checkpoint"
        assert self.jobs.backfill("docs", {"x": self.function}).filled == 0
        self.jobs.remove_orphans("docs", no_writers=True)
        assert len(self.dataset.to_table()) == len(self.words), "nothing that is needed is removed"


CHANGES = (
    *("append", "update", "update_columns", "delete", "compact", "rename", "redefine", "spoil"),
    *("fill", "fill_beside_others", "kill", "kill"),
)


@pytest.mark.parametrize("is_stable", [True, False], ids=["stable", "unstable"])
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 160))])
def test_any_history_ends_with_the_right_values(
    tmp_path: Path, seed: int, is_stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse = Fuse()
    monkeypatch.setattr(column_filling, "LEAST_BETWEEN_S", 0.0)
    monkeypatch.setattr(column_filling, "LEAST_SPLIT", 20)
    monkeypatch.setattr(column_filling, "commit", fuse.around(column_filling.__dict__["commit"]))
    monkeypatch.setattr(JobProgress, "record", fuse.around(JobProgress.record))
    history = History(tmp_path, seed, fuse, is_stable=is_stable)
    for _ in range(14):
        getattr(history, history.chance.choice(CHANGES))()
    history.check()


SLOW = """
import sys, time
import lancehouse, pyarrow as pa
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs, column_filling

column_filling.LEAST_BETWEEN_S = 0.0

@lancehouse.column(version="1", inputs=["id"], returns=pa.int64())
def slow(ids):
    with open("calls", "a") as log:
        log.writelines(f"{number}\\n" for number in ids.to_pylist())
    time.sleep(0.02)
    return pa.array([number * 2 for number in ids.to_pylist()])

if __name__ == "__main__":
    jobs = TableJobs(Connection("dir", {"root": "."}), LocalEngine(threads=2))
    jobs.define_columns("docs", {"twice": slow})
    jobs.backfill("docs", {"twice": slow}, batch_rows=10, checkpoint_rows=50)
"""


@contextmanager
def start_fill(folder: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", "import runpy; runpy.run_module('slow_fill', run_name='__main__')"],
        cwd=folder,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.engines  # starts other processes, and waits for them
def test_a_fill_goes_on_after_kill_9(tmp_path: Path) -> None:
    rows = 1000
    lance.write_dataset(pa.table({"id": range(rows)}), tmp_path / "docs.lance", max_rows_per_file=250)
    (tmp_path / "slow_fill.py").write_text(SLOW)
    for wanted in (4, 8):  # killed twice
        with start_fill(tmp_path) as process:
            begun = time.monotonic()
            while len(list(tmp_path.glob("docs.lance/_lancehouse/jobs/*/*.json"))) < wanted and process.poll() is None:
                assert time.monotonic() - begun < 120, "no checkpoint"
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    with start_fill(tmp_path) as process:
        assert process.wait(120) == 0
    found = lance.dataset(tmp_path / "docs.lance").to_table(["id", "twice"]).to_pydict()
    assert found["twice"] == [number * 2 for number in found["id"]]
    calls = Counter(map(int, (tmp_path / "calls").read_text().split()))
    assert set(calls) == set(range(rows)), "none is lost"
    assert sum(calls.values()) <= rows + 2 * 2 * (50 + 10), "at most a checkpoint of each task for each kill"
