"""Processes that commit to Lance tables, each the next time as soon as the last commit is done.

They are started once and given one table after the other. What they need for it, a client and a first commit, is made
before the clock runs.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Literal, Self

import lance
import pyarrow as pa
from lance_namespace import DescribeTableRequest, LanceNamespace, connect

ROWS = 100
"""In one commit."""
BATCH = pa.table({"id": pa.array(range(ROWS), pa.int64())})
PATIENCE = 3
"""A writer gives up when so many commits in a row have failed."""

Mode = Literal["create", "append", "overwrite"]
Commit = Callable[[], None]


@dataclass(frozen=True, slots=True)
class BenchTable:
    """How to reach a table: by its path, or by its name in a catalog."""

    id: Sequence[str]
    """One part, the path, where there is no catalog."""
    impl: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def client(self) -> LanceNamespace | None:
        """Of the catalog."""
        return connect(self.impl, dict(self.properties)) if self.impl else None

    def create(self) -> BenchTable:
        """Make it, with a first version."""
        self.write(self.client(), "create")
        return self

    def write(self, client: LanceNamespace | None, mode: Mode) -> lance.LanceDataset:
        """One commit."""
        if client is None:
            return lance.write_dataset(BATCH, self.id[0], mode=mode)
        return lance.write_dataset(BATCH, namespace_client=client, table_id=list(self.id), mode=mode)

    def location(self) -> str:
        """Where it lies."""
        client = self.client()
        if client is None:
            return self.id[0]
        location = client.describe_table(DescribeTableRequest(id=list(self.id))).location
        assert location
        return location


@dataclass(frozen=True, slots=True)
class WriterWork:
    """What a writer does again and again."""

    table: BenchTable
    mode: Mode = "append"
    held: bool = False
    """With a dataset that it holds, instead of by path or name each time."""

    def begin(self) -> Commit:
        """Make ready; one commit is made on the way."""
        client = self.table.client()
        dataset = self.table.write(client, self.mode)
        if self.held:
            return lambda: dataset.insert(BATCH, mode=self.mode)
        return lambda: _ignore(self.table.write(client, self.mode))


@dataclass(frozen=True, slots=True)
class WriterRun:
    """What one writer did."""

    started: float
    ended: float
    cpu_s: float
    commits: Sequence[tuple[float, float]]
    """When each began and ended, by a clock that all processes share."""
    failures: int = 0
    """Commits that Lance gave up; the writer made another one for each."""


class Writers:
    """So many processes, until the block ends."""

    def __init__(self, number: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._left: Synchronized[int] = spawn.Value("i", 0)
        self._idle: list[Connection] = []
        self._processes = []
        for _ in range(number):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, self._left), daemon=True)
            process.start()
            theirs.close()
            self._idle.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()
        for process in self._processes:
            process.join()

    @contextmanager
    def on(self, work: WriterWork, number: int) -> Iterator[Callable[[int], list[WriterRun]]]:
        """Some of them, ready; the function has them make that many commits together, and can be called again."""
        taken = [self._idle.pop() for _ in range(number)]
        _ask(taken, work)

        def run(commits: int) -> list[WriterRun]:
            self._left.value = commits
            return _ask(taken, True)

        yield run
        _ask(taken, False)
        self._idle += taken


def _ask(taken: Sequence[Connection], what: object) -> list[WriterRun]:
    """Tell it to all, then hear all; an `EOFError` is a writer that died, whose reason is on the standard error."""
    for connection in taken:
        connection.send(what)
    return [connection.recv() for connection in taken]


def _serve(connection: Connection, left: Synchronized[int]) -> None:
    """A writer, as long as somebody is at the other end."""
    try:
        while True:
            work: WriterWork = connection.recv()
            commit = work.begin()
            connection.send(None)
            while connection.recv():
                connection.send(_run(commit, left))
            connection.send(None)
    except EOFError:
        return


def _run(commit: Commit, left: Synchronized[int]) -> WriterRun:
    """Commit as long as there is something left to do."""
    commits: list[tuple[float, float]] = []
    failures = 0
    cpu, started = time.process_time(), time.monotonic()
    while _take(left):
        begun = time.monotonic()
        for attempt in range(PATIENCE):
            try:
                commit()
                break
            except OSError:
                if attempt == PATIENCE - 1:
                    raise
                failures += 1
        commits.append((begun, time.monotonic()))
    return WriterRun(started, time.monotonic(), time.process_time() - cpu, commits, failures)


def _take(left: Synchronized[int]) -> bool:
    with left.get_lock():
        left.value -= 1
        return left.value >= 0


def _ignore(_: object) -> None:
    """A commit gives nothing back."""
