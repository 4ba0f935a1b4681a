"""Client for Lakekeeper: Lance tables as generic tables with the format `lance`."""

from __future__ import annotations

from typing import ClassVar

from lance_namespace import RenameTableRequest, RenameTableResponse

from lancehouse.clients.catalog_namespace import CatalogNamespace, StorageAccess
from lancehouse.clients.generic_tables import GenericTables
from lancehouse.clients.iceberg import RestWarehouses
from lancehouse.clients.rest import Rest

ICEBERG_API = "/catalog"
GENERIC_API = "/lakekeeper"


class LakekeeperNamespace(CatalogNamespace):
    """The Lance namespace of a Lakekeeper server. The first level of an id is the warehouse, by its name."""

    client: ClassVar[str] = "lakekeeper"
    ping_path: ClassVar[str] = f"{ICEBERG_API}/v1/config"
    managed_versions_hint: ClassVar[str] = (
        "Lakekeeper's own Iceberg tables have one: use the `iceberg` client with Lakekeeper's endpoint and /catalog"
    )

    _tables: GenericTables

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base, path = self._settings.endpoint.removesuffix("/v1").removesuffix(ICEBERG_API), f"{ICEBERG_API}/v1"
        self._rest = Rest(self._settings, base=base, token_uri=f"{base}{path}/oauth/tokens")
        self._namespaces = self._warehouses = warehouses = RestWarehouses(self._rest, self._settings, path=path)

        def api_path(catalog: str) -> str:
            # Lakekeeper's paths have the warehouse's id, which `/v1/config` announces as the prefix for its name.
            prefix = warehouses.call(catalog, lambda paths: paths.base_path).removeprefix(path)
            return f"{GENERIC_API}/v1{prefix}"

        self._tables = GenericTables(
            self._rest,
            self._settings,
            warehouses,
            api_path=api_path,
            find_root=lambda catalog: warehouses.call(catalog, lambda paths: paths.root),
            creation_vends=False,
        )
        self._access = StorageAccess(self._settings, warehouses.announced_locations)

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Rename a table, within its namespace or into another one of its warehouse; its data stays where it is."""
        return self._rename(request, self._tables.rename)
