"""Conversion of Iceberg table and view metadata to the JSON that the console shows, as for Lance tables."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_KINDS = {
    "boolean": "bool",
    **dict.fromkeys(("int", "long", "float", "double"), "number"),
    **dict.fromkeys(("date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), "time"),
    **dict.fromkeys(("string", "uuid"), "text"),
    "binary": "bytes",
}


def columns(metadata: Json) -> list[Json]:
    """Return the columns of the current schema of a table or view."""
    schemas = metadata.get("schemas") or [metadata["schema"]]
    schema_id = metadata.get("current-schema-id")
    if "view-uuid" in metadata:
        schema_id = _current_view_version(metadata)["schema-id"]
    schema = next((schema for schema in schemas if schema.get("schema-id") == schema_id), schemas[-1])
    return [_field_json(field) for field in schema["fields"]]


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
    names = {field["id"]: field["name"] for schema in metadata["schemas"] for field in schema["fields"]}
    specs = {spec["spec-id"]: spec["fields"] for spec in metadata.get("partition-specs") or ()}
    orders = {order["order-id"]: order["fields"] for order in metadata.get("sort-orders") or ()}

    def format_field(field: Json) -> str:
        column = names.get(field.get("source-id"), "?")
        return column if field["transform"] == "identity" else f"{field['transform']}({column})"

    order = orders.get(metadata.get("default-sort-order-id"), ())
    return {
        "partition": [format_field(field) for field in specs.get(metadata.get("default-spec-id"), ())],
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
    return int(value) if value.isdecimal() else None
