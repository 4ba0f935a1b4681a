"""Every kind of job gives the same on each engine; in this process it needs no Spark, and can be stopped anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, get_ident
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lance_namespace import DeclareTableRequest
from lance_namespace.errors import ConcurrentModificationError, InternalError, InvalidInputError

from lancehouse.connection import Connection
from lancehouse.jobs import (
    Engine,
    JobCancelledError,
    LocalEngine,
    TableJobs,
    TaskProgress,
    compaction,
    table_copy,
)
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.sources import ingest_source
from lancehouse.lake import commits, scans

ROWS = 400


@dataclass(frozen=True)
class IngestFolder:
    """A folder with a table `t` of four fragments and files to ingest."""

    folder: Path

    @property
    def connection(self) -> Connection:
        return Connection("dir", {"root": str(self.folder / "tables")})

    @property
    def table(self) -> Path:
        return self.folder / "tables" / "t.lance"

    def jobs(self, engine: Engine | None = None) -> TableJobs:
        return TableJobs(self.connection, engine or LocalEngine(threads=2))

    def open(self) -> lance.LanceDataset:
        return lance.dataset(self.table)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = self.open().to_table(list(columns) or ["id", "v"]).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def files(self) -> set[str]:
        """Data, deletions, indices and records; not what a commit alone writes."""
        names = ("data", "_deletions", "_indices", "_staging", "_lancehouse")
        found = (path for name in names for path in (self.table / name).rglob("*"))
        return {str(path.relative_to(self.table)) for path in found if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IngestFolder:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    monkeypatch.setattr(ingest_source, "LEAST_BYTES", 64)
    made = IngestFolder(tmp_path)
    vectors = np.random.default_rng(7).random((ROWS, 8), np.float32)
    ids = pa.array(range(ROWS), pa.int64())
    arrays = [ids, ids, pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)]
    lance.write_dataset(pa.table(arrays, ["id", "v", "emb"]), made.table, max_rows_per_file=100)
    (tmp_path / "files").mkdir()
    for number in range(4):
        some = pa.array(range(1000 + number * 10, 1010 + number * 10), pa.int64())
        pq.write_table(pa.table({"id": some, "v": some}), tmp_path / "files" / f"{number}.parquet")
    return made


def source(first: int, last: int) -> pa.Table:
    ids = pa.array(range(first, last), pa.int64())
    return pa.table({"id": ids, "v": pc.negate(ids), "emb": pa.nulls(last - first, pa.list_(pa.float32(), 8))})


def twice(batch: pa.RecordBatch) -> Any:
    return pc.add(batch["id"], batch["id"])


JOBS: dict[str, Callable[[TableJobs, Path], Any]] = {
    "ingest": lambda jobs, folder: jobs.ingest(folder / "files", "t"),
    "ingest into a new table": lambda jobs, folder: jobs.ingest(folder / "files", "new", mode="create"),
    "delete": lambda jobs, _: jobs.delete("t", "id % 2 = 0"),
    "update": lambda jobs, _: jobs.update("t", {"v": "v + 1000"}, "id < 150"),
    "merge": lambda jobs, _: jobs.merge(source(250, 450), "t", on="id"),
    "merge that inserts": lambda jobs, _: jobs.merge(source(250, 450), "t", on="id", when_matched="ignore"),
    "merge that deletes": lambda jobs, _: jobs.merge(
        source(250, 450), "t", on="id", when_matched="delete", when_not_matched="ignore"
    ),
    "merge with all": lambda jobs, _: jobs.merge(source(250, 450), "t", on="id", delete_by_source=True),
    "add_columns": lambda jobs, _: jobs.add_columns("t", {"w": "v * 2"}),
    "add_columns by a function": lambda jobs, _: jobs.add_columns("t", {"w": twice}, read_columns=["id"]),
    "compact": lambda jobs, _: jobs.compact("t", target_rows_per_fragment=200),
    "create_index": lambda jobs, _: jobs.create_index("t", "id", "BTREE", rows_per_task=1),
    "create_index of vectors": lambda jobs, _: jobs.create_index(
        "t", "emb", "IVF_FLAT", num_partitions=2, rows_per_task=1
    ),
    "optimize_indices": lambda jobs, _: jobs.optimize_indices("t"),
    "cleanup": lambda jobs, _: jobs.cleanup("t"),
    "remove_orphans": lambda jobs, _: jobs.remove_orphans("t", no_writers=True),
}

WRITING = [kind for kind in JOBS if kind.split()[0] not in ("optimize_indices", "cleanup", "remove_orphans")]

EXPECTED: dict[str, Callable[[int], int | None]] = {
    "delete": lambda n: n if n % 2 else None,
    "update": lambda n: n + 1000 if n < 150 else n,
    "merge": lambda n: -n if 250 <= n < 450 else n,
    "merge that inserts": lambda n: -n if n >= ROWS else n,
    "merge that deletes": lambda n: None if n >= 250 else n,
    "merge with all": lambda n: -n if n >= 250 else None,
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_does_the_same_on_each_engine(kind: str, place: IngestFolder, engine: Engine) -> None:
    orphan = place.table / "data" / "0123456789abcdef.lance"
    if kind == "remove_orphans":
        orphan.write_bytes(b"1234")
    result = JOBS[kind](place.jobs(engine), place.folder)
    if kind in EXPECTED:
        numbers = range(450 if "merge" in kind and kind != "merge that deletes" else ROWS)
        expected = [(n, value) for n in numbers if (value := EXPECTED[kind](n)) is not None]
        assert place.rows() == sorted(expected)
        assert result.version == place.open().version == 2
    elif kind.startswith("ingest"):
        name = "new" if "new" in kind else "t"
        assert lance.dataset(place.table.with_name(f"{name}.lance")).count_rows("id >= 1000") == 40
    elif kind.startswith("add_columns"):
        assert place.rows("id", "w") == [(n, 2 * n) for n in range(ROWS)]
    elif kind == "compact":
        assert (result.fragments_removed, result.fragments_added, len(place.open().get_fragments())) == (4, 2, 2)
    elif kind.startswith("create_index"):
        assert (result.segments, len(place.open().describe_indices())) == (2, 1)
    elif kind == "remove_orphans":
        assert (result.files, orphan.exists()) == (1, False)
    assert not list(place.folder.rglob("_lancehouse/**/*.json")), "no record is left"
    assert not list(place.folder.rglob("_staging/**/*.*"))


def test_a_copy_is_the_same_on_each_engine(place: IngestFolder, engine: Engine) -> None:
    target = Connection("dir", {"root": str(place.folder / "copies")})
    target.connect().declare_table(DeclareTableRequest(id=["t"]))
    addresses = TableAddress.parse(place.connection, "t"), TableAddress.parse(target, "t")
    plan = table_copy.copy(engine, *addresses)
    assert plan.files > 4
    assert lance.dataset(place.folder / "copies" / "t.lance").to_table() == place.open().to_table()
    assert table_copy.copy(engine, *addresses).files == 0


# Failures


class _Stopping(LocalEngine):
    """Has all pieces run, and then fails: so does a commit that never comes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(threads=2)
        self.error = error

    def run(self, pieces: Any, work: Any, resources: Any = None) -> list[str]:
        super().run(pieces, work)
        raise self.error


@pytest.mark.parametrize("kind", WRITING)
def test_what_fails_leaves_the_table_as_it_was(kind: str, place: IngestFolder) -> None:
    """Only jobs that can be resumed leave files and records: the same call takes them over."""
    before = place.files()
    with pytest.raises(ValueError, match="no more"):
        JOBS[kind](place.jobs(_Stopping(ValueError("no more"))), place.folder)
    assert place.open().version == 1
    if not kind.startswith(("ingest", "add_columns")):
        assert place.files() == before
    JOBS[kind](place.jobs(), place.folder)
    assert not list(place.folder.rglob("_lancehouse/**/*.json"))


def _refuse(*_: object, **__: object) -> int:
    raise ConcurrentModificationError("somebody was faster")


@pytest.mark.parametrize(
    ("kind", "commit"),
    [
        ("ingest", "lancehouse.lake.commits.commit"),
        ("delete", "lancehouse.jobs.row_changes.commit_deletion"),
        ("update", "lancehouse.jobs.row_changes.commit_rewrite"),
        ("merge", "lancehouse.jobs.merge.commit_rewrite"),
        ("compact", "lancehouse.jobs.compaction.commit"),
        ("create_index", "lancehouse.jobs.index_building.commit"),
    ],
)
def test_a_commit_that_is_refused_leaves_no_files(kind: str, commit: str, place: IngestFolder) -> None:
    before = place.files()
    with patch(commit, _refuse), pytest.raises(ConcurrentModificationError):
        JOBS[kind](place.jobs(), place.folder)
    assert place.files() == before
    assert place.open().version == 1


def test_a_compaction_of_what_others_have_just_deleted(place: IngestFolder) -> None:
    """The commit itself finds out."""
    execute = compaction.execute

    def and_somebody_deletes(*arguments: Any) -> str:
        if place.open().version == 1:
            place.open().delete("id < 200")
        return execute(*arguments)

    with (
        patch.object(compaction, "execute", and_somebody_deletes),
        pytest.raises(ConcurrentModificationError, match="plan it again"),
    ):
        JOBS["compact"](place.jobs(LocalEngine(threads=1)), place.folder)
    assert place.open().count_rows() == 200
    referenced = {file.path for each in place.open().get_fragments() for file in each.data_files()}
    assert len([file for file in place.files() if file.startswith("data/")]) == 4 >= len(referenced)


@pytest.mark.parametrize("kind", ["delete", "update", "merge", "ingest", "add_columns"])
def test_an_append_meanwhile_stays(kind: str, place: IngestFolder, engine: Engine) -> None:
    done: list[int] = []
    commit = commits.commit

    def somebody_appends(*arguments: Any, **options: Any) -> int:
        if not done:
            done.append(1)
            lance.write_dataset(source(9000, 9001), place.table, mode="append")
        return commit(*arguments, **options)

    columns = patch("lancehouse.jobs.columns.commit", somebody_appends)
    with patch("lancehouse.lake.commits.commit", somebody_appends), columns:
        JOBS[kind](place.jobs(engine), place.folder)
    assert place.open().count_rows("id = 9000") == 1


def test_the_error_of_a_piece_is_told() -> None:
    def fails(_: int) -> list[str]:
        raise ValueError("too much")

    with pytest.raises(InternalError, match="ValueError: too much"):
        LocalEngine().run([1], fails)
    with pytest.raises(InvalidInputError, match="threads must be 1 or more"):
        LocalEngine(threads=0)


def test_the_first_failure_ends_the_run() -> None:
    """Pieces at work are waited for; no other begins."""
    begun: list[int] = []

    def work(piece: int) -> list[str]:
        begun.append(piece)
        if piece == 0:
            raise InvalidInputError("no more")
        time.sleep(0.05)
        return [str(piece)]

    with pytest.raises(InvalidInputError):
        LocalEngine(threads=2).run(range(100), work)
    now = len(begun)
    assert now < 50
    time.sleep(0.2)
    assert len(begun) == now


# Progress and cancellation


def test_progress_is_reported_by_the_caller(place: IngestFolder) -> None:
    told: list[tuple[TaskProgress, int]] = []
    engine = LocalEngine(threads=2, report_progress=lambda now: told.append((now, get_ident())))
    place.jobs(engine).compact("t", target_rows_per_fragment=200)
    place.jobs(engine).delete("t", "id = 7")
    assert told[-1] == (TaskProgress(4, 4), get_ident())
    assert [now.done for now, _ in told] == sorted(now.done for now, _ in told)


@pytest.mark.parametrize("kind", WRITING)
def test_a_job_that_is_cancelled(kind: str, place: IngestFolder) -> None:
    """The table is as it was, and the same call does all."""
    before, cancelled = place.files(), Event()
    engine = LocalEngine(1, lambda _: cancelled.set(), cancelled)
    with pytest.raises(JobCancelledError):
        JOBS[kind](place.jobs(engine), place.folder)
    assert place.open().version == 1
    if not kind.startswith(("ingest", "add_columns")):
        assert place.files() == before
    JOBS[kind](place.jobs(), place.folder)
    assert not list(place.folder.rglob("_lancehouse/**/*.json"))


def test_cancelling_ends_the_tour_of_a_namespace(place: IngestFolder) -> None:
    lance.write_dataset(source(0, 10), place.table.with_name("u.lance"), max_rows_per_file=5)
    cancelled = Event()
    cancelled.set()
    with pytest.raises(JobCancelledError):
        place.jobs(LocalEngine(cancelled=cancelled)).compact(namespace="")


# Without Spark, and killed

PROGRAM = """
import os, sys, time
sys.modules["pyspark"] = sys.modules["py4j"] = None
from pathlib import Path
from lancehouse.jobs.job import JobProgress
from lancehouse.jobs.sources import ingest_source
from lancehouse.lake import scans
from tests.jobs.test_engines import JOBS, IngestFolder

scans.MIN_TASK_ROWS, ingest_source.LEAST_BYTES = 1, 64
folder, dies, *kinds = sys.argv[1:]
record = JobProgress.record

def record_and_wait(self, key, value):
    record(self, key, value)
    if dies == "dies" and key not in ("running", "code", "lancehouse.run"):
        os.write(1, b"here\\n")  # at once: several threads come here
        time.sleep(600)

JobProgress.record = record_and_wait
for kind in kinds:
    JOBS[kind](IngestFolder(Path(folder)).jobs(), Path(folder))
print(sorted(name for name in sys.modules if name.startswith(("pyspark", "lancehouse.spark")) and sys.modules[name]))
"""


def start_program(place: IngestFolder, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(place.folder), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_no_job_needs_pyspark(place: IngestFolder) -> None:
    kinds = [kind for kind in JOBS if kind not in ("add_columns by a function", "create_index of vectors")]
    with start_program(place, "lives", *kinds) as program:
        output, errors = program.communicate()
    assert (program.returncode, output) == (0, "[]\n"), errors


@pytest.mark.parametrize("kind", ["ingest", "delete", "update", "merge", "add_columns", "compact", "create_index"])
def test_a_process_that_is_killed(kind: str, place: IngestFolder) -> None:
    """The table is as it was; the same call again does all, and takes over what a job that can be resumed had."""
    with start_program(place, "dies", kind) as doomed:
        assert doomed.stdout is not None
        line = doomed.stdout.readline()
        os.kill(doomed.pid, signal.SIGKILL)
    assert line == "here\n"
    assert place.open().version == 1
    kept = {file for file in place.files() if file.startswith("data/")}
    JOBS[kind](place.jobs(), place.folder)
    if kind in ("ingest", "add_columns"):
        used = {f"data/{file.path}" for each in place.open().get_fragments() for file in each.data_files()}
        assert len(kept & used) > 4
    for _ in range(2):  # records of jobs first, then what they name
        place.jobs().remove_orphans("t", older_than=timedelta(0), no_writers=True)
    assert not list(place.table.rglob("_lancehouse/**/*.json"))
    assert place.open().to_table().num_rows == place.open().count_rows()
