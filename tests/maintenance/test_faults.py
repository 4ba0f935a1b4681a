"""Servers and workers are killed, Postgres and the store stop, the disk is full, while six writers commit.

Nothing is lost or doubled, no table is worked on by two at once, and no lease stays.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, LanceNamespace, connect
from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog import maintenance as catalog_maintenance
from lancehouse.store import maintenance as rows
from tests.live.object_store import Store
from tests.maintenance.places import Place, open_place
from tests.servers.lancehouse import PROGRAM, Served, start_lancehouse
from tests.servers.postgres import new_database, run_postgres
from tests.servers.versitygw import find_program

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
    pytest.mark.timeout(1800),
]

TABLES = ("a", "b", "c")
WRITERS = 6
DISK = "96m"
AWAY_S = 2.0
"""For how long something is stopped."""
PATIENCE_S = 240.0
"""Nothing takes longer, on a machine that is busy with other things."""
POLICY = {
    "enabled": "true",
    "settle": "0s",
    "compact.min-fragments": "4",
    "cleanup.older-than": "1m",
    "cleanup.every": "1m",
    "orphans.older-than": "1h",
}
IMPATIENT = {"storage.client_max_retries": "2", "storage.client_retry_timeout": "10"}


class Cluster:
    """Postgres, a real S3 on a small disk, a server with maintenance, and a worker beside it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.has_disk = mount(self.disk, stack)
        self.postgres = stack.enter_context(run_postgres())
        self.db = new_database(self.postgres.url)
        self.store = Store(self.disk, stack)
        self.bucket = self.store.bucket()
        self.location = f"{self.bucket.uri}/main"
        warehouse = {
            "location": self.location,
            "storage": dict(self.bucket.options),
            "vend": "static",
            "maintenance": POLICY,
        }
        self.config = folder / "server.yaml"
        self.config.write_text(json.dumps({"warehouses": {"main": warehouse}}))
        self._server = stack.enter_context(ExitStack())
        self._start_server()
        self.worker = self._start_worker()
        stack.callback(self.end_worker)

    def _start_server(self) -> None:
        options = ["--config", str(self.config), "--maintenance-threads", "1", "--log-level", "warning"]
        self.served: Served = self._server.enter_context(
            start_lancehouse(self._folder / "server", db=self.db, warehouses={"main": self.location}, options=options)
        )

    def _start_worker(self) -> subprocess.Popen[bytes]:
        command = [str(PROGRAM), "maintenance", "worker", "--config", str(self.config), "--db", self.db]
        with (self._folder / "worker.log").open("ab") as log:
            return subprocess.Popen(command, stderr=log)

    def connect(self) -> LanceNamespace:
        properties = {f"storage.{key}": value for key, value in self.bucket.options.items()}
        return connect("lancehouse.IcebergNamespace", {"endpoint": self.served.iceberg, **properties, **IMPATIENT})

    def end_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()

    # Faults

    def kill_server(self) -> None:
        self.served.kill()
        self._server.close()
        self._start_server()

    def kill_worker(self) -> None:
        self.end_worker()
        self.worker = self._start_worker()

    def stop_postgres(self) -> None:
        self.postgres.stop()
        sleep(AWAY_S)
        self.postgres.start()

    def stop_store(self) -> None:
        with self.store.stopped(AWAY_S):
            pass

    def kill_store(self) -> None:
        self.store.kill()
        sleep(AWAY_S)
        self.store.restart()

    def fill_disk(self) -> None:
        ballast = self.disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        sleep(AWAY_S)
        ballast.unlink()


FAULTS: Mapping[str, Callable[[Cluster], None]] = {
    "server killed": Cluster.kill_server,
    "worker killed": Cluster.kill_worker,
    "Postgres stopped": Cluster.stop_postgres,
    "store stopped": Cluster.stop_store,
    "store killed": Cluster.kill_store,
    "disk full": Cluster.fill_disk,
}
SHORT = ("server killed", "Postgres stopped")
"""Without `--soak`."""


def mount(folder: Path, stack: ExitStack) -> bool:
    """Make a folder a small disk of its own; False if that is refused."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
    except OSError:
        return False
    stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
    return True


class Writer(Thread):
    """Commits to one table, and knows which of its rows must be there, and which may be."""

    def __init__(self, cluster: Cluster, number: int, stop: Event) -> None:
        super().__init__(name=f"writer-{number}")
        self.table = TABLES[number % len(TABLES)]
        self._cluster, self._stopping, self._random = cluster, stop, random.Random(number)
        self._next = number * 10**9
        self.present, self.unknown = set[int](), set[int]()
        self.commits = self.failures = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Commit until the end. A commit that fails is in doubt: its answer may have been lost."""
        try:
            client = None
            while not self._stopping.is_set():
                try:
                    client = client or self._cluster.connect()
                    self._commit(client)
                    self.commits += 1
                except (LanceNamespaceError, OSError, RuntimeError, ValueError):
                    self.failures += 1
                    client = None
                    sleep(0.2)
        except BaseException as error:
            self.error = error
            raise

    def _commit(self, client: LanceNamespace) -> None:
        where = {"namespace_client": client, "table_id": ["main", "db", self.table]}
        if self._random.random() < 0.8 or len(self.present) < 5:
            new = set(range(self._next, self._next + self._random.randint(1, 5)))
            self._next += 10
            self.unknown |= new
            lance.write_dataset(pa.table({"id": pa.array(sorted(new), pa.int64())}), mode="append", **where)
            self.present |= new
        else:
            new = set(self._random.sample(sorted(self.present), 3))
            self.present -= new
            self.unknown |= new
            lance.dataset(**where).delete(f"id IN ({', '.join(map(str, new))})")
        self.unknown -= new


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


@contextmanager
def writing(cluster: Cluster) -> Iterator[list[Writer]]:
    stop = Event()
    writers = [Writer(cluster, number, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        stop.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        assert not any(writer.is_alive() for writer in writers)


def wait_for_commits(writers: list[Writer], count: int) -> None:
    """Wait until each of them has made so many more."""
    goals = [writer.commits + count for writer in writers]
    deadline = monotonic() + PATIENCE_S
    while any(writer.commits < goal for writer, goal in zip(writers, goals, strict=True)):
        assert not [writer.error for writer in writers if writer.error]
        assert monotonic() < deadline, [(writer.name, writer.commits, writer.failures) for writer in writers]
        sleep(0.1)


def test_faults(cluster: Cluster, soak: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.connect()
    client.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
    for name in TABLES:
        client.declare_table(DeclareTableRequest(id=["main", "db", name], properties={"managed_by": "impl"}))
        data = pa.table({"id": pa.array([-1], pa.int64())})
        lance.write_dataset(data, namespace_client=client, table_id=["main", "db", name], mode="append")
    names = list(SHORT)
    if soak:
        all_faults = [name for name in FAULTS if cluster.has_disk or name != "disk full"]
        names = [name for seed in range(3) for name in random.Random(seed).sample(all_faults, len(all_faults))]
    with writing(cluster) as writers:
        wait_for_commits(writers, 2)
        for name in names:
            started = monotonic()
            FAULTS[name](cluster)
            wait_for_commits(writers, 5 if soak else 1)
            print(f"{name}: {monotonic() - started:.1f} s until all writers are at work again")
    made, failed, unknown = (
        sum(map(count, writers))
        for count in (lambda each: each.commits, lambda each: each.failures, lambda each: len(each.unknown))
    )
    print(f"{made} commits, {failed} failed, {unknown} rows in doubt")
    cluster.end_worker()
    with open_place(tmp_path, db=cluster.db, location=cluster.location, storage=cluster.bucket.options) as place:
        if soak:
            assert "compact" in {operation for _, operation, outcome in place.runs() if outcome == "done"}
        check_rows(place, writers)
        end_leases(place, monkeypatch)
        check_rows(place, writers)
        check_runs(place)
        print(Counter((operation, outcome) for _, operation, outcome in place.runs()))


def check_rows(place: Place, writers: list[Writer]) -> None:
    """What was acknowledged is there once; what is in doubt is there once or not at all; nothing else is."""
    for name in TABLES:
        found = place.open(name).to_table()["id"].to_pylist()
        those = [writer for writer in writers if writer.table == name]
        assert len(found) == len(set(found))
        assert {-1}.union(*(writer.present for writer in those)) <= set(found)
        assert set(found) <= {-1}.union(*(writer.present | writer.unknown for writer in those))


def end_leases(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the dead left is taken over, and done."""
    clock = rows.read_clock
    monkeypatch.setattr(rows, "read_clock", lambda tx: clock(tx) + 2 * catalog_maintenance.LEASE_MS)
    place.plan()
    for name in TABLES:
        place.ask(name, "compact", "cleanup")
    place.work(threads=2)
    tables = place.database.read(lambda tx: rows.list_maintained_tables(tx, 1 << 61, 1000))
    assert [table.lease_until_ms for table in tables] == [None] * len(TABLES)
    assert [(table.failures, table.error) for table in tables] == [(0, "")] * len(TABLES)
    for name in TABLES:
        assert len(place.open(name).get_fragments()) <= 12


def check_runs(place: Place) -> None:
    """No two of them worked on a table at the same time."""
    records = place.database.read(lambda tx: rows.list_recent_runs(tx, 100_000))
    for name in TABLES:
        runs = sorted(
            (run.started_ms, run.ended_ms, run.worker)
            for _, levels, run in records
            if levels[-1] == name and run.operation != "lease"
        )
        for (_, ended, one), (started, _, other) in pairwise(runs):
            assert one == other or ended <= started
