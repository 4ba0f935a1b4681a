"""Every kind of write with its driver, its executors or a task killed in the middle; then the rows are counted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace import ListTablesRequest
from lance_namespace.errors import InternalError, TableNotFoundError

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import Job
from lancehouse.lake.commits import FileLayout, locate_table
from lancehouse.lake.dataset import TableRef
from lancehouse.locations import local_folder
from tests.clients.managed import ManagedCatalog, managed_by_lancehouse
from tests.jobs.maintenance import remove_orphans
from tests.servers.lancehouse import Served
from tests.spark.cluster import Cluster, Driver
from tests.spark.faults import Faults
from tests.spark.writes import ADDED, AFTER, BEFORE, NAMED, Rows
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

KINDS = list(AFTER)
PARTS = 3
"""Each kind is in one of so many parts."""
FOLDERS = ("data", "_deletions", "_indices", "_lancehouse", "_staging")


@dataclass(frozen=True)
class WrittenTables:
    """A namespace with a table for each kind of write, whose versions the catalog manages."""

    catalog: ManagedCatalog
    folder: Path
    kinds: list[str]

    def arguments(self, kinds: list[str] | None = None) -> dict[str, Any]:
        """Of `writes.write_all`."""
        told = {"properties": dict(self.catalog.properties), "levels": self.catalog.levels, "folder": str(self.folder)}
        return {**told, "kinds": self.kinds if kinds is None else kinds, "run": "once"}

    def write(self, driver: Driver, kinds: list[str] | None = None) -> dict[str, str]:
        """Do all writes, or some; what went wrong with which."""
        answer: dict[str, str] = driver.ask("tests.spark.writes:write_all", **self.arguments(kinds))
        return {kind: error for kind, error in answer.items() if error}

    def ref(self, kind: str) -> TableRef:
        return TableRef(namespace=self.catalog.namespace, id=tuple(self.catalog.id(kind)))

    def read_state(self, kind: str) -> tuple[Rows | None, int, list[str], list[str]]:
        """Rows, fragments, columns and indices."""
        try:
            dataset = self.ref(kind).open()
        except TableNotFoundError:
            return None, 0, [], []
        table = dataset.to_table()
        assert len(table["id"].unique()) == len(table), f"{kind}: rows are doubled"
        rows = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
        indices = [index.name for index in dataset.describe_indices()]
        return rows, len(dataset.get_fragments()), table.column_names, indices

    def are_before(self) -> None:
        """All tables are as if their writes had never begun."""
        assert [kind for kind in self.kinds if not self._is_before(kind)] == []

    def are_after(self) -> None:
        """All tables have their writes, once."""
        assert [kind for kind in self.kinds if not self._is_after(kind)] == []

    def _is_before(self, kind: str) -> bool:
        return self.read_state(kind) == ((None, 0, [], []) if kind == "create" else (BEFORE, 4, ["id", "v"], []))

    def _is_after(self, kind: str) -> bool:
        rows, fragments, columns, indices = self.read_state(kind)
        return (
            rows == AFTER[kind]
            and columns == (["id", "v", "w"] if kind == "add_columns" else ["id", "v"])
            and indices == (["id_idx"] if kind == "create_index" else [])
            and (fragments == 2 or kind != "compact")
        )

    def leftover_files(self, kind: str) -> set[str]:
        """Files that no version names; they are what `remove_orphans` names too, and are gone then."""
        table = self.ref(kind)
        extra = self._files(kind) - _files_of_versions(table.open())
        told: set[str] = set()
        for _ in range(2):  # records of jobs first, then what they name
            told |= set(remove_orphans(table, timedelta(0), no_writers=True).names)
        assert {_part(file) for file in told if file.partition("/")[0] in FOLDERS} == extra
        assert self._files(kind) == _files_of_versions(table.open())
        return extra

    def _files(self, kind: str) -> set[str]:
        folder = local_folder(locate_table(self.ref(kind)).location)
        assert folder is not None
        found = (path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
        return {_part(str(path.relative_to(folder))) for path in found}


def _files_of_versions(dataset: lance.LanceDataset) -> set[str]:
    """The files of all versions."""
    found: set[str] = set()
    for version in dataset.versions():
        then = dataset.checkout_version(version["version"])
        for fragment in then.get_fragments():
            found |= {f"data/{file.path}" for file in fragment.metadata.files}
            found |= {deleted} if (deleted := fragment.deletion_file()) else set()
        found |= {f"_indices/{each.uuid}" for index in then.describe_indices() for each in index.segments}
    return found


def _part(file: str) -> str:
    """What versions name: a file, or the folder of a part of an index."""
    return file.rpartition("/")[0] if file.startswith("_indices/") else file


@pytest.fixture
def house(lancehouse_server: Served, soak: bool, request: pytest.FixtureRequest, tmp_path: Path) -> WrittenTables:
    kinds = KINDS if soak else KINDS[request.param :: PARTS]
    catalog = managed_by_lancehouse(lancehouse_server)
    (tmp_path / "files").mkdir()
    for number in range(2):
        half = dict(list(ADDED.items())[number::2])
        pq.write_table(_table(half), tmp_path / "files" / f"{number}.parquet")
    for kind in kinds:
        if kind != "create":
            how = {"mode": "create", "max_rows_per_file": 100}
            lance.write_dataset(_table(BEFORE), namespace_client=catalog.namespace, table_id=catalog.id(kind), **how)
    return WrittenTables(catalog, tmp_path, kinds)


def part(number: int) -> pytest.MarkDecorator:
    """With the full size a test is about all kinds of write, else about some of them."""
    return pytest.mark.parametrize("house", [number], indirect=True)


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())})


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults") / "of")


def settings(faults: Faults) -> dict[str, str]:
    return {"executorEnv_FAULTS": str(faults.folder)}


@pytest.fixture(scope="module")
def driver(cluster: Cluster, faults: Faults) -> Iterator[Driver]:
    with cluster.driver(**settings(faults)) as driver:
        yield driver


@part(1)
def test_a_killed_driver(cluster: Cluster, house: WrittenTables, driver: Driver, faults: Faults) -> None:
    """The tables are as they were; the same writes again land once, and a third time do nothing."""
    faults.plan("hold", "before")
    with cluster.driver(**settings(faults)) as doomed:
        app = doomed.ask("tests.spark.tour:app")
        doomed.send("tests.spark.writes:write_all", **house.arguments())
        faults.wait(set(house.kinds))
        assert cluster.executors(app)
        doomed.kill()
    wait_until(lambda: not cluster.executors(app))
    house.are_before()
    faults.plan("nothing")
    assert house.write(driver) == {}
    house.are_after()
    assert house.write(driver, [kind for kind in NAMED if kind in house.kinds]) == {}
    house.are_after()
    left = {kind: house.leftover_files(kind) for kind in house.kinds}
    assert left["append"]
    assert set(house.catalog.namespace.list_tables(ListTablesRequest(id=house.catalog.levels)).tables) == set(
        house.kinds
    )


@part(2)
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_killed_executors(cluster: Cluster, house: WrittenTables, driver: Driver, faults: Faults, moment: str) -> None:
    """Others do their work again, and each row is there once."""
    app = driver.ask("tests.spark.tour:app")
    faults.plan("hold", moment)
    driver.send("tests.spark.writes:write_all", **house.arguments())
    faults.wait(set(house.kinds))
    for pid in cluster.executors(app):
        os.kill(pid, signal.SIGKILL)
    faults.release()
    assert set(driver.answer().values()) == {""}
    house.are_after()
    for kind in house.kinds:
        house.leftover_files(kind)


@part(0)
@pytest.mark.soak
def test_killed_python_workers(house: WrittenTables, driver: Driver, faults: Faults) -> None:
    """The same task does it again, in another process; what the dead one had noted is removed."""
    faults.plan("crash")
    assert house.write(driver) == {}
    faults.wait(set(house.kinds))
    house.are_after()
    kept = {kind for kind in house.kinds if house.leftover_files(kind)}
    assert kept <= {"add_columns", "ingest", "compact", "create_index"}


@part(0)
def test_tasks_that_fail(house: WrittenTables, driver: Driver, faults: Faults) -> None:
    """The tables are as they were, without files of the write but for those with which the next one goes on."""
    faults.plan("fail")
    failed = house.write(driver)
    assert {kind: "the test wants this" in error for kind, error in failed.items()} == dict.fromkeys(house.kinds, True)
    house.are_before()
    assert "create" not in house.catalog.namespace.list_tables(ListTablesRequest(id=house.catalog.levels)).tables
    faults.plan("nothing")
    assert house.write(driver) == {}
    house.are_after()
    for kind in house.kinds:
        house.leftover_files(kind)


@part(1)
def test_tasks_that_run_twice(cluster: Cluster, house: WrittenTables, faults: Faults) -> None:
    """Speculation starts a second attempt beside the first, which has written all its rows and does not end."""
    faults.plan("hold")
    eager = {
        "speculation": "true",
        "speculation_efficiency_enabled": "false",
        "speculation_minTaskRuntime": "1s",
        "speculation_multiplier": "0.01",
        "speculation_quantile": "0.5",
    }
    with cluster.driver(**settings(faults), **eager) as driver:
        assert house.write(driver) == {}
    faults.wait(set(house.kinds))
    house.are_after()
    for kind in house.kinds:
        house.leftover_files(kind)


def test_a_task_that_outlives_its_job(tmp_path: Path) -> None:
    """Nobody else would remove what it has written."""
    lance.write_dataset(_table(BEFORE), tmp_path / "t")
    job, before = Job(TableAddress(path=str(tmp_path / "t"))), set(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="too much"), job.clean_up_after([]):
        job.write(_table(ADDED).to_reader(), "append", FileLayout())
        raise ValueError("too much")
    assert set(tmp_path.rglob("*")) == before
    with pytest.raises(InternalError, match="was over"):
        job.write(_table(ADDED).to_reader(), "append", FileLayout())
    assert set(tmp_path.rglob("*")) == before
