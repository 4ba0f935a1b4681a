"""Parse snapshots, refs, statistics files and encryption keys in Iceberg table metadata."""

from __future__ import annotations

from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import json_values
from lancehouse.catalog.iceberg.json_values import Json

OPERATIONS = ("append", "replace", "overwrite", "delete")
"""Values that Iceberg allows for `operation` in a snapshot's summary."""


def parse_snapshot(value: object) -> Json:
    """Parse a snapshot."""
    where = "snapshot"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "snapshot-id": _parse_count(json, "snapshot-id", where),
        "parent-snapshot-id": json_values.optional_integer(json, "parent-snapshot-id", where, bits=64),
        "sequence-number": _parse_optional_count(json, "sequence-number", where) or 0,
        "timestamp-ms": json_values.integer(json, "timestamp-ms", where, bits=64),
        "manifest-list": json_values.text(json, "manifest-list", where),
        "summary": _parse_summary(json),
        "schema-id": json_values.optional_integer(json, "schema-id", where),
        "first-row-id": _parse_optional_count(json, "first-row-id", where),
        "added-rows": _parse_optional_count(json, "added-rows", where),
        "key-id": json_values.optional_text(json, "key-id", where),
    }
    if parsed["first-row-id"] is not None and parsed["added-rows"] is None:
        raise IllegalArgumentError("Invalid added-rows (required when first-row-id is set): null")
    return _drop_nulls(parsed)


def parse_ref(json: Json, where: str) -> Json:
    """Parse a branch or a tag."""
    kind = json_values.text(json, "type", where).lower()
    if kind not in ("branch", "tag"):
        raise InvalidInputError(f"{where}: 'type' must be branch or tag, got {json_values.format_value(kind)}")
    parsed: Json = {
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "type": kind,
        "min-snapshots-to-keep": json_values.optional_integer(json, "min-snapshots-to-keep", where),
        "max-snapshot-age-ms": json_values.optional_integer(json, "max-snapshot-age-ms", where, bits=64),
        "max-ref-age-ms": json_values.optional_integer(json, "max-ref-age-ms", where, bits=64),
    }
    for key, name, words in (
        ("min-snapshots-to-keep", "minSnapshotsToKeep", "Min snapshots to keep must be greater than 0"),
        ("max-snapshot-age-ms", "maxSnapshotAgeMs", "Max snapshot age must be greater than 0 ms"),
        ("max-ref-age-ms", None, "Max reference age must be greater than 0"),
    ):
        if parsed[key] is not None and kind == "tag" and name:
            raise IllegalArgumentError(f"Tags do not support setting {name}")
        if parsed[key] is not None and parsed[key] <= 0:
            raise IllegalArgumentError(words)
    return _drop_nulls(parsed)


def parse_statistics(value: object) -> Json:
    """Parse a statistics file of a table."""
    where = "statistics"
    json = json_values.require_object(value, where)
    parsed = {
        **parse_partition_statistics(json, where),
        "file-footer-size-in-bytes": _parse_count(json, "file-footer-size-in-bytes", where),
        "key-metadata": json_values.optional_text(json, "key-metadata", where),
        "blob-metadata": [_parse_blob(item) for item in json_values.items(json, "blob-metadata", where)],
    }
    return _drop_nulls(parsed)


def parse_partition_statistics(value: object, where: str = "partition-statistics") -> Json:
    """Parse a partition statistics file."""
    json = json_values.require_object(value, where)
    return {
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "statistics-path": json_values.text(json, "statistics-path", where),
        "file-size-in-bytes": _parse_count(json, "file-size-in-bytes", where),
    }


def parse_encryption_key(value: object) -> Json:
    """Parse an encryption key, which is itself encrypted."""
    where = "encryption-key"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "key-id": json_values.text(json, "key-id", where),
        "encrypted-key-metadata": json_values.text(json, "encrypted-key-metadata", where),
        "encrypted-by-id": json_values.optional_text(json, "encrypted-by-id", where),
        "properties": json_values.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_summary(json: Json) -> dict[str, str]:
    summary = dict(json_values.string_map(json, "summary", "snapshot"))
    operation = summary.setdefault("operation", "overwrite")
    if operation not in OPERATIONS:
        raise InvalidInputError(
            f"snapshot: operation must be one of {', '.join(OPERATIONS)}, got {json_values.format_value(operation)}"
        )
    return summary


def _parse_blob(value: object) -> Json:
    where = "blob-metadata"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "type": json_values.text(json, "type", where),
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "sequence-number": json_values.integer(json, "sequence-number", where, bits=64),
        "fields": json_values.integers(json, "fields", where),
        "properties": json_values.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_count(json: Json, key: str, where: str) -> int:
    json_values.integer(json, key, where, bits=64)
    return _parse_optional_count(json, key, where) or 0


def _parse_optional_count(json: Json, key: str, where: str) -> int | None:
    value = json_values.optional_integer(json, key, where, bits=64)
    if value is not None and value < 0:
        raise IllegalArgumentError(f"{where}: Invalid {key} (cannot be negative): {value}")
    return value


def _drop_nulls(json: dict[str, Any]) -> Json:
    return {key: value for key, value in json.items() if value is not None}
