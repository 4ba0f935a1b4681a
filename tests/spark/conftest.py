"""One Spark for all tests here: starting it takes longer than most of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lancehouse.jobs import Engine, LocalEngine
from lancehouse.spark import SparkEngine
from lancehouse.spark.java import find_java
from tests.spark.cluster import Cluster, start_cluster

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.shuffle.partitions": "2",
}
"""The zone is not UTC, nor whole hours from it, so that nobody forgets it."""


def pytest_configure(config: pytest.Config) -> None:
    # Said by mapInArrow, which needs no pandas but looks for it; and by pylance when Java is started, which is no fork.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:lance is not fork-safe:UserWarning")


def failing(spark: Any, folder: Path) -> Any:
    """Rows in two tasks. The second fails when the first has written its own below a folder, and noted that."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column(0)[0].as_py():
                while not any(folder.rglob("_lancehouse/jobs/*/*.json")):
                    time.sleep(0.1)
                raise ValueError("too much")
            yield batch

    return spark.range(0, 10, 1, 2).mapInArrow(rows, "id long")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local Spark with two cores; it is shared: settings of your own go into `spark.newSession()`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(find_java()))
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        session = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(params=["spark", "local"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that can run the pieces of a job."""
    if request.param == "local":
        return LocalEngine(threads=2)
    return SparkEngine(request.getfixturevalue("spark"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers; drivers are processes of their own."""
    with start_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
