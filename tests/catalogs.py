"""A catalog to test on: one class with one set of words, and every client on every server that it can talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import uuid4

import lance
from lance_namespace import CreateNamespaceRequest, DescribeTableRequest, LanceNamespace, connect

from lancehouse.locations import local_folder
from tests.servers.lakekeeper import Lakekeeper
from tests.servers.lancehouse import Served
from tests.servers.polaris import Polaris
from tests.servers.reference import Reference
from tests.servers.unity import Unity

Id = list[str]

ICEBERG = "lancehouse.IcebergNamespace"
POLARIS = "lancehouse.PolarisNamespace"
UNITY = "lancehouse.UnityNamespace"
LAKEKEEPER = "lancehouse.LakekeeperNamespace"


@dataclass(frozen=True)
class LiveCatalog:
    """A client, the properties that lead it to its server, and a namespace there that no other test has.

    Methods take a table by its name in the namespace, or by its whole id.
    """

    name: str
    impl: str
    properties: Mapping[str, str] = field(repr=False)
    parent: tuple[str, ...] = ()
    """The levels that the server has by itself; the namespace is made below them."""
    ns: str = field(default_factory=lambda: f"db_{uuid4().hex[:8]}")

    def create_namespace(self) -> Self:
        """Make the namespace, empty."""
        self.connect().create_namespace(CreateNamespaceRequest(id=self.levels))
        return self

    def connect(self, **more: str) -> LanceNamespace:
        """A new client, which knows nothing yet."""
        return connect(self.impl, {**self.properties, **more})

    @property
    def nests(self) -> bool:
        """Can a namespace lie in another?"""
        return self.impl != UNITY

    @property
    def levels(self) -> Id:
        """The id of the namespace."""
        return [*self.parent, self.ns]

    def id(self, table: str | Id) -> Id:
        """The id of a table."""
        return [*self.levels, table] if isinstance(table, str) else table

    def location(self, table: str | Id) -> str:
        """Where a table lies."""
        found = self.connect().describe_table(DescribeTableRequest(id=self.id(table))).location
        assert found is not None
        return found

    def folder(self, table: str | Id) -> Path:
        """The same, as a folder."""
        found = local_folder(self.location(table))
        assert found is not None
        return found

    def open(self, table: str | Id, version: int | str | None = None) -> lance.LanceDataset:
        """A table, opened by a client that knows nothing yet."""
        return lance.dataset(namespace_client=self.connect(), table_id=self.id(table), version=version)


@dataclass(frozen=True, slots=True)
class Shared:
    """Servers that are started once."""

    reference: Reference
    served: Served


Opener = Callable[[Shared, Path], Iterator[LiveCatalog]]


def iceberg_on_reference(shared: Shared, root: Path) -> Iterator[LiveCatalog]:
    """Iceberg's own server, which is shared; `root` is a plain path here, and a URI in the others."""
    yield LiveCatalog("iceberg", ICEBERG, {"endpoint": shared.reference.uri, "root": str(root)}, ("wh",))


def iceberg_on_polaris(_: Shared, root: Path) -> Iterator[LiveCatalog]:
    """An Iceberg server with a prefix, tokens, and locations that it allows."""
    with Polaris("test_catalog", root=root.as_uri()) as server:
        properties = {"endpoint": server.iceberg_uri, "credential": server.credential, "scope": "PRINCIPAL_ROLE:ALL"}
        yield LiveCatalog("iceberg-polaris", ICEBERG, {**properties, "root": root.as_uri()}, ("test_catalog",))


def iceberg_on_lancehouse(shared: Shared, _: Path) -> Iterator[LiveCatalog]:
    """Our own server, which is shared. Without `root`: tables lie in its warehouse, as it announces."""
    yield LiveCatalog("iceberg-lancehouse", ICEBERG, {"endpoint": shared.served.iceberg}, (shared.served.warehouse,))


def polaris_on_polaris(_: Shared, root: Path) -> Iterator[LiveCatalog]:
    """Without `root`: tables lie where Polaris put their namespace."""
    with Polaris("test_catalog", root=root.as_uri()) as server:
        properties = {"endpoint": server.uri, "credential": server.credential}
        yield LiveCatalog("polaris", POLARIS, properties, ("test_catalog",))


def unity_on_unity(_: Shared, root: Path) -> Iterator[LiveCatalog]:
    with Unity("lance_test", token="a-token") as server:
        properties = {"endpoint": server.uri, "catalog": "lance_test", "auth_token": "a-token"}
        yield LiveCatalog("unity", UNITY, {**properties, "root": root.as_uri()}, ("lance_test",))


def lakekeeper_on_lakekeeper(_: Shared, root: Path) -> Iterator[LiveCatalog]:
    """Without `root`: tables lie where Lakekeeper put their namespace."""
    with Lakekeeper("test_warehouse", root=root.as_uri()) as server:
        properties = {"endpoint": server.uri, "auth_token": server.token}
        yield LiveCatalog("lakekeeper", LAKEKEEPER, properties, ("test_warehouse",))


CATALOGS: Mapping[str, Opener] = {
    "iceberg": iceberg_on_reference,
    "iceberg-polaris": iceberg_on_polaris,
    "iceberg-lancehouse": iceberg_on_lancehouse,
    "polaris": polaris_on_polaris,
    "unity": unity_on_unity,
    "lakekeeper": lakekeeper_on_lakekeeper,
}


@contextmanager
def open_catalog(name: str, shared: Shared, root: Path) -> Iterator[LiveCatalog]:
    """A catalog by its name here, until the block ends; its data lies below `root`."""
    yield from CATALOGS[name](shared, root)
