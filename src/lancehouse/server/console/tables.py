"""Console API for one table or view: description, versions, and changes of its entry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from lancehouse.catalog import entry_history
from lancehouse.catalog.lance_metadata import is_managed
from lancehouse.gateway.backend_tables import LocatedTable
from lancehouse.paging import decode_token, encode_token
from lancehouse.properties import managed_by
from lancehouse.schema.display import field_to_json
from lancehouse.server.console import iceberg_tables
from lancehouse.server.http import responses

if TYPE_CHECKING:
    from lancehouse.catalog.entry_history import Change, Entry
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.gateway.backend_tables import BackendTable
    from lancehouse.server.console.requests import ConsoleRequest
    from lancehouse.server.http.responses import Response

Json = dict[str, Any]

VERSIONS = 50
MOST_VERSIONS = 200
CHANGES = 200
NO_COMMITS = frozenset({"create", "metadata"})
"""Changes of an entry that created no version: the version that they name existed before."""


def table(request: ConsoleRequest) -> Response:
    """Describe a table or view: kind, location, columns, and a few numbers."""
    warehouse = request.warehouse
    entry = _get_entry(request, warehouse) if warehouse is not None else None
    fields: Json = {
        "in": request.backend.name,
        "levels": request.table_levels(),
        "kind": entry.kind if entry else "lance",
    }
    if entry is not None:
        fields |= {"uuid": entry.uuid, "created_ms": entry.created_ms, "updated_ms": entry.updated_ms}
    if warehouse is not None and entry is not None and entry.kind != "lance":
        fields |= _describe_iceberg(entry, _load_metadata(request, warehouse, entry))
    else:
        fields |= _describe_lance(request.table)
    return responses.json(fields)


def versions(request: ConsoleRequest) -> Response:
    """List the versions of a table or view, newest first."""
    size, token = request.get_number("limit", VERSIONS, MOST_VERSIONS), request.find_parameter("token")
    warehouse = request.warehouse
    entry = _get_entry(request, warehouse) if warehouse is not None else None
    if warehouse is not None and entry is not None and entry.kind != "lance":
        metadata = _load_metadata(request, warehouse, entry)
        is_view = entry.kind == "view"
        history = iceberg_tables.view_versions(metadata) if is_view else iceberg_tables.snapshots(metadata)
        offset = _parse_offset(token)
        page = history[offset : offset + size]
        next_token = encode_token(offset + size) if offset + size < len(history) else None
    else:
        located = _locate(warehouse, entry) if warehouse is not None and entry is not None else None
        lance_versions, next_token = request.table.versions(size, token, located)
        page = [{**asdict(version), "version": str(version.version), "by": None} for version in lance_versions]
    if entry is not None:
        _add_committers(request, entry, page)
    return responses.json({"versions": page, "next": next_token})


def changes(request: ConsoleRequest) -> Response:
    """List who changed the entry in this server's catalog; None for backends that are other catalogs."""
    warehouse = request.warehouse
    if warehouse is None:
        return responses.json({"changes": None})
    rows = entry_history.list_changes(request.call.catalog.database, _get_entry(request, warehouse), CHANGES)
    return responses.json({"changes": [_change_json(row) for row in rows]})


def _get_entry(request: ConsoleRequest, warehouse: Warehouse) -> Entry:
    *levels, name = request.table_levels()
    return entry_history.get_entry(request.call.catalog, request.call.caller, warehouse, tuple(levels), name)


def _locate(warehouse: Warehouse, entry: Entry) -> LocatedTable | None:
    """Return the location of a Lance table and its newest version; None if it has no version yet.

    The caller has checked that the table may be read.
    """
    if not is_managed(entry):
        return LocatedTable(entry.location, warehouse.storage, None)
    return None if entry.version is None else LocatedTable(entry.location, warehouse.storage, entry.version)


def _load_metadata(request: ConsoleRequest, warehouse: Warehouse, entry: Entry) -> Json:
    levels = request.table_levels()[:-1]
    loaded = entry_history.load_metadata(request.call.catalog, request.call.caller, warehouse, levels, entry)
    metadata: Json = orjson.loads(loaded.metadata)
    return metadata


def _describe_iceberg(entry: Entry, metadata: Json) -> Json:
    fields = {
        "state": "ready",
        "problem": None,
        "location": metadata["location"],
        "properties": metadata.get("properties") or {},
        "columns": iceberg_tables.columns(metadata),
    }
    if entry.kind == "view":
        return {
            **fields,
            "sql": iceberg_tables.current_view_sql(metadata),
            "summary": None,
            "tags": {},
            "branches": {},
        }
    return {
        **fields,
        **iceberg_tables.layout(metadata),
        "summary": iceberg_tables.summary(metadata),
        "tags": iceberg_tables.refs(metadata, "tag"),
        "branches": iceberg_tables.refs(metadata, "branch"),
    }


def _describe_lance(table: BackendTable) -> Json:
    """Describe a Lance table; one whose data cannot be opened is described too, with the reason."""
    description = table.describe()
    properties = description.properties or {}
    fields: Json = {
        "location": description.location,
        "properties": properties,
        "managed_by": managed_by(properties),
        "summary": None,
        "columns": [],
        "tags": {},
        "branches": {},
    }
    try:
        summary, refs = table.summary(), table.refs()
    except TableNotFoundError:
        return {**fields, "state": "declared", "problem": None}
    except LanceNamespaceError as error:
        if table.ref.version is not None:
            raise
        return {**fields, "state": "broken", "problem": str(error)}
    numbers = {name: getattr(summary, name) for name in summary.__slots__ if name != "schema"}
    return {
        **fields,
        "state": "ready",
        "problem": None,
        "summary": {**numbers, "version": str(summary.version)},
        "columns": [field_to_json(field) for field in summary.schema],
        "tags": _refs_json(refs.tags),
        "branches": _refs_json(refs.branches),
    }


def _refs_json(refs: Any) -> dict[str, Json]:
    return {name: {"branch": branch, "version": str(version)} for name, (branch, version) in refs.items()}


def _add_committers(request: ConsoleRequest, entry: Entry, version_rows: list[Json]) -> None:
    """Add to each version who committed it, where the catalog knows."""
    ids = [int(version["version"]) for version in version_rows]
    rows = entry_history.list_changes_of_snapshots(request.call.catalog.database, entry, ids)
    commits = {str(row.snapshot_id): row for row in rows if row.operation not in NO_COMMITS}
    for version in version_rows:
        row = commits.get(version["version"])
        version["by"] = None if row is None else {"principal": row.principal, "client": row.client, "at_ms": row.at_ms}


def _change_json(row: Change) -> Json:
    version = None if row.snapshot_id is None else str(row.snapshot_id)
    return {
        "at_ms": row.at_ms,
        "principal": row.principal,
        "client": row.client,
        "request": row.request_id,
        "operation": row.operation,
        "version": version,
        "revision": row.revision,
    }


def _parse_offset(token: str | None) -> int:
    offset = decode_token(token) or "0"
    if not offset.isdecimal():
        raise InvalidInputError(f"token {token!r} was not given out here; start without one")
    return int(offset)
