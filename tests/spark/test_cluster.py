"""`LanceCatalog` on a real cluster: a master, two workers, and a driver apart from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.managed import managed_by_lancehouse
from tests.servers.lancehouse import Served
from tests.spark.cluster import Cluster
from tests.spark.tour import TOO_BUSY

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def levels(lancehouse_server: Served) -> list[str]:
    """A new namespace."""
    return managed_by_lancehouse(lancehouse_server).levels


def test_all_that_a_catalog_does(
    cluster: Cluster, lancehouse_server: Served, levels: list[str], soak: bool, tmp_path: Path
) -> None:
    properties = {"endpoint": lancehouse_server.iceberg, "managed_by": "impl"}
    with cluster.driver(cores_max="2", executor_cores="1") as driver:
        assert driver.ask("tests.spark.tour:executors") == 2
        assert len(cluster.executors()) == 2
        asked = {"properties": properties, "levels": levels, "folder": str(tmp_path), "is_full": soak}
        if not driver.ask("tests.spark.tour:tour", **asked):
            pytest.skip(TOO_BUSY)
