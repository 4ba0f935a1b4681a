"""Processes that do timed work: asked by a line of JSON, answering with another, on so many cores and no more."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
END_S = 60
"""How long a process may take to end when it has nothing more to do."""


class WorkRefusedError(RuntimeError):
    """What was asked cannot be done there; says why."""


@dataclass(frozen=True, slots=True)
class WorkAnswer:
    """What came of a question, and what it took."""

    found: Any
    seconds: float
    cpu_s: float
    """Of the process and all that it started."""


class Worker:
    """A process; not for several threads."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def ask(self, **question: Any) -> WorkAnswer:
        """Have it do something.

        Raises:
            RefusedError: it says that it cannot.
            RuntimeError: it is gone.
        """
        assert self._process.stdin
        assert self._process.stdout
        before = cpu_s(self._process.pid)
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._exit_error() from error
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        answer = json.loads(line)
        if "error" in answer:
            raise WorkRefusedError(answer["error"])
        return WorkAnswer(answer["found"], answer["seconds"], cpu_s(self._process.pid) - before)

    def forget_peak(self) -> None:
        """Let the memory that it needs at most be counted from now on."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """The memory that it has needed at most, without that of other processes that it started."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def _exit_error(self) -> RuntimeError:
        return RuntimeError(f"the process is gone; its log ends:\n{self._log.read_text(errors='replace')[-4000:]}")


@contextmanager
def start(
    command: Sequence[str], folder: Path, cores: int, variables: Mapping[str, str] | None = None
) -> Iterator[Worker]:
    """A process on the first cores of this machine, until the block ends; `folder` is for its log and scratch files."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    all_of_them = os.sched_getaffinity(0)
    with log.open("wb") as output:
        os.sched_setaffinity(0, sorted(all_of_them)[:cores])  # which those that we start inherit
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**(os.environ if variables is None else variables), "TMPDIR": str(folder)},
            )
        finally:
            os.sched_setaffinity(0, all_of_them)
    try:
        yield Worker(process, log)
    finally:
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def cpu_s(pid: int) -> float:
    """Of a process, of those that it started, and of those of them that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in _text(task)]
    except FileNotFoundError:  # it has just ended
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(cpu_s, children))


def _text(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:  # a thread that has just ended
        return []
