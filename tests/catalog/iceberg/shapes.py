"""Well-formed Iceberg requests, and how to spoil them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW = 1_700_000_000_000

FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "required": True, "type": "long"},
    {"id": 2, "name": "at", "required": False, "type": "timestamp", "doc": "when"},
    {
        "id": 3,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 4, "element": "string", "element-required": False},
    },
    {
        "id": 5,
        "name": "more",
        "required": False,
        "type": {
            "type": "map",
            "key-id": 6,
            "key": "string",
            "value-id": 7,
            "value": {"type": "struct", "fields": [{"id": 8, "name": "x", "required": True, "type": "decimal(9,2)"}]},
            "value-required": False,
        },
    },
]
SCHEMA: dict[str, Any] = {"type": "struct", "schema-id": 0, "identifier-field-ids": [1], "fields": FIELDS}
SPEC: dict[str, Any] = {
    "spec-id": 0,
    "fields": [{"source-id": 2, "field-id": 1000, "transform": "day", "name": "at_day"}],
}
ORDER: dict[str, Any] = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
}
CREATE: dict[str, Any] = {
    "name": "t",
    "schema": SCHEMA,
    "partition-spec": SPEC,
    "write-order": ORDER,
    "properties": {"format-version": "2", "owner": "me"},
}


def snapshot(id: int, parent: int | None = None, /, **changes: Any) -> dict[str, Any]:
    return {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": NOW + id,
        "manifest-list": f"/t/metadata/snap-{id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        **changes,
    }


def add(id: int, parent: int | None = None, /, **changes: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot(id, parent, **changes)}


def ref(id: int, name: str = "main", kind: str = "branch", /, **extra: Any) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": id, **extra}


STATISTICS: dict[str, Any] = {
    "snapshot-id": 1,
    "statistics-path": "/t/metadata/1.stats",
    "file-size-in-bytes": 10,
    "file-footer-size-in-bytes": 4,
    "blob-metadata": [{"type": "anything", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}],
}
PARTITION_STATISTICS: dict[str, Any] = {
    "snapshot-id": 1,
    "statistics-path": "/t/metadata/1.parquet",
    "file-size-in-bytes": 10,
}
KEY: dict[str, Any] = {
    "key-id": "k",
    "encrypted-key-metadata": "AAAA",
    "encrypted-by-id": "m",
    "properties": {"a": "b"},
}

UPDATES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": UUID},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": SCHEMA, "last-column-id": 8},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": SPEC},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "set-location", "location": "/t"},
    add(1),
    ref(1),
    ref(1, "keep", "tag", **{"max-ref-age-ms": 5}),
    ref(1, "dev", **{"min-snapshots-to-keep": 2, "max-snapshot-age-ms": 5}),
    {"action": "set-statistics", "statistics": STATISTICS},
    {"action": "set-partition-statistics", "partition-statistics": PARTITION_STATISTICS},
    {"action": "remove-statistics", "snapshot-id": 1},
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-snapshot-ref", "ref-name": "dev"},
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "remove-partition-specs", "spec-ids": [7]},
    {"action": "remove-schemas", "schema-ids": [7]},
    {"action": "add-encryption-key", "encryption-key": KEY},
    {"action": "remove-encryption-key", "key-id": "k"},
]
"""Every action there is; in this order they make a table out of nothing."""

REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": UUID},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 8},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]

VIEW_VERSION: dict[str, Any] = {
    "version-id": 1,
    "timestamp-ms": NOW,
    "schema-id": -1,
    "summary": {"engine-name": "spark"},
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    "default-catalog": "c",
    "default-namespace": ["a", "b"],
}
CREATE_VIEW: dict[str, Any] = {"name": "v", "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {"a": "b"}}
VIEW_UPDATES: list[dict[str, Any]] = [
    {"action": "upgrade-format-version", "format-version": 1},
    {"action": "add-schema", "schema": SCHEMA},
    {"action": "set-location", "location": "/v2"},
    {"action": "set-properties", "updates": {"a": "b", "version.history.num-entries": "3"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "add-view-version", "view-version": {**VIEW_VERSION, "default-namespace": ["z"]}},
    {"action": "set-current-view-version", "view-version-id": -1},
]

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 3, 4, 1000, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308]),
    st.sampled_from(["", "x", "main", "struct", "long", "bucket[0]", "truncate[", "decimal(99,1)", "variant", UUID]),
    st.sampled_from(
        ["fixed[99999999999]", "unknown", "geometry(a)", "1", "-1", "add-schema", "assert-create", "ß" * 300]
    ),
    st.sampled_from([[], {}, [None], [[]], [{}], {"": None}, {"type": "struct"}, [1, "1"]]),
    st.integers(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)


@st.composite
def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """The value with up to three parts of it replaced by something, removed, or put in twice."""
    whole = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(whole))
        parent, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "remove", "again"])):
            case "remove" if parent is not whole:
                del parent[key]
            case "again" if isinstance(parent, list) and parent is not whole:
                parent.append(copy.deepcopy(parent[key]))
            case _:
                parent[key] = copy.deepcopy(draw(JUNK))
    return whole[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
