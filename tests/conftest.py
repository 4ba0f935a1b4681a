"""Servers for every test: the real Iceberg one, once a session; emulators and proxies, fresh for each test.

`--soak` runs what is marked `soak` too, and makes the fixture `soak` true for tests that have a full size.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.servers.faults import FaultProxy
from tests.servers.jars import LIGHT
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import Bucket, Moto, start_moto
from tests.servers.polaris import Polaris
from tests.servers.postgres import start_postgres
from tests.servers.reference import Reference, start_reference
from tests.servers.spark41 import Spark, start_spark
from tests.servers.unity import Unity

os.environ["LANCEHOUSE_CONFIG"] = os.devnull  # whoever runs the tests may have catalogs of their own

settings.register_profile("house", deadline=None)  # machines are noisy
settings.load_profile("house")


ENGINES = (
    "tests/spark/test_streams.py",
    "tests/spark/test_kills.py",
    "tests/spark/test_executor_cache.py",
    "tests/spark/test_tpch.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_columns_everywhere.py",
    "tests/spark/test_connect.py",
    "tests/test_bench.py",
    "tests/test_examples.py",
    "tests/test_notebooks.py",
    "tests/spark/test_page.py",
    "tests/spark/test_declarative.py",
    "tests/cli/test_run.py",
    "tests/cli/test_copy_data.py",
    "tests/live/test_server_spark.py",
    "tests/live/test_gateway_spark.py",
    "tests/live/test_gateway_clients.py",
    "tests/live/test_ray.py",
    "tests/live/test_packages.py",
    "tests/live/test_rck.py",
    "tests/servers/test_rck.py",
    "tests/servers/test_spark41.py",
    "tests/servers/test_jars.py",
    "tests/cli/test_demo.py",
)
"""Files that start other engines: Spark of any kind, Ray, Daft, lance-spark, Node, notebooks, benchmarks.

`make test-engines` runs them, with all other tests that use the fixture `spark`, or it as the engine; `make test`
runs the rest.
"""
LONG = (
    *ENGINES,
    "tests/live/test_commits.py",
    "tests/conformance/test_suite.py",
    "tests/security/test_filters.py",
    "tests/live/test_server_commits.py",
    "tests/live/test_conformance.py",
    "tests/browser/test_console.py",
)
"""Files that take a minute or more: they come first, so that no process is left with one of them in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run every check at full size")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--soak"):
        # For every Spark that a test starts, also in processes of its own.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(LIGHT))
    config.addinivalue_line("markers", "engines: starts another engine; `make test-engines` runs it")
    config.addinivalue_line("markers", "soak: too slow, or too far from this machine, for every run")


@pytest.hookimpl(tryfirst=True)  # before pytest itself looks at markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if item.nodeid.partition("::")[0] in ENGINES or _uses_spark(item):
            item.add_marker(pytest.mark.engines)
    if config.getoption("--soak"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="part of the soak run (--soak)"))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the tests themselves: thousands of them take it half a second each time."""
    gc.collect()
    gc.freeze()


def _uses_spark(item: pytest.Item) -> bool:
    params: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    return "spark" in getattr(item, "fixturenames", ()) or params.get("engine") == "spark"


def _place(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return LONG.index(file) if file in LONG else len(LONG)


@pytest.fixture(scope="session")
def soak(pytestconfig: pytest.Config) -> bool:
    """Is this the full size?"""
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def reference_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """Iceberg's own REST server on SQLite; it is shared, so take names that no other test takes."""
    with start_reference(tmp_path_factory.mktemp("reference")) as server:
        yield server


@pytest.fixture(scope="session")
def reference(reference_server: Reference) -> str:
    """The endpoint of the shared Iceberg server."""
    return reference_server.uri


@pytest.fixture(scope="session")
def lancehouse_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`lancehouse serve` on SQLite; it is shared, so take names that no other test takes."""
    with start_lancehouse(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers of the test's own, below its folder, with the arguments of `start_lancehouse`."""
    with ExitStack() as stack:

        def start(name: str = "served", **arguments: Any) -> Served:
            return stack.enter_context(start_lancehouse(tmp_path / name, **arguments))

        yield start


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres; it is shared, so make a database of your own."""
    with start_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def spark41(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """Spark 4.1 with Iceberg's connector; it is shared, so take a catalog name that no other test takes."""
    with start_spark(tmp_path_factory.mktemp("spark41")) as spark:
        yield spark


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """A server with S3, IAM and STS, which is shared."""
    with start_moto() as server:
        yield server


@pytest.fixture
def s3(moto: Moto) -> Bucket:
    """An empty bucket."""
    return moto.bucket()


@pytest.fixture
def polaris() -> Iterator[Polaris]:
    """An empty Polaris with the catalog `test_catalog`."""
    with Polaris("test_catalog") as server:
        yield server


@pytest.fixture
def unity() -> Iterator[Unity]:
    """An empty Unity Catalog with the catalog `lance_test`, which asks for no token."""
    with Unity("lance_test") as server:
        yield server


@pytest.fixture
def faults() -> Iterator[Callable[[str], FaultProxy]]:
    """Puts a fault proxy in front of an address."""
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(FaultProxy(upstream))
