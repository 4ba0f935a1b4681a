"""The catalogs that the packages and the suite are tried on: four clients, six servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lance_namespace import LanceNamespace, connect

from tests.servers.lakekeeper import Lakekeeper
from tests.servers.lancehouse import Served
from tests.servers.polaris import Polaris
from tests.servers.reference import Reference
from tests.servers.unity import Unity

ICEBERG = "lancehouse.IcebergNamespace"
POLARIS = "lancehouse.PolarisNamespace"
UNITY = "lancehouse.UnityNamespace"
LAKEKEEPER = "lancehouse.LakekeeperNamespace"


@dataclass(frozen=True, slots=True)
class Catalog:
    """A client, the properties that lead it to its server, and the level below which namespaces are made there."""

    name: str
    impl: str
    properties: Mapping[str, str] = field(repr=False)
    parent: tuple[str, ...]

    def connect(self) -> LanceNamespace:
        """A new client."""
        return connect(self.impl, dict(self.properties))

    @property
    def nests(self) -> bool:
        """Can a namespace lie in another?"""
        return self.impl != UNITY


@dataclass(frozen=True, slots=True)
class Shared:
    """Servers that are started once."""

    reference: Reference
    served: Served


Opener = Callable[[Shared, Path], Iterator[Catalog]]


def iceberg_on_reference(shared: Shared, root: Path) -> Iterator[Catalog]:
    """Iceberg's own server, which is shared; `root` is a plain path here, and a URI in the others."""
    yield Catalog("iceberg", ICEBERG, {"endpoint": shared.reference.uri, "root": str(root)}, ("wh",))


def iceberg_on_polaris(_: Shared, root: Path) -> Iterator[Catalog]:
    """An Iceberg server with a prefix, tokens, and locations that it allows."""
    with Polaris("test_catalog", root=root.as_uri()) as server:
        properties = {"endpoint": server.iceberg_uri, "credential": server.credential, "scope": "PRINCIPAL_ROLE:ALL"}
        yield Catalog("iceberg-polaris", ICEBERG, {**properties, "root": root.as_uri()}, ("test_catalog",))


def iceberg_on_lancehouse(shared: Shared, _: Path) -> Iterator[Catalog]:
    """Our own server, which is shared. Without `root`: tables lie in its warehouse, as it announces."""
    yield Catalog("iceberg-lancehouse", ICEBERG, {"endpoint": shared.served.iceberg}, (shared.served.warehouse,))


def polaris_on_polaris(_: Shared, root: Path) -> Iterator[Catalog]:
    """Without `root`: tables lie where Polaris put their namespace."""
    with Polaris("test_catalog", root=root.as_uri()) as server:
        properties = {"endpoint": server.uri, "credential": server.credential}
        yield Catalog("polaris", POLARIS, properties, ("test_catalog",))


def unity_on_unity(_: Shared, root: Path) -> Iterator[Catalog]:
    with Unity("lance_test", token="a-token") as server:
        properties = {"endpoint": server.uri, "catalog": "lance_test", "auth_token": "a-token"}
        yield Catalog("unity", UNITY, {**properties, "root": root.as_uri()}, ("lance_test",))


def lakekeeper_on_lakekeeper(_: Shared, root: Path) -> Iterator[Catalog]:
    """Without `root`: tables lie where Lakekeeper put their namespace."""
    with Lakekeeper("test_warehouse", root=root.as_uri()) as server:
        properties = {"endpoint": server.uri, "auth_token": server.token}
        yield Catalog("lakekeeper", LAKEKEEPER, properties, ("test_warehouse",))


CATALOGS: Mapping[str, Opener] = {
    "iceberg": iceberg_on_reference,
    "iceberg-polaris": iceberg_on_polaris,
    "iceberg-lancehouse": iceberg_on_lancehouse,
    "polaris": polaris_on_polaris,
    "unity": unity_on_unity,
    "lakekeeper": lakekeeper_on_lakekeeper,
}


@contextmanager
def opened(name: str, shared: Shared, root: Path) -> Iterator[Catalog]:
    """A catalog by its name here, until the block ends; its data lies below `root`."""
    yield from CATALOGS[name](shared, root)
