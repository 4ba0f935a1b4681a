"""pyiceberg's own client code on a catalog in this process: what goes over the wire is JSON, as it would be."""

from __future__ import annotations

from typing import Any

import orjson
from pyiceberg.catalog.rest import _PLANNING_RESPONSE_ADAPTER, RestCatalog
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest, ScanTasks
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from lancehouse.catalog.callers import ANYBODY, Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse


class ScanClient(RestCatalog):
    """Reads tables as pyiceberg does from a REST catalog that plans on the server."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse, properties: dict[str, str] | None = None) -> None:
        self.served = catalog
        self.warehouse = warehouse
        self.caller = Caller(ANYBODY, "PyIceberg/0.12.0")
        self.requests: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self._properties = properties or {}

    def table(self, *identifier: str) -> Table:
        *levels, name = identifier
        loaded = self.served.tables.load(self.caller, self.warehouse, tuple(levels), name)
        metadata = TableMetadataUtil.parse_raw(loaded.metadata.decode())
        return Table(identifier, metadata, loaded.metadata_location or "", PyArrowFileIO(self._properties), self)

    def supports_server_side_planning(self) -> bool:
        return True

    def _plan_table_scan(self, identifier: Any, request: PlanTableScanRequest) -> Any:
        *levels, name = identifier
        json = orjson.loads(request.model_dump_json(by_alias=True, exclude_none=True))
        self.requests.append(json)
        answer = self.served.scans.plan(self.caller, self.warehouse, tuple(levels), name, json)
        self.answers.append(answer)
        return _PLANNING_RESPONSE_ADAPTER.validate_json(orjson.dumps(answer))

    def _fetch_scan_tasks(self, identifier: Any, plan_task: str) -> ScanTasks:
        *levels, name = identifier
        answer = self.served.scans.fetch_tasks(self.caller, self.warehouse, tuple(levels), name, plan_task)
        self.answers.append(answer)
        return ScanTasks.model_validate_json(orjson.dumps(answer))
