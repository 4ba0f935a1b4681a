"""The `Catalog` object, which groups all services of a server: namespaces, tables, views, commits, scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lancehouse.catalog.audit import Audit
from lancehouse.catalog.callers import SERVER
from lancehouse.catalog.commits import Commits
from lancehouse.catalog.dropped_tables import DroppedTables
from lancehouse.catalog.fence import INTERVAL_S, Fence
from lancehouse.catalog.maintenance import Maintenance
from lancehouse.catalog.metadata_loader import STORAGE_REFRESH_S, DocumentCache, LanceMetadataCache, MetadataLoader
from lancehouse.catalog.namespaces import Namespaces
from lancehouse.catalog.restricted_tables import RestrictedTables
from lancehouse.catalog.scans import Scans
from lancehouse.catalog.tables import Tables
from lancehouse.catalog.views import Views
from lancehouse.catalog.warehouses import Warehouse, Warehouses
from lancehouse.store.database import Database

SCAN_CACHE_BYTES = 10 * 2**30
"""Default limit of the Parquet copies that are kept for scans, in bytes for each warehouse."""


class Catalog:
    """All services of one server on one database.

    It holds no state but caches, so any number of instances on the same database return the same results.
    """

    def __init__(
        self,
        database: Database,
        warehouses: Sequence[Warehouse],
        *,
        scan_cache_bytes: int = SCAN_CACHE_BYTES,
        storage_refresh_s: float = STORAGE_REFRESH_S,
        backend_policies: Mapping[str, Mapping[str, str]] | None = None,
        fence_interval_s: float = INTERVAL_S,
    ) -> None:
        """Create the services; `backend_policies` are maintenance properties of the gateway's other backends.

        Servers and workers start `fence` before they change anything.
        """
        self.database = database
        self.warehouses = Warehouses((warehouse.name, warehouse) for warehouse in warehouses)
        lance = LanceMetadataCache(database, storage_refresh_s=storage_refresh_s)
        self._lance = lance
        documents = DocumentCache()
        loader = MetadataLoader(lance, documents)
        self.fence = Fence(database, warehouses, fence_interval_s)
        self.namespaces = Namespaces(database, self.fence)
        self.restricted_tables = RestrictedTables(database, loader)
        self.dropped_tables = DroppedTables(database, documents, self.fence)
        self.tables = Tables(database, loader, self.fence, self.restricted_tables, self.dropped_tables)
        self.views = Views(database, loader, self.fence)
        self.commits = Commits(database, loader, self.fence)
        self.maintenance = Maintenance(database, warehouses, backend_policies)
        self.scans = Scans(database, self.tables, lance, self.restricted_tables, cache_bytes=scan_cache_bytes)
        self.audit = Audit(database)

    def delete_expired_tables(self) -> None:
        """Delete dropped tables whose time is over."""
        for warehouse in self.warehouses.values():
            self.dropped_tables.delete_expired(SERVER, warehouse)

    def change_limits(self, *, scan_cache_bytes: int, storage_refresh_s: float) -> None:
        """Change limits while it is at work."""
        self.scans.exports.limit = scan_cache_bytes
        self._lance.storage_refresh_s = storage_refresh_s
