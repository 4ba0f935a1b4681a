"""Console API for the catalog tree, and for one table or view: description, versions and changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson
from lance_namespace import DescribeNamespaceRequest, ListNamespacesRequest, ListTablesRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.catalog import listing
from lancehouse.catalog.audit import AuditFilter, to_json
from lancehouse.catalog.dropped_tables import dropped_to_json
from lancehouse.catalog.lance_metadata import is_managed
from lancehouse.paging import decode_token, encode_token
from lancehouse.properties import managed_by
from lancehouse.schema.definitions import COMPANION, COMPUTED
from lancehouse.schema.display import field_to_json
from lancehouse.server.api.lance import filter_names
from lancehouse.server.console.backend_tables import LocatedTable
from lancehouse.server.http import responses

if TYPE_CHECKING:
    import pyarrow as pa

    from lancehouse.catalog.listing import Change, Entry
    from lancehouse.catalog.warehouses import Warehouse
    from lancehouse.lake.column_states import ComputedColumn
    from lancehouse.server.console.backend_tables import BackendTable
    from lancehouse.server.console.routes import ConsoleRequest
    from lancehouse.server.http.responses import Response

PAGE = 1000
LARGEST_PAGE = 5000
LONGEST_TEXT = 400
"""Characters of the name of a function, or of its SQL."""
MAX_INPUTS = 100
"""Most inputs of a computed column that are named."""
MAX_HITS = 100
"""Most names that a search returns."""
SEARCH_S = 3.0
"""Time limit of a search in seconds; it returns what was found until then."""
_NOT_HERE = (InvalidInputError, UnsupportedOperationError)
"""Errors of a backend for a level that cannot hold what is listed."""

SearchHit = tuple[int, str, tuple[str, ...], str]
"""Rank of the match, warehouse, levels, and kind."""


def backends(request: ConsoleRequest) -> Response:
    """Return the caller's name, and the backends of which they may see anything."""
    identity, catalog = request.call.caller.identity, request.call.catalog
    visible_backends = [
        {
            "name": backend.name,
            "warehouse": backend.is_warehouse,
            "impl": None if backend.is_warehouse else backend.impl,
            "location": catalog.warehouses[backend.name].location if backend.is_warehouse else None,
        }
        for backend in request.backends.values()
        if identity.can_see(backend.name)
    ]
    return responses.json({"principal": identity.name, "backends": visible_backends})


def namespaces(request: ConsoleRequest) -> Response:
    """List the namespaces directly below one, by their last level."""
    size, token = request.get_number("limit", PAGE, LARGEST_PAGE), request.find_parameter("token")
    if (warehouse := request.warehouse) is not None:
        caller = request.call.caller
        children, next_token = request.call.catalog.namespaces.list(
            caller, warehouse, request.levels, token or "", size
        )
        return _names_response([levels[-1] for levels in children], next_token)
    lance_request = ListNamespacesRequest(id=list(request.levels), limit=size, page_token=token)
    try:
        response = request.run("list_namespaces", lance_request)
    except _NOT_HERE:
        if not request.levels:
            return _names_response([], None, is_listed=False)  # Iceberg REST and Polaris cannot list warehouses
        _describe_namespace(request)  # raises, unless this is the deepest level that the catalog has
        return _names_response([], None)
    visible_names = filter_names(request.call.caller.identity, request.backend, request.levels, response)
    return _names_response(visible_names.namespaces, response.page_token)


def namespace(request: ConsoleRequest) -> Response:
    """Return the properties of a namespace; a backend itself has none."""
    if not request.levels:
        warehouse = request.warehouse
        return responses.json({"properties": {"location": warehouse.location} if warehouse else {}})
    if (warehouse := request.warehouse) is not None:
        row = request.call.catalog.namespaces.load(request.call.caller, warehouse, request.levels)
        return responses.json({"properties": dict(row.properties)})
    try:
        return responses.json({"properties": _describe_namespace(request)})
    except _NOT_HERE:
        # A warehouse of another server; listing it fails if it does not exist.
        return responses.json({"properties": {}})


def entries(request: ConsoleRequest) -> Response:
    """List the tables and views in a namespace, with their kinds."""
    size, token = request.get_number("limit", PAGE, LARGEST_PAGE), request.find_parameter("token")
    if (warehouse := request.warehouse) is not None:
        if not request.levels:
            return _entries_response([], None)  # the warehouse itself holds no tables
        call = request.call
        try:
            names, next_token = listing.list_entries(
                call.catalog.database, call.caller, warehouse, request.levels, token or "", size
            )
        except PermissionDeniedError:
            return _entries_response([], None)  # a namespace that is only above a granted one shows none
        return _entries_response(names, next_token)
    lance_request = ListTablesRequest(id=list(request.levels), limit=size, page_token=token)
    try:
        response = request.run("list_tables", lance_request)
    except _NOT_HERE:
        return _entries_response([], None)  # most catalogs have levels that hold namespaces only
    visible_names = filter_names(request.call.caller.identity, request.backend, request.levels, response)
    return _entries_response([(name, "lance") for name in visible_names.tables], response.page_token)


def search(request: ConsoleRequest) -> Response:
    """Find namespaces, tables and views of the server's warehouses whose names contain all words."""
    words = request.get_parameter("q").lower().split()
    deadline = monotonic() + SEARCH_S
    hits: list[SearchHit] = []
    is_complete = True
    for entry in listing.search_visible(request.call.catalog, request.call.caller, words) if words else ():
        rank = _rank(words, entry)
        if rank is not None:
            hits.append((rank, *entry))
        if monotonic() > deadline or len(hits) > MAX_HITS * 20:
            is_complete = False
            break
    hits.sort()
    results = [{"in": place, "levels": levels, "kind": kind} for _, place, levels, kind in hits[:MAX_HITS]]
    return responses.json({"found": results, "whole": is_complete and len(hits) <= MAX_HITS})


def _describe_namespace(request: ConsoleRequest) -> dict[str, str]:
    lance_request = DescribeNamespaceRequest(id=list(request.levels))
    response = request.run("describe_namespace", lance_request)
    return response.properties or {}


def _rank(words: list[str], entry: listing.ListedEntry) -> int | None:
    """Return how well a name matches the words, 0 being the best; None if it does not."""
    warehouse, levels, _ = entry
    name, full_name = levels[-1].lower(), ".".join((warehouse, *levels)).lower()
    if not all(word in full_name for word in words):
        return None
    if name == words[-1]:
        return 0
    return 1 if name.startswith(words[-1]) else 2 if words[-1] in name else 3


def _names_response(names: Any, token: str | None, *, is_listed: bool = True) -> Response:
    """Build a list of names.

    `is_listed` is False where a backend cannot list them, so that the user has to know one.
    """
    return responses.json({"names": list(names), "next": token or None, "listed": is_listed})


def _entries_response(entries: Sequence[tuple[str, str]], token: str | None) -> Response:
    """Build a list of names and kinds as two arrays, instead of one object for each of thousands of entries."""
    names, kinds = [name for name, _ in entries], [kind for _, kind in entries]
    return responses.json({"names": names, "kinds": kinds, "next": token or None})


Json = dict[str, Any]

_NUMBER = re.compile(r"[0-9]{1,19}")
"""A number that a client has written. Python refuses to parse one of thousands of digits."""
_KINDS = {
    "boolean": "bool",
    **dict.fromkeys(("int", "long", "float", "double"), "number"),
    **dict.fromkeys(("date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), "time"),
    **dict.fromkeys(("string", "uuid"), "text"),
    "binary": "bytes",
}


def columns(metadata: Json) -> list[Json]:
    """Return the columns of the current schema of a table or view."""
    schemas = _schemas(metadata)
    schema_id = metadata.get("current-schema-id")
    if "view-uuid" in metadata:
        schema_id = _current_view_version(metadata)["schema-id"]
    schema = next((schema for schema in schemas if schema.get("schema-id") == schema_id), schemas[-1])
    return [_field_json(field) for field in schema["fields"]]


def _schemas(metadata: Json) -> list[Json]:
    """Return all schemas; files of format version 1 may have a single one, under another key."""
    schemas: list[Json] = metadata.get("schemas") or [metadata["schema"]]
    return schemas


def _field_json(field: Json) -> Json:
    dtype = field["type"]
    nested = dtype if isinstance(dtype, dict) else {}
    element = nested.get("element")
    parts = nested.get("fields") or (element.get("fields") if isinstance(element, dict) else None) or []
    metadata = {"doc": field["doc"]} if field.get("doc") else {}
    return {
        "name": field["name"],
        "type": _format_type(dtype),
        "kind": _value_kind(dtype),
        "size": None,
        "nullable": not field.get("required", False),
        "metadata": {"id": str(field["id"]), **metadata},
        "fields": [_field_json(part) for part in parts],
    }


def _format_type(dtype: str | Json) -> str:
    if isinstance(dtype, str):
        return dtype
    match dtype["type"]:
        case "struct":
            return f"struct<{', '.join(field['name'] for field in dtype['fields'])}>"
        case "list":
            return f"list<{_format_type(dtype['element'])}>"
        case "map":
            return f"map<{_format_type(dtype['key'])}, {_format_type(dtype['value'])}>"
    return str(dtype["type"])


def _value_kind(dtype: str | Json) -> str:
    if isinstance(dtype, dict):
        return "struct" if dtype["type"] == "struct" else "list"
    if dtype.startswith("decimal"):
        return "number"
    return "bytes" if dtype.startswith("fixed") else _KINDS.get(dtype, "other")


def summary(metadata: Json) -> Json:
    """Return a table's counts and sizes; None where the snapshot does not say."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    current = snapshots.get(metadata.get("current-snapshot-id"))
    totals = (current or {}).get("summary") or {}
    return {
        "version": str(current["snapshot-id"]) if current else None,
        "timestamp_ms": current["timestamp-ms"] if current else metadata.get("last-updated-ms"),
        "rows": _parse_count(totals, "total-records") if current else 0,
        "bytes": _parse_count(totals, "total-files-size") if current else 0,
        "fragments": _parse_count(totals, "total-data-files") if current else 0,
        "format": f"Iceberg v{metadata.get('format-version')}",
    }


def refs(metadata: Json, kind: str) -> dict[str, Json]:
    """Return the tags or branches, without main."""
    items = (metadata.get("refs") or {}).items()
    return {
        name: {"branch": None, "version": str(ref["snapshot-id"])}
        for name, ref in items
        if ref["type"] == kind and name != "main"
    }


def layout(metadata: Json) -> Json:
    """Return how rows are partitioned and sorted, as text."""
    names = {field["id"]: field["name"] for schema in _schemas(metadata) for field in schema["fields"]}
    specs = {spec["spec-id"]: spec["fields"] for spec in metadata.get("partition-specs") or ()}
    orders = {order["order-id"]: order["fields"] for order in metadata.get("sort-orders") or ()}

    def format_field(field: Json) -> str:
        column = names.get(field.get("source-id"), "?")
        return column if field["transform"] == "identity" else f"{field['transform']}({column})"

    # Files of format version 1 may have a single spec, under another key, as its fields.
    spec = specs.get(metadata.get("default-spec-id")) or metadata.get("partition-spec") or ()
    order = orders.get(metadata.get("default-sort-order-id"), ())
    return {
        "partition": [format_field(field) for field in spec],
        "sort": [f"{format_field(field)} {field['direction']}" for field in order],
    }


def snapshots(metadata: Json) -> list[Json]:
    """Return the snapshots of a table, newest first."""
    by_age = sorted(
        metadata.get("snapshots") or (),
        key=lambda snapshot: (snapshot["timestamp-ms"], snapshot.get("sequence-number", 0)),
    )
    return [_snapshot_json(snapshot) for snapshot in reversed(by_age)]


def _snapshot_json(snapshot: Json) -> Json:
    details = dict(snapshot.get("summary") or {})
    return {
        "version": str(snapshot["snapshot-id"]),
        "timestamp_ms": snapshot["timestamp-ms"],
        "operation": details.pop("operation", None),
        "rows": _parse_count(details, "total-records"),
        "files": _parse_count(details, "total-data-files"),
        "bytes": _parse_count(details, "total-files-size"),
        "message": None,
        "properties": details,
    }


def view_versions(metadata: Json) -> list[Json]:
    """Return the versions of a view, newest first, each with its SQL."""
    versions = sorted(
        metadata["versions"], key=lambda version: (version["timestamp-ms"], version["version-id"]), reverse=True
    )
    return [
        {
            "version": str(version["version-id"]),
            "timestamp_ms": version["timestamp-ms"],
            "operation": (version.get("summary") or {}).get("operation"),
            "rows": None,
            "files": None,
            "bytes": None,
            "message": None,
            "properties": version.get("summary") or {},
            "sql": view_sql(version),
        }
        for version in versions
    ]


def current_view_sql(metadata: Json) -> list[Json]:
    """Return the current SQL of a view, in each dialect."""
    return view_sql(_current_view_version(metadata))


def view_sql(version: Json) -> list[Json]:
    """Return the SQL of one version of a view, in each dialect."""
    return [
        {"dialect": representation.get("dialect", "sql"), "sql": representation.get("sql", "")}
        for representation in version["representations"]
    ]


def _current_view_version(metadata: Json) -> Json:
    version_id = metadata["current-version-id"]
    version: Json = next(candidate for candidate in metadata["versions"] if candidate["version-id"] == version_id)
    return version


def _parse_count(totals: Json, key: str) -> int | None:
    value = str(totals.get(key, ""))
    return int(value) if _NUMBER.fullmatch(value) else None


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
        history = view_versions(metadata) if is_view else snapshots(metadata)
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
    rows = listing.list_changes(request.call.catalog.database, _get_entry(request, warehouse), CHANGES)
    return responses.json({"changes": [_change_json(row) for row in rows]})


def list_dropped(request: ConsoleRequest) -> Response:
    """List dropped tables of a warehouse, or of a namespace and below; None for backends that are other catalogs."""
    warehouse, levels = request.warehouse, request.levels
    if warehouse is None:
        return responses.json({"tables": None})
    rows = request.call.catalog.dropped_tables.list(request.call.caller, warehouse)
    below = [row for row in rows if row.levels[: len(levels)] == levels]
    return responses.json({"tables": list(map(dropped_to_json, below[:LARGEST_PAGE]))})


def audit(request: ConsoleRequest) -> Response:
    """List changes in a warehouse, or in a namespace and below; None for backends that are other catalogs."""
    warehouse = request.warehouse
    if warehouse is None:
        return responses.json({"changes": None, "next": None})
    audit_filter = AuditFilter(warehouse.name, request.levels)
    before = request.find_number("before")
    rows, next_id = request.call.catalog.audit.list(request.call.caller, audit_filter, before, CHANGES)
    return responses.json({"changes": list(map(to_json, rows)), "next": next_id})


def _get_entry(request: ConsoleRequest, warehouse: Warehouse) -> Entry:
    *levels, name = request.table_levels()
    return listing.get_entry(request.call.catalog, request.call.caller, warehouse, tuple(levels), name)


def _locate(warehouse: Warehouse, entry: Entry) -> LocatedTable | None:
    """Return the location of a Lance table and its newest version; None if it has no version yet.

    The caller has checked that the table may be read.
    """
    if not is_managed(entry):
        return LocatedTable(entry.location, warehouse.storage, None)
    return None if entry.version is None else LocatedTable(entry.location, warehouse.storage, entry.version)


def _load_metadata(request: ConsoleRequest, warehouse: Warehouse, entry: Entry) -> Json:
    levels = request.table_levels()[:-1]
    loaded = listing.load_metadata(request.call.catalog, request.call.caller, warehouse, levels, entry)
    metadata: Json = orjson.loads(loaded.metadata)
    return metadata


def _describe_iceberg(entry: Entry, metadata: Json) -> Json:
    fields = {
        "state": "ready",
        "problem": None,
        "location": metadata["location"],
        "properties": metadata.get("properties") or {},
        "columns": columns(metadata),
    }
    if entry.kind == "view":
        return {
            **fields,
            "sql": current_view_sql(metadata),
            "summary": None,
            "tags": {},
            "branches": {},
        }
    return {
        **fields,
        **layout(metadata),
        "summary": summary(metadata),
        "tags": refs(metadata, "tag"),
        "branches": refs(metadata, "branch"),
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
        summary, refs = table.summary()
    except TableNotFoundError:
        return {**fields, "state": "declared", "problem": None}
    except LanceNamespaceError as error:
        if table.ref.version is not None:
            raise
        return {**fields, "state": "broken", "problem": str(error)}
    numbers = {name: getattr(summary, name) for name in summary.__slots__ if name not in ("schema", "computed")}
    computed = {column.column: column for column in summary.computed}
    described = [_column_json(field, computed.get(field.name)) for field in summary.schema]
    return {
        **fields,
        "state": "ready",
        "problem": None,
        "summary": {**numbers, "version": str(summary.version)},
        "columns": [column for column in described if not column["name"].startswith(COMPANION)],
        "kept_columns": [column for column in described if column["name"].startswith(COMPANION)],
        "tags": _refs_json(refs.tags),
        "branches": _refs_json(refs.branches),
    }


def _column_json(field: pa.Field[Any], computed: ComputedColumn | None) -> Json:
    """Describe a column, with what computes it if something does."""
    described = field_to_json(field)
    if computed is None:
        return described
    described["metadata"].pop(COMPUTED.decode(), None)
    return {**described, "computed": computed_json(computed)}


def computed_json(column: ComputedColumn) -> Json:
    """Return what computes a column; writers of a table can make these texts as long as they like."""
    return {
        "column": column.column,
        "function": column.function[:LONGEST_TEXT],
        "version": column.version[:LONGEST_TEXT],
        "title": column.title[:LONGEST_TEXT],
        "inputs": [name[:LONGEST_TEXT] for name in column.inputs[:MAX_INPUTS]],
        "since": str(column.since),
    }


def _refs_json(refs: Any) -> dict[str, Json]:
    return {name: {"branch": branch, "version": str(version)} for name, (branch, version) in refs.items()}


def _add_committers(request: ConsoleRequest, entry: Entry, version_rows: list[Json]) -> None:
    """Add to each version who committed it, where the catalog knows."""
    ids = [int(version["version"]) for version in version_rows]
    rows = listing.list_changes_of_snapshots(request.call.catalog.database, entry, ids)
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
    if not _NUMBER.fullmatch(offset):
        raise InvalidInputError(f"token {token!r} was not given out here; start without one")
    return int(offset)
