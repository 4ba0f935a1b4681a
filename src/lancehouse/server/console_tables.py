"""A table or view in the console: what it is, what became of it, and who did that."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from lancehouse.catalog import records
from lancehouse.catalog.lance_metadata import is_managed
from lancehouse.gateway.tables import Known
from lancehouse.paging import after, token_after
from lancehouse.properties import managed_by
from lancehouse.schema.shown import field_json
from lancehouse.server import console_iceberg, responses

if TYPE_CHECKING:
    from lancehouse.catalog.records import Change, Entry
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.gateway.tables import Table
    from lancehouse.server.console_asked import Asked
    from lancehouse.server.responses import Response

Json = dict[str, Any]

VERSIONS = 50
MOST_VERSIONS = 200
CHANGES = 200
NO_COMMITS = frozenset({"create", "metadata"})
"""Changes of an entry that made no version: what they name was there before."""


def table(asked: Asked) -> Response:
    """What it is: kind, place, columns, and a few numbers."""
    warehouse = asked.warehouse
    entry = _entry(asked, warehouse) if warehouse is not None else None
    about: Json = {"in": asked.backend.name, "levels": asked.named(), "kind": entry.kind if entry else "lance"}
    if entry is not None:
        about |= {"uuid": entry.uuid, "created_ms": entry.created_ms, "updated_ms": entry.updated_ms}
    if warehouse is not None and entry is not None and entry.kind != "lance":
        about |= _iceberg(entry, _metadata(asked, warehouse, entry))
    else:
        about |= _lance(asked.table)
    return responses.json(about)


def versions(asked: Asked) -> Response:
    """What became of it, newest first."""
    size, token = asked.number("limit", VERSIONS, MOST_VERSIONS), asked.text("token")
    warehouse = asked.warehouse
    entry = _entry(asked, warehouse) if warehouse is not None else None
    if warehouse is not None and entry is not None and entry.kind != "lance":
        metadata = _metadata(asked, warehouse, entry)
        is_view = entry.kind == "view"
        found = console_iceberg.view_versions(metadata) if is_view else console_iceberg.snapshots(metadata)
        first = _place(token)
        shown = found[first : first + size]
        after_ = token_after(first + size) if first + size < len(found) else None
    else:
        known = _known(warehouse, entry) if warehouse is not None and entry is not None else None
        made, after_ = asked.table.versions(size, token, known)
        shown = [{**asdict(each), "version": str(each.version), "by": None} for each in made]
    if entry is not None:
        _add_committers(asked, entry, shown)
    return responses.json({"versions": shown, "next": after_})


def changes(asked: Asked) -> Response:
    """Who changed its entry in this server's catalog; other catalogs do not tell."""
    warehouse = asked.warehouse
    if warehouse is None:
        return responses.json({"changes": None})
    found = records.changes(asked.call.catalog.database, _entry(asked, warehouse), CHANGES)
    return responses.json({"changes": [_change(row) for row in found]})


def _entry(asked: Asked, warehouse: Warehouse) -> Entry:
    *levels, name = asked.named()
    return records.find(asked.call.catalog, asked.call.caller, warehouse, tuple(levels), name)


def _known(warehouse: Warehouse, entry: Entry) -> Known | None:
    """Where a Lance table is and its newest version, if it has one: whoever asks may read it."""
    if not is_managed(entry):
        return Known(entry.location, warehouse.storage, None)
    return None if entry.version is None else Known(entry.location, warehouse.storage, entry.version)


def _metadata(asked: Asked, warehouse: Warehouse, entry: Entry) -> Json:
    levels = asked.named()[:-1]
    loaded = records.load(asked.call.catalog, asked.call.caller, warehouse, levels, entry)
    metadata: Json = orjson.loads(loaded.metadata)
    return metadata


def _iceberg(entry: Entry, metadata: Json) -> Json:
    about = {
        "state": "ready",
        "problem": None,
        "location": metadata["location"],
        "properties": metadata.get("properties") or {},
        "columns": console_iceberg.columns(metadata),
    }
    if entry.kind == "view":
        return {**about, "sql": console_iceberg.current_sql(metadata), "summary": None, "tags": {}, "branches": {}}
    return {
        **about,
        **console_iceberg.layout(metadata),
        "summary": console_iceberg.summary(metadata),
        "tags": console_iceberg.refs(metadata, "tag"),
        "branches": console_iceberg.refs(metadata, "branch"),
    }


def _lance(table: Table) -> Json:
    """A table whose data cannot be opened is shown too, with the reason: that is when people look."""
    described = table.describe()
    properties = described.properties or {}
    about: Json = {
        "location": described.location,
        "properties": properties,
        "managed_by": managed_by(properties),
        "summary": None,
        "columns": [],
        "tags": {},
        "branches": {},
    }
    try:
        told, refs = table.summary(), table.refs()
    except TableNotFoundError:
        return {**about, "state": "declared", "problem": None}
    except LanceNamespaceError as error:
        if table.ref.version is not None:
            raise
        return {**about, "state": "broken", "problem": str(error)}
    numbers = {name: getattr(told, name) for name in told.__slots__ if name != "schema"}
    return {
        **about,
        "state": "ready",
        "problem": None,
        "summary": {**numbers, "version": str(told.version)},
        "columns": [field_json(field) for field in told.schema],
        "tags": _named(refs.tags),
        "branches": _named(refs.branches),
    }


def _named(refs: Any) -> dict[str, Json]:
    return {name: {"branch": branch, "version": str(version)} for name, (branch, version) in refs.items()}


def _add_committers(asked: Asked, entry: Entry, shown: list[Json]) -> None:
    """Say of each version who committed it, where the catalog knows that."""
    ids = [int(version["version"]) for version in shown]
    found = records.changes_of(asked.call.catalog.database, entry, ids)
    made = {str(row.snapshot_id): row for row in found if row.operation not in NO_COMMITS}
    for version in shown:
        row = made.get(version["version"])
        version["by"] = None if row is None else {"principal": row.principal, "client": row.client, "at_ms": row.at_ms}


def _change(row: Change) -> Json:
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


def _place(token: str | None) -> int:
    place = after(token) or "0"
    if not place.isdecimal():
        raise InvalidInputError(f"token {token!r} was not given out here; start without one")
    return int(place)
