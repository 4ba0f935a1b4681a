"""Client for Apache Polaris: Lance tables as generic tables with the format `lance`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote

from lancehouse.clients.generic_tables import GenericTableNamespace
from lancehouse.clients.warehouse_namespace import WarehousePaths
from lancehouse.identifiers import UNIT_SEPARATOR, NamespaceId

API = "/api/catalog"


class PolarisNamespace(GenericTableNamespace):
    """The Lance namespace of a Polaris server. The first level of an id is the catalog."""

    client: ClassVar[str] = "polaris"
    managed_versions_hint: ClassVar[str] = (
        "Polaris' own Iceberg tables have one: use the `iceberg` client with the endpoint of Polaris and /api/catalog"
    )

    def _base_url(self) -> str:
        return self._settings.endpoint.removesuffix(API) + API

    def _warehouse_paths(self, catalog: str) -> list[WarehousePaths]:
        """Return the one path of a catalog: Polaris' prefix is the catalog's name, so `/v1/config` is not requested."""
        return [WarehousePaths(f"/v1/{quote(catalog, safe='')}", UNIT_SEPARATOR, self._settings.root, None)]

    def _require_namespace(self, namespace: NamespaceId) -> None:
        """Do nothing: Polaris itself refuses operations below a missing namespace."""

    def _announced_root(self, catalog: str) -> str | None:
        return self._load_config(catalog)[0].get("root")

    def _generic_path(self, catalog: str) -> str:
        return f"/polaris/v1/{quote(catalog, safe='')}"
