from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lancehouse.clients import rest
from tests.clients.managed import ManagedCatalog, managed_by_lancehouse
from tests.servers.faults import FaultProxy


@pytest.fixture(params=["reference", "ours"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> ManagedCatalog:
    """A catalog that manages versions: Iceberg's own server, and ours."""
    if request.param == "ours":
        return managed_by_lancehouse(request.getfixturevalue("lancehouse_server"))
    properties = {"endpoint": request.getfixturevalue("reference"), "managed_by": "impl"}
    properties["root"] = str(tmp_path / "dätä of 100 %")
    return ManagedCatalog("reference", "iceberg", properties, ("wh",)).create_namespace()


@pytest.fixture
def proxy(house: ManagedCatalog, faults: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """Faults in front of it; the client does not wait long before it tries again."""
    monkeypatch.setattr(rest, "FIRST_BACKOFF_S", 0.001)
    return faults(house.endpoint)
