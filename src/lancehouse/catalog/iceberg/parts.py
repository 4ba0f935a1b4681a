"""The smaller parts of Iceberg's table metadata, as a client may send them: only what the format names is kept."""

from __future__ import annotations

from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import shapes
from lancehouse.catalog.iceberg.shapes import Json

OPERATIONS = ("append", "replace", "overwrite", "delete")


def parse_snapshot(value: object) -> Json:
    """A snapshot."""
    where = "snapshot"
    json = shapes.require_object(value, where)
    parsed: Json = {
        "snapshot-id": _parse_count(json, "snapshot-id", where),
        "parent-snapshot-id": shapes.optional_integer(json, "parent-snapshot-id", where, bits=64),
        "sequence-number": _parse_optional_count(json, "sequence-number", where) or 0,
        "timestamp-ms": shapes.integer(json, "timestamp-ms", where, bits=64),
        "manifest-list": shapes.text(json, "manifest-list", where),
        "summary": _parse_summary(json),
        "schema-id": shapes.optional_integer(json, "schema-id", where),
        "first-row-id": _parse_optional_count(json, "first-row-id", where),
        "added-rows": _parse_optional_count(json, "added-rows", where),
        "key-id": shapes.optional_text(json, "key-id", where),
    }
    if parsed["first-row-id"] is not None and parsed["added-rows"] is None:
        raise IllegalArgumentError("Invalid added-rows (required when first-row-id is set): null")
    return _drop_nulls(parsed)


def parse_ref(json: Json, where: str) -> Json:
    """A branch or a tag."""
    kind = shapes.text(json, "type", where).lower()
    if kind not in ("branch", "tag"):
        raise InvalidInputError(f"{where}: 'type' must be branch or tag, got {shapes.format_value(kind)}")
    parsed: Json = {
        "snapshot-id": shapes.integer(json, "snapshot-id", where, bits=64),
        "type": kind,
        "min-snapshots-to-keep": shapes.optional_integer(json, "min-snapshots-to-keep", where),
        "max-snapshot-age-ms": shapes.optional_integer(json, "max-snapshot-age-ms", where, bits=64),
        "max-ref-age-ms": shapes.optional_integer(json, "max-ref-age-ms", where, bits=64),
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
    """A file of statistics of a table."""
    where = "statistics"
    json = shapes.require_object(value, where)
    parsed = {
        **parse_partition_statistics(json, where),
        "file-footer-size-in-bytes": _parse_count(json, "file-footer-size-in-bytes", where),
        "key-metadata": shapes.optional_text(json, "key-metadata", where),
        "blob-metadata": [_parse_blob(item) for item in shapes.items(json, "blob-metadata", where)],
    }
    return _drop_nulls(parsed)


def parse_partition_statistics(value: object, where: str = "partition-statistics") -> Json:
    """A file of statistics of partitions."""
    json = shapes.require_object(value, where)
    return {
        "snapshot-id": shapes.integer(json, "snapshot-id", where, bits=64),
        "statistics-path": shapes.text(json, "statistics-path", where),
        "file-size-in-bytes": _parse_count(json, "file-size-in-bytes", where),
    }


def parse_encryption_key(value: object) -> Json:
    """A key, itself encrypted."""
    where = "encryption-key"
    json = shapes.require_object(value, where)
    parsed: Json = {
        "key-id": shapes.text(json, "key-id", where),
        "encrypted-key-metadata": shapes.text(json, "encrypted-key-metadata", where),
        "encrypted-by-id": shapes.optional_text(json, "encrypted-by-id", where),
        "properties": shapes.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_summary(json: Json) -> dict[str, str]:
    summary = dict(shapes.string_map(json, "summary", "snapshot"))
    operation = summary.setdefault("operation", "overwrite")
    if operation not in OPERATIONS:
        raise InvalidInputError(
            f"snapshot: operation must be one of {', '.join(OPERATIONS)}, got {shapes.format_value(operation)}"
        )
    return summary


def _parse_blob(value: object) -> Json:
    where = "blob-metadata"
    json = shapes.require_object(value, where)
    parsed: Json = {
        "type": shapes.text(json, "type", where),
        "snapshot-id": shapes.integer(json, "snapshot-id", where, bits=64),
        "sequence-number": shapes.integer(json, "sequence-number", where, bits=64),
        "fields": shapes.integers(json, "fields", where),
        "properties": shapes.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_count(json: Json, key: str, where: str) -> int:
    shapes.integer(json, key, where, bits=64)
    return _parse_optional_count(json, key, where) or 0


def _parse_optional_count(json: Json, key: str, where: str) -> int | None:
    value = shapes.optional_integer(json, key, where, bits=64)
    if value is not None and value < 0:
        raise IllegalArgumentError(f"{where}: Invalid {key} (cannot be negative): {value}")
    return value


def _drop_nulls(json: dict[str, Any]) -> Json:
    return {key: value for key, value in json.items() if value is not None}
