"""Client for Apache Polaris: Lance tables as generic tables with the format `lance`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote

from lancehouse.clients.catalog_namespace import CatalogNamespace, StorageAccess
from lancehouse.clients.generic_tables import GenericTables
from lancehouse.clients.iceberg import RestWarehouses
from lancehouse.clients.rest import Rest

API = "/api/catalog"


class PolarisNamespace(CatalogNamespace):
    """The Lance namespace of a Polaris server. The first level of an id is the catalog."""

    client: ClassVar[str] = "polaris"
    managed_versions_hint: ClassVar[str] = (
        "Polaris' own Iceberg tables have one: use the `iceberg` client with the endpoint of Polaris and /api/catalog"
    )

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base = self._settings.endpoint.removesuffix(API) + API
        self._rest = Rest(self._settings, base=base, token_uri=f"{base}/v1/oauth/tokens")
        # Polaris' prefix is the catalog's name, and it refuses operations below a missing namespace itself.
        warehouses = RestWarehouses(self._rest, self._settings, asks_config=False, checks_namespaces=False)
        self._namespaces = self._warehouses = warehouses
        self._tables = GenericTables(
            self._rest,
            self._settings,
            warehouses,
            api_path=lambda catalog: f"/polaris/v1/{quote(catalog, safe='')}",
            find_root=lambda catalog: warehouses.load_config(catalog)[0].get("root"),
        )
        self._access = StorageAccess(self._settings, warehouses.announced_locations)
