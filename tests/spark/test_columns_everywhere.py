"""Computed columns and views on every catalog, managed or not, with every kind of session; and killed in the middle.

At full size every catalog meets every session; else each catalog meets a local one, and some meet the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.catalogs import ICEBERG, LiveCatalog, Shared, open_catalog
from tests.servers.lancehouse import Served
from tests.servers.reference import Reference
from tests.spark.cluster import Cluster, Driver, start_connect, start_driver
from tests.spark.column_tour import FOLDER, HOLD, count_calls, tour
from tests.spark.tour import TOO_BUSY
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

MANAGED = {"managed_by": "impl"}
CATALOGS = {
    "dir": {},
    "iceberg": {},
    "iceberg, managed": MANAGED,
    "iceberg-lancehouse": {},
    "iceberg-lancehouse, managed": MANAGED,
    "polaris": {},
    "unity": {},
    "lakekeeper": {},
}
"""Names of `tests.catalogs`, and what is said besides."""
ALWAYS = [("cluster", "unity"), ("connect", "polaris"), ("cluster", "iceberg-lancehouse, managed"), ("connect", "dir")]
"""What is tried at every size, besides a local session."""


@pytest.fixture(scope="module")
def cluster_driver(cluster: Cluster) -> Iterator[Driver]:
    with cluster.driver(cores_max="2", executor_cores="1") as driver:
        yield driver


@pytest.fixture(scope="module")
def connect_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("connect")
    with start_connect(folder) as address, start_driver(folder / "driver.log", address) as driver:
        yield driver


@pytest.fixture
def catalog(
    request: pytest.FixtureRequest, reference_server: Reference, lancehouse_server: Served, tmp_path: Path
) -> Iterator[LiveCatalog]:
    name = request.param.partition(",")[0]
    if name == "dir":
        yield LiveCatalog("dir", "dir", {"root": str(tmp_path)})
        return
    with open_catalog(name, Shared(reference_server, lancehouse_server), tmp_path) as opened:
        more = CATALOGS[request.param]
        yield LiveCatalog(opened.name, opened.impl, {**opened.properties, **more}, opened.parent).create_namespace()


def has_managed_versions(catalog: LiveCatalog, table: str) -> bool:
    """Whether the catalog says that it manages the versions of a table."""
    from lance_namespace import DescribeTableRequest

    answer = catalog.connect().describe_table(DescribeTableRequest(id=catalog.id(table)))
    return bool(answer.managed_versioning)


@pytest.mark.parametrize("catalog", CATALOGS, indirect=True)
def test_a_local_session(spark: Any, catalog: LiveCatalog) -> None:
    levels = [] if catalog.impl == "dir" else catalog.levels
    tables = tour(spark, catalog.impl, dict(catalog.properties), levels)
    if catalog.impl == ICEBERG:
        is_managed = "managed_by" in catalog.properties
        assert {has_managed_versions(catalog, table) for table in tables} == {is_managed}


@pytest.mark.parametrize(
    ("session", "catalog"),
    [
        pytest.param(session, name, marks=() if (session, name) in ALWAYS else pytest.mark.soak)
        for session in ("cluster", "connect")
        for name in CATALOGS
    ],
    indirect=["catalog"],
)
def test_other_sessions(request: pytest.FixtureRequest, session: str, catalog: LiveCatalog) -> None:
    driver: Driver = request.getfixturevalue(f"{session}_driver")
    levels = [] if catalog.impl == "dir" else catalog.levels
    asked = {"impl": catalog.impl, "properties": dict(catalog.properties), "levels": levels}
    assert driver.ask("tests.spark.column_tour:tour", **asked) == ["docs", "chunks"]


STREAMED = [("cluster", "iceberg, managed"), ("connect", "iceberg-lancehouse, managed")]
"""Where streams are tried at every size."""


@pytest.mark.parametrize(
    ("session", "catalog"),
    [
        pytest.param(session, name, marks=() if (session, name) in STREAMED else pytest.mark.soak)
        for session in ("cluster", "connect")
        for name in CATALOGS
    ],
    indirect=["catalog"],
)
def test_streams(request: pytest.FixtureRequest, session: str, catalog: LiveCatalog, tmp_path: Path) -> None:
    """A stream that fills a column, one that is merged, and the changes of both tables."""
    driver: Driver = request.getfixturevalue(f"{session}_driver")
    levels = [] if catalog.impl == "dir" else catalog.levels
    asked = {"impl": catalog.impl, "properties": dict(catalog.properties), "levels": levels}
    changes = driver.ask("tests.spark.column_tour:stream_tour", **asked, folder=str(tmp_path))
    if changes is None:
        pytest.skip(TOO_BUSY)
    source, copy = changes
    updated = [["insert", 6], ["update_postimage", 0], ["update_postimage", 1]]
    assert source == [["delete", 5], *updated]
    assert copy == updated


# Kills

TASKS = 2
"""How many run at once."""
BATCH = 10


@pytest.mark.parametrize("killed", ["driver", "executors", "both"])
def test_a_fill_that_is_killed(cluster: Cluster, killed: str, soak: bool, tmp_path: Path) -> None:
    """It goes on with what is computed: a task repeats the call that it was in, and one checkpoint at most."""
    rows, fragments = (20_000, 10) if soak else (400, 4)
    place, calls = tmp_path / "t.lance", tmp_path / "calls"
    calls.mkdir()
    lance.write_dataset(
        pa.table({"id": range(rows)}), place, max_rows_per_file=rows // fragments, enable_stable_row_ids=True
    )
    asked = {"properties": {"root": str(tmp_path)}, "table": ["t"], "batch_rows": BATCH}
    settings = {"cores_max": str(TASKS), "executor_cores": "1", f"executorEnv_{FOLDER}": str(calls)}
    (calls / HOLD).write_text("7")  # in the middle of the first fragment of each
    with ExitStack() as stack:
        driver = stack.enter_context(cluster.driver(**settings))
        app = driver.ask("tests.spark.tour:app")
        driver.send("tests.spark.column_tour:fill_counted", **asked)
        wait_until(lambda: len(list(calls.glob("stopped-*"))) == TASKS)
        if killed in ("driver", "both"):
            driver.kill()
        if killed in ("executors", "both"):
            for pid in cluster.executors(app):
                os.kill(pid, signal.SIGKILL)
        before = count_calls(calls)
        (calls / HOLD).unlink()
        if killed != "executors":
            wait_until(lambda: not cluster.executors(app))
            driver = stack.enter_context(cluster.driver(**settings))
            driver.send("tests.spark.column_tour:fill_counted", **asked)
        assert driver.answer()["filled"] == rows
    after = count_calls(calls)
    assert len(before) == TASKS * 7 * BATCH
    assert set(after) == set(range(rows))
    repeated = sum(after.values()) - rows
    assert repeated <= TASKS * 2 * BATCH, "a checkpoint and a call of each task"
    dataset = lance.dataset(place)
    assert dataset.to_table(["id", "double"]).to_pydict()["double"] == [number * 2 for number in range(rows)]
    assert not list((place / "_lancehouse" / "jobs").rglob("*.json")), "checkpoints are removed"
