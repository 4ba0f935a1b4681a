"""Servers for every test: the real Iceberg one, once a session; emulators and proxies, fresh for each test.

`--soak` runs what is marked `soak` too, and makes the fixture `soak` true for tests that have a full size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.servers.faults import FaultProxy
from tests.servers.polaris import Polaris
from tests.servers.reference import Reference, start_reference
from tests.servers.unity import Unity


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run every check at full size")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: too slow, or too far from this machine, for every run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="part of the soak run (--soak)"))


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
