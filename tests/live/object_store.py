"""A server on a real S3 that can stop, die, be slow and fail; and what people do to tables there."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread, Timer
from time import sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen
from uuid import uuid4

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, LanceNamespace, ListTableVersionsRequest
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, ThrottlingError

from bench.store import join_background
from lancehouse.admin.copy import Action, Copier, NamedCatalog
from lancehouse.admin.doctor import Doctor
from lancehouse.admin.table_checks import FindingKind
from lancehouse.cli.client import Client
from lancehouse.connection import Connection
from lancehouse.errors import CommitStateUnknownError, from_wire
from lancehouse.jobs import Engine, LocalEngine, TableJobs, table_copy
from lancehouse.jobs.address import TableAddress
from tests.servers.faults import (
    ALWAYS,
    Fault,
    FaultProxy,
    Forward,
    answer_after,
    answer_always,
    lost_answer,
    passes,
    reset,
)
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.loopback import Answer, Request
from tests.servers.moto import SECRET_KEY, Bucket, client
from tests.servers.versitygw import Versitygw, start_versitygw

Rows = list[tuple[int, str]]

SEED = 19
XML = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{0}</Code><Message>{0}</Message></Error>"
BAD_DAYS: tuple[Fault, ...] = (
    answer_always(500, XML.format("InternalError"), {"Content-Type": "application/xml"}),
    answer_always(503, XML.format("SlowDown"), {"Content-Type": "application/xml"}),
    reset,
    lost_answer,
    answer_after(500, XML.format("InternalError")),
)
"""What a store does instead of answering. The last two have done what was asked."""


def fail_one_in(calls: int, faults: Sequence[Fault] = BAD_DAYS, seed: int = SEED) -> Fault:
    """Spoil one in so many requests: always the same ones, if they come in the same order."""
    chance, lock = Random(seed), Lock()

    def answer(request: Request, forward: Forward) -> Answer:
        with lock:
            fault = chance.choice(faults) if not chance.randrange(calls) else passes
        return fault(request, forward)

    return answer


class Store:
    """A real S3 behind a proxy; the latter is what everybody is told of."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._server = stack.enter_context(ExitStack())
        self.gateway: Versitygw = self._server.enter_context(start_versitygw(folder))
        self.proxy: FaultProxy = stack.enter_context(FaultProxy(self.gateway.endpoint))

    def bucket(self) -> Bucket:
        """A new bucket, reached through the proxy."""
        made = self.gateway.bucket()
        return Bucket(made.name, made.endpoint, {**made.options, "aws_endpoint": self.proxy.uri})

    def kill(self) -> None:
        """As when the machine stops: connections are refused from now on."""
        self._server.close()
        self.proxy.refuse()

    def restart(self) -> None:
        """At the same address, with the same buckets."""
        port = int(self.gateway.endpoint.rpartition(":")[2])
        self.gateway = self._server.enter_context(start_versitygw(self._folder, port))
        self.proxy.listen()

    @contextmanager
    def stopped(self, seconds: float) -> Iterator[None]:
        """It answers nobody from the beginning of the block on, for so long."""
        os.kill(self.gateway.pid, signal.SIGSTOP)
        going_on = Timer(seconds, os.kill, (self.gateway.pid, signal.SIGCONT))
        going_on.start()
        try:
            yield
        finally:
            going_on.join()

    @contextmanager
    def killed(self, seconds: float, after: int) -> Iterator[None]:
        """It dies after so many requests of the block, and is back after so long."""
        due, left = Event(), iter(range(after))

        def count(request: Request, forward: Forward) -> Answer:
            if next(left, None) is None:
                due.set()
            return forward(request)

        def die() -> None:
            due.wait()
            self.kill()
            sleep(seconds)
            self.restart()

        self.proxy.add(count, times=ALWAYS)
        killer = Thread(target=die)
        killer.start()
        try:
            yield
        finally:
            due.set()
            killer.join()
            self.proxy.clear()

    @contextmanager
    def failing_at(self, number: int, times: int = ALWAYS) -> Iterator[Event]:
        """From one request of the block on, so many get no answer; sets the event when it comes to that."""
        before, failing, failed = iter(range(number)), iter(range(times)), Event()

        def answer(request: Request, forward: Forward) -> Answer:
            if next(before, None) is not None or next(failing, None) is None:
                return forward(request)
            failed.set()
            return Answer(reset=True)

        self.proxy.add(answer, times=ALWAYS)
        try:
            yield failed
        finally:
            self.proxy.clear()

    @contextmanager
    def slow(self, milliseconds: float) -> Iterator[None]:
        """Each answer comes so much later."""
        self.proxy.latency_ms = milliseconds
        try:
            yield
        finally:
            self.proxy.latency_ms = 0

    @contextmanager
    def failing(self, calls: int) -> Iterator[None]:
        """One in so many calls fails."""
        self.proxy.add(fail_one_in(calls), times=ALWAYS)
        try:
            yield
        finally:
            self.proxy.clear()


FAULTS: Mapping[str, Callable[[Store, bool], AbstractContextManager[None]]] = {
    "no fault": lambda _store, _soak: nullcontext(),
    "stopped": lambda store, soak: store.stopped(20 if soak else 4),
    "killed": lambda store, soak: store.killed(20 if soak else 2, after=60),
    "slow": lambda store, _soak: store.slow(300),
    "failing": lambda store, _soak: store.failing(20),
}
HARMLESS = ("no fault", "stopped", "slow")
"""Faults of which nobody should hear: clients wait, and are answered."""


class House:
    """A server whose warehouses are in a bucket: `main`, and `copies` for copies of its tables."""

    def __init__(self, bucket: Bucket, folder: Path, stack: ExitStack, **properties: str) -> None:
        self.bucket = bucket
        self._properties = properties
        names = ("main", "copies")
        config = folder / "server.yaml"
        warehouse = {"storage": dict(bucket.options), "vend": "static"}
        config.write_text(json.dumps({"warehouses": dict.fromkeys(names, warehouse)}))
        places = {name: f"{bucket.uri}/{name}" for name in names}
        self.server: Served = stack.enter_context(
            start_lancehouse(folder, warehouses=places, options=["--config", str(config)])
        )
        self.connect().create_namespace(CreateNamespaceRequest(id=["main", "db"]))

    @property
    def connection(self) -> Connection:
        """How a client without keys of its own is made."""
        return Connection("lancehouse.IcebergNamespace", {"endpoint": self.server.iceberg, **self._properties})

    def connect(self) -> LanceNamespace:
        """A client without keys of its own."""
        return self.connection.connect()

    def table(self, rows: Sequence[pa.Table]) -> list[str]:
        """A managed table with a version for each of these."""
        table, namespace = ["main", "db", f"t{uuid4().hex[:8]}"], self.connect()
        namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
        for some in rows:
            lance.write_dataset(some, namespace_client=namespace, table_id=table, mode="append")
        join_background()
        return table

    def open(self, table: Sequence[str]) -> lance.LanceDataset:
        """A table as somebody sees it who comes new."""
        return lance.dataset(namespace_client=self.connect(), table_id=list(table))

    def put(self, key: str, data: bytes) -> None:
        """An object in the bucket, past all faults."""
        client("s3", self.bucket.endpoint).put_object(Bucket=self.bucket.name, Key=key, Body=data)

    def read(self, key: str) -> bytes:
        """An object of the bucket, past all faults."""
        data: bytes = client("s3", self.bucket.endpoint).get_object(Bucket=self.bucket.name, Key=key)["Body"].read()
        return data

    def files(self, table: Sequence[str]) -> list[str]:
        """The files of a table."""
        prefix = self.open(table).uri.removeprefix(f"{self.bucket.uri}/") + "/"
        return [key.removeprefix(prefix) for key in self.bucket.keys(prefix)]

    def ask(self, path: str, body: object = None) -> Any:
        """What the server answers; an error of it is one of Lance's."""
        data = None if body is None else json.dumps(body).encode()
        request = HttpRequest(self.server.uri + path, data, {"content-type": "application/json"})
        try:
            with urlopen(request) as answer:
                return json.load(answer)
        except HTTPError as refused:
            with refused:
                error = json.load(refused)["error"]
            raise from_wire(refused.code, error["type"], error["message"], about=path) from None


def make_rows(first: int, last: int, text: str = "old") -> pa.Table:
    """Rows with the ids from `first` to before `last`."""
    return pa.table({"id": pa.array(range(first, last), pa.int64()), "text": [text] * (last - first)})


def to_rows(table: pa.Table) -> Rows:
    """In the order of ids."""
    return sorted((row["id"], row["text"]) for row in table.to_pylist())


RIGHT_ERRORS = (ServiceUnavailableError, ThrottlingError, CommitStateUnknownError)
"""What says: not now, try again."""


def check_error(error: LanceNamespaceError, about: str) -> None:
    """It says what is wrong with what, and is no secret's end."""
    assert isinstance(error, RIGHT_ERRORS), repr(error)
    assert about in str(error)
    assert SECRET_KEY not in str(error)
    assert not re.search(r"\.rs:\d|Traceback", str(error)), str(error)


class Operation:
    """Something that is done to a table of three fragments, and that may be done again if it fails."""

    def __init__(self, house: House, engine: Engine | None = None) -> None:
        self.house = house
        self.table = house.table([make_rows(first, first + 10) for first in (0, 10, 20)])
        self.name = self.table[-1]
        self.jobs = TableJobs(house.connection, engine or LocalEngine(threads=2))
        self.before = self.after = self.read()

    def read(self) -> Rows:
        """The rows, as somebody reads them who comes new."""
        return to_rows(self.house.open(self.table).to_table())

    def run(self) -> None:
        """Do it."""
        raise NotImplementedError

    def check(self) -> None:
        """See that it was done, and nothing else: once, and wholly."""
        dataset = self.house.open(self.table)
        assert to_rows(dataset.to_table()) == self.after
        by_path = lance.dataset(dataset.uri, storage_options=dict(self.house.bucket.options))
        assert by_path.version == dataset.version

    def check_unharmed(self) -> None:
        """See that it was done wholly, or not at all."""
        assert self.read() in (self.before, self.after)

    def remove_leftovers(self) -> None:
        """Do what the log says when files could not be removed."""
        self.jobs.remove_orphans(self.table, older_than=timedelta(0), no_writers=True)

    def list_leftovers(self) -> list[str]:
        """Files that no version needs."""
        join_background()
        left = self.jobs.remove_orphans(self.table, older_than=timedelta(0), no_writers=True, dry_run=True)
        return [*left.names, *(file for file in self.house.files(self.table) if file.startswith("_lancehouse/"))]


class Ingest(Operation):
    """Of files that are in the store, too."""

    def __init__(self, house: House, engine: Engine | None = None) -> None:
        super().__init__(house, engine)
        self._source = f"incoming/{self.name}"
        for first in (100, 110, 120):
            file = io.BytesIO()
            pq.write_table(make_rows(first, first + 10, "new"), file)
            house.put(f"{self._source}/{first}.parquet", file.getvalue())
        self.after = self.before + to_rows(make_rows(100, 130, "new"))

    def run(self) -> None:
        """Load the files."""
        source, options = f"{self.house.bucket.uri}/{self._source}", dict(self.house.bucket.options)
        self.jobs.ingest(source, self.table, options=options, max_rows_per_file=10)


class Merge(Operation):
    """Of rows half of which are there."""

    def __init__(self, house: House, engine: Engine | None = None) -> None:
        super().__init__(house, engine)
        self._rows = make_rows(15, 45, "new")
        self.after = self.before[:15] + to_rows(self._rows)

    def run(self) -> None:
        """Upsert them."""
        self.jobs.merge(self._rows, self.table, on="id")


class Compact(Operation):
    """Three fragments into one."""

    def run(self) -> None:
        """Compact."""
        self.jobs.compact(self.table)

    def check(self) -> None:
        """One fragment has all rows."""
        super().check()
        assert len(self.house.open(self.table).get_fragments()) == 1


class CleanUp(Operation):
    """All versions but one."""

    def run(self) -> None:
        """Clean up."""
        self.jobs.cleanup(self.table, older_than=timedelta(0))

    def check(self) -> None:
        """Neither storage nor the catalog has them any more."""
        super().check()
        version = self.house.open(self.table).version
        assert [file for file in self.house.files(self.table) if file.endswith(".manifest")] == [
            f"_versions/{2**64 - 1 - version:020}.manifest"
        ]
        listed = self.house.connect().list_table_versions(ListTableVersionsRequest(id=self.table))
        assert [each.version for each in listed.versions] == [version]
        loaded = self.house.ask(f"/iceberg/v1/main/namespaces/db/tables/{self.name}?snapshots=refs")
        assert [each["snapshot-id"] for each in loaded["metadata"]["snapshots"]] == [version]


class RemoveOrphans(Operation):
    """Files that a writer has left who died."""

    STRAYS = ("data/stray.lance", "_deletions/0-1-2.arrow", "_indices/stray/index.idx")

    def __init__(self, house: House, engine: Engine | None = None) -> None:
        super().__init__(house, engine)
        self._kept = house.files(self.table)
        prefix = house.open(self.table).uri.removeprefix(f"{house.bucket.uri}/")
        for stray in self.STRAYS:
            house.put(f"{prefix}/{stray}", b"of no use")

    def run(self) -> None:
        """Remove them."""
        self.jobs.remove_orphans(self.table, no_writers=True)

    def check(self) -> None:
        """They are gone, and all others are there."""
        super().check()
        assert self.house.files(self.table) == self._kept


class PlanScan(Operation):
    """As Iceberg's readers do."""

    def run(self) -> None:
        """Plan, and fetch what is left to tasks."""
        path = f"/iceberg/v1/main/namespaces/db/tables/{self.name}"
        planned = self.house.ask(f"{path}/plan", {})
        self._tasks, left = list(planned.get("file-scan-tasks", ())), list(planned.get("plan-tasks", ()))
        while left:
            more = self.house.ask(f"{path}/tasks", {"plan-task": left.pop()})
            self._tasks += more.get("file-scan-tasks", ())
            left += more.get("plan-tasks", ())

    def check(self) -> None:
        """The files that it names have the rows."""
        super().check()
        keys = [task["data-file"]["file-path"].removeprefix(f"{self.house.bucket.uri}/") for task in self._tasks]
        parts = [pq.read_table(io.BytesIO(self.house.read(key))) for key in keys]
        assert to_rows(pa.concat_tables(parts)) == self.before


class ToldError(ServiceUnavailableError):
    """An error that a page or a report tells, and nobody raises."""


class ShowInConsole(Operation):
    """The page of a table, and its rows."""

    def run(self) -> None:
        """Ask for both."""
        where = f"in=main&level=db&level={self.name}"
        self._page = self.house.ask(f"/console/v1/table?{where}")
        if self._page["state"] != "ready":
            raise ToldError(self._page["problem"])
        self._rows = self.house.ask(f"/console/v1/rows?{where}&limit=100")

    def check(self) -> None:
        """They are shown as they are."""
        super().check()
        assert self._page["summary"]["rows"] == len(self.before)
        assert sorted((row[0], row[1]) for row in self._rows["rows"]) == self.before


class RunDoctor(Operation):
    """It reports what it cannot read, and takes that for nothing else."""

    def run(self) -> None:
        """Check the table."""
        connection = self.house.connection
        found = Doctor(Client(connection.connect(), connection)).examine_table(tuple(self.table)).findings
        if found:
            assert [each.kind for each in found] == [FindingKind.UNREADABLE], found
            raise ToldError(f"{found[0].about}: {found[0].what}")


class CopyTable(Operation):
    """To the other warehouse, with data."""

    def run(self) -> None:
        """Copy it, or what is missing of it."""
        [step] = self._copier.plan([("db", self.name)])
        if step.action is not Action.FAILS:
            [step] = self._copier.execute([step], self._copy_data)
        if step.action is Action.FAILS:
            raise ToldError(f"{step.name}: {step.why}")
        assert step.action is Action.DONE, step

    @property
    def _copier(self) -> Copier:
        sides = (Connection(*self._impl, parent=(warehouse,)) for warehouse in ("main", "copies"))
        here, there = (NamedCatalog(side.parent[0], Client(side.connect(), side)) for side in sides)
        return Copier(here, there, with_data=True)

    @property
    def _impl(self) -> tuple[str, Mapping[str, str]]:
        return self.house.connection.impl, self.house.connection.properties

    def _copy_data(self, source: Sequence[str], target: Sequence[str]) -> table_copy.CopyPlan:
        addresses = (TableAddress.parse(self.house.connection, table) for table in (source, target))
        return table_copy.copy(LocalEngine(threads=2), *addresses)

    def check(self) -> None:
        """The copy has all versions, and is one for good."""
        super().check()
        copied = self.house.open(["copies", "db", self.name])
        assert to_rows(copied.to_table()) == self.before
        assert len(copied.versions()) == len(self.house.open(self.table).versions())
        assert [file for file in self.house.files(["copies", "db", self.name]) if "_lancehouse" in file] == []
        [step] = self._copier.plan([("db", self.name)])
        assert step.action is Action.PRESENT


OPERATIONS: Mapping[str, type[Operation]] = {
    "ingest": Ingest,
    "merge": Merge,
    "compaction": Compact,
    "clean-up": CleanUp,
    "orphans": RemoveOrphans,
    "scan planning": PlanScan,
    "console": ShowInConsole,
    "doctor": RunDoctor,
    "copy": CopyTable,
}
