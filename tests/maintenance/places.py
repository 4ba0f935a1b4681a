"""A catalog with workers in this process, and writers that go through it as clients do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, LanceNamespace

from lancehouse.catalog.maintenance import Maintenance
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.gateway.backends import Backend
from lancehouse.maintenance.process import find_warehouses, open_backends
from lancehouse.maintenance.worker import MaintenanceWorker, WorkerOptions
from lancehouse.server.http.observability import Log
from lancehouse.server.settings import ServerSettings
from lancehouse.store import maintenance as rows
from lancehouse.store.database import Database
from lancehouse.store.model import MaintainedTable, MaintenanceRun

QUICK = {
    "maintenance.enabled": "true",
    "maintenance.settle": "0s",
    "maintenance.compact.min-fragments": "4",
    "maintenance.cleanup.older-than": "0s",
    "maintenance.cleanup.every": "1h",
}
"""A policy under which everything is done at once."""


@dataclass
class Place:
    """A warehouse `main` with the namespace `db`."""

    database: Database
    maintenance: Maintenance
    backends: Mapping[str, Backend]
    folder: Path
    workers: list[MaintenanceWorker] = field(default_factory=list)

    @property
    def client(self) -> LanceNamespace:
        """A writer's client."""
        return self.backends["main"].connect(None).inner

    def write(self, name: str, rows: int = 10, start: int = 0) -> lance.LanceDataset:
        data = pa.table({"id": pa.array(range(start, start + rows), pa.int64())})
        return lance.write_dataset(data, namespace_client=self.client, table_id=["main", "db", name], mode="append")

    def create(
        self, name: str, commits: int = 1, *, by: str = "impl", properties: Mapping[str, str] | None = None
    ) -> None:
        self.client.declare_table(
            DeclareTableRequest(id=["main", "db", name], properties={"managed_by": by, **(properties or {})})
        )
        for number in range(commits):
            self.write(name, start=number * 10)

    def open(self, name: str) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.client, table_id=["main", "db", name])

    def worker(self, name: str = "one", threads: int = 1, **options: Any) -> MaintenanceWorker:
        worker = MaintenanceWorker(
            self.maintenance, self.backends, WorkerOptions(name, threads=threads, poll_s=3600, **options)
        )
        self.workers.append(worker)
        return worker

    def work(self, **options: Any) -> None:
        """Do all that is due."""
        self.worker(**options).run_until_idle(20)

    def ask(self, name: str, *operations: str) -> None:
        """Ask for operations on a table now; without any, for a look."""
        entry = self.table(name).entry_id
        assert entry is not None
        self.database.write(lambda tx: rows.request_maintenance(tx, "main", entry, "", operations, "me"))

    def plan(self) -> None:
        """Plan all tables, as if an hour had passed."""
        self.maintenance.sweep(0)
        self.maintenance.plan_commits()

    def runs(self) -> list[tuple[str, str, str]]:
        """Table, operation and outcome of all that was done, the oldest first."""
        found = self.database.read(lambda tx: rows.list_recent_runs(tx, 1000))
        return [(levels[-1], run.operation, run.outcome) for _, levels, run in reversed(found)]

    def records(self) -> list[MaintenanceRun]:
        return [run for _, _, run in self.database.read(lambda tx: rows.list_recent_runs(tx, 1000))]

    def table(self, name: str) -> MaintainedTable:
        found = self.database.read(lambda tx: rows.list_maintained_tables(tx, 1 << 61, 1000))
        return next(each for each in found if each.levels[-1] == name)


@contextmanager
def open_place(
    folder: Path,
    db: str | None = None,
    policy: Mapping[str, str] | None = None,
    backends: Sequence[Any] = (),
    location: str | None = None,
    storage: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Place]:
    policy = QUICK if policy is None else policy
    warehouse = Warehouse(
        0,
        "main",
        location or str(folder / "main"),
        storage=storage or {},
        vend="static" if storage else "none",
        maintenance=policy,
    )
    settings = ServerSettings(
        db=db or f"sqlite:///{folder / 'catalog.db'}", warehouses=(warehouse,), backends=tuple(backends), **options
    )
    (folder / "main").mkdir(exist_ok=True)
    warehouses = find_warehouses(settings)
    log = Log("error", os.open(os.devnull, os.O_WRONLY))
    catalog, served = open_backends(settings, warehouses, log)
    place = Place(catalog.database, catalog.maintenance, served, folder)
    place.client.create_namespace(CreateNamespaceRequest(id=["main", "db"], mode="exist_ok"))
    yield place
    place.database.close()
    log.close()


def age_files(folder: Path, seconds: float) -> None:
    """Let files look older than they are."""
    at = time() - seconds
    for file in folder.rglob("*"):
        os.utime(file, (at, at))
