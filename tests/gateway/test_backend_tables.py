"""A table as the console looks at it, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, connect

from lancehouse.gateway.backends import Backend
from lancehouse.server.console.backend_tables import BackendTable, LocatedTable
from tests.catalogs import ICEBERG
from tests.live.gateways import send
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served

VERSIONS = 30


@pytest.mark.parametrize("manager", ["impl", "storage"])
def test_a_page_of_versions_costs_the_manifests_that_it_shows(
    lancehouse_server: Served, faults: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    proxy = faults(lancehouse_server.iceberg)
    namespace = connect(ICEBERG, {"endpoint": proxy.uri})
    db = f"versions_{uuid4().hex[:8]}"
    namespace.create_namespace(CreateNamespaceRequest(id=["main", db]))
    namespace.declare_table(DeclareTableRequest(id=["main", db, "t"], properties={"managed_by": manager}))
    dataset = lance.write_dataset(
        pa.table({"id": [1]}), namespace_client=namespace, table_id=["main", db, "t"], mode="append"
    )
    for number in range(VERSIONS - 1):
        dataset.update_config({"n": str(number)})
    backend = Backend("main", ICEBERG, {"endpoint": proxy.uri}, (str(lancehouse_server.location),), id_prefix=("main",))
    read: list[Any] = []
    checkout = lance.LanceDataset.checkout_version

    def count_checkout(self: lance.LanceDataset, version: Any) -> lance.LanceDataset:
        read.append(version)
        return checkout(self, version)

    monkeypatch.setattr(lance.LanceDataset, "checkout_version", count_checkout)
    found, token = [], None
    for _ in range(3):
        proxy.clear()
        read.clear()
        page, token = BackendTable.from_backend(backend, [db, "t"], None, reads_all=True).versions(10, token)
        found += [each.version for each in page]
        assert len(read) <= 10 + 1  # the newest may be looked at once more
        assert proxy.count("GET", r"/tables/t(\?|$)") <= 4
        assert proxy.count("GET", r"/tables/t$") == 0  # that would be all versions
    assert found == list(range(VERSIONS, 0, -1))
    assert token is None
    proxy.clear()
    for newest, first in ((None, VERSIONS), (VERSIONS, VERSIONS), (VERSIONS - 5, VERSIONS - 5)):
        known = LocatedTable(dataset.uri, {}, newest)
        page, _ = BackendTable.from_backend(backend, [db, "t"], None, reads_all=False).versions(10, None, known)
        assert [each.version for each in page] == list(range(first, first - 10, -1))
    assert proxy.count("GET") == 0  # what is known is not asked for
    accepted = LocatedTable(dataset.uri, {}, VERSIONS + 1)  # as if its manifest were not in its place yet
    page, _ = BackendTable.from_backend(backend, [db, "t"], None, reads_all=False).versions(10, None, accepted)
    assert page[0].version == VERSIONS
    assert proxy.count("GET") > 0  # the client puts it there


def test_the_console_reads_the_manifests_of_a_page_alone(serving: Callable[..., Served]) -> None:
    """A damaged one elsewhere shows that: a table that is loaded for the first time has all of them read."""
    server = serving()
    namespace = connect(ICEBERG, {"endpoint": server.iceberg})
    namespace.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
    location = namespace.declare_table(DeclareTableRequest(id=["main", "db", "t"])).location
    assert location is not None
    dataset = lance.write_dataset(pa.table({"id": [1]}), location)
    for number in range(4):
        dataset.update_config({"n": str(number)})
    oldest = max(Path(dataset.uri.removeprefix("file://"), "_versions").glob("*.manifest"))
    oldest.write_bytes(b"damaged")
    status, told = send(server, "GET", "/console/v1/versions?in=main&level=db&level=t&limit=3")
    assert (status, [each["version"] for each in told["versions"]]) == (200, ["5", "4", "3"])
    assert send(server, "GET", "/iceberg/v1/main/namespaces/db/tables/t")[0] >= 400
