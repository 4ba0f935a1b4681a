"""Processes that write to a table at once and note what they do, and that die where they are told to.

They come from a server that forks them once everything is imported and before anything has begun: to start one costs
next to nothing, also on a busy machine.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Self

import lance
import pyarrow as pa
from lance_namespace import (
    DeleteFromTableRequest,
    DescribeTableVersionRequest,
    InsertIntoTableRequest,
    MergeInsertIntoTableRequest,
    UpdateTableRequest,
)
from lance_namespace.errors import LanceNamespaceError

import lancehouse
from lancehouse.clients.http import Reply, Transport
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.clients.managed_versions import StagedVersion
from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.manifests import ManifestStore
from tests.live.histories import (
    ACKNOWLEDGED,
    APPEND,
    COMPACT,
    CREATE,
    DELETE,
    MERGE,
    PLAIN,
    READ,
    REFUSED,
    UNKNOWN,
    UPDATE,
    Notes,
    Row,
)

SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64()), ("value", pa.int64())])
KEYS_OF_ONE = 1_000_000
"""How many ids a process has for its own."""
LARGEST = 1_000_000
WEIGHTS: Mapping[str, int] = {APPEND: 4, UPDATE: 5, DELETE: 2, MERGE: 4, COMPACT: 1, READ: 4, PLAIN: 2}
READY_TIMEOUT_S = 120
LOOKS_PER_READ = 10

STAGED, ACCEPTED, UNFINISHED, LINKED = "staged", "accepted", "unfinished", "linked"
POINTS = (STAGED, ACCEPTED, UNFINISHED, LINKED)
"""Where a process can die in a commit: before it asks the catalog; when it has the catalog's yes; before the manifest
is put in its place; when it is there, and still staged too."""
ANYWHERE = "anywhere"
"""Not at a point, but whenever the time has come."""
BY_POINT, BY_CLOCK = -signal.SIGKILL, -signal.SIGALRM
"""Exit codes of processes that died as they were told to."""

Id = tuple[str, ...]
Way = Callable[[], int | None]
Failures = (LanceNamespaceError, OSError, RuntimeError, ValueError)
"""What pylance and clients raise where something cannot be done."""


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows, as Lance takes them."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def stream_of(rows: Sequence[Row]) -> bytes:
    """Rows, as requests carry them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table_of(rows))
    return bytes(sink.getvalue())


def rows_of(dataset: lance.LanceDataset) -> tuple[Row, ...]:
    """All rows, in order."""
    columns = dataset.to_table().to_pydict()
    return tuple(sorted(zip(*(columns[name] for name in SCHEMA.names), strict=True)))


def outcome_of(error: Exception) -> str:
    """What somebody may conclude who got this error: that nothing was done, or nothing at all."""
    is_unknown = isinstance(error, CommitStateUnknownError) or "is unknown" in str(error)
    return UNKNOWN if is_unknown else REFUSED


class NotingNamespace(IcebergNamespace):
    """A client that notes each transaction before it is offered to the catalog, and that may die of it."""

    def __init__(self, notes: Notes, **properties: str) -> None:
        super().__init__(**properties)
        self._notes = notes
        self.current = ""
        """The operation that is under way."""
        self.offered = 0
        """The version that was offered last."""
        self.dies_at: str | None = None
        self.dies_from = 0.0
        """Not before this time."""
        self.spared = 0
        """How often it passes the point where it dies."""
        self._commits = False
        self._commit, self._publish = self._versions.commit, self._versions.publish
        self._versions.commit, self._versions.publish = self.commit, self.publish  # type: ignore[method-assign]

    def commit(self, versions: Sequence[StagedVersion]) -> None:
        """As ever, but for the notes and the danger."""
        for each in versions:
            self._notes.offer(self.current, each.manifest.transaction_uuid, each.staged_path)
            self.offered = each.manifest.version
        self._commits = True
        self.passes(STAGED)
        try:
            self._commit(versions)
        except LanceNamespaceError:
            self._commits = False
            raise

    def publish(self, versions: Sequence[StagedVersion]) -> None:
        """As ever; then the danger is over."""
        try:
            self._publish(versions)
        finally:
            self._commits = False

    def passes(self, point: str) -> None:
        """Die here if it is to be, but only of a commit: a reader may happen to finish what another one began."""
        if self._commits and point == self.dies_at and time.monotonic() >= self.dies_from:
            if self.spared == 0:
                self._notes.fault(self.current, point)
                os.kill(os.getpid(), signal.SIGKILL)
            self.spared -= 1


def make_mortal(namespace: NotingNamespace) -> None:
    """Put the points into this process that lie deeper than what a client can override."""
    send, finish, link = Transport.send, ManifestStore.publish, Path.hardlink_to

    def mortal_send(self: Transport, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        reply = send(self, method, url, headers, body)
        if method == "POST" and reply.status < 300:
            namespace.passes(ACCEPTED)
        return reply

    def mortal_finish(self: ManifestStore, staged: str, final: str, data: bytes | None = None) -> None:
        namespace.passes(UNFINISHED)
        finish(self, staged, final, data)

    def mortal_link(self: Path, target: str | os.PathLike[str]) -> None:
        link(self, target)
        namespace.passes(LINKED)

    for owner, name, mortal in (
        (Transport, "send", mortal_send),
        (ManifestStore, "publish", mortal_finish),
        (Path, "hardlink_to", mortal_link),
    ):
        setattr(owner, name, mortal)


@dataclass(frozen=True, slots=True)
class Work:
    """What a process is to do, so that it can be sent there."""

    properties: Mapping[str, str]
    tables: tuple[Id, ...]
    notes: Path
    """The folder for what it notes."""
    number: int
    """Which no other process has that notes something there."""
    seconds: float = 0
    dies_at: str | None = None
    dies_after_s: float = 0
    spared: int = 0

    def client(self) -> tuple[Notes, NotingNamespace]:
        """What every process needs."""
        notes = Notes(self.notes / f"{self.number:03}.jsonl")
        return notes, NotingNamespace(notes, **self.properties)

    @property
    def is_doomed(self) -> bool:
        """Whether it has to die before its time is over."""
        return self.dies_at is not None and self.dies_after_s < self.seconds

    def doom(self, namespace: NotingNamespace) -> None:
        """Its time begins."""
        namespace.dies_at, namespace.spared = self.dies_at, self.spared
        namespace.dies_from = time.monotonic() + self.dies_after_s
        if self.dies_at == ANYWHERE:
            signal.setitimer(signal.ITIMER_REAL, self.dies_after_s)  # nobody handles this signal


class TableWriter:
    """One process on one table.

    It deletes and replaces only rows that it made itself, and makes none again that it deleted: what a change means
    does not depend on how much of the others' work it had seen. But it adds to the values of any row, and others add to
    those of its own.
    """

    def __init__(self, work: Work) -> None:
        self.notes, self.namespace = work.client()
        self.table = list(work.tables[0])
        self.number = work.number
        self.location = ""
        self._chance = random.Random(work.number)
        self._mine: list[int] = []
        self._seen: list[int] = []
        self._next = work.number * KEYS_OF_ONE

    def step(self, count: int) -> None:
        """One operation, whichever; the first ones of as many processes as there are kinds are one of each kind."""
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        kind = kinds[self.number % len(kinds)] if count == 0 else self._chance.choices(kinds, weights)[0]
        if kind == DELETE and not self._mine:
            self.append()
        getattr(self, kind)()

    def create(self) -> str:
        """The table, with three rows."""
        new = self._fresh(3)
        return self._do(CREATE, {"rows": new}, [lambda: self._write(new, "create")], made=new)

    def append(self, way: int | None = None) -> str:
        """A few rows, with pylance (0) or by a request (1)."""
        new = self._fresh(self._chance.randint(1, 3))
        request = InsertIntoTableRequest(id=self.table, mode="Append")
        ways: list[Way] = [
            lambda: self._write(new, "append"),
            lambda: self.namespace.insert_into_table(request, stream_of(new)).version,
        ]
        return self._do(APPEND, {"rows": new}, ways if way is None else [ways[way]], made=new)

    def update(self) -> str:
        """Add to the value of any row."""
        key, amount = self._chance.choice(self._seen or [0]), self._amount()
        values, where = {"value": f"value + {amount}", "writer": str(self.number)}, f"id = {key}"
        request = UpdateTableRequest(id=self.table, updates=[list(each) for each in values.items()], predicate=where)
        ways: list[Way] = [
            lambda: self._change(lambda dataset: dataset.update(values, where=where)),
            lambda: self.namespace.update_table(request).version,
        ]
        return self._do(UPDATE, {"key": key, "amount": amount, "writer": self.number}, ways)

    def delete(self) -> str:
        """One of the rows that it made, if there is any."""
        key = self._mine.pop(self._chance.randrange(len(self._mine))) if self._mine else 0
        request = DeleteFromTableRequest(id=self.table, predicate=f"id = {key}")
        ways: list[Way] = [
            lambda: self._change(lambda dataset: dataset.delete(f"id = {key}")),
            lambda: self.namespace.delete_from_table(request).version,
        ]
        return self._do(DELETE, {"key": key}, ways, risked=[key])

    def merge(self) -> str:
        """A new row, and another one in the place of one that it made."""
        old = self._chance.sample(self._mine, min(1, len(self._mine)))
        rows = [*((key, self.number, self._amount()) for key in old), *self._fresh(1)]
        self._mine = [key for key in self._mine if key not in old]
        request = MergeInsertIntoTableRequest(
            id=self.table, on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
        )
        ways: list[Way] = [
            lambda: self._change(lambda dataset: _upsert(dataset, rows)),
            lambda: self.namespace.merge_insert_into_table(request, stream_of(rows)).version,
        ]
        return self._do(MERGE, {"rows": rows}, ways, made=rows, risked=old)

    def compact(self) -> str:
        """Small files into larger ones."""
        return self._do(COMPACT, {}, [lambda: self._change(lambda dataset: dataset.optimize.compact_files())])

    def read(self) -> str:
        """Through the catalog."""
        return self._read(READ, self._open)

    def plain(self) -> str:
        """As somebody does who knows no catalog."""
        return self._read(PLAIN, lambda: lance.dataset(self.location))

    def _open(self) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.namespace, table_id=self.table)

    def _write(self, rows: Sequence[Row], mode: str) -> int:
        data = table_of(rows)
        return int(lance.write_dataset(data, namespace_client=self.namespace, table_id=self.table, mode=mode).version)

    def _change(self, change: Callable[[lance.LanceDataset], object]) -> int:
        dataset = self._open()
        change(dataset)
        return int(dataset.version)

    def _amount(self) -> int:
        return self._chance.randint(1, LARGEST)

    def _fresh(self, number: int) -> list[Row]:
        """Rows that no process ever had."""
        rows = [(self._next + each, self.number, self._amount()) for each in range(number)]
        self._next += number
        return rows

    def _do(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        ways: Sequence[Way],
        made: Sequence[Row] = (),
        risked: Sequence[int] = (),
    ) -> str:
        """Commit in one of several ways, and note it; how it ended.

        Rows of which it is not known what became of them are not its own any more.
        """
        operation = self.namespace.current = self.notes.begin(kind, arguments)
        try:
            version = self._chance.choice(ways)()
        except Failures as error:
            outcome = outcome_of(error)
            self.notes.end(operation, outcome, error=f"{type(error).__name__}: {error}")
            self._mine += risked if outcome == REFUSED else []
            return outcome
        self.notes.end(operation, ACKNOWLEDGED, version=version)
        self._mine += [key for key, *_ in made]
        return ACKNOWLEDGED

    def _read(self, kind: str, opened: Callable[[], lance.LanceDataset]) -> str:
        operation = self.notes.begin(kind)
        try:
            dataset = opened()
            rows = rows_of(dataset)
        except Failures as error:
            self.notes.end(operation, REFUSED, error=f"{type(error).__name__}: {error}")
            return REFUSED
        self.notes.end(operation, ACKNOWLEDGED, version=dataset.version, rows=rows)
        self.location = dataset.uri
        self._seen = [key for key, *_ in rows]
        return ACKNOWLEDGED


def _upsert(dataset: lance.LanceDataset, rows: Sequence[Row]) -> None:
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table_of(rows))


# What processes do

Task = Callable[[Work, Event, Event], None]


def write(work: Work, ready: Event, go: Event) -> None:
    """Operations of all kinds, until the time is over or death comes."""
    writer = TableWriter(work)
    make_mortal(writer.namespace)
    while writer.read() != ACKNOWLEDGED:
        pass
    ready.set()
    go.wait()
    began = time.monotonic()
    work.doom(writer.namespace)
    for count in itertools.count():
        if count > 0 and time.monotonic() - began >= work.seconds and not work.is_doomed:
            break
        writer.step(count)
    signal.setitimer(signal.ITIMER_REAL, 0)


def create(work: Work, ready: Event, go: Event) -> None:
    """The first commit, in which the process may die."""
    writer = TableWriter(work)
    make_mortal(writer.namespace)
    ready.set()
    go.wait()
    work.doom(writer.namespace)
    writer.create()


def append(work: Work, ready: Event, go: Event) -> None:
    """One commit, in which the process may die."""
    writer = TableWriter(work)
    make_mortal(writer.namespace)
    ready.set()
    go.wait()
    work.doom(writer.namespace)
    writer.append()


def visit(work: Work, ready: Event, go: Event) -> None:
    """Come along, read, write, and look again in both ways."""
    writer = TableWriter(work)
    ready.set()
    go.wait()
    for step in (writer.read, writer.append, writer.read, writer.plain):
        assert step() == ACKNOWLEDGED


def transact(work: Work, ready: Event, go: Event) -> None:
    """A row of its own into all tables at once: once, or again and again until the time is over."""
    notes, namespace = work.client()
    make_mortal(namespace)
    ready.set()
    go.wait()
    work.doom(namespace)
    began, count = time.monotonic(), 0
    while count == 0 or time.monotonic() - began < work.seconds:
        count += 1
        row = (work.number * KEYS_OF_ONE + count, work.number, count)
        add_to_all(namespace, notes, work.tables, row)


def add_to_all(namespace: NotingNamespace, notes: Notes, tables: Sequence[Id], row: Row) -> str:
    """One transaction; how it ended."""
    operation = namespace.current = notes.begin(APPEND, {"rows": [row]})
    try:
        with lancehouse.transaction(namespace) as transaction:
            for table in tables:
                transaction.append(table, table_of([row]))
    except Failures as error:
        outcome = outcome_of(error)
        notes.end(operation, outcome, error=f"{type(error).__name__}: {error}")
        return outcome
    notes.end(operation, ACKNOWLEDGED, version=namespace.offered)
    return ACKNOWLEDGED


def poll(work: Work, ready: Event, go: Event) -> None:
    """Look at one table after the other, in any order, until the time is over.

    Most looks ask for the version only: the faster they are, the less can hide between two of them.
    """
    notes, namespace = work.client()
    chance = random.Random(work.number)
    ready.set()
    go.wait()
    began, count = time.monotonic(), 0
    while count == 0 or time.monotonic() - began < work.seconds:
        for table in chance.sample(work.tables, len(work.tables)):
            operation = notes.begin(READ, table=table[-1])
            if count % LOOKS_PER_READ == 0:
                dataset = lance.dataset(namespace_client=namespace, table_id=list(table))
                notes.end(operation, ACKNOWLEDGED, version=dataset.version, rows=rows_of(dataset))
            else:
                latest = namespace.describe_table_version(DescribeTableVersionRequest(id=list(table)))
                notes.end(operation, ACKNOWLEDGED, version=latest.version.version)
        count += 1


# Starting them


class Crew:
    """Processes that begin together, and whoever takes the place of one that died."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__, "pytest"])
        self._go = self._context.Event()
        self._ready: list[Event] = []
        self.processes: list[ForkServerProcess] = []

    def start(self, task: Task, work: Work) -> ForkServerProcess:
        """Start a process; it waits for the others, unless they have begun."""
        self._ready.append(self._context.Event())
        self.processes.append(self._context.Process(target=task, args=(work, self._ready[-1], self._go), daemon=True))
        self.processes[-1].start()
        return self.processes[-1]

    def go(self) -> None:
        """Let all begin as soon as all are ready."""
        for each in self._ready:
            assert each.wait(READY_TIMEOUT_S), "a process does not come up"
        self._go.set()

    def ends(self) -> list[int | None]:
        """Wait for all to end; their exit codes."""
        for process in self.processes:
            process.join()
        return [process.exitcode for process in self.processes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def run(task: Task, *works: Work) -> list[int | None]:
    """The same by several processes at once; their exit codes."""
    with Crew() as crew:
        for work in works:
            crew.start(task, work)
        crew.go()
        return crew.ends()
