"""A table as the console looks at it, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, connect

from lancehouse.gateway.backends import Backend
from lancehouse.gateway.tables import Table
from tests.live.catalogs import ICEBERG
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served

VERSIONS = 30


@pytest.mark.parametrize("manager", ["impl", "storage"])
def test_a_page_of_versions_costs_the_manifests_that_it_shows(
    served: Served, faults: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    proxy = faults(served.iceberg)
    namespace = connect(ICEBERG, {"endpoint": proxy.uri})
    db = f"versions_{uuid4().hex[:8]}"
    namespace.create_namespace(CreateNamespaceRequest(id=["main", db]))
    namespace.declare_table(DeclareTableRequest(id=["main", db, "t"], properties={"managed_by": manager}))
    dataset = lance.write_dataset(
        pa.table({"id": [1]}), namespace_client=namespace, table_id=["main", db, "t"], mode="append"
    )
    for number in range(VERSIONS - 1):
        dataset.update_config({"n": str(number)})
    backend = Backend("main", ICEBERG, {"endpoint": proxy.uri}, (str(served.location),), above=("main",))
    read: list[Any] = []
    checkout = lance.LanceDataset.checkout_version

    def counted(self: lance.LanceDataset, version: Any) -> lance.LanceDataset:
        read.append(version)
        return checkout(self, version)

    monkeypatch.setattr(lance.LanceDataset, "checkout_version", counted)
    found, token = [], None
    for _ in range(3):
        proxy.clear()
        read.clear()
        page, token = Table.of(backend, [db, "t"], None, reads_all=True).versions(10, token)
        found += [each.version for each in page]
        assert len(read) <= 10 + 1  # the newest may be looked at once more
        assert proxy.count("GET", r"/tables/t(\?|$)") <= 4
        assert proxy.count("GET", r"/tables/t$") == 0  # that would be all versions
    assert found == list(range(VERSIONS, 0, -1))
    assert token is None
