"""How many requests to an object store each operation takes: a request costs 20 to 100 ms."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import lance
import pytest
from lance_namespace import DeclareTableRequest

import lancehouse
from bench import store
from bench.store import MANAGED, ON_TABLES, PLAIN, STORED, StoreBench, StoreTable
from tests.servers.versitygw import find_program

pytestmark = pytest.mark.engines

LIMITS: dict[tuple[str, str], tuple[int, int]] = {
    ("open", PLAIN): (2, 0),
    ("open", MANAGED): (2, 1),
    ("open", STORED): (3, 1),
    ("append", PLAIN): (6, 0),
    ("append", MANAGED): (10, 2),
    ("append to a dataset that is open", PLAIN): (4, 0),
    ("append to a dataset that is open", MANAGED): (8, 1),
    ("append to a dataset that is open", STORED): (4, 0),
    ("LoadTable, snapshots=refs", MANAGED): (0, 0),
    ("LoadTable, snapshots=refs", STORED): (1, 0),
    ("LoadTable, all snapshots", MANAGED): (5, 0),
    ("LoadTable, all snapshots", STORED): (5, 0),
    ("DescribeTable", MANAGED): (0, 1),
    ("DescribeTable", STORED): (1, 1),
    ("gateway: DescribeTable", MANAGED): (0, 0),
}
"""Most requests to the store, and to the catalog, by operation and way to the table."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreBench, dict[str, StoreTable]]]:
    """A real S3 where there is Go to build it; moto elsewhere."""
    with store.start(tmp_path_factory.mktemp("store"), 0, 1) as started:
        yield started


def test_the_store_is_a_real_one() -> None:
    if find_program() is None:
        pytest.skip("versitygw was not built, which takes Go: moto stands in")


@pytest.mark.parametrize(("operation", "way"), LIMITS)
def test_few_requests(rig: tuple[StoreBench, dict[str, StoreTable]], operation: str, way: str) -> None:
    bench, tables = rig
    if operation in ON_TABLES:
        work, ready = ON_TABLES[operation]
        cost = bench.measure(lambda: work(tables[way]), None if ready is None else lambda: ready(tables[way]))
    else:
        act = bench.server_operations()[operation]
        cost = bench.measure(lambda: act(tables[way]))
    most, of_catalog = LIMITS[operation, way]
    assert cost.requests <= most, cost.store
    assert cost.catalog <= of_catalog


def test_a_new_client_needs_no_look(rig: tuple[StoreBench, dict[str, StoreTable]]) -> None:
    """The client that published the latest version tells the catalog when it next loads the table."""
    bench, tables = rig
    table = tables[MANAGED]
    table.append()
    table.open()
    cost = bench.measure(_connect(table).open)
    assert (cost.requests, cost.catalog) == (2, 1)


def test_a_version_that_nobody_has_published_is_published_by_a_reader(
    rig: tuple[StoreBench, dict[str, StoreTable]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer died after the catalog's yes."""
    _, tables = rig
    table = tables[MANAGED]
    version = table.open().version
    writer = _connect(table)
    with monkeypatch.context() as patch:
        patch.setattr("lancehouse.clients.managed_versions.ManagedVersions.publish", lambda *_: None)
        with suppress(OSError):  # pylance may look for the manifest in its place
            writer.append()
    by_path = lance.dataset(table.location, storage_options=dict(table.options))
    assert by_path.version == version
    assert _connect(table).open().version == version + 1
    assert lance.dataset(table.location, storage_options=dict(table.options)).version == version + 1


def _connect(table: StoreTable) -> StoreTable:
    """The same table, by a client that knows nothing of it."""
    assert isinstance(table.namespace, lancehouse.IcebergNamespace)
    return replace(table, namespace=pickle.loads(pickle.dumps(table.namespace)), held=None)


def test_the_columns_after_the_catalog_took_over(rig: tuple[StoreBench, dict[str, StoreTable]]) -> None:
    """Nobody told the catalog of them while storage was in charge."""
    bench, tables = rig
    namespace = tables[MANAGED].namespace
    assert isinstance(namespace, lancehouse.IcebergNamespace)
    moved = ["main", "db", "moved"]
    namespace.declare_table(DeclareTableRequest(id=moved))
    table = StoreTable("", tables[MANAGED].options, namespace, moved)
    table.append()
    table.open().add_columns({"more": "id + 1"})
    namespace.manage_table(moved, "impl")
    lance.write_dataset(store.ROWS.append_column("more", store.ROWS["id"]), mode="append", **table.where)
    load = bench.server_operations()["LoadTable, snapshots=refs"]
    for _ in range(2):
        loaded = json.loads(load(table))  # type: ignore[arg-type]
        [schema] = loaded["metadata"]["schemas"]
        assert [field["name"] for field in schema["fields"]] == ["id", "text", "more"]
