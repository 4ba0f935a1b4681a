"""Python workers of Spark that stop where a test wants them to: `spark.python.daemon.module=tests.spark.faults`.

What to do is told by a file in a folder that the variable FAULTS names; a worker that stops says so by another.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic, sleep
from typing import Any

FOLDER = "FAULTS"
PATIENCE_S = 240

STOPPING = 1
"""The task of each write that stops: the second."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What tests decide."""

    folder: Path

    def plan(self, do: str, moment: str = "after") -> None:
        """From now on, the first attempt of a task of each write will `hold` or `crash`, or all its attempts `fail`.

        Args:
            do: what.
            moment: `before` or `after` a task has noted what it has written.
        """
        self.folder.mkdir(exist_ok=True)
        for file in self.folder.iterdir():
            file.unlink()
        (self.folder / ".plan").write_text(json.dumps({"do": do, "moment": moment}))
        (self.folder / ".plan").replace(self.folder / "plan.json")

    def wait(self, tables: set[str]) -> None:
        """Until the writes to all of these tables have come to where they stop."""
        deadline = monotonic() + PATIENCE_S
        while missing := {table for table in tables if not (self.folder / table).exists()}:
            assert monotonic() < deadline, f"the writes to {sorted(missing)} did not come so far"
            sleep(0.05)

    def release(self) -> None:
        """Let all go on that wait."""
        (self.folder / "release").touch()


def reach(table: str, moment: str) -> None:
    """A task has come to a point where it might stop."""
    from pyspark import TaskContext

    context, folder = TaskContext.get(), Path(os.environ[FOLDER])
    if context is None or not (folder / "plan.json").exists():
        return
    plan = json.loads((folder / "plan.json").read_text())
    if plan["moment"] != moment or context.partitionId() != STOPPING:
        return
    if plan["do"] == "fail":
        (folder / table).touch()
        raise RuntimeError("the test wants this task to fail")
    if plan["do"] not in ("hold", "crash") or not _is_first(folder / table):
        return
    if plan["do"] == "crash":
        os._exit(1)
    while not (folder / "release").exists():
        time.sleep(0.05)


def _is_first(sign: Path) -> bool:
    """Whether no other attempt was here before; which of them is the faster does not matter."""
    try:
        sign.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def install() -> None:
    """Have the calls in which tasks write come to such points."""
    from lancehouse.jobs import compaction, index_building
    from lancehouse.lake.job_records import JobProgress

    put = JobProgress.record

    @wraps(put)
    def put_with_faults(self: JobProgress, key: str, value: Any) -> None:
        table = Path(self.location).name
        stops = table != "match" or _deletes(value)
        if stops:
            reach(table, "before")
        put(self, key, value)
        if stops:
            reach(table, "after")

    JobProgress.record = put_with_faults  # type: ignore[method-assign]
    compaction.execute = _stopping(compaction.execute)
    index_building.execute = _stopping(index_building.execute)


def _stopping(work: Callable[..., str]) -> Callable[..., str]:
    @wraps(work)
    def work_with_faults(table: Any, *arguments: Any) -> str:
        reach(table.id[-1], "before")
        result = work(table, *arguments)
        reach(table.id[-1], "after")
        return result

    return work_with_faults


def _deletes(pieces: Any) -> bool:
    """Whether rows of the table were deleted, in a write that first writes its own."""
    found: list[Mapping[str, Any]] = [json.loads(piece) for piece in pieces]
    return any(piece.get("deletion_file") for piece in found)


def main() -> None:
    """Spark's own daemon, whose workers have the points, and share slow imports; none of these starts a thread."""
    from pyspark import daemon

    import lancehouse.clients.iceberg
    import lancehouse.spark.catalog
    import lancehouse.spark.data_source  # noqa: F401

    work = daemon.worker

    def worker(*arguments: Any) -> int:
        if FOLDER in os.environ:
            install()
        return int(work(*arguments))

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
