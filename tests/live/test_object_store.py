"""Managed tables in a real S3: many writers, and a store that stops, dies or is slow."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, LanceNamespace, connect

from bench.servers import start_relay
from bench.store import join_background
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.versitygw import Versitygw, find_program, start_versitygw

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
    pytest.mark.timeout(300),
]

WRITERS, APPENDS = 6, 8
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    with start_versitygw(tmp_path_factory.mktemp("s3")) as running:
        yield running


class House:
    """A server whose warehouse is a bucket, reached as fast or as slowly as the store is."""

    def __init__(self, s3: Versitygw, folder: Path, stack: ExitStack, delay_ms: int = 0) -> None:
        bucket = s3.bucket()
        endpoint = stack.enter_context(start_relay(s3.endpoint, delay_ms)).uri if delay_ms else s3.endpoint
        self.options = {**bucket.options, "aws_endpoint": endpoint}
        config = folder / "server.yaml"
        config.write_text(json.dumps({"warehouses": {"main": {"storage": self.options, "vend": "static"}}}))
        self.server: Served = stack.enter_context(
            start_lancehouse(folder, warehouses={"main": f"{bucket.uri}/main"}, options=["--config", str(config)])
        )
        self.connect().create_namespace(CreateNamespaceRequest(id=["main", "db"]))

    def connect(self) -> LanceNamespace:
        """A client without keys of its own."""
        return connect("lancehouse.IcebergNamespace", {"endpoint": self.server.iceberg})

    def table(self) -> list[str]:
        """A managed table with one version."""
        table = ["main", "db", f"t{uuid4().hex[:8]}"]
        client = self.connect()
        client.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
        lance.write_dataset(ROWS, namespace_client=client, table_id=table, mode="append")
        return table

    def append(self, table: list[str], times: int) -> int:
        """Append as somebody does who has patience; how often the store or the catalog gave up."""
        client, failures = self.connect(), 0
        for _ in range(times):
            while True:
                try:
                    lance.write_dataset(ROWS, namespace_client=client, table_id=table, mode="append")
                    break
                except OSError as error:
                    failures += 1
                    if "unknown" in str(error) or failures == 100:  # the former may have been made
                        raise
        return failures


@pytest.fixture
def house(s3: Versitygw, tmp_path: Path) -> Iterator[Callable[..., House]]:
    with ExitStack() as stack:
        yield lambda delay_ms=0: House(s3, tmp_path, stack, delay_ms)


def check(house: House, table: list[str], appends: int) -> None:
    """Nothing is lost, nothing is there twice, and nothing is left over."""
    dataset = lance.dataset(namespace_client=house.connect(), table_id=table)
    assert dataset.count_rows() == 10 * (appends + 1)
    assert dataset.version == appends + 1
    join_background()
    by_path = lance.dataset(dataset.uri, storage_options=house.options)
    assert by_path.version == appends + 1


def test_many_writers(house: Callable[..., House]) -> None:
    place = house()
    table = place.table()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: place.append(table, APPENDS), range(WRITERS)))
    check(place, table, WRITERS * APPENDS)


def test_a_store_that_stops_for_a_while(house: Callable[..., House], s3: Versitygw, soak: bool) -> None:
    place = house()
    table = place.table()
    os.kill(s3.pid, signal.SIGSTOP)
    going_on = Timer(20 if soak else 4, os.kill, (s3.pid, signal.SIGCONT))
    going_on.start()
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: place.append(table, 3), range(2)))
    finally:
        going_on.join()
    check(place, table, 6)


def test_a_slow_store(house: Callable[..., House]) -> None:
    place = house(300)
    table = place.table()
    assert place.append(table, 2) == 0
    check(place, table, 2)


def test_a_store_that_is_killed(tmp_path: Path) -> None:
    """Whoever works when it dies hears of it; the table is as it was, and works on when the store is back."""
    with ExitStack() as stack:
        with start_versitygw(tmp_path / "s3") as first:
            place = House(first, tmp_path, stack)
            table = place.table()
            port = int(first.endpoint.rpartition(":")[2])
        with pytest.raises(OSError, match=r"error sending request|S3"):
            lance.write_dataset(ROWS, namespace_client=place.connect(), table_id=table, mode="append")
        stack.enter_context(start_versitygw(tmp_path / "s3", port))
        assert place.append(table, 2) == 0
        check(place, table, 2)
