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
from functools import partial
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
    LanceNamespace,
    ListTableVersionsRequest,
    connect,
)
from rich.console import Console
from rich.table import Table

from bench import report
from bench.servers import Relay, start_relay
from lancehouse.lake.manifests import DISCARD
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import Moto, start_moto
from tests.servers.versitygw import Versitygw, find_program, start_versitygw

METHODS = ("GET", "HEAD", "LIST", "PUT", "COPY", "DELETE")
PLAIN, MANAGED, STORED = "plain Lance", "managed by the catalog", "managed by storage"
ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "text": [f"row {number}" for number in range(100)]})
PACKAGES = ("lancehouse", "pylance", "lance-namespace")


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


@dataclass(slots=True)
class StoreTable:
    """A table in the store, and a way to it."""

    location: str
    options: Mapping[str, str] = field(repr=False)
    namespace: LanceNamespace | None = None
    """None: by its location."""
    id: Sequence[str] = ()
    held: lance.LanceDataset | None = field(default=None, repr=False)

    @property
    def where(self) -> dict[str, Any]:
        """How pylance finds it."""
        if self.namespace is None:
            return {"uri": self.location, "storage_options": dict(self.options)}
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

    def merge(self) -> None:
        """Rows of which half are there."""
        rows = ROWS.set_column(0, "id", pa.array(range(50, 150), pa.int64()))
        self.open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def fragment(self) -> None:
        """Make ready for a compaction."""
        for _ in range(3):
            self.append()


Work = Callable[[StoreTable], object]

ON_TABLES: Mapping[str, tuple[Work, Work | None]] = {
    "open": (StoreTable.open, None),
    "read all rows": (lambda table: table.open().to_table(), None),
    "count rows": (lambda table: table.open().count_rows(), None),
    "append": (StoreTable.append, None),
    "append to a dataset that is open": (StoreTable.append_held, StoreTable.open_held),
    "delete rows": (lambda table: table.open().delete("id = 3"), StoreTable.append),
    "update rows": (lambda table: table.open().update({"text": "'new'"}, "id = 5"), StoreTable.append),
    "merge": (StoreTable.merge, None),
    "compact": (lambda table: table.open().optimize.compact_files(), StoreTable.fragment),
    "create a tag": (lambda table: table.open().tags.create(f"t{time.time_ns()}", 1), None),
    "clean up versions": (
        lambda table: table.open().cleanup_old_versions(timedelta(days=1)),
        None,
    ),
}
"""Operations that plain Lance has too: the work, and what makes it ready."""


class StoreBench:
    """Counts and times operations."""

    def __init__(self, store: Versitygw | Moto, server: Served, catalog: Relay, rounds: int) -> None:
        self._store = store
        self._server = server
        self._catalog = catalog
        self._rounds = rounds

    def measure(self, work: Callable[[], object], ready: Callable[[], object] | None = None) -> StoreCost:
        """What a piece of work costs when it is done again and again; the counts are those of the last time."""
        cost = StoreCost(Counter(), 0)
        for turn in range(self._rounds + 1):
            if ready is not None:
                ready()
            wait_for_background()
            before, told = self._store.count_requests(), self._catalog.requests()
            started = time.perf_counter()
            work()
            took = time.perf_counter() - started
            asked = self._catalog.requests() - told
            wait_for_background()
            if turn:  # the first time is for those who do not know the way
                cost.store, cost.catalog = self._store.count_requests() - before, asked
                cost.seconds.append(took)
        return cost

    def on_tables(self, tables: Mapping[str, StoreTable]) -> Iterator[StoreRow]:
        """Operations of plain Lance, by each way to a table."""
        for operation, (work, ready) in ON_TABLES.items():
            costs = {}
            for name, table in tables.items():
                costs[name] = self.measure(partial(work, table), None if ready is None else partial(ready, table))
            yield StoreRow(operation, costs)

    def on_server(self, tables: Mapping[str, StoreTable]) -> Iterator[StoreRow]:
        """Operations of the catalog, the gateway and the console."""
        for operation, act in self.server_operations().items():
            yield StoreRow(operation, {name: self.measure(partial(act, table)) for name, table in tables.items()})

    def server_operations(self) -> dict[str, Callable[[StoreTable], object]]:
        """Operations of the catalog, the gateway and the console, by name."""

        def load(query: str) -> Callable[[StoreTable], object]:
            return lambda table: self._get(f"/iceberg/v1/main/namespaces/db/tables/{table.id[-1]}{query}")

        def plan(table: StoreTable) -> object:
            return self._post(f"/iceberg/v1/main/namespaces/db/tables/{table.id[-1]}/plan", {})

        def gateway(operation: str, body: Mapping[str, object]) -> Callable[[StoreTable], object]:
            return lambda table: self._post(f"/lance/main/v1/table/db${table.id[-1]}/{operation}", body)

        def console(page: str) -> Callable[[StoreTable], object]:
            return lambda table: self._get(f"/console/v1/{page}?in=main&level=db&level={table.id[-1]}")

        return {
            "DescribeTable": lambda table: _client(table).describe_table(DescribeTableRequest(id=list(table.id))),
            "CountTableRows": lambda table: _client(table).count_table_rows(CountTableRowsRequest(id=list(table.id))),
            "ListTableVersions": lambda table: _client(table).list_table_versions(
                ListTableVersionsRequest(id=list(table.id))
            ),
            "LoadTable, snapshots=refs": load("?snapshots=refs"),
            "LoadTable, all snapshots": load(""),
            "PlanTableScan": plan,
            "gateway: DescribeTable": gateway("describe", {}),
            "gateway: CountTableRows": gateway("count_rows", {}),
            "gateway: QueryTable": gateway("query", {"k": 10, "vector": {}}),
            "console: table": console("table"),
            "console: rows": console("rows"),
        }

    def _get(self, path: str) -> bytes:
        with urlopen(self._server.uri + path) as answer:
            found: bytes = answer.read()
            return found

    def _post(self, path: str, body: Mapping[str, object]) -> bytes:
        request = Request(self._server.uri + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urlopen(request) as answer:
            found: bytes = answer.read()
            return found


def _client(table: StoreTable) -> LanceNamespace:
    assert table.namespace is not None
    return table.namespace


def wait_for_background() -> None:
    """Until staged manifests are removed, and the store has written its log."""
    for thread in threading.enumerate():
        if thread.name == DISCARD:
            thread.join()
    time.sleep(0.05)


@contextmanager
def start(folder: Path, delay_ms: int, rounds: int) -> Iterator[tuple[StoreBench, dict[str, StoreTable]]]:
    """The store, the server, and a table for each way."""
    with ExitStack() as stack:
        store: Versitygw | Moto
        if find_program() is not None:
            store = stack.enter_context(start_versitygw(folder / "store"))
        else:
            print("versitygw was not built: moto stands in for a real S3.")
            store = stack.enter_context(start_moto())
        slow = stack.enter_context(start_relay(store.endpoint, delay_ms))
        bucket = store.bucket()
        options = {**bucket.options, "aws_endpoint": slow.uri}
        config = folder / "server.yaml"
        config.write_text(json.dumps({"warehouses": {"main": {"storage": options}}}))
        server = stack.enter_context(
            start_lancehouse(
                folder / "server",
                warehouses={"main": f"{bucket.uri}/main"},
                options=["--config", str(config), "--log-level", "warning"],
            )
        )
        catalog = stack.enter_context(start_relay(server.uri, delay_ms))
        properties = {"endpoint": catalog.uri + urlsplit(server.iceberg).path}
        client = connect(
            "lancehouse.IcebergNamespace", {**properties, **{f"storage.{key}": text for key, text in options.items()}}
        )
        client.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
        tables = {PLAIN: StoreTable(f"{bucket.uri}/plain", options)}
        for name, manager in {MANAGED: "impl", STORED: "storage"}.items():
            request = DeclareTableRequest(id=["main", "db", manager], properties={"managed_by": manager})
            location = client.declare_table(request).location or ""
            tables[name] = StoreTable(location, options, client, request.id or ())
        for table in tables.values():
            for mode in ("create" if table.namespace is None else "append", "append", "append"):
                lance.write_dataset(ROWS, mode=mode, **table.where)
        yield StoreBench(store, server, catalog, rounds), tables


def run(delay_ms: int, rounds: int) -> list[StoreRow]:
    """All operations."""
    with tempfile.TemporaryDirectory() as folder, start(Path(folder), delay_ms, rounds) as (bench, tables):
        ours = {name: table for name, table in tables.items() if name != PLAIN}
        return [*bench.on_server(ours), *bench.on_tables(tables)]


def show(console: Console, rows: Sequence[StoreRow]) -> None:
    """Print the table."""
    table = Table(title="Requests to the store and to the catalog, and time", title_justify="left")
    for heading in ("operation", PLAIN, MANAGED, STORED):
        table.add_column(heading)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: StoreRow) -> list[str]:
    return [row.operation, *(row.costs[name].cell() if name in row.costs else "–" for name in (PLAIN, MANAGED, STORED))]


def main(words: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("--delay", type=int, default=20, metavar="MS", help="added to each answer of store and catalog")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round without a delay; the counts are the same")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    chosen = parser.parse_args(words)
    delay_ms, rounds = (0, 1) if chosen.quick else (chosen.delay, chosen.rounds)
    rows = run(delay_ms, rounds)
    show(Console(), rows)
    if chosen.write:
        words = f"{delay_ms} ms added to each answer of store and catalog, medians of {rounds} rounds."
        lines = [f"{datetime.now(UTC):%Y-%m-%d}. {report.machine(PACKAGES)}. {words}", ""]
        report.put("bench-store", [*lines, *report.table(("operation", PLAIN, MANAGED, STORED), [*map(_cells, rows)])])


if __name__ == "__main__":
    main()
