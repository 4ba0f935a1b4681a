"""A catalog of each kind, its data below a folder with an odd name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

from tests.catalogs import CATALOGS, LiveCatalog, Shared, open_catalog
from tests.live.gateways import start_gateway
from tests.live.object_store import House, Store
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.polaris import Polaris
from tests.servers.reference import Reference
from tests.servers.unity import Unity


@pytest.fixture(scope="session")
def shared_servers(reference_server: Reference, lancehouse_server: Served) -> Shared:
    """The servers that are started once."""
    return Shared(reference_server, lancehouse_server)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the tests of one file, where no other breaks a table that a list would meet."""
    with start_lancehouse(tmp_path_factory.mktemp("untouched")) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[Served]:
    """A server in front of its own warehouse, of Iceberg's server, Polaris, Unity Catalog and folders; it is shared."""
    folder = tmp_path_factory.mktemp("gateway")
    with Polaris("test_catalog") as polaris, Unity("lance_test") as unity:
        backends = {
            "reference": ("iceberg", {"endpoint": reference_server.uri, "root": str(folder / "reference")}),
            "polaris": (
                "polaris",
                {"endpoint": polaris.uri, "credential": polaris.credential, "root": str(folder / "polaris")},
            ),
            "unity": ("unity", {"endpoint": unity.uri, "catalog": "lance_test", "root": str(folder / "unity")}),
            "folder": ("dir", {"root": str(folder / "folder")}),
            "tracked": ("dir", {"root": str(folder / "tracked"), "table_version_tracking_enabled": "true"}),
        }
        with start_gateway(folder, backends) as server:
            yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A real S3 for the tests of one file, which may stop and kill it."""
    with ExitStack() as stack:
        yield Store(tmp_path_factory.mktemp("s3"), stack)


@pytest.fixture(scope="module")
def house(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server whose warehouses are in that store."""
    with ExitStack() as stack:
        yield House(store.bucket(), tmp_path_factory.mktemp("server"), stack)


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest, shared_servers: Shared, tmp_path: Path) -> Iterator[LiveCatalog]:
    """Every client on every server that it can talk to."""
    with open_catalog(request.param, shared_servers, tmp_path / "dätä of 100 %") as server:
        yield server


@pytest.fixture
def namespace(catalog: LiveCatalog) -> LanceNamespace:
    """A client of the catalog."""
    return catalog.connect()


@pytest.fixture
def home(catalog: LiveCatalog) -> list[str]:
    """An empty namespace in the catalog that no other test has."""
    return catalog.create_namespace().levels


@pytest.fixture(scope="session")
def vectors() -> pa.Table:
    """A hundred rows; the vector of row n is nearest to itself, then to its neighbours."""
    numbers = range(100)
    column = pa.array([[float(number)] * 4 for number in numbers], pa.list_(pa.float32(), 4))
    return pa.table({"id": pa.array(numbers, pa.int64()), "vector": column})
