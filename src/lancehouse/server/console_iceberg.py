"""Iceberg's metadata as the console shows them: the same shapes as for a Lance table."""

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
    """The columns of the current schema, of a table or of a view."""
    schemas = metadata.get("schemas") or [metadata["schema"]]
    wanted = metadata.get("current-schema-id")
    if "view-uuid" in metadata:
        wanted = _current(metadata)["schema-id"]
    found = next((schema for schema in schemas if schema.get("schema-id") == wanted), schemas[-1])
    return [_field(field) for field in found["fields"]]


def _field(field: Json) -> Json:
    dtype = field["type"]
    nested = dtype if isinstance(dtype, dict) else {}
    element = nested.get("element")
    parts = nested.get("fields") or (element.get("fields") if isinstance(element, dict) else None) or []
    metadata = {"doc": field["doc"]} if field.get("doc") else {}
    return {
        "name": field["name"],
        "type": _type(dtype),
        "kind": _kind(dtype),
        "size": None,
        "nullable": not field.get("required", False),
        "metadata": {"id": str(field["id"]), **metadata},
        "fields": [_field(part) for part in parts],
    }


def _type(dtype: str | Json) -> str:
    if isinstance(dtype, str):
        return dtype
    match dtype["type"]:
        case "struct":
            return f"struct<{', '.join(field['name'] for field in dtype['fields'])}>"
        case "list":
            return f"list<{_type(dtype['element'])}>"
        case "map":
            return f"map<{_type(dtype['key'])}, {_type(dtype['value'])}>"
    return str(dtype["type"])


def _kind(dtype: str | Json) -> str:
    if isinstance(dtype, dict):
        return "struct" if dtype["type"] == "struct" else "list"
    if dtype.startswith("decimal"):
        return "number"
    return "bytes" if dtype.startswith("fixed") else _KINDS.get(dtype, "other")


def summary(metadata: Json) -> Json:
    """A table in a few numbers; None where no snapshot tells."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    current = snapshots.get(metadata.get("current-snapshot-id"))
    told = (current or {}).get("summary") or {}
    return {
        "version": str(current["snapshot-id"]) if current else None,
        "timestamp_ms": current["timestamp-ms"] if current else metadata.get("last-updated-ms"),
        "rows": _count(told, "total-records") if current else 0,
        "bytes": _count(told, "total-files-size") if current else 0,
        "fragments": _count(told, "total-data-files") if current else 0,
        "format": f"Iceberg v{metadata.get('format-version')}",
    }


def refs(metadata: Json, kind: str) -> dict[str, Json]:
    """The tags or branches, but for main."""
    found = (metadata.get("refs") or {}).items()
    return {
        name: {"branch": None, "version": str(ref["snapshot-id"])}
        for name, ref in found
        if ref["type"] == kind and name != "main"
    }


def layout(metadata: Json) -> Json:
    """How rows are partitioned and sorted, in words."""
    names = {field["id"]: field["name"] for schema in metadata["schemas"] for field in schema["fields"]}
    specs = {spec["spec-id"]: spec["fields"] for spec in metadata.get("partition-specs") or ()}
    orders = {order["order-id"]: order["fields"] for order in metadata.get("sort-orders") or ()}

    def told(field: Json) -> str:
        column = names.get(field.get("source-id"), "?")
        return column if field["transform"] == "identity" else f"{field['transform']}({column})"

    order = orders.get(metadata.get("default-sort-order-id"), ())
    return {
        "partition": [told(field) for field in specs.get(metadata.get("default-spec-id"), ())],
        "sort": [f"{told(field)} {field['direction']}" for field in order],
    }


def snapshots(metadata: Json) -> list[Json]:
    """What became of a table, newest first."""
    found = sorted(
        metadata.get("snapshots") or (), key=lambda each: (each["timestamp-ms"], each.get("sequence-number", 0))
    )
    return [_snapshot(snapshot) for snapshot in reversed(found)]


def _snapshot(snapshot: Json) -> Json:
    told = dict(snapshot.get("summary") or {})
    return {
        "version": str(snapshot["snapshot-id"]),
        "timestamp_ms": snapshot["timestamp-ms"],
        "operation": told.pop("operation", None),
        "rows": _count(told, "total-records"),
        "files": _count(told, "total-data-files"),
        "bytes": _count(told, "total-files-size"),
        "message": None,
        "properties": told,
    }


def view_versions(metadata: Json) -> list[Json]:
    """What a view was, newest first, each with its SQL."""
    found = sorted(metadata["versions"], key=lambda each: (each["timestamp-ms"], each["version-id"]), reverse=True)
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
            "sql": sql(version),
        }
        for version in found
    ]


def current_sql(metadata: Json) -> list[Json]:
    """What a view says now, in each dialect."""
    return sql(_current(metadata))


def sql(version: Json) -> list[Json]:
    """What a version of a view says, in each dialect."""
    return [{"dialect": told.get("dialect", "sql"), "sql": told.get("sql", "")} for told in version["representations"]]


def _current(metadata: Json) -> Json:
    wanted = metadata["current-version-id"]
    version: Json = next(each for each in metadata["versions"] if each["version-id"] == wanted)
    return version


def _count(told: Json, key: str) -> int | None:
    value = str(told.get(key, ""))
    return int(value) if value.isdecimal() else None
