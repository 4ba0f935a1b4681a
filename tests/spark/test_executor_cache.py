"""How often the Python workers of an executor ask a catalog for credentials, if each task has a new one."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lancehouse.spark import LanceCatalog
from tests.servers.loopback import Answer, Request
from tests.servers.polaris import Polaris
from tests.spark.cluster import start_driver

AHEAD_S = 60
"""Credentials are renewed so long before they end."""
SECRET = "verysecretvalue"
TASKS, ROWS = 5, 50
Step = Callable[[SparkSession, dict[str, str], str], None]


class Vending(Polaris):
    """A Polaris that vends a key for some seconds; the tables are in a local folder, which needs none."""

    def __init__(self, root: Path) -> None:
        self.life_s, self.vended, self.logins = 3600.0, 0, 0
        super().__init__("test_catalog", root=root.as_uri())

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        self.logins += request.path.endswith("/oauth/tokens")
        if request.method == "GET" and request.segments[-2] == "generic-tables" and answer.status == 200:
            self.vended += 1
            expires_ms = str(int((time.time() + AHEAD_S + self.life_s) * 1000))
            key = {"s3.session-token": SECRET, "s3.session-token-expires-at-ms": expires_ms}
            body = {**json.loads(answer.body), "storage-access-configs": [{"prefix": "file:", "config": key}]}
            return Answer.json(body)
        return answer


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Vending]:
    with Vending(tmp_path / "tables") as server:
        location = f"{(tmp_path / 'tables').as_uri()}/test_catalog/db"
        server.seed_namespace("test_catalog", "db", properties={"location": location})
        yield server


def _connect(spark: SparkSession, properties: dict[str, str]) -> LanceCatalog:
    return LanceCatalog(spark, "polaris", properties)


def _create(spark: SparkSession, properties: dict[str, str], table: str) -> None:
    _connect(spark, properties).create(spark.range(0, ROWS, 1, TASKS), table)


def _read(spark: SparkSession, properties: dict[str, str], table: str) -> None:
    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(1)
            yield batch

    assert _connect(spark, properties).read(table).mapInArrow(wait, "id long").count() == ROWS


def test_the_workers_of_an_executor_share_credentials(catalog: Vending, tmp_path: Path) -> None:
    """Each task has a Python worker that ends with it; of those only one asks the catalog."""
    parallelism = {"spark.default.parallelism": str(TASKS), "spark.python.worker.reuse": "false"}
    properties = {"endpoint": catalog.uri, "credential": catalog.credential}
    with start_driver(tmp_path / "driver.log", "local[2]", {**parallelism, "spark.local.dir": str(tmp_path)}) as driver:

        def count(step: Step) -> tuple[int, int]:
            """How many processes asked the catalog for anything, and how often it vended credentials."""
            before = catalog.logins, catalog.vended
            driver.ask(f"{__name__}:{step.__name__}", properties=properties, table="test_catalog.db.docs")
            return catalog.logins - before[0], catalog.vended - before[1]

        processes, fetches = count(_create)
        assert processes <= 2, "the driver and one worker ask"
        assert fetches <= 3

        [folder] = tmp_path.rglob("blockmgr-*/lancehouse")
        files = list(folder.iterdir())
        assert any(SECRET in file.read_text() for file in files)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}

        catalog.life_s, begun = 2.0, monotonic()
        _, fetches = count(_read)
        assert fetches <= 2 + (monotonic() - begun) / catalog.life_s, "workers share renewals"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and SECRET in file.read_text(errors="replace")]
