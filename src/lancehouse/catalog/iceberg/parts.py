"""The smaller parts of Iceberg's table metadata, as a client may send them: only what the format names is kept."""

from __future__ import annotations

from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import shapes
from lancehouse.catalog.iceberg.shapes import Json

OPERATIONS = ("append", "replace", "overwrite", "delete")


def snapshot(value: object) -> Json:
    """A snapshot."""
    where = "snapshot"
    given = shapes.mapping(value, where)
    found: Json = {
        "snapshot-id": _count(given, "snapshot-id", where),
        "parent-snapshot-id": shapes.optional_integer(given, "parent-snapshot-id", where, bits=64),
        "sequence-number": _optional_count(given, "sequence-number", where) or 0,
        "timestamp-ms": shapes.integer(given, "timestamp-ms", where, bits=64),
        "manifest-list": shapes.text(given, "manifest-list", where),
        "summary": _summary(given),
        "schema-id": shapes.optional_integer(given, "schema-id", where),
        "first-row-id": _optional_count(given, "first-row-id", where),
        "added-rows": _optional_count(given, "added-rows", where),
        "key-id": shapes.optional_text(given, "key-id", where),
    }
    if found["first-row-id"] is not None and found["added-rows"] is None:
        raise IllegalArgumentError("Invalid added-rows (required when first-row-id is set): null")
    return _present(found)


def reference(given: Json, where: str) -> Json:
    """A branch or a tag."""
    kind = shapes.text(given, "type", where).lower()
    if kind not in ("branch", "tag"):
        raise InvalidInputError(f"{where}: 'type' must be branch or tag, got {shapes.shown(kind)}")
    found: Json = {
        "snapshot-id": shapes.integer(given, "snapshot-id", where, bits=64),
        "type": kind,
        "min-snapshots-to-keep": shapes.optional_integer(given, "min-snapshots-to-keep", where),
        "max-snapshot-age-ms": shapes.optional_integer(given, "max-snapshot-age-ms", where, bits=64),
        "max-ref-age-ms": shapes.optional_integer(given, "max-ref-age-ms", where, bits=64),
    }
    for key, name, words in (
        ("min-snapshots-to-keep", "minSnapshotsToKeep", "Min snapshots to keep must be greater than 0"),
        ("max-snapshot-age-ms", "maxSnapshotAgeMs", "Max snapshot age must be greater than 0 ms"),
        ("max-ref-age-ms", None, "Max reference age must be greater than 0"),
    ):
        if found[key] is not None and kind == "tag" and name:
            raise IllegalArgumentError(f"Tags do not support setting {name}")
        if found[key] is not None and found[key] <= 0:
            raise IllegalArgumentError(words)
    return _present(found)


def statistics(value: object) -> Json:
    """A file of statistics of a table."""
    where = "statistics"
    given = shapes.mapping(value, where)
    found = {
        **partition_statistics(given, where),
        "file-footer-size-in-bytes": _count(given, "file-footer-size-in-bytes", where),
        "key-metadata": shapes.optional_text(given, "key-metadata", where),
        "blob-metadata": [_blob(item) for item in shapes.items(given, "blob-metadata", where)],
    }
    return _present(found)


def partition_statistics(value: object, where: str = "partition-statistics") -> Json:
    """A file of statistics of partitions."""
    given = shapes.mapping(value, where)
    return {
        "snapshot-id": shapes.integer(given, "snapshot-id", where, bits=64),
        "statistics-path": shapes.text(given, "statistics-path", where),
        "file-size-in-bytes": _count(given, "file-size-in-bytes", where),
    }


def encryption_key(value: object) -> Json:
    """A key, itself encrypted."""
    where = "encryption-key"
    given = shapes.mapping(value, where)
    found: Json = {
        "key-id": shapes.text(given, "key-id", where),
        "encrypted-key-metadata": shapes.text(given, "encrypted-key-metadata", where),
        "encrypted-by-id": shapes.optional_text(given, "encrypted-by-id", where),
        "properties": shapes.optional_strings(given, "properties", where) or None,
    }
    return _present(found)


def _summary(given: Json) -> dict[str, str]:
    summary = dict(shapes.strings(given, "summary", "snapshot"))
    operation = summary.setdefault("operation", "overwrite")
    if operation not in OPERATIONS:
        raise InvalidInputError(
            f"snapshot: operation must be one of {', '.join(OPERATIONS)}, got {shapes.shown(operation)}"
        )
    return summary


def _blob(value: object) -> Json:
    where = "blob-metadata"
    given = shapes.mapping(value, where)
    found: Json = {
        "type": shapes.text(given, "type", where),
        "snapshot-id": shapes.integer(given, "snapshot-id", where, bits=64),
        "sequence-number": shapes.integer(given, "sequence-number", where, bits=64),
        "fields": shapes.integers(given, "fields", where),
        "properties": shapes.optional_strings(given, "properties", where) or None,
    }
    return _present(found)


def _count(given: Json, key: str, where: str) -> int:
    shapes.integer(given, key, where, bits=64)
    return _optional_count(given, key, where) or 0


def _optional_count(given: Json, key: str, where: str) -> int | None:
    value = shapes.optional_integer(given, key, where, bits=64)
    if value is not None and value < 0:
        raise IllegalArgumentError(f"{where}: Invalid {key} (cannot be negative): {value}")
    return value


def _present(found: dict[str, Any]) -> Json:
    return {key: value for key, value in found.items() if value is not None}
