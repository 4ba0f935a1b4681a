"""`LanceCatalog` with a server of Spark Connect: the session has neither a SparkContext nor a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from lance_namespace import CreateNamespaceRequest

from lancehouse import IcebergNamespace
from tests.servers.lancehouse import Served
from tests.spark.cluster import start_connect, start_driver

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_connect(tmp_path_factory.mktemp("connect")) as address:
        yield address


def test_all_that_a_catalog_does(connect: str, served: Served, soak: bool, tmp_path: Path) -> None:
    properties = {"endpoint": served.iceberg, "managed_by": "impl"}
    levels = [served.warehouse, f"db_{uuid4().hex[:8]}"]
    IcebergNamespace(endpoint=served.iceberg).create_namespace(CreateNamespaceRequest(id=levels))
    with start_driver(tmp_path / "driver.log", connect) as driver:
        assert driver.ask("tests.spark.tour:is_remote")
        asked = {"properties": properties, "levels": levels, "folder": str(tmp_path), "is_full": soak}
        driver.ask("tests.spark.tour:tour", **asked)
