"""`LanceCatalog` with a server of Spark Connect: the session has neither a SparkContext nor a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.managed import managed_by_lancehouse
from tests.servers.lancehouse import Served
from tests.spark.cluster import start_connect, start_driver
from tests.spark.tour import TOO_BUSY

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_connect(tmp_path_factory.mktemp("connect")) as address:
        yield address


def test_all_that_a_catalog_does(connect: str, lancehouse_server: Served, soak: bool, tmp_path: Path) -> None:
    catalog = managed_by_lancehouse(lancehouse_server)
    properties, levels = catalog.properties, catalog.levels
    with start_driver(tmp_path / "driver.log", connect) as driver:
        assert driver.ask("tests.spark.tour:is_remote")
        asked = {"properties": properties, "levels": levels, "folder": str(tmp_path), "is_full": soak}
        if not driver.ask("tests.spark.tour:tour", **asked):
            pytest.skip(TOO_BUSY)
