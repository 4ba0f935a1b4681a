"""Iceberg table metadata, format version 2, as much as an emulator needs of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

NO_PARTITIONS: Json = {"spec-id": 0, "fields": []}
UNSORTED: Json = {"order-id": 0, "fields": []}


class RequirementError(Exception):
    """A commit expected another state of the table."""


def new(location: str, schema: Json, properties: Mapping[str, str]) -> Json:
    """The metadata of a table without rows; Java writes -1 for the snapshot that it has not."""
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": _now_ms(),
        "last-column-id": max(_field_ids(schema), default=0),
        "current-schema-id": 0,
        "schemas": [{**schema, "type": "struct", "schema-id": 0}],
        "default-spec-id": 0,
        "partition-specs": [NO_PARTITIONS],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [UNSORTED],
        "properties": dict(properties),
        "current-snapshot-id": -1,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def commit(metadata: Json, requirements: Sequence[Json], updates: Sequence[Json]) -> Json:
    """The metadata after a commit.

    Raises:
        RequirementError: a requirement does not hold.
        ValueError: a requirement or an update that this emulator does not know.
    """
    for requirement in requirements:
        _check(metadata, requirement)
    for update in updates:
        metadata = _apply(metadata, update)
    return {**metadata, "last-updated-ms": _now_ms()}


def _check(metadata: Json, requirement: Json) -> None:
    match requirement:
        case {"type": "assert-table-uuid", "uuid": expected}:
            found: object = metadata["table-uuid"]
        case {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": expected}:
            found = metadata["refs"].get(ref, {}).get("snapshot-id")
        case {"type": "assert-current-schema-id", "current-schema-id": expected}:
            found = metadata["current-schema-id"]
        case _:
            raise ValueError(f"unknown requirement: {requirement}")
    if found != expected:
        raise RequirementError(f"Requirement failed: {requirement['type']}: expected {expected}, found {found}")


def _apply(metadata: Json, update: Json) -> Json:
    match update:
        case {"action": "set-properties", "updates": updates}:
            return {**metadata, "properties": {**metadata["properties"], **updates}}
        case {"action": "remove-properties", "removals": removals}:
            kept = {key: value for key, value in metadata["properties"].items() if key not in removals}
            return {**metadata, "properties": kept}
        case {"action": "set-location", "location": location}:
            return {**metadata, "location": location}
        case {"action": "assign-uuid"}:
            return metadata
        case {"action": "add-snapshot", "snapshot": snapshot}:
            number = snapshot.get("sequence-number", 0)
            return {**metadata, "snapshots": [*metadata["snapshots"], snapshot], "last-sequence-number": number}
        case {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": id, "type": kind}:
            current = {"current-snapshot-id": id} if name == "main" else {}
            return {**metadata, **current, "refs": {**metadata["refs"], name: {"snapshot-id": id, "type": kind}}}
    raise ValueError(f"unknown update: {update}")


def _field_ids(type_: Any) -> Iterator[int]:
    match type_:
        case {"type": "struct", "fields": fields} | {"fields": fields}:
            for field in fields:
                yield field["id"]
                yield from _field_ids(field["type"])
        case {"type": "list", "element-id": id, "element": element}:
            yield id
            yield from _field_ids(element)
        case {"type": "map", "key-id": key_id, "key": key, "value-id": value_id, "value": value}:
            yield from (key_id, value_id)
            yield from _field_ids(key)
            yield from _field_ids(value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
