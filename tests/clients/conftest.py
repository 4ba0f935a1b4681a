from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from lance_namespace import CreateNamespaceRequest

from lancehouse import IcebergNamespace
from lancehouse.clients import rest
from tests.clients.managed import House
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served


@pytest.fixture(params=["reference", "ours"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    """A catalog that manages versions: Iceberg's own server, and ours."""
    if request.param == "ours":
        served: Served = request.getfixturevalue("served")
        endpoint, prefix, warehouse, more = served.iceberg, f"/{served.warehouse}", served.warehouse, {}
    else:
        endpoint, prefix, warehouse = request.getfixturevalue("reference"), "", "wh"
        more = {"root": str(tmp_path / "dätä of 100 %")}
    properties = {"endpoint": endpoint, "managed_by": "impl", **more}
    namespace, home = IcebergNamespace(**properties), [warehouse, f"db_{uuid4().hex[:8]}"]
    namespace.create_namespace(CreateNamespaceRequest(id=home))
    return House(endpoint, prefix, home, properties, namespace, request.param == "ours")


@pytest.fixture
def proxy(house: House, faults: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """Faults in front of it; the client does not wait long before it tries again."""
    monkeypatch.setattr(rest, "FIRST_BACKOFF_S", 0.001)
    return faults(house.endpoint)
