"""Requests to an object store, and time, of operations by the catalog's name and by path. `python -m bench.store
--help`.

The store is versitygw, a real S3; requests are counted in its access log. Relays hold each answer of the store and of
the catalog back, as a network would: what a request costs is what they wait.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import lance
import pyarrow as pa
from lance_namespace import (
    CountTableRowsRequest,
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    InsertIntoTableRequest,
    LanceNamespace,
    ListTableVersionsRequest,
    connect,
)
from pyarrow import parquet
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from bench import report
from bench.servers import Relay, start_relay
from lancehouse.jobs.engine import LocalEngine
from lancehouse.jobs.table_jobs import TableJobs
from lancehouse.lake.manifests import DISCARD
from lancehouse.spark.catalog import LanceCatalog
from lancehouse.spark.session import quiet_session
from tests.lake.folder import stream
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import Moto, start_moto
from tests.servers.versitygw import Versitygw, find_program, start_versitygw

METHODS = ("GET", "HEAD", "LIST", "PUT", "COPY", "DELETE")
PLAIN, MANAGED, STORED = "plain Lance", "managed by the catalog", "managed by storage"
WAYS = (PLAIN, MANAGED, STORED)
MANAGERS = {MANAGED: "impl", STORED: "storage"}
ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "text": [f"row {number}" for number in range(100)]})
HALF_NEW = ROWS.set_column(0, "id", pa.array(range(50, 150), pa.int64()))
"""Rows to merge, of which half are there."""
VERSIONS = 3
"""Versions, and files of rows, of a new table."""
THREADS = 2
"""Pieces of a job that run at once, in threads or in Spark's tasks."""
IPC = "application/vnd.apache.arrow.stream"
PACKAGES = ("lancehouse", "pylance", "lance-namespace", "pyspark")


@dataclass(slots=True)
class StoreCost:
    """What an operation took."""

    store: Counter[str]
    """Requests to the store, by method, those in the background too."""
    catalog: int
    """Requests of the client to the catalog."""
    seconds: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """All requests to the store."""
        return self.store.total()

    def cell(self) -> str:
        """The figures in one cell of a table."""
        parts = ", ".join(f"{self.store[method]} {method}" for method in METHODS if self.store[method])
        told = f"{self.requests} ({parts})" if parts else "0"
        return f"{told}; {self.catalog} to the catalog; {median(self.seconds) * 1000:.0f} ms"


@dataclass(frozen=True, slots=True)
class StoreRow:
    """One operation, by each of the ways to a table."""

    operation: str
    costs: Mapping[str, StoreCost]


class StoreBench:
    """A store, a server whose warehouse it is, and a client; counts and times what is done to tables there."""

    def __init__(self, folder: Path, delay_ms: int, rounds: int, stack: ExitStack) -> None:
        self._rounds = rounds
        self._stack = stack
        self._numbers = count()
        self._store: Versitygw | Moto
        if find_program() is not None:
            self._store = stack.enter_context(start_versitygw(folder / "store"))
        else:
            print("versitygw was not built: moto stands in for a real S3.")
            self._store = stack.enter_context(start_moto())
        slow = stack.enter_context(start_relay(self._store.endpoint, delay_ms))
        self._bucket = self._store.bucket()
        self.options = {**self._bucket.options, "aws_endpoint": slow.uri}
        config = folder / "server.yaml"
        config.write_text(json.dumps({"warehouses": {"main": {"storage": self.options}}}))
        self.server: Served = stack.enter_context(
            start_lancehouse(
                folder / "server",
                warehouses={"main": f"{self._bucket.uri}/main"},
                # Renewals of the epoch file would be counted with whatever runs at the time.
                options=["--config", str(config), "--log-level", "warning", "--fence-interval", "86400"],
            )
        )
        self._catalog: Relay = stack.enter_context(start_relay(self.server.uri, delay_ms))
        self.properties = {
            "endpoint": self._catalog.uri + urlsplit(self.server.iceberg).path,
            **{f"storage.{key}": text for key, text in self.options.items()},
        }
        self.client = connect("lancehouse.IcebergNamespace", self.properties)
        self.client.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
        self.jobs = TableJobs(self.client, LocalEngine(THREADS))
        self.source = str(folder / "rows.parquet")
        """A file on this machine for an ingest, so that reading it is no request."""
        parquet.write_table(ROWS, self.source)

    @cached_property
    def spark(self) -> LanceCatalog:
        """The same tables for Spark, which starts when it is first needed."""
        session = self._stack.enter_context(quiet_session(THREADS, {"spark.sql.shuffle.partitions": str(THREADS)}))
        return LanceCatalog(session, "iceberg", self.properties)

    @cached_property
    def frame(self) -> DataFrame:
        """The rows of a write by Spark, in two partitions."""
        return self.spark.spark.createDataFrame(ROWS).repartition(THREADS).cache()

    def table(self, way: str) -> StoreTable:
        """A new table of a few versions: what was done to others does not change what is counted."""
        number = next(self._numbers)
        if way == PLAIN:
            table = StoreTable(self, f"{self._bucket.uri}/plain/t{number}")
        else:
            request = DeclareTableRequest(id=["main", "db", f"t{number}"], properties={"managed_by": MANAGERS[way]})
            table = StoreTable(self, self.client.declare_table(request).location or "", request.id or ())
        for version in range(VERSIONS):
            mode = "create" if way == PLAIN and version == 0 else "append"
            lance.write_dataset(ROWS, mode=mode, **table.where)
        return table

    def measure(self, operation: Operation, way: str, table: StoreTable | None = None) -> StoreCost:
        """What an operation costs when it is done again and again, to a new table unless one is given.

        The counts are those of the second time: the first is for those who do not know the way.
        """
        table, work = table or self.table(way), operation.on(way)
        assert work is not None
        cost = StoreCost(Counter(), 0)
        for turn in range(self._rounds + 1):
            if operation.ready is not None:
                operation.ready(table)
            before, told = self._settle(), self._catalog.requests()
            started = time.perf_counter()
            work(table)
            took = time.perf_counter() - started
            asked = self._catalog.requests() - told
            after = self._settle()
            if turn == 1:
                cost.store, cost.catalog = after - before, asked
            if turn:
                cost.seconds.append(took)
        return cost

    def _settle(self) -> Counter[str]:
        """Wait until nobody works in the background, and return the requests so far."""
        join_background()
        requests = self._store.count_requests()
        while True:
            time.sleep(0.05)
            before, requests = requests, self._store.count_requests()
            if requests == before:
                return requests

    def get(self, path: str) -> bytes:
        """Ask the server itself, past the relay."""
        with urlopen(self.server.uri + path) as answer:
            found: bytes = answer.read()
            return found

    def post(self, path: str, body: Mapping[str, object] | bytes) -> bytes:
        """Send the server JSON, or Arrow's stream of rows."""
        sent, kind = (body, IPC) if isinstance(body, bytes) else (json.dumps(body).encode(), "application/json")
        with urlopen(Request(self.server.uri + path, sent, {"content-type": kind})) as answer:
            found: bytes = answer.read()
            return found


@dataclass(slots=True)
class StoreTable:
    """A table in the store, and a way to it."""

    bench: StoreBench = field(repr=False)
    location: str
    id: Sequence[str] = ()
    """Empty: by its location."""
    client: LanceNamespace | None = None
    """By default that of the benchmark."""
    held: lance.LanceDataset | None = field(default=None, repr=False)

    @property
    def namespace(self) -> LanceNamespace:
        """The client that knows it."""
        return self.client or self.bench.client

    @property
    def where(self) -> dict[str, Any]:
        """How pylance finds it."""
        if not self.id:
            return {"uri": self.location, "storage_options": dict(self.bench.options)}
        return {"namespace_client": self.namespace, "table_id": list(self.id)}

    def open(self) -> lance.LanceDataset:
        """As it is now."""
        return lance.dataset(**self.where)

    def append(self) -> None:
        """By its name or location."""
        self.held = lance.write_dataset(ROWS, mode="append", **self.where)

    def append_held(self) -> None:
        """To the dataset that was opened before."""
        self.held = lance.write_dataset(ROWS, self.held, mode="append")

    def open_held(self) -> None:
        """Make ready for work on an open dataset."""
        self.held = self.open()

    def append_file(self) -> None:
        """The rows of a file."""
        lance.write_dataset(parquet.read_table(self.bench.source), mode="append", **self.where)

    def merge(self) -> None:
        """Rows of which half are there."""
        self.open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(HALF_NEW)

    def fragment(self) -> None:
        """Make ready for a compaction."""
        for _ in range(VERSIONS):
            self.append()

    def load(self, query: str = "") -> bytes:
        """LoadTable, from the server itself."""
        return self.bench.get(f"/iceberg/v1/main/namespaces/db/tables/{self.id[-1]}{query}")

    def plan(self) -> bytes:
        """PlanTableScan, from the server itself."""
        return self.bench.post(f"/iceberg/v1/main/namespaces/db/tables/{self.id[-1]}/plan", {})

    def ask_gateway(self, operation: str, body: Mapping[str, object] | bytes) -> bytes:
        """An operation of the Lance REST protocol."""
        return self.bench.post(f"/lance/main/v1/table/db${self.id[-1]}/{operation}", body)

    def ask_console(self, page: str) -> bytes:
        """What a page of the console asks for."""
        return self.bench.get(f"/console/v1/{page}?in=main&level=db&level={self.id[-1]}")


Work = Callable[[StoreTable], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that is done to a table by its name."""

    work: Work
    ready: Work | None = None
    """Makes the table ready for it, each time."""
    plain: Work | None = None
    """The same with plain Lance, by location; None if there is no such thing."""

    def on(self, way: str) -> Work | None:
        """What is done by a way to the table; None for nothing."""
        return self.plain if way == PLAIN else self.work


def _of_lance(work: Work, ready: Work | None = None) -> Operation:
    """Return an operation that pylance does by name and by location."""
    return Operation(work, ready, work)


def _clean_up(table: StoreTable) -> object:
    return table.open().cleanup_old_versions(timedelta(0))


def _delete(table: StoreTable) -> object:
    return table.open().delete("id = 3")


def _update(table: StoreTable) -> object:
    return table.open().update({"text": "'new'"}, "id = 5")


def _compact(table: StoreTable) -> object:
    return table.open().optimize.compact_files()


def _read(table: StoreTable) -> object:
    return table.open().to_table()


def _index(table: StoreTable) -> object:
    return table.open().create_scalar_index("id", "BTREE", replace=True)


OPERATIONS: Mapping[str, Operation] = {
    # Clients: Lance's interface
    "DescribeTable": Operation(lambda table: table.namespace.describe_table(DescribeTableRequest(id=list(table.id)))),
    "CountTableRows": Operation(
        lambda table: table.namespace.count_table_rows(CountTableRowsRequest(id=list(table.id)))
    ),
    "InsertIntoTable": Operation(
        lambda table: table.namespace.insert_into_table(
            InsertIntoTableRequest(id=list(table.id), mode="append"), stream(ROWS)
        ),
        plain=StoreTable.append,
    ),
    "ListTableVersions": Operation(
        lambda table: table.namespace.list_table_versions(ListTableVersionsRequest(id=list(table.id))),
        plain=lambda table: table.open().versions(),
    ),
    # Clients: pylance
    "open": _of_lance(StoreTable.open),
    "open the latest version by its number": _of_lance(lambda table: lance.dataset(version=VERSIONS, **table.where)),
    "open an older version": _of_lance(lambda table: lance.dataset(version=VERSIONS - 1, **table.where)),
    "read all rows": _of_lance(_read),
    "count rows": _of_lance(lambda table: table.open().count_rows()),
    "append": _of_lance(StoreTable.append),
    "append to a dataset that is open": _of_lance(StoreTable.append_held, StoreTable.open_held),
    "delete rows": _of_lance(_delete, StoreTable.append),
    "update rows": _of_lance(_update, StoreTable.append),
    "merge": _of_lance(StoreTable.merge),
    "build an index": _of_lance(_index),
    "compact": _of_lance(_compact, StoreTable.fragment),
    "create a tag": _of_lance(lambda table: table.open().tags.create(f"t{time.time_ns()}", VERSIONS)),
    "clean up versions": _of_lance(_clean_up, StoreTable.append),
    # The server
    "LoadTable, snapshots=refs": Operation(lambda table: table.load("?snapshots=refs")),
    "LoadTable, snapshots=refs, after a commit": Operation(
        lambda table: table.load("?snapshots=refs"), StoreTable.append
    ),
    "LoadTable, all snapshots": Operation(StoreTable.load),
    "LoadTable, all snapshots, after a commit": Operation(StoreTable.load, StoreTable.append),
    "PlanTableScan": Operation(StoreTable.plan),
    "PlanTableScan, after a commit": Operation(StoreTable.plan, StoreTable.append),
    "gateway: DescribeTable": Operation(lambda table: table.ask_gateway("describe", {})),
    "gateway: CountTableRows": Operation(lambda table: table.ask_gateway("count_rows", {})),
    "gateway: QueryTable": Operation(lambda table: table.ask_gateway("query", {"k": 10, "vector": {}})),
    "gateway: InsertIntoTable": Operation(lambda table: table.ask_gateway("insert", stream(ROWS))),
    "console: table": Operation(lambda table: table.ask_console("table")),
    "console: rows": Operation(lambda table: table.ask_console("rows")),
    "console: versions": Operation(lambda table: table.ask_console("versions")),
    "console: storage": Operation(lambda table: table.ask_console("fragments")),
    "console: indices": Operation(lambda table: table.ask_console("indices")),
    # Jobs in threads of this process
    "job: ingest": Operation(
        lambda table: table.bench.jobs.ingest(table.bench.source, table.id), plain=StoreTable.append_file
    ),
    "job: merge": Operation(lambda table: table.bench.jobs.merge(HALF_NEW, table.id, "id"), plain=StoreTable.merge),
    "job: delete": Operation(lambda table: table.bench.jobs.delete(table.id, "id = 3"), StoreTable.append, _delete),
    "job: update": Operation(
        lambda table: table.bench.jobs.update(table.id, {"text": "'new'"}, "id = 5"), StoreTable.append, _update
    ),
    "job: build an index": Operation(
        lambda table: table.bench.jobs.create_index(table.id, "id", "BTREE", replace=True), plain=_index
    ),
    "job: compact": Operation(lambda table: table.bench.jobs.compact(table.id), StoreTable.fragment, _compact),
    "job: clean up": Operation(
        lambda table: table.bench.jobs.cleanup(table.id, older_than=timedelta(0)), StoreTable.append, _clean_up
    ),
    "job: remove orphans": Operation(lambda table: table.bench.jobs.remove_orphans(table.id)),
    # The same with Spark
    "Spark: read": Operation(lambda table: table.bench.spark.read(table.id).collect(), plain=_read),
    "Spark: count": Operation(
        lambda table: table.bench.spark.count(table.id), plain=lambda table: table.open().count_rows()
    ),
    "Spark: append": Operation(
        lambda table: table.bench.spark.append(table.bench.frame, table.id), plain=StoreTable.append
    ),
    "Spark: ingest": Operation(
        lambda table: table.bench.spark.ingest(table.bench.source, table.id), plain=StoreTable.append_file
    ),
    "Spark: merge": Operation(
        lambda table: table.bench.spark.merge(table.bench.frame, table.id, "id"), plain=StoreTable.merge
    ),
    "Spark: compact": Operation(lambda table: table.bench.spark.compact(table.id), StoreTable.fragment, _compact),
    "Spark: clean up": Operation(
        lambda table: table.bench.spark.cleanup(table.id, older_than=timedelta(0)), StoreTable.append, _clean_up
    ),
    "Spark: remove orphans": Operation(lambda table: table.bench.spark.remove_orphans(table.id)),
}
"""What is measured, by name."""


def join_background() -> None:
    """Wait until staged manifests are removed."""
    for thread in threading.enumerate():
        if thread.name == DISCARD:
            thread.join()


@contextmanager
def start(folder: Path, delay_ms: int, rounds: int) -> Iterator[StoreBench]:
    """The store, the server and a client, until the block ends."""
    with ExitStack() as stack:
        yield StoreBench(folder, delay_ms, rounds, stack)


def run(delay_ms: int, rounds: int, only: str = "") -> list[StoreRow]:
    """All operations, or those whose names contain a text."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, start(Path(folder), delay_ms, rounds) as bench:
        for name, operation in OPERATIONS.items():
            if only in name:
                ways = [way for way in WAYS if operation.on(way) is not None]
                rows.append(StoreRow(name, {way: bench.measure(operation, way) for way in ways}))
    return rows


def show(console: Console, rows: Sequence[StoreRow]) -> None:
    """Print the table."""
    table = Table(title="Requests to the store and to the catalog, and time", title_justify="left")
    for heading in ("operation", *WAYS):
        table.add_column(heading)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: StoreRow) -> list[str]:
    return [row.operation, *(row.costs[name].cell() if name in row.costs else "–" for name in WAYS)]


def main(words: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("--delay", type=int, default=20, metavar="MS", help="added to each answer of store and catalog")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="operations whose names contain this, such as Spark")
    parser.add_argument("--quick", action="store_true", help="one round without a delay; the counts are the same")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    chosen = parser.parse_args(words)
    delay_ms, rounds = (0, 1) if chosen.quick else (chosen.delay, chosen.rounds)
    rows = run(delay_ms, rounds, chosen.only)
    show(Console(), rows)
    if chosen.write:
        times = "one round" if rounds == 1 else f"medians of {rounds} rounds"
        words = f"{delay_ms} ms added to each answer of store and catalog, {times}."
        lines = [f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. {words}", ""]
        report.put("bench-store", [*lines, *report.table(("operation", *WAYS), [*map(_cells, rows)])])


if __name__ == "__main__":
    main()
