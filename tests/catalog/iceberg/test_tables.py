"""Iceberg's metadata do what Iceberg's own library does, in the words that clients know, and whatever comes in."""

from __future__ import annotations

import copy
import gzip
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)
from pyiceberg.catalog.sql import SqlCatalog

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import tables as iceberg_tables
from lancehouse.catalog.iceberg.tables import IcebergTableMetadata
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from tests.catalog.iceberg.shapes import (
    CREATE,
    FIELDS,
    KEY,
    ORDER,
    PARTITION_STATISTICS,
    REQUIREMENTS,
    SCHEMA,
    SPEC,
    STATISTICS,
    UPDATES,
    UUID,
    add,
    ref,
    spoilt,
)

Json = dict[str, Any]
BLANKS = gzip.compress(b" " * (64 << 20), 1)
LINEAGE = {"first-row-id": 0, "added-rows": 5}


def table(version: int = 2, *updates: Json, **changes: Any) -> IcebergTableMetadata:
    properties = {"format-version": str(version)}
    md = iceberg_tables.new_table({**CREATE, "properties": properties, **changes}, "/t")
    return iceberg_tables.apply_updates(md, list(updates), "/t/metadata/00000-a.metadata.json")


def column(id: int, name: str, type_: Any, **extra: Any) -> Json:
    return {"id": id, "name": name, "required": False, "type": type_, **extra}


def schema(*fields: Json) -> Json:
    return {"type": "struct", "schema-id": 0, "fields": list(fields)}


def test_new_counts_ids_afresh() -> None:
    fields = [column(7, "s", {"type": "struct", "fields": [column(9, "x", "int")]}), column(3, "d", "date")]
    spec = {"fields": [{"source-id": 3, "field-id": 5, "transform": "year", "name": "y"}]}
    order = {"order-id": 9, "fields": [{**ORDER["fields"][0], "source-id": 9}]}
    md = iceberg_tables.new_table(
        {"name": "t", "schema": schema(*fields), "partition-spec": spec, "write-order": order}, "/t/"
    )
    assert [(item["id"], item["name"]) for item in md.schema()["fields"]] == [(1, "s"), (2, "d")]
    assert md.schema()["fields"][0]["type"]["fields"][0]["id"] == 3
    assert md.json["last-column-id"] == 3
    assert md.json["partition-specs"] == [
        {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "transform": "year", "name": "y"}]}
    ]
    assert md.json["sort-orders"][0]["order-id"] == 1
    assert md.json["sort-orders"][0]["fields"][0]["source-id"] == 3
    assert (md.json["last-partition-id"], md.location, md.format_version) == (1000, "/t", 2)
    assert "current-snapshot-id" not in md.json


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_is_read_back(version: int) -> None:
    md = table(version)
    raw = iceberg_tables.dump(md)
    assert md.format_version == version
    assert md.properties == {}
    assert iceberg_tables.parse(raw) == md
    assert iceberg_tables.parse(gzip.compress(raw)) == md
    read = md.to_pyiceberg()
    assert (read.format_version, str(read.table_uuid), read.schema().highest_field_id) == (version, md.table_uuid, 8)
    assert ("schema" in md.json) == (version == 1)
    assert md.json.get("next-row-id") == (0 if version == 3 else None)


def test_defaults_of_columns() -> None:
    fields = [
        column(1, "i", "int", **{"initial-default": 12, "write-default": 10}),
        column(2, "d", "double", **{"write-default": 1}),
    ]
    md = table(3, schema=schema(*fields), **{"partition-spec": None, "write-order": None})
    assert md.schema()["fields"] == [fields[0], {**fields[1], "write-default": 1.0}]
    with pytest.raises(
        IllegalArgumentError, match=r"initial default for i: non-null default \(12\) is not supported until v3"
    ):
        table(2, schema=schema(*fields))


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("boolean", True, 1),
        ("int", -(2**31), 2**31),
        ("long", 2**63 - 1, 1.5),
        ("decimal(9, 2)", "1.50", "1.5"),
        ("date", "2020-02-29", "2021-02-29"),
        ("time", "23:59:59.123456", "24:00"),
        ("timestamp", "2020-01-01T00:00:00", "2020-01-01"),
        ("timestamptz_ns", "2020-01-01T00:00:00.123456789+00:00", "2020-01-01T00:00:00+01:00"),
        ("uuid", UUID, "x"),
        ("fixed[2]", "00ff", "00"),
        ("binary", "", "0"),
        ("string", "", 1),
    ],
)
def test_defaults_are_of_their_type(type_: str, good: object, bad: object) -> None:
    plain = {"partition-spec": None, "write-order": None}
    md = table(3, schema=schema(column(1, "c", type_, **{"initial-default": good})), **plain)
    assert md.schema()["fields"][0]["initial-default"] == good
    with pytest.raises(IllegalArgumentError, match="Cannot parse default as a"):
        table(3, schema=schema(column(1, "c", type_, **{"initial-default": bad})), **plain)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": None}, "schema must be an object, got null"),
        ({"schema": schema(column(1, "v", "variant"))}, "variant is not supported until v3"),
        ({"schema": schema(column(1, "a", "int"), column(1, "b", "int"))}, "multiple fields for id 1"),
        ({"schema": schema(column(1, "a", "int"), column(2, "a", "int"))}, "multiple fields for name 'a': 1 and 2"),
        ({"schema": schema(column(1, "a", "integer"))}, "Cannot parse type string .* 'integer'"),
        ({"schema": {**SCHEMA, "identifier-field-ids": [2]}}, "as an identifier field: not a required field"),
        (
            {"partition-spec": {"fields": [{"source-id": 99, "transform": "day", "name": "d"}]}},
            "Cannot find source column",
        ),
        (
            {"partition-spec": {"fields": [{"source-id": 1, "transform": "day", "name": "d"}]}},
            "Invalid source type long",
        ),
        (
            {"partition-spec": {"fields": [{"source-id": 3, "transform": "void", "name": "id"}]}},
            "different field in schema: id",
        ),
        ({"write-order": {"order-id": 0, "fields": ORDER["fields"]}}, "Sort order ID 0 is reserved"),
        ({"properties": {"format-version": "4"}}, r"Unsupported format version: v4 \(supported: v3\)"),
        ({"properties": {"format-version": "two"}}, "must be a number, got 'two'"),
        ({"properties": {"commit.retry.num-retries": "x"}}, "commit.retry.num-retries must have integer value"),
        ({"properties": {"a": 1}}, "'a' in 'properties' must be a string, got 1"),
    ],
)
def test_no_table_can_be_made(changes: Json, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        iceberg_tables.new_table({**CREATE, **changes}, "/t")


def test_deep_schemas_are_refused_not_followed() -> None:
    type_: Any = "int"
    for level in range(900):
        type_ = {"type": "struct", "fields": [column(level + 2, "x", type_)]}
    with pytest.raises(InvalidInputError, match="nested deeper than 64 levels"):
        iceberg_tables.new_table({"name": "t", "schema": schema(column(1, "x", type_))}, "/t")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_staged_table_is_made_by_its_updates(version: int) -> None:
    staged = table(version)
    updates: list[Json] = [
        {"action": "assign-uuid", "uuid": staged.table_uuid},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": staged.schema(), "last-column-id": 8},
        *UPDATES[3:9],
    ]
    iceberg_tables.check_requirements(None, [{"type": "assert-create"}])
    made = iceberg_tables.apply_updates(None, updates, None)
    assert {**made.json, "last-updated-ms": 0} == {**staged.json, "last-updated-ms": 0}


def test_schemas_are_added_once() -> None:
    more = schema(*FIELDS, column(9, "z", "string"))
    updates: list[Json] = [
        {"action": "add-schema", "schema": {**more, "schema-id": 77}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    md = table(2, *updates)
    assert (md.json["current-schema-id"], md.json["last-column-id"]) == (1, 9)
    again = iceberg_tables.apply_updates(md, [{"action": "add-schema", "schema": more}], None)
    assert again is md
    back = iceberg_tables.apply_updates(md, [{"action": "set-current-schema", "schema-id": 0}], None)
    assert len(back.json["schemas"]) == 2
    removed = iceberg_tables.apply_updates(back, [{"action": "remove-schemas", "schema-ids": [1]}], None)
    assert [item["schema-id"] for item in removed.json["schemas"]] == [0]


def test_specs_and_orders_are_added_once() -> None:
    by_id = {
        "fields": [
            {"source-id": 1, "transform": "bucket[4]", "name": "b"},
            *[{k: v for k, v in SPEC["fields"][0].items() if k != "field-id"}],
        ]
    }
    other = {"order-id": 1, "fields": [{**ORDER["fields"][0], "direction": "desc"}]}
    md = table(
        2,
        {"action": "add-spec", "spec": by_id},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": other},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert [field["field-id"] for field in md.json["partition-specs"][1]["fields"]] == [1001, 1000]
    assert (md.json["default-spec-id"], md.json["last-partition-id"], md.json["default-sort-order-id"]) == (1, 1001, 2)
    unsorted = iceberg_tables.apply_updates(
        md,
        [
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
        ],
        None,
    )
    assert unsorted.json["default-sort-order-id"] == 0
    old = iceberg_tables.apply_updates(
        md, [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}], None
    )
    assert (old.json["default-spec-id"], len(old.json["partition-specs"])) == (0, 2)
    fewer = iceberg_tables.apply_updates(old, [{"action": "remove-partition-specs", "spec-ids": [1]}], None)
    assert [spec["spec-id"] for spec in fewer.json["partition-specs"]] == [0]


def test_snapshots_and_their_log() -> None:
    md = table(2, add(1), ref(1), add(2, 1), ref(2))
    assert [entry["snapshot-id"] for entry in md.json["snapshot-log"]] == [2]  # 1 was never seen
    md = iceberg_tables.apply_updates(md, [add(3, 2), ref(3)], None)
    md = iceberg_tables.apply_updates(md, [add(4, 3), ref(4), ref(2, "keep", "tag")], None)
    assert (md.current_snapshot_id, md.json["last-sequence-number"]) == (4, 4)
    expired = iceberg_tables.apply_updates(md, [{"action": "remove-snapshots", "snapshot-ids": [2, 3]}], None)
    assert [entry["snapshot-id"] for entry in expired.json["snapshot-log"]] == [4]
    assert list(expired.json["refs"]) == ["main"]
    empty = iceberg_tables.apply_updates(md, [{"action": "remove-snapshot-ref", "ref-name": "main"}], None)
    assert empty.current_snapshot_id is None
    assert "current-snapshot-id" not in empty.json
    before = int(time.time() * 1000)
    back = iceberg_tables.apply_updates(md, [ref(2)], None)
    assert back.json["snapshot-log"][-1]["snapshot-id"] == 2
    assert back.json["snapshot-log"][-1]["timestamp-ms"] >= before


def test_rows_are_numbered_from_version_3() -> None:
    md = table(2, add(1), ref(1))
    md = iceberg_tables.apply_updates(md, [{"action": "upgrade-format-version", "format-version": 3}], None)
    assert (md.format_version, md.json["next-row-id"]) == (3, 0)
    md = iceberg_tables.apply_updates(md, [add(2, 1, **LINEAGE), ref(2)], None)
    assert md.json["next-row-id"] == 5
    assert iceberg_tables.parse(iceberg_tables.dump(md)) == md
    with pytest.raises(ConcurrentModificationError, match="first-row-id is behind table next-row-id: 0 < 5"):
        iceberg_tables.apply_updates(md, [add(3, 2, **LINEAGE)], None)


def test_statistics_and_keys() -> None:
    md = table(
        3,
        add(1, **LINEAGE),
        {"action": "set-statistics", "statistics": {**STATISTICS, "statistics-path": "/old"}},
        {"action": "set-statistics", "statistics": STATISTICS, "snapshot-id": 1},
        {"action": "set-partition-statistics", "partition-statistics": PARTITION_STATISTICS},
        {"action": "add-encryption-key", "encryption-key": KEY},
        {"action": "add-encryption-key", "encryption-key": {**KEY, "encrypted-key-metadata": "no"}},
    )
    assert md.json["statistics"] == [STATISTICS]
    assert md.json["partition-statistics"] == [PARTITION_STATISTICS]
    assert md.json["encryption-keys"] == [KEY]
    assert iceberg_tables.parse(iceberg_tables.dump(md)) == md
    gone = iceberg_tables.apply_updates(md, [{"action": "remove-snapshots", "snapshot-ids": [1]}, UPDATES[-1]], None)
    assert (gone.json["statistics"], gone.json["partition-statistics"], gone.json["encryption-keys"]) == ([], [], [])


def test_nothing_to_do_is_nothing_done() -> None:
    md = table(2, add(1), ref(1))
    same = [
        {"action": "set-location", "location": "/t/"},
        {"action": "assign-uuid", "uuid": md.table_uuid.upper()},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-properties", "updates": {}},
        {"action": "remove-statistics", "snapshot-id": 1},
        {"action": "remove-snapshots", "snapshot-ids": [5]},
        {"action": "set-default-spec", "spec-id": 0},
        ref(1),
    ]
    assert iceberg_tables.apply_updates(md, same, "/x") is md


def test_a_commit_changes_no_other_state() -> None:
    md = table(2, add(1), ref(1))
    before = copy.deepcopy(md.json)
    iceberg_tables.apply_updates(md, [add(2, 1), *UPDATES[11:]], "/t/metadata/1-a.metadata.json")
    assert md.json == before


@pytest.mark.parametrize(
    ("version", "update", "kind", "words"),
    [
        (
            2,
            {"action": "upgrade-format-version", "format-version": 1},
            IllegalArgumentError,
            "Cannot downgrade v2 table to v1",
        ),
        (
            2,
            {"action": "upgrade-format-version", "format-version": 4},
            IllegalArgumentError,
            "unsupported format version: v4",
        ),
        (2, {"action": "assign-uuid", "uuid": UUID}, IllegalArgumentError, "Cannot reassign uuid"),
        (2, {"action": "set-current-schema", "schema-id": -1}, ValidationError, "no schema has been added"),
        (2, {"action": "set-current-schema", "schema-id": 5}, IllegalArgumentError, "unknown schema: 5"),
        (2, {"action": "set-default-spec", "spec-id": -1}, ValidationError, "no spec has been added"),
        (2, {"action": "set-default-spec", "spec-id": 5}, IllegalArgumentError, "unknown partition spec: 5"),
        (2, {"action": "set-default-sort-order", "sort-order-id": -1}, ValidationError, "no sort order has been added"),
        (2, {"action": "remove-schemas", "schema-ids": [0]}, IllegalArgumentError, "Cannot remove the current schema"),
        (2, {"action": "remove-partition-specs", "spec-ids": [0]}, IllegalArgumentError, "Cannot remove the default"),
        (2, add(1), ValidationError, "Snapshot already exists for id: 1"),
        (
            2,
            add(2, 1, **{"sequence-number": 1}),
            ConcurrentModificationError,
            "sequence number 1 older than last sequence number 1",
        ),
        (2, add(2, 1, summary={"operation": "eat"}), InvalidInputError, "operation must be one of"),
        *(
            (
                2,
                add(2, 1, **{"manifest-list": place}),
                IllegalArgumentError,
                "^snapshot 2: its manifest list lies neither",
            )
            for place in ("/etc/passwd", "/t", "/tt/x", "/t/../x", "x", "", "s3://t/x", "lance:///t/x", "http://t/x")
        ),
        (2, ref(9), ValidationError, "Cannot set main to unknown snapshot: 9"),
        (2, ref(1, "main", "tag"), ValidationError, "Cannot set main to a tag"),
        (2, ref(1, "x", "tag", **{"min-snapshots-to-keep": 1}), IllegalArgumentError, "Tags do not support setting"),
        (
            2,
            {"action": "add-view-version", "view-version": {}},
            InvalidInputError,
            "'add-view-version' is not supported",
        ),
        (2, {"action": ["x"]}, InvalidInputError, "update: 'action' must be a string, got a list"),
        (2, {"action": "remove-snapshots"}, InvalidInputError, "remove-snapshots: 'snapshot-ids' is missing"),
        (2, {"action": "remove-snapshots", "snapshot-ids": [2**63]}, InvalidInputError, "a number of 64 bits"),
        (1, add(2, 1), IllegalArgumentError, "Sequence number must be 0 in v1"),
        (3, add(2, 1), ValidationError, "first-row-id is null"),
        (
            2,
            {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "x"}},
            ValidationError,
            "must have integer value",
        ),
    ],
)
def test_updates_that_cannot_be(version: int, update: Json, kind: type[Exception], words: str) -> None:
    first = add(1, **({"sequence-number": 0} if version == 1 else LINEAGE))
    md = table(version, first, ref(1))
    with pytest.raises(kind, match=words):
        iceberg_tables.apply_updates(md, [update], "/t/metadata/00001-a.metadata.json")


@pytest.mark.parametrize(
    ("updates", "place"),
    [
        ([], "/t/metadata/s.avro"),
        ([], "file:/t/s.avro"),
        ([], "file:///t/metadata/s.avro"),
        ([{"action": "set-properties", "updates": {"write.metadata.path": "s3a://b/md/"}}], "s3://b/md/s.avro"),
        ([{"action": "set-location", "location": "/new"}], "/new/metadata/s.avro"),
        ([{"action": "set-location", "location": "/new"}], "/t/metadata/s.avro"),
    ],
)
def test_where_a_manifest_list_may_lie(updates: list[Json], place: str) -> None:
    new = add(1, **{"manifest-list": place})
    for order in ([*updates, new], [new, *updates]):
        md = iceberg_tables.apply_updates(table(), order, None)
        assert md.json["snapshots"][0]["manifest-list"] == place
        assert iceberg_tables.parse(iceberg_tables.dump(md)) == md


def test_snapshots_stay_when_a_table_moves() -> None:
    md = table(2, add(1), ref(1), {"action": "set-location", "location": "/new"})
    after = iceberg_tables.apply_updates(md, [{"action": "set-properties", "updates": {"a": "b"}}], None)
    assert after.json["snapshots"] == md.json["snapshots"]
    assert iceberg_tables.parse(iceberg_tables.dump(after)) == after


def test_a_dropped_column_takes_its_partition_along() -> None:
    fewer = schema(*[field for field in FIELDS if field["id"] != 2])
    updates: list[Json] = [{"action": "add-schema", "schema": fewer}, {"action": "set-current-schema", "schema-id": -1}]
    with pytest.raises(ValidationError, match="Cannot find source column for partition field: 1000: 'at_day': day"):
        table(2, *updates)


@pytest.mark.parametrize("late", [False, True])
def test_clocks_that_are_wrong(late: bool) -> None:
    now = int(time.time() * 1000)
    md = table(2, add(1, **{"timestamp-ms": now}), ref(1))
    at = now + 120_000 if late else now - 120_000
    with pytest.raises(IllegalArgumentError, match=r"Invalid (update|snapshot) timestamp"):
        iceberg_tables.apply_updates(md, [add(2, 1, **{"timestamp-ms": at}), ref(2)], None)


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ({"type": "assert-create"}, "Requirement failed: table already exists"),
        ({"type": "assert-table-uuid", "uuid": UUID}, "Requirement failed: UUID does not match: expected .* != "),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            "Requirement failed: branch main was created concurrently",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
            "Requirement failed: branch main has changed: expected id 2 != 1",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": 2},
            "Requirement failed: branch or tag dev is missing, expected 2",
        ),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
            "Requirement failed: last assigned field id changed: expected id 1 != 8",
        ),
        (
            {"type": "assert-current-schema-id", "current-schema-id": 1},
            "Requirement failed: current schema changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1},
            "Requirement failed: last assigned partition id changed: expected id 1 != 1000",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 1},
            "Requirement failed: default partition spec changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
            "Requirement failed: default sort order changed: expected id 0 != 1",
        ),
    ],
)
def test_requirements(requirement: Json, words: str) -> None:
    md = table(2, add(1), ref(1))
    iceberg_tables.check_requirements(md, [{**item, "uuid": md.table_uuid} for item in REQUIREMENTS[1:]])
    with pytest.raises(ConcurrentModificationError, match=words):
        iceberg_tables.check_requirements(md, [requirement])


def test_a_new_table_has_nothing_else_to_hold() -> None:
    with pytest.raises(IllegalArgumentError, match="Invalid create requirements: assert-table-uuid"):
        iceberg_tables.check_requirements(None, REQUIREMENTS[:2])
    with pytest.raises(InvalidInputError, match="requirement 'assert-luck' is not supported"):
        iceberg_tables.check_requirements(None, [{"type": "assert-luck"}])


def test_the_log_of_metadata_files() -> None:
    keep_two = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    md = table(2, {"action": "set-properties", "updates": keep_two})
    states, place = [md], "/t/metadata/00001-a.metadata.json"
    for number in range(3):
        states.append(
            iceberg_tables.apply_updates(
                states[-1], [{"action": "set-properties", "updates": {"n": str(number)}}], place
            )
        )
        place = iceberg_tables.next_metadata_location(states[-1], place)
    assert place.startswith("/t/metadata/00004-")
    assert len(states[-1].json["metadata-log"]) == 2
    assert iceberg_tables.obsolete_metadata_files(states[0], states[1]) == []
    assert iceberg_tables.obsolete_metadata_files(states[1], states[2]) == ["/t/metadata/00000-a.metadata.json"]
    off = iceberg_tables.apply_updates(states[2], [{"action": "remove-properties", "removals": list(keep_two)}], None)
    assert iceberg_tables.obsolete_metadata_files(states[1], off) == []


@pytest.mark.parametrize(
    ("properties", "previous", "start"),
    [
        ({}, None, "/t/metadata/00000-"),
        ({}, "/t/metadata/00041-x.metadata.json", "/t/metadata/00042-"),
        ({}, "/t/metadata/v7.metadata.json", "/t/metadata/00000-"),
        ({"write.metadata.path": "s3://b/md/"}, "/t/metadata/99999-x.metadata.json", "s3://b/md/100000-"),
    ],
)
def test_where_the_next_file_goes(properties: Json, previous: str | None, start: str) -> None:
    place = iceberg_tables.next_metadata_location(
        table(2, {"action": "set-properties", "updates": properties}), previous
    )
    assert place.startswith(start)
    assert place.endswith(".metadata.json")


def test_only_snapshots_that_are_named() -> None:
    md = table(2, add(1), add(2, 1), add(3, 2), ref(3), ref(1, "keep", "tag"))
    few = orjson.loads(iceberg_tables.keep_ref_snapshots(iceberg_tables.dump(md)))
    assert [snapshot["snapshot-id"] for snapshot in few["snapshots"]] == [1, 3]
    assert {**few, "snapshots": md.json["snapshots"]} == md.json


def test_old_files_are_completed() -> None:
    old = {
        "format-version": 1,
        "location": "/t",
        "last-updated-ms": 5,
        "last-column-id": 8,
        "schema": SCHEMA,
        "partition-spec": [{"source-id": 1, "transform": "identity", "name": "id"}],
        "current-snapshot-id": 1,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 5, "manifests": ["/t/m.avro"]}],
    }
    md = iceberg_tables.parse(orjson.dumps(old))
    assert md.json["partition-specs"][0]["fields"][0]["field-id"] == 1000
    assert md.json["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert md.json["last-partition-id"] == 1000
    assert iceberg_tables.parse(orjson.dumps(old)).table_uuid == md.table_uuid
    after = iceberg_tables.apply_updates(md, [{"action": "upgrade-format-version", "format-version": 2}], None)
    assert "schema" not in after.json
    assert after.json["last-sequence-number"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format-version": 9}, "Cannot read unsupported version"),
        ({"current-schema-id": 9}, "no schema-id 9 in schemas"),
        ({"default-spec-id": 9}, "no spec-id 9 in partition-specs"),
        ({"current-snapshot-id": 9}, "Cannot find current version"),
        ({"refs": {"main": {"snapshot-id": 9, "type": "branch"}}}, "ref main names snapshot 9"),
        ({"table-uuid": "x"}, "must be a UUID"),
        ({"snapshots": {}}, "'snapshots' must be a list, got an object"),
    ],
)
def test_files_that_are_no_table(changes: Json, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        iceberg_tables.parse(orjson.dumps({**table(2).json, **changes}))


@pytest.mark.parametrize("spec", [5, {"fields": []}, "x"])
def test_old_files_whose_partition_spec_is_no_list(spec: object) -> None:
    old = {"format-version": 1, "location": "/t", "last-updated-ms": 5, "last-column-id": 8, "schema": SCHEMA}
    with pytest.raises(InvalidInputError, match="'partition-spec' must be a list"):
        iceberg_tables.parse(orjson.dumps({**old, "partition-spec": spec}))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\x1f\x8bnonsense", gzip.compress(b"{}", mtime=0)[:-9], b"\xff"])
def test_files_that_are_nothing(raw: bytes) -> None:
    with pytest.raises(InvalidInputError):
        iceberg_tables.parse(raw)


def test_a_file_is_unpacked_no_further_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    md = table()
    raw = iceberg_tables.dump(md)
    most = len(raw) + 3_000_000
    monkeypatch.setattr(iceberg_tables, "MAX_BYTES", most)
    assert iceberg_tables.parse(gzip.compress(raw + b" " * 3_000_000)) == md
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="bytes when unpacked, which is the most that is read"):
        iceberg_tables.parse(BLANKS)
    assert tracemalloc.get_traced_memory()[1] < 3 * most
    tracemalloc.stop()


def test_what_pyiceberg_cannot_read_is_kept() -> None:
    md = table(3, schema=schema(column(1, "v", "variant")), **{"partition-spec": None, "write-order": None})
    assert iceberg_tables.parse(iceberg_tables.dump(md)).schema()["fields"][0]["type"] == "variant"
    with pytest.raises(UnsupportedOperationError, match="cannot read this table"):
        md.to_pyiceberg()


def test_purge(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("n")
    rows = pa.table({"x": [1, 2, 3]})
    made = catalog.create_table("n.t", rows.schema)
    made.append(rows)
    made.append(rows)
    made.delete("x = 2")
    files = WarehouseFiles(Warehouse(1, "w", str(tmp_path)))
    md = iceberg_tables.parse(files.read(made.metadata_location))
    root = tmp_path / "wh" / "n" / "t"
    everything = {str(path) for path in root.rglob("*") if path.is_file()}
    doomed = list(iceberg_tables.list_purge_files(md, files))
    found = [file.removeprefix("file://") for file in (*doomed, made.metadata_location)]
    assert sorted(found) == sorted(everything)
    kept = iceberg_tables.apply_updates(md, [{"action": "set-properties", "updates": {"gc.enabled": "false"}}], None)
    assert not any(file.endswith(".parquet") for file in iceberg_tables.list_purge_files(kept, files))
    moved = iceberg_tables.apply_updates(md, [{"action": "set-location", "location": f"{tmp_path}/elsewhere"}], None)
    assert list(iceberg_tables.list_purge_files(moved, files)) == []
    for file in everything:
        if file.endswith(".avro"):
            Path(file).write_bytes(Path(file).read_bytes()[:200])
    left = [file for file in iceberg_tables.list_purge_files(md, files) if file.endswith(".parquet")]
    assert left == []
    catalog.engine.dispose()


QUIET = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUIET
@given(spoilt(CREATE))
@example(CREATE)
def test_new_takes_anything(request: Any) -> None:
    try:
        md = iceberg_tables.new_table(request, "/t")
    except LanceNamespaceError:
        return
    assert iceberg_tables.parse(iceberg_tables.dump(md)) == md


@QUIET
@given(st.sampled_from([None, 1, 2, 3]), spoilt(UPDATES), spoilt(REQUIREMENTS))
@example(None, UPDATES, REQUIREMENTS[:1])
def test_commits_take_anything(version: int | None, updates: Any, requirements: Any) -> None:
    md = table(version) if version else None
    with suppress(LanceNamespaceError):
        iceberg_tables.check_requirements(md, requirements)
    try:
        after = iceberg_tables.apply_updates(md, updates, "/t/metadata/00000-a.metadata.json")
    except LanceNamespaceError:
        return
    assert iceberg_tables.parse(iceberg_tables.dump(after)) == after


@QUIET
@given(st.sampled_from([1, 2, 3]), st.data())
def test_each_update_takes_anything(version: int, data: st.DataObject) -> None:
    md = table(version, add(1, **({"sequence-number": 0} if version == 1 else LINEAGE)), ref(1))
    update = data.draw(spoilt(data.draw(st.sampled_from([*UPDATES, add(2, 1, **LINEAGE)]))))
    try:
        after = iceberg_tables.apply_updates(md, [update], "/t/metadata/00000-a.metadata.json")
    except LanceNamespaceError:
        return
    assert iceberg_tables.parse(iceberg_tables.dump(after)) == after


@QUIET
@given(st.data())
def test_files_hold_anything(data: st.DataObject) -> None:
    md = table(data.draw(st.sampled_from([1, 2, 3])), *data.draw(st.sampled_from([[], UPDATES[19:]])))
    spoiled = data.draw(spoilt(md.json))
    try:
        raw = orjson.dumps(spoiled)
    except TypeError:
        return  # numbers that no JSON file of ours can hold
    try:
        read = iceberg_tables.parse(raw)
    except LanceNamespaceError:
        return
    iceberg_tables.keep_ref_snapshots(raw)
    assert iceberg_tables.parse(iceberg_tables.dump(read)) == read
