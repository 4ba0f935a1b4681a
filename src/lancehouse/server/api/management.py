"""Routes and handlers of what Iceberg's REST API has no words for: dropped tables, events, and the audit.

What concerns a warehouse is below its prefix, at `/iceberg/v1/{prefix}/lancehouse/…`, the rest at `/lancehouse/v1/…`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.audit import AuditFilter, to_json
from lancehouse.catalog.dropped_tables import dropped_to_json
from lancehouse.catalog.entries import TableName
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Route
from lancehouse.wire.iceberg_requests import RequestModel

if TYPE_CHECKING:
    from lancehouse.server.http.routes import Call, Json

WAREHOUSE = "/v1/{prefix}/lancehouse/"
SERVER = "/lancehouse/v1/"
LONGEST_WAIT_S = 30
LARGEST_PAGE = 1000


class DroppedTableRequest(RequestModel):
    """Restore or purge a dropped table."""

    namespace: list[str]
    name: str
    dropped_ms: int | None = None
    new_namespace: list[str] | None = None
    new_name: str | None = None


def list_dropped(call: Call) -> Response:
    """List the dropped tables of a warehouse, the one dropped last first."""
    warehouse = call.catalog.warehouses[call.match.prefix]
    rows = call.catalog.dropped_tables.list(call.caller, warehouse)
    return responses.json({"tables": list(map(dropped_to_json, rows))})


def undrop(call: Call) -> Response:
    """Restore a dropped table."""
    request = call.parse_body(DroppedTableRequest)
    name = _table_name(request)
    new_levels, new_name = request.get("new-namespace"), request.get("new-name")
    target = TableName(tuple(new_levels or name.levels), new_name or name.name)
    new_table_name = call.catalog.dropped_tables.restore(
        call.caller, call.catalog.warehouses[call.match.prefix], name, target, request.get("dropped-ms")
    )
    return responses.json({"namespace": list(new_table_name.levels), "name": new_table_name.name})


def purge(call: Call) -> Response:
    """Delete a dropped table and its files now."""
    request = call.parse_body(DroppedTableRequest)
    warehouse = call.catalog.warehouses[call.match.prefix]
    call.catalog.dropped_tables.purge(call.caller, warehouse, _table_name(request), request.get("dropped-ms"))
    return responses.no_content()


def list_audit(call: Call) -> Response:
    """List changes, newest first, for admins."""
    levels = call.query.get("namespace")
    audit_filter = AuditFilter(
        call.query.get("warehouse"),
        tuple(levels.split("\x1f")) if levels else None,
        call.query.get("name"),
        call.query.get("principal"),
        call.query.get("action"),
        _number(call, "since-ms", 0),
        _number(call, "until-ms", 0) or None,
    )
    limit = min(_number(call, "limit", 100), LARGEST_PAGE) or 1
    rows, before = call.catalog.audit.list(call.caller, audit_filter, _number(call, "before", 0) or None, limit)
    return responses.json({"changes": list(map(to_json, rows)), "next": before})


def list_events(call: Call) -> Response:
    """List changes of a warehouse as CloudEvents, those after a position; wait for some if asked to."""
    warehouse = call.catalog.warehouses[call.match.prefix]
    call.caller.identity.require_sight(warehouse.name)
    if call.query.get("after") == "now":
        return responses.json({"events": [], "next": call.catalog.audit.last_position()})
    after, limit = _number(call, "after", 0), min(_number(call, "limit", 100), LARGEST_PAGE) or 1
    wait_s = min(_number(call, "wait", 0), LONGEST_WAIT_S)
    events, last = call.catalog.audit.list_events(call.caller, warehouse, after, limit, wait_s)
    return responses.json({"events": events, "next": last})


def _table_name(request: Json) -> TableName:
    return TableName(tuple(request["namespace"]), request["name"])


def _number(call: Call, name: str, default: int) -> int:
    value = call.query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        raise InvalidInputError(f"{name} must be a whole number, got {value[:40]!r}")
    return int(value)


ROUTES = (
    Route("listDroppedTables", "GET", WAREHOUSE + "dropped", list_dropped),
    Route("undropTable", "POST", WAREHOUSE + "undrop", undrop, alters=True),
    # To delete the files of a large table takes long: not in the threads of short requests.
    Route("purgeTable", "POST", WAREHOUSE + "purge", purge, pool="scans", alters=True),
    Route("listEvents", "GET", WAREHOUSE + "events", list_events, pool="events", quiet=True),
)
"""Operations on a warehouse, which `/v1/config` announces."""
UNDO = frozenset(route.endpoint for route in ROUTES[:3])
"""Those that are announced only where dropped tables are kept."""
AUDIT = Route("listAudit", "GET", SERVER + "audit", list_audit)
